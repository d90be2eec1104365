"""What a replay of Keras' steps must see: each program ends as it does as written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers, ops

import gdt
from gdt.interop.keras import device_mesh
from gdt.interop.keras.backend.recorded_step import EagerStepWarning

X = np.random.default_rng(0).random((28, 6), "float32")
Y = X @ np.random.default_rng(1).random((6, 3), "float32")


def model_of(*own: Any) -> Any:
    inputs = keras.Input((6,))
    x = layers.Dense(8, "tanh", name="first")(inputs)
    for layer in own:
        x = layer(x)
    return keras.Model(inputs, layers.Dense(3, name="last")(x))


def frozen_between_fits(run_eagerly: bool) -> Any:
    model = model_of()
    model.compile("adam", "mse", run_eagerly=run_eagerly)
    model.fit(X, Y, 4, 2, verbose=0)
    kernel = np.array(model.get_layer("first").kernel)
    model.get_layer("first").trainable = False
    model.fit(X, Y, 4, 2, verbose=0)
    np.testing.assert_array_equal(model.get_layer("first").kernel, kernel)
    return model.get_weights()


class Scaled(layers.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.stop_gradient_at, self.beta = 1, np.float32(1)

    def call(self, x: Any) -> Any:
        return x * self.beta + self.stop_gradient_at


def numbers_of_numpy(run_eagerly: bool) -> Any:
    layer = Scaled()
    model = model_of(layer)

    class Annealing(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            layer.beta = np.minimum(1.0, (epoch + 1) / 4)
            layer.stop_gradient_at = epoch

    model.compile("adam", "mse", run_eagerly=run_eagerly)
    model.fit(X, Y, 4, 4, verbose=0, callbacks=[Annealing()], shuffle=False)
    return model.get_weights()


def states_of_a_recurrent_layer(run_eagerly: bool) -> Any:
    inputs = keras.Input((3, 2), batch_size=4)
    x = layers.GRU(4, stateful=True)(layers.LSTM(5, stateful=True, return_sequences=True)(inputs))
    model = keras.Model(inputs, layers.Dense(3)(x))
    model.compile("adam", "mse", run_eagerly=run_eagerly)
    x = X.reshape(28, 3, 2)
    model.fit(x, Y, 4, 2, verbose=0, shuffle=False)
    return [*model.get_weights(), model.predict(x, 4, verbose=0)]


@pytest.mark.parametrize(
    "program", [frozen_between_fits, numbers_of_numpy, states_of_a_recurrent_layer]
)
def test_a_replay_sees(program: Callable[[bool], Any]) -> None:
    results = []
    for run_eagerly in (True, False):
        keras.utils.set_random_seed(0)
        results.append(program(run_eagerly))
    for expected, got in zip(*results, strict=True):
        np.testing.assert_array_equal(got, expected)


def test_an_attempt_that_fails_leaves_no_trace_in_variables() -> None:
    count = keras.Variable(0.0)

    def loss(y: Any, prediction: Any) -> Any:
        count.assign_add(1.0)
        return ops.mean((y - prediction) ** 2) * count

    model = model_of()
    model.compile("sgd", loss)
    with pytest.warns(EagerStepWarning):
        model.fit(X, Y, 28, 5, verbose=0)
    assert float(count) == 5.0


def test_masks_are_kept_where_outputs_are_partial() -> None:
    ids = np.random.default_rng(0).integers(0, 4, (28, 6))
    y = np.random.default_rng(1).normal(size=(28, 6, 3)).astype("float32")
    mesh = device_mesh(gdt.create_mesh([("batch", 2), ("model", 4)]))
    layouts = keras.distribution.LayoutMap(mesh)
    layouts[".*a/kernel"], layouts[".*a/bias"] = (None, "model"), ("model",)
    layouts[".*b/kernel"] = ("model", None)
    parallel = keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch")
    results = []
    for distribution in (None, parallel):
        keras.distribution.set_distribution(distribution)
        keras.utils.set_random_seed(0)
        inputs = keras.Input((6,))
        x = layers.Dense(8, "relu", name="a")(layers.Embedding(5, 4, mask_zero=True)(inputs))
        model = keras.Model(inputs, layers.Dense(3, name="b")(x))
        model.compile("sgd", "mse", metrics=["mae"])
        results.append(model.evaluate(ids, y, verbose=0))
        keras.distribution.set_distribution(None)
    np.testing.assert_allclose(results[1], results[0], rtol=1e-5)
