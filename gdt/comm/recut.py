"""Moving the intervals of a `Recut`: copies inside a block, sends and receives between blocks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from gdt.backend import backend_of
from gdt.comm import local
from gdt.comm.transport import Transfer, transport_of
from gdt.sharding.recut import Index, Recut

Block = Any

MANY = 64
"""The shards from which on those of one block move as a whole array."""


class RecutRunner:
    """Carries out a recut on blocks: `runner(*blocks_of_every_source)` is the result's blocks."""

    def __init__(self, recut: Recut) -> None:
        self.recut = recut

    def __call__(self, *operands: Sequence[Block]) -> list[Block]:
        """Return the blocks of the result, from the blocks of every source."""
        backend, mesh = backend_of(self.recut.mesh), self.recut.mesh
        if not mesh.divided:
            return [self.inside_block(*[blocks[0] for blocks in operands])]
        results = [self._new_block(i) for i in range(len(mesh.blocks))]
        parts = [block[self.recut.inside] for block in results]
        first = mesh.all_blocks.index(mesh.blocks[0])
        own = range(first, first + len(mesh.blocks))
        sends, receives, additions = [], [], []
        for source, at, target, source_index, target_index in self.recut.moves:
            if at == target:
                with backend.on(mesh, at - first):
                    self._put(
                        parts[at - first],
                        target_index,
                        operands[source][at - first][source_index],
                    )
                continue
            if at in own:
                with backend.on(mesh, at - first):
                    sends.append(Transfer(at, target, operands[source][at - first][source_index]))
            if target in own:
                with backend.on(mesh, target - first):
                    place = parts[target - first][target_index]
                    if self.recut.adds:
                        place = backend.empty(place.shape, place.dtype)
                        additions.append((target - first, target_index, place))
                    receives.append(Transfer(at, target, place))
        if self.recut.nbytes:
            transport_of(mesh).exchange(sends, receives, self._text)
        for i, target_index, addition in additions:
            with backend.on(mesh, i):
                self._put(parts[i], target_index, addition)
        for i, (out, padding) in enumerate(zip(results, self.recut.padding, strict=True)):
            with backend.on(mesh, i):
                for pad, edge in padding:
                    out[pad] = 1 if edge is None else out[edge]
        return results

    @cached_property
    def _text(self) -> str:
        """The type of the result, as messages of processes name it."""
        return str(self.recut.want)

    def _new_block(self, i: int) -> Block:
        """Memory for block `i` of the result, which has the fill where nothing will be put."""
        backend, mesh, want = backend_of(self.recut.mesh), self.recut.mesh, self.recut.want
        with backend.on(mesh, i):
            block = backend.empty(want.block_shape, want.dtype, want.memory_order)
            for gap in self.recut.gaps[i]:
                block[gap] = self.recut.fill
        return block

    def _put(self, out: Block, index: Index, value: Block) -> None:
        """Write a value into an interval of a block of the result, or add it to what is there."""
        if self.recut.adds:
            out[index] += value
        else:
            out[index] = value

    @cached_property
    def inside_block(self) -> Callable[..., Block]:
        """The function that carries the recut out where one block holds the whole mesh. It takes
        the block of each source, and returns the block of the result."""
        backend, fill = backend_of(self.recut.mesh), self.recut.fill
        memory = self.recut.want.block_shape, self.recut.want.dtype, self.recut.want.memory_order
        if self.recut.is_join and len(self.recut.have) <= backend.most_joined:
            join, axis = backend.xp.concatenate, self.recut.mesh.ndim + self.recut.dim
            if math.prod(memory[0]) * self.recut.want.dtype.itemsize < backend.recycled_size:
                return backend.placed(self.recut.mesh, 0, lambda *sources: join(sources, axis))
            return backend.placed(
                self.recut.mesh, 0, lambda *sources: join(sources, axis, out=backend.empty(*memory))
            )
        if self.recut.shards > MANY and self.recut.want.shape[self.recut.dim]:
            return backend.placed(self.recut.mesh, 0, self._whole)
        (gaps,), (padding,) = self.recut.gaps, self.recut.padding
        copies = [
            (source, source_index, target_index)
            for source, _, _, source_index, target_index in self.recut.moves
        ]
        adds, inside = self.recut.adds, self.recut.inside if self.recut.margins else ()

        def run(*sources: Block) -> Block:
            out = backend.empty(*memory)
            for gap in gaps:
                out[gap] = fill
            part = out[inside]
            for source, source_index, target_index in copies:
                if adds:
                    part[target_index] += sources[source][source_index]
                else:
                    part[target_index] = sources[source][source_index]
            for pad, edge in padding:
                out[pad] = 1 if edge is None else out[edge]
            return out

        return backend.placed(self.recut.mesh, 0, run)

    def _whole(self, *sources: Block) -> Block:
        """Return the block of the result by way of whole arrays: a copy for every piece, and none
        for every shard."""
        recut, mesh, dim = self.recut, self.recut.mesh, self.recut.dim
        backend, size = backend_of(mesh), recut.want.shape[dim]
        wholes = [
            local.gather(x, mesh.ndim, recut.source_axes, dim, t.shape[dim])
            for x, t in zip(sources, recut.have, strict=True)
        ]
        shape = list(recut.want.block_shape)
        for a in recut.target_axes:
            shape[a] = 1
        shape[mesh.ndim + dim] = size
        out, along = backend.empty(tuple(shape), recut.want.dtype), (slice(None),) * dim
        if not recut.is_covered or recut.margins:
            out[...] = recut.fill
        part, before = out[recut.inside], (slice(None),) * mesh.ndim + along
        for piece in recut.pieces:
            stop = piece.at + piece.count * piece.step
            interval = slice(piece.at, stop if stop >= 0 else None, piece.step)
            last = piece.start + (piece.count - 1) * piece.stride + 1
            index = (*before, slice(piece.start, last, piece.stride))
            self._put(part, index, wholes[piece.source][(*before, interval)])
        counts = tuple([mesh.sizes[a] for a in recut.target_axes])
        return local.split(backend.xp, out, mesh.ndim, recut.target_axes, counts, dim)
