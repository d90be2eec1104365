"""Shapes as plain numbers, and grids of coordinates."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.operands import as_operands
from gdt.array.registry import public
from gdt.errors import ArgumentError, ShapeError, error
from gdt.ops.creation import asarray
from gdt.ops.elementwise import astype
from gdt.ops.joining import stack
from gdt.ops.powers import power
from gdt.ops.ranges import arange
from gdt.ops.shapes import Shape, broadcast_to, checked_shape, reshape
from gdt.sharding.dtypes import promoted
from gdt.sharding.mesh import Mesh

__all__ = [
    "broadcast_shapes",
    "fromfunction",
    "indices",
    "ix_",
    "meshgrid",
    "ndim",
    "shape",
    "size",
    "vander",
]

Arrays = tuple[DistributedArray, ...]

# ---------------------------------------------------------------- facts


@public
def ndim(x: Any) -> int:
    """The number of axes.

    >>> gdt.ndim([[1, 2]])
    2
    """
    return x.ndim if isinstance(x, DistributedArray) else int(np.ndim(x))


@public
def shape(x: Any) -> tuple[int, ...]:
    """The lengths of the axes.

    >>> gdt.shape([[1, 2]])
    (1, 2)
    """
    return x.shape if isinstance(x, DistributedArray) else tuple(np.shape(x))


@public
def size(x: Any, axis: int | Sequence[int] | None = None) -> int:
    """The number of elements, or the length along `axis`.

    >>> gdt.size([[1, 2]]), gdt.size([[1, 2]], axis=0)
    (2, 1)
    """
    lengths = shape(x)
    axes = range(len(lengths)) if axis is None else [axis] if isinstance(axis, int) else axis
    return math.prod(lengths[a] for a in axes)


@public
def broadcast_shapes(*shapes: Shape) -> tuple[int, ...]:
    """The shape to which arrays of these shapes broadcast; ShapeError if they do not.

    >>> gdt.broadcast_shapes((2, 1), (3,))
    (2, 3)
    """
    try:
        return np.broadcast_shapes(*[checked_shape(s, "broadcast_shapes") for s in shapes])
    except ValueError:
        listed = ", ".join(map(str, shapes))
        raise error(ShapeError, f"{listed} do not broadcast") from None


# ---------------------------------------------------------------- grids


@public
def meshgrid(*arrays: Any, indexing: str = "xy", sparse: bool = False, copy: bool = True) -> Arrays:
    """The coordinates of the points of a grid, one array for each axis of it, as a tuple.

    arrays: coordinates along each axis, of rank 1. indexing: "xy" puts the second one along axis 0,
        "ij" the first one. sparse: whether the arrays keep length 1 along all axes but their own.
    copy: accepted for NumPy's sake.

    >>> [x.tolist() for x in gdt.meshgrid([1, 2], [3, 4, 5])]
    [[[1, 2], [1, 2], [1, 2]], [[3, 3], [4, 4], [5, 5]]]
    """
    if indexing not in ("xy", "ij"):
        raise error(ArgumentError, f"indexing is {indexing!r}, neither 'xy' nor 'ij'")
    rank = len(arrays)
    if not rank:
        return ()
    operands = as_operands("meshgrid", **{f"array {i}": a for i, a in enumerate(arrays)})
    grids = []
    for i, x in enumerate(operands):
        place = 1 - i if indexing == "xy" and i < 2 <= rank else i
        grids.append(reshape(x, [x.size if d == place else 1 for d in range(rank)]))
    if sparse:
        return tuple(grids)
    shape = np.broadcast_shapes(*[grid.shape for grid in grids])
    return tuple([broadcast_to(grid, shape) for grid in grids])


@public
def indices(
    dimensions: Sequence[int],
    dtype: Any = int,
    sparse: bool = False,
    *,
    device: Mesh | None = None,
) -> Any:
    """The indices of the elements of an array of that shape, along each axis: of shape
    (rank, *dimensions), or a tuple of arrays that broadcast to it if `sparse`.

    >>> gdt.indices((2, 2)).tolist()
    [[[0, 0], [1, 1]], [[0, 1], [0, 1]]]
    """
    sizes = checked_shape(dimensions, "indices")
    ranges = [arange(n, dtype=dtype, device=device) for n in sizes]
    grids = meshgrid(*ranges, indexing="ij", sparse=sparse)
    if sparse:
        return grids
    return stack(grids) if grids else asarray(np.zeros((0,), dtype), device=device)


@public
def ix_(*arrays: Any) -> Arrays:
    """Index arrays that select the grid of these indices: `x[gdt.ix_(rows, columns)]`.

    arrays: integers or masks of rank 1, one for each axis.

    >>> [i.shape for i in gdt.ix_([0, 1], [2])]
    [(2, 1), (1, 1)]
    """
    operands = []
    for i, x in enumerate(arrays):
        places = x.numpy() if isinstance(x, DistributedArray) and x.dtype.kind == "b" else x
        if not isinstance(places, DistributedArray):
            places = np.asarray(places)
            places = places.astype(np.intp) if not places.size else places
            places = np.flatnonzero(places) if places.dtype.kind == "b" else places
        if places.ndim != 1:
            raise error(ShapeError, f"array {i} has rank {places.ndim}, not 1")
        operands.append(places)
    return meshgrid(*operands, indexing="ij", sparse=True)


@public
def fromfunction(
    function: Callable[..., Any], shape: Sequence[int], *, dtype: Any = float, **kwargs: Any
) -> Any:
    """`function(*indices, **kwargs)` of the indices along each axis: one call for all elements.

    >>> gdt.fromfunction(lambda i, j: i + j, (2, 2), dtype=int).tolist()
    [[0, 1], [1, 2]]
    """
    grids = indices(shape, dtype=dtype)
    return function(*[grids[i] for i in range(len(shape))], **kwargs)


@public
def vander(x: Any, N: int | None = None, increasing: bool = False) -> DistributedArray:
    """The matrix of the powers of `x`, from `N` - 1 (by default the length of `x`) down to 0.

    >>> gdt.vander([2, 3], 3).tolist()
    [[4, 2, 1], [9, 3, 1]]
    """
    (x,) = as_operands("vander", x=x)
    if x.ndim != 1:
        raise error(ShapeError, f"rank {x.ndim} is not 1", operands={"x": x.type})
    count = x.shape[0] if N is None else N
    powers = arange(count) if increasing else arange(count - 1, -1, -1)
    x = astype(x, np.int64) if x.dtype.kind == "b" else x
    return power(reshape(x, (-1, 1)), astype(powers, promoted(x.dtype, np.int64)))
