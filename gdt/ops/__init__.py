"""The ops of arrays, in NumPy's chapters, each declared in one block, and the functions they need.

What needs no op of its own is in `gdt.functions`, what networks need alone in `gdt.nn.functions`.
A module names its public functions in `__all__`; they are `gdt`'s too.
"""

from gdt.array import registry
from gdt.ops import reinterpreting, ufunc_methods
from gdt.ops.along_axis import *
from gdt.ops.angles import *
from gdt.ops.bits import *
from gdt.ops.comparison import *
from gdt.ops.convolving import *
from gdt.ops.creation import *
from gdt.ops.datasets import *
from gdt.ops.elementwise import *
from gdt.ops.exponential import *
from gdt.ops.extrema import *
from gdt.ops.indexing import *
from gdt.ops.interpolation import *
from gdt.ops.joining import *
from gdt.ops.masks import *
from gdt.ops.matrices import *
from gdt.ops.movement import *
from gdt.ops.padding import *
from gdt.ops.powers import *
from gdt.ops.products.contraction import *
from gdt.ops.products.op import *
from gdt.ops.ranges import *
from gdt.ops.rearranging import *
from gdt.ops.reductions import *
from gdt.ops.rounding import *
from gdt.ops.scans import *
from gdt.ops.searching import *
from gdt.ops.shapes import *
from gdt.ops.sorting import *
from gdt.ops.statistics import *
from gdt.ops.taking import *
from gdt.ops.writing import *

PUBLIC = registry.public_names(globals())
# mypy takes what it can read of an `__all__` for all there is; without one it follows the imports.
globals()["__all__"] = PUBLIC
