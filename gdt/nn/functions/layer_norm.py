"""Normalisation of every token or image by itself: over its features, or over groups of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.operands import as_operands
from gdt.array.registry import public
from gdt.engine.custom_vjp import custom_vjp
from gdt.errors import DtypeError, ShapeError, error
from gdt.nn.functions.batch_norm import batch_norm, batch_norm_gradient, batch_norm_sums, normalize
from gdt.ops.elementwise import like, multiply, sqrt, square
from gdt.ops.movement import relayout
from gdt.ops.reductions import mean
from gdt.ops.shapes import reshape
from gdt.ops.statistics import moments, moments_gradient
from gdt.sharding.dtypes import kind_of

__all__ = ["group_norm", "layer_norm", "rms_norm"]

Factor = Any  # an array (features,), or a Python number where there is none


def _floating(name: str, x: Any) -> DistributedArray:
    """Return x as an array; DtypeError or ShapeError unless it holds tokens of floats."""
    operand: DistributedArray
    (operand,) = as_operands(name, x=x)
    if kind_of(operand.dtype) != "f":
        raise error(DtypeError, "x is not floating-point", operands={"x": operand.type})
    if not operand.ndim:
        raise error(ShapeError, "x has no axis of features", operands={"x": operand.type})
    return operand


def _factor(name: str, x: DistributedArray, label: str, value: Any, default: float) -> Factor:
    """Return the argument `label`, a scale or an offset, as a number or an array (features,)."""
    if value is None or type(value) in (int, float):
        return default if value is None else float(value)
    x, factor = as_operands(name, x=x, **{label: value})
    if factor.shape != x.shape[-1:]:
        problem = f"{label} has shape {list(factor.shape)}, not {list(x.shape[-1:])}"
        raise error(ShapeError, problem, operands={"x": x.type, label: factor.type})
    return factor


def _wide(x: DistributedArray) -> DistributedArray:
    """Return x in the dtype in which it is normalised: float32 for float16."""
    return x.astype(np.float32) if x.dtype.itemsize < 4 else x


def _of_dtype(y: DistributedArray, x: DistributedArray) -> DistributedArray:
    """Return y in the dtype of x."""
    return y if y.dtype == x.dtype else y.astype(x.dtype)


@custom_vjp
def normalize_features(
    x: DistributedArray, scale: Factor, offset: Factor, *, epsilon: float
) -> tuple[DistributedArray, DistributedArray, DistributedArray]:
    """Normalise x over its last axis; return it with its mean and variance, of shape (..., 1)."""
    mean, variance = moments(x, axes=(-1,), keepdims=True)  # (..., 1)
    return normalize(x, mean, variance, offset, scale, epsilon=epsilon), mean, variance


def _normalize_features_vjp(
    g: Any, out: Any, x: Any, scale: Any, offset: Any, *, epsilon: float
) -> tuple[Any, ...]:
    (g_y, g_mean, g_variance), (y, mean, variance) = g, out
    g_x = g_scale = g_offset = None
    if g_y is not None:
        if any(g_y.layout.reductions):  # it is read twice
            g_y = relayout(g_y, y.layout)
        xhat = normalize(x, mean, variance, 0.0, 1.0, epsilon=epsilon)
        scaled = g_y if type(scale) is float and scale == 1.0 else multiply(g_y, scale)
        g_sum, product_sum = batch_norm_sums(scaled, xhat, axes=(-1,), keepdims=True)  # (..., 1)
        g_x = batch_norm_gradient(
            scaled, xhat, g_sum, product_sum, variance, 1.0, epsilon=epsilon, count=x.shape[-1]
        )
        g_x = like(g_x, x)
        if isinstance(scale, DistributedArray) or isinstance(offset, DistributedArray):
            tokens = tuple(range(-x.ndim, -1))
            g_sum, product_sum = batch_norm_sums(g_y, xhat, axes=tokens, keepdims=False)
            g_offset = like(g_sum, offset) if isinstance(offset, DistributedArray) else None
            g_scale = like(product_sum, scale) if isinstance(scale, DistributedArray) else None
    if g_mean is not None or g_variance is not None:
        direct = moments_gradient(x, mean, g_mean, g_variance, (-1,))
        g_x = direct if g_x is None else g_x + direct
    return g_x, g_scale, g_offset


normalize_features.vjp(joint=_normalize_features_vjp, reads="x scale out1 out2")


@public
def layer_norm(
    x: Any, scale: Any = None, offset: Any = None, epsilon: float = 1e-5
) -> DistributedArray:
    """Normalise x over its last axis to mean 0 and variance 1, then scale and offset it.

    x: floating-point, (..., features). scale, offset: (features,), numbers, or None for 1 and 0.
    Statistics of float16 are computed in float32. Features that are split cost an all-reduce of
    means, and one of variances. Raises DtypeError for another dtype, ShapeError for factors that do
    not fit. Source: Ba et al. 2016, "Layer normalization".

    >>> gdt.layer_norm(gdt.asarray([[1.0, 3.0]]), epsilon=0.0).tolist()
    [[-1.0, 1.0]]
    """
    x = _floating("layer_norm", x)
    scale = _factor("layer_norm", x, "scale", scale, 1.0)
    offset = _factor("layer_norm", x, "offset", offset, 0.0)
    y, _, _ = normalize_features(_wide(x), scale, offset, epsilon=epsilon)
    return _of_dtype(y, x)


@public
def rms_norm(x: Any, scale: Any = None, epsilon: float = 1e-6) -> DistributedArray:
    """Divide x by the root of the mean of its squares over the last axis, then scale it.

    x: floating-point, (..., features). scale: (features,), a number, or None for 1. Squares of
    float16 are added in float32. Raises DtypeError for another dtype, ShapeError for a scale that
    does not fit. Source: Zhang and Sennrich 2019, "Root mean square layer normalization".

    >>> gdt.rms_norm(gdt.asarray([[3.0, 4.0]]), epsilon=0.0).numpy().round(3).tolist()
    [[0.849, 1.131]]
    """
    x = _floating("rms_norm", x)
    scale = _factor("rms_norm", x, "scale", scale, 1.0)
    wide = _wide(x)
    root = sqrt(mean(square(wide), axis=-1, keepdims=True) + epsilon)  # (..., 1)
    return _of_dtype(wide / root * scale, x)


@public
def group_norm(
    x: Any, groups: int, scale: Any = None, offset: Any = None, epsilon: float = 1e-5
) -> DistributedArray:
    """Normalise every image over its pixels and each of `groups` groups of neighbouring channels.

    x: floating-point, (batch, ..., channels). scale, offset: (channels,), numbers, or None for 1
    and 0. Raises ShapeError for channels that `groups` does not divide, and as `layer_norm`.
    Source: Wu and He 2018, "Group normalization".

    >>> gdt.group_norm(gdt.asarray([[1.0, 3.0, 5.0, 9.0]]), groups=2, epsilon=0.0).tolist()
    [[-1.0, 1.0, -1.0, 1.0]]
    """
    x = _floating("group_norm", x)
    scale = _factor("group_norm", x, "scale", scale, 1.0)
    offset = _factor("group_norm", x, "offset", offset, 0.0)
    if x.ndim < 2 or groups < 1 or x.shape[-1] % groups:
        problem = f"{groups} groups do not divide the last axis of shape {list(x.shape)}"
        raise error(ShapeError, problem, operands={"x": x.type})
    grouped = reshape(_wide(x), (*x.shape[:-1], groups, x.shape[-1] // groups))
    y, _, _ = batch_norm(grouped, epsilon=epsilon, axes=(*range(1, x.ndim - 1), x.ndim))
    return _of_dtype(reshape(y, x.shape) * scale + offset, x)
