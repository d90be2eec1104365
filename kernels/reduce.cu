// Sum, maximum, minimum, argmax and argmin over one axis, NaN kept, ties to the smallest index.
//
// Arguments. x: (items..., outer, n, inner), contiguous per item; the axis of n elements is
// reduced, into out: (items, outer, inner). Values are combined in A, and rounded to R once. index:
// (items, outer, inner), the position along n plus start[item] (null: 0), which is a global
// position where several devices share the axis; count[item] (null: n) is the number of indices of
// n that are not padding.
//
// A long axis is cut into `splits`, each of which stores a part (splits, items * outer * inner) of
// type A (and index). The parts are reduced like the rows or columns that they are, with A for T;
// arg_finish combines parts and their indices.
//
// A thread has LOADS packs of 16 bytes under way. Where inner > 1 it has the columns of a pack.
//
// Launch. *_rows (inner = 1): block (WARP, THREADS / WARP), grid (outer / (THREADS / WARP), splits,
// items), one warp for each row; where rows are few, block THREADS, grid (outer, splits, items),
// one block for each. *_columns: block (lanes, THREADS / lanes), grid (outer * ceil(inner / (lanes
// * PER_PACK)), splits, items). arg_finish: block (lanes, THREADS / lanes), grid (size / lanes).
// Not yet measured on a GPU.
#include "block.cuh"

constexpr int THREADS = 256;
constexpr int LOADS = 4;
// Blocks on a multiprocessor: a thread has twice as many columns in 16 bits.
template <typename T> constexpr int RESIDENT = sizeof(T) == 2 ? 2 : 3;

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
template <typename O> struct Merge {
  template <typename A> __device__ __forceinline__ A operator()(A a, A b) const {
    return O::merge(a, b);
  }
};

// I: int for a position along n, long long for one along the axis of all devices.
template <typename A, typename I> struct Winner {
  A value;
  I index;  // -1: none yet
};
template <typename O> struct Win {
  template <typename W> __device__ __forceinline__ W operator()(const W& a, const W& b) const {
    if (a.index < 0) return b;
    if (b.index < 0) return a;
    const bool a_nan = is_nan(a.value), b_nan = is_nan(b.value);
    if (a_nan != b_nan) return a_nan ? a : b;
    if (!a_nan && O::before(a.value, b.value)) return a;
    if (!a_nan && O::before(b.value, a.value)) return b;
    return a.index < b.index ? a : b;
  }
};

// ---- rows ---------------------------------------------------------------------------------------
__device__ __forceinline__ int own_row() { return blockIdx.x * blockDim.y + threadIdx.y; }
// Hands the elements of a row to `take(value, position)`: the threads of all splits take turns.
template <typename T, typename Take>
__device__ __forceinline__ void scan_row(const T* row, int n, Take take) {
  visit<LOADS>(row, n, blockIdx.y * blockDim.x + threadIdx.x, gridDim.y * blockDim.x, true,
               [&](int i, auto pack) {
#pragma unroll
                 for (int k = 0; k < static_cast<int>(sizeof(pack) / sizeof(T)); k++)
                   take(pack.of[k], i + k);
               });
}
// Merges the threads of a row: those of a warp, or all of the block; the result is thread x = 0's.
template <typename State, typename Merge> __device__ State merge_row(State state, Merge merge) {
  GDT_SHARED(State, scratch, [THREADS / WARP]);
  if (blockDim.y > 1) return warp_reduce(state, merge);
  return block_reduce<THREADS / WARP>(state, merge, scratch, threadIdx.x);
}

// ---- columns ------------------------------------------------------------------------------------
// The columns of a thread, in the matrix (n, inner) of number `outer`.
template <typename T> struct Place : Columns<T> {
  int outer;
  __device__ __forceinline__ Place(const T* x, int tiles, int inner)
      : Columns<T>(blockIdx.x % tiles, inner, misalignment(x) == 0), outer(blockIdx.x / tiles) {}
};
template <typename T> __device__ __forceinline__ int column_tiles(int inner) {
  const int columns = blockDim.x * PER_PACK<T>;
  return (inner + columns - 1) / columns;
}
// Hands the elements of a thread's columns to `take(column, value, position)`.
template <bool PACKS, typename T, typename Take>
__device__ __forceinline__ void scan_columns(const Place<T>& place, const T* x, int n, Take take) {
  const int step = gridDim.y * blockDim.y;
  for (int row = blockIdx.y * blockDim.y + threadIdx.y; row < n; row += LOADS * step) {
    Pack<T, PER_PACK<T>> loaded[LOADS];
#pragma unroll
    for (int k = 0; k < LOADS; k++)
      if (row + k * step < n)
        loaded[k] =
            place.template read<PACKS>(x + static_cast<long long>(row + k * step) * place.width);
#pragma unroll
    for (int k = 0; k < LOADS; k++) {
      if (row + k * step >= n) break;
#pragma unroll
      for (int i = 0; i < PER_PACK<T>; i++) take(i, loaded[k].of[i], row + k * step);
    }
  }
}
template <typename T, typename Take>
__device__ __forceinline__ void scan_place(const Place<T>& place, const T* x, int n, int count,
                                           Take take) {
  const T* matrix = x + static_cast<long long>(place.outer) * n * place.width;
  if (place.packs) scan_columns<true>(place, matrix, count, take);
  else scan_columns<false>(place, matrix, count, take);
}
// Element `element` of part blockIdx.y.
__device__ __forceinline__ long long part_index(long long element, long long elements) {
  return (static_cast<long long>(blockIdx.y) * gridDim.z + blockIdx.z) * elements + element;
}
}  // namespace

template <typename O, typename T, typename A, typename R>
__global__ void __launch_bounds__(THREADS, RESIDENT<T>)
    reduce_rows(const T* __restrict__ x, Strides x_strides, const int* __restrict__ count,
                R* __restrict__ out, Axes axes, int outer, int n) {
  const int row = own_row(), item = blockIdx.z;
  const T* from = x + offset(item, axes, x_strides) + static_cast<long long>(row) * n;
  A value = O::template empty<A>();
  scan_row(from, row >= outer ? 0 : count ? count[item] : n,
           [&](T element, int) { value = O::merge(value, A(widen(element))); });
  value = merge_row(value, Merge<O>());
  if (row < outer && threadIdx.x == 0) out[part_index(row, outer)] = narrow<R>(value);
}

template <typename O, typename T, typename A, typename R>
__global__ void __launch_bounds__(THREADS, RESIDENT<T>)
    reduce_columns(const T* __restrict__ x, Strides x_strides, const int* __restrict__ count,
                   R* __restrict__ out, Axes axes, int outer, int n, int inner) {
  GDT_SHARED(A, scratch, [PER_PACK<T>][THREADS]);
  const int item = blockIdx.z;
  const T* from = x + offset(item, axes, x_strides);
  const Place<T> place(from, column_tiles<T>(inner), inner);
  A value[PER_PACK<T>];
#pragma unroll
  for (int i = 0; i < PER_PACK<T>; i++) value[i] = O::template empty<A>();
  scan_place(place, from, n, count ? count[item] : n, [&](int i, T element, int) {
    value[i] = O::merge(value[i], A(widen(element)));
  });
  merge_columns(value, Merge<O>(), scratch);
  if (threadIdx.y != 0) return;
  R* to = out + part_index(static_cast<long long>(place.outer) * inner,
                           static_cast<long long>(outer) * inner);
#pragma unroll
  for (int i = 0; i < PER_PACK<T>; i++)
    if (place.has(i)) to[place.column(i)] = narrow<R>(value[i]);
}

template <typename O, typename T, typename A>
__global__ void __launch_bounds__(THREADS, RESIDENT<T>)
    arg_rows(const T* __restrict__ x, Strides x_strides, const long long* __restrict__ start,
             const int* __restrict__ count, A* __restrict__ out, long long* __restrict__ index,
             Axes axes, int outer, int n) {
  const int row = own_row(), item = blockIdx.z;
  const T* from = x + offset(item, axes, x_strides) + static_cast<long long>(row) * n;
  Winner<A, int> best = {A(0), -1};
  scan_row(from, row >= outer ? 0 : count ? count[item] : n, [&](T element, int i) {
    best = Win<O>()(best, Winner<A, int>{A(widen(element)), i});
  });
  best = merge_row(best, Win<O>());
  if (row >= outer || threadIdx.x != 0) return;
  const long long at = part_index(row, outer);
  if (out) out[at] = best.value;
  index[at] = best.index < 0 ? -1 : best.index + (start ? start[item] : 0);
}

template <typename O, typename T, typename A>
__global__ void __launch_bounds__(THREADS, RESIDENT<T>)
    arg_columns(const T* __restrict__ x, Strides x_strides, const long long* __restrict__ start,
                const int* __restrict__ count, A* __restrict__ out, long long* __restrict__ index,
                Axes axes, int outer, int n, int inner) {
  typedef Winner<A, int> State;
  GDT_SHARED(State, scratch, [PER_PACK<T>][THREADS]);
  const int item = blockIdx.z;
  const T* from = x + offset(item, axes, x_strides);
  const Place<T> place(from, column_tiles<T>(inner), inner);
  State best[PER_PACK<T>];
#pragma unroll
  for (int i = 0; i < PER_PACK<T>; i++) best[i] = {A(0), -1};
  scan_place(place, from, n, count ? count[item] : n, [&](int i, T element, int row) {
    best[i] = Win<O>()(best[i], State{A(widen(element)), row});
  });
  merge_columns(best, Win<O>(), scratch);
  if (threadIdx.y != 0) return;
  const long long base = part_index(static_cast<long long>(place.outer) * inner,
                                    static_cast<long long>(outer) * inner);
#pragma unroll
  for (int i = 0; i < PER_PACK<T>; i++) {
    if (!place.has(i)) continue;
    const long long at = base + place.column(i);
    if (out) out[at] = best[i].value;
    index[at] = best[i].index < 0 ? -1 : best[i].index + (start ? start[item] : 0);
  }
}

// parts, index: (count, size) -> out, out_index: (size); out may be null
template <typename O, typename A>
__global__ void __launch_bounds__(THREADS)
    arg_finish(const A* __restrict__ parts, const long long* __restrict__ index,
               A* __restrict__ out, long long* __restrict__ out_index, int count, int size) {
  typedef Winner<A, long long> State;
  GDT_SHARED(State, scratch, [1][THREADS]);
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  State best[1] = {{A(0), -1}};
#pragma unroll 4
  for (int part = threadIdx.y; i < size && part < count; part += blockDim.y) {
    const long long at = static_cast<long long>(part) * size + i;
    best[0] = Win<O>()(best[0], State{parts[at], index[at]});
  }
  merge_columns(best, Win<O>(), scratch);
  if (i >= size || threadIdx.y != 0) return;
  if (out) out[i] = best[0].value;
  out_index[i] = best[0].index;
}
