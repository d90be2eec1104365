"""The trainer: what it measures, shows and leaves behind."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from safetensors.numpy import load_file

import gdt
from examples import imdb
from gdt import Layout, create_mesh, nn
from gdt.errors import ArgumentError, NanError
from gdt.optim import SGD
from gdt.training import Trainer, evaluating
from gdt.training.batches import class_weights
from gdt.training.measuring import Measurement, aligned, loss_of, measures_of
from gdt.training.placement import BatchPlacement


def mean_of(targets: Any, predictions: gdt.DistributedArray) -> gdt.DistributedArray:
    """A loss whose value is known: the mean of the predictions."""
    return gdt.mean(predictions)


def trainer() -> Trainer:
    return Trainer(
        nn.Sequential(nn.Dense(2, 1, key=1), nn.BatchNorm(1), nn.Dropout(0.5, key=2)),
        SGD(0.1),
        nn.losses.mean_squared_error,
        {"error": nn.losses.mean_absolute_error},
    )


def data(rng: np.random.Generator, *sizes: int) -> list[tuple[gdt.DistributedArray, ...]]:
    return [
        tuple(gdt.asarray(rng.standard_normal((n, k)).astype(np.float32)) for k in (2, 1))
        for n in sizes
    ]


def test_evaluation_weighs_every_row_the_same(rng: np.random.Generator) -> None:
    batches = data(rng, 8, 3)
    run = Trainer(nn.Sequential(nn.Dense(2, 1, key=1)), SGD(), mean_of)
    rows = np.concatenate([run.model(x).numpy() for x, _ in batches])
    assert run.evaluate(batches)["loss"] == pytest.approx(rows.mean(), rel=1e-5)


def test_evaluation_changes_neither_state_nor_modes(rng: np.random.Generator) -> None:
    run = trainer()
    run.model[1].eval()
    state = run.model.state()
    run.evaluate(data(rng, 4))
    assert [m.training for _, m in run.model.modules()] == [True, True, False, True]
    assert all(run.model.state()[name] is value for name, value in state.items())
    with pytest.raises(ZeroDivisionError), evaluating(run.model):
        assert not run.model[2].training
        _ = 1 / 0
    assert run.model[2].training


def test_history_and_callbacks(rng: np.random.Generator) -> None:
    seen = []
    run, batches = trainer(), data(rng, 8, 8, 3)
    history = run.fit(
        batches,
        epochs=2,
        validation=data(rng, 5),
        callbacks=[lambda epoch, results: seen.append((epoch, dict(results)))],
        show=False,
    )
    assert len(history.steps) == 6 and run.optimizer.steps == 6
    assert history.epochs == [results for _, results in seen] and [n for n, _ in seen] == [1, 2]
    assert set(history.epochs[0]) == {"loss", "error", "val_loss", "val_error"}
    weighted = np.average([s["loss"] for s in history.steps[:3]], weights=[8, 8, 3])
    assert history["loss"][0] == pytest.approx(weighted)


@pytest.mark.parametrize("name", ["batches", "validation"])
def test_iterators_end_with_the_first_epoch(name: str, rng: np.random.Generator) -> None:
    run, given = trainer(), {n: data(rng, 4) for n in ("batches", "validation")}
    state = run.model.state()
    with pytest.raises(ArgumentError, match=f"fit: {name} is a list_iterator, which ends .* of 2"):
        run.fit(**given | {name: iter(given[name])}, epochs=2, show=False)
    assert all(run.model.state()[n] is x for n, x in state.items())
    ended: Any = iter(given[name])
    run.fit(**given | {name: ended}, show=False)
    with pytest.raises(ArgumentError, match="there is no batch"):
        run.fit(**given | {name: ended}, show=False)


def test_no_batches_have_no_loss() -> None:
    for method in ("fit", "evaluate"):
        with pytest.raises(ArgumentError, match=f"Trainer.{method}: there is no batch"):
            getattr(trainer(), method)([])


def test_repr_is_short() -> None:
    assert repr(trainer()) == (
        "Trainer(Sequential, loss=mean_squared_error, error=mean_absolute_error) with "
        "SGD(learning_rate=0.1, momentum=0.0, nesterov=False) after 0 steps"
    )


def test_the_progress_of_an_epoch_fits_in_80_columns(rng: np.random.Generator) -> None:
    console = Console(width=80, record=True, force_terminal=True)
    with console.capture() as capture:
        trainer().fit(
            iter(data(rng, *[4] * 20)), validation=data(rng, 4), title="A title", console=console
        )
    shown = capture.get()
    assert "A title" in shown and "epoch 1/1" in shown and "20/20" in shown
    assert "loss" in shown and "error" in shown and "val" in shown and "…" not in shown


@pytest.mark.parametrize("blocks", [1, 8])
@pytest.mark.parametrize(("scheme", "most"), list(zip(imdb.SCHEMES, [4, 5, 6], strict=True)))
def test_a_step_has_as_few_collectives_as_theory_allows(
    scheme: imdb.Scheme, most: int, blocks: int, rng: np.random.Generator
) -> None:
    """Means, then variances; their gradient; all gradients with loss and accuracy; one for each
    split sum."""
    mesh = create_mesh(scheme.mesh, blocks=blocks)
    run = Trainer(
        imdb.MLP(Layout(scheme.hidden, mesh), Layout(scheme.output, mesh)),
        SGD(0.02),
        nn.losses.sparse_softmax_cross_entropy,
        {"accuracy": gdt.metrics.accuracy},
    )
    x = gdt.asarray(rng.random((64, 1200), dtype=np.float32), layout=Layout(scheme.x, mesh))
    y = gdt.asarray(rng.integers(0, 2, 64), layout=Layout(["batch"], mesh))
    run.step(x, y)
    with gdt.count_collectives() as counted:
        for value in run.step(x, y).values():
            float(value)
    assert len(counted.collectives) == most


@pytest.mark.parametrize("name", ["loss", "val_loss"])
def test_a_metric_does_not_take_the_name_of_another_result(name: str) -> None:
    with pytest.raises(gdt.errors.ArgumentError, match=f"a metric is called '{name}'"):
        gdt.training.Trainer(
            gdt.nn.Sequential(gdt.nn.Dense(2, 1)),
            gdt.optim.SGD(0.1),
            gdt.nn.losses.mean_squared_error,
            {name: gdt.nn.losses.mean_absolute_error},
        )


def test_a_loss_that_is_no_number_ends_the_training() -> None:
    model = nn.Dense(1, 1, Layout.replicated(create_mesh([("x", 2)]), 2), key=1)
    trainer = gdt.training.Trainer(
        model, gdt.optim.SGD(0.1), lambda y, p: gdt.mean((p - y) ** 2) * float("nan")
    )
    batches = [(np.ones((2, 1)), np.ones((2, 1)))] * 3
    problem = "(?s)the loss is nan in batch 1 of epoch 1, step 1 in all.*the loss of them has no"
    with pytest.raises(NanError, match=problem):
        trainer.fit(batches, epochs=2, show=False)
    ending = gdt.training.TerminateOnNaN()
    with pytest.warns(UserWarning, match="the loss is nan after batch 0") as caught:
        history = trainer.fit(batches, epochs=2, show=False, callbacks=[ending])
    assert len(caught) == 1 and caught[0].filename == __file__
    assert len(history.steps) == 1 and len(history.epochs) == 1


def test_losses_are_read_every_eighth_step_and_the_first_that_is_no_number_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def trained(bad: int, **options: Any) -> list[int]:
        """Train for 20 steps, of which number `bad` has no loss; return when losses were read."""
        model = nn.Sequential(nn.Dense(1, 1, key=1))
        trainer = Trainer(model, SGD(0.1), "mse")
        reads: list[int] = []

        def add(self: Measurement, *args: Any) -> dict[str, float]:
            reads.append(trainer.optimizer.steps)
            return original(self, *args)

        monkeypatch.setattr(Measurement, "add", add)
        values = [np.full((2, 1), np.nan if n == bad else 1.0) for n in range(1, 21)]
        trainer.fit([(np.ones((2, 1)), y) for y in values], show=False, **options)
        return reads

    original = Measurement.add
    assert trained(0) == [8] * 8 + [16] * 8 + [20] * 4
    assert trained(0, resume=tmp_path / "a", save_every=5)[:8] == [5] * 5 + [8] * 3
    watching = gdt.training.LambdaCallback(on_train_batch_end=lambda batch, logs: None)
    assert trained(0, callbacks=[watching]) == [*range(1, 21)]
    for bad in (1, 3, 8, 11, 20):
        problem = f"the loss is nan in batch {bad} of epoch 1, step {bad} in all"
        with pytest.raises(NanError, match=problem):
            trained(bad)
        folder = tmp_path / str(bad)
        with pytest.raises(NanError, match=problem):
            trained(bad, resume=folder, save_every=2)
        for path in folder.glob("*.safetensors"):  # none is of a NaN
            assert np.isfinite(load_file(path)["model.layers.0.weight"]).all()


def calls_of(run: Callable[[], object]) -> int:
    """Return how many functions `run` calls."""
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(None)
    return calls


def test_fit_calls_few_functions_beside_those_of_a_plain_loop(rng: np.random.Generator) -> None:
    mesh = create_mesh([("batch", 4)])
    x, y = rng.random((64 * 24, 6), dtype=np.float32), rng.integers(0, 3, 64 * 24)
    layouts = [Layout(["batch", None], mesh), Layout(["batch"], mesh)]

    def place(*arrays: np.ndarray) -> list[gdt.DistributedArray]:
        return [gdt.asarray(a, layout=layout) for a, layout in zip(arrays, layouts, strict=True)]

    with gdt.default_mesh(mesh):
        models = [nn.Sequential(nn.Dense(6, 3, key=1)) for _ in range(2)]
    loss, optimizer = nn.losses.sparse_softmax_cross_entropy, gdt.optim.Adam(0.01)
    trainer = Trainer(models[1], gdt.optim.Adam(0.01), loss)

    @gdt.function
    def step(x: Any, y: Any) -> Any:
        value, gradients = gdt.value_and_grad(lambda m: loss(y, m(x)))(models[0])
        optimizer.update(models[0], gradients)
        return value

    def by_hand(steps: int) -> None:
        rows = slice(64 * steps)
        for batch in gdt.data.Batches(x[rows], y[rows], batch_size=64, seed=0, place=place):
            float(step(*batch))

    def fit(steps: int) -> None:
        rows = slice(64 * steps)
        trainer.fit(gdt.data.Batches(x[rows], y[rows], batch_size=64, seed=0), show=False)

    calls = []  # of a step
    for run in (by_hand, fit):
        run(8)  # records the step
        calls.append((calls_of(lambda r=run: r(24)) - calls_of(lambda r=run: r(8))) / 16)
    assert calls[0] > 300 and calls[1] - calls[0] < 180, calls


# ---------------------------------------------------------------- the parts of a batch


@pytest.mark.parametrize(
    ("targets", "predictions", "expected"),
    [
        ((6,), (6, 1), (6, 1)), ((6, 2), (6, 2, 1), (6, 2, 1)), ((6, 1), (6, 4), (6,)),
        ((6, 2, 1), (6, 2, 4), (6, 2)), ((6,), (6, 4), (6,)), ((6, 4), (6, 4), (6, 4)),
        ((6,), (6,), (6,)), ((6, 1), (6,), (6, 1)), ((), (6, 1), ()), ((6, 2), (6, 4), (6, 2)),
        ((6,), (), (6,)), ((6, 1), (6, 1, 4), (6, 1)),
    ],
)  # fmt: skip
def test_targets_get_or_lose_the_last_axis_as_in_keras(
    targets: tuple[int, ...], predictions: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    labels, numbers = gdt.zeros(targets, int), gdt.zeros(predictions)
    y, p = aligned(labels, numbers)
    assert y.shape == expected and p is numbers
    if len(targets) == len(predictions) > 1 and targets != predictions:
        floats = labels.astype(float)  # are no labels
        assert aligned(floats, numbers)[0] is floats
    assert aligned([labels], numbers)[0] == [labels]


ROWS = np.array([1, 0, 2, 1, 3, 0])
SPLIT = Layout(["a", None], create_mesh([("a", 2)]))


@pytest.mark.parametrize(
    "labels",
    [
        ROWS, ROWS[:, None], ROWS.astype("f4"), [*ROWS.tolist()], np.eye(5)[ROWS],
        gdt.asarray(ROWS), gdt.asarray(np.eye(4)[ROWS], layout=SPLIT),
    ],
)  # fmt: skip
def test_weights_of_classes_are_looked_up_by_label(labels: Any) -> None:
    weights = class_weights({1: 3.0, 0: 0.5, 7: 9.0}, labels)
    assert weights.dtype == np.float32 and weights.tolist() == [3.0, 0.5, 1.0, 3.0, 1.0, 0.5]
    if isinstance(labels, gdt.DistributedArray):
        assert weights.layout.dims[0] == labels.layout.dims[0]
    with pytest.raises(ArgumentError, match=r"targets have shape \[2, 2, 2\]"):
        class_weights({1: 3.0}, np.zeros((2, 2, 2)))


def test_batches_are_placed_by_their_rows_in_the_dtype_of_the_model() -> None:
    mesh, other = gdt.create_mesh([("a", 2), ("b", 2)]), gdt.ones(3)
    with gdt.default_mesh(mesh):
        model = nn.Dense(2, 3, dtype="float32", key=0)
    for axes, parts in ((None, 2), (("b", "a"), 4), (("b",), 2)):
        place = BatchPlacement(model, axes)
        batch = {"x": [np.ones((4, 2, 2)), np.ones(4, "f2")], "n": (np.arange(4), 2.5, None, other)}
        placed = place(batch)
        arrays = [*placed["x"], *placed["n"][:2]]
        assert [x.dtype.name for x in arrays] == ["float32", "float32", "int64", "float32"]
        assert [x.layout.num_shards(0) for x in arrays[:3]] == [parts] * 3
        assert [x.ndim for x in arrays] == [3, 1, 1, 0] and placed["n"][2:] == (None, other)
        assert arrays[0].layout.sharding_specs[1:] == ["unsharded"] * 2
        with pytest.raises(ArgumentError, match="values of dtype <U1"):
            place(np.array(["a"]))
    x, y, w = BatchPlacement(model, None, {1: 2.0})(
        (np.ones((3, 2)), np.array([1, 0, 1]), np.array([1.0, 2, 3]))
    )
    assert w.tolist() == [2.0, 2.0, 6.0] and x.dtype == w.dtype == np.float32 and y.shape == (3,)
    half = BatchPlacement(gdt.nn.Dense(2, 2, dtype="float64"), None)
    assert half(np.ones(2, "f4")).dtype == np.float64


@pytest.mark.parametrize(
    ("values", "weights"), [((6,), (6,)), ((6, 3), (6,)), ((6, 3, 2), (6,)), ((6, 3), (6, 3)),
                            ((6, 3, 2), (6, 3))]
)  # fmt: skip
def test_weights_of_rows_are_factors_of_their_means(
    values: tuple[int, ...], weights: tuple[int, ...], rng: np.random.Generator
) -> None:
    t, p, w = rng.random(values), rng.random(values), rng.random(weights)
    each = (t - p) ** 2
    of_row = each.reshape(*weights, -1).mean(-1)
    for loss in (gdt.nn.losses.mean_squared_error, lambda t, p: (t - p) ** 2):
        arrays = [gdt.asarray(x) for x in (t, p, w)]
        assert float(loss_of(loss, *arrays)) == pytest.approx((of_row * w).mean())
        assert float(loss_of(loss, *arrays[:2])) == pytest.approx(each.mean())
    if values == (6, 3):
        with pytest.raises(ArgumentError, match=r"weights have shape \[5\], the losses \[6\]"):
            loss_of(gdt.nn.losses.mean_squared_error, *arrays[:2], gdt.ones(5))


def test_predictions_are_made_of_the_first_of_tuples_and_lists() -> None:
    model, x = nn.Dense(2, 1, key=0), np.ones((3, 2), "f4")
    predict = Trainer(model, "sgd", "mse").predict
    expected = model(x).tolist()
    for batch in (x, (x, x), [x, x[:, :1]], (x,), (x, None, x)):
        assert predict([batch]).tolist() == expected
        assert predict([batch, batch], steps=1).tolist() == expected


def test_names_of_metrics_are_those_of_functions(rng: np.random.Generator) -> None:
    """In any case of letters; "accuracy" goes by the shapes."""
    m, labels = gdt.metrics, rng.integers(0, 7, 9)
    of_labels, one_hot = (labels, rng.random((9, 7))), (np.eye(7)[labels], rng.random((9, 7)))
    yes = (labels % 2)[:, None].astype(float), rng.random((9, 1))
    for name, function, data in (
        ("accuracy", m.accuracy, of_labels), ("ACC", m.accuracy, of_labels),
        ("accuracy", m.categorical_accuracy, one_hot), ("acc", m.binary_accuracy, yes),
        ("accuracy", m.binary_accuracy, (yes[0][:, 0], yes[1][:, 0])),
        ("sparse_categorical_accuracy", m.accuracy, of_labels),
        ("categorical_accuracy", m.categorical_accuracy, one_hot),
        ("binary_accuracy", m.binary_accuracy, yes),
        *[(n, m.top_k_accuracy, of_labels) for n in
          ("top_k_accuracy", "top_k_categorical_accuracy", "sparse_top_k_categorical_accuracy")],
        *[(n, f, of_labels if n.startswith("sparse") else one_hot)
          for n, f in gdt.nn.losses.NAMES.items()],
    ):  # fmt: skip
        measure = measures_of([name], None)[name]
        want = float(function(*data))
        assert float(measure(*data)) == pytest.approx(want, nan_ok=True), (name, function)
    for name, of in (("auc", m.AUC), ("Precision", m.Precision), ("recall", m.Recall)):
        (measure,) = measures_of(name, None).values()
        assert type(measure) is of
