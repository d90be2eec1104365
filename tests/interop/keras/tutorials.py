"""Programs of TensorFlow's tutorials of distribution, in Keras, and what `compile` and `fit` offer.

`guides` runs them on gdt in layouts, and on JAX.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import layers, ops

from tests.interop.keras.layouts import redraw, transformations

ROWS, BATCHES = 24, 5  # of a batch, and batches of an epoch
Losses = list[float]


class Noted(keras.callbacks.Callback):
    """The logs of every batch, in the order of their names."""

    def __init__(self) -> None:
        super().__init__()
        self.values: Losses = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.values += [float(logs[name]) for name in sorted(logs)]


def images(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return images of ten classes, each a noisy pattern, and their classes."""
    rng = np.random.default_rng(7)
    labels = rng.integers(0, 10, ROWS * BATCHES)
    patterns = rng.random((10, size, size, 1))
    x = patterns[labels] + rng.normal(0, 0.3, (len(labels), size, size, 1))
    return x.astype("float32"), labels.astype("int32")


# ---------------------------------------------------------------- TensorFlow's tutorials


def digits(steps: int) -> Losses:
    """Train as "Using DTensors with Keras" does: a loop of one's own, with a metric."""
    inputs = keras.Input((8, 8, 1))
    hidden = layers.Dense(32, "relu", name="wide")(layers.Flatten()(inputs))
    model = keras.Model(inputs, layers.Dense(10, name="narrow")(hidden))
    redraw(model, 8)
    optimizer, metric = keras.optimizers.Adam(0.01), keras.metrics.SparseCategoricalAccuracy()
    optimizer.build(model.trainable_variables)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    value_and_grad, recorded = transformations()

    def loss_of(trainable: Any, x: Any, y: Any) -> Any:
        logits = model.stateless_call(trainable, [], x, training=True)[0]
        return loss(y, logits), logits

    def step(state: Any, x: Any, y: Any) -> Any:
        trainable, own, counts = state
        (value, logits), gradients = value_and_grad(loss_of, has_aux=True)(trainable, x, y)
        trainable, own = optimizer.stateless_apply(own, gradients, trainable)
        counts = metric.stateless_update_state(counts, y, logits)
        return (value, metric.stateless_result(counts)), [trainable, own, counts]

    variables = [model.trainable_variables, optimizer.variables, metric.variables]
    state: Any = [[v.value for v in each] for each in variables]
    step, losses = recorded(step), Losses()
    x, y = images(8)
    for i in range(steps):
        rows = slice(i % BATCHES * ROWS, (i % BATCHES + 1) * ROWS)
        batch = ops.convert_to_tensor(x[rows]), ops.convert_to_tensor(y[rows])
        pair, state = step(state, *batch)
        losses += [float(value) for value in pair]
    return losses


def mirrored(steps: int) -> Losses:
    """Train as "Distributed training with Keras" does: a rate by epochs, checkpoints, evaluation,
    and the second epoch starts from the file of the first."""
    model = keras.Sequential(
        [
            keras.Input((10, 10, 1)),
            layers.Conv2D(8, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(16, "relu", name="wide"),
            layers.Dense(10, name="narrow"),
        ]
    )
    redraw(model, 9)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(), loss, metrics=["accuracy"])
    noted, (x, y) = Noted(), images(10)
    rates = keras.callbacks.LearningRateScheduler(lambda epoch: 1e-2 if epoch < 2 else 1e-3)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        for epoch in range(-(-steps // BATCHES)):
            files = keras.callbacks.ModelCheckpoint(path)
            model.fit(
                x, y, ROWS, epoch + 1, verbose=0, shuffle=False, initial_epoch=epoch,
                callbacks=[noted, rates, files], validation_data=(x[::2], y[::2]),
            )  # fmt: skip
            noted.values += model.evaluate(x[:40], y[:40], verbose=0)
            if epoch == 0:
                model = keras.models.load_model(path)
    return noted.values


# ---------------------------------------------------------------- what compile and fit offer


def options(
    steps: int,
    *,
    compiled: dict[str, Any],
    optimizer: Callable[[], Any] = lambda: keras.optimizers.Adam(1e-2),
    policy: str = "float32",
    **fitted: Any,
) -> Losses:
    """Train a classifier with options of `compile` and `fit`."""
    keras.mixed_precision.set_global_policy(policy)
    try:
        inputs = keras.Input((12,))
        hidden = layers.BatchNormalization()(layers.Dense(32, "relu", name="wide")(inputs))
        outputs = layers.Dense(3, name="narrow", dtype="float32")(hidden)
        model = keras.Model(inputs, outputs)
    finally:
        keras.mixed_precision.set_global_policy("float32")
    redraw(model, 10)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer(), loss, **compiled)
    rng = np.random.default_rng(11)
    x = rng.normal(0, 1, (ROWS * BATCHES, 12)).astype("float32")
    y = x[:, :3].argmax(1).astype("int32")
    if "sample_weight" in fitted:
        fitted["sample_weight"] = rng.random(len(x)).astype("float32")
    noted = Noted()
    epochs = -(-steps // BATCHES)
    with np.errstate(all="ignore"):  # float16 overflows, and then a scale of losses falls
        model.fit(x, y, ROWS, epochs, verbose=0, shuffle=False, callbacks=[noted], **fitted)
    return noted.values


def scaled() -> Any:
    """Return an optimizer whose scale of losses grows until gradients overflow, and falls."""
    adam = keras.optimizers.Adam(1e-2)
    return keras.optimizers.LossScaleOptimizer(adam, 2.0**14, dynamic_growth_steps=2)


TUTORIALS: dict[str, Callable[[int], Losses]] = {
    "digits": digits,
    "mirrored": mirrored,
    "accumulation": partial(
        options,
        compiled={},
        optimizer=lambda: keras.optimizers.Adam(1e-2, gradient_accumulation_steps=3),
    ),
    "ema": partial(
        options,
        compiled={},
        optimizer=lambda: keras.optimizers.SGD(
            0.1, momentum=0.9, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=3
        ),
    ),
    "executions": partial(options, compiled={"steps_per_execution": 2, "metrics": ["accuracy"]}),
    "class_weight": partial(
        options, compiled={"weighted_metrics": ["accuracy"]}, class_weight={0: 1.0, 1: 3.0, 2: 0.5}
    ),
    "sample_weight": partial(
        options, compiled={"weighted_metrics": ["accuracy"]}, sample_weight=True
    ),
    "mixed_bfloat16": partial(options, compiled={}, policy="mixed_bfloat16"),
    "loss_scale": partial(options, compiled={}, policy="mixed_float16", optimizer=scaled),
}
