"""update_at, which `x.at[index]` and `x[index] = value` call."""

from __future__ import annotations

from typing import Any

import numpy as np

from gdt.testing import Sample

_rng = np.random.default_rng(22)
_UFUNCS = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide,
    "min": np.minimum, "max": np.maximum,
}  # fmt: skip


def _updated(x: np.ndarray, value: Any, index: Any, how: str = "set") -> np.ndarray:
    out = x.copy()
    if how == "set":
        out[index] = value
    else:  # a value that broadcasts makes numpy.add.at read beyond it
        wide = np.broadcast_to(np.asarray(value, x.dtype), x[index].shape).copy()
        _UFUNCS[how].at(out, index, wide)
    return out


def _sample(x: np.ndarray, value: Any, index: Any, how: str = "set") -> Sample:
    return Sample((x, value), {"index": index, "how": how}, _updated, exact=how in ("set", "max"))


def _real(*shape: int) -> np.ndarray:
    return _rng.standard_normal(shape)


_LINE, _MATRIX, _CUBE = _real(11), _real(9, 5), _real(4, 3, 6)
_MASK = _MATRIX > 0.3

SAMPLES: dict[str, list[Sample]] = {
    "update_at": [
        _sample(_LINE, 2.5, 3),
        _sample(_LINE, _real(3), slice(8, 1, -3)),
        _sample(_LINE, _real(11), slice(None, None, -1)),
        _sample(_MATRIX, _real(3, 1), (slice(1, 7, 2), slice(1, 4)), "add"),
        _sample(_MATRIX, _real(1, 4), (2, None, slice(4, 0, -1)), "multiply"),
        _sample(_MATRIX, _real(5), (-9, ...), "subtract"),
        _sample(_LINE, _real(2, 3), np.array([[1, 4, 1], [-1, 4, 1]])),
        _sample(_LINE, _real(2, 3), np.array([[1, 4, 1], [-1, 4, 1]]), "add"),
        _sample(_LINE, _real(5), [3, 0, 3, 9, 3], "multiply"),
        _sample(_LINE, _real(5), [3, 0, 3, 9, 3], "divide"),
        _sample(_MATRIX, _real(2, 5), ([7, 7],), "max"),
        _sample(_MATRIX, _real(3), ([0, 8, 3], [4, 1, 1]), "min"),
        _sample(_MATRIX, _real(2), (slice(1, 7), [0, 3]), "subtract"),
        _sample(_CUBE, _real(2, 3), ([0, 2], slice(None), 2)),
        _sample(_CUBE, _real(2, 3), ([1, 2], slice(None), [0, 5])),
        _sample(_MATRIX, -1.0, _MASK),
        _sample(_MATRIX, _real(int(_MASK.sum())), _MASK, "add"),
        _sample(_MATRIX, _real(5), _MATRIX[:, 0] > 0, "max"),
        _sample(_MATRIX, _real(2), (slice(0, 0), [1, 2])),
        _sample(_rng.integers(0, 99, 7), 3, slice(1, 6, 2), "multiply"),
    ]
}

ELSEWHERE = dict.fromkeys(
    ("copyto", "fill_diagonal", "place", "put", "put_along_axis", "putmask"),
    "tests/ops/test_writing.py",
)
