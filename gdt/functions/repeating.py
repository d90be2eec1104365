"""Arrays repeated: broadcast together, as tiles, and element by element."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.operands import as_operands
from gdt.array.placing import distribute
from gdt.array.registry import public
from gdt.errors import ArgumentError, ShapeError, error
from gdt.ops.blocks.intervals import move_intervals
from gdt.ops.joining import operand_types
from gdt.ops.lookup import along_axis_or_flat, checked_indices
from gdt.ops.movement import alias
from gdt.ops.ranges import arange
from gdt.ops.repeated_rows import repeated_rows
from gdt.ops.scans import cumsum
from gdt.ops.searching import searchsorted
from gdt.ops.shapes import broadcast_to, broadcast_to_, checked_shape, expand_dims, reshape
from gdt.ops.taking import LARGE, rows_at
from gdt.sharding.layout import Layout
from gdt.sharding.recut import Piece

__all__ = [
    "broadcast_arrays",
    "repeat",
    "tile",
]


MOST_PIECES = 64
"""Copies that are moved each by itself, so that none is sent; more of them are a new axis."""


@public
def broadcast_arrays(*arrays: Any) -> tuple[DistributedArray, ...]:
    """Broadcast every array to the shape to which all of them broadcast together.

    >>> [a.shape for a in gdt.broadcast_arrays(gdt.ones((3, 1)), gdt.ones(2))]
    [(3, 2), (3, 2)]
    """
    operands = as_operands("broadcast_arrays", **{f"array {i}": a for i, a in enumerate(arrays)})
    try:
        shape = np.broadcast_shapes(*[a.shape for a in operands])
    except ValueError:
        raise error(
            ShapeError,
            "the shapes do not broadcast",
            operands=operand_types(operands),
        ) from None
    return tuple([a if a.shape == shape else broadcast_to_(a, shape) for a in operands])


@public
def tile(x: Any, reps: int | Sequence[int]) -> DistributedArray:
    """Put `reps` copies of `x` side by side along each axis; missing axes are added in front.

    >>> gdt.tile(gdt.asarray([1, 2]), (2, 2)).tolist()
    [[1, 2, 1, 2], [1, 2, 1, 2]]
    """
    (x,) = as_operands("tile", x=x)
    counts = np.atleast_1d(reps).tolist()
    if not all(isinstance(n, int) and n >= 0 for n in counts):
        problem = f"reps is {reps}, not integers of 0 or more"
        raise error(ArgumentError, problem, operands={"x": x.type})
    rank = max(x.ndim, len(counts))
    counts = [1] * (rank - len(counts)) + counts
    if x.ndim < rank:
        x = reshape(x, (1,) * (rank - x.ndim) + x.shape)
    checked_shape([n * count for n, count in zip(x.shape, counts, strict=True)], "tile")
    result = x
    for dim, count in enumerate(counts):
        size = x.shape[dim]
        if count > MOST_PIECES:
            shape = (*result.shape[:dim], count, *result.shape[dim:])
            wide = broadcast_to(expand_dims(result, dim), shape)
            result = reshape(wide, (*shape[:dim], count * size, *shape[dim + 2 :]))
        elif count != 1:
            pieces = [Piece(i, 0, i * size, size) for i in range(count)]
            result = move_intervals([result] * max(count, 1), dim, pieces, count * size)
    return alias(x) if result is x else result


@public
def repeat(
    x: Any, repeats: int | Sequence[int] | DistributedArray, axis: int | None = None
) -> DistributedArray:
    """Repeat every element of `x` along `axis` (None: of the flattened array).

    repeats: how often: an int, or one for every element along the axis. Of a distributed array only
    the sum is read. Raises ArgumentError for other counts, ShapeError for too large a result.

    >>> gdt.repeat(gdt.asarray([1, 2]), 2).tolist()
    [1, 1, 2, 2]
    """
    (x,) = as_operands("repeat", x=x)
    x, dim = along_axis_or_flat(x, axis, takes_rank_0=True)
    if isinstance(repeats, DistributedArray) and repeats.shape == x.shape[dim : dim + 1]:
        return _repeated_by(x, repeats, dim)
    size, counts = x.shape[dim], np.asarray(repeats)
    if not counts.size:
        counts = counts.astype(np.int64)  # an empty list
    is_wrong = counts.dtype.kind not in "iu" or (counts < 0).any()
    if is_wrong or (counts.ndim and counts.shape not in ((1,), (size,))):
        raise error(
            ArgumentError,
            f"repeats is {repeats!r}; it is one integer of 0 or more, or one for each of "
            f"{size} elements",
            operands={"x": x.type},
        )
    repeats_in_all = counts.sum(dtype=float) * (size if counts.size == 1 else 1)  # no overflow
    checked_shape((*x.shape[:dim], int(repeats_in_all), *x.shape[dim + 1 :]), "repeat")
    if counts.size != 1:
        total = int(counts.sum())
        if x.layout.dims[dim] and total * x.nbytes >= LARGE * size:
            layout = Layout.of(x.mesh, (x.layout.dims[dim],))
            split = distribute(counts.astype(np.int64), layout, giver="repeat", is_constant=True)
            return repeated_rows(x, split, axis=dim, size=total)
        indices = np.repeat(np.arange(size), counts)
        rows = checked_indices(x.type, indices, dim, "repeat", is_constant=True)
        return rows_at(x, rows, axis=dim)
    count = int(counts.reshape(()))
    if x.layout.dims[dim] and count <= MOST_PIECES:
        pieces = [Piece(i, 0, i, size, 1, count) for i in range(count)]
        return move_intervals([x] * max(count, 1), dim, pieces, count * size)
    before, after = x.shape[: dim + 1], x.shape[dim + 1 :]
    wide = broadcast_to(expand_dims(x, dim + 1), (*before, count, *after))
    return reshape(wide, (*before[:-1], size * count, *after))


def _repeated_by(x: DistributedArray, counts: DistributedArray, axis: int) -> DistributedArray:
    """Repeat by a distributed array of counts, of which only the sum is read.

    Of rows that are whole, each place of the result asks which of the sums of the first counts lie
    beyond it.
    """
    x, counts = as_operands("repeat", x=x, repeats=counts)
    is_wrong = counts.dtype.kind not in "iu" or bool((counts < 0).any())
    if is_wrong:
        problem, operands = (
            "counts are integers of 0 or more",
            {"x": x.type, "repeats": counts.type},
        )
        raise error(ArgumentError, problem, operands=operands)
    total = int(counts.astype(float).sum())  # exact where there is memory for it
    checked_shape((*x.shape[:axis], total, *x.shape[axis + 1 :]), "repeat")
    counts = counts.astype(np.int64)
    if x.layout.dims[axis]:
        return repeated_rows(x, counts, axis=axis, size=total)
    places = arange(total, layout=Layout.of(x.mesh, counts.layout.dims))
    return rows_at(x, searchsorted(cumsum(counts), places, side="right"), axis=axis)
