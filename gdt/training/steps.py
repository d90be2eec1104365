"""Steps: what a Trainer does with one batch, by itself or by methods of its model."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from gdt.array.array import DistributedArray
from gdt.autodiff.tape import GradientTape
from gdt.errors import ArgumentError, error
from gdt.metrics import Metric
from gdt.nn.compiling import own_method
from gdt.nn.module import Module
from gdt.optim import clip_by_global_norm
from gdt.optim.optimizer import Optimizer
from gdt.state import Stateful
from gdt.training.measuring import (
    Measure,
    aligned,
    check_array,
    check_outputs,
    checked_results,
    loss_of,
    scalar_of,
)


class Steps(Stateful):
    """The steps of a trainer: its model, how that is trained and how it is measured."""

    model: Module
    optimizer: Optimizer
    loss: Callable[..., Any] | None
    metrics: dict[str, Measure]
    weighted_metrics: tuple[str, ...]
    clip_norm: float | None

    def step(self, x: Any, y: Any, weights: Any = None) -> dict[str, DistributedArray]:
        """Update the model once; return the loss and the metrics of the batch, by name.

        weights: of the rows, (rows,); None for 1 each. Loss and metrics are resolved in one
        collective with the gradients; of a `Metric` its statistics are returned, and not resolved.
        A model that has a `train_step` of its own takes the step by that.
        """
        return self._own_results("train_step", x, y, weights) or self.gradient_step(x, y, weights)

    def test_step(self, x: Any, y: Any, weights: Any = None) -> dict[str, DistributedArray]:
        """Return the loss and the metrics of a batch, by name; by the `test_step` of a model that
        has one of its own."""
        return self._own_results("test_step", x, y, weights) or self.measured(x, y, weights)

    def _own_results(self, name: str, x: Any, y: Any, weights: Any) -> dict[str, Any]:
        """Return what a model's own method of that name returns for a batch; an empty dict if the
        model has no such method."""
        method = own_method(self.model, name)
        if method is None:
            return {}
        return checked_results(
            name, method((x, y) if weights is None else (x, y, weights)), self.metrics
        )

    def gradient_step(self, x: Any, y: Any, weights: Any = None) -> dict[str, DistributedArray]:
        """Update the model once by the gradients of its loss; return the results of the batch."""
        with GradientTape() as tape:
            results = self.measured(x, y, weights)
            loss = self.optimizer.scaled(results["loss"])
        others = [
            value
            for name, value in results.items()
            if name != "loss" and not isinstance(self.metrics[name], Metric)
        ]
        gradients = tape.gradient(loss, self.model, together_with=others)
        gradients = self.optimizer.unscaled(gradients)
        if self.clip_norm is not None:
            gradients, _ = clip_by_global_norm(gradients, self.clip_norm)
        self.optimizer.update(self.model, gradients)
        return results

    def loss_of_batch(self, y: Any, predictions: Any, weights: Any = None) -> DistributedArray:
        """Return the loss of predictions; raise ArgumentError where the trainer has none."""
        if self.loss is None:
            remedy = 'Pass loss="mse" to compile, or another, or define compute_loss.'
            raise error(ArgumentError, "Trainer", "there is no loss", remedy=remedy)
        y, predictions = aligned(y, predictions)
        check_outputs({"loss": self.loss}, predictions)
        return loss_of(self.loss, y, predictions, weights)

    def _loss(self, x: Any, y: Any, predictions: Any, weights: Any) -> DistributedArray:
        """Return the loss of a batch, by the `compute_loss` of a model that has one of its own."""
        method = own_method(self.model, "compute_loss")
        if method is None:
            return self.loss_of_batch(y, predictions, weights)
        arguments = {"x": x, "y": y, "y_pred": predictions, "sample_weight": weights}
        if "training" in inspect.signature(method).parameters:
            arguments["training"] = self.model.training
        return scalar_of("compute_loss", method(**arguments))

    def measured(self, x: Any, y: Any, weights: Any = None) -> dict[str, DistributedArray]:
        """Return the loss and the metrics of a batch."""
        predictions = self.model(x)
        results = {"loss": self._loss(x, y, predictions, weights)}
        y, predictions = aligned(y, predictions)
        check_outputs(self.metrics, predictions)
        for name, metric in self.metrics.items():
            if isinstance(metric, Metric):
                metric_weights = weights if name in self.weighted_metrics else None
                results[name] = metric.statistics(y, predictions, metric_weights)
                check_array(f"the metric {name!r}", results[name])
            else:
                results[name] = scalar_of(f"the metric {name!r}", metric(y, predictions))
        return results

    def _predicted(self, x: Any) -> Any:
        return self.model(x)
