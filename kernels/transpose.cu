// Transposition of matrices: out[c][r] = x[r][c], for products whose instructions take operands
// only where memory runs along the contraction.
//
// Arguments. x: (items..., rows, columns), whose rows begin x_row elements apart. out: (items,
// columns, width) with width = rows, rounded up to packs of 16 bytes; what is past the rows is 0.
//
// A block moves TILE x TILE elements. A thread reads PACK neighbours in each of PACK rows, in 16
// bytes each, and writes what it has of a column in 16 bytes to shared memory, from which lines of
// the result are read as packs:
//
//        x: PACK rows          line 4 j + c of the tile         out
//   thread (i, j) ->  a b c d                                   line by line, 16 threads each
//                     e f g h  ->  a e i m  at pack i ^ j  ->
//                     ...
//
// By i ^ j the eight threads that access shared memory together are at different banks, both times.
//
// Launch: block THREADS, grid (tiles, items). Not yet measured on a GPU.
#include "block.cuh"

constexpr int THREADS = 256;
constexpr int TILE = 64;

template <typename T>
__global__ void __launch_bounds__(THREADS)
    transpose(const T* __restrict__ x, Strides x_strides, long long x_row, T* __restrict__ out,
              Axes axes, int rows, int columns, int width) {
  constexpr int PACK = PER_PACK<T>, ACROSS = TILE / PACK;
  static_assert(ACROSS * ACROSS == THREADS, "a thread has one block of PACK x PACK");
  typedef Pack<T, PACK> Line;
  GDT_SHARED(Line, tile, [TILE * ACROSS]);
  const int across = (columns + TILE - 1) / TILE, t = threadIdx.x, i = t / ACROSS, j = t % ACROSS;
  const int first_row = static_cast<int>(blockIdx.x) / across * TILE,
            first_column = static_cast<int>(blockIdx.x) % across * TILE;
  const T* start = x + offset(blockIdx.y, axes, x_strides);
  const bool packs =
      misalignment(start) == 0 && x_row * static_cast<long long>(sizeof(T)) % PACK_BYTES == 0;
  const int column = first_column + j * PACK, left = columns - column;
  const int row = first_row + i * PACK, below = rows - row;
  const T* from = start + row * x_row + column;
  Line block[PACK];
  if (packs && left >= PACK && below >= PACK) {
#pragma unroll
    for (int e = 0; e < PACK; e++) block[e] = load<Line>(from + e * x_row);
  } else {
#pragma unroll
    for (int e = 0; e < PACK; e++)
#pragma unroll
      for (int c = 0; c < PACK; c++)
        block[e].of[c] = e < below && c < left ? from[e * x_row + c] : T();
  }
#pragma unroll
  for (int c = 0; c < PACK; c++) {
    Line line;
#pragma unroll
    for (int e = 0; e < PACK; e++) line.of[e] = block[e].of[c];
    tile[(j * PACK + c) * ACROSS + (i ^ j)] = line;
  }
  __syncthreads();
  T* to = out + static_cast<long long>(blockIdx.y) * columns * width;
  const int at = first_row + j * PACK;
#pragma unroll
  for (int e = 0; e < PACK; e++) {
    const int line = e * ACROSS + i;
    if (first_column + line < columns && at < width)
      store(to + static_cast<long long>(first_column + line) * width + at,
            tile[line * ACROSS + (j ^ line / PACK)]);
  }
}
