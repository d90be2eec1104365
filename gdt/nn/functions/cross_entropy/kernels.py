"""The kernels of the softmax cross-entropy with integer labels: blocks as (mesh axes..., rows,
classes).

A label that is no class is noted in a flag on the device, and raised at the next read by the host.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from gdt.cuda import launches
from gdt.engine.launcher import Launcher
from gdt.engine.plan import Shards
from gdt.errors import IndexRangeError, error
from gdt.nn.functions.cross_entropy.integer_labels import NAME

Block = Any

NO_LABEL = -(2**63)  # for "ignore none": what no label is
LABEL_LIMIT = 2**31 - 1  # of what a flag tells of a label


def _rows(launcher: Launcher, a: Block, dims: int) -> Block:
    """(mesh axes..., rows) of a block that has `dims` dims of rows, with 1s or nothing behind."""
    mesh_ndim = launcher.mesh_ndim
    rows = math.prod(a.shape[mesh_ndim : mesh_ndim + dims])
    return launcher.contiguous(a).reshape(*a.shape[:mesh_ndim], rows)


def _logits(launcher: Launcher, logits: Block) -> Block:
    """(mesh axes..., rows, classes)"""
    mesh_ndim = launcher.mesh_ndim
    rows = math.prod(logits.shape[mesh_ndim:-1])
    return launcher.contiguous(logits).reshape(*logits.shape[:mesh_ndim], rows, logits.shape[-1])


def _labels(launcher: Launcher, labels: Block) -> Block:
    """(mesh axes..., rows) of a dtype that the kernels read."""
    narrow = labels.dtype in (np.int32, np.int64)
    labels = labels if narrow else labels.astype(np.int64)
    return _rows(launcher, labels, labels.ndim - launcher.mesh_ndim)


def _scale(launcher: Launcher, g: Block, dims: int) -> Block:
    """(mesh axes..., rows) of cotangents, or (mesh axes..., 1) of those that are one number, as
    they are of a mean."""
    mesh_ndim = launcher.mesh_ndim
    if not any(g.strides[mesh_ndim:]):
        g = g[(..., *(slice(1),) * dims)]
    return _rows(launcher, g.astype(np.float32) if g.dtype.itemsize == 2 else g, dims)


def _ignored(ignore_index: int | None) -> int:
    return NO_LABEL if ignore_index is None else ignore_index


def _label(bits: int) -> str:
    """A label from the lower half of a flag."""
    number = bits - (bits >> 31 << 32)
    beyond = {LABEL_LIMIT: " or more", -LABEL_LIMIT: " or less"}
    return f"{number}{beyond.get(number, '')}"


def _explain_labels(
    shape: tuple[int, ...], mesh_ndim: int, shards: Shards
) -> Callable[[int], Exception | None]:
    """A function from a flag, `row << 32 | label`, to the error that names the label's global
    index; to None for a row that is padding.

    shape: that of the block of rows.
    """

    def explain(flag: int) -> Exception | None:
        row, label = divmod(flag, 2**32)
        at = np.unravel_index(row, shape)
        index = []
        for d, i in enumerate(at[mesh_ndim:]):
            start, valid = (np.asarray(a[f"r{d}"].tolist()) for a in (shards.start, shards.valid))
            place = tuple(
                c if n > 1 else 0 for c, n in zip(at[:mesh_ndim], start.shape, strict=True)
            )
            if i >= valid[place]:
                return None
            index.append(int(start[place] + i))
        return error(
            IndexRangeError,
            NAME,
            f"label {_label(label)} at {index} is outside 0..{shards.size['k'] - 1}",
            remedy="Rows to leave out have the label that ignore_index names.",
        )

    return explain


def _flag(launcher: Launcher, shape: tuple[int, ...], shards: Shards) -> Block:
    return launcher.error_flag(_explain_labels(shape, launcher.mesh_ndim, shards))


def _lead_shape(launcher: Launcher, *blocks: Block) -> tuple[int, ...]:
    shapes = [a.shape[: launcher.mesh_ndim] for a in blocks]
    return tuple(np.broadcast_shapes(*shapes))


def whole_kernel(
    launcher: Launcher,
    labels: Block,
    logits: Block,
    /,
    label_smoothing: float = 0.0,
    ignore_index: int | None = None,
    *,
    shards: Shards,
    joined: Block = None,
    out: Block = None,
    alone: bool = False,
    **_: Any,
) -> Any:
    """The kernel of `fused_cross_entropy`; `alone`, of the loss. With `joined`, the cotangent of
    that, it computes the gradient of the logits too, in `out`."""
    shape = (*_lead_shape(launcher, labels, logits), *logits.shape[launcher.mesh_ndim : -1])
    flag = _flag(launcher, shape, shards)
    wide = np.dtype(np.float64 if logits.dtype == np.float64 else np.float32)
    loss = launcher.empty(shape, wide)
    lse = None if alone else launcher.empty(shape, wide)
    rows = len(shape) - launcher.mesh_ndim
    if joined is not None:
        _refuse_broadcast(launcher, logits, labels, joined)
    launcher.run(
        launches.softmax_ce(
            _logits(launcher, logits), _labels(launcher, labels),
            _rows(launcher, loss, rows), None if lse is None else _rows(launcher, lse, rows),
            None if out is None else _logits(launcher, out), flag,
            scale=None if joined is None else _scale(launcher, joined, rows),
            mesh_ndim=launcher.mesh_ndim, smoothing=label_smoothing,
            ignore=_ignored(ignore_index), arch=launcher.runner.arch,
        )
    )  # fmt: skip
    loss = loss.astype(launcher.result_dtype(logits.dtype), copy=False)
    if lse is None:
        return loss
    one = launcher.keep("one", lambda: launcher.xp.ones((*shape, 1), wide))
    return (
        loss,
        lse.reshape(*shape, 1),
        one,
        *([] if out is None else [out]),
    )


def _refuse_broadcast(launcher: Launcher, logits: Block, *others: Block) -> tuple[int, ...]:
    """The sizes of the mesh axes of the logits; KernelError if those of others are larger."""
    over = _lead_shape(launcher, logits, *others)
    if logits.shape[: launcher.mesh_ndim] != over:
        raise launcher.refused(f"logits of {logits.shape} are broadcast to {over}")
    return over


def split_kernel(
    launcher: Launcher,
    labels: Block,
    logits: Block,
    /,
    label_smoothing: float = 0.0,
    ignore_index: int | None = None,
    *,
    shards: Shards,
    **_: Any,
) -> tuple[Block, ...]:
    """The kernel of `cross_entropy_of_split`: the statistics of the classes here."""
    xp = launcher.xp
    data, label_block = _logits(launcher, logits), _labels(launcher, labels)
    over = _lead_shape(launcher, data, label_block)
    shape = (*over, *logits.shape[launcher.mesh_ndim : -1])
    data, label_block = (
        launcher.contiguous(xp.broadcast_to(a, (*over, *a.shape[launcher.mesh_ndim :])))
        for a in (data, label_block)
    )
    flag = _flag(launcher, shape, shards)
    parts = _parts(launcher, data, label_block, flag, _ignored(ignore_index), shards)
    classes = shards.size["k"]
    target = parts[..., 2]
    if label_smoothing:
        mean = parts[..., 3] / classes
        target = (1.0 - label_smoothing) * target + label_smoothing * mean
    mask = None if ignore_index is None else label_block != ignore_index
    outside = (label_block < 0) | (label_block >= classes)
    target = xp.where(outside if mask is None else outside & mask, np.nan, target)
    statistics = [parts[..., 0], parts[..., 1], target.astype(parts.dtype, copy=False)]
    return tuple(
        launcher.contiguous(s).reshape(*shape, 1)
        for s in (statistics if mask is None else [*statistics, mask])
    )


def _parts(
    launcher: Launcher, data: Block, labels: Block, flag: Block, ignore: int, shards: Shards
) -> Block:
    """(mesh axes..., rows, 4): of the classes here the largest logit, the sum of exponentials below
    it, the logit of the label, and the sum of logits. Labels that are no class set the flag."""
    mesh_ndim, rows = launcher.mesh_ndim, labels.shape
    wide = np.dtype(np.float64 if data.dtype == np.float64 else np.float32).name
    parts = launcher.empty((*rows, 4), wide)
    start, count = _classes_here(launcher, rows[:mesh_ndim], shards)
    launcher.run(
        launches.softmax_ce_parts(
            data, labels, parts, start=start, count=count, mesh_ndim=mesh_ndim
        )
    )
    flat = math.prod(rows)
    loss, lse = (launcher.empty((flat,), wide) for _ in range(2))
    launcher.run(  # of the classes here alone, for the sake of the flag
        launches.softmax_ce_merge(
            parts.reshape(1, flat, 4), labels.reshape(flat), loss, lse, flag,
            total=shards.size["k"], ignore=ignore,
        )
    )  # fmt: skip
    return parts


def _classes_here(
    launcher: Launcher, shape: tuple[int, ...], shards: Shards
) -> tuple[Block | None, Block | None]:
    """The first class of every item and how many are no padding, int32; None if all are here."""
    if "k" not in shards.split:
        return None, None
    xp = launcher.xp

    def flat(numbers: Block) -> Block:
        return xp.ascontiguousarray(xp.broadcast_to(numbers, shape).reshape(-1), np.int32)

    start = launcher.keep("start", lambda: flat(shards.start["k"]))
    return start, launcher.keep("count", lambda: flat(shards.valid["k"]))


def gradient_kernel(
    launcher: Launcher,
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
    """g * (softmax of the logits - labels as one-hot rows, smoothed)."""
    mesh_ndim, rows = launcher.mesh_ndim, g.ndim - launcher.mesh_ndim
    over = _refuse_broadcast(launcher, logits, g, labels, largest, total)
    start, count = _classes_here(launcher, over, shards)
    gradient = launcher.empty(logits.shape, launcher.result_dtype(logits.dtype))
    launcher.run(
        launches.softmax_ce_gradient(
            _logits(launcher, logits), _labels(launcher, labels),
            _rows(launcher, largest, rows), _rows(launcher, total, rows),
            _logits(launcher, gradient), scale=_scale(launcher, g, rows),
            total=shards.size["k"], start=start, count=count, mesh_ndim=mesh_ndim,
            smoothing=label_smoothing, ignore=_ignored(ignore_index),
        )
    )  # fmt: skip
    return gradient
