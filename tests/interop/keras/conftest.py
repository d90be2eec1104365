"""Tests of Keras on gdt: gdt's backend comes before Keras."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gdt.interop.keras import keras


@pytest.fixture(autouse=True)
def fresh_keras() -> Iterator[None]:
    """Start with Keras' first names, fixed seeds and no distribution, and leave none."""
    keras.utils.clear_session(free_memory=False)  # a search for garbage takes a second here
    keras.utils.set_random_seed(0)
    yield
    keras.distribution.set_distribution(None)
