// Runs CUDA C kernels on the CPU: g++ only, no GPU, no CUDA toolkit.
//
// Blocks run one after another; every CUDA thread of a block is a fiber with its own stack. A fiber runs until
// it needs others (barrier, shuffle, mma), so between two synchronisation points the threads run in an
// order that the caller picks (forward, reverse, random): a missing barrier changes the answer.
// Shared memory is filled with 0xff (NaN) before every block, because on a GPU it is garbage.
// Under -fsanitize=thread each CUDA thread is a TSan fiber and only CUDA's own synchronisation orders two
// accesses: data races in shared and global memory are reported whatever the order was.
#pragma once
#define GDT_CPU 1
#include <math.h>  // not <cmath>: CUDA's exp(float) is a float, and so has to be this one
#include <sys/mman.h>

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __restrict__
// One block at a time: a function-local static is what the block's threads share. The first thread of a block
// that comes by poisons it.
#define GDT_SHARED(type, name, dims) static type name dims; shim::enter_shared(&name, sizeof name)
#define GDT_DYNAMIC_SHARED(name) unsigned char* name = shim::runtime.dynamic
// The emulator's own accesses are not the kernel's.
#define NOT_SANITIZED __attribute__((no_sanitize("address"), no_sanitize("thread"), no_sanitize("undefined")))

struct uint3 { unsigned x, y, z; };
struct dim3 { unsigned x, y, z; };
static uint3 threadIdx, blockIdx;
static dim3 blockDim, gridDim;

extern "C" {
void* __tsan_create_fiber(unsigned);
void __tsan_destroy_fiber(void*);
void __tsan_switch_to_fiber(void*, unsigned);
void* __tsan_get_current_fiber(void);
void __tsan_acquire(void*);
void __tsan_release(void*);
void __tsan_java_init(unsigned long, unsigned long);
void __tsan_java_alloc(unsigned long, unsigned long);
void __tsan_java_free(unsigned long, unsigned long);
void __sanitizer_start_switch_fiber(void**, const void*, size_t);
void __sanitizer_finish_switch_fiber(void*, const void**, size_t*);
extern char __bss_start[] __attribute__((visibility("hidden")));
extern char _end[] __attribute__((visibility("hidden")));
}
#ifdef __SANITIZE_THREAD__
#define IF_TSAN(...) __VA_ARGS__
#else
#define IF_TSAN(...)
#endif
#ifdef __SANITIZE_ADDRESS__
#define IF_ASAN(...) __VA_ARGS__
#else
#define IF_ASAN(...)
#endif

namespace shim {
enum State : uint8_t { READY, BLOCK_BARRIER, WARP_WAIT, DONE };
enum Order : int { FORWARD, REVERSE, RANDOM };
constexpr size_t STACK_BYTES = 256 << 10, PAGE = 4096;
constexpr size_t DYNAMIC_MAX = 227 << 10;  // what a block of sm_90 may have
constexpr int MASKS_MAX = 8, SHARED_MAX = 1024;

struct Fiber {
  void* stack_pointer;
  char* stack;
  uint3 thread;
  unsigned index;
  State state;
  int line;              // where it waits,
  const char* waits_in;  // and in what
  void* asan_stack;
  void* tsan;
};
// The meeting point of the lanes of one mask; two generations of slots, as a fast lane may be one meeting ahead.
struct Meeting {
  unsigned mask, arrived, generation;
  int line;
  const char* op;
  unsigned char slot[2][32][64];
};
struct Options { int order, async_mode, fresh_fibers, unused; uint64_t seed; };
struct SharedArray { void* start; uint64_t block; };  // the block that last used it
// Where threads that synchronise meet in TSan's eyes: addresses, never read.
struct Edges { char block[2], warp[32]; };
static char launch_edge, done_edge, fence_edge;

static struct Runtime {
  std::vector<Fiber> fibers;
  SharedArray shared[SHARED_MAX];
  uint64_t block;  // counts all blocks of all launches
  std::vector<Meeting> meetings;  // MASKS_MAX for each warp
  unsigned count, live, barrier_generation;
  Fiber* current;
  void *main_stack_pointer, *main_asan_stack, *main_tsan;
  const void* main_bottom;
  size_t main_size;
  void (*kernel)(void**);
  void** arguments;
  char message[1024];
  bool failed;
  Edges* edges;
  uint64_t random;
  unsigned char* dynamic;
  size_t dynamic_bytes;
} runtime;

extern "C" void gdt_switch_stack(void** save, void* to);
asm(".text\n.p2align 4\n.type gdt_switch_stack,@function\ngdt_switch_stack:\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\nmov %rsp,(%rdi)\nmov %rsi,%rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n.size gdt_switch_stack,.-gdt_switch_stack\n");

NOT_SANITIZED inline uint64_t next_random() {  // xorshift64
  uint64_t& x = runtime.random;
  x ^= x << 13, x ^= x >> 7, x ^= x << 17;
  return x;
}
inline void release([[maybe_unused]] void* edge) { IF_TSAN(__tsan_release(edge);) }
inline void acquire([[maybe_unused]] void* edge) { IF_TSAN(__tsan_acquire(edge);) }
NOT_SANITIZED inline unsigned lane() { return runtime.current->index % 32; }
NOT_SANITIZED inline unsigned warp() { return runtime.current->index / 32; }
NOT_SANITIZED inline void copy_bytes(void* to, const void* from, size_t n) {
  for (size_t i = 0; i < n; i++) ((volatile char*)to)[i] = ((const volatile char*)from)[i];
}
NOT_SANITIZED inline void fill_ff(void* to, size_t n) {
  for (size_t i = 0; i < n; i++) ((volatile char*)to)[i] = (char)0xff;
}
// Shared memory is new in every block: NaN to its threads, and TSan forgets who touched it.
NOT_SANITIZED inline void renew_shared(void* start, size_t bytes, [[maybe_unused]] bool used_before) {
  fill_ff(start, bytes);
  IF_TSAN(
    const unsigned long from = (unsigned long)start & ~7ul, size = ((unsigned long)start + bytes + 7 & ~7ul) - from;
    static bool known = false;
    if (!known) __tsan_java_init((unsigned long)__bss_start & ~7ul, ((unsigned long)_end & ~7ul) - ((unsigned long)__bss_start & ~7ul));
    known = true;
    if (used_before && size) __tsan_java_free(from, size);
    if (size) __tsan_java_alloc(from, size);)
}
NOT_SANITIZED inline void enter_shared(void* start, size_t bytes) {
  for (SharedArray* a = runtime.shared; a < runtime.shared + SHARED_MAX; a++)
    if (!a->start || a->start == start) {
      if (a->start && a->block == runtime.block) return;
      renew_shared(start, bytes, a->start);
      *a = {start, runtime.block};
      return;
    }
  abort();  // a file with more shared arrays than that
}

NOT_SANITIZED __attribute__((noinline)) void switch_to_scheduler([[maybe_unused]] bool for_good = false) {
  Fiber* self = runtime.current;
  IF_TSAN(__tsan_switch_to_fiber(runtime.main_tsan, 1);)
  IF_ASAN(__sanitizer_start_switch_fiber(for_good ? nullptr : &self->asan_stack, runtime.main_bottom, runtime.main_size);)
  gdt_switch_stack(&self->stack_pointer, runtime.main_stack_pointer);
  IF_ASAN(__sanitizer_finish_switch_fiber(self->asan_stack, nullptr, nullptr);)
}
NOT_SANITIZED inline void switch_to(Fiber* fiber) {
  threadIdx = fiber->thread;
  runtime.current = fiber;
  IF_TSAN(__tsan_switch_to_fiber(fiber->tsan, 1);)
  IF_ASAN(__sanitizer_start_switch_fiber(&runtime.main_asan_stack, fiber->stack, STACK_BYTES);)
  gdt_switch_stack(&runtime.main_stack_pointer, fiber->stack_pointer);
  IF_ASAN(__sanitizer_finish_switch_fiber(runtime.main_asan_stack, nullptr, nullptr);)
  runtime.current = nullptr;
}
NOT_SANITIZED inline void report(const char* format, ...) {
  va_list list;
  va_start(list, format);
  int n = vsnprintf(runtime.message, sizeof runtime.message, format, list);
  va_end(list);
  const uint3 b = blockIdx, t = runtime.current ? runtime.current->thread : uint3{};
  snprintf(runtime.message + n, sizeof runtime.message - n, " [block %u,%u,%u thread %u,%u,%u]", b.x, b.y, b.z, t.x, t.y, t.z);
  runtime.failed = true;
}
#define SHIM_FAIL(...) (shim::report(__VA_ARGS__), shim::switch_to_scheduler(true), abort())

NOT_SANITIZED inline void wait(State state, const char* what, int line) {
  Fiber* self = runtime.current;
  self->waits_in = what, self->line = line, self->state = state;
  switch_to_scheduler();
}
NOT_SANITIZED void fiber_main() {
  IF_ASAN(__sanitizer_finish_switch_fiber(nullptr, &runtime.main_bottom, &runtime.main_size);)
  acquire(&launch_edge);
  runtime.kernel(runtime.arguments);
  release(&done_edge);
  runtime.current->state = DONE;
  runtime.live--;
  switch_to_scheduler(true);
}

// All lanes of `mask` meet; each leaves `size` bytes and gets everyone's. Every warp operation is made of this.
typedef unsigned char Slot[64];
NOT_SANITIZED inline const Slot* meet(unsigned mask, const void* mine, size_t size, const char* op, int line) {
  const unsigned first = warp() * 32, lanes = runtime.count - first;
  const unsigned existing = lanes >= 32 ? ~0u : (1u << lanes) - 1;
  if (mask == ~0u) mask = existing;  // a short last warp
  if (!(mask >> lane() & 1)) SHIM_FAIL("%s line %d: mask %08x lacks the calling lane %u", op, line, mask, lane());
  if (mask & ~existing) SHIM_FAIL("%s line %d: mask %08x names lanes that do not exist", op, line, mask);
  for (unsigned l = 0; l < 32; l++)
    if ((mask >> l & 1) && runtime.fibers[first + l].state == DONE) SHIM_FAIL("%s line %d: lane %u has exited", op, line, l);
  Meeting *table = &runtime.meetings[warp() * MASKS_MAX], *m = nullptr;
  for (int i = 0; i < MASKS_MAX && !m; i++)
    if (table[i].mask == mask) m = &table[i];
  for (int i = 0; i < MASKS_MAX && !m; i++)
    if (!table[i].arrived) m = &table[i], m->mask = mask;
  if (!m) SHIM_FAIL("%s line %d: more than %d masks in use in one warp", op, line, MASKS_MAX);
  if (m->arrived && (m->line != line || strcmp(m->op, op)))
    SHIM_FAIL("divergent warp: %s line %d meets %s line %d", op, line, m->op, m->line);
  m->op = op, m->line = line;
  Slot* slots = m->slot[m->generation & 1];
  copy_bytes(slots[lane()], mine, size);
  m->arrived |= 1u << lane();
  if (m->arrived == mask) {
    m->arrived = 0, m->generation++;
    for (unsigned l = 0; l < 32; l++)
      if ((mask >> l & 1) && l != lane()) runtime.fibers[first + l].state = READY;
  } else {
    wait(WARP_WAIT, op, line);
  }
  return slots;
}
}  // namespace shim

// ---- synchronisation, shuffles, atomics -------------------------------------------------------------------------
inline void __syncthreads(int line = __builtin_LINE()) {
  void* edge = &shim::runtime.edges->block[shim::runtime.barrier_generation & 1];
  shim::release(edge);
  shim::wait(shim::BLOCK_BARRIER, "__syncthreads", line);
  shim::acquire(edge);
}
inline void __syncwarp(unsigned mask = ~0u, int line = __builtin_LINE()) {
  void* edge = &shim::runtime.edges->warp[shim::warp()];
  const int nothing = 0;
  shim::release(edge);
  shim::meet(mask, &nothing, sizeof nothing, "__syncwarp", line);
  shim::acquire(edge);
}
namespace shim {
template <class T> NOT_SANITIZED inline T shuffle(unsigned mask, T mine, int source, const char* op, int line) {
  const Slot* slots = meet(mask, &mine, sizeof mine, op, line);
  if (!(mask >> source & 1)) SHIM_FAIL("%s line %d: reads lane %d outside mask %08x", op, line, source, mask);
  T value;
  copy_bytes(&value, slots[source], sizeof value);
  return value;
}
}  // namespace shim
template <class T> inline T __shfl_xor_sync(unsigned mask, T v, int with, int line = __builtin_LINE()) {
  return shim::shuffle(mask, v, (int)shim::lane() ^ with, "__shfl_xor_sync", line);
}
template <class T> inline T __shfl_down_sync(unsigned mask, T v, unsigned by, int line = __builtin_LINE()) {
  const unsigned from = shim::lane() + by;
  return shim::shuffle(mask, v, from < 32 ? from : shim::lane(), "__shfl_down_sync", line);
}
inline void __threadfence() {  // TSan knows no fences: all of them are one edge
  shim::release(&shim::fence_edge);
  shim::acquire(&shim::fence_edge);
}
template <class T, class F> inline T atomic_update(T* p, F change) {
  T seen, wanted;
  __atomic_load(p, &seen, __ATOMIC_RELAXED);
  do wanted = change(seen);
  while (!__atomic_compare_exchange(p, &seen, &wanted, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  return seen;
}
template <class T> inline T atomicAdd(T* p, std::common_type_t<T> v) { return atomic_update(p, [v](T a) { return (T)(a + v); }); }
template <class T> inline T atomicMin(T* p, std::common_type_t<T> v) { return atomic_update(p, [v](T a) { return a < v ? a : v; }); }

// ---- arithmetic ---------------------------------------------------------------------------------------------------
template <class A, class B> constexpr auto max(A a, B b) -> std::common_type_t<A, B> { return a > b ? a : b; }
template <class A, class B> constexpr auto min(A a, B b) -> std::common_type_t<A, B> { return a < b ? a : b; }
inline float rsqrtf(float x) { return 1.f / sqrtf(x); }
inline double rsqrt(double x) { return 1. / sqrt(x); }
inline unsigned __umulhi(unsigned a, unsigned b) { return (uint64_t)a * b >> 32; }
inline uint64_t __umul64hi(uint64_t a, uint64_t b) { return (unsigned __int128)a * b >> 64; }
template <class To, class From> inline To bits_as(From from) {
  To to;
  static_assert(sizeof to == sizeof from, "same size");
  memcpy(&to, &from, sizeof to);
  return to;
}
inline unsigned __float_as_uint(float f) { return bits_as<unsigned>(f); }
inline float __uint_as_float(unsigned u) { return bits_as<float>(u); }
inline long long __double_as_longlong(double d) { return bits_as<long long>(d); }
inline double __longlong_as_double(long long i) { return bits_as<double>(i); }

#include "ptx_cpu.hpp"

// ---- launch -------------------------------------------------------------------------------------------------------
namespace shim {
alignas(1024) static unsigned char dynamic_memory[DYNAMIC_MAX];

inline char* new_stack() {
  char* p = (char*)mmap(nullptr, STACK_BYTES + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  mprotect(p, PAGE, PROT_NONE);
  return p + PAGE;
}
NOT_SANITIZED void start_fiber(unsigned i, [[maybe_unused]] bool fresh) {
  Fiber& f = runtime.fibers[i];
  f.state = READY, f.asan_stack = nullptr, f.index = i;
  f.thread = {i % blockDim.x, i / blockDim.x % blockDim.y, i / (blockDim.x * blockDim.y)};
  // A TSan fiber kept from the block before carries that block's past, which hides some races between blocks;
  // a fresh one (about 1 ms each) sees all of them.
  IF_TSAN(if (f.tsan && fresh) {
    __tsan_destroy_fiber(f.tsan);
    f.tsan = nullptr;
    munmap(f.stack - PAGE, STACK_BYTES + PAGE);
    f.stack = nullptr;
  } if (!f.tsan) f.tsan = __tsan_create_fiber(0);)
  if (!f.stack) f.stack = new_stack();
  void** top = (void**)(f.stack + STACK_BYTES - 64);
  *--top = nullptr;  // keeps the stack 16-aligned at fiber_main's first instruction, as a call would
  *--top = (void*)fiber_main;
  for (int saved_register = 0; saved_register < 6; saved_register++) *--top = nullptr;
  f.stack_pointer = top;
}
NOT_SANITIZED bool release_block_barrier() {  // nobody can run: are all at one __syncthreads?
  const Fiber *first = nullptr, *other = nullptr;
  unsigned waiting = 0;
  for (auto& f : runtime.fibers) {
    if (f.index >= runtime.count || f.state == DONE) continue;
    if (!first) first = &f;
    if (f.state == BLOCK_BARRIER && f.line == first->line) waiting++;
    else if (!other) other = &f;
  }
  if (waiting == runtime.count) {
    for (unsigned i = 0; i < runtime.count; i++) runtime.fibers[i].state = READY;
    runtime.barrier_generation++;
    return true;
  }
  if (waiting == runtime.live)
    report("barrier divergence: %u threads wait at __syncthreads (line %d), %u have exited", waiting, first->line, runtime.count - runtime.live);
  else
    report("deadlock: thread %u waits in %s (line %d), thread %u in %s (line %d)", first->index, first->waits_in, first->line,
           other ? other->index : 0, other ? other->waits_in : "", other ? other->line : 0);
  return false;
}
NOT_SANITIZED void run_block(const Options& options) {
  const unsigned n = runtime.count;
  for (unsigned i = 0; i < n; i++) start_fiber(i, options.fresh_fibers);
  memset((void*)runtime.meetings.data(), 0, runtime.meetings.size() * sizeof(Meeting));
  runtime.live = n;
  std::vector<unsigned> order(n);
  for (unsigned i = 0; i < n; i++) order[i] = options.order == REVERSE ? n - 1 - i : i;
  while (runtime.live) {
    if (options.order == RANDOM)
      for (unsigned i = n; i > 1; i--) std::swap(order[i - 1], order[next_random() % i]);
    bool ran = false;
    for (unsigned i = 0; i < n && !runtime.failed; i++)
      if (runtime.fibers[order[i]].state == READY) ran = true, switch_to(&runtime.fibers[order[i]]);
    if (runtime.failed || (!ran && runtime.live && !release_block_barrier())) return;
  }
}
NOT_SANITIZED void start_block() {
  renew_shared(runtime.dynamic, runtime.dynamic_bytes, runtime.block++ > 0);
  IF_TSAN(free(runtime.edges); runtime.edges = nullptr;)  // no barrier of one block orders anything in another
  if (!runtime.edges) runtime.edges = (Edges*)calloc(1, sizeof(Edges));
}
template <class F> struct Call;
template <class... A> struct Call<void (*)(A...)> {
  template <size_t... I> static void unpack(void (*kernel)(A...), void** a, std::index_sequence<I...>) {
    kernel(*(std::remove_reference_t<A>*)a[I]...);
  }
  static void with(void (*kernel)(A...), void** a) { unpack(kernel, a, std::make_index_sequence<sizeof...(A)>()); }
};
struct Entry { const char* name; void (*call)(void**); };

NOT_SANITIZED int launch(void (*kernel)(void**), const unsigned* grid, const unsigned* block, size_t shared, void** arguments, const Options* options) {
  gridDim = {grid[0], grid[1], grid[2]}, blockDim = {block[0], block[1], block[2]};
  runtime.count = block[0] * block[1] * block[2];
  runtime.failed = false, runtime.message[0] = 0;
  runtime.random = options->seed * 0x9E3779B97F4A7C15ull + 0x1234567;
  const uint64_t blocks = (uint64_t)grid[0] * grid[1] * grid[2];
  if (!runtime.count || runtime.count > 1024 || !blocks || grid[1] > 65535 || grid[2] > 65535 || shared > DYNAMIC_MAX)
    return report("no GPU takes a grid of %u,%u,%u blocks of %u threads with %zu shared bytes", grid[0], grid[1], grid[2], runtime.count, shared), 1;
  if (runtime.fibers.size() < runtime.count) runtime.fibers.resize(runtime.count);
  runtime.meetings.resize((runtime.count + 31) / 32 * MASKS_MAX);
  runtime.dynamic = dynamic_memory, runtime.dynamic_bytes = shared;
  IF_ASAN(void* exact; if (posix_memalign(&exact, 1024, shared ? shared : 1)) return 1; runtime.dynamic = (unsigned char*)exact;)
  IF_TSAN(runtime.main_tsan = __tsan_get_current_fiber();)
  runtime.kernel = kernel, runtime.arguments = arguments;
  release(&launch_edge);
  const bool random = options->order == RANDOM;
  for (uint64_t i = 0; i < blocks && !runtime.failed; i++) {
    const uint64_t at = options->order == REVERSE ? blocks - 1 - i : random ? (i + options->seed) % blocks : i;
    blockIdx = {(unsigned)(at % grid[0]), (unsigned)(at / grid[0] % grid[1]), (unsigned)(at / ((uint64_t)grid[0] * grid[1]))};
    start_block();
    reset_async(runtime.count, options->async_mode);
    run_block(*options);
  }
  acquire(&done_edge);
  IF_ASAN(free(runtime.dynamic);)
  return runtime.failed;
}
}  // namespace shim
