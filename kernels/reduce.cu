// Sum, maximum, minimum, argmax and argmin over one axis, NaN kept, ties to the smallest index.
//
// Arguments. x: (items..., outer, n, inner), contiguous per item; the axis of n elements is
// reduced, into out: (items, outer, inner). Values are combined in A, and rounded to T once. index:
// (items, outer, inner), the position along n plus start[item] (null: 0), which is a global
// position where several devices share the axis; count[item] (null: n) is the number of indices of
// n that are not padding.
//
// A long axis is cut into `splits`, each of which stores a part (splits, items * outer * inner) of
// type A (and index); reduce_finish and arg_finish combine parts in order, those of one device and
// the gathered parts of several.
//
// Launch. *_rows (inner = 1): block (WARP, ROWS), grid (outer / ROWS, splits, items), one warp for
// each row; where rows are few, block (WARP * ROWS), grid (outer, splits, items), one block for each.
// *_columns: block (WARP, ROWS), grid (outer * ceil(inner / WARP), splits, items). *_finish: block
// THREADS, grid (size / THREADS). Not yet measured on a GPU.
#include "block.cuh"

constexpr int THREADS = 256;
constexpr int ROWS = 8;
constexpr int LOADS = 4;  // of a thread, under way at the same time

namespace {
template <typename A> __device__ __forceinline__ bool is_nan(A x) { return x != x; }
// Integers have no infinity.
template <> __device__ __forceinline__ int infinity<int>() { return 2147483647; }
template <> __device__ __forceinline__ long long infinity<long long>() {
  return 9223372036854775807ll;
}
template <typename A> __device__ __forceinline__ A lowest() {
  return A(0.5) == A(0) ? -infinity<A>() - A(1) : -infinity<A>();
}
struct Sum {
  template <typename A> static __device__ __forceinline__ A empty() { return A(0); }
  template <typename A> static __device__ __forceinline__ A merge(A a, A b) { return a + b; }
};
struct Max {
  template <typename A> static __device__ __forceinline__ A empty() { return lowest<A>(); }
  template <typename A> static __device__ __forceinline__ A merge(A a, A b) {
    return is_nan(a) || a > b ? a : b;
  }
  template <typename A> static __device__ __forceinline__ bool before(A a, A b) { return a > b; }
};
struct Min {
  template <typename A> static __device__ __forceinline__ A empty() { return infinity<A>(); }
  template <typename A> static __device__ __forceinline__ A merge(A a, A b) {
    return is_nan(a) || a < b ? a : b;
  }
  template <typename A> static __device__ __forceinline__ bool before(A a, A b) { return a < b; }
};

// I: int for a position along n, long long for one along the axis of all devices.
template <typename A, typename I> struct Winner {
  A value;
  I index;  // -1: none yet
};
template <typename O, typename A, typename I>
__device__ __forceinline__ Winner<A, I> win(const Winner<A, I>& a, const Winner<A, I>& b) {
  if (a.index < 0) return b;
  if (b.index < 0) return a;
  const bool a_nan = is_nan(a.value), b_nan = is_nan(b.value);
  if (a_nan != b_nan) return a_nan ? a : b;
  if (!a_nan && O::before(a.value, b.value)) return a;
  if (!a_nan && O::before(b.value, a.value)) return b;
  return a.index < b.index ? a : b;
}

// The work of thread (x, y) of the grid: element e of outer * inner, first and step along n.
struct Place {
  long long base;  // of element (outer, 0, inner)
  int element, first, step;
  bool inside;
};
__device__ __forceinline__ Place place_row(int outer, int n) {
  const int row = blockIdx.x * blockDim.y + threadIdx.y;
  return {static_cast<long long>(row) * n, row, int(blockIdx.y * blockDim.x + threadIdx.x),
          int(gridDim.y * blockDim.x), row < outer};
}
__device__ __forceinline__ Place place_column(int n, int inner) {
  const int tiles = (inner + WARP - 1) / WARP, row = blockIdx.x / tiles,
            column = blockIdx.x % tiles * WARP + threadIdx.x;
  return {static_cast<long long>(row) * n * inner + column, row * inner + column,
          int(blockIdx.y * ROWS + threadIdx.y), int(gridDim.y * ROWS), column < inner};
}
// Combine the ROWS threads of a column; thread y = 0 has the result.
template <typename State, typename Merge> __device__ State merge_column(State state, Merge merge) {
  GDT_SHARED(State, scratch, [ROWS][WARP]);
  scratch[threadIdx.y][threadIdx.x] = state;
  __syncthreads();
  if (threadIdx.y == 0)
    for (int y = 1; y < ROWS; y++) state = merge(state, scratch[y][threadIdx.x]);
  return state;
}
// Combines the threads of a row: those of a warp, or all of the block; the result is thread x = 0's.
template <typename State, typename Merge> __device__ State merge_row(State state, Merge merge) {
  if (blockDim.y > 1) return warp_reduce(state, merge);
  GDT_SHARED(State, scratch, [ROWS]);
  return block_reduce<ROWS>(state, merge, scratch, threadIdx.x);
}
// Hands the elements of a thread to `take`, with their positions along n, in order.
template <typename T, typename Take>
__device__ __forceinline__ void scan(const T* x, const Place& p, int n, int inner, Take take) {
  const long long stride = 1ll * p.step * inner;
  const T* at = x + p.base + 1ll * p.first * inner;
  const unsigned end = p.inside ? n : 0, step = p.step;  // n is an int, so no sum of them wraps
  unsigned i = p.first;
  for (; i + (LOADS - 1) * step < end; i += LOADS * step, at += LOADS * stride) {
    T loaded[LOADS];
#pragma unroll
    for (int k = 0; k < LOADS; k++) loaded[k] = at[k * stride];
#pragma unroll
    for (int k = 0; k < LOADS; k++) take(loaded[k], i + k * step);
  }
  for (; i < end; i += step, at += stride) take(*at, i);
}
template <typename O, typename T, typename A>
__device__ __forceinline__ A scan_values(const T* x, const Place& p, int n, int inner) {
  A state = O::template empty<A>();
  scan(x, p, n, inner, [&](T value, int) { state = O::merge(state, A(widen(value))); });
  return state;
}
template <typename O, typename T, typename A>
__device__ __forceinline__ Winner<A, int> scan_winners(const T* x, const Place& p, int n,
                                                       int inner) {
  Winner<A, int> state = {A(0), -1};
  scan(x, p, n, inner, [&](T value, int i) {
    state = win<O>(state, Winner<A, int>{A(widen(value)), i});
  });
  return state;
}
// Element `p.element` of part blockIdx.y.
__device__ __forceinline__ long long part_index(const Place& p, int elements) {
  return (static_cast<long long>(blockIdx.y) * gridDim.z + blockIdx.z) * elements + p.element;
}
}  // namespace

template <typename O, typename T, typename A>
__global__ void __launch_bounds__(WARP* ROWS)
    reduce_rows(const T* __restrict__ x, Strides x_strides, const int* __restrict__ count,
                A* __restrict__ parts, Axes axes, int outer, int n) {
  const Place p = place_row(outer, n);
  const int item = blockIdx.z;
  A value = scan_values<O, T, A>(x + offset(item, axes, x_strides), p, count ? count[item] : n, 1);
  value = merge_row(value, [](A a, A b) { return O::merge(a, b); });
  if (p.inside && threadIdx.x == 0) parts[part_index(p, outer)] = value;
}

template <typename O, typename T, typename A>
__global__ void __launch_bounds__(WARP* ROWS)
    reduce_columns(const T* __restrict__ x, Strides x_strides, const int* __restrict__ count,
                   A* __restrict__ parts, Axes axes, int outer, int n, int inner) {
  const Place p = place_column(n, inner);
  const int item = blockIdx.z;
  A value =
      scan_values<O, T, A>(x + offset(item, axes, x_strides), p, count ? count[item] : n, inner);
  value = merge_column(value, [](A a, A b) { return O::merge(a, b); });
  if (p.inside && threadIdx.y == 0) parts[part_index(p, outer * inner)] = value;
}

template <typename O, typename T, typename A>
__global__ void __launch_bounds__(WARP* ROWS)
    arg_rows(const T* __restrict__ x, Strides x_strides, const long long* __restrict__ start,
             const int* __restrict__ count, A* __restrict__ parts, long long* __restrict__ index,
             Axes axes, int outer, int n) {
  const Place p = place_row(outer, n);
  const int item = blockIdx.z;
  Winner<A, int> best =
      scan_winners<O, T, A>(x + offset(item, axes, x_strides), p, count ? count[item] : n, 1);
  best = merge_row(best, [](const auto& a, const auto& b) { return win<O>(a, b); });
  if (!p.inside || threadIdx.x != 0) return;
  parts[part_index(p, outer)] = best.value;
  index[part_index(p, outer)] = best.index < 0 ? -1 : best.index + (start ? start[item] : 0);
}

template <typename O, typename T, typename A>
__global__ void __launch_bounds__(WARP* ROWS)
    arg_columns(const T* __restrict__ x, Strides x_strides, const long long* __restrict__ start,
                const int* __restrict__ count, A* __restrict__ parts, long long* __restrict__ index,
                Axes axes, int outer, int n, int inner) {
  const Place p = place_column(n, inner);
  const int item = blockIdx.z;
  Winner<A, int> best =
      scan_winners<O, T, A>(x + offset(item, axes, x_strides), p, count ? count[item] : n, inner);
  best = merge_column(best, [](const auto& a, const auto& b) { return win<O>(a, b); });
  if (!p.inside || threadIdx.y != 0) return;
  parts[part_index(p, outer * inner)] = best.value;
  index[part_index(p, outer * inner)] =
      best.index < 0 ? -1 : best.index + (start ? start[item] : 0);
}

// parts: (count, size) -> out: (size)
template <typename O, typename T, typename A>
__global__ void __launch_bounds__(THREADS)
    reduce_finish(const A* __restrict__ parts, T* __restrict__ out, int count, int size) {
  const int i = blockIdx.x * THREADS + threadIdx.x;
  if (i >= size) return;
  A value = O::template empty<A>();
  for (int part = 0; part < count; part++)
    value = O::merge(value, parts[static_cast<long long>(part) * size + i]);
  out[i] = narrow<T>(value);
}

// parts, index: (count, size) -> out, out_index: (size); out may be null
template <typename O, typename A>
__global__ void __launch_bounds__(THREADS)
    arg_finish(const A* __restrict__ parts, const long long* __restrict__ index,
               A* __restrict__ out, long long* __restrict__ out_index, int count, int size) {
  const int i = blockIdx.x * THREADS + threadIdx.x;
  if (i >= size) return;
  Winner<A, long long> best = {A(0), -1};
  for (int part = 0; part < count; part++) {
    const long long at = static_cast<long long>(part) * size + i;
    best = win<O>(best, Winner<A, long long>{parts[at], index[at]});
  }
  if (out) out[i] = best.value;
  out_index[i] = best.index;
}
