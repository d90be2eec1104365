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
from gdt.fusion.reducing import reduced

Block = Any

LONGEST = 1024  # numbers that are added: beyond, NumPy's pairwise sums are more exact
SHORT_ROW = 32  # numbers: of longer rows NumPy finds maxima as fast by itself
FEW = 8  # numbers: of fewer in a row NumPy's sum is that of the columns, one after the other
WIDE_ROW = 256  # numbers: longer rows NumPy adds as fast by itself
GROUP, RUN = 512, 256  # numbers of a group of rows, and groups that are added one after the other
MOST_PRODUCTS = 32  # of a stack; each costs a call
LARGEST = 1 << 16  # elements: beyond, the additions cost more than the set-up


def add_reduce(xp: Any, x: Block, axes: Any, keepdims: bool = False) -> Block:
    """`x.sum(axis=axes, keepdims=keepdims)`, for a tuple of negative axes."""
    if xp is np:
        product = product_with_ones(x.shape, x.dtype.char, axes, keepdims)
        if product is not None:
            return product(x)
        total = reduced("sum", x, axes, keepdims)
        if total is not None:
            return total
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


def add_up(xp: Any, x: Block, axes: Any, keepdims: bool, dtype: Any) -> Block:
    """`x.sum(axis=axes, keepdims=keepdims, dtype=dtype)`, for short rows in another way: NumPy adds
    one row after the other to the sum, with as many rounding errors as there are rows, and takes as
    long for a row of two numbers as for one of twenty."""
    # NumPy's dtype of float64 equals None, so that `in (None, ...)` would hold for it.
    is_own = dtype is None or dtype == x.dtype
    if xp is np and x.dtype.char in "fd" and is_own:
        total = reduced("sum", x, axes, keepdims)
        if total is not None:
            return total
        short = _short_rows(x, axes) if x.size > LARGEST else None
        if short is not None:
            rows, statistic_shape = short
            sums = _sum_of_rows(rows) if len(rows) > LONGEST else fold_columns(np.add, rows.T)
            return _of_shape(sums, x, axes, statistic_shape, keepdims)
    return x.sum(axis=axes, keepdims=keepdims, dtype=dtype)


def extreme(xp: Any, x: Block, axes: Any, keepdims: bool, name: str) -> Block:
    """`x.max(axis=axes, keepdims=keepdims)`, or the minimum, in columns where rows are short."""
    if xp is np:
        found = reduced(name, x, axes, keepdims)
        if found is not None:
            return found
    if xp is np and x.size > LARGEST and x.dtype.kind in "fiu":
        short = _short_rows(x, axes)
        if short is not None and len(short[0]) <= LONGEST:
            largest = fold_columns(np.maximum if name == "max" else np.minimum, short[0].T)
            return _of_shape(largest, x, axes, short[1], keepdims)
    return getattr(x, name)(axis=axes, keepdims=keepdims)


def fold_columns(ufunc: np.ufunc, x: Block) -> Block:
    """The columns of a matrix joined by a ufunc, in their order."""
    result = ufunc(x[:, 0], x[:, 1])
    for n in range(2, x.shape[1]):
        ufunc(result, x[:, n], out=result)
    return result


def _short_rows(x: Block, axes: Any) -> tuple[Block, tuple[int, ...]] | None:
    """A block whose sum over `axes` is that of the rows of a matrix, the matrix, and the shape of
    the sum with kept dims; the matrix has many short rows, or a few rows of which each is a column
    in memory. None for other blocks."""
    axes = tuple(range(-x.ndim, 0)) if axes is None else axes
    shape = tuple([1 if i - x.ndim in axes else n for i, n in enumerate(x.shape)])
    outer, lead, rows, columns = grouped(x.shape, shape) or (0, 0, 0, 0)
    if outer != 1 or not x.flags.c_contiguous:
        return None
    if lead == 1 and 1 < columns <= WIDE_ROW and rows > LONGEST:
        return x.reshape(rows, columns), shape
    if columns == 1 and 1 < rows < FEW and lead > 1:
        return x.reshape(lead, rows).T, shape
    return None


def _of_shape(
    result: Block, x: Block, axes: Any, statistic_shape: tuple[int, ...], keepdims: bool
) -> Block:
    axes = tuple(range(-x.ndim, 0)) if axes is None else axes
    result = result.reshape(statistic_shape)
    return result if keepdims else result.squeeze(axes)


def _sum_of_rows(x: Block) -> Block:
    """The sum of the rows of a matrix: groups of them are longer rows, of which runs are added up
    that stay in the cache."""
    rows, columns = x.shape
    count = GROUP // columns
    whole = rows // count * count
    longer = x[:whole].reshape(-1, count * columns)
    runs = [np.add.reduce(longer[i : i + RUN], axis=0) for i in range(0, len(longer), RUN)]
    sums = np.add.reduce(np.stack(runs), axis=0).reshape(count, columns)
    return np.add.reduce(np.concatenate([sums, x[whole:]]), axis=0)


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
