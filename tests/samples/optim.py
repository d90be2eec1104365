"""Samples of the optimizers' steps: pure functions as far as a caller sees."""

from __future__ import annotations

import numpy as np

from gdt.testing import Sample

rng = np.random.default_rng(0)


def arrays(count: int, shape: tuple[int, ...], dtype: str = "float64") -> tuple[np.ndarray, ...]:
    return tuple(rng.standard_normal(shape).astype(dtype) for _ in range(count))


def adam(p, m, v, g, beta1, beta2, keep, rate, epsilon, decay=False):  # type: ignore[no-untyped-def]
    m, v = beta1 * m + g, beta2 * v + g * g
    return p * (keep if decay else 1) - rate * m / (np.sqrt(v) + epsilon), m, v


def momentum(p, v, g, rate, factor, nesterov=False):  # type: ignore[no-untyped-def]
    v = factor * v - rate * g
    return (p + factor * v - rate * g if nesterov else p + v), v


def adam_sample(shape: tuple[int, ...], dtype: str, **static: bool) -> Sample:
    p, m, v, g = arrays(4, shape, dtype)
    scalars = (0.9, 0.999, 0.99, 0.01, 1e-3)
    return Sample((p, m, np.abs(v), g, *scalars), static, expect=adam, grad=False)


def momentum_sample(shape: tuple[int, ...], dtype: str, **static: bool) -> Sample:
    return Sample((*arrays(3, shape, dtype), 0.1, 0.9), static, expect=momentum, grad=False)


def rmsprop(p, v, g, rho, rest, rate, epsilon):  # type: ignore[no-untyped-def]
    v = rho * v + rest * g * g
    return p - rate * g / np.sqrt(v + epsilon), v


def rmsprop_momentum(p, v, m, g, rho, rest, rate, epsilon, momentum):  # type: ignore[no-untyped-def]
    v = rho * v + rest * g * g
    m = momentum * m + rate * g / np.sqrt(v + epsilon)
    return p - m, v, m


def adagrad(p, a, g, rate, epsilon):  # type: ignore[no-untyped-def]
    return p - rate * g / np.sqrt(a + g * g + epsilon), a + g * g


def lion(p, m, g, weight, beta2, rest, keep, rate):  # type: ignore[no-untyped-def]
    return keep * p - rate * np.sign(weight * m + g), beta2 * m + rest * g


def positive(count: int, shape: tuple[int, ...], dtype: str = "float64") -> list[np.ndarray]:
    """Return a parameter, an array without negative elements, and further arrays."""
    first, second, *others = arrays(count, shape, dtype)
    return [first, np.abs(second), *others]


SAMPLES = {
    "adagrad_step": [
        Sample((*positive(3, shape, dtype), 0.1, 1e-3), expect=adagrad, grad=False)
        for shape, dtype in [((9, 5), "float64"), ((7,), "float32"), ((0,), "float64")]
    ],
    "average_step": [
        Sample(
            (*arrays(2, (9, 5)), 0.75, 0.25),
            expect=lambda a, p, momentum, rest: momentum * a + rest * p,
            grad=False,
        )
    ],
    "lion_step": [
        Sample((*arrays(3, shape, dtype), 9.0, 0.99, 0.01, 0.98, 0.1), expect=lion, grad=False)
        for shape, dtype in [((9, 5), "float64"), ((7,), "float32"), ((), "float64")]
    ],
    "rmsprop_momentum_step": [
        Sample(
            (*positive(4, (9, 5)), 0.9, 0.1, 0.01, 1e-3, 0.9), expect=rmsprop_momentum, grad=False
        )
    ],
    "rmsprop_step": [
        Sample((*positive(3, shape, dtype), 0.9, 0.1, 0.01, 1e-3), expect=rmsprop, grad=False)
        for shape, dtype in [((9, 5), "float64"), ((4, 6), "float32"), ((0, 3), "float32")]
    ],
    "adam_step": [
        adam_sample((9, 5), "float64"),
        adam_sample((4, 6), "float32", decay=True),
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
