"""Keras' functions of images: colours, resizing, transformations, filters.

Resizing is a product with a matrix of weights along each axis; transformations take the elements
around each place and weigh them. Both are functions of gdt's, with gradients, on any layout.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from keras.src.backend import config
from keras.src.backend.common import is_float_dtype, standardize_dtype

import gdt
from gdt.array.array import DistributedArray
from gdt.interop.keras.backend.numpy import floats, promotion
from gdt.interop.keras.backend.random import key_of
from gdt.interop.keras.backend.variables import convert_to_tensor
from gdt.interop.keras.backend.windows import depthwise_conv

RESIZE_INTERPOLATIONS = ("bilinear", "nearest", "lanczos3", "lanczos5", "bicubic")
AFFINE_TRANSFORM_INTERPOLATIONS = {"nearest": 0, "bilinear": 1}
AFFINE_TRANSFORM_FILL_MODES = MAP_COORDINATES_FILL_MODES = (
    "constant",
    "nearest",
    "wrap",
    "mirror",
    "reflect",
)


def _is_one_of(name: str, value: Any, allowed: Any) -> None:
    if value not in allowed:
        raise ValueError(
            f"Invalid value for argument `{name}`. Expected of one {set(allowed)}. "
            f"Received: {name}={value}"
        )


def _channels_axis(images: DistributedArray, data_format: str | None) -> int:
    """Return the axis of the channels of images, whose rank is checked."""
    if images.ndim not in (3, 4):
        raise ValueError(
            "Invalid images rank: expected rank 3 (single image) or rank 4 (batch of images). "
            f"Received input with shape: images.shape={images.shape}"
        )
    return -1 if config.standardize_data_format(data_format) == "channels_last" else -3


def _in_batches(
    function: Callable[[DistributedArray], DistributedArray],
    images: DistributedArray,
    data_format: str | None,
) -> DistributedArray:
    """Return `function` of images (batch, height, width, channels), in the form of `images`."""
    axis = _channels_axis(images, data_format)
    batch = images if images.ndim == 4 else images[None]
    out = gdt.moveaxis(function(gdt.moveaxis(batch, axis, -1)), -1, axis)
    return out if images.ndim == 4 else out[0]


# ---------------------------------------------------------------- colours


def rgb_to_grayscale(images: Any, data_format: str | None = None) -> DistributedArray:
    """Return images of one channel: how bright the colours are."""
    images = convert_to_tensor(images)
    axis = _channels_axis(images, data_format)
    if images.shape[axis] not in (1, 3):
        raise ValueError(
            "Invalid channel size: expected 3 (RGB) or 1 (Grayscale). "
            f"Received input with shape: images.shape={images.shape}"
        )
    if images.shape[axis] == 1:
        return images
    red, green, blue = gdt.split(floats(images), 3, axis=axis)
    return gdt.astype(0.2989 * red + 0.5870 * green + 0.1140 * blue, images.dtype)


def _colours(images: Any, data_format: str | None) -> tuple[DistributedArray, int]:
    images = convert_to_tensor(images)
    axis = _channels_axis(images, data_format)
    dtype = standardize_dtype(images.dtype)
    if not is_float_dtype(dtype):
        raise ValueError(
            f"Invalid images dtype: expected float dtype. Received: images.dtype={dtype}"
        )
    return images, axis


def rgb_to_hsv(images: Any, data_format: str | None = None) -> DistributedArray:
    """Return hue, saturation and value of colours."""
    images, axis = _colours(images, data_format)
    epsilon = float(gdt.finfo(images.dtype).eps)
    r, g, b = gdt.split(gdt.where(gdt.abs(images) < epsilon, 0, images), 3, axis=axis)
    value = gdt.maximum(gdt.maximum(r, g), b)
    spread = value - gdt.minimum(gdt.minimum(r, g), b)
    saturation = gdt.where(value > 0, spread / gdt.where(value > 0, value, 1), 0)
    unit = 1 / (6 * gdt.where(spread > 0, spread, 1))
    hue = gdt.where(value == g, unit * (b - r) + 2 / 6, unit * (r - g) + 4 / 6)
    hue = gdt.where(value == r, unit * (g - b), hue)
    hue = gdt.where(spread > 0, gdt.where(hue < 0, hue + 1, hue), 0)
    return gdt.concat([hue, saturation, value], axis=axis)


def hsv_to_rgb(images: Any, data_format: str | None = None) -> DistributedArray:
    """Return the colours of hue, saturation and value."""
    images, axis = _colours(images, data_format)
    hue, saturation, value = gdt.split(images, 3, axis=axis)
    sixth = gdt.mod(hue, 1.0) * 6
    shares = (
        gdt.abs(sixth - 3) - 1,
        2 - gdt.abs(sixth - 2),
        2 - gdt.abs(sixth - 4),
    )
    parts = [value * (1 - saturation + saturation * gdt.clip(share, 0, 1)) for share in shares]
    return gdt.concat(parts, axis=axis)


# ---------------------------------------------------------------- resizing


def _triangle(x: Any) -> Any:
    return gdt.maximum(0, 1 - x)


def _cubic(x: Any) -> Any:
    """Return the kernel of Keys 1981, "Cubic convolution interpolation", with a = -1/2."""
    inner = ((1.5 * x - 2.5) * x) * x + 1
    outer = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return gdt.where(x >= 2, 0, gdt.where(x >= 1, outer, inner))


def _lanczos(radius: int) -> Callable[[Any], Any]:
    def kernel(x: Any) -> Any:
        return gdt.where(x > radius, 0, gdt.sinc(x) * gdt.sinc(x / radius))

    return kernel


KERNELS = {
    **dict.fromkeys(("linear", "bilinear", "trilinear"), _triangle),
    **dict.fromkeys(("cubic", "bicubic", "tricubic"), _cubic),
    "lanczos3": _lanczos(3),
    "lanczos5": _lanczos(5),
}


def _weights(
    size: int, result_size: int, scale: Any, translation: Any, method: str, antialias: bool
) -> DistributedArray:
    """Return the weights (size, result_size) of each element in each result, float32."""
    place = gdt.arange(result_size, dtype="float32")
    place = (place + 0.5) / scale - translation / scale - 0.5
    distance = gdt.abs(place - gdt.arange(size, dtype="float32")[:, None])
    if antialias:  # a smaller image takes the mean of more elements
        distance = distance / gdt.maximum(1 / scale, 1.0)
    weights = KERNELS[method](distance)
    total = gdt.sum(weights, axis=0, keepdims=True)
    is_zero = gdt.abs(total) <= 1000 * float(np.finfo(np.float32).eps)
    weights = gdt.where(is_zero, 0, weights / gdt.where(is_zero, 1, total))
    return gdt.where((place >= -0.5) & (place <= size - 0.5), weights, 0)


def scale_and_translate(
    images: Any,
    output_shape: Sequence[int],
    scale: Any,
    translation: Any,
    spatial_dims: Sequence[int],
    method: str,
    antialias: bool = True,
) -> DistributedArray:
    """Return images of another shape, scaled and moved along axes."""
    _is_one_of("method", method, KERNELS)
    scale, translation = (
        convert_to_tensor(scale, "float32"),
        convert_to_tensor(translation, "float32"),
    )
    facts = [(axis, scale[i], translation[i]) for i, axis in enumerate(spatial_dims)]
    return _scaled(convert_to_tensor(images), output_shape, facts, method, antialias)


def _scaled(
    x: DistributedArray,
    shape: Sequence[int],
    facts: Sequence[tuple[int, Any, Any]],
    method: str,
    antialias: bool,
) -> DistributedArray:
    """Return `x` with the lengths of `shape` along axes; facts: of each its number, its scale and
    how far it moves."""
    out = floats(x)
    for axis, scale, translation in facts:
        weights = _weights(x.shape[axis], shape[axis], scale, translation, method, antialias)
        weights = gdt.astype(weights, out.dtype)
        out = gdt.moveaxis(gdt.tensordot(out, weights, axes=(axis, 0)), -1, axis)
    if x.dtype.kind in "iu" and facts:
        out = gdt.clip(gdt.round(out), gdt.min(x), gdt.max(x))
    return gdt.astype(out, x.dtype)


def resize(
    images: Any,
    size: Sequence[int],
    interpolation: str = "bilinear",
    antialias: bool = False,
    crop_to_aspect_ratio: bool = False,
    pad_to_aspect_ratio: bool = False,
    fill_mode: str = "constant",
    fill_value: float = 0.0,
    data_format: str | None = None,
) -> DistributedArray:
    """Return images of another height and width."""
    _is_one_of("interpolation", interpolation, RESIZE_INTERPOLATIONS)
    if fill_mode != "constant":
        raise ValueError(
            "Invalid value for argument `fill_mode`. Only `'constant'` is supported. "
            f"Received: fill_mode={fill_mode}"
        )
    if pad_to_aspect_ratio and crop_to_aspect_ratio:
        raise ValueError(
            "Only one of `pad_to_aspect_ratio` & `crop_to_aspect_ratio` can be `True`."
        )
    if len(size) != 2:
        raise ValueError(
            "Argument `size` must be a tuple of two elements (height, width). "
            f"Received: size={size}"
        )
    images = convert_to_tensor(images)
    first = -3 if _channels_axis(images, data_format) == -1 else -2
    axes = (images.ndim + first, images.ndim + first + 1)
    if crop_to_aspect_ratio or pad_to_aspect_ratio:
        images = _with_ratio(images, axes, size, crop_to_aspect_ratio, fill_value)
    shape = list(images.shape)
    facts = []
    for axis, length in zip(axes, size, strict=True):
        shape[axis] = length
        if images.shape[axis] != length:
            facts.append((axis, length / max(images.shape[axis], 1), 0.0))
    if interpolation != "nearest":
        return _scaled(images, shape, facts, interpolation, antialias)
    for axis, _, _ in facts:
        places = (gdt.arange(shape[axis], dtype="float32") + 0.5) * images.shape[axis] / shape[axis]
        images = gdt.take(images, gdt.astype(gdt.floor(places), "int64"), axis=axis)
    return images


def _with_ratio(
    images: DistributedArray, axes: Sequence[int], size: Sequence[int], cuts: bool, fill: float
) -> DistributedArray:
    """Return images of the ratio of `size`: their middle, or with a frame."""
    height, width = (images.shape[axis] for axis in axes)
    wanted = int(float(width * size[0]) / size[1]), int(float(height * size[1]) / size[0])
    for axis, have, want in zip(axes, (height, width), wanted, strict=True):
        if cuts:
            count = max(min(have, want), 1)
            start = (have - count) // 2
            images = images[(slice(None),) * axis + (slice(start, start + count),)]
        elif want > have:
            widths = [(0, 0)] * images.ndim
            widths[axis] = ((want - have) // 2,) * 2
            return gdt.pad(images, widths, constant_values=fill)
    return images


# ---------------------------------------------------------------- transformations


def _mirrored(i: Any, size: int) -> Any:
    """Return where an index outside lands if the image goes on as in a mirror, with its last
    element once."""
    last = max(size - 1, 1)
    return gdt.abs((i + last) % (2 * last) - last)


INSIDE: dict[str, Callable[[Any, int], Any]] = {
    "constant": lambda i, n: gdt.clip(i, 0, n - 1),
    "nearest": lambda i, n: gdt.clip(i, 0, n - 1),
    "wrap": lambda i, n: i % n,
    "mirror": _mirrored,
    "reflect": lambda i, n: (_mirrored(2 * i + 1, 2 * n + 1) - 1) // 2,
}
"""The index of an element in the place of one outside, by the mode of filling."""


def _sampled(
    x: DistributedArray, coordinates: Sequence[Any], order: int, fill_mode: str, fill_value: Any
) -> DistributedArray:
    """Return images (batch, *sizes, channels) at coordinates (batch, *shape), one array for each of
    the sizes: (batch, *shape, channels)."""
    batch, *sizes, channels = x.shape
    wide = gdt.astype(x, promotion(x, "float32"))
    rows = gdt.reshape(wide, (-1, channels))
    rank = coordinates[0].ndim - 1
    first = gdt.reshape(gdt.arange(batch), (batch, *[1] * rank))
    total: Any = 0
    for corner in itertools.product((0, 1) if order else (0,), repeat=len(sizes)):
        index, weight, is_inside = first, 1.0, gdt.asarray(True)
        for c, size, step in zip(coordinates, sizes, corner, strict=True):
            nearest = gdt.floor(c) if order else gdt.floor(gdt.abs(c) + 0.5) * gdt.sign(c)
            at = gdt.astype(nearest, "int64") + step
            index = index * size + INSIDE[fill_mode](at, size)
            if order:
                weight = weight * (c - nearest if step else 1 - (c - nearest))
            is_inside = is_inside & (at >= 0) & (at < size)
        part = gdt.take(rows, index, axis=0)
        if fill_mode == "constant":
            part = gdt.where(is_inside[..., None], part, fill_value)
        total = total + (gdt.astype(weight, wide.dtype)[..., None] * part if order else part)
    return gdt.astype(gdt.round(total) if x.dtype.kind in "iu" else total, x.dtype)


def map_coordinates(
    inputs: Any,
    coordinates: Any,
    order: int,
    fill_mode: str = "constant",
    fill_value: float = 0.0,
) -> DistributedArray:
    """Return the elements at coordinates (rank, ...) between those of an array."""
    inputs, coordinates = convert_to_tensor(inputs), floats(coordinates)
    if coordinates.shape[0] != inputs.ndim:
        raise ValueError(
            "First dim of `coordinates` must be the same as the rank of `inputs`. "
            f"Received inputs with shape: {inputs.shape} and coordinate leading dim of "
            f"{coordinates.shape[0]}"
        )
    if coordinates.ndim < 2:
        raise ValueError(
            "Invalid coordinates rank: expected at least rank 2. "
            f"Received input with shape: {coordinates.shape}"
        )
    _is_one_of("fill_mode", fill_mode, MAP_COORDINATES_FILL_MODES)
    _is_one_of("order", order, (0, 1))
    places = [coordinates[i][None] for i in range(inputs.ndim)]
    return _sampled(inputs[None, ..., None], places, order, fill_mode, fill_value)[0, ..., 0]


def _grid(images: DistributedArray) -> tuple[Any, Any]:
    """Return rows (height, 1) and columns (width,) of images (batch, height, width, channels)."""
    height, width = images.shape[1:3]
    return gdt.arange(height, dtype="float32")[:, None], gdt.arange(width, dtype="float32")


def affine_transform(
    images: Any,
    transform: Any,
    interpolation: str = "bilinear",
    fill_mode: str = "constant",
    fill_value: float = 0,
    data_format: str | None = None,
) -> DistributedArray:
    """Return images at (a0 x + a1 y + a2, b0 x + b1 y + b2), with these numbers and more in
    `transform` (batch, 8)."""
    _is_one_of("interpolation", interpolation, AFFINE_TRANSFORM_INTERPOLATIONS)
    _is_one_of("fill_mode", fill_mode, AFFINE_TRANSFORM_FILL_MODES)
    images, transform = convert_to_tensor(images), convert_to_tensor(transform, "float32")
    _channels_axis(images, data_format)
    if transform.ndim not in (1, 2):
        raise ValueError(
            "Invalid transform rank: expected rank 1 (single transform) or rank 2 (batch of "
            f"transforms). Received input with shape: transform.shape={transform.shape}"
        )
    transform = transform if transform.ndim == 2 else transform[None]
    a0, a1, a2, b0, b1, b2 = (transform[:, i, None, None] for i in range(6))

    def transformed(x: DistributedArray) -> DistributedArray:
        rows, columns = _grid(x)
        places = [b0 * columns + b1 * rows + b2, a0 * columns + a1 * rows + a2]
        places = [gdt.broadcast_to(p, x.shape[:3]) for p in places]
        order = AFFINE_TRANSFORM_INTERPOLATIONS[interpolation]
        return _sampled(x, places, order, fill_mode, fill_value)

    return _in_batches(transformed, images, data_format)


def perspective_transform(
    images: Any,
    start_points: Any,
    end_points: Any,
    interpolation: str = "bilinear",
    fill_value: float = 0,
    data_format: str | None = None,
) -> DistributedArray:
    """Return images of which the start points, (batch, 4, 2), have moved to the end points."""
    _is_one_of("interpolation", interpolation, AFFINE_TRANSFORM_INTERPOLATIONS)
    images = convert_to_tensor(images)
    start, end = (
        convert_to_tensor(start_points, "float32"),
        convert_to_tensor(end_points, "float32"),
    )
    _channels_axis(images, data_format)
    for name, points in (("start_points", start), ("end_points", end)):
        if points.shape[-2:] != (4, 2) or points.ndim not in (2, 3):
            raise ValueError(
                f"Invalid {name} shape: expected (4,2) for a single image or (N,4,2) for a batch. "
                f"Received shape: {points.shape}"
            )
    if start.shape != end.shape:
        raise ValueError(
            "start_points and end_points must have the same shape. Received "
            f"start_points.shape={start.shape}, end_points.shape={end.shape}"
        )
    start, end = (p if p.ndim == 3 else p[None] for p in (start, end))
    matrix = compute_homography_matrix(start, end)
    m = [matrix[:, i, None, None] for i in range(8)]

    def transformed(x: DistributedArray) -> DistributedArray:
        rows, columns = _grid(x)
        depth = m[6] * columns + m[7] * rows + 1
        places = [
            (m[3] * columns + m[4] * rows + m[5]) / depth,
            (m[0] * columns + m[1] * rows + m[2]) / depth,
        ]
        places = [gdt.broadcast_to(p, x.shape[:3]) for p in places]
        order = AFFINE_TRANSFORM_INTERPOLATIONS[interpolation]
        return _sampled(x, places, order, "constant", fill_value)

    return _in_batches(transformed, images, data_format)


def compute_homography_matrix(start_points: Any, end_points: Any) -> DistributedArray:
    """Return the eight numbers of the projection that takes the end points to the start points."""
    start, end = convert_to_tensor(start_points), convert_to_tensor(end_points)
    (sx, sy), (ex, ey) = ((p[..., 0], p[..., 1]) for p in (start, end))
    zero, one = gdt.zeros_like(ex), gdt.ones_like(ex)
    of_x = gdt.stack([ex, ey, one, zero, zero, zero, -sx * ex, -sx * ey], axis=-1)
    of_y = gdt.stack([zero, zero, zero, ex, ey, one, -sy * ex, -sy * ey], axis=-1)
    target = gdt.concat([sx, sy], axis=-1)[..., None]
    return gdt.linalg.solve(gdt.concat([of_x, of_y], axis=1), target)[..., 0]


def elastic_transform(
    images: Any,
    alpha: Any = 20.0,
    sigma: Any = 5.0,
    interpolation: str = "bilinear",
    fill_mode: str = "reflect",
    fill_value: float = 0.0,
    seed: Any = None,
    data_format: str | None = None,
) -> DistributedArray:
    """Return images whose elements have moved by smooth random distances."""
    _is_one_of("interpolation", interpolation, AFFINE_TRANSFORM_INTERPOLATIONS)
    _is_one_of("fill_mode", fill_mode, AFFINE_TRANSFORM_FILL_MODES)
    images = convert_to_tensor(images)
    size = int(6 * float(sigma)) | 1
    keys = gdt.random.split(key_of(seed), 2)

    def transformed(x: DistributedArray) -> DistributedArray:
        places = []
        for start, key in zip(_grid(x), (keys[0], keys[1]), strict=True):
            noise = gdt.random.normal((*x.shape[:3], 1), dtype="float32", key=key) * sigma
            smooth = gaussian_blur(noise, (size, size), (sigma, sigma), "channels_last")
            places.append(start + alpha * smooth[..., 0])
        order = AFFINE_TRANSFORM_INTERPOLATIONS[interpolation]
        return _sampled(x, places, order, fill_mode, fill_value)

    return _in_batches(transformed, images, data_format)


# ---------------------------------------------------------------- filters


def gaussian_blur(
    images: Any,
    kernel_size: Sequence[int] = (3, 3),
    sigma: Any = (1.0, 1.0),
    data_format: str | None = None,
) -> DistributedArray:
    """Return images of which each element is the mean of those around it, by a normal density."""
    images = convert_to_tensor(images)
    sigma = convert_to_tensor(sigma, images.dtype)
    densities = []
    for i, size in enumerate(kernel_size):
        x = (gdt.arange(size, dtype=images.dtype) - (size - 1) / 2) / sigma[i]
        density = gdt.exp(-0.5 * gdt.square(x))
        densities.append(density / gdt.sum(density))
    kernel = gdt.outer(densities[1], densities[0])
    return _in_batches(lambda x: _filtered(x, kernel), images, data_format)


def _filtered(x: DistributedArray, kernel: DistributedArray) -> DistributedArray:
    """Return images (batch, height, width, channels), each channel filtered by a kernel."""
    kernel = gdt.broadcast_to(kernel[..., None, None], (*kernel.shape, x.shape[-1], 1))
    return depthwise_conv(x, kernel, padding="same", data_format="channels_last")


SOBEL = ((-1, 0, 1), (-2, 0, 2), (-1, 0, 1))


def sobel_edges(images: Any, data_format: str | None = None) -> DistributedArray:
    """Return the differences along height and width, side by side along a new last axis."""
    images = convert_to_tensor(images)
    kernel = convert_to_tensor(SOBEL, images.dtype)
    edges = [
        _in_batches(partial(_filtered, kernel=k), images, data_format)
        for k in (gdt.matrix_transpose(kernel), kernel)
    ]
    return gdt.stack(edges, axis=-1)
