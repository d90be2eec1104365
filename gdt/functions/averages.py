"""Weighted averages, covariances, spreads, and products that NumPy has beside `matmul`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gdt.arguments import same_arguments
from gdt.array.array import DistributedArray
from gdt.array.operands import as_operands
from gdt.array.output import writes_out
from gdt.array.registry import public
from gdt.errors import ArgumentError, DivisionError, DtypeError, ShapeError, error
from gdt.functions.assembling import with_rank
from gdt.functions.einsum import einsum
from gdt.ops.axes import Axis, checked_axis, negative_axes
from gdt.ops.blocks.host_values import warn_where
from gdt.ops.comparison import clip, equal, maximum
from gdt.ops.creation import full, zeros
from gdt.ops.elementwise import (
    astype,
    checked_dtype,
    conj,
    divide,
    imag,
    multiply,
    real,
    sqrt,
    subtract,
)
from gdt.ops.extrema import max_, min_
from gdt.ops.joining import concat, stack
from gdt.ops.lookup import along_axis_or_flat
from gdt.ops.movement import relayout
from gdt.ops.products.op import diagonal, inner
from gdt.ops.reductions import all_, any_, mean, reduced_count, sum_
from gdt.ops.scans import cumprod, cumsum
from gdt.ops.shapes import broadcast_to, expand_dims, reshape, squeeze, transpose, transpose_
from gdt.ops.statistics import NO_FREEDOM, check_variance_dtype
from gdt.sharding.dtypes import promoted
from gdt.sharding.layout import Layout

__all__ = [
    "apply_along_axis",
    "apply_over_axes",
    "array_equiv",
    "average",
    "corrcoef",
    "cov",
    "cumulative_prod",
    "cumulative_sum",
    "kron",
    "matrix_transpose",
    "matvec",
    "ptp",
    "vecmat",
]


@public
@writes_out
def ptp(
    x: Any, axis: Axis = None, out: DistributedArray | None = None, keepdims: bool = False
) -> DistributedArray:
    """The largest minus the smallest element along `axis` (None: all axes).

    >>> gdt.ptp([[1, 5], [7, 2]], axis=1).tolist()
    [4, 5]
    """
    (x,) = as_operands("ptp", x=x)
    return subtract(max_(x, axis=axis, keepdims=keepdims), min_(x, axis=axis, keepdims=keepdims))


def weights_along(
    op: str, x: DistributedArray, weights: DistributedArray, axis: Axis
) -> DistributedArray:
    """Weights that broadcast to `x`: those of its shape, or of its lengths along `axis`, whose
    axes are in the order of `axis`."""
    if weights.shape == x.shape:
        return weights
    negative = negative_axes(x.type, axis)
    axes = [a % x.ndim for a in axis] if isinstance(axis, Sequence) else list(negative)
    if axis is None or weights.shape != tuple(x.shape[a] for a in axes):
        problem = f"weights of shape {list(weights.shape)} do not fit axis {axis}"
        operands = {"x": x.type, "weights": weights.type}
        raise error(ShapeError, op, problem, operands=operands)
    kept = [n if d - x.ndim in negative else 1 for d, n in enumerate(x.shape)]
    return reshape(transpose(weights, np.argsort(axes).tolist()), kept)


@public
def average(
    x: Any,
    axis: Axis = None,
    weights: Any = None,
    returned: bool = False,
    *,
    keepdims: bool = False,
) -> Any:
    """The average over `axis` (None: all axes), weighted by `weights`.

    weights: of the shape of `x`, or of its lengths along `axis`, in that order. returned: whether
    to return the sums of the weights as well. Raises ShapeError for weights that do not fit, and,
    after reading one truth value, DivisionError (a ZeroDivisionError) for weights that add up to 0.

    >>> float(gdt.average([1.0, 2.0, 3.0], weights=[3, 1, 0]))
    1.25
    """
    (x,) = as_operands("average", x=x)
    if weights is None:
        result = mean(x, axis=axis, keepdims=keepdims)
        if not returned:
            return result
        count = full((), reduced_count(x, axis), result.dtype, layout=Layout.replicated(x.mesh, 0))
        return result, broadcast_to(count, result.shape)
    x, weights = as_operands("average", x=x, weights=weights)
    weights = weights_along("average", x, weights, axis)
    dtype = promoted(x.dtype, weights.dtype, *["float64"] * (x.dtype.kind in "biu"))
    weights = broadcast_to(astype(weights, dtype), x.shape)
    scale = sum_(weights, axis=axis, keepdims=keepdims)
    if bool(any_(equal(scale, 0))):
        operands = {"x": x.type, "weights": weights.type}
        raise error(DivisionError, "the weights add up to 0", operands=operands)
    averaged = divide(sum_(multiply(x, weights), axis=axis, keepdims=keepdims), scale)
    return (averaged, scale) if returned else averaged


@public
def cov(
    x: Any,
    y: Any = None,
    rowvar: bool = True,
    bias: bool = False,
    ddof: int | None = None,
    fweights: Any = None,
    aweights: Any = None,
    *,
    dtype: Any = None,
) -> DistributedArray:
    """The covariance matrix of variables: the rows of `x` (and `y`), columns if not `rowvar`.

    bias: whether to divide by the number of observations, not by one less; `ddof` says by how many
    less. fweights, aweights: how often each observation counts, and its importance. dtype: in which
    it is computed, and of the result, but that weights are float64; at least float64 if it is None.
    Raises ShapeError for weights that do not fit, DtypeError for a dtype of integers, or a real one
    of complex numbers.

    >>> gdt.cov([[0, 1, 2], [2, 1, 0]]).tolist()
    [[1.0, -1.0], [-1.0, 1.0]]
    """
    (x,) = as_operands("cov", x=x)
    rows = _variables(x, rowvar)
    if y is not None:
        _, y = as_operands("cov", x=x, y=y)
        rows = concat([rows, _variables(y, rowvar)], axis=0)
    dtype = promoted(rows.dtype, np.float64) if dtype is None else checked_dtype(dtype, "cov")
    check_variance_dtype(rows, dtype, "cov")
    rows = astype(rows, dtype)
    ddof = (0 if bias else 1) if ddof is None else ddof
    weights: Any = None
    for name, w in (("fweights", fweights), ("aweights", aweights)):
        if w is not None:
            weight = astype(as_operands("cov", x=x, **{name: w})[1], np.float64)
            if weight.shape != rows.shape[1:]:
                problem = f"{name} {list(weight.shape)} do not fit {rows.shape[1]} observations"
                raise error(ShapeError, problem, operands={"x": x.type})
            weights = weight if weights is None else weights * weight
    if weights is None:
        total: Any = rows.shape[1]
        centred = rows - mean(rows, axis=1, keepdims=True)
        # float16 holds no number above 65,504.
        factor: Any = promoted(real(centred).dtype, np.float32).type(max(total - ddof, 0))
        return astype(_per_freedom(_products_of_rows(centred, centred), factor), dtype)
    total = sum_(weights)
    centred = rows - sum_(rows * weights, axis=1, keepdims=True) / total
    factor = total - ddof
    if ddof and aweights is not None:
        importance = astype(as_operands("cov", x=x, aweights=aweights)[1], np.float64)
        factor = total - ddof * sum_(weights * importance) / total
    return _per_freedom(_products_of_rows(centred * weights, centred), maximum(factor, 0))


def _products_of_rows(x: DistributedArray, y: DistributedArray) -> DistributedArray:
    """Products of the rows of `x` and the conjugates of those of `y`: where the two are one real
    array, it is moved once, and its transpose would be another array."""
    return inner(x, conj(y) if y.dtype.kind == "c" else y)


def _per_freedom(products: DistributedArray, freedom: Any) -> DistributedArray:
    """Sums of products over the degrees of freedom: an array, by which no partial sum is divided,
    since of parts divided by 0 some are inf and some -inf."""
    _, freedom = as_operands("cov", x=products, ddof=freedom)
    warn_where(equal(freedom, 0), NO_FREEDOM)
    with np.errstate(divide="ignore", invalid="ignore"):
        return squeeze(divide(products, freedom))


def _variables(x: DistributedArray, rowvar: bool) -> DistributedArray:
    if x.ndim > 2:
        problem = f"rank {x.ndim} is neither 1 nor 2"
        raise error(ShapeError, problem, operands={"x": x.type})
    return transpose(x) if x.ndim == 2 and not rowvar else with_rank(x, 2)


@public
def corrcoef(x: Any, y: Any = None, rowvar: bool = True, *, dtype: Any = None) -> DistributedArray:
    """The correlation coefficients of variables; arguments are those of `gdt.cov`.

    >>> gdt.corrcoef([[0, 1, 2], [2, 1, 0]]).tolist()
    [[1.0, -1.0], [-1.0, 1.0]]
    """
    c = cov(x, y, rowvar, dtype=dtype)
    if not c.ndim:
        return divide(c, c)
    deviation = sqrt(real(diagonal(c)))
    c = c / expand_dims(deviation, 1) / expand_dims(deviation, 0)
    if c.dtype.kind == "c":
        return clip(real(c), -1, 1) + clip(imag(c), -1, 1) * 1j
    return clip(c, -1, 1)


@public
def array_equiv(x: Any, y: Any) -> DistributedArray:
    """Whether the shapes broadcast and all elements are equal; a bool array of rank 0.

    >>> bool(gdt.array_equiv([1, 1], 1))
    True
    """
    x, y = as_operands("array_equiv", x=x, y=y)
    try:
        np.broadcast_shapes(x.shape, y.shape)
    except ValueError:
        return full((), False, layout=Layout.replicated(x.mesh, 0))
    return all_(equal(x, y))


# ---------------------------------------------------------------- scans of the standard


def _cumulative(
    name: str, x: Any, axis: int | None = None, dtype: Any = None, include_initial: bool = False
) -> DistributedArray:
    (x,) = as_operands(name, x=x)
    if axis is None and x.ndim > 1:
        problem = f"an array of rank {x.ndim} needs an axis"
        raise error(ArgumentError, problem, operands={"x": x.type})
    x, at = along_axis_or_flat(x, axis, takes_rank_0=True)
    scan, first = (cumsum, 0) if name == "cumulative_sum" else (cumprod, 1)
    scanned = scan(x, axis=at, dtype=dtype)
    if not include_initial:
        return scanned
    shape = [1 if d == at else n for d, n in enumerate(x.shape)]
    start = full(shape, first, scanned.dtype, layout=Layout.replicated(x.mesh, x.ndim))
    return concat([start, scanned], axis=at)


@public
@writes_out
def cumulative_sum(
    x: Any,
    /,
    *,
    axis: int | None = None,
    dtype: Any = None,
    out: DistributedArray | None = None,
    include_initial: bool = False,
) -> DistributedArray:
    """Sums of the first 1, 2, 3, ... elements along `axis`, which an array of rank 1 need not name.

    include_initial: whether the result begins with 0, the sum of none.

    >>> gdt.cumulative_sum([1, 2, 3], include_initial=True).tolist()
    [0, 1, 3, 6]
    """
    return _cumulative("cumulative_sum", x, axis, dtype, include_initial)


@public
@writes_out
@same_arguments(cumulative_sum)
def cumulative_prod(x: Any, /, **options: Any) -> DistributedArray:
    """Products of the first 1, 2, 3, ... elements along `axis`, which an array of rank 1 need not
    name.

    include_initial: whether the result begins with 1, the product of none.

    >>> gdt.cumulative_prod([1, 2, 3], include_initial=True).tolist()
    [1, 1, 2, 6]
    """
    return _cumulative("cumulative_prod", x, **options)


# ---------------------------------------------------------------- products


@public
def kron(a: Any, b: Any) -> DistributedArray:
    """The Kronecker product: blocks of `b`, each scaled by an element of `a`.

    >>> gdt.kron([1, 10], [1, 2]).tolist()
    [1, 2, 10, 20]
    """
    a, b = as_operands("kron", a=a, b=b)
    rank = max(a.ndim, b.ndim)
    a, b = (reshape(x, (1,) * (rank - x.ndim) + x.shape) for x in (a, b))
    pairs = multiply(
        reshape(a, [n for size in a.shape for n in (size, 1)]),
        reshape(b, [n for size in b.shape for n in (1, size)]),
    )  # (a0, b0, a1, b1, ...)
    return reshape(pairs, [n * m for n, m in zip(a.shape, b.shape, strict=True)])


@public
def matrix_transpose(x: Any, /) -> DistributedArray:
    """The matrices of a stack with rows and columns exchanged; a view.

    >>> gdt.matrix_transpose([[1, 2], [3, 4]]).tolist()
    [[1, 3], [2, 4]]
    """
    (x,) = as_operands("matrix_transpose", x=x)
    if x.ndim < 2:
        problem = f"rank {x.ndim} is not a matrix"
        raise error(ShapeError, problem, operands={"x": x.type})
    return transpose_(x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


@public
@writes_out
def matvec(x: Any, v: Any, /, out: DistributedArray | None = None) -> DistributedArray:
    """Products of matrices and vectors: x: (..., m, n), v: (..., n), result: (..., m).

    >>> gdt.matvec([[1, 2], [3, 4]], [1, 1]).tolist()
    [3, 7]
    """
    return einsum("...mn,...n->...m", *as_operands("matvec", x=x, v=v))


@public
@writes_out
def vecmat(v: Any, x: Any, /, out: DistributedArray | None = None) -> DistributedArray:
    """Products of conjugated vectors and matrices: v: (..., m), x: (..., m, n), result: (..., n).

    >>> gdt.vecmat([1, 1], [[1, 2], [3, 4]]).tolist()
    [4, 6]
    """
    v, x = as_operands("vecmat", v=v, x=x)
    return einsum("...m,...mn->...n", conj(v) if v.dtype.kind == "c" else v, x)


# ---------------------------------------------------------------- functions of slices


@public
def apply_along_axis(
    func1d: Callable[..., Any], axis: int, arr: Any, *args: Any, **kwargs: Any
) -> DistributedArray:
    """`func1d(slice, *args, **kwargs)` of every slice of rank 1 along `axis`: one call for each.

    The axes of what it returns stand in the place of `axis`. A function that takes an axis itself
    is far faster than this. Every device calls it for every slice, which is split as `axis` is;
    other axes that are split are gathered a shard at a time, and the result is split as they were.

    >>> gdt.apply_along_axis(gdt.sum, 1, gdt.ones((2, 3))).tolist()
    [3.0, 3.0]
    """
    (arr,) = as_operands("apply_along_axis", arr=arr)
    at = checked_axis(arr.type, axis)
    others = [d for d in range(arr.ndim) if d != at]
    slices = transpose(arr.resolve(), (*others, at))
    sizes = slices.shape[:-1]
    if 0 in sizes:
        problem = "there is no slice to call the function with"
        raise error(ShapeError, problem, operands={"arr": arr.type})
    rows = reshape(slices, (math.prod(sizes), slices.shape[-1]))
    out = _of_rows(lambda row: func1d(row, *args, **kwargs), rows)
    before, inner = range(at), range(len(sizes), len(sizes) + out.ndim - 1)
    out = reshape(out, (*sizes, *out.shape[1:]))
    return transpose(out, (*before, *inner, *range(at, len(sizes))))


def _of_rows(function: Callable[[Any], Any], rows: DistributedArray) -> DistributedArray:
    """The results of a function for each row, one below the other, split as the rows are."""
    axes = rows.layout.dims[0]
    count = math.prod(rows.mesh.sizes[a] for a in axes)
    height = -(-rows.shape[0] // count)
    first = _of_whole_rows(function, rows[:height], 0)
    if count == 1:
        return first
    layout = Layout.of(rows.mesh, (axes, *((),) * (first.ndim - 1)))
    out = zeros((rows.shape[0], *first.shape[1:]), first.dtype, layout=layout)
    out = out.at[:height].set(first)
    del first
    for start in range(height, rows.shape[0], height):
        end = start + height
        out = out.at[start:end].set(_of_whole_rows(function, rows[start:end], start))
    return out


def _of_whole_rows(
    function: Callable[[Any], Any], rows: DistributedArray, start: int
) -> DistributedArray:
    """The results of a function for each row, from the rows of that number on."""
    rows = relayout(rows, Layout.of(rows.mesh, ((), rows.layout.dims[1])))
    results = {f"result {start + i}": function(rows[i]) for i in range(rows.shape[0])}
    return stack(as_operands("apply_along_axis", arr=rows, **results)[1:])


@public
def apply_over_axes(
    func: Callable[[Any, int], Any], x: Any, axes: int | Sequence[int]
) -> DistributedArray:
    """`func(x, axis)` for each of the axes in turn; axes that it removes are put back.

    >>> gdt.apply_over_axes(gdt.sum, gdt.ones((2, 3)), [0, 1]).tolist()
    [[6.0]]
    """
    (current,) = as_operands("apply_over_axes", x=x)
    for axis in (axes,) if isinstance(axes, int) else axes:
        at = checked_axis(current.type, axis)
        (result,) = as_operands("apply_over_axes", result=func(current, at))
        if result.ndim == current.ndim - 1:
            result = expand_dims(result, at)
        if result.ndim != current.ndim:
            problem = f"the function returns rank {result.ndim} for rank {current.ndim}"
            raise error(DtypeError, problem, operands={"x": current.type})
        current = result
    return current
