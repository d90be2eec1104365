"""Reductions: over any axes, of arrays split in any way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gdt.errors import ShapeError, error
from gdt.layout import ArrayType
from gdt.array import FUNCTIONS, DistributedArray
from gdt.op import op

Block = Any
Axis = int | Sequence[int] | None


def negative_axes(kind: ArrayType, axis: Axis, name: str) -> tuple[int, ...]:
    """`axis` as sorted negative axes, all of them for None; ShapeError for one that is out of range."""
    if axis is None:
        return tuple(range(-kind.ndim, 0))
    axes = tuple(axis) if isinstance(axis, Sequence) else (axis,)
    for a in axes:
        if not isinstance(a, int | np.integer) or not -kind.ndim <= a < kind.ndim:
            raise error(
                ShapeError, name, f"axis {a!r} is out of range for rank {kind.ndim}", operands={"x": kind}
            )
    found = tuple(sorted(int(a) % kind.ndim - kind.ndim for a in axes))
    if len(set(found)) < len(found):
        raise error(ShapeError, name, f"an axis is repeated in {axes}", operands={"x": kind})
    return found


def reduction_rule(kind: ArrayType, *, axis: tuple[int, ...], keepdims: bool, **_: Any) -> str:
    """`a b c -> a c`, or `a b c -> a 1 c` with keepdims."""
    names = [f"d{i}" for i in range(kind.ndim)]
    gone = {a + kind.ndim for a in axis}
    out = ["1" if i in gone else n for i, n in enumerate(names) if i not in gone or keepdims]
    return f"{' '.join(names)} -> {' '.join(out)}"


def prepare_reduction(name: str) -> Any:
    """Checks the statics of a reduction over axes."""

    def prepare(kind: ArrayType, *, axis: Axis = None, keepdims: bool = False, **static: Any) -> dict[str, Any]:
        return {"axis": negative_axes(kind, axis, name), "keepdims": bool(keepdims), **static}

    return prepare


@op(reduction_rule, linear="x", prepare=prepare_reduction("sum"))
def sum_(xp: Any, x: Block, /, axis: Axis = None, keepdims: bool = False, dtype: Any = None) -> Block:
    """Sum over `axis` (None: all axes); small integers widen as in NumPy.

    Over a split axis each device sums its part, and the result stays a pending sum until it is needed.

    >>> mesh = gdt.create_mesh([("x", 2)])
    >>> x = gdt.asarray([[1.0, 2.0], [3.0, 4.0]], layout=gdt.Layout(["x", None], mesh))
    >>> gdt.sum(x, axis=0).layout
    Layout([-], Mesh(x=2), partial={'x': 'sum'})
    >>> float(gdt.sum(x))
    10.0
    """
    return xp.sum(x, axis=axis, keepdims=keepdims, dtype=dtype)


def restore_axes(g: DistributedArray, x: DistributedArray, axis: Axis, keepdims: bool) -> DistributedArray:
    """The cotangent of a reduction, broadcast to the shape of its operand."""
    if not keepdims:
        gone = {a + x.ndim for a in negative_axes(x.type, axis, "sum")}
        g = FUNCTIONS["reshape"](g, tuple(1 if i in gone else n for i, n in enumerate(x.shape)))
    out: DistributedArray = FUNCTIONS["broadcast_to"](g, x.shape)
    return out


def _sum_vjp(g: Any, out: Any, x: Any, *, axis: Axis = None, keepdims: bool = False, dtype: Any = None) -> Any:
    return restore_axes(g, x, axis, keepdims)


sum_.vjp(_sum_vjp)


def unbroadcast(g: DistributedArray, x: Any) -> DistributedArray:
    """Sum `g` down to the shape of `x`: the transpose of broadcasting."""
    if g.shape == x.shape:
        return g
    lead = g.ndim - x.ndim
    if lead:
        g = sum_(g, axis=tuple(range(lead)))
    axes = tuple(i for i, n in enumerate(x.shape) if n == 1 and g.shape[i] != 1)
    if axes:
        g = sum_(g, axis=axes, keepdims=True)
    return g


