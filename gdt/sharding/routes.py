"""Routes from one layout to another: the transitions that together send the fewest bytes.

Dijkstra's search finds them: its nodes are layouts, its edges the transitions that lead from each
to others (slice, gather, all-to-all, all-reduce, reduce-scatter, spread, and recut where the
boundaries of shards do not line up). Of routes with equal bytes the one with the fewest collectives
is taken, then the one with the fewest transitions. Mesh axes that have the same place in both
layouts are not moved, so most searches visit a handful of layouts. Routes are cached.
"""

from __future__ import annotations

import heapq
import itertools
import math
import threading
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from gdt.caches import memoized
from gdt.sharding.array_type import ArrayType
from gdt.sharding.layout import Axes, Layout
from gdt.sharding.mesh import Mesh
from gdt.sharding.recut import Piece, Recut

Partial = tuple[str | None, ...]


class Transition(NamedTuple):
    """One movement of all blocks of an array from type `have` to type `want`.

    kind: slice, gather, all_to_all, all_reduce, reduce_scatter, recut, pend (a whole value becomes
        a partial reduction, which sends nothing), or spread (a shard becomes a partial sum, which
        sends nothing).
    axes: the mesh axes that take part, major first.
    dim: the array axis that is gathered or cut.
    to: the array axis that an all_to_all cuts, while it gathers `dim`.
    reduction: `sum`, `max`, `min` or `prod`, for a transition that reduces.
    nbytes: the bytes that all devices together send.
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
        """The name of the collective that carries out this transition."""
        return {"gather": "all_gather", "recut": "exchange"}.get(self.kind, self.kind)


@memoized(400)
def transition_between(
    kind: str,
    have: ArrayType,
    want: Layout,
    axes: Axes,
    dim: int = -1,
    to: int = -1,
    reduction: str = "",
) -> Transition:
    """Return the transition of these properties, with the bytes that it sends."""
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
        nbytes = _recut_nbytes(have, target, dim, axes)
    return Transition(kind, axes, dim, to, reduction, have, target, nbytes)


def _recut_nbytes(have: ArrayType, want: ArrayType, dim: int, axes: Axes) -> int:
    """Return the bytes that all devices receive: the part of each device's new interval along `dim`
    that lies outside its old one. (It equals `Recut.nbytes`, at less cost.)"""
    mesh, size = have.mesh, have.shape[dim]
    old, new = have.local_shape[dim], want.local_shape[dim]  # lengths of shards
    begin = _shards_along(mesh, have.layout.dims[dim], axes) * old
    low = np.minimum(_shards_along(mesh, want.layout.dims[dim], axes) * new, size)
    high = np.minimum(low + new, size)
    kept = np.maximum(0, np.minimum(high, begin + old) - np.maximum(low, begin))
    missing = int((high - low - kept).sum())
    rows = math.prod(n for d, n in enumerate(have.local_shape) if d != dim)
    copies = mesh.size // math.prod(mesh.sizes[a] for a in axes)
    return missing * rows * copies * have.dtype.itemsize


@memoized(200)
def _shards_along(mesh: Mesh, split_axes: Axes, axes: Axes) -> np.ndarray:
    """Return, for all coordinates along the mesh axes `axes`, the number of the shard of an array
    axis that the mesh axes `split_axes` cut."""
    shards = np.zeros((1,) * len(axes), np.int64)
    for a in split_axes:
        along = [-1 if axis == a else 1 for axis in axes]
        shards = shards * mesh.sizes[a] + np.arange(mesh.sizes[a]).reshape(along)
    return np.broadcast_to(shards, [mesh.sizes[a] for a in axes])


@memoized(1000)
def recut_of(have: ArrayType, want: ArrayType, dim: int) -> Recut:
    """Return the recut of a whole array from type `have` to type `want` along `dim`."""
    return Recut([have], want, dim, [Piece(0, 0, 0, have.shape[dim])])


@memoized(400)
def route(have: ArrayType, want: Layout) -> tuple[Transition, ...]:
    """Return the transitions from `have` to the layout `want` on the same mesh.

    The route is empty if `have` has the layout `want`. A whole value becomes partial in the last
    transition; a reduction that is partial in both layouts is not carried out.
    """
    reductions = tuple(
        w if w == h or (w == "sum" and a in have.layout.split_axes) else None
        for a, (h, w) in enumerate(zip(have.layout.reductions, want.reductions, strict=True))
    )
    target = Layout.of(want.mesh, want.dims, reductions)
    transitions = _search(have, target) if have.layout is not target else ()
    if target is not want:
        axes = tuple(a for a, p in enumerate(want.reductions) if p != target.reductions[a])
        transitions = (
            *transitions,
            transition_between("pend", have.with_layout(target), want, axes),
        )
    return transitions


def route_bytes(have: ArrayType, want: Layout) -> int:
    """Return the bytes that all devices together send on the route from `have` to `want`."""
    return sum(transition.nbytes for transition in route(have, want))


def _search(have: ArrayType, target: Layout) -> tuple[Transition, ...]:
    """Return the cheapest route from `have` to `target`."""
    moving = frozenset(
        a for a in range(have.mesh.ndim) if _place(have.layout, a) != _place(target, a)
    )
    spread = frozenset(a for a in moving if target.reductions[a])
    for transition in _TransitionFinder(have, moving, spread).simple():
        # One transition that arrives is the cheapest route. Only a gather that sends padding may
        # cost more than a detour.
        if transition.want.layout is target and not (have.uneven and transition.kind == "gather"):
            return (transition,)
    return _search_from(have, moving, spread).to(target)


class _Search:
    """Dijkstra's search (1959) from one array type; each call of `to` continues the last one."""

    def __init__(self, have: ArrayType, moving: frozenset[int], spread: frozenset[int]) -> None:
        self.moving, self.spread = moving, spread
        self.routes: dict[Layout, tuple[Transition, ...]] = {}  # the cheapest to each layout
        self._order = itertools.count(1)  # of two routes with equal costs, the first is taken
        self._queue: list[tuple[int, int, int, int, ArrayType, tuple[Transition, ...]]] = [
            (0, 0, 0, 0, have, ())
        ]
        self._lock = threading.Lock()

    def to(self, target: Layout) -> tuple[Transition, ...]:
        """Return the cheapest route to the layout `target`."""
        with self._lock:
            while target not in self.routes:  # gathers and slices reach every layout
                self._advance()
        return self.routes[target]

    def _advance(self) -> None:
        """Fix the route to the nearest layout of the queue, and enqueue its neighbours."""
        nbytes, collectives, count, _, array_type, transitions = heapq.heappop(self._queue)
        if array_type.layout in self.routes:
            return
        self.routes[array_type.layout] = transitions
        for transition in _transitions_from(array_type, self.moving, self.spread):
            if transition.want.layout not in self.routes:
                cost = nbytes + transition.nbytes, collectives + bool(transition.nbytes), count + 1
                entry = (*cost, next(self._order), transition.want, (*transitions, transition))
                heapq.heappush(self._queue, entry)


_search_from = memoized(4000)(_Search)


@memoized(2000)
def _transitions_from(
    array_type: ArrayType, moving: frozenset[int], spread: frozenset[int]
) -> tuple[Transition, ...]:
    return tuple(_TransitionFinder(array_type, moving, spread).all())


def _place(layout: Layout, axis: int) -> tuple[int, int] | str | None:
    """Return the place of mesh axis `axis` in `layout`: the array axis that it splits and its order
    there, or its partial reduction, or None."""
    for d, axes in enumerate(layout.dims):
        if axis in axes:
            return d, axes.index(axis)
    return layout.reductions[axis]


class _TransitionFinder:
    """The transitions that are possible from `have`, and move no mesh axes but those in `moving`.

    spread: the moving axes over which a split array is to become a partial sum.
    free: the moving axes that neither split an array axis nor hold a partial reduction.
    partial: the moving axes that hold a partial reduction.
    """

    def __init__(self, have: ArrayType, moving: frozenset[int], spread: frozenset[int]) -> None:
        self.have, self.moving, self.dims = have, moving, have.layout.dims
        self.spread = spread
        reductions = have.layout.reductions
        split_axes = have.layout.split_axes
        self.free = [a for a in sorted(moving) if a not in split_axes and not reductions[a]]
        self.partial = [a for a in sorted(moving - spread) if reductions[a]]

    def all(self) -> Iterator[Transition]:
        """Return all transitions."""
        return itertools.chain(self.simple(), self.recuts())

    def simple(self) -> Iterator[Transition]:
        """Yield the transitions in which all shards are cut and joined at the same boundaries."""
        yield from self.spreads()
        yield from self.slices()
        yield from self.all_reduces()
        yield from self.reduce_scatters()
        yield from self.all_to_alls()
        yield from self.gathers()

    def lines_up(self, dim: int, axes: Axes) -> bool:
        """Return whether the boundaries of shards stay in place when minor mesh axes are taken off
        `axes`."""
        return self.have.shape[dim] % math.prod(self.have.mesh.sizes[a] for a in axes) == 0

    def extends(self, dim: int, *axes: int) -> bool:
        """Return whether the mesh axes `axes` can split the shards of `dim` further in place."""
        return not self.dims[dim] or self.lines_up(dim, (*self.dims[dim], *axes))

    def changed(self, changes: dict[int, Axes], resolved: Axes = ()) -> Layout:
        """Return the layout with the mesh axes `changes[d]` on each dim d, and with nothing partial
        over `resolved`."""
        dims = tuple(changes.get(d, axes) for d, axes in enumerate(self.dims))
        reductions = self.have.layout.reductions
        new_reductions = tuple(None if a in resolved else r for a, r in enumerate(reductions))
        return Layout.of(self.have.mesh, dims, new_reductions)

    def spreads(self) -> Iterator[Transition]:
        """Make shards parts of a sum, with zeros in the place of all others, or whole values one
        part of it: nothing is sent."""
        for d, axes in enumerate(self.dims):
            for n in range(len(axes)):
                if self.spread.issuperset(axes[n:]) and (n == 0 or self.lines_up(d, axes)):
                    want = self.summed(axes[n:], {d: axes[:n]})
                    yield transition_between("spread", self.have, want, axes[n:], d)
        whole = tuple(a for a in self.free if a in self.spread)
        if whole:
            yield transition_between("pend", self.have, self.summed(whole, {}), whole)

    def summed(self, axes: Axes, changes: dict[int, Axes]) -> Layout:
        """Return `changed(changes)` with a partial sum over the mesh axes `axes`."""
        target = self.changed(changes)
        reductions = tuple("sum" if a in axes else r for a, r in enumerate(target.reductions))
        return Layout.of(target.mesh, target.dims, reductions)

    def slices(self) -> Iterator[Transition]:
        """Cut an array axis along mesh axes that held copies, which sends nothing."""
        for d, axes in enumerate(self.dims):
            for n in range(1, len(self.free) + 1):
                for new in itertools.permutations(self.free, n):
                    # Several mesh axes at once only where one after the other does not line up.
                    if self.extends(d, *new) and (n == 1 or not self.lines_up(d, new)):
                        want = self.changed({d: (*axes, *new)})
                        yield transition_between("slice", self.have, want, new, d)

    def all_reduces(self) -> Iterator[Transition]:
        """Reduce over mesh axes that hold the same partial reduction."""
        reductions = self.have.layout.reductions
        for n in range(len(self.partial), 0, -1):
            for axes in itertools.combinations(self.partial, n):
                if len({reductions[a] for a in axes}) == 1:
                    want, reduction = self.changed({}, axes), str(reductions[axes[0]])
                    yield transition_between(
                        "all_reduce", self.have, want, axes, reduction=reduction
                    )

    def reduce_scatters(self) -> Iterator[Transition]:
        """Reduce over a mesh axis, and leave each device one shard of an array axis."""
        for a, (d, axes) in itertools.product(self.partial, enumerate(self.dims)):
            if self.extends(d, a):
                want, reduction = (
                    self.changed({d: (*axes, a)}, (a,)),
                    self.have.layout.reductions[a],
                )
                yield transition_between(
                    "reduce_scatter", self.have, want, (a,), d, reduction=str(reduction)
                )

    def all_to_alls(self) -> Iterator[Transition]:
        """Move a mesh axis from the end of one array axis to the end of another."""
        for (d, axes), (e, other) in itertools.permutations(enumerate(self.dims), 2):
            if not axes or axes[-1] not in self.moving or not self.extends(e, axes[-1]):
                continue
            if len(axes) == 1 or self.lines_up(d, axes):
                want = self.changed({d: axes[:-1], e: (*other, axes[-1])})
                yield transition_between("all_to_all", self.have, want, (axes[-1],), d, e)

    def gathers(self) -> Iterator[Transition]:
        """Make an array axis whole along its last mesh axes."""
        for d, axes in enumerate(self.dims):
            for n in range(len(axes)):
                if self.moving.issuperset(axes[n:]) and (n == 0 or self.lines_up(d, axes)):
                    want = self.changed({d: axes[:n]})
                    yield transition_between("gather", self.have, want, axes[n:], d)

    def recuts(self) -> Iterator[Transition]:
        """Cut one array axis at other boundaries, where no simpler transition does it."""
        for d, axes in enumerate(self.dims):
            if not axes or not self.moving.intersection((*axes, *self.free)):
                continue
            every = [*axes, *self.free]
            for n in range(1, len(every) + 1):
                for new in itertools.permutations(every, n):
                    if self._is_recut(d, axes, new):
                        involved, want = tuple(sorted({*axes, *new})), self.changed({d: new})
                        yield transition_between("recut", self.have, want, involved, d)

    def _is_recut(self, d: int, axes: Axes, new: Axes) -> bool:
        """Return whether only a recut leads from mesh axes `axes` on dim `d` to `new`."""
        is_allowed = all(a in self.moving or new[i : i + 1] == (a,) for i, a in enumerate(axes))
        longer = axes if len(axes) > len(new) else new
        is_simple = axes[: len(new)] == new[: len(axes)] and self.lines_up(d, longer)
        return is_allowed and not is_simple
