// Attention of 16-bit floats on tensor cores, and its gradients: the formulas of attention.cu.
//
// Dao 2023 ("FlashAttention-2"). Scores, weights and sums are float32; the factors of products are
// of type T, so weights and gradients of scores are rounded to T where they are multiplied. They
// stay in registers. Scores are computed anew for each gradient, which is added up by one block in
// one order: no atomics, the same bits in every run.
//
// Arguments: attention.cuh; features and values are multiples of PER_PACK, and blocks begin at
// multiples of 16 bytes.
//
// Each of WARPS warps has STRIPS strips of 16 rows, and goes over tiles of columns: queries over
// keys in attention_mma and attention_mma_dq, keys over queries in attention_mma_dkv.
//
//            columns x             WIDTH       lane l has of a strip the rows l / 4 + {0, 8}, and
//          +----------+        +-----------+   of 8 columns l % 4 * 2 + {0, 1}: sums[..][e] is
//   rows   |  scores  |   @    |  columns  |   row e / 2, column e % 2.
//          +----------+        |   of v    |
//                              +-----------+
//
// Of attention_mma a tile of values arrives while scores are computed, and the next tile of keys
// while they are multiplied with values. The gradients have the next tiles of both on their way
// where two fit (WIDTH up to 128). Tiles of the longest rows of causal attention come first.
//
// Launch: block THREADS, grid (items * rows / (WARPS 16 STRIPS)), of attention_mma_dkv and WIDTH
// 256 also 2, a half of the columns of the sums for each. WIDTH: at least `features` and `values`.
// Shared: (rows + columns) of two matrices, in rows of WIDTH + PER_PACK. Not yet measured on a GPU.
#include "scores.cuh"

constexpr int WARPS = 4;
constexpr int THREADS = 128;
constexpr int KEYS = 64;     // of a tile of attention_mma
constexpr int COLUMNS = 32;  // of a tile of the gradients
constexpr int NARROW = 128;  // WIDTH up to which a warp has two strips, or two tiles are under way
constexpr int PART = 32;     // features, after which a product may end before WIDTH

#if defined(GDT_CPU) || __CUDA_ARCH__ >= 800
namespace {
// ---- tiles in shared memory ---------------------------------------------------------------------
// Rows of WIDTH elements, padded by a pack so that 8 rows lie in different banks.
template <typename T, int WIDTH> struct Tile {
  static constexpr int ROW = WIDTH + PER_PACK<T>;
  static __device__ __forceinline__ T* at(T* tile, int row, int column) {
    return tile + row * ROW + column;
  }
  // Copies ROWS rows of x: (rows, width); elements outside of it are 0.
  template <int ROWS>
  static __device__ __forceinline__ void fetch(T* tile, const T* x, int rows, int width) {
    constexpr int PACKS = WIDTH / PER_PACK<T>;
    // With the most sums in registers, addresses of several copies would not fit beside them.
    constexpr int AT_ONCE = WIDTH == NARROW ? 1 : 4;
#pragma unroll AT_ONCE
    for (int i = threadIdx.x; i < ROWS * PACKS; i += THREADS) {
      const int row = i / PACKS, column = i % PACKS * PER_PACK<T>;
      const bool inside = row < rows && column < width;
      ptx::copy_async_16(at(tile, row, column), inside ? row_of(x, row, width) + column : x,
                         inside ? PACK_BYTES : 0);
    }
  }
};
// Score number i of a thread: row i % 4 / 2 and column i % 2 of group i / 4.
template <int STRIPS, int GROUPS>
__device__ __forceinline__ float& score_of(float (&scores)[STRIPS][GROUPS][4], int i) {
  return scores[i / 4 / GROUPS][i / 4 % GROUPS][i % 4];
}
template <int STRIPS, int OUT>
__device__ __forceinline__ void clear(float (&sums)[STRIPS][OUT][4]) {
#pragma unroll
  for (int i = 0; i < STRIPS * OUT * 4; i++) score_of(sums, i) = 0.f;
}

// sums (STRIPS strips, 8 GROUPS columns) = left right^T, over `width` features
template <typename T, int WIDTH, int STRIPS, int GROUPS>
__device__ __forceinline__ void multiply_rows(float (&sums)[STRIPS][GROUPS][4], T* left, T* right,
                                              int width) {
  typedef Tile<T, WIDTH> Rows;
  const int lane = own_lane();
  clear(sums);
#pragma unroll
  for (int k = 0; k < WIDTH; k += STRIP) {
    if (k % PART == 0 && k >= width) break;
    uint32_t a[STRIPS][4];
#pragma unroll
    for (int s = 0; s < STRIPS; s++)
      ptx::load_matrix_x4(a[s], Rows::at(left, s * STRIP + lane % 16, k + lane / 16 * 8));
#pragma unroll
    for (int g = 0; g < GROUPS; g += 2) {
      uint32_t b[4];
      ptx::load_matrix_x4(
          b, Rows::at(right, g * 8 + lane / 16 * 8 + lane % 8, k + lane / 8 % 2 * 8));
#pragma unroll
      for (int s = 0; s < STRIPS; s++) {
        ptx::multiply(sums[s][g], a[s], b[0], b[1], T());
        ptx::multiply(sums[s][g + 1], a[s], b[2], b[3], T());
      }
    }
  }
}
// sums (STRIPS strips, 8 OUT columns) += weights (STRIPS strips, 8 GROUPS columns) right, whose
// first column is `from` of `width`
template <typename T, int WIDTH, int STRIPS, int GROUPS, int OUT>
__device__ __forceinline__ void add_products(float (&sums)[STRIPS][OUT][4],
                                             const float (&weights)[STRIPS][GROUPS][4], T* right,
                                             int from, int width) {
  const int lane = own_lane();
#pragma unroll
  for (int k = 0; k < GROUPS; k += 2) {
    uint32_t a[STRIPS][4];
#pragma unroll
    for (int s = 0; s < STRIPS; s++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const float* pair = &weights[s][k + i / 2][i % 2 * 2];
        a[s][i] = ptx::to_pair(pair[0], pair[1], T());
      }
#pragma unroll
    for (int g = 0; g < OUT; g += 2) {
      if (g * 8 % PART == 0 && from + g * 8 >= width) break;
      uint32_t b[4];
      ptx::load_matrix_x4_transposed(
          b, Tile<T, WIDTH>::at(right, k * 8 + lane % 16, from + g * 8 + lane / 16 * 8));
#pragma unroll
      for (int s = 0; s < STRIPS; s++) {
        ptx::multiply(sums[s][g], a[s], b[0], b[1], T());
        ptx::multiply(sums[s][g + 1], a[s], b[2], b[3], T());
      }
    }
  }
}
// Writes factor sums to the rows of `out`, (rows, width), from column `from` on.
template <int OUT, typename Result>
__device__ __forceinline__ void write_sums(const float (&sums)[1][OUT][4], Result* out, int first,
                                           int rows, int from, int width, float factor) {
#pragma unroll
  for (int g = 0; g < OUT; g++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int row = first + own_row(half), column = from + g * 8 + own_column();
      if (row < rows && column < width)
        write_pair(row_of(out, row, width) + column, factor * sums[0][g][2 * half],
                   factor * sums[0][g][2 * half + 1]);
    }
}

// Tiles of the columns of two matrices, of which STAGES are under way, or used.
template <typename T, int WIDTH> struct Feed {
  static constexpr int STAGES = WIDTH <= NARROW ? 2 : 1, SIZE = COLUMNS * Tile<T, WIDTH>::ROW;
  T* tiles;
  const T *first, *second;
  int end, first_width, second_width;

  __device__ __forceinline__ T* tile(int step, int matrix) const {
    return tiles + (step % STAGES * 2 + matrix) * SIZE;
  }
  __device__ __forceinline__ void fetch(int step, int at) const {
    typedef Tile<T, WIDTH> Rows;
    if (at < end) {
      Rows::template fetch<COLUMNS>(tile(step, 0), row_of(first, at, first_width), end - at,
                                    first_width);
      Rows::template fetch<COLUMNS>(tile(step, 1), row_of(second, at, second_width), end - at,
                                    second_width);
    }
    ptx::copy_async_commit();
  }
  // f(column, tile of the first, tile of the second) of all tiles from `start` on.
  template <typename F> __device__ __forceinline__ void visit(int start, F f) const {
    fetch(0, start);
    for (int at = start, step = 0; at < end; at += COLUMNS, step++) {
      ptx::copy_async_wait<0>();
      __syncthreads();  // these tiles have arrived; no thread reads those of the step before
      if (STAGES == 2) fetch(step + 1, at + COLUMNS);
      f(at, tile(step, 0), tile(step, 1));
      if (STAGES == 2) continue;
      __syncthreads();  // no thread reads the only tiles any more
      fetch(step + 1, at + COLUMNS);
    }
  }
};
}  // namespace

template <typename T, int WIDTH>
__global__ void __launch_bounds__(THREADS, 2)
    attention_mma(const T* __restrict__ q, Strides q_strides, const T* __restrict__ k,
                  Strides k_strides, const T* __restrict__ v, Strides v_strides,
                  const bool* __restrict__ mask, Strides mask_strides,
                  const int* __restrict__ first_query, Strides first_query_strides,
                  const int* __restrict__ first_key, Strides first_key_strides,
                  const long long* __restrict__ head, Strides head_strides,
                  const unsigned long long* __restrict__ seed, T* __restrict__ out,
                  float* __restrict__ lse, Axes axes, Problem problem) {
  typedef Tile<T, WIDTH> Rows;
  constexpr int STRIPS = WIDTH <= NARROW ? 2 : 1, ROWS = WARPS * STRIPS * STRIP,
                GROUPS = KEYS / 8, OUT = WIDTH / 8;
  GDT_DYNAMIC_SHARED(shared);
  T *q_tile = reinterpret_cast<T*>(shared), *k_tile = q_tile + ROWS * Rows::ROW,
    *v_tile = k_tile + KEYS * Rows::ROW;
  const Place place = place_block(problem.queries, ROWS, problem.causal);
  const Sight sight = make_sight(problem, at_item(mask, place.item, axes, mask_strides), seed,
                                 at_item(head, place.item, axes, head_strides),
                                 at_item(first_query, place.item, axes, first_query_strides),
                                 at_item(first_key, place.item, axes, first_key_strides));
  const T *queries = at_item(q, place.item, axes, q_strides),
          *keys = at_item(k, place.item, axes, k_strides),
          *values = at_item(v, place.item, axes, v_strides);
  const int rows = min(ROWS, problem.queries - place.first),
            end = sight.end_of_keys(place.first + rows),
            strip = static_cast<int>(threadIdx.x) / WARP * STRIPS * STRIP;
  const float scale = problem.scale * LOG2_E;
  float sums[STRIPS][OUT][4], high[STRIPS][2], total[STRIPS][2];
  clear(sums);
#pragma unroll
  for (int i = 0; i < STRIPS * 2; i++)
    high[i / 2][i % 2] = -infinity<float>(), total[i / 2][i % 2] = 0.f;
  Rows::template fetch<ROWS>(q_tile, row_of(queries, place.first, problem.features), rows,
                             problem.features);
  Rows::template fetch<KEYS>(k_tile, keys, end, problem.features);
  ptx::copy_async_commit();

  for (int at = 0; at < end; at += KEYS) {
    ptx::copy_async_wait<0>();
    __syncthreads();  // the keys have arrived; no thread reads the last values any more
    Rows::template fetch<KEYS>(v_tile, row_of(values, at, problem.values), end - at,
                               problem.values);
    ptx::copy_async_commit();
    float scores[STRIPS][GROUPS][4];
    multiply_rows<T, WIDTH>(scores, Rows::at(q_tile, strip, 0), k_tile, problem.features);
    const auto bits = look<STRIPS, GROUPS, false>(sight, place.first + strip, at);
#pragma unroll
    for (int i = 0; i < STRIPS * GROUPS * 4; i++) score_of(scores, i) *= scale;
    if (!bits.all_seen)
#pragma unroll
      for (int i = 0; i < STRIPS * GROUPS * 4; i++)
        if (!bits.sees(i)) score_of(scores, i) = -infinity<float>();
#pragma unroll
    for (int s = 0; s < STRIPS; s++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        float highest = high[s][half], sum = 0.f;
#pragma unroll
        for (int i = 0; i < GROUPS * 2; i++)
          highest = max(highest, scores[s][i / 2][2 * half + i % 2]);
        highest = merge_row(highest, [](float a, float b) { return max(a, b); });
        const float shift = highest == -infinity<float>() ? 0.f : highest,
                    share = ptx::power_of_2(high[s][half] - shift);
#pragma unroll
        for (int i = 0; i < GROUPS * 2; i++) {
          float& score = scores[s][i / 2][2 * half + i % 2];
          score = ptx::power_of_2(score - shift);
          sum += score;
        }
        total[s][half] = share * total[s][half] + sum;  // of this lane
        high[s][half] = highest;
#pragma unroll
        for (int i = 0; i < OUT * 2; i++) sums[s][i / 2][2 * half + i % 2] *= share;
      }
    if (!bits.all_kept)
#pragma unroll
      for (int i = 0; i < STRIPS * GROUPS * 4; i++)
        if (!bits.keeps(i)) score_of(scores, i) = 0.f;
    ptx::copy_async_wait<0>();
    __syncthreads();  // the values have arrived; no thread reads the keys any more
    if (at + KEYS < end)
      Rows::template fetch<KEYS>(k_tile, row_of(keys, at + KEYS, problem.features),
                                 end - at - KEYS, problem.features);
    ptx::copy_async_commit();
    add_products<T, WIDTH>(sums, scores, v_tile, 0, problem.values);
  }

  const long long first = static_cast<long long>(place.item) * problem.queries + place.first;
#pragma unroll
  for (int s = 0; s < STRIPS; s++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const float whole = merge_row(total[s][half], [](float a, float b) { return a + b; }),
                  factor = whole == 0.f ? 1.f : problem.factor / whole;
      const int row = strip + s * STRIP + own_row(half);
      if (row >= rows) continue;
      if (lse && own_column() == 0) lse[first + row] = high[s][half] * LN_2 + log(whole);
      T* to = out + (first + row) * problem.values;
#pragma unroll
      for (int g = 0; g < OUT; g++) {
        const int column = g * 8 + own_column();
        if (column >= problem.values) break;
        write_pair(to + column, factor * sums[s][g][2 * half], factor * sums[s][g][2 * half + 1]);
      }
    }
}

template <typename T, int WIDTH, typename Result>
__global__ void __launch_bounds__(THREADS, 2)
    attention_mma_dq(const T* __restrict__ q, Strides q_strides, const T* __restrict__ k,
                     Strides k_strides, const T* __restrict__ v, Strides v_strides,
                     const T* __restrict__ g, Strides g_strides, const float* __restrict__ lse,
                     Strides lse_strides, const float* __restrict__ product,
                     Strides product_strides, const bool* __restrict__ mask, Strides mask_strides,
                     const int* __restrict__ first_query, Strides first_query_strides,
                     const int* __restrict__ first_key, Strides first_key_strides,
                     const long long* __restrict__ head, Strides head_strides,
                     const unsigned long long* __restrict__ seed, Result* __restrict__ dq,
                     Axes axes, Problem problem) {
  typedef Tile<T, WIDTH> Rows;
  constexpr int ROWS = WARPS * STRIP, GROUPS = COLUMNS / 8, OUT = WIDTH / 8;
  GDT_DYNAMIC_SHARED(shared);
  T *q_tile = reinterpret_cast<T*>(shared), *g_tile = q_tile + ROWS * Rows::ROW;
  const Place place = place_block(problem.queries, ROWS, problem.causal);
  const Sight sight = make_sight(problem, at_item(mask, place.item, axes, mask_strides), seed,
                                 at_item(head, place.item, axes, head_strides),
                                 at_item(first_query, place.item, axes, first_query_strides),
                                 at_item(first_key, place.item, axes, first_key_strides));
  const int rows = min(ROWS, problem.queries - place.first),
            end = sight.end_of_keys(place.first + rows),
            strip = static_cast<int>(threadIdx.x) / WARP * STRIP;
  const float *row_lse = at_item(lse, place.item, axes, lse_strides),
              *row_product = at_item(product, place.item, axes, product_strides);
  const float scale = problem.scale * LOG2_E;
  float own_lse[2], own_product[2], sums[1][OUT][4];
  clear(sums);
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int query = min(place.first + strip + own_row(half), problem.queries - 1);
    own_lse[half] = exponent_of(row_lse[query]), own_product[half] = row_product[query];
  }
  Rows::template fetch<ROWS>(
      q_tile,
      row_of(at_item(q, place.item, axes, q_strides), place.first, problem.features), rows,
      problem.features);
  Rows::template fetch<ROWS>(
      g_tile, row_of(at_item(g, place.item, axes, g_strides), place.first, problem.values), rows,
      problem.values);
  const Feed<T, WIDTH> feed = {g_tile + ROWS * Rows::ROW,
                               at_item(k, place.item, axes, k_strides),
                               at_item(v, place.item, axes, v_strides),
                               end,
                               problem.features,
                               problem.values};
  feed.visit(0, [&](int at, T* keys, T* values) {
    float scores[1][GROUPS][4], gradients[1][GROUPS][4];
    multiply_rows<T, WIDTH>(scores, Rows::at(q_tile, strip, 0), keys, problem.features);
    multiply_rows<T, WIDTH>(gradients, Rows::at(g_tile, strip, 0), values, problem.values);
    const auto bits = look<1, GROUPS, false>(sight, place.first + strip, at);
    with_bits(bits, [&](auto sees, auto keeps) {
#pragma unroll
      for (int i = 0; i < GROUPS * 4; i++)
        differentiate(score_of(scores, i), score_of(gradients, i), sees(i), keeps(i),
                      problem.factor, scale, own_lse[i / 2 % 2], own_product[i / 2 % 2]);
    });
    add_products<T, WIDTH>(sums, gradients, keys, 0, problem.features);
  });
  const long long first = static_cast<long long>(place.item) * problem.queries + place.first;
  write_sums(sums, dq + first * problem.features, strip, rows, 0, problem.features, problem.scale);
}

template <typename T, int WIDTH, typename Result>
__global__ void __launch_bounds__(THREADS, 2)
    attention_mma_dkv(const T* __restrict__ q, Strides q_strides, const T* __restrict__ k,
                      Strides k_strides, const T* __restrict__ v, Strides v_strides,
                      const T* __restrict__ g, Strides g_strides, const float* __restrict__ lse,
                      Strides lse_strides, const float* __restrict__ product,
                      Strides product_strides, const bool* __restrict__ mask, Strides mask_strides,
                      const int* __restrict__ first_query, Strides first_query_strides,
                      const int* __restrict__ first_key, Strides first_key_strides,
                      const long long* __restrict__ head, Strides head_strides,
                      const unsigned long long* __restrict__ seed, Result* __restrict__ dk,
                      Result* __restrict__ dv, Axes axes, Problem problem) {
  typedef Tile<T, WIDTH> Rows;
  constexpr int ROWS = WARPS * STRIP, GROUPS = COLUMNS / 8,
                OUT = (WIDTH <= NARROW ? WIDTH : NARROW) / 8;
  GDT_DYNAMIC_SHARED(shared);
  T *k_tile = reinterpret_cast<T*>(shared), *v_tile = k_tile + ROWS * Rows::ROW;
  const Place place = place_block(problem.keys, ROWS, false);
  const Sight sight = make_sight(problem, at_item(mask, place.item, axes, mask_strides), seed,
                                 at_item(head, place.item, axes, head_strides),
                                 at_item(first_query, place.item, axes, first_query_strides),
                                 at_item(first_key, place.item, axes, first_key_strides));
  const int rows = min(ROWS, problem.keys - place.first),
            strip = static_cast<int>(threadIdx.x) / WARP * STRIP, from = blockIdx.y * OUT * 8;
  const float *column_lse = at_item(lse, place.item, axes, lse_strides),
              *column_product = at_item(product, place.item, axes, product_strides);
  const float scale = problem.scale * LOG2_E;
  const int start = problem.causal ? max(0, sight.first_key + place.first - sight.first_query) : 0;
  float k_sums[1][OUT][4], v_sums[1][OUT][4];
  clear(k_sums);
  clear(v_sums);
  Rows::template fetch<ROWS>(
      k_tile,
      row_of(at_item(k, place.item, axes, k_strides), place.first, problem.features), rows,
      problem.features);
  Rows::template fetch<ROWS>(
      v_tile, row_of(at_item(v, place.item, axes, v_strides), place.first, problem.values), rows,
      problem.values);
  const Feed<T, WIDTH> feed = {v_tile + ROWS * Rows::ROW,
                               at_item(q, place.item, axes, q_strides),
                               at_item(g, place.item, axes, g_strides),
                               sight.queries,
                               problem.features,
                               problem.values};
  feed.visit(start, [&](int at, T* queries, T* cotangents) {
    float scores[1][GROUPS][4], gradients[1][GROUPS][4];
    multiply_rows<T, WIDTH>(scores, Rows::at(k_tile, strip, 0), queries, problem.features);
    multiply_rows<T, WIDTH>(gradients, Rows::at(v_tile, strip, 0), cotangents, problem.values);
    const auto bits = look<1, GROUPS, true>(sight, place.first + strip, at);
    with_bits(bits, [&](auto sees, auto keeps) {
#pragma unroll
      for (int j = 0; j < GROUPS * 2; j++) {
        const int query = min(at + j / 2 * 8 + own_column() + j % 2, problem.queries - 1);
        const float own_lse = exponent_of(column_lse[query]), own_product = column_product[query];
#pragma unroll
        for (int half = 0; half < 2; half++) {
          const int i = j / 2 * 4 + 2 * half + j % 2;
          differentiate(score_of(scores, i), score_of(gradients, i), sees(i), keeps(i),
                        problem.factor, scale, own_lse, own_product);
        }
      }
    });
    add_products<T, WIDTH>(v_sums, scores, cotangents, from, problem.values);
    add_products<T, WIDTH>(k_sums, gradients, queries, from, problem.features);
  });
  const long long first = static_cast<long long>(place.item) * problem.keys + place.first;
  write_sums(k_sums, dk + first * problem.features, strip, rows, from, problem.features,
             problem.scale);
  write_sums(v_sums, dv + first * problem.values, strip, rows, from, problem.values,
             problem.factor);
}
#endif
