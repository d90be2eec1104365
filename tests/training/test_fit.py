"""model.compile and fit do what Keras' do; a training that ended goes on as if it had not."""

from __future__ import annotations

import csv
import functools
import itertools
import json
import os
import random
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import gdt
from gdt import create_mesh, nn
from gdt.errors import ArgumentError, CheckpointError, FunctionError, GdtError, NanError, ShapeError
from gdt.training import (
    BackupAndRestore,
    Callback,
    CSVLogger,
    EarlyStopping,
    LambdaCallback,
    LearningRateScheduler,
    ModelCheckpoint,
    ReduceLROnPlateau,
    TensorBoard,
    TerminateOnNaN,
    Trainer,
)
from tests.needs import skip

ROWS, CLASSES = 50, 4
RNG = np.random.default_rng(0)
X = RNG.standard_normal((ROWS, 6)).astype("float32")
Y = RNG.integers(0, CLASSES, ROWS)


def mlp(blocks: int = 1) -> nn.Sequential:
    """A model with running moments, random numbers, and weights on four devices."""
    with gdt.default_mesh(create_mesh([("a", 4)], blocks=blocks)):
        return nn.Sequential(
            nn.Dense(6, 8, activation="relu", key=1),
            nn.BatchNorm(8),
            nn.Dropout(0.25, key=2),
            nn.Dense(8, CLASSES, key=3),
        )


def compiled(metrics: Any = ("accuracy",), **options: Any) -> nn.Sequential:
    model = mlp()
    model.compile("adam", "sparse_softmax_cross_entropy", metrics, **options)
    return model


def linear() -> nn.Dense:
    model = nn.Dense(1, 1, key=0)
    model.compile("sgd", "mse")
    return model


def same_bits(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.state().values(), other.state().values(), strict=True)
    return all(a.numpy().tobytes() == b.numpy().tobytes() for a, b in pairs)


# ---------------------------------------------------------------- Keras' habits


class Events(Callback):
    """The names of the methods that were called, and their numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        for name in vars(Callback):
            if name.startswith("on_"):
                setattr(self, name, self._noting(name))

    def _noting(self, name: str) -> Callable[..., None]:
        def note(*args: Any) -> None:
            numbers = "".join(f" {a}" for a in args if isinstance(a, int))
            self.names.append(name.removeprefix("on_") + numbers)

        return note


def test_callbacks_come_in_keras_order() -> None:
    events = Events()
    compiled().fit(X, Y, 25, epochs=2, verbose=0, callbacks=[events], validation_data=(X, Y))
    epoch = lambda n: [
        f"epoch_begin {n}",
        "train_batch_begin 0", "train_batch_end 0", "train_batch_begin 1", "train_batch_end 1",
        "test_begin", "test_end", f"epoch_end {n}",
    ]  # fmt: skip
    assert events.names == ["train_begin", *epoch(0), *epoch(1), "train_end"]


def test_history_holds_what_keras_holds() -> None:
    history = compiled().fit(
        X, Y, 16, epochs=5, initial_epoch=2, verbose=0, validation_split=0.25, validation_freq=2
    )
    assert history.epoch == [2, 3, 4] and history.params == {"epochs": 5, "steps": 3}
    assert list(history.history) == ["loss", "accuracy", "val_loss", "val_accuracy"]
    assert [len(values) for values in history.history.values()] == [3, 3, 1, 1]
    assert compiled().fit(X, Y, epochs=3, initial_epoch=3, verbose=0).epochs == []
    some = compiled().fit(X, Y, epochs=5, verbose=0, validation_data=(X, Y), validation_freq=[2, 4])
    assert ["val_loss" in results for results in some.epochs] == [False, True, False, True, False]
    figure = history.plot()
    assert [axes.get_title() for axes in figure.axes] == ["loss", "accuracy"]
    drawn = {line.get_label(): line.get_xydata().tolist() for line in figure.axes[0].lines}
    of_epochs = [[3.0, history["loss"][0]], [4.0, history["loss"][1]], [5.0, history["loss"][2]]]
    assert drawn == {"loss": of_epochs, "val_loss": [[4.0, history["val_loss"][0]]]}


def test_the_last_rows_are_held_out_and_never_shuffled() -> None:
    rows, seen = np.arange(10, dtype="float32")[:, None], []
    model = nn.Sequential(lambda x: x, nn.Dense(1, 1, key=0))

    def loss(y: Any, p: Any) -> Any:
        seen.append(y.numpy().ravel().tolist())
        return gdt.mean((p - y) ** 2)

    model.compile("sgd", loss, run_eagerly=True)
    model.fit(rows, rows, 4, epochs=1, validation_split=0.25, verbose=0)
    assert sorted(seen[0] + seen[1]) == [0, 1, 2, 3, 4, 5, 6] and seen[0] != [0, 1, 2, 3]
    assert seen[2] == [7, 8, 9]


def test_weights_of_rows_and_classes_are_keras() -> None:
    """The loss is the sum of the weighted losses over the number of rows."""
    x, y = np.ones((4, 1), "float32"), np.arange(4, dtype="float32")[:, None]
    model, weights = linear(), np.array([0.0, 1.0, 2.0, 3.0], "float32")
    model.compiled.optimizer.learning_rate = 0.0
    each = (float(model.weight.numpy().sum()) - y.ravel()) ** 2
    history = model.fit(x, y, sample_weight=weights, verbose=0)
    assert history["loss"][0] == pytest.approx(float((weights * each).mean()), rel=1e-5)
    factors = {1: 3.0, 2: 0.5}
    history = model.fit(x, y, class_weight=factors, sample_weight=weights, verbose=0)
    both = weights * [factors.get(label, 1.0) for label in range(4)]
    assert history["loss"][0] == pytest.approx(float((both * each).mean()), rel=1e-5)
    classifier = compiled()
    kind = np.array([factors.get(int(label), 1.0) for label in Y], "float32")
    one = classifier.fit(X, Y, ROWS, shuffle=False, class_weight=factors, verbose=0)
    other = compiled().fit(X, Y, ROWS, shuffle=False, sample_weight=kind, verbose=0)
    assert one["loss"] == other["loss"]


def test_weighted_metrics_by_name_count_rows_by_their_weights() -> None:
    model, weights = compiled(weighted_metrics=["acc"]), (np.arange(ROWS) < 20).astype("float32")
    results = model.evaluate(X, Y, 8, 0, sample_weight=weights, return_dict=True)
    hits = model.predict(X, verbose=0).argmax(1) == Y
    assert results["accuracy"] == pytest.approx(hits.mean())
    assert results["acc"] == pytest.approx(hits[:20].mean())


def test_every_token_of_a_row_may_have_a_weight() -> None:
    model = nn.Sequential(nn.Embedding(5, 4), nn.Dense(5, key=0))
    model.compile("sgd", "sparse_softmax_cross_entropy", weighted_metrics=["accuracy"])
    ids, weights = RNG.integers(0, 5, (8, 3)), RNG.random((8, 3)).astype("float32")
    hits = (model.predict(ids).argmax(-1) == ids) * weights
    _, accuracy = model.evaluate(ids, ids, sample_weight=weights, verbose=0)
    assert accuracy == pytest.approx(hits.sum() / weights.sum())


def test_results_of_evaluate_are_means_over_rows_in_keras_forms() -> None:
    model = compiled()
    loss, accuracy = model.evaluate(X, Y, 16, verbose=0)
    assert model.evaluate(X, Y, 7, verbose=0, return_dict=True) == {
        "loss": pytest.approx(loss, rel=1e-5), "accuracy": pytest.approx(accuracy),
    }  # fmt: skip
    predictions = model.predict(X, 16, verbose=0)
    assert isinstance(predictions, np.ndarray) and predictions.shape == (ROWS, CLASSES)
    assert accuracy == pytest.approx((predictions.argmax(-1) == Y).mean())
    assert isinstance(linear().evaluate(X[:, :1], X[:, :1], verbose=0), float)
    assert model.test_on_batch(X, Y) == pytest.approx([loss, accuracy], rel=1e-5)
    before = model.train_on_batch(X, Y)
    assert model.train_on_batch(X, Y, return_dict=True)["loss"] < before[0]
    assert model.predict_on_batch(X[:3]).shape == (3, CLASSES)


def test_probabilities_and_names_of_keras_train_alike() -> None:
    softmax = nn.Sequential(*mlp().layers, nn.Activation("softmax"))
    softmax.compile("adam", "sparse_categorical_crossentropy", ["accuracy", "mae"][:1])
    logits = compiled()
    softmax.layers[2].eval(), logits.layers[2].eval()
    histories = [
        m.fit(X, Y[:, None], 25, epochs=3, shuffle=False, verbose=0) for m in (softmax, logits)
    ]
    np.testing.assert_allclose(*[h["loss"] for h in histories], rtol=1e-4)


def test_flat_targets_of_one_output_are_not_broadcast() -> None:
    model = linear()
    x, y = X[:, :1], X[:, 1]
    expected = ((model.predict(x, verbose=0)[:, 0] - y) ** 2).mean()
    assert model.evaluate(x, y, verbose=0) == pytest.approx(expected, rel=1e-5)


def test_metrics_over_many_batches_are_exact() -> None:
    model = nn.Sequential(nn.Dense(6, 1, key=1), nn.Activation("sigmoid"))
    model.compile("sgd", "binary_crossentropy", ["accuracy", "auc"], weighted_metrics=["recall"])
    y = (Y > 1).astype("float32")
    results = model.evaluate(X, y, 7, verbose=0, return_dict=True)
    whole = model.evaluate(X, y, ROWS, verbose=0, return_dict=True)
    assert list(results) == ["loss", "accuracy", "auc", "recall"]
    assert results == pytest.approx(whole, rel=1e-5)
    history = model.fit(X, y, 7, verbose=0)
    assert 0 <= history["auc"][0] <= 1 and "auc" not in history.steps[0]


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda: mlp().fit(X, Y), "(?s)the Sequential was not compiled.*model.compile"),
        (lambda: mlp().compile("adam"), "there is no loss"),
        (lambda: mlp().compile("adm", "mse"), "'adm' is no optimizer"),
        (lambda: mlp().compile("adam", "msee"), "'msee' is no loss"),
        (lambda: mlp().compile("adam", "mse", ["acuracy"]), "'acuracy' is no metric"),
        (lambda: mlp().compile("adam", "mse", metric=["mae"]), "(?s)'metric' is no.*Write metrics"),
        (lambda: compiled().fit(X, Y, epoch=2), "fit: got an .*'epoch'\n  Write epochs in place"),
        (lambda: compiled().fit(X, Y, workers=2), "(?s)'workers'.*workers of its own"),
        (lambda: compiled().fit(X, Y, max_queue_size=2), "(?s)'max_queue_size'.*prefetch=2"),
        (lambda: compiled().fit(X, Y, verbose=3), r"verbose is 3, not Literal\['auto', 0, 1, 2\]"),
        (lambda: compiled().evaluate(X, Y, step=2), "evaluate: got an .*'step'\n  Write steps in"),
        (lambda: compiled().predict(X, batchsize=2), "'batchsize'\n  Write batch_size in place"),
        (lambda: mlp().compile("adam", "mse", steps_per_execution=4), "(?s)no counter.*Leave it"),
        (lambda: mlp().compile("adam", "mse", loss_weights=[1, 2]), "(?s)no counter.*one loss"),
        (lambda: mlp().compile("adam", ["mse", "mse"]), "(?s)loss is a list.*one loss"),
        (
            lambda: compiled(weighted_metrics=[lambda y, p: gdt.mean(p)]).fit(X, Y, verbose=0),
            "returned one value for all rows",
        ),
        (lambda: compiled().fit(X, Y, epochs=-1, verbose=0), "epochs is -1"),
        (lambda: compiled().fit(X, Y, epochs=1.5), r"fit: epochs is 1\.5, not int"),
        (lambda: compiled().fit(X, verbose=0), "(?s)there are no targets y"),
        (lambda: compiled().fit(X, Y[:5], verbose=0), r"(?s)differ in their rows.*\[5\]"),
        (lambda: compiled().fit(X[:0], Y[:0], verbose=0), "there are no rows"),
        (lambda: compiled().fit(X, Y, 0, verbose=0), "batch_size is 0"),
        (lambda: compiled().fit(X, Y, validation_split=1.5), "validation_split is 1.5"),
        (lambda: compiled().fit([(X, Y)], Y), "y is given, and x yields batches"),
        (lambda: compiled().fit([(X, Y)] * 2, validation_split=0.1), "validation_split needs"),
        (lambda: compiled().fit([X], verbose=0), "there are no targets"),
        (lambda: compiled().compiled.fit(X, Y), "(?s)fit.*gdt.data.Batches"),
        (lambda: compiled().compiled.fit(X), "(?s)batches is one array.*gdt.data.Batches"),
        (lambda: compiled().compiled.fit([(X,)], show=False), "a tuple of 1, not a pair"),
        (lambda: compiled().fit(X, Y + 1, verbose=0), "out of range|labels"),
        (lambda: compiled().fit(X, Y, callbacks=[EarlyStopping], verbose=0), r"EarlyStopping\(\)"),
        (
            lambda: compiled().fit(X, Y, callbacks=[EarlyStopping()], verbose=0),
            "(?s)no result 'val_loss'.*loss, accuracy.*validation data",
        ),
        (lambda: compiled().fit(X, Y, callbacks=[3], verbose=0), "a callback is 3, neither a"),
        (lambda: compiled().predict(X, callbacks=5), "a callback is 5, neither a"),
        (lambda: compiled().evaluate(X, Y, steps=0), "steps is 0"),
        (lambda: compiled().predict(5), "predict: batches is 5, which yields no batches"),
        (lambda: compiled().predict([X, X]), "x is a list of 2 arrays, and the layer takes one"),
        (lambda: compiled().predict_on_batch(5), "predict_on_batch: there are no rows"),
        (lambda: compiled().test_on_batch(5, Y), r"(?s)differ in their rows.*x: \[\]"),
        (lambda: compiled().train_on_batch(X, Y[:5]), r"(?s)differ in their rows.*\[5\]"),
        (lambda: compiled().set_weights(5), r"set_weights: weights is 5, not Sequence"),
        (lambda: compiled().compile("sgd", "mse", clip_norm=0), "clip_norm is 0"),
        (lambda: compiled().compile("sgd", lambda p: p), r"'loss' is no function of \(targets"),
        (lambda: fit_with_metric(lambda y, p: 3.0), "the metric '<lambda>' returned a float"),
        (
            lambda: compiled().fit(X, Y, verbose=0, callbacks=lambda a: a),
            "no function of .epoch, res",
        ),
        (lambda: gdt.training.LearningRateScheduler(lambda: 0.1), r"no function of \(epoch\)"),
        (
            lambda: compiled().fit(
                X, Y, callbacks=gdt.training.LearningRateScheduler(lambda n: None), verbose=0
            ),
            "the learning rate is None",
        ),
        (lambda: ReduceLROnPlateau(cooldown=-1), "cooldown is -1"),
        (
            lambda: fit_with_metric(gdt.metrics.ConfusionMatrix(2)),
            "(?s)ConfusionMatrix: .*2 classes",
        ),
        (lambda: gdt.metrics.ConfusionMatrix(2).update([0, 2], np.eye(2)), "index 2 is out of"),
        (lambda: gdt.nn.losses.get("categorical_crossentropy")([0], [[0.5, 0.5]]), "take sparse_"),
        (lambda: of_two_outputs("mse"), "returns a list of 2 arrays, and loss takes one"),
        (lambda: of_two_outputs(lambda y, p: gdt.mean(p[0]), "acc"), "and acc takes one"),
        (lambda: unused_layer().fit(X, Y, verbose=0), "depend on source 'unused.bias' through"),
        (lambda: EarlyStopping(patience=-1), "patience is -1"),
        (lambda: ReduceLROnPlateau(factor=2.0), "factor is 2.0"),
        (lambda: LambdaCallback(on_epoch=print), "unexpected keyword argument 'on_epoch'"),
    ],
)
def test_what_does_not_fit_says_what_to_write(call: Callable[[], Any], problem: str) -> None:
    with pytest.raises((GdtError, IndexError), match=problem):
        call()


def of_two_outputs(loss: Any, metrics: Any = None) -> float:
    x = nn.Input((6,))
    model = nn.Model(x, [nn.Dense(2)(x), nn.Dense(1)(x)])
    model.compile("sgd", loss, metrics)
    return float(model.evaluate(X, (Y, Y), verbose=0))


def unused_layer() -> nn.Module:
    class Net(nn.Module):
        def __init__(self) -> None:
            self.used, self.unused = nn.Dense(6, CLASSES), nn.Dense(6, 2)

        def __call__(self, x: Any) -> Any:
            return self.used(x)

    model = Net()
    model.compile("sgd", "sparse_softmax_cross_entropy")
    return model


def test_a_training_goes_on_with_other_metrics_and_names_a_damaged_file(tmp_path: Path) -> None:
    for epochs, metrics in ((1, ["accuracy", gdt.metrics.ConfusionMatrix(CLASSES)]), (2, None)):
        model = compiled()
        model.compile("adam", "sparse_softmax_cross_entropy", metrics)
        history = model.fit(X, Y, epochs=epochs, verbose=0, resume=tmp_path)
    assert len(history["loss"]) == 2 and len(history["accuracy"]) == 1
    newest = max(tmp_path.iterdir())
    newest.write_bytes(newest.read_bytes()[:100])
    with pytest.raises(CheckpointError, match="damaged") as caught:
        model.fit(X, Y, epochs=3, verbose=0, resume=tmp_path)
    assert caught.value.__notes__ == [
        f"Without {newest} the training goes on from the checkpoint before it."
    ]


def fit_with_metric(metric: Callable[[Any, Any], Any]) -> gdt.training.History:
    model = compiled()
    model.compile("sgd", "sparse_softmax_cross_entropy", metric)
    return model.fit(X, Y, ROWS, shuffle=False, verbose=0)


def test_detections_of_logits_are_those_of_their_sigmoids() -> None:
    y, z = (Y[:, None] % 2).astype("float32"), X[:, :1]
    m = gdt.metrics
    listed: dict[str, Any] = {
        "names": ["accuracy", "binary_accuracy", "auc", "precision", "recall"],
        "objects": [
            m.MeanOf(m.binary_accuracy),
            m.binary_accuracy,
            m.AUC(),
            m.Precision,
            m.Recall(),
        ],
        "weighted": ["acc", "binary_accuracy", m.AUC(name="a"), m.Precision(name="p"), "recall"],
    }
    from_logits = functools.partial(nn.losses.binary_crossentropy, from_logits=True)
    results = []
    for loss, inputs in (
        ("binary_crossentropy", 1 / (1 + np.exp(-z))),
        ("sigmoid_cross_entropy", z),
        (from_logits, z),
    ):
        for kind, metrics in listed.items():
            model = nn.Sequential(nn.Activation("linear"))
            named = dict(zip("abcde", metrics, strict=True)) if kind == "objects" else metrics
            argument = "weighted_metrics" if kind == "weighted" else "metrics"
            model.compile("sgd", loss, **{argument: named})
            results.append(model.evaluate(inputs, y, verbose=0))
    for result in results:
        np.testing.assert_allclose(result, results[0], rtol=1e-5)
    given = [m.AUC(from_logits=True), m.Precision(0.3), m.Recall(0.3)]
    model.compile("sgd", "sigmoid_cross_entropy", given)
    shifted = nn.Sequential(nn.Activation("linear"))
    shifted.compile("sgd", "sigmoid_cross_entropy", ["auc", "precision", "recall"])
    results = [model.evaluate(z, y, verbose=0), shifted.evaluate(z - 0.3, y, verbose=0)]
    np.testing.assert_allclose(*[r[2:] for r in results], rtol=1e-5)
    for predictions in ([-0.1, 0.4], [0.1, 1.4]):
        auc = gdt.metrics.AUC()
        auc.update([0.0, 1.0], predictions)
        assert np.isnan(auc.result())


def test_weighted_metrics_have_names_of_their_own() -> None:
    model = nn.Sequential(nn.Dense(6, CLASSES, key=0))
    model.compile(
        "sgd", "sparse_softmax_cross_entropy", ["accuracy"], weighted_metrics=["accuracy"]
    )
    results = model.evaluate(X, Y, verbose=0, sample_weight=Y == 0, return_dict=True)
    hits = model.predict(X).argmax(-1) == Y
    assert results["accuracy"] == pytest.approx(hits.mean())
    assert results["weighted_accuracy"] == pytest.approx(hits[Y == 0].mean())


class CountsEpochs(Callback):
    """A callback whose `__init__` calls no other, with a NumPy number in its state."""

    def __init__(self) -> None:
        self.total = np.float32(0)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.total += np.float32(1)

    def state(self) -> dict[str, Any]:
        return {"total": self.total}

    def load(self, state: Any) -> None:
        self.total = state["total"]


def test_states_of_callbacks_hold_numbers_of_numpy_and_their_errors_name_them(
    tmp_path: Path,
) -> None:
    for epochs in (2, 3):
        callback = CountsEpochs()
        compiled().fit(X, Y, epochs=epochs, verbose=0, callbacks=callback, resume=tmp_path)
    assert callback.total == 3
    callback.total = object()
    with pytest.raises(ArgumentError, match="holds an object") as caught:
        callback.on_epoch_end = lambda *_: None
        compiled().fit(X, Y, epochs=4, verbose=0, callbacks=callback, resume=tmp_path / "other")
    assert caught.value.__notes__ == ["raised by state of the callback CountsEpochs"]


def test_a_metric_of_each_row_is_their_mean() -> None:
    history = fit_with_metric(lambda y, p: y * 2.0)
    assert history["<lambda>"] == [pytest.approx(2 * Y.mean())]


def test_lists_of_one_array_are_that_array_and_callbacks_may_be_one() -> None:
    model, epochs = compiled(), []
    model.fit(
        [X], [Y], verbose=0, validation_data=([X], [Y]), callbacks=lambda n, _: epochs.append(n)
    )
    assert epochs == [1]
    np.testing.assert_array_equal(model.predict([X]), model.predict(X))


def test_validation_data_may_have_several_inputs() -> None:
    x, z = nn.Input((6,)), nn.Input((6,))
    model = nn.Model([x, z], nn.Dense(CLASSES)(x - z))
    model.compile("sgd", "sparse_softmax_cross_entropy")
    others = [X[::-1].copy(), X]
    history = model.fit([X, X], Y, verbose=0, validation_data=(others, Y))
    logits = model.predict(others)
    losses = np.log(np.exp(logits).sum(-1)) - logits[np.arange(ROWS), Y]
    assert history["val_loss"] == [pytest.approx(losses.mean(), rel=1e-5)]


def test_a_loss_that_needs_the_host_names_the_line_and_the_flag() -> None:
    def loss(y: Any, p: Any) -> Any:
        return gdt.mean((p - y) ** 2) * float(gdt.sum(p) > 0)

    model = nn.Dense(1, 1, key=0)
    model.compile("sgd", loss)
    with pytest.raises(FunctionError, match="cannot") as caught:
        model.fit(X[:, :1], X[:, :1], 10, verbose=0)
    assert any("eager=True" in note for note in caught.value.__notes__)
    model.compile("sgd", loss, run_eagerly=True)
    model.fit(X[:, :1], X[:, :1], 10, verbose=0)


def test_recorded_steps_are_those_written() -> None:
    models = [compiled(), compiled(run_eagerly=True)]
    histories = [m.fit(X, Y, 8, epochs=3, shuffle=False, verbose=0) for m in models]
    assert same_bits(*models) and histories[0].steps == histories[1].steps


# ---------------------------------------------------------------- epochs


def test_epochs_of_some_steps_go_on_where_the_last_one_stopped() -> None:
    seen: list[float] = []
    model = nn.Dense(1, 1, key=0)

    def loss(y: Any, p: Any) -> Any:
        seen.extend(y.numpy().ravel().tolist())
        return gdt.mean((p - y) ** 2)

    model.compile("sgd", loss, run_eagerly=True)
    rows = np.arange(12, dtype="float32")[:, None]
    batches = [(rows[i : i + 2], rows[i : i + 2]) for i in range(0, 12, 2)]
    model.fit(batches, epochs=3, steps_per_epoch=2, verbose=0)
    assert seen == list(range(12))
    endless = itertools.cycle(batches)
    model.fit(endless, epochs=2, steps_per_epoch=4, verbose=0)
    assert len(seen) == 12 + 16
    with pytest.warns(UserWarning, match="ended after 2 of 4 batches of epoch 2"):
        model.fit(batches, epochs=2, steps_per_epoch=4, verbose=0)
    with pytest.raises(ArgumentError, match="a cycle, which ends with the first epoch"):
        model.fit(endless, epochs=2, verbose=0)


def test_callbacks_stop_schedule_and_restore() -> None:
    rates: list[float] = []
    model = compiled()
    worse = iter([1.0, 0.5, 0.7, 0.9, 1.1])
    states: list[Any] = []

    class Judge(Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            logs["val_loss"] = next(worse)
            states.append(self.model.state())
            rates.append(gdt.training.callbacks.rate_of(self.trainer.optimizer))

    stopping = EarlyStopping(patience=2, restore_best_weights=True)
    history = model.fit(
        X, Y, 25, epochs=9, verbose=0,
        callbacks=[LearningRateScheduler(lambda n: 0.0005 / 2**n), Judge(), stopping],
    )  # fmt: skip
    assert history["val_loss"] == [1.0, 0.5, 0.7, 0.9] and stopping.best_epoch == 1
    assert not np.array_equal(states[1]["layers.0.weight"], states[3]["layers.0.weight"])
    assert all(np.array_equal(model.state()[n].numpy(), x.numpy()) for n, x in states[1].items())
    np.testing.assert_allclose(rates, [0.001 / 2**n for n in range(1, 5)])
    states.clear()
    worse = iter([0.5, 0.7])  # the epochs end before the patience
    model.fit(X, Y, 25, epochs=2, verbose=0, callbacks=[Judge(), stopping])
    assert all(np.array_equal(model.state()[n].numpy(), x.numpy()) for n, x in states[0].items())
    programs = model.compiled.session.programs["step"].programs
    assert len(programs) <= 2, "a new rate needs no new recording"


def test_a_plateau_reduces_the_rate() -> None:
    model = linear()
    model.compiled.optimizer.learning_rate = 0.0
    plateau = ReduceLROnPlateau("loss", factor=0.5, patience=2, min_lr=0.0)
    model.compiled.optimizer.learning_rate = 1e-30
    history = model.fit(X[:, :1], X[:, :1], epochs=6, shuffle=False, verbose=0, callbacks=[plateau])
    np.testing.assert_allclose(
        history["learning_rate"], np.array([1, 1, 1, 0.5, 0.5, 0.25]) * 1e-30
    )
    plateau = ReduceLROnPlateau("loss", factor=0.5, patience=0, cooldown=2)
    history = model.fit(X[:, :1], X[:, :1], epochs=6, shuffle=False, verbose=0, callbacks=[plateau])
    rates = np.array([1, 1, 0.5, 0.5, 0.25, 0.25]) * history["learning_rate"][0]
    np.testing.assert_allclose(history["learning_rate"], rates)
    model.compiled.optimizer.learning_rate = 1e-30
    plateau = ReduceLROnPlateau("loss", factor=0.1, patience=0, min_lr=5e-32)
    history = model.fit(X[:, :1], X[:, :1], epochs=4, shuffle=False, verbose=0, callbacks=[plateau])
    np.testing.assert_allclose(history["learning_rate"], [1e-30, 1e-30, 1e-31, 5e-32])
    stopping = EarlyStopping("loss", patience=2)  # an equal loss is no better one
    model.compiled.optimizer.learning_rate = 1e-30
    options = {"epochs": 9, "shuffle": False, "verbose": 0, "callbacks": [stopping]}
    assert model.fit(X[:, :1], X[:, :1], **options).epoch == [0, 1, 2]
    options["callbacks"] = [EarlyStopping("loss", patience=1, baseline=0.0)]
    assert model.fit(X[:, :1], X[:, :1], **options).epoch == [0]
    rising = ("val_accuracy", "acc", "val_auc", "precision", "val_recall")
    assert [EarlyStopping(name).sign for name in (*rising, "val_loss")] == [-1] * 5 + [1]
    with pytest.raises(ArgumentError, match="ReduceLROnPlateau: patience is -1, below 0"):
        ReduceLROnPlateau("loss", patience=-1)


def test_a_rate_of_0_changes_no_weight() -> None:
    model = linear()
    before = model.state()
    history = model.fit(
        X[:, :1], X[:, :1], epochs=2, verbose=0, callbacks=[LearningRateScheduler(lambda n: 0.0)]
    )
    assert history["learning_rate"] == [0.0, 0.0]
    for name, x in model.state().items():
        np.testing.assert_array_equal(x.numpy(), before[name].numpy())


def test_functions_of_batches_and_epochs_take_logs_as_keras_do() -> None:
    names: list[str] = []
    note = lambda name: lambda *args: names.append(f"{name} {len(args)}")
    functions = {n: note(n) for n in ("on_train_begin", "on_epoch_begin", "on_train_batch_begin")}
    compiled().fit(X, Y, verbose=0, callbacks=[LambdaCallback(**functions)])
    assert names == ["on_train_begin 1", "on_epoch_begin 2", *["on_train_batch_begin 2"] * 2]


def test_an_evaluation_in_a_training_leaves_its_totals() -> None:
    class Evaluate(Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.evaluate(X[:8], Y[:8] > 1, verbose=0)  # type: ignore[attr-defined]

    results = []
    for callbacks in ([], [Evaluate()]):
        gdt.random.seed(0)
        model = nn.Sequential(nn.Dense(6, 1, activation="sigmoid", key=0))
        model.compile("sgd", "binary_crossentropy", ["auc"])
        results.append(model.fit(X, Y > 1, 10, verbose=0, callbacks=callbacks)["auc"])
    assert results[0] == results[1] and 0 < results[0][0] < 1


def test_only_callbacks_that_act_after_batches_have_results_read(tmp_path: Path) -> None:
    class Watching(ModelCheckpoint):
        def on_batch_begin(self, batch: int, logs: Any = None) -> None: ...

    assert not ModelCheckpoint("m").watches_batches and not Callback().watches_batches
    assert ModelCheckpoint("m", save_freq=3).watches_batches and Watching("m").watches_batches
    with pytest.raises(ArgumentError, match="save_freq is 0\n  It is 'epoch', 'batch' or a pos"):
        BackupAndRestore(tmp_path, save_freq=0)


def test_callbacks_end_at_a_loss_that_is_no_number() -> None:
    class Ending(TerminateOnNaN):
        pass

    model, nan = linear(), np.full((4, 1), np.nan, "float32")
    with pytest.warns(UserWarning, match="the loss is nan after batch 0; training ends"):
        history = model.fit(nan, nan, epochs=9, verbose=0, callbacks=[Ending()])
    assert len(history.epochs) == 1


BAD = np.concatenate([X[:44], np.full((1, 6), np.nan, "float32"), X[45:]])
SHARE = np.where(np.arange(ROWS) == 44, np.inf, 1.0)
PROBABILITIES = "sparse_categorical_crossentropy"


class Rooted(nn.Sequential):
    """A model whose gradients are NaN from the sixth batch on, where its predictions are finite."""

    def __call__(self, x: Any, training: bool | None = None) -> Any:
        y = super().__call__(x)
        return y + gdt.sqrt(gdt.maximum(gdt.max(x) - 2.0, 0.0) * gdt.sum(y * y)) * 0.0


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("blocks", [1, 4])
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("first", [0, 44])
def test_a_loss_that_is_no_number_leaves_the_state_of_before_its_step(
    first: int, late: bool, blocks: int, eager: bool
) -> None:
    def made(**options: Any) -> nn.Sequential:
        gdt.random.seed(3)
        mesh = create_mesh([("a", 4)], blocks=blocks)
        sizes = [(8,), (CLASSES,)] if late else [(6, 8), (8, CLASSES)]
        layouts = nn.LayoutMap(mesh)
        layouts[r".*\.(weight|bias|scale|offset|moving.*)"] = nn.Sharded(kept="a")
        strategies = gdt.MirroredStrategy(mesh=mesh), gdt.ModelParallel(layout_map=layouts)
        with strategies[late].scope():
            norm = nn.BatchNorm(None if late else 8)
            layers = nn.Dense(*sizes[0], key=1), norm, nn.Dropout(0.25), nn.Dense(*sizes[1], key=3)
            model = nn.Sequential(*layers)
        optimizer = gdt.optim.MovingAverage(gdt.optim.Adam(0.01))
        model.compile(optimizer, "sparse_softmax_cross_entropy", run_eagerly=eager)
        return model

    fit = lambda model, x, y, **more: model.fit(x, y, 4, shuffle=False, verbose=0, **more)
    model, other = made(), made()
    step = (44 - first) // 4 + 1
    problem = f"(?s)nan in batch {step} of epoch 1.*x has nan in row 0.*as before step {step}"
    with np.errstate(invalid="ignore"), pytest.raises(NanError, match=problem):
        fit(model, BAD[first:], Y[first:])
    state = gdt.random.generator.state
    if first == 0:
        made()  # which leaves the random state that `model` began with
        fit(other, X[:44], Y[:44])
        assert gdt.random.generator.state == state
    assert same_bits(model, other)
    assert model.optimizer.steps == other.optimizer.steps == step - 1
    averages = [m.optimizer.state["average"].values() for m in (model, other)]
    assert all(map(np.array_equal, *averages)) and len(averages[0]) == len(averages[1])
    gdt.random.generator.state = state
    fit(model, X[44:], Y[44:])  # which goes on
    assert all(np.isfinite(w).all() for w in model.get_weights())


@pytest.mark.parametrize(
    ("options", "data", "cause"),
    [
        ({}, {"y": np.where(np.arange(ROWS)[:, None] == 44, np.nan, X)}, "y has nan in row 0"),
        ({}, {"sample_weight": SHARE}, "sample_weight has inf in row 0"),
        (
            {"optimizer": gdt.optim.SGD(1e30)},
            {},
            "of them has inf in row 0.*as before step 2",
        ),
        ({"loss": PROBABILITIES}, {"y": Y}, "the loss of them has nan in row .*from_logits=True"),
        ({"loss": lambda y, p: p[:, 0] / (y[:, 0] * 0)}, {}, "the loss of them has .* in row 0"),
        ({"cls": Rooted}, {}, "since parameters are not finite after step .*gradients"),
        (
            {},
            {"callbacks": LambdaCallback(on_train_batch_end=lambda batch, logs: None), "x": BAD},
            "x has nan in row",
        ),
    ],
    ids=str.split("y weights diverged logits loss gradients callback"),
)
def test_the_error_says_what_made_the_loss_no_number(options: Any, data: Any, cause: str) -> None:
    model = options.get("cls", nn.Sequential)(nn.Dense(6, 6, key=1))
    model.compile(options.get("optimizer", "sgd"), options.get("loss", "mse"))
    with np.errstate(all="ignore"), pytest.raises(NanError, match=f"(?s){cause}"):
        model.fit(**{"x": X, "y": X, "batch_size": 4, "shuffle": False, "verbose": 0, **data})
    assert all(np.isfinite(w).all() for w in model.get_weights())


def test_keras_way_to_stop_leaves_nothing_on_the_model() -> None:
    class Stop(Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.stop_training = batch == 1  # type: ignore[attr-defined]

    model = compiled()
    history = model.fit(X, Y, 10, epochs=3, verbose=0, callbacks=Stop())
    assert len(history.steps) == 2 and "stop_training" not in vars(model)


def test_files_of_callbacks(tmp_path: Path) -> None:
    model = compiled()
    model.fit(
        X, Y, 25, epochs=2, verbose=0, validation_data=(X, Y),
        callbacks=[
            CSVLogger(tmp_path / "log.csv"),
            ModelCheckpoint(tmp_path / "w-{epoch:02d}-{val_loss:.2f}", save_weights_only=True),
        ],
    )  # fmt: skip
    rows = list(csv.DictReader((tmp_path / "log.csv").read_text().splitlines()))
    assert [row["epoch"] for row in rows] == ["0", "1"] and float(rows[1]["val_loss"]) > 0
    files = sorted(p.name for p in tmp_path.glob("w-*"))
    assert len(files) == 2 and files[0].startswith("w-01-") and files[1].startswith("w-02-")
    other = mlp()
    gdt.checkpoint.restore(tmp_path / files[1], other)
    assert same_bits(model, other)
    with pytest.raises(ArgumentError, match="'val_lss', which is no result"):
        model.fit(X, Y, verbose=0, callbacks=[ModelCheckpoint("{val_lss}", save_weights_only=True)])


def test_tensorboard_reads_the_results(tmp_path: Path) -> None:
    try:
        from tensorboardX.proto.event_pb2 import Event  # noqa: PLC0415
        from tensorboardX.record_writer import RecordWriter  # noqa: F401, PLC0415
    except ImportError:
        skip("tensorboardX is not installed")
    tags: dict[str, list[int]] = {}
    for epochs, part in itertools.product((1, 2), ("train", "validation")):
        if part == "train":  # the second epoch is one of a training that goes on
            compiled().fit(
                X, Y, 25, epochs=epochs, verbose=0, validation_data=(X, Y), resume=tmp_path / "r",
                callbacks=[TensorBoard(tmp_path / str(epochs), update_freq=1)],
            )  # fmt: skip
        (file,) = (tmp_path / str(epochs) / part).iterdir()
        data, at = file.read_bytes(), 0
        while at < len(data):  # length (8), its checksum (4), the event, its checksum (4)
            size = int.from_bytes(data[at : at + 8], "little")
            event = Event.FromString(data[at + 12 : at + 12 + size])
            at += size + 16
            for value in event.summary.value:
                tags.setdefault(f"{part}/{value.tag}", []).append(event.step)
    assert tags["train/epoch_loss"] == [0, 1] and tags["validation/epoch_accuracy"] == [0, 1]
    assert tags["train/batch_loss"] == [1, 2, 3, 4]


# ---------------------------------------------------------------- callbacks, by values alone


def driven(callback: Callback, values: list[float], cut: int, make: Any) -> SimpleNamespace:
    """Give a callback one result in each epoch, until it stops the training. After `cut` epochs
    another one, `make()`, goes on from the state of the first."""
    model = nn.Dense(1, 1, key=0)
    trainer = SimpleNamespace(model=model, stop_training=False, saved=[], rates=[], said=[])
    trainer.optimizer, trainer.say = gdt.optim.SGD(0.1), trainer.said.append
    callback.trainer = trainer
    callback.on_train_begin({})
    for epoch, value in enumerate(values):
        if epoch == cut:
            state, arrays, callback = (
                json.loads(json.dumps(callback.state())),
                callback.arrays,
                make(),
            )
            callback.trainer, callback.arrays = trainer, arrays
            callback.on_train_begin({})
            callback.load(state)
            callback.arrays = arrays
        model.bias = gdt.full((1,), epoch, "float32")
        callback.on_epoch_begin(epoch, {})
        logs = {"loss": 9.0, "val_x": value}
        callback.on_epoch_end(epoch, logs)
        trainer.rates.append(logs.get("learning_rate"))
        if trainer.stop_training:
            break
    callback.on_train_end({})
    trainer.epoch, trainer.callback, trainer.bias = epoch, callback, model.bias.item()
    return trainer


def chances(count: int) -> Iterator[tuple[random.Random, list[float], dict[str, Any], int]]:
    """Yield values of ten epochs with ties, options of Monitor, and where a training is cut."""
    for seed in range(count):
        chance = random.Random(seed)
        values = [chance.randrange(8) / 4 for _ in range(10)]
        delta = chance.choice([0.0, 0.25, -0.25, 0.3])
        options = {"mode": chance.choice(["min", "max", "auto"]), "min_delta": delta}
        yield chance, values, options, chance.randrange(0, 12)


def improves(value: float, best: float | None, options: dict[str, Any]) -> bool:
    sign = -1 if options["mode"] == "max" else 1
    return best is None or sign * (best - value) > abs(options["min_delta"])


def test_early_stopping_waits_for_patience_after_the_last_better_epoch() -> None:
    for chance, values, options, cut in chances(150):
        patience, start = chance.randrange(4), chance.randrange(3)
        baseline, restores = chance.choice([None, None, 1.0]), chance.random() < 0.5
        make = functools.partial(
            EarlyStopping, "val_x", patience=patience, baseline=baseline, start_from_epoch=start,
            restore_best_weights=restores, verbose=1, **options,
        )  # fmt: skip
        best, last, end = baseline, start - 1, len(values) - 1
        for epoch, value in enumerate(values[start:], start):
            if improves(value, best, options):
                best, last = value, epoch
            elif epoch - last >= max(patience, 1):
                end = epoch
                break
        run = driven(make(), values, cut, make)
        stops = end - last >= max(patience, 1)
        assert (run.epoch, run.stop_training, run.callback.best) == (end, stops, best)
        kept = max(last, start)  # without any better epoch, the first that is watched
        assert run.bias == (kept if restores else end)
        said = [f"epoch {end + 1}: stopped early"] * stops
        assert run.said == said + [f"restored the arrays of epoch {kept + 1}"] * restores


def test_a_plateau_is_keras() -> None:
    for chance, values, options, cut in chances(150):
        patience, cooldown = chance.randrange(4), chance.randrange(3)
        factor, least = chance.choice([0.5, 0.1]), chance.choice([0.0, 0.03])
        make = functools.partial(
            ReduceLROnPlateau, "val_x", factor=factor, patience=patience, cooldown=cooldown,
            min_lr=least, verbose=1, **options,
        )  # fmt: skip
        best, wait, cooling, rate, rates, said = None, 0, 0, 0.1, [], []
        for epoch, value in enumerate(values):
            rates.append(rate)
            if cooling > 0:
                cooling -= 1
                wait = 0
            if improves(value, best, options):
                best, wait = value, 0
            elif cooling <= 0:
                wait += 1
                if wait >= patience and rate > least:
                    rate, wait, cooling = max(rate * factor, least), 0, cooldown
                    said.append(f"epoch {epoch + 1}: the learning rate is {rate:g}")
        run = driven(make(), values, cut, make)
        assert run.rates == rates and run.said == said and not run.stop_training


def test_checkpoints_of_the_best_are_those_that_improve(tmp_path: Path) -> None:
    for number, (chance, values, options, cut) in enumerate(chances(12)):
        options["min_delta"], folder = 0.0, tmp_path / str(number)
        folder.mkdir()
        threshold = best = chance.choice([None, 1.0])
        make = functools.partial(
            ModelCheckpoint, folder / "{epoch:03d}-{val_x:.2f}", "val_x", save_best_only=True,
            save_weights_only=True, mode=options["mode"], initial_value_threshold=threshold,
            verbose=1,
        )  # fmt: skip
        names = []
        for epoch, value in enumerate(values, 1):
            if improves(value, best, options):
                names.append(f"{epoch:03d}-{value:.2f}")
                best = value
        run = driven(make(), values, cut, make)
        assert sorted(path.name for path in folder.iterdir()) == names
        assert run.said == [f"epoch {int(n[:3])}: saved {folder / n}" for n in names]


@pytest.mark.parametrize("cut", [0, 1, 2, 9])
@pytest.mark.parametrize(("separator", "append"), [(",", False), (";", True), ("\t", True)])
def test_a_log_goes_on_where_it_ended(
    tmp_path: Path, separator: str, append: bool, cut: int
) -> None:
    path = tmp_path / "log.csv"
    make = functools.partial(CSVLogger, path, separator, append)
    for number in range(2):  # the second training follows the first one, or takes its place
        driven(make(), [1.0, 0.5, 2.0], cut if number else 9, make)
    rows = [f"{e},9.0,{v}" for e, v in enumerate([1.0, 0.5, 2.0])]
    lines = ["epoch,loss,val_x", *rows, *(rows if append else [])]
    assert path.read_text().splitlines() == [line.replace(",", separator) for line in lines]
    logger = CSVLogger(path)
    logger.on_train_begin({})
    for epoch, logs in enumerate([{"loss": 1, "a": 2}, {"a": 3, "b": 4}]):
        logger.on_epoch_end(epoch, logs)
    assert path.read_text().splitlines() == ["epoch,loss,a", "0,1,2", "1,NA,3"]


def test_a_schedule_of_epochs_gets_their_numbers_and_the_last_rate() -> None:
    for schedule, expected in (
        (lambda epoch: 0.1 / (epoch + 1), [0.1, 0.05, 0.1 / 3]),
        (lambda epoch, rate: rate * 0.5 + epoch, [0.05, 1.025, 2.5125]),
        (lambda epoch, rate: rate, [0.1, 0.1, 0.1]),
    ):
        scheduler = LearningRateScheduler(schedule, verbose=1)
        run = driven(scheduler, [0.0] * 3, 9, None)
        np.testing.assert_allclose(run.rates, expected, rtol=1e-12)
        said = [f"epoch {n}: the learning rate is {r:g}" for n, r in enumerate(run.rates, 1)]
        assert run.said == said
    for rate in (-0.1, np.inf, np.nan, "fast"):
        with pytest.raises(ArgumentError, match="the learning rate is"):
            driven(LearningRateScheduler(functools.partial(lambda r, n: r, rate)), [0.0], 9, None)


# ---------------------------------------------------------------- display


def test_progress_fits_any_terminal_and_a_pipe_gets_a_line_an_epoch(tmp_path: Path) -> None:
    trainer = compiled().compiled
    batches = [(X[:16], Y[:16])] * 20
    for width in (20, 40, 80, 200):
        console = Console(width=width, record=True, force_terminal=True)
        with console.capture() as capture:
            trainer.fit(batches, validation=batches, console=console)
        shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capture.get().split("\r")[-1])
        assert ("epoch 1/1" in shown or width < 40) and all(
            len(line) <= width for line in shown.splitlines()
        )
    with (tmp_path / "out").open("w") as file:
        trainer.fit(batches, 2, title="A title", console=Console(file=file))
    lines = (tmp_path / "out").read_text().splitlines()
    assert lines[0] == "A title" and [line[:9] for line in lines[1:]] == ["epoch 1/2", "epoch 2/2"]
    assert "20 batches" in lines[1] and "loss" in lines[1] and "\r" not in "".join(lines)


# ---------------------------------------------------------------- stopping and going on


def training(folder: Path | None, extra: Any = (), **options: Any) -> tuple[nn.Module, Any]:
    """A training whose state is in everything that is saved."""
    gdt.random.seed(3)
    model = compiled(["accuracy", gdt.metrics.ConfusionMatrix(CLASSES)])
    model.compiled.optimizer = gdt.optim.MovingAverage(gdt.optim.Adam(0.01))
    history = model.fit(
        X, Y, 8, epochs=4, verbose=0, validation_split=0.2, resume=folder,
        callbacks=[
            LearningRateScheduler(lambda epoch, rate: rate * float(gdt.random.uniform((), 0.8))),
            EarlyStopping("val_loss", patience=9, restore_best_weights=True),
            *extra,
        ],
        **options,
    )  # fmt: skip
    return model, history


def stopping() -> Callback:
    """Stop after three of four epochs, unless it is forgotten which one was the first."""
    return EarlyStopping("val_loss", patience=2, mode="max")


def assert_same(one: tuple[nn.Module, Any], other: tuple[nn.Module, Any]) -> None:
    assert same_bits(one[0], other[0])
    for a, b in zip(one[1].epochs, other[1].epochs, strict=True):
        assert a.keys() == b.keys()
        for name in a:
            np.testing.assert_array_equal(a[name], b[name])
    assert one[1].steps == other[1].steps and one[1].epoch == other[1].epoch


class FailAfter(Callback):
    """A callback that raises after some steps."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = steps

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.trainer.optimizer.steps == self.steps:
            raise ZeroDivisionError("mine")


@pytest.mark.parametrize("steps", [1, 10])
def test_a_callback_that_raises_leaves_a_state_to_go_on_from(tmp_path: Path, steps: int) -> None:
    with pytest.raises(ZeroDivisionError, match="mine") as caught:
        training(tmp_path, [FailAfter(steps)])
    assert "on_train_batch_end of the callback FailAfter" in caught.value.__notes__[0]
    assert f"after {steps} steps" in caught.value.__notes__[0]
    assert_same(training(tmp_path, [FailAfter(-1)]), training(None, [FailAfter(-1)]))


def test_an_ended_training_has_nothing_to_do(tmp_path: Path) -> None:
    first = training(tmp_path, [stopping()])
    assert first[1].epoch == [0, 1, 2]
    assert len([*tmp_path.iterdir()]) == 2, "of three checkpoints two stay"
    assert_same(training(tmp_path, [stopping()]), first)
    with pytest.raises(CheckpointError, match="is of 3 callbacks, not 2"):
        training(tmp_path)


def test_what_callbacks_keep_is_there_again(tmp_path: Path) -> None:
    class Sum(Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.arrays["sum"] = self.arrays.get("sum", gdt.zeros((2,))) + epoch + 1

    def callbacks(folder: str, steps: int) -> list[Callback]:
        path = tmp_path / folder / "{epoch}"
        files = ModelCheckpoint(path, save_freq=3, save_weights_only=True)
        return [Sum(), files, FailAfter(steps)]

    with pytest.raises(ZeroDivisionError):  # in the second epoch, of 5 batches
        training(tmp_path, callbacks("a", 7))
    again = callbacks("b", -1)
    training(tmp_path, again)
    assert again[0].arrays["sum"].tolist() == [10.0, 10.0]  # 1 + 2 + 3 + 4
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == ["2", "3", "4"]


def test_results_are_compared_with_those_before_a_resume(tmp_path: Path) -> None:
    """The best one of a checkpoint; epochs of patience and of a cooldown."""

    class Judge(Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            logs["val_loss"] = min(2.0, epoch + 1.0)

    for epochs in range(1, 8):
        callbacks = [
            Judge(),
            ModelCheckpoint(tmp_path / "best-{epoch}", save_best_only=True, save_weights_only=True),
            ReduceLROnPlateau("val_loss", factor=0.5, patience=2, cooldown=2),
        ]
        history = linear().fit(
            X[:, :1], X[:, :1], epochs=epochs, verbose=0, callbacks=callbacks, resume=tmp_path / "r"
        )
    assert [path.name for path in tmp_path.glob("best-*")] == ["best-1"]
    rates = np.array(history["learning_rate"])
    np.testing.assert_allclose(rates / rates[0], [1, 1, 1, 0.5, 0.5, 0.5, 0.25])


def files_of(folder: Path, cuts: list[int]) -> tuple[Any, dict[str, bytes]]:
    """Train with callbacks of all kinds, failing after the steps `cuts`; return the training and
    the files of the callbacks."""

    class Judge(Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            logs["val_loss"] = [5.0, 3.0, 4.0, 2.0, 2.0, 2.0][epoch]

    for steps in (*cuts, -1):
        gdt.random.seed(4)
        model = nn.Sequential(nn.Dense(6, 4, key=1), nn.Dropout(0.5, key=2), nn.Dense(4, 1, key=3))
        model.compile(
            gdt.optim.LossScaling(gdt.optim.Adam(0.1), 8.0, 3),
            "sigmoid_cross_entropy",
            ["accuracy", "auc"],
        )
        callbacks = [
            Judge(),
            ReduceLROnPlateau("val_loss", factor=0.5, patience=1, cooldown=1),
            EarlyStopping("val_loss", patience=2, restore_best_weights=True),
            ModelCheckpoint(
                folder / "best-{epoch}-{auc:.9f}",
                "val_loss",
                save_best_only=True,
                save_weights_only=True,
            ),
            ModelCheckpoint(folder / "often-{epoch}", save_freq=2, save_weights_only=True),
            CSVLogger(folder / "log.csv"),
            FailAfter(steps),
        ]
        options: Any = {"callbacks": callbacks, "resume": folder / "resume", "verbose": 0}
        try:
            history = model.fit(X, Y % 2, 16, epochs=9, validation_split=0.2, **options)
        except ZeroDivisionError:
            assert steps > 0
    paths = [path for path in folder.iterdir() if path.is_file()]
    return (model, history), {p.name: p.read_bytes() for p in paths}


def test_trainings_that_are_cut_leave_the_files_of_one_that_is_not(tmp_path: Path) -> None:
    whole, expected = files_of(tmp_path / "whole", [])
    assert whole[0].optimizer.steps == len(whole[1].steps) == 18
    assert len(expected) == 3 + 6 + 1
    for number, cuts in enumerate(([1], [3], [4, 6], [5, 10, 14], [18])):
        training, files = files_of(tmp_path / str(number), cuts)
        assert_same(training, whole)
        assert files == expected


def test_keras_backup_is_resume(tmp_path: Path) -> None:
    backup = [BackupAndRestore(tmp_path, save_freq=2), FailAfter(4)]
    with pytest.raises(ZeroDivisionError):
        training(None, backup)
    assert newest(tmp_path) == 2  # after two batches, and after the one that failed
    backup[1] = FailAfter(-1)
    assert_same(training(None, backup), training(None, [Callback(), FailAfter(-1)]))


def test_a_program_that_goes_on_in_another_order_sees_every_row_once(tmp_path: Path) -> None:
    rows, seen = np.arange(40, dtype="float32")[:, None], []
    model = nn.Sequential(nn.Dense(1, 1, key=0))

    def loss(y: Any, p: Any) -> Any:
        seen.extend(y.numpy().ravel().tolist())
        return gdt.mean((p - y) ** 2)

    model.compile(gdt.optim.SGD(0.0), loss, run_eagerly=True)
    with pytest.raises(ZeroDivisionError):
        model.fit(rows, rows, 8, verbose=0, resume=tmp_path, callbacks=[FailAfter(2)])
    model.fit(rows, rows, 8, verbose=0, resume=tmp_path, callbacks=[FailAfter(-1)])
    assert sorted(seen) == rows.ravel().tolist()


def test_an_interrupt_ends_after_the_step_with_a_checkpoint_and_three_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)

    class Interrupt(Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if self.trainer.optimizer.steps == 6:
                signal.raise_signal(signal.SIGINT)

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt) as caught:
            training(tmp_path, [Interrupt()])
        lines = str(caught.value).splitlines()
        assert len(lines) == 3 and "after 7 steps, in epoch 2 of 4" in lines[0]
        assert str(tmp_path) in lines[1] and "as if nothing had happened" in lines[2]
        capsys.readouterr()
        sys.excepthook(KeyboardInterrupt, caught.value, caught.value.__traceback__)
        assert capsys.readouterr().err.splitlines() == lines
        with pytest.raises(KeyboardInterrupt, match="Nothing was saved"):
            training(None, [Interrupt()])
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, handler)
    assert_same(training(tmp_path, [Callback()]), training(None, [Callback()]))


def killed(folder: Path, seconds: float) -> bool:
    """Train in a child process, and kill it some seconds after it has first saved anything; whether
    it was still at work."""
    before, child = newest(folder), os.fork()
    if not child:
        code = 1
        try:
            training(folder, [stopping()], save_every=1)
            code = 0
        finally:
            os._exit(code)
    ended = os.WEXITED | os.WNOHANG | os.WNOWAIT
    while newest(folder) == before and os.waitid(os.P_PID, child, ended) is None:
        time.sleep(0.001)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL)
    return code < 0


def newest(folder: Path) -> int:
    """Return the number of the newest checkpoint."""
    return max(
        (int(p.stem.split("-")[1]) for p in folder.glob("training-*.safetensors")), default=0
    )


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # of a process with threads
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_trainings_end_with_the_bits_of_one_that_was_not(tmp_path: Path) -> None:
    """Each of some kills (`make test FULL=soak`: 50) meets a training that runs: where one has
    ended before, it is compared, and another one begins."""
    expected = training(None, [stopping()])
    chance, kills = random.Random(0), int(os.environ.get("GDT_KILLS", "3"))
    for number in itertools.count():
        folder = tmp_path / str(number)
        while kills and killed(folder, chance.uniform(0.0, 0.1)):
            kills -= 1
        assert kills or newest(folder), "nothing was saved before a kill"
        assert_same(training(folder, [stopping()], save_every=1), expected)
        if not kills:
            break


# ---------------------------------------------------------------- where batches come from


class Counting:
    """Batches with a position in the iterator, as grain's are."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches, self.fetched = batches, 0

    def __iter__(self) -> Iterator[Any]:
        return CountingIterator(self)


class CountingIterator(Iterator[Any]):
    def __init__(self, source: Counting) -> None:
        self.source, self.next = source, 0

    def __next__(self) -> Any:
        if self.next == len(self.source.batches):
            raise StopIteration
        self.next, self.source.fetched = self.next + 1, self.source.fetched + 1
        return self.source.batches[self.next - 1]

    def get_state(self) -> bytes:
        return str(self.next).encode()

    def set_state(self, state: bytes) -> None:
        self.next = int(state)


class Stateful:
    """Batches with a position in the loader, as torchdata's are."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches, self.fetched, self.next = batches, 0, 0

    def __iter__(self) -> Iterator[Any]:
        while self.next < len(self.batches):
            self.next, self.fetched = self.next + 1, self.fetched + 1
            yield self.batches[self.next - 1]
        self.next = 0

    def state_dict(self) -> dict[str, Any]:
        return {"next": self.next, "tensor": np.array([self.next])}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state["tensor"].tolist() == [state["next"]]
        self.next = state["next"]


class Plain(Stateful):
    """Batches without a position, as lists and PyTorch's are."""

    state_dict = load_state_dict = None  # type: ignore[assignment]

    def __getattribute__(self, name: str) -> Any:
        if name in ("state_dict", "load_state_dict"):
            raise AttributeError(name)
        return super().__getattribute__(name)


@pytest.mark.parametrize("prefetch", [0, 3])
@pytest.mark.parametrize(("source", "fetches"), [(Counting, 7), (Stateful, 7), (Plain, 10)])
def test_positions_of_loaders_are_kept(
    source: Any, fetches: int, prefetch: int, tmp_path: Path
) -> None:
    """Seven of ten batches are left after three; a plain source is asked for all ten."""
    parts = [(X[i : i + 5], Y[i : i + 5]) for i in range(0, 25, 5)]

    def run(folder: Path | None, steps: int) -> tuple[Any, Any, Any]:
        gdt.random.seed(0)
        trainer, loader = Trainer(mlp(), "adam", "sparse_softmax_cross_entropy"), source(parts)
        options = {"callbacks": [FailAfter(steps)], "prefetch": prefetch, "resume": folder}
        history = trainer.fit(loader, 2, show=False, **options)
        return trainer.model, history, loader

    with pytest.raises(ZeroDivisionError):
        run(tmp_path, 3)
    resumed, whole = run(tmp_path, -1), run(None, -1)
    assert_same(resumed[:2], whole[:2])
    assert whole[2].fetched == 10 and resumed[2].fetched == fetches


def test_a_thread_that_fetches_ends_with_the_training_and_passes_errors_on() -> None:
    def broken() -> Iterator[Any]:
        yield X[:8], Y[:8]
        raise OSError("disk")

    trainer = Trainer(mlp(), "adam", "sparse_softmax_cross_entropy")
    with pytest.raises(OSError, match="disk"):
        trainer.fit(broken(), show=False, prefetch=2)
    with pytest.raises(ZeroDivisionError):
        trainer.fit([(X, Y)] * 20, show=False, prefetch=2, callbacks=[FailAfter(3)])
    assert not [t for t in threading.enumerate() if t.name == "gdt.feed"]


def test_an_iterator_goes_on_after_what_was_used(tmp_path: Path) -> None:
    """Also where the first batch is needed before, for the sizes of the layers."""
    batches = [(X[i : i + 5], Y[i : i + 5]) for i in range(0, 50, 5)]

    def run(folder: Path | None, steps: int) -> tuple[Any, Any]:
        model = nn.Sequential(nn.Dense(8, activation="relu", key=1), nn.Dense(CLASSES, key=3))
        trainer = Trainer(model, "adam", "sparse_softmax_cross_entropy")
        history = trainer.fit(
            iter(batches), 3, steps_per_epoch=3, show=False, resume=folder, prefetch=2,
            callbacks=[FailAfter(steps)],
        )  # fmt: skip
        return trainer.model, history

    with pytest.raises(ZeroDivisionError):
        run(tmp_path, 5)
    assert_same(run(tmp_path, -1), run(None, -1))


def test_rows_of_a_batch_must_agree() -> None:
    with pytest.raises(ShapeError, match="arrays of 8, 9 rows"):
        Trainer(mlp(), "adam", "sparse_softmax_cross_entropy").fit([(X[:8], Y[:9])], show=False)


def test_a_training_goes_on_with_larger_batches(tmp_path: Path) -> None:
    """An epoch that ended had more batches than the next ones have."""
    compiled().fit(X, Y, 7, verbose=0, resume=tmp_path)
    history = compiled().fit(X, Y, 32, epochs=3, verbose=0, resume=tmp_path)
    assert len(history["loss"]) == 3


def test_arguments_that_fit_nothing_are_refused_before_a_step(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    model = compiled()
    before = [np.array(array) for array in model.state().values()]
    for wrong, options in (
        ("validation_freq is 0", {"validation_data": (X, Y), "validation_freq": 0}),
        ("class_weight has the item 'a': 1.0", {"class_weight": {"a": 1.0}}),
        ("class_weight is a list", {"class_weight": [1.0, 2.0]}),
        ("one array of labels, and targets", {"y": [Y, Y], "class_weight": {1: 2.0}}),
        ("a callback is 5, neither", {"callbacks": 5}),
        ("a callback is 'early', neither", {"callbacks": "early"}),
        ("validation is 5, which yields no batches", {"validation_data": 5}),
        ("validation_data is a tuple of 1", {"validation_data": (X,)}),
        ("validation_steps is 0", {"validation_data": (X, Y), "validation_steps": 0}),
        ("batch_size is 0", {"validation_data": (X, Y), "validation_batch_size": 0}),
        ("x is a str, and no array", {"x": "x.npy", "y": "y.npy"}),
        ("save_every is 0", {"save_every": 0}),
        ("save_every is 2, and there is no resume", {"save_every": 2}),
        ("cannot be written", {"resume": tmp_path / "file" / "folder"}),
    ):
        with pytest.raises(GdtError, match=wrong):
            model.fit(**{"x": X, "y": Y, "verbose": 0, **options})
    for prefetch in (-1, "x"):
        with pytest.raises(ArgumentError, match="prefetch is"):
            model.compiled.fit([(X, Y)], prefetch=prefetch)
    for array, value in zip(model.state().values(), before, strict=True):
        np.testing.assert_array_equal(np.asarray(array), value)


def test_predictions_that_have_no_rows_are_an_error() -> None:
    trainer = Trainer(nn.Dense(6, 1), "adam", "mse")
    trainer.model = nn.Activation(gdt.transpose)
    with pytest.raises(ShapeError, match=r"x has 30 rows, and the predictions .* \[6, 30\]"):
        trainer.predict([X[:30], X[30:]])


def test_batches_of_several_inputs_come_from_iterables() -> None:
    x, z = nn.Input((6,)), nn.Input((2,))
    model = nn.Model([x, z], nn.Dense(CLASSES)(nn.Concatenate()([x, z])))
    model.compile("adam", "sparse_softmax_cross_entropy", ["accuracy"])
    batches = [((X[i : i + 10], X[i : i + 10, :2]), Y[i : i + 10]) for i in range(0, ROWS, 10)]
    assert len(model.fit(iter(batches), verbose=0)["loss"]) == 1
    assert model.predict(batches).shape == (ROWS, CLASSES)


def test_a_single_row_is_no_batch() -> None:
    x, y = np.ones((8, 4), "float32"), np.zeros(8, int)
    model = gdt.nn.Sequential(gdt.nn.Dense(4, 4, key=0))
    model.compile("sgd", "sparse_softmax_cross_entropy")
    model.fit(x, y, verbose=0)
    problem = r"x has rows of shape \[\], and the model was trained on rows of shape \[4\]"
    with pytest.raises(gdt.errors.ShapeError, match=problem):
        model.predict(x[0])
    with pytest.raises(gdt.errors.ShapeError, match="evaluate: x has rows of shape"):
        model.evaluate(x[0], y[:4], verbose=0)
    assert model.predict(x[:1]).shape == (1, 4)


def test_numbers_above_one_are_no_probabilities() -> None:
    loss = gdt.nn.losses.binary_crossentropy
    assert np.isnan(float(loss([1.0, 0.0], [1.5, 0.5])))
    assert float(loss([1.0], [1.001])) == pytest.approx(1e-7, rel=0.1)  # 1, but for rounding
    many = gdt.nn.losses.categorical_crossentropy
    assert float(many([[1.0, 0.0]], [[3.0, 1.0]])) == pytest.approx(-np.log(0.75))
