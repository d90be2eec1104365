"""The parts of numbers: fractions and exponents, neighbours, divisors, bits."""

from __future__ import annotations

from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.operands import as_operands
from gdt.array.output import writes_out
from gdt.array.registry import public
from gdt.array.views import rebind
from gdt.engine.ufunc import ufunc
from gdt.engine.whole_arrays import in_numpy
from gdt.errors import DtypeError, error
from gdt.ops.comparison import equal, greater, isinf, isnan, less, logical_and, where
from gdt.ops.elementwise import (
    BINARY,
    FLOATING,
    INTEGERS,
    REAL,
    UNARY,
    astype,
    binary,
    divide,
    floor_divide,
    imag,
    like,
    multiply,
    real,
    remainder,
    unary,
    zero,
)
from gdt.ops.exponential import exp2
from gdt.ops.movement import alias, relayout
from gdt.ops.powers import power
from gdt.ops.reductions import all_
from gdt.ops.rounding import abs_, sign, trunc
from gdt.sharding.dtypes import BFLOAT16, kind_of, limits_of, promoted

__all__ = [
    "bitwise_count",
    "divmod",
    "fabs",
    "fix",
    "float_power",
    "fmax",
    "fmin",
    "fmod",
    "frexp",
    "gcd",
    "heaviside",
    "iscomplex",
    "isneginf",
    "isposinf",
    "isreal",
    "lcm",
    "ldexp",
    "logaddexp2",
    "modf",
    "nan_to_num",
    "nextafter",
    "real_if_close",
    "spacing",
]

Block = Any

# ---------------------------------------------------------------- ufuncs

fabs = unary(
    "fabs", "The absolute value, as a floating-point number.", ("fabs([-1, 2])", [1.0, 2.0]),
    dtypes=f"{FLOATING} {REAL}",
)  # fmt: skip
fabs.vjp(lambda g, out, x: like(g * sign(x), x))

fmod = binary(
    "fmod", "The remainder of x / y, with the sign of x.", ("fmod([7, -7], 3)", [1, -1]),
    dtypes=f"{REAL} Integers divided by 0 give 0.",
)  # fmt: skip
fmod.vjp(lambda g, out, x, y: like(g, x), lambda g, out, x, y: like(-g * trunc(divide(x, y)), y))

gcd = binary("gcd", "The greatest common divisor.", ("gcd([12, 7], 18)", [6, 1]), dtypes=INTEGERS)
lcm = binary("lcm", "The least common multiple.", ("lcm([4, 7], 6)", [12, 42]), dtypes=INTEGERS)

heaviside = binary(
    "heaviside", "0 below 0, 1 above, and y at 0.", ("heaviside([-2.0, 0.0, 3.0], 0.5)",
    [0.0, 0.5, 1.0]), dtypes=f"{FLOATING} {REAL}",
)  # fmt: skip
heaviside.vjp(lambda g, out, x, y: zero(g, out, x), lambda g, out, x, y: like(g * equal(x, 0), y))

logaddexp2 = binary(
    "logaddexp2", "log2(2 ** x + 2 ** y), without overflow.", ("logaddexp2(3.0, 3.0)", 4.0),
    dtypes=f"{FLOATING} {REAL}",
)  # fmt: skip
logaddexp2.vjp(
    lambda g, out, x, y: like(g * exp2(x - out), x), lambda g, out, x, y: like(g * exp2(y - out), y)
)


@ufunc(BINARY, computes=False)
def nextafter(xp: Any, x: Block, y: Block, /) -> Block:
    """The floating-point number beside x in the direction of y. Integers give floating-point
    numbers, of the size that NumPy gives them. Raises DtypeError for complex numbers. The operands
    broadcast; raises ShapeError if their shapes do not.

    >>> float(gdt.nextafter(1.0, 2.0) - 1)
    2.220446049250313e-16
    """
    dtype = promoted(x, y)
    if dtype == BFLOAT16:
        x, y = xp.asarray(x, dtype), xp.asarray(y, dtype)
    return xp.nextafter(x, y)


nextafter.vjp(lambda g, out, x, y: like(g, x), lambda g, out, x, y: zero(g, out, y))


@ufunc(UNARY, computes=False)
def spacing(xp: Any, x: Block, /) -> Block:
    """The distance to the next number away from 0. Floating-point: integers become floats as in
    NumPy. Real; raises DtypeError for complex numbers.

    >>> float(gdt.spacing(1.0))
    2.220446049250313e-16
    """
    x = xp.rint(x) if x.dtype.kind in "biu" else x
    inf = x.dtype.type(np.inf)
    # NumPy's neighbour of a number of 16 bits is the next one above; CuPy has no `spacing`.
    is_away_below = x == -inf if x.dtype == np.float16 else x < 0
    return xp.nextafter(x, xp.where(is_away_below, -inf, inf)) - x


spacing.vjp(zero)

bitwise_count = unary(
    "bitwise_count", "The number of ones among the bits of |x|.", ("bitwise_count([5, 8])", [2, 1]),
    dtypes=f"The result is uint8. {INTEGERS}",
)  # fmt: skip


def _of_64_bits(x: Any) -> Any:
    """A float as NumPy's number: beside integers CuPy takes Python's for one of 16 bits."""
    return np.float64(x) if type(x) is float else x


ldexp = binary(
    "ldexp", "x * 2 ** y, for integers y.", ("ldexp(3.0, 2)", 12.0), dtypes=f"{FLOATING} {REAL}",
    linear="x", of=_of_64_bits,
)  # fmt: skip
ldexp.vjp(lambda g, out, x, y: like(ldexp(g, y), x), lambda g, out, x, y: zero(g, out, y))


def _extremum(name: str, summary: str, call: tuple[str, object], larger: Any) -> Any:
    """Declare fmax or fmin: the extremum of two numbers, which ignores NaN."""
    function = binary(name, summary, call, dtypes=f"{REAL} Equal x and y share the gradient.")

    def share(g: Any, x: Any, y: Any) -> Any:
        """The gradient in x: all where x is taken, half where x and y are equal."""
        fraction = where(larger(x, y), 1.0, where(equal(x, y), 0.5, where(isnan(y), 1.0, 0.0)))
        return like(g * fraction, x)

    function.vjp(lambda g, out, x, y: share(g, x, y), lambda g, out, x, y: share(g, y, x))
    return function


fmax = _extremum(
    "fmax", "The larger of x and y; of a number and NaN the number.",
    ("fmax([1.0, float('nan')], 3.0)", [3.0, 3.0]), greater,
)  # fmt: skip
fmin = _extremum(
    "fmin", "The smaller of x and y; of a number and NaN the number.",
    ("fmin([1.0, float('nan')], 3.0)", [1.0, 3.0]), less,
)  # fmt: skip


@ufunc("... -> ..., ...", outputs=2)
def frexp(xp: Any, x: Block, /) -> tuple[Block, Block]:
    """Mantissas in (-1, -0.5], [0.5, 1) or 0, and integer exponents: x = mantissa * 2 ** exponent.

    >>> [part.tolist() for part in gdt.frexp(gdt.asarray([3.0, 0.5]))]
    [[0.75, 0.5], [2, 0]]
    """
    mantissa, exponent = xp.frexp(x)
    return mantissa, exponent


frexp.vjp(joint=lambda g, out, x: (None if g[0] is None else like(ldexp(g[0], -out[1]), x),))


@ufunc("... -> ..., ...", outputs=2)
def modf(xp: Any, x: Block, /) -> tuple[Block, Block]:
    """The fraction and the whole part of x, both with its sign.

    >>> [part.tolist() for part in gdt.modf(gdt.asarray([1.5, -2.25]))]
    [[0.5, -0.25], [1.0, -2.0]]
    """
    fraction, whole = xp.modf(x)
    return fraction, whole


modf.vjp(joint=lambda g, out, x: (None if g[0] is None else like(g[0], x),))


# ---------------------------------------------------------------- functions of ops


@public
@writes_out
def divmod(x: Any, y: Any, out: Any = None) -> tuple[DistributedArray, DistributedArray]:
    """`gdt.floor_divide(x, y)` and `gdt.remainder(x, y)`.

    >>> [part.tolist() for part in gdt.divmod([7, -7], 3)]
    [[2, -3], [1, 2]]
    """
    return floor_divide(x, y), remainder(x, y)


@public
@writes_out
def fix(x: Any, out: DistributedArray | None = None) -> DistributedArray:
    """x without its fraction, as `gdt.trunc`.

    >>> gdt.fix([1.7, -1.7]).tolist()
    [1.0, -1.0]
    """
    return trunc(x)


@public
@writes_out
def float_power(x: Any, y: Any, out: DistributedArray | None = None) -> DistributedArray:
    """x to the power of y in float64, or complex128 if one of them is complex.

    >>> gdt.float_power([2, 4], -1).tolist()
    [0.5, 0.25]
    """
    x, y = as_operands("float_power", x=x, y=y)
    wide = promoted(x.dtype, y.dtype, np.float64)
    return power(astype(x, wide), astype(y, wide))


@public
def nan_to_num(
    x: Any, copy: bool = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None
) -> DistributedArray:
    """x with numbers in the places of NaN and infinities.

    nan: the number for NaN. posinf, neginf: those for inf and -inf; the largest and smallest number
        of the dtype if they are None. copy: False writes to `x`, and returns it.

    >>> gdt.nan_to_num([float("nan"), 1.0, float("inf")], posinf=9.0).tolist()
    [0.0, 1.0, 9.0]
    """
    (x,) = as_operands("nan_to_num", x=x)
    if not copy:
        rebind(x, relayout(nan_to_num(x, True, nan, posinf, neginf), x.layout.resolved))
        return x
    if x.dtype.kind == "c":
        parts = [nan_to_num(part, True, nan, posinf, neginf) for part in (real(x), imag(x))]
        return astype(parts[0] + multiply(parts[1], 1j), x.dtype)
    if kind_of(x.dtype) != "f":
        return alias(x)
    limits = limits_of(x.dtype)
    above = float(limits.max) if posinf is None else posinf
    below = float(limits.min) if neginf is None else neginf
    are_numbers = all(type(number) in (int, float) for number in (nan, above, below))
    run = _numbers if are_numbers else _numbers.function
    return run(x, nan, above, below)


def _numbers_in_numpy(
    x: np.ndarray, nan: float, above: float, below: float, out: np.ndarray
) -> None:
    out[...] = x
    if not np.isfinite(x).all():
        np.copyto(out, nan, where=np.isnan(x))
        np.copyto(out, above, where=x == np.inf)
        np.copyto(out, below, where=x == -np.inf)


@in_numpy(_numbers_in_numpy)
def _numbers(x: DistributedArray, nan: Any, above: Any, below: Any, /) -> DistributedArray:
    finite = where(isnan(x), nan, where(isposinf(x), above, where(isneginf(x), below, x)))
    if finite.dtype.kind == "c":
        problem = f"a complex number takes no place of a {x.dtype}"
        raise error(DtypeError, problem, operands={"x": x.type})
    return astype(finite, x.dtype)


@public
@writes_out
def isposinf(x: Any, out: DistributedArray | None = None) -> DistributedArray:
    """Whether x is inf; bool. Raises DtypeError for complex numbers.

    >>> gdt.isposinf([float("inf"), -float("inf")]).tolist()
    [True, False]
    """
    (x,) = as_operands("isposinf", x=x)
    _check_real(x)
    return logical_and(isinf(x), greater(x, 0))


@public
@writes_out
def isneginf(x: Any, out: DistributedArray | None = None) -> DistributedArray:
    """Whether x is -inf; bool. Raises DtypeError for complex numbers.

    >>> gdt.isneginf([float("inf"), -float("inf")]).tolist()
    [False, True]
    """
    (x,) = as_operands("isneginf", x=x)
    _check_real(x)
    return logical_and(isinf(x), less(x, 0))


def _check_real(x: DistributedArray) -> None:
    if x.dtype.kind == "c":
        problem = "complex numbers have no sign"
        raise error(DtypeError, problem, operands={"x": x.type})


@public
def iscomplex(x: Any) -> DistributedArray:
    """Whether the imaginary part is not 0; bool.

    >>> gdt.iscomplex([1 + 1j, 1 + 0j]).tolist()
    [True, False]
    """
    (x,) = as_operands("iscomplex", x=x)
    return imag(x) != 0


@public
def isreal(x: Any) -> DistributedArray:
    """Whether the imaginary part is 0; bool.

    >>> gdt.isreal([1 + 1j, 1 + 0j]).tolist()
    [False, True]
    """
    (x,) = as_operands("isreal", x=x)
    return equal(imag(x), 0)


@public
def real_if_close(x: Any, tol: float = 100) -> DistributedArray:
    """The real part, if all imaginary parts are less than `tol`; else x. Reads one truth value.

    tol: in multiples of the dtype's eps if it is above 1.

    >>> gdt.real_if_close([2.1 + 4e-14j], tol=1000).tolist()
    [2.1]
    """
    (x,) = as_operands("real_if_close", x=x)
    if x.dtype.kind != "c":
        return x
    limit = tol * float(limits_of(x.dtype).eps) if tol > 1 else tol
    return real(x) if bool(all_(less(abs_(imag(x)), limit))) else x
