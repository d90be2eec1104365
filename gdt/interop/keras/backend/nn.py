"""Keras' functions of neural networks: activations, normalization, losses and attention.

Convolutions and pools are in `windows.py`, CTC in `ctc.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np
from keras.src.backend import config

import gdt
from gdt.array.array import DistributedArray
from gdt.interop.keras.backend.ctc import ctc_decode, ctc_loss
from gdt.interop.keras.backend.numpy import floats, of_one, promoted, promoted_arrays, promotion
from gdt.interop.keras.backend.variables import convert_to_tensor
from gdt.interop.keras.backend.windows import (
    adaptive_average_pool,
    adaptive_max_pool,
    average_pool,
    conv,
    conv_transpose,
    depth_to_space,
    depthwise_conv,
    fold,
    max_pool,
    separable_conv,
    space_to_depth,
    unfold,
)

__all__ = [
    "adaptive_average_pool",
    "adaptive_max_pool",
    "average_pool",
    "conv",
    "conv_transpose",
    "ctc_decode",
    "ctc_loss",
    "depth_to_space",
    "depthwise_conv",
    "fold",
    "max_pool",
    "separable_conv",
    "space_to_depth",
    "unfold",
]

# ---------------------------------------------------------------- activations


def activation(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make an activation: of floating-point numbers, in their dtype."""

    @wraps(function)
    def call(x: Any, *args: Any, **static: Any) -> DistributedArray:
        x = floats(x)
        return convert_to_tensor(function(x, *args, **static), x.dtype)

    return call


relu = of_one(gdt.relu)
sigmoid, tanh, softplus = activation(gdt.sigmoid), activation(gdt.tanh), activation(gdt.softplus)
silu, elu = activation(gdt.silu), activation(gdt.elu)
leaky_relu = activation(gdt.leaky_relu)
softmax, log_softmax = activation(gdt.softmax), activation(gdt.log_softmax)


@activation
def gelu(x: Any, approximate: bool = True) -> Any:
    """Return x times the normal CDF at x, approximated by tanh by default."""
    return gdt.gelu(x, approximate=approximate)


def relu6(x: Any) -> DistributedArray:
    """Return x within 0 and 6."""
    return gdt.clip(convert_to_tensor(x), 0, 6)


@activation
def sparse_sigmoid(x: Any) -> Any:
    """Return 0 up to -1, 1 from 1 on, and a line between."""
    return gdt.clip(0.5 * (x + 1), 0, 1)


@activation
def tanh_shrink(x: Any) -> Any:
    """Return x - tanh(x)."""
    return x - gdt.tanh(x)


@activation
def softsign(x: Any) -> Any:
    """Return x / (1 + |x|)."""
    return x / (1 + gdt.abs(x))


@activation
def soft_shrink(x: Any, threshold: float = 0.5) -> Any:
    """Return x moved by a threshold towards 0, and 0 within the threshold."""
    return x - gdt.clip(x, -threshold, threshold)


@activation
def hard_shrink(x: Any, threshold: float = 0.5) -> Any:
    """Return x, and 0 within a threshold."""
    return gdt.where(gdt.abs(x) > threshold, x, 0)


@activation
def threshold(x: Any, threshold: float, default_value: float) -> Any:
    """Return x above a threshold, and a value in its place elsewhere."""
    return gdt.where(x > threshold, x, default_value)


@activation
def sparse_plus(x: Any) -> Any:
    """Return 0 up to -1, x from 1 on, and a parabola between."""
    return gdt.where(x >= 1, x, gdt.square(gdt.clip(x, -1, 1) + 1) / 4)


@activation
def squareplus(x: Any, b: float = 4) -> Any:
    """Return (x + sqrt(x ** 2 + b)) / 2."""
    return (x + gdt.sqrt(gdt.square(x) + b)) / 2


@activation
def log_sigmoid(x: Any) -> Any:
    """Return the logarithm of the sigmoid."""
    return -gdt.softplus(-x)


@activation
def hard_sigmoid(x: Any) -> Any:
    """Return 0 up to -3, 1 from 3 on, and a line between."""
    return gdt.clip(x + 3, 0, 6) / 6


@activation
def hard_silu(x: Any) -> Any:
    """Return x times its hard sigmoid."""
    return x * hard_sigmoid(x)


@activation
def hard_tanh(x: Any) -> Any:
    """Return x within -1 and 1."""
    return gdt.clip(x, -1, 1)


@activation
def selu(x: Any) -> Any:
    """Return the scaled exponential linear unit (Klambauer et al. 2017)."""
    return 1.0507009873554805 * gdt.elu(x, 1.6732632423543772)


@activation
def celu(x: Any, alpha: float = 1.0) -> Any:
    """Return x above 0, and alpha * (exp(x / alpha) - 1) below (Barron 2017)."""
    return gdt.elu(x / alpha) * alpha


@activation
def glu(x: Any, axis: int = -1) -> Any:
    """Return one half of x times the sigmoid of the other."""
    if x.shape[axis] % 2:
        raise ValueError(f"axis size must be divisible by 2. Received: x.shape={x.shape}, {axis=}")
    first, second = gdt.split(x, 2, axis=axis)
    return first * gdt.sigmoid(second)


@activation
def sparsemax(x: Any, axis: int = -1) -> Any:
    """Return the probabilities that are closest to x (Martins and Astudillo 2016)."""
    descending = gdt.sort(x, axis=axis, descending=True)
    counts = gdt.cumsum(gdt.ones_like(x), axis=axis)
    support = 1 + counts * descending > gdt.cumsum(descending, axis=axis)
    total = gdt.sum(gdt.where(support, descending, 0), axis=axis, keepdims=True)
    size = gdt.sum(gdt.astype(support, x.dtype), axis=axis, keepdims=True)
    return gdt.maximum(x - (total - 1) / size, 0)


# ---------------------------------------------------------------- classes


def one_hot(
    x: Any, num_classes: int, axis: int = -1, dtype: Any = None, sparse: bool = False
) -> DistributedArray:
    """Return 1 at each class along a new axis, 0 elsewhere; of what is no class 0 alone."""
    if sparse:
        raise ValueError("`sparse=True` is not supported: gdt has dense arrays alone.")
    x = convert_to_tensor(x)
    x = x if x.dtype.kind in "iu" else gdt.astype(x, "int32")
    return gdt.one_hot(x, num_classes, axis=axis, dtype=dtype or config.floatx())


def multi_hot(
    x: Any, num_classes: int, axis: int = -1, dtype: Any = None, sparse: bool = False
) -> DistributedArray:
    """Return 1 at each of the classes of a row, 0 elsewhere."""
    x = convert_to_tensor(x)
    return gdt.max(one_hot(x, num_classes, axis, dtype, sparse), axis=1 if x.ndim > 1 else 0)


def _pair(target: Any, output: Any) -> list[DistributedArray]:
    """Return target and output in one dtype; ValueError unless they have one shape."""
    target, output = promoted_arrays((target, output))
    if target.shape != output.shape:
        raise ValueError(
            "Arguments `target` and `output` must have the same shape. Received: "
            f"target.shape={target.shape}, output.shape={output.shape}"
        )
    return [floats(target), floats(output)]


def _clipped(p: DistributedArray) -> DistributedArray:
    """Return probabilities, kept away from 0 and 1."""
    return gdt.clip(p, config.epsilon(), 1.0 - config.epsilon())


def _log_of_classes(output: Any, axis: int) -> DistributedArray:
    return gdt.log(_clipped(output / gdt.sum(output, axis=axis, keepdims=True)))


def categorical_crossentropy(
    target: Any, output: Any, from_logits: bool = False, axis: int = -1
) -> DistributedArray:
    """Return the cross-entropy of probabilities along an axis."""
    target, output = _pair(target, output)
    if target.ndim < 1:
        raise ValueError(
            "Arguments `target` and `output` must be at least rank 1. Received: "
            f"target.shape={target.shape}, output.shape={output.shape}"
        )
    if from_logits:
        return gdt.softmax_cross_entropy_with_logits(target, output, axis=axis)
    return -gdt.sum(target * _log_of_classes(output, axis), axis=axis)


def sparse_categorical_crossentropy(
    target: Any, output: Any, from_logits: bool = False, axis: int = -1
) -> DistributedArray:
    """Return the cross-entropy of one class for each place; of what is no class 0."""
    target, output = convert_to_tensor(target, "int32"), floats(output)
    if output.ndim < 1:
        raise ValueError(
            f"Argument `output` must be at least rank 1. Received: output.shape={output.shape}"
        )
    if target.ndim == output.ndim and target.shape[-1] == 1:
        target = gdt.squeeze(target, axis=-1)
    if target.shape != output.shape[:-1]:
        raise ValueError(
            "Arguments `target` and `output` must have the same shape up until the last "
            f"dimension: target.shape={target.shape}, output.shape={output.shape}"
        )
    classes = output.shape[axis]
    if from_logits and axis in (-1, output.ndim - 1):
        is_class = (target >= 0) & (target < classes)
        labels = gdt.where(is_class, target, 0)
        each = gdt.sparse_softmax_cross_entropy_with_logits(labels, output)
        return gdt.where(is_class, each, 0)
    log = gdt.log_softmax(output, axis=axis) if from_logits else _log_of_classes(output, axis)
    return -gdt.sum(gdt.one_hot(target, classes, axis=axis, dtype=output.dtype) * log, axis=axis)


def binary_crossentropy(target: Any, output: Any, from_logits: bool = False) -> DistributedArray:
    """Return the cross-entropy of each element by itself."""
    target, output = _pair(target, output)
    if from_logits:
        return gdt.sigmoid_cross_entropy_with_logits(target, output)
    p = _clipped(output)
    return -(target * gdt.log(p) + (1.0 - target) * gdt.log(1.0 - p))


def psnr(x1: Any, x2: Any, max_val: Any) -> DistributedArray:
    """Return the ratio of the largest signal to the noise between two images, in decibels."""
    x1, x2 = promoted_arrays((x1, x2))
    if x1.shape != x2.shape:
        raise ValueError(
            f"Input shapes {x1.shape} and {x2.shape} must match for PSNR calculation. "
        )
    noise = gdt.mean(gdt.square(x1 - x2))
    return 20 * gdt.log10(convert_to_tensor(max_val, x2.dtype)) - 10 * gdt.log10(noise)


# ---------------------------------------------------------------- normalization


def moments(
    x: Any, axes: int | Sequence[int], keepdims: bool = False, synchronized: bool = False
) -> tuple[DistributedArray, DistributedArray]:
    """Return mean and variance, those of all devices, in the dtype of `x`; those that float16
    cannot hold as its largest numbers."""
    x = floats(x)
    statistics = gdt.moments(x, axes if isinstance(axes, int) else tuple(axes), keepdims)
    if x.dtype.itemsize == 2:
        largest = float(np.finfo(np.float16).max)
        mean, variance = (gdt.clip(gdt.astype(s, "float32"), -largest, largest) for s in statistics)
        statistics = mean, variance
    mean, variance = (gdt.astype(s, x.dtype) for s in statistics)
    return mean, variance


def batch_normalization(
    x: Any,
    mean: Any,
    variance: Any,
    axis: int,
    offset: Any = None,
    scale: Any = None,
    epsilon: float = 1e-3,
) -> DistributedArray:
    """Return x, normalised with statistics along an axis."""
    x = floats(x)
    given = [None if p is None else convert_to_tensor(p) for p in (mean, variance, offset, scale)]
    dtype = promotion(x, *[p for p in given if p is not None])
    shape = [1] * x.ndim
    shape[axis] = x.shape[axis]
    m, v, b, w = (None if p is None else gdt.reshape(gdt.astype(p, dtype), shape) for p in given)
    return gdt.batch_normalization(gdt.astype(x, dtype), m, v, b, w, epsilon)


# ---------------------------------------------------------------- attention


def dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    bias: Any = None,
    mask: Any = None,
    scale: float | None = None,
    is_causal: bool = False,
    flash_attention: bool | None = None,
    attn_logits_soft_cap: float | None = None,
) -> DistributedArray:
    """Return attention of arrays (batch, length, heads, features).

    Several heads of queries may share one of keys. Without `bias` and `attn_logits_soft_cap` scores
    are never held: `gdt.attention` computes them block by block.
    """
    query, key, value = (convert_to_tensor(x) for x in (query, key, value))
    if not query.ndim == key.ndim == value.ndim == 4:
        raise ValueError(
            "`dot_product_attention` only supports 4D inputs. "
            f"Received: query.shape={query.shape}, key.shape={key.shape}, "
            f"value.shape={value.shape}."
        )
    shared = query.shape[2] // key.shape[2]
    # (batch, heads, length, features)
    q, k, v = (gdt.swapaxes(x, 1, 2) for x in promoted(query, key, value))
    if shared > 1:
        k, v = gdt.repeat(k, shared, axis=1), gdt.repeat(v, shared, axis=1)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else float(scale)
    mask = None if mask is None else _of_heads(gdt.astype(convert_to_tensor(mask), bool), q)
    if bias is None and attn_logits_soft_cap is None:
        return gdt.swapaxes(gdt.attention(q, k, v, mask, bool(is_causal), scale), 1, 2)
    wide = promotion(q, "float32")
    logits = gdt.astype(gdt.matmul(q, gdt.swapaxes(k, -1, -2)), wide) * scale
    if bias is not None:
        logits = logits + _of_heads(convert_to_tensor(bias, wide), q)
    if attn_logits_soft_cap is not None:
        logits = logits / (1.0 + gdt.abs(logits) / attn_logits_soft_cap)
    if is_causal:
        causal = gdt.tri(q.shape[2], k.shape[2], dtype=bool)
        mask = causal if mask is None else gdt.logical_and(mask, causal)
    if mask is not None:
        logits = gdt.where(mask, logits, -0.7 * float(np.finfo(wide).max))
    weights = gdt.astype(gdt.softmax(logits, axis=-1), v.dtype)
    return gdt.swapaxes(gdt.matmul(weights, v), 1, 2)


def _of_heads(x: DistributedArray, query: DistributedArray) -> DistributedArray:
    """Return a mask or bias of (batch, heads, queries, keys); one of (heads, queries, keys) or
    (batch, queries, keys) is told by its first length."""
    if x.ndim == 3 and x.shape[1] == query.shape[1] != query.shape[2]:
        return x[:, :, None, :]
    while x.ndim < 4:
        x = gdt.expand_dims(x, -3)
    return x
