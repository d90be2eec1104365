// Small kernels with one planted bug each, and their correct twins: what each detector has to find.
#include "hopper.cuh"

namespace {
constexpr int LANES = 32;
}

__global__ void grid_race(float* out, const float* in) {  // two blocks write one element
  out[(blockIdx.x * blockDim.x + threadIdx.x) / 64] = in[blockIdx.x * blockDim.x + threadIdx.x];
}
__global__ void missing_atomic(float* out, const float* in) { out[0] += in[threadIdx.x]; }
__global__ void with_atomic(float* out, const float* in) { atomicAdd(out, in[threadIdx.x]); }

__global__ void missing_barrier(float* out, const float* in) {
  GDT_SHARED(float, s, [64]);
  s[threadIdx.x] = in[threadIdx.x];
  out[threadIdx.x] = s[63 - threadIdx.x];
}
__global__ void with_barrier(float* out, const float* in) {
  GDT_SHARED(float, s, [64]);
  s[threadIdx.x] = in[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = s[63 - threadIdx.x];
}
__global__ void warp_synchronous(float* out, const float* in) {  // the idiom of before Volta: no __syncwarp
  GDT_SHARED(float, s, [LANES]);
  s[threadIdx.x] = in[threadIdx.x];
  for (int half = LANES / 2; half; half /= 2)
    if (threadIdx.x < half) s[threadIdx.x] += s[threadIdx.x + half];
  if (threadIdx.x == 0) out[0] = s[0];
}
__global__ void barrier_in_branch(float* out, const float* in) {
  GDT_SHARED(float, s, [64]);
  s[threadIdx.x] = in[threadIdx.x];
  if (threadIdx.x < 40) __syncthreads();
  out[threadIdx.x] = s[63 - threadIdx.x];
}
__global__ void shuffle_in_branch(float* out, const float* in) {  // a full mask under divergence
  float v = in[threadIdx.x];
  if (threadIdx.x < 20) v += __shfl_xor_sync(ALL_LANES, v, 1);
  out[threadIdx.x] = v;
}
__global__ void unwritten_shared(float* out, const float* in) {
  GDT_SHARED(float, s, [64]);
  if (threadIdx.x < 63) s[threadIdx.x] = in[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = s[threadIdx.x];
}
__global__ void misaligned_pack(float* out, const float* in) {
  out[threadIdx.x] = reinterpret_cast<const Pack<float, 4>*>(in + 1)[threadIdx.x].of[0];
}
__global__ void row_overrun(float* out, const float* in) {  // inside the array, outside the row
  GDT_SHARED(float, s, [4][8]);
  s[threadIdx.x / 8 % 4][threadIdx.x % 9] = in[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = s[threadIdx.x / 8 % 4][threadIdx.x % 8];
}
__global__ void shared_overrun(float* out, const float* in) {
  GDT_SHARED(float, s, [60]);
  float* p = s;
  p[threadIdx.x] = in[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = p[threadIdx.x];
}
__global__ void write_past_the_end(float* out, const float* in) { out[threadIdx.x + 1] = in[threadIdx.x]; }
__global__ void read_past_the_end(float* out, const float* in) { out[threadIdx.x] = in[threadIdx.x + 1]; }
__global__ void write_to_input(float* out, const float* in) { const_cast<float*>(in)[threadIdx.x] = out[threadIdx.x] = 1.f; }

__global__ void last_block(float* out, const float* in, unsigned* done) {  // the last block adds up: correct
  GDT_SHARED(bool, last, [1]);
  if (threadIdx.x == 0) {
    out[1 + blockIdx.x] = in[blockIdx.x];
    __threadfence();
    last[0] = atomicAdd(done, 1u) == gridDim.x - 1;
  }
  __syncthreads();
  if (!last[0] || threadIdx.x != 0) return;
  __threadfence();
  out[0] = 0.f;
  for (int b = 0; b < gridDim.x; b++) out[0] += out[1 + b];
}
__global__ void last_block_without_fence(float* out, const float* in, unsigned* done) {
  GDT_SHARED(bool, last, [1]);
  if (threadIdx.x == 0) {
    out[1 + blockIdx.x] = in[blockIdx.x];
    last[0] = atomicAdd(done, 1u) == gridDim.x - 1;
  }
  __syncthreads();
  if (!last[0] || threadIdx.x != 0) return;
  out[0] = 0.f;
  for (int b = 0; b < gridDim.x; b++) out[0] += out[1 + b];
}
__global__ void copy_without_wait(float* out, const float* in) {
  typedef Pack<float, 4> Four;
  GDT_SHARED(Four, s, [LANES]);
  ptx::copy_async_16(&s[threadIdx.x], in + threadIdx.x * 4, 16);
  ptx::copy_async_commit();
  out[threadIdx.x] = s[threadIdx.x].of[0];
}
__global__ void copy_with_wait(float* out, const float* in) {
  typedef Pack<float, 4> Four;
  GDT_SHARED(Four, s, [LANES]);
  ptx::copy_async_16(&s[threadIdx.x], in + threadIdx.x * 4, 16);
  ptx::copy_async_commit();
  ptx::copy_async_wait<0>();
  out[threadIdx.x] = s[threadIdx.x].of[0];
}

// out (64, 64) = a (64, 16) b (16, 64), in: a, then b; a in registers, as "Matrix Fragments for
// wgmma.mma_async.m64nNk16" of the PTX documentation has it: register i of a lane has the row lane / 4 + i % 2 * 8 of
// its warp's 16, and the columns lane % 4 * 2 + i / 2 * 8 + {0, 1}.
template <bool FENCED, bool OVERWRITTEN> __device__ void multiply_registers(float* out, const float* in) {
  GDT_DYNAMIC_SHARED(shared);
  const int t = threadIdx.x, row = t / 32 * 16 + t % 32 / 4, column = t % 4 * 2;
  for (int i = t; i < 16 * 64; i += 128) {
    const int at = i / 64 * 128 + i % 64 * 2;
    *reinterpret_cast<half_t*>(shared + (at ^ (i / 64 % 8) << 4)) = ptx::to_half(in[64 * 16 + i]);
  }
  __syncthreads();
  uint32_t a[4];
  for (int i = 0; i < 4; i++) {
    const float* pair = in + (row + i % 2 * 8) * 16 + column + i / 2 * 8;
    a[i] = ptx::to_pair(pair[0], pair[1], half_t());
  }
  float sums[32] = {};
  if (FENCED) ptx::warpgroup_fence();
  ptx::add_product<true>(sums, a, SharedTile<half_t, 64, false>::describe(shared, 0, 0), half_t());
  ptx::warpgroup_commit();
  if (OVERWRITTEN) a[3] = 0;
  ptx::warpgroup_finish(sums);
  for (int i = 0; i < 32; i++) out[(row + i / 2 % 2 * 8) * 64 + i / 4 * 8 + column + i % 2] = sums[i];
}
__global__ void registers_fenced(float* out, const float* in) { multiply_registers<true, false>(out, in); }
__global__ void registers_unfenced(float* out, const float* in) { multiply_registers<false, false>(out, in); }
__global__ void registers_overwritten(float* out, const float* in) { multiply_registers<true, true>(out, in); }
