"""Whether two arrays are equal, or as good as."""

from __future__ import annotations

from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.operands import as_operands
from gdt.array.registry import public
from gdt.errors import ShapeError, error
from gdt.ops.comparison import equal, isfinite, isnan, less_equal, logical_and, logical_or, where
from gdt.ops.creation import asarray, full
from gdt.ops.elementwise import astype
from gdt.ops.reductions import all_
from gdt.ops.rounding import abs_
from gdt.sharding.dtypes import kind_of
from gdt.sharding.layout import Layout

__all__ = ["allclose", "array_equal", "asarray_chkfinite", "isclose"]


@public
def isclose(
    x: Any, y: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> DistributedArray:
    """Whether |x - y| <= atol + rtol * |y|, element by element; bool.

    Infinities are close to themselves, and with `equal_nan` so is NaN. The operands broadcast;
    raises ShapeError if their shapes do not. Source: NumPy's `isclose`.

    >>> gdt.isclose([1.0, 1.0, float("inf")], [1.0 + 1e-9, 1.1, float("inf")]).tolist()
    [True, False, True]
    """
    x, y = (_inexact(a) for a in as_operands("isclose", x=x, y=y))
    finite = logical_and(isfinite(x), isfinite(y))
    x_, y_ = where(finite, x, 0), where(finite, y, 0)  # without the warnings of inf - inf
    near = less_equal(abs_(x_ - y_), atol + rtol * abs_(y_))
    close = logical_or(logical_and(near, finite), equal(x, y))
    return logical_or(close, logical_and(isnan(x), isnan(y))) if equal_nan else close


def _inexact(x: DistributedArray) -> DistributedArray:
    """`x` as floating-point numbers: differences of integers may wrap around."""
    return x if kind_of(x.dtype) in "fc" else astype(x, np.float64)


@public
def allclose(
    x: Any, y: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> DistributedArray:
    """Whether all elements are close in the sense of `gdt.isclose`; a bool array of rank 0.

    The operands broadcast; raises ShapeError if their shapes do not.

    >>> bool(gdt.allclose([1.0, 2.0], [1.0, 2.0 + 1e-9]))
    True
    """
    return all_(isclose(x, y, rtol, atol, equal_nan))


@public
def array_equal(x: Any, y: Any, equal_nan: bool = False) -> DistributedArray:
    """Whether two arrays have one shape and equal elements; a bool array of rank 0.

    equal_nan: whether NaN equals NaN. Arrays of different shapes are not equal, and no error.

    >>> bool(gdt.array_equal([1, 2], [1, 2])), bool(gdt.array_equal([1, 2], [[1, 2]]))
    (True, False)
    """
    x, y = as_operands("array_equal", x=x, y=y)
    if x.shape != y.shape:
        return full((), False, layout=Layout.replicated(x.mesh, 0))
    same = equal(x, y)
    if equal_nan and kind_of(x.dtype) in "fc" and kind_of(y.dtype) in "fc":
        same = logical_or(same, logical_and(isnan(x), isnan(y)))
    return all_(same)


@public
def asarray_chkfinite(value: Any, dtype: Any = None) -> DistributedArray:
    """`gdt.asarray` of values that are finite; ShapeError (a ValueError) for infinities and NaN.

    Reads one truth value.

    >>> gdt.asarray_chkfinite([1.0, 2.0]).tolist()
    [1.0, 2.0]
    """
    x = asarray(value, dtype)
    if kind_of(x.dtype) in "fc" and not bool(all_(isfinite(x))):
        problem = "there are infinities or NaN"
        raise error(ShapeError, problem, operands={"value": x.type})
    return x
