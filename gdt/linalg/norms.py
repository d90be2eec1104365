"""Norms of vectors and matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.registry import public_of
from gdt.errors import ArgumentError, ShapeError, error
from gdt.linalg.decompositions import svdvals
from gdt.linalg.operands import as_inexact, as_matrices, check_matrices
from gdt.linalg.solving import inv
from gdt.ops.axes import checked_axes
from gdt.ops.elementwise import astype, imag, real, sqrt, square
from gdt.ops.extrema import max_, min_
from gdt.ops.powers import power
from gdt.ops.rearranging import moveaxis
from gdt.ops.reductions import sum_
from gdt.ops.rounding import abs_
from gdt.ops.shapes import expand_dims, reshape

Axis = int | Sequence[int] | None


def _sum_of_squares(x: DistributedArray, axis: Axis, keepdims: bool) -> DistributedArray:
    squares = square(real(x)) + square(imag(x)) if x.dtype.kind == "c" else square(x)
    return sum_(squares, axis=axis, keepdims=keepdims)


@public_of("linalg")
def vector_norm(
    x: Any, axis: Axis = None, keepdims: bool = False, ord: Any = 2
) -> DistributedArray:
    """The lengths of vectors along one or several axes (None: of all elements).

    ord: p for the p-th root of the sum of abs(x) ** p; inf and -inf for the largest and smallest
    magnitude; 0 for the number of elements that are not 0. keepdims: whether the axes stay, with
    length 1. Over a split axis each device sums its part. The gradient at a vector of zeros is NaN
    for ord=2.

    Raises AxisError for an axis that `x` does not have.

    >>> gdt.linalg.vector_norm([3.0, 4.0]).tolist()
    5.0
    """
    (x,) = as_inexact("vector_norm", x=x)
    return _vector_norm(x, axis, keepdims, ord)


def _vector_norm(x: DistributedArray, axis: Axis, keepdims: bool, ord: Any) -> DistributedArray:
    if isinstance(axis, list):
        axis = tuple(axis)
    if ord == 2:
        return sqrt(_sum_of_squares(x, axis, keepdims))
    if isinstance(ord, str | None) or np.ndim(ord) or isinstance(ord, complex):
        raise error(ArgumentError, f"{ord!r} is no norm of vectors")
    if ord == np.inf:
        largest = abs_(x) if x.size else None
        if largest is None:
            return sum_(abs_(x), axis=axis, keepdims=keepdims)  # 0, as NumPy has it
        return max_(largest, axis=axis, keepdims=keepdims)
    if ord == -np.inf:
        return min_(abs_(x), axis=axis, keepdims=keepdims)
    if ord == 0:
        dtype = np.empty(0, x.dtype).real.dtype
        return sum_(astype(x != 0, dtype), axis=axis, keepdims=keepdims)
    if ord == 1:
        return sum_(abs_(x), axis=axis, keepdims=keepdims)
    return power(sum_(power(abs_(x), ord), axis=axis, keepdims=keepdims), 1 / ord)


@public_of("linalg")
def matrix_norm(x: Any, keepdims: bool = False, ord: Any = "fro") -> DistributedArray:
    """The norms of matrices (..., m, n): (...), or (..., 1, 1) with `keepdims`.

    ord: `"fro"` for the root of the sum of squares, `"nuc"` for the sum of singular values, 2 and
    -2 for the largest and smallest of them, 1 and -1 for the largest and smallest sum of magnitudes
    of a column, inf and -inf of a row.

    Raises LinAlgError for a rank below 2, ArgumentError for another `ord`.

    >>> gdt.linalg.matrix_norm([[3.0, 0.0], [0.0, 4.0]]).tolist()
    5.0
    """
    (x,) = as_inexact("matrix_norm", x=x)
    check_matrices("matrix_norm", "x", x, square=False)
    norm = _matrix_norm(x, "fro" if ord is None else ord)
    return expand_dims(norm, (-2, -1)) if keepdims else norm


def _matrix_norm(x: DistributedArray, ord: Any) -> DistributedArray:
    if ord == "fro":
        return sqrt(_sum_of_squares(x, (-2, -1), False))
    if ord == "nuc":
        return sum_(svdvals(x), axis=-1)
    if ord not in (1, -1, 2, -2, np.inf, -np.inf):
        raise error(
            ArgumentError,
            f"{ord!r} is no norm of matrices",
            remedy="Use 'fro', 'nuc', 1, -1, 2, -2, inf or -inf.",
        )
    values = svdvals(x) if abs(ord) == 2 else sum_(abs_(x), axis=-2 if abs(ord) == 1 else -1)
    if not values.shape[-1] and ord > 0:
        return sum_(values, axis=-1)  # 0, as NumPy has it
    return (max_ if ord > 0 else min_)(values, axis=-1)


@public_of("linalg")
def norm(x: Any, ord: Any = None, axis: Axis = None, keepdims: bool = False) -> DistributedArray:
    """The norms of vectors along an axis, or of matrices in two axes; of all elements, as a vector,
    if neither `ord` nor `axis` is given.

    ord: as in `gdt.linalg.vector_norm` or `matrix_norm`. With an `ord` and no axis, `x` is a vector
    or a matrix. Raises AxisError for an axis that `x` does not have, ShapeError where the axes name
    neither vectors nor matrices, ArgumentError for an unknown `ord`.

    >>> gdt.linalg.norm([[3.0, 4.0], [6.0, 8.0]], axis=1).tolist()
    [5.0, 10.0]
    """
    (x,) = as_inexact("norm", x=x)
    if axis is None and ord is None:
        flat = sqrt(_sum_of_squares(x, None, False))
        return reshape(flat, (1,) * x.ndim) if keepdims else flat
    numbers = checked_axes(x.type, axis)
    if len(numbers) == 1:
        return _vector_norm(x, numbers[0], keepdims, 2 if ord is None else ord)
    if len(numbers) != 2 or numbers[0] == numbers[1]:
        problem = f"axes {axis} name neither vectors nor matrices"
        raise error(ShapeError, problem, operands={"x": x.type})
    value = _matrix_norm(moveaxis(x, numbers, (-2, -1)), "fro" if ord in (None, "f") else ord)
    return expand_dims(value, sorted(numbers)) if keepdims else value


@public_of("linalg")
def cond(x: Any, p: Any = None) -> DistributedArray:
    """The condition numbers of matrices (..., m, n): (...).

    p: None or 2 for the ratio of the largest and the smallest singular value, -2 for its inverse;
    others, as `ord` in `gdt.linalg.matrix_norm`, for the norm of a square matrix times that of its
    inverse. Raises LinAlgError for an empty matrix, and where an inverse does not exist.

    >>> gdt.linalg.cond([[2.0, 0.0], [0.0, 1.0]]).tolist()
    2.0
    """
    (x,) = as_matrices("cond", square=p not in (None, 2, -2), x=x)
    if p not in (None, 2, -2):
        return _matrix_norm(x, p) * _matrix_norm(inv(x), p)
    s = svdvals(x)
    with np.errstate(divide="ignore"):
        return s[..., -1] / s[..., 0] if p == -2 else s[..., 0] / s[..., -1]
