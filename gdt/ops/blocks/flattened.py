"""Reshaping where the boundaries of shards do not line up: intervals of the flattened array move.

An array that is split along one axis is, on each block, a few intervals of its elements in
row-major order. So is the result. What a block lacks of its intervals, others send it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from gdt.backend import backend_of
from gdt.comm.transport import Transfer, transport_of
from gdt.comm.vectors import cut, join, part_of
from gdt.engine.planned import BlockPlan
from gdt.observe import Collective
from gdt.sharding.array_type import ArrayType
from gdt.sharding.layout import Axes, Layout
from gdt.sharding.routes import route_bytes

Block = Any
MOST_INTERVALS = 256  # of one block


class Flattened(NamedTuple):
    """The plan of a reshape, and the bytes that it sends."""

    plan: BlockPlan
    nbytes: int


class Run(NamedTuple):
    """An interval of the flattened array: where it begins there and in what a block holds of it,
    and its length."""

    start: int
    place: int
    length: int


def plan_flattened(x: ArrayType, shape: tuple[int, ...]) -> Flattened | None:
    """The plan of a reshape that moves intervals of the flattened array; None for an array that is
    whole, or of no elements or axes."""
    axes = tuple(sorted({a for dim_axes in x.layout.dims for a in dim_axes}))
    if not axes or not shape or not math.prod(shape):
        return None
    have = x.with_layout(_split_along(x, x.shape, _split_dim(x, axes), axes))
    dim = _main_dim(shape, math.prod(x.mesh.sizes[a] for a in axes))
    out = ArrayType.of(shape, x.dtype, _split_along(x, shape, dim, axes))
    move = FlatMove(have, out, axes)
    collectives = tuple[Collective, ...]()
    if move.nbytes:
        names = tuple([x.mesh.axis_names[a] for a in axes])
        collectives = (Collective("exchange", names, move.nbytes, 1),)
    functions = () if x.mesh.divided else [lambda block: move([block])[0]]
    plan = BlockPlan([have.layout], out, functions, move, collectives)
    return Flattened(plan, move.nbytes + route_bytes(x, have.layout))


def _split_dim(x: ArrayType, axes: Axes) -> int:
    """The axis along which to split `x` before its intervals move."""
    split_dims = [d for d, of in enumerate(x.layout.dims) if of]
    is_simple = len(split_dims) == 1 and x.layout.dims[split_dims[0]] == axes
    if is_simple and math.prod(x.shape[: split_dims[0]]) <= MOST_INTERVALS:
        return split_dims[0]
    return _main_dim(x.shape, math.prod(x.mesh.sizes[a] for a in axes))


def _main_dim(shape: Sequence[int], shards: int) -> int:
    """The first axis that gives every shard an element; the longest one where none does."""
    long = [d for d, n in enumerate(shape) if n >= shards]
    return long[0] if long else max(range(len(shape)), key=lambda d: shape[d])


def _split_along(x: ArrayType, shape: Sequence[int], dim: int, axes: Axes) -> Layout:
    dims = tuple([axes if d == dim else () for d in range(len(shape))])
    return Layout.of(x.mesh, dims, x.layout.reductions)


class FlatMove:
    """Moves arrays of type `have`, split along one axis over the mesh axes `axes`, into arrays of
    type `want`, which has another shape and is split along one axis too."""

    def __init__(self, have: ArrayType, want: ArrayType, axes: Axes) -> None:
        self.have, self.want, self.axes, self.mesh = have, want, axes, have.mesh
        self.dims = [next(d for d, of in enumerate(t.layout.dims) if of) for t in (have, want)]

    @cached_property
    def nbytes(self) -> int:
        """The bytes that all devices together send."""
        shards = math.prod(self.mesh.sizes[a] for a in self.axes)
        copies = self.want.dtype.itemsize * (self.mesh.size // shards)
        (have, have_every), (want, want_every) = [
            _intervals(t, d, shards) for t, d in zip((self.have, self.want), self.dims, strict=True)
        ]
        size, shared = math.prod(self.want.shape), 0
        if not size:
            return 0
        for n in range(size // have_every):
            low, high = have + n * have_every
            # The intervals of the other type that may overlap with those.
            for k in range(n * have_every // want_every, -(-(n + 1) * have_every // want_every)):
                want_low, want_high = want + k * want_every
                both = np.minimum(high, want_high) - np.maximum(low, want_low)
                shared += int(np.maximum(both, 0).sum())
        return (size - shared) * copies

    def _parts(self, array_type: ArrayType, dim: int, number: int) -> list[Run]:
        return list(_runs(array_type, dim, part_of(array_type, dim, number)))

    def __call__(self, blocks: Sequence[Block]) -> list[Block]:
        """The blocks of the result."""
        mesh, backend, (source_dim, dim) = self.mesh, backend_of(self.mesh), self.dims
        first, lead = mesh.all_blocks.index(mesh.blocks[0]), (1,) * mesh.ndim
        flat, results = [], []
        for i, block in enumerate(blocks):
            with backend.on(mesh, i):
                flat.append(join(self.have, block, source_dim, first + i).reshape(-1))
                low, high = part_of(self.want, dim, first + i)
                shape = (*self.want.shape[:dim], high - low, *self.want.shape[dim + 1 :])
                if mesh.divided:
                    results.append(backend.empty((math.prod(shape),), self.want.dtype))
                else:
                    results.append(flat[0])
        if mesh.divided:
            self._exchange(flat, results, first)
        out = []
        for i, result in enumerate(results):
            with backend.on(mesh, i):
                low, high = part_of(self.want, dim, first + i)
                shape = (*self.want.shape[:dim], high - low, *self.want.shape[dim + 1 :])
                part = result.reshape(lead + shape)
                out.append(cut(backend.xp, part, self.want, dim, first + i))
        return out

    def _exchange(self, flat: Sequence[Block], results: Sequence[Block], first: int) -> None:
        mesh, backend = self.mesh, backend_of(self.mesh)
        own = range(first, first + len(mesh.blocks))
        sends, receives = [], []
        for source, target in self._pairs():
            if source not in own and target not in own:
                continue
            have = self._parts(self.have, self.dims[0], source)
            want = self._parts(self.want, self.dims[1], target)
            for at, to, n in _shared(have, want):
                if source == target:
                    with backend.on(mesh, source - first):
                        results[target - first][to : to + n] = flat[source - first][at : at + n]
                    continue
                if source in own:
                    sends.append(Transfer(source, target, flat[source - first][at : at + n]))
                if target in own:
                    receives.append(Transfer(source, target, results[target - first][to : to + n]))
        if self.nbytes:
            transport_of(mesh).exchange(sends, receives, str(self.want))

    def _pairs(self) -> Iterator[tuple[int, int]]:
        """Yield the pairs of blocks, by their numbers, that may send each other something: those
        that differ along the mesh axes `axes` alone."""
        rest = [
            tuple([c for k, c in enumerate(at) if k not in self.axes])
            for at in self.mesh.all_blocks
        ]
        for source, one in enumerate(rest):
            for target, other in enumerate(rest):
                if one == other:
                    yield source, target


def _intervals(array_type: ArrayType, dim: int, shards: int) -> tuple[np.ndarray, int]:
    """Return where the first interval of every shard of axis `dim` begins and ends in the flattened
    array, (2, shards), and how far apart the intervals of a shard are."""
    size, row = array_type.shape[dim], math.prod(array_type.shape[dim + 1 :])
    bounds = np.minimum(np.arange(shards + 1) * array_type.local_shape[dim], size)
    return np.stack([bounds[:-1], bounds[1:]]) * row, size * row


def _runs(array_type: ArrayType, dim: int, part: tuple[int, int]) -> Iterator[Run]:
    """Yield the intervals of the flattened array of which the indices `part` of axis `dim` are
    made."""
    (low, high), row = part, math.prod(array_type.shape[dim + 1 :])
    length = (high - low) * row
    for n in range(math.prod(array_type.shape[:dim]) if length else 0):
        yield Run((n * array_type.shape[dim] + low) * row, n * length, length)


def _shared(have: Sequence[Run], want: Sequence[Run]) -> Iterator[tuple[int, int, int]]:
    """Yield what two lists of intervals share: (place in the first, place in the second,
    length)."""
    i = k = 0
    while i < len(have) and k < len(want):
        one, other = have[i], want[k]
        low = max(one.start, other.start)
        high = min(one.start + one.length, other.start + other.length)
        if high > low:
            yield one.place + low - one.start, other.place + low - other.start, high - low
        if one.start + one.length <= other.start + other.length:
            i += 1
        else:
            k += 1
