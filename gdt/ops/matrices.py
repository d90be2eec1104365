"""Matrices of ones on and beside a diagonal, and triangles of matrices."""

from __future__ import annotations

from typing import Any

import numpy as np

from gdt.arguments import same_arguments
from gdt.array.array import DistributedArray
from gdt.array.registry import public
from gdt.engine.declaration import FROM_ENGINE
from gdt.engine.op import op
from gdt.engine.plan import Shards
from gdt.errors import ShapeError, error
from gdt.ops.generation import from_indices, type_of_shape
from gdt.ops.reductions import unbroadcast
from gdt.sharding.array_type import ArrayType
from gdt.sharding.layout import Layout
from gdt.sharding.mesh import Mesh
from gdt.sharding.rule import RuleSpec

__all__ = ["eye", "identity", "tri", "tril", "triu"]


Block = Any
Number = int | float | complex | np.generic


@public
def eye(
    n: int,
    m: int | None = None,
    k: int = 0,
    dtype: Any = None,
    *,
    layout: Layout | None = None,
    device: Mesh | None = None,
) -> DistributedArray:
    """An (n, m) matrix with ones on the k-th diagonal above the main one; (n, n) if m is None.

    Below the main diagonal k is negative. Raises ShapeError for a size below 0.

    >>> gdt.eye(2, 3, k=1).tolist()
    [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    array_type = type_of_shape((n, n if m is None else m), dtype, "eye", layout, device)
    return from_indices(array_type, lambda xp, i, j: j - i == k, k)


@public
def identity(
    n: int, dtype: Any = None, *, layout: Layout | None = None, device: Mesh | None = None
) -> DistributedArray:
    """The (n, n) identity matrix.

    Raises ShapeError for a size below 0.

    >>> gdt.identity(2, dtype=int).tolist()
    [[1, 0], [0, 1]]
    """
    return eye(n, dtype=dtype, layout=layout, device=device)


@public
@same_arguments(eye)
def tri(
    n: int, m: int | None = None, k: int = 0, dtype: Any = None, **place: Any
) -> DistributedArray:
    """An (n, m) matrix with ones on and below the k-th diagonal above the main one; (n, n) if m is
    None.

    Raises ShapeError for a size below 0.

    >>> gdt.tri(2, 3, dtype=int).tolist()
    [[1, 0, 0], [1, 1, 0]]
    """
    array_type = type_of_shape((n, n if m is None else m), dtype, "tri", **place)
    return from_indices(array_type, lambda xp, i, j: j - i <= k, k)


def _prepare_triangle(array_type: ArrayType, *, k: int = 0) -> dict[str, Any]:
    if not array_type.ndim:
        problem = "rank 0 is neither a matrix nor a row of one"
        raise error(ShapeError, "tril, triu", problem, operands={"x": array_type})
    return {"k": int(k)}


def _triangle_rule(array_type: ArrayType, *, k: int) -> RuleSpec:
    if array_type.ndim == 1:  # every row of a matrix
        return RuleSpec("j -> i j", {"i": array_type.shape[0]}, whole=frozenset({"i"}))
    return RuleSpec("... i j -> ... i j")


def rows_and_columns(xp: Any, x: Block, shards: Shards) -> tuple[Block, Block]:
    """Return the indices of the rows of matrices (..., i, j), and of their columns, in the whole
    array: (mesh axes..., 1, ..., i, 1) and (mesh axes..., 1, ..., 1, j)."""
    ones = (1,) * (x.ndim - shards.start["i"].ndim)
    rows, columns = (
        xp.asarray(shards.start[f]).reshape(shards.start[f].shape + ones) for f in ("i", "j")
    )
    return rows + xp.arange(x.shape[-2])[:, None], columns + xp.arange(x.shape[-1])


def _are_below(xp: Any, x: Block, k: int, shards: Shards) -> Block:
    """Whether every element is on or below the k-th diagonal above the main one: (mesh axes..., i,
    j). Many indices are compared in a small dtype, as in NumPy's `tri`."""
    if x.ndim == shards.start["j"].ndim + 1:  # a vector is a row of a square matrix
        start = xp.asarray(shards.start["j"])
        columns = start.reshape(*start.shape, 1, 1) + xp.arange(x.shape[-1])
        return columns - xp.arange(shards.size["j"])[:, None] <= k
    rows, columns = rows_and_columns(xp, x, shards)
    height, width = shards.size["i"], shards.size["j"]
    last, most = rows + max(-height, min(k, width)), height + width + 1
    if x.size < SMALL or most >= 1 << 31:
        return columns <= last
    dtype = np.int16 if most < 1 << 15 else np.int32
    return columns.astype(dtype) <= last.astype(dtype)


SMALL = 1 << 12  # elements in a block whose indices are compared as they are


def _matrices(x: Block, shards: Shards) -> Block:
    """The blocks of matrices; a vector is a matrix of one row."""
    return x[..., None, :] if x.ndim == shards.start["j"].ndim + 1 else x


@op(_triangle_rule, linear="x", prepare=_prepare_triangle)
def tril(xp: Any, x: Block, /, k: int = 0, *, shards: Shards = FROM_ENGINE) -> Block:
    """The lower triangle of matrices: zeros above the k-th diagonal above the main one.

    x: (..., i, j), as the result; (j,) for the matrix (j, j) all of whose rows are `x`. Raises
    ShapeError for an `x` of rank 0.

    >>> gdt.tril([[1, 2], [3, 4]]).tolist()
    [[1, 0], [3, 4]]
    """
    return xp.where(_are_below(xp, x, k, shards), _matrices(x, shards), xp.zeros((), x.dtype))


@op(_triangle_rule, linear="x", prepare=_prepare_triangle)
def triu(xp: Any, x: Block, /, k: int = 0, *, shards: Shards = FROM_ENGINE) -> Block:
    """The upper triangle of matrices: zeros below the k-th diagonal above the main one.

    x: (..., i, j), as the result; (j,) for the matrix (j, j) all of whose rows are `x`. Raises
    ShapeError for an `x` of rank 0.

    >>> gdt.triu([[1, 2], [3, 4]]).tolist()
    [[1, 2], [0, 4]]
    """
    return xp.where(_are_below(xp, x, k - 1, shards), xp.zeros((), x.dtype), _matrices(x, shards))


tril.vjp(lambda g, out, x, k=0: unbroadcast(tril(g, k=k), x))
triu.vjp(lambda g, out, x, k=0: unbroadcast(triu(g, k=k), x))
