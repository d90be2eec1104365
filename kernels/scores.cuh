// Scores in the registers of a warp, as tensor cores leave them: whose they are, and which count.
//
// A warp has strips of 16 rows. Of a strip lane l has the rows l / 4 + {0, 8}, and of 8 columns
// l % 4 * 2 + {0, 1}.
#pragma once
#include "attention.cuh"

constexpr int STRIP = 16;
constexpr float LN_2 = 0.69314718055994530942f;

#if defined(GDT_CPU) || __CUDA_ARCH__ >= 800
namespace {
__device__ __forceinline__ int own_lane() { return threadIdx.x % WARP; }
// Row `half` (0 or 1) of a strip, and the first of two columns of a group of 8, of this lane.
__device__ __forceinline__ int own_row(int half) { return own_lane() / 4 + 8 * half; }
__device__ __forceinline__ int own_column() { return own_lane() % 4 * 2; }
// The merge of the four lanes of a row.
template <typename Merge> __device__ __forceinline__ float merge_row(float value, Merge merge) {
  value = merge(value, shuffle_xor(value, 1));
  return merge(value, shuffle_xor(value, 2));
}
__device__ __forceinline__ void write_pair(float* to, float first, float second) {
  store(to, Pack<float, 2>{{first, second}});
}
template <typename T>
__device__ __forceinline__ void write_pair(T* to, float first, float second) {
  const uint32_t pair[1] = {ptx::to_pair(first, second, T())};
  ptx::store_words(to, pair);
}
// Of a thread's scores of a tile: bit 4 (GROUPS s + g) + e is for score [s][g][e].
struct Bits {
  u64 seen, kept;
  bool all_seen, all_kept;
  __device__ __forceinline__ bool sees(int score) const { return seen >> score & 1; }
  __device__ __forceinline__ bool keeps(int score) const { return kept >> score & 1; }
};
// In a loop, which is shorter than a piece of code for every score. row, column: the first ones of
// the warp. BY_KEYS: rows are keys, and columns queries.
template <int STRIPS, int GROUPS, bool BY_KEYS>
__device__ __forceinline__ Bits look(const Sight& sight, int row, int column) {
  const int query = BY_KEYS ? column : row, key = BY_KEYS ? row : column;
  constexpr int ROWS = STRIPS * STRIP, WIDTH = GROUPS * 8;
  const bool all = BY_KEYS ? sight.sees_tile(query, key, WIDTH, ROWS)
                           : sight.sees_tile(query, key, ROWS, WIDTH);
  Bits bits = {0, 0, all, !sight.seed};
  if (all && !sight.seed) return bits;
#pragma unroll 1
  for (int n = 0; n < STRIPS * GROUPS * 4; n++) {
    const int y = row + n / 4 / GROUPS * STRIP + own_row(n / 2 % 2),
              x = column + n / 4 % GROUPS * 8 + own_column() + n % 2;
    const int own_query = BY_KEYS ? x : y, own_key = BY_KEYS ? y : x;
    bits.seen |= static_cast<u64>(all || sight.sees(own_query, own_key)) << n;
    bits.kept |= static_cast<u64>(!sight.seed || sight.keeps(own_query, own_key)) << n;
  }
  return bits;
}
}  // namespace
#endif
