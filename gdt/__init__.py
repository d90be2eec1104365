"""gdt: NumPy-like arrays sharded over many devices."""

from gdt import checkpoint, data, metrics, nn, optim, random, testing, training
from gdt.array import DistributedArray, Shard
from gdt.checkpoint import CheckpointManager
from gdt.debug import check_nans, count_collectives, no_moves
from gdt.drawing import explain, visualize
from gdt.layout import MATCH, UNSHARDED, ArrayType, Layout
from gdt.mesh import Mesh, create_mesh, default_mesh, get_default_mesh
from gdt.ops.activations import elu, erf, gelu, leaky_relu, relu, sigmoid, silu, softplus
from gdt.ops.comparison import (
    bitwise_and,
    bitwise_or,
    bitwise_xor,
    clip,
    equal,
    greater,
    greater_equal,
    invert,
    isfinite,
    isinf,
    isnan,
    left_shift,
    less,
    less_equal,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    maximum,
    minimum,
    not_equal,
    right_shift,
    signbit,
    where,
)
from gdt.ops.contraction import matrix_product
from gdt.ops.creation import (
    arange,
    asarray,
    empty,
    empty_like,
    eye,
    full,
    full_like,
    identity,
    linspace,
    ones,
    ones_like,
    tri,
    tril,
    triu,
    zeros,
    zeros_like,
)
from gdt.ops.cross_entropy import (
    sigmoid_cross_entropy_with_logits,
    softmax_cross_entropy_with_logits,
)
from gdt.ops.einsum import einsum
from gdt.ops.elementwise import abs_ as abs
from gdt.ops.elementwise import (
    add,
    astype,
    cbrt,
    ceil,
    conj,
    copysign,
    divide,
    floor,
    floor_divide,
    hypot,
    imag,
    multiply,
    negative,
    positive,
    power,
    real,
    reciprocal,
    remainder,
    rint,
    sign,
    sqrt,
    square,
    subtract,
    trunc,
)
from gdt.ops.elementwise import round_ as round
from gdt.ops.exponential import (
    acos,
    acosh,
    asin,
    asinh,
    atan,
    atan2,
    atanh,
    cos,
    cosh,
    exp,
    exp2,
    expm1,
    log,
    log1p,
    log2,
    log10,
    logaddexp,
    sin,
    sinh,
    tan,
    tanh,
)
from gdt.ops.extrema import argmax, argmin
from gdt.ops.extrema import max_ as max
from gdt.ops.extrema import min_ as min
from gdt.ops.indexing import getitem
from gdt.ops.joining import (
    array_split,
    atleast_1d,
    atleast_2d,
    broadcast_arrays,
    concat,
    flip,
    moveaxis,
    ravel,
    repeat,
    roll,
    split,
    stack,
    swapaxes,
    tile,
)
from gdt.ops.movement import relayout, relayout_like
from gdt.ops.normalization import batch_norm, batch_normalization
from gdt.ops.padding import pad
from gdt.ops.placement import (
    call_with_layout,
    check_layout,
    copy_to_mesh,
    fetch_layout,
    is_distributed,
    map_shards,
    pack,
    synchronize,
    unpack,
)
from gdt.ops.printing import array_repr
from gdt.ops.products import (
    contraction,
    diagonal,
    dot,
    inner,
    matmul,
    outer,
    tensordot,
    trace,
    vdot,
)
from gdt.ops.reductions import all_ as all
from gdt.ops.reductions import any_ as any
from gdt.ops.reductions import count_nonzero, mean
from gdt.ops.reductions import sum_ as sum
from gdt.ops.scans import cumprod, cumsum, prod
from gdt.ops.shapes import broadcast_to, expand_dims, reshape, squeeze, transpose
from gdt.ops.softmax import log_softmax, logsumexp, softmax
from gdt.ops.sparse_cross_entropy import sparse_softmax_cross_entropy_with_logits
from gdt.ops.statistics import moments, std, var
from gdt.ops.taking import (
    add_along_axis,
    add_at,
    one_hot,
    take,
    take_along_axis,
    take_along_axis_in_range,
    take_in_range,
)
from gdt.policy import implicit_fetch
from gdt.tape import GradientTape, grad, stop_gradient, value_and_grad, vjp

__version__ = "0.1.0"
