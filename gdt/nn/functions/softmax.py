"""softmax, log_softmax and logsumexp, over whole axes and over split ones.

A split axis is never gathered: every shard finds its largest element and the sum of the
exponentials below it, two all-reduces merge these pairs, and the rows stay where they are. Short
rows, of which that would send more, become whole by an all-to-all.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.operands import as_operands
from gdt.array.registry import public
from gdt.engine.declaration import FROM_ENGINE, Merging
from gdt.engine.forms import FORMS, Forms, keeping_forms
from gdt.engine.op import op
from gdt.errors import DtypeError, error
from gdt.fusion.op_formula import has_rows_formula
from gdt.fusion.reducing import of_rows
from gdt.ops.axes import Axis, negative_axes, reduction_text
from gdt.ops.blocks.sums import row_maximum
from gdt.ops.elementwise import astype, multiply, subtract, widened_half
from gdt.ops.exponential import exp
from gdt.ops.reductions import kept_dims, prepare_reduction, reduction_rule, sum_
from gdt.sharding.array_type import ArrayType
from gdt.sharding.dtypes import kind_of
from gdt.sharding.rule import RuleSpec

__all__ = ["log_softmax", "logsumexp", "softmax"]


Block = Any


# ---------------------------------------------------------------- statistics of a split axis


def _statistics_rule(array_type: ArrayType, *, axis: tuple[int, ...]) -> str:
    text = reduction_text(array_type, axis, keepdims=True)
    return f"{text}, {text.split('->')[1]}"


def largest_element(xp: Any, x: Block, axis: Any) -> Block:
    """The largest element over `axis`, with kept dims; -inf where there are no elements."""
    if x.size:
        return row_maximum(xp, x) if axis == (-1,) else x.max(axis=axis, keepdims=True)
    reduced = {a + x.ndim for a in axis}
    shape = tuple(1 if i in reduced else n for i, n in enumerate(x.shape))
    return xp.full(shape, -np.inf, x.dtype)


def largest_and_sum(xp: Any, x: Block, axis: Any, keepdims: bool) -> tuple[Block, Block]:
    """The largest element m over `axis`, and the sum of exp(x - m); 0 where all are -inf."""
    largest = largest_element(xp, x, axis)
    below = x - xp.where(largest == -np.inf, largest.dtype.type(0), largest)
    xp.exp(below, out=below)
    total = below.sum(axis=axis, keepdims=keepdims)
    return largest.reshape(total.shape), total


def merge_largest_and_sum(xp: Any, largest: Block, total: Block, *others: Block) -> Merging:
    """Merge the largest elements and sums of shards: rescale every sum to the largest element of
    all shards, and add the sums up, and `others` beside them."""
    (top,) = yield "max", (largest,)
    with np.errstate(invalid="ignore"):  # inf - inf: that row is NaN, as it is where rows are whole
        total = total * xp.exp(largest - xp.where(top == -np.inf, top.dtype.type(0), top))
    return top, *(yield "sum", (total, *others))


def _prepare(array_type: ArrayType, *, axis: Axis = None, **static: Any) -> dict[str, Any]:
    return {"axis": negative_axes(array_type, axis), **static}


@op(
    _statistics_rule,
    outputs=2,
    reduce="max",
    merge=merge_largest_and_sum,
    prepare=_prepare,
    rounded="- -",
)
def softmax_statistics(xp: Any, x: Block, /, axis: Axis) -> tuple[Block, Block]:
    """The largest element m along `axis` and the sum of exp(x - m), with kept dims; float32 for
    float16. No gradient flows through them: `softmax_from` and `log_softmax_from` know what they
    are."""
    with np.errstate(invalid="ignore"):
        return largest_and_sum(xp, widened_half(x), axis, True)


# ---------------------------------------------------------------- softmax


def _whole_rule(array_type: ArrayType, *, axis: tuple[int, ...]) -> RuleSpec:
    names = [f"d{i}" for i in range(array_type.ndim)]
    whole = frozenset(names[a] for a in axis)
    return RuleSpec(f"{' '.join(names)} -> {' '.join(names)}", whole=whole)


SOFTMAX = "e = exp(x - max(x))\ne / sum(e)"
LOG_SOFTMAX = "y = x - max(x)\ny - log(sum(exp(y)))"
SOFTMAX_GRADIENT = "p = x * y\np - y * sum(p)"


@has_rows_formula(SOFTMAX)
@op(_whole_rule, prepare=_prepare)
def softmax_of_whole(xp: Any, x: Block, /, axis: Axis) -> Block:
    """`softmax` over axes that are not split."""
    if xp is np and (result := of_rows(SOFTMAX, axis, x)) is not None:
        return result
    y = widened_half(x)
    y = y - largest_element(xp, y, axis)
    xp.exp(y, out=y)
    y /= xp.add.reduce(y, axis=axis, keepdims=True)
    return y if y.dtype == x.dtype else y.astype(x.dtype)


@op("..., ..., ... -> ...", rounded="x")
def softmax_from(xp: Any, x: Block, largest: Block, total: Block, /) -> Block:
    """exp(x - largest) / total, for the `softmax_statistics` of x."""
    y = x - largest
    xp.exp(y, out=y)
    y /= total
    return y if y.dtype == x.dtype else y.astype(x.dtype)


@has_rows_formula(LOG_SOFTMAX)
@op(_whole_rule, prepare=_prepare)
def log_softmax_of_whole(xp: Any, x: Block, /, axis: Axis) -> Block:
    """`log_softmax` over axes that are not split."""
    if xp is np and (result := of_rows(LOG_SOFTMAX, axis, x)) is not None:
        return result
    y = widened_half(x)
    y = y - largest_element(xp, y, axis)
    y -= xp.log(xp.exp(y).sum(axis=axis, keepdims=True))
    return y if y.dtype == x.dtype else y.astype(x.dtype)


@op("..., ..., ... -> ...", rounded="x")
def log_softmax_from(xp: Any, x: Block, largest: Block, total: Block, /) -> Block:
    """x - largest - log(total), for the `softmax_statistics` of x."""
    y = x - largest
    y -= xp.log(total)
    return y if y.dtype == x.dtype else y.astype(x.dtype)


def _pair_rule(g: ArrayType, out: ArrayType, *, axis: tuple[int, ...]) -> RuleSpec:
    names = " ".join(f"d{i}" for i in range(out.ndim))
    whole = frozenset(f"d{a + out.ndim}" for a in axis)
    return RuleSpec(f"{names}, {names} -> {names}", whole=whole)


def _prepare_pair(g: ArrayType, out: ArrayType, *, axis: Axis) -> dict[str, Any]:
    return {"axis": negative_axes(out, axis)}


@has_rows_formula(SOFTMAX_GRADIENT)
@op(_pair_rule, linear="g", prepare=_prepare_pair)
def softmax_gradient_of_whole(xp: Any, g: Block, y: Block, /, axis: Axis) -> Block:
    """y * (g - sum(g * y)): the gradient of softmax over axes that are not split."""
    if xp is np and (result := of_rows(SOFTMAX_GRADIENT, axis, g, y)) is not None:
        return result
    product = g * y
    product -= y * xp.add.reduce(product, axis=axis, keepdims=True)
    return product


def _softmax_gradient_vjp(c: Any, out: Any, g: Any, y: Any, *, axis: Axis) -> tuple[Any, ...]:
    along = sum_(c * y, axis=axis, keepdims=True)
    return (
        softmax_gradient(c, y, axis),
        c * g - c * sum_(g * y, axis=axis, keepdims=True) - g * along,
    )


softmax_gradient_of_whole.vjp(joint=_softmax_gradient_vjp)


def softmax_gradient(g: DistributedArray, y: DistributedArray, axis: Axis) -> DistributedArray:
    """The cotangent of x from the cotangent g of y = softmax(x)."""
    if _is_split(y, axis) or g.shape != y.shape:
        return y * (g - sum_(g * y, axis=axis, keepdims=True))
    return softmax_gradient_of_whole(g, y, axis=axis)


def _softmax_vjp(g: Any, out: Any, x: Any, *, axis: Axis) -> Any:
    return softmax_gradient(g, out, axis)


def _log_softmax_vjp(g: Any, out: Any, x: Any, *, axis: Axis) -> Any:
    return subtract(g, multiply(exp(out), sum_(g, axis=axis, keepdims=True)))


softmax_of_whole.vjp(_softmax_vjp, reads="out")
log_softmax_of_whole.vjp(_log_softmax_vjp, reads="out")


def _reduced_axes(x: DistributedArray, statistic: DistributedArray) -> tuple[int, ...]:
    return tuple(
        i - x.ndim
        for i, (n, reduced_size) in enumerate(zip(x.shape, statistic.shape, strict=True))
        if n != reduced_size
    )


# Along an axis of length 1, which is not among the reduced ones, the softmax is 1 and its gradient
# 0 whichever way it is computed: g - g * 1 and y * (g - g * y).
softmax_from.vjp(
    lambda g, out, x, largest, total: softmax_gradient(g, out, _reduced_axes(x, largest)),
    None,
    None,
    reads="out",
)
log_softmax_from.vjp(
    lambda g, out, x, largest, total: _log_softmax_vjp(g, out, x, axis=_reduced_axes(x, largest)),
    None,
    None,
    reads="out",
)


def _is_split(x: DistributedArray, axis: Axis) -> bool:
    dims = x.layout.dims
    if type(axis) is int and -len(dims) <= axis < len(dims):
        return bool(dims[axis])
    return any(dims[a] for a in negative_axes(x.type, axis))


def as_floating(name: str, x: Any) -> DistributedArray:
    """`x` as an array of floating-point numbers: integers and bools become float64.

    Raises DtypeError for complex numbers, in the name of the function `name`.
    """
    if type(x) is DistributedArray and kind_of(x.dtype) == "f":
        return x
    (x,) = as_operands(name, x=x)
    if x.dtype.kind == "c":
        raise error(DtypeError, "complex numbers have no order", operands={"x": x.type})
    return astype(x, np.float64) if x.dtype.kind in "biu" else x


@public
def softmax(x: Any, axis: Axis = -1) -> DistributedArray:
    """exp(x) / sum(exp(x)) over `axis` (an int, a tuple, or None for all axes), without overflow.

    The result has the shape of x. Integers give float64; float16 is added up in float32. Where
    `axis` is split, the devices reduce one largest element and one sum per row, and no row moves,
    but where rows are so short that exchanging rows for columns sends less. Raises AxisError for an
    axis that x does not have, DtypeError for complex numbers.

    >>> gdt.softmax(gdt.asarray([[0.0, 0.0], [1000.0, 0.0]])).tolist()
    [[0.5, 0.5], [1.0, 0.0]]
    """
    x = as_floating("softmax", x)
    if _is_split(x, axis):
        with keeping_forms(FORMS.get() or Forms()):
            largest, total = softmax_statistics(x, axis=axis)
            return softmax_from(x, largest, total)
    return softmax_of_whole(x, axis=axis)


@public
def log_softmax(x: Any, axis: Axis = -1) -> DistributedArray:
    """log(softmax(x)) over `axis`, accurate where the softmax is close to 0.

    Shapes, dtypes, communication and errors are those of `gdt.softmax`.

    >>> gdt.log_softmax(gdt.asarray([0.0, -1000.0])).tolist()
    [0.0, -1000.0]
    """
    x = as_floating("log_softmax", x)
    if _is_split(x, axis):
        with keeping_forms(FORMS.get() or Forms()):
            largest, total = softmax_statistics(x, axis=axis)
            return log_softmax_from(x, largest, total)
    return log_softmax_of_whole(x, axis=axis)


# ---------------------------------------------------------------- logsumexp


def _log_of_sum(xp: Any, largest: Block, total: Block, *, dtype: np.dtype[Any]) -> Block:
    with np.errstate(divide="ignore", invalid="ignore"):
        out = xp.log(total)
        out += largest
    out = xp.where(largest == np.inf, largest, out)
    return out if out.dtype == dtype else out.astype(dtype)


def _prepare_logsumexp(array_type: ArrayType, **static: Any) -> dict[str, Any]:
    return {**prepare_reduction(array_type, **static), "dtype": array_type.dtype}


@op(
    reduction_rule,
    reduce="max",
    merge=merge_largest_and_sum,
    finish=_log_of_sum,
    prepare=_prepare_logsumexp,
)
def logsumexp_of_floats(
    xp: Any, x: Block, /, axis: Axis = None, keepdims: bool = False, *, dtype: Any = FROM_ENGINE
) -> tuple[Block, Block]:
    """`logsumexp` of floating-point numbers."""
    with np.errstate(invalid="ignore"):
        return largest_and_sum(xp, widened_half(x), axis, keepdims)


def _logsumexp_vjp(
    g: Any, out: Any, x: Any, *, axis: Axis = None, keepdims: bool = False
) -> DistributedArray:
    # Partial sums minus a value would round at the size of their parts, and be reduced once more.
    return exp(x.resolve() - kept_dims(out, x, axis)) * kept_dims(g, x, axis)


logsumexp_of_floats.vjp(_logsumexp_vjp)


@public
def logsumexp(x: Any, axis: Axis = None, keepdims: bool = False) -> DistributedArray:
    """log(sum(exp(x))) over `axis` (None: all axes), without overflow; -inf where all elements are
    -inf, and for no elements.

    Integers give float64; float16 is added up in float32. Over split axes it is an all-reduce of
    the largest elements, and one of the sums. keepdims: whether the reduced axes stay, with length
    1. Raises AxisError for an axis that x does not have, DtypeError for complex numbers.

    >>> float(gdt.logsumexp(gdt.asarray([1000.0, 1000.0]))) - 1000.0
    0.693147180559...
    """
    x = as_floating("logsumexp", x)
    return logsumexp_of_floats(x, axis=axis, keepdims=keepdims)
