"""The state of a training as a file: saved, and gone on from, bitwise as if it had not stopped."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from gdt import random
from gdt.array.array import DistributedArray
from gdt.checkpoint import CheckpointManager, contents, restore
from gdt.checkpoint.entries import of_first_process
from gdt.comm.notes import gathered
from gdt.data.feed import Feed, decoded, encoded
from gdt.errors import CheckpointError, error
from gdt.nn.module import Module
from gdt.ops.creation import asarray, zeros
from gdt.sharding import processes
from gdt.sharding.layout import Layout
from gdt.sharding.mesh import Mesh
from gdt.state import slots
from gdt.state.trees import Tree
from gdt.training.batches import evaluating, pair
from gdt.training.callback import Callback
from gdt.training.callbacks import AdjustableRate, set_rate
from gdt.training.history import History, Numbers

VERSION = 2


def save(fit: Any) -> Path:
    """Write the state of a `Fit` to its folder; return the file."""
    fit.read()
    rate = fit.trainer.optimizer.learning_rate
    positions = gathered(processes.current().count, fit.feed.position(), "fit")
    state = {
        "version": VERSION,
        "epoch": fit.epoch,
        "batch": fit.batch,
        "history": encoded({**vars(fit.history), "steps": _columns(fit.history.steps)}),
        "measurement": fit.measurement.state(),
        "positions": positions,
        "random": random.generator.state,
        "learning_rate": rate.value if isinstance(rate, AdjustableRate) else None,
        "callbacks": [_state_of(callback) for callback in fit.callbacks],
    }
    text = np.frombuffer(json.dumps(state).encode(), np.uint8)
    return _manager(fit, _tree(fit, asarray(text))).save()


def _manager(fit: Any, tree: Tree) -> CheckpointManager:
    """Return the manager of the checkpoints in the folder, of which two stay."""
    return CheckpointManager(tree, fit.folder, max_to_keep=2, name="training")


def _tree(fit: Any, host: DistributedArray) -> dict[str, Any]:
    """Return all arrays and counters of the training, and a text as the array `host`."""
    arrays = {str(i): c.arrays for i, c in enumerate(fit.callbacks) if c.arrays}
    model, optimizer = fit.trainer.model, fit.trainer.optimizer
    return {"model": model, "optimizer": optimizer, "callbacks": arrays, "host": host}


def go_on(fit: Any) -> None:
    """Go on from the newest file that `save` has written to the folder of a `Fit`, if any."""
    path = of_first_process(_manager(fit, {}).latest)
    if path is None:
        return
    try:
        shapes = contents(path)
    except CheckpointError as damage:
        damage.add_note(f"Without {path} the training goes on from the checkpoint before it.")
        raise
    if "host" not in shapes:
        problem, remedy = f"{path} holds no state of a training", "Name another folder."
        raise error(CheckpointError, "Trainer.fit", problem, remedy=remedy)
    model = fit.trainer.model
    _create_arrays(model, fit.feed, shapes)
    fit.trainer.optimizer.init(model)
    for i, callback in enumerate(fit.callbacks):
        prefix = f"callbacks.{i}."
        facts = {n.removeprefix(prefix): f for n, f in shapes.items() if n.startswith(prefix)}
        likes, mesh = {**model.state(), **callback.arrays}, fit.trainer.mesh
        callback.arrays = {n: _zeros(mesh, likes.get(n), *fact) for n, fact in facts.items()}
    tree = _tree(fit, zeros(shapes["host"][0], "uint8"))
    restore(path, tree)
    _load(fit, json.loads(tree["host"].numpy().tobytes()), path)


def _create_arrays(model: Module, feed: Feed, shapes: Mapping[str, Any]) -> None:
    """Let a model whose layers find their sizes at the first call find them."""
    names = {f"model.{slot.name}" for slot in slots(model)}
    if any(name.startswith("model.") and name not in names for name in shapes):
        with evaluating(model):
            model(pair(feed.peek(), "fit")[0])


def _zeros(
    mesh: Mesh, like: DistributedArray | None, shape: tuple[int, ...], dtype: str
) -> DistributedArray:
    """Return zeros, in the layout of `like` if that has the shape, else on all devices."""
    layout = Layout.replicated(mesh, len(shape))
    if like is not None and like.shape == shape:
        layout = like.layout.resolved
    return zeros(shape, dtype, layout=layout)


def _load(fit: Any, state: Mapping[str, Any], path: Path) -> None:
    """Go on from what `save` has written beside the arrays."""
    if state["version"] != VERSION:
        problem = f"{path} is of version {state['version']}, and this gdt reads {VERSION}"
        raise error(CheckpointError, "Trainer.fit", problem)
    if len(state["callbacks"]) != len(fit.callbacks):
        problem = f"{path} is of {len(state['callbacks'])} callbacks, not {len(fit.callbacks)}"
        remedy = "Resume with the callbacks of the first call."
        raise error(CheckpointError, "Trainer.fit", problem, remedy=remedy)
    fit.epoch, fit.batch = state["epoch"], state["batch"]
    history = decoded(state["history"])
    changed = {"steps": _steps(history["steps"]), "params": fit.history.params}
    fit.history = History(**{**history, **changed})
    fit.measurement.load(state["measurement"])
    if state["learning_rate"] is not None:
        set_rate(fit.trainer.optimizer, state["learning_rate"])
    for callback, own in zip(fit.callbacks, state["callbacks"], strict=True):
        callback.load(decoded(own))
    positions = state["positions"]
    if len(positions) != processes.current().count:
        positions = positions[:1] * processes.current().count
    dropped = fit.feed.restore(positions[processes.current().index])
    random.generator.state = tuple(state["random"])
    skipped = f", past {dropped} batches that it has seen" if dropped else ""
    fit.display.line(f"resumed from {path}, {fit.where()}{skipped}")


def _columns(steps: Sequence[Numbers]) -> list[dict[str, np.ndarray]]:
    """Return the results of steps as arrays (steps,), which JSON holds as one text, for each run of
    steps with results of the same names."""
    runs = [(names, [*run]) for names, run in groupby(steps, key=tuple)]
    return [{name: np.array([step[name] for step in run]) for name in names} for names, run in runs]


def _steps(runs: Sequence[Mapping[str, np.ndarray]]) -> list[Numbers]:
    """Return the results of steps, of which `_columns` has made these arrays."""
    rows = [(run, zip(*[column.tolist() for column in run.values()], strict=True)) for run in runs]
    return [dict(zip(run, each, strict=True)) for run, values in rows for each in values]


def _state_of(callback: Callback) -> Any:
    """Return the state of a callback in values that JSON can hold; its errors name it."""
    try:
        return encoded(callback.state())
    except Exception as problem:
        problem.add_note(f"raised by state of the callback {type(callback).__name__}")
        raise
