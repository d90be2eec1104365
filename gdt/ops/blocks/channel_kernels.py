"""The kernels of moments and of batch normalisation: blocks as (mesh axes..., outer, channels,
inner).

They apply where statistics are one for each channel, and channels are one axis, or neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gdt.cuda import launches
from gdt.engine.launcher import Launcher
from gdt.engine.plan import Shards
from gdt.ops.blocks.sums import valid_elements

Block = Any


class Channels(NamedTuple):
    """The channels of a block: their place among its dims, and their sizes."""

    mesh_ndim: int
    dims: tuple[int, ...]  # of the block behind the mesh axes
    first: int  # dims first:last are channels
    last: int

    @property
    def sizes(self) -> tuple[int, int, int]:
        """outer, channels, inner"""
        dims = self.dims
        return (
            math.prod(dims[: self.first]),
            math.prod(dims[self.first : self.last]),
            math.prod(dims[self.last :]),
        )

    def data(self, launcher: Launcher, x: Block) -> Block:
        """A block as (mesh axes..., outer, channels, inner)."""
        return launcher.contiguous(x).reshape(*x.shape[: self.mesh_ndim], *self.sizes)

    def vector(self, launcher: Launcher, a: Block) -> Block:
        """`a`, which has one number per channel, as (mesh axes..., channels) in the dtype of
        sums."""
        shape = a.shape[self.mesh_ndim :]
        channel_shape = shape[self.first : self.last]
        if math.prod(shape) != math.prod(channel_shape):
            raise launcher.refused(f"an operand of shape {list(shape)} is not one for each channel")
        a = a.reshape(*a.shape[: self.mesh_ndim], *channel_shape)
        channels = self.dims[self.first : self.last]
        if channel_shape != channels:
            a = launcher.xp.broadcast_to(a, (*a.shape[: self.mesh_ndim], *channels))
        a = a.reshape(*a.shape[: self.mesh_ndim], self.sizes[1])
        return launcher.contiguous(a.astype(sum_dtype(a.dtype), copy=False))

    def constant(self, launcher: Launcher, number: float, dtype: np.dtype) -> Block:
        """The same number for every channel."""
        shape = (1,) * self.mesh_ndim + (self.sizes[1],)
        wide = sum_dtype(dtype)
        return launcher.keep(f"{number}", lambda: launcher.xp.full(shape, number, wide))


def sum_dtype(dtype: np.dtype) -> np.dtype:
    """The dtype in which the kernels add up elements of `dtype`."""
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)


def _channels(launcher: Launcher, x: Block, kept: Sequence[int]) -> Channels:
    """The channels are the dims `kept`, counted behind the mesh axes."""
    mesh_ndim = launcher.mesh_ndim
    dims = tuple(x.shape[mesh_ndim:])
    if list(kept) != list(range(kept[0], kept[-1] + 1) if kept else ()):
        raise launcher.refused(f"axes {list(kept)} of statistics are not neighbours")
    first = kept[0] if kept else len(dims)
    return Channels(mesh_ndim, dims, first, first + len(kept))


def _channels_of(launcher: Launcher, x: Block, vector: Block) -> Channels:
    """The channels are the dims in which `vector` is not 1."""
    if x.ndim != vector.ndim:
        raise launcher.refused(f"ranks {x.ndim} and {vector.ndim} of blocks differ")
    shape = vector.shape[launcher.mesh_ndim :]
    return _channels(launcher, x, [i for i, n in enumerate(shape) if n != 1])


def _pair(launcher: Launcher, a: Block, b: Block) -> tuple[Block, Block]:
    """Two vectors that a kernel walks in the same way."""
    shape = np.broadcast_shapes(a.shape, b.shape)
    vectors = (launcher.contiguous(launcher.xp.broadcast_to(v, shape)) for v in (a, b))
    first, second = vectors
    return first, second


def _same_dtype(launcher: Launcher, x: Block, *others: Block) -> None:
    dtypes = [a.dtype for a in others if hasattr(a, "dtype")]
    if any(launcher.xp.result_type(x.dtype, d) != x.dtype for d in dtypes):
        raise launcher.refused(f"operands of {x.dtype} and {dtypes} are computed in another dtype")


# ---------------------------------------------------------------- the kernels


def moments_kernel(
    launcher: Launcher,
    x: Block,
    /,
    axes: Sequence[int],
    keepdims: bool = False,
    *,
    shards: Shards,
    **_: Any,
) -> tuple[Block, ...]:
    """`gdt.moments`: mean and variance, and for Chan's merge what each mean lost in rounding (which
    the kernel does not know: 0) and the number of elements."""
    xp, mesh_ndim, rank = launcher.xp, launcher.mesh_ndim, x.ndim - launcher.mesh_ndim
    gone = {a + rank for a in axes}
    where = _channels(launcher, x, [i for i in range(rank) if i not in gone])
    outer, channels, inner = where.sizes
    uneven = {i for i in gone if f"d{i}" in shards.uneven}
    if not outer * inner:
        raise launcher.refused("there are no elements")
    valid = elements = None
    if uneven:
        if uneven != {0} or where.first == 0:
            raise launcher.refused("padding is not at the end of the outermost axis")
        valid = launcher.keep("valid", lambda: _valid_rows(launcher, x, outer, shards))
        elements = launcher.keep(
            "elements", lambda: valid_elements(xp, x, axes, shards)[1].astype(sum_dtype(x.dtype))
        )
    shape, wide = x.shape[:mesh_ndim], sum_dtype(x.dtype).name
    items = math.prod(shape)
    merged, variance = (launcher.empty(s, wide) for s in ((items, 3, channels), (items, channels)))
    data = where.data(launcher, x)
    launcher.run(
        launches.bn_moments(
            data, merged, variance, launcher.empty, valid=valid, mesh_ndim=mesh_ndim
        )
    )
    if uneven:  # the variance of no elements is 0 there, as in the op's body
        variance = merged[:, 2] / xp.maximum(merged[:, 0], 1)
    out_shape = tuple(1 if i in gone else n for i, n in enumerate(where.dims))
    if not keepdims:
        out_shape = tuple(n for i, n in enumerate(where.dims) if i not in gone)
    mean, variance = (
        launcher.contiguous(a).reshape(*shape, *out_shape) for a in (merged[:, 1], variance)
    )
    if not any(f"d{i}" in shards.split for i in gone):
        return mean, variance
    rest = launcher.keep("rest", lambda: xp.zeros_like(mean))
    if elements is None:
        return mean, variance, rest
    return mean, variance, rest, elements if keepdims else xp.squeeze(elements, axis=tuple(axes))


def _valid_rows(launcher: Launcher, x: Block, outer: int, shards: Shards) -> Block:
    """The number of rows along `outer` that are no padding: int32, one for each item."""
    xp, mesh_ndim = launcher.xp, launcher.mesh_ndim
    each = shards.valid["d0"] * (outer // x.shape[mesh_ndim])
    return xp.ascontiguousarray(xp.broadcast_to(each, x.shape[:mesh_ndim]).reshape(-1), np.int32)


def normalize_kernel(
    launcher: Launcher,
    x: Block,
    mean: Block,
    variance: Block,
    offset: Block,
    scale: Block,
    /,
    epsilon: float,
    *,
    block_shape: tuple[int, ...],
    out: Block = None,
) -> Block:
    """(x - mean) / sqrt(variance + epsilon) * scale + offset."""
    if x.shape != block_shape:
        raise launcher.refused(f"x of {x.shape} is broadcast to {block_shape}")
    _same_dtype(launcher, x, mean, variance, offset, scale)
    where = _channels_of(launcher, x, mean)
    mean, variance = _pair(launcher, *(where.vector(launcher, a) for a in (mean, variance)))
    factor, bias = _factors(launcher, where, x.dtype, scale, offset)
    dtype = launcher.result_dtype(x.dtype)
    y = launcher.empty(x.shape, dtype) if out is None else out
    data, result = (where.data(launcher, a) for a in (x, y))
    launcher.run(
        launches.bn_apply(
            data, mean, variance, factor, bias, result, eps=epsilon, mesh_ndim=launcher.mesh_ndim
        )
    )
    return y


def _factors(
    launcher: Launcher, where: Channels, dtype: np.dtype, scale: Any, offset: Any
) -> tuple[Block | None, Block | None]:
    """Scale and offset as vectors; None where they change nothing."""
    factor, bias = (
        where.vector(launcher, value)
        if hasattr(value, "dtype")
        else None
        if value == neutral
        else where.constant(launcher, value, dtype)
        for value, neutral in ((scale, 1.0), (offset, 0.0))
    )
    return (factor, bias) if factor is None or bias is None else _pair(launcher, factor, bias)


def batch_norm_sums_kernel(
    launcher: Launcher, g: Block, xhat: Block, /, axes: Sequence[int], keepdims: bool
) -> tuple[Block, Block]:
    """sum(g) and sum(g * xhat) over `axes`."""
    _same_dtype(launcher, g, xhat)
    mesh_ndim, rank = launcher.mesh_ndim, g.ndim - launcher.mesh_ndim
    gone = {a + rank for a in axes}
    where = _channels(launcher, xhat, [i for i in range(rank) if i not in gone])
    shape = np.broadcast_shapes(g.shape[:mesh_ndim], xhat.shape[:mesh_ndim])
    sums = launcher.empty((math.prod(shape), 2, where.sizes[1]), sum_dtype(g.dtype))
    data, dy = (where.data(launcher, a) for a in (xhat, g))
    launcher.run(launches.bn_sums(data, dy, sums, launcher.empty, mesh_ndim=mesh_ndim))
    out_shape = tuple(
        1 if i in gone else n for i, n in enumerate(where.dims) if keepdims or i not in gone
    )
    dtype = launcher.result_dtype(g.dtype)
    first, second = (
        launcher.contiguous(sums[:, i].astype(dtype, copy=False)).reshape(*shape, *out_shape)
        for i in (0, 1)
    )
    return first, second


def batch_norm_gradient_kernel(
    launcher: Launcher,
    g: Block,
    xhat: Block,
    g_sum: Block,
    product_sum: Block,
    variance: Block,
    scale: Block,
    /,
    epsilon: float,
    count: int,
    *,
    out: Block = None,
) -> Block:
    """scale / sqrt(variance + epsilon) * (g - (g_sum + xhat * product_sum) / count)."""
    if g.shape != xhat.shape:
        raise launcher.refused(f"g of {g.shape} and xhat of {xhat.shape} broadcast")
    _same_dtype(launcher, g, xhat, g_sum, product_sum, variance, scale)
    where = _channels_of(launcher, xhat, variance)
    factor, _ = _factors(launcher, where, g.dtype, scale, 0.0)
    first, second, variance = (where.vector(launcher, a) for a in (g_sum, product_sum, variance))
    number = where.constant(launcher, float(max(count, 1)), g.dtype)
    dx = launcher.empty(g.shape, launcher.result_dtype(g.dtype)) if out is None else out
    data, dy, result = (where.data(launcher, a) for a in (xhat, g, dx))
    launcher.run(
        launches.bn_backward(
            data,
            dy,
            variance,
            factor,
            first,
            second,
            number,
            result,
            eps=epsilon,
            mesh_ndim=launcher.mesh_ndim,
        )
    )
    return dx
