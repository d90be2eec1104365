// Shared by the attention kernels: the sizes of a problem, its tiles, and what its queries see and
// keep.
//
// Arguments. q, g: (items..., queries, features), (items..., queries, values); k, v: (items...,
// keys, features), (items..., keys, values); lse, product: (items..., queries), float32, product
// the sum of g out; lse as a result may be null. out: (items, queries, values). dq: (items,
// queries, features), dk: (items, keys, features), dv: (items, keys, values), all float32.
// first_query, first_key: (items...), the positions of an item's first query and key in sequences
// of total_queries and total_keys, or null for 0; positions past these totals are padding. causal:
// whether a query sees only keys up to its own position. mask: (items..., mask_queries, mask_keys),
// each size that of all positions or 1, or null. A query that sees nothing has out 0 and lse -inf.
//
// Dropout, unless seed is null: a weight is kept if the 32 random bits (random.cu, stream 0) of its
// index in (heads, total_queries, total_keys) are at most `largest`; kept is then `factor`, else 0.
// head: (items...), the index of an item's head.
#pragma once
#include "block.cuh"
#include "philox.cuh"

struct Problem {
  int queries;
  int keys;
  int features;
  int values;
  int total_queries;
  int total_keys;
  int mask_queries;
  int mask_keys;
  int causal;
  float scale;
  unsigned largest;
  float factor;
};

namespace {
template <typename T> __device__ __forceinline__ T* row_of(T* x, int row, int width) {
  return x + static_cast<long long>(row) * width;
}
// The item of a block, and the first of its `each` rows; backwards: the last come first.
struct Place {
  int item, first;
};
__device__ __forceinline__ Place place_block(int rows, int each, bool backwards) {
  const int tiles = (rows + each - 1) / each, block = blockIdx.x, tile = block % tiles;
  return {block / tiles, (backwards ? tiles - 1 - tile : tile) * each};
}
// Which scores of an item count, and which weights are kept.
struct Sight {
  const Problem& problem;
  const bool* mask;
  const u64* seed;
  long long head;
  int first_query, first_key;
  int queries, keys;  // that are no padding

  __device__ __forceinline__ bool sees(int query, int key) const {
    if (query >= queries || key >= keys) return false;
    query += first_query, key += first_key;
    if (problem.causal && key > query) return false;
    if (!mask) return true;
    return row_of(mask, min(query, problem.mask_queries - 1),
                  problem.mask_keys)[min(key, problem.mask_keys - 1)];
  }
  // The end of the keys that queries before `query` may see.
  __device__ __forceinline__ int end_of_keys(int query) const {
    return problem.causal ? min(keys, first_query + query - first_key) : keys;
  }
  __device__ __forceinline__ bool keeps(int query, int key) const {
    const u64 row = static_cast<u64>(head) * problem.total_queries + first_query + query,
              index = row * problem.total_keys + first_key + key;
    const Words words = philox(index / 4, 0, *seed);
    const unsigned low = index & 1 ? words.of[1] : words.of[0],
                   high = index & 1 ? words.of[3] : words.of[2];
    return (index & 2 ? high : low) <= problem.largest;
  }
  // Whether all of a tile of so many queries and keys are seen.
  __device__ __forceinline__ bool sees_tile(int query, int key, int many_queries,
                                            int many_keys) const {
    return !mask && query + many_queries <= queries && key + many_keys <= keys &&
           !(problem.causal && first_key + key + many_keys - 1 > first_query + query);
  }
};
__device__ __forceinline__ Sight make_sight(const Problem& problem, const bool* mask,
                                            const u64* seed, const long long* head,
                                            const int* first_query, const int* first_key) {
  const int query = first_query ? *first_query : 0, key = first_key ? *first_key : 0;
  return {problem,
          mask,
          seed,
          head ? *head : 0,
          query,
          key,
          min(problem.queries, problem.total_queries - query),
          min(problem.keys, problem.total_keys - key)};
}

template <typename T>
__device__ __forceinline__ const T* at_item(const T* x, int item, const Axes& axes,
                                            const Strides& strides) {
  return x ? x + offset(item, axes, strides) : x;
}
}  // namespace
