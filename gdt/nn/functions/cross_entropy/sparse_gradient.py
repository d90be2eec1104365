"""Gradients of the cross-entropy of integer labels in the logits, as ops with gradients of their
own."""

from __future__ import annotations

from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.engine.declaration import FROM_ENGINE
from gdt.engine.op import op
from gdt.engine.plan import Shards
from gdt.nn.functions.cross_entropy.integer_labels import (
    checked_targets,
    local_labels,
    positions,
    rows_of,
)
from gdt.nn.functions.cross_entropy.kernels import gradient_kernel, whole_kernel
from gdt.nn.functions.softmax import softmax_from, softmax_gradient
from gdt.ops.elementwise import like, widened_half
from gdt.ops.reductions import sum_
from gdt.ops.shapes import expand_dims
from gdt.sharding.array_type import ArrayType

Block = Any


def _gradient_rule(g: ArrayType, labels: ArrayType, softmax: ArrayType, **_: Any) -> str:
    rows = rows_of(softmax)
    return f"{rows}, {rows}, {rows} k -> {rows} k"


def _fused_gradient_rule(
    g: ArrayType, labels: ArrayType, logits: ArrayType, *_: Any, **__: Any
) -> str:
    rows = rows_of(logits)
    return f"{rows}, {rows}, {rows} k, {rows} 1, {rows} 1 -> {rows} k"


def _minus_labels(
    xp: Any,
    g: Block,
    labels: Block,
    softmax: Block,
    label_smoothing: float,
    ignore_index: int | None,
    shards: Shards,
) -> Block:
    """g * (softmax - labels as one-hot rows, smoothed)."""
    classes = shards.size["k"]
    if ignore_index is not None or shards.uneven or xp is not np:  # else the loss has checked them
        labels, counted, outside = checked_targets(xp, labels, classes, shards, ignore_index)
        if counted is not None:
            g = xp.where(counted, g, 0)
        if outside is not None:
            g = xp.where(outside, 0, g)
    if label_smoothing:
        softmax = softmax - label_smoothing / classes
    out = xp.ascontiguousarray(softmax * g[..., None])  # so that `flat` is a view of it
    at_label = g * (1.0 - label_smoothing) if label_smoothing else g
    if "k" in shards.split:
        labels, here = local_labels(xp, labels, shards)
        at_label = xp.where(here, at_label, 0)
        labels = xp.broadcast_to(labels, out.shape[:-1])
    flat = out.reshape(-1)
    flat[positions(xp, labels, flat.size, out.shape[-1])] -= at_label.reshape(-1)
    return out


@op(_gradient_rule, linear="g")
def cross_entropy_gradient(
    xp: Any,
    g: Block,
    labels: Block,
    softmax: Block,
    /,
    label_smoothing: float = 0.0,
    ignore_index: int | None = None,
    *,
    shards: Shards = FROM_ENGINE,
) -> Block:
    """g * (softmax - labels as one-hot rows, smoothed): the gradient of the cross-entropy in the
    logits."""
    return _minus_labels(xp, g, labels, softmax, label_smoothing, ignore_index, shards)


@op(_fused_gradient_rule, linear="g", rounded="logits")
def fused_cross_entropy_gradient(
    xp: Any,
    g: Block,
    labels: Block,
    logits: Block,
    largest: Block,
    total: Block,
    /,
    label_smoothing: float = 0.0,
    ignore_index: int | None = None,
    *,
    shards: Shards = FROM_ENGINE,
) -> Block:
    """`cross_entropy_gradient` where the softmax is exp(logits - largest) / total."""
    softmax = widened_half(logits) - largest
    xp.exp(softmax, out=softmax)
    softmax /= total
    out = _minus_labels(xp, g, labels, softmax, label_smoothing, ignore_index, shards)
    return out.astype(logits.dtype, copy=False)


fused_cross_entropy_gradient.kernel(gradient_kernel, takes_bfloat16=True, joined=whole_kernel)


def _unless_ignored(
    g: DistributedArray, labels: DistributedArray, static: dict[str, Any]
) -> DistributedArray:
    ignored = static.get("ignore_index")
    return g if ignored is None else g * (labels != ignored)


def _gradient_vjp(
    c: Any, out: Any, g: Any, labels: Any, softmax: Any, **static: Any
) -> tuple[Any, ...]:
    ones = g * 0.0 + 1.0
    row = sum_(c * cross_entropy_gradient(ones, labels, softmax, **static), axis=-1)
    return like(row, g), None, c * expand_dims(_unless_ignored(g, labels, static), -1)


def _fused_gradient_vjp(
    c: Any, out: Any, g: Any, labels: Any, logits: Any, largest: Any, total: Any, **static: Any
) -> tuple[Any, ...]:
    ones = g * 0.0 + 1.0
    unit = fused_cross_entropy_gradient(ones, labels, logits, largest, total, **static)
    # `largest` and `total` depend on the logits too: the gradient of `softmax_from` counts that.
    weight = c * expand_dims(_unless_ignored(g, labels, static), -1)
    softmax = softmax_from(logits, largest, total)
    g_logits = like(softmax_gradient(weight, softmax, -1), logits)
    return like(sum_(c * unit, axis=-1), g), None, g_logits, None, None


cross_entropy_gradient.vjp(joint=_gradient_vjp)
fused_cross_entropy_gradient.vjp(joint=_fused_gradient_vjp)
