// Attention that never holds the matrix of scores, and its gradients.
//
//   score[t, s]  = scale sum(q[t, :] k[s, :]), or -inf where query t does not see key s
//   lse[t]       = log(sum(exp(score[t, :])))
//   weight[t, s] = exp(score[t, s] - lse[t])
//   out[t, :]    = sum(weight[t, s] kept[t, s] v[s, :])
//   dscore[t, s] = weight[t, s] (kept[t, s] sum(g[t, :] v[s, :]) - product[t])
//   dq[t, :]     = scale sum(dscore[t, s] k[s, :])
//   dk[s, :]     = scale sum(dscore[t, s] q[t, :])
//   dv[s, :]     = sum(weight[t, s] kept[t, s] g[t, :])
//
// Dao et al. 2022 ("FlashAttention", algorithms 1 and 4), with the running softmax of Milakov and
// Gimelshein 2018. All arithmetic is in float32. Scores are computed anew for each gradient, which
// is added up by one block in one order: no atomics, the same bits in every run.
//
// Arguments: attention.cuh. float32, and 16-bit floats that attention_mma.cu does not take.
//
// A block computes a tile of TILE x TILE scores after the other, TILE rows against all columns:
//
//            columns x            WIDTH
//          +----------+        +---------+    thread (x, y) has the scores of rows y + SIDE i and
//   rows   |  scores  |   @    | columns |    columns x + SIDE j, i, j < EACH, and of the sums
//     y    |          |        |  of v   |    columns 4 x + TILE n + {0, 1, 2, 3} of its rows.
//          +----------+        +---------+
//
// Products read SLICE features of both operands, and DEPTH columns of the sums, from shared memory.
// In attention_dkv rows are keys and columns are queries.
//
// Launch: block (SIDE, SIDE), grid (items * rows / TILE). WIDTH: a multiple of TILE, at least
// `values` in attention, `features` in attention_dq, both in attention_dkv. Not yet measured on a
// GPU.
#include "attention.cuh"

constexpr int SIDE = 16;
constexpr int THREADS = 256;
constexpr int TILE = 64;
constexpr int EACH = 4;
constexpr int SLICE = 32;
constexpr int DEPTH = 16;
constexpr int WIDTH_MAX = 256;
constexpr unsigned ALL_SCORES = 0xffff;

namespace {
typedef Pack<float, 4> Four;
typedef Four Slice[TILE][SLICE / 4 + 1];  // padded: rows begin in different banks
typedef Four Weights[TILE][TILE / 4 + 1];
typedef float Scores[EACH][EACH];
union Staging {
  Slice slices[2];
  Four rows[DEPTH][WIDTH_MAX / 4];
};

template <typename T> struct Matrix {
  const T* data;
  int rows, width;

  // At most TILE rows from `first` on.
  __device__ __forceinline__ Matrix tile(int first) const {
    return {row_of(data, first, width), min(TILE, rows - first), width};
  }
  // An element, 0 outside of the matrix.
  __device__ __forceinline__ float at(int row, int column) const {
    return row < rows && column < width ? widen(row_of(data, row, width)[column]) : 0.f;
  }
};

// Of a thread's scores of a tile: bit EACH i + j is for score (i, j).
struct Bits {
  unsigned seen, kept;

  __device__ __forceinline__ bool sees(int i, int j) const { return seen >> (EACH * i + j) & 1; }
  __device__ __forceinline__ bool keeps(int i, int j) const { return kept >> (EACH * i + j) & 1; }
};
// Which scores of a tile are seen, and which weights are kept: in a loop, which is shorter than
// a piece of code for every score. BY_KEYS: rows are keys, and columns queries.
template <bool BY_KEYS>
__device__ __forceinline__ Bits look(const Sight& sight, int row, int column) {
  const int query = BY_KEYS ? column : row, key = BY_KEYS ? row : column;
  Bits bits = {ALL_SCORES, ALL_SCORES};
  const bool all = sight.sees_tile(query, key, TILE, TILE);
  if (all && !sight.seed) return bits;
  bits.seen = bits.kept = 0;
#pragma unroll 1
  for (int n = 0; n < EACH * EACH; n++) {
    const int y = row + static_cast<int>(threadIdx.y) + n / EACH * SIDE,
              x = column + static_cast<int>(threadIdx.x) + n % EACH * SIDE;
    const int own_query = BY_KEYS ? x : y, own_key = BY_KEYS ? y : x;
    bits.seen |= static_cast<unsigned>(all || sight.sees(own_query, own_key)) << n;
    bits.kept |= static_cast<unsigned>(!sight.seed || sight.keeps(own_query, own_key)) << n;
  }
  return bits;
}
__device__ __forceinline__ int thread_of_block() { return threadIdx.y * SIDE + threadIdx.x; }

template <typename T>
__device__ __forceinline__ void load_slice(Slice& slice, const Matrix<T>& x, int from) {
  const int column = thread_of_block() % SLICE;
#pragma unroll 4
  for (int row = thread_of_block() / SLICE; row < TILE; row += THREADS / SLICE)
    slice[row][column / 4].of[column % 4] = x.at(row, from + column);
}
// scores = x y^T
template <typename T>
__device__ __forceinline__ void multiply_rows(Scores& scores, const Matrix<T>& x,
                                              const Matrix<T>& y, Staging& staging) {
#pragma unroll
  for (int i = 0; i < EACH * EACH; i++) scores[i / EACH][i % EACH] = 0.f;
  for (int from = 0; from < x.width; from += SLICE) {
    __syncthreads();  // no thread reads the last slices any more
    load_slice(staging.slices[0], x, from);
    load_slice(staging.slices[1], y, from);
    __syncthreads();  // the slices are complete
#pragma unroll 1
    for (int at = 0; at < SLICE / 4; at++) {
      Four left[EACH];
#pragma unroll
      for (int i = 0; i < EACH; i++) left[i] = staging.slices[0][threadIdx.y + SIDE * i][at];
#pragma unroll
      for (int j = 0; j < EACH; j++) {
        const Four right = staging.slices[1][threadIdx.x + SIDE * j][at];
#pragma unroll
        for (int i = 0; i < EACH; i++)
#pragma unroll
          for (int c = 0; c < 4; c++) scores[i][j] += left[i].of[c] * right.of[c];
      }
    }
  }
}
// Let all threads of the block have the tile.
__device__ __forceinline__ void publish(Weights& weights, const Scores& tile) {
  __syncthreads();  // no thread reads the last tile any more
#pragma unroll
  for (int i = 0; i < EACH; i++)
#pragma unroll
    for (int j = 0; j < EACH; j++) {
      const int column = threadIdx.x + SIDE * j;
      weights[threadIdx.y + SIDE * i][column / 4].of[column % 4] = tile[i][j];
    }
}
// sums += weights y; the columns of `weights` past y's rows are 0.
template <typename T, int WIDTH>
__device__ __forceinline__ void add_products(float (&sums)[EACH][WIDTH / SIDE],
                                             const Weights& weights, const Matrix<T>& y,
                                             Staging& staging) {
  for (int from = 0; from < y.rows; from += DEPTH) {
    __syncthreads();  // no thread reads the last rows any more
#pragma unroll 4
    for (int i = thread_of_block(); i < DEPTH * WIDTH; i += THREADS)
      staging.rows[i / WIDTH][i % WIDTH / 4].of[i % 4] = y.at(from + i / WIDTH, i % WIDTH);
    __syncthreads();  // the rows, and the weights, are complete
#pragma unroll 1
    for (int at = 0; at < DEPTH; at += 4) {
      Four own[EACH];
#pragma unroll
      for (int i = 0; i < EACH; i++) own[i] = weights[threadIdx.y + SIDE * i][(from + at) / 4];
#pragma unroll
      for (int n = 0; n < WIDTH / TILE; n++) {
        if (n * TILE >= y.width) break;
#pragma unroll
        for (int r = 0; r < 4; r++) {
          const Four values = staging.rows[at + r][n * SIDE + threadIdx.x];
#pragma unroll
          for (int i = 0; i < EACH; i++)
#pragma unroll
            for (int c = 0; c < 4; c++) sums[i][4 * n + c] += own[i].of[r] * values.of[c];
        }
      }
    }
  }
}
template <int WIDTH> __device__ __forceinline__ void clear(float (&sums)[EACH][WIDTH / SIDE]) {
#pragma unroll
  for (int i = 0; i < EACH * WIDTH / SIDE; i++) sums[i % EACH][i / EACH] = 0.f;
}
// Write factor sums to the rows of `out`, (rows, width).
template <int WIDTH, typename T>
__device__ __forceinline__ void write_sums(const float (&sums)[EACH][WIDTH / SIDE], T* out,
                                           int rows, int width, const float (&factor)[EACH]) {
#pragma unroll
  for (int i = 0; i < EACH; i++) {
    const int row = threadIdx.y + SIDE * i;
#pragma unroll
    for (int n = 0; n < WIDTH / SIDE; n++) {
      const int column = n / 4 * TILE + 4 * threadIdx.x + n % 4;
      if (row < rows && column < width)
        row_of(out, row, width)[column] = narrow<T>(factor[i] * sums[i][n]);
    }
  }
}
// The merge of the SIDE threads of a row, half a warp.
template <typename Merge> __device__ __forceinline__ float merge_row(float value, Merge merge) {
#pragma unroll
  for (int with = SIDE / 2; with; with /= 2) value = merge(value, shuffle_xor(value, with));
  return value;
}

// A score becomes weight * kept, and the product of g with v the gradient of the score.
__device__ __forceinline__ void differentiate(float& score, float& product_of_g, bool seen,
                                              float kept, float scale, float lse, float product) {
  const bool weighs = seen && lse != -infinity<float>();  // else all scores are -inf
  const float weight = weighs ? exp(scale * score - lse) : 0.f;
  product_of_g = seen ? weight * (kept * product_of_g - product) : 0.f;
  score = kept * weight;
}
}  // namespace

template <typename T, int WIDTH>
__global__ void __launch_bounds__(THREADS, 1)
    attention(const T* __restrict__ q, Strides q_strides, const T* __restrict__ k,
              Strides k_strides, const T* __restrict__ v, Strides v_strides,
              const bool* __restrict__ mask, Strides mask_strides,
              const int* __restrict__ first_query, Strides first_query_strides,
              const int* __restrict__ first_key, Strides first_key_strides,
              const long long* __restrict__ head, Strides head_strides,
              const unsigned long long* __restrict__ seed, T* __restrict__ out,
              float* __restrict__ lse, Axes axes, Problem problem) {
  GDT_SHARED(Staging, staging, [1]);
  GDT_SHARED(Weights, weights, [1]);
  const Place place = place_block(problem.queries, TILE, false);
  const Sight sight = make_sight(problem, at_item(mask, place.item, axes, mask_strides), seed,
                                 at_item(head, place.item, axes, head_strides),
                                 at_item(first_query, place.item, axes, first_query_strides),
                                 at_item(first_key, place.item, axes, first_key_strides));
  const Matrix<T> queries =
      Matrix<T>{at_item(q, place.item, axes, q_strides), problem.queries, problem.features}.tile(
          place.first);
  const int end = sight.end_of_keys(place.first + queries.rows);
  const Matrix<T> keys = {at_item(k, place.item, axes, k_strides), end, problem.features};
  const Matrix<T> values = {at_item(v, place.item, axes, v_strides), end, problem.values};
  float sums[EACH][WIDTH / SIDE], high[EACH], total[EACH], inverse[EACH];
  clear<WIDTH>(sums);
#pragma unroll
  for (int i = 0; i < EACH; i++) high[i] = -infinity<float>(), total[i] = 0.f;

  for (int at = 0; at < end; at += TILE) {
    Scores scores;
    multiply_rows(scores, queries, keys.tile(at), staging[0]);
    const Bits bits = look<false>(sight, place.first, at);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
      float largest_score = high[i], sum = 0.f;
#pragma unroll
      for (int j = 0; j < EACH; j++) {
        scores[i][j] = bits.sees(i, j) ? problem.scale * scores[i][j] : -infinity<float>();
        largest_score = max(largest_score, scores[i][j]);
      }
      largest_score = merge_row(largest_score, [](float a, float b) { return max(a, b); });
      const float shift = largest_score == -infinity<float>() ? 0.f : largest_score;
      const float share = exp(high[i] - shift);
#pragma unroll
      for (int j = 0; j < EACH; j++) {
        const float weight = exp(scores[i][j] - shift);
        sum += weight;
        scores[i][j] = bits.keeps(i, j) ? problem.factor * weight : 0.f;
      }
      total[i] = share * total[i] + merge_row(sum, [](float a, float b) { return a + b; });
      high[i] = largest_score;
#pragma unroll
      for (int n = 0; n < WIDTH / SIDE; n++) sums[i][n] *= share;
    }
    publish(weights[0], scores);
    add_products<T, WIDTH>(sums, weights[0], values.tile(at), staging[0]);
  }

  const long long first = static_cast<long long>(place.item) * problem.queries + place.first;
#pragma unroll
  for (int i = 0; i < EACH; i++) {
    const int row = threadIdx.y + SIDE * i;
    inverse[i] = total[i] == 0.f ? 1.f : 1.f / total[i];
    if (lse && threadIdx.x == 0 && row < queries.rows)
      lse[first + row] = high[i] + log(total[i]);
  }
  write_sums<WIDTH>(sums, out + first * problem.values, queries.rows, problem.values, inverse);
}

template <typename T, int WIDTH>
__global__ void __launch_bounds__(THREADS, 1)
    attention_dq(const T* __restrict__ q, Strides q_strides, const T* __restrict__ k,
                 Strides k_strides, const T* __restrict__ v, Strides v_strides,
                 const T* __restrict__ g, Strides g_strides, const float* __restrict__ lse,
                 Strides lse_strides, const float* __restrict__ product, Strides product_strides,
                 const bool* __restrict__ mask, Strides mask_strides,
                 const int* __restrict__ first_query, Strides first_query_strides,
                 const int* __restrict__ first_key, Strides first_key_strides,
                 const long long* __restrict__ head, Strides head_strides,
                 const unsigned long long* __restrict__ seed, float* __restrict__ dq, Axes axes,
                 Problem problem) {
  GDT_SHARED(Staging, staging, [1]);
  GDT_SHARED(Weights, weights, [1]);
  const Place place = place_block(problem.queries, TILE, false);
  const Sight sight = make_sight(problem, at_item(mask, place.item, axes, mask_strides), seed,
                                 at_item(head, place.item, axes, head_strides),
                                 at_item(first_query, place.item, axes, first_query_strides),
                                 at_item(first_key, place.item, axes, first_key_strides));
  const Matrix<T> queries =
      Matrix<T>{at_item(q, place.item, axes, q_strides), problem.queries, problem.features}.tile(
          place.first);
  const Matrix<T> cotangents =
      Matrix<T>{at_item(g, place.item, axes, g_strides), problem.queries, problem.values}.tile(
          place.first);
  const int end = sight.end_of_keys(place.first + queries.rows);
  const Matrix<T> keys = {at_item(k, place.item, axes, k_strides), end, problem.features};
  const Matrix<T> values = {at_item(v, place.item, axes, v_strides), end, problem.values};
  const float* row_lse = at_item(lse, place.item, axes, lse_strides);
  const float* row_product = at_item(product, place.item, axes, product_strides);
  float sums[EACH][WIDTH / SIDE], scales[EACH];
  clear<WIDTH>(sums);
#pragma unroll
  for (int i = 0; i < EACH; i++) scales[i] = problem.scale;

  for (int at = 0; at < end; at += TILE) {
    Scores scores, gradients;
    multiply_rows(scores, queries, keys.tile(at), staging[0]);
    multiply_rows(gradients, cotangents, values.tile(at), staging[0]);
    const Bits bits = look<false>(sight, place.first, at);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
      const int row = threadIdx.y + SIDE * i, query = min(place.first + row, problem.queries - 1);
      const float own_lse = row_lse[query], own_product = row_product[query];
#pragma unroll
      for (int j = 0; j < EACH; j++)
        differentiate(scores[i][j], gradients[i][j], bits.sees(i, j),
                      bits.keeps(i, j) ? problem.factor : 0.f, problem.scale, own_lse, own_product);
    }
    publish(weights[0], gradients);
    add_products<T, WIDTH>(sums, weights[0], keys.tile(at), staging[0]);
  }
  const long long first = static_cast<long long>(place.item) * problem.queries + place.first;
  write_sums<WIDTH>(sums, dq + first * problem.features, queries.rows, problem.features, scales);
}

template <typename T, int WIDTH>
__global__ void __launch_bounds__(THREADS, 1)
    attention_dkv(const T* __restrict__ q, Strides q_strides, const T* __restrict__ k,
                  Strides k_strides, const T* __restrict__ v, Strides v_strides,
                  const T* __restrict__ g, Strides g_strides, const float* __restrict__ lse,
                  Strides lse_strides, const float* __restrict__ product, Strides product_strides,
                  const bool* __restrict__ mask, Strides mask_strides,
                  const int* __restrict__ first_query, Strides first_query_strides,
                  const int* __restrict__ first_key, Strides first_key_strides,
                  const long long* __restrict__ head, Strides head_strides,
                  const unsigned long long* __restrict__ seed, float* __restrict__ dk,
                  float* __restrict__ dv, Axes axes, Problem problem) {
  GDT_SHARED(Staging, staging, [1]);
  GDT_SHARED(Weights, weights, [1]);
  const Place place = place_block(problem.keys, TILE, false);
  const Sight sight = make_sight(problem, at_item(mask, place.item, axes, mask_strides), seed,
                                 at_item(head, place.item, axes, head_strides),
                                 at_item(first_query, place.item, axes, first_query_strides),
                                 at_item(first_key, place.item, axes, first_key_strides));
  const Matrix<T> keys =
      Matrix<T>{at_item(k, place.item, axes, k_strides), problem.keys, problem.features}.tile(
          place.first);
  const Matrix<T> values =
      Matrix<T>{at_item(v, place.item, axes, v_strides), problem.keys, problem.values}.tile(
          place.first);
  const int end = sight.queries;
  const Matrix<T> queries = {at_item(q, place.item, axes, q_strides), end, problem.features};
  const Matrix<T> cotangents = {at_item(g, place.item, axes, g_strides), end, problem.values};
  const float* column_lse = at_item(lse, place.item, axes, lse_strides);
  const float* column_product = at_item(product, place.item, axes, product_strides);
  const int start = problem.causal ? max(0, sight.first_key + place.first - sight.first_query) : 0;
  float k_sums[EACH][WIDTH / SIDE], v_sums[EACH][WIDTH / SIDE], scales[EACH], ones[EACH];
  clear<WIDTH>(k_sums);
  clear<WIDTH>(v_sums);
#pragma unroll
  for (int i = 0; i < EACH; i++) scales[i] = problem.scale, ones[i] = 1.f;

  for (int at = start; at < end; at += TILE) {
    Scores scores, gradients;
    multiply_rows(scores, keys, queries.tile(at), staging[0]);
    multiply_rows(gradients, values, cotangents.tile(at), staging[0]);
    const Bits bits = look<true>(sight, place.first, at);
#pragma unroll
    for (int j = 0; j < EACH; j++) {
      const int query = min(at + static_cast<int>(threadIdx.x) + SIDE * j, problem.queries - 1);
      const float own_lse = column_lse[query], own_product = column_product[query];
#pragma unroll
      for (int i = 0; i < EACH; i++)
        differentiate(scores[i][j], gradients[i][j], bits.sees(i, j),
                      bits.keeps(i, j) ? problem.factor : 0.f, problem.scale, own_lse, own_product);
    }
    publish(weights[0], scores);
    add_products<T, WIDTH>(v_sums, weights[0], cotangents.tile(at), staging[0]);
    publish(weights[0], gradients);
    add_products<T, WIDTH>(k_sums, weights[0], queries.tile(at), staging[0]);
  }
  const long long first = static_cast<long long>(place.item) * problem.keys + place.first;
  write_sums<WIDTH>(k_sums, dk + first * problem.features, keys.rows, problem.features, scales);
  write_sums<WIDTH>(v_sums, dv + first * problem.values, keys.rows, problem.values, ones);
}
