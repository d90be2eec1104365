// Matrix products on Hopper (sm_90a): TMA, mbarrier and wgmma. Formulas and arguments are those of
// matmul.cu, for half_t and bfloat16_t in all orientations, and for float as tf32 where the memory
// of both factors runs along k; float32 accumulation.
//
// x and w are tensor maps over (along memory, rows, items); x_strides and w_strides count steps of
// the map's third axis. A box of x is 128 bytes along memory by TILE_M rows where memory runs along
// k, else by the tile's length in k; a box of w likewise with TILE_N.
//
// A block has three warpgroups and works on one tile of TILE_M x TILE_N after another. The first
// warpgroup is the feeder: one of its threads starts copies, by the tensor memory accelerator, of
// the next 128 bytes of k of both factors into one of STAGES slots of shared memory. It continues
// while slots are free, also with the next tile. The other two warpgroups multiply 64 rows each,
// and free a slot when the products of the next slot have begun:
//
//                      filled[slot]                              sums in registers
//   feeder --> slot 0 | slot 1 | ... --> multiplier 1: rows  0 to  63  -->  slab of a warp --> out
//          <--                           multiplier 2: rows 64 to 127  -->
//                      emptied[slot]
//
//   slot, rows along k:  x: TILE_M rows of 128 bytes, w: TILE_N rows of 128 bytes
//   slot, across k:      for each 64 lines, one row of 128 bytes for each k
//
// The two blocks of a cluster (CLUSTER = 2) have tiles below each other, which share w: each copies
// half of the tile of w, to both. A slot is free when the multipliers of both blocks have freed it.
// Of the tile below an odd last one, all rows of x are 0, and none is stored.
//
//   block 0:  x: rows 0 to 127    w: first half  --> slots of both blocks
//   block 1:  x: rows 128 to 255  w: other half  --> slots of both blocks
//
// Results of 16 bits whose rows begin on 16 bytes are stored by the accelerator too: `stored` is
// then a tensor map of out, with boxes of SLAB_ROWS by 64 columns. A warp's slab has room for two
// boxes; one of them is read while the other is written, or while the next tile is multiplied.
// Else `stored` is any map, `has_map` is 0, and threads store float sums from the slab.
//
// Launch: block HOPPER_THREADS; grid: one block for each multiprocessor, but no more than there are
// tasks, or two for a task of a cluster. Tasks are (tiles of m x n, pieces, items), tiles fastest.
// Dynamic shared memory: the slots, then a slab for each multiplying warp. Not yet measured on a
// GPU.
#include "hopper.cuh"
#include "matmul.cuh"

constexpr int TILE_M = 128;
constexpr int SLOTS_BYTES = 196608;
constexpr int SLAB_COLUMNS = 64;
constexpr int SLAB_ROWS = 16;
constexpr int BOX_BYTES = 2048;  // of SLAB_ROWS by SLAB_COLUMNS results of 16 bits
constexpr int SLAB_BYTES = 4096;    // of SLAB_ROWS by SLAB_COLUMNS sums, or two boxes
constexpr int SLABS_BYTES = 32768;  // of eight warps
constexpr int PACK = 4;  // elements that are stored at once
constexpr int FEEDER_REGISTERS = 40;
constexpr int MULTIPLIER_REGISTERS = 232;

#if defined(GDT_CPU) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
namespace {
// One piece of one item's tile.
struct Task {
  int item, piece, row, column, first, end;
};
template <int ROWS, int COLUMNS> __device__ __forceinline__ int count_tiles(int m, int n) {
  return (m + ROWS - 1) / ROWS * ((n + COLUMNS - 1) / COLUMNS);
}
// The task of the first block of a cluster, by its number; ROWS: of the tiles of all its blocks.
template <int ROWS, int COLUMNS>
__device__ __forceinline__ Task find_task(int number, int m, int n, int k, int chunk, int pieces) {
  const int tiles = count_tiles<ROWS, COLUMNS>(m, n);
  const Corner corner = tile_corner<ROWS, COLUMNS>(number % tiles, m, n);
  const int piece = number / tiles % pieces, item = number / tiles / pieces;
  return {item, piece, corner.row, corner.column, piece * chunk, min(k, (piece + 1) * chunk)};
}
// The slots are used in turn; the parity changes with every round.
template <int STAGES> struct Turn {
  int slot = 0;
  unsigned parity = 0;
  __device__ __forceinline__ void next() {
    if (++slot == STAGES) slot = 0, parity ^= 1;
  }
};
// One thread of a warpgroup frees a slot in each block of its cluster.
template <int CLUSTER>
__device__ __forceinline__ void release(uint64_t* emptied, int thread_of_group) {
  if (CLUSTER == 1 && thread_of_group == 0) ptx::barrier_arrive(emptied);
  if (CLUSTER > 1 && thread_of_group < CLUSTER) ptx::barrier_arrive_in(emptied, thread_of_group);
}
// Pass the 64 x COLUMNS sums of a warpgroup to the sink, 64 columns at a time, through each warp's
// slab, from which neighbours in a row are read together. Bits of the row are mixed into the
// column, so that the threads of a warp use different banks.
template <int COLUMNS, typename O>
__device__ __forceinline__ void drain(const float (&sums)[COLUMNS / 2], float* slab,
                                      const Sink<float, O>& sink, Corner corner, int lane) {
  auto at = [&](int row, int column) { return slab + row * SLAB_COLUMNS + (column ^ row % 4 * 8); };
  const bool packs = sink.template packs<PACK>();
#pragma unroll 1  // the epilogue is compiled once
  for (int first = 0; first < COLUMNS; first += SLAB_COLUMNS) {
    __syncwarp();  // no thread reads the slab any more
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; i += 2)  // an index known to the compiler: sums stay registers
      if (i / (SLAB_COLUMNS / 2) * SLAB_COLUMNS == first)
        store(at(lane / 4 + i / 2 % 2 * 8, i / 4 * 8 % SLAB_COLUMNS + lane % 4 * 2),
              Pack<float, 2>{{sums[i], sums[i + 1]}});
    __syncwarp();
#pragma unroll 1
    for (int i = lane * PACK; i < SLAB_ROWS * SLAB_COLUMNS; i += WARP * PACK) {
      const int row = i / SLAB_COLUMNS, column = i % SLAB_COLUMNS;
      const int to_row = corner.row + row, to_column = corner.column + first + column;
      const auto pack = load<Pack<float, PACK>>(at(row, column));
      if (packs) {
        sink(to_row, to_column, pack);
      } else {
#pragma unroll 1
        for (int e = 0; e < PACK; e++)
          sink(to_row, to_column + e, load<Pack<float, 1>>(at(row, column) + e));
      }
    }
  }
}
// Apply the epilogue to the products in a box, which are rounded already; `at` finds its elements.
template <typename O, typename At>
__device__ __forceinline__ void finish_box(At at, const Sink<float, O>& sink, Corner corner,
                                           int lane) {
  constexpr int N = PER_PACK<O>;
  const bool packs = sink.template packs<N>();
  auto finish = [&](int row, int column, auto like) {
    decltype(like)* place = reinterpret_cast<decltype(like)*>(at(row, column));
    const int to_row = corner.row + row, to_column = corner.column + column;
    if (to_row >= sink.m || to_column >= sink.n) return;
    Pack<float, sizeof(like) / sizeof(O)> sums;
#pragma unroll
    for (int e = 0; e < sizeof(like) / sizeof(O); e++) sums.of[e] = widen(place->of[e]);
    const long long out = static_cast<long long>(to_row) * sink.n + to_column;
    *place = sink.epilogue.finish(out, to_column, sums);
  };
#pragma unroll 1
  for (int i = lane * N; i < SLAB_ROWS * SLAB_COLUMNS; i += WARP * N) {
    const int row = i / SLAB_COLUMNS, column = i % SLAB_COLUMNS;
    if (packs) {
      finish(row, column, Pack<O, N>());
    } else {
#pragma unroll 1
      for (int e = 0; e < N; e++) finish(row, column + e, Pack<O, 1>());
    }
  }
}
// The same for results of 16 bits, which the accelerator stores through the map of `out`. The
// 16 bytes number i of row r of a box are at i ^ r % 8, as in `copy_tile`.
template <int COLUMNS, typename O>
__device__ __forceinline__ void store_boxes(const float (&sums)[COLUMNS / 2], unsigned char* slab,
                                            const Sink<float, O>& sink, const TensorMap* out,
                                            Corner corner, int item, int lane) {
  constexpr int N = PER_PACK<O>;
#pragma unroll 1  // the epilogue is compiled once
  for (int first = 0; first < COLUMNS; first += SLAB_COLUMNS) {
    unsigned char* box = slab + first / SLAB_COLUMNS % 2 * BOX_BYTES;
    auto at = [&](int row, int column) {
      return reinterpret_cast<O*>(box + row * ROW_BYTES) + (column / N ^ row % 8) * N + column % N;
    };
    if (lane == 0) ptx::store_wait<1>();  // this box has been read
    __syncwarp();
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; i += 8)  // an index known to the compiler
      if (i / (SLAB_COLUMNS / 2) * SLAB_COLUMNS == first)
        ptx::store_matrix_x4(at(lane % SLAB_ROWS, i * 2 % SLAB_COLUMNS + lane / SLAB_ROWS * 8),
                             {ptx::to_pair(sums[i], sums[i + 1], O()),
                              ptx::to_pair(sums[i + 2], sums[i + 3], O()),
                              ptx::to_pair(sums[i + 4], sums[i + 5], O()),
                              ptx::to_pair(sums[i + 6], sums[i + 7], O())});
    if (sink.epilogue.follows()) {
      __syncwarp();
      finish_box(at, sink, {corner.row, corner.column + first}, lane);
    }
    ptx::store_fence();
    __syncwarp();
    if (lane == 0) {
      ptx::store_tile(out, box, corner.column + first, corner.row, item);
      ptx::store_commit();
    }
  }
}
}  // namespace

template <typename T, typename O, int TILE_N, bool X_T, bool W_T, int CLUSTER>
__global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(HOPPER_THREADS, 1)
    matmul_wgmma(const __grid_constant__ TensorMap x, Strides x_strides,
                 const __grid_constant__ TensorMap w, Strides w_strides,
                 const __grid_constant__ TensorMap stored, int has_map, O* out,
                 const O* __restrict__ bias, Strides bias_strides, const O* __restrict__ aux,
                 float* __restrict__ parts, Axes axes, int m, int n, int k, int chunk, int pieces,
                 int items, int activation) {
  typedef SharedTile<T, TILE_M, !X_T> TileX;
  typedef SharedTile<T, TILE_N, W_T> TileW;
  typedef SharedTile<T, TILE_N / CLUSTER, W_T> ShareW;  // that a block copies for its cluster
  constexpr int K = TileX::K, SLOT = TileX::BYTES + TileW::BYTES, STAGES = SLOTS_BYTES / SLOT;
  GDT_DYNAMIC_SHARED(shared);
  GDT_SHARED(uint64_t, filled, [STAGES]);
  GDT_SHARED(uint64_t, emptied, [STAGES]);
  const int t = threadIdx.x, rank = CLUSTER > 1 ? ptx::cluster_rank() : 0;
  const int first_task = blockIdx.x / CLUSTER, task_step = gridDim.x / CLUSTER;
  const int tasks = count_tiles<CLUSTER * TILE_M, TILE_N>(m, n) * pieces * items;
  if (t == 0) {
    for (int slot = 0; slot < STAGES; slot++) {
      ptx::barrier_init(&filled[slot], 1);
      ptx::barrier_init(&emptied[slot], CLUSTER * MULTIPLIERS);
    }
    ptx::barrier_init_fence();
  }
  if (CLUSTER > 1) ptx::cluster_sync();  // a block arrives, and copies, in the other too
  __syncthreads();
  Turn<STAGES> turn;
  if (t < WARPGROUP) {
    ptx::lower_registers<FEEDER_REGISTERS>();
    for (int number = t == 0 ? first_task : tasks; number < tasks; number += task_step) {
      const Task task = find_task<CLUSTER * TILE_M, TILE_N>(number, m, n, k, chunk, pieces);
      const int x_item = static_cast<int>(offset(task.item, axes, x_strides)),
                w_item = static_cast<int>(offset(task.item, axes, w_strides));
      for (int at = task.first; at < task.end; at += K, turn.next()) {
        unsigned char* slot = shared + turn.slot * SLOT;
        ptx::barrier_wait(&emptied[turn.slot], turn.parity ^ 1);
        ptx::barrier_arrive_expecting(&filled[turn.slot], SLOT);
        TileX::copy(slot, &x, &filled[turn.slot], task.row + rank * TILE_M, at, x_item);
        ShareW::template copy<CLUSTER>(slot + TileX::BYTES + rank * ShareW::BYTES, &w,
                                       &filled[turn.slot],
                                       task.column + rank * (TILE_N / CLUSTER), at, w_item);
      }
    }
  } else {
    ptx::raise_registers<MULTIPLIER_REGISTERS>();
    const int group_row = (t / WARPGROUP - 1) * (TILE_M / MULTIPLIERS), warp = t / WARP % 4;
    unsigned char* slab = shared + SLOTS_BYTES + (t - WARPGROUP) / WARP * SLAB_BYTES;
    for (int number = first_task; number < tasks; number += task_step) {
      const Task task = find_task<CLUSTER * TILE_M, TILE_N>(number, m, n, k, chunk, pieces);
      float sums[TILE_N / 2];
      int before = -1;  // the slot whose products may not have ended
      for (int at = task.first; at < task.end; at += K, turn.next()) {
        const unsigned char* slot = shared + turn.slot * SLOT;
        ptx::barrier_wait(&filled[turn.slot], turn.parity);
        ptx::warpgroup_fence();
#pragma unroll
        for (int step = 0; step < ROW_BYTES / STEP_BYTES; step++)
          ptx::multiply_tiles<X_T, !W_T>(sums, TileX::describe(slot, group_row, step),
                                         TileW::describe(slot + TileX::BYTES, 0, step),
                                         at != task.first || step != 0, T());
        ptx::warpgroup_commit();
        ptx::warpgroup_wait<1>();
        if (before >= 0) release<CLUSTER>(&emptied[before], t % WARPGROUP);
        before = turn.slot;
      }
      ptx::warpgroup_finish(sums);
      release<CLUSTER>(&emptied[before], t % WARPGROUP);
      const Sink<float, O> sink =
          make_sink(out, bias ? bias + offset(task.item, axes, bias_strides) : nullptr, aux,
                    parts, activation, m, n, task.item, items, task.piece);
      const Corner corner = {task.row + rank * TILE_M + group_row + warp * SLAB_ROWS, task.column};
      if constexpr (sizeof(O) == 2) {
        if (has_map) {
          store_boxes<TILE_N>(sums, slab, sink, &stored, corner, task.item, t % WARP);
          continue;
        }
      }
      drain<TILE_N>(sums, reinterpret_cast<float*>(slab), sink, corner, t % WARP);
    }
    ptx::store_wait<0>();  // the slab has been read
  }
  if (CLUSTER > 1) ptx::cluster_sync();  // while blocks arrive and copy in this one, it stays
}
#endif
