"""Attention of blocks: a block of queries meets one block of keys after the other."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from gdt.backend import empty
from gdt.nn.functions.attention.loops import exponentials, score_gradients
from gdt.ops.blocks.philox import CounterRun, draw

Block = Any

# Queries and keys of a block, and scores that are computed together. Measured on the host where
# all keys are seen: blocks of 256 and 512 take 1.04 times as long. Under a causal mask blocks of
# 128 and 256, which skip more, take 0.82 of the time. Several heads at a time only pay where a head
# has few scores.
HOST_BLOCK, HOST_CAUSAL_BLOCK, HOST_SCORES = (512, 512), (128, 256), 1 << 16
GPU_BLOCK, GPU_SCORES = (1024, 1024), 1 << 26
GPU_DRAWN = 1 << 23  # scores with random numbers, which take some 64 bytes each while drawn


class TilePosition(NamedTuple):
    """The place of a tile of queries and a tile of keys in the whole sequence.

    first_query, first_key: positions, numbers on the host or arrays of a device. keys: how many
    keys of the tile are no padding; None for all. causal: whether a query sees the keys of its own
    and of earlier positions alone.
    """

    first_query: Any = 0
    first_key: Any = 0
    keys: Any = None
    causal: bool = False

    def visible(self, xp: Any, rows: slice, columns: slice) -> Block | None:
        """Return which keys the queries see, (queries, keys), or None where they see all."""
        seen = None
        if self.causal:
            ahead = self.first_query + rows.start - self.first_key - columns.start
            if not isinstance(ahead, int) or ahead < columns.stop - columns.start - 1:
                query = xp.arange(rows.stop - rows.start)[:, None] + ahead
                seen = xp.arange(columns.stop - columns.start) <= query
        if self.keys is not None and not (isinstance(self.keys, int) and columns.stop <= self.keys):
            real = (xp.arange(columns.start, columns.stop) < self.keys)[None, :]
            seen = real if seen is None else seen & real
        return seen

    def blocks(self, keys: int, step: int, rows: slice) -> list[slice]:
        """Return blocks of at most `step` of the keys of a tile, up to the last key that a query of
        `rows` may see."""
        if isinstance(self.keys, int):
            keys = min(keys, self.keys)
        if self.causal:
            last = self.first_query + rows.stop - self.first_key
            keys = min(keys, last) if isinstance(last, int) else keys
        return _cuts(keys, step)


class Drops(NamedTuple):
    """The weights that dropout keeps: those of which `gdt.random.bernoulli` draws True as elements
    of the whole array of weights, (..., queries, keys).

    key: uint64. rate: the probability that a weight is dropped. heads: the index of every head of a
    tile among those of the whole array. queries, keys: sizes of the whole array.
    """

    key: Block
    rate: float
    heads: Block
    queries: int
    keys: int

    def kept(
        self, xp: Any, heads: slice, place: TilePosition, rows: slice, columns: slice
    ) -> Block:
        """Return which weights of a block are kept: (heads, queries, keys)."""
        queries = place.first_query + xp.arange(rows.start, rows.stop)
        first = (self.heads[heads, None] * self.queries + queries) * self.keys
        first = first + (place.first_key + columns.start)  # (heads, queries)
        index: Any = CounterRun(first, columns.stop - columns.start)
        if xp is not np:
            index = first[..., None] + xp.arange(index.length)
        largest = math.ceil((1 - self.rate) * 2.0**32) - 1
        return draw(xp, index, self.key, 0, np.uint32, bool, lambda bits: bits <= largest)


def _wide(x: Block) -> Block:
    """Return x in the dtype in which scores are computed: float32 for float16."""
    return x.astype(np.float32) if x.dtype.itemsize < 4 else x


def _cuts(size: int, step: int) -> list[slice]:
    return [slice(at, min(at + step, size)) for at in range(0, size, step)]


def _heads(xp: Any, q: Block, k: Block, steps: tuple[int, int], drops: Drops | None) -> list[slice]:
    """Return the parts of the first axis, heads of all sequences, that are computed together."""
    each = max(min(q.shape[1], steps[0]) * min(k.shape[1], steps[1]), 1)
    on_gpu = GPU_SCORES if drops is None else GPU_DRAWN
    return _cuts(q.shape[0], max((HOST_SCORES if xp is np else on_gpu) // each, 1))


def _steps(xp: Any, place: TilePosition) -> tuple[int, int]:
    """Return how many queries and how many keys a block has."""
    if xp is not np:
        return GPU_BLOCK
    return HOST_CAUSAL_BLOCK if place.causal else HOST_BLOCK


class _Memory:
    """Memory for products of blocks, which every product overwrites."""

    def __init__(self, xp: Any, *operands: Block) -> None:
        self.xp = xp
        self.flat = xp.empty(0, xp.result_type(*[_wide(x[:0]).dtype for x in operands]))

    def product(self, x: Block, y: Block) -> Block:
        """Return x times the transpose of y: (heads, rows of x, rows of y)."""
        shape = (*x.shape[:-1], y.shape[-2])
        size = math.prod(shape)
        if self.flat.size < size:
            self.flat = empty(self.xp, (size,), self.flat.dtype)
        return self.xp.matmul(x, y.swapaxes(-1, -2), out=self.flat[:size].reshape(shape))


def _hide(
    xp: Any, scores: Block, mask: Block, place: TilePosition, rows: slice, columns: slice
) -> None:
    """Set scores (heads, queries, keys) to -inf where a query does not see a key."""
    for seen in (place.visible(xp, rows, columns), _masked(mask, rows, columns)):
        if seen is not None:
            xp.copyto(scores, -math.inf, where=~seen)


def _masked(mask: Block, rows: slice, columns: slice) -> Block | None:
    """Return a block of a mask (heads, queries, keys) whose axes of length 1 are for all."""
    if mask is None:
        return None
    cuts = [whole if n == 1 else cut for n, cut, whole in (
        (mask.shape[1], rows, slice(None)), (mask.shape[2], columns, slice(None))
    )]  # fmt: skip
    return mask[(slice(None), *cuts)]


def attend(
    xp: Any,
    q: Block,
    k: Block,
    v: Block,
    mask: Mask | None,
    place: TilePosition,
    scale: float,
    drops: Drops | None = None,
) -> tuple[Block, Block]:
    """Return softmax(scale * q k^T) v, and the logarithms of the softmax's denominators.

    q: (heads, queries, e), k: (heads, keys, e), v: (heads, keys, f). Results: (heads, queries, f),
    (heads, queries); of a query that sees no key 0 and -inf. drops: which weights are dropped, as
    if they were 0, while the others are divided by the probability that they are not.
    """
    dtype = xp.result_type(_wide(q).dtype, _wide(v).dtype)
    out = empty(xp, (*q.shape[:2], v.shape[-1]), dtype)
    denominators = xp.empty(q.shape[:2], dtype)
    steps, memory = _steps(xp, place), _Memory(xp, q, k)
    for heads in _heads(xp, q, k, steps, drops):
        own = None if mask is None else mask.of(heads)
        for rows in _cuts(q.shape[1], steps[0]):
            state = None
            queries = _wide(q[heads, rows]) * scale
            for columns in place.blocks(k.shape[1], steps[1], rows):
                keys, values = (_wide(a[heads, columns]) for a in (k, v))
                scores = memory.product(queries, keys)
                _hide(xp, scores, own, place, rows, columns)
                kept = None if drops is None else drops.kept(xp, heads, place, rows, columns)
                state = _joined(xp, state, scores, values, kept)
            if state is None:
                out[heads, rows], denominators[heads, rows] = 0, -np.inf
                continue
            maximum, total, sums = state
            if drops is not None:
                sums *= 1 / (1 - drops.rate)
            out[heads, rows] = sums / xp.where(total == 0, total.dtype.type(1), total)
            with np.errstate(divide="ignore"):
                denominators[heads, rows] = (maximum + xp.log(total))[..., 0]
    return out, denominators


def _joined(
    xp: Any, state: Any, scores: Block, values: Block, kept: Block | None
) -> tuple[Block, Block, Block]:
    """Return the maximum, the sum of exponentials and the sum of values, weighted by those that are
    kept, so far."""
    shape = (*scores.shape[:-1], 1)
    maximum = xp.full(shape, -np.inf, scores.dtype) if state is None else state[0].copy()
    weights = exponentials(xp, scores, maximum, is_maximum=True)
    ones = xp.ones((weights.shape[-1], 1), weights.dtype)
    total = weights @ ones  # a product takes half the time of a sum
    sums = (weights if kept is None else xp.multiply(weights, kept, out=weights)) @ values
    if state is not None:
        share = exponentials(xp, state[0], maximum)
        total += share * state[1]
        sums += share * state[2]
    return maximum, total, sums


def gradients(
    xp: Any,
    q: Block,
    k: Block,
    v: Block,
    mask: Mask | None,
    g: Block,
    denominators: Block,
    products: Block,
    place: TilePosition,
    scale: float,
    drops: Drops | None = None,
) -> tuple[Block, Block, Block]:
    """Return the gradients in q, k and v, with the weights computed, and dropped, anew.

    g: (heads, queries, f), the cotangent. denominators: as `attend` returns them. products:
    (heads, queries), the products of each result with its cotangent.
    """
    dtype = denominators.dtype
    g_q, g_k, g_v = (empty(xp, a.shape, dtype) for a in (q, k, v))
    for a in (g_q, g_k, g_v):
        a.fill(0)
    steps = _steps(xp, place)
    of_scores, of_gradients = _Memory(xp, q, k), _Memory(xp, g, v)
    share = dtype.type(1 if drops is None else 1 / (1 - drops.rate))
    shifts = xp.where(denominators == -np.inf, dtype.type(np.inf), denominators)[..., None]
    for heads in _heads(xp, q, k, steps, drops):
        own = None if mask is None else mask.of(heads)
        for rows in _cuts(q.shape[1], steps[0]):
            queries, cotangent = _wide(q[heads, rows]) * scale, _wide(g[heads, rows])
            product = products[heads, rows][..., None]
            for columns in place.blocks(k.shape[1], steps[1], rows):
                keys, values = (_wide(a[heads, columns]) for a in (k, v))
                scores = of_scores.product(queries, keys)
                _hide(xp, scores, own, place, rows, columns)
                weights = exponentials(xp, scores, shifts[heads, rows])  # (heads, queries, keys)
                g_scores = of_gradients.product(cotangent, values)
                used = weights
                if drops is not None:
                    factors = drops.kept(xp, heads, place, rows, columns) * share
                    g_scores *= factors
                    used = weights * factors
                g_v[heads, columns] += used.swapaxes(-1, -2) @ cotangent
                score_gradients(xp, g_scores, weights, product)
                g_q[heads, rows] += g_scores @ keys
                g_k[heads, columns] += g_scores.swapaxes(-1, -2) @ queries
    g_q *= scale
    return g_q, g_k, g_v


def tiles_of(
    xp: Any, mesh_shape: tuple[int, ...], tiles: int, batch: tuple[int, ...], *blocks: Block
) -> Iterator[tuple[tuple[int, ...], int, list[Block]]]:
    """Yield for every coordinate and every tile there the parts of blocks, (heads, positions,
    features): coordinate, tile, parts.

    Blocks are (mesh axes..., batch..., tiles, positions, features), whose leading axes broadcast.
    """
    for at in np.ndindex(*mesh_shape):
        for tile in range(tiles):
            yield at, tile, [_flat(xp, own, batch) for own in _at(at, tile, blocks)]


def _at(at: tuple[int, ...], tile: int, blocks: tuple[Block, ...]) -> Iterator[Block]:
    """Yield of every block the part at a coordinate and in a tile, (batch..., positions,
    features)."""
    for block in blocks:
        sizes = block.shape[: len(at)]
        index = tuple(i if n > 1 else 0 for i, n in zip(at, sizes, strict=True))
        yield block[index][..., tile if block.shape[-3] > 1 else 0, :, :]


def _flat(xp: Any, part: Block, batch: tuple[int, ...]) -> Block:
    """Return a part (batch..., positions, features) as (heads, positions, features)."""
    shape = part.shape[-2:]
    if part.shape[:-2] != batch:
        part = xp.broadcast_to(part, (*batch, *shape))
    return part.reshape(math.prod(batch), *shape)


def block_of_tiles(
    xp: Any,
    mesh_shape: tuple[int, ...],
    tiles: int,
    batch: tuple[int, ...],
    results: Sequence[Sequence[Block]],
) -> Iterator[Block]:
    """Yield each result of all tiles in one block: the parts (heads, ...) of `tiles_of`, in its
    order, become (mesh axes..., batch..., tiles, ...)."""
    first, last = len(mesh_shape), len(mesh_shape) + len(batch)
    for parts in zip(*results, strict=True):
        part = parts[0]
        whole = part if len(parts) == 1 else xp.stack(parts)  # else a copy
        whole = whole.reshape(*mesh_shape, tiles, *batch, *part.shape[1:])
        others = range(last + 1, whole.ndim)
        yield whole.transpose(*range(first), *range(first + 1, last + 1), first, *others)


class Mask(NamedTuple):
    """A mask of a tile, (sequences, queries or 1, keys or 1), and the sequence of every head."""

    values: Block
    sequences: Block

    def of(self, heads: slice) -> Block:
        """Return the mask of some heads."""
        return self.values if len(self.values) == 1 else self.values[self.sequences[heads]]


def mask_of_tile(
    xp: Any, mask: Block, at: tuple[int, ...], tile: int, batch: tuple[int, ...]
) -> Mask | None:
    """Return the mask of the heads at a coordinate: all positions; None if there is no mask."""
    if not hasattr(mask, "ndim") or not mask.ndim:
        return None
    (part,) = _at(at, tile, (mask,))
    *sizes, queries, keys = part.shape
    count = math.prod(sizes)
    every = xp.broadcast_to(xp.arange(count).reshape(sizes), batch).reshape(-1)
    return Mask(part.reshape(count, queries, keys), every)


def cut_mask(
    xp: Any, mask: Mask | None, place: TilePosition, queries: int, keys: int
) -> Mask | None:
    """Return the part of a mask of all positions that belongs to the tiles of a place."""
    if mask is None:
        return None
    values = mask.values
    for axis, first, count in ((1, place.first_query, queries), (2, place.first_key, keys)):
        size = values.shape[axis]
        if size > 1 and size != count:  # a tile may be longer: its padding repeats the last
            values = xp.take(values, xp.minimum(first + xp.arange(count), size - 1), axis)
    return mask._replace(values=values)
