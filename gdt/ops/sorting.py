"""sort and argsort, stable; and what is a sort with another end: lexsort, partition, top_k.

An axis that is not split is sorted where it is. A split one gives its mesh axes to other axes, by
an all-to-all, if those are long enough. A split vector is sorted by regular sampling (Shi and
Schaeffer 1992): each block sorts its part, samples of all parts give splitters, blocks send each
other the elements between them, merge what they receive, and even out their shares. Equal values
are told apart by where they come from, so the order is stable and shares are even for them too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

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
from gdt.ops.creation import zeros_like
from gdt.ops.elementwise import astype
from gdt.ops.indexing import getitem
from gdt.ops.joining import flip, moveaxis, stack
from gdt.ops.lookup import checked_axis
from gdt.ops.masks import Rebalance, block_of_rows, rows_in_front
from gdt.ops.movement import relayout
from gdt.ops.rows import scatter_rows
from gdt.ops.shapes import reshape
from gdt.ops.taking import rows_at, take_along_axis_in_range
from gdt.sharding.array_type import ArrayType
from gdt.sharding.layout import Layout

__all__ = [
    "argpartition",
    "argsort",
    "argsort_whole_axis",
    "lexsort",
    "partition",
    "sort",
    "sort_complex",
    "sort_whole_axis",
    "top_k",
]

Block = Any
SAMPLES = 64  # that each block takes for every block of its group


# ---------------------------------------------------------------- axes that are whole


def _along(x: ArrayType, *, axis: int) -> str:
    dims = " ".join("n" if d == x.ndim + axis else f"d{d}" for d in range(x.ndim))
    return f"{dims} -> {dims}"


@op(_along, whole="n")
def sort_whole_axis(xp: Any, x: Block, /, axis: int) -> Block:
    """`gdt.sort` along an axis, counted from the end, that every device has whole.

    >>> gdt.sort_whole_axis(gdt.asarray([3, 1, 2]), axis=-1).tolist()
    [1, 2, 3]
    """
    return xp.sort(x, axis=axis)


@op(_along, whole="n")
def argsort_whole_axis(xp: Any, x: Block, /, axis: int) -> Block:
    """`gdt.argsort` along an axis, counted from the end, that every device has whole.

    >>> gdt.argsort_whole_axis(gdt.asarray([3, 1, 2]), axis=-1).tolist()
    [1, 2, 0]
    """
    return xp.argsort(x, axis=axis, kind="stable")


def _sort_vjp(g: Any, out: Any, x: Any, *, axis: int) -> Any:
    order = argsort_whole_axis(x, axis=axis)
    place = argsort_whole_axis(order, axis=axis)  # of each element in the sorted array
    return take_along_axis_in_range(g, place, axis=axis + x.ndim)


sort_whole_axis.vjp(_sort_vjp)
argsort_whole_axis.vjp(None)


# ---------------------------------------------------------------- vectors that are split


class SampleSort:
    """The sort of a vector of type `x`, split over ascending mesh axes."""

    def __init__(self, x: ArrayType) -> None:
        self.x, self.axes = x, x.layout.dims[0]
        self.backend, self.xp = backend_of(x.mesh), backend_of(x.mesh).xp
        self.exchange = Exchange(x.mesh, self.axes, f"elements of {x} in order")

    def collectives(self, *types: ArrayType) -> tuple[Collective, ...]:
        """The report of sending arrays of these types: of as many bytes as if elements lay in no
        order."""
        names = tuple([self.x.mesh.axis_names[a] for a in self.axes])
        nbytes = sum(sent_by_all(t, 0) for t in types)
        return (Collective("all_to_all", names, nbytes, len(types)),) if nbytes else ()

    def values(self, blocks: Sequence[Block]) -> list[Block]:
        """The blocks of the sorted vector."""
        parts = self._by_block(lambda i, block: self.xp.sort(self._part(i, block)), blocks)
        if self.exchange.size > 1:
            counts, rows = self._pieces(parts)
            parts.clear()
            received = self.exchange.all_to_all(rows, counts)
            rows.clear()
            merged = self._by_block(
                lambda i, row: self._sorted_in_place(self.xp.concatenate(row)), received
            )
            received.clear()
            parts = self._evened(merged, self.x)
        return self._by_block(
            lambda i, part: block_of_rows(self.x, self._wide(part), self.exchange.first + i), parts
        )

    def places(self, blocks: Sequence[Block], out: ArrayType) -> list[Block]:
        """The blocks of an array of type `out`, int64: the indices that sort the vector."""
        xp, first = self.xp, self.exchange.first
        parts = self._by_block(self._part, blocks)
        orders = self._by_block(lambda i, part: xp.argsort(part, kind="stable"), parts)
        if self.exchange.size > 1:
            small = np.int32 if self.x.shape[0] < 1 << 31 else np.int64  # of places in a part
            orders = self._by_block(lambda i, order: order.astype(small), orders)
            parts = self._by_block(lambda i, part, order: part[order], parts, orders)
            counts, rows = self._pieces(parts)
            pieces = [
                list(xp.split(order, np.cumsum([len(r) for r in row])[:-1].tolist()))
                for order, row in zip(orders, rows, strict=True)
            ]
            orders.clear()
            received = self.exchange.all_to_all(rows, counts)
            rows.clear()
            parts.clear()
            merges = self._by_block(
                lambda i, row: xp.argsort(xp.concatenate(row), kind="stable"), received
            )
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
        """The indices in `order` of what the blocks of the group sent: their places in its
        parts."""
        starts = [part_of(self.x, 0, number)[0] for number in self.exchange.members[i]]
        pairs = zip(row, starts, strict=True)
        return self.xp.concatenate([places.astype(np.int64) + at for places, at in pairs])[order]

    def _by_block(self, function: Callable[..., Any], *lists: Sequence[Any]) -> list[Any]:
        return self.exchange.by_block(function, *lists)

    def _part(self, i: int, block: Block) -> Block:
        return rows_in_front(self.x, block, self.exchange.first + i).reshape(-1)

    def _wide(self, part: Block) -> Block:
        """A part with the mesh axes behind its own."""
        return part.reshape(-1, *(1,) * self.x.mesh.ndim)

    def _sorted_in_place(self, part: Block) -> Block:
        part.sort(kind="stable")  # merges the runs that came from the blocks
        return part

    def _evened(self, parts: list[Block], want: ArrayType) -> list[Block]:
        lengths = self.exchange.all_gather([np.array(len(part)) for part in parts])
        return Rebalance(self.exchange, lengths, want).to_shares(parts)

    def _pieces(self, parts: Sequence[Block]) -> tuple[list[np.ndarray], list[list[Block]]]:
        """The pieces of each sorted part that go to the blocks of its group, and their lengths, as
        `Exchange.counts` has them."""
        lengths = self.exchange.all_gather([np.array(len(part)) for part in parts])
        samples = self._by_block(self._samples, parts)
        gathered = self.exchange.all_gather(samples)
        rows = []
        for part, length, values, place in zip(
            parts, lengths, gathered, self.exchange.places, strict=True
        ):
            cuts = self._cuts(part, length, values, place)
            rows.append(list(self.xp.split(part, cuts)))
        return self.exchange.counts(rows), rows

    def _samples(self, i: int, part: Block) -> np.ndarray:
        """Evenly spaced elements of a sorted part, on the host."""
        count = SAMPLES * self.exchange.size
        if not len(part):
            return np.zeros(count, self.x.dtype)
        at = _evenly(len(part), count)
        return np.asarray(self.backend.to_host(part[self.xp.asarray(at)]))

    def _cuts(self, part: Block, lengths: np.ndarray, values: np.ndarray, place: int) -> list[int]:
        """The places at which a sorted part is cut: before the splitters, which are the same for
        all blocks of the group.

        lengths: of the parts of the group. values: their samples. place: that of this part.
        """
        held = np.flatnonzero(lengths)
        count = values.shape[1]
        weights = np.repeat(lengths[held] / count, count)
        order = np.argsort(values[held].reshape(-1), kind="stable")
        reached = np.cumsum(weights[order])
        cuts = []
        for rank in range(1, self.exchange.size):
            target = part_of(self.x, 0, self.exchange.members[0][rank])[0]
            chosen = int(order[min(int(np.searchsorted(reached, target)), len(order) - 1)])
            source, sample = int(held[chosen // count]), chosen % count
            if source == place:
                cuts.append(sample * int(lengths[source]) // count)
                continue
            # An equal element of an earlier block comes before the splitter.
            splitter = self.xp.asarray(values[source, sample : sample + 1])
            side = "right" if place < source else "left"
            cuts.append(int(self.xp.searchsorted(part, splitter, side=side)[0]))
        return [max(cuts[: k + 1]) for k in range(len(cuts))]


def _evenly(length: int, count: int) -> np.ndarray:
    return (np.arange(count) * length) // count


def _vector_plan(
    x: ArrayType, out: ArrayType, run: Callable[[Sequence[Block]], list[Block]],
    collectives: tuple[Collective, ...],
) -> BlockPlan:  # fmt: skip
    functions = () if x.mesh.divided else [lambda block: run([block])[0]]
    return BlockPlan([x.layout], out, functions, run, collectives)


@planned_op()
def _sort_vector(x: ArrayType, /) -> BlockPlan:
    by_samples = SampleSort(x)
    return _vector_plan(x, x, by_samples.values, by_samples.collectives(x))


@planned_op()
def _argsort_vector(x: ArrayType, /) -> BlockPlan:
    by_samples, out = SampleSort(x), ArrayType.of(x.shape, np.dtype(np.int64), x.layout)
    collectives = by_samples.collectives(x, out)
    return _vector_plan(x, out, lambda blocks: by_samples.places(blocks, out), collectives)


_sort_vector.vjp(
    lambda g, out, x: scatter_rows(zeros_like(g), _argsort_vector(x), g, axis=0, how="set")
)
_argsort_vector.vjp(None)


# ---------------------------------------------------------------- any axis


def _by_axis(
    x: DistributedArray,
    axis: int,
    whole: Callable[..., DistributedArray],
    vector: Callable[[DistributedArray], DistributedArray],
) -> DistributedArray:
    """Sort along `axis`, counted from the front: by `whole` where no device needs more than its
    share for that, else by `vector`."""
    axes = x.layout.dims[axis]
    shards = x.layout.shard_counts[axis]
    if shards == 1 or not x.size:
        return whole(x, axis=axis - x.ndim)
    every = tuple(sorted({a for split in x.layout.dims for a in split}))
    if x.ndim == 1:
        return vector(relayout(x, Layout.of(x.mesh, (every,))))
    rest = [d for d in range(x.ndim) if d != axis and not x.layout.dims[d]]
    long = [d for d in rest if x.shape[d] >= shards]
    if long:
        dims = [*x.layout.dims]
        dims[long[0]], dims[axis] = axes, ()
        return whole(relayout(x, Layout.of(x.mesh, tuple(dims))), axis=axis - x.ndim)
    last = moveaxis(x, axis, -1)
    others, n = last.shape[:-1], last.shape[-1]
    rows = reshape(last, (math.prod(others), n))
    if rows.shape[0] >= math.prod(x.mesh.sizes[a] for a in every):
        out = whole(relayout(rows, Layout.of(x.mesh, (every, ()))), axis=-1)
    else:
        split = Layout.of(x.mesh, (every,))
        out = stack([vector(relayout(row, split)) for row in rows])
    result: DistributedArray = moveaxis(reshape(out, (*others, n)), -1, axis)
    return result


def _sorted_along(x: DistributedArray, axis: int) -> DistributedArray:
    return _by_axis(x, axis, sort_whole_axis, _sort_vector)


def _order_along(x: DistributedArray, axis: int) -> DistributedArray:
    return _by_axis(x, axis, argsort_whole_axis, _argsort_vector)


def _operand(x: Any, axis: int | None, name: str) -> tuple[DistributedArray, int]:
    """The operand with nothing partial, flattened for None, and the axis from the front."""
    (x,) = as_operands(name, x=x)
    if axis is None:
        x, axis = reshape(x, (x.size,)), 0
    return x.resolve(), checked_axis(x.type, axis, name)


def _check_kind(kind: str | None, name: str) -> None:
    if kind not in (None, "quicksort", "mergesort", "heapsort", "stable"):
        raise error(
            ArgumentError,
            name,
            f"kind is {kind!r}",
            remedy="Every sort is stable; kind is accepted for NumPy's sake.",
        )


@public
def sort(
    x: Any,
    axis: int | None = -1,
    *,
    descending: bool = False,
    stable: bool = True,
    kind: str | None = None,
) -> DistributedArray:
    """The elements in ascending order along `axis` (None: of the flattened array), NaN last.

    descending: the reverse of that. stable, kind: accepted for the sake of the standard and of
    NumPy. The result is split as `x` is, or along another axis of it that is long enough.

    Raises AxisError for an axis that `x` does not have.

    >>> gdt.sort(gdt.asarray([[3, 1, 2], [5, 6, 4]])).tolist()
    [[1, 2, 3], [4, 5, 6]]
    """
    _check_kind(kind, "sort")
    x, axis = _operand(x, axis, "sort")
    out = _sorted_along(x, axis)
    return flip(out, axis=axis) if descending else out


@public
def argsort(
    x: Any,
    axis: int | None = -1,
    *,
    descending: bool = False,
    stable: bool = True,
    kind: str | None = None,
) -> DistributedArray:
    """The indices that sort `x` along `axis` (None: the flattened array), int64; of equal elements
    the first comes first, in descending order too.

    Raises AxisError for an axis that `x` does not have.

    >>> gdt.argsort(gdt.asarray([2, 1, 2])).tolist()
    [1, 0, 2]
    """
    _check_kind(kind, "argsort")
    x, axis = _operand(x, axis, "argsort")
    if not descending:
        return _order_along(x, axis)
    order = flip(_order_along(flip(x, axis=axis), axis), axis=axis)
    descended: DistributedArray = x.shape[axis] - 1 - order
    return descended


@public
def lexsort(keys: Any, axis: int = -1) -> DistributedArray:
    """The indices that sort by several keys along `axis`: by the last key, where that is equal by
    the one before, and so on.

    keys: a list of arrays of one shape, or an array of them. Raises ShapeError where there is none,
    or shapes differ.

    >>> gdt.lexsort(([1, 2, 3], [5, 4, 4])).tolist()
    [1, 2, 0]
    """
    keys = as_operands("lexsort", **{f"key {i}": key for i, key in enumerate(keys)})
    if not keys or len({key.shape for key in keys}) > 1:
        shown = {f"key {i}": key.type for i, key in enumerate(keys)}
        raise error(ShapeError, "lexsort", "no keys, or keys of other shapes", operands=shown)
    at = checked_axis(keys[0].type, axis, "lexsort")
    take = FUNCTIONS["take_along_axis"]
    order = argsort(keys[0], axis=at)
    for key in keys[1:]:
        order = take(order, argsort(take(key, order, axis=at), axis=at), axis=at)
    result: DistributedArray = order
    return result


def _check_kth(x: DistributedArray, kth: Any, axis: int, name: str) -> None:
    places, size = np.atleast_1d(kth), x.shape[axis]
    if places.dtype.kind not in "iu" or ((places < -size) | (places >= size)).any():
        problem = f"kth is {kth!r}; it is made of ints below {size} along axis {axis}"
        raise error(ArgumentError, name, problem, operands={"x": x.type})


@public
def partition(x: Any, kth: int | Sequence[int], axis: int | None = -1) -> DistributedArray:
    """The elements of `x` so that those before `kth` along `axis` are no larger than it, those
    after it no smaller: they are sorted.

    Raises ArgumentError for a `kth` that is no place along the axis.

    >>> gdt.partition(gdt.asarray([3, 1, 2]), 1).tolist()
    [1, 2, 3]
    """
    x, axis = _operand(x, axis, "partition")
    _check_kth(x, kth, axis, "partition")
    return _sorted_along(x, axis)


@public
def argpartition(x: Any, kth: int | Sequence[int], axis: int | None = -1) -> DistributedArray:
    """The indices that partition `x`; see `gdt.partition`.

    >>> gdt.argpartition(gdt.asarray([3, 1, 2]), 1).tolist()
    [1, 2, 0]
    """
    x, axis = _operand(x, axis, "argpartition")
    _check_kth(x, kth, axis, "argpartition")
    return _order_along(x, axis)


@public
def top_k(
    x: Any, k: int, axis: int = -1, *, largest: bool = True
) -> tuple[DistributedArray, DistributedArray]:
    """The `k` largest elements along `axis`, or the smallest, in order, and their indices.

    Raises ArgumentError for a `k` that is no int of 0 to the size of the axis.

    >>> values, indices = gdt.top_k(gdt.asarray([1, 5, 3]), 2)
    >>> values.tolist(), indices.tolist()
    ([5, 3], [1, 2])
    """
    x, axis = _operand(x, axis, "top_k")
    is_count = isinstance(k, int | np.integer) and not isinstance(k, bool)
    if not is_count or not 0 <= k <= x.shape[axis]:
        problem = f"k is {k!r}; it is an int of 0 to {x.shape[axis]}"
        raise error(ArgumentError, "top_k", problem, operands={"x": x.type})
    order = argsort(x, axis=axis, descending=largest)
    first = getitem(order, (slice(None),) * axis + (slice(int(k)),))
    if x.ndim == 1:
        return rows_at(x, first, axis=0), first
    return take_along_axis_in_range(x, first, axis=axis), first


@public
def sort_complex(x: Any) -> DistributedArray:
    """The elements along the last axis in increasing order, as complex numbers.

    >>> gdt.sort_complex([2.0, 1.0]).tolist()
    [(1+0j), (2+0j)]
    """
    (x,) = as_operands("sort_complex", x=x)
    ordered = sort(x)
    if ordered.dtype.kind == "c":
        return ordered
    is_short = ordered.dtype.kind in "iu" and ordered.dtype.itemsize < 4
    return astype(ordered, np.complex64 if is_short else np.complex128)
