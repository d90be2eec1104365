"""Products: matmul, einsum, tensordot and their relatives; diagonals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gdt.testing import Sample

_rng = np.random.default_rng(23)


def _real(*shape: int) -> np.ndarray:
    return _rng.standard_normal(shape)


def _ints(dtype: Any, *shape: int) -> np.ndarray:
    return _rng.integers(-5, 5, shape).astype(dtype)


def _samples(
    function: Callable[..., Any], *cases: tuple[np.ndarray, ...], **static: Any
) -> list[Sample]:
    """Samples equal to NumPy's function; exact for integers."""
    return [
        Sample(args, static, expect=function, exact=all(a.dtype.kind in "biu" for a in args))
        for args in cases
    ]


def _einsum(subscripts: str, *operands: np.ndarray, **static: Any) -> Sample:
    exact = all(a.dtype.kind in "biu" for a in operands)
    return Sample((subscripts, *operands), static, expect=np.einsum, exact=exact)


def _contract(x: np.ndarray, w: np.ndarray, terms: Any) -> np.ndarray:
    letters = ["".join(n or "" for n in term) for term in terms]
    return np.einsum(f"{letters[0]},{letters[1]}->{letters[2]}", x.squeeze(), w.squeeze())


_MATMUL = [
    *_samples(
        np.matmul,
        (_real(9, 8), _real(8, 5)),
        (_real(7), _real(7)),
        (_real(7), _real(7, 3)),
        (_real(4, 7), _real(7)),
        (_real(2, 3, 5), _real(5, 4)),
        (_real(5), _real(3, 5, 2)),
        (_real(3, 2, 5), _real(5)),
        (_real(3, 2, 5), _real(3, 5, 4)),
        (_real(2, 3, 5), _real(4, 1, 5, 2)),
        (_real(1, 3, 5), _real(6, 5, 2)),
        (_real(6, 5), _real(4, 5, 3)),
        (_real(3, 0), _real(0, 2)),
        (_real(0, 3), _real(3, 2)),
        (_real(1, 9), _real(9, 1)),
        (_ints(np.int8, 4, 9), _ints(np.int8, 9, 3)),
        (_ints(np.int64, 4, 6), _ints(np.uint8, 6, 3)),
        (_ints(np.int32, 2, 4, 6) > 0, _ints(np.int32, 2, 6, 3) > 0),
        (_ints(np.int32, 5, 9) > 3, _ints(np.int32, 9) > 3),
        (_real(4, 9).astype(np.float32), _real(9, 3).astype(np.float32)),
        (_real(4, 9).astype(np.float16), _real(9, 3).astype(np.float16)),
        (_ints(np.int8, 4, 9), _real(9, 3).astype(np.float32)),
    ),
    Sample((_real(3, 5) + 1j * _real(3, 5), _real(5, 2)), expect=np.matmul, grad=False),
]

_EINSUM = [
    _einsum("ij,jk->ik", _real(9, 4), _real(4, 5)),
    _einsum("ij,jk", _real(3, 4), _real(4, 5)),
    _einsum("ji,jk->ki", _real(9, 4), _real(9, 5)),
    _einsum("i,j->ji", _real(5), _real(3)),
    _einsum("i,i", _real(9), _real(9)),
    _einsum("bij,bkj->bik", _real(4, 2, 3), _real(4, 5, 3)),
    _einsum("...ij,...jk->...ik", _real(2, 3, 4), _real(5, 1, 4, 2)),
    _einsum("i...,...->i...", _real(3, 4), _real(4)),
    _einsum("b,a->b", _ints(np.int64, 2), np.full(9, 100, np.uint8)),
    _einsum("i,j->j", np.ones(9, bool), _real(3)),
    _einsum("i,i,i->i", *[np.full(9, 100, np.int8)] * 2, np.ones(9, np.int64)),
    _einsum("...i,i", _real(2, 3, 4), _real(4)),
    _einsum("ij,kl->il", _real(3, 4), _real(2, 5)),
    _einsum("ij,ij->ij", _real(9, 4), _real(9, 4)),
    _einsum("ij,jk->ik", _real(3, 1), _real(4, 5)),
    _einsum("ij,j->", _real(9, 4), _real(4)),
    _einsum("ij->", _real(9, 4)),
    _einsum("ijk->ki", _real(3, 4, 5)),
    _einsum("...j->j...", _real(3, 4, 5)),
    _einsum("ii", _real(9, 9)),
    _einsum("ii->i", _real(5, 5)),
    _einsum("iij->ji", _real(5, 5, 3)),
    _einsum("iii->i", _real(4, 4, 4)),
    _einsum("ii,ij->j", _real(5, 5), _real(5, 3)),
    _einsum("ij,jk,kl->il", _real(3, 4), _real(4, 5), _real(5, 2), optimize=True),
    _einsum("bi,ij,bj->b", _real(9, 3), _real(3, 4), _real(9, 4)),
    _einsum("a,b,c,a->bc", _real(3), _real(2), _real(4), _real(3)),
    _einsum(",i->i", np.array(2.0), _real(3)),
    _einsum("ij,j->i", _ints(np.int8, 4, 9) * np.int8(20), _ints(np.int8, 9)),
    _einsum("ij->i", _ints(np.int8, 4, 300)),
    _einsum("ij,kl->ik", _ints(np.int8, 3, 30) * np.int8(20), _ints(np.int8, 2, 5)),
    _einsum("ij,jk->ik", _ints(np.int8, 3, 5) > 2, _ints(np.int8, 5, 4) > 2),
    _einsum("ij->j", _ints(np.int8, 3, 5) > 2),
    _einsum("ij,jk->ik", _real(0, 4), _real(4, 5)),
]

SAMPLES: dict[str, list[Sample]] = {
    "matmul": _MATMUL,
    "einsum": _EINSUM,
    "contraction": [
        Sample(
            (_real(9, 4), _real(5, 4)), {"terms": (("i", "k"), ("j", "k"), ("j", "i"))}, _contract
        ),
        Sample((_real(1, 3), _real(5, 3)), {"terms": ((None, "k"), ("b", "k"), ("b",))}, _contract),
        Sample((_real(2, 3), _real(3, 4)), {"terms": (("a", "k"), ("k", "j"), ("j",))}, _contract),
    ],
    "tensordot": [
        *_samples(np.tensordot, (_real(3, 4, 5), _real(4, 5, 2))),
        *_samples(np.tensordot, (_real(3, 4), _real(2, 5)), axes=0),
        *_samples(np.tensordot, (_real(9, 4), _real(9, 3)), axes=(0, 0)),
        *_samples(np.tensordot, (_real(3, 4, 5), _real(5, 2, 3)), axes=([0, -1], [2, 0])),
        *_samples(np.tensordot, (_ints(np.int16, 3, 9), _ints(np.int16, 9, 2)), axes=1),
    ],
    "dot": _samples(
        np.dot,
        (_real(9), _real(9)),
        (_real(3, 4), _real(4)),
        (_real(3, 4), _real(4, 2)),
        (_real(2, 3, 4), _real(5, 4, 2)),
        (_real(3), np.array(2.0)),
    ),
    "inner": _samples(
        np.inner, (_real(9), _real(9)), (_real(3, 4), _real(2, 4)), (_real(3), np.array(2.0))
    ),
    "vdot": [
        *_samples(np.vdot, (_real(3, 4), _real(3, 4)), (_real(9), _real(9))),
        Sample((_real(5) + 1j * _real(5), _real(5) + 1j * _real(5)), expect=np.vdot, grad=False),
    ],
    "outer": _samples(
        np.outer,
        (_real(9), _real(4)),
        (_real(2, 3), _real(5)),
        (_ints(np.int8, 4), _ints(np.int8, 3)),
    ),
    "diagonal": [
        *_samples(
            np.diagonal, (_real(5, 5),), (_real(9, 4),), (_real(3, 4, 5),), (_ints(int, 4, 4),)
        ),
        *_samples(np.diagonal, (_real(9, 4),), offset=-2),
        *_samples(np.diagonal, (_real(4, 9),), offset=3),
        *_samples(np.diagonal, (_real(3, 4),), offset=7),
        *_samples(np.diagonal, (_real(3, 4, 5),), offset=1, axis1=-1, axis2=0),
    ],
    "trace": [
        *_samples(np.trace, (_real(9, 9),), (_real(3, 4, 5),), (_ints(np.int64, 4, 6),)),
        *_samples(np.trace, (_real(4, 4),), offset=-1),
    ],
}
