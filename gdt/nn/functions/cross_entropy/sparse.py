"""Softmax cross-entropy with integer labels.

Logits may be split by rows or by classes. Split classes stay where they are: the devices reduce,
for every row, the largest logit, then the sum of exponentials and the logit of the label.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.operands import as_operands
from gdt.array.registry import public
from gdt.backend import backend_of
from gdt.caches import memoized
from gdt.engine.declaration import FROM_ENGINE, Merging
from gdt.engine.first_output import first_output
from gdt.engine.op import op
from gdt.engine.plan import Shards
from gdt.errors import DtypeError, ShapeError, error
from gdt.nn.functions.cross_entropy.integer_labels import (
    NAME,
    beside,
    checked_targets,
    local_labels,
    picked,
    rows_of,
)
from gdt.nn.functions.cross_entropy.kernels import split_kernel, whole_kernel
from gdt.nn.functions.cross_entropy.loops import losses_loop
from gdt.nn.functions.cross_entropy.sparse_gradient import (
    cross_entropy_gradient,
    fused_cross_entropy_gradient,
)
from gdt.nn.functions.softmax import (
    largest_and_sum,
    merge_largest_and_sum,
    softmax_gradient,
)
from gdt.ops.blocks.sums import add_reduce, row_maximum
from gdt.ops.elementwise import like, widened_half
from gdt.sharding.array_type import ArrayType
from gdt.sharding.dtypes import kind_of
from gdt.sharding.rule import RuleSpec

__all__ = ["sparse_softmax_cross_entropy_with_logits"]

ONE_HOT = "Of one-hot labels, or probabilities, take gdt.nn.losses.softmax_cross_entropy."


Block = Any


def _split_rule(labels: ArrayType, logits: ArrayType, **_: Any) -> str:
    rows = rows_of(logits)
    return f"{rows}, {rows} k -> {rows}, {rows} 1, {rows} 1"


def _whole_rule(labels: ArrayType, logits: ArrayType, **_: Any) -> RuleSpec:
    return RuleSpec(_split_rule(labels, logits), whole=frozenset("k"))


def _softmax_rule(labels: ArrayType, logits: ArrayType, **_: Any) -> RuleSpec:
    rows = rows_of(logits)
    return RuleSpec(f"{rows}, {rows} k -> {rows}, {rows} k", whole=frozenset("k"))


def _loss_of_whole(
    xp: Any,
    labels: Block,
    logits: Block,
    label_smoothing: float,
    ignore_index: int | None,
    shards: Shards,
) -> tuple[Block, Block, Block, Block]:
    """The loss, the largest logit m of every row, the exponentials exp(x - m), and their sum:
    (...), (..., 1), (..., classes), (..., 1)."""
    classes = logits.shape[-1]
    labels, counted, outside = checked_targets(xp, labels, classes, shards, ignore_index)
    below = widened_half(logits)
    largest = row_maximum(xp, below)
    below = below - largest
    target = picked(xp, below, labels)
    if label_smoothing:
        mean = below.sum(axis=-1) / classes
        target = (1.0 - label_smoothing) * target + label_smoothing * mean
    if outside is not None:
        target = xp.where(outside, np.nan, target)
    xp.exp(below, out=below)
    total = add_reduce(xp, below, (-1,), True)
    loss = xp.log(total).reshape(target.shape)
    loss -= target
    if counted is not None:
        loss = xp.where(counted, loss, 0)
    return loss if loss.dtype == logits.dtype else loss.astype(logits.dtype), largest, below, total


@op(_softmax_rule, outputs=2)
def cross_entropy_of_whole(
    xp: Any,
    labels: Block,
    logits: Block,
    /,
    label_smoothing: float = 0.0,
    ignore_index: int | None = None,
    *,
    shards: Shards = FROM_ENGINE,
) -> tuple[Block, Block]:
    """`sparse_softmax_cross_entropy_with_logits` and softmax(logits), where classes are not
    split."""
    loss, _, softmax, total = _loss_of_whole(
        xp, labels, logits, label_smoothing, ignore_index, shards
    )
    softmax /= total
    return loss, softmax if softmax.dtype == logits.dtype else softmax.astype(logits.dtype)


@op(_whole_rule, outputs=3, rounded="logits - -")
def fused_cross_entropy(
    xp: Any,
    labels: Block,
    logits: Block,
    /,
    label_smoothing: float = 0.0,
    ignore_index: int | None = None,
    *,
    shards: Shards = FROM_ENGINE,
) -> tuple[Block, Block, Block]:
    """`cross_entropy_of_whole` that keeps no softmax: its gradient takes two numbers of each row,
    with which softmax(x) is exp(x - first) / second.

    What a device with kernels runs, where reading the logits again costs less than keeping the
    softmax; on the host, taking exponentials again costs more.
    """
    loss, largest, _, total = _loss_of_whole(
        xp, labels, logits, label_smoothing, ignore_index, shards
    )
    return loss, largest, total


fused_cross_entropy.kernel(whole_kernel, takes_bfloat16=True)


def _merge(xp: Any, largest: Block, total: Block, target: Block, *counted: Block) -> Merging:
    """Merge statistics of the classes of shards; all of them know which rows count."""
    merged = yield from merge_largest_and_sum(xp, largest, total, target)
    return *merged, *(k[tuple(map(slice, merged[0].shape))] for k in counted)


def _finish(
    xp: Any, largest: Block, total: Block, target: Block, *counted: Block, dtype: np.dtype[Any]
) -> tuple[Block, Block, Block]:
    loss = xp.log(total) + largest - target
    if counted:
        loss = xp.where(counted[0], loss, 0)
    return loss.reshape(loss.shape[:-1]).astype(dtype, copy=False), largest, total


def _prepare_split(labels: ArrayType, logits: ArrayType, **static: Any) -> dict[str, Any]:
    return {"label_smoothing": 0.0, "ignore_index": None, **static, "dtype": logits.dtype}


@op(
    _split_rule,
    outputs=3,
    reduce="max",
    merge=_merge,
    finish=_finish,
    fill={"logits": "max", "labels": None},
    prepare=_prepare_split,
    rounded="logits - -",
)
def cross_entropy_of_split(
    xp: Any,
    labels: Block,
    logits: Block,
    /,
    label_smoothing: float = 0.0,
    ignore_index: int | None = None,
    *,
    shards: Shards = FROM_ENGINE,
    dtype: Any = FROM_ENGINE,
) -> tuple[Block, ...]:
    """`sparse_softmax_cross_entropy_with_logits` over split classes, with the largest logit of
    every row and the sum of exponentials below it, which its gradient takes."""
    labels, counted, outside = checked_targets(xp, labels, shards.size["k"], shards, ignore_index)
    logits = widened_half(logits)
    largest, total = largest_and_sum(xp, logits, (-1,), True)
    local, here = local_labels(xp, labels, shards)
    target = xp.where(here, picked(xp, logits, local), 0)
    if outside is not None:
        target = xp.where(outside, np.nan, target)
    if label_smoothing:
        mean = _mean_of_split(xp, logits, shards)
        target = (1.0 - label_smoothing) * target + label_smoothing * mean
    statistics = (largest, total, target[..., None])
    return (
        statistics
        if counted is None
        else (*statistics, xp.broadcast_to(counted[..., None], total.shape))
    )


cross_entropy_of_split.kernel(split_kernel, takes_bfloat16=True)


def _mean_of_split(xp: Any, logits: Block, shards: Shards) -> Block:
    """The sum of this shard's logits in every row, divided by the number of all classes; padding
    counts as 0, though it holds -inf."""
    valid = beside(shards.valid["k"], logits.ndim)
    real = xp.where(xp.arange(logits.shape[-1]) < valid, logits, 0)
    return real.sum(axis=-1) / shards.size["k"]


def _whole_vjp(g: Any, out: Any, labels: Any, logits: Any, **static: Any) -> tuple[Any, ...]:
    (g_loss, g_softmax), (_, softmax) = g, out
    g_logits: Any = None
    if g_loss is not None:
        g_logits = cross_entropy_gradient(g_loss, labels, softmax, **static)
    if g_softmax is not None:
        more = softmax_gradient(g_softmax, softmax, -1)
        g_logits = more if g_logits is None else g_logits + more
    return None, like(g_logits, logits)


def _fused_vjp(g: Any, out: Any, labels: Any, logits: Any, **static: Any) -> tuple[Any, ...]:
    gradient = fused_cross_entropy_gradient(g[0], labels, logits, *out[1:], **static)
    return None, like(gradient, logits)


cross_entropy_of_whole.vjp(joint=_whole_vjp, reads="labels out1")
cross_entropy_of_whole.specialize(losses_loop)
fused_cross_entropy.vjp(joint=_fused_vjp, reads="labels logits out1 out2")
cross_entropy_of_split.vjp(joint=_fused_vjp, reads="labels logits out1 out2")


@public
def sparse_softmax_cross_entropy_with_logits(
    labels: Any, logits: Any, *, label_smoothing: float = 0.0, ignore_index: int | None = None
) -> DistributedArray:
    """Softmax cross-entropy with integer labels: -log(softmax(logits)[label]) of every row.

    labels: integers of any size, (...); logits: floating-point, (..., classes). Result: (...), in
    the dtype of the logits.
    label_smoothing: the share of the target that all classes divide evenly. ignore_index: a label
        of rows whose loss and gradient are 0.

    Raises ShapeError where the labels' shape is not that of the rows, DtypeError for labels that
    are no integers, and IndexRangeError for a label that is no class: at once on the host; on a GPU
    at the next read by the host, and until then the loss of such a row is NaN and its gradient 0.
    Split rows or classes stay split. Source: `tf.nn.sparse_softmax_cross_entropy_with_logits`.

    >>> logits = gdt.asarray([[0.0, 0.0], [0.0, 1000.0]])
    >>> gdt.sparse_softmax_cross_entropy_with_logits([0, 1], logits).tolist()
    [0.693147180559..., 0.0]
    """
    if type(labels) is not DistributedArray or type(logits) is not DistributedArray:
        labels, logits = as_operands(NAME, labels=labels, logits=logits)
    static: dict[str, Any] = {}
    if label_smoothing:
        static["label_smoothing"] = float(label_smoothing)
    if ignore_index is not None:
        static["ignore_index"] = int(ignore_index)
    return _checked_loss(labels.type, logits.type)(labels, logits, **static)


@memoized(500)
def _checked_loss(labels: ArrayType, logits: ArrayType) -> Callable[..., DistributedArray]:
    """The function that calls the op for operands of these types on their devices; DtypeError or
    ShapeError for operands that do not fit."""
    shape = logits.shape
    if labels.dtype.kind not in "iu" or kind_of(logits.dtype) != "f" or not shape:
        raise error(
            DtypeError,
            "labels are integers and logits floating-point rows",
            operands={"labels": labels, "logits": logits},
            remedy=ONE_HOT,
        )
    if labels.shape != shape[:-1] or not shape[-1]:
        raise error(
            ShapeError,
            f"labels {list(labels.shape)} do not name a class for each row of {list(shape)}",
            operands={"labels": labels, "logits": logits},
            remedy=ONE_HOT if labels.shape == shape else None,
        )
    if logits.layout.dims[-1]:
        return lambda *args, **static: cross_entropy_of_split(*args, **static)[0]
    if backend_of(logits.mesh).runner is None:
        return lambda *args, **static: cross_entropy_of_whole(*args, **static)[0]
    return _fused_loss


_fused_loss = first_output(fused_cross_entropy)
