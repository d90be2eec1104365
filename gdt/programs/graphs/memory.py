"""Memory that stays where it is: what the registers of a captured program hold, on every device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from gdt.backend.cupy import CupyBackend, device_of
from gdt.backend.numpy import axes_in_memory
from gdt.sharding.mesh import Mesh

Block = Any
Blocks = Sequence[Block]
FIRST = itemgetter(0)


class BlockKind(NamedTuple):
    """Shape and dtype of a block, and its axes by their distance in memory, farthest first: it
    decides in which order elements are added up."""

    shape: tuple[int, ...]
    dtype: np.dtype
    axes: tuple[int, ...]

    @classmethod
    def of(cls, block: Block) -> BlockKind:
        """The shape, dtype and order in memory of a block."""
        return cls(block.shape, block.dtype, axes_in_memory(block))


class GraphMemory:
    """The devices of a mesh, each of which holds one block of every array."""

    def __init__(self, backend: CupyBackend, mesh: Mesh) -> None:
        self.backend, self.mesh = backend, mesh
        self.devices = [device_of(mesh, i) for i in range(len(mesh.blocks))]

    def each(self, function: Callable[..., Any], *operands: Blocks) -> list[Any]:
        """Call `function` with the operands' blocks of each device, there; list the results. If
        there is one device, it is the current one."""
        if len(self.devices) == 1:
            return [function(*map(FIRST, operands))]
        results = []
        for i, blocks in enumerate(zip(*operands, strict=True)):
            with self.backend.on(self.mesh, i):
                results.append(function(*blocks))
        return results

    def filled(self, shape: tuple[int, ...], dtype: np.dtype) -> list[Block]:
        """Uninitialised memory for the same values on every device."""
        return self.each(lambda _: self.backend.xp.empty(shape, dtype), self.devices)

    def empty(self, kinds: Sequence[BlockKind]) -> list[Block]:
        """Uninitialised memory for blocks of these kinds."""

        def make(kind: BlockKind) -> Block:
            whole = self.backend.xp.empty(tuple([kind.shape[a] for a in kind.axes]), kind.dtype)
            return whole.transpose(tuple(np.argsort(kind.axes).tolist()))

        return self.each(make, kinds)

    def copy(self, targets: Blocks, sources: Blocks) -> None:
        """Overwrite blocks with others."""
        self.each(self.backend.xp.copyto, targets, sources)
