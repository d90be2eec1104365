"""median, quantile and percentile, and those of what is no NaN."""

from __future__ import annotations

from typing import Any

import numpy as np

from gdt.testing import Sample

_rng = np.random.default_rng(26)
_LINE, _MATRIX = _rng.standard_normal(17), _rng.standard_normal((12, 5))
_NAN = np.where(_rng.random((12, 5)) < 0.2, np.nan, _MATRIX)
_INTS = _rng.integers(0, 9, 30)


def _of(function: Any, x: np.ndarray, *, grad: bool = False, **static: Any) -> Sample:
    return Sample((x,), static, function, grad=grad)


_METHODS = [
    "inverted_cdf", "averaged_inverted_cdf", "closest_observation", "interpolated_inverted_cdf",
    "hazen", "weibull", "median_unbiased", "normal_unbiased", "lower", "higher", "nearest",
    "midpoint",
]  # fmt: skip

SAMPLES: dict[str, list[Sample]] = {
    "quantile": [
        _of(np.quantile, _LINE, q=0.3, grad=True),
        _of(np.quantile, _MATRIX, q=(0.0, 0.25, 1.0), axis=0, grad=True),
        _of(np.quantile, _NAN, q=0.5, axis=1, keepdims=True),
        *[_of(np.quantile, _INTS, q=(0.1, 0.5), method=method) for method in _METHODS],
    ],
    "percentile": [_of(np.percentile, _MATRIX, q=(20, 75), axis=(0, 1), keepdims=True)],
    "median": [
        _of(np.median, _MATRIX, grad=True),
        _of(np.median, _NAN, axis=0),
        _of(np.median, _INTS),
    ],
    "nanquantile": [
        _of(np.nanquantile, _NAN, q=(0.2, 0.9), axis=0),
        _of(np.nanquantile, _NAN, q=0.5, method="nearest", keepdims=True),
        _of(np.nanquantile, _NAN, q=(0.0, 0.3), axis=0, method="closest_observation"),
    ],
    "nanpercentile": [_of(np.nanpercentile, _NAN, q=40, axis=1)],
    "nanmedian": [_of(np.nanmedian, _NAN), _of(np.nanmedian, _LINE, grad=True)],
}
