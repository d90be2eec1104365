"""Elements that are NaN: replaced, or left out of the largest and the smallest."""

from __future__ import annotations

from typing import Any

import numpy as np

from gdt.engine.op import op
from gdt.ops.axes import Axis, reduction_text
from gdt.ops.comparison import chosen, equal, isnan, maximum, where
from gdt.ops.elementwise import astype, like
from gdt.ops.reductions import kept_dims, prepare_extreme, sum_
from gdt.sharding.array_type import ArrayType

Block = Any


@op("..., ... -> ...", view="x y")
def at_numbers(xp: Any, x: Block, y: Block, /, otherwise: float = 0.0) -> Block:
    """`y` with the number `otherwise` in the places where `x` is NaN; on the host `y` itself where
    nothing is."""
    are_nan = xp.isnan(x)
    if xp is np and x.shape == y.shape:
        if not are_nan.any():
            return y
        return chosen(are_nan, otherwise, y)
    return xp.where(are_nan, y.dtype.type(otherwise), y)


at_numbers.vjp(None, lambda g, out, x, y, *, otherwise=0.0: like(where(isnan(x), 0, g), y))


def _rule(array_type: ArrayType, *, axis: tuple[int, ...], keepdims: bool) -> str:
    text = reduction_text(array_type, axis, keepdims)
    return f"{text}, {text.split('->')[1]}"


OPTIONS: Any = {"outputs": 2, "fill": {"x": np.nan}, "prepare": prepare_extreme}


@op(_rule, reduce="max", **OPTIONS)
def largest_number(
    xp: Any, x: Block, /, axis: Axis = None, keepdims: bool = False
) -> tuple[Block, Block]:
    """The largest element along `axis` that is no NaN, or -inf, and whether there is one."""
    extreme, is_missing = _extreme(xp, x, axis, keepdims, "fmax", -np.inf)
    return extreme, ~is_missing


@op(_rule, reduce="min", **OPTIONS)
def smallest_number(
    xp: Any, x: Block, /, axis: Axis = None, keepdims: bool = False
) -> tuple[Block, Block]:
    """The smallest element along `axis` that is no NaN, or inf, and whether there is none."""
    return _extreme(xp, x, axis, keepdims, "fmin", np.inf)


def _extreme(
    xp: Any, x: Block, axis: Axis, keepdims: bool, ufunc: str, worst: float
) -> tuple[Block, Block]:
    if xp is np:
        extreme = getattr(np, ufunc).reduce(x, axis=axis, keepdims=keepdims)
        is_missing = np.isnan(extreme)
        return np.where(is_missing, x.dtype.type(worst), extreme), is_missing
    are_nan = xp.isnan(x)
    numbers = xp.where(are_nan, x.dtype.type(worst), x)
    extreme = getattr(numbers, ufunc[1:])(axis=axis, keepdims=keepdims)
    return extreme, are_nan.all(axis=axis, keepdims=keepdims)


def _share_among_ties(
    g: Any, out: Any, x: Any, *, axis: Axis = None, keepdims: bool = False
) -> tuple[Any]:
    ties = astype(equal(x, kept_dims(out[0], x, axis)), g[0].dtype)
    count = maximum(sum_(ties, axis=axis, keepdims=True), 1)
    return (ties * (kept_dims(g[0], x, axis) / count),)


largest_number.vjp(joint=_share_among_ties)
smallest_number.vjp(joint=_share_among_ties)
