"""Cross-entropies with dense labels: distributions over classes, and independent yes-or-no ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.operands import as_operands
from gdt.array.registry import public
from gdt.engine.op import op
from gdt.errors import DtypeError, ShapeError, error
from gdt.nn.functions.activations.op import sigmoid
from gdt.nn.functions.softmax import log_softmax
from gdt.ops.elementwise import astype, like
from gdt.ops.reductions import sum_
from gdt.sharding.dtypes import kind_of

__all__ = ["sigmoid_cross_entropy_with_logits", "softmax_cross_entropy_with_logits"]


Block = Any


def _floating_pair(name: str, labels: Any, logits: Any) -> list[DistributedArray]:
    labels, logits = as_operands(name, labels=labels, logits=logits)
    if kind_of(logits.dtype) != "f":
        raise error(DtypeError, "logits are not floating-point", operands={"logits": logits.type})
    if labels.shape != logits.shape:
        raise error(
            ShapeError,
            "labels and logits have different shapes",
            operands={"labels": labels.type, "logits": logits.type},
        )
    return [labels if kind_of(labels.dtype) == "f" else astype(labels, logits.dtype), logits]


@op("..., ... -> ...")
def weighted_log(xp: Any, weight: Block, logarithm: Block, /) -> Block:
    """weight * logarithm; 0 where the weight is 0, even if the logarithm is infinite."""
    with np.errstate(invalid="ignore"):
        product = weight * logarithm
    return xp.where(weight == 0, product.dtype.type(0), product)


weighted_log.vjp(
    lambda g, out, weight, logarithm: like(g * logarithm, weight),
    lambda g, out, weight, logarithm: like(g * weight, logarithm),
)


@public
def softmax_cross_entropy_with_logits(labels: Any, logits: Any, axis: int = -1) -> DistributedArray:
    """Softmax cross-entropy: -sum(labels * log(softmax(logits))) over `axis`, the classes.

    labels, logits: of one shape, commonly (batch, classes); labels are weights of the classes,
    commonly a distribution; logits are floating-point. Result: the shape without `axis`, commonly
    (batch,). A class of weight 0 adds 0, even if its logit is -inf. Split classes leave the sum
    partial.

    Raises ShapeError where labels and logits differ in shape, DtypeError for logits that are not
    floating-point. Source: `tf.nn.softmax_cross_entropy_with_logits`.

    >>> gdt.softmax_cross_entropy_with_logits([[0.5, 0.5]], gdt.asarray([[0.0, 0.0]])).tolist()
    [0.693147180559...]
    """
    labels, logits = _floating_pair("softmax_cross_entropy_with_logits", labels, logits)
    return -sum_(weighted_log(labels, log_softmax(logits, axis)), axis=axis)


@op("..., ... -> ...")
def logistic_loss(xp: Any, labels: Block, logits: Block, /) -> Block:
    """max(x, 0) - x * labels + log(1 + exp(-|x|)): see `sigmoid_cross_entropy_with_logits`."""
    tail = xp.abs(logits)
    xp.negative(tail, out=tail)
    xp.exp(tail, out=tail)
    xp.log1p(tail, out=tail)
    tail += xp.maximum(logits, 0)
    return tail - logits * labels


logistic_loss.vjp(
    lambda g, out, labels, logits: like(-g * logits, labels),
    lambda g, out, labels, logits: like(g * (sigmoid(logits) - labels), logits),
)


@public
def sigmoid_cross_entropy_with_logits(labels: Any, logits: Any) -> DistributedArray:
    """Logistic loss of every element, without overflow: -labels * log(sigmoid(logits)) -
    (1 - labels) * log(1 - sigmoid(logits)).

    labels, logits: of one shape, which the result has too; labels in [0, 1], logits floating-point.
    Raises ShapeError where labels and logits differ in shape, DtypeError for logits that are not
    floating-point. Source: `tf.nn.sigmoid_cross_entropy_with_logits`.

    >>> gdt.sigmoid_cross_entropy_with_logits([1.0, 0.0], gdt.asarray([1000.0, 0.0])).tolist()
    [0.0, 0.693147180559...]
    """
    labels, logits = _floating_pair("sigmoid_cross_entropy_with_logits", labels, logits)
    return logistic_loss(labels, logits)
