"""Spaced numbers: evenly, and by constant multiples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.operands import as_operands
from gdt.array.registry import public
from gdt.errors import ArgumentError, error
from gdt.ops.comparison import isfinite, where
from gdt.ops.elementwise import astype
from gdt.ops.exponential import log10
from gdt.ops.generation import from_indices, type_of_shape
from gdt.ops.movement import relayout
from gdt.ops.powers import power
from gdt.ops.ranges import arange
from gdt.ops.rearranging import moveaxis
from gdt.ops.rounding import floor, sign
from gdt.ops.shapes import reshape
from gdt.sharding.dtypes import promoted
from gdt.sharding.layout import Layout
from gdt.sharding.mesh import Mesh

__all__ = ["geomspace", "linspace", "logspace"]


@public
def linspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: Any = None,
    axis: int = 0,
    *,
    layout: Layout | None = None,
    device: Mesh | None = None,
) -> Any:
    """`num` evenly spaced numbers from `start` to `stop`, which is the last one if `endpoint`.

    start, stop: numbers, or arrays that broadcast: of each pair of elements the numbers between
    them, along the axis `axis` of the result. retstep: whether to return the distance as well.
    Values and dtype are NumPy's; of numbers the result is replicated if no layout is given. Raises
    ShapeError for a `num` below 0.

    >>> gdt.linspace(0, 1, 5).tolist()
    [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    if np.ndim(start) or np.ndim(stop):
        ends = as_operands("linspace", start=start, stop=stop)
        result, distances = _between(ends, num, endpoint, dtype, axis)
        if device is not None:
            result = result.to_device(device)
        result = result if layout is None else relayout(result, layout)
        return (result, distances) if retstep else result
    start, stop = (n.numpy()[()] if isinstance(n, DistributedArray) else n for n in (start, stop))
    unit = np.result_type(np.asarray(start), np.asarray(stop), float(num))
    array_type = type_of_shape(num, unit if dtype is None else dtype, "linspace", layout, device)
    first, last = unit.type(start), unit.type(stop)
    parts = num - 1 if endpoint else num
    step = (last - first) / parts if parts > 0 else None

    def values(xp: Any, i: Any) -> Any:
        y = i.astype(unit)
        if step is None or step == 0:  # nothing to divide by, or a quotient that underflows
            y = (y if step is None else y / parts) * (last - first)
        else:
            y = y * step
        y = y + first
        if endpoint and num > 1:
            y = xp.where(i == num - 1, last, y)
        return xp.floor(y) if array_type.dtype.kind in "iu" else y

    result = from_indices(array_type, values, first.item(), last.item(), endpoint)
    return (result, np.nan if step is None else step) if retstep else result


def _between(
    ends: Sequence[DistributedArray], num: int, endpoint: bool, dtype: Any, axis: int
) -> tuple[DistributedArray, Any]:
    """`linspace` from each element of an array to that of another one, and the distances."""
    start, stop = ends
    unit = promoted(start.dtype, stop.dtype, 1.0)
    start, stop = astype(start, unit), astype(stop, unit)
    delta, parts = stop - start, num - 1 if endpoint else num
    rank = delta.ndim
    place = reshape(arange(num, dtype=np.int64, device=delta.mesh), (num, *[1] * rank))
    at = astype(place, unit)
    step: Any = delta / parts if parts > 0 else np.nan
    steps = at * step
    if parts > 0:  # a quotient that underflows is no step
        steps = where(step == 0, at / parts * delta, steps)
    result = (steps if parts > 0 else at * delta) + start
    if endpoint and num > 1:
        result = where(place == num - 1, stop, result)
    if dtype is not None and np.dtype(dtype).kind in "iu":
        result = floor(result)
    result = result if dtype is None else astype(result, dtype)
    return moveaxis(result, 0, axis), step


@public
def logspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    base: float = 10.0,
    dtype: Any = None,
    axis: int = 0,
    *,
    layout: Layout | None = None,
    device: Mesh | None = None,
) -> DistributedArray:
    """`num` numbers from `base ** start` to `base ** stop`, whose logarithms are evenly spaced.

    The other arguments are those of `gdt.linspace`.

    >>> gdt.logspace(0, 2, 3).tolist()
    [1.0, 10.0, 100.0]
    """
    powers = linspace(start, stop, num, endpoint, axis=axis, layout=layout, device=device)
    numbers = power(float(base), powers)
    return numbers if dtype is None else astype(numbers, dtype)


@public
def geomspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    dtype: Any = None,
    axis: int = 0,
    *,
    layout: Layout | None = None,
    device: Mesh | None = None,
) -> DistributedArray:
    """`num` real numbers from `start` to `stop`, each a constant multiple of the one before.

    The arguments are those of `gdt.linspace`. Raises ArgumentError for a bound of 0 and for bounds
    of different signs; between such elements of arrays the numbers are NaN.

    >>> gdt.geomspace(1, 8, 4).round(12).tolist()
    [1.0, 2.0, 4.0, 8.0]
    """
    if np.ndim(start) or np.ndim(stop):
        ends = as_operands("geomspace", start=start, stop=stop)
        result = _multiples(ends, num, endpoint, dtype, axis)
        result = result if device is None else result.to_device(device)
        return result if layout is None else relayout(result, layout)
    if not (start and stop) or (start < 0) != (stop < 0):
        problem = f"no constant multiple leads from {start!r} to {stop!r}"
        raise error(ArgumentError, problem)
    sign = -1.0 if start < 0 else 1.0
    first, last = math.log10(abs(start)), math.log10(abs(stop))
    parts = num - 1 if endpoint else num

    def values(xp: Any, i: Any) -> Any:
        y = sign * 10.0 ** (first + i * ((last - first) / parts if parts else 0.0))
        y = xp.where(i == 0, float(start), y)
        return xp.where(i == num - 1, float(stop), y) if endpoint and num > 1 else y

    array_type = type_of_shape(num, float, "geomspace", layout, device)
    numbers = from_indices(array_type, values, float(start), float(stop), endpoint)
    return numbers if dtype is None else astype(numbers, dtype)


def _multiples(
    ends: Sequence[DistributedArray], num: int, endpoint: bool, dtype: Any, axis: int
) -> DistributedArray:
    """`geomspace` from each element of an array to that of another one."""
    unit = promoted(ends[0].dtype, ends[1].dtype, 1.0)
    start, stop = (astype(x, unit) for x in ends)
    signs = sign(start)
    logs = log10(start * signs), log10(stop * signs)
    powers, _ = _between(logs, num, endpoint, None, 0)
    numbers = power(10.0, powers) * signs
    rank = numbers.ndim - 1
    place = reshape(arange(num, dtype=np.int64, device=numbers.mesh), (num, *[1] * rank))
    numbers = where((place == 0) & isfinite(numbers), start, numbers)
    if endpoint and num > 1:
        numbers = where((place == num - 1) & isfinite(numbers), stop, numbers)
    return moveaxis(numbers if dtype is None else astype(numbers, dtype), 0, axis)
