// What the generated kernels of element-wise ops share (gdt/fusion/cuda.py): the nest of loops over
// blocks that broadcast, and functions with the bits of CuPy's ufuncs.
//
// Arguments of a kernel: blocks that are read, then blocks that are written, all without gaps, and
// their nest. A block that is written has the whole nest. Any number of blocks of THREADS threads:
// each takes packs of up to 16 bytes, or single elements, from its own to the end.
// Not measured on a GPU yet; a launch reads and writes every element once.
#pragma once
#include "block.cuh"

constexpr int THREADS = 128;
// The lengths of the outer, the middle and the inner axis; and for each block that is read its steps
// along the outer and the middle one, in elements.
struct Nest {
  long long length[3];
  long long step[64];
};

namespace {
// A pack of N elements of the nest: where it begins along each axis. I counts elements; ROWS:
// whether there is more than one row.
template <typename I, bool ROWS, int N> struct Place {
  static constexpr int SIZE = N;
  I outer, middle, inner;
  const Nest& nest;

  __device__ __forceinline__ I offset(int block) const {
    return ROWS ? outer * static_cast<I>(nest.step[2 * block]) +
                      middle * static_cast<I>(nest.step[2 * block + 1])
                : 0;
  }
  template <typename T> __device__ __forceinline__ Pack<T, N> load(const T* p, int block) const {
    return *reinterpret_cast<const Pack<T, N>*>(p + offset(block) + inner);
  }
  // Of a block of one element along the inner axis.
  template <typename T> __device__ __forceinline__ Pack<T, N> spread(const T* p, int block) const {
    const T x = p[offset(block)];
    Pack<T, N> pack;
#pragma unroll
    for (int k = 0; k < N; k++) pack.of[k] = x;
    return pack;
  }
  template <typename T> __device__ __forceinline__ void store(T* p, const Pack<T, N>& pack) const {
    const I row = ROWS ? outer * static_cast<I>(nest.length[1]) + middle : 0;
    ::store(p + row * static_cast<I>(nest.length[2]) + inner, pack);
  }
};

template <typename I, bool ROWS, int N, typename F>
__device__ __forceinline__ void visit_places(const Nest& nest, I from, I to, F& f) {
  const I packs = static_cast<I>(nest.length[2]) / N, middle = static_cast<I>(nest.length[1]);
  const I first = static_cast<I>(blockIdx.x) * THREADS + threadIdx.x;
  for (I n = from + first; n < to; n += static_cast<I>(gridDim.x) * THREADS) {
    const I row = ROWS ? n / packs : 0;
    f(Place<I, ROWS, N>{ROWS ? row / middle : 0, ROWS ? row % middle : 0, (n - row * packs) * N, nest});
  }
}
// `f(place)` of all elements: in packs of N if the blocks lie so that packs can be read, where a
// single row may end in single elements.
template <typename I, bool ROWS, int N, typename F>
__device__ __forceinline__ void visit_nest(const Nest& nest, bool packs, F f) {
  const I inner = static_cast<I>(nest.length[2]);
  const I rows = ROWS ? static_cast<I>(nest.length[0] * nest.length[1]) : 1;
  if (packs) visit_places<I, ROWS, N>(nest, 0, rows * (inner / N), f);
  if (!packs || !ROWS) visit_places<I, ROWS, 1>(nest, packs ? inner / N * N : 0, rows * inner, f);
}

// ---- functions of an element --------------------------------------------------------------------
template <typename T> __device__ __forceinline__ T maximum(T x, T y) { return x > y ? x : y; }
template <typename T> __device__ __forceinline__ T minimum(T x, T y) { return x < y ? x : y; }
// NaN if one is; of zeros of both signs as the GPU's instruction has it.
template <typename T> __device__ __forceinline__ T nan_or(T x, T y, T other) {
  return x != x ? x : y != y ? y : other;
}
template <> __device__ __forceinline__ float maximum(float x, float y) {
  return nan_or(x, y, fmaxf(x, y));
}
template <> __device__ __forceinline__ float minimum(float x, float y) {
  return nan_or(x, y, fminf(x, y));
}
template <> __device__ __forceinline__ double maximum(double x, double y) {
  return nan_or(x, y, fmax(x, y));
}
template <> __device__ __forceinline__ double minimum(double x, double y) {
  return nan_or(x, y, fmin(x, y));
}
template <typename T> __device__ __forceinline__ T clip(T x, T low, T high) {
  return low > high ? high : x < low ? low : x > high ? high : x;
}
__device__ __forceinline__ int bits(float x) { return static_cast<int>(__float_as_uint(x)); }
__device__ __forceinline__ long long bits(double x) { return __double_as_longlong(x); }
__device__ __forceinline__ float number(int i) { return __uint_as_float(static_cast<unsigned>(i)); }
__device__ __forceinline__ double number(long long i) { return __longlong_as_double(i); }
}  // namespace
