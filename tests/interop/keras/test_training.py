"""Keras' training on gdt: steps as they are written and as they are recorded, and what both say."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers, ops

import gdt
from gdt.errors import FunctionError, InteropError, ReplayError
from gdt.interop.keras.backend.recorded_step import EagerStepWarning, RecordedStep

X = np.random.default_rng(0).random((48, 6), "float32")
Y = X @ np.random.default_rng(1).random((6, 3), "float32")


def mlp(cls: Any = keras.Sequential) -> Any:
    if cls is keras.Sequential:
        return cls([keras.Input((6,)), layers.Dense(8, "tanh"), layers.Dense(3)])
    inputs = keras.Input((6,))
    return cls(inputs, layers.Dense(3)(layers.Dense(8, "tanh")(inputs)))


def recorded(model: Any, mode: str = "train") -> RecordedStep:
    """Return the recorded step of a model."""
    cells = getattr(model, f"{mode}_function").__closure__
    (step,) = [c.cell_contents for c in cells if isinstance(c.cell_contents, RecordedStep)]
    return step


def count_programs(model: Any, mode: str = "train") -> int:
    return len(recorded(model, mode)._function.programs)


# ---------------------------------------------------------------- recorded or not


@pytest.mark.parametrize(
    "options",
    [
        {"optimizer": "adam"},
        {"optimizer": keras.optimizers.SGD(0.1, momentum=0.9, clipnorm=0.5)},
        {"optimizer": keras.optimizers.Adam(1e-2, use_ema=True, ema_overwrite_frequency=2)},
        {"optimizer": keras.optimizers.Adam(1e-2, gradient_accumulation_steps=3)},
        {"optimizer": keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), 1e3, 3)},
        {"optimizer": keras.optimizers.RMSprop(keras.optimizers.schedules.CosineDecay(0.1, 9))},
        {"optimizer": "adam", "steps_per_execution": 3},
    ],
    ids=lambda options: type(options["optimizer"]).__name__ + str(len(options)),
)
def test_a_recorded_fit_is_the_fit_as_written(options: dict[str, Any]) -> None:
    config = options["optimizer"]
    config = config if isinstance(config, str) else keras.optimizers.serialize(config)
    results = []
    for run_eagerly in (False, True):
        keras.utils.set_random_seed(0)
        model = mlp()
        optimizer = keras.optimizers.get(copy.deepcopy(config))  # Keras takes parts out of it
        model.compile(**options | {"optimizer": optimizer}, loss="mse", metrics=["mae"],
                      run_eagerly=run_eagerly)  # fmt: skip
        history = model.fit(X, Y, 16, 4, verbose=0, validation_data=(X, Y))
        results.append((history.history, model.get_weights()))
        assert run_eagerly or count_programs(model) == 1
    (history, weights), (other, others) = results
    assert history == other
    assert all(map(np.array_equal, weights, others))


def test_a_last_batch_of_fewer_rows_is_a_recording_of_its_own() -> None:
    model = mlp()
    model.compile("sgd", "mse")
    model.fit(X[:40], Y[:40], 16, 4, verbose=0)
    assert count_programs(model) == 2


def test_a_number_that_a_callback_changes_is_seen() -> None:
    class Scaled(keras.Model):
        scale = 1.0

        def __init__(self) -> None:
            super().__init__()
            self.scale, self.dense = 1.0, layers.Dense(3)

        def call(self, x: Any) -> Any:
            return self.dense(x) * self.scale

    model = Scaled()
    model.compile(keras.optimizers.SGD(0.0), "mse")
    by_scale = {}
    for scale in (1.0, 0.0, 1.0):
        model.scale = scale
        for _ in range(4):
            loss = model.train_on_batch(X, Y)
        by_scale.setdefault(scale, []).append(loss)
    assert by_scale[0.0] == [pytest.approx(np.mean(Y**2), rel=1e-5)]
    assert by_scale[1.0][0] == by_scale[1.0][1] != by_scale[0.0][0]
    assert count_programs(model) == 2


def test_a_step_that_cannot_be_recorded_says_why_and_runs_as_written() -> None:
    class Reads(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = layers.Dense(3)

        def call(self, x: Any) -> Any:
            out = self.dense(x)
            return out * 2 if isinstance(x, gdt.DistributedArray) and float(x[0, 0]) > 2 else out

    model = Reads()
    model.compile("sgd", "mse")
    with pytest.warns(EagerStepWarning, match=r"runs as it is written.*\n.*values on the host"):
        model.fit(X, Y, 16, 3, verbose=0)
    model.compile("sgd", "mse", run_eagerly=True)
    model.fit(X, Y, 16, 3, verbose=0)


def test_a_replay_that_would_differ_is_an_error() -> None:
    calls: list[int] = []

    class Counts(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = layers.Dense(3)

        def call(self, x: Any) -> Any:
            calls.append(0)
            return self.dense(x) * float(len(calls))

    model = Counts()
    model.compile("sgd", "mse")
    model(X)
    with pytest.raises(ReplayError, match="a replay") as caught:
        model.fit(X, Y, 16, 3, verbose=0)
    assert isinstance(caught.value, FunctionError)
    assert "run_eagerly=True" in caught.value.__notes__[0]


# ---------------------------------------------------------------- steps of one's own


class Stateful(keras.Model):
    def train_step(self, data: Any) -> Any:
        x, y = data[:2]
        with gdt.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
        weights = self.trainable_weights
        gradients = tape.gradient(loss, [weight.value for weight in weights])
        self.optimizer.apply(gradients, weights)
        return {"loss": loss, "number": 7}


class Stateless(keras.Model):
    def train_step(self, state: Any, data: Any) -> Any:
        trainable, others, optimizer, metrics = state
        x, y = data[:2]

        def loss_of(trainable: Any) -> Any:
            y_pred, new = self.stateless_call(trainable, others, x, training=True)
            return self.compute_loss(y=y, y_pred=y_pred), new

        (loss, others), gradients = gdt.value_and_grad(loss_of, has_aux=True)(trainable)
        trainable, optimizer = self.optimizer.stateless_apply(optimizer, gradients, trainable)
        return {"loss": loss, "number": 7}, (trainable, others, optimizer, metrics)


class Extended(keras.Model):
    def train_step(self, data: Any) -> Any:
        return super().train_step(data) | {"number": 7}


class ExtendedStateless(keras.Model):
    def train_step(self, state: Any, data: Any) -> Any:
        logs, state = super().train_step(state, data)
        return logs | {"number": 7}, state


@pytest.mark.parametrize("cls", [Stateful, Stateless, Extended, ExtendedStateless])
@pytest.mark.parametrize("run_eagerly", [False, True])
def test_steps_of_ones_own(cls: Any, run_eagerly: bool) -> None:
    losses, weights = [], []
    for each in (cls, keras.Model):
        keras.utils.set_random_seed(0)
        model = mlp(each)
        model.compile(keras.optimizers.Adam(1e-2), "mse", run_eagerly=run_eagerly)
        logs = [model.train_on_batch(X, Y, return_dict=True) for _ in range(5)]
        losses.append([log["loss"] for log in logs])
        weights.append(model.get_weights())
        assert each is keras.Model or logs[-1]["number"] == 7
        assert run_eagerly or count_programs(model) == 1
    np.testing.assert_allclose(*losses, rtol=1e-6)
    for ours, theirs in zip(*weights, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_own_metrics_and_losses() -> None:
    class Own(keras.Model):
        def compute_loss(self, x: Any, y: Any, y_pred: Any, sample_weight: Any) -> Any:
            return ops.mean((y - y_pred) ** 2) + 1.0

        def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
            logs = super().compute_metrics(x, y, y_pred, sample_weight)
            return logs | {"largest": ops.max(y_pred)}

    model = mlp(Own)
    model.compile("sgd", "mse", metrics=["mse"])
    logs = [model.train_on_batch(X, Y, return_dict=True) for _ in range(4)][-1]
    assert logs["loss"] == pytest.approx(logs["mse"] + 1, rel=1e-5)
    assert set(logs) == {"loss", "mse", "largest"}
    tested = model.test_on_batch(X, Y, return_dict=True)
    assert tested["largest"] == pytest.approx(model.predict_on_batch(X).max(), rel=1e-6)


def test_a_loop_of_ones_own_is_recorded_with_the_model_as_its_state() -> None:
    model, optimizer = mlp(), keras.optimizers.Adam(1e-2)
    optimizer.build(model.trainable_variables)

    @gdt.function(state=[model, optimizer])
    def step(x: Any, y: Any) -> Any:
        with gdt.GradientTape() as tape:
            loss = ops.mean((model(x) - y) ** 2)
        weights = model.trainable_variables
        optimizer.apply(tape.gradient(loss, [w.value for w in weights]), weights)
        return loss

    x, y = gdt.asarray(X), gdt.asarray(Y)
    losses = [float(step(x, y)) for _ in range(6)]
    assert losses == sorted(losses, reverse=True)
    assert len(step.programs) == 1
    assert int(optimizer.iterations.value) == 6


def test_arrays_that_layers_keep_and_take_are_read_by_recorded_steps() -> None:
    class Keeps(layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.parts = ops.arange(6.0), [ops.ones(6)]

        def call(self, x: Any) -> Any:
            return x * self.scale + self.parts[0]

    keeps, inputs = Keeps(), keras.Input((6,))
    positions = layers.Embedding(6, 3)(ops.arange(6))  # an array, at once
    outputs = ops.matmul(keeps(inputs), positions)
    model = keras.Model(inputs, layers.Dense(3)(outputs))
    model.compile(keras.optimizers.SGD(0.0), "mse")
    losses = [model.train_on_batch(X, Y) for _ in range(4)]
    assert len(set(losses)) == 1 and count_programs(model) == 1
    keeps.scale = keeps.scale * 2
    assert model.train_on_batch(X, Y) != losses[0]
    assert count_programs(model) == 1


def test_arrays_that_regularizers_and_losses_keep_are_read_by_recorded_steps() -> None:
    class Weighted(keras.losses.Loss):
        def __init__(self) -> None:
            super().__init__()
            self.weights = ops.arange(1.0, 4.0)

        def call(self, y: Any, y_pred: Any) -> Any:
            return ops.sum(self.weights * (y - y_pred) ** 2, axis=-1)

    dense = layers.Dense(3, activity_regularizer=keras.regularizers.L1(0.1))
    model = keras.Sequential([keras.Input((6,)), dense])
    loss = Weighted()
    model.compile(keras.optimizers.SGD(0.0), loss)
    losses = [model.train_on_batch(X, Y) for _ in range(4)]
    expected = np.sum([1, 2, 3] * (Y - model.predict(X, verbose=0)) ** 2, -1).mean()
    expected += 0.1 * np.abs(model.predict(X, verbose=0)).sum() / len(X)
    assert losses == [pytest.approx(expected, rel=1e-5)] * 4 and count_programs(model) == 1
    loss.weights = loss.weights * 2
    assert model.train_on_batch(X, Y) > losses[0]


def test_draws_of_no_seed_go_on_in_recorded_steps() -> None:
    class Noisy(layers.Layer):
        def call(self, x: Any) -> Any:
            return x + keras.random.normal(x.shape)

    model = keras.Sequential([keras.Input((6,)), Noisy(), layers.Dense(3)])
    model.compile(keras.optimizers.SGD(0.0), "mse")
    assert len({model.train_on_batch(X, Y) for _ in range(5)}) == 5
    assert count_programs(model) == 1


def test_draws_go_on_in_recorded_steps() -> None:
    model = keras.Sequential([keras.Input((6,)), layers.Dropout(0.5, seed=1), layers.Dense(3)])
    model.compile(keras.optimizers.SGD(0.0), "mse")
    losses = [model.train_on_batch(X, Y) for _ in range(6)]
    assert len(set(losses)) == 6
    assert count_programs(model) == 1


@pytest.mark.parametrize("asks", [False, True])
def test_logs_are_read_where_a_callback_takes_them(
    asks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    numpy = gdt.DistributedArray.numpy
    model, seen = mlp(), list[float]()
    model.compile("sgd", "mse")
    model.fit(X, Y, 16, 1, verbose=0)
    take = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda _, logs: seen.append(logs["loss"])
    )
    monkeypatch.setattr(gdt.DistributedArray, "numpy", lambda x: (read.append(0), numpy(x))[1])
    model.fit(X, Y, 16, 2, verbose=0, callbacks=[take] if asks else [])
    assert len(seen) == 6 * asks and all(type(loss) is float for loss in seen)
    assert len(read) == 3 + 6 * asks  # of each epoch and the end, and of each batch


# ---------------------------------------------------------------- data


def batches() -> Iterator[Any]:
    for start in range(0, 48, 16):
        yield X[start : start + 16], Y[start : start + 16]


class Sequence(keras.utils.PyDataset):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return X[index * 16 : index * 16 + 16], Y[index * 16 : index * 16 + 16]


@pytest.mark.parametrize("data", ["arrays", "gdt", "generator", "dataset"])
def test_data_of_every_kind_gives_the_same_losses(data: str) -> None:
    model = mlp()
    model.compile("sgd", "mse")
    given: Any = {
        "arrays": lambda: (X, Y),
        "gdt": lambda: (gdt.asarray(X), gdt.asarray(Y)),
        "generator": lambda: (batches(),),
        "dataset": lambda: (Sequence(),),
    }[data]()
    options = {"batch_size": 16, "shuffle": False} if len(given) == 2 else {"shuffle": False}
    ends = pytest.warns(UserWarning, match="ran out of data")  # as Keras says it on any backend
    with ends if data == "generator" else nullcontext():
        history = model.fit(*given, **options, verbose=0)
    assert history.history["loss"] == [pytest.approx(first_loss(), rel=1e-6)]


def first_loss() -> float:
    keras.utils.set_random_seed(0)
    model = mlp()
    model.compile("sgd", "mse", run_eagerly=True)
    return float(model.fit(X, Y, 16, shuffle=False, verbose=0).history["loss"][0])


def test_class_and_sample_weights() -> None:
    labels = np.arange(48) % 3
    model = mlp()
    model.compile(keras.optimizers.SGD(0.0), "mse", weighted_metrics=["mse"])
    rows = np.mean((Y - model.predict(X, verbose=0)) ** 2, 1)
    weights = (labels + 1.0).astype("float32")
    logs = model.train_on_batch(X, Y, sample_weight=weights, return_dict=True)
    assert logs["loss"] == pytest.approx(np.mean(rows * weights), rel=1e-5)
    assert logs["mse"] == pytest.approx(np.average(rows, weights=weights), rel=1e-5)
    with pytest.raises(ValueError, match="at the same time"):
        model.train_on_batch(X, Y, sample_weight=weights, class_weight={0: 1.0})


def test_predict_gives_numpy_arrays_of_all_batches() -> None:
    model = mlp()
    out = model.predict(X, batch_size=20, verbose=0)
    assert type(out) is np.ndarray and out.shape == (48, 3)
    model.compile(steps_per_execution=2)
    assert np.array_equal(model.predict(X, batch_size=20, verbose=0), out)


def test_exporting_says_what_to_do() -> None:
    model = mlp()
    with pytest.raises((InteropError, gdt.errors.ExportError), match=r"model\.save"):
        model.export("model")
