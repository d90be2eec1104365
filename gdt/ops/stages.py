"""Arrays that differ from coordinate to coordinate of a mesh axis: one program, which the devices
along the axis run on data of their own, as the stages of a pipeline do.

No op splits an array over a mesh axis over which none of its operands is split. So what ops make of
arrays that are replicated over an axis, each device makes of its own copies, and nothing tells
whether these copies are equal. On the mesh of `Mesh.apart`, where each coordinate of the axis has
blocks of its own, the blocks of such an array may therefore hold other values: its type is that of
what one coordinate holds. The ops here lead from the arrays of a mesh to those, and back; no value
of theirs is read on the host, which would be that of the first coordinate. As in JAX's `shard_map`,
where it does not check replication.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gdt.array.array import DistributedArray
from gdt.backend import backend_of
from gdt.engine.custom_vjp import custom_vjp
from gdt.engine.planned import BlockPlan, planned_op
from gdt.ops.blocks.intervals import move_intervals
from gdt.ops.indexing import getitem
from gdt.ops.joining import stack
from gdt.ops.shapes import reshape
from gdt.sharding.array_type import ArrayType
from gdt.sharding.layout import Layout
from gdt.sharding.mesh import Mesh
from gdt.sharding.recut import Piece

Block = Any


def _without(layout: Layout, a: int) -> tuple[tuple[int, ...], ...]:
    """The dims of a layout without the mesh axis `a`."""
    return tuple([tuple([b for b in of if b != a]) for of in layout.dims])


def _homes(mesh: Mesh, a: int) -> list[tuple[int, int]]:
    """For every block of `mesh.apart` in this process, the position of the block of `mesh` in which
    it lies, and its place there along mesh axis `a`."""
    homes = []
    for at in mesh.apart(mesh.axis_names[a]).blocks:
        block, place = divmod(at[a], mesh.box[a])
        homes.append((mesh.blocks.index((*at[:a], block, *at[a + 1 :])), place))
    return homes


def _along(a: int, place: int) -> tuple[slice, ...]:
    """The index of one place along mesh axis `a` in a block."""
    return (*[slice(None)] * a, slice(place, place + 1))


# ---------------------------------------------------------------- rows


@planned_op(view="x")
def row_of_stage(x: ArrayType, /, *, axis: str, row: int) -> BlockPlan:
    """Row number `row` of those that each coordinate of a mesh axis holds.

    x: (rows, ...), on a mesh; result: (...), on `mesh.apart(axis)`, another at each coordinate.
    """
    mesh, a = x.mesh, x.mesh.axis_index(axis)
    dims = _without(x.layout, a)[1:]
    have = x.with_layout(Layout.of(mesh, ((a,), *dims)))
    out = ArrayType.of(x.shape[1:], x.dtype, Layout.of(mesh.apart(axis), dims))
    homes, at = _homes(mesh, a), (*[slice(None)] * mesh.ndim, row)

    def run(blocks: Sequence[Block]) -> list[Block]:
        return [blocks[i][_along(a, place)][at] for i, place in homes]

    return BlockPlan([have.layout], out, (), run)


@planned_op()
def stacked_stages(x: ArrayType, /, *, mesh: Mesh, axis: str, row: int, rows: int) -> BlockPlan:
    """Rows of which those numbered `row` at each coordinate of a mesh axis are `x`, and all others
    zeros: the inverse of `row_of_stage`, and its gradient.

    x: (...), on `mesh.apart(axis)`. rows: how many of them each coordinate holds; result: on
    `mesh`, (rows * coordinates, ...).
    """
    a = mesh.axis_index(axis)
    layout = Layout.of(mesh, ((a,), *x.layout.dims), x.layout.reductions)
    out = ArrayType.of((rows * mesh.sizes[a], *x.shape), x.dtype, layout)
    homes, at = _homes(mesh, a), (*[slice(None)] * mesh.ndim, row)
    xp = backend_of(mesh).xp

    def run(blocks: Sequence[Block]) -> list[Block]:
        make = xp.empty if rows == 1 else xp.zeros
        stacked = [make(out.block_shape, out.dtype) for _ in mesh.blocks]
        for (i, place), block in zip(homes, blocks, strict=True):
            stacked[i][_along(a, place)][at] = block
        return stacked

    return BlockPlan([None], out, (), run)


row_of_stage.vjp(
    lambda g, out, x, *, axis, row: stacked_stages(
        g, mesh=x.mesh, axis=axis, row=row, rows=x.shape[0] // x.mesh.dim_size(axis)
    ),
    reads="",
)
stacked_stages.vjp(lambda g, out, x, *, mesh, axis, row, rows: row_of_stage(g, axis=axis, row=row))


# ---------------------------------------------------------------- wholes


@planned_op(view="x")
def on_each_stage(x: ArrayType, /, *, axis: str) -> BlockPlan:
    """The array on `mesh.apart(axis)`, equal at all coordinates of the mesh axis."""
    mesh, a = x.mesh, x.mesh.axis_index(axis)
    dims = _without(x.layout, a)
    out = x.with_layout(Layout.of(mesh.apart(axis), dims))
    homes = _homes(mesh, a)
    return BlockPlan([Layout.of(mesh, dims)], out, (), lambda blocks: [blocks[i] for i, _ in homes])


@planned_op()
def sum_over_stages(x: ArrayType, /, *, mesh: Mesh, axis: str) -> BlockPlan:
    """The sum of what the coordinates of a mesh axis hold, partial over it: the gradient of
    `on_each_stage`. x: on `mesh.apart(axis)`; result: on `mesh`."""
    a = mesh.axis_index(axis)
    reductions = [*x.layout.reductions]
    reductions[a] = "sum"
    out = x.with_layout(Layout.of(mesh, x.layout.dims, tuple(reductions)))
    homes = _homes(mesh, a)

    def run(blocks: Sequence[Block]) -> list[Block]:
        totals: dict[int, Block] = {}
        for (i, _), block in zip(homes, blocks, strict=True):
            totals[i] = totals[i] + block if i in totals else block
        return [totals[i] for i in range(len(mesh.blocks))]

    return BlockPlan([None], out, (), run)


on_each_stage.vjp(lambda g, out, x, *, axis: sum_over_stages(g, mesh=x.mesh, axis=axis), reads="")
sum_over_stages.vjp(lambda g, out, x, *, mesh, axis: on_each_stage(g, axis=axis), reads="")


# ---------------------------------------------------------------- choosing


@planned_op(view="arrays")
def of_stages(*arrays: ArrayType, axis: str, choice: tuple[int, ...]) -> BlockPlan:
    """The array that is `arrays[choice[s]]` at each coordinate s of a mesh axis. They are of one
    shape and dtype, on a mesh of `Mesh.apart`."""
    layout = arrays[0].layout.resolved
    mesh = layout.mesh
    a = mesh.axis_index(axis)
    numbers = [choice[at[a]] for at in mesh.blocks]

    def run(*blocks: Sequence[Block]) -> list[Block]:
        return [blocks[n][i] for i, n in enumerate(numbers)]

    return BlockPlan([layout] * len(arrays), arrays[0].with_layout(layout), (), run)


@planned_op(view="x")
def at_stages(x: ArrayType, /, *, axis: str, chosen: tuple[bool, ...]) -> BlockPlan:
    """The array at the chosen coordinates of a mesh axis, and zeros at the others; of an array on a
    mesh of `Mesh.apart`, which may be partial over other axes."""
    a, xp = x.mesh.axis_index(axis), backend_of(x.mesh).xp
    flags = [chosen[at[a]] for at in x.mesh.blocks]
    functions = [_itself if flag else xp.zeros_like for flag in flags]
    return BlockPlan([None], x, functions)


def _itself(block: Block) -> Block:
    return block


at_stages.vjp(lambda g, out, x, *, axis, chosen: at_stages(g, axis=axis, chosen=chosen), reads="")


@planned_op(view="x")
def of_last_stage(x: ArrayType, /, *, axis: str) -> BlockPlan:
    """The array, which is used at the last coordinate of a mesh axis alone: of its cotangent the
    others get zeros, also where theirs is NaN. x: on a mesh of `Mesh.apart`."""
    return BlockPlan([None], x, [_itself] * len(x.mesh.blocks))


of_last_stage.vjp(
    lambda g, out, x, *, axis: at_stages(
        g, axis=axis, chosen=(*[False] * (x.mesh.dim_size(axis) - 1), True)
    ),
    reads="",
)
of_stages.vjp(
    joint=lambda g, out, *arrays, axis, choice: [
        at_stages(g, axis=axis, chosen=tuple([c == n for c in choice])) if n in choice else None
        for n in range(len(arrays))
    ],
    reads="",
)


# ---------------------------------------------------------------- sending


@custom_vjp
def hand_on(
    *arrays: DistributedArray, mesh: Mesh, axis: str, pieces: tuple[Piece, ...]
) -> tuple[DistributedArray, ...]:
    """Return the rows that coordinates of a mesh axis get from others, and zeros where none come.

    arrays: on `mesh.apart(axis)`. pieces: the intervals of the coordinates that send, as
    `gdt.ops.blocks.intervals.move_intervals` moves them.
    """
    return tuple([_moved(x, mesh, axis, pieces) for x in arrays])


def _moved(x: DistributedArray, mesh: Mesh, axis: str, pieces: Sequence[Piece]) -> DistributedArray:
    rows = stacked_stages(x, mesh=mesh, axis=axis, row=0, rows=1)
    return row_of_stage(move_intervals([rows], 0, pieces, rows.shape[0]), axis=axis, row=0)


hand_on.vjp(
    joint=lambda g, out, *arrays, mesh, axis, pieces: [
        None if c is None else _moved(c, mesh, axis, [p.transposed() for p in pieces]) for c in g
    ],
    reads="",
)


@custom_vjp
def last_rows(*parts: DistributedArray, mesh: Mesh, axis: str) -> DistributedArray:
    """The rows that the last coordinate of a mesh axis has in some parts of a batch: row i of part
    m is row i * parts + m.

    parts: (rows, ...), on `mesh.apart(axis)`; result: (rows * parts, ...), on `mesh`, whose rows
    are split over the mesh axis too, if the devices divide the rows of a part; else each coordinate
    gets all of them.
    """
    rows = stacked_stages(stack([*parts], 1), mesh=mesh, axis=axis, row=0, rows=1)
    stages, count, *shape = rows.shape  # (stages, rows, parts, ...)
    (a,), axes, *_ = rows.layout.dims
    if count % (stages * rows.layout.num_shards(1)):
        last = getitem(rows, -1)
    else:
        flat = reshape(rows, (stages * count, *shape))
        piece = Piece(0, (stages - 1) * count, 0, count)
        last = move_intervals([flat], 0, [piece], count, axes=(*axes, a))
    return reshape(last, (count * shape[0], *shape[1:]))


def _last_rows_vjp(
    g: DistributedArray, out: Any, *parts: DistributedArray, mesh: Mesh, axis: str
) -> list[DistributedArray]:
    """Return the cotangents of the parts, which the last coordinate gets, split as the parts."""
    first, a = parts[0], mesh.axis_index(axis)
    count, stages, axes = first.shape[0], mesh.sizes[a], first.layout.dims[0]
    last = reshape(g, (count, len(parts), *first.shape[1:]))
    piece = Piece(0, 0, (stages - 1) * count, count)
    flat = move_intervals([last], 0, [piece], stages * count, axes=(a, *axes))
    rows = reshape(flat, (stages, *last.shape))
    return [
        getitem(row_of_stage(rows, axis=axis, row=0), (slice(None), m)) for m in range(len(parts))
    ]


last_rows.vjp(joint=_last_rows_vjp, reads="")
