"""The demo as a person runs it: real data, all schemes, accuracies, pictures."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

import gdt
from examples import (
    clusters,
    demo,
    gpt,
    imdb,
    keras_tutorial,
    mirrored_strategy,
    mnist,
    pipelined_moe,
    planned_gpt,
    spatial_cnn,
)
from examples.reporting import Run, console, table
from gdt import create_mesh
from gdt.prediction import ParallelPlan

ROOT = Path(gdt.__file__).parents[1]


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("outputs")


@pytest.fixture(scope="module")
def shown(output: Path) -> tuple[list[Run], str]:
    """The demo's trainings, and what it printed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["demo", "--output", str(output)])
        with console.capture() as capture:
            runs = demo.main()
    return runs, capture.get()


def test_every_phase_learns_and_the_last_reaches_its_accuracy(shown: tuple[list[Run], str]) -> None:
    data, model, spatial, digits = shown[0]
    for run in (data, model, spatial, digits):
        assert run.history["loss"][-1] < run.history["loss"][0], run.name
    assert spatial.history["val_accuracy"][-1] >= 0.84
    assert digits.history["val_accuracy"][-1] >= 0.91


def test_a_phase_continues_where_the_one_before_stopped(shown: tuple[list[Run], str]) -> None:
    """Restored on another mesh, the model begins with a loss far below an untrained one's."""
    data, model, spatial, _ = shown[0]
    beginning = lambda run: np.mean([step["loss"] for step in run.history.steps[:20]])
    assert beginning(data) > 0.55
    assert beginning(model) < 0.4 and beginning(spatial) < 0.4
    assert [run.mesh.sizes for run in (data, model, spatial)] == [(8,), (4, 2), (2, 2, 2)]


def test_the_demo_shows_a_table_and_where_the_pictures_are(
    shown: tuple[list[Run], str], output: Path
) -> None:
    text = shown[1]
    assert str(output) in text
    for run in shown[0]:
        assert run.name in text and f"{run.history['val_accuracy'][-1]:.3f}" in text


@pytest.mark.parametrize("name", ["imdb.png", "mnist.png"])
def test_the_pictures_show_something(shown: tuple[list[Run], str], output: Path, name: str) -> None:
    with Image.open(output / name) as picture:
        pixels = np.asarray(picture.convert("RGB"))
    assert min(pixels.shape[:2]) > 400
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 100


def test_the_last_three_checkpoints_are_kept(shown: tuple[list[Run], str], output: Path) -> None:
    names = sorted(path.name for path in (output / "imdb-checkpoints").iterdir())
    assert names == [f"ckpt-{number}.safetensors" for number in (4, 5, 6)]


def losses_of_numpy(weights: list[np.ndarray], batches: list[Any]) -> list[float]:
    """The losses of a training of dense layers with ReLU by Adam, written by hand in float64.

    weights: those of a layer (inputs, outputs), then its bias (outputs,), and so on.
    """
    means, squares = ([np.zeros_like(w) for w in weights] for _ in range(2))
    losses, last = [], len(weights) - 2
    for step, (x, labels) in enumerate(batches, start=1):
        inputs, rows = [x.astype(float)], np.arange(len(labels))
        for k in range(0, last, 2):
            inputs.append(np.maximum(inputs[-1] @ weights[k] + weights[k + 1], 0))
        logits = inputs[-1] @ weights[last] + weights[last + 1]  # (batch, classes)
        exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
        probabilities = exponentials / exponentials.sum(axis=1, keepdims=True)
        losses.append(-np.log(probabilities[rows, labels]).mean())
        g = probabilities
        g[rows, labels] -= 1
        g /= len(labels)
        gradients = [np.empty(0)] * len(weights)
        for k in range(last, -1, -2):
            gradients[k], gradients[k + 1] = inputs[k // 2].T @ g, g.sum(axis=0)
            g = (g @ weights[k].T) * (inputs[k // 2] > 0)
        for k, gradient in enumerate(gradients):
            means[k] = 0.9 * means[k] + 0.1 * gradient
            squares[k] = 0.999 * squares[k] + 0.001 * gradient**2
            mean, square = means[k] / (1 - 0.9**step), squares[k] / (1 - 0.999**step)
            weights[k] = weights[k] - 1e-3 * mean / (np.sqrt(square) + 1e-7)
    return losses


def test_losses_of_the_digits_are_those_of_a_program_in_numpy(
    shown: tuple[list[Run], str],
) -> None:
    """Over the first epoch: later, rounding decides the signs of Adam's steps along gradients that
    are nearly 0, and losses part."""
    model = mnist.MLP(mnist.SIZES, gdt.Layout([None, None], create_mesh([("batch", 1)])))
    weights = [w.numpy().astype(float) for w in model.parameters().values()]
    assert [w.shape for w in weights[::2]] == [(784, 700), (700, 500), (500, 10)]
    (x, y), _ = mnist.load(None)
    batches = list(gdt.data.Batches(x, y, batch_size=128, seed=0))
    expected = losses_of_numpy(weights, batches)
    losses = [step["loss"] for step in shown[0][-1].history.steps[: len(batches)]]
    assert len(losses) == 40 and losses[-1] < losses[0] / 3
    np.testing.assert_allclose(losses, expected, rtol=5e-6)


def test_layouts_alone_change_between_schemes(tmp_path: Path, rng: np.random.Generator) -> None:
    """Each scheme restores what another saved, and gives the same predictions, to rounding."""
    x = rng.random((320, imdb.TOKENS), dtype=np.float32)
    data = ((x, rng.integers(0, 2, 320)), (x, rng.integers(0, 2, 320)))
    found = []
    for scheme in imdb.SCHEMES:
        for blocks in (1, 8):
            epochs = 0 if found else 1  # the first trains, the others only restore
            run = imdb.train(scheme, data, tmp_path, epochs, blocks)
            placed = gdt.asarray(x, layout=gdt.Layout(scheme.x, run.mesh))
            found.append(run.model.eval()(placed).numpy())
    for logits in found[1:]:
        np.testing.assert_allclose(logits, found[0], rtol=1e-4, atol=1e-5)


def test_digits_train_on_blocks_as_on_one(rng: np.random.Generator) -> None:
    x, y = rng.random((300, 784), dtype=np.float32), rng.integers(0, 10, 300)
    runs = [
        mnist.train(create_mesh([("batch", 8)], blocks=blocks), ((x, y), (x, y)), epochs=1)
        for blocks in (1, 8)
    ]
    losses = [[step["loss"] for step in run.history.steps] for run in runs]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)


# Where the tests run in the background, a shell has told them to ignore interrupts.
INTERRUPTIBLE = """
import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("examples.mnist", run_name="__main__", alter_sys=True)
"""


def start(output: Path) -> subprocess.Popen[str]:
    """Start the digits' training, and wait until it has its folder to itself."""
    command = [sys.executable, "-c", INTERRUPTIBLE, "--full", "--output", str(output)]
    started = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while started.poll() is None and not (output / ".lock").exists():
        time.sleep(0.05)
    return started


def test_an_interrupt_ends_with_one_line_that_names_the_folder(tmp_path: Path) -> None:
    running = start(tmp_path)
    time.sleep(1)
    running.send_signal(signal.SIGINT)
    printed, errors = running.communicate(timeout=60)
    assert running.returncode == 130
    assert not errors
    assert printed.strip().splitlines()[-1].endswith(f"What was saved is in {tmp_path}.")


def test_two_examples_do_not_share_a_folder(tmp_path: Path) -> None:
    first = start(tmp_path)
    try:
        printed, errors = start(tmp_path).communicate(timeout=60)
        assert not printed and errors.startswith(f"Another example writes to {tmp_path}.\n")
    finally:
        first.kill()
        first.communicate()


def test_the_table_fits_a_narrow_terminal(shown: tuple[list[Run], str]) -> None:
    console = Console(width=60)
    with console.capture() as capture:
        console.print(table(shown[0]))
    lines = capture.get().splitlines()
    assert max(map(len, lines)) <= 60 and "…" not in capture.get()
    for run in shown[0]:
        assert f"{run.history['val_accuracy'][-1]:.3f}" in capture.get()


def test_examples_without_their_packages_say_what_to_install(tmp_path: Path) -> None:
    code = "import sys; sys.modules['sklearn'] = None; sys.path.insert(0, '.'); import examples"
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    assert ended.stderr == (
        "The examples need scikit-learn.\n  Install it with: pip install '.[examples]'\n"
    )


# ---------------------------------------------------------------- the other examples, smaller


@pytest.fixture(scope="module")
def digits() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """A part of the digits: 1,280 for training and 500 for tests."""
    (x, y), (x_test, y_test) = mnist.load(None)
    return (x[:1280], y[:1280]), (x_test[:500], y_test[:500])


def test_layouts_of_layers_and_a_layout_map_train_alike(digits: Any) -> None:
    mesh = create_mesh([("batch", 8)])
    histories = [keras_tutorial.train(f(mesh), digits) for f in keras_tutorial.MODELS.values()]
    losses = np.array([[step["loss"] for step in history.steps] for history in histories])
    assert losses.shape == (3, 30) and np.ptp(losses, axis=0).max() < 1e-5
    assert histories[0]["val_accuracy"][-1] > 0.85
    for kind, model in keras_tutorial.placed(mesh).items():
        layouts = {str(x.layout) for x in model.parameters().values()}
        assert layouts == {"['batch', -]", "['batch']"}, kind


def test_mirrored_strategy_learns_one_from_one() -> None:
    strategy = gdt.MirroredStrategy(mirrored_strategy.DEVICES)
    history, loss, predictions = mirrored_strategy.with_keras(strategy)
    assert len(history["loss"]) == 5 and loss < 1e-9
    np.testing.assert_allclose(predictions, np.ones((10, 1)), atol=1e-5)
    results = mirrored_strategy.with_estimators(strategy)
    assert results["global_step"] == 10 and results["label/mean"] == 1.0
    assert results["average_loss"] < 1e-9


def test_tiles_of_images_train_as_batches_do(digits: Any) -> None:
    (x, y), (x_test, y_test) = digits
    small = (x[:512], y[:512]), (x_test[:200], y_test[:200])
    histories = [spatial_cnn.train(scheme, small, epochs=1) for scheme in spatial_cnn.SCHEMES]
    first = [history.steps[0]["loss"] for history in histories]
    assert first[0] == pytest.approx(first[1], rel=1e-4)
    assert all(history.steps[-1]["loss"] < history.steps[0]["loss"] for history in histories)
    parameters = spatial_cnn.model()
    parameters(gdt.zeros((1, 28, 28, 1), "float32"))
    assert sum(p.size for p in parameters.parameters().values()) == 28_410


def losses_of_gpt(data: Any, scheme: str, steps: int, blocks: int | None) -> list[float]:
    return [step["loss"] for step in gpt.train(scheme, data, steps, blocks)[1].steps]


def test_a_gpt_learns_the_same_under_every_scheme(monkeypatch: pytest.MonkeyPatch) -> None:
    data = gpt.load(None)
    assert len(data[0]) + len(data[1]) == 32_573_836
    monkeypatch.setattr(gpt, "EVALUATED", 1)
    runs = [(lambda: gdt.optim.SGD(0.5), 8, 2), (gpt.optimizer, 1, 4)]  # AdamW sees no factors
    for optimizer, blocks, steps in runs:
        monkeypatch.setattr(gpt, "optimizer", optimizer)
        expected = losses_of_gpt(data, "data", steps, 1)
        for name in gpt.SCHEMES:
            losses = losses_of_gpt(data, name, steps, blocks)
            np.testing.assert_allclose(losses, expected, rtol=0, atol=1e-5, err_msg=name)
    model, history = gpt.train("data", data, 100)
    assert history["val_loss"][-1] < 2.6
    assert gpt.write(model, "this ", 10).startswith("this ")


@pytest.fixture(scope="module")
def losses_of_stages_and_experts() -> list[float]:
    return pipelined_moe.train("one device", 40)


def test_a_gpt_of_stages_and_experts_learns(losses_of_stages_and_experts: list[float]) -> None:
    assert losses_of_stages_and_experts[-1] < 0.75 * losses_of_stages_and_experts[0]


@pytest.mark.parametrize("name", [name for name in pipelined_moe.SCHEMES if name != "one device"])
def test_stages_and_experts_learn_the_same_under_every_scheme(
    name: str, losses_of_stages_and_experts: list[float]
) -> None:
    losses = pipelined_moe.train(name, 3)
    np.testing.assert_allclose(losses, losses_of_stages_and_experts[:3], rtol=1e-5)


def test_a_gpt_is_planned_and_its_small_twin_learns_the_same_under_the_plan() -> None:
    plans = planned_gpt.planned()
    best, twin = plans[0].prediction, planned_gpt.train(plans[0], 20)
    assert best is not None and best.fits and best.mesh.size == 64
    assert twin[-1] < 0.6 * twin[0]
    alone = ParallelPlan(create_mesh([("data", 1)]), ("data",))
    step = planned_gpt.make_step(alone, planned_gpt.SMALL)
    np.testing.assert_allclose(twin[:3], [float(step()) for _ in range(3)], rtol=1e-4)


@pytest.mark.networks_full
def test_a_gpt_learns_the_same_for_long_and_well() -> None:
    data = gpt.load(None)
    assert gpt.train("data", data, 300)[1]["val_loss"][-1] <= 2.35
    expected = losses_of_gpt(data, "data", 1000, 1)
    for name, blocks in itertools.product(gpt.SCHEMES, (1, 8)):
        history = gpt.train(name, data, 1000, blocks)[1]
        assert history["val_loss"][-1] <= 2.06
        losses, run = [step["loss"] for step in history.steps], f"{name}, {blocks} blocks"
        np.testing.assert_allclose(losses, expected, rtol=0, atol=1e-4, err_msg=run)
        np.testing.assert_allclose(losses[:100], expected[:100], rtol=0, atol=1e-5, err_msg=run)


@pytest.mark.networks_full
def test_all_digits_are_learnt_as_well_as_by_pytorch() -> None:
    histories = keras_tutorial.run(None, full=True)
    losses = [[step["loss"] for step in histories[n].steps[:1000]] for n in keras_tutorial.MODELS]
    assert np.ptp(losses, axis=0).max() < 1e-5
    least = {"linear decay": 0.975, "tiles of images": 0.99, "unsplit": 0.99}
    for name, history in (histories | spatial_cnn.run(None, full=True)).items():
        assert history["val_accuracy"][-1] >= least.get(name, 0.96), name


def test_components_and_clusters_are_numpys(digits: Any) -> None:
    pixels, labels = digits[0]
    variances, error, purity = clusters.run(pixels, labels)
    centred = pixels - pixels.mean(0)
    values, vectors = np.linalg.eigh(centred.T @ centred / len(pixels))
    np.testing.assert_allclose(variances, values[::-1][:20] / values.sum(), rtol=1e-3)
    points = centred @ vectors[:, ::-1][:, :20]
    centres = points[np.random.default_rng(0).permutation(len(points))[:10]]
    for _ in range(30):
        distances = ((points[:, None] - centres) ** 2).sum(-1)
        nearest = distances.argmin(1)
        centres = np.array([points[nearest == i].mean(0) for i in range(10)])
    assert error == pytest.approx(distances.min(1).mean(), rel=1e-2)
    assert purity == pytest.approx(clusters.purity(nearest, labels), abs=0.02)
