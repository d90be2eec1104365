"""Callback, the base of callbacks: what happens beside a training, with Keras' names and order.

One fit calls `on_train_begin(logs)`; in every epoch `on_epoch_begin(epoch, logs)`, around every
batch `on_train_batch_begin(batch, logs)` and `on_train_batch_end(batch, logs)`, around a validation
`on_test_begin(logs)` and `on_test_end(logs)`, and `on_epoch_end(epoch, logs)`; at last
`on_train_end(logs)`. The logs are results by name, and an empty dict where something begins.
`model.evaluate` and `model.predict` call `on_test_begin` and `on_test_end`, `on_predict_begin` and
`on_predict_end` of theirs. Epochs and batches are counted from 0. A function
`f(epoch, results)` is one too: it is called after every epoch, whose number it counts from 1.
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gdt.arguments import check_takes, checked_class
from gdt.array.array import DistributedArray
from gdt.errors import ArgumentError, error, frame_of_user
from gdt.nn.module import Module
from gdt.training.history import Numbers

Function = Callable[..., object]
BATCH_METHODS = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")


class Callback:
    """The base of callbacks: a subclass defines those methods that it needs.

    `trainer` and `model` are those of the training, `params` is how it was called: epochs, steps.
    `self.trainer.stop_training = True` ends it after the batch or epoch, as does
    `self.model.stop_training = True`. What `state` returns is saved with the training; `load` gets
    it when a training is resumed. Arrays in the dict `arrays` are saved too.

    >>> class StopsAt(gdt.training.Callback):
    ...     def on_epoch_end(self, epoch, logs=None):
    ...         self.trainer.stop_training = epoch == 1
    ...
    >>> import numpy as np
    >>> model = gdt.nn.Sequential(gdt.nn.Dense(1, 1, key=0))
    >>> model.compile("sgd", "mse")
    >>> x = np.ones((4, 1), "float32")
    >>> len(model.fit(x, x, epochs=9, verbose=0, callbacks=[StopsAt()])["loss"])
    2
    """

    trainer: Any  # the Trainer
    params: dict[str, Any]

    def __init__(self) -> None:
        self.arrays: dict[str, DistributedArray] = {}

    @property
    def model(self) -> Module:
        """The model that is trained."""
        model: Module = self.trainer.model
        return model

    @property
    def watches_batches(self) -> bool:
        """Whether the callback has methods of batches. Results are then read after every step, for
        which devices wait."""
        return has_batch_methods(self, Callback)

    def state(self) -> dict[str, Any]:
        """Return what a resumed training needs, in values that JSON can hold.

        >>> gdt.training.EarlyStopping(patience=2).state()
        {'best': None, 'wait': 0, 'best_epoch': 0}
        """
        return {}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned: by default, set attributes of these names.

        >>> callback = gdt.training.Callback()
        >>> callback.load({"best": 0.5})
        >>> callback.best
        0.5
        """
        vars(self).update(state)

    def on_train_begin(self, logs: Numbers | None = None) -> None:
        """Run before the first epoch."""

    def on_train_end(self, logs: Numbers | None = None) -> None:
        """Run after the last epoch, with its results."""

    def on_epoch_begin(self, epoch: int, logs: Numbers | None = None) -> None:
        """Run before an epoch."""

    def on_epoch_end(self, epoch: int, logs: Numbers | None = None) -> None:
        """Run after an epoch and its validation, with their results."""

    def on_train_batch_begin(self, batch: int, logs: Numbers | None = None) -> None:
        """Run before a step."""
        self.on_batch_begin(batch, logs)

    def on_train_batch_end(self, batch: int, logs: Numbers | None = None) -> None:
        """Run after a step, with the means of the epoch so far."""
        self.on_batch_end(batch, logs)

    def on_batch_begin(self, batch: int, logs: Numbers | None = None) -> None:
        """Run before a step, under Keras' earlier name."""

    def on_batch_end(self, batch: int, logs: Numbers | None = None) -> None:
        """Run after a step, under Keras' earlier name."""

    def on_test_begin(self, logs: Numbers | None = None) -> None:
        """Run before a validation."""

    def on_test_end(self, logs: Numbers | None = None) -> None:
        """Run after a validation, with its results."""

    def on_predict_begin(self, logs: Numbers | None = None) -> None:
        """Run before predictions."""

    def on_predict_end(self, logs: Numbers | None = None) -> None:
        """Run after predictions."""


def has_batch_methods(callback: Callback, base: type[Callback]) -> bool:
    """Return whether a callback has other methods of batches than its class `base`."""
    return any(
        name in vars(callback) or getattr(type(callback), name) is not getattr(base, name)
        for name in BATCH_METHODS
    )


@checked_class(eager=True)
class LambdaCallback(Callback):
    """A callback of functions, by the names of the methods that they take the place of.

    >>> seen = []
    >>> callback = LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(epoch))
    >>> callback.on_epoch_end(0, {})
    >>> seen
    [0]
    """

    def __init__(
        self,
        on_epoch_begin: Function | None = None,
        on_epoch_end: Function | None = None,
        on_train_begin: Function | None = None,
        on_train_end: Function | None = None,
        on_train_batch_begin: Function | None = None,
        on_train_batch_end: Function | None = None,
        on_test_begin: Function | None = None,
        on_test_end: Function | None = None,
    ) -> None:
        functions = {n: f for n, f in locals().items() if n.startswith("on_") and f is not None}
        super().__init__()
        vars(self).update(functions)


def as_callback(callback: Any) -> Callback:
    """Return a callback as it is, and a function as a callback at the ends of epochs."""
    if isinstance(callback, Callback):
        _warn_of_names(callback)
        return callback
    if isinstance(callback, type) or not callable(callback):
        problem = f"a callback is {callback!r}, neither a Callback nor a function"
        remedy = "Pass an object, as in EarlyStopping(), or a function (epoch, results)."
        raise error(ArgumentError, problem, remedy=remedy)
    check_takes("fit", "a callback", callback, "epoch", "results")
    return LambdaCallback(on_epoch_end=lambda epoch, logs: callback(epoch + 1, logs))


def _warn_of_names(callback: Callback) -> None:
    """Warn of methods that are named as if they were called at some time, and never are."""
    known = [name for name in vars(Callback) if name.startswith("on_")]
    for name in dir(type(callback)):
        if name.startswith("on_") and name not in known:
            close = difflib.get_close_matches(name, known, 1)
            meant = f"; {close[0]} is" if close else ""
            text = f"fit: {name} of the callback {type(callback).__name__} is never called{meant}"
            warnings.warn(text, stacklevel=frame_of_user()[1])


def as_callbacks(callbacks: Any) -> list[Callback]:
    """Return callbacks, of which there may be one alone, or None, as a list."""
    if callbacks is None:
        return []
    is_many = isinstance(callbacks, Iterable) and not isinstance(callbacks, str | Mapping)
    is_single = callable(callbacks) or hasattr(callbacks, "on_epoch_end") or not is_many
    return [as_callback(callback) for callback in ([callbacks] if is_single else callbacks)]
