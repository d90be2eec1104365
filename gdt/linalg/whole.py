"""Functions of matrices that every device holds whole: ops whose bodies are the library's.

Stacks of matrices may be split along the axes in front. Padding there becomes identity matrices,
so that no library complains about what is no matrix of the user's.

Gradients of complex functions follow JAX, as all of gdt's do. The formulas of decompositions are
written for cotangents that are conjugated on the way back, and `conjugated` stands between.
Sources: M. Giles, "An extended collection of matrix derivative results", 2008; C. Roberts and
L. Roberts, "QR and LQ decomposition matrix backpropagation algorithms", 2020.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.engine.declaration import FROM_ENGINE
from gdt.engine.op import op
from gdt.engine.plan import Shards
from gdt.errors import GradientError, error
from gdt.functions.vectors import matrix_transpose
from gdt.ops.comparison import where
from gdt.ops.creation import zeros_like
from gdt.ops.elementwise import conj, imag, like, real
from gdt.ops.indexing import getitem
from gdt.ops.joining import concat
from gdt.ops.matrices import eye, tril
from gdt.ops.products.op import diagonal, matmul
from gdt.ops.reductions import sum_
from gdt.ops.shapes import expand_dims
from gdt.sharding.array_type import ArrayType
from gdt.sharding.layout import Layout
from gdt.sharding.rule import RuleSpec

Block = Any


def library(xp: Any, name: str, x: Block, shards: Shards, **options: Any) -> Any:
    """Call the function `name` of `xp.linalg` on stacks of matrices, with their padding filled."""
    return getattr(xp.linalg, name)(_filled(xp, x, shards), **options)


def _filled(xp: Any, x: Block, shards: Shards) -> Block:
    """Return `x` with identity matrices in the padding of the axes in front of the matrices."""
    mask, rank = None, x.ndim - next(iter(shards.valid.values())).ndim
    for i in range(1, rank - 1):  # the axes in front of the matrices, from the last one on
        if f"...{i}" not in shards.uneven:
            continue
        axis, valid = -2 - i, shards.valid[f"...{i}"]
        valid = valid.reshape(valid.shape + (1,) * rank)
        inside = xp.arange(x.shape[axis]).reshape(-1, *(1,) * (-axis - 1)) < valid
        mask = inside if mask is None else mask & inside
    return x if mask is None else xp.where(mask, x, xp.eye(*x.shape[-2:], dtype=x.dtype))


# ---------------------------------------------------------------- transposes and diagonals


def adjoint(x: DistributedArray) -> DistributedArray:
    """The conjugate transposes of matrices."""
    return _conj(x.mT)


def _conj(x: DistributedArray) -> DistributedArray:
    return conj(x) if x.dtype.kind == "c" else x


def as_columns(values: DistributedArray) -> DistributedArray:
    """(..., n) as (..., 1, n), which scales the columns of matrices."""
    return expand_dims(values, -2)


def diagonals(matrices: DistributedArray) -> DistributedArray:
    """The diagonals of matrices: (..., n, n) as (..., n)."""
    return diagonal(matrices, axis1=-2, axis2=-1)


def identity_like(x: DistributedArray, n: int) -> DistributedArray:
    """The (n, n) identity in the dtype and on the mesh of `x`, replicated."""
    return eye(n, dtype=x.dtype, layout=Layout.replicated(x.mesh, 2))


def with_diagonals(matrices: DistributedArray, values: Any) -> DistributedArray:
    """Matrices (..., n, n) with `values` (..., n) in the places of their diagonals."""
    is_diagonal = identity_like(matrices, matrices.shape[-1]) == 1
    return where(is_diagonal, values if np.ndim(values) == 0 else as_columns(values), matrices)


def conjugated(formula: Callable[..., Any]) -> Callable[..., Any]:
    """Make a gradient in gdt's convention from a formula of cotangents that are conjugated."""

    def vjp(g: Any, out: Any, *operands: Any, **static: Any) -> DistributedArray:
        parts = g if isinstance(g, tuple) else (g,)
        outs = out if isinstance(out, tuple) else (out,)
        cotangents = [
            zeros_like(o) if part is None else _conj(part)
            for part, o in zip(parts, outs, strict=True)
        ]
        cotangent = formula(tuple(cotangents), outs, *operands, **static)
        return like(_conj(cotangent), operands[0])

    return vjp


# ---------------------------------------------------------------- inverses and determinants


@op("... i j -> ... i j", whole="i j")
def inv_of_whole(xp: Any, x: Block, /, *, shards: Shards = FROM_ENGINE) -> Block:
    """`gdt.linalg.inv` of whole matrices.

    >>> gdt.linalg.whole.inv_of_whole(gdt.asarray([[2.0]])).tolist()
    [[0.5]]
    """
    return library(xp, "inv", x, shards)


inv_of_whole.vjp(lambda g, out, x: like(-matmul(matmul(out.mT, g), out.mT), x))


@op("... i j, ... j k -> ... i k", whole="i j", linear="y")
def solve_of_whole(xp: Any, x: Block, y: Block, /, *, shards: Shards = FROM_ENGINE) -> Block:
    """`gdt.linalg.solve` of whole matrices `x` and columns `y`, which may be split.

    >>> gdt.linalg.whole.solve_of_whole(gdt.asarray([[2.0]]), gdt.asarray([[3.0]])).tolist()
    [[1.5]]
    """
    batch = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    x = _filled(xp, x, shards)
    x = xp.broadcast_to(x, (*np.broadcast_shapes(batch, x.shape[:-2]), *x.shape[-2:]))
    return xp.linalg.solve(x, xp.broadcast_to(y, (*x.shape[:-2], *y.shape[-2:])))


def _solve_vjp(g: Any, out: Any, x: Any, y: Any) -> tuple[DistributedArray, DistributedArray]:
    columns = solve_of_whole(x.mT, g)
    return like(-matmul(columns, out.mT), x), like(columns, y)


solve_of_whole.vjp(joint=_solve_vjp)


@op("... i j -> ...", whole="i j")
def det_of_whole(xp: Any, x: Block, /, *, shards: Shards = FROM_ENGINE) -> Block:
    """`gdt.linalg.det` of whole matrices.

    >>> gdt.linalg.whole.det_of_whole(gdt.asarray([[2.0]])).tolist()
    2.0
    """
    return library(xp, "det", x, shards)


def along_matrices(values: DistributedArray) -> DistributedArray:
    """One number for each matrix, (...), as (..., 1, 1)."""
    return expand_dims(values, (-2, -1))


@op("... i j -> ... i j", whole="i j")
def cofactors_of_whole(xp: Any, x: Block, /, *, shards: Shards = FROM_ENGINE) -> Block:
    """The cofactors of whole matrices, singular ones too: the gradients of their determinants.

    >>> x = gdt.asarray([[1.0, 2.0], [2.0, 4.0]])
    >>> gdt.linalg.whole.cofactors_of_whole(x).round(3).tolist()
    [[4.0, -2.0], [-2.0, 1.0]]
    """
    x = _filled(xp, x, shards)
    if xp is not np:  # how many are singular would have to be asked
        return _cofactors_by_svd(xp, x)
    determinants = np.linalg.det(x)
    is_singular = determinants == 0
    regular = np.where(is_singular[..., None, None], np.eye(x.shape[-1], dtype=x.dtype), x)
    cofactors = determinants[..., None, None] * np.linalg.inv(regular).mT
    if is_singular.any():
        cofactors[is_singular] = _cofactors_by_svd(np, x[is_singular])
    return cofactors


def _cofactors_by_svd(xp: Any, x: Block) -> Block:
    """Cofactors of a product are the products of cofactors; those of a unitary matrix are its
    conjugate times its determinant."""
    u, s, vh = xp.linalg.svd(x)
    is_own = xp.eye(x.shape[-1], dtype=bool)
    others = xp.where(is_own, s.dtype.type(1), s[..., None, :]).prod(axis=-1)
    scale = xp.linalg.det(u) * xp.linalg.det(vh)
    return scale[..., None, None] * xp.matmul(xp.conj(u) * others[..., None, :], xp.conj(vh))


det_of_whole.vjp(lambda g, out, x: like(along_matrices(g) * cofactors_of_whole(x), x))


def _cofactors_vjp(g: Any, out: Any, x: Any) -> DistributedArray:
    transposed = inv_of_whole(x).mT
    along_inverse = along_matrices(sum_(g * out, axis=(-2, -1))) * transposed
    return like(along_inverse - matmul(matmul(transposed, g.mT), out), x)


cofactors_of_whole.vjp(_cofactors_vjp)


@op("... i j -> ..., ...", outputs=2, whole="i j")
def slogdet_of_whole(xp: Any, x: Block, /, *, shards: Shards = FROM_ENGINE) -> tuple[Block, ...]:
    """`gdt.linalg.slogdet` of whole matrices.

    >>> [out.tolist() for out in gdt.linalg.whole.slogdet_of_whole(gdt.asarray([[-1.0]]))]
    [-1.0, 0.0]
    """
    return tuple(library(xp, "slogdet", x, shards))


def slogdet_gradient(g: Any, out: Any, inverse: DistributedArray) -> DistributedArray:
    """The cotangent of a matrix from those of its determinant's sign and logarithm."""
    sign, logarithm = out
    slope = zeros_like(logarithm) if g[1] is None else g[1]
    if g[0] is not None and sign.dtype.kind == "c":
        slope = slope - 1j * real(1j * g[0] * sign)
    return along_matrices(slope) * matrix_transpose(inverse)


slogdet_of_whole.vjp(lambda g, out, x: like(slogdet_gradient(g, out, inv_of_whole(x)), x))


# ---------------------------------------------------------------- triangles


@op("... i j -> ... i j", whole="i j")
def cholesky_of_whole(xp: Any, x: Block, /, *, shards: Shards = FROM_ENGINE) -> Block:
    """`gdt.linalg.cholesky` of whole matrices: lower triangles.

    >>> gdt.linalg.whole.cholesky_of_whole(gdt.asarray([[4.0]])).tolist()
    [[2.0]]
    """
    return library(xp, "cholesky", x, shards)


def cholesky_gradient(
    g: tuple[DistributedArray], out: tuple[DistributedArray], x: DistributedArray
) -> DistributedArray:
    """The cotangent of a matrix from that of its triangle, where the matrix stays Hermitian (Giles
    2008, section 2.2)."""
    (lower,) = out
    inner = tril(matmul(adjoint(lower), g[0]))
    inner = with_diagonals(inner, real(diagonals(inner)) / 2)
    # L^-H inner L^-1
    half = solve_of_whole(adjoint(lower), inner)
    full = adjoint(solve_of_whole(adjoint(lower), adjoint(half)))
    return (full + adjoint(full)) / 2


cholesky_of_whole.vjp(conjugated(cholesky_gradient))


def _qr_rule(array_type: ArrayType, *, complete: bool = False) -> RuleSpec:
    sizes = {"k": array_type.shape[-2]} if complete else _reduced_sizes(array_type)
    return RuleSpec("... m n -> ... m k, ... k n", sizes, frozenset("mnk"))


def _reduced_sizes(array_type: ArrayType) -> dict[str, int]:
    return {"k": min(array_type.shape[-2:])}


@op(_qr_rule, outputs=2)
def qr_of_whole(
    xp: Any, x: Block, /, complete: bool = False, *, shards: Shards = FROM_ENGINE
) -> tuple[Block, ...]:
    """`gdt.linalg.qr` of whole matrices, in the reduced or the complete mode.

    >>> [out.shape for out in gdt.linalg.whole.qr_of_whole(gdt.ones((3, 2)))]
    [(3, 2), (2, 2)]
    """
    return tuple(library(xp, "qr", x, shards, mode="complete" if complete else "reduced"))


def qr_gradient(
    g: tuple[DistributedArray, ...],
    out: tuple[DistributedArray, ...],
    x: DistributedArray,
    *,
    complete: bool = False,
) -> DistributedArray:
    """The cotangent of a matrix from those of Q and R (Roberts and Roberts 2020: section 3 for tall
    matrices, section 4 for wide ones)."""
    g_q, g_r = g
    q, r = out
    rows, columns = x.shape[-2:]
    if complete and rows > columns:
        raise error(
            GradientError,
            "linalg.qr",
            "the mode 'complete' of matrices with more rows than columns has no gradient",
            operands={"x": x.type},
            remedy="Use the mode 'reduced'.",
        )
    if rows >= columns:
        return _tall_gradient(g_q, g_r, q, r)
    left, right = (..., slice(rows)), (..., slice(rows, None))
    g_q = g_q + matmul(getitem(x, right), adjoint(getitem(g_r, right)))
    first = _tall_gradient(g_q, getitem(g_r, left), q, getitem(r, left))
    return concat([first, matmul(q, getitem(g_r, right))], -1)


def _tall_gradient(
    g_q: DistributedArray, g_r: DistributedArray, q: DistributedArray, r: DistributedArray
) -> DistributedArray:
    inner = matmul(r, adjoint(g_r)) - matmul(adjoint(g_q), q)
    lower = tril(inner, k=-1)
    hermitian = with_diagonals(lower + adjoint(lower), real(diagonals(inner)))
    return adjoint(solve_of_whole(r, adjoint(g_q + matmul(q, hermitian))))


qr_of_whole.vjp(conjugated(qr_gradient))


# ---------------------------------------------------------------- singular values


def _svd_rule(array_type: ArrayType, *, full_matrices: bool = False) -> RuleSpec:
    k = _reduced_sizes(array_type)["k"]
    p, q = array_type.shape[-2:] if full_matrices else (k, k)
    text = "... m n -> ... m p, ... k, ... q n"
    return RuleSpec(text, {"k": k, "p": p, "q": q}, frozenset("mnkpq"))


@op(_svd_rule, outputs=3)
def svd_of_whole(
    xp: Any, x: Block, /, full_matrices: bool = False, *, shards: Shards = FROM_ENGINE
) -> tuple[Block, ...]:
    """`gdt.linalg.svd` of whole matrices.

    >>> [out.shape for out in gdt.linalg.whole.svd_of_whole(gdt.ones((3, 2)))]
    [(3, 2), (2,), (2, 2)]
    """
    return tuple(library(xp, "svd", x, shards, full_matrices=full_matrices))


def _svd_gradient(
    g: tuple[DistributedArray, ...],
    out: tuple[DistributedArray, ...],
    x: DistributedArray,
    *,
    full_matrices: bool = False,
) -> DistributedArray:
    """The cotangent of a matrix from those of U, s and V^H (Giles 2008, section 3.2), with the
    parts outside of the spaces of U and V."""
    rows, columns = x.shape[-2:]
    if full_matrices and rows != columns:
        raise error(
            GradientError,
            "linalg.svd",
            "full_matrices=True of matrices that are not square has no gradient",
            operands={"x": x.type},
            remedy="Use full_matrices=False.",
        )
    g_u, g_s, g_vh = g
    u, s, vh = out
    least, square = min(rows, columns), as_columns(s * s)
    gaps = with_diagonals(square - square.mT, 1.0)
    left, right = matmul(adjoint(u), g_u), matmul(vh, adjoint(g_vh))
    left, right = left - adjoint(left), right - adjoint(right)
    inner = left / gaps * as_columns(s) + as_columns(s).mT * (right / gaps)
    on_diagonal = g_s if u.dtype.kind != "c" else g_s + 1j * imag(diagonals(left)) / (2 * s)
    inner = with_diagonals(inner, on_diagonal)
    between = matmul(u, inner)
    if rows > least:
        between = between + (g_u - matmul(u, matmul(adjoint(u), g_u))) / as_columns(s)
    cotangent = matmul(between, vh)
    if columns > least:
        beyond = g_vh - matmul(matmul(g_vh, adjoint(vh)), vh)
        cotangent = cotangent + matmul(u / as_columns(s), beyond)
    return cotangent


svd_of_whole.vjp(conjugated(_svd_gradient))


def _svdvals_rule(array_type: ArrayType) -> RuleSpec:
    return RuleSpec("... m n -> ... k", _reduced_sizes(array_type), frozenset("mnk"))


@op(_svdvals_rule)
def svdvals_of_whole(xp: Any, x: Block, /, *, shards: Shards = FROM_ENGINE) -> Block:
    """`gdt.linalg.svdvals` of whole matrices.

    >>> gdt.linalg.whole.svdvals_of_whole(gdt.asarray([[2.0]])).tolist()
    [2.0]
    """
    return library(xp, "svd", x, shards, compute_uv=False)


def svdvals_gradient(
    g: tuple[DistributedArray], out: object, x: DistributedArray
) -> DistributedArray:
    """The sum of g times the dyads of singular vectors."""
    u, _, vh = svd_of_whole(x)
    return matmul(u * as_columns(g[0]), vh)


svdvals_of_whole.vjp(conjugated(svdvals_gradient))
