"""Initialisers: functions `(shape, dtype, layout, key) -> array`, the same numbers on every layout.

dtype: float32 by default. layout: replicated on the default mesh by default. key: the key of the
random numbers, or an int; by default the next key of `gdt.random`.

The arrays of these are made when they are first read, or in the layout to which a LayoutMap moves
them before: no device holds more than its own part. Random numbers are counted at the call.

The fans of a weight are those of Keras: (fan_in, fan_out) of a matrix; of more axes, all but the
last two are a receptive field, whose size multiplies both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gdt import random
from gdt.arguments import checked
from gdt.array.array import DistributedArray
from gdt.array.unmade import made_when_read
from gdt.errors import ArgumentError, error
from gdt.errors.foreign_names import missing_names
from gdt.ops import creation, generation
from gdt.random.draws import counted_draw
from gdt.sharding.dtypes import kind_of
from gdt.sharding.layout import Layout

Initializer = Callable[..., DistributedArray]
Shape = Sequence[int]

TRUNCATED_DEVIATION = 0.87962566103423978
"""The standard deviation of a standard normal distribution cut off at two deviations."""


@checked
def fans(shape: Shape) -> tuple[int, int]:
    """Return (fan_in, fan_out): the inputs of an output, and the outputs of an input, of a weight.

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
    """Return zeros, with which biases begin.

    >>> gdt.nn.initializers.zeros((2,)).tolist()
    [0.0, 0.0]
    """
    return _constant(creation.zeros, shape, dtype, layout)


@checked
def ones(
    shape: Shape, dtype: Any = np.float32, layout: Layout | None = None, key: Any = None
) -> DistributedArray:
    """Return ones, with which scales begin.

    >>> gdt.nn.initializers.ones((2,)).tolist()
    [1.0, 1.0]
    """
    return _constant(creation.ones, shape, dtype, layout)


def _constant(
    make: Callable[..., DistributedArray], shape: Shape, dtype: Any, layout: Layout | None
) -> DistributedArray:
    """Return `make(shape, dtype, layout=layout)`, an array of one value, made when it is read."""
    array_type = generation.type_of_shape(tuple(shape), dtype, make.__name__, layout)
    if any(array_type.layout.reductions):
        return make(array_type.shape, dtype, layout=layout)
    return made_when_read(array_type, lambda shape, to: make(shape, dtype, layout=to))


def _drawn(
    draw: Callable[..., DistributedArray],
    parameters: tuple[float, float],
    shape: Shape,
    dtype: Any,
    layout: Layout | None,
    key: Any,
) -> DistributedArray:
    """Return `draw(shape, *parameters, dtype, layout=layout, key=key)`, made when it is read."""
    array_type = generation.type_of_shape(tuple(shape), dtype, draw.__name__, layout)
    if kind_of(array_type.dtype) != "f" or parameters[1] < 0 or any(array_type.layout.reductions):
        return draw(array_type.shape, *parameters, dtype, layout=layout, key=key)  # which may raise
    drawn = counted_draw(array_type, key)
    return made_when_read(
        array_type, lambda shape, to: draw(shape, *parameters, dtype, layout=to, key=drawn)
    )


def _uniform(name: str, summary: str, limit: Callable[[int, int], float]) -> Initializer:
    """Return the initialiser that draws uniformly within `limit(fan_in, fan_out)` of 0."""

    def initializer(
        shape: Shape, dtype: Any = np.float32, layout: Layout | None = None, key: Any = None
    ) -> DistributedArray:
        bound = limit(*fans(shape))
        return _drawn(random.uniform, (-bound, bound), shape, dtype, layout, key)

    _name(initializer, name, summary)
    return checked(initializer)


def _name(initializer: Initializer, name: str, summary: str) -> None:
    """Give a function the name under which it is found, and pickled, and a docstring."""
    initializer.__name__ = initializer.__qualname__ = name
    example = f">>> gdt.nn.initializers.{name}((2, 3), key=0).shape\n(2, 3)\n"
    initializer.__doc__ = f"{summary}\n\n{example}"


def _truncated(name: str, summary: str, variance: Callable[[int, int], float]) -> Initializer:
    """Return the initialiser that draws truncated normals of `variance(fan_in, fan_out)`."""

    def initializer(
        shape: Shape, dtype: Any = np.float32, layout: Layout | None = None, key: Any = None
    ) -> DistributedArray:
        deviation = math.sqrt(variance(*fans(shape))) / TRUNCATED_DEVIATION
        return truncated_normal(shape, dtype, layout, key, deviation=deviation)

    _name(initializer, name, summary)
    return checked(initializer)


glorot_uniform = _uniform(
    "glorot_uniform",
    "Draw uniformly within sqrt(6 / (fan_in + fan_out)). Source: Glorot and Bengio 2010, eq. 16.",
    lambda fan_in, fan_out: math.sqrt(6 / (fan_in + fan_out)),
)
he_uniform = _uniform(
    "he_uniform",
    "Draw uniformly within sqrt(6 / fan_in). Source: He et al. 2015.",
    lambda fan_in, fan_out: math.sqrt(6 / fan_in),
)
lecun_uniform = _uniform(
    "lecun_uniform",
    "Draw uniformly within sqrt(3 / fan_in). Source: LeCun et al. 1998, eq. 16.",
    lambda fan_in, fan_out: math.sqrt(3 / fan_in),
)
glorot_normal = _truncated(
    "glorot_normal",
    "Draw truncated normals of variance 2 / (fan_in + fan_out). Source: Glorot and Bengio 2010.",
    lambda fan_in, fan_out: 2 / (fan_in + fan_out),
)
he_normal = _truncated(
    "he_normal",
    "Draw truncated normals of variance 2 / fan_in. Source: He et al. 2015, eq. 10.",
    lambda fan_in, fan_out: 2 / fan_in,
)
lecun_normal = _truncated(
    "lecun_normal",
    "Draw truncated normals of variance 1 / fan_in. Source: LeCun et al. 1998, eq. 16.",
    lambda fan_in, fan_out: 1 / fan_in,
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
    """Draw normals of mean 0 and standard deviation `deviation`, whose default is Keras'.

    >>> gdt.nn.initializers.normal((2, 3), key=0).shape
    (2, 3)
    """
    return _drawn(random.normal, (0, deviation), shape, dtype, layout, key)


@checked
def truncated_normal(
    shape: Shape,
    dtype: Any = np.float32,
    layout: Layout | None = None,
    key: Any = None,
    *,
    deviation: float = 0.05,
) -> DistributedArray:
    """Draw normals of mean 0, cut off at two deviations; the default of `deviation` is Keras'.

    >>> bool(abs(gdt.nn.initializers.truncated_normal((100,), key=0)).max() <= 0.1)
    True
    """
    return _drawn(random.truncated_normal, (0, deviation), shape, dtype, layout, key)


INITIALIZERS: dict[str, Initializer] = {
    f.__name__: f
    for f in (
        glorot_uniform, glorot_normal, he_uniform, he_normal, lecun_uniform, lecun_normal,
        normal, truncated_normal, zeros, ones,
    )
}  # fmt: skip
"""All initialisers by the names that `get` knows."""


@checked
def get(initializer: str | Initializer) -> Initializer:
    """Return the initialiser of a name, or `initializer` itself if it is a function.

    Raises ArgumentError for a name that is not in `INITIALIZERS`.

    >>> gdt.nn.initializers.get("zeros") is gdt.nn.initializers.zeros
    True
    """
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


if not TYPE_CHECKING:  # a type checker would take every name for one of the module
    __getattr__ = missing_names(__name__)
