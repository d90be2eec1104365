"""Steps of Keras' models as `gdt.function` records them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from keras.src import tree

from gdt.errors import FunctionError, ReplayError
from gdt.interop.keras.backend.variables import ASSIGNED
from gdt.ops.creation import asarray
from gdt.programs.function import function

NUMBERS = (bool, int, float, str, type(None))
STOPS = ("stop_training", "stop_evaluating", "stop_predicting")  # which no step reads
BOLD, PLAIN = "\x1b[1m", "\x1b[0m"
EAGERLY = "model.compile(run_eagerly=True) runs every step as it is written."


class EagerStepWarning(UserWarning):
    """A step cannot be recorded, and runs as it is written."""


class Written:
    """A step as it is written. gdt.function does not look into an object of gdt's, so what the
    step refers to in Python, but for the places that the model tells, is constant."""

    def __init__(self, step: Callable[[Any], Any], name: str) -> None:
        self.step, self.__name__ = step, name

    def __call__(self, data: Any, numbers: tuple[Any, ...]) -> Any:
        return tree.map_structure(_as_array, self.step(data))


def _as_array(leaf: Any) -> Any:
    """Return a number among the logs as an array, which a replay returns again."""
    return asarray(leaf) if isinstance(leaf, int | float | np.generic) else leaf


class RecordedStep:
    """A step that is recorded once for every kind of batch, and then replayed.

    What is trainable, and the public attributes of the model and of layers of the user's own
    classes that are numbers or texts, are part of what kind of call it is: where a callback changes
    one, the step is recorded anew. A step that cannot be recorded runs as it is written, after a
    warning that says why; variables that the attempt has changed get their values back.
    """

    def __init__(self, model: Any, step: Callable[[Any], Any], name: str) -> None:
        self._written = Written(step, name)
        self._function: Any = function(self._written, state=[model])
        self._model = model

    def __call__(self, data: Any) -> Any:
        numbers = self._numbers()
        if self._function is None:
            return self._written(data, numbers)
        assigned: dict[int, tuple[Any, Any]] = {}
        token = ASSIGNED.set(assigned)
        try:
            return self._function(data, numbers)
        except ReplayError as e:
            e.add_note(EAGERLY)
            raise
        except FunctionError as e:
            problem = (
                str(e).partition(BOLD)[2].partition(PLAIN)[0] or e
            )  # what Keras puts around it
            warnings.warn(
                f"{self._written.__name__} runs as it is written from now on, which takes longer.\n"
                f"  {problem}\n  {EAGERLY[:-1]} without this warning.",
                EagerStepWarning,
                stacklevel=2,
            )
            self._function = None
            named = {id(owner) for _, owner, _ in self._model.__gdt_places__()}
            for variable, value in assigned.values():
                if id(vars(variable)) not in named:  # which have their values back
                    variable._value = value
        finally:
            ASSIGNED.reset(token)
        return self._written(data, numbers)

    def _numbers(self) -> tuple[Any, ...]:
        layers = self._model._flatten_layers()
        numbers: list[Any] = [v.trainable for v in self._model.variables]
        for layer in layers:
            numbers.append(layer.trainable)
            if not type(layer).__module__.startswith("keras."):
                numbers += [
                    value.item() if isinstance(value, np.generic) else value
                    for name, value in vars(layer).items()
                    if isinstance(value, (*NUMBERS, np.generic))
                    and not name.startswith("_")
                    and name not in STOPS
                ]
        return tuple(numbers)
