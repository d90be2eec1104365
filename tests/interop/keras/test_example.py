"""The examples of Keras, smaller."""

from __future__ import annotations

import numpy as np
import pytest

from examples import keras_distribution as example
from gdt.interop.keras import keras


def test_layouts_change_no_loss() -> None:
    """In float64: Adam makes the rounding of gradients that are about 0 as large as its rate."""
    rng = np.random.default_rng(0)
    digits = rng.random((256, 784)), rng.integers(0, 10, 256).astype("int32")
    keras.config.set_floatx("float64")
    try:
        found = example.run(digits, epochs=2)
    finally:
        keras.config.set_floatx("float32")
    for losses in found.values():  # which Keras keeps in float32
        for distribution in ("data", "model"):
            np.testing.assert_allclose(losses[distribution], losses["one"], rtol=2e-7)


def test_a_frozen_layer_stays_as_it_is() -> None:
    rng = np.random.default_rng(0)
    digits = rng.random((256, 784), "float32"), rng.integers(0, 10, 256).astype("int32")
    assert all(0 < accuracy < 1 for accuracy in example.mirrored(digits, 1))


def test_layouts_change_no_loss_of_keras_hub() -> None:
    pytest.importorskip("keras_hub")
    from examples import keras_hub_gpt2  # noqa: PLC0415

    runs = keras_hub_gpt2.run(4)
    for losses, _ in runs.values():
        np.testing.assert_allclose(losses, runs["one"][0], rtol=1e-5)
    assert runs["data"][1].by_kind == {"all_reduce": 1, "all_gather": 2}
