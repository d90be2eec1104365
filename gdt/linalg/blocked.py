"""Square matrices that no device holds whole: Cholesky and LU decompositions, panel by panel.

Rows are split over all mesh axes that split the matrix. A panel is as wide as a shard is high, so
every device may hold a panel and its share of the rest. What remains of the matrix after a panel is
cut to equal shards again, so all devices work to the end.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.engine.op import op
from gdt.linalg.whole import (
    adjoint,
    cholesky_of_whole,
    diagonals,
    identity_like,
    solve_of_whole,
)
from gdt.ops.comparison import where
from gdt.ops.creation import zeros
from gdt.ops.elementwise import multiply
from gdt.ops.exponential import log
from gdt.ops.indexing import getitem
from gdt.ops.joining import concat
from gdt.ops.matrices import tril, triu
from gdt.ops.movement import relayout
from gdt.ops.products.op import matmul
from gdt.ops.reductions import sum_
from gdt.ops.rounding import abs_, sign
from gdt.ops.scans import prod
from gdt.ops.shapes import expand_dims
from gdt.ops.taking import take_in_range
from gdt.sharding.layout import Axes, Layout

Block = Any

GATHERED = 1 << 18
"""The bytes of a split matrix up to which it is gathered: then less is sent than panels take."""

NARROW = 16
"""The columns of a panel that are eliminated one by one; wider ones by halves."""


def is_large(x: DistributedArray) -> bool:
    """Whether a square matrix is split, and large enough to stay so."""
    return x.ndim == 2 and any(x.layout.dims) and x.type.nbytes > GATHERED


def _rows(x: DistributedArray) -> tuple[DistributedArray, Axes]:
    """A matrix with its rows split over all mesh axes that split it; and these."""
    axes = tuple(a for dim in x.layout.dims for a in dim)
    return relayout(x, Layout.of(x.mesh, (axes, ()))), axes


def _whole(x: DistributedArray) -> DistributedArray:
    return relayout(x, Layout.replicated(x.mesh, x.ndim))


def _width(n: int, layout: Layout) -> int:
    return -(-n // layout.num_shards(0))


# ---------------------------------------------------------------- Cholesky


def cholesky_by_panels(x: DistributedArray) -> DistributedArray:
    """The lower Cholesky factor, with its rows split."""
    x, axes = _rows(x)
    n, columns = x.shape[0], []
    rows, split_columns = x.layout, Layout.of(x.mesh, ((), axes))
    width, rest = _width(n, rows), x
    while rest.shape[0]:
        size = min(width, rest.shape[0])
        top = cholesky_of_whole(_whole(getitem(rest, (slice(size), slice(size)))))
        parts = [zeros((n - rest.shape[0], size), x.dtype, layout=rows), top]
        if rest.shape[0] > size:
            below = getitem(rest, (slice(size, None), slice(size)))
            lower = adjoint(solve_of_whole(top, relayout(adjoint(below), split_columns)))
            parts.append(lower)
            rest = getitem(rest, (slice(size, None), slice(size, None)))
            rest = relayout(rest - matmul(lower, adjoint(lower)), rows)
        else:
            rest = getitem(rest, slice(0))
        columns.append(relayout(concat(parts), rows))
    return concat(columns, 1)


# ---------------------------------------------------------------- LU with partial pivoting


@op("... i j -> ... i j, ... i, ...", outputs=3, whole="i j")
def lu_of_whole(xp: Any, x: Block, /) -> tuple[Block, Block, Block]:
    """The LU decomposition of matrices with at least as many rows as columns, with row exchanges.

    Returns the factors in one matrix, the row of `x` that stands in each row of it, and 1 or -1 for
    an even or odd number of exchanges.

    >>> [out.tolist() for out in gdt.linalg.blocked.lu_of_whole(gdt.asarray([[0.0], [2.0]]))]
    [[[2.0], [0.0]], [1, 0], -1.0]
    """
    a = x.reshape(-1, *x.shape[-2:]).copy()  # (matrices, rows, columns)
    order = xp.broadcast_to(xp.arange(a.shape[1]), a.shape[:2]).copy()
    parity = xp.ones(a.shape[0], a.real.dtype)
    _eliminate(xp, a, order, parity, 0, a.shape[2])
    return a.reshape(x.shape), order.reshape(x.shape[:-1]), parity.reshape(x.shape[:-2])


def _eliminate(xp: Any, a: Block, order: Block, parity: Block, start: int, stop: int) -> None:
    """Eliminate the columns from `start` to `stop` in place (Toledo 1997: by halves)."""
    if stop - start > NARROW:
        middle = (start + stop) // 2
        _eliminate(xp, a, order, parity, start, middle)
        lower = a[:, start:middle, start:middle]
        ones = xp.eye(middle - start, dtype=a.dtype)
        right = xp.linalg.solve(xp.tril(lower, -1) + ones, a[:, start:middle, middle:stop])
        a[:, start:middle, middle:stop] = right
        a[:, middle:, middle:stop] -= xp.matmul(a[:, middle:, start:middle], right)
        _eliminate(xp, a, order, parity, middle, stop)
        return
    each = xp.arange(a.shape[0])
    for k in range(start, stop):
        pivot = xp.abs(a[:, k:, k]).argmax(axis=1) + k
        for rows in (a, order):
            rows[each, pivot], rows[:, k] = rows[:, k].copy(), rows[each, pivot]
        parity *= xp.where(pivot == k, 1, -1)
        divisor = a[:, k, k]
        a[:, k + 1 :, k] /= xp.where(divisor == 0, 1, divisor)[:, None]
        a[:, k + 1 :, k + 1 : stop] -= a[:, k + 1 :, k, None] * a[:, k, None, k + 1 : stop]


class Elimination:
    """The elimination of the columns of a split square matrix, with columns beside it.

    diagonal: the upper triangles on the diagonal, replicated. right: what stands to the right of
    each, eliminated as well, split by columns. parity: 1 or -1 for the exchanges of rows.
    """

    def __init__(self, x: DistributedArray, beside: DistributedArray | None = None) -> None:
        x, axes = _rows(x)
        rows, self.columns = x.layout, Layout.of(x.mesh, ((), axes))
        vector = Layout.of(x.mesh, (axes,))
        rest = x if beside is None else relayout(concat([x, relayout(beside, rows)], 1), rows)
        width, left = _width(x.shape[0], rows), x.shape[0]
        self.diagonal: list[DistributedArray] = []
        self.right: list[DistributedArray] = []
        self.parities: list[DistributedArray] = []
        while left:
            size = min(width, left)
            panel, order, parity = lu_of_whole(_whole(getitem(rest, (slice(None), slice(size)))))
            top, below = getitem(panel, slice(size)), getitem(panel, slice(size, None))
            rest = getitem(rest, (slice(None), slice(size, None)))
            pivots = take_in_range(rest, getitem(order, slice(size)), axis=0)
            lower = tril(top, k=-1) + identity_like(top, size)
            right = solve_of_whole(lower, relayout(pivots, self.columns))
            self.diagonal.append(triu(top))
            self.right.append(right)
            self.parities.append(parity)
            left -= size
            # Rows of the top that pivots have displaced stand where those stood.
            displaced = _whole(getitem(rest, slice(size)))
            source = relayout(getitem(order, slice(size, None)), vector)
            rest = relayout(getitem(rest, slice(size, None)), rows)
            moved = take_in_range(displaced, where(source < size, source, 0), axis=0)
            rest = where(expand_dims(source < size, 1), moved, rest)
            rest = rest - matmul(relayout(below, rows), _whole(right))

    def solution(self, n: int) -> DistributedArray:
        """The columns beside the matrix of n rows, solved for; split by columns."""
        solved: DistributedArray | None = None
        for upper, right in zip(reversed(self.diagonal), reversed(self.right), strict=True):
            n -= upper.shape[0]
            known = 0 if solved is None else solved.shape[0]
            value = relayout(getitem(right, (slice(None), slice(known, None))), self.columns)
            if solved is not None:
                value = value - matmul(_whole(getitem(right, (slice(None), slice(known)))), solved)
            value = solve_of_whole(upper, value)
            solved = value if solved is None else concat([value, solved])
        assert solved is not None
        return solved

    def determinant(self) -> tuple[DistributedArray, DistributedArray]:
        """The sign of the determinant, and the logarithm of its magnitude."""
        signs, logarithms = [], []
        for upper, parity in zip(self.diagonal, self.parities, strict=True):
            values = diagonals(upper)
            signs.append(multiply(prod(sign(values)), parity))
            with np.errstate(divide="ignore"):
                logarithms.append(sum_(log(abs_(values))))
        return math.prod(signs[1:], start=signs[0]), sum(logarithms[1:], logarithms[0])
