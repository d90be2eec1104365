"""Medians and quantiles where elements are infinite, and the dtypes of quantiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gdt

INF = np.inf


@pytest.mark.parametrize(
    "values",
    [[-INF, 1, INF], [1, INF, INF], [INF, INF], [1, INF], [-INF, 1], [-INF, -INF, 3], [INF],
     [0, 1, 2, INF, INF], [-INF, -INF, 1, 2]],
)  # fmt: skip
@pytest.mark.parametrize("blocks", [1, 2])
def test_medians_of_infinite_elements_are_numpys(values: list[float], blocks: int) -> None:
    mesh = gdt.create_mesh([("x", 2)], blocks=blocks)
    x = gdt.asarray(np.array(values), layout=gdt.Layout(["x"], mesh))
    expected = np.median(values)
    assert float(gdt.median(x)) == float(gdt.nanmedian(x)) == expected
    assert gdt.quantile(x, [0.0, 1.0]).tolist() == [min(values), max(values)]


@pytest.mark.parametrize("dtype", ["bool", "int8", "int64", "float16", "float32", "float64"])
@pytest.mark.parametrize("q", [0.25, 1, [0.25, 1.0], [0, 1], np.float32(0.25), np.float64(0.25)])
def test_dtypes_of_quantiles_are_numpys(dtype: str, q: Any) -> None:
    values = np.array([1, 0, 3, 1, 2]).astype(dtype)
    x = gdt.asarray(values)
    for name in ("quantile", "nanquantile", "percentile"):
        for method in ("linear", "lower", "midpoint"):
            try:
                expected = getattr(np, name)(values, q, method=method)
            except TypeError:
                with pytest.raises(TypeError, match="nothing lies between bools"):
                    getattr(gdt, name)(x, q, method=method)
                continue
            result = getattr(gdt, name)(x, q, method=method)
            assert result.dtype == expected.dtype, (name, method)
            np.testing.assert_allclose(result.numpy(), expected, rtol=1e-3)
    for name in ("median", "nanmedian"):
        assert getattr(gdt, name)(x).dtype == getattr(np, name)(values).dtype
