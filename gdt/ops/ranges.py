"""Evenly spaced numbers: arange."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.registry import public
from gdt.errors import DtypeError, ShapeError, error
from gdt.ops.generation import from_indices, type_of_shape
from gdt.sharding.layout import Layout
from gdt.sharding.mesh import Mesh

__all__ = ["arange"]


Block = Any
Number = int | float | complex | np.generic


@public
def arange(
    start: Number,
    stop: Number | None = None,
    step: Number = 1,
    dtype: Any = None,
    *,
    layout: Layout | None = None,
    device: Mesh | None = None,
) -> DistributedArray:
    """Evenly spaced numbers from `start` up to, not including, `stop`: 0 to `start` if `stop` is
    None.

    Values and dtype are NumPy's; replicated if no layout is given. Raises ShapeError for a step of
    0 or bounds that are not finite, DtypeError for complex numbers.

    >>> gdt.arange(6, layout=gdt.Layout(["x"], gdt.create_mesh([("x", 2)]))).tolist()
    [0, 1, 2, 3, 4, 5]
    """
    bounds = (0, start) if stop is None else (start, stop)
    begin, end, stride = (_real_number(n) for n in (*bounds, step))
    count = _count(begin, end, stride)
    if dtype is None:
        dtype = np.arange(type(begin)(0), type(end)(0), type(stride)(1)).dtype
    array_type = type_of_shape(count, dtype, "arange", layout, device)
    if array_type.dtype.kind == "b" and count > 2:
        raise error(DtypeError, f"a range of {count} elements is not of dtype bool")
    unit = array_type.dtype if array_type.dtype != np.float16 else np.dtype(np.float32)
    # NumPy's steps are the difference of the first two elements, as they are in the dtype.
    first = np.asarray(begin).astype(array_type.dtype)[()]
    second = np.asarray(begin + stride).astype(array_type.dtype)[()] if count > 1 else first

    def values(xp: Any, i: Any) -> Any:
        if array_type.dtype.kind == "b":
            return xp.where(i == 0, first, second)
        with np.errstate(over="ignore"):
            delta = unit.type(second) - unit.type(first)
        return xp.where(i == 1, second, (unit.type(first) + i.astype(unit) * delta))

    return from_indices(array_type, values, begin, end, stride)


def _real_number(n: Any) -> Any:
    if isinstance(n, DistributedArray) and n.shape == ():
        n = n.numpy()[()]
    if isinstance(n, np.ndarray) and n.shape == ():
        n = n[()]
    if not isinstance(n, int | float | np.integer | np.floating | np.bool_):
        raise error(DtypeError, f"{n!r} is not a real number")
    return n


def _count(start: Any, stop: Any, step: Any) -> int:
    whole = all(isinstance(n, int | np.integer) for n in (start, stop, step))
    if step == 0:
        raise error(ShapeError, "the step is 0")
    if whole:
        return max(0, -((int(start) - int(stop)) // int(step)))
    length = (float(stop) - float(start)) / float(step)
    if not math.isfinite(length):
        raise error(ShapeError, f"no finite range from {start} to {stop} by {step}")
    return max(0, math.ceil(length))
