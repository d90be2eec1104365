"""Reductions: over any axes, of arrays split in any way."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.registry import FUNCTIONS
from gdt.engine.op import op
from gdt.engine.specialization import are_arrays
from gdt.errors import AxisError, DtypeError, ShapeError, error
from gdt.ops.blocks.reduction_kernels import mean_kernel, sum_kernel
from gdt.ops.blocks.sums import product_with_ones
from gdt.sharding.array_type import ArrayType
from gdt.sharding.rule import RuleSpec

__all__ = ["count_nonzero", "mean"]


Block = Any
Axis = int | Sequence[int] | None


# ---------------------------------------------------------------- what reductions share


def negative_axes(array_type: ArrayType, axis: Axis, name: str) -> tuple[int, ...]:
    """`axis` as sorted negative axes, all of them for None; ShapeError for one that is out of
    range."""
    if axis is None:
        return tuple(range(-array_type.ndim, 0))
    if type(axis) is int and -array_type.ndim <= axis < array_type.ndim:
        return (axis % array_type.ndim - array_type.ndim,)
    axes = tuple(axis) if isinstance(axis, Sequence) else (axis,)
    for a in axes:
        if not isinstance(a, int | np.integer) or isinstance(a, bool):
            raise error(DtypeError, name, f"axis {a!r} is no integer", operands={"x": array_type})
        if not -array_type.ndim <= a < array_type.ndim:
            raise error(
                AxisError,
                name,
                f"axis {a} is out of range for rank {array_type.ndim}",
                operands={"x": array_type},
            )
    negative = tuple(sorted(int(a) % array_type.ndim - array_type.ndim for a in axes))
    if len(set(negative)) < len(negative):
        raise error(ShapeError, name, f"an axis is repeated in {axes}", operands={"x": array_type})
    return negative


def reduction_text(array_type: ArrayType, axis: Sequence[int], keepdims: bool) -> str:
    """`d0 d1 d2 -> d0 d2`, or `d0 d1 d2 -> d0 1 d2` with keepdims."""
    names = [f"d{i}" for i in range(array_type.ndim)]
    axes = {a + array_type.ndim for a in axis}
    out = ["1" if i in axes else n for i, n in enumerate(names) if i not in axes or keepdims]
    return f"{' '.join(names)} -> {' '.join(out)}"


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


def prepare_reduction(name: str, *, nonempty: bool = False) -> Callable[..., dict[str, Any]]:
    """A check of the statics of the reduction `name`.

    nonempty: whether to raise ShapeError where no elements at all are reduced to one.
    """

    def prepare(
        array_type: ArrayType, *, axis: Axis = None, keepdims: bool = False, **static: Any
    ) -> dict[str, Any]:
        axes = negative_axes(array_type, axis, name)
        if nonempty:
            check_nonempty(array_type, axes, name)
        return {"axis": axes, "keepdims": bool(keepdims), **static}

    return prepare


def check_nonempty(array_type: ArrayType, axes: Sequence[int], name: str) -> None:
    """Raise ShapeError if `axes` reduce no elements at all to one."""
    result_shape = [n for i, n in enumerate(array_type.shape) if i - array_type.ndim not in axes]
    if 0 not in result_shape and any(array_type.shape[a] == 0 for a in axes):
        raise error(
            ShapeError,
            name,
            "an empty array has none: axes to reduce have length 0",
            operands={"x": array_type},
        )


def prepare_sum(name: str) -> Callable[..., dict[str, Any]]:
    """A check of the statics of the sum or product `name`."""

    def prepare(
        array_type: ArrayType, *, axis: Axis = None, keepdims: bool = False, dtype: Any = None
    ) -> dict[str, Any]:
        axes = negative_axes(array_type, axis, name)
        if isinstance(dtype, bool):
            remedy = f"Write keepdims={dtype}, by name."
            raise error(DtypeError, name, f"dtype is {dtype}", remedy=remedy)
        target = None if dtype is None else np.dtype(dtype).newbyteorder("=")
        return {"axis": axes, "keepdims": bool(keepdims), "dtype": target}

    return prepare


def kept_dims(out: DistributedArray, x: DistributedArray, axis: Axis) -> DistributedArray:
    """The result of a reduction of `x` over `axis`, with the reduced axes kept as 1s."""
    axes = {a + x.ndim for a in negative_axes(x.type, axis, "sum")}
    shape = tuple(1 if i in axes else n for i, n in enumerate(x.shape))
    if out.shape == shape:
        return out
    result: DistributedArray = FUNCTIONS["reshape"](out, shape)
    return result


def restore_axes(
    g: DistributedArray, x: DistributedArray, axis: Axis, keepdims: bool
) -> DistributedArray:
    """The cotangent of a reduction, broadcast to the shape of its operand."""
    if not keepdims and g.ndim:  # a scalar broadcasts as it is
        g = kept_dims(g, x, axis)
    cotangent: DistributedArray = FUNCTIONS["broadcast_to"](g, x.shape)
    return cotangent


# ---------------------------------------------------------------- sum and mean


@op(sum_rule, linear="x", prepare=prepare_sum("sum"), extended="out, initial, where")
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
    return x.sum(axis=axis, keepdims=keepdims, dtype=dtype)


def _sum_vjp(
    g: Any, out: Any, x: Any, *, axis: Axis = None, keepdims: bool = False, dtype: Any = None
) -> Any:
    if dtype is not None:
        g = FUNCTIONS["astype"](g, x.dtype)
    return restore_axes(g, x, axis, keepdims)


sum_.vjp(_sum_vjp)
sum_.kernel(sum_kernel)


@sum_.specialize
def _sum_on_host(
    body: Any, x: Block, /, axis: Any, keepdims: bool = False, dtype: Any = None
) -> Any:
    """A product with ones, where that is faster."""
    if dtype is not None or not are_arrays(x):
        return None
    return product_with_ones(x.shape, x.dtype.char, axis, keepdims)


def _prepare_mean(
    array_type: ArrayType, *, axis: Axis = None, keepdims: bool = False, dtype: Any = None
) -> dict[str, Any]:
    prepared = prepare_sum("mean")(array_type, axis=axis, keepdims=keepdims, dtype=dtype)
    exact = array_type.dtype.kind in "biu"
    return {
        **prepared,
        "dtype": prepared["dtype"] or np.dtype(float if exact else array_type.dtype),
    }


def _divide_by_count(xp: Any, total: Block, *, count: int, dtype: np.dtype[Any]) -> Block:
    # An array, so that an empty mean is NaN with NumPy's warning, and no ZeroDivisionError.
    # A count that small integers do not hold is no element of theirs.
    mean = total / (np.float64 if total.dtype.kind in "biu" else total.dtype.type)(count)
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
    return x.sum(axis=axis, keepdims=keepdims, dtype=np.float32 if dtype == np.float16 else dtype)


def _mean_vjp(
    g: Any, out: Any, x: Any, *, axis: Axis = None, keepdims: bool = False, dtype: Any = None
) -> Any:
    if dtype is not None and x.dtype != np.float16:
        g = FUNCTIONS["astype"](g, x.dtype)
    share = FUNCTIONS["astype"](divided_by_count(g, reduced_count(x, axis)), x.dtype)
    return restore_axes(share, x, axis, keepdims)


mean.vjp(_mean_vjp)
mean.kernel(mean_kernel)


def divided_by_count(g: DistributedArray, count: int) -> DistributedArray:
    """g / count; of float16 in float32, since 65504 is the largest count that float16 holds."""
    if g.dtype != np.float16:
        return g / count
    return (g.astype(np.float32) / count).astype(np.float16)


def reduced_count(x: DistributedArray, axis: Axis) -> int:
    """The number of elements of `x` that a reduction over `axis` makes one of."""
    count = 1
    for a in negative_axes(x.type, axis, "mean"):
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
    prepare=prepare_reduction("any"),
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
    prepare=prepare_reduction("all"),
    extended="out, where",
)
def all_(
    xp: Any,
    x: Block,
    /,
    axis: Axis = None,
    out: DistributedArray | None = None,
    keepdims: bool = False,
    *,
    where: Any = True,
) -> Block:
    """Whether all elements along `axis` (None: all axes) are not zero; bool. NaN is not zero.

    out: an array that the result is written into. keepdims: whether the reduced axes stay, with
    length 1. where: a mask of the elements that count. The result over no elements is True.
    Raises AxisError for an axis that `x` does not have.

    >>> gdt.all(gdt.asarray([[1, 1], [0, 3]]), axis=1).tolist()
    [True, False]
    """
    return x.all(axis=axis, keepdims=keepdims)


@op(reduction_rule, prepare=prepare_reduction("count_nonzero"))
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
