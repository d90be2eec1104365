"""Pooling of channels-last images, and of all pixels of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gdt.arguments import checked_class
from gdt.array.array import DistributedArray
from gdt.errors import ShapeError, error
from gdt.nn.functions.convolution.pooling import average_pool, max_pool
from gdt.nn.module import Module
from gdt.nn.parameters import features_of
from gdt.ops.blocks.windows import Padding, one_for_each_axis, paddings_of
from gdt.ops.extrema import max_
from gdt.ops.reductions import mean


@checked_class(eager=True)
class _Pool(Module):
    """The base of layers that pool windows, of images of any rank."""

    def __init__(
        self,
        size: int | Sequence[int] = 2,
        strides: int | Sequence[int] | None = None,
        padding: Padding = "valid",
    ) -> None:
        name, arguments = type(self).__name__, (size, strides, padding)
        # Arguments that are one for each axis tell the rank, and single numbers fit every rank.
        self.rank = next((len(a) for a in arguments if isinstance(a, list | tuple)), None)
        rank = self.rank or 1
        one_for_each_axis(name, "size", size, rank, 1)
        one_for_each_axis(name, "strides", size if strides is None else strides, rank, 1)
        paddings_of(name, padding, rank)
        self.size, self.strides, self.padding = size, strides, padding

    def _check(self, x: Any) -> None:
        """Raise ShapeError for an x that has no batch, or no axis for each of the window."""
        if np.ndim(x) < 3 or np.ndim(x) != (self.rank or np.ndim(x) - 2) + 2:
            axes = "3 axes or more" if self.rank is None else f"{self.rank + 2} axes"
            problem = f"x has shape {list(np.shape(x))}, and {axes} are needed"
            remedy = "They are batch, spatial axes and channels."
            raise error(ShapeError, problem, remedy=remedy)

    def describe(self) -> str:
        """Return the size of the windows as text."""
        return f"{self.size}"


@checked_class(eager=True)
class MaxPool(_Pool):
    """The maximum of every window, by default of 2 elements along each spatial axis; see
    `gdt.max_pool`, whose arguments these are.

    >>> gdt.nn.MaxPool()(gdt.ones((2, 28, 28, 3))).shape
    (2, 14, 14, 3)
    """

    def __call__(self, x: Any) -> DistributedArray:
        self._check(x)
        return max_pool(x, self.size, self.strides, self.padding)


@checked_class(eager=True)
class AveragePool(_Pool):
    """The mean of every window, by default of 2 elements along each spatial axis; see
    `gdt.average_pool`, whose arguments these are.

    >>> gdt.nn.AveragePool(3, strides=1, padding="same")(gdt.ones((2, 28, 3))).shape
    (2, 28, 3)
    """

    def __call__(self, x: Any) -> DistributedArray:
        self._check(x)
        return average_pool(x, self.size, self.strides, self.padding)


@checked_class(eager=True)
class GlobalMaxPool(Module):
    """The maximum of each channel over all pixels: (batch, ..., channels) becomes (batch,
    channels).

    >>> gdt.nn.GlobalMaxPool()(gdt.ones((2, 28, 28, 3))).shape
    (2, 3)
    """

    def __call__(self, x: Any) -> DistributedArray:
        return max_(x, axis=_pixels("GlobalMaxPool", x))


@checked_class(eager=True)
class GlobalAveragePool(Module):
    """The mean of each channel over all pixels: (batch, ..., channels) becomes (batch, channels).

    >>> gdt.nn.GlobalAveragePool()(gdt.ones((2, 28, 28, 3))).shape
    (2, 3)
    """

    def __call__(self, x: Any) -> DistributedArray:
        return mean(x, axis=_pixels("GlobalAveragePool", x))


def _pixels(layer: str, x: Any) -> tuple[int, ...]:
    """Return the spatial axes of x; raise ShapeError where there are none."""
    features_of(layer, x, 3)
    return tuple(range(1, np.ndim(x) - 1))
