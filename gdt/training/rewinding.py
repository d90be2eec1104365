"""Rewinding: the way back to the state before a step that went wrong, and what was wrong in it.

A loss that is not finite is seen some steps late, since results are read together. So a training
keeps a copy of its state, and the batches since then: it goes back to the copy, and repeats the
steps before the bad one. A copy every `EVERY` steps costs the steps nothing that can be measured;
it takes the memory of the model and its optimizer once more.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np

from gdt import random
from gdt.array.array import DistributedArray
from gdt.errors import GdtError
from gdt.nn import losses
from gdt.nn.module import Module
from gdt.ops.comparison import isfinite
from gdt.sharding.dtypes import INEXACT
from gdt.state import Stateful, owner_of, places
from gdt.state.trees import leaves
from gdt.training.batches import evaluating
from gdt.training.measuring import aligned

EVERY = 256  # steps between two copies of the state
MOST_BYTES = 2**26  # of the batches that are kept to be repeated

OF_PROBABILITIES = (
    losses.sparse_categorical_crossentropy, losses.categorical_crossentropy,
    losses.binary_crossentropy, losses.kl_divergence,
)  # fmt: skip
"""Losses that are NaN for logits."""


class Rewind:
    """A copy of the state of a training, and the batches that it has learnt from since.

    may_repeat: whether steps may be repeated; if not, since callbacks may change the state between
    them, the way back ends at the copy. `repeats` says so of the steps since the last copy.
    """

    def __init__(self, trainer: Any, may_repeat: bool) -> None:
        self.trainer, self.may_repeat, self.repeats = trainer, may_repeat, may_repeat
        self.is_kept, self.count = False, 0

    def keep(self, step: int) -> None:
        """Copy the state that there is after so many steps."""
        self.is_kept = True
        self.step, self.count, self.batches, self._most = step, 0, list[Any](), 0
        self.repeats = self.may_repeat
        self._containers = [
            (container, {key: _copied(value) for key, value in _items(container)})
            for tree in (self.trainer.model, self.trainer.optimizer)
            for container in _containers(tree)
        ]
        self._random = random.generator.state

    def add(self, batch: Any) -> None:
        """Note the batch of a step."""
        if not self.count:
            arrays = [a for a in leaves(batch) if isinstance(a, DistributedArray)]
            self._most = MOST_BYTES // max(sum(a.size * a.dtype.itemsize for a in arrays), 1)
        self.count += 1
        if self.count <= self._most:
            self.batches.append(batch)

    @property
    def is_due(self) -> bool:
        """Whether it is time for another copy."""
        return self.count >= EVERY or self.count > self._most > 0

    def go_back(self, count: int) -> int:
        """Go back to the state after `count` steps since the copy, or before the first one that
        left a parameter that is not finite; return how many steps since the copy are left."""
        self._restore()
        if not self.repeats:
            return 0
        for done, batch in enumerate(self.batches[:count]):
            self.trainer.recorded(self.trainer.step)(*batch)
            if not is_finite(self.trainer.model):
                return self.go_back(done)
        return min(count, len(self.batches))

    def _restore(self) -> None:
        for container, values in self._containers:
            if isinstance(container, list):
                container[:] = [_copied(value) for value in values.values()]
            else:
                container.clear()
                container.update({key: _copied(value) for key, value in values.items()})
        random.generator.state = self._random
        self.trainer.session.programs.clear()  # of arrays that may not be there yet again


def _containers(tree: Any) -> Iterator[Any]:
    """Yield what holds the values of a tree: dicts of attributes, dicts and lists; and the
    placements of modules, to which layers add arrays that they create."""
    for value in [tree, *[place.value for place in places(tree)]]:
        container = owner_of(value)
        if container is not None and not isinstance(container, tuple):
            yield container
        placement = value._placement if isinstance(value, Stateful) else None
        if placement is not None:
            yield vars(placement)
            yield placement.state_layouts


def _items(container: Any) -> Any:
    return enumerate(container) if isinstance(container, list) else container.items()


def _copied(value: Any) -> Any:
    return value.copy() if isinstance(value, DistributedArray) else value


def is_finite(model: Module) -> bool:
    """Return whether all parameters of a model are finite."""
    return not _bad_parameters(model)


def _bad_parameters(model: Module) -> list[str]:
    return [name for name, x in model.parameters().items() if not bool(isfinite(x).all())]


# ---------------------------------------------------------------- what was wrong


def cause_of(trainer: Any, x: Any, y: Any, weights: Any) -> tuple[str, str]:
    """Return what in a batch, or in what the model makes of it, is not finite, and what to do."""
    for name, part in (("x", x), ("y", y), ("sample_weight", weights)):
        for path, array in _named(name, part):
            row = _bad_row(array)
            if row is not None:
                return f"the batch is not finite: {path} has {row}", "Mend or drop such rows."
    names = _bad_parameters(trainer.model)
    if names:
        text = f"parameters are not finite before it: {', '.join(names)}"
        return text, "Make the model anew, or load its weights."
    with evaluating(trainer.model):
        predictions = trainer.model(x)
    for path, array in _named("the prediction", predictions):
        row = _bad_row(array)
        if row is not None:
            text = f"the batch is finite, and {path} that the model makes of it has {row}"
            return text, "A lower learning rate, or clip_norm, may help."
    return _cause_in_loss(trainer.loss, *aligned(y, predictions))


def _cause_in_loss(loss: Any, y: Any, predictions: Any) -> tuple[str, str]:
    """Return in which row of finite targets and predictions the loss is not, and what to do."""
    text = "the batch and the predictions are finite, and the loss of them"
    try:
        takes_reduction = "reduction" in inspect.signature(loss).parameters
        each = loss(y, predictions, **({"reduction": "none"} if takes_reduction else {}))
        row = _bad_row(each)
        if row is None and not bool(isfinite(each).all()):
            row = "no number"
    except (GdtError, TypeError, AttributeError):  # the model computes its own
        row = None
    if row is None:
        text += " too in evaluation mode: its gradients or what training computes are not"
        return text, "Look at roots, logarithms and divisions by what may be 0."
    if loss in OF_PROBABILITIES:
        return f"{text} has {row}", (
            "Cross-entropies of probabilities are NaN for logits: pass from_logits=True to the "
            "loss, or activation='softmax' ('sigmoid' for two classes) to the last layer."
        )
    return f"{text} has {row}", "Look at the loss for such targets and predictions."


def _named(name: str, part: Any) -> Iterator[tuple[str, Any]]:
    """Yield the arrays of a part of a batch, with text that names them."""
    if isinstance(part, dict):
        for key, value in part.items():
            yield from _named(f"{name}[{key!r}]", value)
    elif isinstance(part, list | tuple):
        for number, value in enumerate(part):
            yield from _named(f"{name}[{number}]", value)
    elif isinstance(part, DistributedArray):
        yield name, part


def _bad_row(array: Any) -> str | None:
    """Return the first value that is not finite and its row, as text; None if all are."""
    if not isinstance(array, DistributedArray) or array.dtype.kind not in INEXACT or not array.ndim:
        return None
    values = array.astype("float64").numpy() if array.dtype.kind != "c" else abs(array.numpy())
    bad = np.argwhere(~np.isfinite(values))
    return f"{values[tuple(bad[0])]} in row {bad[0][0]}" if len(bad) else None
