"""Metrics: numbers that measure a model's quality, and their means over many batches."""

from __future__ import annotations

from typing import Any

from gdt.arguments import checked, checked_class
from gdt.array.array import DistributedArray
from gdt.array.operands import as_operands
from gdt.array.registry import FUNCTIONS
from gdt.errors import ShapeError, error


@checked
def accuracy(labels: Any, logits: Any) -> DistributedArray:
    """Return the fraction of rows whose largest logit is at the label; a scalar array of float32.

    labels: (...), integers. logits: (..., classes). Over a split batch the fraction stays a partial
    sum until its value is needed: pass it to `GradientTape.gradient(together_with=...)`, or return
    it as aux of `value_and_grad`, to resolve it in one collective with the gradients.

    Raises ShapeError unless labels have the shape of the logits without the last axis.

    >>> logits = gdt.asarray([[0.1, 0.9], [0.8, 0.2], [0.7, 0.3]])
    >>> round(float(gdt.metrics.accuracy(gdt.asarray([1, 0, 1]), logits)), 3)
    0.667
    """
    labels, logits = as_operands("accuracy", labels=labels, logits=logits)
    if logits.ndim < 1 or labels.shape != logits.shape[:-1]:
        raise error(
            ShapeError,
            "accuracy",
            f"labels have shape {list(labels.shape)}, logits {list(logits.shape)}",
            remedy="Labels have the shape of the logits without the last axis.",
        )
    hits = FUNCTIONS["argmax"](logits, axis=-1) == labels
    total = FUNCTIONS["sum"](hits.astype("float32"))
    mean: DistributedArray = total * (1 / max(hits.size, 1))
    return mean


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
        """Add a scalar, such as a batch's mean with the batch's size as its weight."""
        self.total += float(value) * weight
        self.weight += weight

    def result(self) -> float:
        """Return the mean so far; NaN before the first value."""
        return self.total / self.weight if self.weight else float("nan")

    def reset(self) -> None:
        """Forget all values."""
        self.total, self.weight = 0.0, 0.0
