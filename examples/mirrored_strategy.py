"""A model and an estimator on all devices of a machine, trained by MirroredStrategy.

Follows the TensorFlow guide "Distributed Training in TensorFlow": a dense layer that learns 1 from
1 with fit, evaluate and predict, and a linear regressor with input functions.

    python -m examples.mirrored_strategy
"""

from __future__ import annotations

from typing import Any

import numpy as np

import gdt
from examples.reporting import console, launch
from gdt.estimators import LinearRegressor

DEVICES = 4  # virtual ones of the host; None stands for all GPUs


def with_keras(strategy: gdt.MirroredStrategy) -> tuple[Any, float, np.ndarray]:
    """Return the history of a dense layer's training, its loss and its predictions."""
    with strategy.scope():
        inputs = gdt.nn.Input((1,))
        model = gdt.nn.Model(inputs, gdt.nn.Dense(1)(inputs))
        model.compile(gdt.optim.SGD(0.2), loss="mse")
    batch = np.ones((10, 1), np.float32), np.ones((10, 1), np.float32)
    history = model.fit([batch] * 100, epochs=5, steps_per_epoch=10, verbose=0)
    loss = model.evaluate([batch] * 10, steps=10, verbose=0)
    predictions = model.predict(batch[0], batch_size=2, steps=5, verbose=0)
    return history, loss, predictions


def input_fn() -> list[Any]:
    """Return the batches of the regressor: ten rows that are 1, with the target 1."""
    return [({"feats": np.ones((10, 1))}, np.ones(10))] * 100


def with_estimators(strategy: gdt.MirroredStrategy) -> dict[str, float]:
    """Return what a linear regressor reaches in ten steps."""
    regressor = LinearRegressor(optimizer=lambda: gdt.optim.SGD(0.2), strategy=strategy)
    regressor.train(input_fn=input_fn, steps=10)
    return regressor.evaluate(input_fn=input_fn, steps=10)


def main() -> None:
    """Train both, and print what they reach."""
    strategy = gdt.MirroredStrategy(DEVICES)
    console.print(f"{strategy} with {strategy.num_replicas_in_sync} replicas")
    history, loss, predictions = with_keras(strategy)
    console.print(f"losses of the epochs: {[f'{value:.1e}' for value in history['loss']]}")
    console.print(f"evaluate: {loss:.1e}, predict: {predictions.ravel().round(3).tolist()}")
    console.print(f"LinearRegressor: {with_estimators(strategy)}", soft_wrap=True)


if __name__ == "__main__":
    launch(main)
