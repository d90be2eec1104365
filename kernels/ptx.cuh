// Device primitives beyond CUDA C, each a small function: in PTX here, and for the CPU in
// ptx_cpu.hpp of the tests. Kernels contain no asm themselves, so one source runs on both.
#pragma once
// A description of an array in global memory, of up to three axes, for the tensor memory
// accelerator. The driver encodes it; for the CPU `gdt.cuda.tensor_map` does.
struct __align__(64) TensorMap {
  unsigned long long words[16];
};
#ifndef GDT_CPU
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
#define GDT_SHARED(type, name, dims) __shared__ type name dims
#define GDT_DYNAMIC_SHARED(name) extern __shared__ __align__(1024) unsigned char name[]

struct half_t {
  unsigned short bits;
};
struct bfloat16_t {
  unsigned short bits;
};

namespace ptx {
#define INLINE __device__ __forceinline__
INLINE uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// ---- 16-bit floats, rounded to nearest even -----------------------------------------------------
INLINE float to_float(half_t h) {
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h.bits));
  return f;
}
INLINE float to_float(bfloat16_t b) { return __uint_as_float(static_cast<uint32_t>(b.bits) << 16); }
INLINE half_t to_half(float f) {
  half_t h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h.bits) : "f"(f));
  return h;
}
INLINE bfloat16_t to_bfloat16(float f) {
#if __CUDA_ARCH__ >= 800
  bfloat16_t b;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(b.bits) : "f"(f));
  return b;
#else
  const uint32_t x = __float_as_uint(f);
  return {static_cast<unsigned short>(f != f ? 0x7fff : (x + 0x7fff + (x >> 16 & 1)) >> 16)};
#endif
}

// 2^x with an error of two units in the last place; results that are not normal numbers are 0.
INLINE float power_of_2(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}
// Store 4, 8 or 16 bytes in one instruction, which the compiler does not take apart.
INLINE void store_words(void* global, const uint32_t (&w)[1]) {
  asm volatile("st.global.b32 [%0], %1;" ::"l"(global), "r"(w[0]) : "memory");
}
INLINE void store_words(void* global, const uint32_t (&w)[2]) {
  asm volatile("st.global.v2.b32 [%0], {%1,%2};" ::"l"(global), "r"(w[0]), "r"(w[1]) : "memory");
}
INLINE void store_words(void* global, const uint32_t (&w)[4]) {
  asm volatile("st.global.v4.b32 [%0], {%1,%2,%3,%4};" ::"l"(global), "r"(w[0]), "r"(w[1]),
               "r"(w[2]), "r"(w[3])
               : "memory");
}

// Add 1 to a counter in global memory, and return what it was. Who counts sees what those before
// it, and the threads that their barriers wait for, had stored.
INLINE unsigned count_arrival(unsigned* counter) {
  unsigned before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;"
               : "=r"(before)
               : "l"(counter)
               : "memory");
  return before;
}

#if __CUDA_ARCH__ >= 800
// ---- sm_80: asynchronous copies, ldmatrix, mma.sync ---------------------------------------------
// Two floats rounded to 16 bits each, the first in the lower half.
INLINE uint32_t to_pair(float low, float high, half_t) {
  uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
INLINE uint32_t to_pair(float low, float high, bfloat16_t) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
INLINE uint32_t to_tf32(float f) {
  uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(f));
  return bits;
}
// Copies `bytes` bytes (0 to 16) and fills the rest of the 16 with zeros; both addresses are
// multiples of 16.
INLINE void copy_async_16(void* shared, const void* global, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
               "l"(global), "r"(bytes)
               : "memory");
}
INLINE void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int GROUPS> INLINE void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(GROUPS) : "memory");
}

// Four 8 x 8 matrices of 16-bit elements; lane l names row l % 8 of matrix l / 8.
INLINE void load_matrix_x4(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
INLINE void load_matrix_x4_transposed(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
// d (16 x 8, float32) += a (16 x k) b (k x 8), k = 16 for the 16-bit types and 8 for float (as
// tf32).
#define MMA(tag, shape, type)                                                                  \
  INLINE void multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, tag) { \
    asm volatile("mma.sync.aligned." shape ".row.col.f32." type "." type                       \
                 ".f32 "                                                                       \
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                       \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                              \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));              \
  }
MMA(half_t, "m16n8k16", "f16")
MMA(bfloat16_t, "m16n8k16", "bf16")
MMA(float, "m16n8k8", "tf32")
#undef MMA
// The same of double, k = 8, to the bit: each product is added with one rounding. sm_80 multiplies
// 8 rows by 4 of k at a time.
INLINE void multiply(double (&d)[4], const double (&a)[4], double b0, double b1, double) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 "
               "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+d"(d[0]), "+d"(d[1]), "+d"(d[2]), "+d"(d[3])
               : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b0), "d"(b1));
#else
#pragma unroll
  for (int i = 0; i < 4; i++)
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};"
                 : "+d"(d[i % 2 * 2]), "+d"(d[i % 2 * 2 + 1])
                 : "d"(a[i]), "d"(i < 2 ? b0 : b1));
#endif
}
#endif

#if __CUDA_ARCH__ >= 900
// ---- sm_90: barriers in shared memory, copies of tiles ------------------------------------------
INLINE void barrier_init(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(arrivals)
               : "memory");
}
INLINE void barrier_init_fence() {  // after it, other threads and copies see the barriers
  asm volatile("fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta;" ::: "memory");
}
INLINE void barrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
               : "memory");
}
// Arrive, and make the phase wait for `bytes` copied bytes as well.
INLINE void barrier_arrive_expecting(uint64_t* barrier, int bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
      "r"(bytes)
      : "memory");
}
// Wait until the phase of this parity is over; a new barrier is in phase 0, after one of parity 1.
INLINE void barrier_wait(uint64_t* barrier, unsigned parity) {
  asm volatile(
      "{\n.reg .pred over;\nAGAIN_%=:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 over, [%0], %1;\n"
      "@!over bra AGAIN_%=;\n}" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}
// Copy the map's box that begins at (c0, c1, c2), c0 along memory; its bytes arrive at the barrier.
// Rows have 128 bytes; the 16 bytes number i of row r are stored at i ^ r % 8. Elements outside of
// the array are 0. `shared` is a multiple of 1024.
INLINE void copy_tile(void* shared, const TensorMap* map, uint64_t* barrier, int c0, int c1,
                      int c2) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%3, %4, %5}], [%2];" ::"r"(shared_address(shared)),
      "l"(map), "r"(shared_address(barrier)), "r"(c0), "r"(c1), "r"(c2)
      : "memory");
}
// ---- sm_90: clusters, blocks that run together --------------------------------------------------
INLINE int cluster_rank() {
  int rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// Wait for all threads of all blocks of the cluster.
INLINE void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
// Arrive at the same barrier of another block, or of this one, after what products have read here.
// Of what this thread has stored it tells nothing, for which it would wait for all of global
// memory.
INLINE void barrier_arrive_in(uint64_t* barrier, int block) {
  asm volatile(
      "{\n.reg .b32 place;\nmapa.shared::cluster.u32 place, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [place];\n}" ::"r"(
          shared_address(barrier)),
      "r"(block)
      : "memory");
}
// Store a word at the same place in the shared memory of another block, or of this one. The block
// has begun; it sees the word, and may end, after the next `cluster_sync`.
INLINE void store_in(uint32_t* shared, int block, uint32_t word) {
  asm volatile(
      "{\n.reg .b32 place;\nmapa.shared::cluster.u32 place, %0, %1;\n"
      "st.shared::cluster.b32 [place], %2;\n}" ::"r"(shared_address(shared)),
      "r"(block), "r"(word)
      : "memory");
}
// The same as `copy_tile`, for the first BLOCKS blocks of the cluster, at the same places in each;
// the bytes arrive at the barrier of each.
template <int BLOCKS>
INLINE void copy_tile_to_all(void* shared, const TensorMap* map, uint64_t* barrier, int c0, int c1,
                             int c2) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(shared_address(shared)),
      "l"(map), "r"(shared_address(barrier)), "r"(c0), "r"(c1), "r"(c2),
      "h"(static_cast<uint16_t>((1 << BLOCKS) - 1))
      : "memory");
}

// ---- sm_90: stores of tiles ---------------------------------------------------------------------
// Store four 8 x 8 matrices of 16-bit elements, held as `load_matrix_x4` loads them; lane l names
// row l % 8 of matrix l / 8.
INLINE void store_matrix_x4(void* row, const uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(
                   shared_address(row)),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}
// What this thread has stored in shared memory is seen by `store_tile`, also of a thread that it
// meets next.
INLINE void store_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// Store a box, in shared memory as `copy_tile` leaves it, at (c0, c1, c2) of the map's array;
// elements outside of the array are left out. A thread's stores since its last `store_commit` are a
// group.
INLINE void store_tile(const TensorMap* map, const void* shared, int c0, int c1, int c2) {
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(
          map),
      "r"(shared_address(shared)), "r"(c0), "r"(c1), "r"(c2)
      : "memory");
}
INLINE void store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Wait until all but this thread's last GROUPS groups have read shared memory.
template <int GROUPS> INLINE void store_wait() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(GROUPS) : "memory");
}
#endif

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
// ---- sm_90a: products of a warpgroup (128 threads) ----------------------------------------------
template <int REGISTERS> INLINE void raise_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS> INLINE void lower_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
INLINE void warpgroup_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
INLINE void warpgroup_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Wait until all but the last GROUPS groups are done; the sums of these must not be used yet.
template <int GROUPS> INLINE void warpgroup_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(GROUPS) : "memory");
}
// Wait until all but the last GROUPS groups are done, of whose sums d is none, so that d may be
// used.
template <int GROUPS = 0, int N> INLINE void warpgroup_finish(float (&d)[N]) {
  warpgroup_wait<GROUPS>();
#pragma unroll
  for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");  // no use of d moves up
}
// After such a wait: no register of left factors is written again before.
template <int N> INLINE void warpgroup_keep(uint32_t (&a)[N][4]) {
#pragma unroll
  for (int i = 0; i < 4 * N; i++) asm volatile("" : "+r"(a[i / 4][i % 4])::"memory");
}
// d (64 x n, float32) = a (64 x k) b (k x n) + keep d, with k = 32 bytes of elements; a and b are
// descriptors of tiles in shared memory. A_ACROSS, B_ACROSS: neighbours in memory are neighbours in
// m, in n; else in k, which tf32 needs.
// Thread t has rows t / 32 * 16 + t % 32 / 4 + {0, 8} and columns 8 j + t % 4 * 2 + {0, 1}:
// d[4 j], d[4 j + 1] of the first row, d[4 j + 2], d[4 j + 3] of the second.
#define TEN(t) \
  "%" #t "0,%" #t "1,%" #t "2,%" #t "3,%" #t "4,%" #t "5,%" #t "6,%" #t "7,%" #t "8,%" #t "9,"
#define SUMS_32 TEN() TEN(1) TEN(2) "%30,%31"
#define SUMS_64 TEN() TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) "%60,%61,%62,%63"
#define SUMS_128                                                                       \
  TEN() TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) TEN(6) TEN(7) TEN(8) TEN(9) TEN(10) TEN(11) \
  "%120,%121,%122,%123,%124,%125,%126,%127"
#define D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define D16(i) D4(i), D4(i + 4), D4(i + 8), D4(i + 12)
#define D_32 D16(0), D16(16)
#define D_64 D16(0), D16(16), D16(32), D16(48)
#define D_128 D_64, D16(64), D16(80), D16(96), D16(112)
#define OPERANDS_32 "%32, %33, p, 1, 1"
#define OPERANDS_64 "%64, %65, p, 1, 1"
#define OPERANDS_128 "%128, %129, p, 1, 1"
#define KEEP_32 "%34"
#define KEEP_64 "%66"
#define KEEP_128 "%130"
#define TURNS_32 ", %35, %36"
#define TURNS_64 ", %67, %68"
#define TURNS_128 ", %131, %132"
#define WGMMA(tag, SUMS, shape, type, turns)                                                  \
  template <bool A_ACROSS, bool B_ACROSS>                                                     \
  INLINE void multiply_tiles(float (&d)[SUMS], uint64_t a, uint64_t b, int keep, tag) {       \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " KEEP_##SUMS                              \
                 ", 0;\n"                                                                     \
                 "wgmma.mma_async.sync.aligned." shape ".f32." type "." type " {" SUMS_##SUMS \
                 "}, " OPERANDS_##SUMS turns ";\n}"                                           \
                 : D_##SUMS                                                                   \
                 : "l"(a), "l"(b), "r"(keep), "n"(int(A_ACROSS)), "n"(int(B_ACROSS)));        \
  }
WGMMA(half_t, 32, "m64n64k16", "f16", TURNS_32)
WGMMA(half_t, 64, "m64n128k16", "f16", TURNS_64)
WGMMA(half_t, 128, "m64n256k16", "f16", TURNS_128)
WGMMA(bfloat16_t, 32, "m64n64k16", "bf16", TURNS_32)
WGMMA(bfloat16_t, 64, "m64n128k16", "bf16", TURNS_64)
WGMMA(bfloat16_t, 128, "m64n256k16", "bf16", TURNS_128)
WGMMA(float, 64, "m64n128k8", "tf32", "")
WGMMA(float, 128, "m64n256k8", "tf32", "")
#undef WGMMA
// d (64 x n) += a (64 x 16) b (16 x n), a in registers: a warp has 16 rows of it as of `multiply`.
#define LEFT_32 "{%32,%33,%34,%35}, %36, p, 1, 1, %37"
#define LEFT_64 "{%64,%65,%66,%67}, %68, p, 1, 1, %69"
#define WGMMA(tag, SUMS, shape, type)                                                         \
  template <bool B_ACROSS>                                                                    \
  INLINE void add_product(float (&d)[SUMS], const uint32_t (&a)[4], uint64_t b, tag) {        \
    asm volatile("{\n.reg .pred p;\nsetp.eq.b32 p, 0, 0;\n"                                   \
                 "wgmma.mma_async.sync.aligned." shape ".f32." type "." type " {" SUMS_##SUMS \
                 "}, " LEFT_##SUMS ";\n}"                                                     \
                 : D_##SUMS                                                                   \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(int(B_ACROSS)));   \
  }
WGMMA(half_t, 32, "m64n64k16", "f16")
WGMMA(half_t, 64, "m64n128k16", "f16")
WGMMA(bfloat16_t, 32, "m64n64k16", "bf16")
WGMMA(bfloat16_t, 64, "m64n128k16", "bf16")
#undef WGMMA
#endif
#undef INLINE
}  // namespace ptx
#endif
