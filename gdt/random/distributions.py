"""Elements of distributions as functions of a key and the global index: by inversion and rejection.

Everything is computed in float64 by `gdt.random.elementary`, so the numbers are the same bits on
every machine. Samplers of one word take the bits of `gdt.random.bits.bits64`. Samplers with
parameters take, for element i and attempt t, the two pairs of words of Philox counter i in stream t
of a key that is derived from the key and the stream of the draw. The first attempt that is accepted
counts, so an element depends on nothing but its index and its parameters.

Sources: G. Marsaglia and W. W. Tsang, "A simple method for generating gamma variables", 2000;
W. Hörmann, "The transformed rejection method for generating Poisson random variables", 1993 (PTRS),
and "The generation of binomial random variates", 1993 (BTRS); L. Devroye, "Non-Uniform Random
Variate Generation", 1986, X.6.1 (zipf).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from gdt.ops.blocks.philox import HALF, LOW, TILE, CounterRun, as_uint64, draw, philox
from gdt.random.bits import float_dtype, fold_in
from gdt.random.elementary import exp, log, log1p, log_factorial
from gdt.random.normal_quantile import quantile

Array: TypeAlias = Any
Namespace: TypeAlias = Any
Attempt: TypeAlias = Callable[..., tuple[Array, Array]]

DERIVED = 0x6A09E667F3BCC908  # keys of attempts are no keys that a user folds
BOOST = 2**63
"""The stream in which gamma variables of a shape below 1 have their last factor."""

FEW = 10.0
"""The mean from which on counts are drawn by rejection; below it by adding up probabilities."""

MOST_TERMS = 200
"""More terms than the probabilities of a mean below `FEW` take to add up to 1 in float64."""

LARGEST_MEAN = 2.0**62


def _unit(bits: Array) -> Array:
    """Return the odd multiple of 2^-53 in (0, 1) that the upper 52 bits say."""
    return ((bits >> 12).astype(np.float64) + 0.5) * 2.0**-52


# Samplers of one word, without parameters ---------------------------------------------------------


def _of_one_word(name: str, formula: Callable[[Array], Array]) -> Callable[..., Array]:
    def sampler(
        xp: Namespace,
        index: Array | CounterRun,
        key: Array | int,
        stream: Array | int = 0,
        dtype: Any = np.float64,
    ) -> Array:
        return draw(xp, index, key, stream, np.uint64, float_dtype(name, dtype), formula)

    return sampler


def _laplace(bits: Array) -> Array:
    sign = 1.0 - 2.0 * (bits >> 63).astype(np.float64)
    return -sign * log(_unit(bits << 1))


def _logistic(bits: Array) -> Array:
    u = _unit(bits)
    return log(u) - log(1.0 - u)


exponential = _of_one_word("exponential", lambda bits: -log(_unit(bits)))
laplace = _of_one_word("laplace", _laplace)
logistic = _of_one_word("logistic", _logistic)
gumbel = _of_one_word("gumbel", lambda bits: -log(-log(_unit(bits))))


# Attempts -----------------------------------------------------------------------------------------


def _words(xp: Namespace, index: Array, key: Array, stream: int) -> tuple[Array, Array]:
    """Return the two pairs of words of each element in a stream."""
    words = xp.full(1, stream, np.uint64)
    return philox(xp, (index & LOW, index >> HALF, words & LOW, words >> HALF), key.reshape(1))


def _accepted(xp: Namespace, attempt: Attempt, index: Array, *parameters: Array) -> Array:
    """Return each element's first value that `attempt(number, index, *parameters)` accepts."""
    out, indices = xp.empty(index.size, np.float64), xp.arange(index.size)
    for number in itertools.count():
        values, good = attempt(number, index, *parameters)
        out[indices[good]] = values[good]
        indices = indices[~good]
        if not indices.size:
            return out
        index, *parameters = (x[~good] for x in (index, *parameters))
    raise AssertionError


def drawn(
    sampler: str,
    xp: Namespace,
    index: Array,
    key: Array | int,
    stream: Array | int,
    first: Array | float,
    second: Array | float = 0.0,
) -> Array:
    """Draw elements of a distribution with parameters, in float64.

    sampler: a name of `SAMPLERS`. index: a vector of global indices, uint64. first, second: the
    parameters, numbers or vectors as long; where they are none of the distribution's, elements are
    NaN.
    """
    derived = fold_in(xp, as_uint64(xp, key) ^ np.uint64(DERIVED), as_uint64(xp, stream))
    function, out = SAMPLERS[sampler], xp.empty(index.size, np.float64)
    size = TILE if xp is np else max(index.size, 1)
    for start in range(0, index.size, size):
        part = slice(start, start + size)
        own = index[part]
        values = [
            xp.full(own.size, p, np.float64) if isinstance(p, float) else p[part]
            for p in (first, second)
        ]
        out[part] = function(xp, own, derived, *values)
    return out


# Continuous ---------------------------------------------------------------------------------------


def _log_gamma(xp: Namespace, index: Array, key: Array, shape: Array, _: Array) -> Array:
    """The logarithm of a gamma variable; of a shape a below 1 it is that of a + 1 times u^(1/a)."""
    valid = (shape > 0) & (shape < np.inf)
    shape = xp.where(valid, shape, 1.0)
    is_small = shape < 1

    def attempt(number: int, index: Array, d: Array, c: Array) -> tuple[Array, Array]:
        a, b = _words(xp, index, key, number)
        x = quantile(xp, a.view(np.int64), np.dtype(np.float64))
        root = 1.0 + c * x
        v = xp.where(root > 0, root, 1.0)
        log_v = 3.0 * log(v)
        v = v * v * v
        bound = 0.5 * (x * x) + (d - d * v) + d * log_v
        return log(d) + log_v, (root > 0) & (log(_unit(b)) < bound)

    d = xp.where(is_small, shape + 1.0, shape) - 1.0 / 3.0
    values = _accepted(xp, attempt, index, d, 1.0 / xp.sqrt(9.0 * d))
    a, _ = _words(xp, index, key, BOOST)
    values = values + xp.where(is_small, log(_unit(a)) / shape, 0.0)
    return xp.where(valid, values, np.nan)


def _gamma(xp: Namespace, index: Array, key: Array, shape: Array, scale: Array) -> Array:
    values = exp(_log_gamma(xp, index, key, shape, scale), xp) * scale
    return xp.where(scale >= 0, xp.where(shape == 0, 0.0, values), np.nan)


def _beta(xp: Namespace, index: Array, key: Array, a: Array, b: Array) -> Array:
    """x / (x + y) of two gamma variables."""
    x = _log_gamma(xp, index, fold_in(xp, key, 0), a, b)
    y = _log_gamma(xp, index, fold_in(xp, key, 1), b, a)
    return 1.0 / (1.0 + exp(xp.minimum(y - x, 709.0), xp))


# Counts -------------------------------------------------------------------------------------------


def _by_inversion(
    xp: Namespace, u: Array, probability: Array, ratio: Callable[..., Array], *of: Array
) -> Array:
    """The smallest count k for which the probabilities of 0 to k add up to u.

    probability: that of 0; ratio(k, *of): that of k in units of that of k - 1."""
    counts, remaining, total = xp.zeros(u.size, np.float64), xp.arange(u.size), probability
    for k in range(1, MOST_TERMS):
        more = u > total
        remaining, u, probability, total = (x[more] for x in (remaining, u, probability, total))
        of = tuple(x[more] for x in of)
        if not remaining.size:
            break
        probability = probability * ratio(k, *of)
        total = total + probability
        counts[remaining] = k
    return counts


def _poisson(xp: Namespace, index: Array, key: Array, mean: Array, _: Array) -> Array:
    valid = (mean >= 0) & (mean <= LARGEST_MEAN)
    mean = xp.where(valid, mean, 0.0)
    is_small = mean < FEW
    small = xp.where(is_small, mean, 0.0)
    a, _ = _words(xp, index, key, BOOST)
    counts = _by_inversion(xp, _unit(a), exp(-small, xp), lambda k, m: m / k, small)
    large = xp.flatnonzero(~is_small)
    if large.size:
        counts[large] = _poisson_of_many(xp, index[large], key, mean[large])
    return xp.where(valid, counts, np.nan)


def _poisson_of_many(xp: Namespace, index: Array, key: Array, mean: Array) -> Array:
    """PTRS."""

    def attempt(number: int, index: Array, mean: Array) -> tuple[Array, Array]:
        words = _words(xp, index, key, number)
        u, v = _unit(words[0]) - 0.5, _unit(words[1])
        b = 0.931 + 2.53 * xp.sqrt(mean)
        a = -0.059 + 0.02483 * b
        inside = 0.5 - xp.abs(u)
        k = xp.floor((2.0 * a / inside + b) * u + mean + 0.43)
        is_sure = (inside >= 0.07) & (v <= 0.9277 - 3.6224 / (b - 2.0))
        possible = (k >= 0) & ~((inside < 0.013) & (v > inside))
        count = xp.where(possible, k, 0.0)
        left = log(v) + log(1.1239 + 1.1328 / (b - 3.4)) - log(a / (inside * inside) + b)
        right = count * log(mean) - mean - log_factorial(count, xp)
        return k, is_sure | (possible & (left <= right))

    return _accepted(xp, attempt, index, mean)


def _binomial(xp: Namespace, index: Array, key: Array, n: Array, p: Array) -> Array:
    valid = (n >= 0) & (n <= LARGEST_MEAN) & (p >= 0) & (p <= 1)
    n, p = xp.where(valid, xp.floor(n), 0.0), xp.where(valid, p, 0.0)
    rare = xp.where(p > 0.5, 1.0 - p, p)
    is_small = n * rare < FEW
    few = xp.where(is_small, n, 0.0)
    a, _ = _words(xp, index, key, BOOST)
    first = exp(few * log1p(-rare, xp), xp)
    odds = rare / (1.0 - rare)
    counts = _by_inversion(
        xp, _unit(a), first, lambda k, n, odds: odds * xp.maximum(n - k + 1, 0.0) / k, few, odds
    )
    large = xp.flatnonzero(~is_small)
    if large.size:
        counts[large] = _binomial_of_many(xp, index[large], key, n[large], rare[large])
    return xp.where(valid, xp.where(p > 0.5, n - counts, counts), np.nan)


def _binomial_of_many(xp: Namespace, index: Array, key: Array, n: Array, p: Array) -> Array:
    """BTRS."""

    def attempt(number: int, index: Array, n: Array, p: Array) -> tuple[Array, Array]:
        words = _words(xp, index, key, number)
        u, v = _unit(words[0]) - 0.5, _unit(words[1])
        deviation = xp.sqrt(n * p * (1.0 - p))
        b = 1.15 + 2.53 * deviation
        a = -0.0873 + 0.0248 * b + 0.01 * p
        inside = 0.5 - xp.abs(u)
        k = xp.floor((2.0 * a / inside + b) * u + n * p + 0.5)
        possible = (k >= 0) & (k <= n)
        is_sure = (inside >= 0.07) & (v <= 0.92 - 4.2 / b)
        count, mode = xp.where(possible, k, 0.0), xp.floor((n + 1.0) * p)
        scale = (2.83 + 5.1 / b) * deviation
        left = log(v) + log(scale) - log(a / (inside * inside) + b)
        right = log_factorial(mode, xp) + log_factorial(n - mode, xp)
        right = right - log_factorial(count, xp) - log_factorial(n - count, xp)
        right = right + (count - mode) * (log(p) - log(1.0 - p))
        return k, possible & (is_sure | (left <= right))

    return _accepted(xp, attempt, index, n, p)


def _geometric(xp: Namespace, index: Array, key: Array, p: Array, _: Array) -> Array:
    """The trials up to the first success."""
    valid = (p > 0) & (p <= 1)
    p = xp.where(valid, p, 1.0)
    a, _ = _words(xp, index, key, 0)
    chance = xp.where(p < 1, p, 0.5)
    trials = xp.ceil(log(_unit(a)) / log1p(-chance, xp))
    trials = xp.where(p < 1, xp.clip(trials, 1.0, LARGEST_MEAN), 1.0)
    return xp.where(valid, trials, np.nan)


def _zipf(xp: Namespace, index: Array, key: Array, exponent: Array, _: Array) -> Array:
    valid = (exponent > 1) & (exponent < np.inf)
    power = xp.where(valid, xp.minimum(exponent, 1000.0), 2.0) - 1.0

    def attempt(number: int, index: Array, power: Array) -> tuple[Array, Array]:
        words = _words(xp, index, key, number)
        least = exp(-power * math.log(LARGEST_MEAN), xp)  # which keeps counts below LARGEST_MEAN
        u, v = least + (1.0 - least) * _unit(words[0]), _unit(words[1])
        count = xp.clip(xp.floor(exp(-log(u) / power, xp)), 1.0, LARGEST_MEAN)
        ratio, limit = power * log1p(1.0 / count, xp), exp(power * math.log(2.0), xp)
        growth = xp.where(ratio < 1e-5, ratio * (1.0 + 0.5 * ratio), exp(ratio, xp) - 1.0)
        return count, v * count * growth / (limit - 1.0) <= (growth + 1.0) / limit

    return xp.where(valid, _accepted(xp, attempt, index, power), np.nan)


COUNTS = ("poisson", "binomial", "geometric", "zipf")
"""The samplers of whole numbers."""

SAMPLERS: dict[str, Callable[..., Array]] = {
    "gamma": _gamma,
    "log_gamma": _log_gamma,
    "beta": _beta,
    "poisson": _poisson,
    "binomial": _binomial,
    "geometric": _geometric,
    "zipf": _zipf,
}
