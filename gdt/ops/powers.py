"""Powers, whose gradients take logarithms and choices between values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gdt.array.operands import SCALARS
from gdt.engine.declaration import FROM_ENGINE, declaration_of
from gdt.engine.first_run import plan_of
from gdt.engine.plan import Memory, Plan, Shards
from gdt.engine.ufunc import ufunc
from gdt.errors import ArgumentError, error
from gdt.fusion.op_formula import has_close_formula
from gdt.ops.comparison import where
from gdt.ops.elementwise import BINARY, like, zero
from gdt.ops.exponential import log
from gdt.sharding.array_type import ArrayType
from gdt.sharding.dtypes import promoted
from gdt.sharding.strategy import choose

__all__ = ["power"]


Block = Any


@ufunc(BINARY)
def power(xp: Any, x: Block, y: Block, /, *, out: Memory | None = None) -> Block:
    """x to the power of y.

    The gradient with respect to y is 0 where x is 0, and NaN where x is negative, as in JAX.

    Integers stay integers: a negative integer as `y` raises ArgumentError (a ValueError), as in
    NumPy. On GPUs, which are not asked for the elements of an array `y`, negative ones give 0, or
    1 and -1 where x is 1 or -1, as in CuPy.

    >>> gdt.power([1, 2, 3], 2).tolist()
    [1, 4, 9]
    """
    if type(y) is int and x.dtype.kind == "b":
        x = x.astype(np.int64)  # as NumPy has it; CuPy's result would be int8
    elif type(y) is int:
        if y == 2:
            return xp.square(x, out=out)
        if y < 0 and x.dtype.kind in "iu":
            raise _negative(y)
    return xp.power(x, y, out=out)


def _negative(exponent: int) -> ArgumentError:
    problem = f"integers to the power of {exponent} are no integers"
    remedy = "Convert x with x.astype(float), or write a float as power."
    return error(ArgumentError, "power", problem, remedy=remedy)


def _power(xp: Any, x: Block, y: Block, /, *, shards: Shards = FROM_ENGINE) -> Block:
    """`power` of integers and an array `y` of integers, whose padding may hold negative ones."""
    if xp.result_type(x, y).kind != "i":
        return xp.power(x, y)
    negative = y < 0
    if xp is np and not negative.any():
        return xp.power(x, y)
    if xp is np:
        _check_exponents(y, negative, shards)
    units = xp.power(x, y & 1) * (xp.abs(x) == 1)
    return xp.where(negative, units, xp.power(x, xp.maximum(y, 0)))


def _check_exponents(y: Block, negative: Block, shards: Shards) -> None:
    """Raise ArgumentError if one of the negative elements of a block is no padding."""
    mesh_ndim = next(iter(shards.valid.values())).ndim if shards.valid else 0
    for factor in shards.uneven:
        axis = int(factor.removeprefix("..."))  # counted from the end
        if axis <= y.ndim - mesh_ndim and y.shape[-axis] > 1:
            valid = shards.valid[factor]
            valid = valid.reshape(valid.shape + (1,) * (y.ndim - mesh_ndim))
            inside = np.arange(y.shape[-axis]).reshape(-1, *(1,) * (axis - 1)) < valid
            negative = negative & inside
    if negative.any():
        raise _negative(np.broadcast_to(y, negative.shape)[negative][0])


_OF_INTEGERS = declaration_of(_power, BINARY)


@power.alternative
def _plan_of_integers(plan: Plan, x: ArrayType | None, y: ArrayType | None) -> Plan | None:
    """The plan of `_power` for an array of integers as exponents, and a base that is none of
    floating-point numbers."""
    if y is None or y.dtype.kind != "i" or (x and promoted(x.dtype, y.dtype).kind != "i"):
        return None
    rule, sizes, _ = _OF_INTEGERS.bound_rule((x, y), {})
    return plan_of(_OF_INTEGERS, (x, y), rule, sizes, {}, choose(rule, (x, y), sizes))


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


has_close_formula("power_or_product(x, y)", ["f4"])(power)
power.vjp(_power_vjp_x, _power_vjp_y)
