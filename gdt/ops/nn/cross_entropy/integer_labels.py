"""Integer labels of rows of classes: checked, and looked up in rows that may be split."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from gdt.engine.plan import Shards
from gdt.errors import IndexRangeError, error

Block = Any

LARGEST_KEPT = 1 << 16  # elements of a block whose row starts are kept
UNSIGNED = {n: np.dtype(f"u{n}") for n in (1, 2, 4, 8)}  # dtypes by their bytes
NAME = "sparse_softmax_cross_entropy_with_logits"


class Targets(NamedTuple):
    """Labels that all point at a class; which of them are not to be ignored, and which were no
    class (None: all, and none)."""

    labels: Block
    kept: Block | None
    outside: Block | None


def checked_targets(
    xp: Any, labels: Block, classes: int, shards: Shards, ignore_index: int | None
) -> Targets:
    """Labels, checked. On the host one that is no class is an IndexRangeError; on a GPU, where
    finding out would wait for the device, its loss is NaN and its gradient 0, as in the kernels."""
    kept = None
    if ignore_index is not None:
        kept = labels != ignore_index
        labels = labels * kept
    # Of unsigned numbers a negative label is a huge one.
    unsigned = labels.view(UNSIGNED[labels.dtype.itemsize])
    if xp is np and (not labels.size or np.maximum.reduce(unsigned, axis=None) < classes):
        return Targets(labels, kept, None)
    outside = unsigned >= classes
    labels_inside = xp.where(outside, 0, labels)
    if xp is not np:
        return Targets(labels_inside, kept, outside)
    _raise_outside(labels, outside & _valid_rows(xp, labels, shards), classes)
    return Targets(labels_inside, kept, None)  # they were padding


def _valid_rows(xp: Any, labels: Block, shards: Shards) -> Block:
    """Which rows of a block are no padding."""
    mesh_ndim = shards.valid["k"].ndim
    rank, valid = labels.ndim - mesh_ndim, xp.ones(labels.shape, bool)
    for d in range(rank):
        count = shards.valid[f"r{d}"]
        index = xp.arange(labels.shape[mesh_ndim + d]).reshape(-1, *(1,) * (rank - 1 - d))
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


def picked(xp: Any, rows: Block, labels: Block) -> Block:
    """rows[..., labels]: one element of every row."""
    classes = rows.shape[-1]
    flat = rows.reshape(-1)
    return flat.take(positions(xp, labels, flat.size, classes)).reshape(labels.shape)


def positions(xp: Any, labels: Block, size: int, classes: int) -> Block:
    """Where the element of each label is among the `size` elements of rows of classes, as a
    vector. Labels are classes, so int64 holds them, which uint64 and int64 together are not."""
    index = labels.reshape(-1).astype(np.int64, copy=False)
    return index + _row_starts(xp, size, classes)


def _row_starts(xp: Any, size: int, classes: int) -> Block:
    """Where each row begins in the `size` elements of a block; of small blocks kept from call to
    call."""
    if xp is np and size <= LARGEST_KEPT:
        return _host_row_starts(size, max(classes, 1))
    return xp.arange(0, size, max(classes, 1))


@lru_cache(maxsize=64)
def _host_row_starts(size: int, classes: int) -> np.ndarray:
    return np.arange(0, size, classes)


def beside(numbers: Block, ndim: int) -> Block:
    """Numbers per coordinate, shaped to broadcast to blocks of `ndim` axes."""
    return numbers.reshape(numbers.shape + (1,) * (ndim - numbers.ndim))


def local_labels(xp: Any, labels: Block, shards: Shards) -> tuple[Block, Block]:
    """Labels as positions in this shard of the classes, and whether they are in it."""
    start = beside(shards.start["k"], labels.ndim)
    local = labels.astype(np.int64) - start
    here = (local >= 0) & (local < beside(shards.valid["k"], labels.ndim))
    return xp.where(here, local, 0), here
