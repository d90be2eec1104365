"""Exponentials, logarithms, trigonometric and hyperbolic functions: NumPy's ufuncs."""

from __future__ import annotations

import math
from typing import Any

from gdt.engine.op import op
from gdt.engine.plan import Memory
from gdt.engine.ufunc import ufunc
from gdt.fusion.op_formula import has_close_formula, has_formula
from gdt.ops.elementwise import (
    BINARY,
    FLOATING,
    REAL,
    UNARY,
    binary,
    like,
    sqrt,
    square,
    unary,
)

__all__ = [
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "cos",
    "cosh",
    "exp",
    "exp2",
    "expm1",
    "log",
    "log1p",
    "log2",
    "log10",
    "logaddexp",
    "sin",
    "sinh",
    "tan",
    "tanh",
]


Block = Any

LN_2, LN_10 = math.log(2), math.log(10)

# ---------------------------------------------------------------- exponentials and logarithms

exp = unary("exp", "Exponential: e to the power of x.", ("exp([0.0, 1.0])", [1.0, math.e]))
exp.vjp(lambda g, out, x: g * out, reads="out")


@ufunc(UNARY)
def expm1(xp: Any, x: Block, /, *, out: Memory | None = None) -> Block:
    """exp(x) - 1, accurate near 0.

    Element-wise: the result has the shape of `x`, and is split alike. Integers give floating-point
    numbers, of the size that NumPy gives them. Complex infinities give what the array API standard
    asks for, where NumPy has NaN: `expm1(inf + 0j)` is `inf + 0j`.

    >>> gdt.expm1(1e-20).tolist()
    1e-20
    """
    result = xp.expm1(x, out=out)
    if result.dtype.kind == "c":  # NumPy multiplies infinities by the sine of the angle
        xp.copyto(result, xp.exp(x) - 1, where=xp.isnan(result))
    return result


has_close_formula("expm1(x)")(expm1)
expm1.vjp(lambda g, out, x: g * (out + 1))

exp2 = unary("exp2", "2 to the power of x.", ("exp2([3, -1])", [8.0, 0.5]))
exp2.vjp(lambda g, out, x: g * out * LN_2)

log = unary("log", "Natural logarithm; -inf at 0, NaN below it.", ("log(1.0)", 0.0))
log.vjp(lambda g, out, x: g / x, reads="x")

log1p = unary("log1p", "log(1 + x), accurate near 0.", ("log1p(1e-20)", 1e-20))
log1p.vjp(lambda g, out, x: g / (1 + x), reads="x")

log2 = unary(
    "log2", "Logarithm to base 2; -inf at 0, NaN below it.", ("log2([8.0, 0.5])", [3.0, -1.0])
)
log2.vjp(lambda g, out, x: g / (x * LN_2))

log10 = unary(
    "log10",
    "Logarithm to base 10; -inf at 0, NaN below it.",
    ("log10([1000.0, 0.01])", [3.0, -2.0]),
)
log10.vjp(lambda g, out, x: g / (x * LN_10))

logaddexp = binary(
    "logaddexp",
    "log(exp(x) + exp(y)), without overflow.",
    ("logaddexp(1000.0, 0.0)", 1000.0),
    dtypes=f"{FLOATING} {REAL}",
)
logaddexp.vjp(
    lambda g, out, x, y: like(g * exp(x - out), x), lambda g, out, x, y: like(g * exp(y - out), y)
)

# ---------------------------------------------------------------- angles

sin = unary("sin", "Sine of an angle in radians.", ("sin(0.0)", 0.0))
cos = unary("cos", "Cosine of an angle in radians.", ("cos(0.0)", 1.0))
sin.vjp(lambda g, out, x: g * cos(x), reads="x")
cos.vjp(lambda g, out, x: -g * sin(x), reads="x")

tan = unary("tan", "Tangent of an angle in radians.", ("tan(0.0)", 0.0))
tan.vjp(lambda g, out, x: g * (1 + square(out)))

asin = unary(
    "asin",
    "Inverse sine: the angle in [-pi/2, pi/2] radians; NaN outside [-1, 1].",
    ("asin(0.0)", 0.0),
    numpy_name="arcsin",
)
asin.vjp(lambda g, out, x: g / sqrt(1 - square(x)))

acos = unary(
    "acos",
    "Inverse cosine: the angle in [0, pi] radians; NaN outside [-1, 1].",
    ("acos(1.0)", 0.0),
    numpy_name="arccos",
)
acos.vjp(lambda g, out, x: -g / sqrt(1 - square(x)))

atan = unary(
    "atan",
    "Inverse tangent: the angle in [-pi/2, pi/2] radians.",
    ("atan(0.0)", 0.0),
    numpy_name="arctan",
)
atan.vjp(lambda g, out, x: g / (1 + square(x)))


@ufunc(BINARY)
def atan2(xp: Any, y: Block, x: Block, /, *, out: Memory | None = None) -> Block:
    """Angle of the point (x, y), in radians in [-pi, pi]. The first operand is y.

    Integers give floating-point numbers, of the size that NumPy gives them. Raises DtypeError for
    complex numbers. The operands broadcast; raises ShapeError if their shapes do not.

    >>> gdt.atan2(1.0, 0.0).tolist()
    1.5707963267948966
    """
    return xp.arctan2(y, x, out=out)


atan2.vjp(
    lambda g, out, y, x: like(g * x / (x * x + y * y), y),
    lambda g, out, y, x: like(-g * y / (x * x + y * y), x),
)

# ---------------------------------------------------------------- hyperbolic functions

sinh = unary("sinh", "Hyperbolic sine.", ("sinh(0.0)", 0.0))
cosh = unary("cosh", "Hyperbolic cosine.", ("cosh(0.0)", 1.0))
sinh.vjp(lambda g, out, x: g * cosh(x))
cosh.vjp(lambda g, out, x: g * sinh(x))

asinh = unary("asinh", "Inverse hyperbolic sine.", ("asinh(0.0)", 0.0), numpy_name="arcsinh")
asinh.vjp(lambda g, out, x: g / sqrt(square(x) + 1))

acosh = unary(
    "acosh", "Inverse hyperbolic cosine; NaN below 1.", ("acosh(1.0)", 0.0), numpy_name="arccosh"
)
acosh.vjp(lambda g, out, x: g / (sqrt(x - 1) * sqrt(x + 1)))

atanh = unary(
    "atanh",
    "Inverse hyperbolic tangent; NaN outside [-1, 1].",
    ("atanh(0.0)", 0.0),
    numpy_name="arctanh",
)
atanh.vjp(lambda g, out, x: g / (1 - square(x)))

tanh = unary("tanh", "Hyperbolic tangent.", ("tanh(0.0)", 0.0))


@op(BINARY, linear="g")
def tanh_gradient(xp: Any, g: Block, y: Block, /, *, out: Memory | None = None) -> Block:
    """g * (1 - y * y): the gradient of y = tanh(x)."""
    if out is None:
        return g * (1 - y * y)
    xp.multiply(y, y, out=out)
    xp.subtract(1, out, out=out)
    return xp.multiply(g, out, out=out)


has_formula("x * (1.0 - y * y)")(tanh_gradient)
tanh.vjp(lambda g, out, x: tanh_gradient(g, out), reads="out")
tanh_gradient.vjp(
    lambda c, out, g, y: like(tanh_gradient(c, y), g),
    lambda c, out, g, y: like(-2 * (c * g * y), y),
)
