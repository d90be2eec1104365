"""What tests of the engine run of every function: the first samples, and one in some of the others.

That each sample is right is checked in `tests/ops/test_ops.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gdt.testing import Sample

from .samples import SAMPLES

SamplesOf = Callable[[str], list[Sample]]
FIRST = 2  # samples of each function
EVERY = 3  # of the others


def some_samples(name: str) -> list[Sample]:
    return [s for n, s in enumerate(SAMPLES[name]) if n < FIRST or (n - FIRST) % EVERY == 0]


def all_samples(name: str) -> list[Sample]:
    return SAMPLES[name]


# Parametrizes a test by the function from a name to samples.
ON_SOME_SAMPLES = pytest.mark.parametrize(
    "samples_of",
    [some_samples, pytest.param(all_samples, marks=pytest.mark.layouts_full)],
    ids=["some", "all"],
)
