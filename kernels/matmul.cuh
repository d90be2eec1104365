// Shared by the matmul kernels: the epilogue, the destination of sums, and the order of tiles.
#pragma once
#include "block.cuh"

constexpr int GROUP = 8;  // rows of tiles that run together, to share w in the second-level cache
constexpr int NONE = 0;
constexpr int RELU = 1;
constexpr int RELU_BACKWARD = 2;

namespace {
// ---- the epilogue of a finished sum -------------------------------------------------------------
// What follows a product, with the bits of an op each: every one of them rounds its result to O.
template <typename A, typename O> struct Epilogue {
  O* out;
  const O *bias, *aux;
  int activation;

  __device__ __forceinline__ bool follows() const { return bias || activation != NONE; }
  // Elements `at` to `at` + N of the result, in columns from `column` on.
  template <int N>
  __device__ __forceinline__ Pack<O, N> finish(long long at, int column,
                                               const Pack<A, N>& sums) const {
    typedef Pack<O, N> Elements;
    Elements addend = {}, seen = {}, result;
    if (bias) addend = load<Elements>(bias + column);
    if (activation == RELU_BACKWARD) seen = load<Elements>(aux + at);
#pragma unroll
    for (int i = 0; i < N; i++) {
      A value = widen(narrow<O>(sums.of[i]));
      if (bias) value = widen(narrow<O>(value + A(widen(addend.of[i]))));
      if (activation == RELU) value = value > A(0) || value != value ? value : A(0);  // not -0
      if (activation == RELU_BACKWARD) value *= A(widen(seen.of[i])) > A(0) ? A(1) : A(0);
      result.of[i] = narrow<O>(value);
    }
    return result;
  }
  template <int N>
  __device__ __forceinline__ void operator()(long long at, int column,
                                             const Pack<A, N>& sums) const {
    store(out + at, finish(at, column, sums));
  }
};
// The destination of sums: the epilogue, or the part of one piece among several.
template <typename A, typename O> struct Sink {
  Epilogue<A, O> epilogue;
  A* part;  // null where there is one piece
  int m, n;
  // Whether N columns, from a multiple of N on, can be stored at once.
  template <int N> __device__ __forceinline__ bool packs() const {
    auto fits = [](const void* p, int bytes) {
      return reinterpret_cast<unsigned long long>(p) % bytes == 0;
    };
    const Epilogue<A, O>& e = epilogue;
    constexpr int BYTES = N * sizeof(O);
    return n % N == 0 && fits(e.out, BYTES) && fits(e.bias, BYTES) && fits(e.aux, BYTES) &&
           fits(part, N * sizeof(A));
  }
  template <int N>
  __device__ __forceinline__ void operator()(int row, int column, const Pack<A, N>& sums) const {
    if (row >= m || column >= n) return;
    const long long at = static_cast<long long>(row) * n + column;
    if (part) store(part + at, sums);
    else epilogue(at, column, sums);
  }
};
// The sink of piece number `piece` of item number `item`.
template <typename A, typename O>
__device__ __forceinline__ Sink<A, O> make_sink(O* out, const O* bias, const O* aux, A* parts,
                                                int activation, int m, int n, int item, int items,
                                                int piece) {
  const long long size = static_cast<long long>(m) * n, at = item * size;
  A* part = parts ? parts + (static_cast<long long>(piece) * items + item) * size : nullptr;
  return {{out + at, bias, aux ? aux + at : nullptr, activation}, part, m, n};
}

// ---- tiles --------------------------------------------------------------------------------------
struct Corner {
  int row, column;
};
// The first row and column of a tile by its number: tiles are numbered in groups of GROUP rows of
// tiles, down the columns of a group.
template <int ROWS, int COLUMNS>
__device__ __forceinline__ Corner tile_corner(int tile, int m, int n) {
  const int down = (m + ROWS - 1) / ROWS, across = (n + COLUMNS - 1) / COLUMNS;
  const int group = tile / (GROUP * across), within = tile % (GROUP * across);
  const int height = min(GROUP, down - group * GROUP);
  return {(group * GROUP + within % height) * ROWS, within / height * COLUMNS};
}
}  // namespace
