"""Arrays from the parts that devices hold, and back: pack and unpack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.registry import public
from gdt.backend import backend_of
from gdt.comm.agreement import crc32_of
from gdt.comm.notes import gathered_with_lines
from gdt.errors import DtypeError, LayoutError, ShapeError, error, type_text
from gdt.functions.placement import requested_layout
from gdt.sharding.array_type import ArrayType
from gdt.sharding.dtypes import kind_of
from gdt.sharding.layout import Layout
from gdt.sharding.reduction import UFUNCS

__all__ = ["pack", "unpack"]


Block = Any


@public
def pack(tensors: Sequence[Any], layout: Layout) -> DistributedArray:
    """One array from the part of every device of this process, row-major by mesh coordinate.

    Parts are shards without padding: along each axis they have `ceil(n / shards)` elements, fewer
    at the end. Along mesh axes that wait for a reduction they are its operands.

    Raises ShapeError for a wrong number of parts or shapes that do not make an array, DtypeError
    for different dtypes, LayoutError for a wrong rank, replicas that differ, or several kinds of
    partial reductions. Follows `tf.experimental.dtensor.pack`, which checks no replicas.

    >>> mesh = gdt.create_mesh([("x", 2)])
    >>> gdt.pack([[1, 2], [3]], gdt.Layout(["x"], mesh)).tolist()
    [1, 2, 3]
    >>> gdt.pack([[1, 2], [3, 4]], gdt.Layout([None], mesh, partial=["x"])).tolist()
    [4, 6]
    """
    return packed(tensors, requested_layout(layout, "pack"), "pack")


@public
def unpack(x: DistributedArray) -> list[Any]:
    """The parts of every device of this process, row-major by mesh coordinate: the inverse of
    `gdt.pack`.

    Parts are read-only views without padding; those of a partial reduction are its operands. Raises
    DtypeError for an `x` that is no distributed array.

    >>> layout = gdt.Layout(["x"], gdt.create_mesh([("x", 2)]))
    >>> [part.tolist() for part in gdt.unpack(gdt.arange(3, layout=layout))]
    [[0, 1], [2]]
    """
    if not isinstance(x, DistributedArray):
        raise error(DtypeError, f"{type_text(x)} is no distributed array")
    return [shard.data for shard in x.shards]


class PartFacts(NamedTuple):
    """The facts about the part that one device holds, which every process knows. side: the process
    that passes it, and the user's line there."""

    coordinate: tuple[int, ...]
    dtype: np.dtype
    shape: tuple[int, ...]
    digest: int | None
    side: tuple[str, str]


def packed(parts: Sequence[Any], layout: Layout, name: str) -> DistributedArray:
    mesh, backend = layout.mesh, backend_of(layout.mesh)
    coordinates = mesh.local_coordinates()
    if isinstance(parts, str) or not isinstance(parts, Sequence | np.ndarray):
        raise error(DtypeError, f"the parts are {type_text(parts)}, not a list of arrays")
    if len(parts) != len(coordinates):
        problem = f"{len(parts)} parts for {len(coordinates)} devices"
        raise error(ShapeError, problem, operands={"mesh": mesh})
    owners = [mesh.own_block(c) for c in coordinates]
    arrays = []
    for part, coordinate, i in zip(parts, coordinates, owners, strict=True):
        with backend.on(mesh, i):
            arrays.append(_part(part, coordinate, backend, name))
    facts = _facts(arrays, coordinates, layout, name)
    array_type = _packed_type(facts, layout, name)
    _check_replicas(arrays, facts, owners, array_type, name)
    blocks = []
    for i in range(len(mesh.blocks)):
        with backend.on(mesh, i):
            blocks.append(
                backend.empty(array_type.block_shape, array_type.dtype, array_type.memory_order)
            )
    writers_of: dict[tuple[Any, ...], set[tuple[int, ...]]] = {}
    for array, coordinate, i in zip(arrays, coordinates, owners, strict=True):
        at, inside = mesh.block_of(coordinate)
        index = tuple(c if a in layout.split_axes else 0 for a, c in enumerate(inside))
        operand = _waiting(coordinate, layout)
        writers = writers_of.setdefault((at, index), set())
        with backend.on(mesh, i):
            target = blocks[i][(*index, ...)]
            if not writers:
                _fill(target, array)
            elif operand not in writers:
                valid = target[tuple(slice(n) for n in array.shape)]
                combine = getattr(
                    backend.xp, UFUNCS[next(p for p in layout.reductions if p)].__name__
                )
                _fill(target, combine(valid, array))
        writers.add(operand)
    return DistributedArray(array_type, tuple(blocks))


def _part(part: Any, coordinate: tuple[int, ...], backend: Any, name: str) -> Block:
    where = f"the part of device {coordinate}"
    if isinstance(part, DistributedArray):
        raise error(
            DtypeError, name, f"{where} is a distributed array", operands={"part": part.type}
        )
    try:
        array = backend.asarray(part)
    except (ValueError, TypeError) as e:
        raise error(ShapeError, name, f"{where} is no array: {e}") from None
    if kind_of(array.dtype) not in "biufc":
        raise error(DtypeError, name, f"{where} has dtype {array.dtype}, which is no number")
    return array


def _waiting(coordinate: tuple[int, ...], layout: Layout) -> tuple[int, ...]:
    """The part of a coordinate along mesh axes with a partial reduction."""
    return tuple(c for c, p in zip(coordinate, layout.reductions, strict=True) if p)


def _facts(
    arrays: Sequence[Block], coordinates: Sequence[tuple[int, ...]], layout: Layout, name: str
) -> list[PartFacts]:
    """The facts about the parts of all devices, gathered from every process that owns the mesh."""
    backend, several = backend_of(layout.mesh), layout.mesh.num_processes
    own = [
        (c, a.dtype, a.shape, _digest(backend.to_host(a)) if several > 1 else None)
        for a, c in zip(arrays, coordinates, strict=True)
    ]
    what = f"{name} to {layout} on {layout.mesh}"
    told, sides = gathered_with_lines(several, own, what)
    facts = zip(told, sides, strict=True)
    return [PartFacts._make((*part, side)) for parts, side in facts for part in parts]


def _sides(one: PartFacts, other: PartFacts) -> dict[str, object]:
    """The processes that pass two parts, and the user's line in each; nothing for parts of one."""
    return dict([one.side, other.side]) if one.side[0] != other.side[0] else {}


def _digest(array: np.ndarray) -> int:
    """A number that is the same for parts that are equal: of zeros and of NaNs there is one."""
    if kind_of(array.dtype) in "fc":
        array = np.where(np.isnan(array), np.array(np.nan, array.dtype), array + 0)
    return crc32_of(array)


def _packed_type(parts: Sequence[PartFacts], layout: Layout, name: str) -> ArrayType:
    """The type of the whole array; an error if the parts do not make one."""
    part_texts: dict[str, object] = {
        f"device {p.coordinate}": f"{p.dtype}{list(p.shape)}" for p in parts
    }
    for part in parts:
        if part.dtype != parts[0].dtype:
            operands = part_texts | _sides(parts[0], part)
            raise error(DtypeError, name, "the parts have different dtypes", operands=operands)
        if len(part.shape) != layout.rank:
            problem = f"a layout of rank {layout.rank} does not fit parts of other ranks"
            operands = {"layout": layout, **part_texts, **_sides(parts[0], part)}
            raise error(LayoutError, name, problem, operands=operands)
    if len({p for p in layout.reductions if p}) > 1:
        problem = "different reductions are partial, and their order is not defined"
        raise error(LayoutError, name, problem, operands={"layout": layout})
    shape = []
    for d in range(layout.rank):
        sizes = {layout.shard_index(p.coordinate, d): p.shape[d] for p in parts}
        shape.append(sum(sizes.values()))
    array_type = ArrayType.of(tuple(shape), parts[0].dtype, layout)
    for part in parts:
        want = tuple(s.stop - s.start for s in array_type.shard_slices(part.coordinate))
        if part.shape != want:
            raise error(
                ShapeError,
                name,
                f"the parts do not make an array: of {array_type}, "
                f"device {part.coordinate} holds {list(want)}, not {list(part.shape)}",
                operands=part_texts | _sides(parts[0], part),
                remedy="A shard of a split axis has ceil(n / shards) elements, fewer at the end.",
            )
    return array_type


def _check_replicas(
    arrays: Sequence[Block],
    parts: Sequence[PartFacts],
    owners: Sequence[int],
    array_type: ArrayType,
    name: str,
) -> None:
    """Raise LayoutError if replicas differ: those of one process are compared element by element,
    those of several by their digests. owners: the blocks in which the arrays lie."""
    first = dict[tuple[Any, ...], int]()
    apart = array_type.mesh.num_processes > 1
    for i, part in enumerate(parts):
        shard = tuple(
            array_type.layout.shard_index(part.coordinate, d) for d in range(array_type.ndim)
        )
        other = first.setdefault((shard, _waiting(part.coordinate, array_type.layout)), i)
        if other == i:
            continue
        if apart:
            same = parts[other].digest == part.digest
        else:
            same = _are_equal(arrays[other], arrays[i], array_type, owners[i])
        if not same:
            raise error(
                LayoutError,
                name,
                f"the parts of devices {parts[other].coordinate} and {part.coordinate} "
                "are not equal",
                operands=_sides(parts[other], part) | {"layout": array_type.layout},
                remedy="Along mesh axes that split no array axis, parts are replicas.",
            )


def _are_equal(one: Block, other: Block, array_type: ArrayType, owner: int) -> bool:
    """Whether two parts are equal; `owner` is the block that `other` is for."""
    backend = backend_of(array_type.mesh)
    with backend.on(array_type.mesh, owner):
        near = backend.asarray(one)
        same = backend.xp.array_equal(near, other, equal_nan=kind_of(array_type.dtype) in "fc")
        return bool(backend.to_host(same))


def _fill(target: Block, array: Block) -> None:
    """Write a shard into its place; padding repeats the last element, or is 1 if there is none."""
    if 0 in array.shape:
        target[...] = 1
        return
    target[tuple(slice(n) for n in array.shape)] = array
    for d, n in enumerate(array.shape):
        mesh_ndim = (slice(None),) * d
        target[(*mesh_ndim, slice(n, None))] = target[(*mesh_ndim, slice(n - 1, n))]
