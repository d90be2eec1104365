"""Callbacks that write files: models, results, and the state of a training."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from gdt.arguments import checked_class
from gdt.checkpoint import save
from gdt.errors import ArgumentError, error
from gdt.sharding import processes
from gdt.training.callback import Callback, has_batch_methods
from gdt.training.callbacks import Monitor
from gdt.training.history import Numbers


def is_first_process() -> bool:
    """Return whether this process writes what belongs to all."""
    return processes.current().index == 0


def period_of(name: str, frequency: int | str) -> int | None:
    """Return after how many batches a callback acts; None for "epoch", 1 for "batch".

    Raises ArgumentError for another `frequency`, the argument `name` of the callback `op`."""
    if isinstance(frequency, int) and frequency > 0:
        return frequency
    if frequency not in ("epoch", "batch"):
        problem, remedy = f"{name} is {frequency!r}", "It is 'epoch', 'batch' or a positive int."
        raise error(ArgumentError, problem, remedy=remedy)
    return 1 if frequency == "batch" else None


@checked_class(eager=True)
class ModelCheckpoint(Monitor):
    """Save the model after every epoch, or after every `save_freq` batches.

    filepath: the file, in which `{epoch}`, from 1, and results are filled in, as in
        `"model-{epoch:02d}-{val_loss:.2f}"`.
    save_best_only: whether only a model is saved whose result `monitor` is the best so far.
    save_weights_only: whether the arrays alone are saved, for `gdt.checkpoint.restore`; else the
        whole model, for `gdt.load_model`. initial_value_threshold: a value to improve on.

    >>> gdt.training.ModelCheckpoint("model-{epoch}", save_best_only=True).monitor
    'val_loss'
    """

    def __init__(
        self,
        filepath: str | os.PathLike[str],
        monitor: str = "val_loss",
        verbose: int = 0,
        save_best_only: bool = False,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: int | str = "epoch",
        initial_value_threshold: float | None = None,
    ) -> None:
        super().__init__(monitor, mode)
        self.period = period_of("save_freq", save_freq)
        self.filepath, self.verbose, self.save_freq = os.fspath(filepath), verbose, save_freq
        self.save_best_only, self.save_weights_only = save_best_only, save_weights_only
        self.best = initial_value_threshold
        self.epoch, self.batches = 0, 0

    @property
    def watches_batches(self) -> bool:
        """Whether the model is saved after batches."""
        return self.period is not None or has_batch_methods(self, ModelCheckpoint)

    def on_epoch_begin(self, epoch: int, logs: Numbers | None = None) -> None:
        """Note the number of the epoch."""
        self.epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Numbers | None = None) -> None:
        """Save the model if it is time."""
        self.batches += 1
        if self.period and self.batches % self.period == 0:
            self._save(logs or {})

    def on_epoch_end(self, epoch: int, logs: Numbers | None = None) -> None:
        """Save the model if it is time."""
        if self.period is None:
            self._save(logs or {})

    def _save(self, logs: Numbers) -> None:
        if self.save_best_only:
            value = self.value(logs)
            if not self.is_better(value):
                return
            self.best = value
        try:
            path = Path(self.filepath.format(epoch=self.epoch + 1, **logs))
        except KeyError as missing:
            problem = f"{self.filepath!r} names {missing.args[0]!r}, which is no result"
            remedy = f"The results are epoch, {', '.join(logs)}."
            raise error(ArgumentError, problem, remedy=remedy) from None
        if self.save_weights_only:
            save(path, self.model)
        else:
            self.model.save(path)
        if self.verbose:
            self.trainer.say(f"epoch {self.epoch + 1}: saved {path}")

    def state(self) -> dict[str, Any]:
        """Return the best value, and the numbers of the epoch and of batches."""
        return {"best": self.best, "epoch": self.epoch, "batches": self.batches}


@checked_class(eager=True)
class CSVLogger(Callback):
    """Write the results of every epoch to a file of comma-separated values.

    filename: the file. separator: what separates values. append: whether to go on with a file that
    is there, as a resumed training does.

    >>> gdt.training.CSVLogger("log.csv", separator=";").separator
    ';'
    """

    def __init__(
        self, filename: str | os.PathLike[str], separator: str = ",", append: bool = False
    ) -> None:
        super().__init__()
        self.path, self.separator, self.append = Path(filename), separator, append
        self.names: list[str] = []

    def on_train_begin(self, logs: Numbers | None = None) -> None:
        """Forget an earlier training."""
        self.names = []

    def state(self) -> dict[str, Any]:
        """Return the columns: where there are some, the file is gone on with."""
        return {"names": self.names}

    def on_epoch_end(self, epoch: int, logs: Numbers | None = None) -> None:
        """Write a row; before the first one the names of the columns."""
        results, is_new = {"epoch": epoch, **(logs or {})}, not self.names
        self.names = self.names or list(results)
        if not is_first_process():
            return
        exists = self.path.exists() and self.path.stat().st_size > 0
        with self.path.open("a" if self.append or not is_new else "w", newline="") as file:
            self._write(file, results, header=is_new and not (self.append and exists))

    def _write(self, file: IO[str], results: Numbers, header: bool) -> None:
        rows = csv.writer(file, delimiter=self.separator)
        if header:
            rows.writerow(self.names)
        rows.writerow([results.get(name, "NA") for name in self.names])


@checked_class(eager=True)
class TensorBoard(Callback):
    """Write the results of every epoch for TensorBoard, by the library tensorboardX.

    log_dir: the folder; training results go to `train` in it, those of validations to `validation`.
    update_freq: "epoch", or after how many batches their results are written too.

    Raises ArgumentError for another `update_freq`, and where tensorboardX is not installed.

    >>> gdt.training.TensorBoard("logs", update_freq=10).watches_batches
    True
    """

    def __init__(
        self, log_dir: str | os.PathLike[str] = "logs", update_freq: int | str = "epoch"
    ) -> None:
        super().__init__()
        self.period = period_of("update_freq", update_freq)
        try:
            from tensorboardX import SummaryWriter  # noqa: PLC0415
        except ImportError:
            problem, remedy = "tensorboardX is missing", "pip install 'gdt[tensorboard]'"
            raise error(ArgumentError, problem, remedy=remedy) from None
        self.log_dir, self.batches = Path(log_dir), 0
        self._open: Callable[[str], Any] = SummaryWriter
        self._writers: dict[str, Any] = {}

    @property
    def watches_batches(self) -> bool:
        """Whether results are written after batches."""
        return self.period is not None or has_batch_methods(self, TensorBoard)

    def _add(self, part: str, name: str, value: Any, step: int) -> None:
        if not is_first_process() or not isinstance(value, float | int):
            return
        if part not in self._writers:
            self._writers[part] = self._open(str(self.log_dir / part))
        self._writers[part].add_scalar(name, value, step)

    def on_train_batch_end(self, batch: int, logs: Numbers | None = None) -> None:
        """Write the means of the epoch so far if it is time."""
        self.batches += 1
        if self.period and self.batches % self.period == 0:
            for name, value in (logs or {}).items():
                self._add("train", f"batch_{name}", value, self.batches)

    def on_epoch_end(self, epoch: int, logs: Numbers | None = None) -> None:
        """Write the results."""
        for name, value in (logs or {}).items():
            part = "validation" if name.startswith("val_") else "train"
            self._add(part, f"epoch_{name.removeprefix('val_')}", value, epoch)
        for writer in self._writers.values():
            writer.flush()

    def on_train_end(self, logs: Numbers | None = None) -> None:
        """Close the files."""
        for writer in self._writers.values():
            writer.close()
        self._writers = {}

    def state(self) -> dict[str, Any]:
        """Return the number of batches."""
        return {"batches": self.batches}


@checked_class(eager=True)
class BackupAndRestore(Callback):
    """Let a training that is started again go on where it ended: Keras' words for `resume=`.

    backup_dir: the folder for `Trainer.fit(resume=backup_dir)`. save_freq: "epoch", or after how
    many batches the state is saved too.

    Raises ArgumentError for another `save_freq`.

    >>> gdt.training.BackupAndRestore("backup", save_freq=100).save_freq
    100
    """

    def __init__(self, backup_dir: str | os.PathLike[str], save_freq: int | str = "epoch") -> None:
        super().__init__()
        self.backup_dir, self.save_freq = Path(backup_dir), save_freq
        self.period = period_of("save_freq", save_freq)
