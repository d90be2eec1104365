"""Element-wise arithmetic, comparison and logic, with NumPy's promotion and broadcasting."""

from __future__ import annotations

from typing import Any


from gdt.op import Op, op
from gdt.ops.reductions import unbroadcast

Block = Any

UNARY, BINARY, TERNARY = "... -> ...", "..., ... -> ...", "..., ..., ... -> ..."


def _unary(name: str, summary: str, *, linear: str = "", ufunc: str | None = None) -> Op:
    """Declare an element-wise function of one operand that NumPy has as a ufunc."""

    def body(xp: Any, x: Block, /, *, out: Block = None) -> Block:
        return getattr(xp, ufunc or name)(x, out=out)

    body.__name__, body.__doc__, body.__module__ = name, summary, __name__
    return op(UNARY, linear=linear)(body)


def _binary(name: str, summary: str, *, linear: str = "", ufunc: str | None = None) -> Op:
    """Declare an element-wise function of two operands that NumPy has as a ufunc."""

    def body(xp: Any, x: Block, y: Block, /, *, out: Block = None) -> Block:
        return getattr(xp, ufunc or name)(x, y, out=out)

    body.__name__, body.__doc__, body.__module__ = name, summary, __name__
    return op(BINARY, linear=linear)(body)


# ---------------------------------------------------------------- arithmetic

add = _binary("add", "x + y", linear="x + y")
add.vjp(lambda g, out, x, y: unbroadcast(g, x), lambda g, out, x, y: unbroadcast(g, y))

subtract = _binary("subtract", "x - y", linear="x + y")
subtract.vjp(lambda g, out, x, y: unbroadcast(g, x), lambda g, out, x, y: unbroadcast(-g, y))

multiply = _binary("multiply", "x * y", linear="x, y")
multiply.vjp(lambda g, out, x, y: unbroadcast(g * y, x), lambda g, out, x, y: unbroadcast(g * x, y))

divide = _binary("divide", "x / y", linear="x")
divide.vjp(
    lambda g, out, x, y: unbroadcast(g / y, x),
    lambda g, out, x, y: unbroadcast(-g * out / y, y),
)

negative = _unary("negative", "-x", linear="x")
negative.vjp(lambda g, out, x: -g)

# ---------------------------------------------------------------- exponential

exp = _unary("exp", "e to the power of x")
exp.vjp(lambda g, out, x: g * out)

log = _unary("log", "Natural logarithm")
log.vjp(lambda g, out, x: g / x)


@op(UNARY)
def relu(xp: Any, x: Block, /, *, out: Block = None) -> Block:
    """max(x, 0), with NaN kept.

    >>> gdt.relu(gdt.asarray([-1.0, 2.0])).tolist()
    [0.0, 2.0]
    """
    return xp.maximum(x, 0, out=out)


@op(BINARY, linear="g")
def where_positive(xp: Any, g: Block, out_: Block, /, *, out: Block = None) -> Block:
    """g where the other operand is positive, else 0: the gradient of relu."""
    return xp.multiply(g, out_ > 0, out=out)


relu.vjp(lambda g, out, x: where_positive(g, out))
where_positive.vjp(lambda c, out, g, y: where_positive(c, y), None)

