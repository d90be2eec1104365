"""Reshaping, transposing, broadcasting, relayout, and the matrix products that `@` is made of."""

from __future__ import annotations

from typing import Any

import numpy as np

from gdt.testing import Sample

_rng = np.random.default_rng(21)


def _real(*shape: int) -> np.ndarray:
    return _rng.standard_normal(shape)


def _reshaped(shape: tuple[int, ...], new: Any) -> Sample:
    return Sample((_real(*shape),), {"shape": new}, expect=np.reshape, exact=True)


def _squeezed(x: np.ndarray, **static: Any) -> Sample:
    return Sample((x,), static, expect=np.squeeze, exact=True)


_RESHAPES = [
    _reshaped((8, 6), (48,)),
    _reshaped((8, 6), (4, 2, 6)),  # the major part of a split axis
    _reshaped((8, 6), (2, -1)),
    _reshaped((8, 6), (6, 8)),  # no common boundary but a common factor
    _reshaped((9, 4), (6, 6)),
    _reshaped((7, 5), (35,)),
    _reshaped((7, 5), (5, 7)),  # nothing in common
    _reshaped((2, 3, 4), (6, 4)),
    _reshaped((24,), (2, 3, 4)),
    _reshaped((3, 1, 5), (3, 5)),
    _reshaped((3, 5), (1, 3, 1, 5, 1)),
    _reshaped((1,), ()),
    _reshaped((), (1, 1)),
    _reshaped((0, 4), (4, 0)),
    _reshaped((0, 4), (0,)),
    _reshaped((5, 4), 20),
]


def _views(function: Any, *cases: tuple[np.ndarray, str]) -> list[Sample]:
    return [
        Sample(
            (x,),
            {"dtype": np.dtype(to)},
            expect=function,
            exact=True,
            grad=(x.dtype.char + np.dtype(to).char) in ("dD", "Dd"),
        )
        for x, to in cases
    ]


SAMPLES = {
    "reshape": _RESHAPES,
    "view": _views(
        lambda x, dtype: x.view(dtype),
        (_real(7, 4), "int64"),
        (_real(7, 4), "int16"),
        (_real(8), "complex128"),
        (_real(3, 4) + 2j, "float64"),
        (np.arange(12, dtype="int32").reshape(3, 4), "int64"),
        (_real(0, 4), "int32"),
    ),
    "viewed": _views(lambda x, dtype: x.view(dtype), (_real(7, 4), "int64"), (_real(), "int64")),
    "viewed_in_parts": _views(
        lambda x, dtype: x[..., None].view(dtype),
        (_real(7, 4), "int32"),
        (_real(3), "uint8"),
        (_real(3, 5) + 2j, "float64"),
    ),
    "viewed_together": _views(
        lambda x, dtype: x.view(dtype)[..., 0],
        (np.arange(14, dtype="uint8").reshape(7, 2), "int16"),
        (np.arange(24, dtype="int16").reshape(2, 3, 4), "int64"),
        (_real(3, 5, 2), "complex128"),
    ),
    "expand_dims": [
        Sample((_real(7, 4),), {"axis": axis}, expect=np.expand_dims, exact=True)
        for axis in (0, 1, -1, (0, 3))
    ],
    "squeeze": [
        _squeezed(_real(1, 7, 1)),
        _squeezed(_real(1, 7, 1), axis=0),
        _squeezed(_real(1, 7, 1), axis=(0, -1)),
        _squeezed(_real(7, 4)),
    ],
    "transpose": [
        Sample((_real(7, 4),), expect=np.transpose, exact=True),
        Sample((_real(3, 4, 5),), {"axes": (1, -1, 0)}, expect=np.transpose, exact=True),
        Sample((_real(),), expect=np.transpose, exact=True),
    ],
    "broadcast_to": [
        Sample((_real(*shape),), {"shape": new}, expect=np.broadcast_to, exact=True)
        for shape, new in [
            ((4,), (7, 4)),
            ((7, 1), (7, 4)),
            ((), (3, 2)),
            ((1, 5), (2, 3, 5)),
            ((7, 4), (7, 4)),
            ((0, 1), (0, 3)),
        ]
    ],
    "matrix_product": [
        Sample((_real(8, 6), _real(6, 4)), expect=np.matmul),
        Sample((_real(7, 5), _real(5, 3)), expect=np.matmul),
        Sample((_real(2, 5, 3), _real(3, 4)), expect=np.matmul),
        Sample((_real(0, 3), _real(3, 2)), expect=np.matmul),
        Sample((_real(3, 0), _real(0, 2)), expect=np.matmul),
    ],
    "matrix_product_nt": [
        Sample((_real(8, 6), _real(4, 6)), expect=lambda x, w: x @ w.T),
        Sample((_real(2, 5, 3), _real(7, 3)), expect=lambda x, w: x @ w.T),
    ],
    "matrix_product_tn": [
        Sample((_real(8, 6), _real(8, 4)), expect=lambda x, w: x.T @ w),
        Sample(
            (_real(2, 5, 3), _real(2, 5, 4)), expect=lambda x, w: np.einsum("bki,bkj->ij", x, w)
        ),
    ],
}

ELSEWHERE = {
    "relayout": "tests/comm/test_relayout.py",
    "relayout_like": "tests/comm/test_relayout.py",
}
