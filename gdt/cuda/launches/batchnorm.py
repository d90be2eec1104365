"""Launches of batchnorm.cu: moments, their merge, and both directions of the normalisation."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

from gdt.cuda.compiler import C_DTYPES, Instance, KernelCall, constants, declarations
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
from gdt.errors import KernelError, error

FILE = "batchnorm.cu"
STEPS_OF_THREAD = 4  # that a thread takes before its sum is split
BLOCKS_MAX = 8 * ENOUGH_BLOCKS  # of an elementwise kernel, whose threads then take several packs
MOMENTS = 3  # count, mean, m2
GRADIENT_SUMS = 2  # of g and of g xhat


def batchnorm_instances() -> Iterator[Instance]:
    """Every instance launched here."""
    for t, kernel in product(FLOATS, declarations(FILE)):
        if kernel != "bn_merge":
            yield Instance(FILE, kernel, (t, SUM_TYPES[t]))
    yield from (Instance(FILE, "bn_merge", (wide,)) for wide in ("float", "double"))


def _passes(
    stem: str, x: Array, mesh_ndim: int, items: int
) -> tuple[Instance, tuple[int, ...], tuple[int, ...], dict[str, int]]:
    """Kernel, grid, block and sizes of a reduction of (lead..., outer, channels, inner)."""
    outer, channels, inner = x.shape[mesh_ndim:]
    types = (c_type(x), sum_type(x))
    known = constants(FILE)
    sizes = {"outer": outer, "channels": channels}
    if inner == 1:
        tiles = ceil_div(channels, known["WARP"])
        splits = split_count(tiles * items, ceil_div(outer, STEPS_OF_THREAD * known["ROWS"]))
        instance = Instance(FILE, f"{stem}_columns", types)
        return instance, (tiles, splits, items), (known["WARP"], known["ROWS"]), sizes
    work = ceil_div(outer * inner, STEPS_OF_THREAD * known["THREADS"])
    splits = split_count(channels * items, min(outer, work))
    instance = Instance(FILE, f"{stem}_planes", types)
    return instance, (channels, splits, items), (known["THREADS"],), sizes | {"inner": inner}


def bn_merge(
    parts: Array, merged: Array | None, variance: Array | None, rstd: Array | None, eps: float = 0.0
) -> list[KernelCall]:
    """Chan's merge, in order, of parts (items, count, 3, channels) of (count, mean, m2).

    merged: (items, 3, channels); variance (of the population) and 1 / sqrt(variance + eps):
    (items, channels).
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
    """Moments of x (lead..., outer, channels, inner) over outer and inner; results as `bn_merge`.

    valid: int32 over the flattened leading axes, how many of outer are real.
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
    known = constants(FILE)
    packs = ceil_div(size, known["PACK_BYTES"] // dtype.itemsize * known["THREADS"])
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
    """y = (x - mean) rstd scale + bias, with ReLU if asked; mean... are (lead..., channels)."""
    outer, channels, inner = x.shape[mesh_ndim:]
    _check_twins(mean, rstd, scale, bias)
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


def _check_twins(mean: Array, rstd: Array, scale: Array | None, bias: Array | None) -> None:
    """Pairs that share one set of strides in the kernels' signatures."""
    for a, b in ((mean, rstd), (scale, bias)):
        if a is not None and b is not None and _walk(a) != _walk(b):
            problem = f"mean and rstd, or scale and bias, differ: {a.shape} and {b.shape}"
            raise error(KernelError, "bn_apply", problem)


def _walk(array: Array) -> list[tuple[int, int]]:
    """Sizes and strides that matter."""
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
    """sums (items, 2, channels): of g and of g xhat, where g is dy behind the ReLU."""
    _check_twins(mean, rstd, scale, bias)
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
    """dx from the sums (lead..., 2, channels) and counts (lead..., channels) of the whole batch."""
    outer, channels, inner = x.shape[mesh_ndim:]
    _check_twins(mean, rstd, scale, bias)
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
