// Runs CUDA C kernels on the CPU: g++ only, no GPU, no CUDA toolkit.
//
// Blocks run one after another, those of a cluster together; every CUDA thread is a fiber with its own stack. A fiber runs until
// it needs others (barrier, shuffle, mma), so between two synchronisation points the threads run in an
// order that the caller picks (forward, reverse, random): a missing barrier changes the answer.
// Shared memory is filled with 0xff (NaN) before every block, because on a GPU it is garbage.
// Under -fsanitize=thread each CUDA thread is a TSan fiber and only CUDA's own synchronisation orders two
// accesses: data races in shared and global memory are reported whatever the order was.
#pragma once
#define GDT_CPU 1
#include <math.h>  // not <cmath>: CUDA's exp(float) is a float, and so has to be this one
#include <sanitizer/asan_interface.h>
#include <sanitizer/tsan_interface.h>
#include <sys/mman.h>

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#define __global__
#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __restrict__
#define __grid_constant__
// One cluster at a time: a function-local static is what the threads of a block share, one for each block of a cluster. The
// first thread of a block that comes by poisons it. The last of them is that of rank 0, so that memory behind it is no other's.
#define GDT_SHARED(type, name, dims)                                  \
  static type name##_of_blocks[shim::CLUSTER_MAX] dims;               \
  auto& name = name##_of_blocks[shim::CLUSTER_MAX - 1 - shim::rank()]; \
  shim::enter_shared(&name, sizeof name)
#define GDT_DYNAMIC_SHARED(name) unsigned char* name = shim::runtime.dynamic
// The emulator's own accesses are not the kernel's.
#define NOT_SANITIZED __attribute__((no_sanitize("address"), no_sanitize("thread"), no_sanitize("undefined")))

struct uint3 { unsigned x, y, z; };
struct dim3 { unsigned x, y, z; };
static uint3 threadIdx, blockIdx;
static dim3 blockDim, gridDim;

extern "C" {
void __tsan_java_init(unsigned long, unsigned long);
void __tsan_java_alloc(unsigned long, unsigned long);
void __tsan_java_free(unsigned long, unsigned long);
extern char __bss_start[] __attribute__((visibility("hidden")));
extern char _end[] __attribute__((visibility("hidden")));
}
#ifdef __SANITIZE_THREAD__
#define IF_TSAN(...) __VA_ARGS__
#else
#define IF_TSAN(...)
#endif

namespace shim {
enum State : uint8_t { READY, BLOCK_BARRIER, CLUSTER_BARRIER, MEETING, PHASE_WAIT, DONE };
enum Order : int { FORWARD, REVERSE, RANDOM };
constexpr size_t STACK_BYTES = 256 << 10, PAGE = 4096;
constexpr size_t SHARED_MAX = 227 << 10;  // what a block of sm_90 may have
constexpr int ARRAYS_MAX = 1024, BLOCK_MAX = 1024, CLUSTER_MAX = 8;
constexpr int THREADS_MAX = 2048, WARPS = THREADS_MAX / 32, GROUPS = THREADS_MAX / 128;  // of a cluster
constexpr unsigned STAY_MAX = 4096;  // fibers of blocks that have ended; TSan has room for 8128

struct Fiber {
  void *stack_pointer, *tsan;
  char* stack;
  uint3 thread, block;
  unsigned index, rank;  // among the threads of the cluster; of the block
  State state;
  int line;              // where it waits,
  const char* waits_in;  // and in what
};
// Where a warp or a warpgroup meets; two generations of slots, as a fast thread may be one meeting ahead.
typedef unsigned char Slot[64];
struct Meeting {
  unsigned arrived, generation;
  int line;
  const char* op;
  Slot slot[2][32];
};
struct Options { int order, async_mode, fresh_fibers, cluster; uint64_t seed, blocks; };  // blocks: 0 for all of them
struct SharedArray { void* start; size_t bytes; uint64_t cluster; };  // the cluster that last used it
// Where threads that synchronise meet in TSan's eyes: addresses, never read.
struct Edges { char block[CLUSTER_MAX][2], cluster[2], warp[WARPS], group[GROUPS][2]; };
static char launch_edge, done_edge, fence_edge;

static struct Runtime {
  Fiber fibers[THREADS_MAX];
  SharedArray shared[ARRAYS_MAX];
  uint64_t cluster, random;  // counts all clusters of all launches; the state of next_random
  Meeting warps[WARPS], groups[GROUPS];
  unsigned count, live, of_block, blocks;  // threads of the cluster, those that have not ended, threads of a block; blocks
  unsigned barrier_generation[CLUSTER_MAX], cluster_generation;
  Fiber* current;
  void *main_stack_pointer, *main_tsan, **arguments;
  void (*kernel)(void**);
  char message[1024];
  bool failed;
  Edges* edges;
  unsigned char* dynamic;  // of the block that runs
  size_t dynamic_bytes, static_bytes[CLUSTER_MAX];  // the latter: of the arrays that the block has come by
} runtime;

extern "C" void gdt_switch_stack(void** save, void* to);
asm(".text\n.p2align 4\n.type gdt_switch_stack,@function\ngdt_switch_stack:\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\nmov %rsp,(%rdi)\nmov %rsi,%rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n.size gdt_switch_stack,.-gdt_switch_stack\n");

NOT_SANITIZED inline uint64_t next_random() {  // xorshift64
  uint64_t& x = runtime.random;
  return x ^= x << 13, x ^= x >> 7, x ^= x << 17;
}
inline void release([[maybe_unused]] void* edge) { IF_TSAN(__tsan_release(edge);) }
inline void acquire([[maybe_unused]] void* edge) { IF_TSAN(__tsan_acquire(edge);) }
NOT_SANITIZED inline unsigned lane() { return runtime.current->index % 32; }
NOT_SANITIZED inline unsigned rank() { return runtime.current->rank; }
NOT_SANITIZED inline unsigned char* dynamic_of(unsigned rank);
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
NOT_SANITIZED __attribute__((noinline)) void switch_to_scheduler() {
  Fiber* self = runtime.current;
  IF_TSAN(__tsan_switch_to_fiber(runtime.main_tsan, 1);)
  gdt_switch_stack(&self->stack_pointer, runtime.main_stack_pointer);
}
NOT_SANITIZED inline void switch_to(Fiber* fiber) {
  threadIdx = fiber->thread, blockIdx = fiber->block, runtime.dynamic = dynamic_of(fiber->rank);
  runtime.current = fiber;
  IF_TSAN(__tsan_switch_to_fiber(fiber->tsan, 1);)
  gdt_switch_stack(&runtime.main_stack_pointer, fiber->stack_pointer);
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
#define SHIM_FAIL(...) (shim::report(__VA_ARGS__), shim::switch_to_scheduler(), abort())
NOT_SANITIZED inline void enter_shared(void* start, size_t bytes) {
  for (SharedArray* a = runtime.shared; a < runtime.shared + ARRAYS_MAX; a++)
    if (!a->start || a->start == start) {
      if (a->start && a->cluster == runtime.cluster) return;
      renew_shared(start, bytes, a->start);
      size_t& own = runtime.static_bytes[rank()];
      own += bytes;
      if (own + runtime.dynamic_bytes > SHARED_MAX)
        SHIM_FAIL("%zu static and %zu dynamic shared bytes are more than a block has", own, runtime.dynamic_bytes);
      *a = {start, bytes, runtime.cluster};
      return;
    }
  abort();  // a file with more shared arrays than that
}
// The same place in the shared memory of another block of the cluster.
template <class T> NOT_SANITIZED inline T* in_block(T* place, unsigned other) {
  if (other >= runtime.blocks) SHIM_FAIL("cluster: it has no block %u", other);
  for (unsigned i = other * runtime.of_block, ended = 0; i < (other + 1) * runtime.of_block; i++)
    if (runtime.fibers[i].state == DONE && ++ended == runtime.of_block) SHIM_FAIL("cluster: block %u has ended", other);
  const size_t at = (unsigned char*)place - runtime.dynamic;
  if (at < runtime.dynamic_bytes) return (T*)(dynamic_of(other) + at);
  for (SharedArray& a : runtime.shared)
    if (a.start && (size_t)((char*)place - (char*)a.start) < a.bytes) return (T*)((char*)place + ((int)rank() - (int)other) * (ptrdiff_t)a.bytes);
  SHIM_FAIL("cluster: an address outside of shared memory");
}

NOT_SANITIZED inline void wait(State state, const char* what, int line) {
  Fiber* self = runtime.current;
  self->waits_in = what, self->line = line, self->state = state;
  switch_to_scheduler();
}
NOT_SANITIZED void fiber_main() {
  acquire(&launch_edge);
  runtime.kernel(runtime.arguments);
  release(&done_edge);
  runtime.current->state = DONE;
  runtime.live--;
  switch_to_scheduler();
}

NOT_SANITIZED inline void meet(Meeting& m, unsigned first, unsigned count, const char* op, int line) {
  for (unsigned i = first; i < first + count; i++)
    if (runtime.fibers[i].state == DONE) SHIM_FAIL("%s line %d: thread %u has exited", op, line, i);
  if (m.arrived && (m.line != line || strcmp(m.op, op))) SHIM_FAIL("divergent warp: %s line %d meets %s line %d", op, line, m.op, m.line);
  m.op = op, m.line = line;
  if (++m.arrived < count) return wait(MEETING, op, line);
  m.arrived = 0, m.generation++;
  for (unsigned i = first; i < first + count; i++) runtime.fibers[i].state = READY;
}
// All lanes of a warp meet; each leaves `size` bytes and gets everyone's. Every warp operation is made of this.
NOT_SANITIZED inline const Slot* exchange(unsigned mask, const void* mine, size_t size, const char* op, int line) {
  if (mask != ~0u) SHIM_FAIL("%s line %d: mask %08x lacks lanes", op, line, mask);
  const unsigned first = warp() * 32, existing = runtime.count - first;
  Meeting& m = runtime.warps[warp()];
  const Slot* slots = m.slot[m.generation & 1];
  copy_bytes((void*)slots[lane()], mine, size);
  meet(m, first, existing < 32 ? existing : 32, op, line);
  return slots;
}
}  // namespace shim

// ---- synchronisation, shuffles, atomics -------------------------------------------------------------------------
inline void __syncthreads(int line = __builtin_LINE()) {
  const unsigned rank = shim::rank();
  void* edge = &shim::runtime.edges->block[rank][shim::runtime.barrier_generation[rank] & 1];
  shim::release(edge);
  shim::wait(shim::BLOCK_BARRIER, "__syncthreads", line);
  shim::acquire(edge);
}
inline void __syncwarp(unsigned mask = ~0u, int line = __builtin_LINE()) {
  void* edge = &shim::runtime.edges->warp[shim::warp()];
  shim::release(edge);
  shim::exchange(mask, &edge, sizeof edge, "__syncwarp", line);
  shim::acquire(edge);
}
template <class T> NOT_SANITIZED inline T __shfl_xor_sync(unsigned mask, T mine, int with, int line = __builtin_LINE()) {
  const unsigned source = shim::lane() ^ with;
  const shim::Slot* slots = shim::exchange(mask, &mine, sizeof mine, "__shfl_xor_sync", line);
  if (shim::warp() * 32 + source >= shim::runtime.count) SHIM_FAIL("__shfl_xor_sync line %d: lane %u does not exist", line, source);
  shim::copy_bytes(&mine, slots[source], sizeof mine);
  return mine;
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
inline unsigned __umulhi(unsigned a, unsigned b) { return (uint64_t)a * b >> 32; }
inline uint64_t __umul64hi(uint64_t a, uint64_t b) { return (unsigned __int128)a * b >> 64; }
inline unsigned __float_as_uint(float f) { return __builtin_bit_cast(unsigned, f); }
inline float __uint_as_float(unsigned u) { return __builtin_bit_cast(float, u); }
inline long long __double_as_longlong(double d) { return __builtin_bit_cast(long long, d); }
inline double __longlong_as_double(long long i) { return __builtin_bit_cast(double, i); }

#include "ptx_cpu.hpp"

// ---- launch -------------------------------------------------------------------------------------------------------
namespace shim {
alignas(1024) static unsigned char dynamic_memory[CLUSTER_MAX][SHARED_MAX];
NOT_SANITIZED inline unsigned char* dynamic_of(unsigned rank) { return dynamic_memory[rank]; }

// The stacks of all fibers, which all libraries of a process share: with its guard a stack is two mappings, of which
// Linux lets a process have 65,530.
static char* stacks;
NOT_SANITIZED char* new_memory(char* at, size_t bytes) {  // in place of what is there, if `at` is not null
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (at ? MAP_FIXED : 0);
  void* memory = mmap(at, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (memory == MAP_FAILED) perror("mmap of stacks"), abort();
  return (char*)memory;
}
NOT_SANITIZED char* share_stacks(char* shared) {
  return stacks = shared ? shared : new_memory(nullptr, THREADS_MAX * (STACK_BYTES + PAGE));
}

NOT_SANITIZED void start_fiber(unsigned i, [[maybe_unused]] bool fresh) {
  Fiber& f = runtime.fibers[i];
  const unsigned at = i % runtime.of_block;
  f.state = READY, f.index = i, f.rank = i / runtime.of_block;
  f.thread = {at % blockDim.x, at / blockDim.x % blockDim.y, at / (blockDim.x * blockDim.y)};
  f.block = {blockIdx.x + f.rank, blockIdx.y, blockIdx.z};
  // A TSan fiber kept from the block before carries that block's past, which hides some races between blocks;
  // a fresh one (about 1 ms each) sees all of them. TSan gives the number of a destroyed fiber to a new one, and takes
  // both for one: where they are few, they stay.
  IF_TSAN(
    static unsigned stay = 0;
    if (f.tsan && fresh && stay++ >= STAY_MAX) __tsan_destroy_fiber(f.tsan);
    if (f.tsan && fresh) f.tsan = nullptr, f.stack = nullptr;
    if (!f.tsan) f.tsan = __tsan_create_fiber(0);)
  if (!f.stack) {
    f.stack = new_memory(stacks + i * (STACK_BYTES + PAGE), STACK_BYTES + PAGE) + PAGE;
    mprotect(f.stack - PAGE, PAGE, PROT_NONE);
  }
  void** top = (void**)(f.stack + STACK_BYTES - 64);
  *--top = nullptr;  // keeps the stack 16-aligned at fiber_main's first instruction, as a call would
  *--top = (void*)fiber_main;
  for (int saved_register = 0; saved_register < 6; saved_register++) *--top = nullptr;
  f.stack_pointer = top;
}
// If all threads of these blocks wait at one barrier, they go on.
NOT_SANITIZED bool release_barrier(State state, unsigned first_block, unsigned blocks, unsigned& generation) {
  Fiber *first = runtime.fibers + first_block * runtime.of_block, *end = first + blocks * runtime.of_block;
  for (const Fiber* f = first; f < end; f++)
    if (f->state != state || f->line != first->line) return false;
  for (Fiber* f = first; f < end; f++) f->state = READY;
  return ++generation, true;
}
NOT_SANITIZED void report_deadlock() {
  const Fiber *first = nullptr, *other = nullptr;
  unsigned waiting = 0;
  for (unsigned i = 0; i < runtime.count; i++) {
    const Fiber& f = runtime.fibers[i];
    if (f.state == DONE) continue;
    if (!first) first = &f;
    if (f.state == BLOCK_BARRIER && f.line == first->line) waiting++;
    else if (!other) other = &f;
  }
  if (waiting == runtime.live)
    report("barrier divergence: %u threads wait at __syncthreads (line %d), %u have exited", waiting, first->line, runtime.count - runtime.live);
  else
    report("deadlock: thread %u waits in %s (line %d), thread %u in %s (line %d)", first->index, first->waits_in, first->line,
           other ? other->index : 0, other ? other->waits_in : "", other ? other->line : 0);
}
// Run the threads of one block that can run, or let them pass their barrier; false where none can go on.
NOT_SANITIZED bool run_block(unsigned rank, const unsigned* order) {
  bool ran = false;
  for (unsigned i = 0; i < runtime.count && !runtime.failed; i++) {
    Fiber& f = runtime.fibers[order[i]];
    if (f.rank == rank && f.state == READY) ran = true, switch_to(&f);
  }
  return ran || release_barrier(BLOCK_BARRIER, rank, 1, runtime.barrier_generation[rank]);
}
NOT_SANITIZED void run_cluster(const Options& options) {
  const unsigned n = runtime.count;
  for (unsigned i = 0; i < n; i++) start_fiber(i, options.fresh_fibers);
  for (auto& m : runtime.warps) m.arrived = 0;
  for (auto& m : runtime.groups) m.arrived = 0;
  runtime.live = n;
  static unsigned order[THREADS_MAX];
  for (unsigned i = 0; i < n; i++) order[i] = options.order == REVERSE ? n - 1 - i : i;
  while (runtime.live && !runtime.failed) {
    if (options.order == RANDOM)
      for (unsigned i = n; i > 1; i--) std::swap(order[i - 1], order[next_random() % i]);
    bool ran = false;  // a block runs as far as it can without the others
    for (unsigned i = 0, first = runtime.fibers[order[0]].rank; i < runtime.blocks && !ran; i++)
      ran = run_block((first + i) % runtime.blocks, order);
    if (!ran && runtime.live && !runtime.failed && !run_late_copy() &&
        !release_barrier(CLUSTER_BARRIER, 0, runtime.blocks, runtime.cluster_generation)) report_deadlock();
  }
  if (!runtime.failed) check_stores();
}
NOT_SANITIZED void start_cluster() {
  for (unsigned rank = 0; rank < runtime.blocks; rank++) {
    renew_shared(dynamic_of(rank), runtime.dynamic_bytes, runtime.cluster > 0);
    runtime.static_bytes[rank] = 0;
  }
  runtime.cluster++;
  IF_TSAN(free(runtime.edges); runtime.edges = nullptr;)  // no barrier of one block orders anything in another
  if (!runtime.edges) runtime.edges = (Edges*)calloc(1, sizeof(Edges));
}
template <class... A, size_t... I> void unpack(void (*kernel)(A...), void** a, std::index_sequence<I...>) { kernel(*(A*)a[I]...); }
template <class... A> void call(void (*kernel)(A...), void** a) { unpack(kernel, a, std::index_sequence_for<A...>()); }
struct Entry { const char* name; void (*call)(void**); };

NOT_SANITIZED int launch(void (*kernel)(void**), const unsigned* grid, const unsigned* block, size_t shared, void** arguments, const Options* options) {
  gridDim = {grid[0], grid[1], grid[2]}, blockDim = {block[0], block[1], block[2]};
  runtime.of_block = block[0] * block[1] * block[2], runtime.blocks = options->cluster;
  runtime.count = runtime.of_block * runtime.blocks;
  runtime.failed = false, runtime.message[0] = 0;
  runtime.random = options->seed * 0x9E3779B97F4A7C15ull + 0x1234567;
  const uint64_t blocks = (uint64_t)grid[0] * grid[1] * grid[2];
  if (!runtime.count || runtime.of_block > BLOCK_MAX || runtime.count > THREADS_MAX || runtime.blocks > CLUSTER_MAX || !blocks || grid[1] > 65535 || grid[2] > 65535 || shared > SHARED_MAX || grid[0] % runtime.blocks)
    return report("no GPU takes a grid of %u,%u,%u blocks of %u threads with %zu shared bytes", grid[0], grid[1], grid[2], runtime.of_block, shared), 1;
  runtime.dynamic_bytes = shared;
  for (unsigned char* memory : dynamic_memory) {
    ASAN_UNPOISON_MEMORY_REGION(memory, shared);
    ASAN_POISON_MEMORY_REGION(memory + shared, SHARED_MAX - shared);
  }
  IF_TSAN(runtime.main_tsan = __tsan_get_current_fiber();)
  runtime.kernel = kernel, runtime.arguments = arguments;
  release(&launch_edge);
  const uint64_t clusters = blocks / runtime.blocks, count = options->blocks ? options->blocks : clusters;
  for (uint64_t i = 0; i < count && !runtime.failed; i++) {
    const uint64_t number = options->order == REVERSE ? clusters - 1 - i : options->order == RANDOM ? (i + options->seed) % clusters : i;
    const uint64_t at = number * runtime.blocks;
    blockIdx = {(unsigned)(at % grid[0]), (unsigned)(at / grid[0] % grid[1]), (unsigned)(at / ((uint64_t)grid[0] * grid[1]))};
    start_cluster();
    reset_async(options->async_mode);
    run_cluster(*options);
  }
  acquire(&done_edge);
  return runtime.failed;
}
}  // namespace shim
