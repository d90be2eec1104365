"""Searching in sorted vectors: searchsorted and digitize.

A sorted vector that is split is not gathered: queries go to the devices that hold the elements next
to them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.operands import as_operands
from gdt.array.registry import public
from gdt.backend import backend_of
from gdt.comm.vectors import Exchange, part_of, sent_by_all
from gdt.engine.op import op
from gdt.engine.planned import BlockPlan, planned_op
from gdt.errors import ArgumentError, DtypeError, ShapeError, error
from gdt.observe import Collective
from gdt.ops.comparison import (
    greater_equal,
)
from gdt.ops.elementwise import astype
from gdt.ops.masks import block_of_rows, rows_in_front
from gdt.ops.movement import relayout
from gdt.ops.rearranging import flip
from gdt.ops.reductions import all_
from gdt.ops.shapes import reshape
from gdt.ops.taking import take
from gdt.sharding.array_type import ArrayType
from gdt.sharding.dtypes import promoted
from gdt.sharding.layout import Layout

__all__ = [
    "digitize",
    "search_whole",
    "searchsorted",
]

Block = Any


@op("n, ... -> ...", whole="n")
def search_whole(xp: Any, x: Block, queries: Block, /, side: str = "left") -> Block:
    """`gdt.searchsorted` in an array that every device has whole.

    >>> gdt.search_whole(gdt.asarray([1, 3, 5]), gdt.asarray([3, 4])).tolist()
    [1, 2]
    """
    insertions: Block = xp.searchsorted(x.reshape(-1), queries, side=side)
    return insertions.astype(np.int64)


search_whole.vjp(None, None)


@op("..., k -> ...", whole="k", fill={"x": None})
def count_edges(xp: Any, x: Block, edges: Block, /, side: str = "right") -> Block:
    """The number of `edges`, (k,) and sorted, that are not above x; of those below x if `side` is
    "left"."""
    return xp.searchsorted(edges.reshape(-1), x, side=side)


count_edges.vjp(None, None)


Answer = Callable[[Sequence[Block], Sequence[Block] | None, int, Block], Block]


def asked(
    tables: Sequence[ArrayType], queries: ArrayType, dtype: Any, side: str, answer: Answer
) -> tuple[ArrayType, Callable[..., list[Block]], tuple[Collective, ...]]:
    """The type of the answers to queries, a function of the blocks of the queries and of each table
    that makes them, and what it sends.

    tables: vectors split alike, of which the first is sorted and says who is asked: the last block
        that begins before a query (or, if `side` is "right", with it). queries: a vector split as
        they are. answer: from the parts of the tables in a block, the first elements of the next
        block (None behind the last one), the place where the parts begin, and the queries that
        came, to their answers.
    """
    x, mesh = tables[0], tables[0].mesh
    axes = x.layout.dims[0]
    out = ArrayType.of(queries.shape, np.dtype(dtype), queries.layout)
    exchange = Exchange(mesh, axes, f"queries for {x}")
    backend, first = backend_of(mesh), exchange.first
    xp = backend.xp

    def parts_of(array_type: ArrayType, blocks: Sequence[Block]) -> list[Block]:
        return exchange.by_block(
            lambda i, block: rows_in_front(array_type, block, first + i).reshape(-1), blocks
        )

    def run(query_blocks: Sequence[Block], *table_blocks: Sequence[Block]) -> list[Block]:
        columns = [parts_of(t, blocks) for t, blocks in zip(tables, table_blocks, strict=True)]
        parts = list(zip(*columns, strict=True))
        query_parts = parts_of(queries, query_blocks)
        if exchange.size == 1:
            answers = exchange.by_block(
                lambda i, own, q: answer(own, None, 0, q), parts, query_parts
            )
            return exchange.by_block(whole_block, answers)
        # A query belongs to the last block that begins before it; empty ones come last.
        heads = exchange.all_gather(
            exchange.by_block(
                lambda i, own: np.concatenate([_head(backend.to_host, a) for a in own]), parts
            )
        )
        parts_held = [part_of(x, 0, number) for number in exchange.members[0]]
        head_count = sum(begin < end for begin, end in parts_held)

        def owners(i: int, q: Block) -> list[Block]:
            bounds = xp.asarray(heads[i][1:head_count, 0])
            owner = xp.searchsorted(bounds, q, side=side)
            return exchange.places_by_owner(owner)

        places = exchange.by_block(owners, query_parts)
        pieces = exchange.by_block(lambda i, q, at: [q[k] for k in at], query_parts, places)
        counts = exchange.counts(pieces)
        requests = exchange.all_to_all(pieces, counts)

        def answered(i: int, own: Sequence[Block], rows: Sequence[Block]) -> list[Block]:
            start, after = part_of(x, 0, first + i)[0], exchange.places[i] + 1
            following = list(xp.asarray(heads[i][after])[:, None]) if after < head_count else None
            return [answer(own, following, start, q) for q in rows]

        replies = exchange.all_to_all(
            exchange.by_block(answered, parts, requests), [count.T for count in counts]
        )

        in_order = exchange.by_block(lambda i, *pair: exchange.in_places(*pair), replies, places)
        return exchange.by_block(whole_block, in_order)

    def whole_block(i: int, answers: Block) -> Block:
        wide = answers.astype(out.dtype, copy=False).reshape(-1, *(1,) * mesh.ndim)
        return block_of_rows(out, wide, first + i)

    names = tuple([mesh.axis_names[a] for a in axes])
    nbytes = sent_by_all(queries, 0) + sent_by_all(out, 0)
    return out, run, (Collective("all_to_all", names, nbytes, 2),)


@planned_op(computes=True)
def _search_split(x: ArrayType, queries: ArrayType, /, *, side: str) -> BlockPlan:
    """The places of queries, split as the vector `x` is, in `x`, which is sorted."""
    xp = backend_of(x.mesh).xp

    def answer(own: Sequence[Block], _: object, start: int, q: Block) -> Block:
        return xp.searchsorted(own[0], q, side=side).astype(np.int64) + start

    out, run, collectives = asked([x], queries, np.int64, side, answer)
    functions = [] if x.mesh.divided else [lambda a, q: run([q], [a])[0]]
    return BlockPlan(
        [x.layout, queries.layout], out, functions, lambda a, q: run(q, a), collectives
    )


_search_split.vjp(None, None)


def _head(to_host: Any, part: Block) -> np.ndarray:
    """The first element of a part, on the host; 0 of an empty one."""
    return np.asarray(to_host(part[:1])) if len(part) else np.zeros(1, part.dtype)


def search(x: DistributedArray, queries: DistributedArray, side: str) -> DistributedArray:
    """The places of `queries`, of any rank, in the sorted vector `x` of the same dtype."""
    x = whole_if_short(x, queries)
    if is_whole(x):
        return search_whole(x, queries, side=side)
    layout = in_ascending_order(x)
    flat = relayout(reshape(queries, (queries.size,)), layout)
    insertions = _search_split(relayout(x, layout), flat, side=side)
    return reshape(insertions, queries.shape)


def is_whole(x: DistributedArray) -> bool:
    """Whether every device has all of the vector `x`, or could have it for nothing."""
    return x.layout.shard_counts[0] == 1 or not x.size


def in_ascending_order(x: DistributedArray) -> Layout:
    """The layout of a vector over the mesh axes that split `x`, in ascending order."""
    return Layout.of(x.mesh, (tuple(sorted(x.layout.dims[0])),))


def whole_if_short(x: DistributedArray, queries: DistributedArray) -> DistributedArray:
    """`x`, whole on every device if it takes less memory there than a device's share of the
    queries: then to gather it sends less than to send the queries to its shards."""
    if x.nbytes * x.layout.shard_counts[0] > queries.nbytes:
        return x
    return relayout(x, Layout.replicated(x.mesh, 1))


def of_one_dtype(name: str, **values: Any) -> list[DistributedArray]:
    """Operands with nothing partial, in the dtype to which they promote."""
    operands = [x.resolve() for x in as_operands(name, **values)]
    dtype = promoted(*[x.dtype for x in operands])
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
        raise error(ArgumentError, f"side is {side!r}, not 'left' or 'right'")
    x, queries = of_one_dtype("searchsorted", x=x, queries=queries)
    if x.ndim != 1:
        problem = f"x has rank {x.ndim}, and a sorted array has 1"
        raise error(ShapeError, problem, operands={"x": x.type})
    if sorter is not None:
        x = take(x, sorter, axis=0)
    return search(x, queries, side)


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
    if x.dtype.kind == "c":
        raise error(DtypeError, "x is complex", operands={"x": x.type})
    if bins.ndim != 1:
        raise error(ShapeError, "bins have no rank 1", operands={"bins": bins.type})
    rises = bins.size < 2 or bool(all_(greater_equal(bins[1:], bins[:-1])))
    if not rises and not bool(all_(greater_equal(bins[:-1], bins[1:]))):
        raise error(ArgumentError, "bins neither rise nor fall", operands={"bins": bins.type})
    side = "left" if right else "right"
    if rises:
        return searchsorted(bins, x, side=side)
    return bins.size - searchsorted(flip(bins), x, side=side)
