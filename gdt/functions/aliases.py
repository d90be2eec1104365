"""The other names that NumPy and the array API standard have for gdt's functions."""

from __future__ import annotations

from gdt.array.registry import ALIASES
from gdt.functions.assembling import vstack
from gdt.ops.angles import degrees, radians
from gdt.ops.comparison import invert, left_shift, right_shift
from gdt.ops.creation import asarray
from gdt.ops.elementwise import conj, divide, remainder
from gdt.ops.exponential import acos, acosh, asin, asinh, atan, atan2, atanh
from gdt.ops.extrema import max_, min_
from gdt.ops.joining import concat
from gdt.ops.powers import power
from gdt.ops.rounding import abs_, round_
from gdt.ops.shapes import transpose_

absolute = abs_
asanyarray = ascontiguousarray = asfortranarray = asarray  # memory has the order of gdt
amax, amin = max_, min_
arccos, arcsin, arctan, arctan2 = acos, asin, atan, atan2
arccosh, arcsinh, arctanh = acosh, asinh, atanh
around = round_
bitwise_invert = bitwise_not = invert
bitwise_left_shift, bitwise_right_shift = left_shift, right_shift
concatenate = concat
conjugate = conj
deg2rad, rad2deg = radians, degrees
mod = remainder
permute_dims = transpose_
pow = power
row_stack = vstack
true_divide = divide

__all__ = [
    "absolute",
    "amax",
    "amin",
    "arccos",
    "arccosh",
    "arcsin",
    "arcsinh",
    "arctan",
    "arctan2",
    "arctanh",
    "around",
    "asanyarray",
    "ascontiguousarray",
    "asfortranarray",
    "bitwise_invert",
    "bitwise_left_shift",
    "bitwise_not",
    "bitwise_right_shift",
    "concatenate",
    "conjugate",
    "deg2rad",
    "mod",
    "permute_dims",
    "pow",
    "rad2deg",
    "row_stack",
    "true_divide",
]
ALIASES.update({alias: globals()[alias].__name__.rstrip("_") for alias in __all__})
