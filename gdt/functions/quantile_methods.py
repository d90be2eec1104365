"""Methods of quantiles: between which elements, in order, a quantile lies, and where."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from gdt.ops import comparison

# Where the q-quantile of n elements in order lies, counted from 0: by rank at (n - 1) * q;
# continuous at n * q + alpha + q * (1 - alpha - beta) - 1 (Hyndman and Fan 1996); by steps at
# n * q - 1, rounded to an element (or halfway between two).
BY_RANK = ("linear", "lower", "higher", "nearest", "midpoint")
CONTINUOUS = {  # alpha and beta
    "interpolated_inverted_cdf": (0.0, 1.0), "hazen": (0.5, 0.5), "weibull": (0.0, 0.0),
    "median_unbiased": (1 / 3, 1 / 3), "normal_unbiased": (3 / 8, 3 / 8),
}  # fmt: skip
STEPS = ("inverted_cdf", "averaged_inverted_cdf", "closest_observation")
METHODS = (*BY_RANK, *CONTINUOUS, *STEPS)
# The methods whose result is an element.
CHOOSING = ("lower", "higher", "nearest", "inverted_cdf", "closest_observation")
# The weight of the second element of two, from the place of the first and the distance to it; of
# other methods it is the distance.
WEIGHTS: dict[str, Callable[[Any, Any], Any]] = {
    "lower": lambda low, distance: distance * 0,
    "higher": lambda low, distance: (distance > 0) * 1.0,
    "nearest": lambda low, distance: np.where(distance == 0.5, low % 2, distance > 0.5) * 1.0,
    "midpoint": lambda low, distance: np.where(distance > 0, 0.5, 0.0),
    "inverted_cdf": lambda low, distance: (distance > 0) * 1.0,
    "averaged_inverted_cdf": lambda low, distance: np.where(distance > 0, 1.0, 0.5),
    "closest_observation": lambda low, distance: np.where(
        (distance == 0) & (low % 2 == 1), 0.0, 1.0
    ),
}


def neighbours_of(last: Any, q: float, method: str) -> tuple[Any, Any, Any]:
    """The places of the two elements between which the q-quantile lies, and the weight of the
    second.

    last: the place of the last element, int64: a number of NumPy's, or a distributed array of one
    for each quantile. The results are of the same kind.
    """
    if method in BY_RANK:
        at = last * q
    elif method in CONTINUOUS:
        alpha, beta = CONTINUOUS[method]
        at = (last + 1) * q + (alpha + q * (1 - alpha - beta)) - 1
    else:
        at = (last + 1) * q - 1 - 0.5 * (method == "closest_observation")
    low = np.floor(at)
    weight = at - low
    if method in WEIGHTS:
        weight = WEIGHTS[method](low, weight)
    if method not in BY_RANK:
        weight = np.where(low < 0, 0.0, np.where(low >= last, 1.0, weight))
    place = low.astype(int) if method in BY_RANK else np.clip(low, 0, last).astype(int)
    return place, np.minimum(place + 1, last), weight


@lru_cache(maxsize=1 << 10)
def ranks_of(
    count: int, q: tuple[float, ...], method: str
) -> tuple[tuple[int, ...], tuple[tuple[int, int, float], ...]]:
    """The ranks, among `count` elements in order, of those between which quantiles lie; and for
    each quantile the indices of its two in these ranks, and the weight of the second."""
    neighbours = [neighbours_of(np.int64(count - 1), one, method) for one in q]
    ranks = sorted({int(rank) for low, high, _ in neighbours for rank in (low, high)})
    return tuple(ranks), tuple(
        [(ranks.index(low), ranks.index(high), float(weight)) for low, high, weight in neighbours]
    )


def interpolated(low: Any, high: Any, weight: Any, xp: Any = comparison) -> Any:
    """The number between two elements at `weight`, from 0 to 1: computed from the nearer element,
    as NumPy rounds it. Infinite elements, which have no difference, are added with their weights.

    xp: the namespace of the elements: NumPy, or a module of ops.
    """
    where = xp.where
    finite = xp.isfinite(low) & xp.isfinite(high)
    first, second = where(finite, low, 0), where(finite, high, 0)
    step = second - first
    value = where(weight < 0.5, first + step * weight, second - step * (1 - weight))
    is_end = (weight == 0) | (weight == 1)
    inner = where(is_end, 0.5, weight)
    ends = where(weight == 0, low, high)
    is_used = finite | is_end
    weighed = where(is_used, 0, low) * (1 - inner) + where(is_used, 0, high) * inner
    return where(finite, value, where(is_end, ends, weighed))


def interpolated_scalars(low: Any, high: Any, weight: Any) -> Any:
    """`interpolated` of NumPy's scalars, in less time."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return interpolated(low, high, weight, np)
    step = high - low
    return low + step * weight if weight < 0.5 else high - step * (1 - weight)
