"""Keras' convolutions, pools and rearrangements of images, by gdt's of channels last."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from keras.src.backend import config
from keras.src.backend.common.backend_utils import (
    check_conv_input_channels,
    check_conv_transpose_input_channels,
    compute_conv_transpose_output_crops_for_torch,
)

import gdt
from gdt.array.array import DistributedArray
from gdt.interop.keras.backend.numpy import promoted_arrays
from gdt.interop.keras.backend.variables import convert_to_tensor

Sizes = int | Sequence[int]


def _with_channels_last(
    function: Callable[..., DistributedArray], x: Any, data_format: str | None
) -> DistributedArray:
    """Return `function` of images with their channels last, with those of the result where `x` has
    them."""
    if config.standardize_data_format(data_format) == "channels_last":
        return function(x)
    return gdt.moveaxis(function(gdt.moveaxis(x, 1, -1)), -1, 1)


def _checked(padding: str) -> str:
    if padding.lower() not in ("same", "valid"):
        raise ValueError(f"Invalid padding '{padding}', must be 'same' or 'valid'.")
    return padding.lower()


# ---------------------------------------------------------------- convolutions


def conv(
    inputs: Any,
    kernel: Any,
    strides: Sizes = 1,
    padding: str = "valid",
    data_format: str | None = None,
    dilation_rate: Sizes = 1,
) -> DistributedArray:
    """Return the convolution of images (batch, ..., channels) with a kernel (..., channels of a
    group, results)."""
    kernel = convert_to_tensor(kernel)
    inputs = convert_to_tensor(inputs, dtype=kernel.dtype)
    first = config.standardize_data_format(data_format) == "channels_first"
    channels, taken = inputs.shape[1 if first else -1], kernel.shape[-2]
    if channels % taken:
        raise ValueError(
            "The number of input channels must be evenly divisible by kernel's in_channels. "
            f"Received input channels {channels} and kernel in_channels {taken}. "
        )
    out = _with_channels_last(
        lambda x: gdt.convolution(
            x, kernel, strides, _checked(padding), dilation_rate, channels // taken
        ),
        inputs,
        data_format,
    )
    if out.size == 0 and inputs.size:
        raise ValueError(
            "The convolution operation resulted in an empty output. This can happen if the input "
            "is too small for the given kernel size, strides, dilation rate, and padding mode. "
            "Please check the input shape and convolution parameters."
        )
    return out


def depthwise_conv(
    inputs: Any,
    kernel: Any,
    strides: Sizes = 1,
    padding: str = "valid",
    data_format: str | None = None,
    dilation_rate: Sizes = 1,
) -> DistributedArray:
    """Return the convolution of each channel by itself, with a kernel (..., channels, results of
    each)."""
    data_format = config.standardize_data_format(data_format)
    inputs, kernel = convert_to_tensor(inputs), convert_to_tensor(kernel)
    check_conv_input_channels(inputs, kernel, data_format)
    *taps, channels, multiple = kernel.shape
    kernel = gdt.reshape(kernel, (*taps, 1, channels * multiple))
    return conv(inputs, kernel, strides, padding, data_format, dilation_rate)


def separable_conv(
    inputs: Any,
    depthwise_kernel: Any,
    pointwise_kernel: Any,
    strides: Sizes = 1,
    padding: str = "valid",
    data_format: str | None = None,
    dilation_rate: Sizes = 1,
) -> DistributedArray:
    """Return the depthwise convolution, mixed at each place by the pointwise kernel."""
    x = depthwise_conv(inputs, depthwise_kernel, strides, padding, data_format, dilation_rate)
    return conv(x, pointwise_kernel, data_format=data_format)


def conv_transpose(
    inputs: Any,
    kernel: Any,
    strides: Sizes = 1,
    padding: str = "valid",
    output_padding: Any = None,
    data_format: str | None = None,
    dilation_rate: Sizes = 1,
) -> DistributedArray:
    """Return images (batch, ..., channels) spread with a kernel (..., results, channels)."""
    data_format = config.standardize_data_format(data_format)
    inputs, kernel = promoted_arrays((inputs, kernel))
    check_conv_transpose_input_channels(inputs, kernel, data_format)
    crops = compute_conv_transpose_output_crops_for_torch(
        input_shape=inputs.shape,
        kernel_shape=kernel.shape,
        strides=strides,
        padding=padding,
        output_padding=output_padding,
        dilation_rate=dilation_rate,
    )
    cut = [(max(before, 0), max(after, 0)) for before, after in crops]
    added = [(max(-before, 0), max(-after, 0)) for before, after in crops]

    def spread(x: DistributedArray) -> DistributedArray:
        out = gdt.transposed_convolution(x, kernel, strides, cut, dilation_rate)
        return gdt.pad(out, [(0, 0), *added, (0, 0)]) if np.any(added) else out

    return _with_channels_last(spread, inputs, data_format)


# ---------------------------------------------------------------- pools


def max_pool(
    inputs: Any,
    pool_size: Sizes,
    strides: Any = None,
    padding: str = "valid",
    data_format: str | None = None,
) -> DistributedArray:
    """Return the maximum of every window."""
    pool = lambda x: gdt.max_pool(x, pool_size, strides, _checked(padding))
    return _with_channels_last(pool, convert_to_tensor(inputs), data_format)


def average_pool(
    inputs: Any,
    pool_size: Sizes,
    strides: Any = None,
    padding: str = "valid",
    data_format: str | None = None,
) -> DistributedArray:
    """Return the mean of every window."""
    pool = lambda x: gdt.average_pool(x, pool_size, strides, _checked(padding))
    return _with_channels_last(pool, convert_to_tensor(inputs), data_format)


def adaptive_average_pool(
    inputs: Any, output_size: Sizes, data_format: str | None = None
) -> DistributedArray:
    """Return means of as many windows as `output_size` says, of about equal lengths."""
    return _adaptive(inputs, output_size, data_format, _means)


def adaptive_max_pool(
    inputs: Any, output_size: Sizes, data_format: str | None = None
) -> DistributedArray:
    """Return maxima of as many windows as `output_size` says, of about equal lengths."""
    return _adaptive(inputs, output_size, data_format, _maxima)


def _adaptive(
    inputs: Any, output_size: Sizes, data_format: str | None, pool: Callable[..., Any]
) -> DistributedArray:
    inputs = convert_to_tensor(inputs)
    rank = inputs.ndim - 2
    if rank not in (1, 2, 3):
        raise ValueError("adaptive pooling supports only 1D/2D/3D inputs")
    first = 2 if config.standardize_data_format(data_format) == "channels_first" else 1
    sizes = (output_size,) * rank if isinstance(output_size, int) else output_size
    for axis, size in enumerate(sizes, first):
        length, numbers = inputs.shape[axis], np.arange(size)
        starts, stops = numbers * length // size, -(-(numbers + 1) * length // size)
        inputs = pool(inputs, axis, starts, stops)
    return inputs


def _means(x: DistributedArray, axis: int, starts: Any, stops: Any) -> DistributedArray:
    """Return means of windows along an axis: a product with the matrix of their weights."""
    at = np.arange(x.shape[axis])[:, None]
    weights = ((starts <= at) & (at < stops)) / (stops - starts)
    product = gdt.tensordot(x, convert_to_tensor(weights.tolist(), x.dtype), axes=(axis, 0))
    return gdt.moveaxis(product, -1, axis)


def _maxima(x: DistributedArray, axis: int, starts: Any, stops: Any) -> DistributedArray:
    """Return maxima of windows along an axis; a shorter window takes its last element twice."""
    width = int(np.max(stops - starts))
    indices = np.minimum(starts[:, None] + np.arange(width), stops[:, None] - 1)
    taken = gdt.take(x, convert_to_tensor(indices.tolist(), "int64"), axis=axis)
    return gdt.max(taken, axis=axis + 1)


# ---------------------------------------------------------------- patches and blocks


def _two(x: Sizes) -> tuple[int, ...]:
    return (x, x) if isinstance(x, int) else tuple(x)


def _identity_kernel(channels: int, taps: Sequence[int], dtype: Any) -> DistributedArray:
    """Return the kernel (*taps, channels, channels * taps) whose results are the elements of a
    window, those of a channel next to each other."""
    count = channels * taps[0] * taps[1]
    kernel = gdt.reshape(gdt.eye(count, dtype=dtype), (channels, *taps, count))
    return gdt.moveaxis(kernel, 0, 2)


def unfold(
    input: Any, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1
) -> DistributedArray:
    """Return the windows (batch, channels * taps, windows) of images (batch, channels, height,
    width)."""
    x = convert_to_tensor(input)
    kernel = _identity_kernel(x.shape[1], _two(kernel_size), x.dtype)
    windows = gdt.convolution(gdt.moveaxis(x, 1, -1), kernel, stride, _two(padding), dilation)
    return gdt.reshape(gdt.moveaxis(windows, -1, 1), (x.shape[0], kernel.shape[-1], -1))


def fold(
    x: Any,
    output_size: Sizes,
    kernel_size: Sizes,
    dilation: Sizes = 1,
    padding: Sizes = 0,
    stride: Sizes = 1,
) -> DistributedArray:
    """Return images (batch, channels, height, width), the sums of windows (batch, channels * taps,
    windows) in their places."""
    x = convert_to_tensor(x)
    taps = _two(kernel_size)
    facts = zip(_two(output_size), taps, _two(dilation), _two(padding), _two(stride), strict=True)
    # Of each axis, how many windows there are, and what they leave over at the end.
    counts = [divmod(n + 2 * p - d * (k - 1) - 1, s) for n, k, d, p, s in facts]
    grid = gdt.reshape(x, (*x.shape[:2], *[count + 1 for count, _ in counts]))
    kernel = _identity_kernel(x.shape[1] // (taps[0] * taps[1]), taps, x.dtype)
    images = gdt.transposed_convolution(
        gdt.moveaxis(grid, 1, -1),
        kernel,
        stride,
        _two(padding),
        dilation,
        output_padding=[rest for _, rest in counts],
    )
    return gdt.moveaxis(images, -1, 1)


def depth_to_space(
    x: Any, block_size: int, data_format: str | None = "channels_last"
) -> DistributedArray:
    """Return images of which each place has become a block of places, made of its channels."""
    b = block_size

    def spread(x: DistributedArray) -> DistributedArray:
        n, h, w, c = x.shape
        # As TF of channels last: the place in a block comes before the channel.
        if data_format == "channels_first":
            blocks = gdt.transpose(gdt.reshape(x, (n, h, w, c // b**2, b, b)), (0, 1, 4, 2, 5, 3))
        else:
            blocks = gdt.transpose(gdt.reshape(x, (n, h, w, b, b, c // b**2)), (0, 1, 3, 2, 4, 5))
        return gdt.reshape(blocks, (n, h * b, w * b, c // b**2))

    return _with_channels_last(spread, convert_to_tensor(x), data_format)


def space_to_depth(
    x: Any, block_size: int, data_format: str | None = "channels_last"
) -> DistributedArray:
    """Return images of which each block of places has become the channels of one place."""
    b = block_size

    def gather(x: DistributedArray) -> DistributedArray:
        n, h, w, c = x.shape
        blocks = gdt.reshape(x, (n, h // b, b, w // b, b, c))
        order = (0, 1, 3, 5, 2, 4) if data_format == "channels_first" else (0, 1, 3, 2, 4, 5)
        return gdt.reshape(gdt.transpose(blocks, order), (n, h // b, w // b, c * b**2))

    return _with_channels_last(gather, convert_to_tensor(x), data_format)
