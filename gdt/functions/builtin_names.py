"""The functions that have the name of a builtin, or of another function, which the modules that
declare them need too."""

from __future__ import annotations

from gdt.ops.elementwise import imag_ as imag
from gdt.ops.elementwise import real_ as real
from gdt.ops.extrema import max_ as max
from gdt.ops.extrema import min_ as min
from gdt.ops.indexing import getitem_ as getitem
from gdt.ops.movement import relayout_ as relayout
from gdt.ops.products.op import diagonal_ as diagonal
from gdt.ops.reductions import all_ as all
from gdt.ops.reductions import any_ as any
from gdt.ops.reductions import sum_ as sum
from gdt.ops.rounding import abs_ as abs
from gdt.ops.rounding import round_ as round
from gdt.ops.shapes import broadcast_to_ as broadcast_to
from gdt.ops.shapes import reshape_ as reshape
from gdt.ops.shapes import transpose_ as transpose

__all__ = [
    "abs",
    "all",
    "any",
    "broadcast_to",
    "diagonal",
    "getitem",
    "imag",
    "max",
    "min",
    "real",
    "relayout",
    "reshape",
    "round",
    "sum",
    "transpose",
]
