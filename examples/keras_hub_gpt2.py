"""KerasHub's GPT-2, made from its configuration, trained by layouts: Keras with gdt as backend.

A GPT-2 of two small blocks learns to continue texts of bytes: on one device, data parallel over 8,
and with every block's weights split over 4. The layouts change no loss. What a step sends is
printed beside the losses.

    pip install --no-deps keras-hub          # which would install TensorFlow for its tokenizers
    pip install regex tokenizers kagglehub
    python -m examples.keras_hub_gpt2 [--steps 20]
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

import gdt
from examples.keras_distribution import distributions
from examples.reporting import console, launch
from gdt.interop.keras import keras  # Keras, on gdt

# isort: split
import keras_hub  # which imports Keras, and so comes last

BATCH, LENGTH, BYTES = 16, 32, 256

# The paths of the backbone's variables, and the mesh axes that split theirs.
LAYOUTS = {
    ".*(query|key|value)/kernel": (None, "model", None),
    ".*(query|key|value)/bias": ("model", None),
    ".*attention_output/kernel": ("model", None, None),
    ".*intermediate_dense/kernel": (None, "model"),
    ".*intermediate_dense/bias": ("model",),
    ".*output_dense/kernel": ("model", None),
}


def gpt2(blocks: int = 2, width: int = 64, heads: int = 4) -> Any:
    """Return a model of the logits of the next byte, by KerasHub's backbone."""
    backbone = keras_hub.models.GPT2Backbone(
        vocabulary_size=BYTES,
        num_layers=blocks,
        num_heads=heads,
        hidden_dim=width,
        intermediate_dim=4 * width,
        max_sequence_length=LENGTH,
        dropout=0.0,
    )
    ids = keras.Input((LENGTH,), dtype="int32")
    hidden = backbone({"token_ids": ids, "padding_mask": keras.ops.ones_like(ids)})
    return keras.Model(ids, backbone.token_embedding(hidden, reverse=True))


def texts(steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Return batches of bytes of this file, and the bytes that follow: (steps * BATCH, LENGTH)."""
    with open(__file__, "rb") as file:
        whole = np.frombuffer(file.read(), np.uint8).astype("int32")
    starts = np.random.default_rng(0).integers(0, len(whole) - LENGTH, steps * BATCH)
    places = starts[:, None] + np.arange(LENGTH)
    return whole[places], whole[places + 1]


def trained(distribution: Any, steps: int) -> tuple[list[float], Any]:
    """Return the loss of each step, and the collectives of the last, from equal weights."""
    keras.utils.set_random_seed(0)
    keras.distribution.set_distribution(distribution)
    model = gpt2()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(3e-3), loss)
    losses = []
    for x, y in zip(*(np.split(whole, steps) for whole in texts(steps)), strict=True):
        with gdt.count_collectives() as sent:
            logs = model.train_on_batch(x, y)
        losses.append(float(logs))
        model.reset_metrics()
    keras.distribution.set_distribution(None)
    return losses, sent


def run(steps: int) -> dict[str, tuple[list[float], Any]]:
    """Return the losses and the collectives of a step in all distributions."""
    return {name: trained(each, steps) for name, each in distributions(LAYOUTS).items()}


def main() -> None:
    """Train in all layouts, and print what they reach and send."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    for name, (losses, sent) in run(parser.parse_args().steps).items():
        console.print(f"{name:6} loss {losses[0]:.6f} -> {losses[-1]:.6f}; a step sends {sent}")


if __name__ == "__main__":
    launch(main)
