"""bench.large: every function that it times gives NumPy's values."""

from __future__ import annotations

import numpy as np
import pytest

from bench import large

CALLS = large.calls(large.COLUMNS * 16)


@pytest.mark.parametrize("name", CALLS)
def test_both_libraries_do_the_same_work(name: str) -> None:
    numpy, ours = (call() for call in CALLS[name])
    assert ours.shape == numpy.shape and ours.dtype == numpy.dtype
    if name not in large.DRAWS:
        scale = abs(numpy).max() or 1
        np.testing.assert_allclose(ours.numpy() / scale, numpy / scale, atol=1e-5)


def test_times_are_positive() -> None:
    assert all(value > 0 for value in large.measure(*CALLS["exp"], rounds=1).values())
