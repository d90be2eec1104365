"""Metrics of many batches, from sums of statistics over their rows."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from copy import copy
from typing import Any

import numpy as np

from gdt.arguments import checked_class, shown_value
from gdt.array.array import DistributedArray
from gdt.array.operands import as_operands
from gdt.errors import ArgumentError, ShapeError, error
from gdt.metrics.accuracies import binary_accuracy, of_one_shape
from gdt.nn.functions.activations.op import sigmoid
from gdt.ops.comparison import where
from gdt.ops.creation import ones_like
from gdt.ops.extrema import argmax
from gdt.ops.joining import stack
from gdt.ops.lookup import checked_indices
from gdt.ops.ranges import arange
from gdt.ops.reductions import mean
from gdt.ops.shapes import expand_dims, reshape
from gdt.ops.taking import one_hot

__all__ = [
    "AUC", "ConfusionMatrix", "Mean", "MeanOf", "Metric", "Perplexity", "Precision", "Recall",
]  # fmt: skip

THRESHOLDS = 200
"""Thresholds of the curve of `AUC`, as in Keras."""


@checked_class()
class Mean:
    """The weighted mean of scalars over many batches, computed on the host.

    >>> mean = gdt.metrics.Mean()
    >>> mean.update(1.0, weight=3)
    >>> mean.update(gdt.asarray(2.0), weight=1)
    >>> mean.result()
    1.25
    """

    def __init__(self) -> None:
        self.total, self.weight = 0.0, 0.0

    def update(self, value: Any, weight: float = 1.0) -> None:
        """Add a scalar, such as a batch's mean with the batch's size as its weight.

        >>> mean = gdt.metrics.Mean()
        >>> mean.update(1.0, weight=3)
        >>> mean.weight
        3.0
        """
        self.total += float(value) * weight
        self.weight += weight

    def result(self) -> float:
        """Return the mean so far; NaN before the first value.

        >>> gdt.metrics.Mean().result()
        nan
        """
        return self.total / self.weight if self.weight else float("nan")

    def reset(self) -> None:
        """Forget all values.

        >>> mean = gdt.metrics.Mean()
        >>> mean.update(1.0)
        >>> mean.reset()
        >>> mean.weight
        0.0
        """
        self.total, self.weight = 0.0, 0.0


@checked_class()
class Metric:
    """A number that is computed from sums over the rows of many batches.

    A subclass defines `statistics`, an array of sums over the rows of one batch, and `value`, the
    metric of such sums. The sums stay on the devices, partial where the batch is split, in float64
    and so exact for counts; only `result` sends them.

    >>> auc = gdt.metrics.AUC()
    >>> auc.update([0.0, 1.0], [0.3, 0.8])
    >>> auc.update([1.0, 0.0], [0.2, 0.1])
    >>> round(auc.result(), 3)
    0.75
    """

    name = "metric"
    total: DistributedArray | None = None

    def statistics(self, targets: Any, predictions: Any, weights: Any = None) -> DistributedArray:
        """Return the sums over the rows of a batch, an array of the same shape for every batch.

        weights: (rows,), or None for 1 each.

        >>> gdt.metrics.Recall().statistics([1.0, 1.0, 0.0], [0.9, 0.2, 0.8]).tolist()
        [1.0, 2.0, 2.0]
        """
        raise NotImplementedError(f"{type(self).__name__} defines no statistics")

    def value(self, total: np.ndarray) -> Any:
        """Return the metric of sums over all rows.

        >>> import numpy as np
        >>> gdt.metrics.MeanOf(lambda y, p: abs(y - p)).value(np.array([3.0, 2.0]))
        1.5
        """
        raise NotImplementedError(f"{type(self).__name__} defines no value")

    def of_logits(self) -> Metric:
        """Return the metric for predictions that are logits, as a `gdt.Trainer` takes it beside a
        loss of logits; by default the metric itself.

        >>> gdt.metrics.Precision().of_logits().threshold
        0.0
        """
        return self

    def update(self, targets: Any, predictions: Any, weights: Any = None) -> None:
        """Add the statistics of a batch.

        >>> recall = gdt.metrics.Recall()
        >>> recall.update([1.0, 1.0], [0.9, 0.2])
        >>> recall.result()
        0.5
        """
        self.add(self.statistics(targets, predictions, weights))

    def add(self, statistics: DistributedArray) -> None:
        """Add statistics that were computed before, such as in a recorded step.

        >>> recall = gdt.metrics.Recall()
        >>> recall.add(recall.statistics([1.0, 1.0], [0.9, 0.2]))
        >>> recall.result()
        0.5
        """
        wide = statistics.astype("float64")
        self.total = wide if self.total is None else self.total + wide

    def result(self) -> Any:
        """Return the metric of all batches so far; NaN before the first.

        >>> gdt.metrics.Recall().result()
        nan
        """
        if self.total is None:
            return float("nan")
        value = self.value(self.total.numpy())
        return value.item() if isinstance(value, np.generic) else value

    def reset(self) -> None:
        """Forget all batches.

        >>> recall = gdt.metrics.Recall()
        >>> recall.update([1.0], [0.9])
        >>> recall.reset()
        >>> recall.result()
        nan
        """
        self.total = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name!r})"


def _changed(metric: Metric, **attributes: Any) -> Metric:
    """Return a copy of a metric with other attributes."""
    changed = copy(metric)
    vars(changed).update(attributes)
    return changed


def _rows(op: str, targets: Any, predictions: Any, weights: Any) -> list[DistributedArray]:
    """Return targets and predictions of one shape as flat arrays of float32, and their weights."""
    arrays = of_one_shape(op, targets, predictions)
    flat = [reshape(x, (x.size,)).astype("float32") for x in arrays]
    if weights is None:
        return [*flat, ones_like(flat[0])]
    (weights,) = as_operands(op, weights=weights)
    if weights.size != flat[0].size:
        problem = f"{weights.size} weights, {flat[0].size} predictions"
        raise error(ShapeError, op, problem)
    return [*flat, reshape(weights, (weights.size,)).astype("float32")]


@checked_class(eager=True)
class AUC(Metric):
    """The area under the curve of true positive rates over false positive rates (ROC).

    targets: 0 or 1. predictions: probabilities, of the targets' shape; with from_logits numbers
    whose sigmoids they are, by default if the loss of a `gdt.Trainer` says so. num_thresholds:
    points of the curve, between which it is a straight line; as in Keras.

    Raises ArgumentError for fewer than 2 thresholds. Of predictions outside [0, 1] it is NaN.

    >>> auc = gdt.metrics.AUC()
    >>> auc.update([0.0, 0.0, 1.0, 1.0], [0.1, 0.4, 0.35, 0.8])
    >>> auc.result()
    0.75
    """

    def __init__(
        self,
        num_thresholds: int = THRESHOLDS,
        name: str = "auc",
        *,
        from_logits: bool | None = None,
    ) -> None:
        if num_thresholds < 2:
            raise error(ArgumentError, f"num_thresholds is {num_thresholds}, below 2")
        self.num_thresholds, self.name, self.from_logits = num_thresholds, name, from_logits

    def of_logits(self) -> Metric:
        """Return the area for logits, unless `from_logits` was given."""
        if self.from_logits is not None:
            return self
        return _changed(self, from_logits=True)

    def statistics(self, targets: Any, predictions: Any, weights: Any = None) -> DistributedArray:
        """Return the weights of positives and negatives above each threshold."""
        y, p, w = _rows("AUC", targets, predictions, weights)
        p = sigmoid(p) if self.from_logits else p
        w = where((p >= 0) & (p <= 1), w, np.nan)
        steps = arange(self.num_thresholds, dtype="float32")
        # The first lies below all probabilities, and the last above.
        thresholds = steps * ((1 + 2e-7) / (self.num_thresholds - 1)) - 1e-7
        above = (expand_dims(p, -1) > thresholds).astype("float32")
        sides = stack([y * w, (1 - y) * w])  # (2, rows)
        return sides @ above  # (2, thresholds)

    def value(self, total: np.ndarray) -> float:
        """Return the area; NaN where there are no positives or no negatives."""
        positives, negatives = total
        if not positives[0] or not negatives[0]:
            return float("nan")
        return float(abs(np.trapezoid(positives / positives[0], negatives / negatives[0])))


class _Detection(Metric):
    """A ratio of counts of predictions above a threshold, and targets of 1.

    threshold: 0.5 if it is None, or 0 beside a loss of logits in a `gdt.Trainer`."""

    is_given = True  # the threshold

    def __init__(self, threshold: float | None, name: str) -> None:
        self.is_given, self.name = threshold is not None, name
        self.threshold = 0.5 if threshold is None else float(threshold)

    def of_logits(self) -> Metric:
        """Return the ratio for logits, unless a threshold was given."""
        return self if self.is_given else _changed(self, threshold=0.0)

    def statistics(self, targets: Any, predictions: Any, weights: Any = None) -> DistributedArray:
        """Return the weights of hits, of all predictions of 1, and of all targets of 1."""
        y, p, w = _rows(type(self).__name__, targets, predictions, weights)
        positives = (p > self.threshold).astype("float32")
        return (stack([y * positives, positives, y]) * w).sum(axis=1)


@checked_class(eager=True)
class Precision(_Detection):
    """The fraction of the predictions above `threshold` whose target is 1; 0 if there is none.

    targets: 0 or 1. predictions: numbers, such as probabilities, of the targets' shape. threshold:
    if not given 0.5, or 0 where the loss of a `gdt.Trainer` takes logits.

    >>> precision = gdt.metrics.Precision()
    >>> precision.update([1.0, 0.0, 1.0], [0.9, 0.8, 0.1])
    >>> precision.result()
    0.5
    """

    def __init__(self, threshold: float | None = None, name: str = "precision") -> None:
        super().__init__(threshold, name)

    def value(self, total: np.ndarray) -> float:
        """Return hits over predictions of 1."""
        return float(total[0] / total[1]) if total[1] else 0.0


@checked_class(eager=True)
class Recall(_Detection):
    """The fraction of the targets of 1 whose prediction is above `threshold`; 0 if there is none.

    targets: 0 or 1. predictions: numbers, such as probabilities, of the targets' shape. threshold:
    if not given 0.5, or 0 where the loss of a `gdt.Trainer` takes logits.

    >>> recall = gdt.metrics.Recall()
    >>> recall.update([1.0, 0.0, 1.0], [0.9, 0.8, 0.1])
    >>> recall.result()
    0.5
    """

    def __init__(self, threshold: float | None = None, name: str = "recall") -> None:
        super().__init__(threshold, name)

    def value(self, total: np.ndarray) -> float:
        """Return hits over targets of 1."""
        return float(total[0] / total[2]) if total[2] else 0.0


@checked_class(eager=True)
class ConfusionMatrix(Metric):
    """The number of rows of each label (row) whose largest logit is at each class (column).

    labels: (...), integers; logits: (..., classes). The result is float64 (classes, classes).
    Raises ArgumentError for fewer than 1 class, IndexRangeError for a label that is no class.

    >>> matrix = gdt.metrics.ConfusionMatrix(2)
    >>> matrix.update([0, 1, 1], [[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    >>> matrix.result().tolist()
    [[1.0, 0.0], [1.0, 1.0]]
    """

    def __init__(self, classes: int, name: str = "confusion_matrix") -> None:
        if classes < 1:
            raise error(ArgumentError, f"{classes} classes, not 1 or more")
        self.classes, self.name = classes, name

    def statistics(self, targets: Any, predictions: Any, weights: Any = None) -> DistributedArray:
        """Return the weights of the rows of each label and predicted class."""
        labels, logits = as_operands("ConfusionMatrix", labels=targets, logits=predictions)
        if labels.shape != logits.shape[:-1] or logits.shape[-1] != self.classes:
            problem = f"labels have shape {list(labels.shape)}, logits {list(logits.shape)}"
            remedy = f"Logits have the shape of the labels and an axis of {self.classes} classes."
            raise error(ShapeError, "ConfusionMatrix", problem, remedy=remedy)
        op, axis = "ConfusionMatrix", logits.ndim - 1
        labels = checked_indices(logits.type, labels.astype("int64"), axis, op, negative=False)
        predicted_labels = argmax(logits, axis=-1)
        labels, predicted_labels, w = _rows("ConfusionMatrix", labels, predicted_labels, weights)
        rows, columns = (
            one_hot(x.astype("int32"), self.classes) for x in (labels, predicted_labels)
        )
        rows = rows.astype("float32") * expand_dims(w, -1)
        return rows.mT @ columns.astype("float32")  # (labels, predictions)

    def value(self, total: np.ndarray) -> np.ndarray:
        """Return the matrix (labels, predictions)."""
        return total


@checked_class(eager=True)
class MeanOf(Metric):
    """The mean over all rows of a function of targets and predictions with a value for each row.

    function: takes `reduction="none"`, as the losses of `gdt.nn.losses` and accuracies do, or has
    no such argument. Rows with several values count with their mean, unless there is a weight for
    each of these. Raises ArgumentError for a function that returns one value for all rows.

    >>> error = gdt.metrics.MeanOf(gdt.nn.losses.mean_absolute_error)
    >>> error.update([1.0, 2.0], [1.0, 4.0])
    >>> error.update([0.0], [4.0])
    >>> error.result()
    2.0
    """

    def __init__(self, function: Callable[..., Any], name: str | None = None) -> None:
        self.function, self.name = function, name or function.__name__
        takes_reduction = "reduction" in inspect.signature(function).parameters
        self.options = {"reduction": "none"} if takes_reduction else {}

    def of_logits(self) -> Metric:
        """Return the mean of `binary_accuracy` for logits; another one as it is."""
        if self.function is not binary_accuracy:
            return self
        return _changed(self, options={**self.options, "threshold": 0.0})

    def statistics(self, targets: Any, predictions: Any, weights: Any = None) -> DistributedArray:
        """Return the weighted sum of the values of all rows, and the sum of the weights."""
        each = self.function(targets, predictions, **self.options)
        if not isinstance(each, DistributedArray) or not each.ndim:
            problem = f"{self.name} returned one value for all rows, {shown_value(each)}"
            remedy = "Its function returns an array with a value for each row."
            raise error(ArgumentError, type(self).__name__, problem, remedy=remedy)
        rank = 1 if weights is None else np.ndim(weights)
        if each.ndim > rank:
            each = mean(each, axis=tuple(range(rank, each.ndim)))
        each, _, w = _rows(self.name, each, each, weights)
        return stack([each * w, w]).sum(axis=1)

    def value(self, total: np.ndarray) -> float:
        """Return the mean."""
        return float(total[0] / total[1]) if total[1] else float("nan")


@checked_class(eager=True)
class Perplexity(MeanOf):
    """The exponential of the mean cross-entropy.

    function: the cross-entropy, such as `gdt.nn.losses.sparse_softmax_cross_entropy`.

    >>> perplexity = gdt.metrics.Perplexity(gdt.nn.losses.sparse_softmax_cross_entropy)
    >>> perplexity.update([0, 1], [[0.0, 0.0], [0.0, 0.0]])
    >>> round(perplexity.result(), 4)
    2.0
    """

    def __init__(self, function: Callable[..., Any], name: str = "perplexity") -> None:
        super().__init__(function, name)

    def value(self, total: np.ndarray) -> float:
        """Return the exponential of the mean."""
        return float(np.exp(super().value(total)))
