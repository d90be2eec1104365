// Batch normalisation: local moments, their merge, and the passes of forward and backward.
//
//   rstd = 1 / sqrt(variance + eps)
//   xhat = (x - mean) rstd
//   y    = xhat scale + offset, then ReLU if `relu`
//   g    = dy, or 0 where the ReLU gave 0
//   dx   = rstd scale (g - (sum(g) + xhat sum(g xhat)) / count)
//
// Arguments. x, y, dy, dx: (items..., outer, channels, inner), contiguous per item: images in
// channel order have inner = height * width, features and channels-last images inner = 1. mean,
// rstd, scale, offset: (items..., channels), with strides of their own; scale and offset may be
// null (1 and 0). `valid`: (items), the number of indices of `outer` that are not padding, or null.
// Statistics have the type A: float32, or float64 for float64 data.
//
// bn_moments_* and bn_sums_* cut the data into `splits` and store one part for each: (items,
// splits, 3 or 2, channels). bn_merge merges parts in order by Chan's formula, those of one device
// and the gathered parts of several.
//
// Launch. *_planes (inner > 1): block THREADS, grid (channels, splits, items). *_columns (inner =
// 1): block (WARP, ROWS), grid (channels / WARP, splits, items). bn_merge: block THREADS, grid
// (channels / THREADS, items). bn_apply and bn_backward: block THREADS, grid (any, items). Not yet
// measured on a GPU.
#include "block.cuh"

constexpr int THREADS = 256;
constexpr int ROWS = 8;

namespace {
template <typename A> struct Moments {  // m2: the sum of squared distances from the mean
  A count, mean, m2;
};
// Chan, Golub, LeVeque 1979, eq. 2.1; symmetric in a and b to the bit, since both ends of a shuffle
// compute it.
template <typename A>
__device__ __forceinline__ Moments<A> merge_moments(const Moments<A>& a, const Moments<A>& b) {
  const A count = a.count + b.count;
  if (count == A(0)) return {A(0), A(0), A(0)};
  if (a.count == A(0)) return b;
  if (b.count == A(0)) return a;
  const A distance = a.mean - b.mean;
  return {count, (a.count * a.mean + b.count * b.mean) / count,
          (a.m2 + b.m2) + distance * distance * (a.count * b.count / count)};
}
template <typename A> struct MomentsOf {  // Welford 1962
  typedef Moments<A> State;
  static __device__ __forceinline__ State empty() { return {A(0), A(0), A(0)}; }
  static __device__ __forceinline__ State merge(const State& a, const State& b) {
    return merge_moments(a, b);
  }
  static __device__ __forceinline__ void include(State& s, A x) {
    s.count += A(1);
    const A before = x - s.mean;
    s.mean += before / s.count;
    s.m2 += before * (x - s.mean);
  }
};
template <typename A> struct Sums {
  A g, g_xhat;
};
template <typename A> struct SumsOf {
  typedef Sums<A> State;
  static __device__ __forceinline__ State empty() { return {A(0), A(0)}; }
  static __device__ __forceinline__ State merge(const State& a, const State& b) {
    return {a.g + b.g, a.g_xhat + b.g_xhat};
  }
  static __device__ __forceinline__ void include(State& s, Sums<A> x) {
    s.g += x.g;
    s.g_xhat += x.g * x.g_xhat;
  }
};

// The elements of one split: rows n = first, first + step, ... of `outer`. `load(n, i)` gives
// element i of row n.
struct Split {
  int first, step;
};
// A whole block for one channel; its threads take the elements of inner, then the next row.
template <typename Of, typename Load>
__device__ typename Of::State reduce_planes(int outer, int inner, const Split& rows, Load load) {
  GDT_SHARED(typename Of::State, scratch, [THREADS / WARP]);
  typename Of::State state = Of::empty();
  const int row_step = THREADS / inner, column_step = THREADS % inner;
  int row = threadIdx.x / inner, column = threadIdx.x % inner;
  for (long long n = rows.first + static_cast<long long>(row) * rows.step; n < outer;
       n = rows.first + static_cast<long long>(row) * rows.step) {
    Of::include(state, load(static_cast<int>(n), column));
    row += row_step;
    column += column_step;
    if (column >= inner) column -= inner, row++;
  }
  auto merge = [](const typename Of::State& a, const typename Of::State& b) {
    return Of::merge(a, b);
  };
  return block_reduce<THREADS / WARP>(state, merge, scratch, static_cast<int>(threadIdx.x));
}
// WARP channels for a block; ROWS threads share a channel. Thread y = 0 has the result.
template <typename Of, typename Load>
__device__ typename Of::State reduce_columns(int outer, bool inside, const Split& rows, Load load) {
  GDT_SHARED(typename Of::State, scratch, [ROWS][WARP]);
  typename Of::State state = Of::empty();
  for (long long n = rows.first + static_cast<long long>(threadIdx.y) * rows.step;
       inside && n < outer; n += static_cast<long long>(ROWS) * rows.step)
    Of::include(state, load(static_cast<int>(n)));
  scratch[threadIdx.y][threadIdx.x] = state;
  __syncthreads();
  if (threadIdx.y != 0) return state;
  for (int y = 1; y < ROWS; y++) state = Of::merge(state, scratch[y][threadIdx.x]);
  return state;
}

template <typename A> struct Channel {
  A mean, rstd, scale, offset;
};
template <typename A>
__device__ __forceinline__ Channel<A> load_channel(const A* mean, const A* rstd, const A* scale,
                                                   const A* offset, int c) {
  return {mean[c], rstd[c], scale ? scale[c] : A(1), offset ? offset[c] : A(0)};
}
template <typename A> __device__ __forceinline__ A normalised(const Channel<A>& c, A x) {
  return (x - c.mean) * c.rstd * c.scale + c.offset;
}
template <typename A>
__device__ __forceinline__ Sums<A> gradient_term(const Channel<A>& c, A x, A dy, bool relu) {
  return {relu && !(normalised(c, x) > A(0)) ? A(0) : dy, (x - c.mean) * c.rstd};
}
// The place of an element in (outer, channels, inner), with one division for each pack.
struct Position {
  int channels, inner, channel, column;
  __device__ Position(int i, int channels, int inner)
      : channels(channels), inner(inner), channel(i / inner % channels), column(i % inner) {}
  __device__ __forceinline__ void advance() {
    if (++column < inner) return;
    column = 0;
    if (++channel == channels) channel = 0;
  }
};
}  // namespace

template <typename T, typename A>
__global__ void __launch_bounds__(THREADS)
    bn_moments_planes(const T* __restrict__ x, Strides x_strides, const int* __restrict__ valid,
                      A* __restrict__ parts, Axes axes, int outer, int channels, int inner) {
  const int c = blockIdx.x, item = blockIdx.z;
  const T* from = x + offset(item, axes, x_strides);
  const Moments<A> m = reduce_planes<MomentsOf<A>>(
      valid ? valid[item] : outer, inner, {int(blockIdx.y), int(gridDim.y)}, [&](int n, int i) {
        return A(widen(from[(static_cast<long long>(n) * channels + c) * inner + i]));
      });
  A* part = parts + (static_cast<long long>(item) * gridDim.y + blockIdx.y) * 3 * channels + c;
  if (threadIdx.x == 0) part[0] = m.count, part[channels] = m.mean, part[2 * channels] = m.m2;
}

template <typename T, typename A>
__global__ void __launch_bounds__(WARP* ROWS)
    bn_moments_columns(const T* __restrict__ x, Strides x_strides, const int* __restrict__ valid,
                       A* __restrict__ parts, Axes axes, int outer, int channels) {
  const int c = blockIdx.x * WARP + threadIdx.x, item = blockIdx.z;
  const T* from = x + offset(item, axes, x_strides);
  const Moments<A> m = reduce_columns<MomentsOf<A>>(
      valid ? valid[item] : outer, c < channels, {int(blockIdx.y), int(gridDim.y)},
      [&](int n) { return A(widen(from[static_cast<long long>(n) * channels + c])); });
  A* part = parts + (static_cast<long long>(item) * gridDim.y + blockIdx.y) * 3 * channels + c;
  if (threadIdx.y == 0 && c < channels)
    part[0] = m.count, part[channels] = m.mean, part[2 * channels] = m.m2;
}

// parts: (items, splits, 3, channels); merged: (items, 3, channels); variance, rstd: (items,
// channels). Any may be null.
template <typename A>
__global__ void __launch_bounds__(THREADS)
    bn_merge(const A* __restrict__ parts, int splits, int channels, A eps, A* __restrict__ merged,
             A* __restrict__ variance, A* __restrict__ rstd) {
  const int c = blockIdx.x * THREADS + threadIdx.x, item = blockIdx.y;
  if (c >= channels) return;
  const A* from = parts + static_cast<long long>(item) * splits * 3 * channels + c;
  Moments<A> m = {A(0), A(0), A(0)};
  for (int s = 0; s < splits; s++, from += 3 * channels)
    m = merge_moments(m, Moments<A>{from[0], from[channels], from[2 * channels]});
  A* to = merged + static_cast<long long>(item) * 3 * channels + c;
  if (merged) to[0] = m.count, to[channels] = m.mean, to[2 * channels] = m.m2;
  const long long at = static_cast<long long>(item) * channels + c;
  if (variance) variance[at] = m.m2 / m.count;
  if (rstd) rstd[at] = A(1) / sqrt(m.m2 / m.count + eps);
}

template <typename T, typename A>
__global__ void __launch_bounds__(THREADS)
    bn_apply(const T* __restrict__ x, Strides x_strides, const A* __restrict__ mean,
             const A* __restrict__ rstd, Strides mean_strides, const A* __restrict__ scale,
             const A* __restrict__ bias, Strides scale_strides, T* __restrict__ y, Axes axes,
             int outer, int channels, int inner, int relu) {
  const int item = blockIdx.y, size = outer * channels * inner;
  const T* from = x + offset(item, axes, x_strides);
  T* to = y + static_cast<long long>(item) * size;
  const long long at = offset(item, axes, mean_strides),
                  scale_at = offset(item, axes, scale_strides);
  visit(from, size, blockIdx.x * THREADS + threadIdx.x, gridDim.x * THREADS,
        misalignment(from) == misalignment(to), [&](int i, auto pack) {
          Position p(i, channels, inner);
#pragma unroll
          for (int k = 0; k < static_cast<int>(sizeof(pack) / sizeof(T)); k++, p.advance()) {
            const Channel<A> c =
                load_channel(mean + at, rstd + at, scale ? scale + scale_at : scale,
                             bias ? bias + scale_at : bias, p.channel);
            const A value = normalised(c, A(widen(pack.of[k])));
            pack.of[k] = narrow<T>(relu && value < A(0) ? A(0) : value);
          }
          store(to + i, pack);
        });
}

template <typename T, typename A>
__global__ void __launch_bounds__(THREADS)
    bn_sums_planes(const T* __restrict__ x, Strides x_strides, const T* __restrict__ dy,
                   Strides dy_strides, const A* __restrict__ mean, const A* __restrict__ rstd,
                   Strides mean_strides, const A* __restrict__ scale, const A* __restrict__ bias,
                   Strides scale_strides, const int* __restrict__ valid, A* __restrict__ parts,
                   Axes axes, int outer, int channels, int inner, int relu) {
  const int c = blockIdx.x, item = blockIdx.z;
  const T *from = x + offset(item, axes, x_strides), *given = dy + offset(item, axes, dy_strides);
  const long long at = offset(item, axes, mean_strides),
                  scale_at = offset(item, axes, scale_strides);
  const Channel<A> channel = load_channel(mean + at, rstd + at, scale ? scale + scale_at : scale,
                                          bias ? bias + scale_at : bias, c);
  const Sums<A> s = reduce_planes<SumsOf<A>>(
      valid ? valid[item] : outer, inner, {int(blockIdx.y), int(gridDim.y)}, [&](int n, int i) {
        const long long e = (static_cast<long long>(n) * channels + c) * inner + i;
        return gradient_term(channel, A(widen(from[e])), A(widen(given[e])), relu != 0);
      });
  A* part = parts + (static_cast<long long>(item) * gridDim.y + blockIdx.y) * 2 * channels + c;
  if (threadIdx.x == 0) part[0] = s.g, part[channels] = s.g_xhat;
}

template <typename T, typename A>
__global__ void __launch_bounds__(WARP* ROWS)
    bn_sums_columns(const T* __restrict__ x, Strides x_strides, const T* __restrict__ dy,
                    Strides dy_strides, const A* __restrict__ mean, const A* __restrict__ rstd,
                    Strides mean_strides, const A* __restrict__ scale, const A* __restrict__ bias,
                    Strides scale_strides, const int* __restrict__ valid, A* __restrict__ parts,
                    Axes axes, int outer, int channels, int relu) {
  const int c = blockIdx.x * WARP + threadIdx.x, item = blockIdx.z;
  const bool inside = c < channels;
  const T *from = x + offset(item, axes, x_strides), *given = dy + offset(item, axes, dy_strides);
  const long long at = offset(item, axes, mean_strides),
                  scale_at = offset(item, axes, scale_strides);
  const Channel<A> channel = load_channel(mean + at, rstd + at, scale ? scale + scale_at : scale,
                                          bias ? bias + scale_at : bias, inside ? c : 0);
  const Sums<A> s = reduce_columns<SumsOf<A>>(
      valid ? valid[item] : outer, inside, {int(blockIdx.y), int(gridDim.y)}, [&](int n) {
        const long long e = static_cast<long long>(n) * channels + c;
        return gradient_term(channel, A(widen(from[e])), A(widen(given[e])), relu != 0);
      });
  A* part = parts + (static_cast<long long>(item) * gridDim.y + blockIdx.y) * 2 * channels + c;
  if (threadIdx.y == 0 && inside) part[0] = s.g, part[channels] = s.g_xhat;
}

// sums: (items..., 2, channels) over the whole batch; count: (items..., channels), as bn_merge
// writes it.
template <typename T, typename A>
__global__ void __launch_bounds__(THREADS)
    bn_backward(const T* __restrict__ x, Strides x_strides, const T* __restrict__ dy,
                Strides dy_strides, const A* __restrict__ mean, const A* __restrict__ rstd,
                Strides mean_strides, const A* __restrict__ scale, const A* __restrict__ bias,
                Strides scale_strides, const A* __restrict__ sums, Strides sums_strides,
                const A* __restrict__ count, Strides count_strides, T* __restrict__ dx, Axes axes,
                int outer, int channels, int inner, int relu) {
  const int item = blockIdx.y, size = outer * channels * inner;
  const T *from = x + offset(item, axes, x_strides), *given = dy + offset(item, axes, dy_strides);
  T* to = dx + static_cast<long long>(item) * size;
  const long long at = offset(item, axes, mean_strides),
                  scale_at = offset(item, axes, scale_strides);
  const A *total = sums + offset(item, axes, sums_strides),
          *n = count + offset(item, axes, count_strides);
  const bool packs =
      misalignment(from) == misalignment(to) && misalignment(from) == misalignment(given);
  visit(from, size, blockIdx.x * THREADS + threadIdx.x, gridDim.x * THREADS, packs,
        [&](int i, auto pack) {
          Position p(i, channels, inner);
          auto cotangent = *reinterpret_cast<const decltype(pack)*>(given + i);
#pragma unroll
          for (int k = 0; k < static_cast<int>(sizeof(pack) / sizeof(T)); k++, p.advance()) {
            const Channel<A> c =
                load_channel(mean + at, rstd + at, scale ? scale + scale_at : scale,
                             bias ? bias + scale_at : bias, p.channel);
            const Sums<A> term =
                gradient_term(c, A(widen(pack.of[k])), A(widen(cotangent.of[k])), relu != 0);
            const A mean_term =
                (total[p.channel] + term.g_xhat * total[channels + p.channel]) / n[p.channel];
            pack.of[k] = narrow<T>(c.rstd * c.scale * (term.g - mean_term));
          }
          store(to + i, pack);
        });
}
