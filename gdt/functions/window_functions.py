"""Windows of signal processing, each a function of the phase from 0 to 2 pi."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from gdt.array.array import DistributedArray
from gdt.array.registry import public
from gdt.ops.angles import i0
from gdt.ops.comparison import maximum
from gdt.ops.elementwise import sqrt
from gdt.ops.generation import from_indices, type_of_shape
from gdt.ops.ranges import arange

__all__ = [
    "bartlett",
    "blackman",
    "hamming",
    "hanning",
    "kaiser",
]


def _window(name: str, count: int, values: Callable[[Any, Any], Any]) -> DistributedArray:
    """A window of `count` numbers, `values(xp, phase)` for phases from 0 to 2 pi."""
    array_type = type_of_shape(max(int(count), 0), float, name)
    step = 2 * math.pi / (count - 1) if count > 1 else 0.0
    if count == 1:
        return from_indices(array_type, lambda xp, i: xp.ones(i.shape))
    return from_indices(array_type, lambda xp, i: values(xp, i * step), name)


@public
def hanning(M: int) -> DistributedArray:
    """The Hann window of `M` points: 0.5 - 0.5 cos.

    >>> gdt.hanning(3).tolist()
    [0.0, 1.0, 0.0]
    """
    return _window("hanning", M, lambda xp, t: 0.5 - 0.5 * xp.cos(t))


@public
def hamming(M: int) -> DistributedArray:
    """The Hamming window of `M` points: 0.54 - 0.46 cos.

    >>> gdt.hamming(3).round(6).tolist()
    [0.08, 1.0, 0.08]
    """
    return _window("hamming", M, lambda xp, t: 0.54 - 0.46 * xp.cos(t))


@public
def blackman(M: int) -> DistributedArray:
    """The Blackman window of `M` points.

    >>> gdt.blackman(3).round(6).tolist()
    [-0.0, 1.0, -0.0]
    """
    return _window("blackman", M, lambda xp, t: 0.42 - 0.5 * xp.cos(t) + 0.08 * xp.cos(2.0 * t))


@public
def bartlett(M: int) -> DistributedArray:
    """The triangular window of `M` points that ends in zeros.

    >>> gdt.bartlett(5).tolist()
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    return _window("bartlett", M, lambda xp, t: 1 - xp.abs(t / math.pi - 1))


@public
def kaiser(M: int, beta: float) -> DistributedArray:
    """The Kaiser window of `M` points, of shape `beta`: a Bessel function.

    >>> gdt.kaiser(3, 0.0).tolist()
    [1.0, 1.0, 1.0]
    """
    ends = _window("kaiser", M, lambda xp, t: t / math.pi - 1) if M != 1 else arange(1.0)
    return i0(beta * sqrt(maximum(1 - ends * ends, 0))) / i0(float(beta))
