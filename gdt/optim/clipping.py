"""Clipping gradients by their common norm.

Squares overflow, or vanish, long before the norm does. Every array is therefore divided by a power
of two near the largest element of all, which rounds nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from operator import add
from typing import Any

import numpy as np

from gdt.arguments import checked
from gdt.array.array import DistributedArray
from gdt.array.moving import move_to_layouts
from gdt.autodiff.tape import Tree, flatten
from gdt.errors import ArgumentError, error
from gdt.ops.comparison import logical_and, maximum, where
from gdt.ops.elementwise import sqrt, widened_half
from gdt.ops.exponential import exp2, log2
from gdt.ops.extrema import max_
from gdt.ops.reductions import sum_
from gdt.ops.rounding import abs_, floor
from gdt.sharding.dtypes import kind_of, widened
from gdt.state.trees import leaves


@checked
def global_norm(gradients: Tree) -> DistributedArray:
    """Return the Euclidean norm of all arrays of a tree together, a real scalar array.

    gradients: a tree of arrays, and of None for parameters without a gradient.

    Its dtype is that of the arrays, float32 for float16. It is finite wherever that dtype can hold
    it. Raises ArgumentError for a tree without arrays.

    >>> float(gdt.optim.global_norm({"a": gdt.asarray([3.0]), "b": gdt.asarray([[4.0]])}))
    5.0
    """
    arrays, _ = _flat(gradients)
    scaled, unit = _scaled_norm(arrays)
    return scaled * unit


@partial(checked, eager=True)
def clip_by_global_norm(gradients: Tree, max_norm: float) -> tuple[Tree, DistributedArray]:
    """Return the gradients, scaled down together if their norm exceeds `max_norm`, and their norm.

    gradients: a tree of arrays, and of None, which stays None. max_norm: at least 0.

    Gradients are clipped as well where their norm is too large for its dtype. A gradient that is
    not finite gives gradients that are not finite. Source: Pascanu et al. 2013, "On the difficulty
    of training recurrent neural networks", algorithm 1.

    Raises ArgumentError for a `max_norm` below 0.

    >>> clipped, norm = gdt.optim.clip_by_global_norm({"w": gdt.asarray([3.0, 4.0])}, 1.0)
    >>> clipped["w"].tolist(), float(norm)
    ([0.6000000000000001, 0.8], 5.0)
    """
    if not max_norm >= 0:
        problem = f"max_norm is {max_norm!r}"
        raise error(ArgumentError, problem, remedy="It is at least 0.")
    arrays, rebuild = _flat(gradients)
    scaled, unit = _scaled_norm(arrays)
    if max_norm == np.inf:
        return gradients, scaled * unit
    # In units of at least 1, neither the norm nor its limit overflows.
    larger = maximum(unit, 1)
    norm, limit = scaled * (unit / larger), float(max_norm) / larger
    divisor = maximum(norm, limit)
    scale = limit / where(divisor == 0, 1, divisor)
    return rebuild([_times(g, scale) for g in arrays]), scaled * unit


def _flat(gradients: Tree) -> tuple[list[DistributedArray], Callable[[Sequence[Any]], Tree]]:
    """Return the arrays of a tree, in which None stands for no gradient, and the function that puts
    others in their place."""
    return flatten(gradients, others=any(g is None for g in leaves(gradients)))


def _scaled_norm(arrays: Sequence[DistributedArray]) -> tuple[DistributedArray, DistributedArray]:
    """Return the norm of all arrays in a unit that keeps its squares in range, and that unit."""
    if not arrays:
        raise error(ArgumentError, "gradients is a tree without arrays")
    sizes = [widened_half(abs_(g)) for g in arrays]  # float32 of float16
    unit = _unit(sizes)
    scaled = [x / unit.astype(x.dtype) for x in sizes]
    return sqrt(reduce(add, [sum_(x * x) for x in scaled])), unit


def _unit(sizes: Sequence[DistributedArray]) -> DistributedArray:
    """Return the largest power of two that is no larger than the largest element, or 1 if that is 0
    or not finite."""
    largest = [max_(x) if x.size else sum_(x) for x in sizes]
    largest = move_to_layouts(largest, [x.layout.resolved for x in largest])
    most = reduce(maximum, largest)
    usable = logical_and(most > 0, most < np.inf)
    exponent = floor(log2(where(usable, most, 1)))
    return exp2(exponent)


def _times(g: DistributedArray, scale: DistributedArray) -> DistributedArray:
    """Return g * scale in the dtype of g, if that is floating-point.

    float16 is multiplied in float32: a small scale is 0 in float16, and the product need not be."""
    if kind_of(g.dtype) not in "fc":
        return g * scale
    wide = widened(g.dtype)
    return (g.astype(wide) * scale.astype(wide)).astype(g.dtype)
