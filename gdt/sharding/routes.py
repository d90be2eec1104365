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
from gdt.sharding.recut import Piece, Recut

# A transition from a given type: its kind, the layout that it leads to, axes, dim, to, reduction.
Step = tuple[str, Layout, Axes, int, int, str]
# Bytes, collectives and transitions of a route, and its number in the queue; the type from which
# its last step starts, the transitions to there, and the step.
Entry = tuple[int, int, int, int, ArrayType, tuple["Transition", ...], Step]


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


Cost = tuple[float, int, int]  # bytes, collectives and transitions
UNREACHED: Cost = (math.inf, 0, 0)
FREE = ("slice", "spread", "pend")  # kinds of transitions that send nothing


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
    nbytes = _nbytes(kind, have, want, axes, dim, to)
    return Transition(kind, axes, dim, to, reduction, have, have.with_layout(want), nbytes)


def _nbytes(kind: str, have: ArrayType, want: Layout, axes: Axes, dim: int, to: int) -> int:
    """Return the bytes that all devices together send in a transition."""
    if kind in FREE:
        return 0
    mesh = have.mesh
    sizes = mesh.sizes
    p = 1
    for a in axes:
        p *= sizes[a]
    if kind == "gather":
        return mesh.size * (p - 1) * have.local_nbytes
    if kind == "all_reduce":
        return mesh.size // p * 2 * (p - 1) * have.local_nbytes
    shape = [*have.local_shape]
    if kind in ("reduce_scatter", "all_to_all"):
        cut = to if kind == "all_to_all" else dim
        shape[cut] = -(-have.shape[cut] // want.shard_counts[cut])
        return mesh.size * (p - 1) * math.prod(shape) * have.dtype.itemsize
    # A recut, of which this equals `Recut.nbytes`, at less cost.
    shape[dim] = _received(sizes, have.layout.dims[dim], want.dims[dim], axes, have.shape[dim])
    return mesh.size // p * math.prod(shape) * have.dtype.itemsize


@memoized(300)
def _received(sizes: tuple[int, ...], have: Axes, want: Axes, axes: Axes, length: int) -> int:
    """Return the number of elements along an array axis of this length that coordinates along the
    mesh axes `axes` receive in a recut: the part of each one's new interval outside its old one.

    sizes: those of the mesh axes. have, want: the mesh axes that split the array axis.
    """
    old, new = (-(-length // math.prod(sizes[a] for a in split)) for split in (have, want))
    begin = _shards_along(sizes, have, axes) * old
    low = np.minimum(_shards_along(sizes, want, axes) * new, length)
    high = np.minimum(low + new, length)
    kept = np.maximum(0, np.minimum(high, begin + old) - np.maximum(low, begin))
    return int((high - low - kept).sum())


def _shards_along(sizes: tuple[int, ...], split_axes: Axes, axes: Axes) -> np.ndarray:
    """Return, for all coordinates along the mesh axes `axes`, the number of the shard of an array
    axis that the mesh axes `split_axes` cut."""
    shards = np.zeros((1,) * len(axes), np.int64)
    for a in split_axes:
        along = [-1 if axis == a else 1 for axis in axes]
        shards = shards * sizes[a] + np.arange(sizes[a]).reshape(along)
    return np.broadcast_to(shards, [sizes[a] for a in axes])


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
    for kind, want, axes, dim, to, reduction in _steps_from(have, moving, spread):
        # One simple transition that arrives is the cheapest route. Only a gather that sends padding
        # may cost more than a detour.
        if want is target and kind != "recut" and not (have.uneven and kind == "gather"):
            return (transition_between(kind, have, want, axes, dim, to, reduction),)
    return _search_from(have, moving, spread).to(target)


class _Search:
    """Dijkstra's search (1959) from one array type; each call of `to` continues the last one."""

    def __init__(self, have: ArrayType, moving: frozenset[int], spread: frozenset[int]) -> None:
        self.moving, self.spread = moving, spread
        self.routes: dict[Layout, tuple[Transition, ...]] = {have.layout: ()}  # the cheapest
        self._order = itertools.count(1)  # of two routes with equal costs, the first is taken
        self._costs: dict[Layout, Cost] = {have.layout: (0, 0, 0)}  # the lowest that are known
        self._queue: list[Entry] = []
        self._lock = threading.Lock()
        self._enqueue(0, 0, 0, have, ())

    def to(self, target: Layout) -> tuple[Transition, ...]:
        """Return the cheapest route to the layout `target`."""
        with self._lock:
            while target not in self.routes:  # gathers and slices reach every layout
                self._advance()
        return self.routes[target]

    def _advance(self) -> None:
        """Fix the route to the nearest layout of the queue, and enqueue its neighbours."""
        nbytes, collectives, count, _, have, transitions, step = heapq.heappop(self._queue)
        kind, want, axes, dim, to, reduction = step
        if want in self.routes:
            return
        last = transition_between(kind, have, want, axes, dim, to, reduction)
        self.routes[want] = (*transitions, last)
        self._enqueue(nbytes, collectives, count, last.want, self.routes[want])

    def _enqueue(
        self,
        nbytes: int,
        collectives: int,
        count: int,
        have: ArrayType,
        transitions: tuple[Transition, ...],
    ) -> None:
        """Enqueue the steps from the end of a route that costs so much."""
        least = nbytes, collectives, count + 1
        for step in _steps_from(have, self.moving, self.spread):
            kind, want, axes, dim, to, _ = step
            known = self._costs.get(want, UNREACHED)
            if known > least:
                more = _nbytes(kind, have, want, axes, dim, to)
                cost = nbytes + more, collectives + bool(more), count + 1
                if cost < known:
                    self._costs[want] = cost
                    heapq.heappush(self._queue, (*cost, next(self._order), have, transitions, step))


_search_from = memoized(4000)(_Search)


def _steps_from(
    have: ArrayType, moving: frozenset[int], spread: frozenset[int]
) -> tuple[Step, ...]:
    """Return the steps that are possible from an array type, simple ones first."""
    size = have.mesh.size
    # The numbers of shards divide the size of the mesh: whether shards line up is in the divisors.
    divisors = tuple([math.gcd(n, size) for n in have.shape])
    return _steps(have.layout, divisors, moving, spread)


@memoized(2000)
def _steps(
    layout: Layout, divisors: tuple[int, ...], moving: frozenset[int], spread: frozenset[int]
) -> tuple[Step, ...]:
    """Return the steps from a layout of an array; divisors: the greatest common ones of its sizes
    and the size of the mesh."""
    finder = _StepFinder(layout, divisors, moving, spread)
    return (*finder.simple(), *finder.recuts())


def _place(layout: Layout, axis: int) -> tuple[int, int] | str | None:
    """Return the place of mesh axis `axis` in `layout`: the array axis that it splits and its order
    there, or its partial reduction, or None."""
    for d, axes in enumerate(layout.dims):
        if axis in axes:
            return d, axes.index(axis)
    return layout.reductions[axis]


class _StepFinder:
    """The transitions that are possible from a layout, and move no mesh axes but those in `moving`.

    divisors: the greatest common ones of the sizes of the array and the size of the mesh.
    spread: the moving axes over which a split array is to become a partial sum.
    free: the moving axes that neither split an array axis nor hold a partial reduction.
    partial: the moving axes that hold a partial reduction.
    """

    def __init__(
        self,
        layout: Layout,
        divisors: tuple[int, ...],
        moving: frozenset[int],
        spread: frozenset[int],
    ) -> None:
        self.layout, self.divisors, self.moving, self.dims = layout, divisors, moving, layout.dims
        self.sizes, self.spread = layout.mesh.sizes, spread
        reductions = layout.reductions
        split_axes = layout.split_axes
        self.free = [a for a in sorted(moving) if a not in split_axes and not reductions[a]]
        self.partial = [a for a in sorted(moving - spread) if reductions[a]]

    def simple(self) -> Iterator[Step]:
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
        return self.divisors[dim] % math.prod(self.sizes[a] for a in axes) == 0

    def extends(self, dim: int, *axes: int) -> bool:
        """Return whether the mesh axes `axes` can split the shards of `dim` further in place."""
        return not self.dims[dim] or self.lines_up(dim, (*self.dims[dim], *axes))

    def changed(self, changes: dict[int, Axes], resolved: Axes = ()) -> Layout:
        """Return the layout with the mesh axes `changes[d]` on each dim d, and with nothing partial
        over `resolved`."""
        dims, reductions = list(self.dims), self.layout.reductions
        for d, axes in changes.items():
            dims[d] = axes
        if resolved:
            reductions = tuple([None if a in resolved else r for a, r in enumerate(reductions)])
        return Layout.of(self.layout.mesh, tuple(dims), reductions)

    def spreads(self) -> Iterator[Step]:
        """Make shards parts of a sum, with zeros in the place of all others, or whole values one
        part of it: nothing is sent."""
        for d, axes in enumerate(self.dims):
            for n in range(len(axes)):
                if self.spread.issuperset(axes[n:]) and (n == 0 or self.lines_up(d, axes)):
                    want = self.summed(axes[n:], {d: axes[:n]})
                    yield "spread", want, axes[n:], d, -1, ""
        whole = tuple(a for a in self.free if a in self.spread)
        if whole:
            yield "pend", self.summed(whole, {}), whole, -1, -1, ""

    def summed(self, axes: Axes, changes: dict[int, Axes]) -> Layout:
        """Return `changed(changes)` with a partial sum over the mesh axes `axes`."""
        target = self.changed(changes)
        reductions = tuple("sum" if a in axes else r for a, r in enumerate(target.reductions))
        return Layout.of(target.mesh, target.dims, reductions)

    def slices(self) -> Iterator[Step]:
        """Cut an array axis along mesh axes that held copies, which sends nothing."""
        for d, axes in enumerate(self.dims):
            for n in range(1, len(self.free) + 1):
                for new in itertools.permutations(self.free, n):
                    # Several mesh axes at once only where one after the other does not line up.
                    if self.extends(d, *new) and (n == 1 or not self.lines_up(d, new)):
                        want = self.changed({d: (*axes, *new)})
                        yield "slice", want, new, d, -1, ""

    def all_reduces(self) -> Iterator[Step]:
        """Reduce over mesh axes that hold the same partial reduction."""
        reductions = self.layout.reductions
        for n in range(len(self.partial), 0, -1):
            for axes in itertools.combinations(self.partial, n):
                if len({reductions[a] for a in axes}) == 1:
                    want, reduction = self.changed({}, axes), str(reductions[axes[0]])
                    yield "all_reduce", want, axes, -1, -1, reduction

    def reduce_scatters(self) -> Iterator[Step]:
        """Reduce over a mesh axis, and leave each device one shard of an array axis."""
        for a, (d, axes) in itertools.product(self.partial, enumerate(self.dims)):
            if self.extends(d, a):
                want = self.changed({d: (*axes, a)}, (a,))
                yield "reduce_scatter", want, (a,), d, -1, str(self.layout.reductions[a])

    def all_to_alls(self) -> Iterator[Step]:
        """Move a mesh axis from the end of one array axis to the end of another."""
        for (d, axes), (e, other) in itertools.permutations(enumerate(self.dims), 2):
            if not axes or axes[-1] not in self.moving or not self.extends(e, axes[-1]):
                continue
            if len(axes) == 1 or self.lines_up(d, axes):
                want = self.changed({d: axes[:-1], e: (*other, axes[-1])})
                yield "all_to_all", want, (axes[-1],), d, e, ""

    def gathers(self) -> Iterator[Step]:
        """Make an array axis whole along its last mesh axes."""
        for d, axes in enumerate(self.dims):
            for n in range(len(axes)):
                if self.moving.issuperset(axes[n:]) and (n == 0 or self.lines_up(d, axes)):
                    want = self.changed({d: axes[:n]})
                    yield "gather", want, axes[n:], d, -1, ""

    def recuts(self) -> Iterator[Step]:
        """Cut one array axis at other boundaries, where no simpler transition does it."""
        for d, axes in enumerate(self.dims):
            if not axes or not self.moving.intersection((*axes, *self.free)):
                continue
            every = [*axes, *self.free]
            fixed = [(i, a) for i, a in enumerate(axes) if a not in self.moving]
            for n in range(1, len(every) + 1):
                for new in itertools.permutations(every, n):
                    is_allowed = not fixed or all(new[i : i + 1] == (a,) for i, a in fixed)
                    if is_allowed and not self._is_simple(d, axes, new):
                        involved, want = tuple(sorted({*axes, *new})), self.changed({d: new})
                        yield "recut", want, involved, d, -1, ""

    def _is_simple(self, d: int, axes: Axes, new: Axes) -> bool:
        """Return whether no recut leads from mesh axes `axes` on dim `d` to `new`."""
        longer = axes if len(axes) > len(new) else new
        return axes[: len(new)] == new[: len(axes)] and self.lines_up(d, longer)
