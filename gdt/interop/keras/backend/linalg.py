"""Keras' linear algebra."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gdt
from gdt.array.array import DistributedArray
from gdt.interop.keras.backend.numpy import floats, in_floats, promoted_arrays
from gdt.interop.keras.backend.variables import convert_to_tensor

cholesky, det, inv = (
    in_floats(gdt.linalg.cholesky),
    in_floats(gdt.linalg.det),
    in_floats(gdt.linalg.inv),
)
norm = in_floats(gdt.linalg.norm)


def cholesky_inverse(a: Any, upper: bool = False) -> DistributedArray:
    """Return the inverse of the matrix of which `a` is the Cholesky factor."""
    a = floats(a)
    inverse = solve_triangular(a, gdt.eye(a.shape[-1], dtype=a.dtype), lower=not upper)
    transposed = gdt.matrix_transpose(inverse)
    return inverse @ transposed if upper else transposed @ inverse


def eig(a: Any) -> tuple[DistributedArray, ...]:
    """Return eigenvalues and eigenvectors, complex."""
    return tuple(gdt.linalg.eig(floats(a)))


def eigh(a: Any) -> tuple[DistributedArray, ...]:
    """Return eigenvalues and eigenvectors of symmetric matrices."""
    return tuple(gdt.linalg.eigh(floats(a)))


def lu_factor(a: Any) -> tuple[DistributedArray, DistributedArray]:
    """Return L and U in one matrix, and the row with which each row was exchanged; by elimination
    with partial pivoting, column by column, of all matrices of a stack at once."""
    lu = floats(a)
    rows, columns = gdt.arange(lu.shape[-2])[:, None], gdt.arange(lu.shape[-1])
    pivots = []
    for k in range(min(lu.shape[-2:])):
        sizes = gdt.where(rows < k, -1.0, gdt.abs(lu[..., k : k + 1]))
        pivot = gdt.argmax(sizes, axis=-2, keepdims=True)
        order = gdt.where(rows == k, pivot, gdt.where(rows == pivot, k, rows))
        lu = gdt.take_along_axis(lu, gdt.broadcast_to(order, lu.shape), axis=-2)
        row = lu[..., k : k + 1, :]
        factors = gdt.where(rows > k, lu[..., k : k + 1] / row[..., k : k + 1], 0)
        lu = gdt.where((rows > k) & (columns == k), factors, lu)
        lu = lu - factors * gdt.where(columns > k, row, 0)
        pivots.append(pivot[..., 0, 0])
    return lu, gdt.astype(gdt.stack(pivots, axis=-1), "int32")


def qr(x: Any, mode: str = "reduced") -> tuple[DistributedArray, ...]:
    """Return an orthonormal matrix and a triangular one whose product is `x`."""
    if mode not in ("reduced", "complete"):
        raise ValueError(
            "`mode` argument value not supported. Expected one of {'reduced', 'complete'}. "
            f"Received: mode={mode}"
        )
    return tuple(gdt.linalg.qr(floats(x), mode=mode))


def solve(a: Any, b: Any) -> DistributedArray:
    """Return the solution of a @ x = b."""
    a, b = promoted_arrays((floats(a), b))
    return gdt.linalg.solve(a, b[..., None])[..., 0] if b.ndim < a.ndim else gdt.linalg.solve(a, b)


def solve_triangular(a: Any, b: Any, lower: bool = False) -> DistributedArray:
    """Return the solution of a @ x = b of the lower or the upper triangle of a."""
    a = floats(a)
    return solve(gdt.tril(a) if lower else gdt.triu(a), b)


def svd(x: Any, full_matrices: bool = True, compute_uv: bool = True) -> Any:
    """Return the singular value decomposition, or the singular values alone."""
    out = gdt.linalg.svd(floats(x), full_matrices=full_matrices, compute_uv=compute_uv)
    return tuple(out) if compute_uv else out


def lstsq(a: Any, b: Any, rcond: float | None = None) -> DistributedArray:
    """Return the x for which a @ x is closest to b."""
    a, b = promoted_arrays((floats(a), b))
    return gdt.linalg.lstsq(a, b, rcond=rcond)[0]


def matrix_rank(x: Any, tol: Any = None) -> DistributedArray:
    """Return the number of singular values above a tolerance, int32."""
    return gdt.astype(gdt.linalg.matrix_rank(_matrices(x), tol=tol), "int32")


def pinv(x: Any, rcond: Any = None) -> DistributedArray:
    """Return the pseudo-inverse (Moore and Penrose)."""
    return gdt.linalg.pinv(_matrices(x), rcond=rcond)


def _matrices(x: Any) -> DistributedArray:
    x = floats(x)
    if x.ndim < 2:
        raise ValueError(f"Expected input to have rank >= 2. Received input with shape {x.shape}.")
    return x


def jvp(
    fun: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], has_aux: bool = False
) -> tuple[Any, ...]:
    """Return the results of `fun` and their derivatives along `tangents`; `has_aux`: and the second
    value that it returns."""
    primals, tangents = (tuple(convert_to_tensor(x) for x in xs) for xs in (primals, tangents))
    if not has_aux:
        return gdt.jvp(fun, primals, tangents)
    kept: list[Any] = []

    def without_aux(*args: Any) -> Any:
        out, aux = fun(*args)
        kept[:] = [aux]
        return out

    return (*gdt.jvp(without_aux, primals, tangents), *kept)
