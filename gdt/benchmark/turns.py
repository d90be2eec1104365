"""Times of p devices and of one device, measured in turns.

What a machine does beside a benchmark changes from second to second. Two times that were measured a
minute apart may differ several times over, but calls that follow each other meet about the same
load: the median of their ratios holds where each time does not. They meet it alike if they take
equally long: a short call ends before something else gets the core, and a long one does not. So a
turn of one device has as many calls as one call on p devices takes time for.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from gdt.sharding.default_mesh import default_mesh
from gdt.sharding.mesh import Mesh

NOISY = 0.15  # width of a median's interval, relative to it, from which on it tells nothing
PATIENCE = 3  # times the seconds of a benchmark that may be added until its interval is narrow
MOST = 10_000  # turns
ESTIMATES = 3  # calls, of which the fastest tells how long a turn takes


class Median(NamedTuple):
    """A median with its interval of 95 %."""

    low: float
    value: float
    high: float

    @property
    def width(self) -> float:
        """The width of the interval as a fraction of the median."""
        return (self.high - self.low) / self.value


class OneDevice(NamedTuple):
    """A benchmark's call on one device, beside which the same is measured on others.

    mesh: on which arrays without a layout are made. seconds: the time that turns take together, as
    far as `fewest` turns do not take longer.
    """

    mesh: Mesh
    call: Callable[[], Any]
    seconds: float
    fewest: int

    def timed(self, calls: int = 1) -> float:
        """Return the seconds of a call, the mean of several that follow each other."""
        with default_mesh(self.mesh):
            began = time.perf_counter()
            for _ in range(calls):
                self.call()
            return (time.perf_counter() - began) / calls


def in_turns(benchmark: Any, call: Callable[[], Any], one: OneDevice) -> Any:
    """Time `call` with pytest-benchmark's fixture, and before each round calls on one device.

    Returns the result of `call`. `extra_info["in_turns"]` gets the median of the ratios, one device
    to `call`, with its interval; the median time on one device; and the number of turns. As long as
    the interval is wide, there are more turns than the fixture has rounds.
    """
    if benchmark.disabled:
        return benchmark.pedantic(call)
    alone = min(one.timed() for _ in range(ESTIMATES))
    together = min(_timed(call) for _ in range(ESTIMATES))
    calls = max(1, round(together / alone))
    ones: list[float] = []

    def turn() -> None:
        ones.append(one.timed(calls))

    turns = int(one.seconds / (calls * alone + together))
    out = benchmark.pedantic(call, setup=turn, rounds=min(MOST, max(one.fewest, turns)))
    times = [float(seconds) for seconds in benchmark.stats.stats.data]
    end = time.perf_counter() + PATIENCE * one.seconds
    while _of_ratios(ones, times).width > NOISY and time.perf_counter() < end:
        turn()
        times.append(_timed(call))
    benchmark.extra_info["in_turns"] = {
        **_of_ratios(ones, times)._asdict(),
        "one_device": median(ones).value,
        "turns": len(times),
    }
    return out


def median(values: Sequence[float]) -> Median:
    """Return the median with its interval of 95 %: the values whose ranks are 1.96 standard
    deviations away, of the number of values that lie below a median (Conover 1999, section 3.2).

    >>> median([3.0, 1.0, 2.0])
    Median(low=1.0, value=2.0, high=3.0)
    """
    ranked, count = sorted(values), len(values)
    outside = max(0, math.floor(count / 2 - 0.98 * math.sqrt(count)))
    value = (ranked[(count - 1) // 2] + ranked[count // 2]) / 2
    return Median(ranked[outside], value, ranked[count - 1 - outside])


def _of_ratios(ones: Sequence[float], times: Sequence[float]) -> Median:
    return median([one / other for one, other in zip(ones, times, strict=True)])


def _timed(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
