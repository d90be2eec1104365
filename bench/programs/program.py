"""A program, its operands, and what it computes in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

ROW = 125  # columns of a table: of 10^4, 10^6 and 10^7 elements, 8 devices have as many rows each
STEP = 1e-4  # of differences along a direction, whose error is of the order of STEP**2
TOLERANCE = 1e-5  # of a result, beside the largest absolute value that it has in float64
GRADIENT_TOLERANCE = 1e-4  # of a derivative along a direction: a sum of terms of both signs

Array = Any
Namespace = Any
Result = NDArray[Any]
Tree = Any  # an operand, or a dict of operands


class Operand(NamedTuple):
    """An array of the host; axis: the axis along which it is split, None for none."""

    values: Result
    axis: int | None


Draw = Callable[[np.random.Generator, int], Operand]
"""A function of a generator and the number of elements."""


@dataclass(frozen=True)
class Program:
    """A function of a namespace and arrays that returns arrays.

    draws: what its operands are drawn by, a dict by name for the first operand of a program with a
    gradient. has_gradient: whether the function returns a scalar and a tuple of other arrays, and
    the gradient of the scalar with respect to the first operand is asked for.
    """

    name: str
    run: Callable[..., Any]
    draws: Sequence[Draw | Mapping[str, Draw]]
    has_gradient: bool = False

    def operands(self, size: int) -> list[Tree]:
        """Return the operands of about `size` elements each, the same in every process."""
        rng = np.random.default_rng(0)
        return [
            {name: one(rng, size) for name, one in draw.items()}
            if isinstance(draw, Mapping)
            else draw(rng, size)
            for draw in self.draws
        ]

    def reference(self, xp: Namespace, size: int) -> list[Result]:
        """Return the results in float64: value, other results and, by differences, derivatives.

        xp: a namespace of NumPy whose `float32` is float64.
        """
        arrays = [in_tree(in_float64, operand) for operand in self.operands(size)]
        if not self.has_gradient:
            return [np.asarray(x) for x in self.run(xp, *arrays)]
        parameters, *data = arrays
        value, others = self.run(xp, parameters, *data)
        derivatives = []
        for name, direction in directions(parameters).items():
            above, below = (
                self.run(xp, parameters | {name: parameters[name] + h * direction}, *data)[0]
                for h in (STEP, -STEP)
            )
            derivatives.append((above - below) / (2 * STEP))
        return [np.asarray(x) for x in (value, *others, *derivatives)]

    def observed(self, results: Any) -> list[Result]:
        """Return what `reference` does, of a library's results as NumPy arrays.

        results: arrays; of a program with a gradient, `((value, others), gradients)`.
        """
        if not self.has_gradient:
            return list(results)
        (value, others), gradients = results
        along = directions(gradients)
        return [value, *others, *(np.vdot(along[k], gradients[k]) for k in along)]

    def error(self, results: Any, reference: Sequence[Result]) -> float:
        """Return the largest difference from the reference, in units of the tolerance; NaN where
        there is a NaN or another shape."""
        observed = self.observed(results)
        derivative = len(observed) - (len(results[1]) if self.has_gradient else 0)  # the first
        errors = [
            difference(x, y) / (TOLERANCE if i < derivative else GRADIENT_TOLERANCE)
            for i, (x, y) in enumerate(zip(observed, reference, strict=True))
        ]
        return float(np.max(errors))  # NaN if one is


def difference(x: Result, reference: Result) -> float:
    """Return the largest difference beside the largest absolute value; NaN where shapes differ.

    Integers may differ by one, to which a number at a half may be rounded.
    """
    if x.shape != reference.shape:
        return float("nan")
    free = 1 if np.issubdtype(x.dtype, np.integer) else 0
    largest = np.abs(x.astype(np.float64) - reference).max(initial=0)
    return float(max(largest - free, 0) / (np.abs(reference).max(initial=0) or 1))


def directions(parameters: Mapping[str, Result]) -> dict[str, Result]:
    """Return a direction for each parameter, by name, the same in every process."""
    rng = np.random.default_rng(1)
    return {name: rng.standard_normal(np.shape(parameters[name])) for name in sorted(parameters)}


def in_tree(function: Callable[[Any], Any], tree: Any) -> Any:
    """Return `function` of an operand or array, or of each in a dict, list or tuple of them."""
    if isinstance(tree, dict):
        return {name: in_tree(function, one) for name, one in tree.items()}
    if isinstance(tree, (list, tuple)) and not isinstance(tree, Operand):
        return tuple(in_tree(function, one) for one in tree)
    return function(tree)


def in_float64(operand: Operand) -> Result:
    values = operand.values
    return values.astype(np.float64) if values.dtype == np.float32 else values


# ---------------------------------------------------------------- operands


def uniform(low: float, high: float) -> Draw:
    return lambda rng, size: Operand(rng.uniform(low, high, size).astype(np.float32), 0)


def normal(scale: float = 1) -> Draw:
    return lambda rng, size: Operand(scale * rng.standard_normal(size, np.float32), 0)


def integers(high: int) -> Draw:
    """Integers of 8 bits below `high`."""
    return lambda rng, size: Operand(rng.integers(0, high, size, np.uint8), 0)


def rows(width: int = ROW, scale: float = 1) -> Draw:
    """A table of normal numbers, whose rows are split."""
    return lambda rng, size: Operand(
        scale * rng.standard_normal((size // width, width), np.float32), 0
    )


def column(width: int) -> Draw:
    """A column of normal numbers, of which a table of `width` columns is made."""
    return lambda rng, size: Operand(rng.standard_normal((size // width, 1), np.float32), 0)


def series(length: int, low: float = -1, high: float = 1) -> Draw:
    """Series of uniform numbers: (length, number of series), of which the last axis is split."""
    return lambda rng, size: Operand(
        rng.uniform(low, high, (length, size // length)).astype(np.float32), 1
    )


def weights(*shape: int) -> Draw:
    """A small array that every device has, of normal numbers fit for a product."""
    scale = shape[0] ** -0.5 if shape else 1
    return lambda rng, size: Operand(
        np.asarray(scale * rng.standard_normal(shape), np.float32), None
    )
