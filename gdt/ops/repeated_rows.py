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


@planned_op()
def repeated_rows(x: ArrayType, counts: ArrayType, /, *, axis: int, size: int) -> BlockPlan:
    """The slices of `x` along `axis`, counted from the front, each as often as `counts` says.

    counts: int64, of 0 or more, (rows,). size: their sum. The result is split as `x` is.

    >>> counts = gdt.asarray([2, 0, 1])
    >>> gdt.ops.repeated_rows.repeated_rows(gdt.arange(3), counts, axis=0, size=3).tolist()
    [0, 0, 2]
    """
    mesh, axes = x.mesh, tuple(sorted(x.layout.dims[axis]))
    dims = x.layout.dims
    have = x.with_layout(Layout.of(mesh, (*dims[:axis], axes, *dims[axis + 1 :])))
    lengths = counts.with_layout(Layout.of(mesh, (axes,)))
    out = ArrayType.of((*x.shape[:axis], size, *x.shape[axis + 1 :]), x.dtype, have.layout)
    exchange = Exchange(mesh, axes, f"rows of {x} that {counts} repeats")

    def run(blocks: Sequence[Block], count_blocks: Sequence[Block]) -> list[Block]:
        backend = backend_of(mesh)

        def part_and_times(i: int, block: Block, count_block: Block) -> tuple[Block, Block]:
            number = exchange.first + i
            part = backend.xp.moveaxis(join(have, block, axis, number), mesh.ndim + axis, 0)
            return part, join(lengths, count_block, 0, number).reshape(-1)

        def rows_to_repeat(i: int, block: Block, count_block: Block) -> tuple[Block, Block]:
            part, times = part_and_times(i, block, count_block)
            is_there = times > 0
            return part.compress(is_there, axis=0), times.compress(is_there)

        def pieces(i: int, part: tuple[Block, Block], total: np.ndarray) -> list[Any]:
            start = int(total[: exchange.places[i]].sum())
            shares = [part_of(out, axis, number) for number in exchange.members[i]]
            return _pieces(backend, *part, np.array(shares) - start)

        def repeated(i: int, rows: Block, times: Block) -> Block:
            xp = backend.xp
            low, high = part_of(out, axis, exchange.first + i)
            row = xp.searchsorted(xp.cumsum(times), xp.arange(high - low), side="right")
            part = xp.moveaxis(rows.take(row, axis=0), 0, mesh.ndim + axis)
            return cut(xp, part, out, axis, exchange.first + i)

        if exchange.size == 1:  # the host asks for no places, so that a CUDA graph can hold it
            return exchange.by_block(
                lambda i, *pair: repeated(i, *part_and_times(i, *pair)), blocks, count_blocks
            )
        parts = exchange.by_block(rows_to_repeat, blocks, count_blocks)
        totals = exchange.all_gather([np.array(int(times.sum())) for _, times in parts])
        sent = exchange.by_block(pieces, parts, totals)
        parts.clear()
        row_lists = exchange.all_to_all([[rows for rows, _ in row] for row in sent])
        time_lists = exchange.all_to_all([[times for _, times in row] for row in sent])
        sent.clear()

        def joined(i: int, rows: Sequence[Block], times: Sequence[Block]) -> Block:
            return repeated(i, backend.xp.concatenate(rows), backend.xp.concatenate(times))

        return exchange.by_block(joined, row_lists, time_lists)

    collectives: tuple[Collective, ...] = ()
    if axes:
        names = tuple([mesh.axis_names[a] for a in axes])
        nbytes = sent_by_all(have, axis) + sent_by_all(lengths, 0)
        collectives = (Collective("all_to_all", names, nbytes, 2),)
    functions = []
    if not mesh.divided:
        functions = [lambda *blocks: run(*[[block] for block in blocks])[0]]
    return BlockPlan([have.layout, lengths.layout], out, functions, run, collectives)


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
