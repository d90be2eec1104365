// Attention of 16-bit floats on Hopper (sm_90a), and its gradients: TMA, mbarrier and wgmma; the
// formulas of attention.cu.
//
// Shah et al. 2024 ("FlashAttention-3"). Scores, weights and sums are float32 and stay in
// registers, where weights and gradients of scores are rounded to T as left factors of products.
// Sums are those of one block in one order: the same bits in every run.
//
// q, k, v and g are tensor maps over (features, positions, items) of WIDTH features; their strides
// count steps of the map's third axis. A box has 64 features and all positions of a tile. Elements
// past total_queries and total_keys are finite. attention_wgmma: scale is positive. The rest:
// attention.cuh.
//
// A block has three warpgroups, and ROWS rows of one item: of q, of q and g (dq), or of k and v
// (dkv). The first warpgroup is the feeder: one of its threads starts copies, by the tensor memory
// accelerator, of the rows, then of tiles of columns of two matrices in turn, each into one of its
// STAGES slots of shared memory. The other two multiply ROWS / 2 rows each:
//
//   attention_wgmma  scores = q k^T                sums += weights v
//   ..._dq           scores = q k^T, dw = g v^T    sums += ds k
//   ..._dkv          scores = k q^T, dw = v g^T    v_sums += weights g, k_sums += ds q
//
// Forward, the scores of a tile are under way together with the sums of the tile before, and its
// weights are computed behind these. Of dq the sums are under way with the next scores.
//
// Tiles of the longest rows of causal attention come first.
//
// Launch: block HOPPER_THREADS; grid: items * rows / ROWS. Dynamic shared memory: the tiles of the
// rows, then SLOT_ROWS rows of each of the two matrices. Not yet measured on a GPU.
#include "hopper.cuh"
#include "scores.cuh"

constexpr int ROWS = 128;       // of a block
constexpr int KEYS = 128;       // of a tile of attention_wgmma
constexpr int COLUMNS = 64;     // of a tile of the gradients
constexpr int SLOT_ROWS = 256;  // of all slots of a matrix
constexpr int FEEDER_REGISTERS = 24;
constexpr int MULTIPLIER_REGISTERS = 240;

#if defined(GDT_CPU) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
namespace {
// The matrix of an item: a map, and its place along the third axis.
struct Matrix {
  const TensorMap* map;
  int item;
};
__device__ __forceinline__ Matrix matrix_of(const TensorMap& map, const Strides& strides, int item,
                                            const Axes& axes) {
  return {&map, static_cast<int>(offset(item, axes, strides))};
}
// In shared memory: ROWS rows of OWN matrices, and tiles of LENGTH columns of two. A tile has for
// each 64 features LENGTH rows of 128 bytes.
template <typename T, int WIDTH, int LENGTH, int OWN> struct Tiles {
  static constexpr int PART = ROW_BYTES / sizeof(T), PARTS = WIDTH / PART, STEPS = PART / STRIP,
                       ROWS_BYTES = PARTS * ROWS * ROW_BYTES, BOX = LENGTH * ROW_BYTES,
                       BYTES = PARTS * BOX, STAGES = SLOT_ROWS / LENGTH, SLOTS = 2 * STAGES;
  typedef float Scores[LENGTH / 2];
  typedef float Sums[WIDTH / 2];
  typedef uint32_t Left[LENGTH / STRIP][4];
  unsigned char* rows;
  uint64_t *filled, *emptied;  // of each slot; filled[SLOTS] of the rows

  // The slot of tile number n of a matrix, 0 or 1, and how often it has been used.
  static __device__ __forceinline__ int slot(int n, int matrix) {
    return matrix * STAGES + n % STAGES;
  }
  static __device__ __forceinline__ unsigned round(int n) { return n / STAGES; }
  __device__ __forceinline__ unsigned char* tile(int n, int matrix) const {
    return rows + OWN * ROWS_BYTES + slot(n, matrix) * BYTES;
  }
  __device__ __forceinline__ void prepare() const {
    if (threadIdx.x == 0) {
      for (int i = 0; i <= SLOTS; i++) ptx::barrier_init(&filled[i], 1);
      for (int i = 0; i < SLOTS; i++) ptx::barrier_init(&emptied[i], MULTIPLIERS);
      ptx::barrier_init_fence();
    }
    __syncthreads();
  }
  // The feeder: the rows from `first` on of one or two matrices, then `steps` tiles of two others,
  // whose columns begin at `start`.
  __device__ __forceinline__ void feed(const Matrix (&own)[OWN], int first,
                                       const Matrix (&others)[2], int start, int steps) const {
    ptx::lower_registers<FEEDER_REGISTERS>();
    if (threadIdx.x != 0 || steps == 0) return;
    ptx::barrier_arrive_expecting(&filled[SLOTS], OWN * ROWS_BYTES);
#pragma unroll
    for (int i = 0; i < OWN * PARTS; i++)
      ptx::copy_tile(rows + i * ROWS * ROW_BYTES, own[i / PARTS].map, &filled[SLOTS],
                     i % PARTS * PART, first, own[i / PARTS].item);
    for (int n = 0; n < steps; n++)
#pragma unroll
      for (int matrix = 0; matrix < 2; matrix++) {
        uint64_t* full = &filled[slot(n, matrix)];
        ptx::barrier_wait(&emptied[slot(n, matrix)], round(n) & 1 ^ 1);
        ptx::barrier_arrive_expecting(full, BYTES);
#pragma unroll
        for (int i = 0; i < PARTS; i++)
          ptx::copy_tile(tile(n, matrix) + i * BOX, others[matrix].map, full, i * PART,
                         start + n * LENGTH, others[matrix].item);
      }
  }
  __device__ __forceinline__ void await(int n, int matrix) const {
    ptx::barrier_wait(&filled[slot(n, matrix)], round(n) & 1);
  }
  __device__ __forceinline__ void release(int n, int matrix) const {
    if (threadIdx.x % WARPGROUP == 0) ptx::barrier_arrive(&emptied[slot(n, matrix)]);
  }
  // scores = 64 rows from `row` on of a matrix of rows, times the transpose of a tile
  __device__ __forceinline__ void multiply(Scores& scores, int own, int row, int n,
                                           int matrix) const {
    const uint64_t left = describe_tile(rows + own * ROWS_BYTES + row * ROW_BYTES, 0, ATOM_BYTES),
                   right = describe_tile(tile(n, matrix), 0, ATOM_BYTES);
    await(n, matrix);
#pragma unroll
    for (int i = 0; i < PARTS * STEPS; i++) {
      const int part = i / STEPS, at = i % STEPS * STEP_BYTES;
      ptx::multiply_tiles<false, false>(scores, move_tile(left, part * ROWS * ROW_BYTES + at),
                                        move_tile(right, part * BOX + at), i != 0, T());
    }
    ptx::warpgroup_commit();
  }
  // sums += left times a tile that has arrived, 16 columns at a time
  __device__ __forceinline__ void add(Sums& sums, const Left& left, int n, int matrix) const {
    const uint64_t right = describe_tile(tile(n, matrix), BOX, ATOM_BYTES);
#pragma unroll
    for (int i = 0; i < LENGTH / STRIP; i++)
      ptx::add_product<true>(sums, left[i], move_tile(right, i * STRIP * ROW_BYTES), T());
    ptx::warpgroup_commit();
  }
  // A thread's scores as its part of a left factor.
  static __device__ __forceinline__ void round_to(Left& left, const Scores& from) {
#pragma unroll
    for (int i = 0; i < LENGTH / 4; i++)
      left[i / 4][i % 4] = ptx::to_pair(from[2 * i], from[2 * i + 1], T());
  }
};
template <int N> __device__ __forceinline__ void clear(float (&sums)[N]) {
#pragma unroll
  for (int i = 0; i < N; i++) sums[i] = 0.f;
}
// Writes the sums of a thread times the factors of its rows to `out`, (rows, WIDTH).
template <int WIDTH, typename Result>
__device__ __forceinline__ void write_rows(const float (&sums)[WIDTH / 2], Result* out, int strip,
                                           int rows, float factor, float other_factor) {
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int row = strip + own_row(half);
    if (row >= rows) continue;
    Result* to = row_of(out, row, WIDTH) + own_column();
#pragma unroll
    for (int i = 2 * half; i < WIDTH / 2; i += 4)
      write_pair(to + i / 4 * 8, (half ? other_factor : factor) * sums[i],
                 (half ? other_factor : factor) * sums[i + 1]);
  }
}
// What a block that has few registers left keeps of its item in shared memory.
struct Kept {
  const bool* mask;
  const u64* seed;
  long long head;
  int first_query, first_key, queries, keys;
  const float *lse, *product;
  __device__ __forceinline__ Sight sight(const Problem& problem) const {
    return {problem, mask, seed, head, first_query, first_key, queries, keys};
  }
};
__device__ __forceinline__ int own_group_row() {  // of the block's rows, the first of a warpgroup
  return (static_cast<int>(threadIdx.x) / WARPGROUP - 1) * (ROWS / MULTIPLIERS);
}
__device__ __forceinline__ int own_strip() {  // the first of a warp
  return own_group_row() + static_cast<int>(threadIdx.x) / WARP % 4 * STRIP;
}
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
__device__ __forceinline__ Bits<KEYS / 2> hide(float (&scores)[KEYS / 2], const Sight& sight,
                                               int query, int key) {
  Bits<KEYS / 2> bits = {0, 0, sight.sees_tile(query, key, STRIP, KEYS), !sight.seed};
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
  typedef Tiles<T, WIDTH, KEYS, 1> Shared;
  GDT_DYNAMIC_SHARED(shared);
  GDT_SHARED(uint64_t, filled, [Shared::SLOTS + 1]);
  GDT_SHARED(uint64_t, emptied, [Shared::SLOTS]);
  const Shared tiles = {shared, filled, emptied};
  const Place place = place_block(problem.queries, ROWS, problem.causal);
  const Sight sight = make_sight(problem, at_item(mask, place.item, axes, mask_strides), seed,
                                 at_item(head, place.item, axes, head_strides),
                                 at_item(first_query, place.item, axes, first_query_strides),
                                 at_item(first_key, place.item, axes, first_key_strides));
  const int rows = min(ROWS, problem.queries - place.first),
            end = sight.end_of_keys(place.first + rows), steps = max(0, end + KEYS - 1) / KEYS;
  tiles.prepare();
  if (threadIdx.x < WARPGROUP) {
    return tiles.feed({matrix_of(q, q_strides, place.item, axes)}, place.first,
                      {matrix_of(k, k_strides, place.item, axes),
                       matrix_of(v, v_strides, place.item, axes)},
                      0, steps);
  }
  ptx::raise_registers<MULTIPLIER_REGISTERS>();
  const int group_row = own_group_row(), strip = own_strip();
  typename Shared::Scores scores;
  typename Shared::Sums sums;
  typename Shared::Left weights;
  Softmax softmax = {problem.scale * LOG2_E, {-infinity<float>(), -infinity<float>()}, {}, {}};
  clear(sums);
  auto weigh = [&](int n) {
    const auto bits = hide(scores, sight, place.first + strip, n * KEYS);
    softmax.weigh(scores);
    if (bits.all_kept) return;
#pragma unroll
    for (int i = 0; i < KEYS / 2; i++)
      if (!bits.keeps(i)) scores[i] = 0.f;
  };
  if (steps) {
    ptx::barrier_wait(&filled[Shared::SLOTS], 0);
    ptx::warpgroup_fence();
    tiles.multiply(scores, 0, group_row, 0, 0);
    ptx::warpgroup_finish<0>(scores);
    tiles.release(0, 0);
    weigh(0);
    tiles.round_to(weights, scores);
    for (int n = 1; n < steps; n++) {
      ptx::warpgroup_fence();
      tiles.multiply(scores, 0, group_row, n, 0);
      tiles.await(n - 1, 1);
      tiles.add(sums, weights, n - 1, 1);
      ptx::warpgroup_finish<1>(scores);
      tiles.release(n, 0);
      weigh(n);
      ptx::warpgroup_finish<0>(sums);
      ptx::warpgroup_keep(weights);
      tiles.release(n - 1, 1);
#pragma unroll
      for (int i = 0; i < WIDTH / 2; i++) sums[i] *= softmax.share[i / 2 % 2];
      tiles.round_to(weights, scores);
    }
    ptx::warpgroup_fence();
    tiles.await(steps - 1, 1);
    tiles.add(sums, weights, steps - 1, 1);
    ptx::warpgroup_finish<0>(sums);
  }

  const long long first = static_cast<long long>(place.item) * problem.queries + place.first;
  float factors[2];
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const float whole = merge_row(softmax.total[half], [](float a, float b) { return a + b; });
    const int row = strip + own_row(half);
    factors[half] = whole == 0.f ? 1.f : problem.factor / whole;
    if (lse && own_column() == 0 && row < rows)
      lse[first + row] = softmax.high[half] * LN_2 + log(whole);
  }
  write_rows<WIDTH>(sums, out + first * WIDTH, strip, rows, factors[0], factors[1]);
}

template <typename T, int WIDTH, typename Result>
__global__ void __launch_bounds__(HOPPER_THREADS, 1)
    attention_wgmma_dq(const __grid_constant__ TensorMap q, Strides q_strides,
                       const __grid_constant__ TensorMap k, Strides k_strides,
                       const __grid_constant__ TensorMap v, Strides v_strides,
                       const __grid_constant__ TensorMap g, Strides g_strides,
                       const float* __restrict__ lse, Strides lse_strides,
                       const float* __restrict__ product, Strides product_strides,
                       const bool* __restrict__ mask, Strides mask_strides,
                       const int* __restrict__ first_query, Strides first_query_strides,
                       const int* __restrict__ first_key, Strides first_key_strides,
                       const long long* __restrict__ head, Strides head_strides,
                       const unsigned long long* __restrict__ seed, Result* __restrict__ dq,
                       Axes axes, Problem problem) {
  typedef Tiles<T, WIDTH, COLUMNS, 2> Shared;
  GDT_DYNAMIC_SHARED(shared);
  GDT_SHARED(uint64_t, filled, [Shared::SLOTS + 1]);
  GDT_SHARED(uint64_t, emptied, [Shared::SLOTS]);
  const Shared tiles = {shared, filled, emptied};
  const Place place = place_block(problem.queries, ROWS, problem.causal);
  const Sight sight = make_sight(problem, at_item(mask, place.item, axes, mask_strides), seed,
                                 at_item(head, place.item, axes, head_strides),
                                 at_item(first_query, place.item, axes, first_query_strides),
                                 at_item(first_key, place.item, axes, first_key_strides));
  const int rows = min(ROWS, problem.queries - place.first),
            end = sight.end_of_keys(place.first + rows),
            steps = max(0, end + COLUMNS - 1) / COLUMNS;
  tiles.prepare();
  if (threadIdx.x < WARPGROUP) {
    return tiles.feed({matrix_of(q, q_strides, place.item, axes),
                       matrix_of(g, g_strides, place.item, axes)},
                      place.first,
                      {matrix_of(k, k_strides, place.item, axes),
                       matrix_of(v, v_strides, place.item, axes)},
                      0, steps);
  }
  ptx::raise_registers<MULTIPLIER_REGISTERS>();
  const int group_row = own_group_row(), strip = own_strip();
  const float *row_lse = at_item(lse, place.item, axes, lse_strides),
              *row_product = at_item(product, place.item, axes, product_strides);
  const float scale = problem.scale * LOG2_E;
  float own_lse[2], own_product[2];
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int query = min(place.first + strip + own_row(half), problem.queries - 1);
    own_lse[half] = exponent_of(row_lse[query]), own_product[half] = row_product[query];
  }
  typename Shared::Scores scores, gradients;
  typename Shared::Sums sums;
  typename Shared::Left left;
  clear(sums);
  auto multiply = [&](int n) {
    ptx::warpgroup_fence();
    tiles.multiply(scores, 0, group_row, n, 0);
    tiles.multiply(gradients, 1, group_row, n, 1);
  };
  auto weigh = [&](int n) {
    const auto bits = look<1, COLUMNS / 8, false>(sight, place.first + strip, n * COLUMNS);
    with_bits(bits, [&](auto sees, auto keeps) {
#pragma unroll
      for (int i = 0; i < COLUMNS / 2; i++)
        differentiate(scores[i], gradients[i], sees(i), keeps(i), problem.factor, scale,
                      own_lse[i / 2 % 2], own_product[i / 2 % 2]);
    });
  };
  if (steps) {
    ptx::barrier_wait(&filled[Shared::SLOTS], 0);
    multiply(0);
    ptx::warpgroup_finish<0>(scores);
    ptx::warpgroup_finish<0>(gradients);
    tiles.release(0, 1);
    weigh(0);
    tiles.round_to(left, gradients);
    for (int n = 1; n < steps; n++) {
      multiply(n);
      tiles.add(sums, left, n - 1, 0);
      ptx::warpgroup_finish<1>(scores);
      ptx::warpgroup_finish<1>(gradients);
      tiles.release(n, 1);
      weigh(n);
      ptx::warpgroup_finish<0>(sums);
      ptx::warpgroup_keep(left);
      tiles.release(n - 1, 0);
      tiles.round_to(left, gradients);
    }
    ptx::warpgroup_fence();
    tiles.add(sums, left, steps - 1, 0);
    ptx::warpgroup_finish<0>(sums);
  }
  const long long first = static_cast<long long>(place.item) * problem.queries + place.first;
  write_rows<WIDTH>(sums, dq + first * WIDTH, strip, rows, problem.scale, problem.scale);
}

template <typename T, int WIDTH, typename Result>
__global__ void __launch_bounds__(HOPPER_THREADS, 1)
    attention_wgmma_dkv(const __grid_constant__ TensorMap q, Strides q_strides,
                        const __grid_constant__ TensorMap k, Strides k_strides,
                        const __grid_constant__ TensorMap v, Strides v_strides,
                        const __grid_constant__ TensorMap g, Strides g_strides,
                        const float* __restrict__ lse, Strides lse_strides,
                        const float* __restrict__ product, Strides product_strides,
                        const bool* __restrict__ mask, Strides mask_strides,
                        const int* __restrict__ first_query, Strides first_query_strides,
                        const int* __restrict__ first_key, Strides first_key_strides,
                        const long long* __restrict__ head, Strides head_strides,
                        const unsigned long long* __restrict__ seed, Result* __restrict__ dk,
                        Result* __restrict__ dv, Axes axes, Problem problem) {
  typedef Tiles<T, WIDTH, COLUMNS, 2> Shared;
  GDT_DYNAMIC_SHARED(shared);
  GDT_SHARED(uint64_t, filled, [Shared::SLOTS + 1]);
  GDT_SHARED(uint64_t, emptied, [Shared::SLOTS]);
  GDT_SHARED(float, slabs, [MULTIPLIERS * WARPGROUP / WARP][2 * COLUMNS]);  // of each warp
  GDT_SHARED(Kept, kept, [1]);
  const Shared tiles = {shared, filled, emptied};
  const Place place = place_block(problem.keys, ROWS, false);
  const Sight sight = make_sight(problem, at_item(mask, place.item, axes, mask_strides), seed,
                                 at_item(head, place.item, axes, head_strides),
                                 at_item(first_query, place.item, axes, first_query_strides),
                                 at_item(first_key, place.item, axes, first_key_strides));
  const int rows = min(ROWS, problem.keys - place.first),
            start = problem.causal ? max(0, sight.first_key + place.first - sight.first_query) : 0,
            steps = max(0, sight.queries - start + COLUMNS - 1) / COLUMNS;
  if (threadIdx.x == 0)
    kept[0] = {sight.mask, sight.seed, sight.head, sight.first_query, sight.first_key,
               sight.queries, sight.keys, at_item(lse, place.item, axes, lse_strides),
               at_item(product, place.item, axes, product_strides)};
  tiles.prepare();
  if (threadIdx.x < WARPGROUP) {
    return tiles.feed({matrix_of(k, k_strides, place.item, axes),
                       matrix_of(v, v_strides, place.item, axes)},
                      place.first,
                      {matrix_of(q, q_strides, place.item, axes),
                       matrix_of(g, g_strides, place.item, axes)},
                      start, steps);
  }
  ptx::raise_registers<MULTIPLIER_REGISTERS>();
  const int group_row = own_group_row(), strip = own_strip();
  float* slab = slabs[threadIdx.x / WARP - WARPGROUP / WARP];
  const float scale = problem.scale * LOG2_E;
  typename Shared::Scores scores, gradients;
  typename Shared::Sums k_sums, v_sums;
  typename Shared::Left weights, left;
  clear(k_sums);
  clear(v_sums);
  if (steps) ptx::barrier_wait(&filled[Shared::SLOTS], 0);
  for (int n = 0; n < steps; n++) {
    const int at = start + n * COLUMNS;
    const auto bits = look<1, COLUMNS / 8, true>(kept->sight(problem), place.first + strip, at);
    ptx::warpgroup_fence();
    tiles.multiply(scores, 0, group_row, n, 0);
    tiles.multiply(gradients, 1, group_row, n, 1);
    float own[COLUMNS / WARP][2];
#pragma unroll
    for (int i = 0; i < COLUMNS / WARP; i++) {
      const int query = min(at + i * WARP + own_lane(), problem.queries - 1);
      own[i][0] = kept->lse[query], own[i][1] = kept->product[query];
    }
    ptx::warpgroup_finish<0>(scores);
    ptx::warpgroup_finish<0>(gradients);
#pragma unroll
    for (int i = 0; i < COLUMNS / WARP; i++) {
      float* to = slab + i * WARP + own_lane();  // no lane reads it since the last wait
      to[0] = exponent_of(own[i][0]), to[COLUMNS] = own[i][1];
    }
    __syncwarp();
    with_bits(bits, [&](auto sees, auto keeps) {
#pragma unroll
      for (int i = 0; i < COLUMNS / 2; i++) {
        const float* own = slab + i / 4 * 8 + own_column() + i % 2;
        differentiate(scores[i], gradients[i], sees(i), keeps(i), problem.factor, scale, own[0],
                      own[COLUMNS]);
      }
    });
    tiles.round_to(weights, scores);
    tiles.round_to(left, gradients);
    ptx::warpgroup_fence();
    tiles.add(v_sums, weights, n, 1);
    tiles.add(k_sums, left, n, 0);
    ptx::warpgroup_finish<1>(v_sums);
    ptx::warpgroup_keep(weights);
    tiles.release(n, 1);
    ptx::warpgroup_finish<0>(k_sums);
    ptx::warpgroup_keep(left);
    tiles.release(n, 0);
  }
  const long long first = static_cast<long long>(place.item) * problem.keys + place.first;
  write_rows<WIDTH>(k_sums, dk + first * WIDTH, strip, rows, problem.scale, problem.scale);
  write_rows<WIDTH>(v_sums, dv + first * WIDTH, strip, rows, problem.factor, problem.factor);
}
#endif
