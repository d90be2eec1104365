"""Reductions: over any axes, of arrays split in any way."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.registry import FUNCTIONS
from gdt.engine.declaration import same_statics
from gdt.engine.loops import are_arrays
from gdt.engine.op import op
from gdt.errors import DtypeError, ShapeError, error
from gdt.fusion.op_formula import has_formula, is_reduction
from gdt.ops.axes import Axis, negative_axes, reduction_text
from gdt.ops.blocks.host_values import warn
from gdt.ops.blocks.reduction_kernels import mean_kernel, sum_kernel
from gdt.ops.blocks.sums import add_up, product_with_ones
from gdt.sharding.array_type import ArrayType
from gdt.sharding.rule import RuleSpec

__all__ = ["count_nonzero", "mean"]


Block = Any


# ---------------------------------------------------------------- what reductions share


def reduction_rule(
    array_type: ArrayType, *, axis: tuple[int, ...], keepdims: bool, **_: Any
) -> str:
    """The rule of a reduction over `axis`."""
    return reduction_text(array_type, axis, keepdims)


def sum_rule(
    array_type: ArrayType, *, axis: tuple[int, ...], keepdims: bool, dtype: Any = None
) -> RuleSpec:
    """The rule of a sum. Parts of a partial sum of integers may have wrapped around: they are added
    up before anything wider is made of them."""
    text = reduction_text(array_type, axis, keepdims)
    return RuleSpec(text, linear=array_type.dtype.kind in "fc")


def prepare_reduction(
    array_type: ArrayType, *, axis: Axis = None, keepdims: bool = False, **static: Any
) -> dict[str, Any]:
    """Check the axes of a reduction."""
    return {"axis": negative_axes(array_type, axis), "keepdims": bool(keepdims), **static}


def prepare_extreme(array_type: ArrayType, **static: Any) -> dict[str, Any]:
    """As `prepare_reduction`; ShapeError where no elements at all are reduced to one."""
    prepared = prepare_reduction(array_type, **static)
    axes = prepared["axis"]
    shape = [n for i, n in enumerate(array_type.shape) if i - array_type.ndim not in axes]
    if 0 not in shape and any(array_type.shape[a] == 0 for a in axes):
        problem = "an empty array has none: axes to reduce have length 0"
        raise error(ShapeError, problem, operands={"x": array_type})
    return prepared


def prepare_sum(array_type: ArrayType, *, dtype: Any = None, **static: Any) -> dict[str, Any]:
    """As `prepare_reduction`, with the dtype in the host's byte order."""
    if isinstance(dtype, bool):
        remedy = f"Write keepdims={dtype}, by name."
        raise error(DtypeError, f"dtype is {dtype}", remedy=remedy)
    target = None if dtype is None else np.dtype(dtype).newbyteorder("=")
    return {**prepare_reduction(array_type, **static), "dtype": target}


def kept_dims(out: DistributedArray, x: DistributedArray, axis: Axis) -> DistributedArray:
    """The result of a reduction of `x` over `axis`, with the reduced axes kept as 1s."""
    axes = negative_axes(x.type, axis)
    shape = tuple(1 if i - x.ndim in axes else n for i, n in enumerate(x.shape))
    return out if out.shape == shape else out.reshape(shape)


def restore_axes(
    g: DistributedArray, x: DistributedArray, axis: Axis, keepdims: bool
) -> DistributedArray:
    """The cotangent of a reduction, broadcast to the shape of its operand."""
    if not keepdims and g.ndim:  # a scalar broadcasts as it is
        g = kept_dims(g, x, axis)
    return FUNCTIONS["broadcast_to"](g, x.shape)


# ---------------------------------------------------------------- sum and mean


@is_reduction("sum")
@op(sum_rule, linear="x", prepare=prepare_sum, extended="out, initial, where")
def sum_(
    xp: Any,
    x: Block,
    /,
    axis: Axis = None,
    dtype: Any = None,
    out: DistributedArray | None = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = True,
) -> Block:
    """Sum over `axis` (None: all axes); small integers and bools widen as in NumPy.

    axis: an int, a tuple of ints or None. dtype: in which to add up, and of the result. out: an
    array that the sum is written into. keepdims: whether the reduced axes stay, with length 1.
    initial: a number that the sum begins with. where: a mask of the elements that are added.
    Raises AxisError for an axis that `x` lacks.
    Over a split axis each device sums its part, and the result stays a partial sum until it is
    needed.

    >>> mesh = gdt.create_mesh([("x", 2)])
    >>> x = gdt.asarray([[1.0, 2.0], [3.0, 4.0]], layout=gdt.Layout(["x", None], mesh))
    >>> gdt.sum(x, axis=0).layout
    Layout([-], Mesh(x=2), partial={'x': 'sum'})
    >>> float(gdt.sum(x))
    10.0
    """
    return add_up(xp, x, axis, keepdims, dtype)


def _sum_vjp(
    g: Any, out: Any, x: Any, *, axis: Axis = None, keepdims: bool = False, dtype: Any = None
) -> Any:
    if dtype is not None:
        g = g.astype(x.dtype)
    return restore_axes(g, x, axis, keepdims)


sum_.vjp(_sum_vjp, reads="")
sum_.kernel(sum_kernel, takes_bfloat16=True)


@sum_.specialize
def _sum_on_host(
    body: Any, x: Block, /, axis: Any, keepdims: bool = False, dtype: Any = None
) -> Any:
    """A product with ones, where that is faster."""
    if dtype is not None or not are_arrays(x):
        return None
    return product_with_ones(x.shape, x.dtype.char, axis, keepdims)


def _prepare_mean(array_type: ArrayType, **static: Any) -> dict[str, Any]:
    prepared, exact = prepare_sum(array_type, **static), array_type.dtype.kind in "biu"
    dtype = prepared["dtype"] or np.dtype(float if exact else array_type.dtype)
    return {**prepared, "dtype": dtype}


@has_formula(lambda count, dtype: f"x / full_like(x, {float(count)})")
def _divide_by_count(xp: Any, total: Block, *, count: int, dtype: np.dtype[Any]) -> Block:
    if not count and xp is np:
        warn("Mean of empty slice")
    # A count that small integers do not hold is no element of theirs.
    mean = total / (np.float64 if total.dtype.kind in "biu" else total.dtype.type)(count or np.nan)
    return mean if mean.dtype == dtype else mean.astype(dtype)


def _mean_rule(
    array_type: ArrayType, *, axis: tuple[int, ...], keepdims: bool, dtype: np.dtype
) -> RuleSpec:
    """The rule of a sum. A mean of integer dtype is rounded once, at the end, so its axes must be
    whole: parts that were rounded do not add up to it."""
    if dtype.kind not in "biu":
        return sum_rule(array_type, axis=axis, keepdims=keepdims)
    whole = frozenset(f"d{a + array_type.ndim}" for a in axis)
    return RuleSpec(reduction_text(array_type, axis, keepdims), whole=whole, linear=False)


@is_reduction("sum")
@op(_mean_rule, linear="x", prepare=_prepare_mean, finish=_divide_by_count, extended="out, where")
def mean(
    xp: Any,
    x: Block,
    /,
    axis: Axis = None,
    dtype: Any = None,
    out: DistributedArray | None = None,
    keepdims: bool = False,
    *,
    where: Any = True,
) -> Block:
    """Arithmetic mean over `axis` (None: all axes); of integers it is float64, and float16 is added
    up in float32, as in NumPy.

    Over a split axis each device sums its part and divides by the global count; the result stays a
    partial sum until it is needed. The mean of no elements is NaN, with NumPy's RuntimeWarning.
    dtype: the dtype of the mean. out: an array that it is written into. keepdims: whether the
    reduced axes stay, with length 1. where: a mask of the elements that count. Raises AxisError for
    an axis that `x` does not have.

    >>> mesh = gdt.create_mesh([("x", 2)])
    >>> gdt.mean(gdt.asarray([1, 2, 6], layout=gdt.Layout(["x"], mesh)))
    DistributedArray(3., float64[]  [] + sum over 'x')
    """
    return add_up(xp, x, axis, keepdims, np.float32 if dtype == np.float16 else dtype)


def _mean_vjp(
    g: Any, out: Any, x: Any, *, axis: Axis = None, keepdims: bool = False, dtype: Any = None
) -> Any:
    if dtype is not None and x.dtype != np.float16:
        g = g.astype(x.dtype)
    share = divided_by_count(g, reduced_count(x, axis))
    if share.dtype != x.dtype:
        share = share.astype(x.dtype)
    return restore_axes(share, x, axis, keepdims)


mean.vjp(_mean_vjp, reads="")
mean.kernel(mean_kernel, takes_bfloat16=True)


def divided_by_count(g: DistributedArray, count: int) -> DistributedArray:
    """g / count; of float16 in float32, since 65504 is the largest count that float16 holds."""
    if g.dtype != np.float16:
        return g / count
    return (g.astype(np.float32) / count).astype(np.float16)


def reduced_count(x: DistributedArray, axis: Axis) -> int:
    """The number of elements of `x` that a reduction over `axis` makes one of."""
    count = 1
    for a in negative_axes(x.type, axis):
        count *= x.shape[a]
    return count


def unbroadcast(g: DistributedArray, x: Any) -> DistributedArray:
    """The sum of `g` in the shape of `x`: the transpose of broadcasting."""
    if g.shape == x.shape:
        return g
    lead = g.ndim - x.ndim
    if lead:
        g = sum_(g, axis=tuple(range(lead)))
    axes = tuple(i for i, n in enumerate(x.shape) if n == 1 and g.shape[i] != 1)
    if axes:
        g = sum_(g, axis=axes, keepdims=True)
    return g


# ---------------------------------------------------------------- logic and counting


@op(
    reduction_rule,
    reduce="max",
    fill={"x": False},
    prepare=prepare_reduction,
    extended="out, where",
)
def any_(
    xp: Any,
    x: Block,
    /,
    axis: Axis = None,
    out: DistributedArray | None = None,
    keepdims: bool = False,
    *,
    where: Any = True,
) -> Block:
    """Whether any element along `axis` (None: all axes) is not zero; bool. NaN is not zero.

    out: an array that the result is written into. keepdims: whether the reduced axes stay, with
    length 1. where: a mask of the elements that count. The result over no elements is False.
    Raises AxisError for an axis that `x` does not have.

    >>> gdt.any(gdt.asarray([[0, 0], [0, 3]]), axis=1).tolist()
    [False, True]
    """
    return x.any(axis=axis, keepdims=keepdims)


@op(
    reduction_rule,
    reduce="min",
    fill={"x": True},
    prepare=prepare_reduction,
    extended="out, where",
)
@same_statics(any_)
def all_(xp: Any, x: Block, /, **static: Any) -> Block:
    """Whether all elements along `axis` (None: all axes) are not zero; bool. NaN is not zero.

    out: an array that the result is written into. keepdims: whether the reduced axes stay, with
    length 1. where: a mask of the elements that count. The result over no elements is True.
    Raises AxisError for an axis that `x` does not have.

    >>> gdt.all(gdt.asarray([[1, 1], [0, 3]]), axis=1).tolist()
    [True, False]
    """
    return x.all(**static)


@op(reduction_rule, prepare=prepare_reduction)
def count_nonzero(xp: Any, x: Block, /, axis: Axis = None, keepdims: bool = False) -> Block:
    """Number of elements along `axis` (None: all axes) that are not zero; int64.

    keepdims: whether the reduced axes stay, with length 1. Over a split axis each device counts its
    part, and the result stays a partial sum until it is needed. Raises AxisError for an axis that
    `x` does not have.

    >>> int(gdt.count_nonzero(gdt.asarray([[0, 1], [2, 3]])))
    3
    """
    if x.dtype.kind != "b":
        return (x != 0).sum(axis=axis, keepdims=keepdims, dtype=np.int64)
    reduced = len(axis)  # type: ignore[arg-type]  # a tuple here
    kept = x.shape[: x.ndim - reduced]
    are_last = axis == (*range(-reduced, 0),) and x.size
    if xp is not np or not are_last or math.prod(kept) > FEW:
        return x.sum(axis=axis, keepdims=keepdims, dtype=np.int64)
    parts = x.reshape(math.prod(kept), -1)
    counts = np.array([np.count_nonzero(part) for part in parts], np.int64)
    return counts.reshape((*kept, *(1,) * reduced) if keepdims else kept)


FEW = 64  # parts of which NumPy counts the elements, faster than it adds up bools
