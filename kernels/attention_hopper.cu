// Attention of 16-bit floats on Hopper (sm_90a): TMA, mbarrier and wgmma; the formulas of
// attention.cu, without the gradients.
//
// Shah et al. 2024 ("FlashAttention-3"). Scores, weights and sums are float32 and stay in
// registers, where weights are rounded to T as the left factor of the product with values.
//
// q, k and v are tensor maps over (features, positions, items) of WIDTH features; their strides
// count steps of the map's third axis. A box has 64 features: of q QUERIES positions, of k KEYS, of
// v 64. scale is positive. Elements past total_keys are finite. The rest: attention.cuh.
//
// A block has three warpgroups and QUERIES queries of one item. The first warpgroup is the feeder:
// one of its threads starts copies, by the tensor memory accelerator, of the queries, then of tiles
// of keys and values in turn, each into one of its STAGES slots of shared memory. The other two
// multiply 64 queries each; the products of a tile of keys are under way together with those of the
// values of the tile before, behind which the weights of the new scores are computed:
//
//   step n     keys n, products -> scores n ------> weights n     sums *= share
//              values n - 1, products -> sums ------------------'
//
// Tiles of the longest rows of causal attention come first.
//
// Launch: block HOPPER_THREADS; grid: items * queries / QUERIES. Dynamic shared memory: a tile of
// queries, and STAGES of keys and of values. Not yet measured on a GPU.
#include "hopper.cuh"
#include "scores.cuh"

constexpr int QUERIES = 128;
constexpr int KEYS = 128;  // of a tile
constexpr int STAGES = 2;

#if defined(GDT_CPU) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
namespace {
// Queries, keys and values of WIDTH features in shared memory. Scores are sums over features,
// results are sums over keys, both in parts of 64.
template <typename T, int WIDTH> struct Tiles {
  typedef SharedTile<T, QUERIES, true> Q;
  typedef SharedTile<T, KEYS, true> K;
  typedef SharedTile<T, WIDTH, false> V;
  static constexpr int PART = Q::K, WIDTH_PARTS = WIDTH / PART, KEY_PARTS = KEYS / PART,
                       STEPS = ROW_BYTES / STEP_BYTES;
  static constexpr int Q_BYTES = WIDTH_PARTS * Q::BYTES, BYTES = WIDTH_PARTS * K::BYTES;
  static constexpr int SLOTS = 2 * STAGES;  // of keys, then of values
  unsigned char* q;
  uint64_t *filled, *emptied;  // of each slot; filled[SLOTS] of the queries

  // The slot of tile number n of keys (matrix 0) or of values (1), and how often it has been used.
  static __device__ __forceinline__ int slot(int n, int matrix) {
    return matrix * STAGES + n % STAGES;
  }
  static __device__ __forceinline__ unsigned round(int n) { return n / STAGES; }
  __device__ __forceinline__ unsigned char* tile(int slot) const {
    return q + Q_BYTES + slot * BYTES;
  }
  __device__ __forceinline__ void free(int n, int matrix) const {
    if (threadIdx.x % WARPGROUP == 0) ptx::barrier_arrive(&emptied[slot(n, matrix)]);
  }
  __device__ __forceinline__ void prepare() const {
    if (threadIdx.x == 0) {
      for (int i = 0; i <= SLOTS; i++) ptx::barrier_init(&filled[i], 1);
      for (int i = 0; i < SLOTS; i++) ptx::barrier_init(&emptied[i], MULTIPLIERS);
      ptx::barrier_init_fence();
    }
    __syncthreads();
  }
  __device__ __forceinline__ void fetch_queries(const TensorMap* map, int first, int item) const {
    ptx::barrier_arrive_expecting(&filled[SLOTS], Q_BYTES);
    for (int i = 0; i < WIDTH_PARTS; i++)
      Q::copy(q + i * Q::BYTES, map, &filled[SLOTS], first, i * PART, item);
  }
  template <int MATRIX>
  __device__ __forceinline__ void fetch(const TensorMap* map, int n, int item) const {
    const int to = slot(n, MATRIX);
    ptx::barrier_wait(&emptied[to], round(n) & 1 ^ 1);
    ptx::barrier_arrive_expecting(&filled[to], BYTES);
    for (int i = 0; i < (MATRIX ? KEY_PARTS : WIDTH_PARTS); i++) {
      if (MATRIX) V::copy(tile(to) + i * V::BYTES, map, &filled[to], 0, n * KEYS + i * PART, item);
      else K::copy(tile(to) + i * K::BYTES, map, &filled[to], n * KEYS, i * PART, item);
    }
  }
  // scores (64 rows of q from `row` on) = q k^T
  __device__ __forceinline__ void multiply_keys(float (&scores)[KEYS / 2], int n, int row) const {
    const unsigned char* k = tile(slot(n, 0));
    ptx::barrier_wait(&filled[slot(n, 0)], round(n) & 1);
#pragma unroll
    for (int i = 0; i < WIDTH_PARTS; i++)
#pragma unroll
      for (int step = 0; step < STEPS; step++)
        ptx::multiply_tiles<false, false>(scores, Q::describe(q + i * Q::BYTES, row, step),
                                          K::describe(k + i * K::BYTES, 0, step),
                                          i != 0 || step != 0, T());
    ptx::warpgroup_commit();
  }
  // sums += weights v
  __device__ __forceinline__ void add_values(float (&sums)[WIDTH / 2],
                                             const uint32_t (&weights)[KEYS / STRIP][4],
                                             int n) const {
    const unsigned char* v = tile(slot(n, 1));
    ptx::barrier_wait(&filled[slot(n, 1)], round(n) & 1);
#pragma unroll
    for (int i = 0; i < KEY_PARTS; i++)
#pragma unroll
      for (int step = 0; step < STEPS; step++)
        ptx::add_product<true>(sums, weights[i * STEPS + step],
                               V::describe(v + i * V::BYTES, 0, step), T());
    ptx::warpgroup_commit();
  }
};
// The running maxima of scaled scores, and sums of weights, of the two rows of a thread.
struct Softmax {
  float scale;
  float high[2], total[2], share[2];

  // Scores of a tile become weights, and earlier ones count `share` as much as before.
  __device__ __forceinline__ void weigh(float (&scores)[KEYS / 2]) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      float highest = -infinity<float>(), sum = 0.f;
#pragma unroll
      for (int i = 0; i < KEYS / 4; i++)
        highest = max(highest, scores[i / 2 * 4 + 2 * half + i % 2]);
      highest = merge_row(highest, [](float a, float b) { return max(a, b); });
      highest = max(high[half], scale * highest);
      const float shift = highest == -infinity<float>() ? 0.f : highest;
      share[half] = ptx::power_of_2(high[half] - shift);
#pragma unroll
      for (int i = 0; i < KEYS / 4; i++) {
        float& score = scores[i / 2 * 4 + 2 * half + i % 2];
        score = ptx::power_of_2(scale * score - shift);
        sum += score;
      }
      total[half] = share[half] * total[half] + sum;  // of this lane
      high[half] = highest;
    }
  }
};
template <typename Sees>
__device__ __forceinline__ void hide_unless(float (&scores)[KEYS / 2], Sees sees) {
#pragma unroll
  for (int i = 0; i < KEYS / 2; i++)
    if (!sees(i)) scores[i] = -infinity<float>();
}
// Scores of keys that the queries of a warp, from `query` on, do not see become -inf. Without a
// mask a query sees the keys up to an end. Returns which weights are kept.
__device__ __forceinline__ Bits hide(float (&scores)[KEYS / 2], const Sight& sight, int query,
                                     int key) {
  Bits bits = {0, 0, sight.sees_tile(query, key, STRIP, KEYS), !sight.seed};
  if (sight.mask || sight.seed) bits = look<1, KEYS / 8, false>(sight, query, key);
  if (sight.mask) {
    hide_unless(scores, [&](int i) { return bits.sees(i); });
  } else if (!bits.all_seen) {
    int ends[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int row = query + own_row(half);
      ends[half] = (row < sight.queries ? sight.end_of_keys(row + 1) : 0) - key - own_column();
    }
    hide_unless(scores, [&](int i) { return i / 4 * 8 + i % 2 < ends[i / 2 % 2]; });
  }
  return bits;
}
}  // namespace

template <typename T, int WIDTH>
__global__ void __launch_bounds__(HOPPER_THREADS, 1)
    attention_wgmma(const __grid_constant__ TensorMap q, Strides q_strides,
                    const __grid_constant__ TensorMap k, Strides k_strides,
                    const __grid_constant__ TensorMap v, Strides v_strides,
                    const bool* __restrict__ mask, Strides mask_strides,
                    const int* __restrict__ first_query, Strides first_query_strides,
                    const int* __restrict__ first_key, Strides first_key_strides,
                    const long long* __restrict__ head, Strides head_strides,
                    const unsigned long long* __restrict__ seed, T* __restrict__ out,
                    float* __restrict__ lse, Axes axes, Problem problem) {
  GDT_DYNAMIC_SHARED(shared);
  GDT_SHARED(uint64_t, filled, [2 * STAGES + 1]);
  GDT_SHARED(uint64_t, emptied, [2 * STAGES]);
  const Tiles<T, WIDTH> tiles = {shared, filled, emptied};
  const Place place = place_block(problem.queries, QUERIES, problem.causal);
  const Sight sight = make_sight(problem, at_item(mask, place.item, axes, mask_strides), seed,
                                 at_item(head, place.item, axes, head_strides),
                                 at_item(first_query, place.item, axes, first_query_strides),
                                 at_item(first_key, place.item, axes, first_key_strides));
  const int t = threadIdx.x, rows = min(QUERIES, problem.queries - place.first),
            end = sight.end_of_keys(place.first + rows), steps = max(0, end + KEYS - 1) / KEYS;
  tiles.prepare();
  if (t < WARPGROUP) {
    ptx::lower_registers<FEEDER_REGISTERS>();
    if (t != 0 || steps == 0) return;
    const int k_item = static_cast<int>(offset(place.item, axes, k_strides)),
              v_item = static_cast<int>(offset(place.item, axes, v_strides));
    tiles.fetch_queries(&q, place.first, static_cast<int>(offset(place.item, axes, q_strides)));
    for (int n = 0; n < steps; n++) {
      tiles.template fetch<0>(&k, n, k_item);
      tiles.template fetch<1>(&v, n, v_item);
    }
    return;
  }
  ptx::raise_registers<MULTIPLIER_REGISTERS>();
  const int group_row = (t / WARPGROUP - 1) * (QUERIES / MULTIPLIERS),
            strip = group_row + t / WARP % 4 * STRIP;
  float scores[KEYS / 2], sums[WIDTH / 2];
  uint32_t weights[KEYS / STRIP][4];
  Softmax softmax = {problem.scale * LOG2_E, {-infinity<float>(), -infinity<float>()}, {}, {}};
#pragma unroll
  for (int i = 0; i < WIDTH / 2; i++) sums[i] = 0.f;
  auto weigh = [&](int n) {
    const Bits bits = hide(scores, sight, place.first + strip, n * KEYS);
    softmax.weigh(scores);
    if (bits.all_kept) return;
#pragma unroll
    for (int i = 0; i < KEYS / 2; i++)
      if (!bits.keeps(i)) scores[i] = 0.f;
  };
  auto round_weights = [&] {
#pragma unroll
    for (int i = 0; i < KEYS / 4; i++)
      weights[i / 4][i % 4] = ptx::to_pair(scores[2 * i], scores[2 * i + 1], T());
  };
  if (steps) {
    ptx::barrier_wait(&filled[tiles.SLOTS], 0);
    ptx::warpgroup_fence();
    tiles.multiply_keys(scores, 0, group_row);
    ptx::warpgroup_finish<0>(scores);
    tiles.free(0, 0);
    weigh(0);
    round_weights();
    for (int n = 1; n < steps; n++) {
      ptx::warpgroup_fence();
      tiles.multiply_keys(scores, n, group_row);
      tiles.add_values(sums, weights, n - 1);
      ptx::warpgroup_finish<1>(scores);
      tiles.free(n, 0);
      weigh(n);
      ptx::warpgroup_finish<0>(sums);
      ptx::warpgroup_keep(weights);
      tiles.free(n - 1, 1);
#pragma unroll
      for (int i = 0; i < WIDTH / 2; i++) sums[i] *= softmax.share[i / 2 % 2];
      round_weights();
    }
    ptx::warpgroup_fence();
    tiles.add_values(sums, weights, steps - 1);
    ptx::warpgroup_finish<0>(sums);
  }

  const long long first = static_cast<long long>(place.item) * problem.queries + place.first;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const float whole = merge_row(softmax.total[half], [](float a, float b) { return a + b; }),
                factor = whole == 0.f ? 1.f : problem.factor / whole;
    const int row = strip + own_row(half);
    if (row >= rows) continue;
    if (own_column() == 0) lse[first + row] = softmax.high[half] * LN_2 + log(whole);
    T* to = out + (first + row) * WIDTH + own_column();
#pragma unroll
    for (int i = 2 * half; i < WIDTH / 2; i += 4)
      write_pair(to + i / 4 * 8, factor * sums[i], factor * sums[i + 1]);
  }
}
#endif
