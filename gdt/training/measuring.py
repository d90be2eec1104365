"""The loss and the metrics of a batch, and their means and sums over many batches."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from functools import partial
from typing import Any

from gdt import metrics as metric_functions
from gdt.arguments import shown_value
from gdt.array.array import DistributedArray
from gdt.data.feed import decoded, encoded
from gdt.errors import ArgumentError, error, type_text
from gdt.metrics import Mean, Metric
from gdt.nn import losses
from gdt.ops.creation import asarray
from gdt.ops.reductions import mean
from gdt.ops.shapes import expand_dims, reshape
from gdt.training.history import Numbers

Function = Callable[[Any, Any], DistributedArray]  # (targets, predictions) -> scalar
Measure = Function | Metric


def accuracy(targets: Any, predictions: Any, reduction: str = "mean") -> DistributedArray:
    """Return the accuracy that fits the shapes: of labels, of targets with an axis of classes, or
    of probabilities of "yes"; reduction: "none" returns that of each row.

    >>> float(accuracy(gdt.asarray([[1.0], [0.0]]), gdt.asarray([[0.9], [0.8]])))
    0.5
    """
    targets, predictions = aligned(targets, predictions)
    if predictions.shape != targets.shape:
        return metric_functions.accuracy(targets, predictions, reduction)
    if predictions.ndim < 2 or predictions.shape[-1] == 1:
        return metric_functions.binary_accuracy(targets, predictions, reduction=reduction)
    return metric_functions.categorical_accuracy(targets, predictions, reduction)


def binary_accuracy_of_logits(
    targets: Any, logits: Any, reduction: str = "mean"
) -> DistributedArray:
    """Return the fraction of logits that are above 0 where the target is 1, and only there."""
    return metric_functions.binary_accuracy(targets, logits, 0.0, reduction)


NAMES: dict[str, Function | type[Metric]] = {
    "accuracy": accuracy,
    "acc": accuracy,
    "sparse_categorical_accuracy": metric_functions.accuracy,
    "categorical_accuracy": metric_functions.categorical_accuracy,
    "binary_accuracy": metric_functions.binary_accuracy,
    "top_k_accuracy": metric_functions.top_k_accuracy,
    "top_k_categorical_accuracy": metric_functions.top_k_accuracy,
    "sparse_top_k_categorical_accuracy": metric_functions.top_k_accuracy,
    "auc": metric_functions.AUC,
    "precision": metric_functions.Precision,
    "recall": metric_functions.Recall,
}
"""Metrics by name; the losses are metrics too."""


def takes_logits(loss: Any) -> bool:
    """Return whether a loss takes logits of yes and no."""
    if isinstance(loss, partial) and loss.func is losses.binary_crossentropy:
        return bool(loss.keywords.get("from_logits"))
    return loss is losses.sigmoid_cross_entropy


def measures_of(metrics: Any, loss: Any) -> dict[str, Measure]:
    """Return metrics by name: of a mapping, or of names, functions and Metrics.

    Raises ArgumentError for an unknown name, for the name of another result, and for one that comes
    twice.
    """
    if isinstance(metrics, Mapping):
        pairs: Iterable[tuple[str, Any]] = metrics.items()
    else:
        single = isinstance(metrics, str | Metric) or callable(metrics)
        if not (single or metrics is None or isinstance(metrics, Iterable)):
            problem = f"metrics is {shown_value(metrics)}"
            raise error(ArgumentError, problem, remedy="Pass a list, or a dict by name.")
        listed = [] if metrics is None else [metrics] if single else list(metrics)
        pairs = [(_name(m), m) for m in listed]
    measures: dict[str, Measure] = {}
    for name, metric in pairs:
        if name == "loss" or name.startswith("val_"):
            problem = f"a metric is called {name!r}, which is the name of another result"
            raise error(ArgumentError, "Trainer", problem, remedy="Give it another name.")
        if name in measures:
            problem, remedy = f"two metrics are called {name!r}", "Pass a dict of metrics by name."
            raise error(ArgumentError, "Trainer", problem, remedy=remedy)
        measures[name] = _measure(metric, loss)
    return measures


def _name(metric: Any) -> str:
    """Return the name of a metric's results."""
    if isinstance(metric, str):
        return metric
    return str(getattr(metric, "name", None) or getattr(metric, "__name__", type(metric).__name__))


def _measure(metric: Any, loss: Any) -> Measure:
    """Return the function or Metric of a metric; raise ArgumentError for an unknown name."""
    if isinstance(metric, str):
        name, names = metric.lower(), {**NAMES, **losses.NAMES}
        if name not in names:
            remedy = f"Known are {', '.join(names)}."
            raise error(ArgumentError, f"{metric!r} is no metric", remedy=remedy)
        metric = names[name]
    if isinstance(metric, type):
        metric = metric()
    if takes_logits(loss):  # whether the metric was named or passed
        if isinstance(metric, Metric):
            return metric.of_logits()
        if metric in (accuracy, metric_functions.binary_accuracy):
            return binary_accuracy_of_logits
    if not callable(metric) and not isinstance(metric, Metric):
        problem = f"a metric is {metric!r}"
        remedy = "Pass a name, a function (targets, predictions), or a gdt.metrics.Metric."
        raise error(ArgumentError, problem, remedy=remedy)
    return metric


def aligned(targets: Any, predictions: Any) -> tuple[Any, Any]:
    """Return targets and predictions; targets (rows,) of predictions (rows, 1) get that axis, and
    labels (rows, 1) of predictions (rows, classes) lose it, as in Keras."""
    shape, other = getattr(targets, "shape", None), getattr(predictions, "shape", None)
    if shape is None or other is None or shape == other or not other:
        return targets, predictions
    if shape == other[:-1] and other[-1] == 1:
        return expand_dims(targets, -1), predictions
    if len(shape) == len(other) > 1 and shape[-1] == 1 and targets.dtype.kind in "iu":
        return reshape(targets, shape[:-1]), predictions
    return targets, predictions


def check_outputs(measures: Mapping[str, Any], predictions: Any) -> None:
    """Raise ArgumentError for losses and metrics of gdt, which take one array, where a model
    returns several."""
    if not isinstance(predictions, list | tuple | dict):
        return
    for name, measure in measures.items():
        function = getattr(measure, "function", measure)
        if str(getattr(function, "__module__", "")).startswith("gdt."):
            outputs = f"{type_text(predictions)} of {len(predictions)} arrays"
            problem = f"the model returns {outputs}, and {name} takes one"
            remedy = f"Write a function (y, outputs), such as {OF_SEVERAL}."
            raise error(ArgumentError, "Trainer", problem, remedy=remedy)


OF_SEVERAL = "lambda y, outputs: mse(y[0], outputs[0]) + 0.5 * mse(y[1], outputs[1])"


def check_array(name: str, value: Any) -> None:
    """Raise ArgumentError for a result of a loss or metric that is no array."""
    if not isinstance(value, DistributedArray):
        problem = f"{name} returned {type_text(value)}, not an array"
        raise error(ArgumentError, "Trainer", problem, remedy="Compute it with gdt's functions.")


def scalar_of(name: str, value: Any) -> DistributedArray:
    """Return the result of a loss or metric, or the mean of the values of all rows."""
    check_array(name, value)
    return mean(value) if value.ndim else value


def checked_results(name: str, results: Any, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the results of a model's own step: scalars, and the statistics of Metrics.

    name: of the step, for errors. Raises ArgumentError for what is no mapping of arrays by name."""
    remedy = 'Return a dict of arrays by name, such as {"loss": loss}.'
    if not isinstance(results, Mapping) or not results:
        shown = "an empty dict" if isinstance(results, Mapping) else shown_value(results)
        raise error(ArgumentError, name, f"it returned {shown}", remedy=remedy)
    for key in results:
        if not isinstance(key, str) or key.startswith("val_"):
            problem = f"it returned a result called {key!r}, which is no name of a training result"
            raise error(ArgumentError, name, problem, remedy=remedy)
    return {
        key: value
        if isinstance(metrics.get(key), Metric)
        else scalar_of(f"{name}, {key!r},", value)
        for key, value in results.items()
    }


def loss_of(loss: Any, targets: Any, predictions: Any, weights: Any = None) -> DistributedArray:
    """Return the loss of a batch: the mean over its rows, each multiplied by its weight.

    Raises ArgumentError where there are weights and the loss has no value for each row.
    """
    takes_reduction = weights is not None and "reduction" in inspect.signature(loss).parameters
    extra = {"reduction": "none"} if takes_reduction else {}
    value: Any = loss(targets, predictions, **extra)
    if weights is None:
        return scalar_of("the loss", value)
    check_array("the loss", value)
    if not value.ndim:
        raise error(
            ArgumentError,
            "Trainer",
            "weights need a loss with a value for each row, and this one returns a scalar",
            remedy="Return the values of all rows, or take `reduction` as gdt.nn.losses do.",
        )
    if value.ndim > weights.ndim:
        value = mean(value, axis=tuple(range(weights.ndim, value.ndim)))
    if value.shape != weights.shape:
        problem = f"weights have shape {list(weights.shape)}, the losses {list(value.shape)}"
        raise error(ArgumentError, "Trainer", problem, remedy="Pass a weight for each row.")
    product = value * weights.astype(value.dtype)
    total: DistributedArray = product.sum()
    total = total * (1 / max(value.size, 1))
    return total


class Measurement:
    """The means of scalars, weighted by rows, and the totals of Metrics, over many batches."""

    def __init__(self, measures: Mapping[str, Measure]) -> None:
        self.means: dict[str, Mean] = {}  # of what steps have returned
        self._names: Iterable[str] | None = None  # of the results of the last batch
        # Copies, since an evaluation inside of a training has totals of its own.
        self.metrics = {n: copy(m) for n, m in measures.items() if isinstance(m, Metric)}
        for metric in self.metrics.values():
            metric.reset()

    def add(self, values: Mapping[str, DistributedArray], rows: int) -> dict[str, float]:
        """Add the values of a batch; return its scalars."""
        scalars = {n: float(value) for n, value in values.items() if n not in self.metrics}
        for name, scalar in scalars.items():
            self.means.setdefault(name, Mean()).update(scalar, rows)
        for name, metric in self.metrics.items():
            if name in values:  # as it need not be in those of a model's own step
                metric.add(values[name])
        self._names = values.keys()
        return scalars

    def results(self, with_metrics: bool = True) -> Numbers:
        """Return the results so far; with_metrics: also those for which arrays are sent."""
        names = self.means.keys() if self._names is None else self._names
        results: Numbers = {n: self.means[n].result() for n in names if n in self.means}
        if with_metrics:
            metrics = self.metrics.items()
            results |= {n: m.result() for n, m in metrics if m.total is not None}
        return results

    def state(self) -> dict[str, Any]:
        """Return means and totals in values that JSON can hold."""
        means = {name: [m.total, m.weight] for name, m in self.means.items()}
        arrays = {n: m.total.numpy() for n, m in self.metrics.items() if m.total is not None}
        return {"means": means, "metrics": encoded(arrays)}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned, with the metrics that there are."""
        for name, (total, weight) in state["means"].items():
            self.means[name] = Mean()
            self.means[name].total, self.means[name].weight = total, weight
        for name, total in decoded(state["metrics"]).items():
            if name in self.metrics:
                self.metrics[name].total = asarray(total)
