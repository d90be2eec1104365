"""The functions that have the name of a builtin, or of another function, which the modules that
declare them need too."""

from __future__ import annotations

from gdt.ops.extrema import max_ as max
from gdt.ops.extrema import min_ as min
from gdt.ops.movement import relayout_ as relayout
from gdt.ops.reductions import all_ as all
from gdt.ops.reductions import any_ as any
from gdt.ops.reductions import sum_ as sum
from gdt.ops.rounding import abs_ as abs
from gdt.ops.rounding import round_ as round

__all__ = ["abs", "all", "any", "max", "min", "relayout", "round", "sum"]
