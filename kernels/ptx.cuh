// Device primitives beyond CUDA C, each a small function: PTX here; the tests' ptx_cpu.hpp executes
// the same functions on a CPU. Kernels never write asm themselves, so one source runs in both
// places.
#pragma once
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

#if __CUDA_ARCH__ >= 800
// ---- sm_80: asynchronous copies, ldmatrix, mma.sync ---------------------------------------------
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
#define MMA(tag, shape, type)                                                                \
  INLINE void multiply(float(&d)[4], const uint32_t(&a)[4], uint32_t b0, uint32_t b1, tag) { \
    asm volatile("mma.sync.aligned." shape ".row.col.f32." type "." type                     \
                 ".f32 "                                                                     \
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                     \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                            \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));            \
  }
MMA(half_t, "m16n8k16", "f16")
MMA(bfloat16_t, "m16n8k16", "bf16")
MMA(float, "m16n8k8", "tf32")
#undef MMA
#endif
#undef INLINE
}  // namespace ptx
#endif
