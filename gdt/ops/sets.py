"""Searching in sorted arrays, and sets: searchsorted, digitize, unique and its family, isin.

Sets are sorted, and equal neighbours are told apart; queries go to the devices that hold the
elements next to them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.operands import as_operands
from gdt.array.registry import FUNCTIONS, public
from gdt.backend import backend_of
from gdt.comm.vectors import Exchange, part_of, sent_by_all
from gdt.engine.op import op
from gdt.engine.planned import BlockPlan, planned_op
from gdt.errors import ArgumentError, ShapeError, error
from gdt.observe import Collective
from gdt.ops.comparison import (
    equal,
    greater_equal,
    logical_and,
    logical_not,
    logical_or,
    minimum,
    not_equal,
)
from gdt.ops.elementwise import astype
from gdt.ops.joining import concat, flip, moveaxis
from gdt.ops.lookup import checked_axis
from gdt.ops.masks import block_of_rows, flatnonzero, rows_in_front, select_rows
from gdt.ops.movement import relayout
from gdt.ops.ranges import arange
from gdt.ops.rows import scatter_rows
from gdt.ops.scans import cumsum
from gdt.ops.shapes import reshape
from gdt.ops.sorting import argsort, lexsort, sort
from gdt.ops.taking import rows_at
from gdt.sharding.array_type import ArrayType
from gdt.sharding.layout import Layout

__all__ = [
    "digitize",
    "intersect1d",
    "isin",
    "search_whole",
    "searchsorted",
    "setdiff1d",
    "setxor1d",
    "union1d",
    "unique",
    "unique_all",
    "unique_counts",
    "unique_inverse",
    "unique_values",
]

Block = Any

# ---------------------------------------------------------------- searching


@op("n, ... -> ...", whole="n")
def search_whole(xp: Any, x: Block, queries: Block, /, side: str = "left") -> Block:
    """`gdt.searchsorted` in an array that every device has whole.

    >>> gdt.search_whole(gdt.asarray([1, 3, 5]), gdt.asarray([3, 4])).tolist()
    [1, 2]
    """
    found: Block = xp.searchsorted(x.reshape(-1), queries, side=side)
    return found.astype(np.int64)


search_whole.vjp(None, None)


@planned_op()
def _search_split(x: ArrayType, queries: ArrayType, /, *, side: str) -> BlockPlan:
    """The places of queries, split as the vector `x` is, in `x`, which is sorted."""
    mesh, axes = x.mesh, x.layout.dims[0]
    out = ArrayType.of(queries.shape, np.dtype(np.int64), queries.layout)
    exchange = Exchange(mesh, axes, f"queries for {x}")
    backend, first = backend_of(mesh), exchange.first
    xp = backend.xp

    def part(array_type: ArrayType, i: int, block: Block) -> Block:
        return rows_in_front(array_type, block, first + i).reshape(-1)

    def run(blocks: Sequence[Block], query_blocks: Sequence[Block]) -> list[Block]:
        parts = exchange.by_block(lambda i, block: part(x, i, block), blocks)
        wanted = exchange.by_block(lambda i, block: part(queries, i, block), query_blocks)
        if exchange.size == 1:
            found = exchange.by_block(
                lambda i, a, q: xp.searchsorted(a, q, side=side), parts, wanted
            )
            return exchange.by_block(whole_block, found)
        # A query belongs to the last block that begins before it; empty ones come last.
        heads = exchange.all_gather(
            exchange.by_block(lambda i, a: _head(backend.to_host, a, x.dtype), parts)
        )
        filled = sum(low < high for low, high in _parts(x, exchange, 0))

        def owners(i: int, q: Block) -> list[Block]:
            bounds = xp.asarray(heads[i].reshape(-1)[1:filled])
            owner = xp.searchsorted(bounds, q, side=side)
            order = xp.argsort(owner, kind="stable")
            lengths = backend.to_host(xp.bincount(owner, minlength=exchange.size))
            return list(xp.split(order, np.cumsum(lengths)[:-1].tolist()))

        places = exchange.by_block(owners, wanted)
        pieces = exchange.by_block(lambda i, q, at: [q[k] for k in at], wanted, places)
        counts = exchange.counts(pieces)
        asked = exchange.all_to_all(pieces, counts)

        def answers(i: int, a: Block, rows: Sequence[Block]) -> list[Block]:
            start = part_of(x, 0, first + i)[0]
            return [xp.searchsorted(a, q, side=side).astype(np.int64) + start for q in rows]

        found = exchange.all_to_all(
            exchange.by_block(answers, parts, asked), [count.T for count in counts]
        )

        def ordered(i: int, rows: Sequence[Block], at: Sequence[Block]) -> Block:
            result = xp.empty(sum(len(k) for k in at), np.int64)
            for row, k in zip(rows, at, strict=True):
                result[k] = row
            return result

        return exchange.by_block(whole_block, exchange.by_block(ordered, found, places))

    def whole_block(i: int, found: Block) -> Block:
        wide = found.astype(np.int64, copy=False).reshape(-1, *(1,) * mesh.ndim)
        return block_of_rows(out, wide, first + i)

    names = tuple([mesh.axis_names[a] for a in axes])
    nbytes = sent_by_all(queries, 0) + sent_by_all(out, 0)
    functions = [] if mesh.divided else [lambda a, q: run([a], [q])[0]]
    collectives = (Collective("all_to_all", names, nbytes, 2),)
    return BlockPlan([x.layout, queries.layout], out, functions, run, collectives)


_search_split.vjp(None, None)


def _head(to_host: Any, part: Block, dtype: np.dtype) -> np.ndarray:
    """The first element of a part, on the host; 0 of an empty one."""
    return np.asarray(to_host(part[:1])) if len(part) else np.zeros(1, dtype)


def _parts(x: ArrayType, exchange: Exchange, i: int) -> list[tuple[int, int]]:
    return [part_of(x, 0, number) for number in exchange.members[i]]


def _search(x: DistributedArray, queries: DistributedArray, side: str) -> DistributedArray:
    """The places of `queries`, of any rank, in the sorted vector `x` of the same dtype."""
    axes = tuple(sorted(x.layout.dims[0]))
    if x.layout.shard_counts[0] == 1 or not x.size:
        return search_whole(x, queries, side=side)
    split = Layout.of(x.mesh, (axes,))
    flat = relayout(reshape(queries, (queries.size,)), split)
    found: DistributedArray = _search_split(relayout(x, split), flat, side=side)
    return reshape(found, queries.shape)


def _of_one_dtype(name: str, **values: Any) -> list[DistributedArray]:
    """Operands with nothing partial, in the dtype to which they promote."""
    operands = [x.resolve() for x in as_operands(name, **values)]
    dtype = np.result_type(*[x.dtype for x in operands])
    return [astype(x, dtype) for x in operands]


@public
def searchsorted(x: Any, queries: Any, side: str = "left", sorter: Any = None) -> DistributedArray:
    """For each query the place in the sorted vector `x` where it would keep the order, int64.

    side: `left` is the first such place, before equal elements; `right` the last, after them.
    sorter: the indices that sort `x`, if it is not sorted. A split `x` is not gathered: queries go
    to the devices that hold their neighbours. NaN is larger than all numbers.

    Raises ShapeError for an `x` of another rank, ArgumentError for another `side`.

    >>> gdt.searchsorted(gdt.asarray([1, 3, 5]), [0, 3, 9]).tolist()
    [0, 1, 3]
    """
    if side not in ("left", "right"):
        raise error(ArgumentError, "searchsorted", f"side is {side!r}, not 'left' or 'right'")
    x, queries = _of_one_dtype("searchsorted", x=x, queries=queries)
    if x.ndim != 1:
        problem = f"x has rank {x.ndim}, and a sorted array has 1"
        raise error(ShapeError, "searchsorted", problem, operands={"x": x.type})
    if sorter is not None:
        x = FUNCTIONS["take"](x, sorter, axis=0)
    return _search(x, queries, side)


@public
def digitize(x: Any, bins: Any, right: bool = False) -> DistributedArray:
    """The number of the bin to which each element belongs: i where `bins[i-1] <= x < bins[i]`,
    or, if `right`, where `bins[i-1] < x <= bins[i]`; int64.

    bins: a vector that rises or falls; falling ones count from the other side. Raises ArgumentError
    for one that does neither.

    >>> gdt.digitize(gdt.asarray([0.2, 6.4, 3.0]), [0.0, 1.0, 2.5, 4.0]).tolist()
    [1, 4, 3]
    """
    x, bins = as_operands("digitize", x=x, bins=bins)
    if bins.ndim != 1:
        raise error(ShapeError, "digitize", "bins have no rank 1", operands={"bins": bins.type})
    every = FUNCTIONS["all"]
    rises = bins.size < 2 or bool(every(greater_equal(bins[1:], bins[:-1])))
    if not rises and not bool(every(greater_equal(bins[:-1], bins[1:]))):
        raise error(
            ArgumentError, "digitize", "bins neither rise nor fall", operands={"bins": bins.type}
        )
    side = "left" if right else "right"
    if rises:
        return searchsorted(bins, x, side=side)
    found: DistributedArray = bins.size - searchsorted(flip(bins), x, side=side)
    return found


# ---------------------------------------------------------------- unique


class Groups(NamedTuple):
    """The elements of a vector in order, their places in it, and whether each is the first of
    equal ones."""

    ordered: DistributedArray
    order: DistributedArray | None
    is_first: DistributedArray


def _groups(x: DistributedArray, *, with_order: bool, equal_nan: bool) -> Groups:
    order = argsort(x) if with_order else None
    ordered = sort(x) if order is None else rows_at(x, order, axis=0)
    return Groups(ordered, order, _firsts(ordered, equal_nan))


def _firsts(ordered: DistributedArray, equal_nan: bool) -> DistributedArray:
    """Whether each element of a sorted vector, or row of a matrix, differs from the one before."""
    differs = not_equal(ordered[1:], ordered[:-1])
    if equal_nan and ordered.dtype.kind in "fc":
        differs = logical_and(
            differs, logical_or(equal(ordered[1:], ordered[1:]), equal(ordered[:-1], ordered[:-1]))
        )
    if ordered.ndim > 1:
        differs = FUNCTIONS["any"](differs, axis=1)
    return _after_true(differs, min(ordered.shape[0], 1))


def _after_true(values: DistributedArray, count: int) -> DistributedArray:
    """The vector with `count` Trues before it."""
    first = FUNCTIONS["ones"](count, bool, layout=Layout.replicated(values.mesh, 1))
    whole: DistributedArray = concat([relayout(first, values.layout.resolved), values.resolve()])
    return whole


def _counts(is_first: DistributedArray) -> DistributedArray:
    starts = flatnonzero(is_first)
    end = astype(FUNCTIONS["zeros"](1, layout=Layout.replicated(starts.mesh, 1)), np.int64)
    stops = concat([starts[1:], relayout(end + is_first.size, starts.layout)])
    counts: DistributedArray = stops[: starts.size] - starts
    return counts


def _inverse(groups: Groups) -> DistributedArray:
    number = cumsum(astype(groups.is_first, np.int64), axis=0) - 1
    order = groups.order
    assert order is not None
    empty = FUNCTIONS["zeros_like"](number)
    inverse: DistributedArray = scatter_rows(empty, order, number, axis=0, how="set")
    return inverse


class UniqueAll(NamedTuple):
    """The result of `gdt.unique_all`."""

    values: DistributedArray
    indices: DistributedArray
    inverse_indices: DistributedArray
    counts: DistributedArray


class UniqueCounts(NamedTuple):
    """The result of `gdt.unique_counts`."""

    values: DistributedArray
    counts: DistributedArray


class UniqueInverse(NamedTuple):
    """The result of `gdt.unique_inverse`."""

    values: DistributedArray
    inverse_indices: DistributedArray


def _flat(x: Any, name: str) -> DistributedArray:
    (x,) = as_operands(name, x=x)
    flat: DistributedArray = reshape(x.resolve(), (x.size,))
    return flat


@public
def unique_values(x: Any) -> DistributedArray:
    """The different elements of `x`, ascending; every NaN is another one.

    The size of the result depends on the values, so no step that `gdt.function` records calls it.

    >>> gdt.unique_values(gdt.asarray([3, 1, 3])).tolist()
    [1, 3]
    """
    groups = _groups(_flat(x, "unique_values"), with_order=False, equal_nan=False)
    return select_rows(groups.ordered, groups.is_first)


@public
def unique_counts(x: Any) -> UniqueCounts:
    """The different elements of `x`, ascending, and how often each occurs; every NaN is another.

    >>> [part.tolist() for part in gdt.unique_counts(gdt.asarray([3, 1, 3]))]
    [[1, 3], [1, 2]]
    """
    groups = _groups(_flat(x, "unique_counts"), with_order=False, equal_nan=False)
    return UniqueCounts(select_rows(groups.ordered, groups.is_first), _counts(groups.is_first))


@public
def unique_inverse(x: Any) -> UniqueInverse:
    """The different elements of `x`, ascending, and the place among them of each element, in the
    shape of `x`; every NaN is another.

    >>> [part.tolist() for part in gdt.unique_inverse(gdt.asarray([3, 1, 3]))]
    [[1, 3], [1, 0, 1]]
    """
    groups = _groups(_flat(x, "unique_inverse"), with_order=True, equal_nan=False)
    inverse = reshape(_inverse(groups), np.shape(x))
    return UniqueInverse(select_rows(groups.ordered, groups.is_first), inverse)


@public
def unique_all(x: Any) -> UniqueAll:
    """The different elements of `x`, ascending, where each occurs first in the flattened `x`, the
    place among them of each element, and how often each occurs; every NaN is another.

    >>> [part.tolist() for part in gdt.unique_all(gdt.asarray([3, 1, 3]))]
    [[1, 3], [1, 0], [1, 0, 1], [1, 2]]
    """
    groups = _groups(_flat(x, "unique_all"), with_order=True, equal_nan=False)
    assert groups.order is not None
    return UniqueAll(
        select_rows(groups.ordered, groups.is_first),
        select_rows(groups.order, groups.is_first),
        reshape(_inverse(groups), np.shape(x)),
        _counts(groups.is_first),
    )


@public
def unique(
    x: Any,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
    *,
    equal_nan: bool = True,
    sorted: bool = True,
) -> Any:
    """The different elements of `x`, ascending; with `axis` the different slices along it, in
    lexicographic order. If more is asked for, a tuple.

    return_index: where each occurs first. return_inverse: the place among them of each element, in
    the shape of `x`, or of each slice. return_counts: how often each occurs. equal_nan: whether
    all NaN are one. sorted: accepted for NumPy's sake; they are.

    The size of the results depends on the values, as that of `gdt.unique_values` does.

    >>> gdt.unique(gdt.asarray([[1, 0], [1, 0], [2, 3]]), axis=0).tolist()
    [[1, 0], [2, 3]]
    """
    (x,) = as_operands("unique", x=x)
    with_order = return_index or return_inverse
    if axis is None:
        flat = reshape(x.resolve(), (x.size,))
        groups = _groups(flat, with_order=with_order, equal_nan=equal_nan)
        values, shape = select_rows(groups.ordered, groups.is_first), x.shape
    else:
        at = checked_axis(x.type, axis, "unique")
        front = moveaxis(x.resolve(), at, 0)
        rows = reshape(front, (front.shape[0], math.prod(front.shape[1:])))
        columns = [rows[:, k] for k in range(rows.shape[1])][::-1]
        order = lexsort(columns) if columns else arange(rows.shape[0])
        ordered = rows_at(rows, order, axis=0)
        groups = Groups(ordered, order, _firsts(ordered, equal_nan))
        values = select_rows(ordered, groups.is_first)
        values = moveaxis(reshape(values, (values.shape[0], *front.shape[1:])), 0, at)
        shape = (front.shape[0],)
    results = [values]
    if return_index:
        assert groups.order is not None
        results.append(select_rows(groups.order, groups.is_first))
    if return_inverse:
        results.append(reshape(_inverse(groups), shape))
    if return_counts:
        results.append(_counts(groups.is_first))
    return results[0] if len(results) == 1 else tuple(results)


# ---------------------------------------------------------------- sets


@public
def isin(
    x: Any, test: Any, assume_unique: bool = False, invert: bool = False, *, kind: Any = None
) -> DistributedArray:
    """Whether each element of `x` is one of those of `test`, in the shape of `x`; bool.

    invert: whether it is none of them. assume_unique, kind: accepted for NumPy's sake. NaN is never
    one of them.

    >>> gdt.isin(gdt.asarray([1, 2, 5]), [5, 1]).tolist()
    [True, False, True]
    """
    x, test = _of_one_dtype("isin", x=x, test=test)
    flat = sort(reshape(test, (test.size,)))
    if not flat.size:
        found = logical_and(equal(x, x), False)
    else:
        at = minimum(_search(flat, x, "left"), flat.size - 1)
        found = equal(rows_at(flat, at, axis=0), x)
    result: DistributedArray = logical_not(found) if invert else found
    return result


def _sets(name: str, x: Any, y: Any) -> tuple[DistributedArray, DistributedArray]:
    x, y = _of_one_dtype(name, x=x, y=y)
    return reshape(x, (x.size,)), reshape(y, (y.size,))


@public
def union1d(x: Any, y: Any) -> DistributedArray:
    """The different elements of both arrays, ascending.

    >>> gdt.union1d([1, 3], [3, 2]).tolist()
    [1, 2, 3]
    """
    union: DistributedArray = unique(concat(_sets("union1d", x, y)))
    return union


@public
def intersect1d(x: Any, y: Any, assume_unique: bool = False, return_indices: bool = False) -> Any:
    """The different elements that both arrays have, ascending.

    assume_unique: whether neither array has an element twice. return_indices: whether to return
    where each occurs first in `x` and in `y` as well.

    >>> gdt.intersect1d([1, 3, 3], [3, 2]).tolist()
    [3]
    """
    x, y = _sets("intersect1d", x, y)
    if not return_indices:
        x, y = (x, y) if assume_unique else (unique(x), unique(y))
        both = sort(concat([x, y]))
        return select_rows(both[:-1], equal(both[1:], both[:-1]))
    (x, first_x), (y, first_y) = (unique(a, return_index=True) for a in (x, y))
    whole = concat([x, y])
    order = argsort(whole)
    both = rows_at(whole, order, axis=0)
    twice = equal(both[1:], both[:-1])
    at_x = select_rows(order[:-1], twice)
    at_y = select_rows(order[1:], twice) - x.size
    values = select_rows(both[:-1], twice)
    return values, rows_at(first_x, at_x, axis=0), rows_at(first_y, at_y, axis=0)


@public
def setdiff1d(x: Any, y: Any, assume_unique: bool = False) -> DistributedArray:
    """The different elements of `x` that `y` lacks, ascending; in their order if `assume_unique`.

    >>> gdt.setdiff1d([4, 1, 3], [3, 2]).tolist()
    [1, 4]
    """
    x, y = _sets("setdiff1d", x, y)
    x = x if assume_unique else unique(x)
    return select_rows(x, isin(x, y, invert=True))


@public
def setxor1d(x: Any, y: Any, assume_unique: bool = False) -> DistributedArray:
    """The different elements that one of the arrays has and the other lacks, ascending.

    >>> gdt.setxor1d([1, 3], [3, 2]).tolist()
    [1, 2]
    """
    x, y = _sets("setxor1d", x, y)
    x, y = (x, y) if assume_unique else (unique(x), unique(y))
    both = sort(concat([x, y]))
    if not both.size:
        return both
    differs = not_equal(both[1:], both[:-1])
    starts = _after_true(differs, 1)
    ends = flip(_after_true(flip(differs), 1))
    return select_rows(both, logical_and(starts, ends))
