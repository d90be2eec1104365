"""Elements that masks select."""

from __future__ import annotations

import numpy as np

from gdt.testing import Sample

_rng = np.random.default_rng(23)
_MATRIX = _rng.integers(-1, 2, (9, 5)).astype(float)
_LINE = _rng.integers(0, 2, 13)
_EMPTY = np.zeros((0, 3))


def _of(function: object, *args: object, grad: bool = False, **static: object) -> Sample:
    return Sample(args, static, function, grad=grad, exact=True)  # type: ignore[arg-type]


SAMPLES: dict[str, list[Sample]] = {
    "nonzero": [_of(np.nonzero, x) for x in (_MATRIX, _LINE, _EMPTY, np.ones((2, 3, 4)) > 0)],
    "flatnonzero": [_of(np.flatnonzero, x) for x in (_MATRIX, _LINE, np.array(3))],
    "argwhere": [_of(np.argwhere, x) for x in (_MATRIX, _EMPTY, np.zeros(5))],
    "compress": [
        _of(np.compress, _LINE[:9] > 0, _MATRIX, axis=0, grad=True),
        _of(np.compress, _LINE[:4], _MATRIX, axis=1, grad=True),
        _of(np.compress, _LINE, _MATRIX),
    ],
    "extract": [_of(np.extract, _MATRIX > 0, _MATRIX * 2.5, grad=True)],
}
