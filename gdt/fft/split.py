"""Complex transforms along any axes: by all-to-alls to other axes, in four steps, or by a chirp."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.fft.local import SWAPPED, fft_of_whole, resized, twiddled
from gdt.ops.elementwise import astype
from gdt.ops.generation import from_indices
from gdt.ops.indexing import getitem
from gdt.ops.movement import made_whole, relayout, with_axes_moved
from gdt.ops.rearranging import swapaxes
from gdt.ops.shapes import reshape
from gdt.sharding.array_type import ArrayType
from gdt.sharding.dtypes import promoted
from gdt.sharding.layout import Layout

MOST_WASTE = 1.25
"""The most memory that a matrix of rows and columns may take, the padding of its shards included,
relative to the memory of its elements."""

Step = Callable[[Any], Any]
"""A part of a transform, of an array or of several."""


def transformed(
    x: DistributedArray, axes: Sequence[int], inverse: bool, norm: str
) -> DistributedArray:
    """Return the complex transform of `x`, or its inverse, along axes counted from the front."""
    axes_left = list(dict.fromkeys(axes))
    repeats = list(axes)  # of axes that are named more than once
    for axis in axes_left:
        repeats.remove(axis)
    if any(x.layout.dims[d] for d in axes_left):
        x = x.resolve()
    while axes_left:
        whole = [d for d in axes_left if not x.layout.dims[d]]
        if whole:
            x = fft_of_whole(x, axes=tuple(d - x.ndim for d in whole), inverse=inverse, norm=norm)
            axes_left = [d for d in axes_left if d not in whole]
            continue
        resharded = next(
            (y for d in axes_left if (y := made_whole(x, d, axes_left)) is not None), None
        )
        if resharded is not None:
            x = resharded
            continue
        for step in _steps_along_split(x.type, axes_left.pop(), inverse, norm):
            x = step(x)  # which releases the array before it
    return transformed(x, repeats, inverse, norm) if repeats else x


# ---------------------------------------------------------------- a split axis


def _steps_along_split(x: ArrayType, axis: int, inverse: bool, norm: str) -> Sequence[Step]:
    """Return functions that one after the other transform along a split axis, which stays split."""
    n, shards = x.shape[axis], x.layout.num_shards(axis)
    if n < shards * shards:
        return [lambda x: _gathered(x, axis, inverse, norm)]
    rows = rows_of_length(n, shards)
    if rows:
        return _four_steps(x, axis, rows, inverse, norm)
    return [lambda x: _by_chirp(x, axis, inverse, norm)]


def _gathered(x: DistributedArray, axis: int, inverse: bool, norm: str) -> DistributedArray:
    layout = x.layout
    dims = (*layout.dims[:axis], (), *layout.dims[axis + 1 :])
    whole = relayout(x, Layout.of(x.mesh, dims))
    return relayout(_along(whole, axis - x.ndim, inverse, norm), layout)


@lru_cache(maxsize=1 << 10)
def rows_of_length(n: int, shards: int) -> int:
    """Return the number of rows of a matrix that holds `n` elements, and of which rows and columns
    fill the shards with little padding; 0 if `n` has no such divisor.

    Of divisors with equal padding, the largest makes rows and columns about as many."""
    best, rows = (MOST_WASTE, 0), 0
    for divisor in range(shards, math.isqrt(n) + 1):
        if n % divisor == 0:
            lengths = (divisor, n // divisor)
            waste = math.prod(-(-length // shards) * shards / length for length in lengths)
            if (waste, -divisor) <= best:
                best, rows = (waste, -divisor), divisor
    return rows


def _four_steps(x: ArrayType, axis: int, rows: int, inverse: bool, norm: str) -> Sequence[Step]:
    """Return the steps of a transform along an axis of n = rows * columns elements.

    Element k = q + rows * s of the result is, with j = r * columns + c,

        sum over c of exp(-2 pi i c s / columns) exp(-2 pi i c q / n)
            times the sum over r of x[j] exp(-2 pi i r q / rows).
    """
    n, last = x.shape[axis], x.ndim - 1
    columns, shards = n // rows, x.layout.num_shards(axis)
    dims = [*x.layout.dims]
    dims[axis], dims[last] = dims[last], dims[axis]
    layout = Layout.of(x.mesh, tuple(dims))
    return [
        lambda x: swapaxes(x, axis, -1),
        *as_matrix(rows, columns, shards),  # (..., rows, columns), rows split
        lambda x: with_axes_moved(x, last, last + 1),
        lambda x: _along(x, -2, inverse, norm),
        lambda x: twiddled(x, n=n, inverse=inverse),
        lambda x: with_axes_moved(x, last + 1, last),
        lambda x: _along(x, -1, inverse, norm),
        lambda x: with_axes_moved(x, last, last + 1),
        lambda x: swapaxes(x, -1, -2),
        *as_vector(n, layout),
        lambda x: swapaxes(x, axis, -1),
    ]


def as_matrix(rows: int, columns: int, shards: int) -> list[Step]:
    """Return the steps that reshape the last axis to (rows, columns), with the rows split over as
    many shards as that axis. Of a row on the border of two shards, one shard gets the elements of
    the other."""
    height = -(-rows // shards) * shards
    return [
        lambda x: resized(x, -1, height * columns),
        lambda x: reshape(x, (*x.shape[:-1], height, columns)),
        lambda x: resized(x, -2, rows),
    ]


def as_vector(n: int, layout: Layout) -> list[Step]:
    """Return the steps that reshape the last two axes to one and take its first n elements, in a
    layout that splits that axis as it splits the first of the two."""
    shards = layout.num_shards(len(layout.dims) - 1)
    return [
        lambda x: resized(x, -2, -(-x.shape[-2] // shards) * shards),
        lambda x: reshape(x, (*x.shape[:-2], x.shape[-2] * x.shape[-1])),
        lambda x: resized(x, -1, n),
        lambda x: relayout(x, layout),
    ]


def _along(x: DistributedArray, axis: int, inverse: bool, norm: str) -> DistributedArray:
    return fft_of_whole(x, axes=(axis,), inverse=inverse, norm=norm)


# ---------------------------------------------------------------- lengths without two large factors


def _by_chirp(x: DistributedArray, axis: int, inverse: bool, norm: str) -> DistributedArray:
    """Return the transform, computed as a convolution: with w[k] = exp(-pi i k^2 / n), element k of
    the result is w[k] times the sum over j of x[j] w[j] conj(w[k - j])."""
    n, shards = x.shape[axis], x.layout.num_shards(axis)
    length = _length_of_convolution(2 * n - 1, shards)
    back = axis - x.ndim
    dtype = promoted(x.dtype, np.complex64)
    x = astype(x, dtype)
    chirp = _chirp(x.type, axis, n, n, inverse, False)
    spectrum = transformed(resized(x * chirp, back, length), [axis], False, "backward")
    other = _chirp(x.type, axis, n, length, inverse, True)
    spectrum = spectrum * transformed(other, [axis], False, "backward")
    convolved = transformed(spectrum, [axis], True, "backward")
    head = getitem(convolved, (..., slice(n), *[slice(None)] * (-back - 1)))
    scale = {"backward": 1.0, "ortho": 1 / math.sqrt(n), "forward": 1 / n}
    return relayout(head * chirp, x.layout) * scale[SWAPPED[norm] if inverse else norm]


def _chirp(
    array_type: ArrayType, axis: int, n: int, length: int, inverse: bool, filters: bool
) -> DistributedArray:
    """Return w[k] along `axis`, an axis of `length` elements, for k from 0 to n; then zeros.

    filters: whether to return conj(w[k]) in its place, for k from -n to n: negative k at the end.
    """
    shape = tuple(length if d == axis else 1 for d in range(array_type.ndim))
    dims = tuple(axes if d == axis else () for d, axes in enumerate(array_type.layout.dims))
    sign = 1j if inverse != filters else -1j

    def values(xp: Any, *indices: Any) -> Any:
        k = indices[axis]
        if filters:
            k = xp.minimum(k, length - k)
        wave = xp.exp(sign * np.pi / n * (k * k % (2 * n)))
        return xp.where(k < n, wave, 0)

    layout = Layout.of(array_type.mesh, dims)
    return from_indices(ArrayType.of(shape, array_type.dtype, layout), values)


@lru_cache(maxsize=1 << 10)
def _length_of_convolution(least: int, shards: int) -> int:
    """Return the smallest length, not below `least`, that is the square of `shards` times powers of
    2, 3 and 5: a matrix of so many elements has rows and columns that fill the shards."""
    count = -(-least // shards**2)
    powers = range(count.bit_length() + 1)
    smooth = [2**a * 3**b * 5**c for a in powers for b in range(3) for c in range(2)]
    best: int = min(m for m in smooth if m >= count)
    return best * shards**2
