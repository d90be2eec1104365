"""Medians and quantiles where elements are infinite."""

from __future__ import annotations

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
