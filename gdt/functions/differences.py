"""Differences of neighbours, their sums and slopes: devices exchange the edges of shards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.operands import as_elements, as_operands
from gdt.array.registry import public
from gdt.engine.whole_arrays import in_numpy
from gdt.errors import ArgumentError, DtypeError, ShapeError, error
from gdt.ops.axes import checked_axes, checked_axis
from gdt.ops.comparison import equal, less, logical_and, not_equal, where
from gdt.ops.elementwise import astype, remainder, subtract
from gdt.ops.joining import concat
from gdt.ops.reductions import sum_
from gdt.ops.rounding import abs_
from gdt.ops.scans import cumsum
from gdt.ops.shapes import broadcast_to, reshape
from gdt.sharding.dtypes import castable, promoted

__all__ = ["diff", "ediff1d", "gradient", "trapezoid", "unwrap"]


def along(ndim: int, axis: int, item: slice | int) -> tuple[Any, ...]:
    """An index of `item` along `axis`, and of everything along the other axes."""
    return (*[slice(None)] * axis, item, *[slice(None)] * (ndim - axis - 1))


@public
def diff(
    x: Any, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None
) -> DistributedArray:
    """Differences of neighbours along `axis`, taken `n` times; for bools, whether they differ.

    prepend, append: what is put before and after `x` first: arrays that fit along the other axes,
        or numbers. Raises ArgumentError for an `n` below 0, ShapeError for an `x` of rank 0.

    >>> gdt.diff([1, 2, 4, 7]).tolist(), gdt.diff([1, 2, 4, 7], n=2).tolist()
    ([1, 2, 3], [1, 1])
    """
    (x,) = as_operands("diff", x=x)
    if n < 0:
        raise error(ArgumentError, f"n is {n}, and no count", operands={"x": x.type})
    if n == 0:
        return x
    if not x.ndim:
        raise error(ShapeError, "rank 0 has no neighbours", operands={"x": x.type})
    at = checked_axis(x.type, axis)
    ends = [
        None if end is None else _as_end(end, x, at, name)
        for name, end in (("prepend", prepend), ("append", append))
    ]
    parts = [p for p in (ends[0], x, ends[1]) if p is not None]
    x = concat(parts, axis=at) if len(parts) > 1 else x
    return _differences(x, n=n, axis=at)


def _differences_in_numpy(x: np.ndarray, out: np.ndarray, n: int, axis: int) -> None:
    for left in reversed(range(n)):
        later, earlier = _neighbours(x, axis)
        minus = np.not_equal if x.dtype.kind == "b" else np.subtract
        x = minus(later, earlier, out=None if left else out)


@in_numpy(_differences_in_numpy)
def _differences(x: DistributedArray, /, *, n: int, axis: int) -> DistributedArray:
    for _ in range(n):
        later, earlier = _neighbours(x, axis)
        x = not_equal(later, earlier) if x.dtype.kind == "b" else subtract(later, earlier)
    return x


def _neighbours(x: Any, axis: int) -> tuple[Any, Any]:
    """All elements along an axis but the first, and all but the last."""
    return x[along(x.ndim, axis, slice(1, None))], x[along(x.ndim, axis, slice(None, -1))]


def _refuse_bools(name: str, x: DistributedArray) -> None:
    """Raise DtypeError for bools, which NumPy does not subtract either."""
    if x.dtype.kind == "b":
        problem, remedy = "bools have no difference", "gdt.diff says where neighbours differ."
        raise error(DtypeError, name, problem, operands={"x": x.type}, remedy=remedy)


def _as_end(end: Any, x: DistributedArray, axis: int, name: str) -> DistributedArray:
    """`prepend` or `append` as an array; a number broadcasts to one row of `x`."""
    _, array = as_operands("diff", x=x, **{name: end})
    shape = tuple(1 if d == axis else n for d, n in enumerate(x.shape))
    return broadcast_to(array, shape) if array.ndim == 0 else array


@public
def ediff1d(x: Any, to_end: Any = None, to_begin: Any = None) -> DistributedArray:
    """Differences of neighbours in the flattened array, between `to_begin` and `to_end`.

    Raises DtypeError for bools, and for ends that NumPy does not cast to the dtype of `x` either.

    >>> gdt.ediff1d([1, 2, 4], to_begin=0, to_end=[8, 9]).tolist()
    [0, 1, 2, 8, 9]
    """
    (x,) = as_operands("ediff1d", x=x)
    _refuse_bools("ediff1d", x)
    differences = diff(reshape(x, -1))
    parts = []
    for name, part in (("to_begin", to_begin), ("", differences), ("to_end", to_end)):
        if part is differences:
            parts.append(differences)
        elif part is not None:
            _, array = as_operands("ediff1d", x=x, **{name: part})
            if not castable(array.dtype, x.dtype, "same_kind"):
                problem = f"{name} of {array.dtype} does not fit"
                raise error(DtypeError, problem, operands={"x": x.type})
            parts.append(reshape(as_elements("ediff1d", x, x.dtype, name, part), -1))
    return concat(parts) if len(parts) > 1 else differences


@public
def trapezoid(y: Any, x: Any = None, dx: float = 1.0, axis: int = -1) -> DistributedArray:
    """The integral of `y` along `axis` by the trapezoidal rule.

    x: the points at which `y` is given, of rank 1 or of the shape of `y`; `dx` apart if it is None.

    >>> float(gdt.trapezoid([1, 2, 3])), float(gdt.trapezoid([1, 2, 3], x=[4, 6, 8]))
    (4.0, 8.0)
    """
    (y,) = as_operands("trapezoid", y=y)
    at = checked_axis(y.type, axis)
    width: Any = dx
    if x is not None:
        _, x = as_operands("trapezoid", y=y, x=x)
        if x.ndim == 1:
            width = reshape(diff(x), (-1, *[1] * (y.ndim - at - 1)))
        else:
            width = diff(x, axis=axis)
    if type(width) in (int, float):
        return _area(y, width, axis=at)
    later, earlier = _neighbours(y, at)
    return sum_(width * (later + earlier) / 2.0, axis=at)


def _area_in_numpy(y: np.ndarray, width: float, axis: int) -> Any:
    heights = np.add(*_neighbours(y, axis))
    if heights.dtype.kind not in "fc":
        return (width * heights / 2.0).sum(axis)
    heights *= width
    heights /= 2.0
    return heights.sum(axis)


@in_numpy(_area_in_numpy)
def _area(y: DistributedArray, width: float, /, *, axis: int) -> DistributedArray:
    """The integral along an axis of points that are `width` apart."""
    later, earlier = _neighbours(y, axis)
    return sum_(width * (later + earlier) / 2.0, axis=axis)


@public
def gradient(
    f: Any, *varargs: Any, axis: int | Sequence[int] | None = None, edge_order: int = 1
) -> DistributedArray | tuple[DistributedArray, ...]:
    """Slopes by second-order differences inside, by differences of order `edge_order` at the ends.

    varargs: the distance of the points, one for all axes or one for each: a number, or the points
        along that axis. axis: the axes, all of them for None. One array for one axis, else a tuple.
    Raises ShapeError for axes shorter than `edge_order` + 1 and for points that do not fit,
    ArgumentError for another number of distances, or an `edge_order` that is neither 1 nor 2,
    DtypeError for bools.

    >>> gdt.gradient([1.0, 2.0, 4.0, 7.0]).tolist()
    [1.0, 1.5, 2.5, 3.0]
    """
    (f,) = as_operands("gradient", f=f)
    if edge_order not in (1, 2):
        raise error(ArgumentError, f"edge_order is {edge_order}, neither 1 nor 2")
    _refuse_bools("gradient", f)
    f = astype(f, float) if f.dtype.kind in "iu" else f
    axes = checked_axes(f.type, axis)
    spaces = varargs * len(axes) if len(varargs) == 1 else varargs or (1.0,) * len(axes)
    if len(spaces) != len(axes):
        problem = f"{len(spaces)} distances do not fit {len(axes)} axes"
        raise error(ArgumentError, problem, operands={"f": f.type})
    slopes = tuple(_slope(f, h, a, edge_order) for h, a in zip(spaces, axes, strict=True))
    return slopes[0] if len(slopes) == 1 else slopes


def _slope(f: DistributedArray, spacing: Any, axis: int, edge_order: int) -> DistributedArray:
    """The slope of `f` along an axis of points that are `spacing` apart, or at `spacing`."""
    n = f.shape[axis]
    if n < edge_order + 1:
        problem = f"axis {axis} of length {n} is shorter than edge_order + 1 = {edge_order + 1}"
        raise error(ShapeError, problem, operands={"f": f.type})

    if type(spacing) in (int, float):
        return _slope_of_even_points(f, spacing, axis=axis, edge_order=edge_order)
    return _slope_of_points(f, spacing, axis, edge_order)


def _slope_of_even_points_in_numpy(
    f: np.ndarray, h: float, out: np.ndarray, axis: int, edge_order: int
) -> None:
    f, out = np.moveaxis(f, axis, 0), np.moveaxis(out, axis, 0)
    np.subtract(f[2:], f[:-2], out=out[1:-1])
    out[1:-1] /= 2.0 * h
    if edge_order == 1:
        out[0], out[-1] = (f[1] - f[0]) / h, (f[-1] - f[-2]) / h
    else:
        out[0] = np.gradient(f[:3], h, axis=0, edge_order=2)[0]
        out[-1] = np.gradient(f[-3:], h, axis=0, edge_order=2)[-1]


@in_numpy(_slope_of_even_points_in_numpy)
def _slope_of_even_points(
    f: DistributedArray, h: float, /, *, axis: int, edge_order: int
) -> DistributedArray:
    """The slope along an axis of points that are `h` apart."""
    return _slope_of_points(f, h, axis, edge_order)


def _slope_of_points(
    f: DistributedArray, spacing: Any, axis: int, edge_order: int
) -> DistributedArray:
    n = f.shape[axis]

    def part(start: int | None, stop: int | None = None) -> DistributedArray:
        return f[along(f.ndim, axis, slice(start, stop))]

    if np.ndim(spacing) == 0 and not isinstance(spacing, DistributedArray):
        h = before = after = spacing
        inside = (part(2) - part(None, -2)) / (2.0 * h)
    else:
        _, points = as_operands("gradient", f=f, spacing=spacing)
        if points.ndim != 1 or points.shape[0] != n:
            problem = f"points of shape {list(points.shape)} do not fit axis {axis} of length {n}"
            raise error(ShapeError, problem, operands={"f": f.type})
        h = reshape(diff(points), (n - 1, *[1] * (f.ndim - axis - 1)))
        before, after = h[:-1], h[1:]
        inside = (
            part(None, -2) * (-after / (before * (before + after)))
            + part(1, -1) * ((after - before) / (before * after))
            + part(2) * (before / (after * (before + after)))
        )
    ends = [_end(f, h, axis, edge_order, is_last=last) for last in (False, True)]
    return concat([ends[0], inside, ends[1]], axis=axis)


def _end(f: DistributedArray, h: Any, axis: int, order: int, *, is_last: bool) -> DistributedArray:
    """The slope at the first point, or at the last one, from `order` + 1 points."""
    sign = -1.0 if is_last else 1.0

    def point(i: int) -> DistributedArray:
        i = f.shape[axis] - 1 - i if is_last else i
        return f[along(f.ndim, axis, slice(i, i + 1))]

    def distance(i: int) -> Any:
        if not isinstance(h, DistributedArray):
            return h
        i = h.shape[0] - 1 - i if is_last else i
        return h[i : i + 1]

    a = distance(0)
    if order == 1:
        first: DistributedArray = (point(1) - point(0)) * sign / a
        return first
    b = distance(1)
    slope: DistributedArray = (
        point(0) * (-(2.0 * a + b) / (a * (a + b)))
        + point(1) * ((a + b) / (a * b))
        + point(2) * (-a / (b * (a + b)))
    )
    return slope * sign


@public
def unwrap(
    p: Any, discont: float | None = None, axis: int = -1, *, period: float = 2 * math.pi
) -> DistributedArray:
    """Phases without jumps: differences of neighbours above half a period lose whole periods.

    discont: the smallest jump that is removed, if it is larger than half a period.

    >>> gdt.unwrap([0, 1, 2, -1, 0], period=4).tolist()
    [0, 1, 2, 3, 4]
    """
    (p,) = as_operands("unwrap", p=p)
    at = checked_axis(p.type, axis)
    steps = diff(p, axis=at)
    half = period / 2 if discont is None else max(discont, period / 2)
    if promoted(steps.dtype, period).kind in "iu":
        high, ambiguous = divmod(period, 2)[0], period % 2 == 0
    else:
        high, ambiguous = period / 2, True
    low = -high
    wrapped = remainder(steps - low, period) + low
    if ambiguous:
        wrapped = where(logical_and(equal(wrapped, low), steps > 0), high, wrapped)
    correction = where(less(abs_(steps), half), 0, wrapped - steps)
    first = p[along(p.ndim, at, slice(0, 1))]
    rest = p[along(p.ndim, at, slice(1, None))] + cumsum(correction, axis=at)
    return astype(concat([first, rest], axis=at), promoted(steps.dtype, period))
