"""The sort of a vector that is split, by regular sampling (Shi and Schaeffer 1992).

Each block sorts its part, samples of all parts give splitters, blocks send each other the elements
between them, merge what they receive, and even out their shares. Equal values are told apart by
where they come from, so the order is stable and shares are even for them too.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gdt.backend import backend_of
from gdt.comm.vectors import Exchange, part_of, sent_by_all
from gdt.engine.planned import BlockPlan, planned_op
from gdt.observe import Collective
from gdt.ops.blocks.radix_sort import argsort, sort
from gdt.ops.creation import zeros_like
from gdt.ops.masks import Rebalance, block_of_rows, rows_in_front
from gdt.ops.rows import scatter_rows
from gdt.sharding.array_type import ArrayType
from gdt.sharding.layout import Layout

Block = Any
SAMPLES = 64  # of each block, for every block of its group


class SampleSort:
    """The sort of a vector of type `x`, split over ascending mesh axes."""

    def __init__(self, x: ArrayType) -> None:
        self.x, self.axes = x, x.layout.dims[0]
        self.backend, self.xp = backend_of(x.mesh), backend_of(x.mesh).xp
        self.exchange = Exchange(x.mesh, self.axes, f"elements of {x} in order")

    def collectives(self, *types: ArrayType) -> tuple[Collective, ...]:
        """The collective that is reported for arrays of these types, as if their elements lay in
        random order."""
        names = tuple([self.x.mesh.axis_names[a] for a in self.axes])
        nbytes = sum(sent_by_all(t, 0) for t in types)
        return (Collective("all_to_all", names, nbytes, len(types)),) if nbytes else ()

    def values(self, blocks: Sequence[Block]) -> list[Block]:
        """The blocks of the sorted vector."""
        parts = self._by_block(lambda i, block: sort(self.xp, self._part(i, block)), blocks)
        if self.exchange.size > 1:
            counts, rows = self._pieces(parts)
            parts.clear()
            rows_received = self.exchange.all_to_all(rows, counts)
            rows.clear()
            merged = self._by_block(
                lambda i, row: self._sorted_in_place(self._joined(row)), rows_received
            )
            rows_received.clear()
            parts = self._evened(merged, self.x)
        return self._by_block(
            lambda i, part: block_of_rows(self.x, self._wide(part), self.exchange.first + i), parts
        )

    def places(self, blocks: Sequence[Block], out: ArrayType) -> list[Block]:
        """The blocks of an array of type `out`, int64: the indices that sort the vector."""
        xp, first = self.xp, self.exchange.first
        parts = self._by_block(self._part, blocks)
        orders = self._by_block(lambda i, part: self._order(xp, part), parts)
        if self.exchange.size > 1:
            small = np.int32 if self.x.shape[0] < 1 << 31 else np.int64  # of places in a part
            orders = self._by_block(lambda i, order: order.astype(small), orders)
            parts = self._by_block(lambda i, part, order: part[order], parts, orders)
            counts, rows = self._pieces(parts)
            pieces = self._by_block(
                lambda i, order, row: list(
                    xp.split(order, np.cumsum([len(r) for r in row])[:-1].tolist())
                ),
                orders,
                rows,
            )
            orders.clear()
            received = self.exchange.all_to_all(rows, counts)
            rows.clear()
            parts.clear()
            merges = self._by_block(lambda i, row: self._order(xp, self._joined(row)), received)
            received.clear()
            numbers = self.exchange.all_to_all(pieces, counts)
            pieces.clear()
            merged = self._by_block(self._numbered, numbers, merges)
            numbers.clear()
            merges.clear()
            orders = self._evened(merged, out)
        return self._by_block(
            lambda i, part: block_of_rows(out, self._wide(part), first + i), orders
        )

    def _numbered(self, i: int, row: Sequence[Block], order: Block) -> Block:
        """The places in the vector of the elements that the blocks of the group sent, in `order`.

        row: the places of the elements in the part of each block.
        """
        starts = [part_of(self.x, 0, number)[0] for number in self.exchange.members[i]]
        pairs = zip(row, starts, strict=True)
        return self.xp.concatenate([places.astype(np.int64) + at for places, at in pairs])[order]

    def _by_block(self, function: Callable[..., Any], *lists: Sequence[Any]) -> list[Any]:
        return self.exchange.by_block(function, *lists)

    def _part(self, i: int, block: Block) -> Block:
        rows = rows_in_front(self.x, block, self.exchange.first + i)
        return rows.reshape(len(rows), *self.x.shape[1:])

    def _order(self, xp: Any, part: Block) -> Block:
        """The indices that sort a part, stably."""
        return argsort(xp, part)

    def _search(self, part: Block, splitter: np.ndarray, side: str) -> int:
        """The place in a sorted part before, or by `side` behind, elements like the splitter."""
        return int(self.xp.searchsorted(part, self.xp.asarray(splitter), side=side)[0])

    def _wide(self, part: Block) -> Block:
        """A part with the mesh axes behind its own."""
        return part.reshape(-1, *(1,) * self.x.mesh.ndim)

    def _joined(self, row: list[Block]) -> Block:
        """The pieces that a block has received, as one; they are released, and with the block's own
        piece all of its part, which that is a view of."""
        part = self.xp.concatenate(row)
        row.clear()
        return part

    def _sorted_in_place(self, part: Block) -> Block:
        if self.xp is np:
            part.sort(kind="stable")  # merges the runs that came from the blocks
        else:
            part.sort()  # CuPy 13's method has no kinds of sorts
        return part

    def _evened(self, parts: list[Block], want: ArrayType) -> list[Block]:
        lengths = self.exchange.all_gather([np.array(len(part)) for part in parts])
        return Rebalance(self.exchange, lengths, want).to_shares(parts)

    def _pieces(self, parts: Sequence[Block]) -> tuple[list[np.ndarray], list[list[Block]]]:
        """The pieces of each sorted part that go to the blocks of its group, and their lengths, as
        `Exchange.counts` has them."""
        lengths = self.exchange.all_gather([np.array(len(part)) for part in parts])
        samples = self._by_block(self._samples, parts)
        all_samples = self.exchange.all_gather(samples)
        rows = self._by_block(self._cut, parts, lengths, all_samples, self.exchange.places)
        return self.exchange.counts(rows), rows

    def _cut(
        self, i: int, part: Block, lengths: np.ndarray, values: np.ndarray, place: int
    ) -> list[Block]:
        """The pieces of a sorted part; see `_cuts`."""
        return list(self.xp.split(part, self._cuts(part, lengths, values, place)))

    def _samples(self, i: int, part: Block) -> np.ndarray:
        """Evenly spaced elements of a sorted part, on the host."""
        size = self.exchange.size
        count = max(SAMPLES // math.prod(part.shape[1:]), 1) * size  # rows are long
        if not len(part):
            return np.zeros((count, *part.shape[1:]), part.dtype)
        at = _evenly(len(part), count)
        return np.asarray(self.backend.to_host(part[self.xp.asarray(at)]))

    def _cuts(self, part: Block, lengths: np.ndarray, values: np.ndarray, place: int) -> list[int]:
        """The places at which a sorted part is cut: before the splitters, which are the same for
        all blocks of the group.

        lengths: the lengths of the group's parts. values: the samples of each. place: the place of
        this part among them.
        """
        filled_parts = np.flatnonzero(lengths)
        count = values.shape[1]
        weights = np.repeat(lengths[filled_parts] / count, count)
        order = self._order(np, np.concatenate([values[k] for k in filled_parts]))
        reached = np.cumsum(weights[order])
        cuts = []
        for rank in range(1, self.exchange.size):
            target = part_of(self.x, 0, self.exchange.members[0][rank])[0]
            position = int(order[min(int(np.searchsorted(reached, target)), len(order) - 1)])
            source, sample = int(filled_parts[position // count]), position % count
            if source == place:
                cuts.append(sample * int(lengths[source]) // count)
                continue
            # An equal element of an earlier block comes before the splitter.
            splitter = values[source, sample : sample + 1]
            cuts.append(self._search(part, splitter, "right" if place < source else "left"))
        return [max(cuts[: k + 1]) for k in range(len(cuts))]


class RowSort(SampleSort):
    """The sort of the rows of a matrix, split over ascending mesh axes: by the first column, where
    that is equal by the second one, and so on. Rows are compared, and sent, as `keys_of` them."""

    def _part(self, i: int, block: Block) -> Block:
        rows = super()._part(i, block)
        if rows.dtype.kind == "c":
            rows = self.xp.ascontiguousarray(rows).view(rows.real.dtype)
        return keys_of(self.xp, rows)

    def _order(self, xp: Any, part: Block) -> Block:
        return xp.lexsort(part.T[::-1])

    def _search(self, part: Block, splitter: np.ndarray, side: str) -> int:
        search = bisect_right if side == "right" else bisect_left
        row = lambda i: tuple(self.backend.to_host(part[i]).tolist())
        return search(range(len(part)), tuple(splitter[0].tolist()), key=row)


def keys_of(xp: Any, x: Block) -> Block:
    """Unsigned integers, as wide as the elements of `x`, in the same order: zeros of both signs
    have the same, and so have NaNs, which come last."""
    dtype = np.dtype(f"u{x.dtype.itemsize}")
    if x.dtype.kind in "bu":
        return x.astype(dtype, copy=False)
    top = dtype.type(1 << (8 * dtype.itemsize - 1))
    if x.dtype.kind == "i":
        return x.view(dtype) ^ top
    bits = xp.where(x == x, x + 0, x.dtype.type(np.nan)).view(dtype)
    return xp.where(bits >= top, ~bits, bits | top)


def _evenly(length: int, count: int) -> np.ndarray:
    return (np.arange(count) * length) // count


def _vector_plan(
    x: ArrayType, out: ArrayType, run: Callable[[Sequence[Block]], list[Block]],
    collectives: tuple[Collective, ...],
) -> BlockPlan:  # fmt: skip
    functions = () if x.mesh.divided else [lambda block: run([block])[0]]
    return BlockPlan([x.layout], out, functions, run, collectives)


@planned_op(computes=True)
def sort_vector(x: ArrayType, /) -> BlockPlan:
    by_samples = SampleSort(x)
    return _vector_plan(x, x, by_samples.values, by_samples.collectives(x))


@planned_op(computes=True)
def argsort_vector(x: ArrayType, /) -> BlockPlan:
    by_samples, out = SampleSort(x), _orders_of(x)
    collectives = by_samples.collectives(x, out)
    return _vector_plan(x, out, lambda blocks: by_samples.places(blocks, out), collectives)


@planned_op(computes=True)
def argsort_rows(x: ArrayType, /) -> BlockPlan:
    by_samples, out = RowSort(x), _orders_of(x)
    collectives = by_samples.collectives(x, out)
    return _vector_plan(x, out, lambda blocks: by_samples.places(blocks, out), collectives)


argsort_rows.vjp(None)


def _orders_of(x: ArrayType) -> ArrayType:
    """The type of the indices of the rows of `x`, split as they are."""
    layout = Layout.of(x.mesh, x.layout.dims[:1])
    return ArrayType.of(x.shape[:1], np.dtype(np.int64), layout)


sort_vector.vjp(
    lambda g, out, x: scatter_rows(zeros_like(g), argsort_vector(x), g, axis=0, how="set")
)
argsort_vector.vjp(None)
