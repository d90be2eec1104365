"""Moving arrays along a route: the steps of `gdt.sharding.routes`, carried out on blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gdt.backend import backend_of
from gdt.caches import memoized
from gdt.comm import local
from gdt.comm.all_reduce import Bundling, all_reduce, all_reduce_together, collectives, on_each
from gdt.comm.notes import note_reduction
from gdt.comm.recut import RecutRunner
from gdt.comm.transport import transport_of
from gdt.observe import OBSERVERS, Collective, is_recorded, ran
from gdt.sharding.array_type import ArrayType
from gdt.sharding.reduction import IDEMPOTENT, identity
from gdt.sharding.routes import Transition, recut_of

Block = Any
Blocks = Sequence[Block]

BUNDLED = ("all_reduce", "reduce_scatter", "gather")
# In recorded programs the names of what moves arrays, and of what waits for a launch that does.
RELAYOUT, JOIN = "relayout", "join"


# ---------------------------------------------------------------- one step


def run_transition(transition: Transition, blocks: Blocks) -> Blocks:
    """Carry out one step on the blocks of one array."""
    if transition.nbytes:
        report(transition.collective, transition, [transition])
    if transition.kind == "all_reduce":
        mesh, types = transition.have.mesh, (transition.have,)
        return all_reduce(mesh, blocks, transition.axes, transition.reduction, types)
    if transition.kind == "recut":
        return _recut_runner(transition.have, transition.want, transition.dim)(blocks)
    return _RUN[transition.kind](transition, blocks)


@memoized(4000)
def _recut_runner(have: ArrayType, want: ArrayType, dim: int) -> RecutRunner:
    return RecutRunner(recut_of(have, want, dim))


def _slice(transition: Transition, blocks: Blocks) -> list[Block]:
    mesh, backend = transition.have.mesh, backend_of(transition.have.mesh)
    counts = tuple(mesh.sizes[a] for a in transition.axes)
    out = []
    for i, (block, grid) in enumerate(zip(blocks, mesh.blocks, strict=True)):
        with backend.on(mesh, i):
            own = local.split(backend.xp, block, mesh.ndim, transition.axes, counts, transition.dim)
            for a in transition.axes:
                own = local.narrow(own, a, grid[a] * mesh.box[a], mesh.box[a])
            out.append(own)
    return out


def _gather(transition: Transition, blocks: Blocks) -> Blocks:
    return _gather_together([transition], [blocks])[0]


def _gather_together(transitions: Sequence[Transition], operands: Sequence[Blocks]) -> list[Blocks]:
    """One all-gather of all arrays, each along an axis of its own."""
    mesh, axes = transitions[0].have.mesh, transitions[0].axes
    if mesh.divided:
        types = tuple([s.have for s in transitions])
        bundles = transport_of(mesh).all_gather(list(zip(*operands, strict=True)), axes, types)
        operands = list(zip(*bundles, strict=True))
    return [_joined(s, blocks) for s, blocks in zip(transitions, operands, strict=True)]


def _joined(transition: Transition, blocks: Blocks) -> list[Block]:
    """Put the shards that every block holds after an all-gather end to end."""
    mesh, size = transition.have.mesh, transition.have.shape[transition.dim]
    if transition.want.layout.dims[transition.dim]:
        size = transition.want.local_shape[transition.dim]
    join = lambda xp, b: local.gather(b, mesh.ndim, transition.axes, transition.dim, size)
    return on_each(mesh, join, blocks)


def _all_to_all(transition: Transition, blocks: Blocks) -> list[Block]:
    mesh, (axis,) = transition.have.mesh, transition.axes
    count, size = mesh.sizes[axis], transition.have.shape[transition.dim]
    if transition.want.layout.dims[transition.dim]:
        size = transition.want.local_shape[transition.dim]
    # A new front axis holds the pieces for each receiver.
    split = lambda xp, b: local.split(xp, b[None], mesh.ndim + 1, (0,), (count,), transition.to)
    shares = on_each(mesh, split, blocks)
    if mesh.divided:
        shares = transport_of(mesh).all_to_all(shares, axis, (transition.have,))

    def join(xp: Any, pieces: Block) -> Block:
        whole = local.gather(pieces, mesh.ndim + 1, (axis + 1,), transition.dim, size)
        return xp.moveaxis(whole, 0, axis).reshape(_without(whole.shape, 0, axis))

    return on_each(mesh, join, shares)


def _without(shape: tuple[int, ...], front: int, axis: int) -> tuple[int, ...]:
    """Shape after the front axis has taken the place of mesh axis `axis`, which has length 1."""
    rest = list(shape[1:])
    rest[axis] = shape[front]
    return tuple(rest)


def _reduce_scatter(transition: Transition, blocks: Blocks) -> list[Block]:
    mesh, (axis,) = transition.have.mesh, transition.axes
    split = lambda xp, b: local.split(
        xp, b, mesh.ndim, (axis,), (mesh.sizes[axis],), transition.dim
    )
    shares = on_each(mesh, split, blocks)
    if not mesh.divided:
        return shares
    return transport_of(mesh).reduce_scatter(shares, axis, transition.reduction, (transition.have,))


def _pend(transition: Transition, blocks: Blocks) -> list[Block]:
    """The block with coordinate 0 keeps the value, the others get the identity of a sum or product;
    a maximum or minimum is its own identity."""
    mesh, backend = transition.have.mesh, backend_of(transition.have.mesh)
    out = list(blocks)
    for i, grid in enumerate(mesh.blocks):
        for a in transition.axes:
            reduction = transition.want.layout.reductions[a]
            if grid[a] and reduction and reduction not in IDEMPOTENT:
                with backend.on(mesh, i):
                    part = backend.xp.full_like(out[i], identity(reduction, transition.have.dtype))
                    out[i] = part
    return out


def _spread(transition: Transition, blocks: Blocks) -> list[Block]:
    """Each block keeps its shards, with the identity of a sum in the place of all others."""
    mesh, backend = transition.have.mesh, backend_of(transition.have.mesh)
    zero, size = identity("sum", transition.have.dtype), transition.have.shape[transition.dim]
    if transition.want.layout.dims[transition.dim]:
        size = transition.want.local_shape[transition.dim]
    out = []
    for i, (block, grid) in enumerate(zip(blocks, mesh.blocks, strict=True)):
        with backend.on(mesh, i):
            shape, own = list(block.shape), [slice(None)] * block.ndim
            for a in transition.axes:
                shape[a] = mesh.sizes[a]
                own[a] = slice(grid[a] * mesh.box[a], (grid[a] + 1) * mesh.box[a])
            shards = block
            if tuple(shape) != block.shape:
                shards = backend.xp.full(shape, zero, transition.have.dtype)
                shards[tuple(own)] = block
            out.append(local.gather(shards, mesh.ndim, transition.axes, transition.dim, size))
    return out


_RUN = {
    "slice": _slice,
    "gather": _gather,
    "all_to_all": _all_to_all,
    "reduce_scatter": _reduce_scatter,
    "pend": _pend,
    "spread": _spread,
}


def report(kind: str, transition: Transition, together: Sequence[Transition]) -> None:
    """Tell the observers about the collectives that carry out these steps."""
    observers, mesh = OBSERVERS.get(), transition.have.mesh
    if not observers:
        return
    steps = [(kind, transition.axes, sum(s.nbytes for s in together))]
    if kind == "all_reduce":
        sizes = [math.prod(s.have.local_shape) for s in together]
        steps = [*collectives(mesh, transition.axes, sum(sizes), transition.have.dtype.itemsize)]
    for name, axes, nbytes in [step for step in steps if step[2]]:
        reduction = transition.reduction if "reduce" in name else None
        names = tuple(mesh.axis_names[a] for a in axes)
        collective = Collective(name, names, nbytes, len(together), reduction or None)
        for observer in observers:
            observer.on_collective(collective)


def transitions_inside(transitions: Sequence[Transition]) -> list[Transition]:
    """The transitions of a route that change the only block of a mesh. That block holds sums over
    devices as one sum, so neither an all-reduce nor its opposite, "pend", changes it."""
    return [s for s in transitions if s.kind not in ("all_reduce", "pend")]


# ---------------------------------------------------------------- several arrays at once


def run_routes(
    routes: Sequence[tuple[Transition, ...]], operands: Sequence[Blocks]
) -> list[Blocks]:
    """Run one route per operand; reductions, and gathers, that can travel together are one
    collective: they are bundled by (mesh, kind, axes, reduction, dtype)."""
    results = carry_out(routes, operands)
    if is_recorded():
        moving = _moving(operands, results)
        moving_routes = [routes[i] for i in moving]
        ran(
            RELAYOUT,
            lambda *blocks: carry_out(moving_routes, blocks),
            [operands[i] for i in moving],
            [results[i] for i in moving],
        )
    return results


def _moving(operands: Sequence[Blocks], results: Sequence[Blocks]) -> list[int]:
    """Return the numbers of the operands of which some block is another in the results."""
    pairs = enumerate(zip(results, operands, strict=True))
    return [i for i, (now, was) in pairs if any(a is not b for a, b in zip(now, was, strict=True))]


def carry_out(routes: Sequence[tuple[Transition, ...]], operands: Sequence[Blocks]) -> list[Blocks]:
    """Run routes as `run_routes` does, without telling a recorder."""
    results: list[Blocks] = list(operands)
    divided = any(transitions[0].have.mesh.divided for transitions in routes if transitions)
    if not divided and not any(o.wants_moves for o in OBSERVERS.get()):
        for i, route_steps in enumerate(routes):
            for transition in transitions_inside(route_steps):
                results[i] = run_transition(transition, results[i])
        return results
    queues = [list(r) for r in routes]
    while any(queues):
        for i, transitions in enumerate(queues):
            while transitions and transitions[0].kind not in BUNDLED:
                results[i] = run_transition(transitions.pop(0), results[i])
        bundles: dict[tuple[Any, ...], list[int]] = {}
        for i, transitions in enumerate(queues):
            if transitions:
                first = transitions[0]
                have = first.have
                key = (have.mesh, first.kind, first.axes, first.reduction, have.dtype)
                bundles.setdefault(key, []).append(i)
        for members in bundles.values():
            steps_now = [queues[i].pop(0) for i in members]
            for i, blocks in zip(
                members, _run_bundle(steps_now, [results[i] for i in members]), strict=True
            ):
                results[i] = blocks
    return results


def _run_bundle(transitions: list[Transition], operands: list[Blocks]) -> Sequence[Blocks]:
    first = transitions[0]
    mesh = first.have.mesh
    reduces = first.kind != "gather"
    if reduces and mesh.num_processes > 1 and any(mesh.grid[a] > 1 for a in first.axes):
        note_reduction(mesh, first.kind, [blocks[0] for blocks in operands])
    if len(transitions) == 1:
        return [run_transition(first, operands[0])]
    if any(s.nbytes for s in transitions):
        report(first.collective, first, transitions)
    if not reduces:
        return _gather_together(transitions, operands)
    scatters = first.kind == "reduce_scatter"
    if not first.have.mesh.divided:
        if not scatters:
            return operands
        return [_reduce_scatter(s, b) for s, b in zip(transitions, operands, strict=True)]
    together = _reduce_scatter_together if scatters else _all_reduce_together
    return together(transitions, operands)


def _all_reduce_together(transitions: list[Transition], operands: list[Blocks]) -> list[Blocks]:
    """One all-reduce of the elements of all arrays."""
    first, types = transitions[0], tuple([s.have for s in transitions])
    bundles = list(zip(*operands, strict=True))
    results = all_reduce_together(first.have.mesh, bundles, first.axes, first.reduction, types)
    return [list(blocks) for blocks in zip(*results, strict=True)]


def _reduce_scatter_together(transitions: list[Transition], operands: list[Blocks]) -> list[Blocks]:
    """One reduce-scatter: (shards along the mesh axis, everything else of each array)."""
    mesh, (axis,) = transitions[0].have.mesh, transitions[0].axes
    size, transport = mesh.sizes[axis], transport_of(mesh)

    def cut(xp: Any, arrays: Sequence[Block]) -> list[Block]:
        parts = [
            local.split(xp, b, mesh.ndim, (axis,), (size,), s.dim)
            for s, b in zip(transitions, arrays, strict=True)
        ]
        return [xp.moveaxis(b, axis, 0) for b in parts]

    rows = on_each(mesh, cut, list(zip(*operands, strict=True)))
    shapes, front = [b.shape[1:] for b in rows[0]], (None,) * axis
    bundling = Bundling.of(rows[0], transport.large_nbytes, size)

    def flat(xp: Any, arrays: Sequence[Block]) -> list[Block]:
        return [b[front] for b in bundling.pack(xp, [a.reshape(size, -1) for a in arrays])]

    packed = on_each(mesh, flat, rows)
    types, reduction = tuple([s.have for s in transitions]), transitions[0].reduction
    if len(packed[0]) == 1:
        shares = transport.reduce_scatter([b for (b,) in packed], axis, reduction, types)
        packed = [[block] for block in shares]
    else:
        packed = transport.reduce_scatter_several(packed, axis, reduction)

    def part(xp: Any, arrays: Sequence[Block]) -> list[Block]:
        own = bundling.unpack([a.reshape(a.shape[axis:]) for a in arrays])
        whole = [a.reshape(a.shape[0], *s) for a, s in zip(own, shapes, strict=True)]
        return [xp.moveaxis(w, 0, axis) for w in whole]

    return [list(blocks) for blocks in zip(*on_each(mesh, part, packed), strict=True)]
