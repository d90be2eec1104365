"""The methods of NumPy's ufuncs that have no function of their own: scans and reductions by any
ufunc of two operands, along an axis that every device has whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gdt.engine.op import op
from gdt.errors import IndexRangeError, error
from gdt.ops.reductions import negative_axes, reduction_text
from gdt.sharding.array_type import ArrayType
from gdt.sharding.rule import RuleSpec

Block = Any


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


@op(_scan_rule, prepare=_prepare("accumulate"))
def ufunc_accumulate(xp: Any, x: Block, /, ufunc: str, axis: int = 0) -> Block:
    """`ufunc.accumulate(x, axis)` of the ufunc of that name."""
    return getattr(xp, ufunc).accumulate(x, axis=axis)


@op(_reduce_rule, prepare=_prepare("reduce"))
def ufunc_reduce(xp: Any, x: Block, /, ufunc: str, axis: int = 0, keepdims: bool = False) -> Block:
    """`ufunc.reduce(x, axis)` of the ufunc of that name."""
    return getattr(xp, ufunc).reduce(x, axis=axis, keepdims=keepdims)


@op(_reduceat_rule, prepare=_prepare("reduceat"))
def ufunc_reduceat(
    xp: Any, x: Block, /, ufunc: str, indices: tuple[int, ...], axis: int = 0
) -> Block:
    """`ufunc.reduceat(x, indices, axis)` of the ufunc of that name."""
    return getattr(xp, ufunc).reduceat(x, xp.asarray(indices), axis=axis)
