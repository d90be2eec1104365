"""One call of `Trainer.fit`: its loop over epochs and batches, which can stop and go on."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from gdt.arguments import shown_value
from gdt.array.array import DistributedArray
from gdt.checkpoint.saving import in_all_processes
from gdt.data.feed import REITERABLE, Feed
from gdt.errors import ArgumentError, NanError, error, frame_of_user
from gdt.nn.parameters import awaits_arrays
from gdt.sharding import processes
from gdt.training.batches import (
    ARRAYS_AS_BATCHES,
    check_batches,
    check_class_weight,
    check_count,
    length_of,
    pair,
    row_shapes,
    rows_of,
)
from gdt.training.callback import as_callbacks
from gdt.training.callbacks import EarlyStopping, TerminateOnNaN
from gdt.training.display import Display
from gdt.training.file_callbacks import (
    BackupAndRestore,
    CSVLogger,
    ModelCheckpoint,
    TensorBoard,
)
from gdt.training.history import History
from gdt.training.interrupts import delayed_interrupts, show_interrupt
from gdt.training.measuring import Measurement
from gdt.training.placement import BatchPlacement, check_mesh
from gdt.training.resuming import go_on, save
from gdt.training.rewinding import Rewind, cause_of, is_finite
from gdt.training.strategies import current_strategy

OP = "Trainer.fit"  # in errors
CAUSE_UNKNOWN = "Look at the batch and the loss; a lower learning rate, or clip_norm, may help."
LOOKING = (EarlyStopping, ModelCheckpoint, CSVLogger, TensorBoard, BackupAndRestore)
"""Callbacks that change neither the model nor its optimizer while steps follow."""
REFRESH = 8  # steps between two times that losses are read, and the progress is updated


@dataclass(eq=False, repr=False)
class Fit:
    """A call of `Trainer.fit`, whose arguments are its fields: a loop over epochs and batches.

    epoch, batch: how many epochs are done, and batches of this one. total: the batches of an epoch,
    if that is known. folder: that of checkpoints. history, measurement: of all epochs, of this one.
    """

    trainer: Any
    batches: Iterable[Any]
    epochs: int
    validation: Iterable[Any] | None
    validation_freq: int | Sequence[int]
    validation_steps: int | None
    initial_epoch: int
    steps_per_epoch: int | None
    class_weight: Mapping[int, float] | None
    callbacks: Any
    resume: Any
    save_every: int | None
    prefetch: int
    title: str
    show: bool
    console: Console | None

    def __post_init__(self) -> None:
        trainer = self.trainer
        self._check()
        self.callbacks = as_callbacks(self.callbacks)
        for backup in [c for c in self.callbacks if isinstance(c, BackupAndRestore)]:
            self.resume = self.resume or backup.backup_dir
            self.save_every = self.save_every or backup.period
        self.folder = None if self.resume is None else Path(self.resume)
        if self.save_every is not None and self.folder is None:
            problem = f"save_every is {self.save_every}, and there is no resume"
            remedy = "Name the folder of the checkpoints: resume=folder."
            raise error(ArgumentError, OP, problem, remedy=remedy)
        place = BatchPlacement(trainer.model, trainer.batch_axes, self.class_weight)
        self.feed = Feed(self.batches, place, self.prefetch)
        self.display = Display(self.console, self.show and processes.current().index == 0)
        self.epoch, self.batch = self.initial_epoch, 0
        self.total = self.steps_per_epoch or length_of(self.batches)
        self.history = History(params={"epochs": self.epochs, "steps": self.total})
        self.measurement = Measurement(trainer.metrics)
        self._unread: list[tuple[Mapping[str, DistributedArray], int]] = []  # results and rows
        self._step = trainer.recorded(trainer.step)
        self._is_interrupted: Callable[[], bool] = lambda: False
        self._watches_batches = any(callback.watches_batches for callback in self.callbacks)
        self._rewind: Rewind | None = None
        if not any(isinstance(c, TerminateOnNaN) for c in self.callbacks):
            changing = [c for c in self.callbacks if type(c) not in LOOKING]
            self._rewind = Rewind(trainer, not any(c.watches_batches for c in changing))
            self._may_change = bool(changing)

    def _check(self) -> None:
        """Raise ArgumentError for arguments out of range, and for data that yield no batches, or
        end too early; MeshError for a strategy of another mesh than the model's."""
        epochs: Any = self.epochs
        if not isinstance(epochs, int):
            problem = f"epochs is {shown_value(epochs)}, not an int"
            remedy = "Pass 1 or more." if isinstance(epochs, float | str) else ARRAYS_AS_BATCHES
            raise error(ArgumentError, OP, problem, remedy=remedy)
        for name in ("epochs", "initial_epoch", "prefetch"):
            check_count(OP, name, getattr(self, name), 0)
        for name, data in (("batches", self.batches), ("validation", self.validation)):
            if data is not None or name == "batches":
                check_batches(OP, name, data)
            ends = name == "validation" or self.steps_per_epoch is None
            if epochs - self.initial_epoch > 1 and isinstance(data, Iterator) and ends:
                kind = type(data).__name__
                problem = f"{name} is a {kind}, which ends with the first epoch of {epochs}"
                raise error(ArgumentError, OP, problem, remedy=REITERABLE)
        if (strategy := current_strategy()) is not None:
            check_mesh(OP, self.trainer.model, strategy.mesh)
        for name in ("validation_freq", "validation_steps", "steps_per_epoch", "save_every"):
            if not isinstance(count := getattr(self, name), Sequence):
                check_count(OP, name, count)
        if self.class_weight is not None:
            check_class_weight(self.class_weight)

    # ---- the loop

    def run(self) -> History:
        """Train; return the history."""
        trainer, session = self.trainer, self.trainer.session
        trainer.stop_training, session.display = False, self.display
        if self.folder is not None:  # now, and not after the first epoch
            make = partial(self.folder.mkdir, parents=True, exist_ok=True)
            in_all_processes(make, self.folder)
        for callback in self.callbacks:
            callback.trainer, callback.params = trainer, self.history.params
            vars(callback).setdefault("arrays", {})  # of one whose __init__ calls no other
        with self.display.running(self.title), delayed_interrupts() as self._is_interrupted:
            try:
                self._call("on_train_begin", {})
                if self.folder is not None:
                    go_on(self)
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
            raise error(ArgumentError, OP, "there is no batch", remedy=REITERABLE)
        if self.batch < (self.steps_per_epoch or 0) and not self.trainer.stop_training:
            warnings.warn(
                f"fit: the data ended after {self.batch} of {self.steps_per_epoch} batches of "
                f"epoch {self.epoch + 1}; the next epoch begins anew",
                stacklevel=frame_of_user()[1],
            )
        self.read()
        results, batches = self.measurement.results(), self.batch
        if self.validation is not None and self._validates():
            self._call("on_test_begin", {})
            validated = self.trainer.evaluate(self.validation, steps=self.validation_steps)
            self._call("on_test_end", validated)
            results |= {f"val_{name}": value for name, value in validated.items()}
        self.display.end(batches, results)
        self.history.epochs.append(results)
        self.history.epoch.append(self.epoch)
        self.epoch, self.batch = self.epoch + 1, 0
        self._call("on_epoch_end", self.epoch - 1, results)
        if self.folder is not None:
            save(self)

    def _validates(self) -> bool:
        """Return whether this epoch ends with a validation."""
        every, number = self.validation_freq, self.epoch + 1
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
            self.read()
            self._call("on_train_batch_end", self.batch - 1, self.measurement.results(False))
        if self.batch % REFRESH == 0:
            self.read()
            if self.display.is_live:
                self.display.update(self.batch, self.measurement.results(False))
        if self.save_every and self.folder and self.steps % self.save_every == 0:
            save(self)
        if self._is_interrupted():
            self._interrupt()

    @property
    def steps(self) -> int:
        """The number of steps that were taken in all epochs."""
        return len(self.history.steps) + len(self._unread)

    def read(self) -> None:
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
                problem.add_note(f"raised by {method} of the callback {name}, {self.where()}")
                if self.folder is not None and self.steps:
                    problem.add_note(f"the state of the training is in {save(self)}")
                raise

    def where(self) -> str:
        """Return how far the training is."""
        is_inside = self.batch or not self.steps
        place = f"in epoch {self.epoch + 1}" if is_inside else f"at the end of epoch {self.epoch}"
        return f"after {self.steps} steps, {place} of {self.epochs}"

    def _keep(self, rewind: Rewind) -> None:
        """Keep a copy of the state for `_refuse_loss`, unless that has gone wrong already."""
        if rewind.is_kept and rewind.count and not is_finite(self.trainer.model):
            self._refuse_loss(self.history.steps[-1].get("loss", math.nan), self.batch)
        rewind.keep(self.steps)

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
            OP,
            f"{problem}\n  {cause}" if cause else problem,
            remedy=f"{remedy} The model, its optimizer and the random state are as before step "
            f"{back + 1}. `with gdt.check_nans():` around fit names the first op.",
        )

    def _interrupt(self) -> None:
        """End the training by a KeyboardInterrupt of three lines, which Python shows alone if the
        program does not handle it."""
        saved, again = "Nothing was saved: fit had no resume=folder.", "train on from here"
        if self.folder is not None:
            saved = f"Its state is in {save(self)}."
            again = "go on as if nothing had happened"
        what = f"Training was interrupted {self.where()}; the model has learnt from all of them."
        text = f"{what}\n{saved}\nCall fit again with the same arguments to {again}."
        interrupt = KeyboardInterrupt(text)
        sys.excepthook = partial(show_interrupt, interrupt, sys.excepthook)
        raise interrupt
