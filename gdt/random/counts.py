"""Draws by rejection: gamma numbers and their relatives, and counts."""

from __future__ import annotations

from typing import Any

import numpy as np

from gdt.arguments import checked
from gdt.array.array import DistributedArray
from gdt.ops.elementwise import sqrt
from gdt.ops.exponential import exp
from gdt.ops.shapes import Shape
from gdt.random.distributions import LARGEST_MEAN
from gdt.random.draws import check_range, drawn_of, in_layout, normal, or_nan, uniform
from gdt.random.generator import Key
from gdt.random.variates import keys_of
from gdt.sharding.layout import Layout

# ---------------------------------------------------------------- by rejection


@checked
def gamma(
    shape: Shape,
    a: Any,
    scale: Any = 1.0,
    dtype: Any = float,
    *,
    key: Key = None,
    layout: Layout | None = None,
) -> DistributedArray:
    """Gamma numbers of shape parameter `a` (NumPy calls it `shape`) and that scale: mean a * scale.

    Raises ArgumentError for an `a` or a scale below 0. Source: Marsaglia and Tsang 2000.

    >>> gdt.random.gamma(3, 2.0, key=0).shape
    (3,)
    """
    check_range("gamma", a=a, scale=scale)
    return drawn_of("gamma", shape, dtype, layout, key, a, scale)


@checked
def standard_gamma(
    shape: Shape, a: Any, dtype: Any = float, *, key: Key = None, layout: Layout | None = None
) -> DistributedArray:
    """Gamma numbers of shape parameter `a` and scale 1.

    >>> gdt.random.standard_gamma(3, 2.0, key=0).shape
    (3,)
    """
    return gamma(shape, a, dtype=dtype, key=key, layout=layout)


@checked
def chisquare(
    shape: Shape, df: Any, dtype: Any = float, *, key: Key = None, layout: Layout | None = None
) -> DistributedArray:
    """Sums of squares of `df` normal numbers; `df` need not be whole.

    Raises ArgumentError for a `df` that is not above 0.

    >>> bool(gdt.all(gdt.random.chisquare(9, 3, key=0) > 0))
    True
    """
    check_range("chisquare", df=df, above=True)
    return drawn_of("gamma", shape, dtype, layout, key, _half(df), 2.0, "chisquare")


def _half(value: Any) -> Any:
    return value / 2 if isinstance(value, int | float) else np.multiply(value, 0.5)


@checked
def noncentral_chisquare(
    shape: Shape,
    df: Any,
    nonc: Any,
    dtype: Any = float,
    *,
    key: Key = None,
    layout: Layout | None = None,
) -> DistributedArray:
    """Sums of squares of `df` normal numbers whose squared means add up to `nonc`.

    Raises ArgumentError for a `df` that is not above 0, and a `nonc` below 0.

    >>> bool(gdt.all(gdt.random.noncentral_chisquare(9, 3, 2.0, key=0) > 0))
    True
    """
    name = "noncentral_chisquare"
    check_range(name, df=df, above=True)
    check_range(name, nonc=nonc)
    first, second = keys_of(key, 2)
    more = drawn_of("poisson", shape, float, layout, first, _half(nonc), name=name)
    return drawn_of("gamma", shape, dtype, layout, second, more + _half(df), 2.0, name)


@checked
def f(
    shape: Shape,
    dfnum: Any,
    dfden: Any,
    dtype: Any = float,
    *,
    key: Key = None,
    layout: Layout | None = None,
) -> DistributedArray:
    """Quotients of two chi-square numbers, each divided by its degrees of freedom (Fisher's F).

    >>> bool(gdt.all(gdt.random.f(9, 3, 4, key=0) > 0))
    True
    """
    x, y = (
        chisquare(shape, df, dtype, key=k, layout=layout) / df
        for k, df in zip(keys_of(key, 2), (dfnum, dfden), strict=True)
    )
    return in_layout((x / y).astype(dtype), layout)


@checked
def noncentral_f(
    shape: Shape,
    dfnum: Any,
    dfden: Any,
    nonc: Any,
    dtype: Any = float,
    *,
    key: Key = None,
    layout: Layout | None = None,
) -> DistributedArray:
    """Quotients of a noncentral chi-square number and a chi-square number, each divided by its
    degrees of freedom.

    Raises ArgumentError for degrees of freedom that are not above 0, and a `nonc` below 0.

    >>> bool(gdt.all(gdt.random.noncentral_f(9, 3, 4, 2.0, key=0) > 0))
    True
    """
    first, second = keys_of(key, 2)
    x = noncentral_chisquare(shape, dfnum, nonc, dtype, key=first, layout=layout) / dfnum
    y = chisquare(shape, dfden, dtype, key=second, layout=layout) / dfden
    return in_layout((x / y).astype(dtype), layout)


@checked
def standard_t(
    shape: Shape, df: Any, dtype: Any = float, *, key: Key = None, layout: Layout | None = None
) -> DistributedArray:
    """Student's t of `df` degrees of freedom.

    >>> gdt.random.standard_t((2, 3), 5, key=0).shape
    (2, 3)
    """
    first, second = keys_of(key, 2)
    x = normal(shape, dtype=dtype, key=first, layout=layout)
    t = x / sqrt(chisquare(shape, df, dtype, key=second, layout=layout) / df)
    return in_layout(t.astype(dtype), layout)


@checked
def beta(
    shape: Shape,
    a: Any,
    b: Any,
    dtype: Any = float,
    *,
    key: Key = None,
    layout: Layout | None = None,
) -> DistributedArray:
    """Beta numbers in (0, 1), of mean a / (a + b).

    Raises ArgumentError for an `a` or `b` that is not above 0.

    >>> bool(gdt.all(gdt.random.beta(9, 2.0, 3.0, key=0) < 1))
    True
    """
    check_range("beta", a=a, b=b, above=True)
    return drawn_of("beta", shape, dtype, layout, key, a, b)


# ---------------------------------------------------------------- counts


@checked
def poisson(
    shape: Shape,
    lam: Any = 1.0,
    dtype: Any = int,
    *,
    key: Key = None,
    layout: Layout | None = None,
) -> DistributedArray:
    """Poisson counts of mean `lam`, up to 2^62.

    Raises ArgumentError for a mean below 0 or above 2^62. Source: Hörmann 1993 (PTRS), for
    means of 10 and more.

    >>> bool(gdt.all(gdt.random.poisson(9, 3.0, key=0) >= 0))
    True
    """
    check_range("poisson", most=LARGEST_MEAN, lam=lam)
    return drawn_of("poisson", shape, dtype, layout, key, lam)


@checked
def binomial(
    shape: Shape,
    n: Any,
    p: Any,
    dtype: Any = int,
    *,
    key: Key = None,
    layout: Layout | None = None,
) -> DistributedArray:
    """Successes in `n` trials of probability `p` each.

    Raises ArgumentError for an `n` below 0 and a `p` outside of [0, 1]. Source: Hörmann 1993
    (BTRS), for 10 and more expected successes, or failures.

    >>> bool(gdt.all(gdt.random.binomial(9, 10, 0.5, key=0) <= 10))
    True
    """
    check_range("binomial", n=n)
    check_range("binomial", most=1.0, p=p)
    return drawn_of("binomial", shape, dtype, layout, key, n, p)


@checked
def geometric(
    shape: Shape, p: Any, dtype: Any = int, *, key: Key = None, layout: Layout | None = None
) -> DistributedArray:
    """Trials of probability `p` up to the first success, which counts: 1, 2, ...

    Raises ArgumentError for a `p` outside of (0, 1].

    >>> bool(gdt.all(gdt.random.geometric(9, 0.5, key=0) >= 1))
    True
    """
    check_range("geometric", most=1.0, above=True, p=p)
    return drawn_of("geometric", shape, dtype, layout, key, p)


@checked
def logseries(
    shape: Shape, p: Any, dtype: Any = int, *, key: Key = None, layout: Layout | None = None
) -> DistributedArray:
    """Counts 1, 2, ... of the logarithmic series distribution: k with probability ~ p^k / k.

    Raises ArgumentError for a `p` outside of [0, 1). Source: Kemp 1981 (LS).

    >>> bool(gdt.all(gdt.random.logseries(9, 0.5, key=0) >= 1))
    True
    """
    check_range("logseries", p=p)
    failure = 1.0 - p if isinstance(p, int | float) else np.subtract(1.0, p)
    check_range("logseries", above=True, **{"1 - p": failure})
    first, second = keys_of(key, 2)
    success = exp(uniform(shape, key=first, layout=layout) * np.log(or_nan(failure)))
    return drawn_of("geometric", shape, dtype, layout, second, success, name="logseries")


@checked
def zipf(
    shape: Shape, a: Any, dtype: Any = int, *, key: Key = None, layout: Layout | None = None
) -> DistributedArray:
    """Counts 1, 2, ... up to 2^62 of the Zipf distribution: k with probability ~ k^-a.

    Raises ArgumentError for an `a` that is not above 1. Source: Devroye 1986, X.6.1.

    >>> bool(gdt.all(gdt.random.zipf(9, 2.0, key=0) >= 1))
    True
    """
    check_range("zipf", 1.0, a=a, above=True)
    return drawn_of("zipf", shape, dtype, layout, key, a)


@checked
def negative_binomial(
    shape: Shape,
    n: Any,
    p: Any,
    dtype: Any = int,
    *,
    key: Key = None,
    layout: Layout | None = None,
) -> DistributedArray:
    """Failures before the `n`-th success, of probability `p`; `n` need not be whole.

    Raises ArgumentError for an `n` that is not above 0 and a `p` outside of (0, 1].

    >>> bool(gdt.all(gdt.random.negative_binomial(9, 3, 0.5, key=0) >= 0))
    True
    """
    check_range("negative_binomial", n=n, above=True)
    check_range("negative_binomial", most=1.0, above=True, p=p)
    first, second = keys_of(key, 2)
    odds = (1.0 - p) / p if isinstance(p, int | float) else np.divide(np.subtract(1.0, p), p)
    mean = drawn_of("gamma", shape, float, layout, first, n, odds, "negative_binomial")
    return drawn_of("poisson", shape, dtype, layout, second, mean, name="negative_binomial")
