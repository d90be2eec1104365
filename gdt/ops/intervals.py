"""Moving index intervals along one axis: what slicing, concat, flip, roll and pad are made of."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from gdt.array import DistributedArray, on_blocks
from gdt.layout import ArrayType, Axes, Layout
from gdt.observe import OBSERVERS, Collective
from gdt.op import Composite
from gdt.ops.movement import relayout_together
from gdt.recut import Piece, Recut
from gdt.routes import route_bytes

Pieces = tuple[Piece, ...]


def _resized(kind: ArrayType, dim: int, size: int, axes: Axes) -> ArrayType:
    """`kind` with axis `dim` of another size, split over the mesh axes `axes`."""
    shape = (*kind.shape[:dim], size, *kind.shape[dim + 1 :])
    return ArrayType.of(shape, kind.dtype, _split(kind.layout, dim, axes))


def _split(layout: Layout, dim: int, axes: Axes) -> Layout:
    dims = (*layout.dims[:dim], axes, *layout.dims[dim + 1 :])
    return Layout.of(layout.mesh, dims, layout.pending)


@lru_cache(maxsize=1 << 12)
def _plan(
    have: tuple[ArrayType, ...], dim: int, pieces: Pieces, size: int, fill: Any, axes: Axes
) -> Recut:
    return Recut(have, _resized(have[0], dim, size, axes), dim, pieces, fill)


@lru_cache(maxsize=1 << 12)
def _cheapest(
    have: tuple[ArrayType, ...], dim: int, pieces: Pieces, size: int, fill: Any
) -> Layout:
    """The layout of one of the arrays in which to meet: the one that sends the fewest bytes."""

    def nbytes(layout: Layout) -> int:
        moved = tuple(t.with_layout(layout) for t in have)
        recut = _plan(moved, dim, pieces, size, fill, layout.dims[dim])
        return sum(route_bytes(t, layout) for t in have) + recut.nbytes

    pending = fill == 0  # the only value that can be filled into a pending reduction
    return min(dict.fromkeys(t.layout if pending else t.layout.resolved for t in have), key=nbytes)


def _view(
    x: DistributedArray, dim: int, pieces: Pieces, size: int, axes: Axes
) -> DistributedArray | None:
    """One interval of an axis that is whole, as a view; None if it is not as simple as that."""
    if axes or len(pieces) != 1 or x.layout.dims[dim]:
        return None
    (_, at, _, count, step, stride) = pieces[0]
    if count != size or stride != 1:
        return None
    stop = at + step * count
    taken = slice(at, stop if stop >= 0 else None, step)
    index = (slice(None),) * (x.mesh.ndim + dim) + (taken,)
    kind = _resized(x.type, dim, size, ())
    return on_blocks("view", kind, lambda blocks: [b[index] for b in blocks], x)


@Composite
def _move_intervals(
    *arrays: DistributedArray, dim: int, pieces: Pieces, size: int, fill: Any, axes: Axes | None
) -> DistributedArray:
    if len(arrays) == 1 and axes is None:
        view = _view(arrays[0], dim, pieces, size, arrays[0].layout.dims[dim])
        if view is not None:
            return view
    layout = _cheapest(tuple(a.type for a in arrays), dim, pieces, size, fill)
    source_axes = layout.dims[dim]
    target_axes = source_axes if axes is None else axes
    operands = relayout_together(arrays, [layout] * len(arrays), implicit="move_intervals")
    recut = _plan(tuple(a.type for a in operands), dim, pieces, size, fill, target_axes)
    if recut.nbytes:
        involved = dict.fromkeys((*source_axes, *target_axes))
        names = tuple(recut.mesh.axis_names[a] for a in involved)
        for observer in OBSERVERS.get():
            observer.on_collective(Collective("exchange", names, recut.nbytes, 1))
    return on_blocks("move_intervals", recut.want, recut, *operands)


def _vjp(
    g: Any, out: Any, *arrays: Any, dim: int, pieces: Pieces, size: int, fill: Any, axes: Any
) -> tuple[Any, ...]:
    return tuple(
        move_intervals(
            [g],
            dim,
            [p.transposed() for p in pieces if p.source == n],
            a.shape[dim],
            axes=_free_axes(g.layout, a.layout, dim),
        )
        for n, a in enumerate(arrays)
    )


def _free_axes(g: Layout, like: Layout, dim: int) -> Axes | None:
    """How to split axis `dim` of a cotangent that holds it whole: as in its source, where the mesh
    axes are free."""
    used = {a for axes in g.dims for a in axes} | {a for a, p in enumerate(g.pending) if p}
    return None if g.dims[dim] or used & {*like.dims[dim]} else like.dims[dim]


_move_intervals.vjp(joint=_vjp)


def move_intervals(
    arrays: Sequence[DistributedArray],
    dim: int,
    pieces: Sequence[Piece],
    size: int,
    fill: Any = 0,
    *,
    axes: Axes | None = None,
) -> DistributedArray:
    """An array whose axis `dim` has `size` elements made of intervals of that axis of the arrays.

    The arrays live on one mesh, have one dtype and agree in all other axes; they are brought to the
    layout of the one that makes that cheapest, and the result has it too, with axis `dim` split
    over the mesh axes `axes` if they are given. Indices that no piece covers become `fill`. No
    source index may be used by two pieces (its gradient would be lost): give the array twice.
    """
    kept = tuple(p for p in pieces if p.count > 0)
    out: DistributedArray = _move_intervals(
        *arrays, dim=dim, pieces=kept, size=size, fill=fill, axes=axes
    )
    return out
