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
    movement,
    padding,
    placement,
    printing,
    reductions,
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
from gdt.ops.printing import *
from gdt.ops.products import contraction as contraction_of_blocks
from gdt.ops.products import einsum as einsum_notation
from gdt.ops.products import op as products
from gdt.ops.products.contraction import *
from gdt.ops.products.einsum import *
from gdt.ops.products.op import *
from gdt.ops.reductions import *
from gdt.ops.scans import *
from gdt.ops.shapes import *
from gdt.ops.statistics import *
from gdt.ops.taking import *

__all__: list[str] = []
__all__ += builtin_names.__all__
__all__ += closeness.__all__
__all__ += comparison.__all__
__all__ += creation.__all__
__all__ += elementwise.__all__
__all__ += exponential.__all__
__all__ += extrema.__all__
__all__ += indexing.__all__
__all__ += interchange.__all__
__all__ += joining.__all__
__all__ += movement.__all__
__all__ += padding.__all__
__all__ += placement.__all__
__all__ += printing.__all__
__all__ += reductions.__all__
__all__ += scans.__all__
__all__ += shapes.__all__
__all__ += statistics.__all__
__all__ += taking.__all__
__all__ += softmax_functions.__all__
__all__ += activations.__all__
__all__ += batch_norms.__all__
__all__ += cross_entropy.__all__
__all__ += sparse_cross_entropy.__all__
__all__ += contraction_of_blocks.__all__
__all__ += einsum_notation.__all__
__all__ += products.__all__
