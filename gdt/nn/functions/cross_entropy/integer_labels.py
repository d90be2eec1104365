"""Integer labels of rows of classes: checked, and looked up in rows that may be split."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from gdt.engine.plan import Shards
from gdt.errors import IndexRangeError, error
from gdt.sharding.array_type import ArrayType

Block = Any

LARGEST_CACHED = 1 << 16  # elements of a block whose row starts are cached
UNSIGNED = {n: np.dtype(f"u{n}") for n in (1, 2, 4, 8)}  # dtypes by their bytes
NAME = "sparse_softmax_cross_entropy_with_logits"


def rows_of(logits: ArrayType) -> str:
    """The dims of a rule that stand for the rows of logits: all but the classes."""
    return " ".join(f"r{i}" for i in range(logits.ndim - 1))


class Targets(NamedTuple):
    """Labels that are all a class, with two masks of their shape.

    counted: the rows that are not ignored; None if no row is. outside: the rows whose label was no
    class, and is 0 now; None if there is none.
    """

    labels: Block
    counted: Block | None
    outside: Block | None


def checked_targets(
    xp: Any, labels: Block, classes: int, shards: Shards, ignore_index: int | None
) -> Targets:
    """Check that labels are classes.

    Raises IndexRangeError on the host. On a GPU, where finding out would wait for the device, the
    loss of such a row is NaN and its gradient 0, as in the kernels.
    """
    counted = None
    if ignore_index is not None:
        counted = labels != ignore_index
        labels = labels * counted
    # Of unsigned numbers a negative label is a huge one.
    unsigned = labels.view(UNSIGNED[labels.dtype.itemsize])
    if xp is np and (not labels.size or np.maximum.reduce(unsigned, axis=None) < classes):
        return Targets(labels, counted, None)
    outside = unsigned >= classes
    labels_inside = xp.where(outside, 0, labels)
    if xp is not np:
        return Targets(labels_inside, counted, outside)
    _raise_outside(labels, outside & _valid_rows(xp, labels, shards), classes)
    return Targets(labels_inside, counted, None)  # they were padding


def _valid_rows(xp: Any, labels: Block, shards: Shards) -> Block:
    """A mask of the rows of a block that are no padding, in the shape of the labels."""
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
    flat = rows.reshape(-1)  # (rows * classes,)
    return flat.take(positions(xp, labels, flat.size, classes)).reshape(labels.shape)


def positions(xp: Any, labels: Block, size: int, classes: int) -> Block:
    """Positions of `rows[..., labels]` in rows of classes that are flattened to `size` elements:
    (rows,)."""
    # Classes are few enough for int64, and uint64 + int64 would be float64.
    index = labels.reshape(-1).astype(np.int64, copy=False)  # (rows,)
    return index + _row_starts(xp, size, classes)


def _row_starts(xp: Any, size: int, classes: int) -> Block:
    """The position at which each row begins in a block of `size` elements; cached for small blocks
    on the host."""
    if xp is np and size <= LARGEST_CACHED:
        return _host_row_starts(size, max(classes, 1))
    return xp.arange(0, size, max(classes, 1))


@lru_cache(maxsize=64)
def _host_row_starts(size: int, classes: int) -> np.ndarray:
    return np.arange(0, size, classes)


def beside(numbers: Block, ndim: int) -> Block:
    """One number per coordinate, in a shape that broadcasts to blocks of `ndim` axes."""
    return numbers.reshape(numbers.shape + (1,) * (ndim - numbers.ndim))


def local_labels(xp: Any, labels: Block, shards: Shards) -> tuple[Block, Block]:
    """Labels as positions in this shard of the classes (0 for those outside it), and a mask of
    those in it."""
    start = beside(shards.start["k"], labels.ndim)
    local = labels.astype(np.int64) - start
    here = (local >= 0) & (local < beside(shards.valid["k"], labels.ndim))
    return xp.where(here, local, 0), here
