"""Launches of batchnorm.cu: moments, their merge, and both directions of the normalisation."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product

from gdt.cuda.launches.calls import (
    FLOATS,
    STEPS_OF_THREAD,
    SUM_TYPES,
    Array,
    Empty,
    Leading,
    c_type,
    ceil_div,
    check_size,
    column_shape,
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
OVER = ("Planes", "Rows")  # where a channel's elements lie side by side, and where channels do
MOMENTS = 3  # count, mean, m2 (the sum of squared differences from the mean)
GRADIENT_SUMS = 2  # the sums of dy and of dy * xhat


def batchnorm_instances() -> Iterator[Instance]:
    """Yield every instance that this module launches."""
    for t, kernel, over in product(FLOATS, declarations(FILE), OVER):
        if kernel != "bn_merge":
            yield Instance(FILE, kernel, (t, SUM_TYPES[t], over))
    yield from (Instance(FILE, "bn_merge", (wide,)) for wide in ("float", "double"))


def _pass(
    kernel: str, x: Array, mesh_ndim: int, items: int
) -> tuple[Instance, tuple[int, ...], tuple[int, ...], dict[str, int]]:
    """Return the kernel, grid, block and size arguments of a pass over x.

    x: (lead..., outer, channels, inner). The second size of the grid is the number of parts into
    which the elements of a channel are cut.
    """
    outer, channels, inner = x.shape[mesh_ndim:]
    sizes = {"outer": outer, "channels": channels, "inner": inner}
    types = (c_type(x), sum_type(x))
    known = constants(FILE)
    pack = known["PACK_BYTES"] // x.dtype.itemsize
    if inner == 1:
        over, block = "Rows", column_shape(FILE, channels, pack)
        blocks, steps = ceil_div(channels, block[0] * pack), ceil_div(outer, block[1])
    else:
        over, block = "Planes", (known["THREADS"], 1)
        blocks, steps = channels, ceil_div(outer * inner, pack * block[0])
    splits = split_count(blocks * items, ceil_div(steps, STEPS_OF_THREAD))
    return Instance(FILE, kernel, (*types, over)), (blocks, splits, items), block, sizes


def _is_one_row(x: Array, mesh_ndim: int, valid: Array | None) -> bool:
    """Whether all elements of an item are one channel without padding, hence in one row."""
    return valid is None and x.shape[mesh_ndim + 1 :] == (1, 1)


def bn_merge(parts: Array, merged: Array | None, variance: Array | None) -> list[KernelCall]:
    """Merge the moments (count, mean, m2) of several parts, in order (Chan et al. 1979).

    parts: (items, count, 3, channels). Results, each of which may be None: merged, the moments of
    all parts, (items, 3, channels); variance, of the population, (items, channels).
    """
    items, count, _, channels = parts.shape
    instance = Instance(FILE, "bn_merge", (c_type(parts),))
    block = column_shape(FILE, channels)
    if 0 in (items, channels):
        return []
    return [
        named_call(
            instance,
            (ceil_div(channels, block[0]), items),
            block,
            parts=parts,
            splits=count,
            channels=channels,
            merged=merged,
            variance=variance,
        )
    ]


def bn_moments(
    x: Array,
    merged: Array | None,
    variance: Array | None,
    empty: Empty,
    *,
    valid: Array | None = None,
    mesh_ndim: int = 0,
) -> list[KernelCall]:
    """Compute the moments of x over outer and inner; the results are those of `bn_merge`.

    x: (lead..., outer, channels, inner). valid: (items,), int32, the number of indices of outer
    that are not padding; None if there is no padding.
    """
    if _is_one_row(x, mesh_ndim, valid):
        x = x.swapaxes(mesh_ndim, mesh_ndim + 2)
    leading = Leading(mesh_ndim, x)
    instance, grid, block, sizes = _pass("bn_moments", x, mesh_ndim, leading.items)
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
    return [first, *bn_merge(parts, merged, variance)]


def bn_apply(
    x: Array,
    mean: Array,
    variance: Array,
    scale: Array | None,
    bias: Array | None,
    y: Array,
    *,
    eps: float,
    mesh_ndim: int = 0,
) -> list[KernelCall]:
    """Compute y = (x - mean) / sqrt(variance + eps) * scale + bias.

    x, y: (lead..., outer, channels, inner); mean, variance, scale, bias: (lead..., channels).
    """
    _check_equal_strides(mean, variance, scale, bias)
    affine = scale if scale is not None else bias
    strided = {"x": x, "mean": mean, "scale": affine}
    own = {"variance": variance, "scale": scale, "bias": bias, "y": y}
    return _elementwise("bn_apply", x, strided, own, eps, mesh_ndim)


def _elementwise(
    kernel: str,
    x: Array,
    strided: dict[str, Array],
    own: dict[str, Array],
    eps: float,
    mesh_ndim: int,
) -> list[KernelCall]:
    """Return the call of a kernel that writes one element for each of x.

    strided: the operands with strides of their own, by name. own: the other arrays, and those of
    `strided` that go by another array's strides. eps: what is added to the variance.
    """
    leading = Leading(mesh_ndim, *strided.values())
    instance, grid, block, sizes = _pass(kernel, x, mesh_ndim, leading.items)
    size = math.prod(x.shape[mesh_ndim:])
    if 0 in (leading.items, size):
        return []
    check_size(instance, size)
    strides = {f"{name}_strides": leading.strides(instance, a) for name, a in strided.items()}
    arguments = {**strided, **own, **strides, **sizes}
    return [named_call(instance, grid, block, axes=leading.axes(instance), eps=eps, **arguments)]


def _check_equal_strides(
    mean: Array, variance: Array, scale: Array | None, bias: Array | None
) -> None:
    """Raise KernelError unless mean and variance, and scale and bias, have equal strides.

    The kernels take one set of strides for each pair."""
    for a, b in ((mean, variance), (scale, bias)):
        if a is not None and b is not None and _sizes_and_strides(a) != _sizes_and_strides(b):
            problem = f"mean and variance, or scale and bias, differ: {a.shape} and {b.shape}"
            raise error(KernelError, "bn_apply", problem)


def _sizes_and_strides(array: Array) -> list[tuple[int, int]]:
    """Return the size and the stride of every axis."""
    return [(n, stride_of(array, axis)) for axis, n in enumerate(array.shape)]


def bn_sums(
    xhat: Array,
    dy: Array,
    sums: Array,
    empty: Empty,
    *,
    valid: Array | None = None,
    mesh_ndim: int = 0,
) -> list[KernelCall]:
    """Compute the sums of dy and of dy * xhat over outer and inner, which `bn_backward` needs.

    xhat, dy: (lead..., outer, channels, inner); sums: (items, 2, channels). valid: as of
    `bn_moments`.
    """
    leading = Leading(mesh_ndim, xhat, dy)
    instance, grid, block, sizes = _pass("bn_sums", xhat, mesh_ndim, leading.items)
    channels, items = sizes["channels"], leading.items
    if 0 in (items, channels):
        return []
    parts = empty((items, grid[1], GRADIENT_SUMS, channels), C_DTYPES[sum_type(xhat)])
    strided = {"xhat": xhat, "dy": dy}
    first = named_call(
        instance,
        grid,
        block,
        **strided,
        **{f"{name}_strides": leading.strides(instance, a) for name, a in strided.items()},
        valid=valid,
        parts=parts,
        axes=leading.axes(instance),
        **sizes,
    )
    columns = GRADIENT_SUMS * channels
    folded = parts.reshape(items, 1, grid[1], columns)
    return [first, *reduce("Sum", folded, sums.reshape(items, 1, columns), empty, mesh_ndim=1)]


def bn_backward(
    xhat: Array,
    dy: Array,
    variance: Array,
    scale: Array | None,
    dy_sum: Array,
    product_sum: Array,
    count: Array,
    dx: Array,
    *,
    eps: float,
    mesh_ndim: int = 0,
) -> list[KernelCall]:
    """Compute dx, the gradient of the normalisation, from the sums of the whole batch.

    dy_sum, product_sum: (lead..., channels), of dy and of dy * xhat, as `bn_sums` computes them.
    count: (lead..., channels), the number of elements that each sum has. variance, scale, eps: as
    of `bn_apply`. The other operands are those of `bn_sums`.
    """
    strided = {"xhat": xhat, "dy": dy, "variance": variance, "scale": scale, "count": count}
    strided |= {"dy_sum": dy_sum, "product_sum": product_sum}
    return _elementwise("bn_backward", xhat, strided, {"dx": dx}, eps, mesh_ndim)
