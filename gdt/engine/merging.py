"""Merging statistics: of reductions that are no sums those of all coordinates are gathered, and
merged in coordinate order."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from gdt.comm.transport import transport_of
from gdt.engine.blocks import PlanBlocks
from gdt.engine.composition import as_tuple
from gdt.engine.plan import Block
from gdt.observe import OBSERVERS, Collective
from gdt.sharding.layout import Axes


class Merge:
    """The merge of an op's statistics, and its `finish`, which makes the outputs of them.

    gathered: bytes that one coordinate has of all statistics, and how many arrays they are; where
    coordinates share a block it is known from the first run.
    """

    def __init__(self, blocks: PlanBlocks, finish: Callable[..., Any] | None) -> None:
        self.blocks, self.mesh, self.backend = blocks, blocks.mesh, blocks.backend
        self.op, self.finish, self.axes = blocks.op, finish, blocks.merged_axes()
        self.gathered = 0, 0

    def merged(self, results: list[tuple[Block, ...]]) -> list[tuple[Block, ...]]:
        """One all-gather of all statistics, then the merge in coordinate order, minor axes
        first."""
        axes = self.axes
        if axes:
            self.report(*self.size(results[0]))
            if self.mesh.divided:
                transport = transport_of(self.mesh)
                types = tuple([t for t in self.blocks.moved if t is not None])
                results = [tuple(r) for r in transport.all_gather(results, axes, types)]
        return [
            self.backend.placed(self.mesh, i, self.inside)(r, axes) for i, r in enumerate(results)
        ]

    def inside(self, statistics: tuple[Block, ...], axes: Axes) -> tuple[Block, ...]:
        """The outputs, of the statistics of all coordinates along `axes` in one block."""
        for a in reversed(axes):
            merged = self.op.merge(self.backend.xp, *statistics, axis=a)  # type: ignore[misc]
            statistics = as_tuple(merged)
        return statistics if self.finish is None else as_tuple(self.finish(*statistics))

    def size(self, statistics: tuple[Block, ...]) -> tuple[int, int]:
        """Bytes that one coordinate has of all statistics, and how many arrays they are."""
        mesh_ndim = self.mesh.ndim
        return sum(x.nbytes // math.prod(x.shape[:mesh_ndim]) for x in statistics), len(statistics)

    def report(self, shard: int, arrays: int) -> None:
        """Tell observers of the all-gather of so many bytes from every coordinate, in `arrays`
        arrays."""
        observers = [o for o in OBSERVERS.get() if o.wants_moves]
        if observers:
            mesh = self.mesh
            p = math.prod(mesh.sizes[a] for a in self.axes)
            names = tuple(mesh.axis_names[a] for a in self.axes)
            nbytes = mesh.size * (p - 1) * shard
            for observer in observers:
                observer.on_collective(Collective("all_gather", names, nbytes, arrays))
