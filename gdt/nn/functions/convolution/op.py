"""Convolution and transposed convolution of images that may be split along any axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gdt.array.array import DistributedArray
from gdt.array.operands import as_operands
from gdt.array.registry import public
from gdt.errors import ArgumentError, ShapeError, error
from gdt.nn.functions.convolution.tiles import Numbers, convolution_input_gradient, convolve_tiles
from gdt.nn.functions.convolution.windows import WindowSteps
from gdt.ops.blocks.windows import (
    Padding,
    Tiling,
    Windows,
    one_for_each_axis,
    paddings_of,
    plain_tiling,
    tiled,
    tiling_of,
    untiled,
    windows_of,
    without_fill,
)

__all__ = ["convolution", "transposed_convolution"]


def tilings_of(x: DistributedArray, windows: Sequence[Windows]) -> list[Tiling]:
    """Return the tiles that windows cover along the spatial axes of x, its last but for one."""
    first = x.ndim - len(windows) - 1
    return [
        tiling_of(along, first + 2 * i, x.layout.dims[first + i], x.mesh)
        for i, along in enumerate(windows)
    ]


def tile_images(
    x: DistributedArray, hows: Sequence[Tiling], fill: bytes | int = 0
) -> DistributedArray:
    """Return images with every spatial axis cut into tiles."""
    for how in hows:
        x = tiled(x, how, fill)
    return x


def join_tiles(y: DistributedArray, hows: Sequence[Tiling]) -> DistributedArray:
    """Return tiled images with every pair of axes (tiles, length) as the axis that was tiled."""
    for i, how in enumerate(hows):
        y = untiled(y, how._replace(dim=how.dim - i))
    return y


def shards_of(windows: Sequence[Windows], hows: Sequence[Tiling]) -> list[Tiling]:
    """Return the tilings of results into shards: a shard for every tile of the images."""
    return [
        plain_tiling(along.number, how.dim, len(how.starts), how.axes)
        for along, how in zip(windows, hows, strict=True)
    ]


def _checked(
    name: str, x: Any, kernel: Any, groups: int, channels: int
) -> tuple[DistributedArray, DistributedArray]:
    """Return the operands as arrays, or raise ShapeError unless the channels of x fit the kernel.

    channels: the axis of the kernel that x meets.
    """
    x, kernel = as_operands(name, x=x, kernel=kernel)
    operands = {"x": x.type, "kernel": kernel.type}
    rank = kernel.ndim - 2
    if rank < 1 or x.ndim < rank + 1:
        problem = f"x of rank {x.ndim} and a kernel of rank {kernel.ndim} do not fit"
        remedy = "x is (..., H, W, channels), and the kernel (taps, taps, channels, results)."
        raise error(ShapeError, problem, operands=operands, remedy=remedy)
    if groups < 1 or kernel.shape[-1] % groups:
        problem = f"{groups} groups do not divide {kernel.shape[-1]} results"
        raise error(ShapeError, problem, operands=operands)
    kernel_channels = kernel.shape[channels] * (groups if channels == -2 else 1)
    if x.shape[-1] != kernel_channels:
        problem = f"x has {x.shape[-1]} channels, and the kernel is for {kernel_channels}"
        raise error(ShapeError, problem, operands=operands)
    return x, kernel


@public
def convolution(
    x: Any,
    kernel: Any,
    strides: int | Sequence[int] = 1,
    padding: Padding = "valid",
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> DistributedArray:
    """Convolve images of any number of spatial axes with a kernel, as neural networks do: the
    kernel is not turned around.

    x: (..., H, W, channels). kernel: (taps, taps, channels / groups, results), an axis of taps for
    every spatial axis. Result: (..., results along H, along W, results).
    strides, dilation: an int, or one for each spatial axis.
    padding: `"valid"`, `"same"` as in TF and Keras (of an odd number of zeros one more comes after
    the image), an int, or for each spatial axis an int or a pair (before, after).
    groups: neighbouring channels that meet only their own part of the results; as many groups as
    channels are a depthwise convolution.

    Any axis may be split. Along split spatial axes each device receives the rows and columns that
    its results need and does not hold (halo exchange), and the results are split alike. A split of
    the channels gives partial sums. Products of float16 are added in float32. Channels-first images
    are transposed: `gdt.moveaxis(x, 1, -1)`.

    On GPUs cuDNN convolves images of float32 and float16 with up to three spatial axes, where its
    frontend is installed (the extras cudnn12 and cudnn13). Elsewhere gdt's matrix products do, or
    cuBLAS's, as `gdt.matmul_backend` says; `gdt.explain` shows which.

    Raises ShapeError for operands that do not fit, ArgumentError for other arguments out of range.
    Source: `tf.nn.convolution`.

    >>> x = gdt.reshape(gdt.arange(6.0), (1, 6, 1))
    >>> gdt.convolution(x, gdt.ones((3, 1, 1)), padding="same").tolist()
    [[[1.0], [3.0], [6.0], [9.0], [12.0], [9.0]]]
    """
    x, kernel = _checked("convolution", x, kernel, groups, -2)
    taps = kernel.shape[:-2]
    pixels = x.shape[-len(taps) - 1 : -1]
    windows = windows_of("convolution", pixels, taps, strides, padding, dilation)
    images, results, numbers, how = _tilings(x, windows, groups)
    y = convolve_tiles(tile_images(x, images), kernel, numbers=numbers, how=how)
    return join_tiles(y, results)


def on_tiles(
    windows: Sequence[Windows], hows: Sequence[Tiling], groups: int = 1
) -> tuple[Numbers, WindowSteps]:
    """Return the number of results of a tile, and the windows, as ops of tiles take them."""
    numbers = tuple(
        -(-along.number // len(how.starts)) for along, how in zip(windows, hows, strict=True)
    )
    taps, strides, dilation = (
        tuple(getattr(along, name) for along in windows) for name in ("taps", "stride", "dilation")
    )
    return numbers, WindowSteps(taps, strides, dilation, groups)


def _tilings(
    x: DistributedArray, windows: Sequence[Windows], groups: int
) -> tuple[list[Tiling], list[Tiling], Numbers, WindowSteps]:
    """Return the tilings of images and of results, and what `on_tiles` does. Zeros around an axis
    that is whole are not in its tile: ops add them where they compute.

    x: the images or the results, whose layout they have.
    """
    with_zeros = tilings_of(x, windows)
    numbers, how = on_tiles(windows, with_zeros, groups)
    images, padding = zip(*map(without_fill, with_zeros), strict=True)
    return [*images], shards_of(windows, with_zeros), numbers, how._replace(padding=padding)


@public
def transposed_convolution(
    x: Any,
    kernel: Any,
    strides: int | Sequence[int] = 1,
    padding: Padding = "valid",
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    output_padding: int | Sequence[int] = 0,
) -> DistributedArray:
    """Spread images with a kernel: the gradient of `convolution` in its images, as a function.

    x: (..., H, W, results). kernel: that of the convolution, (taps, taps, channels / groups,
    results). Result: (..., H', W', channels). H' is H * stride for padding `"same"`, and at least
    that for `"valid"`; for numbers it is (H - 1) * stride + reach - before - after +
    output_padding, with the reach (taps - 1) * dilation + 1 of a window.

    Splits and errors are as of `convolution`. Source: `tf.nn.conv_transpose`.

    >>> x = gdt.reshape(gdt.asarray([1.0, 2.0]), (1, 2, 1))
    >>> gdt.transposed_convolution(x, gdt.ones((2, 1, 1)), strides=2).tolist()
    [[[1.0], [1.0], [2.0], [2.0]]]
    """
    name = "transposed_convolution"
    x, kernel = _checked(name, x, kernel, groups, -1)
    taps, rank = kernel.shape[:-2], kernel.ndim - 2
    extra = one_for_each_axis(name, "output_padding", output_padding, rank, 0)
    steps = one_for_each_axis(name, "strides", strides, rank, 1)
    dilations = one_for_each_axis(name, "dilation", dilation, rank, 1)
    pads, pixels = paddings_of(name, padding, rank), []
    if isinstance(pads, str) and any(extra):
        problem = f"output_padding is {output_padding!r}, and padding is {padding!r}"
        remedy = "It goes with a padding of numbers, such as padding=0."
        raise error(ArgumentError, problem, remedy=remedy)
    for i, (m, k, s, d) in enumerate(
        zip(x.shape[-rank - 1 : -1], taps, steps, dilations, strict=True)
    ):
        reach = (k - 1) * d + 1
        if isinstance(pads, str):
            pixels.append(m * s + (max(reach - s, 0) if pads == "valid" else 0))
        else:
            pixels.append((m - 1) * s + reach - sum(pads[i]) + extra[i])
    if min(pixels) < 0:
        axis = pixels.index(min(pixels))
        problem = f"padding {padding!r} leaves {pixels[axis]} elements along axis {axis}"
        raise error(ShapeError, problem, operands={"x": x.type}, remedy="Pass a smaller one.")
    windows = windows_of(name, pixels, taps, steps, padding, dilations)
    if [along.number for along in windows] != [*x.shape[-rank - 1 : -1]]:
        problem = f"output_padding {output_padding} is not below strides {strides}"
        raise error(ArgumentError, problem)
    images, results, numbers, how = _tilings(x, windows, groups)
    tiles = convolution_input_gradient(tile_images(x, results), kernel, numbers=numbers, how=how)
    return join_tiles(tiles, images)
