"""The launches of each kernel of `kernels/`: functions from arrays to grids, blocks and arguments.

Every function returns the list of `KernelCall`s that a runner executes in order; it is empty if the
result has no elements. Arrays are NumPy's or CuPy's. Operands and results are blocks: their first
`mesh_ndim` axes are mesh or batch axes, of size 1 where an operand is replicated; their other axes
are contiguous. In the docstrings `lead...` stands for these leading axes, and `items` for their
number of elements. Scratch memory comes from `empty(shape, dtype)`.

A function raises KernelError for operands that no kernel takes; the op then runs its body.
"""

from gdt.cuda.launches.attention import (
    ATTENTION_TYPES,
    ATTENTION_WIDTHS,
    Sight,
    attention,
    attention_gradients,
)
from gdt.cuda.launches.batchnorm import bn_apply, bn_backward, bn_merge, bn_moments, bn_sums
from gdt.cuda.launches.calls import (
    ENOUGH_BLOCKS,
    FLOATS,
    INT_LIMIT,
    SUM_TYPES,
    Array,
    Empty,
    Leading,
    Struct,
)
from gdt.cuda.launches.catalogue import WITHOUT, instances
from gdt.cuda.launches.matmul import (
    ACTIVATIONS,
    FLOAT64_ON_TENSOR_CORES,
    MMA_FINISH,
    MMA_TYPES,
    PIECE_LENGTH,
    matmul,
    matmul_refusal,
    matmul_transposes,
)
from gdt.cuda.launches.random import DRAWS, INTEGERS, random
from gdt.cuda.launches.reduce import arg_reduce, reduce
from gdt.cuda.launches.softmax_ce import (
    CLUSTER_PART_BYTES,
    LABELS,
    ROW_CACHE_BYTES,
    ROW_SHAPES,
    SHORT_ROW,
    softmax_ce,
    softmax_ce_gradient,
    softmax_ce_merge,
    softmax_ce_parts,
)
from gdt.cuda.launches.update import adam, momentum, sgd, update_table

__all__ = [
    "ACTIVATIONS",
    "ATTENTION_TYPES",
    "ATTENTION_WIDTHS",
    "CLUSTER_PART_BYTES",
    "DRAWS",
    "ENOUGH_BLOCKS",
    "FLOAT64_ON_TENSOR_CORES",
    "FLOATS",
    "INTEGERS",
    "INT_LIMIT",
    "LABELS",
    "MMA_FINISH",
    "MMA_TYPES",
    "PIECE_LENGTH",
    "ROW_CACHE_BYTES",
    "ROW_SHAPES",
    "SHORT_ROW",
    "SUM_TYPES",
    "WITHOUT",
    "Array",
    "Empty",
    "Leading",
    "Sight",
    "Struct",
    "adam",
    "arg_reduce",
    "attention",
    "attention_gradients",
    "bn_apply",
    "bn_backward",
    "bn_merge",
    "bn_moments",
    "bn_sums",
    "instances",
    "matmul",
    "matmul_refusal",
    "matmul_transposes",
    "momentum",
    "random",
    "reduce",
    "sgd",
    "softmax_ce",
    "softmax_ce_gradient",
    "softmax_ce_merge",
    "softmax_ce_parts",
    "update_table",
]
