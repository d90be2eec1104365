// Counter-based random numbers: each element is a function of key, stream and its global index.
//
// Philox-4x32-10 (Salmon, Moraes, Dror, Shaw 2011) makes four words of
//   counter (c mod 2^32, c >> 32, s mod 2^32, s >> 32) and key (k mod 2^32, k >> 32).
// Element i of a draw of 32 bits is word (i mod 4) of counter i / 4; of a draw of 64 bits, words
// 0 1 (even i) or 2 3 (odd i) of counter i / 2, the earlier word in the upper half. Formulas,
// constants and the order of operations are those of gdt/random/bits.py and
// gdt/random/normal_quantile.py, and the file is compiled with --fmad=false, so every result equals
// the CPU's to the bit.
//
//   random_bits       uint32 or uint64
//   random_uniform    the top 8 (bfloat16), 11, 24 or 53 bits, times 2^-8, 2^-11, 2^-24 or 2^-53
//   random_integers   low + floor(bits count / 2^w), w = 32 for count <= 2^16, else 64
//   random_bernoulli  bits < p 2^32
//   random_normal     the inverse CDF of (bits + 1/2) / 2^w
//   random_truncated  the inverse CDF of the middle TRUNCATED_MASS, in [-2, 2]
//
// Arguments. key, stream: uint64, one for each row, or one for all rows (steps 0). out: (rows,
// length). start: (rows), int64, the global index of a row's first element; a contiguous block is
// one row.
//
// Launch: block THREADS, grid (length / (THREADS * elements of a counter), rows); a thread makes
// the elements of one counter. Not yet measured on a GPU.
#include "block.cuh"
#include "philox.cuh"

constexpr int THREADS = 256;

namespace {
// ---- bits ---------------------------------------------------------------------------------------
template <typename B> __device__ __forceinline__ B element_bits(const Words& words, int i);
template <> __device__ __forceinline__ unsigned element_bits<unsigned>(const Words& words, int i) {
  return words.of[i];
}
template <> __device__ __forceinline__ u64 element_bits<u64>(const Words& words, int i) {
  return static_cast<u64>(words.of[2 * i]) << 32 | words.of[2 * i + 1];
}
// Store f(bits) of every element of the row.
template <typename B, typename T, typename F>
__device__ __forceinline__ void fill_row(T* out, const long long* start, const u64* key,
                                         int key_step, const u64* stream, int stream_step,
                                         int length, F f) {
  constexpr int EACH = 16 / sizeof(B);
  const int row = blockIdx.y;
  const u64 first = static_cast<u64>(start[row]),
            counter = first / EACH + static_cast<u64>(blockIdx.x) * THREADS + threadIdx.x;
  const Words words = philox(counter, stream[row * stream_step], key[row * key_step]);
  Pack<T, EACH> pack;
#pragma unroll
  for (int i = 0; i < EACH; i++) pack.of[i] = f(element_bits<B>(words, i));
  const long long at = static_cast<long long>(counter * EACH - first);  // of the pack in the row
  T* to = out + static_cast<long long>(row) * length + at;
  constexpr int BYTES = sizeof(pack) < PACK_BYTES ? sizeof(pack) : PACK_BYTES,
                STORES = sizeof(pack) / BYTES, WORD = sizeof(unsigned);
  if (BYTES >= WORD && reinterpret_cast<unsigned long long>(to) % BYTES == 0 && at >= 0 &&
      at + EACH <= length) {
    unsigned words[STORES][(BYTES + WORD - 1) / WORD];
    memcpy(words, &pack, sizeof(pack));
#pragma unroll
    for (int i = 0; i < STORES; i++) ptx::store_words(to + i * EACH / STORES, words[i]);
    return;
  }
#pragma unroll
  for (int i = 0; i < EACH; i++)
    if (at + i >= 0 && at + i < length) to[i] = pack.of[i];
}

// ---- the normal quantile ------------------------------------------------------------------------
// Wichura 1988 (AS 241: PPND7, PPND16) with fdlibm's logarithm; one rounding for each operation.
template <typename R> struct Format;
template <> struct Format<float> {
  typedef int Integer;
  static constexpr int BITS = 32, FRACTION = 23;
  static constexpr Integer ONE = 0x3F800000, ROOT_HALF = 0x3F3504F3;
  static __device__ __forceinline__ float half_power() { return 2.3283064365386963e-10f; }  // 2^-32
  static __device__ __forceinline__ Integer bits(float x) {
    return static_cast<int>(__float_as_uint(x));
  }
  static __device__ __forceinline__ float value(Integer i) {
    return __uint_as_float(static_cast<unsigned>(i));
  }
};
template <> struct Format<double> {
  typedef long long Integer;
  static constexpr int BITS = 64, FRACTION = 52;
  static constexpr Integer ONE = 0x3FFll << 52, ROOT_HALF = 0x3FE6A09Ell << 32;
  static __device__ __forceinline__ double half_power() { return 5.421010862427522e-20; }  // 2^-64
  static __device__ __forceinline__ Integer bits(double x) { return __double_as_longlong(x); }
  static __device__ __forceinline__ double value(Integer i) { return __longlong_as_double(i); }
};
// Horner's rule from the last coefficient down.
template <typename R> __device__ __forceinline__ R polynomial(R x, R last) { return last; }
template <typename R, typename... More>
__device__ __forceinline__ R polynomial(R x, R lowest, More... more) {
  return polynomial(x, more...) * x + lowest;
}
__device__ __forceinline__ float log_series(float s) {
  return polynomial(s, 0.66666662693f, 0.40000972152f, 0.28498786688f, 0.24279078841f);
}
__device__ __forceinline__ double log_series(double s) {
  return polynomial(s, 6.666666666666735130e-01, 3.999999999940941908e-01, 2.857142874366239149e-01,
                    2.222219843214978396e-01, 1.818357216161805012e-01, 1.531383769920937332e-01,
                    1.479819860511658591e-01);
}
__device__ __forceinline__ float ln2_high(float) { return 6.9313812256e-01f; }
__device__ __forceinline__ float ln2_low(float) { return 9.0580006145e-06f; }
__device__ __forceinline__ double ln2_high(double) { return 6.93147180369123816490e-01; }
__device__ __forceinline__ double ln2_low(double) { return 1.90821492927058770002e-10; }
template <typename R> __device__ __forceinline__ R logarithm(R x) {
  typedef Format<R> F;
  typename F::Integer bits = F::bits(x) + (F::ONE - F::ROOT_HALF);
  const R k = static_cast<R>((bits >> F::FRACTION) - (F::ONE >> F::FRACTION));
  bits = (bits & ((static_cast<typename F::Integer>(1) << F::FRACTION) - 1)) + F::ROOT_HALF;
  const R f = F::value(bits) - R(1), h = f * R(0.5) * f, s = f / (f + R(2)), square = s * s;
  return (log_series(square) * square + h) * s + k * ln2_low(R(0)) - h + f + k * ln2_high(R(0));
}
__device__ __forceinline__ float centre(float r, float q) {
  const float z =
      polynomial(r, 3.3871327179e00f, 5.0434271938e01f, 1.5929113202e02f, 5.9109374720e01f) * q;
  return z / polynomial(r, 1.0f, 1.7895169469e01f, 7.8757757664e01f, 6.7187563600e01f);
}
__device__ __forceinline__ double centre(double r, double q) {
  const double z =
      polynomial(r, 3.3871328727963666080e00, 1.3314166789178437745e02, 1.9715909503065514427e03,
                 1.3731693765509461125e04, 4.5921953931549871457e04, 6.7265770927008700853e04,
                 3.3430575583588128105e04, 2.5090809287301226727e03) *
      q;
  return z / polynomial(r, 1.0, 4.2313330701600911252e01, 6.8718700749205790830e02,
                        5.3941960214247511077e03, 2.1213794301586595867e04,
                        3.9307895800092710610e04, 2.8729085735721942674e04,
                        5.2264952788528545610e03);
}
__device__ __forceinline__ float tail(float root) {  // 32 bits end at root = 4.78
  const float r = root - 1.6f;
  return polynomial(r, 1.4234372777e00f, 2.7568153900e00f, 1.3067284816e00f, 1.7023821103e-01f) /
         polynomial(r, 1.0f, 7.3700164250e-01f, 1.2021132975e-01f);
}
__device__ __forceinline__ double tail(double root) {
  if (root > 5.0) {
    const double r = root - 5.0;
    return polynomial(r, 6.65790464350110377720e00, 5.46378491116411436990e00,
                      1.78482653991729133580e00, 2.96560571828504891230e-01,
                      2.65321895265761230930e-02, 1.24266094738807843860e-03,
                      2.71155556874348757815e-05, 2.01033439929228813265e-07) /
           polynomial(r, 1.0, 5.99832206555887937690e-01, 1.36929880922735805310e-01,
                      1.48753612908506148525e-02, 7.86869131145613259100e-04,
                      1.84631831751005468180e-05, 1.42151175831644588870e-07,
                      2.04426310338993978564e-15);
  }
  const double r = root - 1.6;
  return polynomial(r, 1.42343711074968357734e00, 4.63033784615654529590e00,
                    5.76949722146069140550e00, 3.64784832476320460504e00, 1.27045825245236838258e00,
                    2.41780725177450611770e-01, 2.27238449892691845833e-02,
                    7.74545014278341407640e-04) /
         polynomial(r, 1.0, 2.05319162663775882187e00, 1.67638483018380384940e00,
                    6.89767334985100004550e-01, 1.48103976427480074590e-01,
                    1.51986665636164571966e-02, 5.47593808499534494600e-04,
                    1.05075007164441684324e-09);
}
// The quantile of probability 1/2 + q; `outside` is 1/2 - |q|, which may have more digits than q.
template <typename R> __device__ __forceinline__ R quantile(R q, R outside) {
  const R size = q < R(0) ? -q : q;
  if (!(size > R(0.425))) return centre(q * q * R(-1) + R(0.180625), q);
  const R z = tail(sqrt(-logarithm(outside)));
  return q < R(0) ? -z : z;
}
template <typename R>
__device__ __forceinline__ R half_integer(typename Format<R>::Integer i, R scale) {
  return (static_cast<R>(i) + R(0.5)) * scale;
}
constexpr double TRUNCATED_MASS = 0.9544997361036416;

// The digits of the uniform numbers of each dtype, and the type of the arithmetic.
template <typename T> struct Uniform {
  static constexpr int DIGITS = sizeof(T) == 8 ? 53 : sizeof(T) == 4 ? 24 : 11;
};
template <> struct Uniform<bfloat16_t> {
  static constexpr int DIGITS = 8;
};
}  // namespace

template <typename B>
__global__ void __launch_bounds__(THREADS)
    random_bits(B* __restrict__ out, const long long* __restrict__ start,
                const unsigned long long* __restrict__ key, int key_step,
                const unsigned long long* __restrict__ stream, int stream_step, int length) {
  fill_row<B>(out, start, key, key_step, stream, stream_step, length, [](B bits) { return bits; });
}

// T: the result; B: the word drawn (unsigned for all but float64); R: the type of the arithmetic.
template <typename T, typename B, typename R>
__global__ void __launch_bounds__(THREADS)
    random_uniform(T* __restrict__ out, const long long* __restrict__ start,
                   const unsigned long long* __restrict__ key, int key_step,
                   const unsigned long long* __restrict__ stream, int stream_step, int length) {
  constexpr int DIGITS = Uniform<T>::DIGITS;
  const R unit = R(1) / static_cast<R>(1ull << DIGITS);
  fill_row<B>(out, start, key, key_step, stream, stream_step, length, [unit](B bits) {
    return narrow<T>(static_cast<R>(bits >> (8 * sizeof(B) - DIGITS)) * unit);
  });
}

template <typename T, typename B, typename R>
__global__ void __launch_bounds__(THREADS)
    random_normal(T* __restrict__ out, const long long* __restrict__ start,
                  const unsigned long long* __restrict__ key, int key_step,
                  const unsigned long long* __restrict__ stream, int stream_step, int length) {
  typedef typename Format<R>::Integer Integer;
  fill_row<B>(out, start, key, key_step, stream, stream_step, length, [](B bits) {
    const Integer i = static_cast<Integer>(bits), size = i < 0 ? ~i : i,
                  most = static_cast<Integer>(~B(0) >> 1);
    const R scale = Format<R>::half_power();
    return narrow<T>(quantile(half_integer(i, scale), half_integer(most - size, scale)));
  });
}

template <typename T, typename B, typename R>
__global__ void __launch_bounds__(THREADS)
    random_truncated(T* __restrict__ out, const long long* __restrict__ start,
                     const unsigned long long* __restrict__ key, int key_step,
                     const unsigned long long* __restrict__ stream, int stream_step, int length) {
  typedef typename Format<R>::Integer Integer;
  const R scale = static_cast<R>(TRUNCATED_MASS * static_cast<double>(Format<R>::half_power()));
  fill_row<B>(out, start, key, key_step, stream, stream_step, length, [scale](B bits) {
    const R q = half_integer(static_cast<Integer>(bits), scale),
            z = quantile(q, R(0.5) - (q < R(0) ? -q : q));
    return narrow<T>(z < R(-2) ? R(-2) : z > R(2) ? R(2) : z);
  });
}

// low: as a two's-complement number; count: 0 stands for 2^64.
template <typename T, typename B>
__global__ void __launch_bounds__(THREADS)
    random_integers(T* __restrict__ out, const long long* __restrict__ start,
                    const unsigned long long* __restrict__ key, int key_step,
                    const unsigned long long* __restrict__ stream, int stream_step, int length,
                    unsigned long long low, unsigned long long count) {
  fill_row<B>(out, start, key, key_step, stream, stream_step, length, [low, count](B bits) {
    const u64 high = sizeof(B) == 4 ? bits * count >> 32 : count ? __umul64hi(bits, count) : bits;
    return static_cast<T>(high + low);
  });
}

// threshold: p 2^32
__global__ void __launch_bounds__(THREADS)
    random_bernoulli(bool* __restrict__ out, const long long* __restrict__ start,
                     const unsigned long long* __restrict__ key, int key_step,
                     const unsigned long long* __restrict__ stream, int stream_step, int length,
                     double threshold) {
  fill_row<unsigned>(out, start, key, key_step, stream, stream_step, length,
                     [threshold](unsigned bits) { return static_cast<double>(bits) < threshold; });
}
