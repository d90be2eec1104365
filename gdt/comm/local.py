"""Collectives inside one block: they are movements of its leading mesh axes.

`lead` is the number of mesh axes, `axes` some of them (major first), `dim` an axis of the array.
"""

from __future__ import annotations

from typing import Any

Block = Any


def gather(block: Block, lead: int, axes: tuple[int, ...], dim: int, size: int) -> Block:
    """Put the shards along `axes` end to end along `dim` and drop what lies beyond `size`.

    (t_0, ..., t_k, ...) + (..., n, ...)  ->  (t_0, ..., 1, ...) + (..., t_k * n, ...)[:size]
    """
    at = lead + dim
    order = [i for i in range(at) if i not in axes] + list(axes) + list(range(at, block.ndim))
    shape = [1 if i in axes else n for i, n in enumerate(block.shape)]
    for axis in axes:
        shape[at] *= block.shape[axis]
    block = block.transpose(order).reshape(shape)
    if shape[at] > size:
        block = block[(slice(None),) * at + (slice(size),)]
    return block


def split(
    xp: Any, block: Block, lead: int, axes: tuple[int, ...], counts: tuple[int, ...], dim: int
) -> Block:
    """Cut `dim` into equal shards along `axes`, the inverse of `gather`.

    A tail that does not fill its shard repeats the last element, so that element-wise functions see
    no values that the array does not hold.
    """
    at, shards = lead + dim, 1
    for count in counts:
        shards *= count
    size = block.shape[at]
    chunk = -(-size // shards)
    if chunk * shards != size:
        padding = [(0, 0)] * block.ndim
        padding[at] = (0, chunk * shards - size)
        block = xp.pad(block, padding, mode="edge")
    shape = block.shape
    block = block.reshape(*shape[:at], *counts, chunk, *shape[at + 1 :])
    # New axis `at + k` takes the place of axes[k], which has length 1, goes to the end, and away.
    source = {axis: at + k for k, axis in enumerate(axes)}
    order = [source.get(i, i) for i in range(lead)] + list(range(lead, at))
    order += list(range(at + len(axes), block.ndim)) + list(axes)
    block = block.transpose(order)
    return block.reshape(block.shape[: block.ndim - len(axes)])


def narrow(block: Block, axis: int, start: int, count: int) -> Block:
    """The coordinates `start : start + count` of the mesh axis `axis`."""
    if block.shape[axis] == count:
        return block
    return block[(slice(None),) * axis + (slice(start, start + count),)]
