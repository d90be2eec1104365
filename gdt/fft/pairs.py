"""Transforms of real numbers along a split axis of even length, as complex ones of half the length.

The 2 m real numbers x are taken as m complex ones, z[j] = x[2 j] + i x[2 j + 1]. With Z the
transform of z, Y[k] the conjugate of Z[m - k], and Z[m] = Z[0], the transform of x is

    X[k] = (Z[k] + Y[k]) / 2 - i exp(-2 pi i k / (2 m)) (Z[k] - Y[k]) / 2        for k = 0 ... m,

the transforms of the numbers in even and in odd places, put together (Sorensen, Jones, Heideman and
Burrus 1987, "Real-valued fast Fourier transform algorithms"). Half the bytes are sent, and half the
memory is held.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.engine.declaration import FROM_ENGINE
from gdt.engine.op import op
from gdt.engine.plan import Shards
from gdt.fft.local import products_of_tables, tables_of_factors
from gdt.fft.split import transformed
from gdt.ops.comparison import where
from gdt.ops.elementwise import astype, conj, like, real
from gdt.ops.indexing import getitem
from gdt.ops.joining import concat
from gdt.ops.ranges import arange
from gdt.ops.rearranging import swapaxes
from gdt.ops.reinterpreting import viewed_in_parts, viewed_together
from gdt.ops.shapes import reshape
from gdt.sharding.dtypes import promoted
from gdt.sharding.layout import Layout

Block = Any

PARTS = 8
"""The parts in which two halves are joined: the factors of each take memory of their own."""

SCALES = {"backward": 1.0, "ortho": math.sqrt(2), "forward": 2.0}
"""For each norm, what a transform of 2 m numbers divides by, divided by the same for m numbers."""


def rfft_of_pairs(x: DistributedArray, axis: int, norm: str) -> DistributedArray:
    """The elements 0 to n // 2 of the transform along a split axis of even length n."""
    x = swapaxes(astype(x, promoted(x.dtype, np.float32)), axis, -1)
    matrix = (*x.shape[:-1], x.shape[-1] // 2, 2)
    dtype = promoted(x.dtype, np.complex64)
    half = transformed(viewed_together(reshape(x, matrix), dtype=dtype), [x.ndim - 1], False, norm)
    half = concat([half, getitem(half, (..., slice(1)))], -1)
    backwards = getitem(half, (..., slice(None, None, -1)))
    return swapaxes(joined(half, backwards, scale=1 / SCALES[norm]), axis, -1)


def irfft_of_pairs(x: DistributedArray, axis: int, norm: str, conjugated: bool) -> DistributedArray:
    """The 2 * m real numbers whose transform begins with the m + 1 elements of a split axis, or
    their conjugates."""
    x, m = swapaxes(x, axis, -1), x.shape[axis] - 1
    half = transformed(_half(x, m, norm, conjugated), [x.ndim - 1], True, norm)
    pairs = viewed_in_parts(half, dtype=np.empty(0, half.dtype).real.dtype)
    return swapaxes(reshape(pairs, (*x.shape[:-1], 2 * m)), axis, -1)


def _half(x: DistributedArray, m: int, norm: str, conjugated: bool) -> DistributedArray:
    backwards = getitem(x, (..., slice(m, 0, -1)))
    backwards = conj(backwards) if conjugated else backwards
    first = getitem(x, (..., slice(m)))
    first = conj(first) if conjugated else first
    return joined(first, backwards, inverse=True, scale=SCALES[norm])


# ---------------------------------------------------------------- halves of a transform


def _weights(
    xp: Any, x: Block, shards: Shards, low: int, high: int, inverse: bool, scale: float
) -> Block:
    """Half of `scale`, times 1 + w for w[k] = -i exp(-2 pi i k / n), or its conjugate if `inverse`,
    for the elements `low` to `high` of every shard; n is twice the length of the half transform."""
    half, start = shards.size["i"] - (not inverse), xp.asarray(shards.start["i"])
    sign, count = 1 if inverse else -1, high - low
    tables = tables_of_factors(xp, 1, (start + low)[..., None], count, 2 * half, sign)
    weights = (1 + sign * 1j * products_of_tables(*tables, count)) * (scale / 2)
    ones = (1,) * (x.ndim - start.ndim - 1)
    dtype = xp.result_type(x.dtype, np.complex64)
    return weights.reshape(*start.shape, *ones, -1).astype(dtype, copy=False)


@op("... i, ... i -> ... i", linear="x + backwards")
def joined(
    xp: Any,
    x: Block,
    backwards: Block,
    /,
    inverse: bool = False,
    scale: float = 1.0,
    *,
    shards: Shards = FROM_ENGINE,
) -> Block:
    """The elements 0 to m of the transform of 2 m real numbers, from the transform `x` of their
    pairs as complex numbers, with element 0 again as element m, and `x` backwards.

    inverse: compute the transform of the pairs instead, from the elements 0 to m - 1 of that of the
    real numbers as `x`, and m to 1 as `backwards`; imaginary parts of the first elements count as
    0. scale: a factor of the result.

    >>> x = gdt.asarray([4 + 6j, -2 - 2j, 4 + 6j])  # the transform of 1 + 2j and 3 + 4j
    >>> gdt.fft.pairs.joined(x, x[::-1]).tolist()  # that of 1, 2, 3 and 4
    [(10+0j), (-2+2j), (-2+0j)]
    """
    dtype = xp.result_type(x.dtype, backwards.dtype, np.complex64)
    out = xp.conj(backwards).astype(dtype, copy=False)
    step = max(-(-x.shape[-1] // PARTS), 1)
    for low in range(0, x.shape[-1], step):
        part, sums = x[..., low : low + step], out[..., low : low + step]
        if inverse and not low:
            part = part.copy()
            is_first = (xp.asarray(shards.start["i"]) == 0).reshape(
                shards.start["i"].shape + (1,) * (x.ndim - shards.start["i"].ndim)
            )
            for numbers in (part, sums):
                numbers[..., :1] = xp.where(is_first, numbers[..., :1].real, numbers[..., :1])
        weights = _weights(xp, x, shards, low, low + part.shape[-1], inverse, scale)
        sums *= scale - weights
        sums += part * weights
    return out


@op("... i -> ... i", linear="x")
def weighted(
    xp: Any,
    x: Block,
    /,
    inverse: bool = False,
    scale: float = 1.0,
    other: bool = False,
    *,
    shards: Shards = FROM_ENGINE,
) -> Block:
    """`x` times the factors of the first operand of `joined`; of the second one if `other`.

    >>> gdt.fft.pairs.weighted(gdt.ones(2, complex)).round(3).tolist()
    [(0.5-0.5j), (0.5+0.5j)]
    """
    weights = _weights(xp, x, shards, 0, x.shape[-1], inverse, scale)
    return x * (scale - weights if other else weights)


weighted.vjp(lambda g, out, x, **static: like(weighted(g, **static), x))


def _with_real_start(x: DistributedArray) -> DistributedArray:
    """`x` without the imaginary parts of the first elements of its last axis."""
    numbers = arange(x.shape[-1], layout=Layout.of(x.mesh, x.layout.dims[-1:]))
    return where(numbers == 0, astype(real(x), x.dtype), x)


def _joined_vjp(
    g: Any, out: Any, x: Any, backwards: Any, *, inverse: bool = False, scale: float = 1.0
) -> tuple[DistributedArray, DistributedArray]:
    first = weighted(g, inverse=inverse, scale=scale)
    second = conj(weighted(g, inverse=inverse, scale=scale, other=True))
    if inverse:
        first, second = _with_real_start(first), _with_real_start(second)
    return like(first, x), like(second, backwards)


joined.vjp(joint=_joined_vjp)
