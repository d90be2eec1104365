"""Windows of images: their sizes and places, and the parts of images that are computed at a time.

An image is (..., H1, H2, ..., channels) with any number of spatial axes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

Block = Any

# Bytes of columns at a time. Measured on a host with 1 MiB of cache a core: pooling takes 1.3
# times as long with a quarter of it, convolution 1.5 times with 16 MiB. A GPU needs large products.
HOST_COLUMNS, GPU_COLUMNS = 1 << 20, 1 << 28


class WindowSteps(NamedTuple):
    """The windows of a convolution: what they have along every spatial axis.

    padding: the numbers of zeros before and after every axis; none if empty. Of axes that are split
    the zeros are part of the tiles.
    """

    taps: tuple[int, ...]
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1
    padding: tuple[tuple[int, int], ...] = ()


def lengths(numbers: Sequence[int], how: WindowSteps) -> tuple[int, ...]:
    """Return the lengths of axes, without padding, that windows of these numbers cover."""
    padding = how.padding or ((0, 0),) * len(numbers)
    parts = zip(numbers, how.taps, how.strides, how.dilation, padding, strict=True)
    return tuple((n - 1) * s + (k - 1) * d + 1 - sum(pad) for n, k, s, d, pad in parts)


def padded(xp: Any, x: Block, padding: Sequence[tuple[int, int]]) -> Block:
    """Return images with zeros before and after every spatial axis; numbers below 0 cut elements
    off."""
    if not any(map(any, padding)):
        return x
    shape, outer, inner = padded_places(x.shape, padding)
    out = xp.zeros(shape, x.dtype)
    out[outer] = x[inner]
    return out


def padded_places(
    shape: Sequence[int], padding: Sequence[tuple[int, int]]
) -> tuple[list[int], tuple[Any, ...], tuple[Any, ...]]:
    """Return the shape of padded images, and the indices of the elements that stay: of their places
    in padded images, and of those in images."""
    lead, inner, outer = len(shape) - len(padding) - 1, [], []
    sizes = [*shape]
    for axis, (before, after) in enumerate(padding, lead):
        inner.append(slice(max(-before, 0), shape[axis] - max(-after, 0)))
        sizes[axis] += before + after
        outer.append(slice(max(before, 0), sizes[axis] - max(after, 0)))
    return sizes, (..., *outer, slice(None)), (..., *inner, slice(None))


def windows(xp: Any, x: Block, numbers: Sequence[int], how: WindowSteps) -> Block:
    """Return a view of images without gaps as (..., results..., taps..., channels)."""
    rank = len(numbers)
    lead = x.ndim - rank - 1
    steps = x.strides[lead:-1]
    moves = [step * s for step, s in zip(steps, how.strides, strict=True)]
    taps = [step * d for step, d in zip(steps, how.dilation, strict=True)]
    shape = (*x.shape[:lead], *numbers, *how.taps, x.shape[-1])
    strides = (*x.strides[:lead], *moves, *taps, x.strides[-1])
    if xp is np:  # the same, in a third of the time
        return np.ndarray(shape, x.dtype, x, 0, strides)
    return xp.lib.stride_tricks.as_strided(x, shape, strides)


def of_taps(
    x: Block, numbers: Sequence[int], how: WindowSteps
) -> Iterator[tuple[tuple[int, ...], Block]]:
    """Yield every tap with a view of its elements of images, (..., results..., channels)."""
    for tap in itertools.product(*map(range, how.taps)):
        parts = zip(tap, numbers, how.strides, how.dilation, strict=True)
        places = tuple(slice(t * d, t * d + (n - 1) * s + 1, s) for t, n, s, d in parts)
        yield tap, x[(..., *places, slice(None))]


def parts_of(xp: Any, lead: Sequence[int], nbytes: int) -> list[tuple[slice, ...]]:
    """Return indices that cut leading axes into parts of images, of which the first is the largest.

    nbytes: what an image takes while it is computed.
    """
    if not math.prod(lead):
        return []
    images = max((HOST_COLUMNS if xp is np else GPU_COLUMNS) // max(nbytes, 1), 1)
    chunks = list(lead)
    while math.prod(chunks) > images:
        longest = max(range(len(chunks)), key=chunks.__getitem__)
        others = math.prod(chunks) // chunks[longest]
        chunks[longest] = max(images // others, 1)
        if chunks[longest] == 1 and others <= images:
            break
    axes = [
        [slice(start, min(start + chunk, n)) for start in range(0, n, chunk)]
        for n, chunk in zip(lead, chunks, strict=True)
    ]
    return [*itertools.product(*axes)]


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
