"""Reductions of some elements, and from an initial value: `where=` and `initial=` as NumPy has
them, as functions of ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.operands import as_operands
from gdt.errors import ShapeError, error
from gdt.ops.axes import Axis, distinct_axes
from gdt.ops.blocks.host_values import warn_where
from gdt.ops.comparison import equal, maximum, minimum, only_where
from gdt.ops.comparison import where as where_
from gdt.ops.creation import full
from gdt.ops.elementwise import add, astype, divide, multiply
from gdt.ops.extrema import max_, min_
from gdt.ops.reductions import all_, any_, mean, sum_
from gdt.ops.scans import prod
from gdt.sharding.dtypes import kind_of, promoted
from gdt.sharding.layout import Layout

Binary = Callable[[Any, Any], DistributedArray]


def _in_dtype(initial: Any, dtype: np.dtype) -> Any:
    """The number in a dtype of integers or bools if it is a fraction, or a dtype of bools: -1 is
    True. Other numbers as they are, which are errors if the dtype does not hold them."""
    if isinstance(initial, DistributedArray):
        return initial
    if dtype.kind == "b" or (dtype.kind in "iu" and isinstance(initial, float | np.floating)):
        return np.asarray(initial).astype(dtype)[()]
    return initial


def _begun(join: Binary, result: DistributedArray, initial: Any) -> DistributedArray:
    """A reduction that began with a number."""
    return astype(join(result, _in_dtype(initial, result.dtype)), result.dtype)


def _sum_like(op: Any, name: str, identity: int, join: Binary) -> Callable[..., DistributedArray]:
    """The extension of a sum or a product."""

    def extended(
        x: Any,
        axis: Axis = None,
        dtype: Any = None,
        keepdims: bool = False,
        *,
        initial: Any = None,
        where: Any = True,
    ) -> DistributedArray:
        if where is not True:
            x, _ = only_where(name, x, where, identity)
        result = op(x, axis=axis, keepdims=keepdims, dtype=dtype)
        return result if initial is None else _begun(join, result, initial)

    return extended


sum_.extend(_sum_like(sum_, "sum", 0, add))
prod.extend(_sum_like(prod, "prod", 1, multiply))


def _extreme_like(op: Any, name: str, join: Binary) -> Callable[..., DistributedArray]:
    """The extension of a maximum or a minimum, which has no identity of its own."""

    def extended(
        x: Any,
        axis: Axis = None,
        keepdims: bool = False,
        *,
        initial: Any = None,
        where: Any = True,
    ) -> DistributedArray:
        (x,) = as_operands(name, x=x)
        if where is not True:
            if initial is None:
                problem = "a mask may leave no element"
                raise error(ShapeError, name, problem, remedy="Give `initial` as well.")
            x, _ = only_where(name, x, where, initial)
        if x.size or initial is None:
            result = op(x, axis=axis, keepdims=keepdims)
            return result if initial is None else _begun(join, result, initial)
        axes = distinct_axes(x.type, axis)
        shape = [1 if d in axes else n for d, n in enumerate(x.shape) if keepdims or d not in axes]
        start = _in_dtype(initial, x.dtype)
        return full(shape, start, x.dtype, layout=Layout.replicated(x.mesh, len(shape)))

    return extended


max_.extend(_extreme_like(max_, "max", maximum))
min_.extend(_extreme_like(min_, "min", minimum))


def _truth_like(
    op: Callable[..., DistributedArray], name: str, *, identity: bool
) -> Callable[..., DistributedArray]:
    """The extension of `any` or `all`."""

    def extended(
        x: Any, axis: Axis = None, keepdims: bool = False, *, where: Any = True
    ) -> DistributedArray:
        (x,) = as_operands(name, x=x)
        truths, _ = only_where(name, astype(x, bool), where, identity)
        return op(truths, axis=axis, keepdims=keepdims)

    return extended


any_.extend(_truth_like(any_, "any", identity=False))
all_.extend(_truth_like(all_, "all", identity=True))


@mean.extend
def _mean_where(
    x: Any,
    axis: Axis = None,
    dtype: Any = None,
    keepdims: bool = False,
    *,
    where: Any = True,
) -> DistributedArray:
    """The mean of the elements where the mask is true; NaN where there is none."""
    x, mask = only_where("mean", x, where, 0)
    target = np.dtype(dtype) if dtype is not None else promoted(x.dtype, *_FLOAT[kind_of(x.dtype)])
    total = sum_(astype(x, target), axis=axis, keepdims=keepdims)
    count = sum_(mask, axis=axis, keepdims=keepdims)
    is_empty = equal(count, 0)
    warn_where(is_empty, "Mean of empty slice")
    return astype(divide(total, where_(is_empty, np.nan, count)), target)


_FLOAT: dict[str, tuple[type, ...]] = {
    "b": (float,),
    "i": (float,),
    "u": (float,),
    "f": (),
    "c": (),
}
