// Shared by the kernels of Hopper (sm_90a): blocks of three warpgroups, of which the first starts
// copies and two multiply, and tiles in shared memory that the tensor memory accelerator writes and
// wgmma reads.
#pragma once
#include "block.cuh"

constexpr int HOPPER_THREADS = 384;
constexpr int WARPGROUP = 128;
constexpr int MULTIPLIERS = 2;
constexpr int ROW_BYTES = 128;    // a row of a tile in shared memory, which the swizzle spans
constexpr int STEP_BYTES = 32;    // the part of k of one wgmma
constexpr int ATOM_BYTES = 1024;  // eight rows, after which the swizzle repeats

#if defined(GDT_CPU) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
namespace {
// The descriptor of a tile that was copied with the swizzle of 128 bytes: 8 rows are `stride` bytes
// apart, and 64 lines, where rows run across k, `leading` bytes.
__device__ __forceinline__ uint64_t describe_tile(const void* tile, int leading, int stride) {
  constexpr uint64_t SWIZZLE_128 = 1ull << 62;
  return ptx::shared_address(tile) >> 4 | static_cast<uint64_t>(leading >> 4) << 16 |
         static_cast<uint64_t>(stride >> 4) << 32 | SWIZZLE_128;
}
// The descriptor of a tile that begins so many bytes further on.
__device__ __forceinline__ uint64_t move_tile(uint64_t descriptor, int bytes) {
  return descriptor + (bytes >> 4);
}
// One factor's tile in a slot: LINES (rows of x, columns of w) by 128 bytes of k. ALONG_K:
// neighbours in memory are neighbours in k.
template <typename T, int LINES, bool ALONG_K> struct SharedTile {
  static constexpr int ROW = ROW_BYTES / sizeof(T), K = ROW, BYTES = LINES * ROW_BYTES;
  static constexpr int BOX = ROW * ROW_BYTES;  // bytes of 64 lines across k

  // For each of BLOCKS blocks of a cluster.
  template <int BLOCKS = 1>
  static __device__ __forceinline__ void copy(unsigned char* to, const TensorMap* map,
                                              uint64_t* filled, int line, int k, int item) {
#pragma unroll
    for (int i = 0; i < (ALONG_K ? 1 : LINES / ROW); i++) {
      const int along = ALONG_K ? k : line + i * ROW, row = ALONG_K ? line : k;
      if (BLOCKS == 1) ptx::copy_tile(to + i * BOX, map, filled, along, row, item);
      else ptx::copy_tile_to_all<BLOCKS>(to + i * BOX, map, filled, along, row, item);
    }
  }
  // Lines from `line`, a multiple of 64, on; `step` counts the products of a slot.
  static __device__ __forceinline__ uint64_t describe(const unsigned char* tile, int line,
                                                      int step) {
    constexpr int K_STEP = STEP_BYTES / sizeof(T);
    const int at = ALONG_K ? line * ROW_BYTES + step * STEP_BYTES
                           : line / ROW * BOX + step * K_STEP * ROW_BYTES;
    return describe_tile(tile + at, BOX, ATOM_BYTES);
  }
};
}  // namespace
#endif
