"""Pooling of images that may be split along any axis: the maximum, or the mean, of every window."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.operands import as_operand, as_operands
from gdt.array.registry import public
from gdt.backend import empty, threads
from gdt.engine.op import op
from gdt.errors import DtypeError, ShapeError, error
from gdt.nn.functions.convolution.op import join_tiles, on_tiles, shards_of, tile_images, tilings_of
from gdt.nn.functions.convolution.tiles import Numbers, image_term, tiles_first, tiles_in_place
from gdt.nn.functions.convolution.windows import WindowSteps, lengths, of_taps, parts_of
from gdt.ops.blocks.windows import Padding, Windows, one_for_each_axis, windows_of
from gdt.ops.elementwise import zero
from gdt.sharding.array_type import ArrayType
from gdt.sharding.dtypes import kind_of
from gdt.sharding.reduction import identity
from gdt.sharding.rule import RuleSpec

__all__ = ["average_pool", "max_pool"]

Block = Any

PASSES = 5
"""Passes over the results in which the gradient of a maximum goes through each tap."""


# ---------------------------------------------------------------- on tiles


def _rule(terms: str) -> Any:
    """Return the rule of an op of tiles. terms: for each operand and the output a letter: n for
    images, m for results."""

    def rule(*types: ArrayType, numbers: Numbers, how: WindowSteps) -> RuleSpec:
        rank = len(how.taps)
        *ins, out = (image_term(letter, rank, "c") for letter in terms)
        sizes = {f"m{i}": n for i, n in enumerate(numbers)}
        sizes |= {f"n{i}": n for i, n in enumerate(lengths(numbers, how))}
        return RuleSpec(f"{', '.join(ins)} -> {out}", sizes, frozenset(sizes))

    return rule


def _images_like(xp: Any, g: Block, numbers: Numbers, how: WindowSteps) -> Block:
    """Return zeros for images whose windows have the results `g`; its tiles come first."""
    return xp.zeros((*g.shape[: -len(numbers) - 1], *lengths(numbers, how), g.shape[-1]), g.dtype)


@op(_rule("nm"))
def max_pool_tiles(xp: Any, x: Block, /, numbers: Numbers, how: WindowSteps) -> Block:
    """Return the maximum of every window of tiles."""
    rank = len(numbers)
    images = tiles_first(xp, x, rank)
    lead, channels = images.shape[: -rank - 1], images.shape[-1]
    out = empty(xp, (*lead, *numbers, channels), x.dtype)
    parts = parts_of(xp, lead, math.prod(images.shape[-rank - 1 :]) * x.itemsize)

    def run(some: slice) -> None:
        for part in parts[some]:
            (_, first), *others = of_taps(images[part], numbers, how)
            maximum = out[part]
            maximum[...] = first
            for _, values in others:
                xp.maximum(maximum, values, out=maximum)

    threads.in_turns(run, threads.count_for(out.size * math.prod(how.taps)) if xp is np else 1)
    return tiles_in_place(xp, out, rank)


def _is_first(xp: Any, values: Block, maximum: Block, is_open: Block, with_nan: bool) -> Block:
    """Return where a tap has the maximum that no earlier tap had, which is then no longer open.

    with_nan: whether maxima may be NaN.
    """
    is_maximum = values == maximum
    if with_nan:
        is_maximum |= values != values
    is_maximum &= is_open
    is_open ^= is_maximum
    return is_maximum


def _may_be_nan(xp: Any, maximum: Block) -> bool:
    """Return whether maxima may be NaN; a GPU is not asked, since the host would wait for it."""
    return xp is not np or bool(np.isnan(maximum).any())


def _where(xp: Any, mask: Block, values: Block) -> Block:
    """Return floating-point values where the mask is set, and 0 elsewhere."""
    if xp is not np:
        return xp.where(mask, values, xp.zeros((), values.dtype))
    # Measured: with np.where, which branches for each element, the gradient takes 1.8 times as
    # long.
    bits = np.dtype(f"i{values.itemsize}")
    ones = np.negative(mask.view("i1"), dtype=bits)
    return np.bitwise_and(values.view(bits), ones, out=ones).view(values.dtype)


@op(_rule("mnmn"), linear="g")
def max_pool_gradient(
    xp: Any, g: Block, x: Block, y: Block, /, numbers: Numbers, how: WindowSteps
) -> Block:
    """Send the cotangent of every window to its first maximum, in row-major order."""
    rank = len(numbers)
    g, x, y = (tiles_first(xp, a, rank) for a in (g, x, y))
    out = _images_like(xp, g, numbers, how)
    lead = out.shape[: -rank - 1]
    g, x, y = (xp.broadcast_to(a, (*lead, *a.shape[-rank - 1 :])) for a in (g, x, y))
    nbytes = 2 * math.prod(out.shape[-rank - 1 :]) * out.itemsize
    parts = parts_of(xp, lead, nbytes)  # which stay in the cache from tap to tap

    def run(some: slice) -> None:
        for part in parts[some]:
            maximum, is_open = y[part], xp.ones(y[part].shape, bool)
            with_nan = _may_be_nan(xp, maximum)
            images = of_taps(x[part], numbers, how), of_taps(out[part], numbers, how)
            for (_, values), (_, target) in zip(*images, strict=True):
                is_first = _is_first(xp, values, maximum, is_open, with_nan)
                xp.add(target, _where(xp, is_first, g[part]), out=target)

    work = y.size * math.prod(how.taps) * PASSES
    threads.in_turns(run, threads.count_for(work) if xp is np else 1)
    return tiles_in_place(xp, out, rank)


@op(_rule("nnmm"), linear="c")
def take_maxima(
    xp: Any, c: Block, x: Block, y: Block, /, numbers: Numbers, how: WindowSteps
) -> Block:
    """Return the element of c at the first maximum of every window of x: the adjoint of
    `max_pool_gradient`."""
    rank = len(numbers)
    c, x, y = (tiles_first(xp, a, rank) for a in (c, x, y))
    out, is_open = xp.zeros(y.shape, c.dtype), xp.ones(y.shape, bool)
    with_nan = _may_be_nan(xp, y)
    taps = zip(of_taps(x, numbers, how), of_taps(c, numbers, how), strict=True)
    for (_, values), (_, source) in taps:
        is_first = _is_first(xp, values, y, is_open, with_nan)
        out += _where(xp, is_first, source)
    return tiles_in_place(xp, out, rank)


max_pool_tiles.vjp(
    lambda g, out, x, *, numbers, how: max_pool_gradient(g, x, out, numbers=numbers, how=how),
    reads="x out",
)
max_pool_gradient.vjp(
    lambda c, out, g, x, y, *, numbers, how: take_maxima(c, x, y, numbers=numbers, how=how),
    lambda c, out, g, x, y, **_: zero(c, out, x),
    lambda c, out, g, x, y, **_: zero(c, out, y),
)
take_maxima.vjp(
    lambda g, out, c, x, y, *, numbers, how: max_pool_gradient(g, x, y, numbers=numbers, how=how),
    lambda g, out, c, x, y, **_: zero(g, out, x),
    lambda g, out, c, x, y, **_: zero(g, out, y),
)


@op(_rule("nm"), linear="x")
def sum_pool_tiles(xp: Any, x: Block, /, numbers: Numbers, how: WindowSteps) -> Block:
    """Return the sum of every window of tiles."""
    images, out = tiles_first(xp, x, len(numbers)), None
    for _, values in of_taps(images, numbers, how):
        out = values.copy() if out is None else xp.add(out, values, out=out)
    return tiles_in_place(xp, out, len(numbers))


@op(_rule("mn"), linear="g")
def spread_over_windows(xp: Any, g: Block, /, numbers: Numbers, how: WindowSteps) -> Block:
    """Add every result to all elements of its window: the adjoint of `sum_pool_tiles`."""
    results = tiles_first(xp, g, len(numbers))
    out = _images_like(xp, results, numbers, how)
    for _, target in of_taps(out, numbers, how):
        xp.add(target, results, out=target)
    return tiles_in_place(xp, out, len(numbers))


sum_pool_tiles.vjp(
    lambda g, out, x, *, numbers, how: spread_over_windows(g, numbers=numbers, how=how),
    reads="",
)
spread_over_windows.vjp(
    lambda c, out, g, *, numbers, how: sum_pool_tiles(c, numbers=numbers, how=how)
)

# ---------------------------------------------------------------- on images


def _windows(
    name: str, x: Any, size: Any, strides: Any, padding: Padding
) -> tuple[DistributedArray, tuple[Windows, ...]]:
    """Return x as an array, and the windows along its spatial axes."""
    (x,) = as_operands(name, x=x)
    if kind_of(x.dtype) not in "fiu":
        raise error(DtypeError, "x does not hold real numbers", operands={"x": x.type})
    rank = x.ndim - 2 if isinstance(size, int | np.integer) else len(size)
    if rank < 1 or x.ndim < rank + 1:
        problem = f"x of rank {x.ndim} has no {max(rank, 1)} spatial axes before its channels"
        raise error(ShapeError, problem, operands={"x": x.type})
    taps = one_for_each_axis(name, "size", size, rank, 1)
    steps = taps if strides is None else strides
    return x, windows_of(name, x.shape[-rank - 1 : -1], taps, steps, padding, 1)


@public
def max_pool(
    x: Any,
    size: int | Sequence[int],
    strides: int | Sequence[int] | None = None,
    padding: Padding = "valid",
) -> DistributedArray:
    """Return the maximum of every window of images, and of each channel by itself.

    x: (..., H, W, channels), real. size: that of the windows, an int for all axes between the first
    and the last, or one for each spatial axis. strides: `size` if not given. padding: as of
    `gdt.convolution`; what lies outside the image is no maximum. A NaN is one. The gradient goes to
    the first maximum of a window in row-major order. Splits and errors are as of `convolution`.

    >>> x = gdt.reshape(gdt.asarray([1.0, 5.0, 2.0, 3.0]), (1, 4, 1))
    >>> gdt.max_pool(x, 2).tolist()
    [[[5.0], [3.0]]]
    """
    x, windows = _windows("max_pool", x, size, strides, padding)
    fill = np.asarray(identity("max", x.dtype), x.dtype).tobytes()
    hows = tilings_of(x, windows)
    tiles, (numbers, how) = tile_images(x, hows, fill), on_tiles(windows, hows)
    return join_tiles(max_pool_tiles(tiles, numbers=numbers, how=how), shards_of(windows, hows))


@public
def average_pool(
    x: Any,
    size: int | Sequence[int],
    strides: int | Sequence[int] | None = None,
    padding: Padding = "valid",
    count_padding: bool = False,
) -> DistributedArray:
    """Return the mean of every window of images, and of each channel by itself.

    x: (..., H, W, channels), floating-point. size, strides, padding: as of `gdt.max_pool`.
    count_padding: whether zeros outside the image count, as in PyTorch; they do not in TF and
    Keras. Sums of float16 are added in float32.

    >>> x = gdt.reshape(gdt.asarray([1.0, 5.0, 2.0]), (1, 3, 1))
    >>> gdt.average_pool(x, 2, padding="same").tolist()
    [[[3.0], [2.0]]]
    """
    x, windows = _windows("average_pool", x, size, strides, padding)
    if kind_of(x.dtype) != "f":
        raise error(DtypeError, "x is not floating-point", operands={"x": x.type})
    wide = x.astype(np.float32) if x.dtype.itemsize < 4 else x
    hows = tilings_of(wide, windows)
    tiles, (numbers, how) = tile_images(wide, hows), on_tiles(windows, hows)
    sums = sum_pool_tiles(tiles, numbers=numbers, how=how)
    y = join_tiles(sums, shards_of(windows, hows))
    y = _divided_by_counts(y, windows, count_padding=count_padding)
    return y if y.dtype == x.dtype else y.astype(x.dtype)


def _divided_by_counts(
    y: DistributedArray, windows: Sequence[Windows], *, count_padding: bool
) -> DistributedArray:
    """Divide the sums of windows by the number of elements that count in each."""
    counts = [np.full(w.number, w.taps) if count_padding else _elements(w) for w in windows]
    uniform = math.prod(int(c[0]) for c in counts if c.min() == c.max())
    y = y * (1.0 / uniform)
    for i, count in enumerate(counts):
        if count.min() < count.max():
            shape = (len(count), *(1,) * (len(counts) - i))
            share = (1.0 / count).astype(y.dtype).reshape(shape)
            y = y * as_operand(share, y.mesh, "average_pool", "counts", is_constant=True)
    return y


def _elements(windows: Windows) -> np.ndarray:
    """Return how many elements of its axis every window covers, at least 1."""
    starts = np.arange(windows.number) * windows.stride - windows.before
    taps = starts[:, None] + np.arange(windows.taps)  # (number, taps)
    counts: np.ndarray = ((taps >= 0) & (taps < windows.size)).sum(axis=1)
    return np.asarray(np.maximum(counts, 1))
