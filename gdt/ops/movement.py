"""relayout and its relatives: ops that move an array and leave its values as they are."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from gdt.array.array import DistributedArray
from gdt.array.fetching import gather_to_host
from gdt.array.moving import move_to_layouts
from gdt.array.operands import as_operand
from gdt.array.placing import distribute
from gdt.array.registry import public
from gdt.backend import backend_of
from gdt.comm.launch import can_overlap
from gdt.comm.notes import note_copied, note_fetch
from gdt.comm.relayout import carry_out
from gdt.engine.custom_vjp import custom_vjp
from gdt.engine.one_block import mover
from gdt.engine.planned import BlockPlan, planned_op
from gdt.errors import DtypeError, LayoutError, error, type_text
from gdt.observe import observing_only, report_fetch
from gdt.sharding.array_type import ArrayType
from gdt.sharding.default_mesh import get_default_mesh
from gdt.sharding.layout import MATCH, Layout
from gdt.sharding.routes import route

__all__ = ["copy", "relayout_like"]

Block = Any


@planned_op(view="x")
def _relayout(x: ArrayType, /, *, layout: Layout) -> BlockPlan:
    steps = route(x, layout)
    functions = () if x.mesh.divided else [mover(steps) or _itself]

    def together(blocks: Sequence[Block]) -> Sequence[Block]:
        return carry_out([steps], [blocks])[0]

    return BlockPlan([None], x.with_layout(layout), functions, together)


@custom_vjp
def _sent(x: DistributedArray, *, layout: Layout) -> DistributedArray:
    """The array in another layout, to which devices move it beside later computation."""
    result: DistributedArray
    (result,) = move_to_layouts((x,), (layout,), overlapped=True)
    return result


@planned_op()
def _copy_to_mesh(x: ArrayType, /, *, layout: Layout) -> BlockPlan:
    """The values of an array with nothing partial on another mesh, by way of the host."""

    def together(blocks: Sequence[Block]) -> Sequence[Block]:
        report_fetch(x, x.nbytes)
        with observing_only():
            return distribute(gather_to_host(x, blocks), layout).blocks

    is_whole = not (x.mesh.divided or layout.mesh.divided)
    functions = [lambda block: together([block])[0]] if is_whole else ()
    return BlockPlan([None], x.with_layout(layout), functions, together)


def _moved_back(
    g: DistributedArray, out: DistributedArray, x: DistributedArray, *, layout: Layout
) -> DistributedArray:
    """The cotangent of a relayout, which takes the way back that the value has come.

    So a reduce-scatter that a program asks for is an all-gather in its backward pass. Mesh axes
    over which the operand held copies may split the cotangent as they split the result: that would
    send something, and copies can be made where they are needed. A cotangent that does not lie as
    the result does moves when it is needed.
    """
    if g.layout is not layout or any(layout.reductions) or layout.mesh is not x.mesh:
        return g
    have = x.layout
    mesh_axes = have.split_axes | {a for a, r in enumerate(have.reductions) if r}
    dims = tuple(
        (*old, *(a for a in new if a not in mesh_axes))
        for old, new in zip(have.dims, layout.dims, strict=True)
    )
    return relayout(g, Layout.of(have.mesh, dims))


_relayout.vjp(_moved_back, reads="")
_sent.vjp(_moved_back, reads="")
_sent.name = _relayout.name  # in reports and errors
_copy_to_mesh.vjp(
    lambda g, out, x, *, layout: g if g.mesh is x.mesh else relayout(g, _on_mesh_of(x, g))
)


@public
@planned_op()
def copy(x: ArrayType, /) -> BlockPlan:
    """The array in memory of its own.

    >>> gdt.copy(gdt.ones(2)).tolist()
    [1.0, 1.0]
    """
    duplicate = partial(backend_of(x.mesh).asarray, copy=True, order=x.memory_order)
    return BlockPlan([None], x, [duplicate] * len(x.mesh.blocks))


copy.vjp(lambda g, out, x: g, reads="")


@planned_op(view="x")
def alias(x: ArrayType, /) -> BlockPlan:
    """Another array in the same memory, for a function that has nothing to do: whoever writes to
    its result, which gets other blocks then, leaves its operand alone."""
    return BlockPlan([None], x, [_itself] * len(x.mesh.blocks))


alias.vjp(lambda g, out, x: g, reads="")


def _itself(block: Block) -> Block:
    return block


def _on_mesh_of(x: DistributedArray, g: DistributedArray) -> Layout:
    return Layout.replicated(x.mesh, g.ndim) if g.shape != x.shape else x.layout.resolved


@public
def relayout_(x: Any, layout: Layout | Sequence[Any]) -> DistributedArray:
    """The same array in another layout, on the same mesh or another. The result is another array
    even where nothing moves, which shares its memory with `x` until one of them is written.

    On GPUs the array moves beside computation, which waits for it where the result is read.

    layout: a Layout of the array's rank, or a list of sharding specs for the array's mesh. A spec
        `gdt.MATCH` keeps how that axis is split now.

    Raises LayoutError if the rank does not fit. Follows `tf.experimental.dtensor.relayout`.

    >>> mesh = gdt.create_mesh([("x", 2), ("y", 2)])
    >>> a = gdt.ones((4, 4), layout=gdt.Layout(["x", None], mesh))
    >>> gdt.relayout(a, [gdt.MATCH, "y"]).layout
    Layout(['x', 'y'], Mesh(x=2, y=2))
    """
    value = getattr(x, "_resolved", None)
    resharded = relayout(x, layout)
    return alias(resharded) if resharded is x or resharded is value else resharded


def relayout(x: Any, layout: Layout | Sequence[Any]) -> DistributedArray:
    """`relayout_`, for functions that write to no array: `x` itself if it has the layout."""
    if not isinstance(x, DistributedArray):
        x = as_operand(
            x, layout.mesh if isinstance(layout, Layout) else get_default_mesh(), "relayout", "x"
        )
    if not isinstance(layout, Layout) or layout.rank != x.ndim:
        layout = _layout_for(x, layout)
    result: DistributedArray
    if layout is x.layout:
        result = x
    elif layout.mesh is not x.mesh:
        x = x.resolve()
        if layout.mesh.num_processes == 1:  # else the op is noted
            note_fetch("copy_to_mesh", x)
        result = _copy_to_mesh(x, layout=layout)
        if x.mesh.num_processes == 1:
            note_copied(result, x)
    elif layout is x.layout.resolved:
        result = x.resolve()
    elif x._resolved is not None:
        result = relayout(x._resolved, layout)
    elif can_overlap(x.mesh) and any(step.nbytes for step in route(x.type, layout)):
        result = _sent(x, layout=layout)
    else:
        result = _relayout(x, layout=layout)
    return result


def _layout_for(x: DistributedArray, layout: Layout | Sequence[Any]) -> Layout:
    """The Layout that a user of `relayout` means; raise LayoutError if it does not fit `x`."""
    if not isinstance(layout, Layout):
        if isinstance(layout, str) or not isinstance(layout, Sequence):
            raise error(
                LayoutError,
                f"{layout!r} is not a layout",
                operands={"x": x.type},
                remedy=x.layout.remedy_for(x.ndim),
            )
        now = x.layout.sharding_specs
        specs = [now[d] if s == MATCH and d < len(now) else s for d, s in enumerate(layout)]
        layout = Layout(specs, x.mesh)
    if layout.rank != x.ndim:
        raise error(
            LayoutError,
            f"a layout of rank {layout.rank} does not fit an array of rank {x.ndim}",
            operands={"x": x.type, "layout": layout},
            remedy=layout.remedy_for(x.ndim),
        )
    return layout


@public
def relayout_like(x: Any, like: DistributedArray) -> DistributedArray:
    """`x` in the layout of `like`, on the mesh of `like`.

    Raises LayoutError for arrays of different ranks, and DtypeError for a `like` that is no
    distributed array.

    >>> mesh = gdt.create_mesh([("x", 2)])
    >>> rows = gdt.ones((4, 2), layout=gdt.Layout(["x", None], mesh))
    >>> gdt.relayout_like(gdt.zeros((4, 2)), rows).layout == rows.layout
    True
    """
    if not isinstance(like, DistributedArray):
        raise error(DtypeError, f"{type_text(like)} has no layout")
    return relayout_(x, like.layout)


# ---------------------------------------------------------------- mesh axes from axis to axis


def with_axes_moved(x: DistributedArray, source: int, target: int) -> DistributedArray:
    """`x` with the mesh axes that split one array axis moved to another; axes count from the
    front."""
    dims = list(x.layout.dims)
    dims[target], dims[source] = (*dims[target], *dims[source]), ()
    return relayout(x, Layout.of(x.mesh, tuple(dims)))


def made_whole(
    x: DistributedArray, axis: int, later: Sequence[int] = (), never: Sequence[int] = ()
) -> DistributedArray | None:
    """`x` with the mesh axes that split `axis` moved to another axis, by an all-to-all; None if
    every other axis is shorter than the number of shards.

    later: axes that are taken only if there is no other. never: axes that are not taken.
    """
    if not x.layout.dims[axis]:
        return x
    count, choices = x.layout.num_shards(axis), []
    for d, size in enumerate(x.shape):
        shards = x.layout.num_shards(d) * count
        if d != axis and d not in never and size >= shards:
            choices.append((d in later, -(-size // shards) * shards / size, -size, d))
    return with_axes_moved(x, axis, min(choices)[-1]) if choices else None
