"""The methods of NumPy's ufuncs that have no function of their own: scans and reductions by any
ufunc of two operands.

Along a split axis, those of an associative ufunc combine what every shard has, then one number of
each shard; all that is sent is that number, and of `reduceat` the result. Others, such as
`subtract`, go from one element to the next: the mesh axes that split the axis are moved to another
one by an all-to-all, or where every other axis is short, the array is gathered.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.operands import as_operand
from gdt.array.registry import FUNCTIONS, public
from gdt.backend import backend_of
from gdt.engine.op import op
from gdt.engine.plan import EXACT
from gdt.engine.planned import BlockPlan, planned_op
from gdt.engine.whole_arrays import in_numpy
from gdt.errors import IndexRangeError, error
from gdt.ops.axes import checked_axis, reduction_text
from gdt.ops.comparison import where
from gdt.ops.indexing import getitem
from gdt.ops.movement import made_whole, relayout
from gdt.ops.padding import pad
from gdt.ops.rows import gather_rows
from gdt.ops.shapes import expand_dims, reshape
from gdt.sharding.array_type import ArrayType
from gdt.sharding.layout import Layout
from gdt.sharding.rule import RuleSpec

Block = Any
Bounds = tuple[tuple[int, int], ...]  # where parts of an axis begin and stop

ANY_ORDER = {
    "maximum", "minimum", "fmax", "fmin", "logical_and", "logical_or", "logical_xor",
    "bitwise_and", "bitwise_or", "bitwise_xor", "gcd", "lcm",
}  # fmt: skip
"""The ufuncs that combine rows in any order to the same bits."""
ASSOCIATIVE = ANY_ORDER | {"add", "multiply", "hypot", "logaddexp", "logaddexp2"}
"""The ufuncs that combine neighbouring rows in any order, up to rounding."""


def _names(array_type: ArrayType) -> list[str]:
    return [f"d{i}" for i in range(array_type.ndim)]


def _prepare(array_type: ArrayType, *, axis: int = 0, **static: Any) -> dict[str, Any]:
    return {"axis": checked_axis(array_type, axis) - array_type.ndim, **static}


def _scan_rule(x: ArrayType, *, axis: int, **_: Any) -> RuleSpec:
    names = _names(x)
    return RuleSpec(f"{' '.join(names)} -> {' '.join(names)}", whole=frozenset({names[axis]}))


def _reduce_rule(x: ArrayType, *, axis: int, keepdims: bool = False, **_: Any) -> RuleSpec:
    text = reduction_text(x, (axis,), keepdims)
    return RuleSpec(text, whole=frozenset({_names(x)[axis]}))


def _reduceat_rule(x: ArrayType, *, axis: int, indices: tuple[int, ...], **_: Any) -> RuleSpec:
    names = _names(x)
    out = [*names[:axis], "r", *names[axis + 1 :]] if axis != -1 else [*names[:-1], "r"]
    text = f"{' '.join(names)} -> {' '.join(out)}"
    whole = frozenset({names[axis], "r"})
    return RuleSpec(text, whole=whole, sizes={"r": len(indices)})


# CuPy has `reduce` of sums and products alone, and no other method of these.


def _dtype(xp: Any, ufunc: str, rows: Block) -> np.dtype:
    """Return the dtype that NumPy's methods of a ufunc give."""
    host = np.empty(0, rows.dtype)
    dtype: np.dtype = getattr(np, ufunc).accumulate(host).dtype
    return dtype


def _accumulated(xp: Any, ufunc: str, rows: Block) -> Block:
    """`ufunc.accumulate(rows)`, a row after the other; rows that any order combines to the same
    bits in the logarithm of their number of steps."""
    combine, results = getattr(xp, ufunc), rows.astype(_dtype(xp, ufunc, rows))
    if ufunc not in ANY_ORDER:
        for i in range(1, len(results)):
            results[i] = combine(results[i - 1], results[i])
        return results
    step = 1
    while step < len(results):
        results = xp.concatenate([results[:step], combine(results[:-step], results[step:])])
        step *= 2
    return results


def _reduced(xp: Any, ufunc: str, rows: Block) -> Block:
    """`ufunc.reduce(rows)`."""
    if len(rows):
        return _accumulated(xp, ufunc, rows)[-1]
    start = getattr(np, ufunc).reduce(np.empty(0, rows.dtype))  # NumPy's error where there is none
    return xp.full(rows.shape[1:], start, start.dtype)


@op(_scan_rule, prepare=_prepare)
def accumulate_of_whole(xp: Any, x: Block, /, ufunc: str, axis: int = 0) -> Block:
    """`ufunc_accumulate` along an axis that is not split."""
    if xp is np:
        return getattr(xp, ufunc).accumulate(x, axis=axis)
    return xp.moveaxis(_accumulated(xp, ufunc, xp.moveaxis(x, axis, 0)), 0, axis)


@op(_reduce_rule, prepare=_prepare)
def reduce_of_whole(
    xp: Any, x: Block, /, ufunc: str, axis: int = 0, keepdims: bool = False
) -> Block:
    """`ufunc_reduce` along an axis that is not split."""
    if xp is np:
        return getattr(xp, ufunc).reduce(x, axis=axis, keepdims=keepdims)
    result = _reduced(xp, ufunc, xp.moveaxis(x, axis, 0))
    return xp.expand_dims(result, axis) if keepdims else result


@op(_reduceat_rule, prepare=_prepare)
def reduceat_of_whole(
    xp: Any, x: Block, /, ufunc: str, indices: tuple[int, ...], axis: int = 0
) -> Block:
    """`ufunc_reduceat` along an axis that is not split."""
    if xp is np:
        return getattr(xp, ufunc).reduceat(x, xp.asarray(indices, int), axis=axis)
    rows = xp.moveaxis(x, axis, 0)
    bounds = zip(indices, _stops(indices, len(rows)), strict=True)
    return xp.moveaxis(_combined(xp, ufunc, rows, tuple(bounds)), 0, axis)


def _stops(indices: Sequence[int], size: int) -> list[int]:
    """The places where the parts stop that `reduceat` combines."""
    return [j if j > i else i + 1 for i, j in itertools.pairwise([*indices, size])]


# ---------------------------------------------------------------- parts of shards


class Segments:
    """The places where the parts of each shard of an axis begin and stop, counted from its first
    element: of every shard equally many. One object stands for its value, as plans go by it."""

    def __init__(self, bounds: Sequence[Bounds]) -> None:
        self.bounds = tuple(bounds)

    def __repr__(self) -> str:
        """The bounds, which processes compare."""
        return f"Parts{self.bounds}"


EXACT.add(Segments)


@planned_op(computes=True)
def parts_of_shards(x: ArrayType, /, *, ufunc: str, axis: int, parts: Segments) -> BlockPlan:
    """The parts of an axis, each combined to one row."""
    mesh, layout = x.mesh, x.layout.resolved
    dtype = _dtype(np, ufunc, np.empty(0, x.dtype))
    bounds = parts.bounds
    shape = (*x.shape[:axis], len(bounds) * len(bounds[0]), *x.shape[axis + 1 :])
    out, backend = ArrayType.of(shape, dtype, layout), backend_of(mesh)
    first, at = mesh.all_blocks.index(mesh.blocks[0]), mesh.ndim + axis

    def combine(places: Sequence[tuple[tuple[slice, ...], int]], block: Block) -> Block:
        result = backend.empty(out.block_shape, dtype)
        for place, shard in places:
            rows = backend.xp.moveaxis(block[place], at, 0)
            combined = _combined(backend.xp, ufunc, rows, bounds[shard])
            result[place] = backend.xp.moveaxis(combined, 0, at)
        return result

    functions = [partial(combine, _places(x, axis, first + i)) for i in range(len(mesh.blocks))]
    return BlockPlan([layout], out, functions)


def _places(x: ArrayType, axis: int, block: int) -> list[tuple[tuple[slice, ...], int]]:
    """The parts of a block that hold one shard of an axis each, and the numbers of the shards."""
    mesh, axes, places = x.mesh, x.layout.dims[axis], []
    for inside in itertools.product(*(range(mesh.box[a]) for a in axes)):
        place = dict(zip(axes, inside, strict=True))
        coordinate = [
            mesh.all_blocks[block][a] * mesh.box[a] + place.get(a, 0) for a in range(mesh.ndim)
        ]
        at = [
            slice(place[a], place[a] + 1) if a in place else slice(None) for a in range(mesh.ndim)
        ]
        places.append((tuple(at), x.layout.shard_index(coordinate, axis)))
    return places


def _combined(xp: Any, ufunc: str, rows: Block, bounds: Bounds) -> Block:
    """The parts of rows between bounds, each combined to one row."""
    if not bounds:
        return xp.empty((0, *rows.shape[1:]), _dtype(xp, ufunc, rows))
    if xp is not np:
        return xp.stack([_reduced(xp, ufunc, rows[i:j]) for i, j in bounds])
    edges = [edge for part in bounds for edge in part]  # what lies between two parts is dropped
    if max(edges[:-1]) == len(rows):
        rows = np.concatenate([rows, rows[-1:]])
    elif edges[-1] == len(rows):
        edges.pop()
    return getattr(np, ufunc).reduceat(rows, edges, axis=0)[::2]


class PartsOfShards(NamedTuple):
    """The way in which parts of a split axis are combined, from those of them that shards have.

    local: where the parts that each shard has begin and stop in it. order: (shards, m), of the
    results, those that the parts of each shard of the result are combined from, as `final` says.
    """

    local: Segments
    order: np.ndarray
    final: Segments


@lru_cache(maxsize=64)
def _parts_of_shards(indices: tuple[int, ...], size: int, shards: int) -> PartsOfShards:
    starts, stops = np.asarray(indices), np.asarray(_stops(indices, size))
    chunk = -(-size // shards)
    first = starts // chunk
    counts = (stops - 1) // chunk - first + 1  # the number of shards that have a piece of each part
    part = np.repeat(np.arange(len(starts)), counts)
    shard = np.arange(len(part)) + np.repeat(first + counts - np.cumsum(counts), counts)
    begin = np.maximum(starts[part] - shard * chunk, 0)
    end = np.minimum(stops[part] - shard * chunk, chunk)
    position, local = _by_group(shard, begin, end, shards)
    owner = np.arange(len(starts)) // -(-len(starts) // shards)  # of each part of the result
    places = np.cumsum(counts) - counts  # of the first piece of each part
    offset = places[np.searchsorted(owner, owner)]  # of the first piece of each owner
    _, final = _by_group(owner, places - offset, places - offset + counts, shards)
    longest = int(np.bincount(owner[part], minlength=shards).max())
    order = np.zeros((shards, longest), int)
    order[owner[part], np.arange(len(part)) - offset[part]] = (
        shard * len(local.bounds[0]) + position
    )
    return PartsOfShards(local, order, final)


def _by_group(
    group: np.ndarray, begin: np.ndarray, end: np.ndarray, groups: int
) -> tuple[np.ndarray, Segments]:
    """The place of each part in its group, and the parts by group; (0, 1) in the place of those
    that a group lacks."""
    count = np.bincount(group, minlength=groups)
    order = np.argsort(group, kind="stable")
    position = np.empty(len(group), int)
    position[order] = np.arange(len(group)) - np.repeat(np.cumsum(count) - count, count)
    bounds = np.tile([0, 1], (groups, int(count.max()), 1))
    bounds[group, position] = np.stack([begin, end], axis=-1)
    return position, Segments([tuple(map(tuple, rows)) for rows in bounds.tolist()])


# ---------------------------------------------------------------- split axes


@in_numpy(accumulate_of_whole)
def accumulate_of_split(x: DistributedArray, /, *, ufunc: str, axis: int) -> DistributedArray:
    """`ufunc_accumulate` of an associative ufunc along a split axis, counted from the front."""
    shards, size = x.layout.num_shards(axis), x.shape[axis]
    chunk = -(-size // shards)
    if shards * chunk != size:
        x = pad(x, [(0, shards * chunk - size if d == axis else 0) for d in range(x.ndim)])
    # (..., shards, chunk, ...), of which only `shards` is split
    rows = reshape(x, (*x.shape[:axis], shards, chunk, *x.shape[axis + 1 :]))
    local = accumulate_of_whole(rows, ufunc=ufunc, axis=axis + 1)
    every = (slice(None),) * axis
    totals = _gathered(getitem(local, (*every, slice(None), -1)), axis)
    before = accumulate_of_whole(getitem(totals, (*every, slice(None, -1))), ufunc=ufunc, axis=axis)
    # What stands before the first shard is any number: no ufunc reads it in the end.
    before = pad(before, [(int(d == axis), 0) for d in range(before.ndim)])
    joined = FUNCTIONS[ufunc](expand_dims(before, axis + 1), local)
    is_first = (np.arange(shards) == 0).reshape(shards, *(1,) * (local.ndim - axis - 1))
    mask = as_operand(is_first, x.mesh, ufunc, "x", is_constant=True)
    whole = reshape(where(mask, local, joined), x.shape)
    return whole if shards * chunk == size else getitem(whole, (*every, slice(size)))


def _gathered(x: DistributedArray, axis: int) -> DistributedArray:
    dims = x.layout.resolved.dims
    return relayout(x, Layout.of(x.mesh, (*dims[:axis], (), *dims[axis + 1 :])))


@in_numpy(reduce_of_whole)
def reduce_of_split(
    x: DistributedArray, /, *, ufunc: str, axis: int, keepdims: bool
) -> DistributedArray:
    """`ufunc_reduce` of an associative ufunc along a split axis, counted from the front."""
    parts, used = _whole_shards(x.shape[axis], x.layout.num_shards(axis))
    totals = _gathered(parts_of_shards(x, ufunc=ufunc, axis=axis, parts=parts), axis)
    totals = getitem(totals, (*[slice(None)] * axis, slice(used)))
    return reduce_of_whole(totals, ufunc=ufunc, axis=axis, keepdims=keepdims)


@lru_cache(maxsize=1 << 10)
def _whole_shards(size: int, shards: int) -> tuple[Segments, int]:
    """One part for every shard, and the number of shards that have elements."""
    chunk = -(-size // shards)
    counts = [max(min(chunk, size - i * chunk), 1) for i in range(shards)]
    return Segments([((0, count),) for count in counts]), -(-size // chunk)


@in_numpy(reduceat_of_whole)
def reduceat_of_split(
    x: DistributedArray, /, *, ufunc: str, indices: tuple[int, ...], axis: int
) -> DistributedArray:
    """`ufunc_reduceat` of an associative ufunc along a split axis, counted from the front: of the
    parts, every shard combines its pieces, and sends them to those that have the parts in the
    result, which is split as the axis is."""
    plan = _parts_of_shards(indices, x.shape[axis], x.layout.num_shards(axis))
    pieces = parts_of_shards(x, ufunc=ufunc, axis=axis, parts=plan.local)
    order = as_operand(plan.order.reshape(-1), x.mesh, ufunc, "indices", is_constant=True)
    order = relayout(order, Layout.of(x.mesh, (x.layout.dims[axis],)))
    pieces = gather_rows(pieces, order, axis=axis)
    parts = parts_of_shards(pieces, ufunc=ufunc, axis=axis, parts=plan.final)
    return getitem(parts, (*[slice(None)] * axis, slice(len(indices))))


# ---------------------------------------------------------------- any axis


def _is_split(x: DistributedArray, ufunc: str, axis: int) -> bool:
    """Whether the shards of an axis are combined one by one."""
    return bool(x.layout.dims[axis] and x.shape[axis]) and ufunc in ASSOCIATIVE


@public
def ufunc_accumulate(x: DistributedArray, ufunc: str, axis: int = 0) -> DistributedArray:
    """`ufunc.accumulate(x, axis)` of the ufunc of that name."""
    axis = checked_axis(x.type, axis)
    if _is_split(x, ufunc, axis):
        return accumulate_of_split(x, ufunc=ufunc, axis=axis)
    scanned = accumulate_of_whole(_whole(x, axis), ufunc=ufunc, axis=axis)
    return relayout(scanned, x.layout.resolved)


@public
def ufunc_reduce(
    x: DistributedArray, ufunc: str, axis: int = 0, keepdims: bool = False
) -> DistributedArray:
    """`ufunc.reduce(x, axis)` of the ufunc of that name."""
    axis = checked_axis(x.type, axis)
    if _is_split(x, ufunc, axis):
        return reduce_of_split(x, ufunc=ufunc, axis=axis, keepdims=keepdims)
    x = _whole(x, axis)
    return reduce_of_whole(x, ufunc=ufunc, axis=axis, keepdims=keepdims)


@public
def ufunc_reduceat(
    x: DistributedArray, ufunc: str, indices: tuple[int, ...], axis: int = 0
) -> DistributedArray:
    """`ufunc.reduceat(x, indices, axis)` of the ufunc of that name."""
    axis = checked_axis(x.type, axis)
    for i in (min(indices), max(indices)) if indices else ():
        if not 0 <= i < x.shape[axis]:
            problem = f"index {i} is out of range for {x.shape[axis]} elements"
            raise error(IndexRangeError, "reduceat", problem, operands={"x": x.type})
    if indices and _is_split(x, ufunc, axis):
        return reduceat_of_split(x, ufunc=ufunc, indices=indices, axis=axis)
    return reduceat_of_whole(_whole(x, axis), ufunc=ufunc, indices=indices, axis=axis)


def _whole(x: DistributedArray, axis: int) -> DistributedArray:
    """`x` with an axis that is not split, where another axis can be."""
    whole = made_whole(x, axis)
    return x if whole is None else whole
