"""Joining and splitting arrays along axes that may be split.

Both move index intervals (`gdt.ops.blocks.intervals`): along a whole axis they are copied; along a
split axis, devices exchange the elements that change their device.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.operands import as_operands
from gdt.array.output import into
from gdt.array.registry import public
from gdt.errors import ArgumentError, DtypeError, ShapeError, error, type_text
from gdt.ops.axes import checked_axis
from gdt.ops.blocks.intervals import Movement, _move_intervals, movement_of
from gdt.ops.elementwise import astype
from gdt.ops.indexing import getitem_
from gdt.ops.movement import alias
from gdt.ops.shapes import expand_dims, reshape
from gdt.sharding.array_type import ArrayType
from gdt.sharding.dtypes import promoted
from gdt.sharding.recut import Piece

__all__ = [
    "array_split",
    "concat",
    "split",
    "stack",
]


Axis = int | Sequence[int] | None
Arrays = Sequence[Any]


MOST_SECTIONS = 1 << 16  # each is an op


def _operands(arrays: Any, name: str, casting: str = "same_kind") -> list[DistributedArray]:
    """Return the members of a sequence as arrays of one mesh and of the dtype that they promote
    to."""
    types = _types(arrays)
    if types and len({(t.mesh, t.dtype) for t in types}) == 1:
        return list(arrays)
    if isinstance(arrays, DistributedArray) and arrays.ndim:
        arrays = list(arrays)
    if not isinstance(arrays, list | tuple | np.ndarray):
        raise error(DtypeError, f"the arrays are {type_text(arrays)}, not a list")
    if len(arrays) == 0:
        raise error(ShapeError, "the list of arrays is empty")
    operands = as_operands(name, **{f"array {i}": a for i, a in enumerate(arrays)})
    dtype = promoted(*[a.dtype for a in operands])
    return [a if a.dtype == dtype else astype(a, dtype, casting=casting) for a in operands]


def operand_types(arrays: Sequence[DistributedArray]) -> dict[str, object]:
    return _by_position(tuple([a.type for a in arrays]))


def _by_position(types: Sequence[ArrayType]) -> dict[str, object]:
    return {f"array {i}": t for i, t in enumerate(types)}


# ---------------------------------------------------------------- joining


@public
def concat(
    arrays: Arrays,
    axis: int | None = 0,
    out: DistributedArray | None = None,
    *,
    dtype: Any = None,
    casting: str = "same_kind",
) -> DistributedArray:
    """Join arrays end to end along `axis` (None: flattened first).

    Their sizes along all other axes are equal; dtypes promote as in NumPy. out: an array that the
    result is written into. dtype: that of the result, to which `casting` lets the arrays be cast;
    see `gdt.can_cast`. The result has the
    layout of one of the arrays, the one for which the fewest bytes are sent. Raises ShapeError for
    shapes that do not fit.

    >>> gdt.concat([gdt.asarray([[1, 2]]), gdt.asarray([[3, 4], [5, 6]])]).tolist()
    [[1, 2], [3, 4], [5, 6]]
    """
    if out is not None or dtype is not None:
        operands = _operands(arrays, "concat")
        if dtype is not None:
            operands = [astype(x, dtype, casting=casting) for x in operands]
        return into(out, "concat", concat(operands, axis), casting=casting)
    types = _types(arrays) if type(axis) is int else None
    movement = None if types is None else _end_to_end(types, axis)
    if movement is not None:
        return _move_intervals(*arrays, how=movement) if len(arrays) > 1 else alias(arrays[0])
    operands = _operands(arrays, "concat", casting)
    if axis is None:
        operands, axis = [reshape(a, (a.size,)) for a in operands], 0
    if type(axis) is not int:
        axis = checked_axis(operands[0].type, axis)
    movement = _end_to_end(tuple([a.type for a in operands]), axis)
    return operands[0] if len(operands) == 1 else _move_intervals(*operands, how=movement)


def _types(arrays: Any) -> tuple[ArrayType, ...] | None:
    """The types of a list of distributed arrays; None for anything else."""
    if type(arrays) not in (list, tuple):
        return None
    types = []
    for a in arrays:
        if type(a) is not DistributedArray:
            return None
        types.append(a.type)
    return tuple(types)


@lru_cache(maxsize=1 << 12)
def _end_to_end(types: tuple[ArrayType, ...], axis: int) -> Movement | None:
    """The movement that joins arrays of these types; None if their meshes or dtypes differ.

    Raises ShapeError for shapes that differ along another axis than `axis`.
    """
    if len({(t.mesh, t.dtype) for t in types}) != 1:
        return None
    first = types[0]
    dim = checked_axis(first, axis)
    for i, array_type in enumerate(types):
        rest = [(*t.shape[:dim], *t.shape[dim + 1 :]) for t in (first, array_type)]
        if array_type.ndim != first.ndim or rest[0] != rest[1]:
            raise error(
                ShapeError,
                f"array {i} of shape {list(array_type.shape)} does not fit array 0 of shape "
                f"{list(first.shape)} along axis {axis}",
                operands=_by_position(types),
                remedy="All axes but the one that is joined must have equal sizes.",
            )
    sizes = [t.shape[dim] for t in types]
    starts = itertools.accumulate(sizes, initial=0)
    pieces = [Piece(i, 0, at, n) for i, (at, n) in enumerate(zip(starts, sizes, strict=False))]
    return movement_of(dim, tuple([p for p in pieces if p.count]), sum(sizes), 0, None)


@public
def stack(
    arrays: Arrays,
    axis: int = 0,
    out: DistributedArray | None = None,
    *,
    dtype: Any = None,
    casting: str = "same_kind",
) -> DistributedArray:
    """Join arrays of one shape side by side along a new axis, which is not split.

    out, dtype, casting: as of `gdt.concat`.

    >>> gdt.stack([gdt.asarray([1, 2]), gdt.asarray([3, 4])], axis=1).tolist()
    [[1, 3], [2, 4]]
    """
    operands = _operands(arrays, "stack", casting)
    if len({a.shape for a in operands}) > 1:
        raise error(ShapeError, "the arrays differ in shape", operands=operand_types(operands))
    at = checked_axis(operands[0].type, axis, operands[0].ndim + 1)
    parts = [expand_dims(a, at) for a in operands]
    return concat(parts, at, out, dtype=dtype, casting=casting)


# ---------------------------------------------------------------- splitting


@public
def array_split(
    x: Any, indices_or_sections: int | Sequence[int], axis: int = 0
) -> list[DistributedArray]:
    """Cut `x` along `axis`, at indices or into a number of sections.

    indices_or_sections: the indices; or the number, which need not divide the size of the axis: the
        first sections are then longer by one.

    >>> [part.tolist() for part in gdt.array_split(gdt.arange(5), 2)]
    [[0, 1, 2], [3, 4]]
    """
    (x,) = as_operands("array_split", x=x)
    if isinstance(indices_or_sections, str | bytes):
        problem = f"indices_or_sections is {indices_or_sections!r}; it is an int or a list of ints"
        raise error(ArgumentError, problem)
    dim = checked_axis(x.type, axis)
    size = x.shape[dim]
    if isinstance(indices_or_sections, int | np.integer):
        count = int(indices_or_sections)
        if not 1 <= count <= MOST_SECTIONS:
            problem = f"{count:,} sections, not 1 to {MOST_SECTIONS:,}"
            raise error(ShapeError, problem, operands={"x": x.type})
        length, remainder = divmod(size, count)
        cuts = [i * length + min(i, remainder) for i in range(1, count)]
    else:
        cuts = [int(i) for i in indices_or_sections]
    lead = (slice(None),) * dim
    return [
        getitem_(x, (*lead, slice(start, stop)))
        for start, stop in zip([0, *cuts], [*cuts, size], strict=True)
    ]


@public
def split(
    x: Any, indices_or_sections: int | Sequence[int], axis: int = 0
) -> list[DistributedArray]:
    """Cut `x` along `axis`, at indices or into a number of equal sections; see `gdt.array_split`.

    Raises ShapeError for a number of sections that does not divide the axis.

    >>> [part.tolist() for part in gdt.split(gdt.arange(6), [1, 4])]
    [[0], [1, 2, 3], [4, 5]]
    """
    (x,) = as_operands("split", x=x)
    size = x.shape[checked_axis(x.type, axis)]
    sections = indices_or_sections
    if isinstance(sections, int | np.integer) and (sections < 1 or size % sections):
        raise error(
            ShapeError,
            f"axis {axis} of size {size} has no {sections} equal sections",
            operands={"x": x.type},
            remedy="Use gdt.array_split for sections of different sizes.",
        )
    return array_split(x, sections, axis)
