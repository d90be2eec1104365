"""Philox-4x32-10 on arrays: the bits of any elements of a draw, from their global indices.

On the host a compiled loop computes them, where there are many: the same bits, faster.

Source: J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random numbers: as easy as 1,
2, 3", 2011. `gdt.random.bits` defines the words of each element and their conversion to numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from gdt.backend import empty, threads
from gdt.engine.loops import loop

Array: TypeAlias = Any
Namespace: TypeAlias = Any
HostArray: TypeAlias = npt.NDArray[Any]
Tile: TypeAlias = tuple[npt.NDArray[np.intp], npt.NDArray[np.uint64], int, int]
"""The rows of a tile, the first counter of each, the number of counters, and the first word's index
in a row."""

MULTIPLIER_0, MULTIPLIER_1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
WEYL_0, WEYL_1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
ROUNDS = 10
HALF, LOW = np.uint64(32), np.uint64(0xFFFFFFFF)

SMALLEST = 1 << 15
"""The fewest words of a tile for which the loop is worth importing numba."""

TILE = 1 << 15
"""Counters per tile on the host: buffers of 256 KiB stay in a CPU's caches."""


class CounterRun(NamedTuple):
    """Consecutive indices `start[..., None] + arange(length)`: a contiguous block, or rows of one.

    start: int or integer NumPy array of any shape, always on the host; rows may begin anywhere.

    >>> rows = CounterRun(np.array([0, 100]), 3)  # indices 0, 1, 2 and 100, 101, 102
    """

    start: int | HostArray
    length: int


def philox(
    xp: Namespace, counter: tuple[Array, Array, Array, Array], key: Array
) -> tuple[Array, Array]:
    """Return Philox-4x32-10 of counter words c0..c3: the pairs `(w0 << 32) + w1` and
    `(w2 << 32) + w3`.

    counter: uint64 arrays below 2^32; key: uint64 array; all of rank >= 1, broadcast together.
    A round takes (c0, c1, c2, c3) to (hi(c2 M1) ^ c1 ^ k0, lo(c2 M1), hi(c0 M0) ^ c3 ^ k1,
    lo(c0 M0)). In pairs a = (c0 << 32) + c1 and b = (c2 << 32) + c3 that is

        a, b = (b >> 32) * M1 ^ ((c1 ^ k0) << 32), (a >> 32) * M0 ^ ((c3 ^ k1) << 32)

    >>> a, b = philox(np, (np.zeros(1, np.uint64),) * 4, np.zeros(1, np.uint64))
    >>> hex(a[0]), hex(b[0])
    ('0x6627e8d5e169c58d', '0xbc57ac4c9b00dbd8')
    """
    c0, c1, c2, c3 = counter
    steps = xp.arange(ROUNDS, dtype=np.uint64).reshape((ROUNDS,) + (1,) * key.ndim)
    k0 = ((key & LOW) + steps * WEYL_0) << HALF  # the shift also takes the sum modulo 2^32
    k1 = ((key >> HALF) + steps * WEYL_1) << HALF
    # Words that all elements share (stream, upper half of the counter) stay small for two rounds.
    a, b = (c1 << HALF ^ k0[0]) ^ c2 * MULTIPLIER_1, (c3 << HALF ^ k1[0]) ^ c0 * MULTIPLIER_0
    a, b = (
        (a << HALF ^ k0[1]) ^ (b >> HALF) * MULTIPLIER_1,
        b << HALF ^ ((a >> HALF) * MULTIPLIER_0 ^ k1[1]),
    )
    high_a, high_b = xp.empty_like(a), xp.empty_like(b)
    for step in range(2, ROUNDS):
        xp.right_shift(a, HALF, out=high_a)
        xp.right_shift(b, HALF, out=high_b)
        high_a *= MULTIPLIER_0
        high_b *= MULTIPLIER_1
        a <<= HALF
        b <<= HALF
        a ^= k0[step]
        b ^= k1[step]
        a ^= high_b
        b ^= high_a
    return a, b


def as_uint64(xp: Namespace, value: Array | int) -> Array:
    """Return `value` as a uint64 array; an int becomes an array of rank 0, without a copy to a
    GPU."""
    if isinstance(value, int):
        return xp.full((), np.uint64(value), np.uint64)
    return xp.asarray(value, dtype=np.uint64)


def draw(
    xp: Namespace,
    index: Array | CounterRun,
    key: Array | int,
    stream: Array | int,
    word: npt.DTypeLike,
    dtype: npt.DTypeLike,
    finish: Callable[[Array], Array],
) -> Array:
    """Return `finish(bits)` for the bits of every element, in the broadcast shape of index, key and
    stream.

    word: the dtype of the bits, uint32 or uint64. dtype: the dtype of the result.
    finish: an element-wise function of the bits, called with a tile of them at a time; it may
        overwrite them.
    """
    key, stream = as_uint64(xp, key), as_uint64(xp, stream)
    word = np.dtype(word)
    is_shared = key.size == stream.size == 1
    if isinstance(index, CounterRun) and is_shared:
        start = np.asarray(index.start, dtype=np.uint64)
        shape = (start.size, index.length)
        out = empty(xp, shape, dtype)
        _fill_runs(xp, out, start.reshape(-1), key.reshape(1), stream.reshape(1), word, finish)
        return out.reshape((*start.shape, index.length))
    if isinstance(index, CounterRun):
        start = xp.asarray(np.asarray(index.start, dtype=np.uint64))
        index = start[..., None] + xp.arange(index.length, dtype=np.uint64)
    index = xp.asarray(index, dtype=np.uint64)
    shape = np.broadcast_shapes(index.shape, key.shape, stream.shape)
    operands = [
        operand.reshape(1) if operand.size == 1 else xp.broadcast_to(operand, shape).reshape(-1)
        for operand in (index, key, stream)
    ]
    out = xp.empty(int(np.prod(shape)), dtype)
    tile = _tile(xp, out.size)
    for first in range(0, out.size, tile):
        part = slice(first, first + tile)
        tiles = [operand if operand.size == 1 else operand[part] for operand in operands]
        out[part] = finish(_scattered_bits(xp, tiles[0], tiles[1], tiles[2], word))
    return out.reshape(shape)


def _tile(xp: Namespace, size: int) -> int:
    """Return the number of elements of a tile: `TILE` on a CPU, all of them on a GPU."""
    return TILE if xp is np else max(size, 1)


def _scattered_bits(
    xp: Namespace, index: Array, key: Array, stream: Array, word: np.dtype[Any]
) -> Array:
    """Return the bits of any indices, each from its own counter; 1-d operands that broadcast."""
    wide = word.itemsize == 8
    counter = index >> np.uint64(1 if wide else 2)
    a, b = philox(xp, (counter & LOW, counter >> HALF, stream & LOW, stream >> HALF), key)
    if wide:
        return xp.where(index & np.uint64(1), b, a)
    pair = xp.where(index & np.uint64(2), b, a)
    pair >>= (~index & np.uint64(1)) << np.uint64(5)  # an even index takes the upper half
    return pair.astype(word)


def _fill_runs(
    xp: Namespace,
    out: Array,
    starts: npt.NDArray[np.uint64],
    key: Array,
    stream: Array,
    word: np.dtype[Any],
    finish: Callable[[Array], Array],
) -> None:
    """Fill row r of `out` from indices `starts[r] + arange(length)`, computing each counter once.

    Rows that begin at the same word of a counter are computed together, in tiles of counters.
    """
    length = out.shape[1]
    per_counter = 16 // word.itemsize
    phases = starts % np.uint64(per_counter)
    tiles: list[Tile] = []
    for phase in sorted(set(phases.tolist())) if length else ():
        rows = np.flatnonzero(phases == phase)
        counters = -(-(phase + length) // per_counter)
        columns = min(counters, _tile(xp, counters))
        group = max(1, _tile(xp, rows.size * counters) // counters)
        for row in range(0, rows.size, group):
            some_rows = rows[row : row + group]
            first = starts[some_rows] // np.uint64(per_counter)
            for column in range(0, counters, columns):
                width = min(columns, counters - column)
                first_word = (
                    column * per_counter - phase
                )  # the tile's first word, as an index in the row
                tiles.append((some_rows, first + np.uint64(column), width, first_word))

    def fill(some: slice) -> None:
        for rows, first, width, first_word in tiles[some]:
            bits = _consecutive_bits(xp, first, width, key, stream, word)
            begin, end = max(first_word, 0), min(first_word + bits.shape[1], length)
            part = bits[:, begin - first_word : end - first_word]
            out[_as_index(xp, rows), begin:end] = finish(part)

    threads.in_turns(fill, threads.count_for(out.size) if xp is np else 1)


def _as_index(xp: Namespace, rows: npt.NDArray[np.intp]) -> Any:
    """Return row numbers as an index: a slice where they are adjacent, else an array."""
    first, last = int(rows[0]), int(rows[-1])
    return slice(first, last + 1) if last - first + 1 == rows.size else xp.asarray(rows)


def _consecutive_bits(
    xp: Namespace,
    first: npt.NDArray[np.uint64],
    width: int,
    key: Array,
    stream: Array,
    word: np.dtype[Any],
) -> Array:
    """Return all words of counters `first[:, None] + arange(width)` in order: (rows, words)."""
    fill = _philox_pairs["d"] if xp is np and 2 * width * first.size >= SMALLEST else None
    if fill is not None:
        pairs = np.empty((first.size, 2 * width), np.uint64)
        words = [int(half) for n in (key[0], stream[0]) for half in (n & LOW, n >> HALF)]
        fill(pairs.reshape(-1), first, *words, int(word.itemsize == 4))
        return pairs.view(word)
    low = xp.asarray(first & LOW)[:, None] + xp.arange(width, dtype=np.uint64)
    high = xp.asarray(first >> HALF)[:, None]
    if int((first & LOW).max()) + width > 1 << 32:  # a row crosses a multiple of 2^32
        low, high = low & LOW, high + (low >> HALF)
    a, b = philox(xp, (low, high, stream & LOW, stream >> HALF), key)
    bits = xp.empty((*low.shape, 16 // word.itemsize), word)
    if word.itemsize == 8:
        bits[..., 0], bits[..., 1] = a, b
    else:
        bits[..., 1], bits[..., 3] = a, b
        a >>= HALF
        b >>= HALF
        bits[..., 0], bits[..., 2] = a, b
    return bits.reshape(low.shape[0], -1)


@loop("words, words, int, int, int, int, int")
def _philox_pairs(
    out: Array, first: Array, k0: int, k1: int, s0: int, s1: int, is_narrow: int
) -> None:
    """Write both pairs of words of equally many counters from each of `first` on; if `is_narrow`,
    with halves swapped, so that they are 32-bit words in order in memory.

    Each word stands in the lower half of a uint64, whatever the upper half holds: vectors of them
    are multiplied by one instruction for several counters (pmuludq), which reads lower halves.
    """
    width = out.size // (2 * first.size)
    turn = np.uint64(0) if is_narrow else HALF
    for row in range(first.size):
        pairs = out[2 * row * width : 2 * (row + 1) * width]
        for i in range(width):
            c0 = first[row] + np.uint64(i)
            c1, c2, c3 = c0 >> HALF, np.uint64(s0), np.uint64(s1)
            key_0, key_1 = np.uint64(k0), np.uint64(k1)
            for _ in range(ROUNDS):
                product_0, product_1 = (c0 & LOW) * MULTIPLIER_0, (c2 & LOW) * MULTIPLIER_1
                c0, c2 = (product_1 >> HALF) ^ c1 ^ key_0, (product_0 >> HALF) ^ c3 ^ key_1
                c1, c3 = product_1, product_0
                key_0 += WEYL_0
                key_1 += WEYL_1
            a, b = (c0 & LOW) | (c1 << HALF), (c2 & LOW) | (c3 << HALF)
            pairs[2 * i] = (a >> turn) | (a << turn)
            pairs[2 * i + 1] = (b >> turn) | (b << turn)
