"""Reductions and scans that leave out NaN, as functions of ops: right, and differentiable, in every
layout."""

from __future__ import annotations

from typing import Any

import numpy as np

from gdt.arguments import same_arguments
from gdt.array.array import DistributedArray
from gdt.array.operands import as_operands
from gdt.array.output import writes_out
from gdt.array.registry import public
from gdt.errors import DtypeError, ShapeError, error
from gdt.ops.axes import Axis
from gdt.ops.blocks.host_values import warn_where
from gdt.ops.comparison import equal, isnan, logical_and, logical_not, maximum, only_where
from gdt.ops.comparison import where as where_
from gdt.ops.elementwise import astype, checked_dtype, conj, divide, multiply, real, sqrt
from gdt.ops.extrema import argmax, argmin, max_, min_
from gdt.ops.nan_elements import at_numbers, largest_number, smallest_number
from gdt.ops.reductions import all_, any_, count_nonzero, reduced_count, sum_
from gdt.ops.reductions import mean as mean_
from gdt.ops.scans import cumprod, cumsum, prod
from gdt.ops.statistics import NO_FREEDOM, check_variance_dtype, moments_of_numbers, var
from gdt.sharding.dtypes import BFLOAT16, kind_of, promoted

__all__ = [
    "nanargmax",
    "nanargmin",
    "nancumprod",
    "nancumsum",
    "nanmax",
    "nanmean",
    "nanmin",
    "nanprod",
    "nanstd",
    "nansum",
    "nanvar",
]


def has_nan(x: DistributedArray) -> bool:
    """Whether the dtype of `x` has a NaN."""
    return kind_of(x.dtype) in "fc"


def _filled(x: DistributedArray, value: Any) -> DistributedArray:
    """`x` with `value` in the places of NaN."""
    return _at_numbers(x, x, value) if has_nan(x) else x


def _at_numbers(x: DistributedArray, y: DistributedArray, otherwise: float) -> DistributedArray:
    """`y` with `otherwise` in the places where `x` is NaN."""
    if BFLOAT16 in (x.dtype, y.dtype):
        return where_(isnan(x), otherwise, y)
    return at_numbers(x, y, otherwise=otherwise)


@public
@same_arguments(sum_)
def nansum(x: Any, *args: Any, **options: Any) -> DistributedArray:
    """The sum over `axis` (None: all axes), NaN taken for 0. Arguments are those of `gdt.sum`.

    >>> float(gdt.nansum([1.0, float("nan"), 3.0]))
    4.0
    """
    (x,) = as_operands("nansum", x=x)
    return sum_(_filled(x, 0), *args, **options)


@public
@same_arguments(prod)
def nanprod(x: Any, *args: Any, **options: Any) -> DistributedArray:
    """The product over `axis` (None: all axes), NaN taken for 1. Arguments are those of `gdt.prod`.

    >>> float(gdt.nanprod([2.0, float("nan"), 3.0]))
    6.0
    """
    (x,) = as_operands("nanprod", x=x)
    return prod(_filled(x, 1), *args, **options)


@public
@same_arguments(cumsum)
def nancumsum(x: Any, *args: Any, **options: Any) -> DistributedArray:
    """Sums of the first 1, 2, 3, ... elements, NaN taken for 0; see `gdt.cumsum`.

    >>> gdt.nancumsum([1.0, float("nan"), 3.0]).tolist()
    [1.0, 1.0, 4.0]
    """
    (x,) = as_operands("nancumsum", x=x)
    return cumsum(_filled(x, 0), *args, **options)


@public
@same_arguments(cumprod)
def nancumprod(x: Any, *args: Any, **options: Any) -> DistributedArray:
    """Products of the first 1, 2, 3, ... elements, NaN taken for 1; see `gdt.cumprod`.

    >>> gdt.nancumprod([2.0, float("nan"), 3.0]).tolist()
    [2.0, 2.0, 6.0]
    """
    (x,) = as_operands("nancumprod", x=x)
    return cumprod(_filled(x, 1), *args, **options)


def _check_dtype(x: DistributedArray, dtype: Any, name: str) -> None:
    """Raise DtypeError for a dtype of integers in which to add up numbers that are no integers."""
    if dtype is not None and has_nan(x) and kind_of(checked_dtype(dtype, name)) not in "fc":
        problem = f"the result is no {np.dtype(dtype)}"
        raise error(DtypeError, name, problem, operands={"x": x.type})


def _count(x: DistributedArray, axis: Axis, keepdims: bool, where: Any) -> DistributedArray:
    """The number of elements along `axis` where the mask is true that are no NaN: in the dtype of
    the parts of `x`, or in float32, since float16 holds no number above 65,504."""
    dtype = promoted(np.empty(0, x.dtype).real.dtype, np.float32)
    if where is True:
        missing = count_nonzero(isnan(x), axis=axis, keepdims=keepdims)
        return astype(reduced_count(x, axis) - missing, dtype)
    _, mask = only_where("isnan", x, where, 0)
    are_numbers = logical_and(mask, logical_not(isnan(x)))
    return astype(count_nonzero(are_numbers, axis=axis, keepdims=keepdims), dtype)


@public
@writes_out
def nanmean(
    x: Any,
    axis: Axis = None,
    dtype: Any = None,
    out: DistributedArray | None = None,
    keepdims: bool = False,
    *,
    where: Any = True,
) -> DistributedArray:
    """The mean over `axis` (None: all axes) of what is no NaN; NaN, with NumPy's RuntimeWarning,
    where there is nothing.

    Arguments are those of `gdt.mean`.

    >>> float(gdt.nanmean([1.0, float("nan"), 3.0]))
    2.0
    """
    (x,) = as_operands("nanmean", x=x)
    _check_dtype(x, dtype, "nanmean")
    if not has_nan(x):
        return mean_(x, axis=axis, keepdims=keepdims, dtype=dtype, where=where)
    x = x if dtype is None else astype(x, dtype)
    total = sum_(_filled(x, 0), axis=axis, keepdims=keepdims, where=where)
    count = _count(x, axis, keepdims, where)
    is_empty = equal(count, 0)
    warn_where(is_empty, "Mean of empty slice")
    return astype(divide(total, where_(is_empty, np.nan, count)), total.dtype)


def _variance(
    x: Any,
    axis: Axis = None,
    dtype: Any = None,
    out: DistributedArray | None = None,
    ddof: float = 0,
    keepdims: bool = False,
    *,
    where: Any = True,
    mean: Any = None,
    correction: float | None = None,
) -> DistributedArray:
    (x,) = as_operands("nanvar", x=x)
    if dtype is not None:
        check_variance_dtype(x, dtype, "nanvar")
        x = astype(x, dtype)
    if not has_nan(x):
        options: Any = {"where": where, "mean": mean, "correction": correction}
        return var(x, axis, None, None, ddof, keepdims, **options)
    ddof = ddof if correction is None else correction
    if where is not True:
        x, _ = only_where("nanvar", x, where, np.nan)
    if mean is None:
        _, variance, count = moments_of_numbers(x, axes=axis, keepdims=keepdims)
    else:
        centred = _at_numbers(x, x - mean, 0)
        total = sum_(real(multiply(centred, conj(centred))), axis=axis, keepdims=keepdims)
        count = _count(x, axis, keepdims, True)
        variance = divide(total, maximum(count, 1))
    has_freedom = count > ddof
    warn_where(logical_not(has_freedom), NO_FREEDOM)
    scale = divide(count, where_(has_freedom, count - ddof, np.nan))
    return astype(variance * scale, variance.dtype)


@public
@writes_out
@same_arguments(var)
def nanvar(x: Any, *args: Any, **options: Any) -> DistributedArray:
    """The variance over `axis` (None: all axes) of the elements that are no NaN.

    NaN, with NumPy's RuntimeWarning, where there are no more than `ddof` of them. Arguments are
    those of `gdt.var`.

    >>> float(gdt.nanvar([1.0, float("nan"), 3.0]))
    1.0
    """
    return _variance(x, *args, **options)


@public
@writes_out
@same_arguments(var)
def nanstd(x: Any, *args: Any, **options: Any) -> DistributedArray:
    """The standard deviation over `axis` (None: all axes) of the elements that are no NaN.

    It is the square root of `gdt.nanvar`, whose arguments it has.

    >>> float(gdt.nanstd([1.0, float("nan"), 3.0]))
    1.0
    """
    return sqrt(_variance(x, *args, **options))


@public
@writes_out
@same_arguments(max_)
def nanmax(x: Any, *args: Any, **options: Any) -> DistributedArray:
    """The largest element along `axis` (None: all axes) that is no NaN; NaN, with NumPy's
    RuntimeWarning, where there is none.

    >>> float(gdt.nanmax([1.0, float("nan"), 3.0]))
    3.0
    """
    return _extreme("nanmax", x, *args, **options)


@public
@writes_out
@same_arguments(min_)
def nanmin(x: Any, *args: Any, **options: Any) -> DistributedArray:
    """The smallest element along `axis` (None: all axes) that is no NaN; NaN, with NumPy's
    RuntimeWarning, where there is none.

    >>> float(gdt.nanmin([1.0, float("nan"), 3.0]))
    1.0
    """
    return _extreme("nanmin", x, *args, **options)


_EXTREMA = {"nanmax": (max_, -np.inf), "nanmin": (min_, np.inf)}


def _extreme(
    name: str,
    x: Any,
    axis: Axis = None,
    out: None = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = True,
) -> DistributedArray:
    (x,) = as_operands(name, x=x)
    reduce, worst = _EXTREMA[name]
    if initial is not None or where is not True or not has_nan(x):
        numbers = _filled(x, worst)  # an initial number is an element that is no NaN
        return reduce(numbers, axis=axis, keepdims=keepdims, initial=initial, where=where)
    if name == "nanmax":
        extreme, is_number = largest_number(x, axis=axis, keepdims=keepdims)
        is_missing = logical_not(is_number)
    else:
        extreme, is_missing = smallest_number(x, axis=axis, keepdims=keepdims)
    warn_where(is_missing, "All-NaN slice encountered")
    return where_(is_missing, np.nan, extreme)


@public
@same_arguments(argmax)
def nanargmax(x: Any, axis: int | None = None, *out: Any, **options: Any) -> DistributedArray:
    """The index of the largest element along `axis` that is no NaN; see `gdt.argmax`.

    Raises ShapeError (a ValueError) where all elements are NaN, for which it reads one truth value.

    >>> int(gdt.nanargmax([1.0, float("nan"), 3.0]))
    2
    """
    x = _checked("nanargmax", x, axis)
    return argmax(_filled(x, -np.inf), axis, *out, **options)


@public
@same_arguments(argmin)
def nanargmin(x: Any, axis: int | None = None, *out: Any, **options: Any) -> DistributedArray:
    """The index of the smallest element along `axis` that is no NaN; see `gdt.argmin`.

    Raises ShapeError (a ValueError) where all elements are NaN, for which it reads one truth value.

    >>> int(gdt.nanargmin([1.0, float("nan"), 3.0]))
    0
    """
    x = _checked("nanargmin", x, axis)
    return argmin(_filled(x, np.inf), axis, *out, **options)


def _checked(name: str, x: Any, axis: int | None) -> DistributedArray:
    """The operand; ShapeError where all elements along the axis are NaN."""
    (x,) = as_operands(name, x=x)
    axis = None if axis in (0, -1) and not x.ndim else axis  # as NumPy takes them
    if has_nan(x) and reduced_count(x, axis) and bool(any_(all_(isnan(x), axis=axis))):
        raise error(ShapeError, "all elements of a slice are NaN", operands={"x": x.type})
    return x
