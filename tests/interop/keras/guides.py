"""Programs of Keras' guides and of tutorials, small: on gdt in layouts, and on JAX.

    python -m tests.interop.keras.guides --jax PYTHON [--steps 100]

The functional API with several outputs and shared layers, a GAN with a training step of its own,
and the classification of texts by a transformer; `tutorials` has more. Every program starts from
the same weights, which NumPy draws, and sees the same batches; `LAYOUTS` spreads it over devices.
The script runs each on gdt in all layouts, and on JAX by PYTHON, an interpreter with keras and jax;
it prints the largest difference of losses, and writes those of JAX to guides_jax.json, beside which
the tests hold gdt's.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

if os.environ.get("KERAS_BACKEND") != "jax":
    import gdt.interop.keras
import keras
from keras import layers, ops

from tests.interop.keras.layouts import LAYOUTS, redraw, transformations
from tests.interop.keras.tutorials import TUTORIALS

STORED = Path(__file__).with_name("guides_jax.json")
Losses = list[float]


# ---------------------------------------------------------------- functional API


def tickets(steps: int) -> Losses:
    """Rank and route tickets: two texts through one embedding and one LSTM, two outputs."""
    title, body = keras.Input((6,), dtype="int32"), keras.Input((10,), dtype="int32")
    tags = keras.Input((12,))
    embedding, recurrent = layers.Embedding(50, 16), layers.LSTM(16)
    parts = [recurrent(embedding(text)) for text in (title, body)]
    features = layers.Dense(32, "relu")(layers.concatenate([*parts, tags]))
    priority = layers.Dense(1, name="priority")(features)
    department = layers.Dense(4, name="department")(features)
    model = keras.Model([title, body, tags], {"priority": priority, "department": department})
    redraw(model)
    model.compile(
        keras.optimizers.RMSprop(1e-3),
        {
            "priority": keras.losses.BinaryCrossentropy(from_logits=True),
            "department": keras.losses.CategoricalCrossentropy(from_logits=True),
        },
        loss_weights={"priority": 1.0, "department": 0.2},
        metrics={"department": "accuracy"},
    )
    rng = np.random.default_rng(1)
    count = 24 * 5
    x = [rng.integers(0, 50, (count, 6)), rng.integers(0, 50, (count, 10))]
    x.append(rng.integers(0, 2, (count, 12)).astype("float32"))
    y = {"priority": rng.random((count, 1)).astype("float32")}
    y["department"] = np.eye(4, dtype="float32")[rng.integers(0, 4, count)]
    losses = []
    for step in range(steps):
        rows = slice(step % 5 * 24, step % 5 * 24 + 24)
        batch = [part[rows] for part in x], {name: part[rows] for name, part in y.items()}
        losses.append(float(model.train_on_batch(*batch, return_dict=True)["loss"]))
    return losses


# ---------------------------------------------------------------- GAN


def generator() -> Any:
    return keras.Sequential(
        [keras.Input((8,)), layers.Dense(32), layers.LeakyReLU(0.2), layers.Dense(16)]
    )


def discriminator() -> Any:
    return keras.Sequential(
        [keras.Input((16,)), layers.Dense(32), layers.LeakyReLU(0.2), layers.Dense(1, name="real")]
    )


def points(steps: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield real points, and what the generator makes others of."""
    rng = np.random.default_rng(2)
    for _ in range(steps):
        real = rng.normal(1, 0.5, (24, 16)).astype("float32")
        yield real, rng.normal(0, 1, (24, 8)).astype("float32")


def cross_entropy(labels: Any, logits: Any) -> Any:
    return ops.mean(
        keras.losses.binary_crossentropy(labels * ops.ones_like(logits), logits, from_logits=True)
    )


class GAN(keras.Model):
    """A GAN whose `train_step` reads and assigns variables, as on Keras' stateful backends."""

    def __init__(self) -> None:
        super().__init__()
        self.discriminator, self.generator = discriminator(), generator()
        self.built = True  # by its parts
        self.d_loss, self.g_loss = keras.metrics.Mean(name="d"), keras.metrics.Mean(name="g")

    def compile(self, d_optimizer: Any, g_optimizer: Any) -> None:
        super().compile()
        self.d_optimizer, self.g_optimizer = d_optimizer, g_optimizer

    def train_step(self, data: Any) -> Any:
        real, noise = data[:2]
        fake = self.generator(noise)
        with gdt.GradientTape() as tape:
            d_loss = cross_entropy(1.0, self.discriminator(real))
            d_loss += cross_entropy(0.0, self.discriminator(fake))
        weights = self.discriminator.trainable_weights
        gradients = tape.gradient(d_loss, [weight.value for weight in weights])
        self.d_optimizer.apply(gradients, weights)
        with gdt.GradientTape() as tape:
            g_loss = cross_entropy(1.0, self.discriminator(self.generator(noise)))
        weights = self.generator.trainable_weights
        gradients = tape.gradient(g_loss, [weight.value for weight in weights])
        self.g_optimizer.apply(gradients, weights)
        self.d_loss.update_state(d_loss)
        self.g_loss.update_state(g_loss)
        return {"d": self.d_loss.result(), "g": self.g_loss.result()}


def gan_by_fit(steps: int) -> Losses:
    """Train a GAN by its `train_step`."""
    model = GAN()
    redraw(model.discriminator, 3)
    redraw(model.generator, 4)
    model.compile(keras.optimizers.Adam(3e-3), keras.optimizers.Adam(3e-3))
    losses = []
    for batch in points(steps):
        logs = model.train_on_batch(*batch, return_dict=True)
        losses += [float(logs["d"]), float(logs["g"])]
    return losses


def gan(steps: int) -> Losses:
    """Train a GAN by a loop of one's own, of Keras' stateless calls."""
    d, g = discriminator(), generator()
    redraw(d, 3)
    redraw(g, 4)
    optimizers = [keras.optimizers.Adam(3e-3) for _ in range(2)]
    for optimizer, model in zip(optimizers, (d, g), strict=True):
        optimizer.build(model.trainable_variables)
    value_and_grad, recorded = transformations()

    def call(model: Any, values: Any, x: Any) -> Any:
        return model.stateless_call(values, [], x)[0]

    def d_loss(values: Any, real: Any, fake: Any) -> Any:
        loss = cross_entropy(1.0, call(d, values, real))
        return loss + cross_entropy(0.0, call(d, values, fake))

    def g_loss(values: Any, d_values: Any, noise: Any) -> Any:
        return cross_entropy(1.0, call(d, d_values, call(g, values, noise)))

    def step(state: Any, real: Any, noise: Any) -> Any:
        d_values, d_state, g_values, g_state = state
        loss, gradients = value_and_grad(d_loss)(d_values, real, call(g, g_values, noise))
        d_values, d_state = optimizers[0].stateless_apply(d_state, gradients, d_values)
        other, gradients = value_and_grad(g_loss)(g_values, d_values, noise)
        g_values, g_state = optimizers[1].stateless_apply(g_state, gradients, g_values)
        return (loss, other), [d_values, d_state, g_values, g_state]

    variables = [
        d.trainable_variables, optimizers[0].variables,
        g.trainable_variables, optimizers[1].variables,
    ]  # fmt: skip
    state: Any = [[v.value for v in each] for each in variables]
    step, losses = recorded(step), []
    for real, noise in points(steps):
        pair, state = step(state, ops.convert_to_tensor(real), ops.convert_to_tensor(noise))
        losses += [float(loss) for loss in pair]
    return losses


# ---------------------------------------------------------------- transformer


class Block(layers.Layer):
    """A block of a transformer."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.attention = layers.MultiHeadAttention(heads, size // heads)
        self.wide, self.narrow = (
            layers.Dense(2 * size, "relu", name="wide"),
            layers.Dense(size, name="narrow"),
        )
        self.norm1, self.norm2 = (layers.LayerNormalization(epsilon=1e-6) for _ in range(2))

    def build(self, shape: Any) -> None:
        self.attention.build(shape, shape)
        self.wide.build(shape)
        self.narrow.build((*shape[:-1], self.wide.units))
        self.norm1.build(shape)
        self.norm2.build(shape)

    def call(self, x: Any) -> Any:
        x = self.norm1(x + self.attention(x, x))
        return self.norm2(x + self.narrow(self.wide(x)))


class Positions(layers.Layer):
    """Embeddings of tokens and of their positions."""

    def __init__(self, length: int, vocabulary: int, size: int) -> None:
        super().__init__()
        self.tokens = layers.Embedding(vocabulary, size, name="token_embedding")
        self.positions = layers.Embedding(length, size, name="position_embedding")

    def build(self, shape: Any) -> None:
        self.tokens.build(shape)
        self.positions.build(shape[1:])

    def call(self, x: Any) -> Any:
        return self.tokens(x) + self.positions(ops.arange(x.shape[-1]))


def transformer(steps: int) -> Losses:
    """Classify texts by a transformer."""
    inputs = keras.Input((12,), dtype="int32")
    x = Positions(12, 40, 32)(inputs)
    x = layers.GlobalAveragePooling1D()(Block(32, 4)(x))
    outputs = layers.Dense(2, name="classes")(layers.Dense(16, "relu")(x))
    model = keras.Model(inputs, outputs)
    redraw(model, 5)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    rng = np.random.default_rng(6)
    x = rng.integers(0, 40, (24 * 5, 12))
    y = (x.sum(1) > 12 * 20).astype("int32")

    class Losses(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            losses.append(float(logs["loss"]))

    losses: list[float] = []
    epochs = -(-steps // 5)
    model.fit(x, y, 24, epochs, verbose=0, shuffle=False, callbacks=[Losses()])
    return losses[:steps]


GUIDES = {"tickets": tickets, "gan": gan, "gan_by_fit": gan_by_fit, "transformer": transformer}
PROGRAMS: dict[str, Callable[[int], Losses]] = GUIDES | TUTORIALS


# ---------------------------------------------------------------- the script


def losses(program: str, layout: str, steps: int) -> Losses:
    """Return the losses of a program in a layout."""
    keras.utils.set_random_seed(0)
    keras.distribution.set_distribution(LAYOUTS[layout]())
    try:
        return PROGRAMS[program](steps)
    finally:
        keras.distribution.set_distribution(None)


def main() -> None:
    """Compare gdt in all layouts with JAX."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--only", default="")
    parser.add_argument("--jax", default=sys.executable)
    options = parser.parse_args()
    if keras.backend.backend() == "jax":
        names = [name for name in PROGRAMS if name != "gan_by_fit"]
        print(json.dumps({name: losses(name, "one", options.steps) for name in names}))
        return
    command = [options.jax, "-m", "tests.interop.keras.guides", "--steps", str(options.steps)]
    environment = os.environ | {"KERAS_BACKEND": "jax", "PYTHONPATH": os.getcwd()}
    text = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    jax = json.loads(text.stdout.splitlines()[-1])
    rounded = {name: [float(f"{loss:.7g}") for loss in each] for name, each in jax.items()}
    STORED.write_text(json.dumps(rounded) + "\n")
    for program in PROGRAMS:
        for layout in LAYOUTS:
            if options.only in f"{program} {layout}":
                ours = losses(program, layout, options.steps)
                theirs = jax[program.removesuffix("_by_fit")]
                print(f"{program:14} {layout:22} {np.abs(np.subtract(ours, theirs)).max():.1e}")


if __name__ == "__main__":
    main()
