"""Signs, absolute values and rounding, element by element."""

from __future__ import annotations

from typing import Any

from gdt.array.array import DistributedArray
from gdt.engine.op import op
from gdt.engine.plan import Memory
from gdt.engine.ufunc import Unary, ufunc
from gdt.fusion.op_formula import has_formula
from gdt.ops.elementwise import (
    FLOATING,
    REAL,
    UNARY,
    binary,
    cast_into,
    conj,
    documented,
    like,
    named,
    unary,
    zero,
)

__all__ = ["ceil", "copysign", "floor", "rint", "sign", "trunc"]


Block = Any


sign = unary(
    "sign",
    "-1, 0 or 1; x / |x| for complex numbers.",
    ("sign([-5, 0, 2])", [-1, 0, 1]),
    dtypes="The dtype is that of `x`. Raises DtypeError for bools.",
    formula="""
one = full_like(x, 1.0)
x if x != x else (one if x > 0.0 else (-one if x < 0.0 else 0.0))
""",
)
sign.vjp(lambda g, out, x: None if x.dtype.kind == "c" else zero(g, out, x))

abs_ = unary(
    "abs",
    "The absolute value; the gradient at 0 is 0.",
    ("abs([-1.5, 2.0])", [1.5, 2.0]),
    dtypes="The dtype is that of `x`; complex numbers give real ones.",
    numpy_name="absolute",
    formula="abs(x)",
)


def _abs_vjp(g: Any, out: Any, x: Any) -> Any:
    if x.dtype.kind == "c":
        return g * conj(x) / (out + (out == 0))  # 0 where x is 0
    return g * sign(x)


abs_.vjp(_abs_vjp)

copysign = binary(
    "copysign",
    "|x| with the sign of y.",
    ("copysign(2.0, -0.0)", -2.0),
    dtypes=f"{FLOATING} {REAL}",
    formula="copysign(x, y)",
)
copysign.vjp(
    lambda g, out, x, y: like(g * copysign(1.0, x) * copysign(1.0, out), x),
    lambda g, out, x, y: zero(g, out, y),
)


def _whole(name: str, summary: str, *calls: tuple[str, object]) -> Unary:
    """Declare a function that makes whole numbers. Integers stay as they are: CuPy 13 and NumPy 2.0
    would make floating-point numbers of them."""

    def body(xp: Any, x: Block, /, *, out: Memory | None = None) -> Block:
        if x.dtype.kind in "bui":
            return x.astype(x.dtype) if out is None else cast_into(xp, x, out)
        return getattr(xp, name)(x, out=out)

    has_formula(f"{name}(x)")(body)
    facts = (
        "Element-wise: the result has the shape and the dtype of `x`, and is split alike. " + REAL
    )
    return ufunc(UNARY)(named(body, name, documented(summary, facts, calls)))


floor = _whole("floor", "The largest integer not above x.", ("floor([-1.5, 1.5])", [-2.0, 1.0]))
ceil = _whole("ceil", "The smallest integer not below x.", ("ceil([-1.5, 1.5])", [-1.0, 2.0]))
trunc = _whole("trunc", "x without its fraction.", ("trunc([-1.5, 1.5])", [-1.0, 1.0]))
rint = unary(
    "rint",
    "The nearest integer; halfway between two, the even one.",
    ("rint([0.5, 1.6])", [0.0, 2.0]),
    dtypes=FLOATING,
    formula="rint(x)",
)
for _function in (floor, ceil, trunc, rint):
    _function.vjp(zero)


@op(UNARY, extended="out")
def round_(
    xp: Any, x: Block, /, decimals: int = 0, out: Memory | DistributedArray | None = None
) -> Block:
    """The elements of x rounded to `decimals` decimal places; halfway between two, to the even one.

    >>> gdt.round([0.25, 1.35, 2.5], 1).tolist()
    [0.2, 1.4, 2.5]
    """
    return xp.round(x, decimals, out=out)


round_.vjp(zero)
