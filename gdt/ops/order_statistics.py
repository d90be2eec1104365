"""Elements by their place in ascending order, without a sort: what quantiles are made of.

Along a whole axis, NumPy's `partition` finds them. In a split vector, samples bound them by two
values (Floyd and Rivest 1975): each device counts its elements below the lower bound and keeps
those between the bounds. That is repeated until few elements are left, which are gathered. A device
holds little more than its share, and sends samples and counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.backend import backend_of
from gdt.comm.vectors import Exchange
from gdt.engine.op import op
from gdt.engine.planned import BlockPlan, planned_op
from gdt.observe import Collective
from gdt.ops.along_axis import add_along_axis
from gdt.ops.comparison import equal, less, logical_and, minimum, not_equal, where
from gdt.ops.creation import zeros_like
from gdt.ops.elementwise import astype
from gdt.ops.indexing import getitem
from gdt.ops.joining import concat, stack
from gdt.ops.lookup import carrier_of
from gdt.ops.masks import rows_in_front
from gdt.ops.movement import relayout
from gdt.ops.reductions import sum_
from gdt.ops.rounding import floor
from gdt.ops.sample_sort import sort_vector
from gdt.ops.scans import cumsum
from gdt.ops.sorting import argsort_whole_axis, by_axis
from gdt.sharding.array_type import ArrayType
from gdt.sharding.layout import Layout
from gdt.sharding.rule import RuleSpec

Block = Any
Ranks = tuple[int, ...]
Levels = tuple[float, ...]

SAMPLES = 1 << 14  # elements that all blocks of a group sample together
MARGIN = 4  # standard deviations of a rank that is estimated from samples
FEW = 1 << 14  # elements that are gathered
GROUPS = 8  # groups of close ranks, beyond which a sort is faster than counting for each group


# ---------------------------------------------------------------- axes that are whole


def _at_ranks(x: ArrayType, *, axis: int, ranks: Ranks) -> RuleSpec:
    dims = [f"d{d}" for d in range(x.ndim)]
    dims[axis] = "n"
    operand = " ".join(dims)
    dims[axis] = "k"
    return RuleSpec(f"{operand} -> {' '.join(dims)}", {"k": len(ranks)})


@op(_at_ranks, whole="n")
def ordered_along_whole_axis(xp: Any, x: Block, /, axis: int, ranks: Ranks) -> Block:
    """The elements that a sort puts at the places `ranks` of an axis, counted from the end, that
    every device has whole; NaN where one element of the axis is NaN.

    >>> select = gdt.ops.order_statistics.ordered_along_whole_axis
    >>> select(gdt.asarray([3, 1, 2]), axis=-1, ranks=(0, 2)).tolist()
    [1, 3]
    """
    last = x.shape[axis] - 1
    ordered = xp.take(xp.partition(x, (*ranks, last), axis=axis), xp.asarray([*ranks, last]), axis)
    ordered, last = xp.split(ordered, [len(ranks)], axis=axis)
    return ordered if x.dtype.kind in "biu" else xp.where(last == last, ordered, last)


def _whole_vjp(g: Any, out: Any, x: Any, *, axis: int, ranks: Ranks) -> Any:
    order = argsort_whole_axis(x, axis=axis)
    behind = (slice(None),) * (-1 - axis)
    places = concat([getitem(order, (..., slice(r, r + 1), *behind)) for r in ranks], axis=axis)
    return add_along_axis(g, places, carrier_of(x, axis + x.ndim), axis=axis + x.ndim)


ordered_along_whole_axis.vjp(_whole_vjp)


# ---------------------------------------------------------------- split vectors


class SortedSample:
    """A sample of the elements of all parts, in ascending order; `reached[i]` estimates how many
    elements there are up to `values[i]`.

    values: (blocks, samples), evenly spaced elements of each part. lengths: (blocks,), the lengths
    of the parts.
    """

    def __init__(self, values: np.ndarray, lengths: np.ndarray) -> None:
        filled_rows = values[lengths > 0]  # (blocks with elements, samples)
        weights = np.repeat(lengths[lengths > 0] / values.shape[1], values.shape[1])
        order = np.argsort(filled_rows, axis=None)
        self.values, self.reached = filled_rows.reshape(-1)[order], np.cumsum(weights[order])
        self.deviation = MARGIN * 0.5 * lengths.sum() / math.sqrt(len(order))

    def at(self, rank: float) -> Any:
        """The element of about that rank; None for a rank before or behind all elements."""
        if not 0 <= rank < self.reached[-1]:
            return None
        return self.values[np.searchsorted(self.reached, rank)]


class Selection:
    """The elements of a vector of type `x`, split over ascending mesh axes, at some ranks."""

    def __init__(self, x: ArrayType) -> None:
        self.x, self.backend = x, backend_of(x.mesh)
        self.exchange = Exchange(x.mesh, x.layout.dims[0], f"elements of {x} by their order")
        self.samples = -(-SAMPLES // self.exchange.size)

    def collectives(self, ranks: Ranks) -> tuple[Collective, ...]:
        """The report: for each group of ranks, samples until few elements are left, and these."""
        mesh, axes = self.x.mesh, self.x.layout.dims[0]
        shards = math.prod(mesh.sizes[a] for a in axes)
        if shards == 1:
            return ()
        left, sent = self.x.shape[0], 0
        while left > FEW:
            left, sent = int(left * MARGIN / math.sqrt(SAMPLES)), sent + SAMPLES
        sent += left
        sent *= len(_groups(sorted({*ranks}), self.x.shape[0]))
        nbytes = mesh.size * (shards - 1) * -(-sent // shards) * self.x.dtype.itemsize
        return (Collective("all_gather", tuple([mesh.axis_names[a] for a in axes]), nbytes, 1),)

    def elements(self, blocks: Sequence[Block], ranks: Ranks, levels: Levels) -> np.ndarray:
        """The elements at `ranks`, all NaN if one element of the vector is. With `levels`, those
        at `ranks_of(count, levels)` of the `count` elements that are numbers; NaN for count 0."""
        first, exchange = self.exchange.first, self.exchange
        parts = exchange.by_block(
            lambda i, block: rows_in_front(self.x, block, first + i).reshape(-1), blocks
        )
        if self.x.dtype.kind not in "biu":
            parts = exchange.by_block(lambda i, part: _numbers(part), parts)
        count = int(self._total([len(part) for part in parts]))
        ranks = ranks_of(count, levels) if levels else ranks
        if not count or (count < self.x.shape[0] and not levels):
            return np.full(len(ranks), np.nan).astype(self.x.dtype)
        ascending = sorted({*ranks})
        elements = np.concatenate([self._select(parts, g, 0) for g in _groups(ascending, count)])
        return elements[np.searchsorted(ascending, ranks)]

    def _total(self, counts: Sequence[Any]) -> np.ndarray:
        """The sums of counts over the blocks of a group."""
        total: np.ndarray = self.exchange.all_gather([np.array(n) for n in counts])[0].sum(axis=0)
        return total

    def _select(self, parts: Sequence[Block], ranks: Sequence[int], below: int) -> np.ndarray:
        """The elements at ranks that ascend and lie close to each other.

        below: how many elements are smaller than those of the parts.
        """
        while True:
            lengths = self.exchange.all_gather([np.array(len(part)) for part in parts])[0]
            count = lengths.sum()
            if count <= FEW:
                rest: np.ndarray = self._rest(parts, lengths)[np.array(ranks) - below]
                return rest
            sample = self._sample(parts, lengths)
            low = sample.at(ranks[0] - below - sample.deviation)
            high = sample.at(ranks[-1] - below + sample.deviation)
            cuts = self.exchange.by_block(partial(_cut, low, high), parts)
            smaller, inside = self._total([[n, len(part)] for n, part in cuts]).tolist()
            are_inside = below + smaller <= ranks[0] and ranks[-1] < below + smaller + inside
            if not are_inside or inside > 0.5 * count:
                return self._around(
                    parts, sample.at((ranks[0] + ranks[-1]) / 2 - below), ranks, below
                )
            below, parts = below + smaller, [part for _, part in cuts]

    def _around(
        self, parts: Sequence[Block], middle: Any, ranks: Sequence[int], below: int
    ) -> np.ndarray:
        """The elements at `ranks`, as `_select` returns them, found among the elements smaller and
        greater than `middle`: where many elements are equal to it."""
        by_block = self.exchange.by_block
        smaller = by_block(lambda i, part: part[part < middle], parts)
        greater = by_block(lambda i, part: part[part > middle], parts)
        counts = zip(parts, smaller, greater, strict=True)
        first, equal_ = self._total([[len(s), len(p) - len(s) - len(g)] for p, s, g in counts])
        first, last = below + int(first), below + int(first + equal_)
        before, after = [r for r in ranks if r < first], [r for r in ranks if r >= last]
        elements = [np.full(len(ranks) - len(before) - len(after), middle)]
        if before:
            elements.insert(0, self._select(smaller, before, below))
        if after:
            elements.append(self._select(greater, after, last))
        return np.concatenate(elements)

    def _sample(self, parts: Sequence[Block], lengths: np.ndarray) -> SortedSample:
        def evenly_spaced(i: int, part: Block) -> np.ndarray:
            if not len(part):
                return np.zeros(self.samples, self.x.dtype)
            at = (np.arange(self.samples) * len(part) + len(part) // 2) // self.samples
            return self.backend.to_host(part[self.backend.asarray(at)])

        samples = self.exchange.by_block(evenly_spaced, parts)
        return SortedSample(self.exchange.all_gather(samples)[0], lengths)

    def _rest(self, parts: Sequence[Block], lengths: np.ndarray) -> np.ndarray:
        """All elements of the parts, in ascending order."""
        width = max(1, int(lengths.max()))

        def row_of(i: int, part: Block) -> np.ndarray:
            row = np.zeros(width, self.x.dtype)
            row[: len(part)] = self.backend.to_host(part)
            return row

        rows = self.exchange.all_gather(self.exchange.by_block(row_of, parts))[0]  # (blocks, width)
        elements: np.ndarray = rows[np.arange(width) < lengths[:, None]]
        elements.sort()
        return elements


def _numbers(part: Block) -> Block:
    is_number = part == part
    return part if is_number.all() else part[is_number]


def _cut(low: Any, high: Any, i: int, part: Block) -> tuple[int, Block]:
    """The number of elements smaller than `low`, and the elements from `low` to `high`; a None
    bounds nothing."""
    smaller, inside = 0, None
    if low is not None:
        inside = part >= low
        smaller = len(part) - int(inside.sum())
    if high is not None:
        inside = part <= high if inside is None else inside & (part <= high)
    return smaller, part if inside is None else part[inside]


def _groups(ranks: Sequence[int], count: int) -> list[list[int]]:
    """The ranks, which ascend, in groups of ranks that are close to each other."""
    groups: list[list[int]] = []
    for rank in ranks:
        if groups and rank - groups[-1][0] <= count // 64:
            groups[-1].append(rank)
        else:
            groups.append([rank])
    return groups


def ranks_of(count: int, levels: Levels) -> Ranks:
    """The ranks, among `count` elements, of the elements just before each level, and then of those
    just behind each; a level of 0.5 lies in the middle."""
    low = [max(0, math.floor((count - 1) * level)) for level in levels]
    return (*low, *[max(0, min(rank + 1, count - 1)) for rank in low])


@planned_op()
def ordered_vector(x: ArrayType, /, *, ranks: Ranks = (), levels: Levels = ()) -> BlockPlan:
    """The elements at `ranks` of the vector `x`, or around `levels` of its numbers; replicated."""
    selection = Selection(x)
    shape = (len(ranks) + 2 * len(levels),)
    out = ArrayType.of(shape, x.dtype, Layout.replicated(x.mesh, 1))

    def run(blocks: Sequence[Block]) -> list[Block]:
        elements = selection.elements(blocks, ranks, levels).reshape(out.block_shape)
        return selection.exchange.by_block(
            lambda i, block: selection.backend.asarray(elements), blocks
        )

    functions = () if x.mesh.divided else [lambda block: run([block])[0]]
    report = selection.collectives(ranks_of(x.shape[0], levels) if levels else ranks)
    return BlockPlan([x.layout], out, functions, run, report)


def _vector_vjp(g: Any, out: Any, x: Any, *, ranks: Ranks = (), levels: Levels = ()) -> Any:
    """The cotangent of an element goes to where a stable sort takes it from."""
    places: Any = ranks
    if levels:
        count = sum_(astype(equal(x, x), np.int64))
        low = [astype(floor((count - 1) * level), np.int64) for level in levels]
        places = [*low, *[minimum(rank + 1, count - 1) for rank in low]]
    cotangent = zeros_like(x)
    for k, rank in enumerate(places):
        element = getitem(out, k)
        is_equal = equal(x, element)
        number = rank - sum_(astype(less(x, element), np.int64))  # of equal elements before it
        is_source = logical_and(is_equal, equal(cumsum(astype(is_equal, np.int64)) - 1, number))
        cotangent = cotangent + where(is_source, getitem(g, k), 0)
    return cotangent


ordered_vector.vjp(_vector_vjp)


def _of_vector(x: DistributedArray, ranks: Ranks) -> DistributedArray:
    if len(_groups(sorted(ranks), x.shape[0])) <= GROUPS:
        return ordered_vector(x, ranks=ranks)
    ordered = sort_vector(x)
    last = getitem(ordered, -1)
    return where(not_equal(last, last), last, stack([getitem(ordered, r) for r in ranks]))


def in_order(x: DistributedArray, ranks: Ranks) -> DistributedArray:
    """The elements at `ranks` of the first axis in ascending order; NaN where one is NaN."""

    def of_whole(x: DistributedArray, axis: int) -> DistributedArray:
        return ordered_along_whole_axis(x, axis=axis, ranks=ranks)

    return by_axis(x, 0, of_whole, lambda vector: _of_vector(vector, ranks))


def numbers_in_order(x: DistributedArray, levels: Levels) -> DistributedArray | None:
    """The elements of a split vector at `ranks_of(count, levels)`, where `count` is the number of
    elements that are not NaN. None if `x` is no split vector, or if a sort is faster for so many
    levels."""
    axes = tuple(sorted(x.layout.dims[0]))
    if x.ndim > 1 or not axes or len(levels) > GROUPS:
        return None
    return ordered_vector(relayout(x, Layout.of(x.mesh, (axes,))), levels=levels)
