"""The functions of arrays, in NumPy's chapters; every op is declared in one block.

A module names its public functions in `__all__`; they are `gdt`'s too.
"""

import types

from gdt.ops import masked, reinterpreting, ufunc_methods
from gdt.ops.aliases import *
from gdt.ops.along_axis import *
from gdt.ops.angles import *
from gdt.ops.assembling import *
from gdt.ops.assigning import *
from gdt.ops.averages import *
from gdt.ops.bits import *
from gdt.ops.builtin_names import *
from gdt.ops.closeness import *
from gdt.ops.comparison import *
from gdt.ops.convolving import *
from gdt.ops.creation import *
from gdt.ops.datasets import *
from gdt.ops.differences import *
from gdt.ops.dtypes import *
from gdt.ops.editing import *
from gdt.ops.elementwise import *
from gdt.ops.exponential import *
from gdt.ops.extrema import *
from gdt.ops.files import *
from gdt.ops.grids import *
from gdt.ops.histograms import *
from gdt.ops.index_arrays import *
from gdt.ops.index_tricks import *
from gdt.ops.indexing import *
from gdt.ops.interchange import *
from gdt.ops.interpolation import *
from gdt.ops.joining import *
from gdt.ops.masks import *
from gdt.ops.matrices import *
from gdt.ops.movement import *
from gdt.ops.nan_functions import *
from gdt.ops.nn.activations.op import *
from gdt.ops.nn.attention.op import *
from gdt.ops.nn.batch_norm.op import *
from gdt.ops.nn.convolution.op import *
from gdt.ops.nn.convolution.pooling import *
from gdt.ops.nn.cross_entropy.dense import *
from gdt.ops.nn.cross_entropy.sparse import *
from gdt.ops.nn.layer_norm import *
from gdt.ops.nn.softmax import *
from gdt.ops.packed_bits import *
from gdt.ops.packing import *
from gdt.ops.padding import *
from gdt.ops.placement import *
from gdt.ops.polynomials import *
from gdt.ops.powers import *
from gdt.ops.printing import *
from gdt.ops.products.contraction import *
from gdt.ops.products.einsum import *
from gdt.ops.products.op import *
from gdt.ops.products.vectors import *
from gdt.ops.quantiles import *
from gdt.ops.ranges import *
from gdt.ops.rearranging import *
from gdt.ops.reductions import *
from gdt.ops.repeating import *
from gdt.ops.rounding import *
from gdt.ops.scans import *
from gdt.ops.searching import *
from gdt.ops.selection import *
from gdt.ops.sets import *
from gdt.ops.shapes import *
from gdt.ops.shards import *
from gdt.ops.sorting import *
from gdt.ops.spaced import *
from gdt.ops.statistics import *
from gdt.ops.taking import *
from gdt.ops.window_functions import *
from gdt.ops.writing import *

PUBLIC = [
    name
    for name, value in dict(globals()).items()
    if not (name.startswith("_") or isinstance(value, types.ModuleType))
]
# mypy takes what it can read of an `__all__` for all there is; without one it follows the imports.
globals()["__all__"] = PUBLIC
