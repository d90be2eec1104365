// Optimizer steps of all parameters of a model in one launch: SGD, SGD with momentum or Nesterov's
// momentum, Adam and AdamW. Formulas and state are those of the ops' bodies in gdt.optim.
//
// Arguments. `table`: (tensors, TABLE_COLUMNS) of 64-bit numbers in device memory. The row of a
// tensor holds the addresses of the parameter, the first moment, the second moment and the
// gradient; the addresses of the new parameter and moments, which may be the old ones; the number
// of elements; and the first block that works on the tensor. The address of a moment that an
// optimizer lacks is 0. All arrays of a tensor are contiguous. `scalars`: the numbers that change
// from step to step, in device memory, so that they are no part of a captured step.
//
// Launch: block THREADS, grid (blocks of all tensors together); a block works on CHUNK elements of
// one tensor. Not yet measured on a GPU.
#include "block.cuh"

constexpr int THREADS = 256;
constexpr int RESIDENT = 3;  // blocks on a multiprocessor; with more, ptxas spills
constexpr int CHUNK = 4096;
constexpr int SIZE_COLUMN = 7;
constexpr int FIRST_BLOCK_COLUMN = 8;
constexpr int TABLE_COLUMNS = 9;

namespace {
template <typename T> struct Piece {  // the elements of one block
  const T *parameter, *moment, *second, *gradient;
  T *new_parameter, *new_moment, *new_second;
  int size;
  bool packs;  // whether all arrays have the same offset from a multiple of 16 bytes
};
template <typename T> __device__ Piece<T> find_piece(const unsigned long long* table, int tensors) {
  const unsigned long long block = blockIdx.x;
  int low = 0, high = tensors - 1;  // search the last tensor whose first block is not after this
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (table[middle * TABLE_COLUMNS + FIRST_BLOCK_COLUMN] <= block) low = middle;
    else high = middle - 1;
  }
  const unsigned long long* row = table + low * TABLE_COLUMNS;
  const long long start = static_cast<long long>(block - row[FIRST_BLOCK_COLUMN]) * CHUNK,
                  left = static_cast<long long>(row[SIZE_COLUMN]) - start;
  T* arrays[SIZE_COLUMN];
  bool packs = true;
#pragma unroll
  for (int i = 0; i < SIZE_COLUMN; i++) {
    arrays[i] = row[i] ? reinterpret_cast<T*>(row[i]) + start : nullptr;
    packs = packs && (!arrays[i] || misalignment(arrays[i]) == misalignment(arrays[0]));
  }
  return {arrays[0], arrays[1], arrays[2], arrays[3],
          arrays[4], arrays[5], arrays[6], static_cast<int>(left < CHUNK ? left : CHUNK),
          packs};
}
// The packs of a tensor at one place.
template <typename P> struct Step {
  P parameter, gradient, moment, second;
};
// `use(i, step)` of all elements, with LOADS of them under way; MOMENTS of the moments are read.
template <int LOADS, int MOMENTS, typename T, typename Use>
__device__ __forceinline__ void visit_steps(const Piece<T>& p, Use use) {
  visit<LOADS>(
      p.parameter, p.size, threadIdx.x, THREADS, p.packs,
      [&](int i, auto like) {
        typedef decltype(like) P;
        Step<P> step = {load<P>(p.parameter + i), load<P>(p.gradient + i)};
        if (MOMENTS > 0) step.moment = load<P>(p.moment + i);
        if (MOMENTS > 1) step.second = load<P>(p.second + i);
        return step;
      },
      use);
}
}  // namespace

// parameter - rate gradient. scalars: rate
template <typename T>
__global__ void __launch_bounds__(THREADS, RESIDENT)
    sgd(const unsigned long long* __restrict__ table, int tensors, const T* __restrict__ scalars) {
  const Piece<T> p = find_piece<T>(table, tensors);
  const T rate = scalars[0];
  visit_steps<2, 0>(p, [&](int i, auto step) {
    auto& [x, g, v, unused] = step;
#pragma unroll
    for (int k = 0; k < static_cast<int>(sizeof(x) / sizeof(T)); k++) x.of[k] -= rate * g.of[k];
    store(p.new_parameter + i, x);
  });
}

// v = momentum v - rate gradient;  parameter + v, or parameter - rate gradient + momentum v with
// `nesterov`. scalars: rate, momentum
template <typename T>
__global__ void __launch_bounds__(THREADS, RESIDENT)
    momentum(const unsigned long long* __restrict__ table, int tensors,
             const T* __restrict__ scalars, int nesterov) {
  const Piece<T> p = find_piece<T>(table, tensors);
  const T rate = scalars[0], keep = scalars[1];
  visit_steps<2, 1>(p, [&](int i, auto step) {
    auto& [x, g, v, unused] = step;
#pragma unroll
    for (int k = 0; k < static_cast<int>(sizeof(x) / sizeof(T)); k++) {
      const T change = -rate * g.of[k];
      v.of[k] = keep * v.of[k] + change;
      x.of[k] = (nesterov ? x.of[k] + change : x.of[k]) + (nesterov ? keep * v.of[k] : v.of[k]);
    }
    store(p.new_moment + i, v);
    store(p.new_parameter + i, x);
  });
}

// m = beta1 m + gradient;  v = beta2 v + gradient^2;
// keep parameter - rate m / (sqrt(v) + epsilon), with keep below 1 where weights decay.
// Bias corrections are in rate and epsilon. scalars: beta1, beta2, keep, rate, epsilon
template <typename T>
__global__ void __launch_bounds__(THREADS, RESIDENT)
    adam(const unsigned long long* __restrict__ table, int tensors,
         const T* __restrict__ scalars) {
  const Piece<T> p = find_piece<T>(table, tensors);
  const T beta1 = scalars[0], beta2 = scalars[1], keep = scalars[2], rate = scalars[3],
          epsilon = scalars[4];
  visit_steps<1, 2>(p, [&](int i, auto step) {
    auto& [x, g, m, v] = step;
#pragma unroll
    for (int k = 0; k < static_cast<int>(sizeof(x) / sizeof(T)); k++) {
      m.of[k] = beta1 * m.of[k] + g.of[k];
      v.of[k] = beta2 * v.of[k] + g.of[k] * g.of[k];
      x.of[k] = keep * x.of[k] - m.of[k] / (sqrt(v.of[k]) + epsilon) * rate;
    }
    store(p.new_moment + i, m);
    store(p.new_second + i, v);
    store(p.new_parameter + i, x);
  });
}
