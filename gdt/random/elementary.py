"""Elementary functions from + - * / and sqrt alone, in float64: the same bits on every machine.

The logarithm is that of `gdt.random.normal_quantile`. The exponential is fdlibm's (Sun Microsystems
1993, `e_exp.c`): x = k ln 2 + r, |r| <= ln 2 / 2; with t = r r and c = r - t P(t),

    exp r = 1 - (ln2_low_part - r c / (2 - c) - ln2_high_part)
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np

from gdt.random.normal_quantile import FORMATS, logarithm, polynomial

Array: TypeAlias = Any
Namespace: TypeAlias = Any

FLOAT64 = FORMATS[np.dtype(np.float64)]
EXP = (
    1.66666666666666019037e-01,
    -2.77777777770155933842e-03,
    6.61375632143793436117e-05,
    -1.65339022054652515390e-06,
    4.13813679705723846039e-08,
)
LEAST, MOST = -745.2, 709.7  # beyond these the exponential is 0, or infinite
FACTORIALS = tuple(math.lgamma(k + 1) for k in range(8))
STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188)


def log(x: Array) -> Array:
    """Return the natural logarithm of positive, finite, normal numbers.

    >>> log(np.array([1.0, 2.0])).tolist() == [0.0, math.log(2)]
    True
    """
    return logarithm(x, FLOAT64)


def log1p(x: Array, xp: Namespace) -> Array:
    """Return log(1 + x) for x > -1, also where x is small.

    Source: W. Kahan, in Hewlett-Packard's HP-15C Advanced Functions Handbook, 1982.

    >>> log1p(np.array([-1e-20]), np).tolist()
    [-1e-20]
    """
    y = 1.0 + x
    rest = y - 1.0
    return xp.where(rest == 0, x, log(y) * (x / xp.where(rest == 0, 1.0, rest)))


def exp(x: Array, xp: Namespace) -> Array:
    """Return the exponential of numbers up to 709.7, and NaN of NaN.

    >>> exp(np.array([0.0, -800.0]), np).tolist()
    [1.0, 0.0]
    """
    inside = xp.clip(xp.where(x == x, x, 0.0), LEAST, MOST)
    k = xp.floor(inside * 1.4426950408889634 + 0.5)
    high, low = inside - k * FLOAT64.ln2_high, k * FLOAT64.ln2_low
    r = high - low
    t = r * r
    c = r - t * polynomial(t, EXP)
    value = 1.0 - ((low - (r * c) / (2.0 - c)) - high)
    # Two factors, since 2^k may be too small for a normal number where the result is not.
    half = xp.floor(k * 0.5)
    value = value * _power_of_2(half) * _power_of_2(k - half)
    return xp.where(x < LEAST, 0.0, xp.where(x == x, value, x))


def _power_of_2(k: Array) -> Array:
    return ((k.astype(np.int64) + 1023) << 52).view(np.float64)


def log_factorial(k: Array, xp: Namespace) -> Array:
    """Return log k! of whole numbers k >= 0, to 1e-11: by Stirling's series from 8 on.

    >>> log_factorial(np.array([3.0, 20.0]), np).round(9).tolist()
    [1.791759469, 42.335616461]
    """
    small = xp.asarray(FACTORIALS)[xp.clip(k, 0, 7).astype(np.int64)]
    x = xp.maximum(k, 7.0) + 1.0
    series = polynomial(1.0 / (x * x), STIRLING) / x
    large = (x - 0.5) * log(x) - x + 0.5 * math.log(2 * math.pi) + series
    return xp.where(k < 8, small, large)
