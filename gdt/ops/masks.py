"""Elements that a mask selects: how many there are only the data tells, so no program records them.

Each device keeps what its part of the mask selects; the counts of all devices, which are gathered,
say where that belongs in the result, and only what is not there yet is sent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.operands import as_operands
from gdt.array.output import writes_out
from gdt.array.registry import public
from gdt.backend import backend_of
from gdt.comm.vectors import Exchange, cut, join, part_of, sent_by_all
from gdt.engine.custom_vjp import custom_vjp
from gdt.engine.whole_arrays import are_unwatched, rows_of, whole_of
from gdt.errors import ShapeError, error
from gdt.observe import OBSERVERS, Collective, met_host
from gdt.ops.comparison import not_equal
from gdt.ops.lookup import along_axis_or_flat
from gdt.ops.movement import relayout
from gdt.ops.shapes import reshape, transpose
from gdt.sharding.array_type import ArrayType
from gdt.sharding.layout import Axes, Layout

__all__ = ["compress", "extract", "flatnonzero", "nonzero"]

Block = Any
Interval = tuple[int, int]


class Rebalance:
    """Moves consecutive intervals of an array's first axis to where the shards of a type have them.

    lengths: for every block of this process, how long the interval is that each member of its
    group holds.
    """

    def __init__(self, exchange: Exchange, lengths: Sequence[np.ndarray], want: ArrayType) -> None:
        self.exchange, self.want = exchange, want
        self.have: list[list[Interval]] = []
        for length in lengths:
            stops = np.cumsum(length).tolist()
            self.have.append(list(zip([0, *stops[:-1]], stops, strict=True)))
        self.shares = [
            [part_of(want, 0, number) for number in members] for members in exchange.members
        ]

    def _moved(
        self, parts: Sequence[Block], have: list[list[Interval]], want: list[list[Interval]]
    ) -> list[Block]:
        exchange, xp = self.exchange, backend_of(self.exchange.mesh).xp
        pieces, counts = [], []
        for part, mine, theirs, place in zip(parts, have, want, exchange.places, strict=True):
            start = mine[place][0]
            overlaps = [[_shared(a, b) for b in theirs] for a in mine]
            counts.append(np.array([[high - low for low, high in row] for row in overlaps]))
            pieces.append([part[low - start : high - start] for low, high in overlaps[place]])
        incoming = exchange.all_to_all(pieces, counts)
        return exchange.by_block(
            lambda i, row: row[0] if len(row) == 1 else xp.concatenate(row), incoming
        )

    def to_shares(self, parts: Sequence[Block]) -> list[Block]:
        """The shares of all blocks, from the intervals that they hold."""
        return self._moved(parts, self.have, self.shares)

    def from_shares(self, parts: Sequence[Block]) -> list[Block]:
        """The intervals that blocks held, from their shares: the inverse."""
        return self._moved(parts, self.shares, self.have)


def _shared(one: Interval, other: Interval) -> Interval:
    low = max(one[0], other[0])
    return low, max(low, min(one[1], other[1]))


def rows_in_front(array_type: ArrayType, block: Block, number: int) -> Block:
    """A block's part of the first axis, with that axis in front of the mesh axes."""
    part = join(array_type, block, 0, number)
    return backend_of(array_type.mesh).xp.moveaxis(part, array_type.mesh.ndim, 0)


def block_of_rows(array_type: ArrayType, rows: Block, number: int) -> Block:
    """The block of an array of that type with these rows: the inverse of `rows_in_front`."""
    xp = backend_of(array_type.mesh).xp
    return cut(xp, xp.moveaxis(rows, 0, array_type.mesh.ndim), array_type, 0, number)


def with_first_axis(array_type: ArrayType, size: int) -> ArrayType:
    """The type of an array with another size of the first axis."""
    return ArrayType.of((size, *array_type.shape[1:]), array_type.dtype, array_type.layout)


def reported(array_type: ArrayType, axes: Axes) -> None:
    """Tell observers that pieces of an array of that type were sent along these mesh axes."""
    names = tuple([array_type.mesh.axis_names[a] for a in axes])
    if names:
        collective = Collective("all_to_all", names, sent_by_all(array_type, 0), 1)
        for observer in OBSERVERS.get():
            observer.on_collective(collective)


# ---------------------------------------------------------------- selecting rows


@custom_vjp
def _selected(x: DistributedArray, mask: DistributedArray) -> DistributedArray:
    met_host("read values on the host")
    axes = x.layout.dims[0]
    exchange = Exchange(x.mesh, axes, f"what a mask selects of {x.type}")

    def selection(i: int, block: Block, truths: Block) -> Block:
        part_mask = join(mask.type, truths, 0, exchange.first + i).reshape(-1)
        rows = rows_in_front(x.type, block, exchange.first + i)
        return rows.compress(part_mask, axis=0)  # rows[part_mask] takes NumPy 4 times as long

    return _in_shares(exchange, exchange.by_block(selection, x.blocks, mask.blocks), x.type)


def _in_shares(exchange: Exchange, parts: list[Block], array_type: ArrayType) -> DistributedArray:
    """The rows of all parts, one after the other, split as an array of that type is."""
    lengths = exchange.all_gather([np.array(len(part)) for part in parts])
    out = with_first_axis(array_type, int(lengths[0].sum()))
    shares = Rebalance(exchange, lengths, out).to_shares(parts)
    reported(out, out.layout.dims[0])
    return DistributedArray(
        out,
        tuple(exchange.by_block(lambda i, p: block_of_rows(out, p, exchange.first + i), shares)),
    )


@custom_vjp
def _true_places(mask: DistributedArray) -> DistributedArray:
    """The places of a split vector at which it is true, ascending."""
    met_host("read values on the host")
    exchange = Exchange(mask.mesh, mask.layout.dims[0], f"where {mask.type} is true")
    xp = backend_of(mask.mesh).xp

    def places(i: int, block: Block) -> Block:
        number = exchange.first + i
        own_places = xp.flatnonzero(join(mask.type, block, 0, number)).astype(np.int64, copy=False)
        own_places += part_of(mask.type, 0, number)[0]
        return own_places.reshape(-1, *(1,) * mask.mesh.ndim)  # the mesh axes stand behind

    out = ArrayType.of(mask.shape, np.dtype(np.int64), mask.layout)
    return _in_shares(exchange, exchange.by_block(places, mask.blocks), out)


_true_places.vjp(None)


@custom_vjp
def _spread(g: DistributedArray, mask: DistributedArray) -> DistributedArray:
    """Zeros with the rows of `g`, in their order, where the mask is true."""
    met_host("read values on the host")
    axes = mask.layout.dims[0]
    exchange = Exchange(g.mesh, axes, f"what goes where a mask selects {g.type}")
    xp, out = backend_of(g.mesh).xp, with_first_axis(g.type, mask.shape[0])
    truths = exchange.by_block(
        lambda i, block: join(mask.type, block, 0, exchange.first + i).reshape(-1), mask.blocks
    )
    to_host = backend_of(g.mesh).to_host
    counts = exchange.by_block(lambda i, part_mask: to_host(part_mask.sum()).reshape(()), truths)
    lengths = exchange.all_gather(counts)
    shares = exchange.by_block(
        lambda i, block: rows_in_front(g.type, block, exchange.first + i), g.blocks
    )
    rows = Rebalance(exchange, lengths, g.type).from_shares(shares)
    reported(g.type, axes)

    def placed(i: int, part: Block, part_mask: Block) -> Block:
        whole = xp.zeros((part_mask.size, *part.shape[1:]), part.dtype)
        whole[part_mask] = part
        return block_of_rows(out, whole, exchange.first + i)

    return DistributedArray(out, tuple(exchange.by_block(placed, rows, truths)))


_selected.vjp(lambda g, out, x, mask: _spread(relayout(g, x.layout.resolved), mask), None)
_spread.vjp(lambda c, out, g, mask: _selected(relayout(c, g.layout.resolved), mask), None)


def select_rows(x: DistributedArray, mask: DistributedArray) -> DistributedArray:
    """The slices along the first axis of `x` where `mask`, of rank 1, is true.

    The result is split along that axis as `x` is, or as `mask` is where `x` is whole.
    """
    x, mask = x.resolve(), mask.resolve()
    if not any(x.layout.dims):
        x = relayout(x, _split_first(x, mask.layout.dims[0]))
    axes = tuple(sorted(x.layout.dims[0]))
    x, mask = relayout(x, _split_first(x, axes)), relayout(mask, _split_first(mask, axes))
    return _selected(x, mask)


def _split_first(x: DistributedArray, axes: Axes) -> Layout:
    return Layout.of(x.mesh, (axes, *x.layout.dims[1:]))


def masked(x: DistributedArray, mask: DistributedArray) -> DistributedArray:
    """`x[mask]` for a mask of the first axes of `x`, whose sizes it has."""
    rest = x.shape[mask.ndim :]
    return select_rows(reshape(x, (math.prod(mask.shape), *rest)), reshape(mask, (mask.size,)))


# ---------------------------------------------------------------- public functions


@public
def flatnonzero(x: Any) -> DistributedArray:
    """The places of the elements of the flattened `x` that are not 0, ascending, int64.

    The size of the result depends on the values, so no step that `gdt.function` records calls it.

    >>> gdt.flatnonzero(gdt.asarray([[0, 3], [0, 4]])).tolist()
    [1, 3]
    """
    (x,) = as_operands("flatnonzero", x=x)
    truths = x.resolve() if x.dtype.kind == "b" else not_equal(x, 0)
    truths = reshape(truths, (truths.size,))
    if are_unwatched(truths):
        return _places_in_numpy(truths)
    axes = tuple(sorted(truths.layout.dims[0]))
    return _true_places(relayout(truths, _split_first(truths, axes)))


def _places_in_numpy(truths: DistributedArray) -> DistributedArray:
    """The places at which a vector that one block of the host holds is true."""
    places: Any = np.flatnonzero(whole_of(truths))
    if not places.flags.owndata:  # a view of what NumPy has allocated
        places = places.base
    count = places.size
    out = ArrayType.of((count,), np.dtype(np.int64), truths.layout)
    (size,) = rows_of(out)
    if size > count:  # the memory grows by the padding, which a copy would take longer for
        places.resize(size, refcheck=False)
        places = places.reshape(-1)
        places[count:] = places[count - 1]
    return DistributedArray(out, (places.reshape(out.block_shape),))


@public
def nonzero(x: Any) -> tuple[DistributedArray, ...]:
    """For each axis, the indices of the elements that are not 0, in row-major order, int64.

    The size of the results depends on the values, as that of `gdt.flatnonzero` does. Raises
    DtypeError for rank 0.

    >>> [index.tolist() for index in gdt.nonzero(gdt.asarray([[0, 3], [4, 0]]))]
    [[0, 1], [1, 0]]
    """
    (x,) = as_operands("nonzero", x=x)
    if not x.ndim:
        problem = "an array of rank 0 has no axes"
        raise error(ShapeError, problem, operands={"x": x.type}, remedy="Use gdt.atleast_1d(x).")
    flat, indices = flatnonzero(x), []
    for dim, size in enumerate(x.shape):
        step = math.prod(x.shape[dim + 1 :])
        along = flat // step if step > 1 else flat
        indices.append(along % size if dim and size else along)
    return tuple(indices)


@public
@writes_out
def compress(
    condition: Any, x: Any, axis: int | None = None, out: DistributedArray | None = None
) -> DistributedArray:
    """The slices of `x` along `axis` (None: the elements of the flattened array) for which
    `condition`, of rank 1, is not 0; where it is shorter than the axis, the rest is left out.

    Raises ShapeError for a condition of another rank, or that is longer.

    >>> gdt.compress([False, True], gdt.asarray([[1, 2], [3, 4]]), axis=0).tolist()
    [[3, 4]]
    """
    condition, x = as_operands("compress", condition=condition, x=x)
    x, axis = along_axis_or_flat(x, axis, takes_rank_0=True)
    if condition.ndim != 1 or condition.size > x.shape[axis]:
        raise error(
            ShapeError,
            f"the condition is no array of rank 1 of {x.shape[axis]} elements at most",
            operands={"condition": condition.type, "x": x.type},
        )
    if condition.size < x.shape[axis]:
        x = x[(slice(None),) * axis + (slice(condition.size),)]
    order = (axis, *(d for d in range(x.ndim) if d != axis))
    rows = select_rows(transpose(x, order), condition.astype(bool))
    return transpose(rows, tuple(np.argsort(order).tolist()))


@public
def extract(condition: Any, x: Any) -> DistributedArray:
    """The elements of the flattened `x` for which those of the flattened `condition` are not 0.

    >>> gdt.extract([[True, False], [False, True]], gdt.asarray([[1, 2], [3, 4]])).tolist()
    [1, 4]
    """
    condition, x = as_operands("extract", condition=condition, x=x)
    return compress(reshape(condition, (condition.size,)), x)
