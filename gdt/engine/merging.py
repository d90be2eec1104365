"""The merge of statistics: reductions that are no sums, made of sums and maxima.

The body of an op returns the statistics of one shard. The op's `merge` is a generator, which asks
for a reduction of arrays over all shards by `yield`, and gets the results:

    def merge(xp, largest, total):
        (top,) = yield "max", (largest,)
        (total,) = yield "sum", (total * xp.exp(largest - top),)
        return top, total

The merges of all blocks run side by side, one reduction after the other, each of them an
all-reduce. So the bytes grow as the number of devices, and the order of sums is that of all sums.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, NamedTuple

from gdt.comm.all_reduce import all_reduce, all_reduce_together, collectives, on_each
from gdt.engine.blocks import PlanBlocks
from gdt.engine.plan import Block
from gdt.engine.source import as_tuple
from gdt.observe import OBSERVERS, Collective
from gdt.sharding.layout import Axes
from gdt.sharding.reduction import combiner

Run = Generator[tuple[str, Sequence[Block]], Sequence[Block], Any]
Reduce = Callable[[str, list[Sequence[Block]]], list[Sequence[Block]]]


class Reduction(NamedTuple):
    """A reduction of statistics: its name, the elements that one device gives, the bytes of one,
    and the number of arrays."""

    name: str
    elements: int
    itemsize: int
    arrays: int


class Merge:
    """The merge of the statistics of a plan's shards; `finish` makes the outputs of them.

    axes: the mesh axes along which statistics are merged. reductions: those of separate devices;
    where coordinates share a block, the first run finds them.
    """

    def __init__(self, blocks: PlanBlocks) -> None:
        self.blocks, self.op = blocks, blocks.op
        self.mesh, self.backend = blocks.mesh, blocks.backend
        self.axes: Axes = () if blocks.op.merge is None else blocks.merged_axes()
        self.reductions: list[Reduction] | None = None
        self.merge: Any = None
        if self.axes and blocks.op.merge is not None:
            parts = math.prod(self.mesh.sizes[a] for a in self.axes)
            names = inspect.signature(blocks.op.merge).parameters
            counts = {"parts": parts, "count": blocks.reduced_count}
            options = {name: n for name, n in counts.items() if name in names}
            self.merge = partial(blocks.op.merge, self.backend.xp, **options)

    def merged(self, results: list[tuple[Block, ...]]) -> list[tuple[Block, ...]]:
        """Return the outputs of every block, of the statistics of all blocks."""
        if self.axes:
            results = self._run(results, self._reduced)
        finish = self.blocks.finish
        if finish is None:
            return results
        return on_each(self.mesh, lambda xp, r: as_tuple(finish(*r)), results)

    def inside(self, statistics: tuple[Block, ...]) -> tuple[Block, ...]:
        """Return the outputs of the only block, and tell nobody of reductions."""
        (results,) = self._run([statistics], lambda name, arrays: [self._inside(name, arrays[0])])
        finish = self.blocks.finish
        return results if finish is None else as_tuple(finish(*results))

    def find_reductions(self, statistics: tuple[Block, ...]) -> None:
        """Find the reductions of separate devices, of the statistics of the only block."""
        found: list[Reduction] = []

        def reduced(name: str, arrays: list[Sequence[Block]]) -> list[Sequence[Block]]:
            found.append(self._of_one_device(name, arrays[0]))
            return [self._inside(name, arrays[0])]

        self._run([statistics], reduced)
        self.reductions = found

    def _run(self, results: list[tuple[Block, ...]], reduce: Reduce) -> list[tuple[Block, ...]]:
        """Run the merges of all blocks, one reduction after the other."""
        runs: list[Run] = [self.merge(*statistics) for statistics in results]
        answers: list[Any] = [None] * len(runs)
        while True:
            asked, merged = [], []
            for i, (run, answer) in enumerate(zip(runs, answers, strict=True)):
                with self.backend.on(self.mesh, i):
                    try:
                        asked.append(run.send(answer))
                    except StopIteration as end:
                        merged.append(as_tuple(end.value))
            if merged:
                return merged
            answers = reduce(asked[0][0], [arrays for _, arrays in asked])

    def _reduced(self, name: str, arrays: list[Sequence[Block]]) -> list[Sequence[Block]]:
        """Reduce arrays of every block over all coordinates, in one all-reduce."""
        self.report([self._of_one_device(name, arrays[0])])
        inside = on_each(self.mesh, lambda xp, xs: self._inside(name, xs), arrays)
        if not any(self.mesh.grid[a] > 1 for a in self.axes):
            return inside
        types = tuple([t for t in self.blocks.moved if t is not None])
        if len(inside[0]) == 1:
            alone = [x for (x,) in inside]
            return [(x,) for x in all_reduce(self.mesh, alone, self.axes, name, types)]
        return [*all_reduce_together(self.mesh, inside, self.axes, name, types)]

    def _inside(self, name: str, arrays: Sequence[Block]) -> Sequence[Block]:
        """Reduce arrays over the coordinates of one block."""
        combine = combiner(self.backend.xp, name)
        return [combine(x, self.axes) for x in arrays]

    def _of_one_device(self, name: str, arrays: Sequence[Block]) -> Reduction:
        shapes = [x.shape[self.mesh.ndim :] for x in arrays]
        return Reduction(name, sum(map(math.prod, shapes)), arrays[0].dtype.itemsize, len(arrays))

    def report(self, reductions: Sequence[Reduction]) -> None:
        """Tell observers of all-reduces over all devices along the merged axes."""
        observers = [o for o in OBSERVERS.get() if o.wants_moves]
        for name, elements, itemsize, arrays in reductions if observers else ():
            for kind, axes, nbytes in collectives(self.mesh, self.axes, elements, itemsize):
                names = tuple(self.mesh.axis_names[a] for a in axes)
                reduction = name if "reduce" in kind else None
                for observer in observers:
                    observer.on_collective(Collective(kind, names, nbytes, arrays, reduction))
