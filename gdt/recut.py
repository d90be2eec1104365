"""recut: contiguous index intervals of one dim, moved between coordinates.

Slicing, concatenation, flip, pad, roll and relayouts whose shards do not line up are all the same
movement: some intervals of the sources' indices along `dim` become intervals of the result's.
Inside a block each interval is a copy; between blocks it is one send and receive.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from gdt.backend import backend_of
from gdt.comm.transport import Transfer, transport_of
from gdt.layout import ArrayType

Block = Any
Index = tuple[slice, ...]
Padding = tuple[Index, Index | None]  # where, and the element to repeat; None: ones


class Piece(NamedTuple):
    """`out[start + i * stride] = source[at + i * step]` along the dim, for i in `range(count)`.

    `stride` is positive; `step` may be negative.
    """

    source: int
    at: int
    start: int
    count: int  # type: ignore[assignment]  # the name that a tuple has a method of
    step: int = 1
    stride: int = 1

    def transposed(self) -> Piece:
        """The piece that carries a cotangent of the result back to the source (as source 0)."""
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
    """Moves `pieces` of arrays of types `have` (equal layouts) into one array of type `want`.

    Indices of the result that no piece covers become `fill`, a number or the bytes of one.
    """

    def __init__(
        self,
        have: Sequence[ArrayType],
        want: ArrayType,
        dim: int,
        pieces: Sequence[Piece],
        fill: Any = 0,
    ) -> None:
        self.have, self.want, self.dim = tuple(have), want, dim
        self.fill = np.frombuffer(fill, want.dtype)[0].item() if type(fill) is bytes else fill
        self.pieces = tuple(p for p in pieces if p.count > 0)
        self.mesh = want.mesh
        self.source_axes = self.have[0].layout.dims[dim]
        self.target_axes = want.layout.dims[dim]
        self.covered = sum(p.count for p in self.pieces)

    def _runs(self, shard: int) -> Iterator[tuple[int, int, slice, slice, int]]:
        """Copies into shard `shard`: (source, source shard, where in it, where in `shard`,
        count)."""
        low, high = self.want.extent(self.dim, shard)
        for source, at, start, count, step, stride in self.pieces:
            chunk = self.have[source].local_shape[self.dim]
            i, end = max(0, -((start - low) // stride)), min(count, -((start - high) // stride))
            while i < end:
                owner, offset = divmod(at + i * step, chunk)
                room = (chunk - 1 - offset) // step + 1 if step > 0 else offset // -step + 1
                run = min(room, end - i)
                stop, first = offset + step * run, start + i * stride - low
                taken = slice(offset, stop if stop >= 0 else None, step)
                yield (
                    source,
                    owner,
                    taken,
                    slice(first, first + (run - 1) * stride + 1, stride),
                    run,
                )
                i += run

    @cached_property
    def nbytes(self) -> int:
        """Bytes that all devices together send."""
        sizes = self.mesh.sizes
        axes = sorted({*self.source_axes, *self.target_axes})
        rows = [
            math.prod(n for d, n in enumerate(t.local_shape) if d != self.dim) for t in self.have
        ]
        total = 0
        for at in itertools.product(*(range(sizes[a]) for a in axes)):
            coordinate = [0] * self.mesh.ndim
            for a, c in zip(axes, at, strict=True):
                coordinate[a] = c
            own = self.have[0].layout.shard_index(coordinate, self.dim)
            for source, owner, _, _, run in self._runs(
                self.want.layout.shard_index(coordinate, self.dim)
            ):
                if owner != own:
                    total += run * rows[source]
        copies = self.mesh.size // math.prod(sizes[a] for a in axes)
        return total * copies * self.want.dtype.itemsize

    def __call__(self, *operands: Sequence[Block]) -> list[Block]:
        """Run on the blocks of every source; returns the blocks of the result."""
        backend, mesh = backend_of(self.mesh), self.mesh
        if not mesh.divided:
            return [self.inside_block(*[blocks[0] for blocks in operands])]
        results = []
        for i in range(len(mesh.blocks)):
            with backend.on(mesh, i):
                out = backend.empty(self.want.block_shape, self.want.dtype, self.want.memory_order)
                if not self._is_covered:
                    out[...] = self.fill
                results.append(out)
        first = mesh.all_blocks.index(mesh.blocks[0])
        own = range(first, first + len(mesh.blocks))
        sends, receives = [], []
        for source, at, target, taken, filled in self._moves:
            if at == target:
                with backend.on(mesh, at - first):
                    results[at - first][filled] = operands[source][at - first][taken]
                continue
            if at in own:
                with backend.on(mesh, at - first):
                    sends.append(Transfer(at, target, operands[source][at - first][taken]))
            if target in own:
                with backend.on(mesh, target - first):
                    receives.append(Transfer(at, target, results[target - first][filled]))
        if self.nbytes:
            transport_of(mesh).exchange(sends, receives, str(self.want))
        for i, (out, padding) in enumerate(zip(results, self._padding, strict=True)):
            with backend.on(mesh, i):
                for padded, edge in padding:
                    out[padded] = 1 if edge is None else out[edge]
        return results

    @cached_property
    def inside_block(self) -> Callable[..., Block]:
        """The same where one block holds all of the mesh: from the only block of every source to
        that of the result."""
        backend, fill, (padding,) = backend_of(self.mesh), self.fill, self._padding
        memory = self.want.block_shape, self.want.dtype, self.want.memory_order
        if self._is_join:
            join, axis = backend.xp.concatenate, self.mesh.ndim + self.dim
            if math.prod(memory[0]) * self.want.dtype.itemsize < backend.recycled_size:
                return backend.placed(self.mesh, 0, lambda *sources: join(sources, axis))
            return backend.placed(
                self.mesh, 0, lambda *sources: join(sources, axis, out=backend.empty(*memory))
            )
        copies = [(source, taken, filled) for source, _, _, taken, filled in self._moves]
        is_covered = self._is_covered

        def run(*sources: Block) -> Block:
            out = backend.empty(*memory)
            if not is_covered:
                out[...] = fill
            for source, taken, filled in copies:
                out[filled] = sources[source][taken]
            for padded, edge in padding:
                out[padded] = 1 if edge is None else out[edge]
            return out

        return backend.placed(self.mesh, 0, run)

    @property
    def _is_join(self) -> bool:
        """Whether the sources, which are whole along the dim, are put end to end as they are."""
        starts = itertools.accumulate((t.shape[self.dim] for t in self.have), initial=0)
        whole = [
            Piece(i, 0, start, kind.shape[self.dim])
            for i, (kind, start) in enumerate(zip(self.have, starts, strict=False))
        ]
        is_split = self.source_axes or self.target_axes
        return not is_split and self._is_covered and [*self.pieces] == whole

    @property
    def _is_covered(self) -> bool:
        """Whether every index of the result comes from a source."""
        return self.covered == self.want.shape[self.dim]

    @cached_property
    def _moves(self) -> list[tuple[int, int, int, Index, Index]]:
        """The copies that blocks of this process take part in: (source, block that has it, block
        of the result, index there, index in the result), in an order that all processes share."""
        position = {at: i for i, at in enumerate(self.mesh.all_blocks)}
        own = {position[at] for at in self.mesh.blocks}
        moves = []
        for target, grid in enumerate(self.mesh.all_blocks):
            for place, shard in self._hosted(grid):
                for source, owner, taken, filled, _ in self._runs(shard):
                    at, inside = self._owner(owner, grid)
                    if own & {position[at], target}:
                        indices = self._index(inside, taken), self._index(place, filled)
                        moves.append((source, position[at], target, *indices))
        return moves

    @cached_property
    def _padding(self) -> list[list[Padding]]:
        """For every block of the result in this process, its padding, which repeats the last valid
        element."""
        found = []
        for grid in self.mesh.blocks:
            padding: list[Padding] = []
            for place, shard in self._hosted(grid):
                low, high = self.want.extent(self.dim, shard)
                valid, chunk = high - low, self.want.local_shape[self.dim]
                if valid < chunk:
                    edge = self._index(place, slice(valid - 1, valid)) if valid else None
                    padding.append((self._index(place, slice(valid, chunk)), edge))
            found.append(padding)
        return found

    def _hosted(self, grid: tuple[int, ...]) -> Iterator[tuple[dict[int, int], int]]:
        """The target shards in a block: ({mesh axis: index in the box}, shard)."""
        box = self.mesh.box
        for inside in itertools.product(*(range(box[a]) for a in self.target_axes)):
            place = dict(zip(self.target_axes, inside, strict=True))
            shard = 0
            for a in self.target_axes:
                shard = shard * self.mesh.sizes[a] + grid[a] * box[a] + place[a]
            yield place, shard

    def _owner(self, shard: int, grid: tuple[int, ...]) -> tuple[tuple[int, ...], dict[int, int]]:
        """Where the block at `grid` finds a source shard: a block and a place in its box."""
        at, inside = list(grid), {}
        for a in reversed(self.source_axes):
            shard, c = divmod(shard, self.mesh.sizes[a])
            at[a], inside[a] = divmod(c, self.mesh.box[a])
        return tuple(at), inside

    def _index(self, place: dict[int, int], along: slice) -> Index:
        """The index of a block at one place of the mesh axes involved, and an interval of the
        dim."""
        involved = {*self.source_axes, *self.target_axes}
        mesh = [
            slice(place.get(a, 0), place.get(a, 0) + 1) if a in involved else slice(None)
            for a in range(self.mesh.ndim)
        ]
        return (*mesh, *[slice(None)] * self.dim, along)
