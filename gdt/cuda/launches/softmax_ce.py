"""Launches of softmax_ce.cu: cross-entropy of whole rows, or of rows split over devices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from gdt.cuda.compiler import Instance, KernelCall, constants
from gdt.cuda.launches.calls import (
    FLOATS,
    SUM_TYPES,
    Array,
    Leading,
    c_type,
    ceil_div,
    named_call,
    sum_type,
)

FILE = "softmax_ce.cu"
LABELS = ("int", "long long")
ROW_SHAPES = (("32", "4"), ("256", "1"))  # threads for a row and rows in a block
SHORT_ROW = 1024  # elements; up to here a warp takes a row
ROW_CACHE_BYTES = 63 << 10  # with the kernel's scratch, no more than a block of sm_75 may have
CUT_PACKS = 2  # a row begins and ends inside a pack


def softmax_ce_instances() -> Iterator[Instance]:
    """Every instance launched here."""
    for t, label, shape in product(FLOATS, LABELS, ROW_SHAPES):
        for kernel in ("softmax_ce", "softmax_ce_parts", "softmax_ce_gradient"):
            yield Instance(FILE, kernel, (t, SUM_TYPES[t], label, *shape))
    for wide, label in product(("float", "double"), LABELS):
        yield Instance(FILE, "softmax_ce_merge", (wide, label))


def _row_shape(classes: int) -> tuple[int, int]:
    threads, rows = ROW_SHAPES[classes > SHORT_ROW]
    return int(threads), int(rows)


def _row_bytes(logits: Array) -> int:
    """Bytes of shared memory for one row, laid out as `row_bytes` does."""
    pack = constants(FILE)["PACK_BYTES"]
    return int((logits.shape[-1] * logits.dtype.itemsize // pack + CUT_PACKS) * pack)


def _softmax(kernel: str, logits: Array, labels: Array) -> tuple[Instance, tuple[int, int]]:
    shape = _row_shape(logits.shape[-1])
    types = (c_type(logits), sum_type(logits), c_type(labels), *map(str, shape))
    return Instance(FILE, kernel, types), shape


def softmax_ce(
    logits: Array,
    labels: Array,
    loss: Array,
    lse: Array,
    gradient: Array | None,
    error_flag: Array,
    *,
    scale: Array | None = None,
    mesh_ndim: int = 0,
    smoothing: float = 0.0,
    ignore: int = -100,
    shared_limit: int = ROW_CACHE_BYTES,
) -> list[KernelCall]:
    """Loss, log-sum-exp and, unless None, the gradient of whole rows.

    logits, gradient: (lead..., rows, classes); labels, loss, lse: (lead..., rows); scale: the
    cotangent of the loss, (lead..., rows) or (lead..., 1), None for 1; error_flag: uint64 of one
    element, all ones, which becomes `row << 32 | label` if a label is out of range.
    """
    rows, classes = logits.shape[mesh_ndim:]
    instance, (threads, per_block) = _softmax("softmax_ce", logits, labels)
    leading = Leading(mesh_ndim, logits, labels, scale)
    if 0 in (leading.items, rows, classes):
        return []
    bytes_of_row = _row_bytes(logits)
    cached = gradient is not None and bytes_of_row * per_block <= shared_limit
    call = named_call(
        instance,
        (ceil_div(rows, per_block), leading.items),
        (threads, per_block),
        logits=logits,
        logits_strides=leading.strides(instance, logits),
        labels=labels,
        labels_strides=leading.strides(instance, labels),
        scale=scale,
        scale_strides=leading.strides(instance, scale),
        scale_step=int(scale is not None and scale.shape[-1] > 1),
        loss=loss,
        lse=lse,
        gradient=gradient,
        axes=leading.axes(instance),
        rows=rows,
        classes=classes,
        smoothing=smoothing,
        ignore=ignore,
        cached=int(cached),
        error=error_flag,
    )
    return [replace(call, shared=bytes_of_row * per_block if cached else 0)]


def softmax_ce_parts(
    logits: Array,
    labels: Array,
    parts: Array,
    *,
    start: Array | None,
    count: Array | None,
    mesh_ndim: int = 0,
) -> list[KernelCall]:
    """(max, sum of exp, logit of the label, sum) of the local classes: parts (items, rows, 4).

    start, count: int32 over the flattened leading axes, the first class here and how many are real.
    """
    rows, classes = logits.shape[mesh_ndim:]
    instance, (threads, per_block) = _softmax("softmax_ce_parts", logits, labels)
    leading = Leading(mesh_ndim, logits, labels)
    if 0 in (leading.items, rows):
        return []
    return [
        named_call(
            instance,
            (ceil_div(rows, per_block), leading.items),
            (threads, per_block),
            logits=logits,
            logits_strides=leading.strides(instance, logits),
            labels=labels,
            labels_strides=leading.strides(instance, labels),
            start=start,
            count=count,
            parts=parts,
            axes=leading.axes(instance),
            rows=rows,
            classes=classes,
        )
    ]


def softmax_ce_merge(
    parts: Array,
    labels: Array,
    loss: Array,
    lse: Array,
    error_flag: Array,
    *,
    total: int,
    smoothing: float = 0.0,
    ignore: int = -100,
) -> list[KernelCall]:
    """Loss and log-sum-exp from gathered parts (count, rows, 4); labels, loss, lse: (rows,)."""
    instance = Instance(FILE, "softmax_ce_merge", (c_type(parts), c_type(labels)))
    threads = constants(FILE)["MERGE_THREADS"]
    count, rows = parts.shape[:2]
    if rows == 0:
        return []
    return [
        named_call(
            instance,
            (ceil_div(rows, threads),),
            (threads,),
            parts=parts,
            labels=labels,
            loss=loss,
            lse=lse,
            count=count,
            rows=rows,
            total=total,
            smoothing=smoothing,
            ignore=ignore,
            error=error_flag,
        )
    ]


def softmax_ce_gradient(
    logits: Array,
    labels: Array,
    lse: Array,
    gradient: Array,
    *,
    total: int,
    scale: Array | None = None,
    start: Array | None = None,
    count: Array | None = None,
    mesh_ndim: int = 0,
    smoothing: float = 0.0,
    ignore: int = -100,
) -> list[KernelCall]:
    """The gradient of the local classes, from the log-sum-exp of all `total` classes."""
    rows, classes = logits.shape[mesh_ndim:]
    instance, (threads, per_block) = _softmax("softmax_ce_gradient", logits, labels)
    leading = Leading(mesh_ndim, logits, labels, lse, scale)
    if 0 in (leading.items, rows, classes):
        return []
    return [
        named_call(
            instance,
            (ceil_div(rows, per_block), leading.items),
            (threads, per_block),
            logits=logits,
            logits_strides=leading.strides(instance, logits),
            labels=labels,
            labels_strides=leading.strides(instance, labels),
            lse=lse,
            lse_strides=leading.strides(instance, lse),
            scale=scale,
            scale_strides=leading.strides(instance, scale),
            scale_step=int(scale is not None and scale.shape[-1] > 1),
            start=start,
            count=count,
            gradient=gradient,
            axes=leading.axes(instance),
            rows=rows,
            classes=classes,
            total=total,
            smoothing=smoothing,
            ignore=ignore,
        )
    ]
