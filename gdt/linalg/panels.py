"""Panels of matrices that no device holds whole: slices of the columns of every device.

Columns are split over all mesh axes that split the matrix, so every device has all rows of its
columns. The slices of all devices are gathered, and every device computes with the panel what it
needs for the rest of its own columns: so all devices work to the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gdt.backend import backend_of
from gdt.comm.relayout import carry_out, run_transition
from gdt.engine.planned import BlockPlan
from gdt.sharding.array_type import ArrayType
from gdt.sharding.layout import Layout
from gdt.sharding.routes import route, transition_between

Block = Any
Blocks = list[Block]

WIDE = 128
"""The columns of a panel, of all devices together, from which on products run at full speed."""

SHARE = 3
"""A panel takes a third of the memory of a shard at most, if a shard has columns enough."""

PARTS = 8
"""The parts in which a product is subtracted from a matrix: each takes memory of its own."""


class Panels:
    """The panels of a matrix of type `x`.

    slices: the interval of every slice among the columns of a device. order: the columns of the
    matrix in the order in which panels have them. starts: where each panel begins in that order.
    """

    def __init__(self, x: ArrayType) -> None:
        axes = tuple([a for dim in x.layout.dims for a in dim])
        self.layout = Layout.of(x.mesh, ((), axes))
        self.mesh, self.backend, self.x = x.mesh, backend_of(x.mesh), x.with_layout(self.layout)
        n, shards, width = x.shape[1], self.layout.num_shards(1), self.x.local_shape[1]
        size = max(1, min(width // (SHARE * shards), WIDE // shards))
        self.slices = [(low, min(low + size, width)) for low in range(0, width, size)]
        self.valid: list[list[Block] | None] = []  # what of a panel is no padding; None for all
        orders = []
        for low, high in self.slices:
            columns = np.add.outer(np.arange(shards) * width, np.arange(low, high)).reshape(-1)
            valid = np.flatnonzero(columns < n)
            self.valid.append(None if len(valid) == len(columns) else self.on_devices(valid))
            orders.append(columns[valid])
        self.order = np.concatenate(orders)
        self.starts = [0, *np.cumsum([len(columns) for columns in orders]).tolist()]

    def by_block(self, function: Callable[..., Any], *lists: Sequence[Any]) -> list[Any]:
        """`function(*items)` for every block of this process, on its device."""
        results = []
        for i, items in enumerate(zip(*lists, strict=True)):
            with self.backend.on(self.mesh, i):
                results.append(function(*items))
        return results

    def on_devices(self, values: np.ndarray) -> list[Block]:
        """A copy of `values` on the device of every block."""
        return self.by_block(lambda _: self.backend.asarray(values), self.mesh.blocks)

    def moved(self, have: ArrayType, want: ArrayType, blocks: Sequence[Block]) -> Blocks:
        """The blocks of an array of type `have` as those of type `want`."""
        return list(carry_out([route(have, want.layout)], [blocks])[0])

    def copies(self, blocks: Blocks) -> Blocks:
        """Copies of blocks, which take their places in the list: what has moved is released."""
        for i, block in enumerate(blocks):
            with self.backend.on(self.mesh, i):
                blocks[i] = self.backend.xp.array(block, order="C")
        return blocks

    def gathered(self, n: int, rows: slice, blocks: Sequence[Block]) -> Blocks:
        """Rows of panel `n` of the matrix that has these blocks: (rows, columns)."""
        xp, (low, high) = self.backend.xp, self.slices[n]
        take = lambda block: xp.ascontiguousarray(block[..., rows, low:high])
        shares = self.by_block(take, blocks)
        shape = (shares[0].shape[-2], (high - low) * self.layout.num_shards(1))
        share = ArrayType.of(shape, self.x.dtype, self.layout)
        whole = Layout.replicated(self.mesh, 2)
        gather = transition_between("gather", share, whole, self.layout.dims[1], 1)
        panels = [block.reshape(shape) for block in run_transition(gather, shares)]
        valid = self.valid[n]
        if valid is None:
            return panels
        return self.by_block(lambda panel, at: xp.take(panel, at, axis=1), panels, valid)

    def numbers(self) -> list[Block]:
        """The numbers of the columns that every block holds: (mesh axes..., columns)."""
        (dims, box), width = (self.layout.dims[1], self.mesh.box), self.x.local_shape[1]
        shape = [size if a in dims else 1 for a, size in enumerate(box)]
        numbers = []
        for i, grid in enumerate(self.mesh.blocks):
            first = [at * size for at, size in zip(grid, box, strict=True)]
            shards = np.empty(shape, np.int64)
            for inside in np.ndindex(*shape):
                coordinate = [f + k for f, k in zip(first, inside, strict=True)]
                shards[inside] = self.layout.shard_index(coordinate, 1)
            with self.backend.on(self.mesh, i):
                columns = shards[..., None] * width + np.arange(width)
                numbers.append(self.backend.asarray(columns))
        return numbers

    def plan(
        self, out: ArrayType, operands: int, together: Callable[..., Sequence[Block]]
    ) -> BlockPlan:
        """The plan of an op that computes its output by `together`, a function of the lists of all
        blocks of that many operands, which tells observers what it sends."""
        alone = lambda *blocks: together(*[[block] for block in blocks])[0]
        return BlockPlan((None,) * operands, out, () if self.mesh.divided else [alone], together)


def subtract_product(xp: Any, x: Block, left: Block, right: Block) -> None:
    """Subtract left @ right from x in place, part by part.

    x: (mesh axes..., i, j); left: (i, k); right: (mesh axes..., k, j).
    """
    step = max(-(-x.shape[-2] // PARTS), 1)
    for start in range(0, x.shape[-2], step):
        part = x[..., start : start + step, :]
        part -= xp.matmul(left[start : start + step], right)


def solve_triangle(xp: Any, triangle: Block, y: Block) -> Block:
    """The solution of triangle @ z = y, for the columns y (mesh axes..., k, j) of all devices."""
    if not y.size:
        return y
    rows, columns = y.shape[-2:]
    flat = xp.moveaxis(y.reshape(-1, rows, columns), 1, 0).reshape(rows, -1)
    solution = xp.linalg.solve(triangle, flat).reshape(rows, -1, columns)
    return xp.moveaxis(solution, 1, 0).reshape(y.shape)
