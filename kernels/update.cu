// Optimizer steps over all parameters of a model in one launch: SGD (momentum, Nesterov), Adam and
// AdamW.
//
// `table` is (tensors, TABLE_COLUMNS) of 64-bit numbers in device memory: the addresses of the
// parameter, its gradient, the first and the second moment (0 where an optimizer has none), the
// number of elements, and the first block that works on the tensor. Parameters and moments are
// overwritten; all four arrays of a tensor are contiguous. The learning rate and the step count are
// arrays of one element, since they change while a captured step does not.
//
// Launch: block THREADS, grid (blocks of all tensors together); a block works on CHUNK elements of
// one tensor. Not yet measured on a GPU.
#include "block.cuh"

constexpr int THREADS = 256;
constexpr int CHUNK = 4096;
constexpr int TABLE_COLUMNS = 6;

namespace {
template <typename T> struct Piece {  // what one block works on
  T *parameter, *moment, *second;
  const T* gradient;
  int size;
  bool packs;
};
template <typename T> __device__ Piece<T> find_piece(const unsigned long long* table, int tensors) {
  const unsigned long long block = blockIdx.x;
  int low = 0, high = tensors - 1;  // the last tensor whose first block is not after this one
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (table[middle * TABLE_COLUMNS + 5] <= block) low = middle;
    else high = middle - 1;
  }
  const unsigned long long* row = table + low * TABLE_COLUMNS;
  const long long start = static_cast<long long>(block - row[5]) * CHUNK,
                  left = static_cast<long long>(row[4]) - start;
  auto piece = [&](int column) {
    return row[column] ? reinterpret_cast<T*>(row[column]) + start : nullptr;
  };
  Piece<T> p = {
      piece(0), piece(2), piece(3), piece(1), static_cast<int>(left < CHUNK ? left : CHUNK), true};
  const int lies = misalignment(p.parameter);
  p.packs = misalignment(p.gradient) == lies && (!p.moment || misalignment(p.moment) == lies) &&
            (!p.second || misalignment(p.second) == lies);
  return p;
}
template <typename P, typename T> __device__ __forceinline__ P load(const T* p, int i, const P&) {
  return *reinterpret_cast<const P*>(p + i);
}
}  // namespace

// g = gradient + decay parameter;  m = momentum m + g;  parameter -= rate (m, or g + momentum m
// with Nesterov). Without a moment in the table, m = g.
template <typename T>
__global__ void __launch_bounds__(THREADS)
    sgd(const unsigned long long* __restrict__ table, int tensors, const T* __restrict__ rate,
        T momentum, T decay, int nesterov) {
  const Piece<T> p = find_piece<T>(table, tensors);
  const T step = rate[0];
  visit(p.parameter, p.size, threadIdx.x, THREADS, p.packs, [&](int i, auto pack) {
    const auto gradient = load(p.gradient, i, pack);
    auto moment = p.moment ? load(p.moment, i, pack) : gradient;
#pragma unroll
    for (int k = 0; k < static_cast<int>(sizeof(pack) / sizeof(T)); k++) {
      const T g = gradient.of[k] + decay * pack.of[k];
      moment.of[k] = p.moment ? momentum * moment.of[k] + g : g;
      pack.of[k] -= step * (nesterov ? g + momentum * moment.of[k] : moment.of[k]);
    }
    if (p.moment) store(p.moment + i, moment);
    store(p.parameter + i, pack);
  });
}

// m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2;
// parameter -= rate (m / (1 - beta1^count) / (sqrt(v / (1 - beta2^count)) + eps)).
// decay: added to g as decay * parameter (Adam), or, decoupled, parameter -= rate decay parameter
// (AdamW).
template <typename T>
__global__ void __launch_bounds__(THREADS)
    adam(const unsigned long long* __restrict__ table, int tensors, const T* __restrict__ rate,
         const T* __restrict__ count, double beta1, double beta2, T eps, T decay, int decoupled) {
  const Piece<T> p = find_piece<T>(table, tensors);
  const T first = T(1.0 - pow(beta1, double(count[0]))),
          second = T(1.0 - pow(beta2, double(count[0]))), step = rate[0];
  const T keep1 = T(beta1), keep2 = T(beta2), take1 = T(1.0 - beta1), take2 = T(1.0 - beta2);
  visit(p.parameter, p.size, threadIdx.x, THREADS, p.packs, [&](int i, auto pack) {
    const auto gradient = load(p.gradient, i, pack);
    auto m = load(p.moment, i, pack), v = load(p.second, i, pack);
#pragma unroll
    for (int k = 0; k < static_cast<int>(sizeof(pack) / sizeof(T)); k++) {
      const T x = pack.of[k], g = gradient.of[k] + (decoupled ? T(0) : decay * x);
      m.of[k] = keep1 * m.of[k] + take1 * g;
      v.of[k] = keep2 * v.of[k] + take2 * g * g;
      const T change = m.of[k] / first / (sqrt(v.of[k] / second) + eps);
      pack.of[k] = x - step * (decoupled ? change + decay * x : change);
    }
    store(p.moment + i, m);
    store(p.second + i, v);
    store(p.parameter + i, pack);
  });
}
