"""Collectives inside one block: they are movements of its leading mesh axes.

`mesh_ndim` is the number of mesh axes, `axes` some of them (major first), `dim` an array axis.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

from gdt.backend.graphs import concatenated

Block = Any
Shape = tuple[int, ...]


def gather(block: Block, mesh_ndim: int, axes: tuple[int, ...], dim: int, size: int) -> Block:
    """Put the shards along `axes` end to end along `dim` and drop what lies beyond `size`.

    (t_0, ..., t_k, ...) + (..., n, ...)  ->  (t_0, ..., 1, ...) + (..., t_k * n, ...)[:size]
    """
    order, shape = gathered(block.shape, mesh_ndim, axes, dim)
    block = block.transpose(order).reshape(shape)
    at = mesh_ndim + dim
    return block if shape[at] <= size else block[(slice(None),) * at + (slice(size),)]


@lru_cache(maxsize=4096)
def gathered(shape: Shape, mesh_ndim: int, axes: tuple[int, ...], dim: int) -> tuple[Shape, Shape]:
    """The order of axes, and the shape, that make a gathered block."""
    at = mesh_ndim + dim
    order = [i for i in range(at) if i not in axes] + list(axes) + list(range(at, len(shape)))
    new_shape = [1 if i in axes else n for i, n in enumerate(shape)]
    new_shape[at] *= math.prod(shape[a] for a in axes)
    return tuple(order), tuple(new_shape)


def split(
    xp: Any, block: Block, mesh_ndim: int, axes: tuple[int, ...], counts: tuple[int, ...], dim: int
) -> Block:
    """Cut `dim` into equal shards along `axes`, the inverse of `gather`.

    A tail that does not fill its shard repeats the last element, so that element-wise functions see
    no values that the array does not hold.
    """
    lack = -block.shape[mesh_ndim + dim] % math.prod(counts)
    if lack:
        at = mesh_ndim + dim
        last = block[(*[slice(None)] * at, slice(-1, None))]
        block = concatenated(xp, [block, *[last] * lack], at)  # `pad` takes 20 times longer
    cut_shape, order, shape = _cut(block.shape, mesh_ndim, axes, counts, dim)
    return block.reshape(cut_shape).transpose(order).reshape(shape)


@lru_cache(maxsize=4096)
def _cut(
    shape: Shape, mesh_ndim: int, axes: tuple[int, ...], counts: tuple[int, ...], dim: int
) -> tuple[Shape, Shape, Shape]:
    """The shape, the order of axes, and the shape again, that cut a block."""
    at = mesh_ndim + dim
    chunk = shape[at] // math.prod(counts)
    cut_shape = (*shape[:at], *counts, chunk, *shape[at + 1 :])
    # Axis `at + k` takes the place of axes[k], which has length 1 and goes to the end, and away.
    source = {axis: at + k for k, axis in enumerate(axes)}
    order = [source.get(i, i) for i in range(mesh_ndim)] + list(range(mesh_ndim, at))
    order += list(range(at + len(axes), len(cut_shape))) + list(axes)
    return cut_shape, tuple(order), tuple(cut_shape[i] for i in order[: len(order) - len(axes)])


def narrow(block: Block, axis: int, start: int, count: int) -> Block:
    """The coordinates `start : start + count` of the mesh axis `axis`."""
    if block.shape[axis] == count:
        return block
    return block[(slice(None),) * axis + (slice(start, start + count),)]
