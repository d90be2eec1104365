"""Launches of softmax_ce.cu: softmax cross-entropy of whole rows, or of rows split over devices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

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
from gdt.cuda.launches.matmul_hopper import HOPPER
from gdt.cuda.runner import KernelCall
from gdt.cuda.sources import Instance, constants

FILE = "softmax_ce.cu"
LABELS = ("int", "long long")
ROW_SHAPES = (("32", "4"), ("256", "1"))  # threads of a row, and rows of a block
SHORT_ROW = 1024  # elements up to which one warp takes a row
ROW_CACHE_BYTES = 63 << 10  # with the kernel's scratch, what a block of sm_75 may have
CLUSTER_PART_BYTES = 111 << 10  # of a long row in a block of a cluster, which lets two blocks in
CUT_PACKS = 2  # packs in which a row begins and ends, and which it may share with its neighbours


def softmax_ce_instances() -> Iterator[Instance]:
    """Yield every instance that this module launches."""
    for t, label, shape in product(FLOATS, LABELS, ROW_SHAPES):
        for kernel in ("softmax_ce", "softmax_ce_parts", "softmax_ce_gradient"):
            yield Instance(FILE, kernel, (t, SUM_TYPES[t], label, *shape))
    for wide, label in product(("float", "double"), LABELS):
        yield Instance(FILE, "softmax_ce_merge", (wide, label))
    for label, t in product(LABELS, FLOATS):
        yield Instance(FILE, "softmax_ce_cluster", (t, SUM_TYPES[t], label))


def _row_shape(classes: int) -> tuple[int, int]:
    """Return the threads of a row of `classes` classes, and the rows of a block."""
    threads, rows = ROW_SHAPES[classes > SHORT_ROW]
    return int(threads), int(rows)


def _row_bytes(logits: Array, classes: int) -> int:
    """Return the bytes of shared memory for `classes` logits, as the kernels' `row_bytes` does."""
    pack = constants(FILE)["PACK_BYTES"]
    return int((classes * logits.dtype.itemsize // pack + CUT_PACKS) * pack)


def _cluster_part(logits: Array) -> int:
    """Return the classes of a row that one block of a cluster has: whole packs."""
    per_pack = constants(FILE)["PACK_BYTES"] // logits.dtype.itemsize
    return int(ceil_div(logits.shape[-1], constants(FILE)["CLUSTER"] * per_pack) * per_pack)


def _softmax(kernel: str, logits: Array, labels: Array) -> tuple[Instance, tuple[int, int]]:
    """Return the instance of `kernel` for these arrays, and its row shape."""
    shape = _row_shape(logits.shape[-1])
    types = (c_type(logits), sum_type(logits), c_type(labels), *map(str, shape))
    return Instance(FILE, kernel, types), shape


def softmax_ce(
    logits: Array,
    labels: Array,
    loss: Array,
    lse: Array | None,
    gradient: Array | None,
    error_flag: Array,
    *,
    scale: Array | None = None,
    mesh_ndim: int = 0,
    smoothing: float = 0.0,
    ignore: int = -100,
    arch: str | None = None,
    shared_limit: int = ROW_CACHE_BYTES,
) -> list[KernelCall]:
    """Compute the loss and, unless they are None, the log-sum-exp `lse` and the gradient of whole
    rows.

    logits, gradient: (lead..., rows, classes).
    labels, loss, lse: (lead..., rows).
    scale: the cotangent of the loss, (lead..., rows) or (lead..., 1); None for 1.
    error_flag: (1,), uint64, all bits set; becomes `row << 32 | label` for a label out of range.
    smoothing: the label smoothing, in [0, 1). ignore: the label of rows without a loss.
    arch: the architecture of the device; on "sm_90a" a long row is that of a cluster of blocks,
    with a gradient or without, so that the loss has the same bits.
    shared_limit: the bytes of shared memory in which one block caches rows.
    """
    rows, classes = logits.shape[mesh_ndim:]
    instance, (threads, per_block) = _softmax("softmax_ce", logits, labels)
    leading = Leading(mesh_ndim, logits, labels, scale)
    if 0 in (leading.items, rows, classes):
        return []
    grid, block, cluster = ceil_div(rows, per_block), (threads, per_block), 1
    shared, part = _row_bytes(logits, classes) * per_block, _cluster_part(logits)
    is_kept, part_bytes = gradient is not None, _row_bytes(logits, part)
    if arch == HOPPER and shared > shared_limit and part_bytes <= CLUSTER_PART_BYTES:
        instance = Instance(FILE, "softmax_ce_cluster", instance.arguments[:3])
        shared, cluster = part_bytes, constants(FILE)["CLUSTER"]
        grid, block = rows * cluster, (constants(FILE)["CLUSTER_THREADS"],)
        own = {"part": part}
    else:
        is_kept = is_kept and shared <= shared_limit
        own = {"cached": int(is_kept)}
    call = named_call(
        instance,
        (grid, leading.items),
        block,
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
        error=error_flag,
        **own,
    )
    return [replace(call, shared=shared if is_kept else 0, cluster=cluster)]


def softmax_ce_parts(
    logits: Array,
    labels: Array,
    parts: Array,
    *,
    start: Array | None,
    count: Array | None,
    mesh_ndim: int = 0,
) -> list[KernelCall]:
    """Compute the parts of the loss that the local classes contribute.

    parts: (items, rows, 4): max, sum of exp, logit of the label, sum of the logits. start, count:
    (items,), int32, the first local class, and the number of local classes that are not padding.
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
    """Compute the loss and the log-sum-exp from the gathered parts of all devices.

    parts: (count, rows, 4); labels, loss, lse: (rows,). total: the number of all classes. The other
    arguments are those of `softmax_ce`.
    """
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
    highest: Array,
    sums: Array,
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
    """Compute the gradient of the local classes from statistics of all `total` classes.

    highest, sums: (lead..., rows), the largest logit of a row, and the sum of exponentials below
    it; or the log-sum-exp, and 1. The other arguments are those of `softmax_ce` and
    `softmax_ce_parts`.
    """
    rows, classes = logits.shape[mesh_ndim:]
    instance, (threads, per_block) = _softmax("softmax_ce_gradient", logits, labels)
    leading = Leading(mesh_ndim, logits, labels, highest, sums, scale)
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
            highest=highest,
            highest_strides=leading.strides(instance, highest),
            sum=sums,
            sum_strides=leading.strides(instance, sums),
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
