"""Parts of small integers may wrap around; they add up to their sum in their own dtype only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gdt
from gdt.testing import placed

MESH = gdt.create_mesh([("x", 2)], blocks=2)
PARTIAL = gdt.Layout([None], MESH, partial=["x"])

WIDENING: dict[str, Callable[[Any], Any]] = {
    "divide": lambda x: x / 4,
    "divide by its own dtype": lambda x: x / x,
    "multiply by a float": lambda x: 2.5 * x,
    "multiply": lambda x: x * np.arange(1, 4),
    "add": lambda x: x + np.arange(1.0, 4),
    "matmul": lambda x: x @ np.arange(6).reshape(3, 2),
    "sum": lambda x: x.sum(),
    "astype": lambda x: x.astype(np.float32),
}


@pytest.mark.parametrize("name", WIDENING)
def test_they_are_added_up_before_they_are_widened(name: str) -> None:
    x = np.array([100, -100, 77], np.int8)
    got, want = WIDENING[name](placed(x, PARTIAL)), WIDENING[name](x)
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got.numpy(), want)


def test_they_stay_partial_in_their_own_dtype() -> None:
    x = placed(np.array([100, -100, 77], np.int8), PARTIAL)
    out = x * np.array([3, 2, 1], np.int8)
    assert out.layout is PARTIAL
    assert out.tolist() == [44, 56, 77]
