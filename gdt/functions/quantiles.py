"""median, quantile, percentile, and the same of what is no NaN: elements by their place in
ascending order, and numbers between them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import numpy as np

from gdt.arguments import same_arguments
from gdt.array.array import DistributedArray
from gdt.array.operands import as_operands
from gdt.array.output import writes_out
from gdt.array.registry import public
from gdt.engine.whole_arrays import in_numpy
from gdt.errors import ArgumentError, DtypeError, IndexRangeError, error
from gdt.functions.averages import weights_along
from gdt.functions.nan_functions import nanmean
from gdt.ops import comparison
from gdt.ops.along_axis import take_along_axis_in_range
from gdt.ops.axes import Axis, distinct_axes
from gdt.ops.blocks.host_values import warn_where
from gdt.ops.comparison import equal, isnan, maximum, minimum, where
from gdt.ops.elementwise import astype
from gdt.ops.joining import stack
from gdt.ops.order_statistics import in_order, numbers_in_order
from gdt.ops.rearranging import moveaxis
from gdt.ops.reductions import mean, sum_
from gdt.ops.scans import cumsum
from gdt.ops.shapes import broadcast_to, reshape
from gdt.ops.sorting import argsort, sort
from gdt.sharding.dtypes import kind_of, promoted

__all__ = ["median", "nanmedian", "nanpercentile", "nanquantile", "percentile", "quantile"]

# The q-quantile of n elements lies among them, counted from 0, at (n - 1) * q; or (Hyndman and Fan
# 1996) at n * q + alpha + q * (1 - alpha - beta) - 1; or at n * q - 1, from which it steps.
BY_RANK = ("linear", "lower", "higher", "nearest", "midpoint")
CONTINUOUS = {
    "interpolated_inverted_cdf": (0.0, 1.0), "hazen": (0.5, 0.5), "weibull": (0.0, 0.0),
    "median_unbiased": (1 / 3, 1 / 3), "normal_unbiased": (3 / 8, 3 / 8),
}  # fmt: skip
STEPS = ("inverted_cdf", "averaged_inverted_cdf", "closest_observation")
METHODS = (*BY_RANK, *CONTINUOUS, *STEPS)
CHOOSING = ("lower", "higher", "nearest", "inverted_cdf", "closest_observation")  # an element


def _neighbours(last: Any, q: float, method: str) -> tuple[Any, Any, Any]:
    """The places of the two elements, in order, between which the q-quantile lies, and the weight
    of the second.

    last: the place of the last element, of the host or distributed, as the results are; int64.
    """
    if method in BY_RANK:
        at = last * q
    elif method in CONTINUOUS:
        alpha, beta = CONTINUOUS[method]
        at = (last + 1) * q + (alpha + q * (1 - alpha - beta)) - 1
    else:
        at = (last + 1) * q - 1 - 0.5 * (method == "closest_observation")
    low = np.floor(at)
    weight = at - low
    if method == "lower":
        weight = weight * 0
    elif method == "higher":
        weight = (weight > 0) * 1.0
    elif method == "nearest":
        weight = np.where(weight == 0.5, low % 2, weight > 0.5) * 1.0
    elif method == "midpoint":
        weight = np.where(weight > 0, 0.5, 0.0)
    elif method == "inverted_cdf":
        weight = (weight > 0) * 1.0
    elif method == "averaged_inverted_cdf":
        weight = np.where(weight > 0, 1.0, 0.5)
    elif method == "closest_observation":
        weight = np.where((weight == 0) & (low % 2 == 1), 0.0, 1.0)
    if method not in BY_RANK:
        weight = np.where(low < 0, 0.0, np.where(low >= last, 1.0, weight))
    place = low.astype(int) if method in BY_RANK else np.clip(low, 0, last).astype(int)
    return place, np.minimum(place + 1, last), weight


def _is_of_nothing(x: DistributedArray, axis: Axis) -> bool:
    """Whether there are no elements along the axes."""
    return not all(x.shape[a] for a in distinct_axes(x.type, axis))


def _nonempty_axes(x: DistributedArray, axis: Axis) -> tuple[int, ...]:
    """The axes counted from the front; IndexRangeError where there is no element along them."""
    if _is_of_nothing(x, axis):
        raise error(IndexRangeError, "there is no element", operands={"x": x.type})
    return tuple(sorted(distinct_axes(x.type, axis)))


def _in_front(x: DistributedArray, axes: Sequence[int], *, keeps_dtype: bool) -> DistributedArray:
    """The operand with the axes in question as the first one; as floating-point numbers, unless an
    element keeps its dtype."""
    x = x.resolve()
    if kind_of(x.dtype) != "f" and not keeps_dtype:
        x = astype(x, float)
    in_front = list(range(len(axes)))
    front = moveaxis(x, list(axes), in_front) if list(axes) != in_front else x
    rest = front.shape[len(axes) :]
    return reshape(front, (math.prod(front.shape[: len(axes)]), *rest))


def _checked_q(q: Any, most: float) -> np.ndarray:
    array = np.asarray(q.numpy() if isinstance(q, DistributedArray) else q)
    if not ((array >= 0) & (array <= most)).all():
        problem = f"q is made of numbers of 0 to {most:g}, not {q!r}"
        raise error(ArgumentError, problem)
    return array


def _result_dtype(x: np.dtype, q: np.dtype, *, is_weak: bool) -> np.dtype:
    """The dtype of what lies between elements of dtype `x`: a `q` that is a Python number leaves
    that of floats, as in NumPy."""
    if is_weak and kind_of(x) == "f":
        return x
    return promoted(x, q if q.kind == "f" else np.float64)


def _between(low: Any, high: Any, weight: Any, xp: Any = comparison) -> Any:
    """The element at `weight`, of 0 to 1, between two: as NumPy rounds it, from the nearer one.
    Infinite ones have no difference; they are weighed, unless their weight is 0.

    xp: the namespace of the elements: NumPy, or a module of ops.
    """
    where = xp.where
    finite = xp.isfinite(low) & xp.isfinite(high)
    first, second = where(finite, low, 0), where(finite, high, 0)
    step = second - first
    value = where(weight < 0.5, first + step * weight, second - step * (1 - weight))
    is_end = (weight == 0) | (weight == 1)
    inner = where(is_end, 0.5, weight)
    ends = where(weight == 0, low, high)
    is_used = finite | is_end
    weighed = where(is_used, 0, low) * (1 - inner) + where(is_used, 0, high) * inner
    return where(finite, value, where(is_end, ends, weighed))


def _between_two(low: Any, high: Any, weight: Any) -> Any:
    """`_between` of NumPy's scalars."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return _between(low, high, weight, np)
    step = high - low
    return low + step * weight if weight < 0.5 else high - step * (1 - weight)


def _whole(x: DistributedArray, q: np.ndarray, method: str, dtype: np.dtype) -> DistributedArray:
    """Quantiles of all elements along the first axis, one after the other; NaN where one is NaN.

    dtype: that of values between two elements."""
    ranks, places = _places(x.shape[0], tuple(q.tolist()), method)
    elements, results = astype(in_order(x, ranks), dtype), []
    for low, high, weight in places:
        first, second = elements[low], elements[high]
        if method in CHOOSING:
            results.append(second if weight else first)
        else:
            results.append(_between(first, second, dtype.type(weight)))
    return stack(results)


@lru_cache(maxsize=1 << 10)
def _places(
    count: int, q: tuple[float, ...], method: str
) -> tuple[tuple[int, ...], tuple[tuple[int, int, float], ...]]:
    """The ranks of the elements, of `count` in order, between which quantiles lie; and for each
    quantile the places of both among these ranks, and the weight of the second."""
    neighbours = [_neighbours(np.int64(count - 1), one, method) for one in q]
    ranks = sorted({int(rank) for low, high, _ in neighbours for rank in (low, high)})
    return tuple(ranks), tuple(
        [(ranks.index(low), ranks.index(high), float(weight)) for low, high, weight in neighbours]
    )


def _of_numbers(
    x: DistributedArray, q: np.ndarray, method: str, dtype: np.dtype
) -> DistributedArray:
    """Quantiles of the elements along the first axis that are no NaN; see `_whole`."""
    counts = sum_(astype(equal(x, x), np.int64), axis=0, keepdims=True).resolve()
    last = maximum(counts - 1, 0)
    selected = numbers_in_order(x, tuple(q.tolist())) if method in BY_RANK else None
    ordered = sort(x, axis=0) if selected is None else None
    results = []
    for k, one in enumerate(q):
        *places, weight = _neighbours(last, float(one), method)
        if selected is not None:
            first, second = selected[k : k + 1], selected[k + len(q) : k + len(q) + 1]
        else:
            first, second = (take_along_axis_in_range(ordered, at, axis=0) for at in places)
        first, second = (astype(end, dtype) for end in (first, second))
        results.append(_between(first, second, astype(weight, dtype))[0])
    return stack(results)


def _weighted(
    x: DistributedArray, weights: DistributedArray, q: np.ndarray, *, numbers_only: bool
) -> DistributedArray:
    """The first elements along the first axis up to which there is a share `q` of the weights."""
    order = argsort(x, axis=0)
    ordered = take_along_axis_in_range(x, order, axis=0)
    weights = take_along_axis_in_range(weights, order, axis=0)
    if numbers_only:
        weights = where(equal(ordered, ordered), weights, 0)
    sums = cumsum(weights, axis=0)
    shares = sums / sums[-1:]
    last, results = x.shape[0] - 1, []
    for level in q:
        # Elements without weight before the first one that has some are none.
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
    """`gdt.quantile`, with `q` from 0 to `most`; of the elements alone that are no NaN."""
    (x,) = as_operands(name, x=x)
    if x.dtype.kind == "c":
        raise error(DtypeError, "complex numbers have no order", operands={"x": x.type})
    of_numbers = numbers_only and kind_of(x.dtype) == "f"  # all others are numbers
    if method not in METHODS:
        remedy = f"It is one of {', '.join(METHODS)}."
        raise error(ArgumentError, name, f"method is {method!r}", remedy=remedy)
    levels = _checked_q(q, most)
    if weights is not None:
        if method != "inverted_cdf":
            problem = f"weights go with the method 'inverted_cdf' alone, not with {method!r}"
            raise error(ArgumentError, name, problem)
        x, weights = as_operands(name, x=x, weights=weights)
        weights = broadcast_to(astype(weights_along(name, x, weights, axis), float), x.shape)
    if numbers_only and not x.size:
        nothing = nanmean(x, axis, keepdims=keepdims)
        return broadcast_to(nothing, levels.shape + nothing.shape)
    if method == "linear" and most == 1 and levels.dtype.kind in "biu":
        method = "lower"  # the first or the last element, whose dtype stays
    if x.dtype.kind == "b" and method not in CHOOSING:
        problem, remedy = "nothing lies between bools", f"Use one of {', '.join(CHOOSING)}."
        raise error(DtypeError, name, problem, operands={"x": x.type}, remedy=remedy)
    dtype = x.dtype
    if method not in CHOOSING:
        dtype = _result_dtype(x.dtype, levels.dtype, is_weak=type(q) in (int, float))
    axes = _nonempty_axes(x, axis)
    listed = levels.reshape(-1) if levels.size else np.zeros(1)
    how = Quantiles(
        tuple((listed.astype(float) / most).tolist()), levels.shape, method, dtype, bool(keepdims)
    )
    if weights is not None:
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


LONG = 1 << 17  # elements of a split vector of which samples find some faster than NumPy


ArrayT = TypeVar("ArrayT", DistributedArray, np.ndarray)


class Quantiles(NamedTuple):
    """The quantiles asked for: levels `q` of 0 to 1, one at least, a result whose first axes are
    `shape`; the dtype of values between two elements."""

    q: tuple[float, ...]
    shape: tuple[int, ...]
    method: str
    dtype: np.dtype
    keepdims: bool

    def in_shape(self, out: ArrayT, x: Any, axes: Sequence[int]) -> ArrayT:
        """The quantiles of `x` along axes, which are listed along the first axis of `out`."""
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
    """Quantiles along axes, counted from the front."""
    front = _in_front(x, axes, keeps_dtype=how.method in CHOOSING and not of_numbers)
    run = _of_numbers if of_numbers else _whole
    return how.in_shape(run(front, np.array(how.q), how.method, how.dtype), x, axes)


def _quantiles_in_numpy(x: np.ndarray, axes: tuple[int, ...], how: Quantiles) -> np.ndarray:
    front = x if axes == tuple(range(len(axes))) else np.moveaxis(x, axes, range(len(axes)))
    front = front.reshape(-1, *front.shape[len(axes) :])
    ranks, places = _places(front.shape[0], how.q, how.method)
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
        results = [_between_two(*pair, weight) for pair, weight in zip(pairs, weights, strict=True)]
    else:
        results = [_between(*pair, weight, np) for pair, weight in zip(pairs, weights, strict=True)]
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
    """The median of complex numbers, which are ordered by their real parts, then by the others."""
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

    q: numbers of 0 to 1; the axes of several are the first ones of the result. method: how to
    choose or interpolate between elements, any of `numpy.quantile`. keepdims: whether the axes
    stay, with length 1. weights: of the shape of `x`, or of its axis, for the method
    "inverted_cdf". overwrite_input: accepted for NumPy's sake.

    A quantile between an infinite element and another one is infinite, where NumPy's is NaN. The
    result has the dtype of `x` and `q` together, to which a Python number `q` does not count; that
    of `x` where an element is chosen.

    Raises ArgumentError for another `q` or `method`, IndexRangeError where there is no element,
    DtypeError for complex numbers, and for a method that interpolates between bools.

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
    """`gdt.quantile` of the elements that are no NaN; NaN, with NumPy's RuntimeWarning, where there
    is none.

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
    """`gdt.median` of the elements that are no NaN; NaN, with NumPy's RuntimeWarning, where there
    is none.

    >>> float(gdt.nanmedian(gdt.asarray([1.0, float("nan"), 3.0])))
    2.0
    """
    return _median("nanmedian", x, axis, keepdims, numbers_only=True)
