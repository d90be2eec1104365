"""Moving arrays from one layout to another: a short list of steps, found once and cached."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from gdt.backend import backend_of
from gdt.comm import local
from gdt.comm.transport import transport_of
from gdt.layout import ArrayType, Axes, Layout
from gdt.mesh import Mesh
from gdt.observe import OBSERVERS, Collective, is_recorded, ran
from gdt.recut import Piece, Recut
from gdt.reduction import IDEMPOTENT, identity

Block = Any
Blocks = Sequence[Block]


class Step(NamedTuple):
    """One movement of all blocks of an array from type `have` to type `want`.

    kind: slice, gather, all_to_all, all_reduce, reduce_scatter, pend or recut. axes: mesh axes that
    take part, major first. dim: the array axis that is gathered or cut. to: of an all_to_all, the
    axis that is cut. nbytes: what all devices together send.
    """

    kind: str
    axes: Axes
    dim: int
    to: int
    reduction: str
    have: ArrayType
    want: ArrayType
    nbytes: int

    @property
    def collective(self) -> str:
        """Name of the collective that carries it out."""
        return {"gather": "all_gather", "recut": "exchange"}.get(self.kind, self.kind)


def _step(
    kind: str,
    have: ArrayType,
    want: Layout,
    axes: Axes,
    dim: int = -1,
    to: int = -1,
    reduction: str = "",
) -> Step:
    target = have.with_layout(want)
    mesh = have.mesh
    p = math.prod(mesh.sizes[a] for a in axes)
    nbytes = 0
    if kind == "gather":
        nbytes = mesh.size * (p - 1) * have.local_nbytes
    elif kind == "all_reduce":
        nbytes = mesh.size // p * 2 * (p - 1) * have.local_nbytes
    elif kind == "reduce_scatter":
        nbytes = mesh.size * (p - 1) * target.local_nbytes
    elif kind == "all_to_all":
        rest = math.prod(n for d, n in enumerate(have.local_shape) if d != to)
        nbytes = mesh.size * (p - 1) * rest * target.local_shape[to] * have.dtype.itemsize
    elif kind == "recut":
        nbytes = _recut(have, target, dim).nbytes
    return Step(kind, axes, dim, to, reduction, have, target, nbytes)


@lru_cache(maxsize=1 << 14)
def _recut(have: ArrayType, want: ArrayType, dim: int) -> Recut:
    return Recut([have], want, dim, [Piece(0, 0, 0, have.shape[dim])])


@lru_cache(maxsize=1 << 14)
def route(have: ArrayType, want: Layout) -> tuple[Step, ...]:
    """Steps from `have` to the layout `want` on the same mesh; empty if it is there already.

    Cuts that send nothing come first, so that less is sent afterwards; then pending reductions, the
    moves of a mesh axis from one array axis to another, and last what must be gathered.
    """
    steps: list[Step] = []
    while have.layout is not want:
        step = _next(have, want)
        steps.append(step)
        have = step.want
    return tuple(steps)


def route_bytes(have: ArrayType, want: Layout) -> int:
    """Bytes that all devices together send on that route."""
    return sum(step.nbytes for step in route(have, want))


def _next(have: ArrayType, want: Layout) -> Step:
    mesh, dims, pending = have.mesh, have.layout.dims, have.layout.pending
    used = {a for axes in dims for a in axes} | {a for a, p in enumerate(pending) if p}

    def lines_up(dim: int, axes: Axes) -> bool:
        """Whether taking minor mesh axes off `axes` leaves the boundaries of shards in place."""
        return have.shape[dim] % math.prod(mesh.sizes[a] for a in axes) == 0

    def changed(dim: int, axes: Axes, waits: tuple[str | None, ...] = pending) -> Layout:
        return Layout.of(mesh, (*dims[:dim], axes, *dims[dim + 1 :]), waits)

    def extends(dim: int, axes: Axes) -> bool:
        """Whether `axes` only adds minor axes to those of `dim`, and can do so in place."""
        now = dims[dim]
        return axes[: len(now)] == now and (not now or lines_up(dim, axes))

    # Cut what is whole: sends nothing.
    for d, goal in enumerate(want.dims):
        new = _prefix_while(goal, len(dims[d]), lambda a: a not in used)
        if len(new) > len(dims[d]) and extends(d, new):
            return _step("slice", have, changed(d, new), new[len(dims[d]) :], d)

    # Pending reductions whose value is needed.
    waiting = [a for a, p in enumerate(pending) if p and p != want.pending[a]]
    for a in waiting:
        for d, goal in enumerate(want.dims):
            new = (*dims[d], a)
            if goal[: len(new)] == new and extends(d, new):
                left = tuple(None if k == a else p for k, p in enumerate(pending))
                return _step(
                    "reduce_scatter",
                    have,
                    changed(d, new, left),
                    (a,),
                    d,
                    reduction=str(pending[a]),
                )
    if waiting:
        reduction = pending[waiting[0]]
        together = tuple(a for a in waiting if pending[a] == reduction)
        left = tuple(None if a in together else p for a, p in enumerate(pending))
        return _step(
            "all_reduce", have, Layout.of(mesh, dims, left), together, reduction=str(reduction)
        )

    # A mesh axis that goes from one array axis to another.
    for d, goal in enumerate(want.dims):
        if not dims[d] or goal[: len(dims[d])] == dims[d]:
            continue
        a, rest = dims[d][-1], dims[d][:-1]
        for e, other in enumerate(want.dims):
            new = (*dims[e], a)
            if (
                e != d
                and other[: len(new)] == new
                and extends(e, new)
                and (not rest or lines_up(d, dims[d]))
            ):
                both = list(dims)
                both[d], both[e] = rest, new
                return _step("all_to_all", have, Layout.of(mesh, tuple(both), pending), (a,), d, e)

    # Shards whose boundaries do not line up, or another order of mesh axes, on one array axis.
    for d, goal in enumerate(want.dims):
        if dims[d] == goal or not dims[d]:
            continue
        new = _prefix_while(goal, 0, lambda a, d=d: a not in used or a in dims[d])
        shrinks = dims[d][: len(new)] == new and (not new or lines_up(d, dims[d]))
        if new != dims[d] and not shrinks:
            return _step("recut", have, changed(d, new), tuple(sorted({*dims[d], *new})), d)

    # Gather what has to leave an array axis.
    for d, goal in enumerate(want.dims):
        kept = _prefix_while(
            dims[d],
            0,
            lambda a, goal=goal, d=d: (
                goal[: dims[d].index(a) + 1] == dims[d][: dims[d].index(a) + 1]
            ),
        )
        if kept != dims[d]:
            if kept and not lines_up(d, dims[d]):
                return _step("recut", have, changed(d, kept), tuple(sorted(dims[d])), d)
            return _step("gather", have, changed(d, kept), dims[d][len(kept) :], d)

    # Only reductions that are to become pending are left.
    return _step(
        "pend", have, want, tuple(a for a, p in enumerate(want.pending) if p != pending[a])
    )


def _prefix_while(axes: Axes, start: int, wanted: Any) -> Axes:
    stop = start
    while stop < len(axes) and wanted(axes[stop]):
        stop += 1
    return axes[:stop]


# ---------------------------------------------------------------- running steps


def run_step(step: Step, blocks: Blocks) -> list[Block]:
    """Carry out one step on the blocks of one array."""
    if step.nbytes:
        report(step.collective, step, [step])
    if step.kind == "all_reduce":
        return transport_of(step.have.mesh).all_reduce(blocks, step.axes, step.reduction)
    if step.kind == "recut":
        return _recut(step.have, step.want, step.dim)(blocks)
    return _RUN[step.kind](step, blocks)


def _each(mesh: Mesh, function: Callable[[Any, Block], Block], blocks: Blocks) -> list[Block]:
    """`function(xp, block)` of every block, on its device."""
    backend, out = backend_of(mesh), []
    for i, block in enumerate(blocks):
        with backend.on(mesh, i):
            out.append(function(backend.xp, block))
    return out


def _slice(step: Step, blocks: Blocks) -> list[Block]:
    mesh, backend = step.have.mesh, backend_of(step.have.mesh)
    counts = tuple(mesh.sizes[a] for a in step.axes)
    out = []
    for i, (block, grid) in enumerate(zip(blocks, mesh.blocks, strict=True)):
        with backend.on(mesh, i):
            own = local.split(backend.xp, block, mesh.ndim, step.axes, counts, step.dim)
            for a in step.axes:
                own = local.narrow(own, a, grid[a] * mesh.box[a], mesh.box[a])
            out.append(own)
    return out


def _gather(step: Step, blocks: Blocks) -> list[Block]:
    mesh = step.have.mesh
    if mesh.divided:
        bundles = transport_of(mesh).all_gather([[b] for b in blocks], step.axes)
        blocks = [bundle[0] for bundle in bundles]
    size = step.have.shape[step.dim]
    if step.want.layout.dims[step.dim]:
        size = step.want.local_shape[step.dim]
    join = lambda xp, b: local.gather(b, mesh.ndim, step.axes, step.dim, size)
    return _each(mesh, join, blocks)


def _all_to_all(step: Step, blocks: Blocks) -> list[Block]:
    mesh, (axis,) = step.have.mesh, step.axes
    count, size = mesh.sizes[axis], step.have.shape[step.dim]
    if step.want.layout.dims[step.dim]:
        size = step.want.local_shape[step.dim]
    # A new front axis holds the pieces for each receiver.
    split = lambda xp, b: local.split(xp, b[None], mesh.ndim + 1, (0,), (count,), step.to)
    cut = _each(mesh, split, blocks)
    if mesh.divided:
        cut = transport_of(mesh).all_to_all(cut, axis)

    def join(xp: Any, pieces: Block) -> Block:
        whole = local.gather(pieces, mesh.ndim + 1, (axis + 1,), step.dim, size)
        return xp.moveaxis(whole, 0, axis).reshape(_without(whole.shape, 0, axis))

    return _each(mesh, join, cut)


def _without(shape: tuple[int, ...], front: int, axis: int) -> tuple[int, ...]:
    """Shape after the front axis has taken the place of mesh axis `axis`, which has length 1."""
    rest = list(shape[1:])
    rest[axis] = shape[front]
    return tuple(rest)


def _reduce_scatter(step: Step, blocks: Blocks) -> list[Block]:
    mesh, (axis,) = step.have.mesh, step.axes
    split = lambda xp, b: local.split(xp, b, mesh.ndim, (axis,), (mesh.sizes[axis],), step.dim)
    cut = _each(mesh, split, blocks)
    return transport_of(mesh).reduce_scatter(cut, axis, step.reduction) if mesh.divided else cut


def _pend(step: Step, blocks: Blocks) -> list[Block]:
    """The block with coordinate 0 keeps the value, the others get the identity of a sum or product;
    a maximum or minimum is its own identity."""
    mesh, backend = step.have.mesh, backend_of(step.have.mesh)
    out = list(blocks)
    for i, grid in enumerate(mesh.blocks):
        for a in step.axes:
            reduction = step.want.layout.pending[a]
            if grid[a] and reduction and reduction not in IDEMPOTENT:
                with backend.on(mesh, i):
                    part = backend.xp.full_like(out[i], identity(reduction, step.have.dtype))
                    out[i] = part
    return out


_RUN = {
    "slice": _slice,
    "gather": _gather,
    "all_to_all": _all_to_all,
    "reduce_scatter": _reduce_scatter,
    "pend": _pend,
}


def report(kind: str, step: Step, together: Sequence[Step]) -> None:
    """Tell the observers about the collective that carries out these steps."""
    observers = OBSERVERS.get()
    if observers:
        names = tuple(step.have.mesh.axis_names[a] for a in step.axes)
        nbytes = sum(s.nbytes for s in together)
        collective = Collective(kind, names, nbytes, len(together), step.reduction or None)
        for observer in observers:
            observer.on_collective(collective)


# ---------------------------------------------------------------- several arrays at once


def run_routes(routes: Sequence[tuple[Step, ...]], operands: Sequence[Blocks]) -> list[Blocks]:
    """Run one route per operand; reductions that can travel together are one collective.

    Reductions are bundled by (kind, mesh axes, reduction, dtype).
    """
    done = _run_routes(routes, operands)
    if is_recorded():
        moving = [i for i, blocks in enumerate(done) if blocks is not operands[i]]
        taken = [routes[i] for i in moving]
        ran(
            "relayout",
            lambda *blocks: _run_routes(taken, blocks),
            [operands[i] for i in moving],
            [done[i] for i in moving],
        )
    return done


def _run_routes(routes: Sequence[tuple[Step, ...]], operands: Sequence[Blocks]) -> list[Blocks]:
    done: list[Blocks] = list(operands)
    divided = any(steps[0].have.mesh.divided for steps in routes if steps)
    if not divided and not any(o.wants_moves for o in OBSERVERS.get()):
        # Inside one block a sum over devices is summed already: there is nothing to bundle.
        for i, route_steps in enumerate(routes):
            for step in route_steps:
                if step.kind != "all_reduce":
                    done[i] = run_step(step, done[i])
        return done
    left = [list(r) for r in routes]
    while any(left):
        for i, steps in enumerate(left):
            while steps and steps[0].kind not in ("all_reduce", "reduce_scatter"):
                done[i] = run_step(steps.pop(0), done[i])
        bundles: dict[tuple[Any, ...], list[int]] = {}
        for i, steps in enumerate(left):
            if steps:
                first = steps[0]
                key = (first.kind, first.axes, first.reduction, first.have.dtype)
                bundles.setdefault(key, []).append(i)
        for members in bundles.values():
            steps_now = [left[i].pop(0) for i in members]
            for i, blocks in zip(
                members, _run_bundle(steps_now, [done[i] for i in members]), strict=True
            ):
                done[i] = blocks
    return done


def _run_bundle(steps: list[Step], operands: list[Blocks]) -> list[Blocks]:
    first = steps[0]
    if len(steps) == 1:
        return [run_step(first, operands[0])]
    if any(s.nbytes for s in steps):
        report(first.collective, first, steps)
    scatters = first.kind == "reduce_scatter"
    if not first.have.mesh.divided:
        if not scatters:
            return operands
        return [_reduce_scatter(s, b) for s, b in zip(steps, operands, strict=True)]
    together = _reduce_scatter_together if scatters else _all_reduce_together
    return together(steps, operands)


def _all_reduce_together(steps: list[Step], operands: list[Blocks]) -> list[Blocks]:
    """One all-reduce of the elements of all arrays."""
    mesh, shapes = steps[0].have.mesh, [blocks[0].shape for blocks in operands]
    join = lambda xp, arrays: xp.concatenate([b.reshape(-1) for b in arrays])
    flat = _each(mesh, join, list(zip(*operands, strict=True)))
    moved = transport_of(mesh).all_reduce(flat, steps[0].axes, steps[0].reduction)

    def part(xp: Any, m: Block) -> list[Block]:
        return [m[start:stop].reshape(s) for s, (start, stop) in _intervals(shapes)]

    return [list(blocks) for blocks in zip(*_each(mesh, part, moved), strict=True)]


def _reduce_scatter_together(steps: list[Step], operands: list[Blocks]) -> list[Blocks]:
    """One reduce-scatter: (shards along the mesh axis, everything else of each array)."""
    mesh, (axis,) = steps[0].have.mesh, steps[0].axes
    size = mesh.sizes[axis]

    def cut(xp: Any, arrays: Sequence[Block]) -> list[Block]:
        parts = [
            local.split(xp, b, mesh.ndim, (axis,), (size,), s.dim)
            for s, b in zip(steps, arrays, strict=True)
        ]
        return [xp.moveaxis(b, axis, 0) for b in parts]

    rows = _each(mesh, cut, list(zip(*operands, strict=True)))
    shapes = [b.shape[1:] for b in rows[0]]
    join = lambda xp, row: xp.concatenate([b.reshape(size, -1) for b in row], 1)[(None,) * axis]
    flat = _each(mesh, join, rows)
    moved = transport_of(mesh).reduce_scatter(flat, axis, steps[0].reduction)

    def part(xp: Any, m: Block) -> list[Block]:
        m = m.reshape(m.shape[axis:])
        pieces = [m[:, start:stop] for _, (start, stop) in _intervals(shapes)]
        whole = [p.reshape(p.shape[0], *s) for p, s in zip(pieces, shapes, strict=True)]
        return [xp.moveaxis(w, 0, axis) for w in whole]

    return [list(blocks) for blocks in zip(*_each(mesh, part, moved), strict=True)]


def _intervals(shapes: Sequence[tuple[int, ...]]) -> list[tuple[tuple[int, ...], tuple[int, int]]]:
    """Every shape, and where its elements lie when all are put end to end."""
    stops = list(itertools.accumulate(math.prod(s) for s in shapes))
    return list(zip(shapes, itertools.pairwise([0, *stops]), strict=True))
