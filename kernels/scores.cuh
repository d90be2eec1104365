// Scores in the registers of a warp, as tensor cores leave them: whose they are, which count, and
// their gradients.
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
template <bool MANY> struct Word { typedef u64 Type; };
template <> struct Word<false> { typedef unsigned Type; };
template <int SCORES> struct Bits {
  typedef typename Word<(SCORES > 32)>::Type Mask;
  Mask seen, kept;
  bool all_seen, all_kept;
  __device__ __forceinline__ bool sees(int score) const { return seen >> score & 1; }
  __device__ __forceinline__ bool keeps(int score) const { return kept >> score & 1; }
};
// In a loop, which is shorter than a piece of code for every score. row, column: the first ones of
// the warp. BY_KEYS: rows are keys, and columns queries.
template <int STRIPS, int GROUPS, bool BY_KEYS>
__device__ __forceinline__ Bits<STRIPS * GROUPS * 4> look(const Sight& sight, int row, int column) {
  const int query = BY_KEYS ? column : row, key = BY_KEYS ? row : column;
  constexpr int ROWS = STRIPS * STRIP, WIDTH = GROUPS * 8;
  const bool all = BY_KEYS ? sight.sees_tile(query, key, WIDTH, ROWS)
                           : sight.sees_tile(query, key, ROWS, WIDTH);
  typedef Bits<STRIPS * GROUPS * 4> Own;
  Own bits = {0, 0, all, !sight.seed};
  if (all && !sight.seed) return bits;
#pragma unroll 1
  for (int n = 0; n < STRIPS * GROUPS * 4; n++) {
    const int y = row + n / 4 / GROUPS * STRIP + own_row(n / 2 % 2),
              x = column + n / 4 % GROUPS * 8 + own_column() + n % 2;
    const int own_query = BY_KEYS ? x : y, own_key = BY_KEYS ? y : x;
    bits.seen |= static_cast<typename Own::Mask>(all || sight.sees(own_query, own_key)) << n;
    bits.kept |= static_cast<typename Own::Mask>(!sight.seed || sight.keeps(own_query, own_key)) << n;
  }
  return bits;
}
// f(sees, keeps), functions of the number of a score; where both always hold the compiler knows it.
template <int SCORES, typename F>
__device__ __forceinline__ void with_bits(const Bits<SCORES>& bits, F f) {
  auto always = [](int) { return true; };
  if (bits.all_seen && bits.all_kept) f(always, always);
  else
    f([&](int i) { return bits.all_seen || bits.sees(i); },
      [&](int i) { return bits.all_kept || bits.keeps(i); });
}
// A log-sum-exp as an exponent of 2; of a row whose scores are all -inf one that makes weights 0.
__device__ __forceinline__ float exponent_of(float lse) {
  return lse == -infinity<float>() ? infinity<float>() : lse * LOG2_E;
}
// A score becomes its weight where it is kept, and the product of g with v the gradient of the
// score.
__device__ __forceinline__ void differentiate(float& score, float& product_of_g, bool seen,
                                              bool kept, float factor, float scale, float exponent,
                                              float product) {
  const float weight = seen ? ptx::power_of_2(scale * score - exponent) : 0.f;
  product_of_g = seen ? weight * ((kept ? factor * product_of_g : 0.f) - product) : 0.f;
  score = kept ? weight : 0.f;
}
}  // namespace
#endif
