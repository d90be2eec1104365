"""Square matrices that no device holds whole: Cholesky and LU decompositions, panel by panel.

Every device has all rows of its columns and takes every panel (`gdt.linalg.panels`) apart. For LU,
columns are eliminated in the order of the panels, which is that of the matrix times a permutation:
solutions and determinants undo it. Exchanges of rows send nothing. For Cholesky, columns are first
put in the order of the panels. A device holds a copy of its columns, the columns that are solved
for, and a panel.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.engine.planned import BlockPlan, planned_op
from gdt.linalg.panels import Panels, solve_triangle, subtract_product
from gdt.sharding.array_type import ArrayType
from gdt.sharding.layout import Layout

Block = Any
Blocks = Sequence[Block]

GATHERED = 1 << 18
"""The bytes of a split matrix up to which it is gathered: then less is sent than panels take."""

NARROW = 16
"""The columns of a panel that are eliminated one by one; wider ones by halves."""


def is_large(x: DistributedArray) -> bool:
    """Whether a square matrix is split, and large enough to stay so."""
    return x.ndim == 2 and any(x.layout.dims) and x.type.nbytes > GATHERED


# ---------------------------------------------------------------- Cholesky


@planned_op()
def cholesky_by_panels(x: ArrayType, /) -> BlockPlan:
    """The lower Cholesky factor of a split matrix; split by rows.

    >>> gdt.linalg.blocked.cholesky_by_panels(gdt.asarray([[4.0]])).tolist()
    [[2.0]]
    """
    panels = Panels(x)
    xp, rows = panels.backend.xp, x.with_layout(Layout.of(x.mesh, panels.layout.dims[::-1]))
    ranks = np.argsort(panels.order)  # of the columns, in the order of the panels
    numbers = panels.by_block(lambda column: xp.minimum(column, len(ranks) - 1), panels.numbers())
    own_ranks = panels.by_block(xp.take, panels.on_devices(ranks), numbers)
    there, back = panels.on_devices(ranks), panels.on_devices(panels.order)
    take = lambda block, at: xp.take(block, at, axis=-1)

    def cholesky(blocks: Blocks) -> Blocks:
        # Columns are local where rows are split; then the first panel has the first columns.
        matrix = panels.by_block(take, panels.moved(x, rows, blocks), there)
        matrix = panels.copies(panels.moved(rows, panels.x, matrix))
        for n, (low, high) in enumerate(panels.slices):
            start, stop = panels.starts[n : n + 2]
            columns = panels.gathered(n, slice(start, None), matrix)
            step = partial(_cholesky_step, xp, (start, stop), (low, high))
            panels.by_block(step, columns, own_ranks, matrix)
        return panels.by_block(take, panels.moved(panels.x, rows, matrix), back)

    return panels.plan(rows, 1, cholesky)


def _cholesky_step(
    xp: Any,
    between: tuple[int, int],
    columns: tuple[int, int],
    panel: Block,
    ranks: Block,
    matrix: Block,
) -> None:
    """Overwrite the columns of a panel by those of the factor, and subtract the products of these
    from the columns behind them.

    ranks: for each column of the block, the number of the row in which it crosses the diagonal."""
    (start, stop), (low, high) = between, columns
    size = stop - start
    top = xp.linalg.cholesky(panel[:size])
    below = solve_triangle(xp, top, panel[size:].conj().T).conj().T
    factor = xp.concatenate([top, below])  # (rows, columns of the panel)
    own = xp.clip(ranks[..., low:high] - start, 0, size - 1)
    matrix[..., :start, low:high] = 0
    matrix[..., start:, low:high] = xp.moveaxis(xp.take(factor, own, axis=1), 0, -2)
    if high < matrix.shape[-1] and len(below):
        own = xp.clip(ranks[..., high:] - stop, 0, len(below) - 1)
        right = xp.swapaxes(xp.take(below, own, axis=0), -1, -2).conj()
        subtract_product(xp, matrix[..., stop:, high:], below, right)


# ---------------------------------------------------------------- LU with partial pivoting


@planned_op()
def solve_by_panels(x: ArrayType, y: ArrayType, /) -> BlockPlan:
    """The solution of the linear equations of a split square matrix, for columns (n, k) of its
    dtype; split by columns.

    >>> x, y = gdt.asarray([[2.0]]), gdt.asarray([[3.0]])
    >>> gdt.linalg.blocked.solve_by_panels(x, y).tolist()
    [[1.5]]
    """
    panels = Panels(x)
    out = ArrayType.of(y.shape, y.dtype, panels.layout)

    def solve(matrix: Blocks, columns: Blocks) -> Blocks:
        own = panels.copies(panels.moved(x, panels.x, matrix))
        return _solution(panels, own, panels.copies(panels.moved(y, out, columns)))

    return panels.plan(out, 2, solve)


@planned_op()
def invert_by_panels(x: ArrayType, /) -> BlockPlan:
    """The inverse of a split square matrix; split by columns.

    >>> gdt.linalg.blocked.invert_by_panels(gdt.asarray([[2.0]])).tolist()
    [[0.5]]
    """
    panels = Panels(x)
    xp, numbers = panels.backend.xp, panels.numbers()

    def identity(columns: Block) -> Block:
        return (xp.arange(x.shape[0])[:, None] == columns[..., None, :]).astype(x.dtype)

    def invert(matrix: Blocks) -> Blocks:
        copies = panels.copies(panels.moved(x, panels.x, matrix))
        return _solution(panels, copies, panels.by_block(identity, numbers))

    return panels.plan(panels.x, 1, invert)


@planned_op()
def pivots_by_panels(x: ArrayType, /) -> BlockPlan:
    """Numbers (n,) whose product is the determinant of a split square matrix; replicated.

    >>> gdt.linalg.blocked.pivots_by_panels(gdt.asarray([[2.0]])).tolist()
    [2.0]
    """
    panels = Panels(x)
    xp, sign = panels.backend.xp, _parity(panels.order)
    out = ArrayType.of(x.shape[:1], x.dtype, Layout.replicated(x.mesh, 1))

    def joined(*parts: tuple[Block, Block]) -> Block:
        """The diagonals of all panels, with the sign of all exchanges."""
        pivots = xp.concatenate([xp.diagonal(triangle) for triangle, _ in parts])
        for _, parity in parts:
            pivots[:1] *= parity
        pivots[:1] *= sign
        return pivots.reshape(out.block_shape)

    def pivots(matrix: Blocks) -> Blocks:
        return panels.by_block(
            joined, *_eliminated(panels, panels.copies(panels.moved(x, panels.x, matrix)))
        )

    return panels.plan(out, 1, pivots)


def _parity(order: np.ndarray) -> int:
    """1 for an even permutation, -1 for an odd one."""
    numbers, sign = order.tolist(), 1
    for i in range(len(numbers)):
        while (k := numbers[i]) != i:
            numbers[i], numbers[k] = numbers[k], k
            sign = -sign
    return sign


def _eliminated(
    panels: Panels, matrix: Blocks, columns: Blocks | None = None
) -> list[list[tuple[Block, Block]]]:
    """Eliminate the columns of a matrix in place, and those beside it with them.

    Returns for every panel, in every block, the upper triangle on the diagonal, and 1 or -1 for an
    even or odd number of exchanges. Above the triangles `matrix` holds the other factors.
    """
    triangles = []
    for n, (_, high) in enumerate(panels.slices):
        start, stop = panels.starts[n : n + 2]
        parts = [] if columns is None else [columns]
        if high < panels.x.local_shape[1]:
            parts.append([block[..., high:] for block in matrix])
        panel = panels.gathered(n, slice(start, None), matrix)
        eliminate = partial(_eliminate, panels.backend.xp, start, stop)
        triangles.append(panels.by_block(eliminate, panel, *parts))
    return triangles


def _eliminate(xp: Any, start: int, stop: int, panel: Block, *parts: Block) -> tuple[Block, Block]:
    """Factor the panel of the columns from `start` to `stop`, and eliminate them in blocks of other
    columns. Returns the triangle and the parity, as `_eliminated` does for every panel."""
    size = stop - start
    order, parity = factor(xp, panel)
    lower = xp.tril(panel[:size], -1) + xp.eye(size, dtype=panel.dtype)
    # Rows of the top that pivots have displaced stand where those stood.
    new_order = xp.concatenate([xp.arange(size), order[:size]])
    for part in parts:
        rest = part[..., start:, :]
        rest[..., new_order, :] = rest[..., order[new_order], :]
        top = solve_triangle(xp, lower, rest[..., :size, :])
        rest[..., :size, :] = top
        subtract_product(xp, rest[..., size:, :], panel[size:], top)
    return xp.triu(panel[:size]), parity


def _solution(panels: Panels, matrix: list[Block], columns: Blocks) -> Blocks:
    """The blocks of the solution; those of the matrix and of the columns are used up."""
    xp, triangles = panels.backend.xp, _eliminated(panels, matrix, columns)
    for n in reversed(range(len(panels.slices))):
        start, stop = panels.starts[n : n + 2]
        above = panels.gathered(n, slice(start), matrix)
        panels.by_block(partial(_substitute, xp, start, stop), columns, triangles[n], above)
    matrix.clear()
    places = panels.on_devices(np.argsort(panels.order))
    return panels.by_block(lambda part, at: xp.take(part, at, axis=-2), columns, places)


def _substitute(
    xp: Any, start: int, stop: int, part: Block, triangle: tuple[Block, Block], above: Block
) -> None:
    """Solve for the rows from `start` to `stop`, and take them out of those above."""
    rows = solve_triangle(xp, triangle[0], part[..., start:stop, :])
    part[..., start:stop, :] = rows
    subtract_product(xp, part[..., :start, :], above, rows)


def factor(xp: Any, panel: Block) -> tuple[Block, Block]:
    """Replace a panel, with at least as many rows as columns, by its LU decomposition.

    Returns the row of the panel that each row now is, and 1 or -1 for an even or odd number of
    exchanges; both are on the panel's device.
    """
    order, parity = xp.arange(panel.shape[0]), xp.ones((), panel.real.dtype)
    _factor_between(xp, panel, order, parity, 0, panel.shape[1])
    return order, parity


def _factor_between(
    xp: Any, panel: Block, order: Block, parity: Block, start: int, stop: int
) -> None:
    """Factor the columns from `start` to `stop` in place (Toledo 1997: by halves)."""
    if stop - start > NARROW:
        middle = (start + stop) // 2
        _factor_between(xp, panel, order, parity, start, middle)
        lower = xp.tril(panel[start:middle, start:middle], -1)
        lower += xp.eye(middle - start, dtype=panel.dtype)
        top = xp.linalg.solve(lower, panel[start:middle, middle:stop])
        panel[start:middle, middle:stop] = top
        panel[middle:, middle:stop] -= xp.matmul(panel[middle:, start:middle], top)
        _factor_between(xp, panel, order, parity, middle, stop)
        return
    for k in range(start, stop):
        pivot = xp.abs(panel[k:, k]).argmax() + k
        rows = xp.stack([xp.asarray(k), pivot])
        for part in (panel, order):
            part[rows] = part[rows[::-1]]
        parity *= xp.where(pivot == k, 1, -1)
        divisor = panel[k, k]
        panel[k + 1 :, k] /= xp.where(divisor == 0, 1, divisor)
        panel[k + 1 :, k + 1 : stop] -= panel[k + 1 :, k, None] * panel[k, k + 1 : stop]
