"""Draws of floats, from the distributions that NumPy's generators have.

Parameters are numbers, or arrays that broadcast to the shape. A number outside of its interval, and
an array of the host that holds one, is an ArgumentError; such elements of a distributed array,
which is not fetched for that, give NaN. Draws have no gradient with respect to parameters of
samplers (`Draw.sampled`); scales and locations are applied by ops, and have one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.errors import ArgumentError, RangeError, ShapeError, error
from gdt.ops.comparison import where
from gdt.ops.elementwise import divide, sqrt, subtract
from gdt.ops.exponential import exp, expm1
from gdt.ops.powers import power as power_of
from gdt.random.draws import Domain, Draw, distribution, host_numbers, scaled

# ---------------------------------------------------------------- uniform


@distribution()
def uniform(draw: Draw, low: Any = 0.0, high: Any = 1.0) -> DistributedArray:
    """Uniform numbers in [low, high); rounding may give `high` itself if it is not 1, as in NumPy.

    low, high: numbers, or arrays that broadcast to the shape. dtype: bfloat16, float16, float32 or
        float64.

    Raises ArgumentError for a `high` below `low`, RangeError (an OverflowError) for a difference
    that is infinite; of distributed arrays, which are not fetched for that, such elements give NaN.
    Raises ArgumentError for a float as shape, and warns, as `gdt.random.normal` does.

    >>> gdt.random.uniform(2, key=0).round(3).tolist()
    [0.399, 0.736]
    """
    width = _width(low, high)
    return scaled(draw.standard("uniform"), low, width)


def _width(low: Any, high: Any) -> Any:
    """The difference of the bounds of `uniform`."""
    ends = [host_numbers("uniform", label, end) for label, end in (("low", low), ("high", high))]
    if ends[0] is None or ends[1] is None:
        return Domain.of("[0, inf]").limited("uniform", "high - low", subtract(high, low))
    with np.errstate(over="ignore", invalid="ignore"):
        width: np.ndarray = ends[1] - ends[0]
    if not np.isfinite(width).all():
        problem = "high - low is not finite"
        raise error(RangeError, problem, operands={"low": low, "high": high})
    if (width < 0).any():
        problem = "high is below low"
        raise error(ArgumentError, problem, operands={"low": low, "high": high})
    return width if width.ndim else high - low


@distribution()
def random(draw: Draw) -> DistributedArray:
    """Uniform numbers in [0, 1): `gdt.random.uniform` without bounds.

    >>> gdt.random.random(2, key=0).round(3).tolist()
    [0.399, 0.736]
    """
    return draw.standard("uniform")


@distribution()
def triangular(draw: Draw, left: Any, mode: Any, right: Any) -> DistributedArray:
    """Numbers between `left` and `right` whose density rises to `mode` and falls behind it.

    left, mode, right: numbers. Raises ShapeError for arrays that are no numbers, ArgumentError
    unless left <= mode <= right and left < right.

    >>> bool(gdt.all(gdt.random.triangular(9, 0.0, 1.0, 3.0, key=0) < 3))
    True
    """
    if np.ndim(left) or np.ndim(mode) or np.ndim(right):
        shapes = ", ".join(str(list(np.shape(p))) for p in (left, mode, right))
        problem = f"left, mode and right have shapes {shapes}; they are numbers"
        remedy = "Scale draws of numbers: left + (right - left) * triangular(shape, 0, peak, 1)."
        raise error(ShapeError, problem, remedy=remedy)
    if not (left <= mode <= right and left < right):
        problem = f"left {left}, mode {mode} and right {right} are not in this order"
        raise error(ArgumentError, problem)
    u = draw.standard("uniform")
    rise, fall = (mode - left) * (right - left), (right - mode) * (right - left)
    peak = (mode - left) / (right - left)
    return where(u < peak, left + sqrt(u * rise), right - sqrt((1.0 - u) * fall))


# ---------------------------------------------------------------- normal, and functions of it


@distribution(std="[0, inf]")
def normal(draw: Draw, mean: Any = 0.0, std: Any = 1.0) -> DistributedArray:
    """Normal numbers of that mean and standard deviation.

    mean, std: numbers, or arrays that broadcast to the shape. dtype: bfloat16, float16, float32 or
        float64.

    Raises ArgumentError for a `std` below 0; elements of a distributed array, which is not fetched
    for that, give NaN. Raises it too for a float as shape, as in NumPy's order (loc, scale, size),
    which `gdt.random.default_rng` has; and warns of no elements where 0 may be NumPy's loc.

    >>> gdt.random.normal(3, key=0).round(3).tolist()
    [1.276, -0.72, -0.07]
    """
    return scaled(draw.standard("normal"), mean, std)


@distribution()
def standard_normal(draw: Draw) -> DistributedArray:
    """Normal numbers of mean 0 and standard deviation 1.

    >>> gdt.random.standard_normal(2, key=0).round(3).tolist()
    [1.276, -0.72]
    """
    return draw.standard("normal")


@distribution(std="[0, inf]")
def truncated_normal(draw: Draw, mean: Any = 0.0, std: Any = 1.0) -> DistributedArray:
    """Normal numbers given that they are within two standard deviations of the mean.

    `std` is that of the normal before it is cut off; the numbers' own is 0.8796 of it. Raises
    the errors of `gdt.random.normal`.

    >>> bool(gdt.all(abs(gdt.random.truncated_normal(100, key=0)) <= 2))
    True
    """
    return scaled(draw.standard("truncated_normal"), mean, std)


@distribution(sigma="[0, inf]")
def lognormal(draw: Draw, mean: Any = 0.0, sigma: Any = 1.0) -> DistributedArray:
    """Exponentials of normal numbers of that mean and standard deviation.

    Raises ArgumentError for a `sigma` below 0.

    >>> bool(gdt.all(gdt.random.lognormal(9, key=0) > 0))
    True
    """
    return exp(scaled(draw.standard("normal"), mean, sigma).astype(draw.dtype))


@distribution(mean="(0, inf]", scale="(0, inf]")
def wald(draw: Draw, mean: Any, scale: Any) -> DistributedArray:
    """Wald (inverse Gaussian) numbers of that mean and scale.

    Raises ArgumentError for a mean or a scale that is not above 0. Source: Michael, Schucany and
    Haas 1976.

    >>> bool(gdt.all(gdt.random.wald(9, 3.0, 2.0, key=0) > 0))
    True
    """
    first, second = draw.split(2)
    x, u = first.standard("normal"), second.standard("uniform")
    half = np.multiply(0.5, mean) / scale * x * x
    smaller = mean / (1.0 + half + sqrt(half * (half + 2.0)))
    return where(u * (mean + smaller) <= mean, smaller, mean / smaller * mean)


@distribution()
def standard_cauchy(draw: Draw) -> DistributedArray:
    """Quotients of two normal numbers.

    >>> gdt.random.standard_cauchy((2, 3), key=0).shape
    (2, 3)
    """
    x, y = (one.standard("normal") for one in draw.split(2))
    return x / y


# ---------------------------------------------------------------- exponential, and functions of it


@distribution(scale="[0, inf]")
def exponential(draw: Draw, scale: Any = 1.0) -> DistributedArray:
    """Exponential numbers of mean `scale`, at most 36.7 times it.

    Raises ArgumentError for a scale below 0.

    >>> gdt.random.exponential(3, key=0).round(3).tolist()
    [0.919, 0.307, 0.028]
    """
    return scaled(draw.standard("exponential"), 0.0, scale)


@distribution()
def standard_exponential(draw: Draw) -> DistributedArray:
    """Exponential numbers of mean 1.

    >>> gdt.random.standard_exponential(2, key=0).round(3).tolist()
    [0.919, 0.307]
    """
    return draw.standard("exponential")


@distribution(scale="[0, inf]")
def rayleigh(draw: Draw, scale: Any = 1.0) -> DistributedArray:
    """Lengths of pairs of normal numbers of standard deviation `scale`.

    Raises ArgumentError for a scale below 0.

    >>> bool(gdt.all(gdt.random.rayleigh(9, key=0) > 0))
    True
    """
    return scaled(sqrt(draw.standard("exponential") * 2.0), 0.0, scale)


@distribution(a="(0, inf]")
def weibull(draw: Draw, a: Any) -> DistributedArray:
    """Weibull numbers of shape parameter `a`: exponential numbers to the power 1 / a.

    Raises ArgumentError for an `a` that is not above 0.

    >>> bool(gdt.all(gdt.random.weibull(9, 2.0, key=0) > 0))
    True
    """
    inverse = 1.0 / a if isinstance(a, int | float) else np.divide(1.0, a)
    return power_of(draw.standard("exponential"), inverse)


@distribution(a="(0, inf]")
def pareto(draw: Draw, a: Any) -> DistributedArray:
    """Pareto II (Lomax) numbers of shape parameter `a`: exp(x / a) - 1 of exponential x.

    Raises ArgumentError for an `a` that is not above 0.

    >>> bool(gdt.all(gdt.random.pareto(9, 2.0, key=0) > 0))
    True
    """
    return expm1(draw.standard("exponential") / a)


@distribution(a="(0, inf]")
def power(draw: Draw, a: Any) -> DistributedArray:
    """Numbers in [0, 1] of density a * x^(a - 1): exp(-x / a) of exponential x.

    Raises ArgumentError for an `a` that is not above 0.

    >>> bool(gdt.all(gdt.random.power(9, 2.0, key=0) <= 1))
    True
    """
    return exp(-draw.standard("exponential") / a)


# ---------------------------------------------------------------- by location and scale


@distribution(scale="[0, inf]")
def laplace(draw: Draw, loc: Any = 0.0, scale: Any = 1.0) -> DistributedArray:
    """Laplace (double exponential) numbers around `loc`, of that scale.

    Raises ArgumentError for a scale below 0.

    >>> gdt.random.laplace(2, key=0).round(3).tolist()
    [0.226, -0.752]
    """
    return scaled(draw.standard("laplace"), loc, scale)


@distribution(scale="[0, inf]")
def logistic(draw: Draw, loc: Any = 0.0, scale: Any = 1.0) -> DistributedArray:
    """Logistic numbers around `loc`, of that scale.

    Raises ArgumentError for a scale below 0.

    >>> gdt.random.logistic(2, key=0).round(3).tolist()
    [-0.409, 1.024]
    """
    return scaled(draw.standard("logistic"), loc, scale)


@distribution(scale="[0, inf]")
def gumbel(draw: Draw, loc: Any = 0.0, scale: Any = 1.0) -> DistributedArray:
    """Gumbel (extreme value) numbers around `loc`, of that scale.

    Raises ArgumentError for a scale below 0.

    >>> gdt.random.gumbel(2, key=0).round(3).tolist()
    [0.085, 1.181]
    """
    return scaled(draw.standard("gumbel"), loc, scale)


# ---------------------------------------------------------------- gamma, and functions of it


@distribution(a="[0, inf]", scale="[0, inf]")
def gamma(draw: Draw, a: Any, scale: Any = 1.0) -> DistributedArray:
    """Gamma numbers of shape parameter `a` (NumPy calls it `shape`) and that scale: mean a * scale.

    Raises ArgumentError for an `a` or a scale below 0. Source: Marsaglia and Tsang 2000.

    >>> gdt.random.gamma(3, 2.0, key=0).shape
    (3,)
    """
    return draw.sampled("gamma", a, scale)


@distribution(a="[0, inf]")
def standard_gamma(draw: Draw, a: Any) -> DistributedArray:
    """Gamma numbers of shape parameter `a` and scale 1.

    Raises ArgumentError for an `a` below 0.

    >>> gdt.random.standard_gamma(3, 2.0, key=0).shape
    (3,)
    """
    return draw.sampled("gamma", a, 1.0)


@distribution(a="(0, inf]", b="(0, inf]")
def beta(draw: Draw, a: Any, b: Any) -> DistributedArray:
    """Beta numbers in (0, 1), of mean a / (a + b).

    Raises ArgumentError for an `a` or `b` that is not above 0.

    >>> bool(gdt.all(gdt.random.beta(9, 2.0, 3.0, key=0) < 1))
    True
    """
    return draw.sampled("beta", a, b)


@distribution(df="(0, inf]")
def chisquare(draw: Draw, df: Any) -> DistributedArray:
    """Sums of squares of `df` normal numbers; `df` need not be whole.

    Raises ArgumentError for a `df` that is not above 0.

    >>> bool(gdt.all(gdt.random.chisquare(9, 3, key=0) > 0))
    True
    """
    return _chisquare(draw, df)


def _chisquare(draw: Draw, df: Any) -> DistributedArray:
    return draw.sampled("gamma", _half(df), 2.0)


def _half(value: Any) -> Any:
    return value / 2 if isinstance(value, int | float) else np.multiply(value, 0.5)


@distribution(df="(0, inf]", nonc="[0, inf]")
def noncentral_chisquare(draw: Draw, df: Any, nonc: Any) -> DistributedArray:
    """Sums of squares of `df` normal numbers whose squared means add up to `nonc`.

    Raises ArgumentError for a `df` that is not above 0, and a `nonc` below 0.

    >>> bool(gdt.all(gdt.random.noncentral_chisquare(9, 3, 2.0, key=0) > 0))
    True
    """
    return _noncentral_chisquare(draw, df, nonc)


def _noncentral_chisquare(draw: Draw, df: Any, nonc: Any) -> DistributedArray:
    first, second = draw.split(2)
    more = first.floats().sampled("poisson", _half(nonc))
    return second.sampled("gamma", more + _half(df), 2.0)


@distribution(dfnum="(0, inf]", dfden="(0, inf]")
def f(draw: Draw, dfnum: Any, dfden: Any) -> DistributedArray:
    """Quotients of two chi-square numbers, each divided by its degrees of freedom (Fisher's F).

    Raises ArgumentError for degrees of freedom that are not above 0.

    >>> bool(gdt.all(gdt.random.f(9, 3, 4, key=0) > 0))
    True
    """
    first, second = draw.split(2)
    return divide(_chisquare(first, dfnum) / dfnum, _chisquare(second, dfden) / dfden)


@distribution(dfnum="(0, inf]", dfden="(0, inf]", nonc="[0, inf]")
def noncentral_f(draw: Draw, dfnum: Any, dfden: Any, nonc: Any) -> DistributedArray:
    """Quotients of a noncentral chi-square number and a chi-square number, each divided by its
    degrees of freedom.

    Raises ArgumentError for degrees of freedom that are not above 0, and a `nonc` below 0.

    >>> bool(gdt.all(gdt.random.noncentral_f(9, 3, 4, 2.0, key=0) > 0))
    True
    """
    first, second = draw.split(2)
    x = _noncentral_chisquare(first, dfnum, nonc) / dfnum
    return divide(x, _chisquare(second, dfden) / dfden)


@distribution(df="(0, inf]")
def standard_t(draw: Draw, df: Any) -> DistributedArray:
    """Student's t of `df` degrees of freedom.

    Raises ArgumentError for a `df` that is not above 0.

    >>> gdt.random.standard_t((2, 3), 5, key=0).shape
    (2, 3)
    """
    first, second = draw.split(2)
    return first.standard("normal") / sqrt(_chisquare(second, df) / df)
