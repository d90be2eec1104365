"""Measure how long a GPU computes, without the time that the host takes to launch the work.

A launch costs the host some microseconds of Python, for which an idle device waits: events around
one small kernel measure the host. So the device fills memory until the host has launched all that
is measured, and several runs lie between two events.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

LEAD_BYTES = 256 << 20  # filled while the host launches: about 0.1 ms on an H100
FILLS_MAX = 512  # a stream takes about twice as many launches before the host has to wait
RUNS = 10  # between two events
ROUNDS = 5


class DeviceTime(NamedTuple):
    """Seconds of one run; `is_unbiased` if the host was ahead of the device in all of them."""

    seconds: float
    is_unbiased: bool


def device_time(cupy: Any, run: Callable[[], Any], rounds: int = ROUNDS) -> DeviceTime:
    """The median of the rounds' times for `run`, on the current stream of the current device.

    The host cannot get ahead of a `run` that waits for the device, nor where CUDA_LAUNCH_BLOCKING
    is set: its time is then part of the result.
    """
    stream, lead = cupy.cuda.get_current_stream(), cupy.empty(LEAD_BYTES, np.uint8)
    run()  # its kernels are loaded, and its memory is in the pool
    times: list[float] = []
    fills, is_unbiased = 1, True
    while len(times) < rounds:
        for _ in range(fills):
            lead.fill(0)
        begin = stream.record(cupy.cuda.Event())
        for _ in range(RUNS):
            run()
        is_ahead = not begin.done
        end = stream.record(cupy.cuda.Event())
        end.synchronize()
        if not is_ahead and fills < FILLS_MAX:
            fills *= 2
            continue
        is_unbiased = is_unbiased and is_ahead
        times.append(cupy.cuda.get_elapsed_time(begin, end) / 1e3 / RUNS)
    return DeviceTime(float(np.median(times)), is_unbiased)
