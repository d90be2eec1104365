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
// Arguments. q, g: (items..., queries, features), (items..., queries, values); k, v: (items...,
// keys, features), (items..., keys, values); lse, product: (items..., queries), float32, product
// the sum of g out. out: (items, queries, values); dq: (items, queries, features); dk: (items, keys,
// features); dv: (items, keys, values), in float32. first_query, first_key: (items...), the position of an item's
// first query and key in the sequences of total_queries and total_keys, or null for 0; positions
// past these totals are padding. causal: whether a query sees only keys up to its own position.
// mask: (items..., mask_queries, mask_keys), of all positions or of 1 for all, or null. A query
// that sees nothing has out 0 and lse -inf. Dropout, unless seed is null: the weight of head (items...), at its index in
// (heads, total_queries, total_keys), is kept if its 32 random bits (random.cu, stream 0) are at
// most `largest`, and then multiplied by `factor`; head is the index of an item among all.
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
#include "block.cuh"
#include "philox.cuh"

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

struct Bits {
  unsigned seen, kept;
};
// Which scores of an item count, and which weights are kept.
struct Sight {
  const bool* mask;
  long long head;
  u64 seed;
  int queries, keys;  // that are no padding
  int first_query, first_key, total_queries, total_keys, mask_queries, mask_keys;
  bool causal, drops;
  unsigned largest;

  __device__ __forceinline__ bool sees(int query, int key) const {
    if (query >= queries || key >= keys) return false;
    query += first_query, key += first_key;
    if (causal && key > query) return false;
    return !mask || mask[static_cast<long long>(min(query, mask_queries - 1)) * mask_keys +
                         min(key, mask_keys - 1)];
  }
  __device__ __forceinline__ bool keeps(int query, int key) const {
    const u64 index = (static_cast<u64>(head) * total_queries + first_query + query) * total_keys +
                      first_key + key;
    const Words words = philox(index / 4, 0, seed);
    const unsigned low = index & 1 ? words.of[1] : words.of[0],
                   high = index & 1 ? words.of[3] : words.of[2];
    return (index & 2 ? high : low) <= largest;
  }
  // Whether all queries and keys of a tile are seen.
  __device__ __forceinline__ bool sees_tile(int query, int key) const {
    return !mask && query + TILE <= queries && key + TILE <= keys &&
           !(causal && first_key + key + TILE - 1 > first_query + query);
  }
  // Bit EACH i + j: whether this thread's score (i, j) of a tile is seen, and whether its weight is
  // kept. BY_KEYS: rows are keys, and columns queries. In loops, which are shorter than one
  // piece of code for each score.
  template <bool BY_KEYS> __device__ __forceinline__ Bits look(int row, int column) const {
    const int query = BY_KEYS ? column : row, key = BY_KEYS ? row : column;
    Bits bits = {ALL_SCORES, ALL_SCORES};
    const bool all = sees_tile(query, key);
    if (all && !drops) return bits;
    bits.seen = bits.kept = 0;
#pragma unroll 1
    for (int n = 0; n < EACH * EACH; n++) {
      const int y = row + static_cast<int>(threadIdx.y) + n / EACH * SIDE,
                x = column + static_cast<int>(threadIdx.x) + n % EACH * SIDE;
      const int own_query = BY_KEYS ? x : y, own_key = BY_KEYS ? y : x;
      bits.seen |= static_cast<unsigned>(all || sees(own_query, own_key)) << n;
      bits.kept |= static_cast<unsigned>(!drops || keeps(own_query, own_key)) << n;
    }
    return bits;
  }
};
__device__ __forceinline__ Sight make_sight(const bool* mask, const int* first_query,
                                            const int* first_key, const long long* head,
                                            const u64* seed, int queries, int keys,
                                            int total_queries, int total_keys, int mask_queries,
                                            int mask_keys, int causal,
                                            unsigned largest) {
  const int query = first_query ? *first_query : 0, key = first_key ? *first_key : 0;
  return {mask,
          head ? *head : 0,
          seed ? *seed : 0,
          min(queries, total_queries - query),
          min(keys, total_keys - key),
          query,
          key,
          total_queries,
          total_keys,
          mask_queries,
          mask_keys,
          causal != 0,
          seed != nullptr,
          largest};
}

// The tile of a block: rows [first, first + count) of an item.
struct Place {
  int item, first, count;
};
__device__ __forceinline__ Place place_block(int rows) {
  const int tiles = (rows + TILE - 1) / TILE, first = blockIdx.x % tiles * TILE;
  return {static_cast<int>(blockIdx.x) / tiles, first, min(TILE, rows - first)};
}
template <typename T> __device__ __forceinline__ T* row_of(T* x, int row, int width) {
  return x + static_cast<long long>(row) * width;
}
template <typename T>
__device__ __forceinline__ const T* at_item(const T* x, int item, const Axes& axes,
                                            const Strides& strides) {
  return x ? x + offset(item, axes, strides) : x;
}
__device__ __forceinline__ int thread_of_block() { return threadIdx.y * SIDE + threadIdx.x; }

// Element (row, column) of x, (rows, width); 0 outside.
template <typename T>
__device__ __forceinline__ float element(const T* x, int row, int rows, int column, int width) {
  return row < rows && column < width ? widen(row_of(x, row, width)[column]) : 0.f;
}
template <typename T>
__device__ __forceinline__ void load_slice(Slice& slice, const T* x, int rows, int from,
                                           int width) {
  const int column = thread_of_block() % SLICE;
#pragma unroll 4
  for (int row = thread_of_block() / SLICE; row < TILE; row += THREADS / SLICE)
    slice[row][column / 4].of[column % 4] = element(x, row, rows, from + column, width);
}
// scores = x y^T, of x (x_rows, width) and y (y_rows, width), at most TILE rows each.
template <typename T>
__device__ __forceinline__ void multiply_rows(Scores& scores, const T* x, int x_rows, const T* y,
                                              int y_rows, int width, Staging& staging) {
#pragma unroll
  for (int i = 0; i < EACH * EACH; i++) scores[i / EACH][i % EACH] = 0.f;
  for (int from = 0; from < width; from += SLICE) {
    __syncthreads();  // no thread reads the last slices any more
    load_slice(staging.slices[0], x, x_rows, from, width);
    load_slice(staging.slices[1], y, y_rows, from, width);
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
// sums += weights y, of y (rows, width), whose columns past `rows` are 0.
template <typename T, int WIDTH>
__device__ __forceinline__ void add_products(float (&sums)[EACH][WIDTH / SIDE],
                                             const Weights& weights, const T* y, int rows,
                                             int width, Staging& staging) {
  for (int from = 0; from < rows; from += DEPTH) {
    __syncthreads();  // no thread reads the last rows any more
#pragma unroll 4
    for (int i = thread_of_block(); i < DEPTH * WIDTH; i += THREADS)
      staging.rows[i / WIDTH][i % WIDTH / 4].of[i % 4] =
          element(y, from + i / WIDTH, rows, i % WIDTH, width);
    __syncthreads();  // the rows, and the weights, are complete
#pragma unroll 1
    for (int at = 0; at < DEPTH; at += 4) {
      Four own[EACH];
#pragma unroll
      for (int i = 0; i < EACH; i++) own[i] = weights[threadIdx.y + SIDE * i][(from + at) / 4];
#pragma unroll
      for (int n = 0; n < WIDTH / TILE; n++) {
        if (n * TILE >= width) break;
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
  const float weight = seen ? exp(scale * score - lse) : 0.f;
  product_of_g = seen ? weight * (kept * product_of_g - product) : 0.f;
  score = kept * weight;
}
}  // namespace

template <typename T, int WIDTH>
__global__ void __launch_bounds__(THREADS, WIDTH > 128 ? 1 : 2)
    attention(const T* __restrict__ q, Strides q_strides, const T* __restrict__ k,
              Strides k_strides, const T* __restrict__ v, Strides v_strides,
              const bool* __restrict__ mask, Strides mask_strides,
              const int* __restrict__ first_query, Strides first_query_strides,
              const int* __restrict__ first_key, Strides first_key_strides,
              const long long* __restrict__ head, Strides head_strides,
              const unsigned long long* __restrict__ seed, T* __restrict__ out,
              float* __restrict__ lse, Axes axes, int queries, int keys, int features, int values,
              int total_queries, int total_keys, int mask_queries, int mask_keys, int causal,
              float scale, unsigned largest, float factor) {
  GDT_SHARED(Staging, staging, [1]);
  GDT_SHARED(Weights, weights, [1]);
  const Place rows = place_block(queries);
  const Sight sight = make_sight(at_item(mask, rows.item, axes, mask_strides),
                                 at_item(first_query, rows.item, axes, first_query_strides),
                                 at_item(first_key, rows.item, axes, first_key_strides),
                                 at_item(head, rows.item, axes, head_strides), seed, queries, keys,
                                 total_queries, total_keys, mask_queries, mask_keys, causal,
                                 largest);
  const T* x = row_of(at_item(q, rows.item, axes, q_strides), rows.first, features);
  const T* y = at_item(k, rows.item, axes, k_strides);
  const T* z = at_item(v, rows.item, axes, v_strides);
  const int last = sight.first_query + rows.first + rows.count - sight.first_key;
  const int end = sight.causal ? min(sight.keys, last) : sight.keys;
  float sums[EACH][WIDTH / SIDE], high[EACH], total[EACH], inverse[EACH];
  clear<WIDTH>(sums);
#pragma unroll
  for (int i = 0; i < EACH; i++) high[i] = -infinity<float>(), total[i] = 0.f;

  for (int at = 0; at < end; at += TILE) {
    const int columns = min(TILE, end - at);
    Scores scores;
    multiply_rows(scores, x, rows.count, row_of(y, at, features), columns, features, staging[0]);
    const Bits bits = sight.look<false>(rows.first, at);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
      float largest_score = high[i], sum = 0.f;
#pragma unroll
      for (int j = 0; j < EACH; j++) {
        scores[i][j] = bits.seen >> (EACH * i + j) & 1 ? scale * scores[i][j] : -infinity<float>();
        largest_score = max(largest_score, scores[i][j]);
      }
      largest_score = merge_row(largest_score, [](float a, float b) { return max(a, b); });
      const float shift = largest_score == -infinity<float>() ? 0.f : largest_score;
      const float share = exp(high[i] - shift);
#pragma unroll
      for (int j = 0; j < EACH; j++) {
        const float weight = exp(scores[i][j] - shift);
        sum += weight;
        scores[i][j] = bits.kept >> (EACH * i + j) & 1 ? factor * weight : 0.f;
      }
      total[i] = share * total[i] + merge_row(sum, [](float a, float b) { return a + b; });
      high[i] = largest_score;
#pragma unroll
      for (int n = 0; n < WIDTH / SIDE; n++) sums[i][n] *= share;
    }
    publish(weights[0], scores);
    add_products<T, WIDTH>(sums, weights[0], row_of(z, at, values), columns, values, staging[0]);
  }

  const long long first = static_cast<long long>(rows.item) * queries + rows.first;
#pragma unroll
  for (int i = 0; i < EACH; i++) {
    const int row = threadIdx.y + SIDE * i;
    inverse[i] = total[i] == 0.f ? 1.f : 1.f / total[i];
    if (threadIdx.x == 0 && row < rows.count) lse[first + row] = high[i] + log(total[i]);
  }
  write_sums<WIDTH>(sums, out + first * values, rows.count, values, inverse);
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
                 int queries, int keys, int features, int values, int total_queries,
                 int total_keys, int mask_queries, int mask_keys, int causal, float scale,
                 unsigned largest, float factor) {
  GDT_SHARED(Staging, staging, [1]);
  GDT_SHARED(Weights, weights, [1]);
  const Place rows = place_block(queries);
  const Sight sight = make_sight(at_item(mask, rows.item, axes, mask_strides),
                                 at_item(first_query, rows.item, axes, first_query_strides),
                                 at_item(first_key, rows.item, axes, first_key_strides),
                                 at_item(head, rows.item, axes, head_strides), seed, queries, keys,
                                 total_queries, total_keys, mask_queries, mask_keys, causal,
                                 largest);
  const T* x = row_of(at_item(q, rows.item, axes, q_strides), rows.first, features);
  const T* w = row_of(at_item(g, rows.item, axes, g_strides), rows.first, values);
  const T* y = at_item(k, rows.item, axes, k_strides);
  const T* z = at_item(v, rows.item, axes, v_strides);
  const int last = sight.first_query + rows.first + rows.count - sight.first_key;
  const int end = sight.causal ? min(sight.keys, last) : sight.keys;
  const float* row_lse = at_item(lse, rows.item, axes, lse_strides);
  const float* row_product = at_item(product, rows.item, axes, product_strides);
  float sums[EACH][WIDTH / SIDE], scales[EACH];
  clear<WIDTH>(sums);
#pragma unroll
  for (int i = 0; i < EACH; i++) scales[i] = scale;

  for (int at = 0; at < end; at += TILE) {
    const int columns = min(TILE, end - at);
    Scores scores, gradients;
    multiply_rows(scores, x, rows.count, row_of(y, at, features), columns, features, staging[0]);
    multiply_rows(gradients, w, rows.count, row_of(z, at, values), columns, values, staging[0]);
    const Bits bits = sight.look<false>(rows.first, at);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
      const int query = min(rows.first + static_cast<int>(threadIdx.y) + SIDE * i, queries - 1);
      const float own_lse = row_lse[query], own_product = row_product[query];
#pragma unroll
      for (int j = 0; j < EACH; j++)
        differentiate(scores[i][j], gradients[i][j], bits.seen >> (EACH * i + j) & 1,
                      bits.kept >> (EACH * i + j) & 1 ? factor : 0.f, scale, own_lse, own_product);
    }
    publish(weights[0], gradients);
    add_products<T, WIDTH>(sums, weights[0], row_of(y, at, features), columns, features,
                           staging[0]);
  }
  const long long first = static_cast<long long>(rows.item) * queries + rows.first;
  write_sums<WIDTH>(sums, dq + first * features, rows.count, features, scales);
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
                  float* __restrict__ dv, Axes axes, int queries, int keys, int features,
                  int values, int total_queries, int total_keys, int mask_queries, int mask_keys,
                  int causal, float scale, unsigned largest, float factor) {
  GDT_SHARED(Staging, staging, [1]);
  GDT_SHARED(Weights, weights, [1]);
  const Place rows = place_block(keys);
  const Sight sight = make_sight(at_item(mask, rows.item, axes, mask_strides),
                                 at_item(first_query, rows.item, axes, first_query_strides),
                                 at_item(first_key, rows.item, axes, first_key_strides),
                                 at_item(head, rows.item, axes, head_strides), seed, queries, keys,
                                 total_queries, total_keys, mask_queries, mask_keys, causal,
                                 largest);
  const T* x = row_of(at_item(k, rows.item, axes, k_strides), rows.first, features);
  const T* w = row_of(at_item(v, rows.item, axes, v_strides), rows.first, values);
  const T* y = at_item(q, rows.item, axes, q_strides);
  const T* z = at_item(g, rows.item, axes, g_strides);
  const float* column_lse = at_item(lse, rows.item, axes, lse_strides);
  const float* column_product = at_item(product, rows.item, axes, product_strides);
  const int start = sight.causal ? max(0, sight.first_key + rows.first - sight.first_query) : 0;
  float k_sums[EACH][WIDTH / SIDE], v_sums[EACH][WIDTH / SIDE], scales[EACH], ones[EACH];
  clear<WIDTH>(k_sums);
  clear<WIDTH>(v_sums);
#pragma unroll
  for (int i = 0; i < EACH; i++) scales[i] = scale, ones[i] = 1.f;

  for (int at = start; at < sight.queries; at += TILE) {
    const int columns = min(TILE, sight.queries - at);
    Scores scores, gradients;
    multiply_rows(scores, x, rows.count, row_of(y, at, features), columns, features, staging[0]);
    multiply_rows(gradients, w, rows.count, row_of(z, at, values), columns, values, staging[0]);
    const Bits bits = sight.look<true>(rows.first, at);
#pragma unroll
    for (int j = 0; j < EACH; j++) {
      const int query = min(at + static_cast<int>(threadIdx.x) + SIDE * j, queries - 1);
      const float own_lse = column_lse[query], own_product = column_product[query];
#pragma unroll
      for (int i = 0; i < EACH; i++)
        differentiate(scores[i][j], gradients[i][j], bits.seen >> (EACH * i + j) & 1,
                      bits.kept >> (EACH * i + j) & 1 ? factor : 0.f, scale, own_lse, own_product);
    }
    publish(weights[0], scores);
    add_products<T, WIDTH>(v_sums, weights[0], row_of(z, at, values), columns, values, staging[0]);
    publish(weights[0], gradients);
    add_products<T, WIDTH>(k_sums, weights[0], row_of(y, at, features), columns, features,
                           staging[0]);
  }
  const long long first = static_cast<long long>(rows.item) * keys + rows.first;
  write_sums<WIDTH>(k_sums, dk + first * features, rows.count, features, scales);
  write_sums<WIDTH>(v_sums, dv + first * values, rows.count, values, ones);
}
