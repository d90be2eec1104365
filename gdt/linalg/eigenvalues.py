"""Eigenvalues and eigenvectors of matrices that every device holds whole, as `gdt.linalg.whole`."""

from __future__ import annotations

from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.engine.declaration import FROM_ENGINE
from gdt.engine.op import op
from gdt.engine.plan import Shards
from gdt.linalg.whole import (
    adjoint,
    as_columns,
    conjugated,
    diagonals,
    library,
    solve_of_whole,
    with_diagonals,
)
from gdt.ops.elementwise import conj, real
from gdt.ops.products.op import matmul

Block = Any


@op("... i j -> ... i, ... i j", outputs=2, whole="i j")
def eigh_of_whole(
    xp: Any, x: Block, /, UPLO: str = "L", *, shards: Shards = FROM_ENGINE
) -> tuple[Block, ...]:
    """`gdt.linalg.eigh` of whole matrices.

    >>> [out.tolist() for out in gdt.linalg.eigenvalues.eigh_of_whole(gdt.asarray([[2.0]]))]
    [[2.0], [[1.0]]]
    """
    return tuple(library(xp, "eigh", x, shards, UPLO=UPLO))


def _eigh_gradient(
    g: tuple[DistributedArray, ...],
    out: tuple[DistributedArray, ...],
    x: DistributedArray,
    *,
    UPLO: str = "L",
) -> DistributedArray:
    """The cotangent of a matrix from those of its eigenvalues and eigenvectors, where the matrix
    stays Hermitian (Giles 2008, section 3.1)."""
    values, vectors = out
    gaps = with_diagonals(as_columns(values) - as_columns(values).mT, 1.0)
    inner = with_diagonals(matmul(adjoint(vectors), g[1]) / gaps, g[0])
    full = matmul(matmul(vectors, inner), adjoint(vectors))
    return (full + adjoint(full)) / 2


eigh_of_whole.vjp(conjugated(_eigh_gradient))


@op("... i j -> ... i", whole="i j")
def eigvalsh_of_whole(
    xp: Any, x: Block, /, UPLO: str = "L", *, shards: Shards = FROM_ENGINE
) -> Block:
    """`gdt.linalg.eigvalsh` of whole matrices.

    >>> gdt.linalg.eigenvalues.eigvalsh_of_whole(gdt.asarray([[2.0]])).tolist()
    [2.0]
    """
    return library(xp, "eigvalsh", x, shards, UPLO=UPLO)


def _eigvalsh_gradient(
    g: tuple[DistributedArray], out: object, x: DistributedArray, *, UPLO: str = "L"
) -> DistributedArray:
    _, vectors = eigh_of_whole(x, UPLO=UPLO)
    return matmul(vectors * as_columns(g[0]), adjoint(vectors))


eigvalsh_of_whole.vjp(conjugated(_eigvalsh_gradient))


def _complex(xp: Any, values: Block) -> Block:
    """Cast to a complex dtype: NumPy gives real eigenvalues where all of a block are real."""
    return values.astype(xp.result_type(values.dtype, np.complex64))


@op("... i j -> ... i, ... i j", outputs=2, whole="i j")
def eig_of_whole(xp: Any, x: Block, /, *, shards: Shards = FROM_ENGINE) -> tuple[Block, ...]:
    """`gdt.linalg.eig` of whole matrices.

    >>> [out.tolist() for out in gdt.linalg.eigenvalues.eig_of_whole(gdt.asarray([[2.0]]))]
    [[(2+0j)], [[(1+0j)]]]
    """
    values, vectors = library(xp, "eig", x, shards)
    return _complex(xp, values), _complex(xp, vectors)


def _eig_gradient(
    g: tuple[DistributedArray, ...], out: tuple[DistributedArray, ...], x: DistributedArray
) -> DistributedArray:
    """The cotangent of a matrix from those of its eigenvalues and its eigenvectors of length 1
    (C. Boeddeker et al., "On the computation of complex-valued gradients", 2017, section 4.6)."""
    values, vectors = out
    inner = matmul(adjoint(vectors), g[1])
    gram = matmul(adjoint(vectors), vectors)
    inner = inner - gram * as_columns(real(diagonals(inner)))
    gaps = as_columns(values) - as_columns(values).mT
    inner = with_diagonals(inner / conj(with_diagonals(gaps, 1.0)), g[0])
    return solve_of_whole(adjoint(vectors), matmul(inner, adjoint(vectors)))


eig_of_whole.vjp(conjugated(_eig_gradient))


@op("... i j -> ... i", whole="i j")
def eigvals_of_whole(xp: Any, x: Block, /, *, shards: Shards = FROM_ENGINE) -> Block:
    """`gdt.linalg.eigvals` of whole matrices.

    >>> gdt.linalg.eigenvalues.eigvals_of_whole(gdt.asarray([[2.0]])).tolist()
    [(2+0j)]
    """
    return _complex(xp, library(xp, "eigvals", x, shards))


def _eigvals_gradient(
    g: tuple[DistributedArray], out: object, x: DistributedArray
) -> DistributedArray:
    _, vectors = eig_of_whole(x)
    return solve_of_whole(adjoint(vectors), as_columns(g[0]).mT * adjoint(vectors))


eigvals_of_whole.vjp(conjugated(_eigvals_gradient))
