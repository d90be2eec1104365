"""Degrees and radians, the phase of complex numbers, and functions of signal processing."""

from __future__ import annotations

import math
from typing import Any

from gdt.array.array import DistributedArray
from gdt.array.operands import as_operands
from gdt.array.registry import public
from gdt.engine.op import op
from gdt.ops.comparison import equal, where
from gdt.ops.elementwise import FLOATING, REAL, UNARY, astype, imag, multiply, real, unary
from gdt.ops.exponential import atan2, sin
from gdt.sharding.array_type import ArrayType
from gdt.sharding.dtypes import limits_of
from gdt.sharding.rule import RuleSpec

__all__ = ["angle", "degrees", "i0", "radians", "sinc"]

Block = Any

DEGREES, RADIANS = 180 / math.pi, math.pi / 180


def _scaling_rule(x: ArrayType) -> RuleSpec:
    """The rule of a product with a constant: parts of integers may have wrapped around."""
    return RuleSpec(UNARY, linear=x.dtype.kind == "f")


degrees = unary(
    "degrees", "Radians as degrees.", ("degrees(3.141592653589793)", 180.0),
    dtypes=f"{FLOATING} {REAL}",
    linear="x",
    rule=_scaling_rule,
)  # fmt: skip
degrees.vjp(lambda g, out, x: multiply(g, DEGREES))

radians = unary(
    "radians", "Degrees as radians.", ("radians(180.0)", 3.141592653589793),
    dtypes=f"{FLOATING} {REAL}",
    linear="x",
    rule=_scaling_rule,
)  # fmt: skip
radians.vjp(lambda g, out, x: multiply(g, RADIANS))


@op(UNARY)
def i0(xp: Any, x: Block, /) -> Block:
    """Modified Bessel function of the first kind and order 0; real floating-point numbers.

    >>> round(float(gdt.i0(1.0)), 6)
    1.266066
    """
    return xp.i0(x)


@public
def angle(z: Any, deg: bool = False) -> DistributedArray:
    """The angle of complex numbers in (-pi, pi]; in degrees if `deg`. Of real ones 0 or pi.

    >>> gdt.angle(gdt.asarray([1.0, -1.0, 2j]), deg=True).tolist()
    [0.0, 180.0, 90.0]
    """
    (z,) = as_operands("angle", z=z)
    phase = atan2(imag(z), real(z)) if z.dtype.kind == "c" else atan2(0, z)
    return degrees(phase) if deg else phase


@public
def sinc(x: Any) -> DistributedArray:
    """sin(pi x) / (pi x), which is 1 at 0.

    >>> gdt.sinc([0.0, 0.5]).tolist()
    [1.0, 0.6366197723675814]
    """
    (x,) = as_operands("sinc", x=x)
    if x.dtype.kind in "biu":
        x = astype(x, float)
    y = multiply(where(equal(x, 0), limits_of(x.dtype).eps, x), math.pi)
    return sin(y) / y
