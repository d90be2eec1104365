// Matrix products: out = activation(x w + bias), batched; each factor may be stored transposed.
//
// Arguments. x: (items..., m, k), stored (items..., k, m) if X_T; w: (items..., k, n), stored
// (items..., n, k) if W_T. Rows in memory begin x_row and w_row elements apart; the items' strides
// are 0 where an operand is replicated. out, aux: (items, m, n), bias: (items..., n). bias and aux
// may be null.
//   activation: NONE; RELU; RELU_BACKWARD: times [aux > 0]
// Product, sum and activation each round to the result's type, as the ops that they stand for.
//
// A long contraction with a small result is cut into gridDim.y pieces of `chunk`: each stores its
// sum in `parts`, (pieces, items, m, n). The last piece of a tile to arrive adds the tile's parts,
// or, where there are many pieces or no counters `arrivals`, matmul_finish adds all of them; both
// add in the order of pieces, so the result does not depend on timing. arrivals: (items * tiles) or
// more, 0 before the launch and after it; or null.
//
// matmul_simt: float32, and float64 where tensor cores have no higher rate of it. Tile TILE x TILE x
// SIMT_K; 256 threads, each TILE/16 rows by TILE/16 columns in registers; two buffers in shared
// memory, so that one tile is fetched while one is multiplied:
//
//       w: SIMT_K x TILE  ->  [k][n]            thread (ty, tx) owns rows 4 ty.., columns 4 tx..
//   x: TILE x SIMT_K      ->  [k][m]                and, for each further 64, the same again
//
// matmul_mma: half_t, bfloat16_t and float as tf32, float32 accumulation, sm_80 and later; double,
// in double, each product added with one rounding, where tensor cores have twice the rate of CUDA
// cores (sm_80 and sm_90a). Tile TILE x TILE x 64 bytes of k, STAGES tiles in flight by cp.async, 8
// warps of (TILE/2) x (TILE/4), mma.sync. A factor has the same orientation in shared memory as in
// global memory; ldmatrix transposes where needed. Rows whose length or start is no multiple of 16
// bytes are copied element by element.
//
// Launch: block THREADS, grid (tiles of m x n, pieces, items); matmul_finish: grid (m n / THREADS,
// items). Not yet measured on a GPU.
#include "matmul.cuh"

constexpr int THREADS = 256;
constexpr int SIMT_K = 8;
constexpr int STAGES = 3;
constexpr int MMA_K_BYTES = 64;
constexpr int SKEW_ACROSS = 8;  // elements between rows of a tile that run across k
constexpr int SKEW_DOUBLE = 4;  // of double, in both directions

namespace {
// ---- tiles --------------------------------------------------------------------------------------
// Pass a slab of ROWS x TILE sums in shared memory to the sink: neighbours in a row of the result
// are written by neighbouring threads, and the epilogue is compiled once. `row_of(r)` is the row of
// the result of row r of the slab.
template <int ROWS, int TILE, typename A, typename O, typename RowOf>
__device__ __forceinline__ void drain(const Sink<A, O>& sink, const A* slab, int first_column,
                                      RowOf row_of) {
  __syncthreads();
#pragma unroll 1
  for (int i = threadIdx.x; i < ROWS * TILE; i += THREADS)
    sink(row_of(i / TILE), first_column + i % TILE, Pack<A, 1>{{slab[i]}});
  __syncthreads();
}
// The sum of the parts of element `at` of an item: `part` points to those of the item's first
// piece, and `step` elements further are those of the next.
template <typename A>
__device__ __forceinline__ A sum_of_parts(const A* part, long long step, int pieces, long long at) {
  A sum = A(0);
#pragma unroll 4
  for (int piece = 0; piece < pieces; piece++) sum += part[piece * step + at];
  return sum;
}
// After `drain`, whose last barrier all threads pass with their part of the tile stored: the last
// of gridDim.y pieces to arrive finishes the tile.
template <int TILE, typename A, typename O>
__device__ __forceinline__ void finish_tile(const Sink<A, O>& sink, const A* parts,
                                            unsigned* arrivals, const Corner& corner) {
  GDT_SHARED(bool, is_last, [1]);
  const int item = blockIdx.z, pieces = gridDim.y;
  unsigned* arrived = arrivals + static_cast<long long>(item) * gridDim.x + blockIdx.x;
  if (threadIdx.x == 0) is_last[0] = ptx::count_arrival(arrived) == pieces - 1u;
  __syncthreads();
  if (!is_last[0]) return;
  const long long size = static_cast<long long>(sink.m) * sink.n;
#pragma unroll 1
  for (int i = threadIdx.x; i < TILE * TILE; i += THREADS) {
    const int row = corner.row + i / TILE, column = corner.column + i % TILE;
    if (row >= sink.m || column >= sink.n) continue;
    const long long at = static_cast<long long>(row) * sink.n + column;
    const A sum = sum_of_parts(parts + item * size, gridDim.z * size, pieces, at);
    sink.epilogue(at, column, Pack<A, 1>{{sum}});
  }
  if (threadIdx.x == 0) *arrived = 0;
}
// One factor of a product: `lines` (rows of x, columns of w) by k. ALONG_K: neighbours in memory
// are neighbours in k.
template <typename T, bool ALONG_K> struct Side {
  const T* start;
  long long row;
  int lines, end;  // lines, and the end of this piece's k
  bool packs;      // rows begin on 16 bytes

  __device__ Side(const T* start, long long row, int lines, int end)
      : start(start),
        row(row),
        lines(lines),
        end(end),
        packs(misalignment(start) == 0 &&
              row * static_cast<long long>(sizeof(T)) % PACK_BYTES == 0) {}
  // The number of existing elements from (line, k) on, along memory, and their address.
  __device__ __forceinline__ int left(int line, int k) const {
    if (line >= lines || k >= end) return 0;
    return ALONG_K ? end - k : lines - line;
  }
  __device__ __forceinline__ const T* at(int line, int k) const {
    return start + (ALONG_K ? line * row + k : k * row + line);
  }
  template <int N> __device__ __forceinline__ Pack<T, N> load(int line, int k) const {
    const int n = left(line, k);
    if (packs && n >= N) return *reinterpret_cast<const Pack<T, N>*>(at(line, k));
    Pack<T, N> pack;
#pragma unroll
    for (int i = 0; i < N; i++) pack.of[i] = i < n ? at(line, k)[i] : narrow<T>(0.f);
    return pack;
  }
};

// ---- CUDA cores ---------------------------------------------------------------------------------
// Thread t's share of the tiles of one side: N elements along memory, SIMT_K further in k at every
// step.
template <typename T, int TILE, bool ALONG_K> struct SimtFeed {
  static constexpr int N = TILE * SIMT_K / THREADS;
  const T* p;
  int line, k, left;  // the place in the tile, and the number of existing lines from there on
  bool packs;

  __device__ SimtFeed(const T* start, long long row, int lines, int first_line, int first_k, int t)
      : line(ALONG_K ? t / (SIMT_K / N) : t % (TILE / N) * N),
        k(ALONG_K ? t % (SIMT_K / N) * N : t / (TILE / N)),
        left(lines - first_line - line),
        packs(Side<T, ALONG_K>(start, row, 0, 0).packs) {
    p = Side<T, ALONG_K>(start, row, 0, 0).at(first_line + line, first_k + k);
  }
  // The elements of the step that ends after `k_left` more of k.
  __device__ __forceinline__ Pack<T, N> load(int k_left) const {
    const int n = ALONG_K ? (left > 0 ? k_left - k : 0) : (k < k_left ? left : 0);
    if (packs && n >= N) return *reinterpret_cast<const Pack<T, N>*>(p);
    Pack<T, N> pack;
#pragma unroll
    for (int i = 0; i < N; i++) pack.of[i] = i < n ? p[i] : T(0);
    return pack;
  }
  __device__ __forceinline__ void advance(long long row) { p += ALONG_K ? SIMT_K : SIMT_K * row; }
  __device__ __forceinline__ void put(T (*tile)[TILE + 4], const Pack<T, N>& pack) const {
#pragma unroll
    for (int i = 0; i < N; i++) tile[ALONG_K ? k + i : k][ALONG_K ? line : line + i] = pack.of[i];
  }
};
// The line of the tile that is a thread's i-th: strips of 4, 64 apart, so that shared memory is
// read in packs.
__device__ __forceinline__ int strip(int thread, int i) { return i / 4 * 64 + thread * 4 + i % 4; }
}  // namespace

template <typename T, int TILE, bool X_T, bool W_T>
__global__ void __launch_bounds__(THREADS, 2)
    matmul_simt(const T* __restrict__ x, Strides x_strides, long long x_row,
                const T* __restrict__ w, Strides w_strides, long long w_row, T* out,
                const T* __restrict__ bias, Strides bias_strides, const T* __restrict__ aux,
                T* parts, unsigned* arrivals, Axes axes, int m, int n, int k, int chunk,
                int activation) {
  constexpr int EACH = TILE / 16;
  GDT_SHARED(T, xs, [2][SIMT_K][TILE + 4]);
  GDT_SHARED(T, ws, [2][SIMT_K][TILE + 4]);
  const int item = blockIdx.z, first = blockIdx.y * chunk, end = min(k, first + chunk);
  const int t = threadIdx.x, tx = t % 16, ty = t / 16;
  const Corner corner = tile_corner<TILE, TILE>(blockIdx.x, m, n);
  typedef SimtFeed<T, TILE, !X_T> FeedX;
  typedef SimtFeed<T, TILE, W_T> FeedW;
  FeedX feed_x(x + offset(item, axes, x_strides), x_row, m, corner.row, first, t);
  FeedW feed_w(w + offset(item, axes, w_strides), w_row, n, corner.column, first, t);

  T sums[EACH][EACH] = {};
  feed_x.put(xs[0], feed_x.load(end - first));
  feed_w.put(ws[0], feed_w.load(end - first));
  __syncthreads();
  int now = 0;
  for (int left = end - first; left > 0; left -= SIMT_K, now ^= 1) {
    const bool more = left > SIMT_K;
    Pack<T, FeedX::N> next_x, next_w;
    if (more) {
      feed_x.advance(x_row), feed_w.advance(w_row);
      next_x = feed_x.load(left - SIMT_K), next_w = feed_w.load(left - SIMT_K);
    }
#pragma unroll 1  // unrolled, it spills: the sums alone are half of the registers
    for (int step = 0; step < SIMT_K; step++) {
      T a[EACH], b[EACH];
#pragma unroll
      for (int i = 0; i < EACH; i++)
        a[i] = xs[now][step][strip(ty, i)], b[i] = ws[now][step][strip(tx, i)];
#pragma unroll
      for (int i = 0; i < EACH; i++)
#pragma unroll
        for (int j = 0; j < EACH; j++) sums[i][j] = fma(a[i], b[j], sums[i][j]);
    }
    if (more) feed_x.put(xs[now ^ 1], next_x), feed_w.put(ws[now ^ 1], next_w);
    __syncthreads();
  }
  const T* item_bias = bias ? bias + offset(item, axes, bias_strides) : nullptr;
  const Sink<T, T> sink = make_sink(out, item_bias, aux, parts, activation, m, n, item,
                                    static_cast<int>(gridDim.z), blockIdx.y);
  T* slab = &xs[0][0][0];
  static_assert(sizeof xs >= 16 * TILE * sizeof(T), "a slab fits where the tiles were");
#pragma unroll
  for (int i = 0; i < EACH; i++) {
#pragma unroll
    for (int j = 0; j < EACH; j++) slab[ty * TILE + strip(tx, j)] = sums[i][j];
    drain<16, TILE>(sink, slab, corner.column, [&](int r) { return corner.row + strip(r, i); });
  }
  if (arrivals) finish_tile<TILE>(sink, parts, arrivals, corner);
}

// parts: (pieces, items, m, n)
template <typename A, typename O>
__global__ void __launch_bounds__(THREADS)
    matmul_finish(const A* __restrict__ parts, int pieces, O* out, const O* __restrict__ bias,
                  Strides bias_strides, const O* __restrict__ aux, Axes axes, int m, int n,
                  int activation) {
  const int item = blockIdx.y;
  const long long size = static_cast<long long>(m) * n,
                  at = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x;
  if (at >= size) return;
  const long long skip = item * size;
  const A sum = sum_of_parts(parts + skip, gridDim.y * size, pieces, at);
  const O* item_bias = bias ? bias + offset(item, axes, bias_strides) : nullptr;
  const Epilogue<A, O> epilogue = {out + skip, item_bias, aux ? aux + skip : nullptr, activation};
  epilogue(at, static_cast<int>(at % n), Pack<A, 1>{{sum}});
}

#if defined(GDT_CPU) || __CUDA_ARCH__ >= 800
namespace {
// ---- tensor cores -------------------------------------------------------------------------------
// A tile of TILE lines by K in shared memory, oriented as in global memory, rows padded against
// bank conflicts.
template <typename T, int TILE, bool ALONG_K> struct MmaTile {
  static constexpr int PER_PACK = PACK_BYTES / sizeof(T), K = MMA_K_BYTES / sizeof(T);
  static constexpr int SKEW = sizeof(T) == 8 ? SKEW_DOUBLE : ALONG_K ? PER_PACK : SKEW_ACROSS;
  static constexpr int ROW = (ALONG_K ? K : TILE) + SKEW, ROWS = ALONG_K ? TILE : K,
                       SIZE = ROW * ROWS;
  static constexpr int PACKS = TILE * K / PER_PACK, IN_ROW = (ALONG_K ? K : TILE) / PER_PACK;
  static __device__ __forceinline__ T* at(T* tile, int line, int k) {
    return tile + (ALONG_K ? line * ROW + k : k * ROW + line);
  }

  static __device__ __forceinline__ void fetch(T* tile, const Side<T, ALONG_K>& side,
                                               int first_line, int from, int t) {
#pragma unroll
    for (int i = t; i < PACKS; i += THREADS) {
      const int row = i / IN_ROW, column = i % IN_ROW * PER_PACK;
      const int line = ALONG_K ? row : column, k = ALONG_K ? column : row;
      T* to = at(tile, line, k);
      if (side.packs) {
        const int n = min(side.left(first_line + line, from + k), PER_PACK);
        ptx::copy_async_16(to, n ? side.at(first_line + line, from + k) : side.start,
                           n * static_cast<int>(sizeof(T)));
      } else {
        store(to, side.template load<PER_PACK>(first_line + line, from + k));
      }
    }
  }
};
// One step of k for a warp: 16 lines of x by STEP as a[4]; 16 lines of w by STEP as two b pairs.
template <typename T, int TILE, bool ALONG_K> struct Fragments {
  typedef MmaTile<T, TILE, ALONG_K> Tile;
  typedef uint32_t Register;
  static constexpr int STEP = 16;
  static __device__ __forceinline__ void load_x(uint32_t (&a)[4], T* tile, int line, int k,
                                                int lane) {
    const int matrix = lane / 8, row = lane % 8;
    if (ALONG_K)
      ptx::load_matrix_x4(a, Tile::at(tile, line + matrix % 2 * 8 + row, k + matrix / 2 * 8));
    else
      ptx::load_matrix_x4_transposed(
          a, Tile::at(tile, line + matrix % 2 * 8, k + matrix / 2 * 8 + row));
  }
  static __device__ __forceinline__ void load_w(uint32_t (&b)[4], T* tile, int line, int k,
                                                int lane) {
    const int matrix = lane / 8, row = lane % 8;
    if (ALONG_K)
      ptx::load_matrix_x4(b, Tile::at(tile, line + matrix / 2 * 8 + row, k + matrix % 2 * 8));
    else
      ptx::load_matrix_x4_transposed(
          b, Tile::at(tile, line + matrix / 2 * 8, k + matrix % 2 * 8 + row));
  }
};
// Elements of more than 16 bits have no ldmatrix: they are read one by one, float rounded to tf32.
__device__ __forceinline__ uint32_t to_register(float x) { return ptx::to_tf32(x); }
__device__ __forceinline__ double to_register(double x) { return x; }
template <typename T, typename R, int TILE, bool ALONG_K> struct WideFragments {
  typedef MmaTile<T, TILE, ALONG_K> Tile;
  typedef R Register;
  static constexpr int STEP = 8;
  static __device__ __forceinline__ void load_x(R (&a)[4], T* tile, int line, int k, int lane) {
#pragma unroll
    for (int i = 0; i < 4; i++)
      a[i] = to_register(*Tile::at(tile, line + lane / 4 + i % 2 * 8, k + lane % 4 + i / 2 * 4));
  }
  static __device__ __forceinline__ void load_w(R (&b)[4], T* tile, int line, int k, int lane) {
#pragma unroll
    for (int i = 0; i < 4; i++)
      b[i] = to_register(*Tile::at(tile, line + lane / 4 + i / 2 * 8, k + lane % 4 + i % 2 * 4));
  }
};
template <int TILE, bool ALONG_K>
struct Fragments<float, TILE, ALONG_K> : WideFragments<float, uint32_t, TILE, ALONG_K> {};
template <int TILE, bool ALONG_K>
struct Fragments<double, TILE, ALONG_K> : WideFragments<double, double, TILE, ALONG_K> {};
}  // namespace

// Blocks of a multiprocessor that must fit, 0 for those that the compiler chooses: for double it
// would choose three, and spill.
template <typename T> constexpr int MMA_BLOCKS = sizeof(T) == 8 ? 1 : 0;

template <typename T, typename O, int TILE, bool X_T, bool W_T, typename A>
__global__ void __launch_bounds__(THREADS, MMA_BLOCKS<T>)
    matmul_mma(const T* __restrict__ x, Strides x_strides, long long x_row, const T* __restrict__ w,
               Strides w_strides, long long w_row, O* out, const O* __restrict__ bias,
               Strides bias_strides, const O* __restrict__ aux, A* parts, unsigned* arrivals,
               Axes axes, int m, int n, int k, int chunk, int activation) {
  typedef MmaTile<T, TILE, !X_T> TileX;
  typedef MmaTile<T, TILE, W_T> TileW;
  typedef Fragments<T, TILE, !X_T> FragmentsX;
  typedef Fragments<T, TILE, W_T> FragmentsW;
  constexpr int K = TileX::K, DOWN = TILE / 2 / 16, ACROSS = TILE / 4 / 16;
  GDT_DYNAMIC_SHARED(shared);
  T* tiles = reinterpret_cast<T*>(shared);
  auto tile_x = [&](int stage) { return tiles + stage * (TileX::SIZE + TileW::SIZE); };
  auto tile_w = [&](int stage) { return tile_x(stage) + TileX::SIZE; };

  const int item = blockIdx.z, first = blockIdx.y * chunk, end = min(k, first + chunk);
  const int t = threadIdx.x, lane = t % WARP, warp = t / WARP;
  const int warp_row = warp / 4 * (TILE / 2), warp_column = warp % 4 * (TILE / 4);
  const Corner corner = tile_corner<TILE, TILE>(blockIdx.x, m, n);
  const Side<T, !X_T> side_x(x + offset(item, axes, x_strides), x_row, m, end);
  const Side<T, W_T> side_w(w + offset(item, axes, w_strides), w_row, n, end);
  auto fetch = [&](int step) {  // an empty group past the end, so that waiting counts the same
    const int from = first + step * K;
    if (from < end) {
      TileX::fetch(tile_x(step % STAGES), side_x, corner.row, from, t);
      TileW::fetch(tile_w(step % STAGES), side_w, corner.column, from, t);
    }
    ptx::copy_async_commit();
  };

  A sums[DOWN][ACROSS * 2][4] = {};
  for (int step = 0; step < STAGES - 1; step++) fetch(step);
  for (int step = 0; first + step * K < end; step++) {
    ptx::copy_async_wait<STAGES - 2>();
    __syncthreads();  // this step's tiles have arrived; no thread reads those of the step before
    fetch(step + STAGES - 1);
    T *xs = tile_x(step % STAGES), *ws = tile_w(step % STAGES);
#pragma unroll
    for (int at = 0; at < K; at += FragmentsX::STEP) {
      typename FragmentsX::Register a[DOWN][4], b[ACROSS][4];
#pragma unroll
      for (int i = 0; i < DOWN; i++) FragmentsX::load_x(a[i], xs, warp_row + i * 16, at, lane);
#pragma unroll
      for (int j = 0; j < ACROSS; j++) FragmentsW::load_w(b[j], ws, warp_column + j * 16, at, lane);
#pragma unroll
      for (int i = 0; i < DOWN; i++)
#pragma unroll
        for (int j = 0; j < ACROSS * 2; j++)
          ptx::multiply(sums[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1], T());
    }
  }
  const O* item_bias = bias ? bias + offset(item, axes, bias_strides) : nullptr;
  const Sink<A, O> sink =
      make_sink(out, item_bias, aux, parts, activation, m, n, item, static_cast<int>(gridDim.z),
                blockIdx.y);
  A* slab = reinterpret_cast<A*>(shared);
  __syncthreads();  // no thread reads the last tiles any more
#pragma unroll
  for (int i = 0; i < DOWN; i++) {
#pragma unroll
    for (int j = 0; j < ACROSS * 2; j++)
#pragma unroll
      for (int e = 0; e < 4; e++)
        slab[(warp / 4 * 16 + lane / 4 + e / 2 * 8) * TILE + warp_column + j * 8 + lane % 4 * 2 +
             e % 2] = sums[i][j][e];
    drain<32, TILE>(sink, slab, corner.column,
                    [&](int r) { return corner.row + r / 16 * (TILE / 2) + i * 16 + r % 16; });
  }
  if (arrivals) finish_tile<TILE>(sink, parts, arrivals, corner);
}
#endif
