"""Sums of blocks over neighbouring axes, as products with ones; and how many elements count.

For blocks as small as a layer's bias, BLAS adds rows or columns three to six times as fast as a
ufunc's reduction does, whose set-up costs more than its additions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from gdt.engine.plan import Shards

Block = Any

LONGEST = 1024  # numbers that are added: beyond, NumPy's pairwise sums are more exact
SHORT_ROW = 32  # numbers: of longer rows NumPy finds maxima as fast by itself
MOST_PRODUCTS = 32  # of a stack; each costs a call
LARGEST = 1 << 16  # elements: beyond, the additions cost more than the set-up


def add_reduce(xp: Any, x: Block, axes: Any, keepdims: bool = False) -> Block:
    """`x.sum(axis=axes, keepdims=keepdims)`, for a tuple of negative axes."""
    if xp is np:
        product = product_with_ones(x.shape, x.dtype.char, axes, keepdims)
        if product is not None:
            return product(x)
    return x.sum(axis=axes, keepdims=keepdims)


@lru_cache(maxsize=4096)
def product_with_ones(
    shape: tuple[int, ...], char: str, axes: tuple[int, ...], keepdims: bool
) -> Callable[[Block], Block] | None:
    """A function that adds up blocks of this shape and dtype; None if a sum is not of its form, or
    too large."""
    plan = _plan(shape, axes, keepdims) if char in "fd" else None
    if plan is None:
        return None
    outer, lead, rows, columns, out = plan
    row = ones(rows, char)  # (rows,)

    def add_rows(x: Block) -> Block:
        # In any order of memory replicas are equal to the bit.
        x = x if x.flags.c_contiguous else x.copy()
        if lead == 1:
            return row.dot(x.reshape(rows, columns)).reshape(out)  # (columns,) -> out
        if columns == 1:
            sums = x.reshape(outer * lead, rows).dot(row)  # (outer * lead,)
        else:
            sums = np.matmul(row, x.reshape(outer * lead, rows, columns))
            # (outer * lead, columns)
        if outer > 1:
            sums = np.add.reduce(sums.reshape(outer, lead, columns), axis=0)
        return sums.reshape(out)

    return add_rows


def row_maximum(xp: Any, x: Block) -> Block:
    """`x.max(axis=-1, keepdims=True)`. Short rows are transposed: NumPy computes the maxima of
    several columns at once."""
    classes = x.shape[-1]
    if xp is not np or classes > SHORT_ROW or not classes > 1:
        return x.max(axis=-1, keepdims=True)
    if classes == 2:
        return np.maximum(x[..., :1], x[..., 1:])
    columns = x.reshape(-1, classes).T.copy()
    return np.maximum.reduce(columns, axis=0).reshape(*x.shape[:-1], 1)


@lru_cache(maxsize=256)
def ones(count: int, char: str) -> np.ndarray:
    """A vector of ones of the dtype of that character, read-only."""
    vector = np.ones(count, char)
    vector.flags.writeable = False
    return vector


def _plan(
    shape: tuple[int, ...], axes: tuple[int, ...], keepdims: bool
) -> tuple[int, int, int, int, tuple[int, ...]] | None:
    """The sizes of a block whose axes are merged into four, (outer, lead, rows, columns), and the
    shape of the sum over `outer` and `rows`; None if they do not merge so, or are too large."""
    summed_axes = {a + len(shape) for a in axes}
    statistic_shape = tuple([1 if i in summed_axes else n for i, n in enumerate(shape)])
    sizes = grouped(shape, statistic_shape)
    if sizes is None:
        return None
    outer, lead, rows, columns = sizes
    if not 1 < outer * rows <= LONGEST or math.prod(shape) > LARGEST:
        return None
    if lead > MOST_PRODUCTS and columns > 1:
        return None
    out = (
        statistic_shape
        if keepdims
        else tuple([n for i, n in enumerate(shape) if i not in summed_axes])
    )
    return outer, lead, rows, columns, out


def grouped(
    shape: tuple[int, ...], statistic_shape: tuple[int, ...]
) -> tuple[int, int, int, int] | None:
    """The sizes of a block whose axes are merged into four: (outer, lead, rows, columns). An array
    of `statistic_shape` broadcasts to the block along `outer` and `rows`, and has the other two.

    None if the axes do not merge so, or if the block has no elements.
    """
    if len(statistic_shape) > len(shape):
        return None
    groups = [1]
    for n, k in zip(
        shape, (1,) * (len(shape) - len(statistic_shape)) + statistic_shape, strict=True
    ):
        if k not in (1, n) or n == 0:
            return None
        if n != 1:
            # Groups of axes that are added up and that are kept take turns; the first is added up.
            if (k == 1) is not (len(groups) % 2 == 1):
                groups.append(1)
            groups[-1] *= n
    if len(groups) > 4:
        return None
    if len(groups) < 3:  # rows, or rows and columns
        groups = [1, 1, *groups]
    outer, lead, rows, columns = groups + [1] * (4 - len(groups))
    return outer, lead, rows, columns


def valid_elements(
    xp: Any, x: Block, axis: Sequence[int], shards: Shards
) -> tuple[Block | None, Block]:
    """A mask of the elements along `axis` that are no padding, and their counts.

    The mask broadcasts to `x`, and is None if all elements are valid; the counts broadcast to the
    result with kept dims.
    """
    rank = x.ndim - next(iter(shards.valid.values())).ndim
    mask, count = None, None
    for a in axis:
        valid = shards.valid[f"d{a + rank}"]
        valid = valid.reshape(valid.shape + (1,) * rank)
        count = valid if count is None else count * valid
        if f"d{a + rank}" in shards.uneven:
            index = xp.arange(x.shape[a]).reshape(-1, *(1,) * (-a - 1))
            inside = index < valid
            mask = inside if mask is None else mask & inside
    return mask, count
