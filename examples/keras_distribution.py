"""Keras' own models on several devices: Keras 3 with gdt as its backend.

An MLP and a convolutional network for handwritten digits, and a transformer that finds whether a
token comes twice: on one device, data parallel, and with weights split by a LayoutMap. The layouts
change no loss. Then a model is made in the scope of MirroredStrategy, and fine-tuned with its first
layer frozen. All but the first import is Keras.

    python -m examples.keras_distribution [--data-dir MNIST]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import gdt
from examples.mnist import load
from examples.reporting import console, launch
from gdt.interop.keras import keras  # Keras, on gdt

layers, D = keras.layers, keras.distribution
Data = tuple[np.ndarray, np.ndarray]
BATCH, TOKENS, LENGTH = 128, 24, 8

# The paths of variables, and the mesh axes that split theirs.
MLP = {
    ".*up/kernel": (None, "model"),
    ".*up/bias": ("model",),
    ".*down/kernel": ("model", None),
}
CNN = {".*conv.*/kernel": (None, None, None, "model"), ".*conv.*/bias": ("model",)}
TRANSFORMER = MLP | {
    ".*(query|key|value)/kernel": (None, "model", None),
    ".*(query|key|value)/bias": ("model", None),
    ".*attention_output/kernel": ("model", None, None),
}


def mlp() -> Any:
    """Return the network 784-128-10."""
    up, down = layers.Dense(128, "relu", name="up"), layers.Dense(10, name="down")
    return keras.Sequential([keras.Input((784,)), up, down])


def cnn() -> Any:
    """Return a convolutional network for rows of 784 pixels."""
    return keras.Sequential(
        [
            keras.Input((784,)),
            layers.Reshape((28, 28, 1)),
            layers.Conv2D(8, 3, 2, activation="relu"),
            layers.BatchNormalization(),
            layers.Conv2D(16, 3, 2, activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(10),
        ]
    )


def transformer() -> Any:
    """Return a transformer of one block that tells two kinds of token lists apart."""
    ids = keras.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(TOKENS, 32)(ids)
    y = layers.LayerNormalization()(x)
    x = x + layers.MultiHeadAttention(4, 8)(y, y)
    y = layers.Dense(64, "gelu", name="up")(layers.LayerNormalization()(x))
    x = x + layers.Dense(32, name="down")(y)
    return keras.Model(ids, layers.Dense(2)(layers.GlobalMaxPooling1D()(x)))


def twins(count: int = 2000) -> Data:
    """Return lists of tokens, and whether the first token of each comes again."""
    rng = np.random.default_rng(0)
    ids = rng.integers(0, TOKENS, (count, LENGTH)).astype("int32")
    ids[::2, 1] = ids[::2, 0]
    return ids, (ids[:, 1:] == ids[:, :1]).any(1).astype("int32")


def mesh(*sizes: int) -> Any:
    """Return a mesh of virtual devices of the host, with the axes batch and model."""
    axes = [*zip(("batch", "model"), sizes, strict=False)]
    return gdt.interop.keras.device_mesh(gdt.create_mesh(axes))


def distributions(layouts: dict[str, Any]) -> dict[str, Any]:
    """Return one device, data parallel over 8, and layouts on 2 x 4."""
    layout_map = D.LayoutMap(mesh(2, 4))
    for path, axes in layouts.items():
        layout_map[path] = axes
    model_parallel = D.ModelParallel(layout_map=layout_map, batch_dim_name="batch")
    return {"one": None, "data": D.DataParallel(mesh(8)), "model": model_parallel}


def trained(build: Callable[[], Any], data: Data, distribution: Any, epochs: int) -> list[float]:
    """Return the losses of the epochs, from the same weights in every distribution."""
    keras.utils.set_random_seed(0)
    D.set_distribution(distribution)
    model = build()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(3e-3), loss, metrics=["accuracy"])
    history = model.fit(*data, BATCH, epochs, verbose=0)
    D.set_distribution(None)
    losses: list[float] = history.history["loss"]
    return losses


def mirrored(data: Data, epochs: int) -> tuple[float, float]:
    """Return the accuracy of a model of MirroredStrategy, and after its second layer alone has been
    trained on."""
    keras.utils.set_random_seed(0)
    with gdt.MirroredStrategy(4).scope():
        model = mlp()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    model.fit(*data, BATCH, epochs, verbose=0)
    first = model.evaluate(*data, verbose=0)[1]
    kernel = model.get_layer("up").kernel.numpy()
    model.get_layer("up").trainable = False
    model.compile(keras.optimizers.Adam(1e-2), loss, metrics=["accuracy"])
    model.fit(*data, BATCH, epochs, verbose=0)
    if not np.array_equal(kernel, model.get_layer("up").kernel.numpy()):
        raise AssertionError("the frozen layer has changed")
    return first, model.evaluate(*data, verbose=0)[1]


def run(digits: Data, epochs: int = 3) -> dict[str, dict[str, list[float]]]:
    """Return the losses of all networks in all distributions."""
    networks = {"MLP": (mlp, MLP, digits), "CNN": (cnn, CNN, digits)}
    networks["transformer"] = (transformer, TRANSFORMER, twins())
    return {
        name: {
            each: trained(build, data, distribution, epochs)
            for each, distribution in distributions(layouts).items()
        }
        for name, (build, layouts, data) in networks.items()
    }


def main() -> None:
    """Train all, and print what they reach."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path)
    digits, _ = load(parser.parse_args().data_dir)
    for name, losses in run(digits).items():
        for distribution, values in losses.items():
            console.print(f"{name:12} {distribution:6} {[round(v, 5) for v in values]}")
    before, after = mirrored(digits, 2)
    console.print(f"MirroredStrategy: accuracy {before:.3f}, fine-tuned {after:.3f}")


if __name__ == "__main__":
    launch(main)
