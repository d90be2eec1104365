"""The functions of arrays, in NumPy's chapters; every op is declared in one block.

A module names its public functions in `__all__`; they are `gdt`'s too.
"""

from gdt.ops import (
    builtin_names,
    closeness,
    comparison,
    creation,
    elementwise,
    exponential,
    extrema,
    indexing,
    interchange,
    joining,
    matrices,
    movement,
    padding,
    placement,
    powers,
    printing,
    ranges,
    reductions,
    rounding,
    scans,
    shapes,
    statistics,
    taking,
)
from gdt.ops.builtin_names import *
from gdt.ops.closeness import *
from gdt.ops.comparison import *
from gdt.ops.creation import *
from gdt.ops.elementwise import *
from gdt.ops.exponential import *
from gdt.ops.extrema import *
from gdt.ops.indexing import *
from gdt.ops.interchange import *
from gdt.ops.joining import *
from gdt.ops.matrices import *
from gdt.ops.movement import *
from gdt.ops.nn import softmax as softmax_functions
from gdt.ops.nn.activations import op as activations
from gdt.ops.nn.activations.op import *
from gdt.ops.nn.batch_norm import op as batch_norms
from gdt.ops.nn.batch_norm.op import *
from gdt.ops.nn.cross_entropy import dense as cross_entropy
from gdt.ops.nn.cross_entropy import sparse as sparse_cross_entropy
from gdt.ops.nn.cross_entropy.dense import *
from gdt.ops.nn.cross_entropy.sparse import *
from gdt.ops.nn.softmax import *
from gdt.ops.padding import *
from gdt.ops.placement import *
from gdt.ops.powers import *
from gdt.ops.printing import *
from gdt.ops.products import contraction as contraction_of_blocks
from gdt.ops.products import einsum as einsum_notation
from gdt.ops.products import op as products
from gdt.ops.products.contraction import *
from gdt.ops.products.einsum import *
from gdt.ops.products.op import *
from gdt.ops.ranges import *
from gdt.ops.reductions import *
from gdt.ops.rounding import *
from gdt.ops.scans import *
from gdt.ops.shapes import *
from gdt.ops.statistics import *
from gdt.ops.taking import *

_CHAPTERS = (
    builtin_names,
    closeness,
    comparison,
    creation,
    elementwise,
    exponential,
    extrema,
    indexing,
    interchange,
    joining,
    matrices,
    movement,
    padding,
    placement,
    powers,
    printing,
    ranges,
    reductions,
    rounding,
    scans,
    shapes,
    statistics,
    taking,
    softmax_functions,
    activations,
    batch_norms,
    cross_entropy,
    sparse_cross_entropy,
    contraction_of_blocks,
    einsum_notation,
    products,
)
PUBLIC = [name for chapter in _CHAPTERS for name in chapter.__all__]
# mypy takes what it can read of an `__all__` for all there is; without one it follows the imports.
globals()["__all__"] = PUBLIC
