"""Searching in sorted arrays, and sets."""

from __future__ import annotations

from typing import Any

import numpy as np

from gdt.testing import Sample

_rng = np.random.default_rng(25)
_INTS, _FEW = _rng.integers(0, 20, 41), _rng.integers(0, 20, 13)
_MATRIX, _ROWS = _rng.integers(0, 9, (7, 5)), _rng.integers(0, 2, (17, 3))
_FLOATS = np.round(_rng.standard_normal(29), 1)
_NAN = np.where(_rng.random(29) < 0.3, np.nan, _FLOATS)
_KNOTS = np.linspace(-1.5, 1.5, 4)
_EMPTY = np.zeros(0)


def _of(function: Any, *args: Any, **static: Any) -> Sample:
    return Sample(args, static, function, grad=False, exact=True)


def _as_tuple(function: Any) -> Any:
    return lambda *args, **static: tuple(function(*args, **static))


def _ascending(x: np.ndarray) -> np.ndarray:
    return np.sort(np.unique_values(x))


SAMPLES: dict[str, list[Sample]] = {
    "searchsorted": [
        _of(np.searchsorted, np.sort(_FLOATS), _FLOATS[:11]),
        _of(np.searchsorted, np.sort(_INTS), _MATRIX, side="right"),
        _of(np.searchsorted, np.sort(_NAN), _NAN),
        _of(np.searchsorted, np.sort(_INTS), np.array(3)),
        _of(np.searchsorted, np.sort(_INTS), _EMPTY),
        _of(np.searchsorted, _EMPTY, _INTS),
    ],
    "search_whole": [_of(np.searchsorted, np.sort(_INTS), _MATRIX, side="left")],
    "interp_whole": [Sample((_FLOATS + 0.05, _KNOTS, _KNOTS**2), {}, np.interp)],
    "digitize": [
        _of(np.digitize, _MATRIX, np.sort(_FEW).tolist()),
        _of(np.digitize, _FLOATS, np.sort(_FEW)[::-1].tolist(), right=True),
    ],
    "unique": [
        _of(np.unique, _INTS, return_index=True, return_inverse=True, return_counts=True),
        _of(np.unique, _MATRIX, return_inverse=True),
        _of(np.unique, _NAN, return_counts=True),
        _of(np.unique, _NAN, equal_nan=False),
        _of(np.unique, _ROWS, axis=0, return_index=True, return_inverse=True, return_counts=True),
        _of(np.unique, _MATRIX > 3, axis=1),
        _of(np.unique, np.zeros((3, 0)), axis=0, return_index=True, return_counts=True),
        _of(np.unique, _EMPTY, return_inverse=True, return_counts=True),
    ],
    "unique_all": [_of(_as_tuple(np.unique_all), _MATRIX), _of(_as_tuple(np.unique_all), _NAN)],
    "unique_counts": [_of(_as_tuple(np.unique_counts), _INTS)],
    "unique_inverse": [_of(_as_tuple(np.unique_inverse), _MATRIX)],
    "unique_values": [_of(_ascending, _INTS), _of(_ascending, _NAN)],
    "isin": [
        _of(np.isin, _MATRIX, _FEW),
        _of(np.isin, _FLOATS, _INTS, invert=True),
        _of(np.isin, _INTS, _EMPTY),
        _of(np.isin, _NAN, _NAN),
    ],
    "union1d": [_of(np.union1d, _INTS, _FLOATS), _of(np.union1d, _EMPTY, _EMPTY)],
    "intersect1d": [
        _of(np.intersect1d, _INTS, _FEW),
        _of(np.intersect1d, _INTS, _MATRIX, return_indices=True),
    ],
    "setdiff1d": [_of(np.setdiff1d, _INTS.astype("int8"), _FEW)],
    "setxor1d": [_of(np.setxor1d, _INTS, _FEW), _of(np.setxor1d, _EMPTY, _EMPTY)],
}
