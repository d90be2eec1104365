"""Complex transforms along any axes: by all-to-alls to other axes, or in four steps."""

from __future__ import annotations

from collections.abc import Sequence

from gdt.array.array import DistributedArray
from gdt.fft.local import fft_of_whole, twiddled
from gdt.fft.matrices import Step, as_matrix, as_vector, rows_of_length
from gdt.ops.movement import made_whole, relayout, with_axes_moved
from gdt.ops.rearranging import swapaxes
from gdt.sharding.array_type import ArrayType
from gdt.sharding.layout import Layout


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
    rows = rows_of_length(x.shape[axis], x.layout.num_shards(axis))
    if rows:
        return _four_steps(x, axis, rows, inverse, norm)
    return [
        lambda x: gathered(x, axis),
        lambda y: _along(y, axis - y.ndim, inverse, norm),
        lambda y: relayout(y, x.layout),
    ]


def gathered(x: DistributedArray, axis: int) -> DistributedArray:
    """Return `x` with an axis that is not split: every device holds it whole."""
    dims = (*x.layout.dims[:axis], (), *x.layout.dims[axis + 1 :])
    return relayout(x, Layout.of(x.mesh, dims))


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


def _along(x: DistributedArray, axis: int, inverse: bool, norm: str) -> DistributedArray:
    return fft_of_whole(x, axes=(axis,), inverse=inverse, norm=norm)
