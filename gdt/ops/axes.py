"""Axes that calls name: checked, counted from the front or from the end, and in rules of ops.

Errors begin with the name of the public call that runs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from gdt.arguments import shown_value
from gdt.errors import ArgumentError, AxisError, ShapeError, error
from gdt.sharding.array_type import ArrayType

Axis = int | Sequence[int] | None


def checked_axis(array_type: ArrayType, axis: Any, rank: int | None = None) -> int:
    """`axis` counted from the front.

    rank: the number of axes that there are; that of the array if it is None.

    Raises AxisError if there is no such axis, ArgumentError (a TypeError) for what is no integer.
    """
    rank = len(array_type.shape) if rank is None else rank
    if type(axis) is int and -rank <= axis < rank:
        return axis % rank
    if not isinstance(axis, int | np.integer) or isinstance(axis, bool):
        problem = f"axis is {shown_value(axis)}, and no integer"
        raise error(ArgumentError, problem, operands={"x": array_type})
    if not -rank <= axis < rank:
        problem = f"axis {axis} is out of range for rank {rank}"
        raise error(AxisError, problem, operands={"x": array_type})
    return int(axis) % rank


def checked_axes(array_type: ArrayType, axis: Any, rank: int | None = None) -> list[int]:
    """The axes that `axis` names, counted from the front and in its order; all axes for None.

    rank, errors: those of `checked_axis`.
    """
    if axis is None:
        return list(range(array_type.ndim))
    axes = np.atleast_1d(axis).tolist() if isinstance(axis, np.ndarray) else axis
    axes = axes if isinstance(axes, Sequence) else (axes,)
    return [checked_axis(array_type, a, rank) for a in axes]


def distinct_axes(array_type: ArrayType, axis: Any, rank: int | None = None) -> list[int]:
    """As `checked_axes`; ShapeError for an axis that is named twice."""
    axes = checked_axes(array_type, axis, rank)
    if len(set(axes)) < len(axes):
        problem = f"an axis is repeated in {tuple(axis)}"
        raise error(ShapeError, problem, operands={"x": array_type})
    return axes


def negative_axes(array_type: ArrayType, axis: Axis) -> tuple[int, ...]:
    """`axis` as sorted axes that are counted from the end, all of them for None; errors are those
    of `distinct_axes`. Of an array of rank 0, axes 0 and -1 are none, as NumPy's ufuncs have it."""
    ndim = array_type.ndim
    if axis is None:
        return tuple(range(-ndim, 0))
    if type(axis) is int:
        if not ndim and axis in (0, -1):
            return ()
        return (checked_axis(array_type, axis) - ndim,)
    return tuple(sorted([a - ndim for a in distinct_axes(array_type, axis)]))


# ---------------------------------------------------------------- rules


def dim_names(letter: str, count: int) -> list[str]:
    """Names of dims in a rule: `d0`, `d1`, ..."""
    return [f"{letter}{i}" for i in range(count)]


def reduction_text(array_type: ArrayType, axis: Collection[int], keepdims: bool) -> str:
    """The rule of a reduction over axes counted from the end: `d0 d1 d2 -> d0 d2`, or
    `d0 d1 d2 -> d0 1 d2` with keepdims."""
    names = dim_names("d", array_type.ndim)
    axes = {a + array_type.ndim for a in axis}
    out = ["1" if i in axes else n for i, n in enumerate(names) if i not in axes or keepdims]
    return f"{' '.join(names)} -> {' '.join(out)}"
