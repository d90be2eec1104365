"""Softmax cross-entropy with integer labels.

Logits may be split by rows or by classes. Split classes stay where they are: the devices gather,
for every row, the largest logit, the sum of exponentials and the logit of the label.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gdt.array import DistributedArray
from gdt.errors import DtypeError, IndexRangeError, ShapeError, error
from gdt.layout import ArrayType
from gdt.op import as_operands, op, public
from gdt.ops.cross_entropy_kernels import gradient_kernel, split_kernel, whole_kernel
from gdt.ops.elementwise import like
from gdt.ops.reductions import sum_
from gdt.ops.shapes import expand_dims
from gdt.ops.softmax import (
    floating,
    largest_and_sum,
    merge_largest_and_sum,
    softmax_from,
    softmax_gradient,
)
from gdt.plan import Shards
from gdt.rule import RuleSpec

Block = Any

NAME = "sparse_softmax_cross_entropy_with_logits"


# ---------------------------------------------------------------- integer labels


def _rows(logits: ArrayType) -> str:
    return " ".join(f"r{i}" for i in range(logits.ndim - 1))


def _split_rule(labels: ArrayType, logits: ArrayType, **_: Any) -> str:
    rows = _rows(logits)
    return f"{rows}, {rows} k -> {rows}, {rows} 1, {rows} 1"


def _whole_rule(labels: ArrayType, logits: ArrayType, **_: Any) -> RuleSpec:
    return RuleSpec(_split_rule(labels, logits), whole=frozenset("k"))


def _gradient_rule(g: ArrayType, labels: ArrayType, logits: ArrayType, *_: Any, **__: Any) -> str:
    rows = _rows(logits)
    return f"{rows}, {rows}, {rows} k, {rows} 1, {rows} 1 -> {rows} k"


class Targets(NamedTuple):
    """Labels that all point at a class; which of them are not to be ignored, and which were no
    class (None: all, and none)."""

    labels: Block
    kept: Block | None
    outside: Block | None


def _targets(
    xp: Any, labels: Block, classes: int, shards: Shards, ignore_index: int | None
) -> Targets:
    """Labels, checked. On the host one that is no class is an IndexRangeError; on a GPU, where
    finding out would wait for the device, its loss is NaN and its gradient 0, as in the kernels."""
    kept = None
    if ignore_index is not None:
        kept = labels != ignore_index
        labels = labels * kept
    unsigned = labels.view(f"u{labels.dtype.itemsize}")  # of which a negative label is a huge one
    if xp is np and (not labels.size or unsigned.max() < classes):
        return Targets(labels, kept, None)
    outside = unsigned >= classes
    labels_inside = xp.where(outside, 0, labels)
    if xp is not np:
        return Targets(labels_inside, kept, outside)
    _raise_outside(labels, outside & _valid_rows(xp, labels, shards), classes)
    return Targets(labels_inside, kept, None)  # they were padding


def _valid_rows(xp: Any, labels: Block, shards: Shards) -> Block:
    """Which rows of a block are no padding."""
    lead = shards.valid["k"].ndim
    rank, valid = labels.ndim - lead, xp.ones(labels.shape, bool)
    for d in range(rank):
        count = shards.valid[f"r{d}"]
        index = xp.arange(labels.shape[lead + d]).reshape(-1, *(1,) * (rank - 1 - d))
        valid &= index < count.reshape(count.shape + (1,) * rank)
    return valid


def _raise_outside(labels: Block, outside: Block, classes: int) -> None:
    bad = labels[outside]
    if bad.size:
        raise error(
            IndexRangeError,
            NAME,
            f"label {bad[0]} is outside 0..{classes - 1} ({bad.size} labels are)",
            remedy="Rows to leave out have the label that ignore_index names.",
        )


def _picked(xp: Any, rows: Block, labels: Block) -> Block:
    """rows[..., labels]: one element of every row."""
    classes = rows.shape[-1]
    flat = rows.reshape(-1)
    index = labels.reshape(-1) + xp.arange(0, flat.size, max(classes, 1))
    return flat.take(index).reshape(labels.shape)


@op(_whole_rule)
def cross_entropy_of_whole(
    xp: Any,
    labels: Block,
    logits: Block,
    /,
    label_smoothing: float = 0.0,
    ignore_index: int | None = None,
    *,
    shards: Shards,
) -> tuple[Block, Block, Block]:
    """`sparse_softmax_cross_entropy_with_logits` where classes are not split, with the two numbers
    of every row that its gradient takes: softmax(x) is exp(x - first) / second."""
    classes = logits.shape[-1]
    labels, kept, outside = _targets(xp, labels, classes, shards, ignore_index)
    below = floating(xp, logits)
    largest = xp.maximum.reduce(below, axis=-1, keepdims=True)
    below = below - largest
    target = _picked(xp, below, labels)
    if label_smoothing:
        mean = below.sum(axis=-1) / classes
        target = (1.0 - label_smoothing) * target + label_smoothing * mean
    if outside is not None:
        target = xp.where(outside, np.nan, target)
    xp.exp(below, out=below)
    total = xp.add.reduce(below, axis=-1, keepdims=True)
    loss = xp.log(total).reshape(target.shape)
    loss -= target
    if kept is not None:
        loss = xp.where(kept, loss, 0)
    return loss.astype(logits.dtype, copy=False), largest, total


cross_entropy_of_whole.kernel(whole_kernel(NAME))


def _merge(
    xp: Any, largest: Block, total: Block, target: Block, *kept: Block, axis: int
) -> tuple[Block, ...]:
    largest, total = merge_largest_and_sum(xp, largest, total, axis=axis)
    target = target.sum(axis=axis, keepdims=True)
    return largest, total, target, *(k.max(axis=axis, keepdims=True) for k in kept)


def _finish(
    xp: Any, largest: Block, total: Block, target: Block, *kept: Block, dtype: np.dtype[Any]
) -> tuple[Block, Block, Block]:
    loss = xp.log(total) + largest - target
    if kept:
        loss = xp.where(kept[0], loss, 0)
    return loss.reshape(loss.shape[:-1]).astype(dtype, copy=False), largest, total


def _prepare_split(labels: ArrayType, logits: ArrayType, **static: Any) -> dict[str, Any]:
    return {"label_smoothing": 0.0, "ignore_index": None, **static, "dtype": logits.dtype}


@op(
    _split_rule,
    reduce="max",
    merge=_merge,
    finish=_finish,
    fill={"logits": "max", "labels": None},
    prepare=_prepare_split,
)
def cross_entropy_of_split(
    xp: Any,
    labels: Block,
    logits: Block,
    /,
    label_smoothing: float = 0.0,
    ignore_index: int | None = None,
    *,
    shards: Shards,
    dtype: Any = None,
) -> tuple[Block, ...]:
    """`sparse_softmax_cross_entropy_with_logits` over split classes, with the largest logit of
    every row and the sum of exponentials below it, which its gradient takes."""
    labels, kept, outside = _targets(xp, labels, shards.size["k"], shards, ignore_index)
    logits = floating(xp, logits)
    largest, total = largest_and_sum(xp, logits, (-1,), True)
    local, here = _local_labels(xp, labels, shards)
    target = xp.where(here, _picked(xp, logits, local), 0)
    if outside is not None:
        target = xp.where(outside, np.nan, target)
    if label_smoothing:
        mean = _mean_of_split(xp, logits, shards)
        target = (1.0 - label_smoothing) * target + label_smoothing * mean
    statistics = (largest, total, target[..., None])
    return (
        statistics if kept is None else (*statistics, xp.broadcast_to(kept[..., None], total.shape))
    )


cross_entropy_of_split.kernel(split_kernel(NAME))


def _mean_of_split(xp: Any, logits: Block, shards: Shards) -> Block:
    """What this shard of the classes adds to the mean of every row; its padding holds -inf."""
    valid = _beside(shards.valid["k"], logits.ndim)
    real = xp.where(xp.arange(logits.shape[-1]) < valid, logits, 0)
    return real.sum(axis=-1) / shards.size["k"]


def _beside(numbers: Block, ndim: int) -> Block:
    """Numbers per coordinate, shaped to broadcast to blocks of `ndim` axes."""
    return numbers.reshape(numbers.shape + (1,) * (ndim - numbers.ndim))


def _local_labels(xp: Any, labels: Block, shards: Shards) -> tuple[Block, Block]:
    """Labels as positions in this shard of the classes, and whether they are in it."""
    start = _beside(shards.start["k"], labels.ndim)
    local = labels.astype(np.int64) - start
    here = (local >= 0) & (local < _beside(shards.valid["k"], labels.ndim))
    return xp.where(here, local, 0), here


@op(_gradient_rule, linear="g")
def cross_entropy_gradient(
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
    shards: Shards,
) -> Block:
    """g * (softmax of the logits - labels as one-hot rows, smoothed): the gradient of the
    cross-entropy in the logits. The softmax is exp(logits - largest) / total."""
    classes = shards.size["k"]
    if ignore_index is not None or shards.uneven or xp is not np:  # else the loss has checked them
        labels, kept, outside = _targets(xp, labels, classes, shards, ignore_index)
        if kept is not None:
            g = xp.where(kept, g, 0)
        if outside is not None:
            g = xp.where(outside, 0, g)
    softmax = floating(xp, logits) - largest
    out = xp.ascontiguousarray(softmax)  # so that `flat` is a view of it
    xp.exp(out, out=out)
    out /= total
    if label_smoothing:
        out -= label_smoothing / classes
    out *= g[..., None]
    at_label = g * (1.0 - label_smoothing) if label_smoothing else g
    if "k" in shards.split:
        labels, here = _local_labels(xp, labels, shards)
        at_label = xp.where(here, at_label, 0)
        labels = xp.broadcast_to(labels, out.shape[:-1])
    flat = out.reshape(-1)
    index = labels.reshape(-1) + xp.arange(0, flat.size, max(out.shape[-1], 1))
    flat[index] -= at_label.reshape(-1)
    return out.astype(logits.dtype, copy=False)


def _gradient_vjp(
    c: Any, out: Any, g: Any, labels: Any, logits: Any, largest: Any, total: Any, **static: Any
) -> tuple[Any, ...]:
    ones = g * 0.0 + 1.0
    row = sum_(c * cross_entropy_gradient(ones, labels, logits, largest, total, **static), axis=-1)
    # The largest logits and the sums are those of the logits, and `softmax_from` knows what follows.
    weight = c * expand_dims(_unless_ignored(g, labels, static), -1)
    softmax = softmax_from(logits, largest, total)
    return like(row, g), None, like(softmax_gradient(weight, softmax, -1), logits), None, None


def _unless_ignored(g: Any, labels: Any, static: dict[str, Any]) -> DistributedArray:
    ignored = static.get("ignore_index")
    out: DistributedArray = g if ignored is None else g * (labels != ignored)
    return out


cross_entropy_gradient.vjp(joint=_gradient_vjp)
cross_entropy_gradient.kernel(gradient_kernel)


def _loss_vjp(g: Any, out: Any, labels: Any, logits: Any, **static: Any) -> tuple[Any, ...]:
    return None, like(cross_entropy_gradient(g[0], labels, logits, *out[1:], **static), logits)


cross_entropy_of_whole.vjp(joint=_loss_vjp)
cross_entropy_of_split.vjp(joint=_loss_vjp)


@public
def sparse_softmax_cross_entropy_with_logits(
    labels: Any, logits: Any, *, label_smoothing: float = 0.0, ignore_index: int | None = None
) -> DistributedArray:
    """-log(softmax(logits)[label]) of every row, as `tf.nn` has it.

    labels: integers of any kind, of shape (...); logits: floating-point, (..., classes).
    label_smoothing: the share of the target that all classes divide evenly. ignore_index: a label
    of rows whose loss and gradient are 0.

    Raises IndexRangeError for a label that is no class, on the host; on a GPU, where finding out
    would wait for the device, the gradient of such a row is 0. Split rows or classes stay split.

    >>> logits = gdt.asarray([[0.0, 0.0], [0.0, 1000.0]])
    >>> gdt.sparse_softmax_cross_entropy_with_logits([0, 1], logits).tolist()
    [0.693147180559..., 0.0]
    """
    if type(labels) is not DistributedArray or type(logits) is not DistributedArray:
        labels, logits = as_operands(NAME, labels=labels, logits=logits)
    if labels.dtype.kind not in "iu" or logits.dtype.kind != "f" or not logits.ndim:
        raise error(
            DtypeError,
            NAME,
            "labels are integers and logits floating-point rows",
            operands={"labels": labels.type, "logits": logits.type},
        )
    if labels.shape != logits.shape[:-1] or not logits.shape[-1]:
        raise error(
            ShapeError,
            NAME,
            f"labels {list(labels.shape)} do not name a class for each row of {list(logits.shape)}",
            operands={"labels": labels.type, "logits": logits.type},
        )
    static: dict[str, Any] = {}
    if label_smoothing:
        static["label_smoothing"] = float(label_smoothing)
    if ignore_index is not None:
        static["ignore_index"] = int(ignore_index)
    split = logits.layout.dims[-1]
    loss: DistributedArray = (cross_entropy_of_split if split else cross_entropy_of_whole)(
        labels, logits, **static
    )[0]
    return loss
