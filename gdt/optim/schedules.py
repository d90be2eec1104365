"""Schedules: functions from the number of earlier updates to the learning rate.

Each is an object with a `__call__`, and not a function inside a function, so that it can be copied,
pickled and printed with its optimizer. `gdt.optim` calls them `exponential_decay` and so on.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gdt.arguments import checked_class
from gdt.errors import ArgumentError, error

Schedule = Callable[[int], float]


@checked_class("__call__", eager=True)
@dataclass(frozen=True)
class ExponentialDecay:
    """The schedule `initial * decay_rate ** (step / decay_steps)`.

    staircase: whether the exponent is rounded down to an integer. Raises ArgumentError for fewer
    than one decay step.

    >>> gdt.optim.exponential_decay(0.1, decay_steps=10, decay_rate=0.5)(20)
    0.025
    """

    initial: float
    decay_steps: int
    decay_rate: float
    staircase: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        _check_steps(type(self).__name__, self.decay_steps)

    def __call__(self, step: int) -> float:
        power = step // self.decay_steps if self.staircase else step / self.decay_steps
        return float(self.initial * self.decay_rate**power)


@checked_class("__call__", eager=True)
@dataclass(frozen=True)
class _Decay:
    """The base of schedules from `initial` down to `final` over `decay_steps`."""

    initial: float
    decay_steps: int
    final: float = 0.0

    def __post_init__(self) -> None:
        _check_steps(type(self).__name__, self.decay_steps)


class CosineDecay(_Decay):
    """The schedule of half a cosine from `initial` down to `final` over `decay_steps`.

    After that it is `final`. Source: Loshchilov and Hutter 2017, "SGDR", eq. 5. Raises
    ArgumentError for fewer than one decay step.

    >>> gdt.optim.cosine_decay(1.0, decay_steps=100)(50)
    0.5
    """

    def __call__(self, step: int) -> float:
        done = min(step / self.decay_steps, 1.0)
        return self.final + (self.initial - self.final) * (1 + math.cos(math.pi * done)) / 2


class LinearDecay(_Decay):
    """The schedule of a straight line from `initial` to `final` over `decay_steps`.

    After that it is `final`. Raises ArgumentError for fewer than one decay step.

    >>> gdt.optim.linear_decay(1.0, decay_steps=100)(25)
    0.75
    """

    def __call__(self, step: int) -> float:
        done = min(step / self.decay_steps, 1.0)
        return self.initial + (self.final - self.initial) * done


@checked_class("__call__", eager=True)
@dataclass(frozen=True)
class PiecewiseConstant:
    """The schedule that is values[0] before step boundaries[0], values[1] before boundaries[1], and
    so on.

    Raises ArgumentError unless the boundaries ascend and there is one value more.

    >>> [gdt.optim.piecewise_constant([2], [0.1, 0.01])(step) for step in range(4)]
    [0.1, 0.1, 0.01, 0.01]
    """

    boundaries: Sequence[int]
    values: Sequence[float]

    def __post_init__(self) -> None:
        count, steps = len(self.values), list(self.boundaries)
        if count != len(steps) + 1 or steps != sorted(steps):
            problem = f"{len(steps)} boundaries {steps} and {count} values"
            remedy = "Give ascending boundaries, and one value more than boundaries."
            raise error(ArgumentError, type(self).__name__, problem, remedy=remedy)
        object.__setattr__(self, "boundaries", tuple(steps))  # of a frozen dataclass
        object.__setattr__(self, "values", tuple(self.values))

    def __call__(self, step: int) -> float:
        return self.values[bisect_right(self.boundaries, step)]


@checked_class("__call__", eager=True)
@dataclass(frozen=True)
class Warmup:
    """The schedule that rises linearly to `rate` over the first `warmup_steps`.

    rate: a float, or a schedule that is followed after the rise, from its own step 0. Raises
    ArgumentError for fewer than one step.

    >>> [gdt.optim.with_warmup(0.4, 4)(step) for step in range(5)]
    [0.1, 0.2, 0.30000000000000004, 0.4, 0.4]
    """

    rate: float | Schedule
    warmup_steps: int

    def __post_init__(self) -> None:
        _check_steps(type(self).__name__, self.warmup_steps)

    def __call__(self, step: int) -> float:
        later = max(step - self.warmup_steps, 0)
        target = self.rate(later) if callable(self.rate) else self.rate
        return target * min((step + 1) / self.warmup_steps, 1.0)


def _check_steps(name: str, steps: int) -> None:
    """Raise ArgumentError unless `steps` is at least 1."""
    if steps < 1:
        raise error(ArgumentError, name, f"a duration of {steps} steps", remedy="Pass 1 or more.")
