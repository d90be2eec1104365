"""Indexing, take, take_along_axis and one_hot; and the sums that are their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

from gdt.testing import Sample

_rng = np.random.default_rng(21)


def _real(*shape: int) -> np.ndarray:
    return _rng.standard_normal(shape)


def _ints(low: int, high: int, *shape: int) -> np.ndarray:
    return _rng.integers(low, high, shape)


def _index(x: np.ndarray, index: Any) -> Sample:
    return Sample((x,), {"index": index}, expect=lambda x, index: x[index], exact=True)


_MATRIX, _CUBE, _LINE = _real(9, 5), _real(4, 3, 6), _real(7)

_BASIC = [
    *(_index(_LINE, i) for i in (0, -1, slice(None), slice(1, None), slice(None, None, -1))),
    *(_index(_LINE, i) for i in (slice(5, 1, -2), slice(2, 2), slice(-3, 100), ..., None)),
    *(_index(_MATRIX, i) for i in (3, -9, slice(2, 8, 3), (slice(None), -2), (8, 4))),
    _index(_MATRIX, (slice(None, None, -1), slice(1, 4))),
    _index(_MATRIX, (..., 0)),
    _index(_MATRIX, (None, slice(7, None), None, 2)),
    _index(_MATRIX, (slice(4, 5), slice(None, None, 2), None)),
    _index(_CUBE, (slice(None), 1)),
    _index(_CUBE, (0, ..., slice(5, 0, -3))),
    _index(_CUBE, (slice(3, 4), slice(0, 0))),
    _index(_real(0, 3), (slice(None, None, -1), 1)),
    _index(np.array(3.0), ()),
    _index(np.array(3.0), (None, ...)),
    _index(_ints(0, 9, 8).astype(np.int8), slice(1, 6, 2)),
    _index(np.array([True, False, True, True, False]), slice(None, 3)),
    Sample(
        (np.array([np.inf, np.nan, 1.0, -np.inf, 2.0]),),
        {"index": slice(3, 0, -1)},
        lambda x, index: x[index],
        grad=False,
        exact=True,
    ),
]

_ADVANCED = [
    _index(_LINE, [3, 0, -1, 3]),
    _index(_LINE, np.array([[6, 1], [0, -7]])),
    _index(_LINE, []),
    _index(_MATRIX, (slice(None), [4, 0])),
    _index(_MATRIX, (slice(1, 7), [0, 0, 3])),
    _index(_MATRIX, ([0, 8, 3], [4, 1, 1])),
    _index(_MATRIX, (np.array([[2], [7]]), [1, 3, 4])),
    _index(_CUBE, (0, slice(None), [1, 5])),
    _index(_CUBE, ([1, 2], slice(None), [0, 5])),
    _index(_CUBE, (slice(None), [0, 2, 2], None)),
    _index(_CUBE, (slice(1, None), 2, [5, 4, 1])),
    _index(_MATRIX, _MATRIX > 0.3),
    _index(_MATRIX, _MATRIX[:, 0] > 0),
    _index(_CUBE, (slice(None), np.array([True, False, True]))),
    _index(_CUBE, (slice(None), _CUBE[0] > 0)),
    _index(_LINE, np.zeros(7, bool)),
    Sample((_MATRIX, _ints(-9, 9, 4)), expect=lambda x, i: x[i], exact=True),
    Sample((_MATRIX, _MATRIX > 0), expect=lambda x, m: x[m], exact=True),
    Sample((_LINE, np.array(2)), expect=lambda x, i: x[i], exact=True),
]

_TAKE = [
    Sample((_LINE, _ints(-7, 7, 5)), expect=np.take, exact=True),
    Sample((_MATRIX, _ints(-9, 9, 6)), {"axis": 0}, expect=np.take, exact=True),
    Sample((_MATRIX, _ints(0, 5, 2, 3)), {"axis": -1}, expect=np.take, exact=True),
    Sample((_MATRIX, _ints(0, 45, 4).astype(np.uint64)), expect=np.take, exact=True),
    Sample((_CUBE, _ints(0, 3, 5).astype(np.int8)), {"axis": 1}, expect=np.take, exact=True),
    Sample((_CUBE, np.array(2)), {"axis": 1}, expect=np.take, exact=True),
    Sample((_real(1, 3), np.zeros(5, int)), {"axis": 0}, expect=np.take, exact=True),
    Sample((_real(2, 3), np.zeros((0,), int)), {"axis": 1}, expect=np.take, exact=True),
    Sample((_real(0, 3), np.zeros((0, 2), int)), {"axis": 0}, expect=np.take, exact=True),
    Sample((_MATRIX > 0, _ints(0, 9, 4)), {"axis": 0}, expect=np.take, exact=True),
    Sample(
        (np.array([1.0, np.nan, np.inf, -np.inf]), np.array([3, 1, 2])),
        expect=np.take,
        grad=False,
        exact=True,
    ),
]

_ALONG = [
    Sample((_MATRIX, _ints(-5, 5, 9, 3)), {"axis": 1}, expect=np.take_along_axis, exact=True),
    Sample((_MATRIX, _ints(0, 5, 9, 1)), expect=np.take_along_axis, exact=True),
    Sample((_MATRIX, _ints(0, 9, 4, 5)), {"axis": 0}, expect=np.take_along_axis, exact=True),
    Sample((_MATRIX, _ints(0, 9, 4, 1)), {"axis": 0}, expect=np.take_along_axis, exact=True),
    Sample((_real(1, 5), _ints(0, 5, 6, 2)), {"axis": 1}, expect=np.take_along_axis, exact=True),
    Sample((_CUBE, _ints(0, 3, 4, 7, 6)), {"axis": 1}, expect=np.take_along_axis, exact=True),
    Sample((_CUBE, _ints(0, 72, 5)), {"axis": None}, expect=np.take_along_axis, exact=True),
    Sample(
        (_real(3, 1), np.zeros((3, 4), int)), {"axis": 1}, expect=np.take_along_axis, exact=True
    ),
    Sample((_real(0, 4), _ints(0, 4, 0, 2)), {"axis": 1}, expect=np.take_along_axis, exact=True),
]


def _add_at(g: np.ndarray, indices: np.ndarray, carrier: np.ndarray, axis: int) -> np.ndarray:
    shape = (*g.shape[:axis], len(carrier), *g.shape[axis + indices.ndim :])
    out = np.zeros(shape, g.dtype)
    np.add.at(out, (slice(None),) * axis + (indices,), g)
    return out


def _rows_of_groups(x: np.ndarray, indices: np.ndarray) -> np.ndarray:
    return np.take_along_axis(x, indices[..., None] % x.shape[1], 1)


def _add_to_rows_of_groups(g: np.ndarray, indices: np.ndarray, count: int) -> np.ndarray:
    out = np.zeros((len(g), count, g.shape[-1]), g.dtype)
    np.add.at(out, (np.arange(len(g))[:, None], indices), g)
    return out


def _add_along(g: np.ndarray, indices: np.ndarray, carrier: np.ndarray, axis: int) -> np.ndarray:
    shape = list(np.broadcast_shapes(g.shape, indices.shape))
    g, indices = np.broadcast_to(g, shape), np.broadcast_to(indices, shape)
    shape[axis] = len(carrier)
    out, places = np.zeros(shape, g.dtype), list(np.indices(g.shape))
    places[axis] = indices
    np.add.at(out, tuple(places), g)
    return out


def _one_hot(indices: np.ndarray, depth: int, axis: int = -1, dtype: Any = float) -> np.ndarray:
    hot = indices[..., None] == np.arange(depth)
    return np.moveaxis(hot, -1, axis).astype(dtype)


SAMPLES: dict[str, list[Sample]] = {
    "getitem": _BASIC + _ADVANCED,
    "take": _TAKE,
    "take_in_range": [
        Sample((_MATRIX, _ints(-5, 5, 3)), {"axis": 1}, np.take, exact=True),
    ],
    "add_at": [
        Sample((_real(6, 3), _ints(0, 9, 6), np.zeros(9)), {"axis": 0}, _add_at),
        Sample((_real(4, 2, 5), _ints(-3, 3, 2, 5), np.zeros(3)), {"axis": 1}, _add_at),
        Sample((_real(4), np.array(2), np.zeros(5)), {"axis": 1}, _add_at),
    ],
    "take_along_axis": _ALONG,
    "take_along_axis_in_range": [
        Sample((_MATRIX, _ints(0, 5, 9, 2)), {"axis": 1}, np.take_along_axis, exact=True),
    ],
    "add_along_axis": [
        Sample((_real(7, 3), _ints(-5, 5, 7, 3), np.zeros(5)), {"axis": 1}, _add_along),
        Sample((_real(4, 6), _ints(0, 9, 4, 1), np.zeros(9)), {"axis": 0}, _add_along),
    ],
    "rows_of_groups": [
        Sample((_real(4, 5, 3), _ints(-5, 5, 4, 6)), {}, _rows_of_groups, exact=True),
        Sample((_real(3, 2, 4), _ints(0, 2, 3, 0)), {}, _rows_of_groups, exact=True),
    ],
    "add_to_rows_of_groups": [
        Sample((_real(4, 6, 3), _ints(-5, 5, 4, 6)), {"count": 5}, _add_to_rows_of_groups),
        Sample((_real(3, 0, 4), _ints(0, 2, 3, 0)), {"count": 2}, _add_to_rows_of_groups),
    ],
    "one_hot": [
        Sample((_ints(-1, 6, 7),), {"depth": 5}, _one_hot, exact=True),
        Sample(
            (_ints(0, 3, 4, 2),), {"depth": 3, "axis": 0, "dtype": "float32"}, _one_hot, exact=True
        ),
        Sample(
            (_ints(0, 3, 4, 2).astype(np.uint8),),
            {"depth": 4, "axis": 1, "dtype": "bool"},
            _one_hot,
            exact=True,
        ),
        Sample((np.zeros((0, 2), int),), {"depth": 3}, _one_hot, exact=True),
        Sample((np.array(2),), {"depth": 3}, _one_hot, exact=True),
    ],
}
