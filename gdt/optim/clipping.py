"""Clipping gradients by their common norm."""

from __future__ import annotations

from gdt.arguments import checked
from gdt.array import FUNCTIONS, DistributedArray
from gdt.errors import ArgumentError, error
from gdt.tape import Tree, flatten


@checked
def global_norm(gradients: Tree) -> DistributedArray:
    """Euclidean norm of all arrays of a tree together, a scalar array.

    >>> float(gdt.optim.global_norm({"a": gdt.asarray([3.0]), "b": gdt.asarray([[4.0]])}))
    5.0
    """
    arrays, _ = flatten(gradients)
    if not arrays:
        raise error(ArgumentError, "global_norm", "gradients is a tree without arrays")
    total = FUNCTIONS["sum"](arrays[0] * arrays[0])
    for g in arrays[1:]:
        total = total + FUNCTIONS["sum"](g * g)
    norm: DistributedArray = FUNCTIONS["sqrt"](total)
    return norm


@checked
def clip_by_global_norm(gradients: Tree, max_norm: float) -> tuple[Tree, DistributedArray]:
    """The gradients, scaled down together if their norm is above `max_norm`, and the norm they had.

    Source: Pascanu et al. 2013, "On the difficulty of training recurrent neural networks",
    algorithm 1. A gradient that is not finite gives gradients that are not finite.

    >>> clipped, norm = gdt.optim.clip_by_global_norm({"w": gdt.asarray([3.0, 4.0])}, 1.0)
    >>> clipped["w"].tolist(), float(norm)
    ([0.6000000000000001, 0.8], 5.0)
    """
    arrays, rebuild = flatten(gradients)
    norm = global_norm(gradients)
    scale = max_norm / FUNCTIONS["maximum"](norm, max_norm)
    return rebuild([g * scale.astype(g.dtype) for g in arrays]), norm
