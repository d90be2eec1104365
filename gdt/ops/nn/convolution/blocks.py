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

Block = Any

# Bytes of columns at a time. Measured on a host with 1 MiB of cache for each core: 2 MiB take up to
# 1.2 times as long, 16 MiB 1.5 times. A GPU needs large products.
HOST_COLUMNS, GPU_COLUMNS = 1 << 20, 1 << 28


class Steps(NamedTuple):
    """The windows of a convolution: what they have along every spatial axis."""

    taps: tuple[int, ...]
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1


def lengths(numbers: Sequence[int], how: Steps) -> tuple[int, ...]:
    """Return the lengths of the axes that windows of these numbers cover."""
    parts = zip(numbers, how.taps, how.strides, how.dilation, strict=True)
    return tuple((n - 1) * s + (k - 1) * d + 1 for n, k, s, d in parts)


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


def columns_of(xp: Any, x: Block, numbers: Sequence[int], how: Steps) -> Block:
    """Return windows as rows of a matrix: (groups, rows, taps * channels of a group)."""
    views = windows(xp, widened_half(x), numbers, how)
    depth, channels = math.prod(how.taps), x.shape[-1] // how.groups
    rows = math.prod(views.shape[: views.ndim - len(how.taps) - 1])
    if how.groups == 1:
        return views.reshape(1, rows, depth * channels)
    grouped = views.reshape(rows, depth, how.groups, channels)
    return grouped.transpose(2, 0, 1, 3).reshape(how.groups, rows, depth * channels)


def grouped_rows(y: Block, groups: int) -> Block:
    """Return results (..., channels) as (groups, rows, channels of a group)."""
    if groups == 1:
        return y.reshape(1, -1, y.shape[-1])
    return y.reshape(-1, groups, y.shape[-1] // groups).transpose(1, 0, 2)


def grouped_kernel(kernel: Block, groups: int) -> Block:
    """Return a kernel as (groups, taps * channels of a group, results of a group)."""
    results = kernel.shape[-1]
    if groups == 1:
        return widened_half(kernel).reshape(1, -1, results)
    grouped = widened_half(kernel).reshape(-1, groups, results // groups)
    return grouped.transpose(1, 0, 2)


def convolve(xp: Any, x: Block, kernel: Block, out: Block, how: Steps) -> None:
    """Write the convolution of images with one kernel into `out`, (..., results..., channels)."""
    rank = len(how.taps)
    numbers, lead = out.shape[-rank - 1 : -1], out.shape[: -rank - 1]
    if kernel.shape[-2] == 1 and how.groups > 1:
        return _convolve_channels(x, kernel, out, how)
    matrix = grouped_kernel(kernel, how.groups)
    nbytes = math.prod(numbers) * matrix.shape[0] * matrix.shape[1] * matrix.itemsize
    for part in parts_of(xp, lead, nbytes):
        columns, y = columns_of(xp, x[part], numbers, how), out[part]
        if how.groups == 1 and y.flags.c_contiguous and y.dtype == columns.dtype:
            xp.matmul(columns[0], matrix[0], out=y.reshape(-1, y.shape[-1]))
        else:
            y[...] = (columns @ matrix).transpose(1, 0, 2).reshape(y.shape)


def _convolve_channels(x: Block, kernel: Block, out: Block, how: Steps) -> None:
    """Convolve every channel by itself: a multiplication and an addition for each tap."""
    rank = len(how.taps)
    numbers, multiple = out.shape[-rank - 1 : -1], out.shape[-1] // how.groups
    out[...] = 0
    for tap, values in of_taps(x, numbers, how):
        if multiple == 1:
            out += values * kernel[tap][0]
        else:
            products = values[..., None] * kernel[tap].reshape(how.groups, multiple)
            out += products.reshape(out.shape)


def input_gradient(xp: Any, g: Block, kernel: Block, out: Block, how: Steps) -> None:
    """Write the gradient in images to `out`, whose windows have the results that `g` belongs to."""
    rank = len(how.taps)
    numbers, lead = g.shape[-rank - 1 : -1], g.shape[: -rank - 1]
    if set(how.strides) == {1}:
        if xp is np and how.groups == 1 and _adds_up_taps(kernel, out):
            return _input_gradient_by_taps(xp, g, kernel, out, how)
        return _input_gradient_of_close_windows(xp, g, kernel, out, how)
    matrix = grouped_kernel(kernel, how.groups).transpose(0, 2, 1)
    nbytes = math.prod(numbers) * matrix.shape[0] * matrix.shape[2] * matrix.itemsize
    for part in parts_of(xp, lead, nbytes):
        columns = grouped_rows(widened_half(g[part]), how.groups) @ matrix
        shape = (*g[part].shape[:-1], *how.taps, out.shape[-1])
        if how.groups > 1:
            taps = math.prod(how.taps)
            columns = columns.reshape(how.groups, columns.shape[1], taps, -1).transpose(1, 2, 0, 3)
        columns = columns.reshape(shape)
        out[part] = 0
        for tap, target in of_taps(out[part], numbers, how):
            xp.add(target, columns[(..., *tap, slice(None))], out=target)


def _adds_up_taps(kernel: Block, out: Block) -> bool:
    """Return whether the gradient in images is faster as a sum over taps, with strides of 1.

    The sum reads and writes the channels of `out` for each tap, where the other way copies the
    results for each tap. Measured on the host for 2 results a channel, or as many as channels
    and 64 of them: the sum takes 0.5 to 0.96 of the time; for 32 of each 1.1, for fewer results
    than channels up to 1.6. The sum is added in the dtype of `out`, which float16 is too small for.
    """
    channels, results = kernel.shape[-2:]
    return bool(out.dtype != np.float16 and results >= min(2 * channels, max(channels, 64)))


def _input_gradient_by_taps(xp: Any, g: Block, kernel: Block, out: Block, how: Steps) -> None:
    """Add up a matrix product for each tap, in parts that stay in the cache meanwhile."""
    rank, (channels, results) = len(how.taps), kernel.shape[-2:]
    numbers, lead = g.shape[-rank - 1 : -1], g.shape[: -rank - 1]
    nbytes = math.prod(numbers) * (channels + results) * out.itemsize
    for part in parts_of(xp, lead, nbytes):
        rows = xp.ascontiguousarray(g[part]).reshape(-1, results)
        out[part] = 0
        for tap, target in of_taps(out[part], numbers, how):
            xp.add(target, (rows @ kernel[tap].T).reshape(target.shape), out=target)


def _input_gradient_of_close_windows(
    xp: Any, g: Block, kernel: Block, out: Block, how: Steps
) -> None:
    """Convolve `g`, with zeros around it, with the kernel turned around: with strides of 1 that is
    the gradient, in one pass over its memory (measured: half the time of adding up taps)."""
    rank, results = len(how.taps), g.shape[-1]
    numbers, lead = g.shape[-rank - 1 : -1], g.shape[: -rank - 1]
    margins = [(k - 1) * d for k, d in zip(how.taps, how.dilation, strict=True)]
    inner = tuple(slice(m, m + n) for m, n in zip(margins, numbers, strict=True))
    sizes = [n + 2 * m for m, n in zip(margins, numbers, strict=True)]
    turned = kernel[(slice(None, None, -1),) * rank]
    shape = (*how.taps, kernel.shape[-2], how.groups, results // how.groups)
    turned = turned.reshape(shape).swapaxes(-1, -3).reshape(*how.taps, shape[-1], -1)
    nbytes = math.prod(how.taps) * results * math.prod(lengths(numbers, how)) * g.itemsize
    for part in parts_of(xp, lead, nbytes):
        own = g[part]
        padded = xp.zeros((*own.shape[: -rank - 1], *sizes, results), g.dtype)
        padded[(..., *inner, slice(None))] = own
        convolve(xp, padded, turned, out[part], how)


def kernel_gradient(xp: Any, x: Block, g: Block, shape: Sequence[int], how: Steps) -> Block:
    """Return the gradient in a kernel of that shape, summed over all images."""
    rank = len(how.taps)
    numbers, lead = g.shape[-rank - 1 : -1], g.shape[: -rank - 1]
    depth, results = math.prod(shape[:-1]), shape[-1] // how.groups
    wide = np.result_type(widened_half(x).dtype, widened_half(g).dtype)
    total = xp.zeros((how.groups, depth, results), wide)
    nbytes = math.prod(numbers) * how.groups * depth * wide.itemsize
    for part in parts_of(xp, lead, nbytes):
        columns = columns_of(xp, x[part], numbers, how)
        total += columns.transpose(0, 2, 1) @ grouped_rows(widened_half(g[part]), how.groups)
    return total.transpose(1, 0, 2).reshape(shape)
