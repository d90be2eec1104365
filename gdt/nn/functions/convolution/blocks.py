"""Convolution of blocks: windows by strided views, one matrix product for some images at a time.

An image is (..., H1, H2, ..., channels) with any number of spatial axes, a kernel (taps of each
axis..., channels of a group, results). Leading axes of images and kernels broadcast.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from gdt.backend import empty, threads
from gdt.engine.blas import multiply
from gdt.nn.functions.convolution.windows import (
    HOST_COLUMNS,
    WindowSteps,
    lengths,
    of_taps,
    padded,
    padded_places,
    parts_of,
    windows,
)
from gdt.ops.elementwise import widened_half
from gdt.sharding.dtypes import widened

Block = Any

# Multiplications and rows of a product on the host: with AVX-512 OpenBLAS does not copy matrices of
# up to 100 ** 3 multiplications first. Measured for 3 x 3 taps of 16 channels and 16 results: 0.7
# of the time. With its kernels for AVX2 (Haswell) they mostly take the same time, and up to 1.2
# times as long: 196 x 144 x 16, 49 x 288 x 32. Products of fewer rows do not pay.
SMALL_PRODUCT, FEWEST_ROWS = 100**3, 32

# Multiplications of a product on the host that take as long as an addition of two elements.
PRODUCTS = 8

# Sums over parts of images, if they are computed at the same time: the numbers of threads that a
# host has do not change what is added to what.
SUMS = 8

# Elements that are copied at once, below which columns are copied tap by tap. Measured on the host
# for images of 28 x 28 and 3 x 3 taps: 0.2 of the time for 1 channel, 0.6 for 2, 1.0 for 3. Above
# it windows along the last axis alone take 0.7 to 0.9 of the time of whole windows.
SHORT_RUN = 8


class Products(NamedTuple):
    """The matrices whose products with parts of a kernel add up to a convolution.

    shape: that of the results, but for their last axis: (groups, ..., rows).
    parts: slices of the rows, each with the number of rows of every product, and with matrices of
    (groups, ..., products, rows of a product, taps * channels of a group). There is one, of whole
    windows, or one for every tap of all axes but the last.
    """

    shape: tuple[int, ...]
    parts: list[tuple[slice, int, list[Block]]]


def columns_of(
    xp: Any, x: Block, numbers: Sequence[int], how: WindowSteps, some: slice
) -> Iterator[tuple[tuple[slice, ...], Block]]:
    """Yield some of the parts of images, as indices, with their windows as rows of a matrix:
    (groups, rows, taps * channels of a group), in memory that those of the next part overwrite."""
    rank, dtype = len(numbers), widened(x.dtype)
    size = math.prod(numbers) * math.prod(how.taps) * x.shape[-1]
    is_pixel = {*how.taps, *how.strides, how.groups} == {1} and not any(map(any, how.padding))
    shape = None
    parts = parts_of(xp, x.shape[: -rank - 1], size * dtype.itemsize)
    for part in parts[some]:
        images = x[part]
        if is_pixel:
            yield part, grouped_rows(widened_half(images), 1)
            continue
        lead = math.prod(images.shape[: -rank - 1])
        if shape is None:
            largest = x[parts[0]].shape
            memory = empty(xp, (math.prod(largest[: -rank - 1]) * size,), dtype)
            sizes, _, _ = padded_places(largest, how.padding)
            zeros = xp.zeros(math.prod(sizes), dtype)
        if images.shape != shape:
            shape = images.shape
            sizes, outer, inner = padded_places(shape, how.padding)
            room = zeros[: math.prod(sizes)].reshape(sizes)
            views, columns, matrix = _columns(xp, room, numbers, how, memory[: lead * size])
        room[outer] = images[inner]
        xp.copyto(columns, views)
        yield part, matrix


def _columns(
    xp: Any, images: Block, numbers: Sequence[int], how: WindowSteps, memory: Block
) -> tuple[Block, Block, Block]:
    """Return a view of the windows of images, an array in memory to copy it to, and that array as a
    matrix: (groups, rows, taps * channels of a group).

    For few channels the matrix lies in memory column by column: a line of results is copied at
    once, and not a line of taps, which would be short.
    """
    rank, channels = len(numbers), images.shape[-1]
    rows = math.prod((*images.shape[: -rank - 1], *numbers))
    depth = math.prod(how.taps) * channels // how.groups
    views = windows(xp, images, numbers, how)
    views = views.reshape(*views.shape[:-1], how.groups, channels // how.groups)
    *own, group, last = range(views.ndim)
    run = channels * (how.taps[-1] if how.dilation[-1] == 1 else 1)
    by_column = xp is np and run < SHORT_RUN
    order = (*own[-rank:], last, *own[:-rank]) if by_column else (*own, last)
    views = views.transpose(group, *order)
    columns = memory.reshape(views.shape)
    if by_column:
        return views, columns, memory.reshape(how.groups, depth, rows).swapaxes(1, 2)
    matrix = memory.reshape(how.groups, rows, depth)
    columns, views = _in_runs(xp, columns, views, images, how)
    return views, columns, matrix


def _in_runs(
    xp: Any, columns: Block, views: Block, room: Block, how: WindowSteps
) -> tuple[Block, Block]:
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


def _lines(xp: Any, x: Block, numbers: Sequence[int], how: WindowSteps) -> WindowSteps | None:
    """Return the windows along the last axis alone, or None where whole windows are as quick: where
    they are few, or short, or not side by side along the other axes."""
    *outer, last = how.taps
    windows = math.prod(x.shape[: -len(numbers) - 1]) * math.prod(numbers)
    is_large = windows * math.prod(how.taps) * x.shape[-1] * x.itemsize > HOST_COLUMNS
    is_long = last * x.shape[-1] >= SHORT_RUN and math.prod(numbers[-2:]) >= FEWEST_ROWS
    is_dense = how.groups == math.prod(how.strides[:-1]) == 1 and math.prod(outer) > 1
    if xp is not np or not (is_large and is_long and is_dense):
        return None
    ones = (1,) * len(outer)
    dilation = (*ones, how.dilation[-1])
    return how._replace(taps=(*ones, last), strides=(*ones, how.strides[-1]), dilation=dilation)


def products_of(
    xp: Any, x: Block, numbers: Sequence[int], results: int, how: WindowSteps, some: slice
) -> Iterator[tuple[tuple[slice, ...], Products]]:
    """Yield some of the parts of images, as indices, with the matrices whose products with a kernel
    of so many results in a group are their convolution, in memory that those of the next part
    overwrite.

    Windows along the last axis alone are copied once for all taps of the other axes: every tap has
    a product with the lines that are so many rows further on.
    """
    lines, outer = _lines(xp, x, numbers, how), _without_last(how)
    sizes = numbers if lines is None else (*lengths(numbers[:-1], outer), numbers[-1])
    before = None
    for part, columns in columns_of(xp, x, sizes, lines or how, some):
        if columns is not before:
            before, matrices = columns, [columns]
            if lines is not None:
                shape = (1, *x[part].shape[: -len(numbers) - 1], *sizes, columns.shape[-1])
                matrices = _lines_of_taps(columns.reshape(shape), numbers, outer)
            *rows, depth = matrices[0].shape
            parts = [
                (some, step, [_cut(matrix, some, step) for matrix in matrices])
                for some, step in split_rows(xp, rows[-1], depth, results)
            ]
        yield part, Products(tuple(rows), parts)


def work_of(xp: Any, x: Block, numbers: Sequence[int], results: int, how: WindowSteps) -> float:
    """Return the work of a convolution that threads can share, in additions of two elements: none
    where products are large, so that BLAS has threads for each of them, and no more than gives
    every thread a part of the images."""
    windows = math.prod(x.shape[: -len(numbers) - 1]) * math.prod(numbers)
    depth = x.shape[-1] // how.groups
    taps = (_lines(xp, x, numbers, how) or how).taps
    if xp is not np or SMALL_PRODUCT // max(math.prod(taps) * depth * results, 1) < FEWEST_ROWS:
        return 0
    elements: int = windows * math.prod(how.taps) * x.shape[-1]
    parts: int = math.ceil(elements * x.itemsize / HOST_COLUMNS)
    return min(elements * (1 + results / PRODUCTS), parts * threads.SMALLEST)


def _without_last(how: WindowSteps) -> WindowSteps:
    """Return the windows along all axes but the last, without padding."""
    return WindowSteps(how.taps[:-1], how.strides[:-1], how.dilation[:-1])


def _lines_of_taps(lines: Block, numbers: Sequence[int], outer: WindowSteps) -> list[Block]:
    """Return the lines (..., H, W, depth) that every tap of all axes but the last meets, as rows:
    (..., results along H * W, depth)."""
    *others, height, width = numbers
    lines = lines.reshape(*lines.shape[:-3], lines.shape[-3] * width, lines.shape[-1])
    dilation = (*outer.dilation[:-1], outer.dilation[-1] * width)
    taps = of_taps(lines, (*others, height * width), outer._replace(dilation=dilation))
    return [rows for _, rows in taps]


def _cut(x: Block, rows: slice, step: int) -> Block:
    """Return rows of x (..., rows, columns) as (..., products, step, columns)."""
    products = (rows.stop - rows.start) // step
    return x[..., rows, :].reshape(*x.shape[:-2], products, step, x.shape[-1])


def _multiply(xp: Any, columns: Sequence[Block], kernel: Block, out: Block) -> None:
    """Write the sum of the products of columns and parts of a kernel, (groups, taps * channels,
    results), to `out`."""
    groups, _, results = kernel.shape
    ones = (1,) * (columns[0].ndim - 3)
    kernels = kernel.reshape(groups, len(columns), *ones, columns[0].shape[-1], results)
    multiply(xp, columns[0], kernels[:, 0], out)
    if len(columns) > 1:
        product = empty(xp, out.shape, out.dtype)
        for i in range(1, len(columns)):
            out += multiply(xp, columns[i], kernels[:, i], product)


def convolve(xp: Any, x: Block, kernel: Block, out: Block, how: WindowSteps) -> None:
    """Write the convolution of images with one kernel into `out`, (..., results..., channels)."""
    rank = len(how.taps)
    numbers = out.shape[-rank - 1 : -1]
    if kernel.shape[-2] == 1 and how.groups > 1:
        return _convolve_channels(xp, x, kernel, out, how)
    matrix = grouped_kernel(xp, kernel, how.groups)
    dtype, results = xp.result_type(widened(x.dtype), matrix.dtype), matrix.shape[-1]

    def run(some: slice) -> None:
        for part, products in products_of(xp, x, numbers, results, how, some):
            y, shape = out[part], (*products.shape, results)
            is_memory = how.groups == 1 and y.flags.c_contiguous and y.dtype == dtype
            total = y.reshape(shape) if is_memory else empty(xp, shape, dtype)
            for rows, step, columns in products.parts:
                _multiply(xp, columns, matrix, _cut(total, rows, step))
            if not is_memory:
                y[...] = xp.moveaxis(total, 0, -2).reshape(y.shape)

    threads.in_turns(run, threads.count_for(work_of(xp, x, numbers, results, how)))


def _convolve_channels(xp: Any, x: Block, kernel: Block, out: Block, how: WindowSteps) -> None:
    """Convolve every channel by itself: a multiplication and an addition for each tap."""
    rank, dtype = len(how.taps), widened(out.dtype)
    numbers, multiple = out.shape[-rank - 1 : -1], out.shape[-1] // how.groups
    nbytes, kernel = 2 * math.prod(out.shape[-rank - 1 :]) * dtype.itemsize, widened_half(kernel)
    parts = parts_of(xp, out.shape[: -rank - 1], nbytes)

    def run(some: slice) -> None:
        for part in parts[some]:
            y = out[part]
            total = y if y.dtype == dtype else empty(xp, y.shape, dtype)
            total[...] = 0
            for tap, values in of_taps(padded(xp, x[part], how.padding), numbers, how):
                if multiple == 1:
                    total += values * kernel[tap][0]
                else:
                    products = values[..., None] * kernel[tap].reshape(how.groups, multiple)
                    total += products.reshape(y.shape)
            if total is not y:
                y[...] = total

    threads.in_turns(run, threads.count_for(2 * out.size * math.prod(how.taps)) if xp is np else 1)


def input_gradient(xp: Any, g: Block, kernel: Block, out: Block, how: WindowSteps) -> None:
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
            columns = multiply(xp, matrix, rows.swapaxes(1, 2)).swapaxes(1, 2)
        else:
            columns = multiply(xp, rows, matrix.swapaxes(1, 2))
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
    xp: Any, g: Block, kernel: Block, out: Block, how: WindowSteps
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


def kernel_gradient(xp: Any, x: Block, g: Block, shape: Sequence[int], how: WindowSteps) -> Block:
    """Return the gradient in a kernel of that shape, summed over all images."""
    rank = len(how.taps)
    depth, results = math.prod(shape[:-1]), shape[-1] // how.groups
    wide = np.result_type(widened(x.dtype), widened(g.dtype))
    work = work_of(xp, x, g.shape[-rank - 1 : -1], results, how)

    def of_some(some: slice) -> Block:
        total = xp.zeros((how.groups, depth, results), wide)
        for part, products in products_of(xp, x, g.shape[-rank - 1 : -1], results, how, some):
            cotangents = widened_half(g[part]).reshape(*products.shape[1:], how.groups, results)
            cotangents = xp.moveaxis(cotangents, -2, 0)  # (groups, ..., rows, results)
            for rows, step, columns in products.parts:
                right = _cut(cotangents, rows, step)
                sums = total.reshape(how.groups, len(columns), columns[0].shape[-1], results)
                for i, left in enumerate(columns):
                    product = multiply(xp, left.swapaxes(-1, -2), right)
                    sums[:, i] += product.sum(axis=tuple(range(1, product.ndim - 2)))
        return total

    count = SUMS if work >= 2 * threads.SMALLEST else 1
    totals: list[Block] = [None] * count

    def run(some: slice) -> None:
        for i in range(count)[some]:
            totals[i] = of_some(slice(i, None, count))

    threads.in_turns(run, min(count, threads.count_for(work)))
    total, *others = totals
    for other in others:
        total += other
    return total.transpose(1, 0, 2).reshape(shape)
