"""The sort family."""

from __future__ import annotations

from typing import Any

import numpy as np

from gdt.testing import Sample

_rng = np.random.default_rng(24)
_LINE, _MATRIX, _CUBE = (_rng.standard_normal(shape) for shape in (23, (9, 5), (2, 3, 11)))
_EQUAL = _rng.integers(0, 3, 37)
_SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 3.0, -1.5])
_NAN = np.where(_rng.random(19) < 0.3, np.nan, _rng.standard_normal(19))


def _keys(x: np.ndarray) -> np.ndarray:
    """The places of numbers among all those of their dtype, as unsigned integers."""
    bits = 8 * x.itemsize
    if x.dtype.kind != "f":
        return (x.astype(object) + (x.dtype.kind == "i") * 2 ** (bits - 1)).astype(f"u{x.itemsize}")
    words = [int.from_bytes(v.tobytes(), "little") for v in np.where(x == 0, 0, x).astype(x.dtype)]
    turned = [2**bits - 1 - w if w >> (bits - 1) else w + 2 ** (bits - 1) for w in words]
    return np.array(turned, f"u{x.itemsize}")


def _stable(x: np.ndarray, axis: int | None = -1, *, descending: bool = False) -> np.ndarray:
    return np.argsort(-x if descending else x, axis=axis, kind="stable")


def _of(function: Any, *args: Any, grad: bool = False, **static: Any) -> Sample:
    return Sample(args, static, function, grad=grad, exact=True)


def _top(x: np.ndarray, k: int, axis: int = -1, *, largest: bool = True) -> tuple[Any, Any]:
    order = _stable(x, axis, descending=largest)
    order = order.take(range(k), axis=axis)
    return np.take_along_axis(x, order, axis=axis), order


def _sorted_partition(x: np.ndarray, kth: Any, axis: int = -1) -> np.ndarray:
    return np.sort(x, axis=axis)


SAMPLES: dict[str, list[Sample]] = {
    "sort": [
        _of(np.sort, _LINE, grad=True),
        _of(np.sort, _NAN),
        _of(np.sort, _MATRIX, axis=0, grad=True),
        _of(np.sort, _CUBE, grad=True),
        _of(np.sort, _EQUAL),
        _of(np.sort, _MATRIX, axis=None, grad=True),
        _of(np.sort, _EQUAL + 1j * _EQUAL[::-1]),
        _of(np.sort, np.zeros((0, 3)), axis=0),
        _of(lambda x, descending: np.sort(x)[::-1], _LINE > 0, descending=True),
    ],
    "argsort": [
        _of(_stable, _EQUAL),
        _of(_stable, _NAN),
        _of(_stable, _MATRIX, axis=0),
        _of(_stable, _EQUAL, descending=True),
        _of(_stable, _CUBE, axis=-1, descending=True),
        _of(_stable, _MATRIX, axis=None),
    ],
    "sort_whole_axis": [_of(np.sort, _MATRIX, axis=-2, grad=True)],
    "ordered_along_whole_axis": [
        _of(
            lambda x, axis, ranks: np.sort(x, axis).take(ranks, axis),
            _MATRIX,
            axis=-2,
            ranks=(0, 2),
            grad=True,
        )
    ],
    "argsort_whole_axis": [_of(_stable, _MATRIX, axis=-1)],
    "sort_keys": [
        Sample((values,), {}, _keys, grad=False, exact=True)
        for values in (_MATRIX.astype("int8"), _EQUAL > 1, _SPECIAL, _SPECIAL.astype("float32"))
    ],
    "lexsort": [
        Sample(
            ((_EQUAL, _SPECIAL[_EQUAL % 7], _EQUAL * 1j),), {}, np.lexsort, grad=False, exact=True
        ),
        Sample(((_LINE, _EQUAL[:23]),), {}, np.lexsort, grad=False, exact=True),
        Sample(((_MATRIX, _MATRIX > 0),), {"axis": 0}, np.lexsort, grad=False, exact=True),
    ],
    "partition": [
        _of(_sorted_partition, _LINE, kth=3, grad=True),
        _of(_sorted_partition, _MATRIX, kth=(1, -2), axis=0),
    ],
    "argpartition": [_of(lambda x, kth: _stable(x), _LINE, kth=5)],
    "top_k": [
        _of(_top, np.sin(np.arange(61.0)), k=3),
        _of(_top, np.append(np.full(30, np.nan), [np.inf, 2.0, -np.inf]), k=2, largest=False),
        _of(_top, np.repeat(_EQUAL, 2), k=4, largest=False),
        _of(_top, _LINE, k=4, grad=True),
        _of(_top, _MATRIX, k=2, axis=0, largest=False),
        _of(_top, _EQUAL, k=0),
    ],
}
