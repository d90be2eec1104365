"""Joining, cutting and turning arrays under NumPy's shorter names, and editing along one axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.operands import as_operands
from gdt.array.registry import public
from gdt.errors import DtypeError, ShapeError, error, type_text
from gdt.functions.differences import along
from gdt.ops.axes import checked_axes, checked_axis
from gdt.ops.joining import concat, split
from gdt.ops.matrices import tril, triu
from gdt.ops.padding import pad
from gdt.ops.products.op import diagonal_
from gdt.ops.rearranging import flip, moveaxis
from gdt.ops.shapes import broadcast_to, expand_dims, reshape, reshape_, transpose_

__all__ = [
    "append",
    "atleast_3d",
    "block",
    "column_stack",
    "diag",
    "diagflat",
    "dsplit",
    "dstack",
    "fliplr",
    "flipud",
    "hsplit",
    "hstack",
    "rollaxis",
    "rot90",
    "unstack",
    "vsplit",
    "vstack",
]

Arrays = Sequence[Any]


def with_rank(x: DistributedArray, rank: int) -> DistributedArray:
    """`x` with axes of length 1 in front until it has the rank."""
    return x if x.ndim >= rank else reshape(x, (1,) * (rank - x.ndim) + x.shape)


def _listed(arrays: Any, name: str) -> list[DistributedArray]:
    """The members of a sequence of arrays, on one mesh."""
    if isinstance(arrays, DistributedArray) and arrays.ndim:
        arrays = list(arrays)
    if not isinstance(arrays, list | tuple | np.ndarray):
        raise error(DtypeError, f"the arrays are {type_text(arrays)}, not a list")
    if not arrays:
        raise error(ShapeError, "the list of arrays is empty")
    return as_operands(name, **{f"array {i}": a for i, a in enumerate(arrays)})


# ---------------------------------------------------------------- joining


@public
def vstack(arrays: Arrays, *, dtype: Any = None, casting: str = "same_kind") -> DistributedArray:
    """The arrays one below the other; an array of rank 1 is a row. dtype, casting: see
    `gdt.concat`.

    >>> gdt.vstack([[1, 2], [3, 4]]).tolist()
    [[1, 2], [3, 4]]
    """
    rows = [with_rank(a, 2) for a in _listed(arrays, "vstack")]
    return concat(rows, axis=0, dtype=dtype, casting=casting)


@public
def hstack(arrays: Arrays, *, dtype: Any = None, casting: str = "same_kind") -> DistributedArray:
    """The arrays side by side: along axis 1, or axis 0 of arrays of rank 1. dtype, casting: see
    `gdt.concat`.

    >>> gdt.hstack([[1, 2], [3]]).tolist()
    [1, 2, 3]
    """
    listed = [with_rank(a, 1) for a in _listed(arrays, "hstack")]
    return concat(listed, 0 if listed[0].ndim == 1 else 1, dtype=dtype, casting=casting)


@public
def dstack(arrays: Arrays) -> DistributedArray:
    """The arrays joined along a third axis.

    >>> gdt.dstack([[1, 2], [3, 4]]).tolist()
    [[[1, 3], [2, 4]]]
    """
    return concat([atleast_3d(a) for a in _listed(arrays, "dstack")], axis=2)


@public
def column_stack(arrays: Arrays) -> DistributedArray:
    """The arrays side by side; an array of rank 1 is a column.

    >>> gdt.column_stack([[1, 2], [3, 4]]).tolist()
    [[1, 3], [2, 4]]
    """
    listed = _listed(arrays, "column_stack")
    return concat([a if a.ndim > 1 else reshape(a, (-1, 1)) for a in listed], axis=1)


@public
def append(x: Any, values: Any, axis: int | None = None) -> DistributedArray:
    """`x` and `values` end to end along `axis` (None: flattened first).

    >>> gdt.append([1, 2], [3]).tolist()
    [1, 2, 3]
    """
    return concat(as_operands("append", x=x, values=values), axis=axis)


@public
def block(arrays: Any) -> DistributedArray:
    """One array of nested lists of arrays: the innermost lists are joined along the last axis.

    Raises ShapeError for lists of different depths, and for empty lists.

    >>> a, b = gdt.ones((1, 2)), gdt.zeros((1, 1))
    >>> gdt.block([[a, b], [b, a]]).tolist()
    [[1.0, 1.0, 0.0], [0.0, 1.0, 1.0]]
    """
    leaves: list[Any] = []
    depth = _depth(arrays, leaves)
    operands = as_operands("block", **{f"array {i}": a for i, a in enumerate(leaves)})
    rank = max(depth, *[a.ndim for a in operands])
    rest = iter(operands)

    def joined(part: Any, level: int) -> DistributedArray:
        if isinstance(part, list):
            return concat([joined(p, level + 1) for p in part], axis=-(depth - level))
        x = next(rest)
        return with_rank(x, rank)

    return joined(arrays, 0)


def _depth(arrays: Any, leaves: list[Any]) -> int:
    """The depth of nested lists; their arrays are added to `leaves`."""
    if isinstance(arrays, tuple):
        raise error(DtypeError, "a tuple is no list of arrays", remedy="Use lists.")
    if not isinstance(arrays, list):
        leaves.append(arrays)
        return 0
    if not arrays:
        raise error(ShapeError, "a list of arrays is empty")
    depths = {_depth(part, leaves) for part in arrays}
    if len(depths) > 1:
        raise error(ShapeError, f"lists of different depths {sorted(depths)}")
    return 1 + depths.pop()


@public
def atleast_3d(*arrays: Any) -> Any:
    """The arrays with at least three axes: an array of rank 1 gets one on each side, one of rank 2
    a last one. One array, or a tuple of several.

    >>> gdt.atleast_3d([1, 2]).shape
    (1, 2, 1)
    """
    if len(arrays) != 1:
        return tuple(atleast_3d(a) for a in arrays)
    (x,) = as_operands("atleast_3d", x=arrays[0])
    shapes = {0: (1, 1, 1), 1: (1, *x.shape, 1), 2: (*x.shape, 1)}
    return reshape_(x, shapes[x.ndim]) if x.ndim < 3 else x


# ---------------------------------------------------------------- splitting


@public
def unstack(x: Any, /, *, axis: int = 0) -> tuple[DistributedArray, ...]:
    """The slices of `x` along `axis`, which they lack, as a tuple.

    >>> [part.tolist() for part in gdt.unstack([[1, 2], [3, 4]])]
    [[1, 2], [3, 4]]
    """
    (x,) = as_operands("unstack", x=x)
    if not x.ndim:
        raise error(ShapeError, "rank 0 has no axis", operands={"x": x.type})
    at = checked_axis(x.type, axis)
    return tuple(x[along(x.ndim, at, i)] for i in range(x.shape[at]))


def _split_along(name: str, x: Any, sections: Any, axis: int, rank: int) -> list[DistributedArray]:
    (x,) = as_operands(name, x=x)
    if x.ndim < rank:
        problem = f"rank {x.ndim} is less than {rank}"
        raise error(ShapeError, problem, operands={"x": x.type})
    return split(x, sections, axis=axis)


@public
def hsplit(x: Any, indices_or_sections: Any) -> list[DistributedArray]:
    """Split along axis 1, or axis 0 of an array of rank 1; see `gdt.split`.

    >>> [part.tolist() for part in gdt.hsplit([1, 2, 3, 4], 2)]
    [[1, 2], [3, 4]]
    """
    return _split_along("hsplit", x, indices_or_sections, 0 if np.ndim(x) == 1 else 1, 1)


@public
def vsplit(x: Any, indices_or_sections: Any) -> list[DistributedArray]:
    """Split along axis 0 of an array of rank 2 or more; see `gdt.split`.

    >>> [part.tolist() for part in gdt.vsplit([[1, 2], [3, 4]], 2)]
    [[[1, 2]], [[3, 4]]]
    """
    return _split_along("vsplit", x, indices_or_sections, 0, 2)


@public
def dsplit(x: Any, indices_or_sections: Any) -> list[DistributedArray]:
    """Split along axis 2 of an array of rank 3 or more; see `gdt.split`.

    >>> [part.tolist() for part in gdt.dsplit([[[1, 2]]], 2)]
    [[[[1]]], [[[2]]]]
    """
    return _split_along("dsplit", x, indices_or_sections, 2, 3)


# ---------------------------------------------------------------- turning


@public
def fliplr(x: Any) -> DistributedArray:
    """The columns of a matrix backwards: `gdt.flip` along axis 1.

    >>> gdt.fliplr([[1, 2], [3, 4]]).tolist()
    [[2, 1], [4, 3]]
    """
    return flip(_matrix(x, "fliplr"), axis=1)


@public
def flipud(x: Any) -> DistributedArray:
    """The rows backwards: `gdt.flip` along axis 0.

    >>> gdt.flipud([1, 2]).tolist()
    [2, 1]
    """
    (x,) = as_operands("flipud", x=x)
    return flip(x, axis=0)


def _matrix(x: Any, name: str) -> DistributedArray:
    (x,) = as_operands(name, x=x)
    if x.ndim < 2:
        raise error(ShapeError, f"rank {x.ndim} is less than 2", operands={"x": x.type})
    return x


@public
def rot90(x: Any, k: int = 1, axes: Sequence[int] = (0, 1)) -> DistributedArray:
    """`x` turned `k` times by 90 degrees in the plane of two axes, from the first to the second.

    Raises ShapeError for axes that are not two different ones.

    >>> gdt.rot90([[1, 2], [3, 4]]).tolist()
    [[2, 4], [1, 3]]
    """
    x = _matrix(x, "rot90")
    places = checked_axes(x.type, axes)
    if len(set(places)) != 2 or len(places) != 2:
        raise error(ShapeError, f"axes {axes} are no two axes", operands={"x": x.type})
    first, second = places
    if k % 4 == 0:
        return x
    if k % 4 == 2:
        return flip(flip(x, axis=first), axis=second)
    order = [*range(x.ndim)]
    order[first], order[second] = second, first
    if k % 4 == 1:
        return transpose_(flip(x, axis=second), order)
    return flip(transpose_(x, order), axis=second)


@public
def rollaxis(x: Any, axis: int, start: int = 0) -> DistributedArray:
    """`x` with `axis` moved before the axis `start`; `gdt.moveaxis` says the same more clearly.

    >>> gdt.rollaxis(gdt.ones((2, 3, 4)), 2).shape
    (4, 2, 3)
    """
    (x,) = as_operands("rollaxis", x=x)
    at = checked_axis(x.type, axis)
    start = start if start == x.ndim else checked_axis(x.type, start)
    return moveaxis(x, at, start - (at < start))


# ---------------------------------------------------------------- diagonals


@public
def diag(v: Any, k: int = 0) -> DistributedArray:
    """The k-th diagonal of a matrix, a read-only view; or the matrix whose k-th diagonal is the
    vector `v`.

    >>> gdt.diag([1, 2]).tolist(), gdt.diag([[1, 2], [3, 4]]).tolist()
    ([[1, 0], [0, 2]], [1, 4])
    """
    (v,) = as_operands("diag", v=v)
    if v.ndim == 2:
        return diagonal_(v, offset=k)
    if v.ndim != 1:
        problem = f"rank {v.ndim} is neither a vector nor a matrix"
        raise error(ShapeError, problem, operands={"v": v.type})
    rows = pad(v, (max(-k, 0), max(k, 0)))  # (n + |k|,)
    n = rows.shape[0]
    return triu(tril(broadcast_to(expand_dims(rows, 1), (n, n)), k=k), k=k)


@public
def diagflat(v: Any, k: int = 0) -> DistributedArray:
    """The matrix whose k-th diagonal holds the elements of `v`, flattened.

    >>> gdt.diagflat([[1, 2]]).tolist()
    [[1, 0], [0, 2]]
    """
    (v,) = as_operands("diagflat", v=v)
    return diag(reshape(v, -1), k)
