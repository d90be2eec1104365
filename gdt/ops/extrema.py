"""Largest and smallest elements, and where they are."""

from __future__ import annotations

from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.engine.declaration import FROM_ENGINE, Merging, same_statics
from gdt.engine.op import op
from gdt.engine.plan import Shards
from gdt.fusion.op_formula import is_reduction
from gdt.ops.axes import Axis, checked_axis
from gdt.ops.blocks.reduction_kernels import arg_kernel, extreme_kernel
from gdt.ops.blocks.sums import extreme
from gdt.ops.comparison import equal
from gdt.ops.elementwise import astype
from gdt.ops.reductions import kept_dims, prepare_extreme, reduction_rule, sum_
from gdt.sharding.array_type import ArrayType
from gdt.sharding.dtypes import kind_of

__all__ = ["argmax", "argmin"]


Block = Any


# ---------------------------------------------------------------- max and min


@is_reduction("max")
@op(
    reduction_rule,
    reduce="max",
    prepare=prepare_extreme,
    extended="out, initial, where",
)
def max_(
    xp: Any,
    x: Block,
    /,
    axis: Axis = None,
    out: DistributedArray | None = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = True,
) -> Block:
    """Largest element along `axis` (None: all axes); NaN if one of them is NaN.

    The dtype is that of `x`. out: an array that the result is written into. keepdims: whether the
    reduced axes stay, with length 1. where: a mask of the elements that count; with `initial`, a
    number that counts as well.
    Equal largest elements share the gradient evenly, as in JAX. Raises AxisError for an axis that
    `x` does not have, ShapeError where there is no
    element.

    >>> gdt.max(gdt.asarray([[1, 5], [7, 2]]), axis=1).tolist()
    [5, 7]
    """
    return extreme(xp, x, axis, keepdims, "max")


@is_reduction("min")
@op(
    reduction_rule,
    reduce="min",
    prepare=prepare_extreme,
    extended="out, initial, where",
)
@same_statics(max_)
def min_(xp: Any, x: Block, /, **static: Any) -> Block:
    """Smallest element along `axis` (None: all axes); NaN if one of them is NaN.

    The dtype is that of `x`. out: an array that the result is written into. keepdims: whether the
    reduced axes stay, with length 1. where: a mask of the elements that count; with `initial`, a
    number that counts as well.
    Equal smallest elements share the gradient evenly, as in JAX. Raises AxisError for an axis that
    `x` does not have, ShapeError where there is
    no element.

    >>> gdt.min(gdt.asarray([[1, 5], [7, 2]]), axis=1).tolist()
    [1, 2]
    """
    return extreme(xp, x, static["axis"], static["keepdims"], "min")


def _share_among_ties(
    g: Any, out: Any, x: Any, *, axis: Axis = None, keepdims: bool = False
) -> DistributedArray:
    ties = astype(equal(x, kept_dims(out, x, axis)), g.dtype)
    count = sum_(ties, axis=axis, keepdims=True)
    return ties * (kept_dims(g, x, axis) / count)


max_.vjp(_share_among_ties)
min_.vjp(_share_among_ties)
max_.kernel(extreme_kernel("Max"), takes_bfloat16=True)
min_.kernel(extreme_kernel("Min"), takes_bfloat16=True)


# ---------------------------------------------------------------- argmax and argmin


def _prepare_arg(
    array_type: ArrayType, *, axis: int | None = None, **static: Any
) -> dict[str, Any]:
    if axis is not None and (array_type.ndim or axis not in (0, -1)):
        axis = checked_axis(array_type, axis)
    else:
        axis = None
    return prepare_extreme(array_type, axis=axis, **static)


def _locate(
    xp: Any, x: Block, axis: Any, keepdims: bool, shards: Shards, name: str
) -> tuple[Block, ...]:
    """The largest (or smallest) element of every shard and its global index; the index alone if
    nothing is split."""
    rank = x.ndim - next(iter(shards.start.values())).ndim if shards.start else 0
    if len(axis) == 1 and f"d{axis[0] + rank}" not in shards.split:
        return (getattr(x, name)(axis=axis[0], keepdims=keepdims),)
    arg = getattr(xp, name)
    if len(axis) == 1:
        local = arg(x, axis=axis[0], keepdims=True)
        starts = shards.start[f"d{axis[0] + rank}"]
        value = xp.take_along_axis(x, local, axis[0])
        index = local + starts.reshape(starts.shape + (1,) * rank)
    else:
        value, index = _locate_flat(xp, x, rank, shards, arg)
    shape = index.shape[: index.ndim - rank]
    shape += tuple(
        1 if a in axis else index.shape[a] for a in range(-rank, 0) if keepdims or a not in axis
    )
    index = index.reshape(shape)
    return (index,) if value is None else (value.reshape(shape), index)


def _locate_flat(
    xp: Any, x: Block, rank: int, shards: Shards, arg: Any
) -> tuple[Block | None, Block]:
    """The largest (or smallest) element of a whole shard, and its index in the flattened global
    array."""
    mesh_shape = x.shape[: x.ndim - rank]
    flat = x.reshape(*mesh_shape, -1) if x.size else x.reshape(*mesh_shape, 0)
    local = arg(flat, axis=-1, keepdims=True)
    single = (*mesh_shape, *(1,) * rank)
    if not shards.split:
        return None, local.reshape(single)
    value = xp.take_along_axis(flat, local, -1).reshape(single)
    index, weight, rest = xp.zeros(single, np.int64), 1, local.reshape(single)
    for d in range(rank - 1, -1, -1):
        chunk, start = x.shape[d - rank], shards.start[f"d{d}"]
        index = index + weight * (rest % chunk + start.reshape(start.shape + (1,) * rank))
        rest, weight = rest // chunk, weight * shards.size[f"d{d}"]
    return value, index


def _merge(best: str) -> Any:
    """The better of (value, index) pairs: NaN first, the smallest index of equal ones."""

    def merge(xp: Any, value: Block, index: Block) -> Merging:
        (top,) = yield best, (value,)
        tops = value == top
        if kind_of(value.dtype) in "fc":
            tops |= xp.isnan(value)  # then `top` is NaN, and no other element is equal to it
        last = np.iinfo(np.int64).max
        return tuple((yield "min", (xp.where(tops, index, last),)))

    return merge


def _index_alone(xp: Any, *statistics: Block) -> Block:
    return statistics[-1]


@op(
    reduction_rule,
    reduce="max",
    merge=_merge("max"),
    finish=_index_alone,
    prepare=_prepare_arg,
    extended="out",
)
def argmax(
    xp: Any,
    x: Block,
    /,
    axis: int | None = None,
    out: DistributedArray | None = None,
    *,
    keepdims: bool = False,
    shards: Shards = FROM_ENGINE,
) -> tuple[Block, ...]:
    """Index of the largest element along `axis`, of the flattened array for None; int64.

    The first of equal elements, or the first NaN; complex numbers are ordered by their real parts,
    then by their imaginary ones. Over a split axis the devices reduce one value,
    then one index, per result. out: an array that the indices are written into. keepdims: whether
    the reduced axes stay, with length 1. Raises ShapeError where there is no element, AxisError for
    an axis that `x` does not have.

    >>> gdt.argmax(gdt.asarray([[1, 5], [7, 2]]), axis=1).tolist()
    [1, 0]
    """
    return _locate(xp, x, axis, keepdims, shards, "argmax")


@op(
    reduction_rule,
    reduce="min",
    merge=_merge("min"),
    finish=_index_alone,
    prepare=_prepare_arg,
    extended="out",
)
@same_statics(argmax)
def argmin(xp: Any, x: Block, /, **static: Any) -> tuple[Block, ...]:
    """Index of the smallest element along `axis`, of the flattened array for None; int64.

    The first of equal elements, or the first NaN; complex numbers are ordered by their real parts,
    then by their imaginary ones. Over a split axis the devices reduce one value,
    then one index, per result. out: an array that the indices are written into. keepdims: whether
    the reduced axes stay, with length 1. Raises ShapeError where there is no element, AxisError for
    an axis that `x` does not have.

    >>> gdt.argmin(gdt.asarray([[1, 5], [7, 2]]), axis=1).tolist()
    [0, 1]
    """
    return _locate(xp, x, name="argmin", **static)


argmax.kernel(arg_kernel("Max"), takes_bfloat16=True)
argmin.kernel(arg_kernel("Min"), takes_bfloat16=True)
