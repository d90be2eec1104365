// Batch normalisation: local moments, their merge, and the passes of forward and backward.
//
//   rstd = 1 / sqrt(variance + eps)
//   y    = (x - mean) rstd scale + offset, which is xhat where scale is 1 and offset 0
//   dx   = rstd scale (dy - (sum(dy) + xhat sum(dy xhat)) / count)
//
// Arguments. x, y, dy, dx: (items..., outer, channels, inner), contiguous per item: images in
// channel order have inner = height * width, features and channels-last images inner = 1. xhat is
// as x. mean, variance, scale, offset: (items..., channels), with strides of their own; scale and
// offset may be null (1 and 0). `valid`: (items), the number of indices of `outer` that are not padding, or null.
// Statistics have the type A: float32, or float64 for float64 data.
//
// bn_moments and bn_sums cut the data into `splits` and store one part for each: (items, splits, 3
// or 2, channels). A thread adds up x - shift and its square, shift the first of its own elements;
// threads, parts of one device and gathered parts of several are merged by Chan's formula.
//
// Over: Planes (inner > 1), where a block has one channel; or Rows (inner = 1), where a thread has
// the channels of a pack and walks down the rows of `outer`. A thread has LOADS packs under way, or
// twice as many single elements where packs do not begin at multiples of 16 bytes.
//
// Launch. Planes: block THREADS, grid (channels, splits, items). Rows: block (lanes, THREADS /
// lanes), grid (channels / (lanes PER_PACK), splits, items). bn_merge: block (lanes, THREADS /
// lanes), grid (channels / lanes, items). Not yet measured on a GPU.
#include "block.cuh"

constexpr int THREADS = 256;
constexpr int LOADS = 4;
// Blocks on a multiprocessor: a thread has twice as many channels in 16 bits.
template <typename T> constexpr int RESIDENT = sizeof(T) == 2 ? 2 : 3;

namespace {
template <typename A> struct Moments {  // m2: the sum of squared distances from the mean
  A count, mean, m2;
};
// Chan, Golub, LeVeque 1979, eq. 2.1
template <typename A> struct MergeMoments {
  __device__ __forceinline__ Moments<A> operator()(const Moments<A>& a,
                                                   const Moments<A>& b) const {
    if (b.count == A(0)) return a;
    if (a.count == A(0)) return b;
    const A count = a.count + b.count, inverse = A(1) / count, distance = a.mean - b.mean;
    return {count, (a.count * a.mean + b.count * b.mean) * inverse,
            (a.m2 + b.m2) + distance * distance * (a.count * b.count * inverse)};
  }
};
template <typename A> struct Sums {
  A dy, dy_xhat;
};
template <typename A> struct MergeSums {
  __device__ __forceinline__ Sums<A> operator()(const Sums<A>& a, const Sums<A>& b) const {
    return {a.dy + b.dy, a.dy_xhat + b.dy_xhat};
  }
};

// ---- the elements of a thread -------------------------------------------------------------------
// SLOTS: the channels of a thread. A Walk steps over packs of WIDTH elements; element i of a pack
// belongs to slot i % SLOTS.
struct Planes {
  template <typename T> struct Of {
    static constexpr int SLOTS = 1;
    int channels, inner;
    bool packs;
    __device__ __forceinline__ Of(int channels, int inner, bool aligned)
        : channels(channels), inner(inner), packs(aligned && inner % PER_PACK<T> == 0) {}
    __device__ __forceinline__ int channel(int) const { return blockIdx.x; }
    __device__ __forceinline__ bool has(int) const { return true; }
    // The result is that of thread 0.
    template <typename S, typename Merge>
    static __device__ __forceinline__ bool merge(S (&state)[1], Merge merge_two) {
      GDT_SHARED(S, scratch, [THREADS / WARP]);
      const int thread = threadIdx.x;
      state[0] = block_reduce<THREADS / WARP>(state[0], merge_two, scratch, thread);
      return thread == 0;
    }
  };
  template <typename T, bool PACKS> struct Walk {
    static constexpr int WIDTH = PACKS ? PER_PACK<T> : 1;
    int rows, row, column, row_step, column_step, row_packs;
    long long base, stride;
    // Packs are numbered row after row; the threads of all splits take turns.
    __device__ __forceinline__ Walk(const Of<T>& of, int rows)
        : rows(rows),
          row_packs(of.inner / WIDTH),
          base(static_cast<long long>(blockIdx.x) * of.inner),
          stride(static_cast<long long>(of.channels) * of.inner) {
      const int thread = blockIdx.y * THREADS + threadIdx.x, step = gridDim.y * THREADS;
      row = thread / row_packs, column = thread % row_packs;
      row_step = step / row_packs, column_step = step % row_packs;
    }
    __device__ __forceinline__ bool inside() const { return row < rows; }
    __device__ __forceinline__ long long at() const { return base + row * stride + column * WIDTH; }
    __device__ __forceinline__ void advance() {
      row += row_step, column += column_step;
      if (column >= row_packs) column -= row_packs, row++;
    }
    __device__ __forceinline__ Pack<T, WIDTH> read(const T* x) const {
      return load<Pack<T, WIDTH>>(x);
    }
    __device__ __forceinline__ void write(T* x, const Pack<T, WIDTH>& pack) const {
      store(x, pack);
    }
  };
};
struct Rows {
  template <typename T> struct Of : Columns<T> {
    static constexpr int SLOTS = PER_PACK<T>;
    __device__ __forceinline__ Of(int channels, int, bool aligned)
        : Columns<T>(blockIdx.x, channels, aligned) {}
    __device__ __forceinline__ int channel(int slot) const { return this->column(slot); }
    // The results are those of the threads y = 0.
    template <typename S, typename Merge>
    static __device__ __forceinline__ bool merge(S (&state)[SLOTS], Merge merge_two) {
      GDT_SHARED(S, scratch, [SLOTS][THREADS]);
      merge_columns(state, merge_two, scratch);
      return threadIdx.y == 0;
    }
  };
  template <typename T, bool PACKS> struct Walk {
    static constexpr int WIDTH = PER_PACK<T>;
    const Of<T>& of;
    int rows, row, step;
    __device__ __forceinline__ Walk(const Of<T>& of, int rows)
        : of(of),
          rows(rows),
          row(blockIdx.y * blockDim.y + threadIdx.y),
          step(gridDim.y * blockDim.y) {}
    __device__ __forceinline__ bool inside() const { return row < rows; }
    __device__ __forceinline__ long long at() const {
      return static_cast<long long>(row) * of.width;
    }
    __device__ __forceinline__ void advance() { row += step; }
    __device__ __forceinline__ Pack<T, WIDTH> read(const T* x) const {
      return of.template read<PACKS>(x);
    }
    __device__ __forceinline__ void write(T* x, const Pack<T, WIDTH>& pack) const {
      of.template write<PACKS>(x, pack);
    }
  };
};
// Hands what `load(at)` reads at every place of a walk to `use(at, loaded)`. STREAMS: the arrays
// that are read.
template <int STREAMS, typename T, typename Walk, typename Load, typename Use>
__device__ __forceinline__ void traverse(Walk walk, Load load, Use use) {
  constexpr int BATCH = (Walk::WIDTH == 1 ? 2 * LOADS : LOADS) / STREAMS;
  while (walk.inside()) {
    decltype(load(0ll)) loaded[BATCH];
    long long at[BATCH];
    bool inside[BATCH];
#pragma unroll
    for (int k = 0; k < BATCH; k++, walk.advance()) {
      inside[k] = walk.inside(), at[k] = walk.at();
      if (inside[k]) loaded[k] = load(at[k]);
    }
#pragma unroll
    for (int k = 0; k < BATCH; k++)
      if (inside[k]) use(at[k], loaded[k]);
  }
}
template <typename P> struct Pair {  // of packs at one place of two arrays
  P first, second;
};
template <typename Walk, typename T>
__device__ __forceinline__ auto read_pair(const Walk& walk, const T* x, const T* dy) {
  typedef Pack<T, Walk::WIDTH> P;
  return Pair<P>{walk.read(x), walk.read(dy)};
}
// f(walk) of a walk over `rows` rows, in packs if there are some.
template <typename Over, typename T, typename F>
__device__ __forceinline__ void walk_rows(const typename Over::template Of<T>& of, int rows, F f) {
  if (of.packs) f(typename Over::template Walk<T, true>(of, rows));
  else f(typename Over::template Walk<T, false>(of, rows));
}
template <typename T> __device__ __forceinline__ bool aligned(const T* a, const T* b) {
  return misalignment(a) == 0 && misalignment(b) == 0;
}
template <typename A> __device__ __forceinline__ A finite_or_0(A x) {
  return x - x == A(0) ? x : A(0);
}
}  // namespace

template <typename T, typename A, typename Over>
__global__ void __launch_bounds__(THREADS, RESIDENT<T>)
    bn_moments(const T* __restrict__ x, Strides x_strides, const int* __restrict__ valid,
               A* __restrict__ parts, Axes axes, int outer, int channels, int inner) {
  typedef typename Over::template Of<T> Of;
  constexpr int SLOTS = Of::SLOTS;
  const int item = blockIdx.z, rows = valid ? valid[item] : outer;
  const T* from = x + offset(item, axes, x_strides);
  const Of of(channels, inner, misalignment(from) == 0);
  A shift[SLOTS], sum[SLOTS], square[SLOTS];
#pragma unroll
  for (int i = 0; i < SLOTS; i++) shift[i] = sum[i] = square[i] = A(0);
  int steps = 0;
  walk_rows<Over, T>(of, rows, [&](auto walk) {
    constexpr int WIDTH = decltype(walk)::WIDTH;
    if (walk.inside()) {
      const auto first = walk.read(from + walk.at());
#pragma unroll
      for (int i = 0; i < SLOTS; i++) shift[i] = finite_or_0(A(widen(first.of[i])));
    }
    traverse<1, T>(
        walk, [&](long long at) { return walk.read(from + at); },
        [&](long long, const auto& pack) {
          steps += WIDTH / SLOTS;
#pragma unroll
          for (int k = 0; k < WIDTH; k++) {
            const A distance = A(widen(pack.of[k])) - shift[k % SLOTS];
            sum[k % SLOTS] += distance;
            square[k % SLOTS] += distance * distance;
          }
        });
  });
  Moments<A> moments[SLOTS];
  const A count = static_cast<A>(steps), inverse = steps ? A(1) / count : A(0);
#pragma unroll
  for (int i = 0; i < SLOTS; i++) {
    const A beyond = sum[i] * inverse, m2 = square[i] - sum[i] * beyond;
    moments[i] = {count, shift[i] + beyond, m2 < A(0) ? A(0) : m2};
  }
  if (!Of::merge(moments, MergeMoments<A>())) return;
  A* part = parts + (static_cast<long long>(item) * gridDim.y + blockIdx.y) * 3 * channels;
#pragma unroll
  for (int i = 0; i < SLOTS; i++) {
    if (!of.has(i)) continue;
    const int c = of.channel(i);
    part[c] = moments[i].count;
    part[channels + c] = moments[i].mean;
    part[2 * channels + c] = moments[i].m2;
  }
}

// parts: (items, splits, 3, channels); merged: (items, 3, channels); variance: (items, channels).
// Either may be null.
template <typename A>
__global__ void __launch_bounds__(THREADS)
    bn_merge(const A* __restrict__ parts, int splits, int channels, A* __restrict__ merged,
             A* __restrict__ variance) {
  GDT_SHARED(Moments<A>, scratch, [1][THREADS]);
  const int c = blockIdx.x * blockDim.x + threadIdx.x, item = blockIdx.y;
  const A* from = parts + static_cast<long long>(item) * splits * 3 * channels + c;
  Moments<A> state[1] = {{A(0), A(0), A(0)}};
  for (int s = threadIdx.y; c < channels && s < splits; s += blockDim.y) {
    const A* part = from + static_cast<long long>(s) * 3 * channels;
    state[0] = MergeMoments<A>()(state[0],
                                 Moments<A>{part[0], part[channels], part[2 * channels]});
  }
  merge_columns(state, MergeMoments<A>(), scratch);
  if (threadIdx.y != 0 || c >= channels) return;
  const Moments<A>& m = state[0];
  A* to = merged + static_cast<long long>(item) * 3 * channels + c;
  if (merged) to[0] = m.count, to[channels] = m.mean, to[2 * channels] = m.m2;
  if (variance) variance[static_cast<long long>(item) * channels + c] = m.m2 / m.count;
}

template <typename T, typename A, typename Over>
__global__ void __launch_bounds__(THREADS, RESIDENT<T>)
    bn_apply(const T* __restrict__ x, Strides x_strides, const A* __restrict__ mean,
             const A* __restrict__ variance, Strides mean_strides, const A* __restrict__ scale,
             const A* __restrict__ bias, Strides scale_strides, T* __restrict__ y, Axes axes,
             int outer, int channels, int inner, A eps) {
  typedef typename Over::template Of<T> Of;
  constexpr int SLOTS = Of::SLOTS;
  const int item = blockIdx.z;
  const T* from = x + offset(item, axes, x_strides);
  T* to = y + static_cast<long long>(item) * outer * channels * inner;
  const long long at_mean = offset(item, axes, mean_strides),
                  at_scale = offset(item, axes, scale_strides);
  const Of of(channels, inner, aligned<T>(from, to));
  A centre[SLOTS], factor[SLOTS], addend[SLOTS];
#pragma unroll
  for (int i = 0; i < SLOTS; i++) {
    const int c = of.has(i) ? of.channel(i) : 0;
    centre[i] = mean[at_mean + c];
    factor[i] = A(1) / sqrt(variance[at_mean + c] + eps) * (scale ? scale[at_scale + c] : A(1));
    addend[i] = bias ? bias[at_scale + c] : A(0);
  }
  walk_rows<Over, T>(of, outer, [&](auto walk) {
    traverse<1, T>(
        walk, [&](long long at) { return walk.read(from + at); },
        [&](long long at, auto pack) {
#pragma unroll
          for (int k = 0; k < decltype(walk)::WIDTH; k++)
            pack.of[k] = narrow<T>((A(widen(pack.of[k])) - centre[k % SLOTS]) * factor[k % SLOTS] +
                                   addend[k % SLOTS]);
          walk.write(to + at, pack);
        });
  });
}

template <typename T, typename A, typename Over>
__global__ void __launch_bounds__(THREADS, RESIDENT<T>)
    bn_sums(const T* __restrict__ xhat, Strides xhat_strides, const T* __restrict__ dy,
            Strides dy_strides, const int* __restrict__ valid, A* __restrict__ parts, Axes axes,
            int outer, int channels, int inner) {
  typedef typename Over::template Of<T> Of;
  constexpr int SLOTS = Of::SLOTS;
  const int item = blockIdx.z, rows = valid ? valid[item] : outer;
  const T *from = xhat + offset(item, axes, xhat_strides),
          *given = dy + offset(item, axes, dy_strides);
  const Of of(channels, inner, aligned<T>(from, given));
  Sums<A> sums[SLOTS];
#pragma unroll
  for (int i = 0; i < SLOTS; i++) sums[i] = {A(0), A(0)};
  walk_rows<Over, T>(of, rows, [&](auto walk) {
    traverse<2, T>(
        walk, [&](long long at) { return read_pair(walk, from + at, given + at); },
        [&](long long, const auto& pair) {
#pragma unroll
          for (int k = 0; k < decltype(walk)::WIDTH; k++) {
            const A g = A(widen(pair.second.of[k]));
            sums[k % SLOTS].dy += g;
            sums[k % SLOTS].dy_xhat += g * A(widen(pair.first.of[k]));
          }
        });
  });
  if (!Of::merge(sums, MergeSums<A>())) return;
  A* part = parts + (static_cast<long long>(item) * gridDim.y + blockIdx.y) * 2 * channels;
#pragma unroll
  for (int i = 0; i < SLOTS; i++) {
    if (!of.has(i)) continue;
    const int c = of.channel(i);
    part[c] = sums[i].dy;
    part[channels + c] = sums[i].dy_xhat;
  }
}

// dy_sum, product_sum: (items..., channels), of dy and of dy * xhat over the whole batch; count:
// (items..., channels), as bn_merge writes it.
template <typename T, typename A, typename Over>
__global__ void __launch_bounds__(THREADS, RESIDENT<T>)
    bn_backward(const T* __restrict__ xhat, Strides xhat_strides, const T* __restrict__ dy,
                Strides dy_strides, const A* __restrict__ variance, Strides variance_strides,
                const A* __restrict__ scale, Strides scale_strides, const A* __restrict__ dy_sum,
                Strides dy_sum_strides, const A* __restrict__ product_sum,
                Strides product_sum_strides, const A* __restrict__ count, Strides count_strides,
                T* __restrict__ dx, Axes axes, int outer, int channels, int inner, A eps) {
  typedef typename Over::template Of<T> Of;
  constexpr int SLOTS = Of::SLOTS;
  const int item = blockIdx.z;
  const T *from = xhat + offset(item, axes, xhat_strides),
          *given = dy + offset(item, axes, dy_strides);
  T* to = dx + static_cast<long long>(item) * outer * channels * inner;
  const long long at_variance = offset(item, axes, variance_strides),
                  at_scale = offset(item, axes, scale_strides);
  const A *total = dy_sum + offset(item, axes, dy_sum_strides),
          *product = product_sum + offset(item, axes, product_sum_strides),
          *n = count + offset(item, axes, count_strides);
  const Of of(channels, inner, aligned<T>(from, to) && misalignment(given) == 0);
  A factor[SLOTS], slope[SLOTS], addend[SLOTS];
#pragma unroll
  for (int i = 0; i < SLOTS; i++) {
    const int c = of.has(i) ? of.channel(i) : 0;
    const A inverse = A(1) / n[c];
    factor[i] = A(1) / sqrt(variance[at_variance + c] + eps) * (scale ? scale[at_scale + c] : A(1));
    slope[i] = product[c] * inverse;
    addend[i] = total[c] * inverse;
  }
  walk_rows<Over, T>(of, outer, [&](auto walk) {
    traverse<2, T>(
        walk, [&](long long at) { return read_pair(walk, from + at, given + at); },
        [&](long long at, auto pair) {
#pragma unroll
          for (int k = 0; k < decltype(walk)::WIDTH; k++) {
            const int i = k % SLOTS;
            const A normal = A(widen(pair.first.of[k]));
            pair.first.of[k] = narrow<T>(
                factor[i] * (A(widen(pair.second.of[k])) - addend[i] - normal * slope[i]));
          }
          walk.write(to + at, pair.first);
        });
  });
}
