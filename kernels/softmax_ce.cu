// Cross-entropy of softmax(logits) against integer labels, with label smoothing and an index to
// ignore.
//
//   y              = labels[r]
//   lse[r]         = log(sum(exp(logits[r, :])))
//   loss[r]        = lse[r] - (1 - smoothing) logits[r, y] - smoothing mean(logits[r, :])
//   gradient[r, c] = scale[r] (exp(logits[r, c] - lse[r])
//                              - (1 - smoothing) [c == y] - smoothing / total)
//
// Arguments. logits: (items..., rows, classes), rows contiguous; labels: (items..., rows); scale:
// (items..., rows), or one number for all rows (scale_step 0), or null for 1. loss, lse: (items,
// rows), lse of whole rows or null; gradient: (items, rows, classes), may be the logits themselves.
// Rows with y == ignore have loss and gradient 0. A label outside [0, total) is never used as an
// index: its row has loss NaN and gradient 0, and `error`, which starts with all bits set, becomes
// (row << 32 | label) of the first such row; a label beyond 32 bits is stored as the nearest number
// of 32.
//
// Whole rows: softmax_ce reads a row once where it fits shared memory (`cached`), else twice, and
// writes it once. On sm_90a softmax_ce_cluster reads a longer row once too: CLUSTER blocks keep a
// part of it each, and give each other (max, sum, sum of logits) of their parts.
//
// Classes split over devices: softmax_ce_parts writes (max, sum, logit of the label, sum of logits)
// for the local classes [start, start + count); after an all-gather of the parts, softmax_ce_merge
// combines them in order, and softmax_ce_gradient computes the gradient from the largest logit of a
// row and the sum of exponentials below it: lse = highest + log(sum). start and count: (items), or
// null for 0 and `classes`.
//
// Launch: block (ROW_THREADS, ROWS_PER_BLOCK), grid (rows / ROWS_PER_BLOCK, items); ROW_THREADS =
// 32 with 4 rows for short rows, 256 with 1 row for long ones. Shared: `cached` ? ROWS_PER_BLOCK *
// classes elements : 0. softmax_ce_cluster: block CLUSTER_THREADS, grid (CLUSTER * rows, items), in
// clusters of CLUSTER; shared: a part, as of one row. Not yet measured on a GPU.
#include "block.cuh"

constexpr int MERGE_THREADS = 256;
constexpr int INT_LIMIT = 2147483647;
constexpr int RESIDENT = 768;  // threads of a multiprocessor; with more, ptxas spills
constexpr int LOADS = 4;       // packs of a thread, under way at the same time
constexpr int CLUSTER = 8;     // blocks of a long row
constexpr int CLUSTER_THREADS = 256;

namespace {
template <typename A> struct Row {  // max, sum of exp(x - max), and sum of x, of some elements
  A max, sum, total;
};
// The least finite number, so that no two infinities are subtracted where all elements are -inf.
__device__ __forceinline__ float lowest(float) { return -3.402823466385288598e38f; }
__device__ __forceinline__ double lowest(double) { return -1.797693134862315708e308; }
template <typename A> __device__ __forceinline__ Row<A> empty_row() {
  return {lowest(A(0)), A(0), A(0)};
}
template <typename A>
__device__ __forceinline__ Row<A> merge_rows(const Row<A>& a, const Row<A>& b) {
  const A high = max(a.max, b.max);
  return {high, a.sum * exponential(a.max - high) + b.sum * exponential(b.max - high),
          a.total + b.total};
}
// The largest of a pack comes first, so that one exponential brings the sum of a row to it.
template <typename A, typename T, int N>
__device__ __forceinline__ void include(Row<A>& row, const Pack<T, N>& pack) {
  A high = row.max;
#pragma unroll
  for (int i = 0; i < N; i++) high = max(high, A(widen(pack.of[i])));
  row.sum *= exponential(row.max - high);
  row.max = high;
#pragma unroll
  for (int i = 0; i < N; i++) {
    const A x = A(widen(pack.of[i]));
    row.sum += exponential(x - high);
    row.total += x;
  }
}
template <typename A, int ROW_THREADS>
__device__ __forceinline__ Row<A> reduce_row(const Row<A>& mine, Row<A>* scratch) {
  auto merge = [](const Row<A>& a, const Row<A>& b) { return merge_rows(a, b); };
  return block_reduce<ROW_THREADS / WARP>(mine, merge, scratch, static_cast<int>(threadIdx.x));
}

struct Label {
  long long index;
  bool ignored, valid;
};
// The smallest row with a bad label is reported, whatever the order of blocks.
__device__ __forceinline__ Label read_label(long long y, long long total, long long ignore,
                                            long long row, unsigned long long* error) {
  const Label label = {y, y == ignore, y >= 0 && y < total};
  const int shown = static_cast<int>(y < -INT_LIMIT ? -INT_LIMIT : y > INT_LIMIT ? INT_LIMIT : y);
  if (!label.ignored && !label.valid)
    atomicMin(error, static_cast<unsigned long long>(row) << 32 | static_cast<unsigned>(shown));
  return label;
}
template <typename A> __device__ __forceinline__ A labelled_loss(const Label& y, A loss) {
  return y.ignored ? A(0) : y.valid ? loss : infinity<A>() - infinity<A>();
}
// `logit` and `total` are sums over all classes.
template <typename A>
__device__ __forceinline__ A row_loss(A lse, A logit, A total, A smoothing, int classes) {
  const A spread =
      smoothing == A(0) ? A(0) : smoothing * total / A(classes);  // total may be infinite
  return lse - (A(1) - smoothing) * logit - spread;
}

template <typename A>
struct Target {  // subtracted from the softmax: `floor` everywhere, and `peak` at `at`
  long long at;
  A floor, peak;
};
// Read `from` (global or shared memory), write `to`. packs: both have the same offset from a
// multiple of 16 bytes.
template <typename T, typename A>
__device__ __forceinline__ void write_gradient(const T* from, T* to, int n, int thread, int threads,
                                               bool packs, A lse, A scale,
                                               const Target<A>& target) {
  visit<LOADS>(from, n, thread, threads, packs, [&](int i, auto pack) {
#pragma unroll
    for (int k = 0; k < static_cast<int>(sizeof(pack) / sizeof(T)); k++) {
      const A hit = i + k == target.at ? target.peak : A(0);
      pack.of[k] = narrow<T>(
          scale == A(0) ? A(0)
                        : scale * (exponential(A(widen(pack.of[k])) - lse) - hit - target.floor));
    }
    store(to + i, pack);
  });
}

// The bytes of shared memory for one row, with room for the row's offset from 16 bytes.
template <typename T> __device__ __forceinline__ int row_bytes(int classes) {
  return static_cast<int>((classes * sizeof(T) / PACK_BYTES + 2) * PACK_BYTES);
}
}  // namespace

template <typename T, typename A, typename L, int ROW_THREADS, int ROWS_PER_BLOCK>
__global__ void __launch_bounds__(ROW_THREADS* ROWS_PER_BLOCK,
                                  RESIDENT / ROW_THREADS / ROWS_PER_BLOCK)
    softmax_ce(const T* logits, Strides logits_strides, const L* __restrict__ labels,
               Strides labels_strides, const A* __restrict__ scale, Strides scale_strides,
               int scale_step, A* __restrict__ loss, A* __restrict__ lse, T* gradient, Axes axes,
               int rows, int classes, A smoothing, long long ignore, int cached,
               unsigned long long* error) {
  GDT_DYNAMIC_SHARED(shared);
  GDT_SHARED(Row<A>, scratch, [ROW_THREADS / WARP]);
  const int row = blockIdx.x * ROWS_PER_BLOCK + threadIdx.y, item = blockIdx.y,
            thread = threadIdx.x;
  if (row >= rows) return;  // whole warps: where a block has several rows, each is one warp
  const long long at = static_cast<long long>(item) * rows + row;
  const T* x = logits + offset(item, axes, logits_strides) + static_cast<long long>(row) * classes;
  T* copy = reinterpret_cast<T*>(shared + threadIdx.y * row_bytes<T>(classes) + misalignment(x));
  Row<A> mine = empty_row<A>();
  visit<LOADS>(x, classes, thread, ROW_THREADS, true, [&](int i, const auto& pack) {
    include(mine, pack);
    if (cached) store(copy + i, pack);
  });
  const Label y =
      read_label(labels[offset(item, axes, labels_strides) + row], classes, ignore, at, error);
  const A logit = y.valid ? A(widen(x[y.index])) : A(0);
  const Row<A> whole = reduce_row<A, ROW_THREADS>(mine, scratch);
  const A row_lse = whole.max + log(whole.sum);
  if (thread == 0) {
    if (lse) lse[at] = row_lse;
    loss[at] = labelled_loss(y, row_loss(row_lse, logit, whole.total, smoothing, classes));
  }
  if (!gradient) return;
  const A given = scale ? scale[offset(item, axes, scale_strides) + row * scale_step] : A(1);
  T* out = gradient + at * classes;
  // All threads must have read x[y], and the copy may be read in other packs than it was written
  // in. The warps of one row have synchronised in reduce_row.
  if (ROW_THREADS == WARP) __syncwarp();
  write_gradient(cached ? copy : x, out, classes, thread, ROW_THREADS,
                 misalignment(x) == misalignment(out), row_lse,
                 y.ignored || !y.valid ? A(0) : given,
                 {y.index, smoothing / A(classes), A(1) - smoothing});
}

#if defined(GDT_CPU) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
// The same for a row in parts of a multiple of 16 bytes, of which the last may be short or empty.
template <typename T, typename A, typename L>
__global__ void __cluster_dims__(CLUSTER, 1, 1)
    __launch_bounds__(CLUSTER_THREADS, RESIDENT / CLUSTER_THREADS)
    softmax_ce_cluster(const T* logits, Strides logits_strides, const L* __restrict__ labels,
                       Strides labels_strides, const A* __restrict__ scale, Strides scale_strides,
                       int scale_step, A* __restrict__ loss, A* __restrict__ lse, T* gradient,
                       Axes axes, int rows, int classes, int part, A smoothing, long long ignore,
                       unsigned long long* error) {
  constexpr int WORDS = sizeof(Row<A>) / sizeof(uint32_t);
  GDT_DYNAMIC_SHARED(shared);
  GDT_SHARED(Row<A>, scratch, [CLUSTER_THREADS / WARP]);
  GDT_SHARED(Row<A>, parts, [CLUSTER]);
  ptx::cluster_sync();  // all blocks have begun
  const int row = blockIdx.x / CLUSTER, rank = ptx::cluster_rank(), item = blockIdx.y,
            thread = threadIdx.x;
  const long long at = static_cast<long long>(item) * rows + row;
  const int first = min(classes, rank * part), count = min(part, classes - first);
  const T* x = logits + offset(item, axes, logits_strides) + static_cast<long long>(row) * classes;
  T* copy = reinterpret_cast<T*>(shared + misalignment(x + first));
  Row<A> mine = empty_row<A>();
  visit<LOADS>(x + first, count, thread, CLUSTER_THREADS, true, [&](int i, const auto& pack) {
    include(mine, pack);
    if (gradient) store(copy + i, pack);
  });
  const Label y =
      read_label(labels[offset(item, axes, labels_strides) + row], classes, ignore, at, error);
  const A logit = y.valid ? A(widen(x[y.index])) : A(0);
  mine = reduce_row<A, CLUSTER_THREADS>(mine, scratch);
  uint32_t words[WORDS];
  memcpy(words, &mine, sizeof mine);
  if (thread < CLUSTER) {
#pragma unroll
    for (int i = 0; i < WORDS; i++)
      ptx::store_in(reinterpret_cast<uint32_t*>(&parts[rank]) + i, thread, words[i]);
  }
  ptx::cluster_sync();  // the parts are there, and all threads have read x[y]
  Row<A> whole = parts[0];
#pragma unroll
  for (int i = 1; i < CLUSTER; i++) whole = merge_rows(whole, parts[i]);
  const A row_lse = whole.max + log(whole.sum);
  if (rank == 0 && thread == 0) {
    if (lse) lse[at] = row_lse;
    loss[at] = labelled_loss(y, row_loss(row_lse, logit, whole.total, smoothing, classes));
  }
  if (!gradient) return;
  const A given = scale ? scale[offset(item, axes, scale_strides) + row * scale_step] : A(1);
  T* out = gradient + at * classes + first;
  write_gradient(copy, out, count, thread, CLUSTER_THREADS,
                 misalignment(x + first) == misalignment(out), row_lse,
                 y.ignored || !y.valid ? A(0) : given,
                 {y.index - first, smoothing / A(classes), A(1) - smoothing});
}
#endif

// parts: (items, rows, 4)
template <typename T, typename A, typename L, int ROW_THREADS, int ROWS_PER_BLOCK>
__global__ void __launch_bounds__(ROW_THREADS* ROWS_PER_BLOCK,
                                  RESIDENT / ROW_THREADS / ROWS_PER_BLOCK)
    softmax_ce_parts(const T* __restrict__ logits, Strides logits_strides,
                     const L* __restrict__ labels, Strides labels_strides,
                     const int* __restrict__ start, const int* __restrict__ count,
                     A* __restrict__ parts, Axes axes, int rows, int classes) {
  GDT_SHARED(Row<A>, scratch, [ROW_THREADS / WARP]);
  const int row = blockIdx.x * ROWS_PER_BLOCK + threadIdx.y, item = blockIdx.y,
            thread = threadIdx.x;
  if (row >= rows) return;
  const int valid = count ? count[item] : classes;
  const T* x = logits + offset(item, axes, logits_strides) + static_cast<long long>(row) * classes;
  Row<A> mine = empty_row<A>();
  visit<LOADS>(x, valid, thread, ROW_THREADS, true,
               [&](int, const auto& pack) { include(mine, pack); });
  const Row<A> whole = reduce_row<A, ROW_THREADS>(mine, scratch);
  if (thread != 0) return;
  const long long here = static_cast<long long>(labels[offset(item, axes, labels_strides) + row]) -
                         (start ? start[item] : 0);
  A* part = parts + (static_cast<long long>(item) * rows + row) * 4;
  part[0] = whole.max;
  part[1] = whole.sum;
  part[2] = here >= 0 && here < valid ? A(widen(x[here])) : A(0);
  part[3] = whole.total;
}

// parts: (count, rows, 4), merged in the order of the first axis; labels, loss, lse: (rows). One
// thread for each row.
template <typename A, typename L>
__global__ void __launch_bounds__(MERGE_THREADS)
    softmax_ce_merge(const A* __restrict__ parts, const L* __restrict__ labels,
                     A* __restrict__ loss, A* __restrict__ lse, int count, int rows, int total,
                     A smoothing, long long ignore, unsigned long long* error) {
  const int row = blockIdx.x * MERGE_THREADS + threadIdx.x;
  if (row >= rows) return;
  Row<A> whole = empty_row<A>();
  A logit = A(0);
  for (int i = 0; i < count; i++) {
    const A* part = parts + (static_cast<long long>(i) * rows + row) * 4;
    whole = merge_rows(whole, Row<A>{part[0], part[1], part[3]});
    logit += part[2];
  }
  const Label y = read_label(labels[row], total, ignore, row, error);
  lse[row] = whole.max + log(whole.sum);
  loss[row] = labelled_loss(y, row_loss(lse[row], logit, whole.total, smoothing, total));
}

// highest, sum: (items..., rows), of all classes; total: the number of all classes. Local classes
// past count have gradient 0.
template <typename T, typename A, typename L, int ROW_THREADS, int ROWS_PER_BLOCK>
__global__ void __launch_bounds__(ROW_THREADS* ROWS_PER_BLOCK,
                                  RESIDENT / ROW_THREADS / ROWS_PER_BLOCK)
    softmax_ce_gradient(const T* logits, Strides logits_strides, const L* __restrict__ labels,
                        Strides labels_strides, const A* __restrict__ highest,
                        Strides highest_strides,
                        const A* __restrict__ sum, Strides sum_strides,
                        const A* __restrict__ scale, Strides scale_strides, int scale_step,
                        const int* __restrict__ start, const int* __restrict__ count, T* gradient,
                        Axes axes, int rows, int classes, int total, A smoothing,
                        long long ignore) {
  const int row = blockIdx.x * ROWS_PER_BLOCK + threadIdx.y, item = blockIdx.y,
            thread = threadIdx.x;
  if (row >= rows) return;
  const int valid = count ? count[item] : classes;
  const long long at = static_cast<long long>(item) * rows + row;
  const T* x = logits + offset(item, axes, logits_strides) + static_cast<long long>(row) * classes;
  const long long y = labels[offset(item, axes, labels_strides) + row];
  const A given = scale ? scale[offset(item, axes, scale_strides) + row * scale_step] : A(1);
  T* out = gradient + at * classes;
  write_gradient(x, out, valid, thread, ROW_THREADS, misalignment(x) == misalignment(out),
                 highest[offset(item, axes, highest_strides) + row] +
                     log(sum[offset(item, axes, sum_strides) + row]),
                 y == ignore || y < 0 || y >= total ? A(0) : given,
                 {y - (start ? start[item] : 0), smoothing / A(total), A(1) - smoothing});
  for (int i = valid + thread; i < classes; i += ROW_THREADS) out[i] = narrow<T>(A(0));
}
