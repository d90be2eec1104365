"""One call of `Trainer.fit`: its loop over epochs and batches, which can stop and go on."""

from __future__ import annotations

import json
import math
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from gdt import random
from gdt.array.array import DistributedArray
from gdt.checkpoint import CheckpointManager, contents, restore
from gdt.checkpoint.entries import of_all_processes, of_first_process
from gdt.checkpoint.saving import in_all_processes
from gdt.data.feed import REITERABLE, Feed, decoded, encoded
from gdt.errors import ArgumentError, CheckpointError, NanError, error, frame_of_user
from gdt.nn.module import Module
from gdt.nn.parameters import awaits_arrays
from gdt.ops.creation import asarray, zeros
from gdt.sharding import processes
from gdt.sharding.layout import Layout
from gdt.state import slots
from gdt.state.trees import Tree
from gdt.training.batches import evaluating, pair, row_shapes, rows_of
from gdt.training.callback import Callback
from gdt.training.callbacks import AdjustableRate, EarlyStopping, TerminateOnNaN, set_rate
from gdt.training.display import Display
from gdt.training.file_callbacks import (
    BackupAndRestore,
    CSVLogger,
    ModelCheckpoint,
    TensorBoard,
)
from gdt.training.history import History, Numbers
from gdt.training.interrupts import delayed_interrupts, show_interrupt
from gdt.training.measuring import Measurement
from gdt.training.rewinding import Rewind, cause_of, is_finite

VERSION = 2
CAUSE_UNKNOWN = "Look at the batch and the loss; a lower learning rate, or clip_norm, may help."
LOOKING = (EarlyStopping, ModelCheckpoint, CSVLogger, TensorBoard, BackupAndRestore)
"""Callbacks that change neither the model nor its optimizer while steps follow."""
REFRESH = 8  # steps between two times that losses are read, and the progress is updated


@dataclass(eq=False, repr=False)
class Fit:
    """The state of a training: epoch, batch, measurements and history, and its loop.

    epochs: the number of the last epoch; epoch: how many are done. total: the batches of an epoch,
    if that is known. folder: that of checkpoints. For the others see `Trainer.fit`.
    """

    trainer: Any
    feed: Feed
    epochs: int
    epoch: int
    steps_per_epoch: int | None
    total: int | None
    validate: Callable[[], Numbers] | None
    validation_every: int | Sequence[int]
    callbacks: Sequence[Callback]
    folder: Path | None
    save_every: int | None
    display: Display

    def __post_init__(self) -> None:
        self.history = History(params={"epochs": self.epochs, "steps": self.total})
        self.batch = 0  # batches that are done in this epoch
        self.measurement = Measurement(self.trainer.metrics)
        self._unread: list[tuple[Mapping[str, DistributedArray], int]] = []  # results and rows
        self._step = self.trainer.recorded("step")
        self._is_interrupted: Callable[[], bool] = lambda: False
        self._watches_batches = any(callback.watches_batches for callback in self.callbacks)
        self._rewind: Rewind | None = None
        if not any(isinstance(c, TerminateOnNaN) for c in self.callbacks):
            changing = [c for c in self.callbacks if type(c) not in LOOKING]
            self._rewind = Rewind(self.trainer, not any(c.watches_batches for c in changing))
            self._may_change = bool(changing)

    # ---- the loop

    def run(self, title: str) -> History:
        """Train; return the history."""
        trainer, session = self.trainer, self.trainer.session
        trainer.stop_training, session.display = False, self.display
        if self.folder is not None:  # now, and not after the first epoch
            make = partial(self.folder.mkdir, parents=True, exist_ok=True)
            in_all_processes(make, self.folder)
        for callback in self.callbacks:
            callback.trainer, callback.params = trainer, self.history.params
            vars(callback).setdefault("arrays", {})  # of one whose __init__ calls no other
        with self.display.running(title), delayed_interrupts() as self._is_interrupted:
            try:
                self._call("on_train_begin", {})
                path = None if self.folder is None else of_first_process(self._manager({}).latest)
                if path is not None:
                    self._restore(path)
                while self.epoch < self.epochs and not self._is_stopped():
                    self._epoch()
                self._call("on_train_end", self.history.epochs[-1] if self.history.epochs else {})
            finally:
                self.feed.close()
                session.display = None
        return self.history

    def _is_stopped(self) -> bool:
        """Return whether a callback has ended the training."""
        if vars(self.trainer.model).pop("stop_training", False):  # Keras' way to say so
            self.trainer.stop_training = True
        return bool(self.trainer.stop_training)

    def _epoch(self) -> None:
        """Train for the rest of an epoch, validate, and tell the callbacks."""
        if not self.batch:
            self.measurement = Measurement(self.trainer.metrics)
            self._call("on_epoch_begin", self.epoch, {})
        if (rewind := self._rewind) is not None and (self._may_change or not rewind.is_kept):
            if rewind.count >= REFRESH or not rewind.count:
                self._keep(rewind)
            else:
                rewind.repeats = False
        self.display.begin(f"epoch {self.epoch + 1}/{self.epochs}", self.total)
        limit = None if self.steps_per_epoch is None else self.steps_per_epoch - self.batch
        for batch in self.feed.take(limit):
            self._train(batch)
            if self._is_stopped():
                break
        if not self.batch and self.history.epochs and self.feed.is_iterator:
            ended = f"fit: the data ended after epoch {self.epoch} of {self.epochs}; training ends"
            warnings.warn(ended, stacklevel=frame_of_user()[1])
            self.trainer.stop_training = True
            self.display.end(0, {})
            return
        if not self.batch:
            raise error(ArgumentError, "Trainer.fit", "there is no batch", remedy=REITERABLE)
        if self.batch < (self.steps_per_epoch or 0) and not self.trainer.stop_training:
            warnings.warn(
                f"fit: the data ended after {self.batch} of {self.steps_per_epoch} batches of "
                f"epoch {self.epoch + 1}; the next epoch begins anew",
                stacklevel=frame_of_user()[1],
            )
        self._read()
        results, batches = self.measurement.results(), self.batch
        if self.validate is not None and self._validates():
            self._call("on_test_begin", {})
            validated = self.validate()
            self._call("on_test_end", validated)
            results |= {f"val_{name}": value for name, value in validated.items()}
        self.display.end(batches, results)
        self.history.epochs.append(results)
        self.history.epoch.append(self.epoch)
        self.epoch, self.batch = self.epoch + 1, 0
        self._call("on_epoch_end", self.epoch - 1, results)
        if self.folder is not None:
            self.save()

    def _validates(self) -> bool:
        """Return whether this epoch ends with a validation."""
        every, number = self.validation_every, self.epoch + 1
        return number % every == 0 if isinstance(every, int) else number in every

    def _train(self, batch: Any) -> None:
        """Take a step, and tell the callbacks."""
        x, y, weights = pair(batch, "fit")
        rows = rows_of(x, y)
        if not self.batch:
            self.trainer.session.trained = row_shapes(x)
        if self._watches_batches:
            self._call("on_train_batch_begin", self.batch, {})
        self._unread.append((self._step(x, y, weights), rows))
        if self._rewind:
            self._rewind.add((x, y, weights))
        self.batch += 1
        if self._watches_batches:
            self._read()
            self._call("on_train_batch_end", self.batch - 1, self.measurement.results(False))
        if self.batch % REFRESH == 0:
            self._read()
            if self.display.is_live:
                self.display.update(self.batch, self.measurement.results(False))
        if self.save_every and self.folder and self._steps % self.save_every == 0:
            self.save()
        if self._is_interrupted():
            self._interrupt()

    @property
    def _steps(self) -> int:
        """The number of steps that were taken in all epochs."""
        return len(self.history.steps) + len(self._unread)

    def _read(self) -> None:
        """Measure and check the results of steps, which wait on the devices: a loss that is read
        after each step lets a device wait for the host."""
        unread, self._unread = self._unread, []
        first = self.batch - len(unread) + 1
        for batch, (values, rows) in enumerate(unread, first):
            scalars = self.measurement.add(values, rows)
            self.history.steps.append(scalars)
            if self._rewind and not math.isfinite(scalars.get("loss", 0.0)):
                self._refuse_loss(scalars["loss"], batch)
        if self._rewind and self._rewind.is_due:
            self._keep(self._rewind)

    def _call(self, method: str, *args: Any) -> None:
        """Call a method of all callbacks; if one raises, save the state first."""
        for callback in self.callbacks:
            try:
                getattr(callback, method)(*args)
            except Exception as problem:
                name = type(callback).__name__
                problem.add_note(f"raised by {method} of the callback {name}, {self._where()}")
                if self.folder is not None and self._steps:
                    problem.add_note(f"the state of the training is in {self.save()}")
                raise

    def _where(self) -> str:
        """Return how far the training is."""
        is_inside = self.batch or not self._steps
        place = f"in epoch {self.epoch + 1}" if is_inside else f"at the end of epoch {self.epoch}"
        return f"after {self._steps} steps, {place} of {self.epochs}"

    def _keep(self, rewind: Rewind) -> None:
        """Keep a copy of the state for `_refuse_loss`, unless that has gone wrong already."""
        if rewind.is_kept and rewind.count and not is_finite(self.trainer.model):
            self._refuse_loss(self.history.steps[-1].get("loss", math.nan), self.batch)
        rewind.keep(self._steps)

    def _refuse_loss(self, loss: float, batch: int) -> None:
        """Go back to the state before the step of a loss, and raise NanError."""
        rewind, step = self._rewind, len(self.history.steps)
        assert rewind is not None
        bad = rewind.batches[step - rewind.step - 1 :][:1]
        with np.errstate(all="ignore"):
            back = rewind.step + rewind.go_back(step - rewind.step - 1)
        problem = (
            f"the loss is {loss} in batch {batch} of epoch {self.epoch + 1}, step {step} in all"
        )
        if back < step - 1 and rewind.repeats and bad:
            bad = [rewind.batches[back - rewind.step]]
            problem += f", since parameters are not finite after step {back + 1}"
        is_new = awaits_arrays(self.trainer.model)
        with np.errstate(all="ignore"):
            cause, remedy = cause_of(self.trainer, *bad[0]) if bad else ("", CAUSE_UNKNOWN)
        if is_new:  # and has created its arrays to look at predictions
            rewind.go_back(0)
        raise error(
            NanError,
            "Trainer.fit",
            f"{problem}\n  {cause}" if cause else problem,
            remedy=f"{remedy} The model, its optimizer and the random state are as before step "
            f"{back + 1}. `with gdt.check_nans():` around fit names the first op.",
        )

    def _interrupt(self) -> None:
        """End the training by a KeyboardInterrupt of three lines, which Python shows alone if the
        program does not handle it."""
        saved, again = "Nothing was saved: fit had no resume=folder.", "train on from here"
        if self.folder is not None:
            saved = f"Its state is in {self.save()}."
            again = "go on as if nothing had happened"
        what = f"Training was interrupted {self._where()}; the model has learnt from all of them."
        text = f"{what}\n{saved}\nCall fit again with the same arguments to {again}."
        interrupt = KeyboardInterrupt(text)
        sys.excepthook = partial(show_interrupt, interrupt, sys.excepthook)
        raise interrupt

    # ---- checkpoints

    def _manager(self, tree: Tree) -> CheckpointManager:
        """Return the manager of the checkpoints in the folder, of which two stay."""
        assert self.folder is not None
        return CheckpointManager(tree, self.folder, max_to_keep=2, name="training")

    def _tree(self, host: DistributedArray) -> dict[str, Any]:
        """Return all arrays and counters of the training, and a text as the array `host`."""
        arrays = {str(i): c.arrays for i, c in enumerate(self.callbacks) if c.arrays}
        model, optimizer = self.trainer.model, self.trainer.optimizer
        return {"model": model, "optimizer": optimizer, "callbacks": arrays, "host": host}

    def save(self) -> Path:
        """Write the state of the training to the folder; return the file."""
        self._read()
        rate = self.trainer.optimizer.learning_rate
        position = of_all_processes(self.feed.position(), "fit")
        state = {
            "version": VERSION,
            "epoch": self.epoch,
            "batch": self.batch,
            "history": encoded({**vars(self.history), "steps": _columns(self.history.steps)}),
            "measurement": self.measurement.state(),
            "positions": position,
            "random": random.generator.state,
            "learning_rate": rate.value if isinstance(rate, AdjustableRate) else None,
            "callbacks": [_state_of(callback) for callback in self.callbacks],
        }
        text = np.frombuffer(json.dumps(state).encode(), np.uint8)
        return self._manager(self._tree(asarray(text))).save()

    def _restore(self, path: Path) -> None:
        """Go on from a file that `save` has written."""
        try:
            shapes = contents(path)
        except CheckpointError as damage:
            damage.add_note(f"Without {path} the training goes on from the checkpoint before it.")
            raise
        if "host" not in shapes:
            problem, remedy = f"{path} holds no state of a training", "Name another folder."
            raise error(CheckpointError, "Trainer.fit", problem, remedy=remedy)
        model = self.trainer.model
        self._build(model, shapes)
        self.trainer.optimizer.init(model)
        for i, callback in enumerate(self.callbacks):
            prefix = f"callbacks.{i}."
            facts = {n.removeprefix(prefix): f for n, f in shapes.items() if n.startswith(prefix)}
            likes = {**model.state(), **callback.arrays}
            callback.arrays = {n: self._zeros(likes.get(n), *fact) for n, fact in facts.items()}
        tree = self._tree(zeros(shapes["host"][0], "uint8"))
        restore(path, tree)
        self._load(json.loads(tree["host"].numpy().tobytes()), path)

    def _zeros(
        self, like: DistributedArray | None, shape: tuple[int, ...], dtype: str
    ) -> DistributedArray:
        """Return zeros, in the layout of `like` if that has the shape, else on all devices."""
        layout = Layout.replicated(self.trainer.mesh, len(shape))
        if like is not None and like.shape == shape:
            layout = like.layout.resolved
        return zeros(shape, dtype, layout=layout)

    def _build(self, model: Module, shapes: Mapping[str, Any]) -> None:
        """Let a model whose layers find their sizes at the first call find them."""
        names = {f"model.{slot.name}" for slot in slots(model)}
        if any(name.startswith("model.") and name not in names for name in shapes):
            with evaluating(model):
                model(pair(self.feed.peek(), "fit")[0])

    def _load(self, state: Mapping[str, Any], path: Path) -> None:
        if state["version"] != VERSION:
            problem = f"{path} is of version {state['version']}, and this gdt reads {VERSION}"
            raise error(CheckpointError, "Trainer.fit", problem)
        if len(state["callbacks"]) != len(self.callbacks):
            problem = f"{path} is of {len(state['callbacks'])} callbacks, not {len(self.callbacks)}"
            remedy = "Resume with the callbacks of the first call."
            raise error(CheckpointError, "Trainer.fit", problem, remedy=remedy)
        self.epoch, self.batch = state["epoch"], state["batch"]
        params = self.history.params
        history = decoded(state["history"])
        self.history = History(**{**history, "steps": _steps(history["steps"])})
        self.history.params = params
        self.measurement.load(state["measurement"])
        if state["learning_rate"] is not None:
            set_rate(self.trainer.optimizer, state["learning_rate"])
        for callback, own in zip(self.callbacks, state["callbacks"], strict=True):
            callback.load(decoded(own))
        positions = state["positions"]
        if len(positions) != processes.current().count:
            positions = positions[:1] * processes.current().count
        dropped = self.feed.restore(positions[processes.current().index])
        random.generator.state = tuple(state["random"])
        skipped = f", past {dropped} batches that it has seen" if dropped else ""
        self.display.line(f"resumed from {path}, {self._where()}{skipped}")


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
