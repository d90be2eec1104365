"""Losses: functions of targets and predictions, in TF's order, that return a scalar array.

reduction: `"mean"` (the default) or `"sum"` over all rows, or over all elements where a loss has
one value per element; `"none"` returns these values. Another reduction raises ArgumentError, and
operands of different shapes raise ShapeError: broadcasting would be a mistake that nobody sees.

Losses of float16 are computed, and returned, in float32.

A loss over a split batch stays a partial sum until its value is needed, so it is resolved in one
collective with the gradients.

Losses of probabilities are NaN where a prediction is negative, or above 1 by more than rounding: it
is no probability, most likely a logit. Pass `from_logits=True`, or end the model in a softmax or a
sigmoid.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from gdt.arguments import checked
from gdt.array.array import DistributedArray
from gdt.array.operands import as_operands
from gdt.errors import ArgumentError, ShapeError, error
from gdt.errors.foreign_names import LOSSES, no_attribute
from gdt.nn.functions.cross_entropy.dense import (
    sigmoid_cross_entropy_with_logits,
    softmax_cross_entropy_with_logits,
)
from gdt.nn.functions.cross_entropy.sparse import sparse_softmax_cross_entropy_with_logits
from gdt.ops.comparison import clip, minimum, where
from gdt.ops.elementwise import widened_half
from gdt.ops.exponential import log
from gdt.ops.reductions import mean
from gdt.sharding.dtypes import is_half

Loss = Callable[..., DistributedArray]  # (targets, predictions) -> scalar, or a value for each row


@checked
def sparse_softmax_cross_entropy(
    labels: Any, logits: Any, reduction: str = "mean"
) -> DistributedArray:
    """Return the softmax cross-entropy of integer labels (...) with logits (..., classes).

    >>> logits = gdt.asarray([[0.0, 0.0], [0.0, 0.0]])
    >>> round(float(gdt.nn.losses.sparse_softmax_cross_entropy(gdt.asarray([0, 1]), logits)), 4)
    0.6931
    """
    (logits,) = as_operands("sparse_softmax_cross_entropy", logits=logits)
    each = sparse_softmax_cross_entropy_with_logits(labels, widened_half(logits))
    return _reduced("sparse_softmax_cross_entropy", each, reduction)


@checked
def softmax_cross_entropy(targets: Any, logits: Any, reduction: str = "mean") -> DistributedArray:
    """Return the softmax cross-entropy of probabilities (..., classes) with logits (..., classes).

    >>> targets, logits = gdt.asarray([[0.5, 0.5]]), gdt.asarray([[0.0, 0.0]])
    >>> round(float(gdt.nn.losses.softmax_cross_entropy(targets, logits)), 4)
    0.6931
    """
    targets, logits = _of_one_shape("softmax_cross_entropy", targets=targets, logits=logits)
    each = softmax_cross_entropy_with_logits(targets, logits)
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
    each = sigmoid_cross_entropy_with_logits(targets, logits)
    return _reduced("sigmoid_cross_entropy", each, reduction)


@checked
def mean_squared_error(targets: Any, predictions: Any, reduction: str = "mean") -> DistributedArray:
    """Return the mean, or the sum, of the squared differences over all elements.

    targets, predictions: numbers, arrays of one shape.

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

    targets, predictions: numbers, arrays of one shape.

    >>> float(gdt.nn.losses.mean_absolute_error([1.0, 2.0], [1.0, 4.0]))
    1.0
    """
    targets, predictions = _of_one_shape(
        "mean_absolute_error", targets=targets, predictions=predictions
    )
    return _reduced("mean_absolute_error", abs(predictions - targets), reduction)


@checked
def huber(
    targets: Any, predictions: Any, reduction: str = "mean", delta: float = 1.0
) -> DistributedArray:
    """Return the Huber loss: d * d / 2 of a difference of at most `delta`, else delta * (|d| -
    delta / 2).

    targets, predictions: numbers, arrays of one shape. Source: Huber 1964. Raises ArgumentError for
    a `delta` that is not positive.

    >>> float(gdt.nn.losses.huber([0.0, 0.0], [1.0, 3.0]))
    1.5
    """
    if not delta > 0:
        raise error(ArgumentError, f"delta is {delta!r}", remedy="It is positive.")
    targets, predictions = _of_one_shape("huber", targets=targets, predictions=predictions)
    size = abs(predictions - targets)
    inner = minimum(size, delta)
    return _reduced("huber", inner * (size - inner * 0.5), reduction)


@checked
def kl_divergence(targets: Any, predictions: Any, reduction: str = "mean") -> DistributedArray:
    """Return the Kullback-Leibler divergence of probabilities (..., classes): the sum over classes
    of t * log(t / p).

    Both are taken between 1e-7 and 1, as Keras does; the divergence of others is NaN.

    >>> round(float(gdt.nn.losses.kl_divergence([[0.5, 0.5]], [[0.25, 0.75]])), 4)
    0.1438
    """
    targets, predictions = _of_one_shape("kl_divergence", targets=targets, predictions=predictions)
    t, p = (_probabilities(x, x, 1.0) for x in (targets, predictions))
    each = (t * (log(t) - log(p))).sum(axis=-1)
    return _reduced("kl_divergence", each, reduction)


# ---------------------------------------------------------------- Keras' names


PROBABILITY = 1e-7
"""The least probability whose logarithm is taken, as in Keras."""

MOST = 1.01
"""The largest number that is taken for a probability of 1, with what rounding adds to float16."""


@checked
def sparse_categorical_crossentropy(
    labels: Any, predictions: Any, reduction: str = "mean", *, from_logits: bool = False
) -> DistributedArray:
    """Return the cross-entropy of integer labels (...) with probabilities (..., classes).

    from_logits: whether the predictions are logits; then it is `sparse_softmax_cross_entropy`.
    Raises ValueError for a label that is no class.

    >>> p = [[0.25, 0.75], [0.5, 0.5]]
    >>> round(float(gdt.nn.losses.sparse_categorical_crossentropy([1, 0], p)), 4)
    0.4904
    """
    logits = predictions if from_logits else _log_probabilities(predictions)
    return sparse_softmax_cross_entropy(labels, logits, reduction)


@checked
def categorical_crossentropy(
    targets: Any,
    predictions: Any,
    reduction: str = "mean",
    *,
    from_logits: bool = False,
    label_smoothing: float = 0.0,
) -> DistributedArray:
    """Return the cross-entropy of probabilities (..., classes) with probabilities of that shape.

    from_logits: whether the predictions are logits. label_smoothing: the share of each row of
    targets that is spread over all classes evenly.

    >>> round(float(gdt.nn.losses.categorical_crossentropy([[0.0, 1.0]], [[0.25, 0.75]])), 4)
    0.2877
    """
    op = "categorical_crossentropy"
    targets, predictions = _of_one_shape(op, targets=targets, predictions=predictions)
    _check_smoothing(op, label_smoothing)
    if label_smoothing:
        classes = targets.shape[-1]
        targets = targets * (1 - label_smoothing) + label_smoothing / classes
    logits = predictions if from_logits else _log_probabilities(predictions)
    return softmax_cross_entropy(targets, logits, reduction)


@checked
def binary_crossentropy(
    targets: Any,
    predictions: Any,
    reduction: str = "mean",
    *,
    from_logits: bool = False,
    label_smoothing: float = 0.0,
) -> DistributedArray:
    """Return the cross-entropy of probabilities of "yes" with probabilities of the same shape.

    from_logits: whether the predictions are logits; then it is `sigmoid_cross_entropy`.
    label_smoothing: how far targets of 0 and 1 are moved towards 0.5, in halves.

    >>> round(float(gdt.nn.losses.binary_crossentropy([1.0, 0.0], [0.75, 0.5])), 4)
    0.4904
    """
    op = "binary_crossentropy"
    targets, predictions = _of_one_shape(op, targets=targets, predictions=predictions)
    _check_smoothing(op, label_smoothing)
    if label_smoothing:
        targets = targets * (1 - label_smoothing) + label_smoothing / 2
    if from_logits:
        return sigmoid_cross_entropy(targets, predictions, reduction)
    p = _probabilities(predictions, predictions, 1 - PROBABILITY)
    yes, no = log(p), log(1 - p)
    return _reduced(op, -(targets * yes + (1 - targets) * no), reduction)


def _log_probabilities(predictions: Any) -> DistributedArray:
    """Return the logarithms of probabilities (..., classes), scaled to a sum of 1 as Keras does."""
    (predictions,) = as_operands("crossentropy", predictions=predictions)
    p = predictions / predictions.sum(axis=-1, keepdims=True)
    return log(_probabilities(predictions, p, 1.0))


def _probabilities(predictions: Any, p: Any, most: float) -> Any:
    """Return the probabilities `p` of the predictions, at least PROBABILITY and at most `most`; NaN
    where a prediction is negative or `p` is above 1."""
    bounded = clip(p, PROBABILITY, most)
    return where((predictions < 0) | (p > MOST), np.nan, bounded)


def _check_smoothing(op: str, label_smoothing: float) -> None:
    """Raise ArgumentError unless `label_smoothing` is in [0, 1]."""
    if not 0 <= label_smoothing <= 1:
        problem = f"label_smoothing is {label_smoothing!r}"
        raise error(ArgumentError, op, problem, remedy="It is in [0, 1].")


@checked
def get(loss: str | Loss) -> Loss:
    """Return a loss by its name in gdt, by its name in Keras, or as it is if it is a function.

    Keras' cross-entropies expect probabilities, and those of gdt (`sparse_softmax_cross_entropy`,
    `softmax_cross_entropy`, `sigmoid_cross_entropy`) logits. Raises ArgumentError for another name.

    >>> gdt.nn.losses.get("mse") is gdt.nn.losses.mean_squared_error
    True
    """
    if not isinstance(loss, str):
        return loss
    if loss.lower() not in NAMES:
        remedy = f"Pass a function (targets, predictions) -> loss, or one of {', '.join(NAMES)}."
        raise error(ArgumentError, "losses.get", f"{loss!r} is no loss", remedy=remedy)
    return NAMES[loss.lower()]


NAMES: dict[str, Loss] = {
    f.__name__: f
    for f in (
        sparse_softmax_cross_entropy, softmax_cross_entropy, sigmoid_cross_entropy,
        mean_squared_error, mean_absolute_error, huber, kl_divergence,
        sparse_categorical_crossentropy, categorical_crossentropy, binary_crossentropy,
    )
} | {
    "mse": mean_squared_error, "mae": mean_absolute_error, "kld": kl_divergence,
    "kldivergence": kl_divergence, "huber_loss": huber,
}  # fmt: skip
"""All losses by the names that `get` knows."""


SPARSE = {
    "categorical_crossentropy": "sparse_categorical_crossentropy",
    "softmax_cross_entropy": "sparse_softmax_cross_entropy",
}
"""Losses of one-hot targets, and those of labels."""


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
    if reduction == "mean" and is_half(each.dtype) and each.size:
        return mean(each)  # the sum may be beyond its range
    total = each.sum()
    return total if reduction == "sum" else total * (1 / max(each.size, 1))


def _of_one_shape(name: str, **operands: Any) -> list[DistributedArray]:
    """Return two operands as arrays, or raise ShapeError if their shapes differ."""
    arrays = as_operands(name, **operands)
    if arrays[0].shape != arrays[1].shape:
        shapes = [f"{n} have shape {list(x.shape)}" for n, x in zip(operands, arrays, strict=True)]
        types = {n: x.type for n, x in zip(operands, arrays, strict=True)}
        is_labels = arrays[0].shape == arrays[1].shape[:-1] and arrays[0].dtype.kind in "iu"
        remedy = f"Of integer labels take {SPARSE[name]}." if is_labels and name in SPARSE else None
        raise error(ShapeError, name, ", ".join(shapes), operands=types, remedy=remedy)
    return [widened_half(x) for x in arrays]


if not TYPE_CHECKING:  # a type checker would take every name for one of the module

    def __getattr__(name: str) -> object:
        raise no_attribute(__name__, name, LOSSES, "gdt.nn.losses.")
