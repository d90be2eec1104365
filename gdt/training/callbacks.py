"""Callbacks that set the learning rate, watch results, and end a training."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from gdt.arguments import check_takes, checked_class, fits
from gdt.errors import ArgumentError, error, frame_of_user
from gdt.optim.optimizer import Optimizer
from gdt.training.callback import Callback
from gdt.training.history import Numbers

# ---------------------------------------------------------------- the learning rate


class AdjustableRate:
    """A schedule whose value callbacks set: a recorded step reads it in every call, where another
    number in its place would be recorded anew."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __call__(self, step: int) -> float:
        return self.value

    def __repr__(self) -> str:
        return f"{self.value}"


def rate_of(optimizer: Optimizer) -> float:
    """Return the learning rate of the next step."""
    rate = optimizer.learning_rate
    return float(rate(optimizer.steps) if callable(rate) else rate)


def set_rate(optimizer: Optimizer, value: float) -> None:
    """Let the next steps have this learning rate."""
    if not fits(value, float) or not 0 <= value < math.inf:
        problem, remedy = f"the learning rate is {value!r}", "It is finite and at least 0."
        raise error(ArgumentError, "fit", problem, remedy=remedy)
    rate = optimizer.learning_rate
    if isinstance(rate, AdjustableRate):
        rate.value = float(value)
    else:
        optimizer.learning_rate = AdjustableRate(float(value))


@checked_class(eager=True)
class LearningRateScheduler(Callback):
    """Set the learning rate before every epoch to `schedule(epoch, rate)`.

    schedule: a function of the number of the epoch, from 0, and of the rate so far if it takes two
        arguments.

    >>> model = gdt.nn.Dense(1, 1, key=0)
    >>> trainer = gdt.Trainer(model, "sgd", "mse")
    >>> halved = gdt.training.LearningRateScheduler(lambda epoch, rate: rate / 2)
    >>> batch = gdt.ones((2, 1), "float32"), gdt.ones((2, 1), "float32")
    >>> history = trainer.fit([batch], epochs=2, callbacks=[halved], show=False)
    >>> history["learning_rate"]
    [0.005, 0.0025]
    """

    def __init__(self, schedule: Callable[..., float], verbose: int = 0) -> None:
        super().__init__()
        self.schedule, self.verbose = schedule, verbose
        self.takes_rate = len(inspect.signature(schedule).parameters) > 1
        arguments = ("epoch", "rate") if self.takes_rate else ("epoch",)
        check_takes("LearningRateScheduler", "schedule", schedule, *arguments)

    def on_epoch_begin(self, epoch: int, logs: Numbers | None = None) -> None:
        """Set the rate of the epoch."""
        rates = [rate_of(self.trainer.optimizer)] if self.takes_rate else []
        rate = self.schedule(epoch, *rates)
        set_rate(self.trainer.optimizer, rate)
        if self.verbose:
            self.trainer.say(f"epoch {epoch + 1}: the learning rate is {rate:g}")

    def on_epoch_end(self, epoch: int, logs: Numbers | None = None) -> None:
        """Add the rate to the results."""
        if logs is not None:
            logs["learning_rate"] = rate_of(self.trainer.optimizer)


# ---------------------------------------------------------------- results that are watched


class Monitor(Callback):
    """A callback that compares one result with its best value so far.

    patience: epochs without a better value that it waits for; `wait` counts them."""

    def __init__(self, monitor: str, mode: str, min_delta: float = 0.0, patience: int = 0) -> None:
        super().__init__()
        if patience < 0:
            raise error(ArgumentError, f"patience is {patience}, below 0")
        if mode not in ("auto", "min", "max"):
            problem = f"mode is {mode!r}"
            remedy = "It is 'auto', 'min' or 'max'."
            raise error(ArgumentError, type(self).__name__, problem, remedy=remedy)
        rises = mode == "max" or (mode == "auto" and monitor.endswith(RISING))
        self.monitor, self.sign, self.min_delta = monitor, -1 if rises else 1, abs(min_delta)
        self.best: float | None = None
        self.patience, self.wait = patience, 0

    def value(self, logs: Numbers | None) -> float:
        """Return the watched result, or raise ArgumentError that lists the names of all."""
        if self.monitor not in (logs or {}):
            problem = f"there is no result {self.monitor!r}"
            remedy = f"The results are {', '.join(logs or {})}."
            if self.monitor.startswith("val_"):
                remedy += " Those of a validation need validation data."
            raise error(ArgumentError, type(self).__name__, problem, remedy=remedy)
        return float((logs or {})[self.monitor])

    def is_better(self, value: float) -> bool:
        """Return whether a value is better than the best by more than `min_delta`."""
        return self.best is None or self.sign * (self.best - value) > self.min_delta

    def state(self) -> dict[str, Any]:
        """Return the best value."""
        return {"best": self.best}


RISING = ("accuracy", "acc", "auc", "precision", "recall")
"""Ends of the names of results that are better the larger they are."""


@checked_class(eager=True)
class EarlyStopping(Monitor):
    """Stop the training where a result has not improved for `patience` epochs.

    monitor: the name of the result. min_delta: by how much it must improve to count. mode: whether
    a smaller ("min") or a larger ("max") one is better; "auto" knows by the name. baseline: a value
    that the first one must improve on. restore_best_weights: whether the model ends with the
    arrays that it had after its best epoch. start_from_epoch: epochs that are not watched.

    Raises ArgumentError for a negative patience, and in the first epoch for an unknown result.

    >>> gdt.training.EarlyStopping("val_accuracy", patience=3).sign  # the larger, the better
    -1
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        min_delta: float = 0.0,
        patience: int = 0,
        verbose: int = 0,
        mode: str = "auto",
        baseline: float | None = None,
        restore_best_weights: bool = False,
        start_from_epoch: int = 0,
    ) -> None:
        super().__init__(monitor, mode, min_delta, patience)
        self.verbose, self.baseline = verbose, baseline
        self.restore_best_weights = restore_best_weights
        self.start_from_epoch, self.best_epoch = start_from_epoch, 0

    def on_train_begin(self, logs: Numbers | None = None) -> None:
        """Forget an earlier training."""
        self.wait, self.best, self.best_epoch, self.arrays = 0, self.baseline, 0, {}

    def on_epoch_end(self, epoch: int, logs: Numbers | None = None) -> None:
        """Compare, and stop the training where it is time."""
        value = self.value(logs)
        if epoch < self.start_from_epoch:
            return
        if self.restore_best_weights and not self.arrays:
            self.arrays, self.best_epoch = self.model.state(), epoch
        if self.is_better(value):
            self.best, self.wait, self.best_epoch = value, 0, epoch
            if self.restore_best_weights:
                self.arrays = self.model.state()
            return
        self.wait += 1
        if self.wait >= self.patience:
            self.trainer.stop_training = True
            if self.verbose:
                self.trainer.say(f"epoch {epoch + 1}: stopped early")

    def on_train_end(self, logs: Numbers | None = None) -> None:
        """Restore the best arrays if that was asked for."""
        if self.arrays:
            self.model.load(self.arrays)
            if self.verbose:
                self.trainer.say(f"restored the arrays of epoch {self.best_epoch + 1}")

    def state(self) -> dict[str, Any]:
        """Return the best value and the epochs since then."""
        return {"best": self.best, "wait": self.wait, "best_epoch": self.best_epoch}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned; a training that was to be stopped is stopped again."""
        super().load(state)
        if self.wait >= max(self.patience, 1):
            self.trainer.stop_training = True


@checked_class(eager=True)
class ReduceLROnPlateau(Monitor):
    """Multiply the learning rate by `factor` where a result has not improved for `patience` epochs.

    cooldown: epochs after a reduction in which none is counted. min_lr: the least rate. For the
    others see `EarlyStopping`. Raises ArgumentError for a factor outside of (0, 1) and a negative
    patience.

    >>> gdt.training.ReduceLROnPlateau("loss", factor=0.5, patience=2).factor
    0.5
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        factor: float = 0.1,
        patience: int = 10,
        verbose: int = 0,
        mode: str = "auto",
        min_delta: float = 1e-4,
        cooldown: int = 0,
        min_lr: float = 0.0,
    ) -> None:
        super().__init__(monitor, mode, min_delta, patience)
        if not 0 < factor < 1:
            problem, remedy = f"factor is {factor!r}", "It is between 0 and 1."
            raise error(ArgumentError, problem, remedy=remedy)
        self.factor, self.verbose = factor, verbose
        if cooldown < 0:
            raise error(ArgumentError, f"cooldown is {cooldown}, below 0")
        self.cooldown, self.min_lr, self.cooling = cooldown, min_lr, 0

    def on_train_begin(self, logs: Numbers | None = None) -> None:
        """Forget an earlier training."""
        self.wait, self.cooling, self.best = 0, 0, None

    def on_epoch_end(self, epoch: int, logs: Numbers | None = None) -> None:
        """Compare, and reduce the rate where it is time."""
        optimizer, value = self.trainer.optimizer, self.value(logs)
        if logs is not None:
            logs["learning_rate"] = rate_of(optimizer)
        if self.cooling:
            self.cooling, self.wait = self.cooling - 1, 0
        if self.is_better(value):
            self.best, self.wait = value, 0
            return
        if self.cooling:
            return
        self.wait += 1
        if self.wait >= self.patience and rate_of(optimizer) > self.min_lr:
            set_rate(optimizer, max(rate_of(optimizer) * self.factor, self.min_lr))
            self.wait, self.cooling = 0, self.cooldown
            if self.verbose:
                self.trainer.say(f"epoch {epoch + 1}: the learning rate is {rate_of(optimizer):g}")

    def state(self) -> dict[str, Any]:
        """Return the best value and the epochs since then."""
        return {"best": self.best, "wait": self.wait, "cooling": self.cooling}


class TerminateOnNaN(Callback):
    """End the training without an error where the loss is not a number or infinite, with a warning.

    Without this callback such a loss is a NanError.

    >>> isinstance(gdt.training.TerminateOnNaN(), gdt.training.Callback)
    True
    """

    def on_train_batch_end(self, batch: int, logs: Numbers | None = None) -> None:
        """Look at the loss."""
        loss = (logs or {}).get("loss", 0.0)
        if not math.isfinite(loss):
            self.trainer.stop_training = True
            warnings.warn(
                f"fit: the loss is {loss} after batch {batch}; training ends",
                stacklevel=frame_of_user()[1],
            )
