"""Draws of bools and of whole numbers, from the distributions that NumPy's generators have.

Parameters are as in `gdt.random.continuous`: elements of a distributed parameter that are outside
of its interval give -1 in integers. Counts may be drawn as floats too, up to 2^62.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gdt.arguments import checked
from gdt.array.array import DistributedArray
from gdt.ops.comparison import less
from gdt.ops.elementwise import astype
from gdt.ops.exponential import exp
from gdt.ops.shapes import Shape
from gdt.random.distributions import LARGEST_MEAN
from gdt.random.draws import Domain, Draw, distribution, in_layout, other_shapes
from gdt.random.generator import Key
from gdt.sharding.layout import Layout


@checked
def bernoulli(
    shape: Shape = (), p: Any = 0.5, *, key: Key = None, layout: Layout | None = None
) -> DistributedArray:
    """Booleans that are true with probability `p`: a number, or an array that broadcasts to the
    shape.

    Raises ArgumentError for a `p` outside [0, 1]; of a distributed array, which is not fetched for
    that, such elements count as 0 or 1.

    >>> gdt.random.bernoulli(4, 0.5, key=3).tolist()
    [False, True, False, False]
    """
    if not isinstance(p, DistributedArray):
        Domain.of("[0, 1]").limited("bernoulli", "p", p)
    draw = Draw.of("bernoulli", shape, bool, key, layout)
    if isinstance(p, int | float):
        truths = draw.sampled("bernoulli", p=float(p))
    else:
        chances = astype(p, np.float64) if isinstance(p, DistributedArray) else np.asarray(p, float)
        bits = draw._replace(dtype=np.dtype(np.uint32)).sampled("bits32")
        truths = less(bits, chances * 2.0**32)
        if truths.shape != draw.shape:
            raise other_shapes("bernoulli", draw.shape, {"p": p})
        truths = in_layout(truths, draw.layout)
    return in_layout(truths, layout)


@distribution(dtype=int, lam=f"[0, {LARGEST_MEAN}]")
def poisson(draw: Draw, lam: Any = 1.0) -> DistributedArray:
    """Poisson counts of mean `lam`, up to 2^62.

    Raises ArgumentError for a mean below 0 or above 2^62. Source: Hörmann 1993 (PTRS), for
    means of 10 and more.

    >>> bool(gdt.all(gdt.random.poisson(9, 3.0, key=0) >= 0))
    True
    """
    return draw.sampled("poisson", lam)


@distribution(dtype=int, n="[0, inf]", p="[0, 1]")
def binomial(draw: Draw, n: Any, p: Any) -> DistributedArray:
    """Successes in `n` trials of probability `p` each.

    Raises ArgumentError for an `n` below 0 and a `p` outside of [0, 1]. Source: Hörmann 1993
    (BTRS), for 10 and more expected successes, or failures.

    >>> bool(gdt.all(gdt.random.binomial(9, 10, 0.5, key=0) <= 10))
    True
    """
    return draw.sampled("binomial", n, p)


@distribution(dtype=int, p="(0, 1]")
def geometric(draw: Draw, p: Any) -> DistributedArray:
    """Trials of probability `p` up to the first success, which counts: 1, 2, ...

    Raises ArgumentError for a `p` outside of (0, 1].

    >>> bool(gdt.all(gdt.random.geometric(9, 0.5, key=0) >= 1))
    True
    """
    return draw.sampled("geometric", p)


@distribution(dtype=int, p="[0, 1)")
def logseries(draw: Draw, p: Any) -> DistributedArray:
    """Counts 1, 2, ... of the logarithmic series distribution: k with probability ~ p^k / k.

    Raises ArgumentError for a `p` outside of [0, 1). Source: Kemp 1981 (LS).

    >>> bool(gdt.all(gdt.random.logseries(9, 0.5, key=0) >= 1))
    True
    """
    first, second = draw.split(2)
    failure = 1.0 - p if isinstance(p, int | float) else np.subtract(1.0, p)
    u = first.floats().standard("uniform")
    return second.sampled("geometric", exp(u * np.log(failure)))


@distribution(dtype=int, a="(1, inf]")
def zipf(draw: Draw, a: Any) -> DistributedArray:
    """Counts 1, 2, ... up to 2^62 of the Zipf distribution: k with probability ~ k^-a.

    Raises ArgumentError for an `a` that is not above 1. Source: Devroye 1986, X.6.1.

    >>> bool(gdt.all(gdt.random.zipf(9, 2.0, key=0) >= 1))
    True
    """
    return draw.sampled("zipf", a)


@distribution(dtype=int, n="(0, inf]", p="(0, 1]")
def negative_binomial(draw: Draw, n: Any, p: Any) -> DistributedArray:
    """Failures before the `n`-th success, of probability `p`; `n` need not be whole.

    Raises ArgumentError for an `n` that is not above 0 and a `p` outside of (0, 1].

    >>> bool(gdt.all(gdt.random.negative_binomial(9, 3, 0.5, key=0) >= 0))
    True
    """
    first, second = draw.split(2)
    odds = (1.0 - p) / p if isinstance(p, int | float) else np.divide(np.subtract(1.0, p), p)
    mean = first.floats().sampled("gamma", n, odds)
    return second.sampled("poisson", mean)
