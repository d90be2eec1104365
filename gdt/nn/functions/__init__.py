"""Ops of neural networks: activations, attention, convolution, normalisation, losses.

Layers are made of them. A family with kernels or compiled loops is a folder that holds them. A
module names its public functions in `__all__`; they are `gdt`'s too.
"""

from gdt.array import registry
from gdt.nn.functions.activations.op import *
from gdt.nn.functions.attention.op import *
from gdt.nn.functions.batch_norm import *
from gdt.nn.functions.convolution.op import *
from gdt.nn.functions.convolution.pooling import *
from gdt.nn.functions.cross_entropy.dense import *
from gdt.nn.functions.cross_entropy.sparse import *
from gdt.nn.functions.layer_norm import *
from gdt.nn.functions.softmax import *

PUBLIC = registry.public_names(globals())
# mypy takes what it can read of an `__all__` for all there is; without one it follows the imports.
globals()["__all__"] = PUBLIC
