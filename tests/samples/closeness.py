"""Samples of comparisons with a tolerance."""

from __future__ import annotations

from typing import Any

import numpy as np

from gdt.testing import Sample

_rng = np.random.default_rng(31)
_X = _rng.standard_normal((7, 4))
_NEAR = _X + np.where(_rng.random((7, 4)) < 0.5, 1e-9, 1e-2)
_SPECIAL = np.array([np.inf, -np.inf, np.nan, 1.0, np.inf, np.nan])
_OTHER = np.array([np.inf, np.inf, np.nan, 1.0 + 1e-9, 1.0, 0.0])
_SMALL = _rng.integers(0, 3, (9,)).astype("uint8")

_PAIRS: list[tuple[Any, ...]] = [
    (_X, _NEAR),
    (_X, _NEAR[0]),
    (_X.astype("float32"), _NEAR),
    (_SPECIAL, _OTHER),
    (_SMALL, _SMALL[::-1].copy()),
    (_X > 0, _NEAR > 0),
    (_X + 1j, _NEAR + 1j),
    (_X[:0], _X[:0]),
    (_X, 0.5),
]


def _samples(function: Any, pairs: list[tuple[Any, ...]], *statics: dict[str, Any]) -> list[Sample]:
    return [
        Sample(pair, static, expect=function, exact=True, grad=False)
        for pair in pairs
        for static in statics
    ]


SAMPLES: dict[str, list[Sample]] = {
    "isclose": _samples(np.isclose, _PAIRS, {})
    + _samples(np.isclose, [(_SPECIAL, _OTHER)], {"equal_nan": True})
    + _samples(np.isclose, [(_X, _NEAR[0])], {"rtol": 0.1, "atol": 0.0}),
    "allclose": _samples(np.allclose, [(_X, _NEAR)], {}, {"atol": 0.1})
    + _samples(np.allclose, [(_SPECIAL, _SPECIAL.copy())], {"equal_nan": True}),
    "array_equal": _samples(np.array_equal, [(_X, _X.copy()), (_X, _NEAR), (_X, 0.5)], {})
    + _samples(np.array_equal, [(_SPECIAL, _SPECIAL.copy())], {}, {"equal_nan": True}),
}
