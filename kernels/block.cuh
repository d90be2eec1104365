// Shared by all kernel files: blocks with leading axes, 16-bit floats, packs of 16 bytes, and
// reductions of a block of threads.
//
// An operand of a kernel is a block: leading axes (the mesh axes of a device, then batch axes),
// then the local array. The leading axes of all operands have the same sizes (`Axes`), and each
// operand its own strides over them (`Strides`, in elements; 0 where it is replicated). A kernel
// flattens them to one number `item`.
#pragma once
#include "ptx.cuh"

constexpr int MAX_AXES = 4;
struct Axes {
  int size[MAX_AXES];
};  // the last walks fastest; unused ones are 1
struct Strides {
  long long of[MAX_AXES];
};

namespace {
constexpr int WARP = 32;
constexpr unsigned ALL_LANES = 0xffffffffu;

__device__ __forceinline__ long long offset(int item, const Axes& axes, const Strides& strides) {
  long long at = 0;
#pragma unroll  // an index known to the compiler keeps the structs out of local memory
  for (int i = MAX_AXES - 1; i >= 0; i--) {
    at += item % axes.size[i] * strides.of[i];
    item /= axes.size[i];
  }
  return at;
}

// ---- numbers ------------------------------------------------------------------------------------
// An element widened to the type of sums, and rounded back.
__device__ __forceinline__ float widen(half_t x) { return ptx::to_float(x); }
__device__ __forceinline__ float widen(bfloat16_t x) { return ptx::to_float(x); }
template <typename T> __device__ __forceinline__ T widen(T x) { return x; }

template <typename T> struct Narrow {
  template <typename A> static __device__ __forceinline__ T from(A x) { return static_cast<T>(x); }
};
template <> struct Narrow<half_t> {
  static __device__ __forceinline__ half_t from(float x) { return ptx::to_half(x); }
};
template <> struct Narrow<bfloat16_t> {
  static __device__ __forceinline__ bfloat16_t from(float x) { return ptx::to_bfloat16(x); }
};
template <typename T, typename A> __device__ __forceinline__ T narrow(A x) {
  return Narrow<T>::from(x);
}

template <typename A> __device__ __forceinline__ A infinity();
template <> __device__ __forceinline__ float infinity<float>() {
  return __uint_as_float(0x7f800000u);
}
template <> __device__ __forceinline__ double infinity<double>() {
  return __longlong_as_double(0x7ff0000000000000ll);
}
constexpr float LOG2_E = 1.44269504088896340736f;
// exp(x) by the special function unit, of float32.
__device__ __forceinline__ float exponential(float x) { return ptx::power_of_2(x * LOG2_E); }
__device__ __forceinline__ double exponential(double x) { return exp(x); }

// ---- packs --------------------------------------------------------------------------------------
template <typename T, int N> struct __align__(sizeof(T) * N) Pack { T of[N]; };
constexpr int PACK_BYTES = 16;

template <typename T> __device__ __forceinline__ int misalignment(const T* p) {
  return static_cast<int>(reinterpret_cast<unsigned long long>(p) % PACK_BYTES);
}
template <typename T> constexpr int PER_PACK = PACK_BYTES / static_cast<int>(sizeof(T));

// Visits p[0 .. n) with `threads` threads: single elements up to the first 16-byte boundary, packs
// of 16 bytes, and single elements again. `use(i, loaded)` gets the index and what `load(i, like)`
// has read there, in packs of as many elements as `like` has; LOADS packs of a thread are under way
// at the same time. With packs = false, single elements only.
template <int LOADS, typename T, typename Load, typename Use>
__device__ __forceinline__ void visit(const T* p, int n, int thread, int threads, bool packs,
                                      Load load, Use use) {
  constexpr int N = PER_PACK<T>;
  const int head =
      packs ? min(n, (PACK_BYTES - misalignment(p)) % PACK_BYTES / static_cast<int>(sizeof(T))) : n;
  const int body = (n - head) / N;
#pragma unroll 1
  for (int i = thread; i < head; i += threads) use(i, load(i, Pack<T, 1>()));
  for (int first = thread; first < body; first += LOADS * threads) {
    decltype(load(0, Pack<T, N>())) loaded[LOADS];
#pragma unroll
    for (int k = 0; k < LOADS; k++)
      if (first + k * threads < body)
        loaded[k] = load(head + (first + k * threads) * N, Pack<T, N>());
#pragma unroll
    for (int k = 0; k < LOADS; k++)
      if (first + k * threads < body) use(head + (first + k * threads) * N, loaded[k]);
  }
#pragma unroll 1
  for (int i = head + body * N + thread; i < n; i += threads) use(i, load(i, Pack<T, 1>()));
}
template <typename P, typename T> __device__ __forceinline__ P load(const T* p) {
  return *reinterpret_cast<const P*>(p);
}
// The same of the elements of p alone.
template <int LOADS, typename T, typename Use>
__device__ __forceinline__ void visit(const T* p, int n, int thread, int threads, bool packs,
                                      Use use) {
  visit<LOADS>(
      p, n, thread, threads, packs, [&](int i, auto like) { return load<decltype(like)>(p + i); },
      use);
}
template <typename T, int N> __device__ __forceinline__ void store(T* p, const Pack<T, N>& pack) {
  *reinterpret_cast<Pack<T, N>*>(p) = pack;
}

// ---- reductions ---------------------------------------------------------------------------------
template <typename T> __device__ __forceinline__ T shuffle_xor(T value, int with) {
  static_assert(sizeof(T) % sizeof(unsigned) == 0, "whole words");
  constexpr int WORDS = sizeof(T) / sizeof(unsigned);
  unsigned words[WORDS];
  memcpy(words, &value, sizeof value);
#pragma unroll
  for (int i = 0; i < WORDS; i++) words[i] = __shfl_xor_sync(ALL_LANES, words[i], with);
  memcpy(&value, words, sizeof value);
  return value;
}
// The merge of all lanes' values, the same in every lane; `merge(a, b)` must be commutative to the
// bit.
template <typename T, typename Merge>
__device__ __forceinline__ T warp_reduce(T value, Merge merge) {
#pragma unroll
  for (int with = WARP / 2; with; with /= 2) value = merge(value, shuffle_xor(value, with));
  return value;
}
// The same for the whole block of WARPS warps; the threads of the block pass one `scratch` of WARPS
// values, which nothing else uses.
template <int WARPS, typename T, typename Merge>
__device__ __forceinline__ T block_reduce(T value, Merge merge, T* scratch, int thread) {
  value = warp_reduce(value, merge);
  if (WARPS == 1) return value;
  if (thread % WARP == 0) scratch[thread / WARP] = value;
  __syncthreads();
  value = scratch[0];
#pragma unroll
  for (int i = 1; i < WARPS; i++) value = merge(value, scratch[i]);
  return value;
}

// ---- columns ------------------------------------------------------------------------------------
// The columns of a thread in a matrix whose rows have `width` elements: N neighbours where rows can
// be read in packs, else N with a step of `lanes` threads between them. A block of (lanes, rows)
// threads, powers of 2, has tile number `tile` of lanes * N columns.
template <typename T> struct Columns {
  static constexpr int N = PER_PACK<T>;
  int width, first, step;
  bool packs;

  __device__ __forceinline__ Columns(int tile, int width, bool aligned)
      : width(width), packs(aligned && width % N == 0) {
    const int lanes = blockDim.x;
    first = tile * lanes * N + static_cast<int>(threadIdx.x) * (packs ? N : 1);
    step = packs ? 1 : lanes;
  }
  __device__ __forceinline__ int column(int i) const { return first + i * step; }
  __device__ __forceinline__ bool has(int i) const { return column(i) < width; }

  // PACKS: `packs`, known to the compiler. Columns past the width are 0.
  template <bool PACKS> __device__ __forceinline__ Pack<T, N> read(const T* row) const {
    if (PACKS && has(0)) return load<Pack<T, N>>(row + first);
    Pack<T, N> pack;
#pragma unroll
    for (int i = 0; i < N; i++) pack.of[i] = !PACKS && has(i) ? row[column(i)] : T();
    return pack;
  }
  template <bool PACKS>
  __device__ __forceinline__ void write(T* row, const Pack<T, N>& pack) const {
    if constexpr (PACKS) {
      if (has(0)) store(row + first, pack);
    } else {
#pragma unroll
      for (int i = 0; i < N; i++)
        if (has(i)) row[column(i)] = pack.of[i];
    }
  }
};
// Merges the N values of each thread with those of the threads below it, in a block of
// (lanes, rows) threads; the threads y = 0 have the results. `scratch` is as of block_reduce.
template <int N, int THREADS, typename T, typename Merge>
__device__ __forceinline__ void merge_columns(T (&value)[N], Merge merge,
                                              T (&scratch)[N][THREADS]) {
  const int thread = threadIdx.y * blockDim.x + threadIdx.x;
#pragma unroll
  for (int i = 0; i < N; i++) scratch[i][thread] = value[i];
  for (int rows = blockDim.y / 2; rows; rows /= 2) {
    __syncthreads();
    if (threadIdx.y >= rows) continue;
#pragma unroll
    for (int i = 0; i < N; i++)
      scratch[i][thread] = merge(scratch[i][thread], scratch[i][thread + rows * blockDim.x]);
  }
#pragma unroll
  for (int i = 0; i < N; i++) value[i] = scratch[i][thread];
}
}  // namespace
