"""Metrics of one batch: the fraction of predictions that hit."""

from __future__ import annotations

from typing import Any

from gdt.arguments import checked
from gdt.array.array import DistributedArray
from gdt.array.operands import as_operands
from gdt.errors import ArgumentError, ShapeError, error
from gdt.ops.along_axis import take_along_axis
from gdt.ops.extrema import argmax
from gdt.ops.shapes import expand_dims

__all__ = ["accuracy", "binary_accuracy", "categorical_accuracy", "top_k_accuracy"]


@checked
def accuracy(labels: Any, logits: Any, reduction: str = "mean") -> DistributedArray:
    """Return the fraction of rows whose largest logit is at the label; a scalar array of float32.

    labels: (...), integers. logits: (..., classes). Over a split batch the fraction stays a partial
    sum until its value is needed: pass it to `GradientTape.gradient(together_with=...)`, or return
    it as aux of `value_and_grad`, to resolve it in one collective with the gradients.
    reduction: "none" returns 1 or 0 for each row, here and in the other accuracies.

    Raises ShapeError unless labels have the shape of the logits without the last axis.

    >>> logits = gdt.asarray([[0.1, 0.9], [0.8, 0.2], [0.7, 0.3]])
    >>> round(float(gdt.metrics.accuracy(gdt.asarray([1, 0, 1]), logits)), 3)
    0.667
    """
    return _mean(_hits("accuracy", labels, logits, 1), reduction)


@checked
def top_k_accuracy(
    labels: Any, logits: Any, k: int = 5, reduction: str = "mean"
) -> DistributedArray:
    """Return the fraction of rows in which fewer than `k` logits exceed that of the label.

    labels: (...), integers. logits: (..., classes); NaN exceeds all. Raises ArgumentError for a `k`
    below 1.

    >>> logits = gdt.asarray([[0.1, 0.3, 0.6], [0.8, 0.1, 0.1]])
    >>> float(gdt.metrics.top_k_accuracy(gdt.asarray([1, 1]), logits, k=2))
    1.0
    """
    _check_k(k)
    return _mean(_hits("top_k_accuracy", labels, logits, k), reduction)


@checked
def categorical_accuracy(
    targets: Any, predictions: Any, reduction: str = "mean"
) -> DistributedArray:
    """Return the fraction of rows whose largest prediction is where the target's is.

    targets, predictions: (..., classes). Raises ShapeError unless both have one shape.

    >>> targets = gdt.asarray([[0.0, 1.0], [1.0, 0.0]])
    >>> float(gdt.metrics.categorical_accuracy(targets, gdt.asarray([[0.1, 0.9], [0.2, 0.8]])))
    0.5
    """
    op = "categorical_accuracy"
    targets, predictions = of_one_shape(op, targets, predictions)
    return _mean(argmax(targets, axis=-1) == argmax(predictions, axis=-1), reduction)


@checked
def binary_accuracy(
    targets: Any, predictions: Any, threshold: float = 0.5, reduction: str = "mean"
) -> DistributedArray:
    """Return the fraction of predictions that lie above `threshold` where the target is 1, and not
    above it where the target is 0.

    targets, predictions: arrays of one shape. Raises ShapeError for others.

    >>> float(gdt.metrics.binary_accuracy([1.0, 0.0, 1.0, 1.0], [0.9, 0.1, 0.2, 0.6]))
    0.75
    """
    targets, predictions = of_one_shape("binary_accuracy", targets, predictions)
    return _mean((predictions > threshold) == (targets > 0.5), reduction)


def _hits(op: str, labels: Any, logits: Any, k: int) -> DistributedArray:
    """Return for every row whether fewer than k logits exceed, or are NaN beside, the label's."""
    labels, logits = as_operands(op, labels=labels, logits=logits)
    if logits.ndim < 1 or labels.shape != logits.shape[:-1]:
        raise error(
            ShapeError,
            f"labels have shape {list(labels.shape)}, logits {list(logits.shape)}",
            remedy="Labels have the shape of the logits without the last axis.",
        )
    if k == 1:
        return argmax(logits, axis=-1) == labels
    rows = expand_dims(labels, -1)
    own = take_along_axis(logits, rows, axis=-1)
    others = (logits <= own).astype("int32").sum(axis=-1)  # and the label's own
    return others > logits.shape[-1] - k


def _mean(hits: DistributedArray, reduction: str) -> DistributedArray:
    """Return the fraction of True, as a product of a sum, which may stay partial; or, for the
    reduction "none", hits as float32."""
    if reduction not in ("mean", "none"):
        remedy = "It is 'mean' or 'none'."
        raise error(ArgumentError, f"reduction is {reduction!r}", remedy=remedy)
    if reduction == "none":
        return hits.astype("float32")
    total = hits.astype("float32").sum()
    return total * (1 / max(hits.size, 1))


def _check_k(k: int) -> None:
    """Raise ArgumentError unless k is at least 1."""
    if k < 1:
        raise error(ArgumentError, f"k is {k}", remedy="Pass 1 or more.")


def of_one_shape(op: str, targets: Any, predictions: Any) -> list[DistributedArray]:
    """Return both as arrays, or raise ShapeError if their shapes differ."""
    arrays = as_operands(op, targets=targets, predictions=predictions)
    if arrays[0].shape != arrays[1].shape:
        shapes = [list(x.shape) for x in arrays]
        raise error(ShapeError, f"targets have shape {shapes[0]}, predictions {shapes[1]}")
    return arrays
