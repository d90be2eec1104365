"""The geometry of a recut: contiguous index intervals of one dim that move between coordinates.

Slicing, concatenation, flip, pad, roll and relayouts whose shards do not line up are all the same
movement: some intervals of the sources' indices along `dim` become intervals of the result's. This
module computes which intervals move and how many bytes; `gdt.comm.recut` moves them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from gdt.sharding.array_type import ArrayType
from gdt.sharding.layout import Axes

Index = tuple[slice, ...]
Padding = tuple[Index, Index | None]  # the padding, and the element that it repeats; None: ones
Margins = tuple[tuple[int, int, int], ...]  # axis, indices added before, and after


class Piece(NamedTuple):
    """An interval that moves: `out[start + i * stride] = sources[source][at + i * step]` along the
    dim, for i in `range(count)`.

    `stride` is positive; `step` may be negative.
    """

    source: int
    at: int
    start: int
    count: int  # type: ignore[assignment]  # hides the method tuple.count
    step: int = 1
    stride: int = 1

    def transposed(self) -> Piece:
        """Return the piece that carries a cotangent of the result, as source 0, to the source."""
        last = self.count - 1
        if self.step > 0:
            return Piece(0, self.start, self.at, self.count, self.stride, self.step)
        return Piece(
            0,
            self.start + last * self.stride,
            self.at + last * self.step,
            self.count,
            -self.stride,
            -self.step,
        )


class Recut:
    """The movement of `pieces` of arrays of types `have` into one array of type `want`.

    have: the types of the sources, which have equal layouts. want: the type of the result.
    dim: the array axis along which the pieces lie. fill: the value of indices of the result that no
    piece covers, a number or its bytes. adds: whether pieces that overlap in the result are added
    up. margins: what the result has around the pieces along axes that are not split, also `fill`.
    """

    def __init__(
        self,
        have: Sequence[ArrayType],
        want: ArrayType,
        dim: int,
        pieces: Sequence[Piece],
        fill: Any = 0,
        *,
        adds: bool = False,
        margins: Margins = (),
    ) -> None:
        self.have, self.want, self.dim, self.adds = tuple(have), want, dim, adds
        self.fill = np.frombuffer(fill, want.dtype)[0].item() if type(fill) is bytes else fill
        self.pieces = tuple(p for p in pieces if p.count > 0)
        self.mesh, self.margins = want.mesh, margins
        self.source_axes = self.have[0].layout.dims[dim]
        self.target_axes = want.layout.dims[dim]
        self.covered = sum(p.count for p in self.pieces)

    def _runs(self, shard: int) -> Iterator[tuple[int, int, slice, slice, int]]:
        """Yield the copies into shard `shard` of the result: (source, shard of the source, interval
        in that shard, interval in `shard`, count)."""
        low, high = self.want.extent(self.dim, shard)
        for source, at, start, count, step, stride in self.pieces:
            chunk = self.have[source].local_shape[self.dim]
            i, end = max(0, -((start - low) // stride)), min(count, -((start - high) // stride))
            while i < end:
                owner, offset = divmod(at + i * step, chunk)
                room = (chunk - 1 - offset) // step + 1 if step > 0 else offset // -step + 1
                run = min(room, end - i)
                stop, first = offset + step * run, start + i * stride - low
                interval = slice(offset, stop if stop >= 0 else None, step)
                yield (
                    source,
                    owner,
                    interval,
                    slice(first, first + (run - 1) * stride + 1, stride),
                    run,
                )
                i += run

    @property
    def shards(self) -> int:
        """The number of shards of the dim in the result."""
        return self.want.layout.num_shards(self.dim)

    @cached_property
    def nbytes(self) -> int:
        """The bytes that all devices together send."""
        sizes = self.mesh.sizes
        axes = sorted({*self.source_axes, *self.target_axes})
        if not axes:
            return 0
        at = np.indices([sizes[a] for a in axes]).reshape(len(axes), -1)
        coordinates = dict(zip(axes, at, strict=True))
        low, high = self._extents(self.want, self.target_axes, coordinates)
        total = 0
        for source, first, start, count, step, stride in self.pieces:
            have = self.have[source]
            own_low, own_high = self._extents(have, self.source_axes, coordinates)
            if step > 0:
                own = -((first - own_low) // step), -((first - own_high) // step)
            else:
                own = (first - own_high) // -step + 1, (first - own_low) // -step + 1
            begin = np.maximum(0, -((start - low) // stride))
            end = np.minimum(count, -((start - high) // stride))
            lacking = np.maximum(end - begin, 0)
            lacking -= np.maximum(np.minimum(end, own[1]) - np.maximum(begin, own[0]), 0)
            rows = math.prod(n for d, n in enumerate(have.local_shape) if d != self.dim)
            total += int(lacking.sum()) * rows
        copies = self.mesh.size // math.prod(sizes[a] for a in axes)
        return total * copies * self.want.dtype.itemsize

    def _extents(
        self, array_type: ArrayType, axes: Axes, coordinates: dict[int, np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return where the shards of all coordinates begin and end along the dim, as
        `ArrayType.extent` has them."""
        shard: Any = 0
        for a in axes:
            shard = shard * self.mesh.sizes[a] + coordinates[a]
        size, chunk = array_type.shape[self.dim], array_type.local_shape[self.dim]
        low = np.minimum(shard * chunk, size)
        return low, np.minimum(low + chunk, size)

    @property
    def is_join(self) -> bool:
        """Whether the sources are whole along the dim and are put end to end."""
        sizes = [t.shape[self.dim] for t in self.have]
        starts = itertools.accumulate(sizes, initial=0)
        whole = [
            Piece(i, 0, start, size)
            for i, (size, start) in enumerate(zip(sizes, starts, strict=False))
        ]
        is_split = self.source_axes or self.target_axes
        return not is_split and self.is_covered and not self.margins and [*self.pieces] == whole

    @property
    def is_covered(self) -> bool:
        """Whether every index of the result comes from a source."""
        return not self.adds and self.covered == self.want.shape[self.dim]

    @cached_property
    def moves(self) -> list[tuple[int, int, int, Index, Index]]:
        """The copies in which blocks of this process take part: (source, position of the block that
        sends, position of the block that receives, index in the first, index in the second). All
        processes list them in the same order."""
        position = {at: i for i, at in enumerate(self.mesh.all_blocks)}
        own = {position[at] for at in self.mesh.blocks}
        moves = []
        for target, grid in enumerate(self.mesh.all_blocks):
            for place, shard in self._hosted(grid):
                for source, owner, source_interval, interval, _ in self._runs(shard):
                    at, inside = self._owner(owner, grid)
                    if own & {position[at], target}:
                        indices = self._index(inside, source_interval), self._index(place, interval)
                        moves.append((source, position[at], target, *indices))
        return moves

    @cached_property
    def gaps(self) -> list[list[Index]]:
        """For every block of the result in this process, the intervals that no piece covers; all of
        it where pieces are added up, or leave indices between theirs."""
        if self.adds or (not self.is_covered and any(p.stride > 1 for p in self.pieces)):
            return [[(slice(None),)] for _ in self.mesh.blocks]
        around: list[Index] = []
        for axis, before, after in self.margins:
            others, size = (slice(None),) * (self.mesh.ndim + axis), self.want.shape[axis]
            around += [(*others, slice(before)), (*others, slice(size - after, size))]
        if self.is_covered:
            return [around for _ in self.mesh.blocks]
        starts = [*sorted(p.start for p in self.pieces), self.want.shape[self.dim]]
        stops = [0, *sorted(p.start + p.count for p in self.pieces)]
        gaps = [*zip(stops, starts, strict=True)]
        return [
            around
            + [
                self._index(place, slice(max(start, low) - low, min(stop, high) - low))
                for place, shard in self._hosted(grid)
                for low, high in [self.want.extent(self.dim, shard)]
                for start, stop in gaps
                if max(start, low) < min(stop, high)
            ]
            for grid in self.mesh.blocks
        ]

    @cached_property
    def inside(self) -> Index:
        """The index of the part of a block of the result that lies within the margins."""
        index = [slice(None)] * (self.mesh.ndim + self.want.ndim)
        for axis, before, after in self.margins:
            index[self.mesh.ndim + axis] = slice(before, self.want.shape[axis] - after)
        return tuple(index)

    @cached_property
    def padding(self) -> list[list[Padding]]:
        """For every block of the result in this process, the intervals of padding, each of which
        repeats the last valid element before it."""
        paddings = []
        for grid in self.mesh.blocks:
            padding: list[Padding] = []
            for place, shard in self._hosted(grid):
                low, high = self.want.extent(self.dim, shard)
                valid, chunk = high - low, self.want.local_shape[self.dim]
                if valid < chunk:
                    edge = self._index(place, slice(valid - 1, valid)) if valid else None
                    padding.append((self._index(place, slice(valid, chunk)), edge))
            paddings.append(padding)
        return paddings

    def _hosted(self, grid: tuple[int, ...]) -> Iterator[tuple[dict[int, int], int]]:
        """Yield the shards of the result in the block at `grid`: ({mesh axis: index in the box},
        shard)."""
        box = self.mesh.box
        for inside in itertools.product(*(range(box[a]) for a in self.target_axes)):
            place = dict(zip(self.target_axes, inside, strict=True))
            shard = 0
            for a in self.target_axes:
                shard = shard * self.mesh.sizes[a] + grid[a] * box[a] + place[a]
            yield place, shard

    def _owner(self, shard: int, grid: tuple[int, ...]) -> tuple[tuple[int, ...], dict[int, int]]:
        """Return the block from which the block at `grid` takes shard `shard` of a source: its grid
        coordinate, and {mesh axis: index in its box}."""
        at, inside = list(grid), {}
        for a in reversed(self.source_axes):
            shard, c = divmod(shard, self.mesh.sizes[a])
            at[a], inside[a] = divmod(c, self.mesh.box[a])
        return tuple(at), inside

    def _index(self, place: dict[int, int], along: slice) -> Index:
        """Return the index into a block of the interval `along` of the dim, at `place` of the mesh
        axes that split the dim in the sources or in the result."""
        involved = {*self.source_axes, *self.target_axes}
        mesh = [
            slice(place.get(a, 0), place.get(a, 0) + 1) if a in involved else slice(None)
            for a in range(self.mesh.ndim)
        ]
        return (*mesh, *[slice(None)] * self.dim, along)
