"""median, quantile, percentile, and the same without NaN: elements by their place in ascending
order, and numbers between them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from gdt.arguments import same_arguments, shown_value
from gdt.array.array import DistributedArray
from gdt.array.operands import as_operands
from gdt.array.output import writes_out
from gdt.array.registry import public
from gdt.engine.whole_arrays import in_numpy
from gdt.errors import ArgumentError, DtypeError, IndexRangeError, error
from gdt.functions.averages import weights_along
from gdt.functions.nan_functions import nanmean
from gdt.functions.quantile_methods import (
    BY_RANK,
    CHOOSING,
    METHODS,
    interpolated,
    interpolated_scalars,
    neighbours_of,
    ranks_of,
)
from gdt.observe import is_recorded
from gdt.ops.along_axis import take_along_axis_in_range
from gdt.ops.axes import Axis, distinct_axes
from gdt.ops.blocks.host_values import warn_where
from gdt.ops.comparison import equal, isfinite, isnan, maximum, minimum, where
from gdt.ops.elementwise import astype
from gdt.ops.joining import stack
from gdt.ops.order_statistics import in_order, numbers_in_order
from gdt.ops.rearranging import moveaxis
from gdt.ops.reductions import any_, mean, sum_
from gdt.ops.scans import cumsum
from gdt.ops.shapes import broadcast_to, reshape
from gdt.ops.sorting import argsort, sort
from gdt.sharding.dtypes import kind_of, promoted

__all__ = ["median", "nanmedian", "nanpercentile", "nanquantile", "percentile", "quantile"]


def _is_of_nothing(x: DistributedArray, axis: Axis) -> bool:
    """Whether quantiles along the axes have no elements."""
    return not all(x.shape[a] for a in distinct_axes(x.type, axis))


def _nonempty_axes(x: DistributedArray, axis: Axis) -> tuple[int, ...]:
    """The axes in ascending order; IndexRangeError where quantiles along them have no elements."""
    if _is_of_nothing(x, axis):
        raise error(IndexRangeError, "there is no element", operands={"x": x.type})
    return tuple(sorted(distinct_axes(x.type, axis)))


def _in_front(x: DistributedArray, axes: Sequence[int], *, keeps_dtype: bool) -> DistributedArray:
    """The operand with the axes as one, which is the first; as floating-point numbers unless
    `keeps_dtype`."""
    x = x.resolve()
    if kind_of(x.dtype) != "f" and not keeps_dtype:
        x = astype(x, float)
    in_front = list(range(len(axes)))
    front = moveaxis(x, list(axes), in_front) if list(axes) != in_front else x
    rest = front.shape[len(axes) :]
    return reshape(front, (math.prod(front.shape[: len(axes)]), *rest))


def _checked_q(q: Any, most: float) -> np.ndarray:
    """`q` as an array of the host; ArgumentError unless all its numbers are from 0 to `most`."""
    array = np.asarray(q.numpy() if isinstance(q, DistributedArray) else q)
    if array.dtype.kind not in "biuf" or not ((array >= 0) & (array <= most)).all():
        problem, remedy = f"q is {shown_value(q)}", f"Its numbers are from 0 to {most:g}."
        raise error(ArgumentError, problem, remedy=remedy)
    return array


def _checked_method(
    name: str,
    x: DistributedArray,
    method: str,
    levels: np.ndarray,
    most: float,
    *,
    has_weights: bool,
) -> str:
    """The method that computes the quantiles; ArgumentError or DtypeError for one that does not
    fit."""
    if method not in METHODS:
        remedy = f"It is one of {', '.join(METHODS)}."
        raise error(ArgumentError, name, f"method is {method!r}", remedy=remedy)
    if has_weights and method != "inverted_cdf":
        problem = f"weights go with the method 'inverted_cdf' alone, not with {method!r}"
        raise error(ArgumentError, name, problem)
    if method == "linear" and most == 1 and levels.dtype.kind in "biu":
        return "lower"  # q is 0 or 1: an element, which keeps its dtype
    if x.dtype.kind == "b" and x.size and method not in CHOOSING:
        problem, remedy = "nothing lies between bools", f"Use one of {', '.join(CHOOSING)}."
        raise error(DtypeError, name, problem, operands={"x": x.type}, remedy=remedy)
    return method


def _check_weights(
    name: str,
    x: DistributedArray,
    weights: DistributedArray,
    axes: Sequence[int],
    *,
    numbers_only: bool,
) -> None:
    """Raise ArgumentError for weights by which no element can be chosen, after reading one truth
    value; a recorded step, which cannot read one, is not checked."""
    if is_recorded():
        return
    is_number = equal(x, x)  # the weights of NaN count unless these are left out
    total = sum_(where(is_number, weights, 0) if numbers_only else weights, axis=axes)
    is_usable = (total > 0) & isfinite(total)
    if numbers_only:
        is_usable = is_usable | ~any_(is_number, axis=axes)
    if bool(any_(weights < 0) | any_(~is_usable)):
        raise error(
            ArgumentError,
            name,
            "weights are negative, infinite or NaN, or those of a quantile add up to 0",
            operands={"x": x.type, "weights": weights.type},
        )


def _result_dtype(x: np.dtype, q: np.dtype, *, is_weak: bool) -> np.dtype:
    """The dtype of numbers between elements of dtype `x`.

    is_weak: whether `q` was a Python number, which does not change the dtype of floats."""
    if is_weak and kind_of(x) == "f":
        return x
    return promoted(x, q if q.kind == "f" else np.float64)


def _whole(x: DistributedArray, q: np.ndarray, method: str, dtype: np.dtype) -> DistributedArray:
    """Quantiles along the first axis, (len(q), ...); NaN where an element is NaN.

    dtype: that of numbers between two elements."""
    ranks, places = ranks_of(x.shape[0], tuple(q.tolist()), method)
    elements, results = astype(in_order(x, ranks), dtype), []
    for low, high, weight in places:
        first, second = elements[low], elements[high]
        if method in CHOOSING:
            results.append(second if weight else first)
        else:
            results.append(interpolated(first, second, dtype.type(weight)))
    return stack(results)


def _of_numbers(
    x: DistributedArray, q: np.ndarray, method: str, dtype: np.dtype
) -> DistributedArray:
    """Quantiles, along the first axis, of the elements that are not NaN; see `_whole`."""
    counts = sum_(astype(equal(x, x), np.int64), axis=0, keepdims=True).resolve()
    last = maximum(counts - 1, 0)
    selected = numbers_in_order(x, tuple(q.tolist())) if method in BY_RANK else None
    ordered = sort(x, axis=0) if selected is None else None
    results = []
    for k, one in enumerate(q):
        *places, weight = neighbours_of(last, float(one), method)
        if selected is not None:
            first, second = selected[k : k + 1], selected[k + len(q) : k + len(q) + 1]
        else:
            first, second = (take_along_axis_in_range(ordered, at, axis=0) for at in places)
        first, second = (astype(end, dtype) for end in (first, second))
        results.append(interpolated(first, second, astype(weight, dtype))[0])
    return stack(results)


def _weighted(
    x: DistributedArray, weights: DistributedArray, q: np.ndarray, *, numbers_only: bool
) -> DistributedArray:
    """Quantiles along the first axis, (len(q), ...): the smallest element such that it and smaller
    ones have a share of at least q of the weights."""
    order = argsort(x, axis=0)
    ordered = take_along_axis_in_range(x, order, axis=0)
    weights = take_along_axis_in_range(weights, order, axis=0)
    if numbers_only:
        weights = where(equal(ordered, ordered), weights, 0)
    sums = cumsum(weights, axis=0)
    total = sums[-1:]
    shares = sums / where(total > 0, total, 1)  # 0 where all are NaN
    last, results = x.shape[0] - 1, []
    for level in q:
        # The quantile of level 0 is the first element that has a weight.
        before = (shares < level) if level else equal(shares, 0)
        place = minimum(sum_(before, axis=0, keepdims=True).resolve(), last)
        results.append(take_along_axis_in_range(ordered, place, axis=0)[0])
    out = stack(results)
    if numbers_only or kind_of(x.dtype) != "f":
        return out
    return where(equal(ordered[-1], ordered[-1]), out, ordered[-1])  # a NaN is sorted to the end


def _quantiles(
    name: str,
    x: Any,
    q: Any,
    axis: Axis = None,
    out: None = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
    *,
    weights: Any = None,
    most: float = 1.0,
    numbers_only: bool = False,
) -> DistributedArray:
    """`gdt.quantile` for the public function `name`.

    most: the largest number of `q`. numbers_only: whether NaN are left out."""
    (x,) = as_operands(name, x=x)
    if x.dtype.kind == "c":
        raise error(DtypeError, "complex numbers have no order", operands={"x": x.type})
    of_numbers = numbers_only and kind_of(x.dtype) == "f"  # no other dtype has NaN
    levels = _checked_q(q, most)
    method = _checked_method(name, x, method, levels, most, has_weights=weights is not None)
    if weights is not None:
        x, weights = as_operands(name, x=x, weights=weights)
        weights = broadcast_to(astype(weights_along(name, x, weights, axis), float), x.shape)
    if numbers_only and not x.size:
        nothing = nanmean(x, axis, keepdims=keepdims)
        return broadcast_to(nothing, levels.shape + nothing.shape)
    dtype = x.dtype
    if method not in CHOOSING:
        dtype = _result_dtype(x.dtype, levels.dtype, is_weak=type(q) in (int, float))
    axes = _nonempty_axes(x, axis)
    listed = levels.reshape(-1) if levels.size else np.zeros(1)
    how = Quantiles(
        tuple((listed.astype(float) / most).tolist()), levels.shape, method, dtype, bool(keepdims)
    )
    if weights is not None:
        _check_weights(name, x, weights, axes, numbers_only=of_numbers)
        front, shares = (_in_front(a, axes, keeps_dtype=True) for a in (x, weights))
        chosen = _weighted(front, shares, np.array(how.q), numbers_only=of_numbers)
        found = how.in_shape(chosen, x, axes)
    elif of_numbers or x.size >= LONG:
        found = _quantiles_of(x, axes, how, of_numbers=of_numbers)
    else:
        found = _quantiles_of_few(x, axes=axes, how=how)
    if of_numbers:
        warn_where(isnan(found), "All-NaN slice encountered")
    return found


LONG = 1 << 17  # elements, from which `in_order` on devices is faster than NumPy on the host


ArrayT = TypeVar("ArrayT", DistributedArray, np.ndarray)


class Quantiles(NamedTuple):
    """The quantiles of a call.

    q: their levels from 0 to 1, at least one. shape: the shape of the argument `q`, the first axes
    of the result. dtype: that of numbers between two elements. keepdims: whether the axes of the
    quantiles stay.
    """

    q: tuple[float, ...]
    shape: tuple[int, ...]
    method: str
    dtype: np.dtype
    keepdims: bool

    def in_shape(self, out: ArrayT, x: Any, axes: Sequence[int]) -> ArrayT:
        """The result, of `out` (len(q), ...): quantiles of `x` along the axes."""
        if self.keepdims:
            rest: list[int] = [1 if d in axes else n for d, n in enumerate(x.shape)]
            out = out.reshape((len(self.q), *rest))
        if not self.shape:
            return out.reshape(out.shape[1:])
        if self.shape == (len(self.q),):
            return out
        return out[: math.prod(self.shape)].reshape(self.shape + out.shape[1:])


def _quantiles_of(
    x: DistributedArray, axes: tuple[int, ...], how: Quantiles, of_numbers: bool = False
) -> DistributedArray:
    """Quantiles along axes, in the shape of the result."""
    front = _in_front(x, axes, keeps_dtype=how.method in CHOOSING and not of_numbers)
    run = _of_numbers if of_numbers else _whole
    return how.in_shape(run(front, np.array(how.q), how.method, how.dtype), x, axes)


def _quantiles_in_numpy(x: np.ndarray, axes: tuple[int, ...], how: Quantiles) -> np.ndarray:
    """`_quantiles_of` in NumPy."""
    front = x if axes == tuple(range(len(axes))) else np.moveaxis(x, axes, range(len(axes)))
    front = front.reshape(-1, *front.shape[len(axes) :])
    ranks, places = ranks_of(front.shape[0], how.q, how.method)
    # A NaN is sorted to the end: the last element tells whether there is one.
    ordered = np.partition(front, (*ranks, front.shape[0] - 1), axis=0)
    elements, last = ordered.take(ranks, axis=0), ordered[-1]
    if x.dtype.kind == "f" and front.ndim > 1:
        elements = np.where(last == last, elements, last)
    elif last.ndim == 0 and last != last:
        elements[:] = last
    elements = elements.astype(how.dtype, copy=False)
    numbers = np.dtype(float) if how.method in CHOOSING else how.dtype
    weights = [numbers.type(weight) for _, _, weight in places]
    pairs = [(elements[low], elements[high]) for low, high, _ in places]
    if how.method in CHOOSING:
        results = [
            high if weight else low
            for (low, high), (_, _, weight) in zip(pairs, places, strict=True)
        ]
    elif front.ndim == 1:
        results = [
            interpolated_scalars(*pair, weight) for pair, weight in zip(pairs, weights, strict=True)
        ]
    else:
        results = [
            interpolated(*pair, weight, np) for pair, weight in zip(pairs, weights, strict=True)
        ]
    return how.in_shape(np.array(results, how.dtype), x, axes)


@in_numpy(_quantiles_in_numpy)
def _quantiles_of_few(
    x: DistributedArray, /, *, axes: tuple[int, ...], how: Quantiles
) -> DistributedArray:
    return _quantiles_of(x, axes, how)


def _median(
    name: str, x: Any, axis: Axis, keepdims: bool, *, numbers_only: bool = False
) -> DistributedArray:
    (x,) = as_operands(name, x=x)
    if _is_of_nothing(x, axis):
        return mean(x, axis=axis, keepdims=keepdims)
    if x.dtype.kind == "c" and not numbers_only:
        return _complex_median(x, axis, keepdims)
    x = astype(x, float) if x.dtype.kind == "b" else x
    return _quantiles(name, x, 0.5, axis, keepdims=keepdims, numbers_only=numbers_only)


def _complex_median(x: DistributedArray, axis: Axis, keepdims: bool) -> DistributedArray:
    """The median of complex numbers, ordered by their real parts, then by the imaginary ones."""
    axes = _nonempty_axes(x, axis)
    front = _in_front(x, axes, keeps_dtype=True)
    ordered, half = sort(front, axis=0), front.shape[0] // 2
    out = mean(ordered[half - 1 + front.shape[0] % 2 : half + 1], axis=0)
    last = ordered[-1]  # a NaN is sorted to the end
    out = where(equal(last, last), out, last)
    return reshape(out, [1 if d in axes else n for d, n in enumerate(x.shape)]) if keepdims else out


@public
@writes_out
def quantile(
    x: Any,
    q: float | Sequence[float],
    axis: Axis = None,
    out: DistributedArray | None = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
    *,
    weights: Any = None,
) -> DistributedArray:
    """The q-quantiles of `x` along `axis` (None: of all elements), NaN where an element is NaN.

    q: numbers from 0 to 1; an array of them gives its axes to the result, as the first ones.
    method: how to choose an element or interpolate between two, any of `numpy.quantile`. keepdims:
    whether the axes stay, with length 1. weights: of the shape of `x`, or of its lengths along
    `axis`, for the method "inverted_cdf". overwrite_input: accepted as in NumPy, without effect.

    A quantile between an infinite element and a finite one is infinite, where NumPy's is NaN. The
    result has the dtype of `x` if the method chooses an element; else that to which `x` and `q`
    promote, where a `q` that is a Python number does not count.

    Raises ArgumentError for another `q` or `method`, and, after reading one truth value, for
    weights that are negative, infinite or NaN, or add up to 0 (not in a recorded step);
    IndexRangeError where there is no element, DtypeError for complex numbers, and for a method that
    interpolates between bools.

    >>> gdt.quantile(gdt.asarray([1.0, 2.0, 3.0, 4.0]), [0.5, 1.0]).tolist()
    [2.5, 4.0]
    """
    options: Any = {"method": method, "keepdims": keepdims, "weights": weights}
    return _quantiles("quantile", x, q, axis, **options)


@public
@writes_out
@same_arguments(quantile)
def percentile(x: Any, q: Any, *args: Any, **options: Any) -> DistributedArray:
    """`gdt.quantile` with `q` from 0 to 100.

    >>> float(gdt.percentile(gdt.asarray([1.0, 2.0, 3.0]), 50))
    2.0
    """
    return _quantiles("percentile", x, q, *args, most=100.0, **options)


@public
@writes_out
def median(
    x: Any,
    axis: Axis = None,
    out: DistributedArray | None = None,
    overwrite_input: bool = False,
    keepdims: bool = False,
) -> DistributedArray:
    """The middle element of `x` along `axis` (None: of all), or the mean of the two in the middle;
    NaN where an element is NaN, and where there is none. Complex numbers are ordered by their real
    parts, then by their imaginary ones.

    >>> float(gdt.median(gdt.asarray([3.0, 1.0, 2.0])))
    2.0
    """
    return _median("median", x, axis, keepdims)


@public
@writes_out
@same_arguments(quantile)
def nanquantile(x: Any, q: Any, *args: Any, **options: Any) -> DistributedArray:
    """`gdt.quantile` of the elements that are not NaN; NaN, with NumPy's RuntimeWarning, where all
    are.

    >>> float(gdt.nanquantile(gdt.asarray([1.0, float("nan"), 3.0]), 0.5))
    2.0
    """
    return _quantiles("nanquantile", x, q, *args, numbers_only=True, **options)


@public
@writes_out
@same_arguments(quantile)
def nanpercentile(x: Any, q: Any, *args: Any, **options: Any) -> DistributedArray:
    """`gdt.nanquantile` with `q` from 0 to 100.

    >>> float(gdt.nanpercentile(gdt.asarray([1.0, float("nan"), 3.0]), 0))
    1.0
    """
    return _quantiles("nanpercentile", x, q, *args, most=100.0, numbers_only=True, **options)


@public
@writes_out
def nanmedian(
    x: Any,
    axis: Axis = None,
    out: DistributedArray | None = None,
    overwrite_input: bool = False,
    keepdims: bool = False,
) -> DistributedArray:
    """`gdt.median` of the elements that are not NaN; NaN, with NumPy's RuntimeWarning, where all
    are.

    >>> float(gdt.nanmedian(gdt.asarray([1.0, float("nan"), 3.0])))
    2.0
    """
    return _median("nanmedian", x, axis, keepdims, numbers_only=True)
