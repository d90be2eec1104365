"""Routes from one layout to another: the steps that send the fewest bytes.

They are found by Dijkstra's search over the layouts that one step leads to. Of equal routes the one
with the fewest collectives is taken, then the one with the fewest steps.
"""

from __future__ import annotations

import heapq
import itertools
import math
import threading
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from gdt.sharding.array_type import ArrayType
from gdt.sharding.layout import Axes, Layout
from gdt.sharding.recut import Piece, Recut

Partial = tuple[str | None, ...]


class Transition(NamedTuple):
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


@lru_cache(maxsize=1 << 14)
def transition_between(
    kind: str,
    have: ArrayType,
    want: Layout,
    axes: Axes,
    dim: int = -1,
    to: int = -1,
    reduction: str = "",
) -> Transition:
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
    """What all devices receive: of their new interval along `dim` the part that they did not
    have. (`Recut.nbytes` of one piece, without finding the pieces.)"""
    mesh, missing = have.mesh, 0
    coordinate = [0] * mesh.ndim
    for at in itertools.product(*(range(mesh.sizes[a]) for a in axes)):
        for a, c in zip(axes, at, strict=True):
            coordinate[a] = c
        low, high = want.extent(dim, want.layout.shard_index(coordinate, dim))
        first, last = have.extent(dim, have.layout.shard_index(coordinate, dim))
        missing += high - low - max(0, min(high, last) - max(low, first))
    rows = math.prod(n for d, n in enumerate(have.local_shape) if d != dim)
    copies = mesh.size // math.prod(mesh.sizes[a] for a in axes)
    return missing * rows * copies * have.dtype.itemsize


@lru_cache(maxsize=1 << 14)
def recut_of(have: ArrayType, want: ArrayType, dim: int) -> Recut:
    return Recut([have], want, dim, [Piece(0, 0, 0, have.shape[dim])])


@lru_cache(maxsize=1 << 14)
def route(have: ArrayType, want: Layout) -> tuple[Transition, ...]:
    """Steps from `have` to the layout `want` on the same mesh; empty if it is there already.

    A reduction becomes partial last, and those that are partial in both layouts stay so.
    """
    pairs = zip(have.layout.reductions, want.reductions, strict=True)
    target = Layout.of(want.mesh, want.dims, tuple(w if w == h else None for h, w in pairs))
    transitions = _search(have, target) if have.layout is not target else ()
    if target is not want:
        axes = tuple(a for a, p in enumerate(want.reductions) if p != target.reductions[a])
        transitions = (
            *transitions,
            transition_between("pend", have.with_layout(target), want, axes),
        )
    return transitions


def route_bytes(have: ArrayType, want: Layout) -> int:
    """Bytes that all devices together send on that route."""
    return sum(transition.nbytes for transition in route(have, want))


def _search(have: ArrayType, target: Layout) -> tuple[Transition, ...]:
    """The cheapest steps; mesh axes whose place stays the same are not moved."""
    moving = frozenset(
        a for a in range(have.mesh.ndim) if _place(have.layout, a) != _place(target, a)
    )
    for transition in _Moves(have, moving).simple():
        if transition.want.layout is target and not (have.uneven and transition.kind == "gather"):
            return (transition,)  # no detour sends less, but for what a gather sends of padding
    return _search_from(have, moving).to(target)


class _Search:
    """Dijkstra's search (1959) from one array type, which goes on where it stopped."""

    def __init__(self, have: ArrayType, moving: frozenset[int]) -> None:
        self.moving = moving
        self.found: dict[Layout, tuple[Transition, ...]] = {}
        self._order = itertools.count(1)  # of two routes with equal costs, the one found first
        self._queue: list[tuple[int, int, int, int, ArrayType, tuple[Transition, ...]]] = [
            (0, 0, 0, 0, have, ())
        ]
        self._lock = threading.Lock()

    def to(self, target: Layout) -> tuple[Transition, ...]:
        """The cheapest steps to a layout."""
        with self._lock:
            while target not in self.found:  # all can be reached, by gathers and slices
                self._advance()
        return self.found[target]

    def _advance(self) -> None:
        nbytes, collectives, count, _, kind, transitions = heapq.heappop(self._queue)
        if kind.layout in self.found:
            return
        self.found[kind.layout] = transitions
        for transition in _transitions_from(kind, self.moving):
            if transition.want.layout not in self.found:
                cost = nbytes + transition.nbytes, collectives + bool(transition.nbytes), count + 1
                entry = (*cost, next(self._order), transition.want, (*transitions, transition))
                heapq.heappush(self._queue, entry)


_search_from = lru_cache(maxsize=256)(_Search)


@lru_cache(maxsize=1 << 10)
def _transitions_from(array_type: ArrayType, moving: frozenset[int]) -> tuple[Transition, ...]:
    return tuple(_Moves(array_type, moving).all())


def _place(layout: Layout, axis: int) -> tuple[int, int] | str | None:
    """Where a mesh axis is: its array axis and its order there, or the reduction that waits."""
    for d, axes in enumerate(layout.dims):
        if axis in axes:
            return d, axes.index(axis)
    return layout.reductions[axis]


class _Moves:
    """The steps that are possible from an array type, moving none but certain mesh axes."""

    def __init__(self, have: ArrayType, moving: frozenset[int]) -> None:
        self.have, self.moving, self.dims = have, moving, have.layout.dims
        partial = have.layout.reductions
        split = {a for axes in self.dims for a in axes}
        self.free = [a for a in sorted(moving) if a not in split and not partial[a]]
        self.waiting = [a for a in sorted(moving) if partial[a]]

    def all(self) -> Iterator[Transition]:
        """Every step."""
        return itertools.chain(self.simple(), self.recuts())

    def simple(self) -> Iterator[Transition]:
        """The steps that leave what stays on a device in one piece."""
        yield from self.slices()
        yield from self.all_reduces()
        yield from self.reduce_scatters()
        yield from self.all_to_alls()
        yield from self.gathers()

    def lines_up(self, dim: int, axes: Axes) -> bool:
        """Whether taking minor mesh axes off `axes` leaves the boundaries of shards in place."""
        return self.have.shape[dim] % math.prod(self.have.mesh.sizes[a] for a in axes) == 0

    def extends(self, dim: int, *axes: int) -> bool:
        """Whether `axes` can be added to those of `dim` in place."""
        return not self.dims[dim] or self.lines_up(dim, (*self.dims[dim], *axes))

    def changed(self, changes: dict[int, Axes], resolved: Axes = ()) -> Layout:
        """The layout with other axes on some dims, and these reductions done."""
        dims = tuple(changes.get(d, axes) for d, axes in enumerate(self.dims))
        partial = self.have.layout.reductions
        left = tuple(None if a in resolved else p for a, p in enumerate(partial))
        return Layout.of(self.have.mesh, dims, left)

    def slices(self) -> Iterator[Transition]:
        """Cut what is whole: sends nothing."""
        for d, axes in enumerate(self.dims):
            for n in range(1, len(self.free) + 1):
                for new in itertools.permutations(self.free, n):
                    # Several at once only where the shards of one would not line up with theirs.
                    if self.extends(d, *new) and (n == 1 or not self.lines_up(d, new)):
                        want = self.changed({d: (*axes, *new)})
                        yield transition_between("slice", self.have, want, new, d)

    def all_reduces(self) -> Iterator[Transition]:
        """Reduce over some of the mesh axes that wait for one reduction."""
        partial = self.have.layout.reductions
        for n in range(len(self.waiting), 0, -1):
            for axes in itertools.combinations(self.waiting, n):
                kinds = {partial[a] for a in axes}
                if len(kinds) == 1:
                    want, reduction = self.changed({}, axes), str(partial[axes[0]])
                    yield transition_between(
                        "all_reduce", self.have, want, axes, reduction=reduction
                    )

    def reduce_scatters(self) -> Iterator[Transition]:
        """Reduce, and keep of an array axis what is each device's."""
        for a, (d, axes) in itertools.product(self.waiting, enumerate(self.dims)):
            if self.extends(d, a):
                want, reduction = (
                    self.changed({d: (*axes, a)}, (a,)),
                    self.have.layout.reductions[a],
                )
                yield transition_between(
                    "reduce_scatter", self.have, want, (a,), d, reduction=str(reduction)
                )

    def all_to_alls(self) -> Iterator[Transition]:
        """Take a mesh axis from the end of one array axis to the end of another."""
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
        """Cut one array axis anew, where no simpler step does."""
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
        kept = all(a in self.moving or new[i : i + 1] == (a,) for i, a in enumerate(axes))
        longer = axes if len(axes) > len(new) else new
        simpler = axes[: len(new)] == new[: len(axes)] and self.lines_up(d, longer)
        return kept and not simpler
