"""Powers, whose gradients take logarithms and choices between values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gdt.array.operands import SCALARS
from gdt.engine.plan import Memory
from gdt.engine.ufunc import ufunc
from gdt.errors import ArgumentError, error
from gdt.ops.comparison import where
from gdt.ops.elementwise import BINARY, like, zero
from gdt.ops.exponential import log

__all__ = ["power"]


Block = Any


@ufunc(BINARY)
def power(xp: Any, x: Block, y: Block, /, *, out: Memory | None = None) -> Block:
    """x to the power of y.

    The gradient with respect to y is 0 where x is 0, and NaN where x is negative, as in JAX.

    Integers stay integers: a negative Python int as `y` raises ArgumentError (a ValueError), and
    negative elements of an array `y` give 0, or 1 and -1 where x is 1 or -1 (NumPy raises).

    >>> gdt.power([1, 2, 3], 2).tolist()
    [1, 4, 9]
    """
    if type(y) is int and x.dtype.kind == "b":
        x = x.astype(np.int64)  # as NumPy has it; CuPy's result would be int8
    elif type(y) is int:
        if y == 2:
            return xp.square(x, out=out)
        if y < 0 and x.dtype.kind in "iu":
            raise error(
                ArgumentError,
                "power",
                f"integers to the power of {y} are no integers",
                remedy="Convert x with x.astype(float), or write a float as power.",
            )
    if type(y) not in SCALARS and y.dtype.kind == "i" and xp.result_type(x, y).kind == "i":
        return _whole_power(xp, x, y)
    return xp.power(x, y, out=out)


def _whole_power(xp: Any, x: Any, y: Block) -> Block:
    """Integer powers without an error for negative exponents, which padding may hold."""
    units = xp.power(x, y & 1) * (xp.abs(x) == 1)
    return xp.where(y < 0, units, xp.power(x, xp.maximum(y, 0)))


def _power_vjp_x(g: Any, out: Any, x: Any, y: Any) -> Any:
    if type(y) in SCALARS:
        slope = 2 * x if y == 2 else x ** (y - 1) * y if y else zero(g, out, x)
    else:
        slope = x ** where(y == 0, 1, y - 1) * y
    return like(g * slope, x)


def _power_vjp_y(g: Any, out: Any, x: Any, y: Any) -> Any:
    if type(x) in SCALARS:
        exponent = np.log(complex(x)).item() if x else 0.0
        if type(x) is not complex:
            exponent = exponent.real if x >= 0 else math.nan
        return like(g * out * exponent, y)
    return like(g * out * log(where(x == 0, 1, x)), y)


power.vjp(_power_vjp_x, _power_vjp_y)
