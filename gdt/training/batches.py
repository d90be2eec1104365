"""Batches as the training takes them apart, and the mode of evaluation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from gdt.arguments import checked, fits, shown_value
from gdt.array.array import DistributedArray
from gdt.data.feed import REITERABLE
from gdt.errors import ArgumentError, ShapeError, error, type_text
from gdt.nn.module import Module
from gdt.ops.creation import asarray
from gdt.state.trees import leaves

ARRAYS_AS_BATCHES = (
    "Write fit(gdt.data.Batches(x, y, batch_size=32), epochs), or model.compile(...) and "
    "model.fit(x, y)."
)


def check_batches(op: str, name: str, batches: Any) -> None:
    """Raise ArgumentError for an argument that is one array, or yields no batches."""
    if isinstance(batches, np.ndarray | DistributedArray):
        problem = f"{name} is one array, {shown_value(batches)}"
        raise error(ArgumentError, op, problem, remedy=ARRAYS_AS_BATCHES)
    if isinstance(batches, str) or not isinstance(batches, Iterable):
        problem = f"{name} is {shown_value(batches)}, which yields no batches"
        raise error(ArgumentError, op, problem, remedy=REITERABLE)


def check_count(op: str, name: str, count: int | None, least: int = 1) -> None:
    """Raise ArgumentError for a number of batches or epochs below `least`; None is no number."""
    if count is not None and count < least:
        raise error(ArgumentError, op, f"{name} is {count}", remedy=f"Pass {least} or more.")


def pair(batch: Any, method: str) -> tuple[Any, Any, Any]:
    """Return a batch as (x, y, weights), or raise ArgumentError."""
    if not isinstance(batch, tuple | list) or len(batch) not in (2, 3):
        what = type_text(batch)
        what += f" of {len(batch)}" if isinstance(batch, tuple | list) else ""
        problem = f"a batch is {what}, not a pair (x, y)"
        raise error(ArgumentError, f"Trainer.{method}", problem, remedy=ARRAYS_AS_BATCHES)
    x, y = batch[:2]
    return x, y, batch[2] if len(batch) == 3 else None


def rows_of(x: Any, y: Any) -> int:
    """Return the number of rows of a batch; raise ShapeError where inputs and targets differ."""
    shapes = [leaf.shape for leaf in (*leaves(x), *leaves(y)) if hasattr(leaf, "shape")]
    counts = {shape[0] for shape in shapes if shape}
    if len(counts) > 1:
        problem = f"a batch has arrays of {', '.join(map(str, sorted(counts)))} rows"
        raise error(ShapeError, "Trainer", problem)
    return counts.pop() if counts else 1


def length_of(batches: Any) -> int | None:
    """Return how many batches there are, or None where nobody knows."""
    try:
        return len(batches)
    except TypeError:  # no `__len__`, or one that refuses, as that of a loader of a stream does
        return None


def row_shapes(x: Any) -> list[Sequence[int]]:
    """Return the shapes of the rows of all arrays of a batch."""
    return [leaf.shape[1:] for leaf in leaves(x) if hasattr(leaf, "shape")]


def check_ranks(x: Any, trained: Sequence[Sequence[int]], method: str) -> None:
    """Raise ShapeError where rows have other ranks than those of which the model was trained.

    trained: the shapes of those rows; empty if the model was not trained."""
    shapes = row_shapes(x)
    if trained and [*map(len, shapes)] != [*map(len, trained)]:
        shown, known = (", ".join(str(list(s)) for s in each) for each in (shapes, trained))
        problem = f"x has rows of shape {shown}, and the model was trained on rows of shape {known}"
        remedy = "A single row is a batch of one: x[:1], or x[None]."
        if len(shapes) != len(trained):
            remedy = "Arrays in a list or tuple are the inputs of one batch. Several batches come "
            remedy += "from an iterator, iter([x1, x2]), or in a list of pairs, [(x1, y1), ...]."
        raise error(ShapeError, method, problem, remedy=remedy)


def check_rows(x: Any, predictions: Any) -> None:
    """Raise ShapeError where predictions have other rows than the batch of which they are."""
    rows, shapes = rows_of(x, None), [array.shape for array in leaves(predictions)]
    if any(shape[:1] != (rows,) for shape in shapes):
        shown = ", ".join(str(list(shape)) for shape in shapes)
        problem = f"x has {rows} rows, and the predictions of them have shape {shown}"
        remedy = (
            "A model returns a row for each. A single row is a batch of one: x[:1], or x[None]."
        )
        raise error(ShapeError, problem, remedy=remedy)


def check_class_weight(factors: Any) -> None:
    """Raise ArgumentError unless class_weight is a mapping from labels to numbers."""
    remedy = "Pass factors by labels, which are ints, such as {0: 1.0, 1: 2.0}."
    if not isinstance(factors, Mapping):
        problem = f"class_weight is {shown_value(factors)}"
        raise error(ArgumentError, "fit", problem, remedy=remedy)
    for label, factor in factors.items():
        if not fits(label, int) or not fits(factor, float):
            problem = f"class_weight has the item {label!r}: {factor!r}"
            raise error(ArgumentError, "fit", problem, remedy=remedy)


def class_weights(factors: Mapping[Any, float], labels: Any) -> Any:
    """Return the factors of the labels of rows, float32 (rows,): on the host as the labels are, or
    in their layout.

    labels: integers (rows,) or (rows, 1), or one-hot (rows, classes). Raises ArgumentError for
    others.
    """
    if isinstance(labels, list | tuple | dict) and any(np.ndim(leaf) for leaf in leaves(labels)):
        problem = f"class_weight needs one array of labels, and targets are {type_text(labels)}"
        remedy = "Pass weights of rows in its place: batches of (x, y, weights)."
        raise error(ArgumentError, "fit", problem, remedy=remedy)
    values = labels.numpy() if isinstance(labels, DistributedArray) else np.asarray(labels)
    if values.ndim == 2:
        values = values.argmax(-1) if values.shape[1] > 1 else values[:, 0]
    if values.ndim != 1:
        shape = list(values.shape)
        problem = f"class_weight needs labels or one-hot targets, and targets have shape {shape}"
        raise error(ArgumentError, "fit", problem)
    weights = np.ones(len(values), np.float32)
    for label, factor in factors.items():
        weights[values == label] = factor
    if not isinstance(labels, DistributedArray):
        return weights
    return asarray(weights, layout=labels.layout.delete(range(1, labels.ndim)))


@contextmanager
@checked
def evaluating(model: Module) -> Iterator[Module]:
    """Put the model in evaluation mode inside the `with` block, and restore every part's mode.

    Raises ArgumentError for an argument that is no Module.

    >>> model = gdt.nn.Dropout(0.5, key=0)
    >>> with gdt.training.evaluating(model):
    ...     model(gdt.ones((2,))).tolist()
    [1.0, 1.0]
    """
    if not isinstance(model, Module):
        raise error(ArgumentError, f"model is {shown_value(model)}, not a Module")
    with model.in_mode(training=False):
        yield model
