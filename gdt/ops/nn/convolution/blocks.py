"""Convolution of blocks: windows by strided views, one matrix product for some images at a time.

An image is (..., H1, H2, ..., channels) with any number of spatial axes, a kernel (taps of each
axis..., channels of a group, results). Leading axes of images and kernels broadcast.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from gdt.ops.elementwise import widened_half
from gdt.sharding.dtypes import widened

Block = Any

# Bytes of columns at a time. Measured on a host with 1 MiB of cache a core: pooling takes 1.3
# times as long with a quarter of it, convolution 1.5 times with 16 MiB. A GPU needs large products.
HOST_COLUMNS, GPU_COLUMNS = 1 << 20, 1 << 28

# Multiplications and rows of a product on the host: with AVX-512 OpenBLAS does not copy matrices of
# up to 100 ** 3 multiplications first. Measured for 3 x 3 taps of 16 channels and 16 results: 0.7
# of the time. With its kernels for AVX2 (Haswell) they mostly take the same time, and up to 1.2
# times as long: 196 x 144 x 16, 49 x 288 x 32. Products of fewer rows do not pay.
SMALL_PRODUCT, FEWEST_ROWS = 100**3, 32

# Elements that are copied at once, below which columns are copied tap by tap. Measured on the host
# for images of 28 x 28 and 3 x 3 taps: 0.2 of the time for 1 channel, 0.6 for 2, 1.0 for 3.
SHORT_RUN = 8


class Steps(NamedTuple):
    """The windows of a convolution: what they have along every spatial axis.

    padding: the numbers of zeros before and after every axis; none if empty. Of axes that are split
    the zeros are part of the tiles.
    """

    taps: tuple[int, ...]
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1
    padding: tuple[tuple[int, int], ...] = ()


def lengths(numbers: Sequence[int], how: Steps) -> tuple[int, ...]:
    """Return the lengths of axes, without padding, that windows of these numbers cover."""
    padding = how.padding or ((0, 0),) * len(numbers)
    parts = zip(numbers, how.taps, how.strides, how.dilation, padding, strict=True)
    return tuple((n - 1) * s + (k - 1) * d + 1 - sum(pad) for n, k, s, d, pad in parts)


def padded(xp: Any, x: Block, padding: Sequence[tuple[int, int]]) -> Block:
    """Return images with zeros before and after every spatial axis; numbers below 0 cut elements
    off."""
    if not any(map(any, padding)):
        return x
    shape, outer, inner = _padded_places(x.shape, padding)
    out = xp.zeros(shape, x.dtype)
    out[outer] = x[inner]
    return out


def _padded_places(
    shape: Sequence[int], padding: Sequence[tuple[int, int]]
) -> tuple[list[int], tuple[Any, ...], tuple[Any, ...]]:
    """Return the shape of padded images, and where the elements that stay are in them and were."""
    lead, inner, outer = len(shape) - len(padding) - 1, [], []
    sizes = [*shape]
    for axis, (before, after) in enumerate(padding, lead):
        inner.append(slice(max(-before, 0), shape[axis] - max(-after, 0)))
        sizes[axis] += before + after
        outer.append(slice(max(before, 0), sizes[axis] - max(after, 0)))
    return sizes, (..., *outer, slice(None)), (..., *inner, slice(None))


def windows(xp: Any, x: Block, numbers: Sequence[int], how: Steps) -> Block:
    """Return a view of images as (..., results..., taps..., channels)."""
    rank = len(numbers)
    lead = x.ndim - rank - 1
    steps = x.strides[lead:-1]
    moves = [step * s for step, s in zip(steps, how.strides, strict=True)]
    taps = [step * d for step, d in zip(steps, how.dilation, strict=True)]
    shape = (*x.shape[:lead], *numbers, *how.taps, x.shape[-1])
    strides = (*x.strides[:lead], *moves, *taps, x.strides[-1])
    return xp.lib.stride_tricks.as_strided(x, shape, strides)


def of_taps(
    x: Block, numbers: Sequence[int], how: Steps
) -> Iterator[tuple[tuple[int, ...], Block]]:
    """Yield every tap with a view of its elements of images, (..., results..., channels)."""
    for tap in itertools.product(*map(range, how.taps)):
        parts = zip(tap, numbers, how.strides, how.dilation, strict=True)
        places = tuple(slice(t * d, t * d + (n - 1) * s + 1, s) for t, n, s, d in parts)
        yield tap, x[(..., *places, slice(None))]


def parts_of(xp: Any, lead: Sequence[int], nbytes: int) -> Iterator[tuple[slice, ...]]:
    """Yield indices that cut leading axes into parts of images.

    nbytes: what an image takes while it is computed.
    """
    if not math.prod(lead):
        return
    images = max((HOST_COLUMNS if xp is np else GPU_COLUMNS) // max(nbytes, 1), 1)
    chunks = list(lead)
    while math.prod(chunks) > images:
        longest = max(range(len(chunks)), key=chunks.__getitem__)
        others = math.prod(chunks) // chunks[longest]
        chunks[longest] = max(images // others, 1)
        if chunks[longest] == 1 and others <= images:
            break
    starts = [range(0, n, c) for n, c in zip(lead, chunks, strict=True)]
    for at in itertools.product(*starts):
        yield tuple(slice(a, a + c) for a, c in zip(at, chunks, strict=True))


def coordinates(mesh_shape: Sequence[int], *blocks: Block) -> Iterator[tuple[Any, ...]]:
    """Yield every coordinate of mesh axes, as an index, with the parts of blocks that meet there:
    a block of length 1 along a mesh axis meets all coordinates."""
    for at in np.ndindex(*mesh_shape):
        whole = [tuple(slice(i, i + 1) for i in at)]
        for block in blocks:
            sizes = block.shape[: len(mesh_shape)]
            whole.append(
                tuple(
                    slice(i, i + 1) if n > 1 else slice(0, 1)
                    for i, n in zip(at, sizes, strict=True)
                )
            )
        index, *cuts = whole
        yield index, *[block[cut] for block, cut in zip(blocks, cuts, strict=True)]


def columns_of(
    xp: Any, x: Block, numbers: Sequence[int], how: Steps
) -> Iterator[tuple[tuple[slice, ...], Block]]:
    """Yield parts of images, as indices, with their windows as rows of a matrix: (groups, rows,
    taps * channels of a group), in memory that those of the next part overwrite.

    For few channels the matrix lies in memory column by column: a line of results is copied at
    once, and not a line of taps, which would be short.
    """
    rank, channels, dtype = len(numbers), x.shape[-1], widened(x.dtype)
    depth = math.prod(how.taps) * channels
    run = channels * (how.taps[-1] if how.dilation[-1] == 1 else 1)
    by_column = xp is np and run < SHORT_RUN
    nbytes, shape = math.prod(numbers) * depth * dtype.itemsize, None
    is_pixel = {*how.taps, *how.strides, how.groups} == {1} and not any(map(any, how.padding))
    for part in parts_of(xp, x.shape[: -rank - 1], nbytes):
        images = x[part]
        if is_pixel:
            yield part, grouped_rows(widened_half(images), 1)
            continue
        if images.shape != shape:
            shape = images.shape
            sizes, outer, inner = _padded_places(shape, how.padding)
            room = xp.zeros(sizes, dtype)
            views = windows(xp, room, numbers, how)
            views = views.reshape(*views.shape[:-1], how.groups, channels // how.groups)
            *own, group, last = range(views.ndim)
            order = (*own[-rank:], last, *own[:-rank]) if by_column else (*own, last)
            views = views.transpose(group, *order)
            columns = xp.empty(views.shape, dtype)
            rows = (how.groups, math.prod(images.shape[: -rank - 1]) * math.prod(numbers))
            if by_column:
                matrix = columns.reshape(how.groups, depth // how.groups, rows[1]).swapaxes(1, 2)
            else:
                matrix = columns.reshape(*rows, depth // how.groups)
                columns, views = _in_runs(xp, columns, views, room, how)
        room[outer] = images[inner]
        xp.copyto(columns, views)
        yield part, matrix


def _in_runs(xp: Any, columns: Block, views: Block, room: Block, how: Steps) -> tuple[Block, Block]:
    """Return columns, and views of `room`, with those that lie side by side in both as one element.
    Measured for 3 x 3 taps of 16 channels: a copy takes two thirds of the time."""
    axes = 2 if how.groups == how.dilation[-1] == 1 else 1
    shape, nbytes = views.shape[:-axes], math.prod(views.shape[-axes:]) * views.itemsize
    if xp is not np or not columns.size:
        return columns, views
    run = np.dtype((np.void, nbytes))
    views = np.ndarray(shape, run, room, strides=views.strides[:-axes])
    return columns.reshape(*shape, -1).view(run)[..., 0], views


def grouped_rows(y: Block, groups: int) -> Block:
    """Return results (..., channels) as (groups, rows, channels of a group)."""
    rows = math.prod(y.shape[:-1])
    return y.reshape(rows, groups, y.shape[-1] // groups).transpose(1, 0, 2)


def grouped_kernel(xp: Any, kernel: Block, groups: int) -> Block:
    """Return a kernel as (groups, taps * channels of a group, results of a group), contiguous:
    products of replicas are bitwise equal whatever strides their kernels have."""
    results = kernel.shape[-1]
    grouped = widened_half(kernel).reshape(math.prod(kernel.shape[:-1]), groups, results // groups)
    return xp.ascontiguousarray(grouped.transpose(1, 0, 2))


def split_rows(xp: Any, rows: int, depth: int, results: int) -> list[tuple[slice, int]]:
    """Return parts of the rows of a product with a matrix of (depth, results), and the number of
    rows of every small product that computes a part."""
    step = SMALL_PRODUCT // max(depth * results, 1)
    if xp is not np or rows <= step or step < FEWEST_ROWS:
        return [(slice(0, rows), max(rows, 1))]
    whole = rows - rows % step
    parts = [(slice(0, whole), step), (slice(whole, rows), rows - whole)]
    return parts if whole < rows else parts[:1]


def _cut(x: Block, rows: slice, step: int) -> Block:
    """Return rows of x (groups, rows, columns) as (groups, products, step, columns)."""
    groups, _, columns = x.shape
    return x[:, rows].reshape(groups, (rows.stop - rows.start) // step, step, columns)


def _multiply(xp: Any, columns: Block, matrix: Block, out: Block) -> None:
    """Write the product of columns (groups, rows, depth) and a kernel (groups, depth, results) to
    `out`, (groups, rows, results)."""
    for rows, step in split_rows(xp, out.shape[1], *matrix.shape[1:]):
        products = _cut(out, rows, step)
        xp.matmul(_cut(columns, rows, step), matrix[:, None], out=products)


def convolve(xp: Any, x: Block, kernel: Block, out: Block, how: Steps) -> None:
    """Write the convolution of images with one kernel into `out`, (..., results..., channels)."""
    rank = len(how.taps)
    numbers = out.shape[-rank - 1 : -1]
    if kernel.shape[-2] == 1 and how.groups > 1:
        return _convolve_channels(xp, x, kernel, out, how)
    matrix = grouped_kernel(xp, kernel, how.groups)
    for part, columns in columns_of(xp, x, numbers, how):
        y = out[part]
        if how.groups == 1 and y.flags.c_contiguous and y.dtype == columns.dtype:
            _multiply(xp, columns, matrix, grouped_rows(y, 1))
        else:
            y[...] = xp.matmul(columns, matrix).transpose(1, 0, 2).reshape(y.shape)


def _convolve_channels(xp: Any, x: Block, kernel: Block, out: Block, how: Steps) -> None:
    """Convolve every channel by itself: a multiplication and an addition for each tap."""
    rank = len(how.taps)
    numbers, multiple = out.shape[-rank - 1 : -1], out.shape[-1] // how.groups
    nbytes = 2 * math.prod(out.shape[-rank - 1 :]) * out.itemsize
    for part in parts_of(xp, out.shape[: -rank - 1], nbytes):
        y = out[part]
        y[...] = 0
        for tap, values in of_taps(padded(xp, x[part], how.padding), numbers, how):
            if multiple == 1:
                y += values * kernel[tap][0]
            else:
                products = values[..., None] * kernel[tap].reshape(how.groups, multiple)
                y += products.reshape(y.shape)


def input_gradient(xp: Any, g: Block, kernel: Block, out: Block, how: Steps) -> None:
    """Write the gradient in images to `out`, whose windows have the results that `g` belongs to."""
    rank, channels = len(how.taps), out.shape[-1]
    numbers, lead = g.shape[-rank - 1 : -1], g.shape[: -rank - 1]
    has_one = xp is np and channels == 1  # whose products would be those of a vector
    if set(how.strides) == {1} and not has_one:
        return _input_gradient_of_close_windows(xp, g, kernel, out, how)
    matrix = grouped_kernel(xp, kernel, how.groups)
    nbytes = math.prod(numbers) * matrix.shape[0] * matrix.shape[1] * matrix.itemsize
    bare = how._replace(padding=())
    for part in parts_of(xp, lead, nbytes):
        rows = grouped_rows(widened_half(g[part]), how.groups)
        if has_one:  # the elements of a tap lie side by side
            columns = xp.matmul(matrix, rows.swapaxes(1, 2)).swapaxes(1, 2)
        else:
            columns = xp.matmul(rows, matrix.swapaxes(1, 2))
        # (groups, rows, taps * channels of a group)
        images = g[part].shape[:-1]
        columns = columns.reshape(how.groups, *images, *how.taps, channels // how.groups)
        columns = xp.moveaxis(columns, 0, -2)
        total = xp.zeros((*images[:-rank], *lengths(numbers, bare), channels), columns.dtype)
        for tap, target in of_taps(total, numbers, how):
            own = columns[(..., *tap, slice(None), slice(None))]
            xp.add(target, own.reshape(target.shape), out=target)
        out[part] = padded(xp, total, [(-before, -after) for before, after in how.padding])


def _input_gradient_of_close_windows(
    xp: Any, g: Block, kernel: Block, out: Block, how: Steps
) -> None:
    """Convolve `g`, with zeros around it, with the kernel turned around: with strides of 1 that is
    the gradient, in one pass over its memory (measured: half the time of adding up taps)."""
    rank, results = len(how.taps), g.shape[-1]
    margins = [
        ((k - 1) * d - before, (k - 1) * d - after)
        for k, d, (before, after) in zip(
            how.taps, how.dilation, how.padding or ((0, 0),) * rank, strict=True
        )
    ]
    turned = kernel[(slice(None, None, -1),) * rank]
    shape = (*how.taps, kernel.shape[-2], how.groups, results // how.groups)
    turned = (
        turned.reshape(shape)
        .swapaxes(-1, -3)
        .reshape(*kernel.shape[:rank], shape[-1], out.shape[-1])
    )
    convolve(xp, g, turned, out, how._replace(padding=tuple(margins)))


def kernel_gradient(xp: Any, x: Block, g: Block, shape: Sequence[int], how: Steps) -> Block:
    """Return the gradient in a kernel of that shape, summed over all images."""
    rank = len(how.taps)
    depth, results = math.prod(shape[:-1]), shape[-1] // how.groups
    wide = np.result_type(widened(x.dtype), widened(g.dtype))
    total = xp.zeros((how.groups, depth, results), wide)
    for part, columns in columns_of(xp, x, g.shape[-rank - 1 : -1], how):
        cotangents = grouped_rows(widened_half(g[part]), how.groups)
        for rows, step in split_rows(xp, cotangents.shape[1], depth, results):
            left, right = _cut(columns, rows, step), _cut(cotangents, rows, step)
            total += xp.matmul(left.swapaxes(-1, -2), right).sum(axis=1)
    return total.transpose(1, 0, 2).reshape(shape)
