"""Matrices as the public functions take them, and split ones in layouts that send little."""

from __future__ import annotations

from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.operands import as_operands
from gdt.errors import DtypeError, LinAlgError, error
from gdt.ops.elementwise import astype
from gdt.ops.movement import made_whole
from gdt.sharding.dtypes import is_half, kind_of


def as_matrices(name: str, square: bool = False, **operands: Any) -> list[DistributedArray]:
    """Arguments as arrays of floating-point matrices on one mesh.

    Raises LinAlgError for a rank below 2, and for other shapes than squares if `square`; DtypeError
    for floating-point numbers of 16 bits, which no library of linear algebra takes.
    """
    arrays = as_floats(name, **operands)
    for label, x in zip(operands, arrays, strict=True):
        check_matrices(name, label, x, square)
    return arrays


def check_matrices(name: str, label: str, x: DistributedArray, square: bool) -> None:
    """Raise LinAlgError for a rank below 2, and for other shapes than squares if `square`."""
    problem = ""
    if x.ndim < 2:
        problem = f"{label} has rank {x.ndim}, which is no matrix"
    elif square and x.shape[-1] != x.shape[-2]:
        problem = f"{label} holds matrices of shape {list(x.shape[-2:])}, which are not square"
    if problem:
        raise error(LinAlgError, f"linalg.{name}", problem, operands={label: x.type})


def as_floats(name: str, **operands: Any) -> list[DistributedArray]:
    """Arguments as `as_inexact` returns them; DtypeError for floating-point numbers of 16 bits."""
    arrays = as_inexact(name, **operands)
    for label, x in zip(operands, arrays, strict=True):
        if is_half(x.dtype):
            remedy = "Use x.astype('float32')."
            problem = f"{label} is of dtype {x.dtype}"
            raise error(
                DtypeError, f"linalg.{name}", problem, operands={label: x.type}, remedy=remedy
            )
    return arrays


def as_inexact(name: str, **operands: Any) -> list[DistributedArray]:
    """Arguments as floating-point arrays on one mesh: integers and bools as float64."""
    arrays = as_operands(f"linalg.{name}", **operands)
    return [x if kind_of(x.dtype) in "fc" else astype(x, np.float64) for x in arrays]


def settled(x: DistributedArray) -> DistributedArray:
    """Matrices with the mesh axes that split them moved to axes in front of them, where those are
    long enough."""
    matrix = (x.ndim - 2, x.ndim - 1)
    if any(x.layout.dims[d] for d in matrix):
        x = x.resolve()
    for axis in matrix:
        resharded = made_whole(x, axis, never=matrix)
        x = x if resharded is None else resharded
    return x
