"""Sums of blocks over leading or trailing axes, as products with ones.

For blocks as small as a layer's bias, BLAS adds rows or columns three to six times as fast as a
ufunc's reduction does, whose set-up costs more than its additions.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

Block = Any

LONGEST = 1024  # numbers that are added: beyond, NumPy's pairwise sums are more exact
SHORT_ROW = 32  # numbers: of longer rows NumPy finds maxima as fast by itself
LARGEST = 1 << 16  # elements: beyond, the additions cost more than the set-up


def add_reduce(xp: Any, x: Block, axes: tuple[int, ...], keepdims: bool = False) -> Block:
    """`x.sum(axis=axes, keepdims=keepdims)`; axes are negative."""
    if xp is np and x.dtype.char in "fd":
        plan = _plan(x.shape, axes, keepdims)
        if plan is not None and x.flags.c_contiguous:
            rows, columns, shape = plan
            if rows:
                return ones(rows, x.dtype.char).dot(x.reshape(rows, -1)).reshape(shape)
            return x.reshape(-1, columns).dot(ones(columns, x.dtype.char)).reshape(shape)
    return x.sum(axis=axes, keepdims=keepdims)


def row_maximum(xp: Any, x: Block) -> Block:
    """`x.max(axis=-1, keepdims=True)`; of short rows as maxima of columns, which
    NumPy computes several at once."""
    classes = x.shape[-1]
    if xp is not np or classes > SHORT_ROW or not classes > 1:
        return x.max(axis=-1, keepdims=True)
    if classes == 2:
        return np.maximum(x[..., :1], x[..., 1:])
    columns = x.reshape(-1, classes).T.copy()
    return np.maximum.reduce(columns, axis=0).reshape(*x.shape[:-1], 1)


@lru_cache(maxsize=256)
def ones(count: int, kind: str) -> np.ndarray:
    """A vector of ones, read-only."""
    vector = np.ones(count, kind)
    vector.flags.writeable = False
    return vector


@lru_cache(maxsize=4096)
def _plan(
    shape: tuple[int, ...], axes: tuple[int, ...], keepdims: bool
) -> tuple[int, int, tuple[int, ...]] | None:
    """How many rows or columns (the other is 0) are added up, and the result's shape; None if the
    axes are not all leading or all trailing ones, or too long."""
    rank = len(shape)
    gone = {a + rank for a in axes if shape[a] != 1}
    count, size = math.prod(shape[a] for a in axes), math.prod(shape)
    if not 1 < count <= LONGEST or size > LARGEST:
        return None
    long = [i for i, n in enumerate(shape) if n != 1]
    out = [1 if i - rank in axes else n for i, n in enumerate(shape)]
    if not keepdims:
        out = [n for i, n in enumerate(out) if i - rank not in axes]
    if gone == {*long[: len(gone)]}:
        return count, 0, tuple(out)
    if gone == {*long[-len(gone) :]}:
        return 0, count, tuple(out)
    return None
