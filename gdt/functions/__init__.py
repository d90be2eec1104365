"""Functions that are made of ops: NumPy's sets, averages, grids, quantiles, files, ...

They declare no op. Layouts, communication and gradients follow from the ops that they call, and no
op calls them. A module names its public functions in `__all__`; they are `gdt`'s too.
"""

from gdt.array import registry
from gdt.functions import masked
from gdt.functions.aliases import *
from gdt.functions.assembling import *
from gdt.functions.assigning import *
from gdt.functions.averages import *
from gdt.functions.builtin_names import *
from gdt.functions.closeness import *
from gdt.functions.differences import *
from gdt.functions.dtypes import *
from gdt.functions.editing import *
from gdt.functions.einsum import *
from gdt.functions.files import *
from gdt.functions.grids import *
from gdt.functions.histograms import *
from gdt.functions.index_arrays import *
from gdt.functions.index_tricks import *
from gdt.functions.interchange import *
from gdt.functions.nan_functions import *
from gdt.functions.packed_bits import *
from gdt.functions.packing import *
from gdt.functions.placement import *
from gdt.functions.polynomials import *
from gdt.functions.printing import *
from gdt.functions.quantiles import *
from gdt.functions.repeating import *
from gdt.functions.selection import *
from gdt.functions.sets import *
from gdt.functions.shards import *
from gdt.functions.spaced import *
from gdt.functions.vectors import *
from gdt.functions.window_functions import *

PUBLIC = registry.public_names(globals())
# mypy takes what it can read of an `__all__` for all there is; without one it follows the imports.
globals()["__all__"] = PUBLIC
