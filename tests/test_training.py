"""The trainer: what it measures, shows and leaves behind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from rich.console import Console

import gdt
from examples import imdb
from gdt import Layout, create_mesh, nn
from gdt.errors import ArgumentError, NanError
from gdt.optim import SGD
from gdt.training import Trainer, evaluating


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
@pytest.mark.parametrize(("scheme", "most"), list(zip(imdb.SCHEMES, [3, 4, 5], strict=True)))
def test_a_step_has_as_few_collectives_as_theory_allows(
    scheme: imdb.Scheme, most: int, blocks: int, rng: np.random.Generator
) -> None:
    """Moments; their gradient; all gradients with loss and accuracy; one for each split sum."""
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
    problem = "(?s)the loss is nan in batch 1 of epoch 1, step 1 in all.*after it: weight, bias"
    with pytest.raises(NanError, match=problem):
        trainer.fit(batches, epochs=2, show=False)
    ending = gdt.training.TerminateOnNaN()
    with pytest.warns(UserWarning, match="the loss is nan after batch 0") as caught:
        history = trainer.fit(batches, epochs=2, show=False, callbacks=[ending])
    assert len(caught) == 1 and caught[0].filename == __file__
    assert len(history.steps) == 1 and len(history.epochs) == 1
