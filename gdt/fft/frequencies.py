"""Frequencies of transforms, and shifts that put frequency 0 in the middle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gdt.array.array import DistributedArray
from gdt.array.operands import as_operands
from gdt.array.registry import public_of
from gdt.errors import DtypeError, ShapeError, error
from gdt.ops.axes import checked_axes
from gdt.ops.elementwise import checked_dtype
from gdt.ops.generation import from_indices, type_of_shape
from gdt.ops.movement import alias
from gdt.ops.rearranging import roll
from gdt.sharding.dtypes import kind_of
from gdt.sharding.layout import Layout
from gdt.sharding.mesh import Mesh


def _frequencies(
    name: str,
    n: int,
    count: int,
    d: float,
    dtype: Any,
    layout: Layout | None,
    middle: int,
    device: Mesh | None,
) -> DistributedArray:
    """The first `count` frequencies of n samples; from index `middle` on, negative ones."""
    if isinstance(n, bool) or n < 1:
        raise error(ShapeError, name, f"{n} is no number of samples", remedy="It is 1 or more.")
    if kind_of(checked_dtype(dtype, name)) != "f":
        raise error(DtypeError, name, f"{dtype} is no real floating-point dtype")
    array_type = type_of_shape(count, dtype, name, layout, device)
    values = lambda xp, i: xp.where(i < middle, i, i - n) * (1.0 / (n * d))
    return from_indices(array_type, values, n, d)


@public_of("fft")
def fftfreq(
    n: int,
    d: float = 1.0,
    *,
    dtype: Any = None,
    layout: Layout | None = None,
    device: Mesh | None = None,
) -> DistributedArray:
    """The frequencies of the elements of `fft`: (0, 1, ..., -2, -1) / (n * d), of shape (n,).

    n: the number of samples. d: the distance between two samples; frequencies are in the reciprocal
    of its unit. layout, device: see `gdt.asarray`.

    Raises ShapeError for an `n` below 1, DtypeError for a dtype that is not floating-point.

    >>> gdt.fft.fftfreq(4).tolist()
    [0.0, 0.25, -0.5, -0.25]
    """
    return _frequencies("fft.fftfreq", n, n, d, dtype, layout, (n + 1) // 2, device)


@public_of("fft")
def rfftfreq(
    n: int,
    d: float = 1.0,
    *,
    dtype: Any = None,
    layout: Layout | None = None,
    device: Mesh | None = None,
) -> DistributedArray:
    """The frequencies of the elements of `rfft`: (0, 1, ..., n // 2) / (n * d), of shape
    (n // 2 + 1,).

    Arguments and errors are those of `gdt.fft.fftfreq`.

    >>> gdt.fft.rfftfreq(4).tolist()
    [0.0, 0.25, 0.5]
    """
    return _frequencies("fft.rfftfreq", n, n // 2 + 1, d, dtype, layout, n + 1, device)


@public_of("fft")
def fftshift(x: Any, axes: int | Sequence[int] | None = None) -> DistributedArray:
    """The array `x` with frequency 0 moved to the middle of `axes` (None: of all axes), in the same
    layout.

    Raises AxisError for an axis that `x` does not have.

    >>> gdt.fft.fftshift(gdt.fft.fftfreq(4)).tolist()
    [-0.5, -0.25, 0.0, 0.25]
    """
    return _shifted("fft.fftshift", x, axes, 0)


@public_of("fft")
def ifftshift(x: Any, axes: int | Sequence[int] | None = None) -> DistributedArray:
    """The array `x` as it was before `fftshift` along the same axes: its inverse.

    Raises AxisError for an axis that `x` does not have.

    >>> gdt.fft.ifftshift([-0.5, -0.25, 0.0, 0.25]).tolist()
    [0.0, 0.25, -0.5, -0.25]
    """
    return _shifted("fft.ifftshift", x, axes, 1)


def _shifted(name: str, x: Any, axes: int | Sequence[int] | None, odd: int) -> DistributedArray:
    """The array rolled by half of each axis. odd: 1 to round halves of odd lengths up."""
    (x,) = as_operands(name, x=x)
    numbers = checked_axes(x.type, axes)
    # An odd length moves by one element less than back.
    shifts = [(x.shape[axis] + odd) // 2 for axis in numbers]
    return roll(x, shifts, numbers) if numbers else alias(x)
