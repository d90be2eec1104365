"""Transforms of real numbers along a split axis of odd length, in four steps of real numbers.

With n = rows * columns, the first of the four steps (`gdt.fft`) transforms columns of real numbers:
rows 0 to rows // 2 of its result are enough, since the others are their conjugates, backwards. The
steps that follow take half the bytes and half the memory of a complex transform, and the half of
the result that is asked for is put together from the rows at hand and from their conjugates.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.engine.op import op
from gdt.fft.local import fft_of_whole, irfft_of_whole, rfft_of_whole, twiddled
from gdt.fft.matrices import as_matrix, as_vector, rows_of_length
from gdt.ops.elementwise import astype, conj
from gdt.ops.indexing import getitem
from gdt.ops.joining import concat
from gdt.ops.movement import with_axes_moved
from gdt.ops.rearranging import swapaxes
from gdt.sharding.array_type import ArrayType
from gdt.sharding.dtypes import promoted

Block = Any


def has_rows(array_type: ArrayType, axis: int, n: int) -> bool:
    """Whether n real numbers along a split axis are an odd number of rows and columns that fill the
    shards."""
    return is_odd(array_type, axis, n) and rows_of_length(n, array_type.layout.num_shards(axis)) > 0


def is_odd(array_type: ArrayType, axis: int, n: int) -> bool:
    """Whether n real numbers along a split axis are an odd number, enough for a split transform."""
    return n % 2 == 1 and n >= array_type.layout.num_shards(axis) ** 2


def rfft_of_rows(x: DistributedArray, axis: int, norm: str) -> DistributedArray:
    """The elements 0 to n // 2 of the transform along a split axis of odd length n."""
    x = swapaxes(astype(x.resolve(), promoted(x.dtype, np.float32)), axis, -1)
    layout, last, n = x.layout, x.ndim - 1, x.shape[-1]
    shards = layout.num_shards(last)
    rows = rows_of_length(n, shards)
    columns = n // rows
    steps = [
        *as_matrix(rows, columns, shards),  # (..., rows, columns), rows split
        lambda x: with_axes_moved(x, last, last + 1),
        lambda x: rfft_of_whole(x, axis=-2, norm=norm),  # (..., rows // 2 + 1, columns)
        lambda x: twiddled(x, n=n),
        lambda x: with_axes_moved(x, last + 1, last),
        lambda x: fft_of_whole(x, axes=(-1,), norm=norm),  # (q, s): number q + rows * s of all
        lambda x: _halves_of_rows(x, last),
        lambda halves: _rows_and_conjugates(*halves),  # (..., rows, columns // 2 + 1)
        lambda x: swapaxes(x, -1, -2),
        *as_vector(n // 2 + 1, layout),
    ]
    for step in steps:
        x = step(x)  # which releases the array before it
    return swapaxes(x, axis, -1)


def _halves_of_rows(x: DistributedArray, axis: int) -> tuple[DistributedArray, DistributedArray]:
    """Return the first half of the last axis, and the other one backwards, both with the element in
    the middle, and split along that axis, which `axis` was before."""
    half = x.shape[-1] // 2 + 1
    first, others = getitem(x, (..., slice(half))), getitem(x, (..., slice(None, -half - 1, -1)))
    return with_axes_moved(first, axis, axis + 1), with_axes_moved(others, axis, axis + 1)


def _rows_and_conjugates(x: DistributedArray, backwards: DistributedArray) -> DistributedArray:
    """Put below rows 0 to m the conjugates of rows m to 1 of columns that come backwards.

    Of number q + rows * s, with rows = 2 * m + 1 and q beyond m, the conjugate is number
    (rows - q) + rows * (columns - 1 - s).
    """
    return concat([x, getitem(mirrored(backwards), (..., slice(-1), slice(None)))], -2)


def irfft_of_rows(
    x: DistributedArray, axis: int, n: int, norm: str, conjugated: bool
) -> DistributedArray:
    """The n real numbers, n odd, whose transform begins with the n // 2 + 1 elements of a split
    axis, or their conjugates."""
    x = swapaxes(conj(x) if conjugated else x.resolve(), axis, -1)
    layout, last = x.layout, x.ndim - 1
    shards = layout.num_shards(last)
    rows = rows_of_length(n, shards)
    columns = n // rows
    steps = [
        *as_matrix(columns // 2 + 1, rows, shards),  # (s, q): number q + rows * s of all
        lambda x: _halves_of_columns(x, last),
        lambda halves: concat(
            [halves[0], mirrored(halves[1])], -2
        ),  # (..., columns, rows // 2 + 1)
        lambda x: fft_of_whole(x, axes=(-2,), inverse=True, norm=norm),
        lambda x: twiddled(x, n=n, inverse=True),
        lambda x: with_axes_moved(x, last + 1, last),
        lambda x: irfft_of_whole(x, axis=-1, n=rows, norm=norm),  # (..., columns, rows)
        lambda x: with_axes_moved(x, last, last + 1),
        lambda x: swapaxes(x, -1, -2),
        *as_vector(n, layout),
    ]
    for step in steps:
        x = step(x)  # which releases the array before it
    return swapaxes(x, axis, -1)


def _halves_of_columns(x: DistributedArray, axis: int) -> tuple[DistributedArray, DistributedArray]:
    """Return columns 0 to m of x, whose columns are 2 * m + 1, and those whose conjugates continue
    them, both split by columns: of numbers n - (q + rows * s), backwards by rows."""
    half = x.shape[-1] // 2 + 1
    zeroth = getitem(x, (..., slice(1, None), slice(1)))
    others = getitem(x, (..., slice(-1), slice(None, half - 1, -1)))
    backwards = with_axes_moved(concat([zeroth, others], -1), axis, axis + 1)
    return with_axes_moved(getitem(x, (..., slice(half))), axis, axis + 1), backwards


@op("... i j -> ... i j", whole="i", linear="x")
def mirrored(xp: Any, x: Block, /) -> Block:
    """The conjugates of matrices (..., i, j), the last row first.

    >>> gdt.fft.odd.mirrored(gdt.asarray([[1 + 2j], [3j]])).tolist()
    [[-3j], [(1-2j)]]
    """
    return xp.conj(x[..., ::-1, :])


mirrored.vjp(lambda g, out, x: mirrored(g))
