"""Inverses, linear equations, determinants, least squares, and ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.operands import as_operands
from gdt.array.registry import public_of
from gdt.engine.custom_vjp import custom_vjp
from gdt.engine.whole_arrays import in_numpy
from gdt.errors import LinAlgError, ShapeError, error
from gdt.functions.vectors import matrix_transpose
from gdt.linalg import blocked
from gdt.linalg.decompositions import svd, svdvals
from gdt.linalg.operands import as_floats, as_matrices, check_matrices, settled
from gdt.linalg.whole import (
    adjoint,
    as_columns,
    conjugated,
    det_of_whole,
    inv_of_whole,
    slogdet_gradient,
    slogdet_of_whole,
    solve_of_whole,
    svdvals_gradient,
)
from gdt.ops.comparison import where
from gdt.ops.elementwise import astype, like, multiply, real
from gdt.ops.exponential import exp, log
from gdt.ops.extrema import max_
from gdt.ops.movement import relayout
from gdt.ops.products.op import matmul
from gdt.ops.reductions import sum_
from gdt.ops.rounding import abs_, sign
from gdt.ops.scans import prod
from gdt.ops.shapes import expand_dims, reshape, squeeze, transpose
from gdt.sharding.dtypes import limits_of, promoted


class SlogdetResult(NamedTuple):
    """The result of `gdt.linalg.slogdet`."""

    sign: DistributedArray
    logabsdet: DistributedArray


class LstsqResult(NamedTuple):
    """The result of `gdt.linalg.lstsq`."""

    x: DistributedArray
    residuals: DistributedArray
    rank: DistributedArray
    singular_values: DistributedArray


# ---------------------------------------------------------------- linear equations


# Where one block holds a matrix whose columns or rows are split, LAPACK takes it whole.


@in_numpy(np.linalg.solve, gathers=True)
def _solve_split(x: DistributedArray, y: DistributedArray, /) -> DistributedArray:
    solution = blocked.solve_by_panels(x, y)
    return relayout(solution, y.layout.resolved if any(y.layout.dims) else x.layout.resolved)


def _solve_split_vjp(g: Any, out: Any, x: Any, y: Any) -> tuple[DistributedArray, DistributedArray]:
    columns = solve(x.mT, g)
    return like(-matmul(columns, out.mT), x), like(columns, y)


_solve_split.vjp(joint=_solve_split_vjp)


def _singular(name: str, x: DistributedArray) -> LinAlgError:
    return error(LinAlgError, f"linalg.{name}", "Singular matrix", operands={"x": x.type})


@contextmanager
def _named_singular(name: str, x: DistributedArray) -> Iterator[None]:
    """Name the function and the matrix in the error of a singular one."""
    try:
        yield
    except np.linalg.LinAlgError:
        raise _singular(name, x) from None


@public_of("linalg")
def solve(x: Any, y: Any) -> DistributedArray:
    """The solutions of linear equations: z for which x @ z = y.

    x: (..., n, n); y: (n,), or (..., n, k), whose leading axes broadcast with those of `x`; result:
    (..., n) or (..., n, k). A stack that is split in front of its matrices is computed where it is,
    and so are split columns k. A large split matrix is eliminated panel by panel, with exchanges of
    rows, and no device holds it whole. On GPUs a singular matrix gives NaN or infinities.

    Raises LinAlgError for matrices that are not square or singular, ShapeError for shapes that do
    not fit. Source: NumPy's `linalg.solve`.

    >>> gdt.linalg.solve([[2.0, 0.0], [0.0, 4.0]], [2.0, 2.0]).tolist()
    [1.0, 0.5]
    """
    x, y = as_floats("solve", x=x, y=y)
    check_matrices("solve", "x", x, square=True)
    is_vector = y.ndim == 1
    columns = expand_dims(y, 1) if is_vector else y
    if not y.ndim or columns.shape[-2] != x.shape[-1]:
        problem = f"y has {columns.shape[-2] if y.ndim else 'no'} rows for {x.shape[-1]} equations"
        raise error(ShapeError, problem, operands={"x": x.type, "y": y.type})
    if blocked.is_large(x) and columns.ndim == 2:
        dtype = promoted(x.dtype, y.dtype)
        with _named_singular("solve", x):
            solution = _solve_split(x.astype(dtype), columns.astype(dtype))
    else:
        solution = solve_of_whole(settled(x), columns)
    return squeeze(solution, -1) if is_vector else solution


def _has_split_rows(x: DistributedArray) -> bool:
    """Whether the rows of a matrix are split and its columns are not. Panels are of columns: the
    transpose, which moves nothing, has them where they are."""
    rows, columns = x.layout.dims
    return bool(rows) and not columns


@in_numpy(np.linalg.inv, gathers=True)
def _inv_of_split(x: DistributedArray, /) -> DistributedArray:
    is_turned = _has_split_rows(x)
    inverse = blocked.invert_by_panels(x.mT if is_turned else x)
    return relayout(inverse.mT if is_turned else inverse, x.layout.resolved)


_inv_of_split.vjp(lambda g, out, x: like(-matmul(matmul(out.mT, g), out.mT), x))


@public_of("linalg")
def inv(x: Any) -> DistributedArray:
    """The inverses of matrices (..., n, n).

    Layouts and errors are those of `gdt.linalg.solve`.

    >>> gdt.linalg.inv([[2.0, 0.0], [0.0, 4.0]]).tolist()
    [[0.5, 0.0], [0.0, 0.25]]
    """
    (x,) = as_matrices("inv", square=True, x=x)
    if not blocked.is_large(x):
        return inv_of_whole(settled(x))
    with _named_singular("inv", x):
        inverse = _inv_of_split(x)
    return inverse


# ---------------------------------------------------------------- determinants


def _slogdet_in_numpy(x: np.ndarray) -> tuple[Any, ...]:
    return tuple(np.linalg.slogdet(x))


@in_numpy(_slogdet_in_numpy, gathers=True)
def _slogdet_of_split(x: DistributedArray, /) -> tuple[DistributedArray, DistributedArray]:
    """The sign of the determinant, and the logarithm of its magnitude."""
    pivots = blocked.pivots_by_panels(x.mT if _has_split_rows(x) else x)
    with np.errstate(divide="ignore"):
        return prod(sign(pivots)), sum_(log(abs_(pivots)))


_slogdet_of_split.vjp(lambda g, out, x: like(slogdet_gradient(g, out, inv(x)), x))


@public_of("linalg")
def slogdet(x: Any) -> SlogdetResult:
    """The signs of determinants and the logarithms of their magnitudes, which do not overflow.

    x: (..., n, n); both results: (...). The sign of a complex determinant has magnitude 1; that of
    a singular matrix is 0 and its logarithm -inf. Layouts are those of `gdt.linalg.solve`. A
    singular matrix has no gradient. Raises LinAlgError for matrices that are not square.

    >>> [out.tolist() for out in gdt.linalg.slogdet([[-1.0, 0.0], [0.0, 1.0]])]
    [-1.0, 0.0]
    """
    (x,) = as_matrices("slogdet", square=True, x=x)
    if blocked.is_large(x):
        return SlogdetResult(*_slogdet_of_split(x))
    return SlogdetResult(*slogdet_of_whole(settled(x)))


@public_of("linalg")
def det(x: Any) -> DistributedArray:
    """The determinants of matrices (..., n, n): (...).

    Layouts and errors are those of `gdt.linalg.slogdet`. Gradients are matrices of cofactors, of
    singular matrices too; but of a singular one that is eliminated panel by panel they raise
    LinAlgError, as second derivatives at any singular matrix do.

    >>> gdt.linalg.det([[2.0, 0.0], [0.0, 4.0]]).round(3).tolist()
    8.0
    """
    (x,) = as_matrices("det", square=True, x=x)
    if blocked.is_large(x):
        sign, logarithm = _slogdet_of_split(x)
        return multiply(sign, exp(logarithm))
    return det_of_whole(settled(x))


# ---------------------------------------------------------------- least squares


@custom_vjp
def _pinv(x: DistributedArray, rtol: Any) -> tuple[DistributedArray, DistributedArray]:
    """The pseudoinverse, and the singular values."""
    u, s, vh = svd(x, full_matrices=False)
    large = s > rtol * max_(s, axis=-1, keepdims=True) if s.shape[-1] else s > 0
    inverse = where(large, 1 / where(large, s, 1), 0)
    return matmul(adjoint(vh) * as_columns(inverse), adjoint(u)), s


def _pinv_gradient(
    g: tuple[DistributedArray, ...],
    out: tuple[DistributedArray, ...],
    x: DistributedArray,
    rtol: Any,
) -> DistributedArray:
    """Golub and Pereyra 1973, of a rank that does not change."""
    inverse, _ = out
    back, slope = adjoint(inverse), adjoint(g[0])
    inside = matmul(matmul(back, g[0]), back)
    through_inverse = matmul(matmul(slope, inverse), back)
    right = matmul(back, matmul(inverse, slope))
    through_inverse = through_inverse - matmul(x, matmul(inverse, through_inverse))
    right = right - matmul(matmul(right, inverse), x)
    return through_inverse + right - inside + svdvals_gradient((g[1],), None, x)


_pinv.vjp(conjugated(_pinv_gradient), None)


def _tolerance(name: str, x: DistributedArray, rtol: Any) -> Any:
    """`rtol` as a number, or as an array that broadcasts with the singular values of `x`."""
    if rtol is None:
        return max(x.shape[-2:]) * float(limits_of(x.dtype).eps)
    if isinstance(rtol, int | float | np.number):
        return float(rtol)
    return expand_dims(as_operands(f"linalg.{name}", x=x, rtol=rtol)[1], -1)


@public_of("linalg")
def pinv(
    x: Any, rcond: Any = None, hermitian: bool = False, *, rtol: Any = None
) -> DistributedArray:
    """The pseudoinverses (Moore-Penrose) of matrices: (..., m, n) to (..., n, m).

    rtol, rcond: singular values up to this fraction of the largest count as 0: a number, or an
    array (...); by default the larger of m and n times the dtype's epsilon, as in the Array API
    standard. hermitian: taken for NumPy's sake. Layouts and errors are those of `gdt.linalg.svd`
    without full matrices.

    >>> gdt.linalg.pinv([[2.0], [0.0]]).tolist()
    [[0.5, 0.0]]
    """
    (x,) = as_matrices("pinv", x=x)
    if 0 in x.shape[-2:]:
        return matrix_transpose(x)
    inverse, _ = _pinv(settled(x), _tolerance("pinv", x, rcond if rtol is None else rtol))
    return inverse


@public_of("linalg")
def lstsq(x: Any, y: Any, rcond: float | None = None) -> LstsqResult:
    """The z of least length for which the length of y - x @ z is least.

    x: (m, n); y: (m,) or (m, k). rcond: as in `gdt.linalg.pinv`. Returns z, (n,) or (n, k); the
    squared lengths of y - x @ z, (k,) or (1,), empty for m <= n; the rank of `x`, an int32 of rank
    0; and the singular values of `x`. Unlike NumPy's, the squared lengths are there for a deficient
    rank too. The rows of a tall matrix stay split, as in `gdt.linalg.qr`.

    Raises LinAlgError where `x` is no matrix, ShapeError for other numbers of rows.

    >>> gdt.linalg.lstsq([[1.0], [1.0]], [1.0, 3.0]).x.round(3).tolist()
    [2.0]
    """
    x, y = as_floats("lstsq", x=x, y=y)
    common = promoted(x.dtype, y.dtype)  # in which NumPy computes all four results
    x, y = astype(x, common), astype(y, common)
    check_matrices("lstsq", "x", x, square=False)
    if x.ndim != 2 or y.ndim not in (1, 2) or y.shape[0] != x.shape[0]:
        problem = f"y of shape {list(y.shape)} does not fit x of shape {list(x.shape)}"
        raise error(ShapeError, problem, operands={"x": x.type, "y": y.type})
    columns = expand_dims(y, 1) if y.ndim == 1 else y
    rtol = _tolerance("lstsq", x, rcond)
    inverse, s = _pinv(x, rtol) if x.size else (x.mT, svdvals(x))
    solution = matmul(inverse, columns)
    rest = columns - matmul(x, solution)
    residuals = sum_(real(rest * adjoint(rest).mT), axis=0)
    if x.shape[0] <= x.shape[1]:
        residuals = residuals[:0]
    rank = sum_(s > rtol * max_(s) if s.size else s > 0).astype(np.int32)
    return LstsqResult(squeeze(solution, 1) if y.ndim == 1 else solution, residuals, rank, s)


@public_of("linalg")
def matrix_rank(
    x: Any, tol: Any = None, hermitian: bool = False, *, rtol: Any = None
) -> DistributedArray:
    """The ranks of matrices (..., m, n), as integers (...): how many singular values are above a
    tolerance; of a vector or number, whether it is not 0.

    tol: the tolerance itself; rtol: as a fraction of the largest singular value, by default as in
    `gdt.linalg.pinv`. hermitian: taken for NumPy's sake.

    >>> gdt.linalg.matrix_rank([[1.0, 1.0], [1.0, 1.0]]).tolist()
    1
    """
    (x,) = as_floats("matrix_rank", x=x)
    if x.ndim < 2:
        return sum_((x != 0).any().astype(np.int64))
    s = svdvals(x)
    if tol is None:
        largest = max_(s, axis=-1, keepdims=True) if s.shape[-1] else 0
        tol = _tolerance("matrix_rank", x, rtol) * largest
    else:
        tol = _tolerance("matrix_rank", x, tol)
    return sum_(s > tol, axis=-1)


# ---------------------------------------------------------------- arrays as matrices


@public_of("linalg")
def tensorsolve(x: Any, y: Any, axes: Sequence[int] | None = None) -> DistributedArray:
    """The z for which `gdt.tensordot(x, z, z.ndim) = y`.

    axes: axes of `x` that are moved to its end first. Raises LinAlgError unless the axes of `x`
    behind those of `y` have as many elements as `y`.

    >>> gdt.linalg.tensorsolve(2.0 * gdt.eye(4).reshape(2, 2, 4), gdt.ones((2, 2))).tolist()
    [0.5, 0.5, 0.5, 0.5]
    """
    x, y = as_floats("tensorsolve", x=x, y=y)
    if axes is not None:
        last = [a % x.ndim for a in axes]
        x = transpose(x, [*[d for d in range(x.ndim) if d not in last], *last])
    shape = x.shape[y.ndim :]
    if math.prod(shape) != y.size or x.size != y.size**2:
        problem = f"x of shape {list(x.shape)} is no square matrix for y of shape {list(y.shape)}"
        raise error(LinAlgError, problem, operands={"x": x.type, "y": y.type})
    return reshape(solve(reshape(x, (y.size, y.size)), reshape(y, (y.size,))), shape)


@public_of("linalg")
def tensorinv(x: Any, ind: int = 2) -> DistributedArray:
    """The inverse of `x` as a matrix of its first `ind` axes and the others.

    Raises LinAlgError unless these have as many elements, ShapeError for an `ind` below 1.

    >>> gdt.linalg.tensorinv(2.0 * gdt.eye(4).reshape(2, 2, 4)).shape
    (4, 2, 2)
    """
    (x,) = as_floats("tensorinv", x=x)
    if ind < 1:
        raise error(ShapeError, f"ind is {ind}, not 1 or more")
    front, back = x.shape[:ind], x.shape[ind:]
    if math.prod(front) != math.prod(back):
        problem = f"{list(front)} and {list(back)} have different numbers of elements"
        raise error(LinAlgError, problem, operands={"x": x.type})
    n = math.prod(front)
    return reshape(inv(reshape(x, (n, n))), (*back, *front))
