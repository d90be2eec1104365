"""Joining, splitting, rearranging and repeating arrays along axes that may be split.

All of them move index intervals (`gdt.ops.intervals`): along an axis that is whole that is a copy;
along a split axis, an exchange of the elements that change their device.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.operands import as_operands
from gdt.array.registry import FUNCTIONS, public
from gdt.errors import ArgumentError, AxisError, DtypeError, ShapeError, error
from gdt.ops.indexing import getitem
from gdt.ops.intervals import Movement, _move_intervals, move_intervals, movement_of
from gdt.ops.lookup import checked_axis, checked_indices
from gdt.ops.movement import alias
from gdt.ops.reductions import negative_axes
from gdt.ops.shapes import broadcast_to, checked_shape, expand_dims, reshape, transpose
from gdt.ops.taking import rows_at
from gdt.sharding.array_type import ArrayType
from gdt.sharding.dtypes import promoted
from gdt.sharding.layout import Layout
from gdt.sharding.recut import Piece

__all__ = [
    "array_split",
    "atleast_1d",
    "atleast_2d",
    "broadcast_arrays",
    "concat",
    "flip",
    "moveaxis",
    "ravel",
    "repeat",
    "roll",
    "split",
    "stack",
    "swapaxes",
    "tile",
]


Axis = int | Sequence[int] | None
Arrays = Sequence[Any]


MOST_SECTIONS = 1 << 16  # each is an op


def _operands(arrays: Any, name: str) -> list[DistributedArray]:
    """Return the members of a sequence as arrays of one mesh and of the dtype that they promote
    to."""
    types = _types(arrays)
    if types and len({(t.mesh, t.dtype) for t in types}) == 1:
        return list(arrays)
    if isinstance(arrays, DistributedArray) and arrays.ndim:
        arrays = list(arrays)
    if not isinstance(arrays, list | tuple | np.ndarray):
        raise error(DtypeError, name, f"the arrays are a {type(arrays).__name__}, not a list")
    if len(arrays) == 0:
        raise error(ShapeError, name, "the list of arrays is empty")
    operands = as_operands(name, **{f"array {i}": a for i, a in enumerate(arrays)})
    dtype = promoted(*[a.dtype for a in operands])
    return [a if a.dtype == dtype else a.astype(dtype) for a in operands]


def _operand_types(arrays: Sequence[DistributedArray]) -> dict[str, object]:
    return _by_position(tuple([a.type for a in arrays]))


def _by_position(types: Sequence[ArrayType]) -> dict[str, object]:
    return {f"array {i}": t for i, t in enumerate(types)}


# ---------------------------------------------------------------- joining


@public
def concat(arrays: Arrays, axis: int | None = 0) -> DistributedArray:
    """Join arrays end to end along `axis` (None: flattened first).

    Their sizes along all other axes are equal; dtypes promote as in NumPy. The result has the
    layout of one of the arrays, the one for which the fewest bytes are sent. Raises ShapeError for
    shapes that do not fit.

    >>> gdt.concat([gdt.asarray([[1, 2]]), gdt.asarray([[3, 4], [5, 6]])]).tolist()
    [[1, 2], [3, 4], [5, 6]]
    """
    types = _types(arrays) if type(axis) is int else None
    movement = None if types is None else _end_to_end(types, axis)
    if movement is not None:
        return _move_intervals(*arrays, how=movement) if len(arrays) > 1 else alias(arrays[0])
    operands = _operands(arrays, "concat")
    if axis is None:
        operands, axis = [reshape(a, (a.size,)) for a in operands], 0
    if type(axis) is not int:
        axis = checked_axis(operands[0].type, axis, "concat")
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
    dim = checked_axis(first, axis, "concat")
    for i, array_type in enumerate(types):
        rest = [(*t.shape[:dim], *t.shape[dim + 1 :]) for t in (first, array_type)]
        if array_type.ndim != first.ndim or rest[0] != rest[1]:
            raise error(
                ShapeError,
                "concat",
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
def stack(arrays: Arrays, axis: int = 0) -> DistributedArray:
    """Join arrays of one shape side by side along a new axis, which is not split.

    >>> gdt.stack([gdt.asarray([1, 2]), gdt.asarray([3, 4])], axis=1).tolist()
    [[1, 3], [2, 4]]
    """
    operands = _operands(arrays, "stack")
    if len({a.shape for a in operands}) > 1:
        raise error(
            ShapeError, "stack", "the arrays differ in shape", operands=_operand_types(operands)
        )
    rank = operands[0].ndim + 1
    if not isinstance(axis, int | np.integer) or not -rank <= axis < rank:
        raise error(
            AxisError,
            "stack",
            f"axis {axis!r} is out of range for rank {rank}",
            operands=_operand_types(operands),
        )
    result: DistributedArray = concat([expand_dims(a, int(axis)) for a in operands], int(axis))
    return result


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
    dim = checked_axis(x.type, axis, "array_split")
    size = x.shape[dim]
    if isinstance(indices_or_sections, int | np.integer):
        count = int(indices_or_sections)
        if not 1 <= count <= MOST_SECTIONS:
            problem = f"{count:,} sections, not 1 to {MOST_SECTIONS:,}"
            raise error(ShapeError, "array_split", problem, operands={"x": x.type})
        length, remainder = divmod(size, count)
        cuts = [i * length + min(i, remainder) for i in range(1, count)]
    else:
        cuts = [int(i) for i in indices_or_sections]
    lead = (slice(None),) * dim
    return [
        getitem(x, (*lead, slice(start, stop)))
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
    size = x.shape[checked_axis(x.type, axis, "split")]
    sections = indices_or_sections
    if isinstance(sections, int | np.integer) and (sections < 1 or size % sections):
        raise error(
            ShapeError,
            "split",
            f"axis {axis} of size {size} has no {sections} equal sections",
            operands={"x": x.type},
            remedy="Use gdt.array_split for sections of different sizes.",
        )
    parts: list[DistributedArray] = array_split(x, sections, axis)
    return parts


# ---------------------------------------------------------------- rearranging


@public
def flip(x: Any, axis: Axis = None) -> DistributedArray:
    """`x` with the order of elements reversed along `axis` (None: along all axes).

    >>> gdt.flip(gdt.asarray([[1, 2], [3, 4]]), axis=1).tolist()
    [[2, 1], [4, 3]]
    """
    (x,) = as_operands("flip", x=x)
    flipped = {a + x.ndim for a in negative_axes(x.type, axis, "flip")}
    turned = slice(None, None, -1)
    out: DistributedArray = getitem(
        x, tuple(turned if d in flipped else slice(None) for d in range(x.ndim))
    )
    return out


@public
def roll(x: Any, shift: int | Sequence[int], axis: Axis = None) -> DistributedArray:
    """`x` with its elements moved by `shift` places along `axis`; what leaves at the end comes in
    again at the start. None rolls the flattened array.

    >>> gdt.roll(gdt.arange(5), 2).tolist()
    [3, 4, 0, 1, 2]
    """
    (x,) = as_operands("roll", x=x)
    if type(shift) is not int and np.asarray(shift).dtype.kind not in "iu":
        raise error(ArgumentError, "roll", f"shift is {shift!r}, not ints", operands={"x": x.type})
    if axis is None:
        flat = roll(reshape(x, (x.size,)), int(np.sum(shift)), 0)
        result: DistributedArray = reshape(flat, x.shape)
        return result
    pairs = [(shift, axis)]
    if not (type(shift) is int and type(axis) is int):
        shifts, axes = np.broadcast_arrays(shift, axis)
        pairs = list(zip(shifts.ravel().tolist(), axes.ravel().tolist(), strict=True))
    for by, a in pairs:
        dim = checked_axis(x.type, a, "roll")
        size = x.shape[dim]
        at = by % size if size else 0
        if at:
            pieces = [Piece(0, 0, at, size - at), Piece(0, size - at, 0, at)]
            x = move_intervals([x], dim, pieces, size)
    result = x
    return result


@public
def moveaxis(
    x: Any, source: int | Sequence[int], destination: int | Sequence[int]
) -> DistributedArray:
    """Move the axes `source` of `x` to the positions `destination`; the others keep their order.

    >>> gdt.moveaxis(gdt.ones((2, 3, 4)), 0, -1).shape
    (3, 4, 2)
    """
    (x,) = as_operands("moveaxis", x=x)
    places = [
        [checked_axis(x.type, a, "moveaxis") for a in _as_list(axes)]
        for axes in (source, destination)
    ]
    if len(places[0]) != len(places[1]) or any(len(set(p)) < len(p) for p in places):
        raise error(
            ShapeError,
            "moveaxis",
            f"source {source} and destination {destination} do not name the same number of axes, "
            "each once",
            operands={"x": x.type},
        )
    order = [d for d in range(x.ndim) if d not in places[0]]
    for to, d in sorted(zip(places[1], places[0], strict=True)):
        order.insert(to, d)
    result: DistributedArray = transpose(x, axes=tuple(order))
    return result


def _as_list(axes: int | Sequence[int]) -> list[Any]:
    """One axis, or several, as a list."""
    listed: list[Any] = [axes] if type(axes) is int else np.atleast_1d(axes).tolist()
    return listed


@public
def swapaxes(x: Any, axis1: int, axis2: int) -> DistributedArray:
    """`x` with two axes exchanged.

    >>> gdt.swapaxes(gdt.ones((2, 3, 4)), 0, 2).shape
    (4, 3, 2)
    """
    (x,) = as_operands("swapaxes", x=x)
    order = list(range(x.ndim))
    a, b = checked_axis(x.type, axis1, "swapaxes"), checked_axis(x.type, axis2, "swapaxes")
    order[a], order[b] = b, a
    result: DistributedArray = transpose(x, axes=tuple(order))
    return result


@public
def ravel(x: Any, order: str = "C") -> DistributedArray:
    """The elements in row-major order, as an array of rank 1; `order` as of `gdt.reshape`.

    >>> gdt.ravel(gdt.asarray([[1, 2], [3, 4]])).tolist()
    [1, 2, 3, 4]
    """
    (x,) = as_operands("ravel", x=x)
    options: dict[str, Any] = {} if order == "C" else {"order": order}
    flat: DistributedArray = reshape(x, (x.size,), **options)
    return flat


@public
def atleast_1d(*arrays: Any) -> DistributedArray | tuple[DistributedArray, ...]:
    """Return an array of rank 1 for a scalar, and any other array as it is; of several, a tuple.

    >>> gdt.atleast_1d(3.0).shape
    (1,)
    """
    return _each("atleast_1d", arrays, lambda x: x if x.ndim else reshape(x, (1,)))


@public
def atleast_2d(*arrays: Any) -> DistributedArray | tuple[DistributedArray, ...]:
    """Put axes of length 1 in front of an array until it has rank 2; of several, return a tuple.

    >>> gdt.atleast_2d([1, 2, 3]).shape
    (1, 3)
    """
    return _each("atleast_2d", arrays, lambda x: x if x.ndim > 1 else reshape(x, (1, x.size)))


def _each(
    name: str, arrays: Sequence[Any], function: Callable[[DistributedArray], DistributedArray]
) -> DistributedArray | tuple[DistributedArray, ...]:
    """Return the results of `function` for every array: one array for one, a tuple for several."""
    if not arrays:
        raise error(ArgumentError, name, "got no arrays")
    operands = as_operands(name, **{f"x{i}": a for i, a in enumerate(arrays)})
    results = tuple(map(function, operands))
    return results[0] if len(results) == 1 else results


# ---------------------------------------------------------------- repeating


@public
def broadcast_arrays(*arrays: Any) -> tuple[DistributedArray, ...]:
    """Broadcast every array to the shape to which all of them broadcast together.

    >>> [a.shape for a in gdt.broadcast_arrays(gdt.ones((3, 1)), gdt.ones(2))]
    [(3, 2), (3, 2)]
    """
    operands = as_operands("broadcast_arrays", **{f"array {i}": a for i, a in enumerate(arrays)})
    try:
        shape = np.broadcast_shapes(*[a.shape for a in operands])
    except ValueError:
        raise error(
            ShapeError,
            "broadcast_arrays",
            "the shapes do not broadcast",
            operands=_operand_types(operands),
        ) from None
    return tuple([a if a.shape == shape else broadcast_to(a, shape) for a in operands])


@public
def tile(x: Any, reps: int | Sequence[int]) -> DistributedArray:
    """Put `reps` copies of `x` side by side along each axis; missing axes are added in front.

    >>> gdt.tile(gdt.asarray([1, 2]), (2, 2)).tolist()
    [[1, 2, 1, 2], [1, 2, 1, 2]]
    """
    (x,) = as_operands("tile", x=x)
    counts = [int(n) for n in np.atleast_1d(reps)]
    if any(n < 0 for n in counts):
        raise error(ShapeError, "tile", f"reps is {reps}", operands={"x": x.type})
    rank = max(x.ndim, len(counts))
    counts = [1] * (rank - len(counts)) + counts
    if x.ndim < rank:
        x = reshape(x, (1,) * (rank - x.ndim) + x.shape)
    checked_shape([n * count for n, count in zip(x.shape, counts, strict=True)], "tile")
    result: DistributedArray = x
    for dim, count in enumerate(counts):
        size = x.shape[dim]
        if count != 1:
            pieces = [Piece(i, 0, i * size, size) for i in range(count)]
            result = move_intervals([result] * max(count, 1), dim, pieces, count * size)
    return alias(x) if result is x else result


@public
def repeat(
    x: Any, repeats: int | Sequence[int] | DistributedArray, axis: int | None = None
) -> DistributedArray:
    """Repeat every element of `x` along `axis` (None: of the flattened array).

    repeats: how often: an int, or one for every element along the axis. Of a distributed array only
    the sum is read. Raises ArgumentError for other counts.

    >>> gdt.repeat(gdt.asarray([1, 2]), 2).tolist()
    [1, 1, 2, 2]
    """
    (x,) = as_operands("repeat", x=x)
    if axis is None:
        x, axis = reshape(x, (x.size,)), 0
    dim = checked_axis(x.type, axis, "repeat")
    if isinstance(repeats, DistributedArray) and repeats.shape == x.shape[dim : dim + 1]:
        return _repeated_by(x, repeats, dim)
    size, counts = x.shape[dim], np.asarray(repeats)
    is_wrong = counts.dtype.kind not in "iu" or (counts < 0).any()
    if is_wrong or (counts.ndim and counts.shape not in ((1,), (size,))):
        raise error(
            ArgumentError,
            "repeat",
            f"repeats is {repeats!r}; it is one count, or one for each of {size} elements",
            operands={"x": x.type},
        )
    if counts.size != 1:
        indices = np.repeat(np.arange(size), counts)
        rows = checked_indices(x.type, indices, dim, "repeat", is_constant=True)
        return rows_at(x, rows, axis=dim)
    count = int(counts.reshape(()))
    if x.layout.dims[dim]:
        pieces = [Piece(i, 0, i, size, 1, count) for i in range(count)]
        return move_intervals([x] * max(count, 1), dim, pieces, count * size)
    before, after = x.shape[: dim + 1], x.shape[dim + 1 :]
    wide = broadcast_to(expand_dims(x, dim + 1), (*before, count, *after))
    result: DistributedArray = reshape(wide, (*before[:-1], size * count, *after))
    return result


def _repeated_by(x: DistributedArray, counts: DistributedArray, axis: int) -> DistributedArray:
    """Repeat by a distributed array of counts, of which only the sum is read.

    Each place of the result asks which of the sums of the first counts lie beyond it.
    """
    x, counts = as_operands("repeat", x=x, repeats=counts)
    is_wrong = counts.dtype.kind not in "iu" or bool(FUNCTIONS["any"](counts < 0))
    if is_wrong:
        problem, operands = (
            "counts are integers of 0 or more",
            {"x": x.type, "repeats": counts.type},
        )
        raise error(ArgumentError, "repeat", problem, operands=operands)
    ends = FUNCTIONS["cumsum"](counts.astype(np.int64))
    total = int(ends[-1]) if counts.size else 0
    axes = x.layout.dims[axis] or counts.layout.dims[0]
    places = FUNCTIONS["arange"](total, layout=Layout.of(x.mesh, (axes,)))
    return rows_at(x, FUNCTIONS["searchsorted"](ends, places, side="right"), axis=axis)
