"""Operands: what a user gives an op or a public function, as arrays of one mesh."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gdt.arguments import shown_value
from gdt.array.array import DistributedArray
from gdt.array.dlpack import imported
from gdt.array.operators import is_array_like
from gdt.array.placing import distribute
from gdt.backend import as_array
from gdt.backend.cupy import on_gpu
from gdt.errors import ArgumentError, DtypeError, ShapeError, error, type_text
from gdt.sharding.default_mesh import get_default_mesh, mesh_of_one
from gdt.sharding.dtypes import kind_of
from gdt.sharding.layout import Layout
from gdt.sharding.mesh import Mesh
from gdt.sharding.rule import check_meshes

SCALARS = (int, float, bool, complex)  # weak in promotion, as in NumPy (NEP 50)
NUMBERS = (*SCALARS, np.generic)
HOST = (*NUMBERS, np.ndarray, list, tuple)


def as_operand(
    value: Any, mesh: Mesh, op: str, name: str, *, is_constant: bool = False
) -> DistributedArray:
    """A NumPy array, scalar or nested list as an array replicated on `mesh`.

    is_constant: whether it is the same in every run of a program, as a number is.
    """
    if not is_array_like(value):
        raise error(
            DtypeError,
            op,
            f"{name} is {type_text(value)}",
            remedy=getattr(value, "as_operand", "Operands are arrays, numbers or nested lists."),
        )
    refuse_mask(value, op, name)
    if not isinstance(value, HOST) and hasattr(value, "__dlpack__") and not on_gpu(value):
        value = imported(value, op)
    try:
        whole = as_array(value, mesh)
    except ValueError as e:
        raise error(ShapeError, op, f"{name} is no array: {e}") from None
    if kind_of(whole.dtype) not in "biufc":
        raise error(DtypeError, op, f"{name} has dtype {whole.dtype}, which is no number")
    layout = Layout.replicated(mesh, whole.ndim)
    is_constant = is_constant or isinstance(value, NUMBERS)
    return distribute(whole, layout, giver=op, is_constant=is_constant)


def refuse_mask(value: object, op: str, name: str) -> None:
    """Raise DtypeError for a masked array, whose mask would be lost."""
    if isinstance(value, np.ma.MaskedArray):
        raise error(
            DtypeError,
            op,
            f"{name} is a masked array, and gdt has no masks",
            remedy="Use x.filled(value), and gdt.where with a mask of its own.",
        )


def as_operands(op: str, **values: Any) -> list[DistributedArray]:
    """The arguments of a public function as arrays on one mesh: that of the distributed ones.

    Raises MeshError if they live on different meshes.
    """
    operands = list(values.values())
    if all_on_one_mesh(operands):
        return operands
    operands = joined_meshes(operands)
    mesh = _mesh_of(operands)
    arrays = [
        v if isinstance(v, DistributedArray) else as_operand(v, mesh, op, name)
        for name, v in zip(values, operands, strict=True)
    ]
    check_meshes([a.type for a in arrays], op, list(values))
    return arrays


def as_elements(
    op: str, x: DistributedArray, dtype: np.dtype, name: str, value: Any
) -> DistributedArray:
    """An argument beside `x` as an array on its mesh, of a dtype to which arrays are cast.

    Raises OverflowError for a Python integer that the dtype cannot hold, DtypeError for a complex
    number in the place of a real one.
    """
    if type(value) not in SCALARS and not isinstance(value, list | tuple):
        return as_operands(op, x=x, **{name: value})[1].astype(dtype)
    try:
        elements = np.asarray(value, dtype)
    except TypeError:
        problem = f"{name} is {shown_value(value)}, which cannot be an element of {dtype}"
        raise error(DtypeError, problem) from None
    return as_operand(elements, x.mesh, op, name, is_constant=type(value) in SCALARS)


def all_on_one_mesh(values: Sequence[Any]) -> bool:
    """Whether all values are distributed arrays, and of one mesh."""
    mesh = None
    for v in values:
        if type(v) is not DistributedArray:
            return False
        if mesh is None:
            mesh = v.type.layout.mesh
        elif v.type.layout.mesh is not mesh:
            return False
    return True


def converted(op: str, args: Sequence[Any], name_of: Callable[[int], str]) -> tuple[Any, ...]:
    """The operands of a call as arrays and Python scalars: of nothing but scalars the first is made
    an array.

    name_of: the name of an operand by its position, for errors.
    """
    args = joined_meshes(args)
    mesh = _mesh_of(args)
    if not any(isinstance(a, DistributedArray) for a in args) and args:
        args = (as_operand(args[0], mesh, op, name_of(0)), *args[1:])
    return tuple(
        a if type(a) is DistributedArray or type(a) in SCALARS
        else as_operand(a, mesh, op, name_of(i))
        for i, a in enumerate(args)
    )  # fmt: skip


def _mesh_of(values: Sequence[Any]) -> Mesh:
    """The mesh of the first distributed array, or the default mesh if there is none."""
    return (
        next((v.mesh for v in values if isinstance(v, DistributedArray)), None)
        or get_default_mesh()
    )


def has_unplaced(values: Sequence[Any]) -> bool:
    """Whether the arrays live on different meshes, and one of them on a mesh that nobody chose."""
    meshes = {v.mesh for v in values if isinstance(v, DistributedArray)}
    return len(meshes) > 1 and mesh_of_one() in meshes


def joined_meshes(values: Sequence[Any]) -> list[Any]:
    """The values, of which arrays that were made without a choice of a mesh move to that of the
    others, replicated."""
    if not has_unplaced(values):
        return list(values)
    unplaced = mesh_of_one()
    arrays = [v for v in values if isinstance(v, DistributedArray)]
    mesh = next(a.mesh for a in arrays if a.mesh is not unplaced)
    return [
        v.relayout(Layout.replicated(mesh, v.ndim))
        if isinstance(v, DistributedArray) and v.mesh is unplaced
        else v
        for v in values
    ]


def hashable_statics(op: str, static: Mapping[str, Any]) -> dict[str, Any]:
    """Statics as a plan's key takes them: lists as tuples.

    Raises ArgumentError for one that cannot be hashed.
    """
    static = {k: _hashable(v) for k, v in static.items()}
    for k, v in static.items():
        try:
            hash(v)
        except TypeError:
            raise error(
                ArgumentError, op, f"argument {k!r} is {v!r}, which is no static value"
            ) from None
    return static


def _hashable(value: Any) -> Any:
    if isinstance(value, list | tuple):
        items = tuple(_hashable(v) for v in value)
        return value._make(items) if hasattr(value, "_make") else items  # of a named tuple
    if isinstance(value, np.ndarray) and value.ndim <= 1:
        return tuple(value.tolist()) if value.ndim else value.item()
    return value


def bind_arguments(
    op: str,
    operands: Sequence[str],
    statics: Sequence[str],
    args: Sequence[Any],
    static: Mapping[str, Any],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Operands by position, statics by name, of a call that may give both in either way.

    Raises ArgumentError for arguments that are missing, unknown, or given twice.
    """
    names = [*operands, *statics]
    if len(args) > len(names):
        raise error(
            ArgumentError,
            op,
            f"takes {len(names)} arguments ({', '.join(names)}), got {len(args)}",
        )
    arguments = dict(zip(names, args, strict=False))
    for k, v in static.items():
        if k not in names:
            raise error(
                ArgumentError, op, f"no argument {k!r}", remedy=f"It has {', '.join(names)}."
            )
        if k in arguments:
            raise error(ArgumentError, op, f"argument {k!r} is given twice")
        arguments[k] = v
    missing_names = [n for n in operands if n not in arguments]
    if missing_names:
        raise error(ArgumentError, op, f"argument {missing_names[0]!r} is missing")
    return tuple(arguments.pop(n) for n in operands), arguments
