"""Linear algebra, compared with `numpy.linalg`; large split matrices, and gradients of matrices
that stay Hermitian, are in `tests/linalg/test_linalg.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gdt.testing import Sample

_rng = np.random.default_rng(83)


def _real(*shape: int) -> np.ndarray:
    return _rng.standard_normal(shape)


def _regular(*shape: int) -> np.ndarray:
    """Matrices whose singular values and eigenvalues lie apart."""
    return _real(*shape) / 4 + np.diag(1.0 + np.arange(shape[-1]))


def _hermitian(*shape: int) -> np.ndarray:
    x = _regular(*shape)
    return x + x.swapaxes(-1, -2) + shape[-1] * np.eye(shape[-1])


def _tuple(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that returns tuples without names."""

    def plain(*args: Any, **static: Any) -> Any:
        out = function(*args, **static)
        return tuple(out) if isinstance(out, tuple) else out

    return plain


def _of(name: str, *samples: tuple[Any, ...], grad: bool = True, **static: Any) -> list[Sample]:
    expect = _tuple(getattr(np.linalg, name))
    return [Sample(args, static, expect=expect, grad=grad) for args in samples]


def _eig(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    values, vectors = np.linalg.eig(x)
    return values.astype(complex), vectors.astype(complex)


def _cofactors(x: np.ndarray) -> np.ndarray:
    """Determinants of what is left without a row and a column, with their signs."""
    out = np.empty_like(x)
    for i, j in np.ndindex(x.shape[-2:]):
        minor = np.delete(np.delete(x, i, axis=-2), j, axis=-1)
        out[..., i, j] = (-1) ** (i + j) * np.linalg.det(minor)
    return out


_stack, _tall, _wide = _regular(3, 4, 4), _real(9, 2), _real(2, 5)
_columns = _real(3, 4, 2)

SINGULAR = np.array(
    [
        [[1.0, 2.0, 0.0], [0.0, 1.0, 1.0], [1.0, 0.0, 1.0]],
        [[0.0, 2.0, 3.0], [0.0, 1.0, 1.0], [0.0, 4.0, 6.0]],
        [[0.0, 0.0, 0.0], [0.0, 1.0, 1.0], [0.0, 2.0, 2.0]],
    ]
)  # of rank 3, 2 and 1

SAMPLES: dict[str, list[Sample]] = {
    "inv_of_whole": _of("inv", (_stack,)),
    "linalg.solve": _of(
        "solve", (_stack, _columns), (_regular(5, 5), _real(5)), (_stack[None], _real(4))
    ),
    "solve_of_whole": _of("solve", (_stack, _columns), (_stack[0], _columns)),
    "det_of_whole": _of("det", (_stack,)),
    "cofactors_of_whole": [
        Sample((_regular(3, 3, 3),), expect=_cofactors),
        Sample((SINGULAR,), expect=_cofactors, grad=False),
        Sample((SINGULAR[1:] * (1 + 2j),), expect=_cofactors, grad=False),
    ],
    "slogdet_of_whole": _of("slogdet", (_stack,)),
    "linalg.qr": [
        *_of("qr", (_stack,), (_tall,), (_wide,)),
        *_of("qr", (_tall,), mode="complete", grad=False),
    ],
    "qr_of_whole": [
        Sample((_real(2, 4, 3),), {"complete": False}, expect=lambda x, complete: np.linalg.qr(x))
    ],
    "linalg.svd": [
        *_of("svd", (_stack,)),
        *_of("svd", (_wide,), full_matrices=False),
        *_of("svd", (_wide,), grad=False),
    ],
    "svd_of_whole": _of("svd", (_real(2, 4, 3),), full_matrices=False),
    "linalg.svdvals": _of("svdvals", (_stack,), (_tall,)),
    "svdvals_of_whole": _of("svdvals", (_stack,)),
    "eigh_of_whole": _of("eigh", (_hermitian(3, 4, 4),), grad=False),
    "eigvalsh_of_whole": _of("eigvalsh", (_hermitian(3, 4, 4),), grad=False),
    "eig_of_whole": [Sample((_stack,), expect=_eig)],
    "eigvals_of_whole": [Sample((_stack,), expect=lambda x: _eig(x)[0])],
    "linalg.pinv": _of("pinv", (_stack,), (_tall,), (_real(0, 2),)),
    "linalg.lstsq": [
        Sample((_tall, _real(9)), expect=_tuple(np.linalg.lstsq)),
        Sample((_wide, _real(2, 3)), expect=_tuple(np.linalg.lstsq)),
        Sample((_stack[0], _real(4)), expect=_tuple(np.linalg.lstsq)),
        Sample((_tall * 1e-20, _real(9) * 1e-20), expect=_tuple(np.linalg.lstsq), grad=False),
    ],
    "linalg.matrix_rank": _of("matrix_rank", (np.ones((2, 3, 3)),), (np.zeros(3),)),
    "linalg.cond": [*_of("cond", (_stack,)), *_of("cond", (_stack,), p="fro")],
    "linalg.tensorsolve": _of("tensorsolve", (_regular(6, 6).reshape(2, 3, 6), _real(2, 3))),
    "linalg.tensorinv": _of("tensorinv", (_regular(4, 4).reshape(2, 2, 4),)),
    "linalg.matrix_power": [
        *_of("matrix_power", (_stack,), n=3),
        *_of("matrix_power", (_stack,), n=-1),
        *_of("matrix_power", (np.array([[1, 1], [0, 1]]),), n=0),
    ],
    "linalg.multi_dot": [
        Sample(([_real(4), _real(4, 3), _real(3, 5)],), expect=np.linalg.multi_dot),
        Sample(([_real(4, 3), _real(3, 5), _real(5, 2), _real(2)],), expect=np.linalg.multi_dot),
    ],
    "linalg.norm": [
        *_of("norm", (_stack,)),
        *_of("norm", (_stack,), ord=1, axis=(0, 2), keepdims=True),
        *_of("norm", (_tall,), ord=1, axis=(1, 0)),
        *_of("norm", (_tall,), ord=-np.inf, axis=0),
        *_of("norm", (_tall,), ord="nuc"),
    ],
    "linalg.vector_norm": [
        *_of("vector_norm", (_stack,), ord=3, axis=(0, 1)),
        *_of("vector_norm", (_stack,), ord=np.inf, keepdims=True),
        *_of("vector_norm", (np.eye(3),), ord=0, axis=1, grad=False),
    ],
    "linalg.matrix_norm": [
        *_of("matrix_norm", (_stack,), keepdims=True),
        *_of("matrix_norm", (_stack,), ord=-2),
        *_of("matrix_norm", (_stack,), ord=np.inf),
    ],
    "vecdot": [
        Sample((_stack, _real(4)), expect=np.vecdot),
        Sample((_stack, _real(3, 1, 1)), {"axis": 0}, expect=lambda x, w, axis: (x * w).sum(axis)),
    ],
    "cross": [Sample((_real(5, 3), _real(3)), expect=np.cross)],
    "matrix_transpose": [Sample((_stack,), expect=np.matrix_transpose, exact=True)],
}

OF_SQUARES = ("inv", "det", "slogdet", "eigh", "eigvalsh", "eig", "eigvals")
"""Functions that bring matrices where they fit and call the op of whole ones."""

ELSEWHERE = dict.fromkeys(
    ["cholesky_of_whole", "linalg.cholesky"]  # few matrices are positive definite
    + [f"linalg.{name}" for name in OF_SQUARES]
    + [
        f"linalg.{name}"
        for name in (
            "cross", "diagonal", "matmul", "matrix_transpose", "outer", "tensordot", "trace",
            "vecdot",
        )
    ],
    "tests/linalg/test_linalg.py",
)  # fmt: skip
