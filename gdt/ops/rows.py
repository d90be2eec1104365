"""Rows of a split axis that an index array names: read and written where they are held.

Each device sends its indices to the devices that hold the rows, and gets the rows back, or sends
them along to be written. No device holds more than its share of the array and of the index.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from gdt.backend import backend_of
from gdt.comm.vectors import Exchange, cut, join, part_of, sent_by_all
from gdt.engine.planned import BlockPlan, planned_op
from gdt.observe import Collective
from gdt.ops.comparison import equal, where
from gdt.ops.creation import full, ones_like, zeros_like
from gdt.ops.elementwise import multiply
from gdt.ops.lookup import add_at, from_the_front
from gdt.ops.ranges import arange
from gdt.ops.shapes import reshape
from gdt.sharding.array_type import ArrayType
from gdt.sharding.dtypes import BFLOAT16, FLOAT32
from gdt.sharding.layout import Axes, Layout

Block = Any
UFUNCS = {"add": "add", "multiply": "multiply", "min": "minimum", "max": "maximum"}


class Rows:
    """The layouts in which rows of axis `axis` of an array are read or written by an index array.

    have: the type of the array, split along `axis` over ascending mesh axes. at: the types of the
    index array, of which the axis `dim` is split over the same mesh axes, and `rows` that of what
    is read or written.
    is_known: whether every device has all indices, so that none are sent.
    in_order: whether the indices of a block are neighbours in the order of all.
    """

    def __init__(
        self,
        x: ArrayType,
        indices: ArrayType,
        axis: int,
        dtype: np.dtype,
        *,
        in_order: bool = False,
    ) -> None:
        self.mesh, self.axis = x.mesh, axis
        self.axes: Axes = tuple(sorted(x.layout.dims[axis]))
        layout = x.layout.resolved
        dims = (*layout.dims[:axis], self.axes, *layout.dims[axis + 1 :])
        self.have = x.with_layout(Layout.of(x.mesh, dims))
        split_dims = [
            d for d, of in enumerate(indices.layout.dims) if self.axes and of == self.axes
        ]
        sizes = indices.shape
        longest = max(range(len(sizes)), key=lambda d: sizes[d])
        self.dim = 0 if in_order else split_dims[0] if split_dims else longest
        points = tuple([self.axes if d == self.dim else () for d in range(len(sizes))])
        self.at = indices.with_layout(Layout.of(x.mesh, points))
        self.is_known = indices.layout.is_fully_replicated()
        self.rows = ArrayType.of(
            (*x.shape[:axis], *sizes, *x.shape[axis + 1 :]),
            dtype,
            Layout.of(x.mesh, (*dims[:axis], *points, *dims[axis + 1 :])),
        )

    def collectives(self) -> tuple[Collective, ...]:
        """The report of sending indices, if they are split, and rows: of as many bytes as if the
        indices pointed all over the array."""
        if not self.axes:
            return ()
        names = tuple([self.mesh.axis_names[a] for a in self.axes])
        nbytes = sent_by_all(self.rows, self.axis + self.dim)
        if not self.is_known:
            nbytes += sent_by_all(self.at, self.dim)
        return (Collective("all_to_all", names, nbytes, 1 if self.is_known else 2),)

    # ---- parts of blocks

    def part_in_front(self, exchange: Exchange, i: int, block: Block) -> Block:
        """The part of the array in block i, with the indexed axis in front."""
        part = join(self.have, block, self.axis, exchange.first + i)
        return backend_of(self.mesh).xp.moveaxis(part, self.mesh.ndim + self.axis, 0)

    @property
    def index_layout(self) -> Layout:
        """The layout in which the index array is read."""
        return Layout.replicated(self.mesh, self.at.ndim) if self.is_known else self.at.layout

    def positions(
        self, exchange: Exchange, i: int, block: Block, member: int | None = None
    ) -> Block:
        """The indices of block i, or of another member of its group if they are known, in one row,
        counted from the front."""
        number = exchange.first + i if member is None else exchange.members[i][member]
        if self.is_known:
            low, high = part_of(self.at, self.dim, number)
            part = block[(slice(None),) * (self.mesh.ndim + self.dim) + (slice(low, high),)]
        else:
            part = join(self.at, block, self.dim, number)
        xp = backend_of(self.mesh).xp
        return from_the_front(xp, part.reshape(-1), self.have.shape[self.axis])

    def in_rows(self, exchange: Exchange, i: int, block: Block) -> Block:
        """The values of block i as rows: (indices, ...)."""
        part = join(self.rows, block, self.axis + self.dim, exchange.first + i)
        start, rank = self.mesh.ndim + self.axis, self.at.ndim
        xp = backend_of(self.mesh).xp
        front = xp.moveaxis(part, range(start, start + rank), range(rank))
        return front.reshape(math.prod(front.shape[:rank]), *front.shape[rank:])

    def out_of_rows(self, exchange: Exchange, i: int, rows: Block) -> Block:
        """The block i of values of which these are the rows: the inverse of `in_rows`."""
        low, high = part_of(self.at, self.dim, exchange.first + i)
        points = tuple([high - low if d == self.dim else n for d, n in enumerate(self.at.shape)])
        start, rank = self.mesh.ndim + self.axis, self.at.ndim
        xp = backend_of(self.mesh).xp
        part = rows.reshape(*points, *rows.shape[1:])
        part = xp.moveaxis(part, range(rank), range(start, start + rank))
        return cut(xp, part, self.rows, self.axis + self.dim, exchange.first + i)

    def requests(self, exchange: Exchange, index_blocks: Sequence[Block]) -> Requests:
        """The indices that blocks ask each other for, which are sent if they are not known."""
        chunk = self._chunk()

        def placed(i: int, block: Block) -> list[Block]:
            return exchange.places_by_owner(self.positions(exchange, i, block) // chunk)

        def offsets(i: int, block: Block, at: Sequence[Block]) -> list[Block]:
            positions = self.positions(exchange, i, block) % chunk
            return [positions[k] for k in at]

        def asked_of(i: int, block: Block) -> list[Block]:
            indices = []
            for member in range(exchange.size):
                positions = self.positions(exchange, i, block, member)
                indices.append(positions[positions // chunk == exchange.places[i]] % chunk)
            return indices

        places = exchange.by_block(placed, index_blocks)
        if not self.is_known:
            offset_lists = exchange.by_block(offsets, index_blocks, places)
            counts = exchange.counts(offset_lists)
            return Requests(places, exchange.all_to_all(offset_lists, counts), counts)
        index_lists, counts = exchange.by_block(asked_of, index_blocks), []
        for own, others, place in zip(places, index_lists, exchange.places, strict=True):
            count = np.zeros((exchange.size, exchange.size), np.int64)  # of what concerns the block
            count[place], count[:, place] = list(map(len, own)), list(map(len, others))
            counts.append(count)
        return Requests(places, index_lists, counts)

    def _chunk(self) -> int:
        """The number of elements of the indexed axis in a block, with its padding."""
        hosted = math.prod(self.mesh.box[a] for a in self.axes)
        return max(self.have.local_shape[self.axis] * hosted, 1)


class Requests(NamedTuple):
    """The indices that blocks ask each other for; each list has an entry for every own block.

    places: for every member of the group, the places in the block's indices of those that it
    holds. offsets: for every member, the offsets in the block's part of those that it asks for.
    counts: how many indices each member asks each for, as `Exchange.counts` has them.
    """

    places: list[list[Block]]
    offsets: list[list[Block]]
    counts: list[np.ndarray]


def _plan(
    rows: Rows,
    layouts: Sequence[Layout],
    out: ArrayType,
    run: Callable[..., list[Block]],
    collectives: tuple[Collective, ...],
) -> BlockPlan:
    functions = []
    if not rows.mesh.divided:
        functions = [lambda *blocks: run(*[[block] for block in blocks])[0]]
    return BlockPlan(layouts, out, functions, run, collectives)


# ---------------------------------------------------------------- reading


@planned_op()
def gather_rows(x: ArrayType, indices: ArrayType, /, *, axis: int) -> BlockPlan:
    """The slices of `x` at `indices`, in range, along `axis`, which is counted from the front.

    The result is split along one axis of the indices over the mesh axes that split `axis`.
    """
    rows = Rows(x, indices, axis, x.dtype)
    exchange = Exchange(x.mesh, rows.axes, f"rows of {x} at {indices}")

    def run(blocks: Sequence[Block], index_blocks: Sequence[Block]) -> list[Block]:
        xp = backend_of(x.mesh).xp

        def taken(i: int, block: Block, index_block: Block) -> Block:
            part, positions = (
                rows.part_in_front(exchange, i, block),
                rows.positions(exchange, i, index_block),
            )
            return rows.out_of_rows(exchange, i, xp.take(part, positions, axis=0))

        if exchange.size == 1:
            return exchange.by_block(taken, blocks, index_blocks)
        requests = rows.requests(exchange, index_blocks)

        def answers(i: int, block: Block, offsets: Sequence[Block]) -> list[Block]:
            part = rows.part_in_front(exchange, i, block)
            return [xp.take(part, at, axis=0) for at in offsets]

        rows_asked = exchange.by_block(answers, blocks, requests.offsets)
        requests.offsets.clear()
        answered = exchange.all_to_all(rows_asked, [c.T for c in requests.counts])
        rows_asked.clear()

        def ordered(i: int, parts: Sequence[Block], at: Sequence[Block]) -> Block:
            return rows.out_of_rows(exchange, i, exchange.in_places(parts, at))

        return exchange.by_block(ordered, answered, requests.places)

    layouts = [rows.have.layout, rows.index_layout]
    return _plan(rows, layouts, rows.rows, run, rows.collectives())


# ---------------------------------------------------------------- writing


@planned_op()
def scatter_rows(
    x: ArrayType, indices: ArrayType, values: ArrayType, /, *, axis: int, how: str
) -> BlockPlan:
    """`x` with its slices at `indices`, in range, along `axis` set to those of `values`, or
    combined with them.

    values: of the dtype of `x`, shaped as `gather_rows` returns. how: `set`, where of several
    values for one place the last one stays, or `add`, `multiply`, `min` or `max`.
    """
    rows = Rows(x, indices, axis, values.dtype, in_order=how == "set")
    exchange = Exchange(x.mesh, rows.axes, f"values for rows of {x} at {indices}")

    def run(
        blocks: Sequence[Block], index_blocks: Sequence[Block], value_blocks: Sequence[Block]
    ) -> list[Block]:
        xp = backend_of(x.mesh).xp

        def written(i: int, block: Block, at: Sequence[Block], parts: Sequence[Block]) -> Block:
            part_in_rows = rows.part_in_front(exchange, i, block).copy()
            offsets = at[0] if len(at) == 1 else xp.concatenate(at)
            combine(
                xp, part_in_rows, offsets, parts[0] if len(at) == 1 else xp.concatenate(parts), how
            )
            part = xp.moveaxis(part_in_rows, 0, x.mesh.ndim + axis)
            return cut(xp, part, rows.have, axis, exchange.first + i)

        values_in_rows = exchange.by_block(
            lambda i, block: rows.in_rows(exchange, i, block), value_blocks
        )
        if exchange.size == 1:
            positions = exchange.by_block(
                lambda i, block: rows.positions(exchange, i, block), index_blocks
            )
            return exchange.by_block(
                written, blocks, [[w] for w in positions], [[v] for v in values_in_rows]
            )
        requests = rows.requests(exchange, index_blocks)
        parts = exchange.by_block(
            lambda i, v, at: [v[k] for k in at], values_in_rows, requests.places
        )
        values_in_rows.clear()
        requests.places.clear()
        values = exchange.all_to_all(parts, requests.counts)
        parts.clear()
        return exchange.by_block(written, blocks, requests.offsets, values)

    layouts = [rows.have.layout, rows.index_layout, rows.rows.layout]
    return _plan(rows, layouts, rows.have, run, rows.collectives())


def combine(xp: Any, part: Block, offsets: Block, values: Block, how: str) -> None:
    """Combine the rows of `part` at `offsets`, in place, with `values`, one after the other.
    Rows of bfloat16 are combined in float32, and rounded once."""
    if part.dtype == BFLOAT16 and how != "set":
        wide = part.astype(FLOAT32)
        combine(xp, wide, offsets, values.astype(FLOAT32), how)
        part[...] = wide
    elif how == "set" and xp is np:
        part[offsets] = values
    elif how == "add":
        add_at(xp, part, offsets, values)
    elif xp is np:
        getattr(xp, UFUNCS[how]).at(part, offsets, values)
    elif offsets.size:  # CuPy leaves open which of several values stays, and has few `ufunc.at`
        places, new = _once(xp, offsets, values, how)
        part[places] = new if how == "set" else getattr(xp, UFUNCS[how])(part[places], new)


def _once(xp: Any, offsets: Block, values: Block, how: str) -> tuple[Block, Block]:
    """Return every offset once, with the last of its values, or with all of them combined.

    Values in the order of their offsets are combined by a scan: each with its neighbour, then with
    what is two places before it, four, and so on.
    """
    order = xp.argsort(offsets, kind="stable")
    offsets, values = offsets[order], values[order]
    if how != "set":
        places_before = xp.arange(offsets.size) - xp.searchsorted(offsets, offsets)
        longest, step = int(places_before.max()) + 1, 1  # values of one offset
        while step < longest:
            is_same = (offsets[step:] == offsets[:-step]).reshape(-1, *[1] * (values.ndim - 1))
            both = getattr(xp, UFUNCS[how])(values[:-step], values[step:])
            values[step:] = xp.where(is_same, both, values[step:])
            step *= 2
    is_last = xp.concatenate([offsets[1:] != offsets[:-1], xp.ones(1, bool)])
    return offsets[is_last], values[is_last]


gather_rows.vjp(
    lambda g, out, x, indices, *, axis: scatter_rows(
        zeros_like(x), indices, g, axis=axis, how="add"
    ),
    None,
)


def _scatter_vjp(
    g: Any, out: Any, x: Any, indices: Any, values: Any, *, axis: int, how: str
) -> tuple[Any, ...]:
    def read(source: Any) -> Any:
        return gather_rows(source, indices, axis=axis)

    if how == "add":
        return g, None, read(g)
    if how == "set":
        of_x = scatter_rows(g, indices, zeros_like(values), axis=axis, how="set")
        return of_x, None, where(_stays(x, indices, values, axis), read(g), 0)
    if how == "multiply":
        of_x = scatter_rows(g, indices, values, axis=axis, how="multiply")
        alone = equal(read(_counts(x, indices, values, axis)), 1)
        # The product of the other factors of an element: without a quotient where there are none.
        others = where(alone, read(x), read(out) / where(alone, 1, values))
        return of_x, None, multiply(read(g), others)
    # The extremes share the cotangent.
    is_extreme = equal(values, read(out)).astype(g.dtype)
    from_x = equal(x, out).astype(g.dtype)
    share = g / scatter_rows(from_x, indices, is_extreme, axis=axis, how="add")
    return share * from_x, None, read(share) * is_extreme


scatter_rows.vjp(joint=_scatter_vjp)


def _stays(x: Any, indices: Any, values: Any, axis: int) -> Any:
    """Whether each row of values is the last one for its place."""
    layout = Layout.of(x.mesh, (x.layout.dims[axis],))
    numbers = reshape(arange(indices.size, layout=layout), indices.shape)
    last = scatter_rows(full(x.shape[axis], -1, layout=layout), indices, numbers, axis=0, how="set")
    stays = equal(gather_rows(last, indices, axis=0), numbers)
    after = values.ndim - axis - indices.ndim
    return reshape(stays, (*stays.shape, *(1,) * after))


def _counts(x: Any, indices: Any, values: Any, axis: int) -> Any:
    """The number of values for each element of `x`."""
    return scatter_rows(zeros_like(x), indices, ones_like(values), axis=axis, how="add")
