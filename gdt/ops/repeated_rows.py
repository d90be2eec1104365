"""Rows of a split axis repeated by counts that are split as the rows are.

What the rows of a device become is an interval of the result. A device sends each row, with how
often it stands there, to the devices that hold its copies, which write them. So no device holds
more than its shares of the rows, of the counts and of the result, however unequal the counts are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.backend import backend_of
from gdt.comm.vectors import Exchange, cut, join, part_of, sent_by_all
from gdt.engine.planned import BlockPlan, planned_op
from gdt.observe import Collective
from gdt.ops.creation import zeros_like
from gdt.ops.ranges import arange
from gdt.ops.rows import scatter_rows
from gdt.ops.scans import cumsum
from gdt.ops.searching import searchsorted
from gdt.sharding.array_type import ArrayType
from gdt.sharding.layout import Layout

Block = Any


class Repetition:
    """The slices of `x` along an axis, counted from the front, each as often as `counts` says.

    size: the sum of the counts.
    """

    def __init__(self, x: ArrayType, counts: ArrayType, axis: int, size: int) -> None:
        mesh, dims, axes = x.mesh, x.layout.dims, tuple(sorted(x.layout.dims[axis]))
        self.axis, self.backend = axis, backend_of(mesh)
        self.x = x.with_layout(Layout.of(mesh, (*dims[:axis], axes, *dims[axis + 1 :])))
        self.counts = counts.with_layout(Layout.of(mesh, (axes,)))
        shape = (*x.shape[:axis], size, *x.shape[axis + 1 :])
        self.out = ArrayType.of(shape, x.dtype, self.x.layout)
        self.exchange = Exchange(mesh, axes, f"rows of {x} that {counts} repeats")

    @property
    def collectives(self) -> tuple[Collective, ...]:
        """The report of the rows and of the counts that devices send each other."""
        mesh, axes = self.x.mesh, self.x.layout.dims[self.axis]
        if not axes:
            return ()
        names = tuple([mesh.axis_names[a] for a in axes])
        nbytes = sent_by_all(self.x, self.axis) + sent_by_all(self.counts, 0)
        return (Collective("all_to_all", names, nbytes, 2),)

    def run(self, blocks: Sequence[Block], count_blocks: Sequence[Block]) -> list[Block]:
        """Return the blocks of the result, of those of the rows and of the counts."""
        exchange = self.exchange
        if exchange.size == 1:  # the host asks for no places, so that a CUDA graph can hold it
            return exchange.by_block(
                lambda i, *pair: self._repeated(i, *self._part(i, *pair)), blocks, count_blocks
            )
        parts = exchange.by_block(self._rows_to_repeat, blocks, count_blocks)
        totals = exchange.all_gather([np.array(int(times.sum())) for _, times in parts])
        sent = exchange.by_block(self._pieces, parts, totals)
        parts.clear()
        row_lists = exchange.all_to_all([[rows for rows, _ in row] for row in sent])
        time_lists = exchange.all_to_all([[times for _, times in row] for row in sent])
        sent.clear()
        concatenate = self.backend.xp.concatenate
        return exchange.by_block(
            lambda i, *lists: self._repeated(i, *map(concatenate, lists)), row_lists, time_lists
        )

    def _part(self, i: int, block: Block, count_block: Block) -> tuple[Block, Block]:
        """The rows (rows, ...) of block i, and how often each of them stands in the result."""
        number, mesh_ndim = self.exchange.first + i, self.x.mesh.ndim
        rows = join(self.x, block, self.axis, number)
        times = join(self.counts, count_block, 0, number).reshape(-1)
        return self.backend.xp.moveaxis(rows, mesh_ndim + self.axis, 0), times

    def _rows_to_repeat(self, i: int, block: Block, count_block: Block) -> tuple[Block, Block]:
        rows, times = self._part(i, block, count_block)
        is_there = times > 0
        return rows.compress(is_there, axis=0), times.compress(is_there)

    def _pieces(self, i: int, part: tuple[Block, Block], totals: np.ndarray) -> list[Any]:
        """Return the rows of block i that each block of its group writes."""
        start = int(totals[: self.exchange.places[i]].sum())
        members = self.exchange.members[i]
        shares = np.array([part_of(self.out, self.axis, number) for number in members])
        return _pieces(self.backend, *part, shares - start)

    def _repeated(self, i: int, rows: Block, times: Block) -> Block:
        """Block i of the result."""
        xp, number = self.backend.xp, self.exchange.first + i
        low, high = part_of(self.out, self.axis, number)
        row = xp.searchsorted(xp.cumsum(times), xp.arange(high - low), side="right")
        part = xp.moveaxis(rows.take(row, axis=0), 0, self.x.mesh.ndim + self.axis)
        return cut(xp, part, self.out, self.axis, number)


@planned_op()
def repeated_rows(x: ArrayType, counts: ArrayType, /, *, axis: int, size: int) -> BlockPlan:
    """The slices of `x` along `axis`, counted from the front, each as often as `counts` says.

    counts: int64, of 0 or more, (rows,). size: their sum. The result is split as `x` is.

    >>> counts = gdt.asarray([2, 0, 1])
    >>> gdt.ops.repeated_rows.repeated_rows(gdt.arange(3), counts, axis=0, size=3).tolist()
    [0, 0, 2]
    """
    repetition = Repetition(x, counts, axis, size)

    def of_one_block(rows: Block, times: Block) -> Block:
        return repetition.run([rows], [times])[0]

    return BlockPlan(
        [repetition.x.layout, repetition.counts.layout],
        repetition.out,
        () if x.mesh.divided else [of_one_block],
        repetition.run,
        repetition.collectives,
    )


def _pieces(
    backend: Any, rows: Block, times: Block, intervals: np.ndarray
) -> list[tuple[Block, Block]]:
    """Return for each interval of places the rows of which copies stand there, and how many do."""
    xp, ends = backend.xp, backend.xp.cumsum(times)
    limits = np.clip(intervals, 0, int(times.sum()))  # (intervals, 2)
    lows, highs = backend.asarray(limits[:, 0]), backend.asarray(limits[:, 1])
    firsts = backend.to_host(xp.searchsorted(ends, lows, side="right")).tolist()
    stops = backend.to_host(xp.searchsorted(ends, highs, side="left")).tolist()
    pieces = []
    for (low, high), first, last in zip(limits.tolist(), firsts, stops, strict=True):
        part = slice(first, last + 1) if high > low else slice(0)
        places = xp.minimum(ends[part], high)
        starts = xp.concatenate([xp.full(1, low, ends.dtype), places])[: places.size]
        pieces.append((rows[part], places - starts))
    return pieces


def _row_of_each_copy(
    x: DistributedArray, counts: DistributedArray, axis: int, size: int
) -> DistributedArray:
    """The row that each place of the result is a copy of, split as the rows are."""
    places = arange(size, layout=Layout.of(x.mesh, (x.layout.dims[axis],)))
    return searchsorted(cumsum(counts), places, side="right")


repeated_rows.vjp(
    lambda g, out, x, counts, *, axis, size: scatter_rows(
        zeros_like(x), _row_of_each_copy(x, counts, axis, size), g, axis=axis, how="add"
    ),
    None,
)
