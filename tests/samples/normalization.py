"""Samples of batch normalisation."""

from __future__ import annotations

from typing import Any

import numpy as np

from gdt.testing import Sample

rng = np.random.default_rng(0)
MATRIX = rng.standard_normal((5, 3))
IMAGES = rng.standard_normal((3, 2, 4))
SCALE, OFFSET = rng.uniform(0.5, 1.5, 3), rng.standard_normal(3)
MEAN, VARIANCE = rng.standard_normal(3), rng.uniform(0.5, 1.5, 3)


def normalized(
    x: np.ndarray, mean: Any, variance: Any, offset: Any, scale: Any, epsilon: float = 1e-3
) -> np.ndarray:
    scale = 1.0 if scale is None else scale
    offset = 0.0 if offset is None else offset
    return (x - mean) / np.sqrt(variance + epsilon) * scale + offset


def batch_norm(
    x: np.ndarray, scale: Any = None, offset: Any = None, epsilon: float = 1e-3, axes: Any = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    over = tuple(range(x.ndim - 1)) if axes is None else axes
    mean, variance = x.mean(over, keepdims=True), x.var(over, keepdims=True)
    scale, offset = (
        f.reshape(mean.shape) if isinstance(f, np.ndarray) and f.ndim else f
        for f in (scale, offset)
    )
    y = normalized(x, mean, variance, offset, scale, epsilon)
    return y, mean.squeeze(over), variance.squeeze(over)


def sums(g: np.ndarray, xhat: np.ndarray, axes: Any, keepdims: bool) -> tuple[Any, Any]:
    return g.sum(axes, keepdims=keepdims), (g * xhat).sum(axes, keepdims=keepdims)


def gradient(
    g: np.ndarray,
    xhat: np.ndarray,
    g_sum: np.ndarray,
    product_sum: np.ndarray,
    variance: np.ndarray,
    scale: np.ndarray,
    epsilon: float,
    count: int,
) -> np.ndarray:
    return scale / np.sqrt(variance + epsilon) * (g - (g_sum + xhat * product_sum) / count)


SAMPLES: dict[str, list[Sample]] = {
    "batch_norm": [
        Sample((MATRIX,), {}, batch_norm),
        Sample((MATRIX, SCALE, OFFSET), {}, batch_norm),
        Sample((MATRIX, SCALE), {"epsilon": 0.1}, batch_norm),
        Sample((MATRIX, None, OFFSET), {}, batch_norm),
        Sample((MATRIX, 2.0, 1.0), {}, batch_norm),
        Sample((IMAGES, SCALE, OFFSET), {"axes": (1, 2)}, batch_norm),
        Sample((IMAGES, SCALE[:2], OFFSET[:2]), {"axes": (0, 2)}, batch_norm),
        Sample((IMAGES,), {}, batch_norm),
        Sample(
            (MATRIX.astype(np.float32), SCALE.astype(np.float32), OFFSET.astype(np.float32)),
            {},
            batch_norm,
        ),
    ],
    "batch_normalization": [
        Sample((MATRIX, MEAN, VARIANCE, OFFSET, SCALE), {}, normalized),
        Sample((MATRIX, MEAN, VARIANCE, None, None), {"epsilon": 0.1}, normalized),
        Sample((MATRIX, 0.5, 2.0, 1.0, SCALE), {}, normalized),
        Sample((MATRIX, MEAN, VARIANCE, 1, 2), {}, normalized),
        Sample((MATRIX[:, :1], MEAN, VARIANCE, OFFSET, None), {}, normalized),
        Sample((MATRIX.astype(np.float32), MEAN, VARIANCE, OFFSET, 2.0), {}, normalized),
    ],
    "normalize": [
        Sample((MATRIX, MEAN, VARIANCE, OFFSET, SCALE), {"epsilon": 0.1}, normalized),
    ],
    "batch_norm_sums": [
        Sample((MATRIX, MATRIX[::-1] + 1), {"axes": (0,), "keepdims": False}, sums),
        Sample((IMAGES, IMAGES * 2 + 1), {"axes": (0, 2), "keepdims": True}, sums),
    ],
    "batch_norm_gradient": [
        Sample(
            (MATRIX, MATRIX[::-1].copy(), OFFSET, MEAN, VARIANCE, SCALE),
            {"epsilon": 0.1, "count": 5},
            gradient,
        ),
    ],
}


def layer_norm(x: Any, scale: Any = 1.0, offset: Any = 0.0, epsilon: float = 1e-5) -> np.ndarray:
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + epsilon) * scale + offset


def rms_norm(x: Any, scale: Any = 1.0, epsilon: float = 1e-6) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * scale


def group_norm(
    x: Any, scale: Any = 1.0, offset: Any = 0.0, epsilon: float = 1e-5, *, groups: int
) -> np.ndarray:
    grouped = x.reshape(*x.shape[:-1], groups, -1)
    over = (*range(1, x.ndim - 1), x.ndim)
    mean, variance = grouped.mean(over, keepdims=True), grouped.var(over, keepdims=True)
    return ((grouped - mean) / np.sqrt(variance + epsilon)).reshape(x.shape) * scale + offset


SAMPLES |= {
    "layer_norm": [
        Sample((IMAGES, *rng.standard_normal((2, 4))), {}, layer_norm),
        Sample((MATRIX, SCALE), {"epsilon": 0.1}, layer_norm),
        Sample((MATRIX.astype(np.float32),), {}, layer_norm),
    ],
    "rms_norm": [
        Sample((IMAGES, rng.standard_normal(4)), {}, rms_norm),
        Sample((MATRIX,), {"epsilon": 0.1}, rms_norm),
    ],
    "group_norm": [
        Sample((IMAGES,), {"groups": 2}, group_norm),
        Sample((rng.standard_normal((3, 2, 3, 4)),), {"groups": 4}, group_norm),
    ],
}
