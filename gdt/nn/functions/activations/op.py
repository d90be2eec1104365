"""Activation functions of neural networks, each one op with a gradient that is one op."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from gdt.engine.op import op
from gdt.engine.plan import Memory
from gdt.errors import DtypeError, error
from gdt.fusion.op_formula import has_close_formula, has_formula
from gdt.nn.functions.activations import error_function
from gdt.nn.functions.activations.error_function import (
    DENSITY_AT_0,
    ROOT_HALF,
)
from gdt.ops.comparison import where
from gdt.ops.elementwise import BINARY, UNARY, like, square, zero
from gdt.ops.exponential import exp, tanh
from gdt.sharding.array_type import ArrayType

__all__ = ["elu", "erf", "gelu", "leaky_relu", "relu", "sigmoid", "silu", "softplus"]


Block = Any

ROOT_2_OVER_PI = math.sqrt(2 / math.pi)
CUBIC = 0.044715  # the coefficient of x^3 in the tanh form of gelu (Hendrycks and Gimpel 2016)
LONGEST_CACHED = 4096  # elements of a row of zeros
FEW, LONG = 2048, 32  # elements of all rows, and of one, beyond which a row of zeros is faster
# Beyond this x, exp(-x^2 / 2) and 1 - tanh(x) are 0 in float64; its cube is finite in float16.
SATURATED = 40.0


def _real(name: str) -> Callable[..., dict[str, Any]]:
    """Make a check that the operand of the op `name` is real; DtypeError otherwise."""

    def prepare(array_type: ArrayType, **static: Any) -> dict[str, Any]:
        if array_type.dtype.kind == "c":
            raise error(
                DtypeError, name, f"{array_type.dtype} is not real", operands={"x": array_type}
            )
        return static

    return prepare


def _floating(xp: Any, x: Block) -> Block:
    """`x` as floating-point numbers, of the dtype that NumPy's ufuncs make of integers."""
    return x if x.dtype.kind == "f" else x.astype(xp.result_type(x.dtype, xp.float16))


def _target(xp: Any, x: Block, out: Block) -> Block:
    return xp.empty(x.shape, x.dtype) if out is None else out


def _zeros(xp: Any, shape: tuple[int, ...], dtype: np.dtype) -> Block:
    """A row of zeros; a short row is cached on the host."""
    if xp is np and math.prod(shape) <= LONGEST_CACHED:
        return _cached_zeros(shape, dtype)
    return xp.zeros(shape, dtype)


@lru_cache(maxsize=256)
def _cached_zeros(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    zeros = np.zeros(shape, dtype)
    zeros.flags.writeable = False
    return zeros


# ---------------------------------------------------------------- relu and its relatives


@op(UNARY, prepare=_real("relu"))
def relu(xp: Any, x: Block, /, *, out: Memory | None = None) -> Block:
    """max(x, 0), and NaN for NaN; the gradient at 0 is 0.

    Element-wise, of any shape; the dtype is that of `x`. Raises DtypeError for complex numbers.

    >>> gdt.relu([-1.0, 2.0]).tolist()
    [0.0, 2.0]
    """
    # Against a row of zeros NumPy's maximum takes half the time that it takes against one, unless
    # there are few elements, or rows are short.
    shape = x.shape[-1:] if x.size > FEW and x.shape[-1] >= LONG else ()
    return xp.maximum(x, _zeros(xp, shape, x.dtype), out=out)


@op(BINARY, linear="g")
def relu_gradient(xp: Any, g: Block, y: Block, /, *, out: Memory | None = None) -> Block:
    """g * (y > 0): the gradient of y = relu(x)."""
    return xp.multiply(g, y > 0, out=out)


has_formula("x if (x > 0.0) | (x != x) else 0.0", replaces=4)(relu)
has_formula("x * (full_like(x, 1.0) if y > 0.0 else 0.0)")(relu_gradient)
relu.vjp(lambda g, out, x: relu_gradient(g, out), reads="out")
relu_gradient.vjp(
    lambda c, out, g, y: like(relu_gradient(c, y), g),
    lambda c, out, g, y: zero(c, out, y),
)


@op(UNARY, prepare=_real("leaky_relu"))
def leaky_relu(
    xp: Any, x: Block, /, negative_slope: float = 0.2, *, out: Memory | None = None
) -> Block:
    """x where it is positive, else `negative_slope * x`; the default is Keras's.

    Source: Maas et al. 2013, "Rectifier nonlinearities improve neural network acoustic models".
    Integers give the floating-point dtype that NumPy's ufuncs give them. Raises DtypeError for
    complex numbers.

    >>> gdt.leaky_relu([-1.0, 2.0], negative_slope=0.1).tolist()
    [-0.1, 2.0]
    """
    x = _floating(xp, x)
    out = xp.multiply(x, negative_slope, out=out)
    return (xp.maximum if negative_slope <= 1 else xp.minimum)(x, out, out=out)


has_formula(
    lambda negative_slope=0.2: (
        f"{'maximum' if negative_slope <= 1 else 'minimum'}(x, x * {float(negative_slope)!r})"
    )
)(leaky_relu)
leaky_relu.vjp(lambda g, out, x, negative_slope=0.2: where(x > 0, g, g * negative_slope), reads="x")


@op(UNARY, prepare=_real("elu"))
def elu(xp: Any, x: Block, /, alpha: float = 1.0, *, out: Memory | None = None) -> Block:
    """x where it is positive, else `alpha * (exp(x) - 1)`.

    Source: Clevert et al. 2016, "Fast and accurate deep network learning by exponential linear
    units". Integers give the floating-point dtype that NumPy's ufuncs give them. Raises
    DtypeError for complex numbers.

    >>> gdt.elu([-1000.0, 2.0]).tolist()
    [-1.0, 2.0]
    """
    x = _floating(xp, x)
    y = xp.minimum(x, 0, out=out)
    xp.expm1(y, out=y)
    y *= alpha
    y += xp.maximum(x, 0)
    return y


has_close_formula(
    lambda alpha=1.0: f"expm1(0.0 if x > 0.0 else x) * {float(alpha)!r} + (x if x > 0.0 else 0.0)"
)(elu)
elu.vjp(lambda g, out, x, alpha=1.0: g * where(x > 0, 1.0, out + alpha))

# ---------------------------------------------------------------- sigmoid and its relatives


def write_sigmoid(xp: Any, x: Block, out: Block) -> Block:
    """1 / (1 + exp(-x)) from exp(-|x|), which does not overflow and keeps small values accurate."""
    out = _target(xp, x, out)
    xp.abs(x, out=out)
    xp.negative(out, out=out)
    xp.exp(out, out=out)
    denominator = out + 1
    xp.maximum(out, x >= 0, out=out)  # exp(-|x|) <= 1, and 1 where x is not negative
    return xp.divide(out, denominator, out=out)


@op(UNARY, prepare=_real("sigmoid"))
def sigmoid(xp: Any, x: Block, /, *, out: Memory | None = None) -> Block:
    """1 / (1 + exp(-x)), without overflow.

    Integers give the floating-point dtype that NumPy's ufuncs give them. Raises DtypeError for
    complex numbers.

    >>> gdt.sigmoid([-1000.0, 0.0]).tolist()
    [0.0, 0.5]
    """
    return write_sigmoid(xp, _floating(xp, x), out)


@op(BINARY, linear="g")
def sigmoid_gradient(xp: Any, g: Block, y: Block, /, *, out: Memory | None = None) -> Block:
    """g * y * (1 - y): the gradient of y = sigmoid(x)."""
    if out is None:
        return g * (y * (1 - y))
    xp.subtract(1, y, out=out)
    out *= y
    return xp.multiply(g, out, out=out)


has_close_formula("sigmoid(x)")(sigmoid)
has_formula("x * (y * (1.0 - y))")(sigmoid_gradient)
sigmoid.vjp(lambda g, out, x: sigmoid_gradient(g, out), reads="out")
sigmoid_gradient.vjp(
    lambda c, out, g, y: like(sigmoid_gradient(c, y), g),
    lambda c, out, g, y: like(c * g * (1 - 2 * y), y),
)


@op(UNARY, prepare=_real("softplus"))
def softplus(xp: Any, x: Block, /, *, out: Memory | None = None) -> Block:
    """log(1 + exp(x)), without overflow.

    Integers give the floating-point dtype that NumPy's ufuncs give them. Raises DtypeError for
    complex numbers.

    >>> gdt.softplus([-1000.0, 1000.0]).tolist()
    [0.0, 1000.0]
    """
    x = _floating(xp, x)
    out = _target(xp, x, out)
    xp.abs(x, out=out)
    xp.negative(out, out=out)
    xp.exp(out, out=out)
    xp.log1p(out, out=out)
    out += xp.maximum(x, 0)
    return out


has_close_formula("softplus(x)")(softplus)
softplus.vjp(lambda g, out, x: g * sigmoid(x), reads="x")


@op(UNARY, prepare=_real("silu"))
def silu(xp: Any, x: Block, /, *, out: Memory | None = None) -> Block:
    """x * sigmoid(x), also called swish.

    Source: Elfwing et al. 2018, "Sigmoid-weighted linear units".
    Integers give the floating-point dtype that NumPy's ufuncs give them. Raises DtypeError for
    complex numbers.

    >>> gdt.silu([-1000.0, 1000.0]).tolist()
    [-0.0, 1000.0]
    """
    x = _floating(xp, x)
    out = write_sigmoid(xp, x, out)
    return xp.multiply(x, out, out=out)


@op(UNARY)
def silu_slope(xp: Any, x: Block, /, *, out: Memory | None = None) -> Block:
    """The derivative of silu: s * (1 + x * (1 - s)) with s = sigmoid(x)."""
    s = write_sigmoid(xp, x, None)
    slope = xp.subtract(1, s, out=out)
    slope *= xp.clip(x, -1e4, 1e4)  # beyond, s or 1 - s is 0, and 0 times infinity is NaN
    slope += 1
    slope *= s
    return slope


def _silu_slope_vjp(g: Any, out: Any, x: Any) -> Any:
    s = sigmoid(x)
    return g * sigmoid_gradient(2 + x * (1 - 2 * s), s)


has_close_formula("x * sigmoid(x)")(silu)
has_close_formula("""
s = sigmoid(x)
far = 1e4 if x > 1e4 else (-1e4 if x < -1e4 else x)
((1.0 - s) * far + 1.0) * s
""")(silu_slope)
silu.vjp(lambda g, out, x: g * silu_slope(x), reads="x")
silu_slope.vjp(_silu_slope_vjp)

# ---------------------------------------------------------------- erf and gelu


@op(UNARY, prepare=_real("erf"))
def erf(xp: Any, x: Block, /) -> Block:
    """The error function, 2 / sqrt(pi) times the integral of exp(-t^2) from 0 to x.

    The error is at most 1 ulp in float64 and 7 ulp in float32. Source: see the docstring of
    `gdt.nn.functions.activations.error_function`.
    Integers give floating-point numbers. Raises DtypeError for complex numbers.

    >>> gdt.erf([0.0, 10.0]).tolist()
    [0.0, 1.0]
    """
    return error_function.erf(xp, _floating(xp, x))


has_close_formula("erf(x)", ["f4"])(erf)
erf.vjp(lambda g, out, x: g * exp(-square(x)) * (2 / math.sqrt(math.pi)))


def _tanh_form(xp: Any, x: Block) -> Block:
    """tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)), in a new block."""
    u = x * x
    u *= CUBIC
    u += 1
    u *= x
    u *= ROOT_2_OVER_PI
    return xp.tanh(u, out=u)


def _prepare_gelu(array_type: ArrayType, *, approximate: bool = False) -> dict[str, Any]:
    return _real("gelu")(array_type, approximate=bool(approximate))


@op(UNARY, prepare=_prepare_gelu)
def gelu(xp: Any, x: Block, /, approximate: bool = False) -> Block:
    """x times the normal CDF at x (Hendrycks and Gimpel 2016, "Gaussian error linear units").

    approximate: use 0.5 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))) for the CDF. The default
        is the exact form, as in `keras.activations.gelu`; `jax.nn.gelu` approximates.

    Integers give floating-point numbers. Raises DtypeError for complex numbers.

    >>> gdt.gelu([-100.0, 0.0, 100.0]).tolist()
    [-0.0, 0.0, 100.0]
    """
    x = _floating(xp, x)
    if approximate:
        out = _tanh_form(xp, xp.clip(x, -SATURATED, SATURATED))
    else:
        out = error_function.erf(xp, x * ROOT_HALF)
    out += 1
    out *= 0.5  # before x, which twice may be infinite
    out *= x
    return out


@op(UNARY)
def gelu_slope(xp: Any, x: Block, /, approximate: bool = False) -> Block:
    """The derivative of gelu."""
    x = xp.clip(x, -SATURATED, SATURATED)
    if approximate:
        t = _tanh_form(xp, x)
        inner = ROOT_2_OVER_PI * (1 + 3 * CUBIC * x * x)
        return 0.5 * (1 + t + x * (1 - t * t) * inner)
    density = -0.5 * x
    density *= x
    xp.exp(density, out=density)
    density *= DENSITY_AT_0
    density *= x
    cdf = error_function.erf(xp, x * ROOT_HALF)
    cdf += 1
    cdf *= 0.5
    density += cdf
    return density


def _gelu_slope_vjp(g: Any, out: Any, x: Any, approximate: bool = False) -> Any:
    if not approximate:
        return g * (2 - square(x)) * exp(-0.5 * square(x)) * DENSITY_AT_0
    t = tanh(ROOT_2_OVER_PI * (x + CUBIC * x * square(x)))
    first = ROOT_2_OVER_PI * (1 + 3 * CUBIC * square(x))  # derivatives of tanh's argument
    second = ROOT_2_OVER_PI * 6 * CUBIC * x
    return g * (1 - square(t)) * (first - x * t * square(first) + 0.5 * x * second)


CLIPPED = f"x = {SATURATED} if x > {SATURATED} else (-{SATURATED} if x < -{SATURATED} else x)"
TANH_FORM = f"t = tanh((x * x * {CUBIC} + 1.0) * x * {ROOT_2_OVER_PI})"
TANH_SLOPE = f"""
{CLIPPED}
{TANH_FORM}
inner = {ROOT_2_OVER_PI} * (1.0 + {3 * CUBIC} * x * x)
0.5 * (1.0 + t + x * (1.0 - t * t) * inner)
"""
ERF_SLOPE = f"""
{CLIPPED}
exp(-0.5 * x * x) * {DENSITY_AT_0} * x + (erf(x * {ROOT_HALF}) + 1.0) * 0.5
"""


def _gelu_formula(approximate: bool = False) -> str:
    if approximate:
        return f"whole = x\n{CLIPPED}\n{TANH_FORM}\n(t + 1.0) * 0.5 * whole"
    return f"(erf(x * {ROOT_HALF}) + 1.0) * 0.5 * x"


has_close_formula(_gelu_formula, ["f4"])(gelu)
has_close_formula(lambda approximate=False: TANH_SLOPE if approximate else ERF_SLOPE, ["f4"])(
    gelu_slope
)
gelu.vjp(
    lambda g, out, x, approximate=False: g * gelu_slope(x, approximate=bool(approximate)),
    reads="x",
)
gelu_slope.vjp(_gelu_slope_vjp)
