"""The methods of NumPy's ufuncs that have no function of their own: scans and reductions by any
ufunc of two operands, along an axis that every device has whole."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from gdt.engine.op import op
from gdt.errors import IndexRangeError, error
from gdt.ops.reductions import negative_axes, reduction_text
from gdt.sharding.array_type import ArrayType
from gdt.sharding.rule import RuleSpec

Block = Any

ANY_ORDER = {
    "maximum", "minimum", "fmax", "fmin", "logical_and", "logical_or", "logical_xor",
    "bitwise_and", "bitwise_or", "bitwise_xor", "gcd", "lcm",
}  # fmt: skip
"""The ufuncs that combine rows in any order to the same bits."""


def _names(array_type: ArrayType) -> list[str]:
    return [f"d{i}" for i in range(array_type.ndim)]


def _prepare(name: str) -> Callable[..., dict[str, Any]]:
    def prepare(array_type: ArrayType, *, axis: int = 0, **static: Any) -> dict[str, Any]:
        (last,) = negative_axes(array_type, axis, name)
        for i in static.get("indices", ()):
            if not 0 <= i < array_type.shape[last]:
                problem = f"index {i} is out of range for {array_type.shape[last]} elements"
                raise error(IndexRangeError, name, problem, operands={"x": array_type})
        return {"axis": last, **static}

    return prepare


def _scan_rule(x: ArrayType, *, axis: int, **_: Any) -> RuleSpec:
    names = _names(x)
    return RuleSpec(f"{' '.join(names)} -> {' '.join(names)}", whole=frozenset({names[axis]}))


def _reduce_rule(x: ArrayType, *, axis: int, keepdims: bool = False, **_: Any) -> RuleSpec:
    text = reduction_text(x, (axis,), keepdims)
    return RuleSpec(text, whole=frozenset({_names(x)[axis]}))


def _reduceat_rule(x: ArrayType, *, axis: int, indices: tuple[int, ...], **_: Any) -> RuleSpec:
    names = _names(x)
    out = [*names[:axis], "r", *names[axis + 1 :]] if axis != -1 else [*names[:-1], "r"]
    text = f"{' '.join(names)} -> {' '.join(out)}"
    whole = frozenset({names[axis], "r"})
    return RuleSpec(text, whole=whole, sizes={"r": len(indices)})


# CuPy has `reduce` of sums and products alone, and no other method of these.


def _dtype(xp: Any, ufunc: str, rows: Block) -> np.dtype:
    """Return the dtype that NumPy's methods of a ufunc give."""
    host = np.empty(0, rows.dtype)
    dtype: np.dtype = getattr(np, ufunc).accumulate(host).dtype
    return dtype


def _accumulated(xp: Any, ufunc: str, rows: Block) -> Block:
    """`ufunc.accumulate(rows)`, a row after the other; rows that any order combines to the same
    bits in the logarithm of their number of steps."""
    combine, results = getattr(xp, ufunc), rows.astype(_dtype(xp, ufunc, rows))
    if ufunc not in ANY_ORDER:
        for i in range(1, len(results)):
            results[i] = combine(results[i - 1], results[i])
        return results
    step = 1
    while step < len(results):
        results = xp.concatenate([results[:step], combine(results[:-step], results[step:])])
        step *= 2
    return results


def _reduced(xp: Any, ufunc: str, rows: Block) -> Block:
    """`ufunc.reduce(rows)`."""
    if len(rows):
        return _accumulated(xp, ufunc, rows)[-1]
    start = getattr(np, ufunc).reduce(np.empty(0, rows.dtype))  # NumPy's error where there is none
    return xp.full(rows.shape[1:], start, start.dtype)


@op(_scan_rule, prepare=_prepare("accumulate"))
def ufunc_accumulate(xp: Any, x: Block, /, ufunc: str, axis: int = 0) -> Block:
    """`ufunc.accumulate(x, axis)` of the ufunc of that name."""
    if xp is np:
        return getattr(xp, ufunc).accumulate(x, axis=axis)
    return xp.moveaxis(_accumulated(xp, ufunc, xp.moveaxis(x, axis, 0)), 0, axis)


@op(_reduce_rule, prepare=_prepare("reduce"))
def ufunc_reduce(xp: Any, x: Block, /, ufunc: str, axis: int = 0, keepdims: bool = False) -> Block:
    """`ufunc.reduce(x, axis)` of the ufunc of that name."""
    if xp is np:
        return getattr(xp, ufunc).reduce(x, axis=axis, keepdims=keepdims)
    result = _reduced(xp, ufunc, xp.moveaxis(x, axis, 0))
    return xp.expand_dims(result, axis) if keepdims else result


@op(_reduceat_rule, prepare=_prepare("reduceat"))
def ufunc_reduceat(
    xp: Any, x: Block, /, ufunc: str, indices: tuple[int, ...], axis: int = 0
) -> Block:
    """`ufunc.reduceat(x, indices, axis)` of the ufunc of that name."""
    if xp is np:
        return getattr(xp, ufunc).reduceat(x, xp.asarray(indices), axis=axis)
    rows = xp.moveaxis(x, axis, 0)
    stops = [j if j > i else i + 1 for i, j in itertools.pairwise([*indices, rows.shape[0]])]
    parts = [_reduced(xp, ufunc, rows[i:j]) for i, j in zip(indices, stops, strict=True)]
    empty = xp.empty((0, *rows.shape[1:]), _dtype(xp, ufunc, rows))
    return xp.moveaxis(xp.stack(parts) if parts else empty, 0, axis)
