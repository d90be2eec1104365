"""A model that goes from Keras on JAX to Keras on gdt and back, in files.

    python -m tests.interop.keras.interchange --jax PYTHON

PYTHON is an interpreter with keras and jax. It trains a model and saves it as jax.keras, beside
its predictions; gdt loads it in layouts of its own, trains it on and saves it; JAX loads that. The
script prints the largest difference of predictions, there and back. The tests load jax.keras.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

if os.environ.get("KERAS_BACKEND") != "jax":
    import gdt.interop.keras  # noqa: F401
import keras
from keras import layers

STORED, PREDICTIONS = Path(__file__).with_name("jax.keras"), Path(__file__).with_name("jax.npy")
RNG = np.random.default_rng(0)
X = RNG.integers(0, 12, (16, 6)).astype("int32")
Y = RNG.integers(0, 3, 16).astype("int32")


def built() -> Any:
    """Return a model with layers of several kinds, compiled."""
    inputs = keras.Input((6,), dtype="int32")
    x = layers.Embedding(12, 8)(inputs)
    x = x + layers.MultiHeadAttention(2, 4, name="attention")(x, x)
    x = layers.LayerNormalization()(layers.GRU(8)(x))
    x = layers.BatchNormalization()(layers.Dense(8, "relu")(x))
    model = keras.Model(inputs, layers.Dense(3, name="classes")(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-2), loss, metrics=["accuracy"])
    return model


def main() -> None:
    """Send a model there and back."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jax", default=sys.executable)
    parser.add_argument("--load", type=Path)
    options = parser.parse_args()
    if keras.backend.backend() == "jax":
        if options.load is None:
            keras.utils.set_random_seed(0)
            model = built()
            model.fit(X, Y, 8, 3, verbose=0)
            model.save(STORED)
            np.save(PREDICTIONS, model.predict(X, verbose=0))
        else:
            model = keras.models.load_model(options.load)
            np.save(options.load.with_suffix(".npy"), model.predict(X, verbose=0))
        return

    def in_jax(*arguments: str) -> None:
        command = [options.jax, "-m", "tests.interop.keras.interchange", *arguments]
        environment = os.environ | {"KERAS_BACKEND": "jax", "PYTHONPATH": os.getcwd()}
        subprocess.run(command, env=environment, check=True)

    in_jax()
    model = keras.models.load_model(STORED)
    there = np.abs(model.predict(X, verbose=0) - np.load(PREDICTIONS)).max()
    model.fit(X, Y, 8, 1, verbose=0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "gdt.keras")
        model.save(path)
        in_jax("--load", str(path))
        back = np.abs(model.predict(X, verbose=0) - np.load(path.with_suffix(".npy"))).max()
    print(f"largest difference of predictions: there {there:.1e}, back {back:.1e}")


if __name__ == "__main__":
    main()
