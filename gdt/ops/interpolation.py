"""Values between points that are given.

Short vectors of points are gathered; of long ones that are split, the device that holds the points
around a number is asked for its value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.operands import as_operands
from gdt.array.registry import public
from gdt.backend import backend_of
from gdt.engine.op import op
from gdt.engine.planned import BlockPlan, planned_op
from gdt.errors import ArgumentError, DtypeError, ShapeError, error
from gdt.ops.comparison import clip, greater, less, logical_and, where
from gdt.ops.creation import asarray, zeros_like
from gdt.ops.elementwise import astype, imag, like, real
from gdt.ops.movement import relayout
from gdt.ops.rows import scatter_rows
from gdt.ops.searching import asked, in_ascending_order, is_whole, search, whole_if_short
from gdt.ops.shapes import reshape
from gdt.ops.taking import add_at, rows_at, take
from gdt.sharding.array_type import ArrayType

__all__ = ["interp", "interp_whole"]

Block = Any


@op("..., k, k -> ...", whole="k", linear="values", fill={"x": None})
def interp_whole(xp: Any, x: Block, points: Block, values: Block, /) -> Block:
    """`gdt.interp` between points that every device has whole, all of them float64.

    >>> x, points, values = gdt.asarray([1.5]), gdt.asarray([1.0, 2.0]), gdt.asarray([3.0, 4.0])
    >>> gdt.interp_whole(x, points, values).tolist()
    [3.5]
    """
    return xp.interp(x.reshape(-1), points.reshape(-1), values.reshape(-1)).reshape(x.shape)


@planned_op(computes=True)
def _interp_split(x: ArrayType, points: ArrayType, values: ArrayType, /) -> BlockPlan:
    """The values at `x`, a vector that is split as both vectors of points are."""
    xp = backend_of(x.mesh).xp

    def answer(own: Sequence[Block], following: Sequence[Block] | None, _: int, q: Block) -> Block:
        if not len(own[0]):  # no one asks where nothing is
            return q
        if following is None and len(own[0]) < points.shape[0]:
            following = [part[-1:] for part in own]  # of a single point NumPy makes no NaN
        if following is not None:
            own = [xp.concatenate(pair) for pair in zip(own, following, strict=True)]
        return xp.interp(q, *own)

    out, run, collectives = asked([points, values], x, np.float64, "right", answer)
    functions = [] if x.mesh.divided else [lambda *blocks: run(*[[b] for b in blocks])[0]]
    layouts = [x.layout, points.layout, values.layout]
    return BlockPlan(layouts, out, functions, run, collectives)


def _interp_vjp(
    g: DistributedArray,
    out: DistributedArray,
    x: DistributedArray,
    points: DistributedArray,
    values: DistributedArray,
) -> tuple[DistributedArray, ...]:
    """The line from the last point that is not above x to the next one: `weight` of the way."""
    count = points.shape[0]
    if count == 1:
        return zeros_like(x), zeros_like(points), _added(g, astype(zeros_like(x), int), points)
    at = clip(search(points, x, "right") - 1, 0, count - 2)
    low, base = rows_at(points, at, 0), rows_at(values, at, 0)
    step, rise = rows_at(points, at + 1, 0) - low, rows_at(values, at + 1, 0) - base
    is_between = logical_and(x >= points[0], x <= points[-1])
    is_line = logical_and(is_between, step > 0)
    step = where(is_line, step, 1.0)
    slope = where(is_line, rise, 0.0) / step
    weight = where(is_line, (x - low) / step, astype(x >= points[-1], float))

    def to_points(part: DistributedArray) -> DistributedArray:
        share = part * weight
        return _added(part - share, at, points) + _added(share, at + 1, points)

    return like(g * slope, x), like(to_points(-g * slope), points), like(to_points(g), values)


def _added(g: DistributedArray, at: DistributedArray, like: DistributedArray) -> DistributedArray:
    """Zeros like a vector, to which each element of `g` is added at its place."""
    if is_whole(like):
        return add_at(g, at, zeros_like(like), axis=0)
    return scatter_rows(zeros_like(like), at, g, axis=0, how="add")


interp_whole.vjp(joint=_interp_vjp)
_interp_split.vjp(joint=_interp_vjp)


@public
def interp(
    x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: float | None = None
) -> DistributedArray:
    """The values at `x` of the line through the points (xp, fp), whose xp increase.

    left, right: the values before the first and after the last point, by default theirs. period:
        of the xp, which then need not increase, and are read. Split points that take more memory
        than a device's share of `x` are not gathered: each x goes to the device that holds the
        points around it. At a point the gradient is that of the line behind it.

    >>> gdt.interp([1.5, 9.0], [1, 2, 3], [10.0, 20.0, 0.0]).tolist()
    [15.0, 0.0]
    """
    x, points, values = as_operands("interp", x=x, xp=xp, fp=fp)
    if points.ndim != 1 or points.shape != values.shape or not points.size:
        operands = {"xp": points.type, "fp": values.type}
        raise error(ShapeError, "the points are no two equal vectors", operands=operands)
    for name, operand in (("x", x), ("xp", points)):
        if operand.dtype.kind == "c":
            operands = {name: operand.type}
            raise error(DtypeError, f"{name} is complex", operands=operands)
    if values.dtype.kind == "c":
        sides = [(None if v is None else (complex(v).real, complex(v).imag)) for v in (left, right)]
        ends = [[None if s is None else s[i] for s in sides] for i in (0, 1)]
        parts = [
            interp(x, points, part(values), left=pair[0], right=pair[1], period=period)
            for part, pair in zip((real, imag), ends, strict=True)
        ]
        return parts[0] + parts[1] * 1j
    x, points, values = (astype(a, float) for a in (x, points, values))
    if period is not None:
        if period == 0:
            raise error(ArgumentError, "period is 0")
        period = abs(period)
        x, host = x % period, points.numpy() % period
        order = np.argsort(host)
        order = np.concatenate([order[-1:], order, order[:1]])
        shifts = np.zeros(len(order))
        shifts[0], shifts[-1] = -period, period
        points, values = asarray(host[order] + shifts, device=x.mesh), take(values, order)
    inside = _between(x, points, values)
    if left is not None:
        inside = where(less(x, points[0]), left, inside)
    if right is not None:
        inside = where(greater(x, points[-1]), right, inside)
    return inside


def _between(
    x: DistributedArray, points: DistributedArray, values: DistributedArray
) -> DistributedArray:
    points = whole_if_short(points.resolve(), x)
    if is_whole(points):
        return interp_whole(x, points, values)
    layout = in_ascending_order(points)
    flat = relayout(reshape(x, (x.size,)), layout)
    between = _interp_split(flat, relayout(points, layout), relayout(values, layout))
    return reshape(between, x.shape)
