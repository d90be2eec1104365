"""Moments (mean and variance together), variance and standard deviation.

Variances are never sums of squares minus squared sums, which cancel: every shard centres its own
elements, and Chan's formula merges means, then variances around their mean, so float32 data of mean
10,000 and deviation 1 give the right variance in every layout.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from gdt.arguments import same_arguments
from gdt.array.array import DistributedArray
from gdt.array.operands import as_operands
from gdt.array.output import writes_out
from gdt.array.registry import public
from gdt.engine.declaration import FROM_ENGINE, Merging
from gdt.engine.op import op
from gdt.engine.plan import Shards
from gdt.errors import DtypeError, error
from gdt.fusion.reducing import squares_around
from gdt.ops.axes import Axis, negative_axes, reduction_text
from gdt.ops.blocks.channel_kernels import moments_kernel
from gdt.ops.blocks.channel_loops import moments_loop
from gdt.ops.blocks.host_values import warn, warn_where
from gdt.ops.blocks.sums import add_reduce, valid_elements
from gdt.ops.comparison import equal, isnan, maximum, only_where
from gdt.ops.comparison import where as where_
from gdt.ops.elementwise import (
    astype,
    checked_dtype,
    conj,
    divide,
    multiply,
    real,
    sqrt,
    subtract,
    widened_half,
)
from gdt.ops.reductions import divided_by_count, kept_dims, reduced_count, restore_axes, sum_
from gdt.ops.reductions import mean as mean_
from gdt.sharding.array_type import ArrayType
from gdt.sharding.dtypes import FLOAT32, is_half, kind_of, promoted

__all__ = ["moments", "std", "var"]


Block = Any


def _moments_rule(array_type: ArrayType, *, axes: tuple[int, ...], keepdims: bool, **_: Any) -> str:
    text = reduction_text(array_type, axes, keepdims)
    return f"{text}, {text.split('->')[1]}"


def _prepare_moments(
    array_type: ArrayType, *, axes: Axis, keepdims: bool = False
) -> dict[str, Any]:
    exact = array_type.dtype.kind in "biu"
    dtype = np.dtype(float) if exact else array_type.dtype
    negative = negative_axes(array_type, axes)
    return {"axes": negative, "keepdims": bool(keepdims), "dtype": dtype}


def _merge(
    xp: Any,
    mean: Block,
    variance: Block,
    rest: Block,
    elements: Block | None = None,
    *,
    parts: int,
    count: int,
) -> Merging:
    """Merge the means and variances of `parts` parts of at most `count` elements.

    Source: Chan, Golub, LeVeque 1979, eq. 2.1, which merges two parts.

    rest: the difference between each part's mean and its rounded mean. elements: the number of
        elements of each part; the parts are equally large if it is None.
    """
    share, total = 1.0 / parts, None
    if elements is None:
        scale = 0.5 ** parts.bit_length()  # exact, and the sum cannot overflow
        (average,) = yield "sum", (mean * scale,)
        average = average / (parts * scale)
    else:
        scale = 0.5 ** count.bit_length()
        part = mean * (elements * scale)
        average, total = yield "sum", (part, elements.astype(part.dtype))
        total = total.real
        average = average / (xp.maximum(total, 1) * scale)
        share = elements / xp.maximum(total, 1)
    offset = mean - average  # exact where the means are close to each other
    offset += rest
    if elements is not None:
        offset = xp.where(elements == 0, 0, offset)  # whose squares may overflow
    spread = _squared(offset)
    spread += variance
    spread *= share
    (spread,) = yield "sum", (spread,)
    return (average, spread) if total is None else (average, spread, rest, total)


def _squared(x: Block) -> Block:
    """The squared modulus of every element."""
    if x.dtype.kind == "c":
        return x.real * x.real + x.imag * x.imag
    return x * x


def _as_result(
    xp: Any, mean: Block, variance: Block, *others: Block, dtype: np.dtype[Any]
) -> tuple[Block, Block]:
    if len(others) == 2:  # shards that differ in size have counted their elements
        is_empty = others[1] == 0
        mean, variance = xp.where(is_empty, np.nan, mean), xp.where(is_empty, np.nan, variance)
    if mean.dtype == dtype:
        return mean, variance
    return mean.astype(dtype), variance.astype(dtype)


@op(
    _moments_rule,
    outputs=2,
    merge=_merge,
    finish=_as_result,
    fill={"x": None},
    prepare=_prepare_moments,
)
def moments(
    xp: Any,
    x: Block,
    /,
    axes: Axis,
    keepdims: bool = False,
    *,
    shards: Shards = FROM_ENGINE,
    dtype: Any = FROM_ENGINE,
) -> tuple[Block, ...]:
    """Mean and variance over `axes` (None: all), as `tf.nn.moments` gives them, with no ddof.

    Over split axes two all-reduces merge the devices' means and variances. float16 is computed in
    float32. Integers give float64, complex numbers a real variance. Raises AxisError for an axis
    that `x` does not have.

    >>> mean, variance = gdt.moments(gdt.asarray([[1.0, 2.0], [3.0, 6.0]]), axes=0)
    >>> mean.tolist(), variance.tolist()
    ([2.0, 4.0], [1.0, 4.0])
    """
    if dtype == np.float16 or x.dtype.kind in "biu":
        x = x.astype(np.float32 if dtype == np.float16 else dtype)
    factors, count = _reduced(axes, len(shards.size), x.shape, x.dtype)
    if factors & shards.uneven:
        valid, number = valid_elements(xp, x, axes, shards)  # type: ignore[arg-type]
        return _moments_of_some(xp, x, axes, keepdims, xp.logical_not(valid), number)
    mean = add_reduce(xp, x, axes, True)
    mean /= count
    return _moments_around(xp, x, mean, count, axes, keepdims, bool(factors & shards.split))


def _moments_around(
    xp: Any, x: Block, mean: Block, count: Any, axes: Any, keepdims: bool, is_merged: bool
) -> tuple[Block, ...]:
    """The statistics of `count` elements of a mean, which has the reduced axes kept."""
    if xp is np and not is_merged:
        variance = squares_around(x, mean, axes, keepdims)
        if variance is not None:
            variance /= count
            return mean.reshape(variance.shape), variance
    centred = x - mean
    # Nobody reads the deviations after this, unless there are parts to merge.
    is_needed = is_merged or centred.dtype.kind == "c"
    square = _squared(centred) if is_needed else xp.multiply(centred, centred, out=centred)
    variance = add_reduce(xp, square, axes, keepdims)
    variance /= count
    mean = mean.reshape(variance.shape)
    if not is_merged:
        return mean, variance
    rest = add_reduce(xp, centred, axes, keepdims)
    rest /= count
    return mean, variance, rest


@lru_cache(maxsize=1 << 12)
def _reduced(
    axes: tuple[int, ...], rank: int, shape: tuple[int, ...], dtype: np.dtype
) -> tuple[frozenset[str], Any]:
    """The factors that `axes` reduce, and the number of elements of a block that one element of the
    result is computed from: a NumPy scalar, so that 0 / 0 is NaN with a warning, as in NumPy."""
    count = math.prod(shape[a] for a in axes)
    return frozenset(f"d{a + rank}" for a in axes), np.empty(0, dtype).real.dtype.type(count)


def _moments_of_some(
    xp: Any, x: Block, axes: Any, keepdims: bool, left_out: Any, number: Block
) -> tuple[Block, ...]:
    """The statistics of the elements where a mask is false, of which there are `number`."""
    elements = number.astype(x.real.dtype)
    count = xp.maximum(elements, 1)
    centred = x.copy(order="K")
    xp.copyto(centred, 0, where=left_out)
    mean = centred.sum(axis=axes, keepdims=True) / count
    centred -= mean
    xp.copyto(centred, 0, where=left_out)
    rest = centred.sum(axis=axes, keepdims=True) / count
    is_complex = centred.dtype.kind == "c"
    square = _squared(centred) if is_complex else xp.multiply(centred, centred, out=centred)
    variance = square.sum(axis=axes, keepdims=True) / count
    statistics = (mean, variance, rest, elements)
    return statistics if keepdims else tuple(xp.squeeze(s, axis=axes) for s in statistics)


def moments_gradient(
    x: DistributedArray,
    mean: DistributedArray,
    g_mean: Any,
    g_variance: Any,
    axes: Axis,
    count: DistributedArray | None = None,
) -> DistributedArray:
    """The cotangent of `x` from `g_mean` and `g_variance`, the cotangents of its mean and variance;
    one of the two may be None. count: of the elements of which they are, if not of all."""
    n: Any = reduced_count(x, axes) if count is None else count
    parts = []
    if g_mean is not None:
        parts.append(restore_axes(divided_by_count(g_mean, n), x, axes, False))
    if g_variance is not None:
        centred = x - kept_dims(mean, x, axes)
        if x.dtype.kind == "c":
            centred = conj(centred)
        parts.append(centred * kept_dims(g_variance * (2 / n), x, axes))
    return parts[0] if len(parts) == 1 else parts[0] + parts[1]


def _moments_vjp(g: Any, out: Any, x: Any, *, axes: Axis, keepdims: bool = False) -> Any:
    return (moments_gradient(x, out[0], g[0], g[1], axes),)


moments.vjp(joint=_moments_vjp, reads="x out0")
moments.kernel(moments_kernel, takes_bfloat16=True)
moments.specialize(moments_loop)


# ---------------------------------------------------------------- without NaN


def _moments_of_numbers_rule(array_type: ArrayType, **static: Any) -> str:
    text = _moments_rule(array_type, **static)
    return f"{text}, {text.rsplit(',', 1)[1]}"


def _as_counted_result(
    xp: Any, mean: Block, variance: Block, rest: Block, elements: Block, *, dtype: np.dtype[Any]
) -> tuple[Block, Block, Block]:
    return (*_as_result(xp, mean, variance, rest, elements, dtype=dtype), elements)


@op(
    _moments_of_numbers_rule,
    outputs=3,
    merge=_merge,
    finish=_as_counted_result,
    fill={"x": np.nan},
    prepare=_prepare_moments,
    rounded="x x -",
)
def moments_of_numbers(
    xp: Any,
    x: Block,
    /,
    axes: Axis,
    keepdims: bool = False,
    *,
    shards: Shards = FROM_ENGINE,
    dtype: Any = FROM_ENGINE,
) -> tuple[Block, ...]:
    """Mean and variance over `axes` of the floating-point numbers that are no NaN, as `gdt.moments`
    gives them, and how many they are."""
    if dtype == np.float16:
        x = x.astype(np.float32)
    factors, count = _reduced(axes, len(shards.size), x.shape, x.dtype)
    mean = add_reduce(xp, x, axes, True)
    if xp is not np or not np.isfinite(mean).all() or not count:
        are_nan = xp.isnan(x)
        number = (~are_nan).sum(axis=axes, keepdims=True)
        return _moments_of_some(xp, x, axes, keepdims, are_nan, number)
    mean /= count
    statistics = _moments_around(xp, x, mean, count, axes, keepdims, bool(factors & shards.split))
    mean, variance = statistics[:2]
    rest = statistics[2] if len(statistics) == 3 else np.zeros_like(mean)
    return mean, variance, rest, np.full(variance.shape, count)


def _moments_of_numbers_vjp(
    g: Any, out: Any, x: Any, *, axes: Axis, keepdims: bool = False
) -> tuple[Any]:
    count = maximum(out[2], 1)
    gradient = moments_gradient(x, out[0], g[0], g[1], axes, count)
    return (astype(where_(isnan(x), 0, gradient), x.dtype),)


moments_of_numbers.vjp(joint=_moments_of_numbers_vjp)


NO_FREEDOM = "Degrees of freedom <= 0 for slice"


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
    (x,) = as_operands("var", x=x)
    if correction is not None:
        if ddof:
            raise error(DtypeError, "ddof and correction are one argument; both are given")
        ddof = correction
    if dtype is not None:
        check_variance_dtype(x, dtype, "var")
        x = astype(x, dtype)
        variance = _variance(x, axis, None, None, ddof, keepdims, where=where, mean=mean)
        return astype(variance, dtype)
    if where is not True or mean is not None:
        return _of_some(x, axis, ddof, keepdims, where, mean)
    if not ddof and 0 not in x.type.shape:
        return moments(x, axes=axis, keepdims=keepdims)[1]
    n = reduced_count(x, axis)
    if n > ddof:
        return moments(x, axes=axis, keepdims=keepdims)[1] * (n / (n - ddof))
    warn(NO_FREEDOM)
    with np.errstate(invalid="ignore"):
        return moments(x, axes=axis, keepdims=keepdims)[1] * float("inf")


@public
@writes_out
@same_arguments(_variance)
def var(x: Any, *args: Any, **options: Any) -> DistributedArray:
    """Variance over `axis` (None: all): squared deviations, summed, over elements minus `ddof`.

    dtype: in which it is computed, and of the result. out: an array that it is written into. ddof,
    correction: two names for the same number. keepdims: whether the reduced axes stay, with length
    1. where: a mask of the elements that count. mean: their mean, with the reduced axes kept, if it
    is known. The variance of complex numbers is real, that of integers float64. As in NumPy it is
    NaN or infinite where `ddof` leaves nothing to divide by. Raises AxisError for an axis that `x`
    does not have, DtypeError for both of `ddof` and `correction`, and for integers as `dtype`.

    >>> float(gdt.var(gdt.asarray([1, 2, 3]), ddof=1))
    1.0
    """
    return _variance(x, *args, **options)


def check_variance_dtype(x: DistributedArray, dtype: Any, name: str) -> None:
    """Raise DtypeError for a dtype of integers, and for complex numbers whose deviations a real
    dtype would halve in silence."""
    if kind_of(checked_dtype(dtype, name)) not in "fc":
        raise error(DtypeError, name, f"a variance is no {np.dtype(dtype)}")
    if x.dtype.kind == "c" and np.dtype(dtype).kind != "c":
        problem = f"as {np.dtype(dtype)} the imaginary parts are lost"
        remedy = "Take the real result of a complex dtype, or of gdt.real(x)."
        raise error(DtypeError, problem, operands={"x": x.type}, remedy=remedy)


def _of_some(
    x: DistributedArray, axis: Axis, ddof: float, keepdims: bool, where: Any, mean: Any
) -> DistributedArray:
    """The variance of the elements where the mask is true, around `mean` if it is given."""
    dtype = x.real.dtype if kind_of(x.dtype) in "fc" else np.dtype(float)
    x = astype(widened_half(x), promoted(dtype, x.dtype, *([FLOAT32] if is_half(dtype) else [])))
    if mean is None:
        mean = mean_(x, axis=axis, keepdims=True, where=where)
    count: Any = reduced_count(x, axis)
    if where is not True:
        _, mask = only_where("var", x, where, 0)
        count = sum_(mask, axis=axis, keepdims=keepdims)
    deviation = subtract(x, mean)
    square = multiply(deviation, conj(deviation)) if x.dtype.kind == "c" else deviation * deviation
    total = sum_(real(square), axis=axis, keepdims=keepdims, where=where)
    freedom = maximum(count - ddof, 0)
    warn_where(equal(freedom, 0), NO_FREEDOM)
    with np.errstate(divide="ignore", invalid="ignore"):
        return astype(divide(total, freedom), dtype)


@public
@writes_out
@same_arguments(var)
def std(x: Any, *args: Any, **options: Any) -> DistributedArray:
    """Standard deviation over `axis` (None: all axes): the square root of `gdt.var`.

    Arguments and errors are those of `gdt.var`.

    >>> float(gdt.std(gdt.asarray([1.0, 3.0])))
    1.0
    """
    return sqrt(_variance(x, *args, **options))
