"""The public decompositions: Cholesky, QR, singular values, eigenvalues."""

from __future__ import annotations

from typing import Any, NamedTuple

from gdt.array.array import DistributedArray
from gdt.array.registry import public_of
from gdt.engine.custom_vjp import custom_vjp
from gdt.errors import ArgumentError, LinAlgError, error
from gdt.linalg import blocked
from gdt.linalg.eigenvalues import (
    eig_of_whole,
    eigh_of_whole,
    eigvals_of_whole,
    eigvalsh_of_whole,
)
from gdt.linalg.operands import as_matrices, settled
from gdt.linalg.tall import qr_of_tall, rows_split
from gdt.linalg.whole import (
    adjoint,
    cholesky_gradient,
    cholesky_of_whole,
    conjugated,
    qr_of_whole,
    svd_of_whole,
    svdvals_of_whole,
)
from gdt.ops.products.op import matmul


class QRResult(NamedTuple):
    """The result of `gdt.linalg.qr`."""

    Q: DistributedArray
    R: DistributedArray


class SVDResult(NamedTuple):
    """The result of `gdt.linalg.svd`."""

    U: DistributedArray
    S: DistributedArray
    Vh: DistributedArray


class EighResult(NamedTuple):
    """The result of `gdt.linalg.eigh`."""

    eigenvalues: DistributedArray
    eigenvectors: DistributedArray


class EigResult(NamedTuple):
    """The result of `gdt.linalg.eig`."""

    eigenvalues: DistributedArray
    eigenvectors: DistributedArray


# ---------------------------------------------------------------- Cholesky


@custom_vjp
def _cholesky_of_split(x: DistributedArray) -> DistributedArray:
    try:
        return blocked.cholesky_by_panels(x)
    except LinAlgError:
        problem = "Matrix is not positive definite"
        raise error(LinAlgError, problem, operands={"x": x.type}) from None


_cholesky_of_split.vjp(conjugated(cholesky_gradient))


@public_of("linalg")
def cholesky(x: Any, *, upper: bool = False) -> DistributedArray:
    """The lower triangles L of positive definite Hermitian matrices x = L L^H; their adjoints if
    `upper`.

    x: (..., n, n), of which the lower triangles are read; result: alike. A stack that is split in
    front of its matrices is computed where it is. A large split matrix is factored panel by panel,
    and no device holds it whole; the result has split rows. The gradient is that of a matrix that
    stays Hermitian. On GPUs a matrix that is not positive definite gives NaN.

    Raises LinAlgError for a matrix that is not square or not positive definite.

    >>> gdt.linalg.cholesky([[4.0, 2.0], [2.0, 5.0]]).tolist()
    [[2.0, 0.0], [1.0, 2.0]]
    """
    (x,) = as_matrices("cholesky", square=True, x=x)
    if upper:  # NumPy reads the upper triangle then
        x = adjoint(x)
    lower: DistributedArray
    lower = _cholesky_of_split(x) if blocked.is_large(x) else cholesky_of_whole(settled(x))
    return adjoint(lower) if upper else lower


# ---------------------------------------------------------------- QR


@public_of("linalg")
def qr(x: Any, mode: str = "reduced") -> QRResult | DistributedArray:
    """Matrices as products of orthonormal columns Q and upper triangles R: x = Q R.

    x: (..., m, n). mode: `"reduced"` gives Q (..., m, k) and R (..., k, n) for k = min(m, n),
    `"complete"` (..., m, m) and (..., m, n), `"r"` R alone. The rows of a matrix with at least as
    many rows for each device as columns stay split (TSQR); others that are split are gathered. The
    signs are those of NumPy. `"complete"` has no gradient for m > n.

    Raises LinAlgError for a rank below 2, ArgumentError for another mode.

    >>> gdt.linalg.qr([[3.0], [4.0]]).R.round(3).tolist()
    [[-5.0]]
    """
    (x,) = as_matrices("qr", x=x)
    if mode not in ("reduced", "complete", "r"):
        remedy = "Use 'reduced', 'complete' or 'r'."
        raise error(ArgumentError, f"mode is {mode!r}", remedy=remedy)
    if mode == "complete" and x.shape[-2] > x.shape[-1]:
        return QRResult(*qr_of_whole(settled(x), complete=True))
    tall = rows_split(x)
    q, r = qr_of_whole(settled(x)) if tall is None else qr_of_tall(tall)
    return r if mode == "r" else QRResult(q, r)


# ---------------------------------------------------------------- singular values


@public_of("linalg")
def svd(
    x: Any, full_matrices: bool = True, compute_uv: bool = True, hermitian: bool = False
) -> SVDResult | DistributedArray:
    """The singular value decomposition x = U diag(S) Vh of matrices, largest values first.

    x: (..., m, n); U: (..., m, k), S: (..., k), Vh: (..., k, n) for k = min(m, n); with
    `full_matrices` U is (..., m, m) and Vh (..., n, n). compute_uv: if false, S alone is returned.
    hermitian: taken for NumPy's sake; the algorithm is the same.

    Without `full_matrices` the rows of a tall matrix stay split, as in `gdt.linalg.qr`. Other split
    matrices are gathered. The gradient needs singular values that differ; that of `full_matrices`
    exists for square matrices. Raises LinAlgError for a rank below 2, and where the algorithm does
    not converge.

    >>> gdt.linalg.svd([[3.0, 0.0], [0.0, 4.0]]).S.tolist()
    [4.0, 3.0]
    """
    (x,) = as_matrices("svd", x=x)
    if not compute_uv:
        return _svdvals(x)
    is_tall = not full_matrices or x.shape[-1] == x.shape[-2]
    tall = rows_split(x) if is_tall else None
    if tall is None:
        return SVDResult(*svd_of_whole(settled(x), full_matrices=full_matrices))
    q, r = qr_of_tall(tall)
    u, s, vh = svd_of_whole(r)
    return SVDResult(matmul(q, u), s, vh)


@public_of("linalg")
def svdvals(x: Any) -> DistributedArray:
    """The singular values of matrices (..., m, n), largest first: (..., min(m, n)).

    The rows of a tall matrix stay split, as in `gdt.linalg.qr`. Raises LinAlgError for a rank below
    2.

    >>> gdt.linalg.svdvals([[3.0, 0.0], [0.0, 4.0]]).tolist()
    [4.0, 3.0]
    """
    (x,) = as_matrices("svdvals", x=x)
    return _svdvals(x)


def _svdvals(x: DistributedArray) -> DistributedArray:
    tall = rows_split(x)
    return svdvals_of_whole(settled(x) if tall is None else qr_of_tall(tall)[1])


# ---------------------------------------------------------------- eigenvalues


@public_of("linalg")
def eigh(x: Any, UPLO: str = "L") -> EighResult:
    """Eigenvalues, in ascending order, and eigenvectors of Hermitian matrices.

    x: (..., n, n); eigenvalues: (..., n), real; eigenvectors: (..., n, n), one a column. UPLO: the
    triangle of `x` that is read, `"L"` or `"U"`. A stack that is split in front of its matrices is
    computed where it is; a split matrix is gathered, and every device holds it. The gradient is
    that of a matrix that stays Hermitian, and needs eigenvalues that differ.

    Raises LinAlgError for matrices that are not square, and where the algorithm does not converge.

    >>> gdt.linalg.eigh([[2.0, 0.0], [0.0, 1.0]]).eigenvalues.tolist()
    [1.0, 2.0]
    """
    (x,) = as_matrices("eigh", square=True, x=x)
    return EighResult(*eigh_of_whole(settled(x), UPLO=_triangle("eigh", UPLO)))


@public_of("linalg")
def eigvalsh(x: Any, UPLO: str = "L") -> DistributedArray:
    """Eigenvalues of Hermitian matrices; arguments, layouts and errors are those of
    `gdt.linalg.eigh`.

    >>> gdt.linalg.eigvalsh([[2.0, 0.0], [0.0, 1.0]]).tolist()
    [1.0, 2.0]
    """
    (x,) = as_matrices("eigvalsh", square=True, x=x)
    return eigvalsh_of_whole(settled(x), UPLO=_triangle("eigvalsh", UPLO))


def _triangle(name: str, uplo: str) -> str:
    if uplo not in ("L", "U", "l", "u"):
        raise error(ArgumentError, f"linalg.{name}", f"UPLO is {uplo!r}, not 'L' or 'U'")
    return uplo.upper()


@public_of("linalg")
def eig(x: Any) -> EigResult:
    """Eigenvalues and eigenvectors, of length 1, of square matrices.

    x: (..., n, n); eigenvalues: (..., n), eigenvectors: (..., n, n), one a column. Both are
    complex, also where NumPy gives real ones: a dtype does not depend on values. A split matrix is
    gathered. The phase of an eigenvector is arbitrary, and gradients are those of functions that do
    not depend on it.

    Raises LinAlgError for matrices that are not square, and for NaN or infinities.

    >>> gdt.linalg.eig([[2.0, 0.0], [0.0, 1.0]]).eigenvalues.tolist()
    [(2+0j), (1+0j)]
    """
    (x,) = as_matrices("eig", square=True, x=x)
    return EigResult(*eig_of_whole(settled(x)))


@public_of("linalg")
def eigvals(x: Any) -> DistributedArray:
    """Eigenvalues of square matrices, complex; layouts and errors are those of `gdt.linalg.eig`.

    >>> gdt.linalg.eigvals([[0.0, 1.0], [-1.0, 0.0]]).tolist()
    [1j, -1j]
    """
    (x,) = as_matrices("eigvals", square=True, x=x)
    return eigvals_of_whole(settled(x))
