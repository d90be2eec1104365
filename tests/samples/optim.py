"""Samples of the optimizers' steps: pure functions as far as a caller sees."""

from __future__ import annotations

import numpy as np

from gdt.testing import Sample

rng = np.random.default_rng(0)


def arrays(count: int, shape: tuple[int, ...], dtype: str = "float64") -> tuple[np.ndarray, ...]:
    return tuple(rng.standard_normal(shape).astype(dtype) for _ in range(count))


def adam(p, m, v, g, beta1, beta2, keep, rate, epsilon):  # type: ignore[no-untyped-def]
    m, v = beta1 * m + g, beta2 * v + g * g
    return p * keep - rate * m / (np.sqrt(v) + epsilon), m, v


def momentum(p, v, g, rate, factor, nesterov=False):  # type: ignore[no-untyped-def]
    v = factor * v - rate * g
    return (p + factor * v - rate * g if nesterov else p + v), v


def adam_sample(shape: tuple[int, ...], dtype: str) -> Sample:
    p, m, v, g = arrays(4, shape, dtype)
    scalars = (0.9, 0.999, 0.99, 0.01, 1e-3)
    return Sample((p, m, np.abs(v), g, *scalars), expect=adam, grad=False)


def momentum_sample(shape: tuple[int, ...], dtype: str, **static: bool) -> Sample:
    return Sample((*arrays(3, shape, dtype), 0.1, 0.9), static, expect=momentum, grad=False)


SAMPLES = {
    "adam_step": [
        adam_sample((9, 5), "float64"),
        adam_sample((4, 6), "float32"),
        adam_sample((), "float64"),
        adam_sample((0, 3), "float32"),
    ],
    "sgd_step": [
        Sample((*arrays(2, (9, 5)), 0.1), expect=lambda p, g, rate: p - rate * g, grad=False),
        Sample(
            (*arrays(2, (7,), "float32"), 0.5), expect=lambda p, g, rate: p - rate * g, grad=False
        ),
    ],
    "momentum_step": [
        momentum_sample((9, 5), "float64"),
        momentum_sample((4, 6), "float32", nesterov=True),
        momentum_sample((0,), "float64"),
    ],
}
