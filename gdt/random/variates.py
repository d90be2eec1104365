"""Draws of the distributions of NumPy's generators, with the array's shape as the first argument.

Parameters are numbers, or arrays that broadcast to the shape. A number outside of its range, and an
array of the host that holds one, is an ArgumentError; such elements of a distributed array, which
is not fetched for that, give NaN, or -1 in integers. Draws have no gradient with respect to
parameters of the samplers; scales and locations are applied by ops, and have one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gdt.arguments import checked
from gdt.array.array import DistributedArray
from gdt.errors import ArgumentError, ShapeError, error
from gdt.ops.comparison import where
from gdt.ops.elementwise import sqrt
from gdt.ops.exponential import exp, expm1
from gdt.ops.powers import power as power_of
from gdt.ops.shapes import Shape
from gdt.random.draws import (
    check_range,
    drawn,
    in_layout,
    like_draw,
    normal,
    or_nan,
    scaled,
)
from gdt.random.draws import uniform as uniform_between
from gdt.random.generator import Generator, Key, split
from gdt.sharding.layout import Layout


def keys_of(key: Key, count: int) -> list[Key]:
    """A key for each of several draws; None for each if the default generator gives them."""
    is_counted = key is None or isinstance(key, Generator)
    return [key] * count if is_counted else list(split(key, count))


def _of_word(
    sampler: str, shape: Shape, dtype: Any, layout: Layout | None, key: Key
) -> DistributedArray:
    return drawn(sampler, shape, dtype, layout, key, {"dtype": dtype})


# ---------------------------------------------------------------- by inversion


@checked
def random(
    shape: Shape = (), dtype: Any = float, *, key: Key = None, layout: Layout | None = None
) -> DistributedArray:
    """Uniform numbers in [0, 1): `gdt.random.uniform` without bounds.

    >>> gdt.random.random(2, key=0).round(3).tolist()
    [0.399, 0.736]
    """
    return uniform_between(shape, dtype=dtype, key=key, layout=layout)


@checked
def standard_normal(
    shape: Shape = (), dtype: Any = float, *, key: Key = None, layout: Layout | None = None
) -> DistributedArray:
    """Normal numbers of mean 0 and standard deviation 1.

    >>> gdt.random.standard_normal(2, key=0).round(3).tolist()
    [1.276, -0.72]
    """
    return normal(shape, dtype=dtype, key=key, layout=layout)


@checked
def exponential(
    shape: Shape = (),
    scale: Any = 1.0,
    dtype: Any = float,
    *,
    key: Key = None,
    layout: Layout | None = None,
) -> DistributedArray:
    """Exponential numbers of mean `scale`, at most 36.7 times it.

    Raises ArgumentError for a scale below 0.

    >>> gdt.random.exponential(3, key=0).round(3).tolist()
    [0.919, 0.307, 0.028]
    """
    check_range("exponential", scale=scale)
    x = _of_word("exponential", shape, dtype, layout, key)
    return in_layout(scaled(x, 0.0, scale, "exponential"), layout)


@checked
def standard_exponential(
    shape: Shape = (), dtype: Any = float, *, key: Key = None, layout: Layout | None = None
) -> DistributedArray:
    """Exponential numbers of mean 1.

    >>> gdt.random.standard_exponential(2, key=0).round(3).tolist()
    [0.919, 0.307]
    """
    return exponential(shape, dtype=dtype, key=key, layout=layout)


def _located(sampler: str, kind: str, example: list[float]) -> Callable[..., DistributedArray]:
    """A distribution with a location and a scale."""

    def draw(
        shape: Shape = (),
        loc: Any = 0.0,
        scale: Any = 1.0,
        dtype: Any = float,
        *,
        key: Key = None,
        layout: Layout | None = None,
    ) -> DistributedArray:
        check_range(sampler, scale=scale)
        x = _of_word(sampler, shape, dtype, layout, key)
        return in_layout(scaled(x, loc, scale, sampler), layout)

    draw.__name__ = draw.__qualname__ = sampler
    draw.__doc__ = (
        f"{kind} numbers around `loc`, of that scale.\n\n"
        f"Raises ArgumentError for a scale below 0.\n\n"
        f">>> gdt.random.{sampler}(2, key=0).round(3).tolist()\n{example}\n"
    )
    return checked(draw)


laplace = _located("laplace", "Laplace (double exponential)", [0.226, -0.752])
logistic = _located("logistic", "Logistic", [-0.409, 1.024])
gumbel = _located("gumbel", "Gumbel (extreme value)", [0.085, 1.181])


@checked
def lognormal(
    shape: Shape = (),
    mean: Any = 0.0,
    sigma: Any = 1.0,
    dtype: Any = float,
    *,
    key: Key = None,
    layout: Layout | None = None,
) -> DistributedArray:
    """Exponentials of normal numbers of that mean and standard deviation.

    >>> bool(gdt.all(gdt.random.lognormal(9, key=0) > 0))
    True
    """
    check_range("lognormal", sigma=sigma)
    return in_layout(exp(normal(shape, mean, sigma, dtype, key=key, layout=layout)), layout)


@checked
def rayleigh(
    shape: Shape = (),
    scale: Any = 1.0,
    dtype: Any = float,
    *,
    key: Key = None,
    layout: Layout | None = None,
) -> DistributedArray:
    """Lengths of pairs of normal numbers of standard deviation `scale`.

    Raises ArgumentError for a scale below 0.

    >>> bool(gdt.all(gdt.random.rayleigh(9, key=0) > 0))
    True
    """
    check_range("rayleigh", scale=scale)
    x = sqrt(exponential(shape, 2.0, dtype, key=key, layout=layout))
    return in_layout(scaled(x, 0.0, scale, "rayleigh"), layout)


@checked
def weibull(
    shape: Shape,
    a: Any,
    dtype: Any = float,
    *,
    key: Key = None,
    layout: Layout | None = None,
) -> DistributedArray:
    """Weibull numbers of shape parameter `a`: exponential numbers to the power 1 / a.

    Raises ArgumentError for an `a` that is not above 0.

    >>> bool(gdt.all(gdt.random.weibull(9, 2.0, key=0) > 0))
    True
    """
    check_range("weibull", a=a, above=True)
    x = exponential(shape, dtype=dtype, key=key, layout=layout)
    inverse = 1.0 / a if isinstance(a, int | float) else np.divide(1.0, or_nan(a))
    return in_layout(like_draw(x, power_of(x, inverse), "weibull", a=a), layout)


@checked
def pareto(
    shape: Shape,
    a: Any,
    dtype: Any = float,
    *,
    key: Key = None,
    layout: Layout | None = None,
) -> DistributedArray:
    """Pareto II (Lomax) numbers of shape parameter `a`: exp(x / a) - 1 of exponential x.

    Raises ArgumentError for an `a` that is not above 0.

    >>> bool(gdt.all(gdt.random.pareto(9, 2.0, key=0) > 0))
    True
    """
    check_range("pareto", a=a, above=True)
    x = exponential(shape, dtype=dtype, key=key, layout=layout)
    return in_layout(like_draw(x, expm1(x / or_nan(a)), "pareto", a=a), layout)


@checked
def power(
    shape: Shape,
    a: Any,
    dtype: Any = float,
    *,
    key: Key = None,
    layout: Layout | None = None,
) -> DistributedArray:
    """Numbers in [0, 1] of density a * x^(a - 1): exp(-x / a) of exponential x.

    Raises ArgumentError for an `a` that is not above 0.

    >>> bool(gdt.all(gdt.random.power(9, 2.0, key=0) <= 1))
    True
    """
    check_range("power", a=a, above=True)
    x = exponential(shape, dtype=dtype, key=key, layout=layout)
    return in_layout(like_draw(x, exp(-x / or_nan(a)), "power", a=a), layout)


@checked
def wald(
    shape: Shape,
    mean: Any,
    scale: Any,
    dtype: Any = float,
    *,
    key: Key = None,
    layout: Layout | None = None,
) -> DistributedArray:
    """Wald (inverse Gaussian) numbers of that mean and scale.

    Raises ArgumentError for a mean or a scale that is not above 0. Source: Michael, Schucany and
    Haas 1976.

    >>> bool(gdt.all(gdt.random.wald(9, 3.0, 2.0, key=0) > 0))
    True
    """
    check_range("wald", mean=mean, scale=scale, above=True)
    first, second = keys_of(key, 2)
    x = normal(shape, dtype=dtype, key=first, layout=layout)
    u = uniform_between(shape, dtype=dtype, key=second, layout=layout)
    half = np.multiply(0.5, or_nan(mean)) / or_nan(scale) * x * x
    smaller = or_nan(mean) / (1.0 + half + sqrt(half * (half + 2.0)))
    y = where(u * (mean + smaller) <= mean, smaller, mean / smaller * mean)
    return in_layout(like_draw(x, y, "wald", mean=mean, scale=scale), layout)


@checked
def standard_cauchy(
    shape: Shape = (), dtype: Any = float, *, key: Key = None, layout: Layout | None = None
) -> DistributedArray:
    """Quotients of two normal numbers.

    >>> gdt.random.standard_cauchy((2, 3), key=0).shape
    (2, 3)
    """
    x, y = (normal(shape, dtype=dtype, key=k, layout=layout) for k in keys_of(key, 2))
    return in_layout(x / y, layout)


@checked
def triangular(
    shape: Shape,
    left: Any,
    mode: Any,
    right: Any,
    dtype: Any = float,
    *,
    key: Key = None,
    layout: Layout | None = None,
) -> DistributedArray:
    """Numbers between `left` and `right` whose density rises to `mode` and falls behind it.

    left, mode, right: numbers. Raises ShapeError for arrays that are no numbers, ArgumentError
    unless left <= mode <= right and left < right.

    >>> bool(gdt.all(gdt.random.triangular(9, 0.0, 1.0, 3.0, key=0) < 3))
    True
    """
    if np.ndim(left) or np.ndim(mode) or np.ndim(right):
        shapes = ", ".join(str(list(np.shape(p))) for p in (left, mode, right))
        raise error(
            ShapeError,
            "triangular",
            f"left, mode and right have shapes {shapes}; they are numbers",
            remedy="Scale draws of numbers: left + (right - left) * triangular(shape, 0, peak, 1).",
        )
    if not (left <= mode <= right and left < right):
        problem = f"left {left}, mode {mode} and right {right} are not in this order"
        raise error(ArgumentError, "triangular", problem)
    u = uniform_between(shape, dtype=dtype, key=key, layout=layout)
    rise, fall = (mode - left) * (right - left), (right - mode) * (right - left)
    peak = (mode - left) / (right - left)
    below = left + sqrt(u * rise)
    x = where(u < peak, below, right - sqrt((1.0 - u) * fall)).astype(u.dtype)
    return in_layout(x, layout)
