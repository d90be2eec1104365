"""Losses: functions of targets and predictions, in TF's order, that return a scalar array.

reduction: `"mean"` (the default) or `"sum"` over all rows, or over all elements where a loss has
one value per element; `"none"` returns these values. Another reduction raises ArgumentError, and
operands of different shapes raise ShapeError: broadcasting would be a mistake that nobody sees.

A loss over a split batch stays a partial sum until its value is needed, so it is resolved in one
collective with the gradients.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gdt.arguments import checked
from gdt.array.array import DistributedArray
from gdt.array.operands import as_operands
from gdt.array.registry import FUNCTIONS
from gdt.errors import ArgumentError, ShapeError, error


@checked
def sparse_softmax_cross_entropy(
    labels: Any, logits: Any, reduction: str = "mean"
) -> DistributedArray:
    """Return the softmax cross-entropy of integer labels (...) with logits (..., classes).

    >>> logits = gdt.asarray([[0.0, 0.0], [0.0, 0.0]])
    >>> round(float(gdt.nn.losses.sparse_softmax_cross_entropy(gdt.asarray([0, 1]), logits)), 4)
    0.6931
    """
    each = FUNCTIONS["sparse_softmax_cross_entropy_with_logits"](labels, logits)
    return _reduced("sparse_softmax_cross_entropy", each, reduction)


@checked
def softmax_cross_entropy(targets: Any, logits: Any, reduction: str = "mean") -> DistributedArray:
    """Return the softmax cross-entropy of probabilities (..., classes) with logits (..., classes).

    >>> targets, logits = gdt.asarray([[0.5, 0.5]]), gdt.asarray([[0.0, 0.0]])
    >>> round(float(gdt.nn.losses.softmax_cross_entropy(targets, logits)), 4)
    0.6931
    """
    targets, logits = _of_one_shape("softmax_cross_entropy", targets=targets, logits=logits)
    each = FUNCTIONS["softmax_cross_entropy_with_logits"](targets, logits)
    return _reduced("softmax_cross_entropy", each, reduction)


@checked
def sigmoid_cross_entropy(targets: Any, logits: Any, reduction: str = "mean") -> DistributedArray:
    """Return the cross-entropy of probabilities with the sigmoids of logits of the same shape.

    For a logit z and a probability t it is max(z, 0) - z * t + log1p(exp(-|z|)), which does not
    overflow. Follows `tf.nn.sigmoid_cross_entropy_with_logits`.

    >>> round(float(gdt.nn.losses.sigmoid_cross_entropy([1.0, 0.0], [0.0, 0.0])), 4)
    0.6931
    """
    targets, logits = _of_one_shape("sigmoid_cross_entropy", targets=targets, logits=logits)
    each = FUNCTIONS["sigmoid_cross_entropy_with_logits"](targets, logits)
    return _reduced("sigmoid_cross_entropy", each, reduction)


@checked
def mean_squared_error(targets: Any, predictions: Any, reduction: str = "mean") -> DistributedArray:
    """Return the mean, or the sum, of the squared differences over all elements.

    >>> float(gdt.nn.losses.mean_squared_error(gdt.asarray([1.0, 2.0]), gdt.asarray([1.0, 4.0])))
    2.0
    """
    targets, predictions = _of_one_shape(
        "mean_squared_error", targets=targets, predictions=predictions
    )
    difference = predictions - targets
    return _reduced("mean_squared_error", difference * difference, reduction)


@checked
def mean_absolute_error(
    targets: Any, predictions: Any, reduction: str = "mean"
) -> DistributedArray:
    """Return the mean, or the sum, of the absolute differences over all elements.

    >>> float(gdt.nn.losses.mean_absolute_error([1.0, 2.0], [1.0, 4.0]))
    1.0
    """
    targets, predictions = _of_one_shape(
        "mean_absolute_error", targets=targets, predictions=predictions
    )
    return _reduced("mean_absolute_error", FUNCTIONS["abs"](predictions - targets), reduction)


def _reduced(name: str, each: DistributedArray, reduction: str) -> DistributedArray:
    """Return the loss of each row or element, reduced."""
    if reduction not in ("mean", "sum", "none"):
        raise error(
            ArgumentError,
            name,
            f"reduction is {reduction!r}",
            remedy="It is 'mean', 'sum' or 'none'.",
        )
    if reduction == "none":
        return each
    if reduction == "mean" and each.dtype == np.float16 and each.size:
        average: DistributedArray = FUNCTIONS["mean"](each)  # the sum may be beyond its range
        return average
    total: DistributedArray = FUNCTIONS["sum"](each)
    return total if reduction == "sum" else total * (1 / max(each.size, 1))


def _of_one_shape(name: str, **operands: Any) -> list[DistributedArray]:
    """Return two operands as arrays, or raise ShapeError if their shapes differ."""
    arrays = as_operands(name, **operands)
    if arrays[0].shape != arrays[1].shape:
        shapes = [f"{n} have shape {list(x.shape)}" for n, x in zip(operands, arrays, strict=True)]
        shown = {n: x.type for n, x in zip(operands, arrays, strict=True)}
        raise error(ShapeError, name, ", ".join(shapes), operands=shown)
    return arrays
