"""Initialisers: functions `(shape, dtype, layout, key) -> array`, the same numbers on every layout.

The fans of a weight are those of Keras: (fan_in, fan_out) of a matrix; of more axes, all but the
last two are a receptive field, which multiplies both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gdt import random
from gdt.arguments import checked
from gdt.array.array import DistributedArray
from gdt.errors import ArgumentError, error
from gdt.ops import creation
from gdt.sharding.layout import Layout

Initializer = Callable[..., DistributedArray]
Shape = Sequence[int]

TRUNCATED_DEVIATION = 0.87962566103423978
"""Standard deviation of a standard normal cut off at two deviations."""


@checked
def fans(shape: Shape) -> tuple[int, int]:
    """Inputs and outputs that one element of a weight of this shape connects.

    >>> gdt.nn.initializers.fans((784, 700)), gdt.nn.initializers.fans((3, 3, 16, 32))
    ((784, 700), (144, 288))
    """
    if len(shape) < 2:
        size = int(shape[0]) if shape else 1
        return size, size
    field = math.prod(shape[:-2])
    return int(shape[-2]) * field, int(shape[-1]) * field


@checked
def zeros(
    shape: Shape, dtype: Any = np.float32, layout: Layout | None = None, key: Any = None
) -> DistributedArray:
    """Zeros: what biases begin with."""
    return creation.zeros(tuple(shape), dtype, layout=layout)


@checked
def ones(
    shape: Shape, dtype: Any = np.float32, layout: Layout | None = None, key: Any = None
) -> DistributedArray:
    """Ones: what scales begin with."""
    return creation.ones(tuple(shape), dtype, layout=layout)


def _uniform(name: str, summary: str, limit: Callable[[int, int], float]) -> Initializer:
    def initializer(
        shape: Shape, dtype: Any = np.float32, layout: Layout | None = None, key: Any = None
    ) -> DistributedArray:
        bound = limit(*fans(shape))
        return random.uniform(tuple(shape), -bound, bound, dtype, layout=layout, key=key)

    initializer.__name__, initializer.__doc__ = name, summary
    return checked(initializer)


def _truncated(name: str, summary: str, variance: Callable[[int, int], float]) -> Initializer:
    def initializer(
        shape: Shape, dtype: Any = np.float32, layout: Layout | None = None, key: Any = None
    ) -> DistributedArray:
        deviation = math.sqrt(variance(*fans(shape))) / TRUNCATED_DEVIATION
        return truncated_normal(shape, dtype, layout, key, deviation=deviation)

    initializer.__name__, initializer.__doc__ = name, summary
    return checked(initializer)


glorot_uniform = _uniform(
    "glorot_uniform",
    "Uniform within sqrt(6 / (fan_in + fan_out)). Source: Glorot and Bengio 2010, eq. 16.",
    lambda fan_in, fan_out: math.sqrt(6 / (fan_in + fan_out)),
)
he_uniform = _uniform(
    "he_uniform",
    "Uniform within sqrt(6 / fan_in). Source: He et al. 2015.",
    lambda fan_in, fan_out: math.sqrt(6 / fan_in),
)
glorot_normal = _truncated(
    "glorot_normal",
    "Truncated normal of variance 2 / (fan_in + fan_out). Source: Glorot and Bengio 2010.",
    lambda fan_in, fan_out: 2 / (fan_in + fan_out),
)
he_normal = _truncated(
    "he_normal",
    "Truncated normal of variance 2 / fan_in. Source: He et al. 2015, eq. 10.",
    lambda fan_in, fan_out: 2 / fan_in,
)


@checked
def normal(
    shape: Shape,
    dtype: Any = np.float32,
    layout: Layout | None = None,
    key: Any = None,
    *,
    deviation: float = 0.05,
) -> DistributedArray:
    """Normal with mean 0; the deviation is Keras' default."""
    return random.normal(tuple(shape), 0, deviation, dtype, layout=layout, key=key)


@checked
def truncated_normal(
    shape: Shape,
    dtype: Any = np.float32,
    layout: Layout | None = None,
    key: Any = None,
    *,
    deviation: float = 0.05,
) -> DistributedArray:
    """Normal with mean 0 and that deviation, cut off at two deviations; Keras' default."""
    return random.truncated_normal(tuple(shape), 0, deviation, dtype, layout=layout, key=key)


INITIALIZERS: dict[str, Initializer] = {
    "glorot_uniform": glorot_uniform,
    "glorot_normal": glorot_normal,
    "he_uniform": he_uniform,
    "he_normal": he_normal,
    "normal": normal,
    "truncated_normal": truncated_normal,
    "zeros": zeros,
    "ones": ones,
}


@checked
def get(initializer: str | Initializer) -> Initializer:
    """The initialiser of that name, or the function itself; ArgumentError for an unknown name."""
    if callable(initializer):
        return initializer
    if initializer not in INITIALIZERS:
        raise error(
            ArgumentError,
            "initializer",
            f"{initializer!r} is not an initialiser",
            remedy=f"Pass a function, or one of {', '.join(INITIALIZERS)}.",
        )
    return INITIALIZERS[initializer]
