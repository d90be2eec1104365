"""Launches of batchnorm.cu: moments, their merge, and both directions of the normalisation."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

from gdt.cuda.launches.calls import (
    ENOUGH_BLOCKS,
    FLOATS,
    SUM_TYPES,
    Array,
    Empty,
    Leading,
    c_type,
    ceil_div,
    check_size,
    named_call,
    split_count,
    stride_of,
    sum_type,
)
from gdt.cuda.launches.reduce import reduce
from gdt.cuda.runner import KernelCall
from gdt.cuda.sources import C_DTYPES, Instance, constants, declarations
from gdt.errors import KernelError, error

FILE = "batchnorm.cu"
STEPS_OF_THREAD = 4  # a sum is split where a thread would take more steps
BLOCKS_MAX = 8 * ENOUGH_BLOCKS  # of an elementwise kernel; beyond, a thread takes several packs
MOMENTS = 3  # count, mean, m2 (the sum of squared differences from the mean)
GRADIENT_SUMS = 2  # the sums of g and of g * xhat


def batchnorm_instances() -> Iterator[Instance]:
    """Yield every instance that this module launches."""
    for t, kernel in product(FLOATS, declarations(FILE)):
        if kernel != "bn_merge":
            yield Instance(FILE, kernel, (t, SUM_TYPES[t]))
    yield from (Instance(FILE, "bn_merge", (wide,)) for wide in ("float", "double"))


def _passes(
    stem: str, x: Array, mesh_ndim: int, items: int
) -> tuple[Instance, tuple[int, ...], tuple[int, ...], dict[str, int]]:
    """Return the kernel, grid, block and size arguments of a reduction over outer and inner.

    x: (lead..., outer, channels, inner). stem: the kernel's name before `_columns` (inner is 1) or
    `_planes`. The second size of the grid is the number of parts of each sum.
    """
    outer, channels, inner = x.shape[mesh_ndim:]
    types = (c_type(x), sum_type(x))
    file_constants = constants(FILE)
    sizes = {"outer": outer, "channels": channels}
    if inner == 1:
        tiles = ceil_div(channels, file_constants["WARP"])
        splits = split_count(
            tiles * items, ceil_div(outer, STEPS_OF_THREAD * file_constants["ROWS"])
        )
        instance = Instance(FILE, f"{stem}_columns", types)
        return (
            instance,
            (tiles, splits, items),
            (file_constants["WARP"], file_constants["ROWS"]),
            sizes,
        )
    work = ceil_div(outer * inner, STEPS_OF_THREAD * file_constants["THREADS"])
    splits = split_count(channels * items, min(outer, work))
    instance = Instance(FILE, f"{stem}_planes", types)
    return (
        instance,
        (channels, splits, items),
        (file_constants["THREADS"],),
        sizes | {"inner": inner},
    )


def bn_merge(
    parts: Array, merged: Array | None, variance: Array | None, rstd: Array | None, eps: float = 0.0
) -> list[KernelCall]:
    """Merge the moments (count, mean, m2) of several parts, in order (Chan et al. 1979).

    parts: (items, count, 3, channels). Results, each of which may be None: merged, the moments of
    all parts, (items, 3, channels); variance, of the population, and rstd = 1 / sqrt(variance +
    eps), (items, channels).
    """
    items, count, _, channels = parts.shape
    instance = Instance(FILE, "bn_merge", (c_type(parts),))
    threads = constants(FILE)["THREADS"]
    if 0 in (items, channels):
        return []
    return [
        named_call(
            instance,
            (ceil_div(channels, threads), items),
            (threads,),
            parts=parts,
            splits=count,
            channels=channels,
            eps=eps,
            merged=merged,
            variance=variance,
            rstd=rstd,
        )
    ]


def bn_moments(
    x: Array,
    merged: Array | None,
    variance: Array | None,
    rstd: Array | None,
    empty: Empty,
    *,
    valid: Array | None = None,
    mesh_ndim: int = 0,
    eps: float = 0.0,
) -> list[KernelCall]:
    """Compute the moments of x over outer and inner; the results are those of `bn_merge`.

    x: (lead..., outer, channels, inner). valid: (items,), int32, the number of indices of outer
    that are not padding; None if there is no padding.
    """
    leading = Leading(mesh_ndim, x)
    instance, grid, block, sizes = _passes("bn_moments", x, mesh_ndim, leading.items)
    if 0 in (leading.items, sizes["channels"]):
        return []
    parts = empty((leading.items, grid[1], MOMENTS, sizes["channels"]), C_DTYPES[sum_type(x)])
    first = named_call(
        instance,
        grid,
        block,
        x=x,
        x_strides=leading.strides(instance, x),
        valid=valid,
        parts=parts,
        axes=leading.axes(instance),
        **sizes,
    )
    return [first, *bn_merge(parts, merged, variance, rstd, eps)]


def _elementwise_grid(size: int, items: int, dtype: Any) -> tuple[int, int]:
    """Return the grid of an elementwise kernel over `items` items of `size` elements."""
    file_constants = constants(FILE)
    packs = ceil_div(
        size, file_constants["PACK_BYTES"] // dtype.itemsize * file_constants["THREADS"]
    )
    return max(1, min(packs, ceil_div(BLOCKS_MAX, items))), items


def bn_apply(
    x: Array,
    mean: Array,
    rstd: Array,
    scale: Array | None,
    bias: Array | None,
    y: Array,
    *,
    relu: bool = False,
    mesh_ndim: int = 0,
) -> list[KernelCall]:
    """Compute y = (x - mean) * rstd * scale + bias, with a ReLU if `relu`.

    x, y: (lead..., outer, channels, inner); mean, rstd, scale, bias: (lead..., channels).
    """
    outer, channels, inner = x.shape[mesh_ndim:]
    _check_equal_strides(mean, rstd, scale, bias)
    leading = Leading(mesh_ndim, x, mean, scale if scale is not None else bias)
    instance = Instance(FILE, "bn_apply", (c_type(x), sum_type(x)))
    size = outer * channels * inner
    if 0 in (leading.items, size):
        return []
    check_size(instance, size)
    return [
        named_call(
            instance,
            _elementwise_grid(size, leading.items, x.dtype),
            (constants(FILE)["THREADS"],),
            x=x,
            x_strides=leading.strides(instance, x),
            mean=mean,
            rstd=rstd,
            mean_strides=leading.strides(instance, mean),
            scale=scale,
            bias=bias,
            scale_strides=leading.strides(instance, scale if scale is not None else bias),
            y=y,
            axes=leading.axes(instance),
            outer=outer,
            channels=channels,
            inner=inner,
            relu=int(relu),
        )
    ]


def _check_equal_strides(mean: Array, rstd: Array, scale: Array | None, bias: Array | None) -> None:
    """Raise KernelError unless mean and rstd, and scale and bias, have equal shapes and strides.

    The kernels take one set of strides for each pair."""
    for a, b in ((mean, rstd), (scale, bias)):
        if a is not None and b is not None and _sizes_and_strides(a) != _sizes_and_strides(b):
            problem = f"mean and rstd, or scale and bias, differ: {a.shape} and {b.shape}"
            raise error(KernelError, "bn_apply", problem)


def _sizes_and_strides(array: Array) -> list[tuple[int, int]]:
    """Return the size and the stride of every axis."""
    return [(n, stride_of(array, axis)) for axis, n in enumerate(array.shape)]


def bn_sums(
    x: Array,
    dy: Array,
    mean: Array,
    rstd: Array,
    scale: Array | None,
    bias: Array | None,
    sums: Array,
    empty: Empty,
    *,
    relu: bool = False,
    valid: Array | None = None,
    mesh_ndim: int = 0,
) -> list[KernelCall]:
    """Compute the sums of g and of g * xhat over outer and inner, which `bn_backward` needs.

    x, dy: (lead..., outer, channels, inner); mean, rstd, scale, bias: (lead..., channels); sums:
    (items, 2, channels). g is dy, or 0 where a ReLU was closed; xhat is (x - mean) * rstd. valid:
    as of `bn_moments`.
    """
    _check_equal_strides(mean, rstd, scale, bias)
    affine = scale if scale is not None else bias
    leading = Leading(mesh_ndim, x, dy, mean, affine)
    instance, grid, block, sizes = _passes("bn_sums", x, mesh_ndim, leading.items)
    channels, items = sizes["channels"], leading.items
    if 0 in (items, channels):
        return []
    parts = empty((items, grid[1], GRADIENT_SUMS, channels), C_DTYPES[sum_type(x)])
    first = named_call(
        instance,
        grid,
        block,
        x=x,
        x_strides=leading.strides(instance, x),
        dy=dy,
        dy_strides=leading.strides(instance, dy),
        mean=mean,
        rstd=rstd,
        mean_strides=leading.strides(instance, mean),
        scale=scale,
        bias=bias,
        scale_strides=leading.strides(instance, affine),
        valid=valid,
        parts=parts,
        axes=leading.axes(instance),
        relu=int(relu),
        **sizes,
    )
    columns = GRADIENT_SUMS * channels
    folded = parts.reshape(items, 1, grid[1], columns)
    return [first, *reduce("Sum", folded, sums.reshape(items, 1, columns), empty, mesh_ndim=1)]


def bn_backward(
    x: Array,
    dy: Array,
    mean: Array,
    rstd: Array,
    scale: Array | None,
    bias: Array | None,
    sums: Array,
    count: Array,
    dx: Array,
    *,
    relu: bool = False,
    mesh_ndim: int = 0,
) -> list[KernelCall]:
    """Compute dx, the gradient of the normalisation, from the sums of the whole batch.

    sums: (lead..., 2, channels), as `bn_sums` computes them; count: (lead..., channels), the number
    of elements that each sum has. The other operands are those of `bn_sums`.
    """
    outer, channels, inner = x.shape[mesh_ndim:]
    _check_equal_strides(mean, rstd, scale, bias)
    affine = scale if scale is not None else bias
    leading = Leading(mesh_ndim, x, dy, mean, affine, sums, count)
    instance = Instance(FILE, "bn_backward", (c_type(x), sum_type(x)))
    size = outer * channels * inner
    if 0 in (leading.items, size):
        return []
    check_size(instance, size)
    strided = {"x": x, "dy": dy, "mean": mean, "sums": sums, "count": count, "scale": affine}
    return [
        named_call(
            instance,
            _elementwise_grid(size, leading.items, x.dtype),
            (constants(FILE)["THREADS"],),
            **{f"{name}_strides": leading.strides(instance, a) for name, a in strided.items()},
            **(strided | {"scale": scale}),
            rstd=rstd,
            bias=bias,
            dx=dx,
            axes=leading.axes(instance),
            outer=outer,
            channels=channels,
            inner=inner,
            relu=int(relu),
        )
    ]
