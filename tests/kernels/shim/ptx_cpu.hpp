// The CPU twin of kernels/ptx.cuh: 16-bit floats, cp.async, ldmatrix, mma.sync.
//
// Asynchronous work is really held back. Mode EARLY does it at issue (shows a producer that overwrites a buffer
// too soon), LATE as late as the waits allow (shows a reader that did not wait), TOSSED tosses a coin each time.
#pragma once

struct half_t { uint16_t bits; };
struct bfloat16_t { uint16_t bits; };
namespace shim {
enum AsyncMode : int { EARLY, LATE, TOSSED };
struct Copy { void* shared; const void* global; int bytes; };

constexpr int IN_FLIGHT = 512, GROUPS_MAX = 64;
struct Queue {  // copies of one thread in flight, in groups that are waited for in order
  Copy items[IN_FLIGHT];
  int first, count, groups[GROUPS_MAX], open, group_count;
  NOT_SANITIZED void push(const Copy& c) {
    if (count == IN_FLIGHT) abort();
    items[(first + count++) % IN_FLIGHT] = c, open++;
  }
  NOT_SANITIZED Copy pop() {
    const Copy c = items[first];
    first = (first + 1) % IN_FLIGHT, count--;
    return c;
  }
  NOT_SANITIZED void commit() {
    if (group_count == GROUPS_MAX) abort();
    groups[group_count++] = open, open = 0;
  }
  template <class F> NOT_SANITIZED void finish_all_but(int last, F run) {
    for (; group_count > last; group_count--) {
      while (groups[0]--) run(pop());
      for (int i = 1; i < group_count; i++) groups[i - 1] = groups[i];
    }
  }
};
static Queue* queues;  // one for each thread
static int async_mode;

NOT_SANITIZED inline void reset_async(unsigned threads, int mode) {
  static unsigned allocated = 0;
  if (threads > allocated) queues = (Queue*)realloc((void*)queues, (allocated = threads) * sizeof(Queue));
  for (unsigned i = 0; i < threads; i++) queues[i].first = queues[i].count = queues[i].open = queues[i].group_count = 0;
  async_mode = mode;
}
NOT_SANITIZED inline bool now() { return async_mode == EARLY || (async_mode == TOSSED && next_random() & 1); }
NOT_SANITIZED inline Queue& my_copies() { return queues[runtime.current->index]; }
inline void run_copy(const Copy& c) {
  memcpy(c.shared, c.global, c.bytes);
  memset((char*)c.shared + c.bytes, 0, 16 - c.bytes);
}
}  // namespace shim

namespace ptx {
using namespace shim;
// ---- 16-bit floats, rounded to nearest even ------------------------------------------------------------------------
inline float to_float(half_t h) {
  const uint32_t sign = (h.bits & 0x8000u) << 16, exponent = h.bits >> 10 & 31, fraction = h.bits & 1023;
  if (exponent == 31) return __uint_as_float(sign | 0x7f800000 | fraction << 13);
  if (exponent) return __uint_as_float(sign | (exponent + 112) << 23 | fraction << 13);
  return (sign ? -1.f : 1.f) * (float)fraction * 5.9604644775390625e-8f;
}
inline float to_float(bfloat16_t b) { return __uint_as_float((unsigned)b.bits << 16); }
inline half_t to_half(float f) {
  const uint32_t all = __float_as_uint(f), sign = all >> 16 & 0x8000, x = all & 0x7fffffff;
  if (x > 0x7f800000) return {0x7fff};
  if (x >= 0x477ff000) return {(uint16_t)(sign | 0x7c00)};
  if (x < 0x38800000) return {(uint16_t)(sign | (__float_as_uint(__uint_as_float(x) + 0.5f) - 0x3f000000))};
  return {(uint16_t)(sign | (x - 0x38000000 + 0xfff + (x >> 13 & 1)) >> 13)};
}
inline bfloat16_t to_bfloat16(float f) {
  const uint32_t x = __float_as_uint(f);
  return {(uint16_t)(f != f ? 0x7fff : (x + 0x7fff + (x >> 16 & 1)) >> 16)};
}
inline uint32_t to_tf32(float f) { return (__float_as_uint(f) + 0x1000) & 0xffffe000; }

// ---- sm_80: asynchronous copies, ldmatrix, mma.sync ----------------------------------------------------------------
NOT_SANITIZED inline void copy_async_16(void* shared, const void* global, int bytes) {
  if (((uintptr_t)shared | (bytes ? (uintptr_t)global : 0)) & 15) SHIM_FAIL("cp.async: address is not a multiple of 16");
  if (bytes < 0 || bytes > 16) SHIM_FAIL("cp.async: %d bytes", bytes);
  if (now()) return run_copy({shared, global, bytes});
  fill_ff(shared, 16);  // in flight: nobody may read it
  my_copies().push({shared, global, bytes});
}
NOT_SANITIZED inline void copy_async_commit() { my_copies().commit(); }
template <int GROUPS> NOT_SANITIZED inline void copy_async_wait() { my_copies().finish_all_but(GROUPS, run_copy); }

inline void load_matrices(uint32_t (&r)[4], const void* row, bool transposed, int line) {
  if ((uintptr_t)row & 15) SHIM_FAIL("ldmatrix line %d: row is not a multiple of 16", line);
  const Slot* rows = meet(~0u, &row, sizeof row, transposed ? "ldmatrix.trans" : "ldmatrix", line);
  const unsigned l = lane();
  for (int i = 0; i < 4; i++) {
    uint32_t pair[2];
    for (unsigned e = 0; e < 2; e++) {
      const unsigned y = transposed ? l % 4 * 2 + e : l / 4, x = transposed ? l / 4 : l % 4 * 2 + e;
      const uint16_t* p;
      copy_bytes(&p, rows[i * 8 + y], sizeof p);
      pair[e] = p[x];
    }
    r[i] = pair[0] | pair[1] << 16;
  }
}
inline void load_matrix_x4(uint32_t (&r)[4], const void* row, int line = __builtin_LINE()) { load_matrices(r, row, false, line); }
inline void load_matrix_x4_transposed(uint32_t (&r)[4], const void* row, int line = __builtin_LINE()) { load_matrices(r, row, true, line); }

template <class T> struct Element {  // how a register holds elements of T along k
  static constexpr int K = 16;
  static float at(const uint32_t* words, int k) { return to_float(T{(uint16_t)(words[k / 2] >> k % 2 * 16)}); }
};
template <> struct Element<float> {
  static constexpr int K = 8;
  static float at(const uint32_t* words, int k) { return __uint_as_float(words[k]); }
};
// d (16 x 8) += a (16 x K) b (K x 8). A register holds 32 / bits neighbours along k; lane = 4 * group + member.
template <class T> NOT_SANITIZED inline void multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, T, int line = __builtin_LINE()) {
  typedef Element<T> E;
  const uint32_t mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
  const Slot* slots = meet(~0u, mine, sizeof mine, "mma.sync", line);
  const unsigned group = lane() / 4, member = lane() % 4;
  constexpr int PER = E::K / 8;  // elements in a register
  for (int e = 0; e < 4; e++) {
    const int row_half = e / 2, column = member * 2 + e % 2;
    float sum = 0;
    for (int k = 0; k < E::K; k++) {
      const int k_half = k / (E::K / 2), owner = k % (E::K / 2) / PER, within = k % PER;
      uint32_t x[6], y[6];
      copy_bytes(x, slots[group * 4 + owner], sizeof x);
      copy_bytes(y, slots[column * 4 + owner], sizeof y);
      sum += E::at(&x[row_half + 2 * k_half], within) * E::at(&y[4 + k_half], within);
    }
    d[e] += sum;
  }
}
}  // namespace ptx
