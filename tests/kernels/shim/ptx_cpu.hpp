// The CPU twin of kernels/ptx.cuh: 16-bit floats, cp.async, ldmatrix, mma.sync, mbarrier, TMA, wgmma.
//
// Asynchronous work is really held back. Mode EARLY does it at issue (shows a producer that overwrites a buffer
// too soon), LATE as late as the waits allow (shows a reader that did not wait), TOSSED tosses a coin each time.
#pragma once

struct half_t { uint16_t bits; };
struct bfloat16_t { uint16_t bits; };
namespace shim {
enum AsyncMode : int { EARLY, LATE, TOSSED };
struct Work {  // a copy of 16 bytes or of a tile, or one thread's share of a product of tiles
  void (*run)(const Work&);
  void* to;
  uint64_t a, b;
  int c[3];
  const uint32_t* left[4];  // a product's left factor in the registers of the four lanes that share its rows
  unsigned group;
};
constexpr unsigned IN_FLIGHT = 64;
struct Queue {  // work in flight, in groups that are waited for in order
  Work items[IN_FLIGHT];
  unsigned first, last, group;
  NOT_SANITIZED void push(Work w) {
    if (last - first == IN_FLIGHT) abort();
    w.group = group, items[last++ % IN_FLIGHT] = w;
  }
  NOT_SANITIZED void run_first() {
    const Work w = items[first++ % IN_FLIGHT];
    w.run(w);
  }
  NOT_SANITIZED void commit() { group++; }
  NOT_SANITIZED void finish_all_but(unsigned groups) {
    while (first != last && items[first % IN_FLIGHT].group + groups < group) run_first();
  }
};
static Queue copies[THREADS_MAX], products[THREADS_MAX], stores[THREADS_MAX], tiles;  // of each thread; of all
static bool lacks_fence[THREADS_MAX];  // has stored in shared memory what another proxy does not see yet
static bool barriers_are_fenced[CLUSTER_MAX];  // copies, of another proxy, see a block's barriers after its fence only
static int async_mode;

NOT_SANITIZED inline void reset_async(int mode) {
  for (unsigned i = 0; i < runtime.count; i++) {
    copies[i].first = copies[i].last, products[i].first = products[i].last, stores[i].first = stores[i].last;
    lacks_fence[i] = false;
  }
  for (bool& fenced : barriers_are_fenced) fenced = false;
  tiles.first = tiles.last, async_mode = mode;
}
NOT_SANITIZED inline bool now() { return async_mode == EARLY || (async_mode == TOSSED && next_random() & 1); }
NOT_SANITIZED inline Queue& mine(Queue* queues) { return queues[runtime.current->index]; }
NOT_SANITIZED inline bool run_late_copy() {  // when no thread can go on; of several any may be the next
  const unsigned some = tiles.last - tiles.first;
  if (!some) return false;
  std::swap(tiles.items[tiles.first % IN_FLIGHT], tiles.items[(tiles.first + next_random() % some) % IN_FLIGHT]);
  return tiles.run_first(), true;
}
NOT_SANITIZED inline void check_stores() {  // of a block that has ended
  for (unsigned i = 0; i < runtime.count && !runtime.failed; i++)
    if (stores[i].first != stores[i].last) report("TMA: thread %u has ended while its stores read shared memory", i);
}
inline void run_copy(const Work& w) {
  memcpy(w.to, (const void*)w.a, w.b);
  memset((char*)w.to + w.b, 0, 16 - w.b);
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
inline uint32_t to_pair(float low, float high, half_t) { return to_half(low).bits | (uint32_t)to_half(high).bits << 16; }
inline uint32_t to_pair(float low, float high, bfloat16_t) { return to_bfloat16(low).bits | (uint32_t)to_bfloat16(high).bits << 16; }
inline uint32_t to_tf32(float f) { return (__float_as_uint(f) + 0x1000) & 0xffffe000; }

template <int N> inline void store_words(void* global, const uint32_t (&w)[N]) {
  if ((uintptr_t)global % sizeof w) SHIM_FAIL("st.global: address is not a multiple of %d", (int)sizeof w);
  memcpy(global, w, sizeof w);
}
inline unsigned count_arrival(unsigned* counter) { return __atomic_fetch_add(counter, 1u, __ATOMIC_ACQ_REL); }
inline float power_of_2(float x) { return x < -126 ? 0 : exp2f(x); }

// ---- sm_80: asynchronous copies, ldmatrix, mma.sync ----------------------------------------------------------------
NOT_SANITIZED inline void copy_async_16(void* shared, const void* global, int bytes) {
  if (((uintptr_t)shared | (bytes ? (uintptr_t)global : 0)) & 15) SHIM_FAIL("cp.async: address is not a multiple of 16");
  if (bytes < 0 || bytes > 16) SHIM_FAIL("cp.async: %d bytes", bytes);
  const Work copy = {run_copy, shared, (uint64_t)global, (uint64_t)bytes};
  if (now()) return run_copy(copy);
  fill_ff(shared, 16);  // in flight: nobody may read it
  mine(copies).push(copy);
}
NOT_SANITIZED inline void copy_async_commit() { mine(copies).commit(); }
template <int GROUPS> NOT_SANITIZED inline void copy_async_wait() { mine(copies).finish_all_but(GROUPS); }

inline void load_matrices(uint32_t (&r)[4], const void* row, bool transposed, int line) {
  if ((uintptr_t)row & 15) SHIM_FAIL("ldmatrix line %d: row is not a multiple of 16", line);
  const Slot* rows = exchange(~0u, &row, sizeof row, transposed ? "ldmatrix.trans" : "ldmatrix", line);
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
  const Slot* slots = exchange(~0u, mine, sizeof mine, "mma.sync", line);
  const unsigned group = lane() / 4, member = lane() % 4;
  constexpr int PER = E::K / 8;  // elements in a register
  float rows[2][E::K], columns[2][E::K];  // rows group and group + 8, columns 2 * member and the next
  for (int owner = 0; owner < 4; owner++) {
    uint32_t x[6], y[2][6];
    copy_bytes(x, slots[group * 4 + owner], sizeof x);
    for (int i = 0; i < 2; i++) copy_bytes(y[i], slots[(member * 2 + i) * 4 + owner], sizeof y[i]);
    for (int n = 0; n < 2 * PER; n++) {
      const int k_half = n / PER, within = n % PER, k = k_half * (E::K / 2) + owner * PER + within;
      for (int i = 0; i < 2; i++) {
        rows[i][k] = E::at(&x[i + 2 * k_half], within);
        columns[i][k] = E::at(&y[i][4 + k_half], within);
      }
    }
  }
  for (int e = 0; e < 4; e++) {
    float sum = 0;
    for (int k = 0; k < E::K; k++) sum += rows[e / 2][k] * columns[e % 2][k];
    d[e] += sum;
  }
}

// The same of double, K = 8, each product added with one rounding.
NOT_SANITIZED inline void multiply(double (&d)[4], const double (&a)[4], double b0, double b1, double, int line = __builtin_LINE()) {
  const double mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
  const Slot* slots = exchange(~0u, mine, sizeof mine, "mma.sync", line);
  const unsigned group = lane() / 4, member = lane() % 4;
  for (int e = 0; e < 4; e++)
    for (int k = 0; k < 8; k++) {
      double x, y;
      copy_bytes(&x, (const double*)slots[group * 4 + k % 4] + e / 2 + k / 4 * 2, sizeof x);
      copy_bytes(&y, (const double*)slots[(member * 2 + e % 2) * 4 + k % 4] + 4 + k / 4, sizeof y);
      d[e] = fma(x, y, d[e]);
    }
}

// ---- sm_90: barriers in shared memory, copies of tiles ---------------------------------------------------------------
struct Barrier { uint64_t expected : 16, pending : 16, phase : 1; int64_t bytes : 31; };  // in the 64 bits
NOT_SANITIZED inline void settle(Barrier* b) {
  if (b->pending || b->bytes) return;
  b->phase ^= 1, b->pending = b->expected;
  for (unsigned i = 0; i < runtime.count; i++)
    if (runtime.fibers[i].state == PHASE_WAIT) runtime.fibers[i].state = READY;
}
NOT_SANITIZED inline void complete(Barrier* b, int bytes) { release(b), b->bytes -= bytes, settle(b); }
NOT_SANITIZED inline void barrier_init(uint64_t* barrier, int arrivals) {
  *(Barrier*)barrier = {(uint64_t)arrivals, (uint64_t)arrivals, 0, 0};
  barriers_are_fenced[rank()] = false;
}
NOT_SANITIZED inline void barrier_init_fence() { barriers_are_fenced[rank()] = true; }
NOT_SANITIZED inline void barrier_arrive_expecting(uint64_t* barrier, int bytes) {
  Barrier* b = (Barrier*)barrier;
  if (!b->pending) SHIM_FAIL("mbarrier: more arrivals than expected");
  release(b), b->bytes += bytes, b->pending--, settle(b);
}
inline void barrier_arrive(uint64_t* barrier) { barrier_arrive_expecting(barrier, 0); }
NOT_SANITIZED inline void barrier_wait(uint64_t* barrier, unsigned parity, int line = __builtin_LINE()) {
  while (((Barrier*)barrier)->phase == parity) wait(PHASE_WAIT, "mbarrier.wait", line);
  acquire(barrier);
}
enum MapWord { ADDRESS, SIZES, STRIDES = 4, BOX_ROWS = 6, ITEM_BYTES, KIND };  // TensorMap.plain of gdt/cuda/tensor_map.py
constexpr uint64_t TF32 = 11;
inline void run_tile(const Work& w) {
  const uint64_t *map = (const uint64_t*)w.a, item = map[ITEM_BYTES], *sizes = map + SIZES, *strides = map + STRIDES;
  acquire(w.to);  // what the issuing thread had seen
  for (unsigned i = 0; i < map[BOX_ROWS] * 8; i++) {  // 16 bytes at a time
    const uint64_t row = i / 8, x = w.c[0] + i % 8 * 16 / item, y = w.c[1] + row, z = w.c[2];
    const bool inside = x < sizes[0] && y < sizes[1] && z < sizes[2];
    const uint64_t bytes = inside ? min(16, (sizes[0] - x) * item) : 0;
    char* to = (char*)w.to + row * 128 + (i % 8 ^ row % 8) * 16;
    memcpy(to, (const char*)map[ADDRESS] + (inside ? z * strides[1] + y * strides[0] + x * item : 0), bytes);
    memset(to + bytes, 0, 16 - bytes);
    for (int f = 0; f < 4 && map[KIND] == TF32; f++) ((uint32_t*)to)[f] = to_tf32(((float*)to)[f]);
  }
  complete((Barrier*)w.b, map[BOX_ROWS] * 128);
}
NOT_SANITIZED inline void copy_tile_to(unsigned block, void* shared, const void* map, uint64_t* barrier, int c0, int c1, int c2) {
  if ((uintptr_t)shared & 1023) SHIM_FAIL("TMA: the shared address is not a multiple of 1024");
  if (!barriers_are_fenced[block]) SHIM_FAIL("TMA: no fence after the initialization of barriers of block %u", block);
  const Work copy = {run_tile, shared, (uint64_t)map, (uint64_t)barrier, {c0, c1, c2}};
  release(shared);
  if (now()) return run_tile(copy);
  fill_ff(shared, ((const uint64_t*)map)[BOX_ROWS] * 128);  // in flight: nobody may read it
  tiles.push(copy);
}
NOT_SANITIZED inline void copy_tile(void* shared, const void* map, uint64_t* barrier, int c0, int c1, int c2) {
  copy_tile_to(rank(), shared, map, barrier, c0, c1, c2);
}
inline void store_matrix_x4(void* row, const uint32_t (&r)[4], int line = __builtin_LINE()) {
  if ((uintptr_t)row & 15) SHIM_FAIL("stmatrix line %d: row is not a multiple of 16", line);
  const Slot* rows = exchange(~0u, &row, sizeof row, "stmatrix", line);
  unsigned banks = 0;
  for (int i = 0; i < 4; i++) {
    for (unsigned y = 0; y < 8; y++) {
      char* to;
      copy_bytes(&to, rows[i * 8 + y], sizeof to);
      banks |= 1u << (uintptr_t)to / 16 % 8;
      if (y == lane() / 4) *(uint32_t*)(to + lane() % 4 * 4) = r[i];
    }
    if (banks != 0xff) SHIM_FAIL("stmatrix line %d: rows of a matrix lie in the same banks", line);
    banks = 0;
  }
  lacks_fence[runtime.current->index] = true;
}
NOT_SANITIZED inline void store_fence() { lacks_fence[runtime.current->index] = false; }
inline void run_store(const Work& w) {
  const uint64_t *map = (const uint64_t*)w.a, item = map[ITEM_BYTES], *sizes = map + SIZES, *strides = map + STRIDES;
  for (unsigned i = 0; i < map[BOX_ROWS] * 8; i++) {  // 16 bytes at a time
    const uint64_t row = i / 8, x = w.c[0] + i % 8 * 16 / item, y = w.c[1] + row, z = w.c[2];
    const bool inside = x < sizes[0] && y < sizes[1] && z < sizes[2];
    const char* from = (const char*)w.to + row * 128 + (i % 8 ^ row % 8) * 16;
    char* to = (char*)map[ADDRESS] + z * strides[1] + y * strides[0] + x * item;
    for (uint64_t at = 0; inside && at < 16 && x + at / item < sizes[0]; at += 2) *(uint16_t*)(to + at) = *(const uint16_t*)(from + at);
  }
}
NOT_SANITIZED inline void store_tile(const void* map, const void* shared, int c0, int c1, int c2) {
  if ((uintptr_t)shared & 1023) SHIM_FAIL("TMA: the shared address is not a multiple of 1024");
  for (unsigned i = warp() * 32; i < min(runtime.count, warp() * 32 + 32); i++)
    if (lacks_fence[i]) SHIM_FAIL("TMA: no fence after what thread %u has stored in shared memory", i);
  const Work store = {run_store, (void*)shared, (uint64_t)map, 0, {c0, c1, c2}};
  if (now()) return run_store(store);
  mine(stores).push(store);
}
NOT_SANITIZED inline void store_commit() { mine(stores).commit(); }
template <int GROUPS> NOT_SANITIZED inline void store_wait() { mine(stores).finish_all_but(GROUPS); }

// ---- sm_90: clusters -------------------------------------------------------------------------------------------------
inline int cluster_rank() { return rank(); }
inline void cluster_sync(int line = __builtin_LINE()) {
  void* edge = &runtime.edges->cluster[runtime.cluster_generation & 1];
  release(edge), wait(CLUSTER_BARRIER, "cluster_sync", line), acquire(edge);
}
inline void barrier_arrive_in(uint64_t* barrier, int block) { barrier_arrive(in_block(barrier, block)); }
inline void store_in(uint32_t* shared, int block, uint32_t word) { *in_block(shared, block) = word; }
template <int BLOCKS> inline void copy_tile_to_all(void* shared, const void* map, uint64_t* barrier, int c0, int c1, int c2) {
  for (int block = 0; block < BLOCKS; block++) copy_tile_to(block, in_block(shared, block), map, in_block(barrier, block), c0, c1, c2);
}

// ---- sm_90a: products of a warpgroup ---------------------------------------------------------------------------------
template <int REGISTERS> inline void raise_registers() {}
template <int REGISTERS> inline void lower_registers() {}
inline bool registers_are_fenced[1024] = {};  // by thread: since it has used the registers of sums otherwise
NOT_SANITIZED inline void warpgroup_fence() { registers_are_fenced[runtime.current->index] = true; }
inline void warpgroup_commit() { mine(products).commit(); }
NOT_SANITIZED inline uint32_t shared_address(const void* p) {
  const size_t at = (const unsigned char*)p - runtime.dynamic;
  if (at >= runtime.dynamic_bytes) SHIM_FAIL("wgmma: a tile outside of dynamic shared memory");
  return at;
}
// Four warps meet: a product is done for one when it is for all.
template <int GROUPS> inline void warpgroup_wait(int line = __builtin_LINE()) {
  const unsigned group = runtime.current->index / 128;
  Meeting& m = runtime.groups[group];
  void* edge = &runtime.edges->group[group][m.generation & 1];
  mine(products).finish_all_but(GROUPS);
  release(edge), meet(m, group * 128, 128, "wgmma.wait_group", line), acquire(edge);
}
template <int GROUPS = 0, int N> inline void warpgroup_finish(float (&)[N], int line = __builtin_LINE()) {
  warpgroup_wait<GROUPS>(line);
  registers_are_fenced[runtime.current->index] = false;
}
template <int N> inline void warpgroup_keep(uint32_t (&)[N][4]) {}

inline float to_float(float tf32) { return __uint_as_float(__float_as_uint(tf32) & 0xffffe000); }  // the rest is ignored
template <class T, bool ACROSS> inline float tile_element(uint64_t tile, unsigned line, unsigned k) {
  const uint32_t start = (tile & 0x3fff) << 4, leading = (tile >> 16 & 0x3fff) << 4, stride = (tile >> 32 & 0x3fff) << 4;
  const uint32_t at = start + (ACROSS ? line / 64 * leading + line % 64 * sizeof(T) + k / 8 * stride + k % 8 * 128
                                      : line / 8 * stride + line % 8 * 128 + k * sizeof(T));
  T value;
  memcpy(&value, runtime.dynamic + (at ^ (at >> 7 & 7) << 4), sizeof value);
  return to_float(value);
}
// d = rows of a (those of a thread) b + keep d
template <class T, int N, bool B_ACROSS, int K> inline void run_rows(float* d, const float (&a)[2][K], uint64_t tile, bool keep) {
  const unsigned member = runtime.current->index % 4;
  float b[K];
  for (int i = 0; i < N / 2; i++) {
    for (int k = 0; k < K; k++) b[k] = tile_element<T, B_ACROSS>(tile, i / 2 * 8 + member * 2 + i % 2, k);
    for (int half = 0; half < 2; half++) {
      float sum = 0, &to = d[i / 2 * 4 + half * 2 + i % 2];
      for (int k = 0; k < K; k++) sum += a[half][k] * b[k];
      to = keep ? to + sum : sum;
    }
  }
}
template <class T, int N, bool A_ACROSS, bool B_ACROSS> inline void run_product(const Work& w) {
  constexpr int K = 32 / sizeof(T);
  const unsigned t = runtime.current->index % 128, row = t / 32 * 16 + t % 32 / 4;
  float a[2][K];
  for (int i = 0; i < 2 * K; i++) a[i / K][i % K] = tile_element<T, A_ACROSS>(w.a, row + i / K * 8, i % K);
  run_rows<T, N, B_ACROSS>((float*)w.to, a, w.b, w.c[0]);
}
template <class T, int N, bool B_ACROSS> inline void run_register_product(const Work& w) {
  constexpr int K = Element<T>::K;
  float a[2][K];
  for (int k = 0; k < K; k++) {
    uint32_t words[4];
    copy_bytes(words, w.left[k % 8 / 2], sizeof words);
    for (int half = 0; half < 2; half++) a[half][k] = Element<T>::at(&words[half + k / 8 * 2], k % 2);
  }
  run_rows<T, N, B_ACROSS>((float*)w.to, a, w.b, true);
}
inline void issue_product(const Work& product, std::initializer_list<uint64_t> descriptors) {
  if (!registers_are_fenced[runtime.current->index]) SHIM_FAIL("wgmma: no fence before the registers of sums are used");
  for (uint64_t tile : descriptors)
    if (tile >> 62 != 1) SHIM_FAIL("wgmma: the descriptor of a tile without the swizzle of 128 bytes");
  if (mine(products).first == mine(products).last && now()) return product.run(product);
  mine(products).push(product);
}
template <bool A_ACROSS, bool B_ACROSS, int N, class T> inline void multiply_tiles(float (&d)[N], uint64_t a, uint64_t b, int keep, T) {
  issue_product({run_product<T, N, A_ACROSS, B_ACROSS>, d, a, b, {keep}}, {a, b});
}
template <bool B_ACROSS, int N, class T> inline void add_product(float (&d)[N], const uint32_t (&a)[4], uint64_t b, T, int line = __builtin_LINE()) {
  const uint32_t* registers = a;
  const Slot* slots = exchange(~0u, &registers, sizeof registers, "wgmma", line);
  Work product = {run_register_product<T, N, B_ACROSS>, d, 0, b};
  for (int i = 0; i < 4; i++) copy_bytes(&product.left[i], slots[lane() / 4 * 4 + i], sizeof registers);
  issue_product(product, {b});
}
}  // namespace ptx
