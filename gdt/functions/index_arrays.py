"""Indices of triangles, diagonals and masks, and of an array in a flat order."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.operands import as_operands
from gdt.array.registry import public
from gdt.errors import DtypeError, IndexRangeError, ShapeError, error
from gdt.functions.grids import Arrays
from gdt.functions.grids import shape as shape_of
from gdt.ops.comparison import greater_equal, less, logical_or
from gdt.ops.creation import asarray, ones, zeros
from gdt.ops.elementwise import astype
from gdt.ops.joining import stack
from gdt.ops.masks import nonzero
from gdt.ops.ranges import arange
from gdt.ops.reductions import any_
from gdt.ops.shapes import Shape, checked_shape
from gdt.sharding.layout import Layout

__all__ = [
    "argwhere",
    "diag_indices",
    "diag_indices_from",
    "mask_indices",
    "ravel_multi_index",
    "tril_indices",
    "tril_indices_from",
    "triu_indices",
    "triu_indices_from",
    "unravel_index",
]


@public
def argwhere(x: Any) -> DistributedArray:
    """The indices of the elements that are not 0, a row for each: (elements, rank), int64.

    >>> gdt.argwhere(gdt.asarray([[0, 3], [4, 0]])).tolist()
    [[0, 1], [1, 0]]
    """
    (x,) = as_operands("argwhere", x=x)
    if not x.ndim:
        return zeros((int(bool(x)), 0), np.int64, layout=Layout.replicated(x.mesh, 2))
    return stack(list(nonzero(x)), axis=1)


def _placed(arrays: Sequence[np.ndarray], like: Any = None) -> Arrays:
    """Index arrays of the host, on the mesh of `like`."""
    device = like.mesh if isinstance(like, DistributedArray) else None
    return tuple(asarray(a, device=device) for a in arrays)


@public
def tril_indices(n: int, k: int = 0, m: int | None = None) -> Arrays:
    """The indices of the elements on and below the k-th diagonal of an (n, m) matrix.

    >>> [i.tolist() for i in gdt.tril_indices(2)]
    [[0, 1, 1], [0, 0, 1]]
    """
    return _placed(np.tril_indices(n, k, m))


@public
def triu_indices(n: int, k: int = 0, m: int | None = None) -> Arrays:
    """The indices of the elements on and above the k-th diagonal of an (n, m) matrix.

    >>> [i.tolist() for i in gdt.triu_indices(2)]
    [[0, 0, 1], [0, 1, 1]]
    """
    return _placed(np.triu_indices(n, k, m))


def _matrix_shape(x: Any) -> tuple[int, int]:
    lengths = shape_of(x)
    if len(lengths) != 2:
        raise error(ShapeError, f"an array of shape {list(lengths)} is no matrix")
    return lengths[0], lengths[1]


@public
def tril_indices_from(x: Any, k: int = 0) -> Arrays:
    """`gdt.tril_indices` for the shape of the matrix `x`.

    >>> [i.tolist() for i in gdt.tril_indices_from(gdt.ones((2, 2)))]
    [[0, 1, 1], [0, 0, 1]]
    """
    n, m = _matrix_shape(x)
    return _placed(np.tril_indices(n, k, m), x)


@public
def triu_indices_from(x: Any, k: int = 0) -> Arrays:
    """`gdt.triu_indices` for the shape of the matrix `x`.

    >>> [i.tolist() for i in gdt.triu_indices_from(gdt.ones((2, 2)))]
    [[0, 0, 1], [0, 1, 1]]
    """
    n, m = _matrix_shape(x)
    return _placed(np.triu_indices(n, k, m), x)


@public
def diag_indices(n: int, ndim: int = 2) -> Arrays:
    """The indices of the main diagonal of an array with `ndim` axes of length `n`.

    >>> [i.tolist() for i in gdt.diag_indices(2)]
    [[0, 1], [0, 1]]
    """
    return (arange(n),) * ndim


@public
def diag_indices_from(x: Any) -> Arrays:
    """`gdt.diag_indices` for `x`, whose axes have one length.

    >>> [i.tolist() for i in gdt.diag_indices_from(gdt.ones((2, 2)))]
    [[0, 1], [0, 1]]
    """
    lengths = shape_of(x)
    if len(lengths) < 2 or len(set(lengths)) > 1:
        problem = f"the axes of shape {list(lengths)} do not have one length"
        raise error(ShapeError, problem)
    return _placed([np.arange(lengths[0])] * len(lengths), x)


@public
def mask_indices(n: int, mask_func: Callable[..., Any], k: Any = 0) -> Arrays:
    """The indices of an (n, n) matrix that `mask_func(ones, k)`, such as `gdt.triu`, leaves.

    >>> [i.tolist() for i in gdt.mask_indices(2, gdt.triu)]
    [[0, 0, 1], [0, 1, 1]]
    """
    (mask,) = as_operands("mask_indices", mask=mask_func(ones((n, n), np.int64), k))
    return _placed(np.nonzero(mask.numpy()), mask)


@public
def ravel_multi_index(
    multi_index: Sequence[Any], dims: Sequence[int], mode: Any = "raise", order: str = "C"
) -> DistributedArray:
    """Indices along each axis as one index of the flattened array of shape `dims`.

    mode: "raise", "wrap" or "clip", or one for each axis: what becomes of indices out of range;
        "raise" reads one truth value, and raises IndexRangeError. order: "C", or "F" for the first
        axis as the fastest.

    >>> gdt.ravel_multi_index(([0, 1], [2, 0]), (2, 3)).tolist()
    [2, 3]
    """
    parts = as_operands("ravel_multi_index", **{f"index {i}": a for i, a in enumerate(multi_index)})
    modes = (mode,) * len(parts) if isinstance(mode, str) else tuple(mode)
    if not len(parts) == len(dims) == len(modes):
        problem = f"{len(parts)} indices and {len(modes)} modes do not fit {len(dims)} axes"
        raise error(ShapeError, problem)
    flat: Any = 0
    places = range(len(dims)) if order == "C" else range(len(dims) - 1, -1, -1)
    for d in places:
        part, n = parts[d], int(dims[d])
        if part.dtype.kind not in "iu":
            problem = f"index {d} is {part.dtype}, no integers"
            raise error(DtypeError, problem)
        if modes[d] == "wrap":
            part = part % n
        elif modes[d] == "clip":
            part = part.clip(0, n - 1)
        else:
            _check_range(part, n)
        flat = flat * n + astype(part, np.int64)
    result: DistributedArray = flat
    return result


def _check_range(x: DistributedArray, n: int) -> None:
    if x.size and bool(any_(logical_or(less(x, 0), greater_equal(x, n)))):
        raise error(IndexRangeError, f"an index is out of range for {n} elements")


@public
def unravel_index(indices: Any, shape: Shape, order: str = "C") -> Arrays:
    """Indices of the flattened array as indices along each axis of an array of that shape.

    Reads one truth value, and raises IndexRangeError for indices out of range. order: see
    `gdt.ravel_multi_index`.

    >>> [i.tolist() for i in gdt.unravel_index([2, 3], (2, 3))]
    [[0, 1], [2, 0]]
    """
    (rest,) = as_operands("unravel_index", indices=indices)
    if rest.dtype.kind not in "iu":
        raise error(DtypeError, f"indices are {rest.dtype}, no integers")
    sizes = checked_shape(shape, "unravel_index")
    _check_range(rest, math.prod(sizes))
    rest = astype(rest, np.int64)
    parts: dict[int, DistributedArray] = {}
    for d in range(len(sizes) - 1, -1, -1) if order == "C" else range(len(sizes)):
        parts[d] = rest % sizes[d]
        rest = rest // sizes[d]
    return tuple(parts[d] for d in range(len(sizes)))
