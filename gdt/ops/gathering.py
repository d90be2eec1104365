"""Arrays that are kept in one layout and used in another: gathered for a block of code, freed after
it, and gathered again where a backward pass reads them.

A tape holds the gathered arrays, and what was computed from them alone, such as a transpose. At the
end of the block all of these are released (`gdt.array.released`): the tape keeps what it takes to
compute them again, which is the arrays as they are kept. The gathered arrays that a forward pass
has read last stay, since the backward pass begins with them (`gdt.array.gathers.LastGather`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from gdt.array import gathers
from gdt.array.array import DistributedArray
from gdt.array.moving import move_to_layouts, send_to_layouts
from gdt.array.released import Recomputation, ReleasedBlocks
from gdt.engine.custom_vjp import custom_vjp
from gdt.engine.op import Op
from gdt.observe import OBSERVERS, Observer, is_taped, observing
from gdt.ops.movement import relayout
from gdt.sharding.layout import Layout

Layouts = tuple[Layout, ...]

SMALLER = 8  # times less memory than its operands, for a result that is not worth a second call

_POSTPONED: ContextVar[list[Recomputation] | None] = ContextVar("gdt.postponed", default=None)


@contextmanager
def postponing() -> Iterator[list[Recomputation]]:
    """Leave the arrays gathered that this `with` block gathers, since a backward pass follows at
    once; provide the list of the recomputations that it is to release."""
    recomputations: list[Recomputation] = []
    token = _POSTPONED.set(recomputations)
    try:
        yield recomputations
    finally:
        _POSTPONED.reset(token)


@custom_vjp
def _gather(
    *arrays: DistributedArray, layouts: Layouts, gradient_layouts: Layouts
) -> tuple[DistributedArray, ...]:
    return _others(gathers.made(gathers.Gather(arrays, layouts)), arrays)


@custom_vjp
def _scatter(*gradients: DistributedArray, layouts: Layouts) -> tuple[DistributedArray, ...]:
    return _others(send_to_layouts(gradients, layouts), gradients)


def _others(
    resharded: Sequence[DistributedArray], arrays: Sequence[DistributedArray]
) -> tuple[DistributedArray, ...]:
    """Return the arrays, and an alias in the place of one that is there already: one that has its
    layout is another array too, with a cotangent of its own."""
    known, others = {id(x) for a in arrays for x in (a, a._resolved)}, list[DistributedArray]()
    for x in resharded:
        others.append(x._alias() if id(x) in known else x)
        known.add(id(x))
    return tuple(others)


def _scattered(
    gradients: Sequence[DistributedArray | None],
    out: object,
    *arrays: DistributedArray,
    layouts: Layouts,
    gradient_layouts: Layouts,
) -> list[DistributedArray | None]:
    """Return the cotangents of the kept arrays, which travel together. What is partial over mesh
    axes that do not split them stays so, for the bundle at the end of the backward pass."""
    pairs = [(i, g) for i, g in enumerate(gradients) if g is not None]
    targets = [g.layout.split_as(gradient_layouts[i].dims) for i, g in pairs]
    cotangents = _scatter(*[g for _, g in pairs], layouts=tuple(targets))
    by_position = {i: g for (i, _), g in zip(pairs, cotangents, strict=True)}
    return [by_position.get(i) for i in range(len(arrays))]


def gather_of(recomputation: Recomputation) -> gathers.Gather | None:
    """Return the gather that computes an array again, or an operand of what does; None if there is
    none."""
    if recomputation.op is _gather:
        return gathers.Gather(recomputation.args, recomputation.static["layouts"])
    for x in recomputation.args:
        if type(x) is DistributedArray and type(x.blocks) is ReleasedBlocks:
            return gather_of(x.blocks.recomputation)
    return None


_gather.vjp(joint=_scattered)
# The values do not change, so neither do their cotangents, which move when they are needed.
_scatter.vjp(joint=lambda g, out, *gradients, layouts: g)


def constrained(x: DistributedArray, layout: Layout) -> DistributedArray:
    """Return an array in a layout that somebody wants it to have. Its cotangent is moved back to
    the layout of `x`, once, and not by each op that reads it."""
    if x.layout is layout:
        return x
    return _constrain(x, layout=layout)


@custom_vjp
def _constrain(x: DistributedArray, *, layout: Layout) -> DistributedArray:
    (resharded,) = move_to_layouts((x,), (layout,))
    alias: DistributedArray = resharded._alias()
    return alias


_constrain.vjp(lambda g, out, x, *, layout: _scatter(g, layouts=(x.layout.resolved,))[0], reads="")


class _Derived(Observer):
    """An observer of the ops that read gathered arrays, and that compute with them alone."""

    wants_parts = False
    wants_moves = False

    def __init__(
        self,
        arrays: Sequence[DistributedArray],
        reader: Recomputation,
        last: gathers.LastGather | None,
    ) -> None:
        self._reader, self._last = reader, last
        self.recomputations: list[Recomputation] = []
        self._own = {id(x): x for x in arrays}  # alive, so that no other has its identity

    def on_op(self, op: Any, args: tuple[Any, ...], static: dict[str, Any], out: Any) -> None:
        operands = [x for x in args if type(x) is DistributedArray]
        own = [x for x in operands if id(x) in self._own]
        if own and self._last is not None:
            self._last.read(self._reader)
        if not own or len(own) < len(operands):
            return
        outs = out if isinstance(out, tuple) else (out,)
        is_pure = isinstance(op, Op) and not op.declaration.donated
        # A sum takes little memory, and may be what the block returns.
        is_small = sum(x.nbytes for x in outs) < max(x.nbytes for x in operands) // SMALLER
        if is_pure and not is_small:
            self._own |= {id(x): x for x in outs}
            self.recomputations.append(Recomputation(op, args, static, outs))


class GatheredSlot(NamedTuple):
    """A place of a module, a key of a container, and the gathered array that lies there in a call
    of the module."""

    owner: Any
    key: Any
    array: DistributedArray


# Of the calls that are running.
GATHERED_SLOTS: ContextVar[tuple[GatheredSlot, ...]] = ContextVar("gdt.gathered", default=())


@contextmanager
def in_their_slots(slots: Sequence[GatheredSlot]) -> Iterator[None]:
    """Put gathered arrays into their slots for this `with` block, and the arrays back that were
    there; an array that the block has put there moves to the layout of the one before."""
    before = [s.owner[s.key] for s in slots]
    for s in slots:
        s.owner[s.key] = s.array
    token = GATHERED_SLOTS.set((*GATHERED_SLOTS.get(), *slots))
    try:
        yield
    finally:
        GATHERED_SLOTS.reset(token)
        for s, x in zip(slots, before, strict=True):
            now = s.owner[s.key]
            if now is s.array:
                s.owner[s.key] = x
            elif isinstance(now, DistributedArray):
                s.owner[s.key] = relayout(now, x.layout)


@contextmanager
def gathered(
    arrays: Sequence[DistributedArray],
    layouts: Sequence[Layout],
    gradient_layouts: Sequence[Layout],
) -> Iterator[tuple[DistributedArray, ...]]:
    """Provide arrays of one mesh in the layouts in which this `with` block uses them; they travel
    together. Their memory is free after the block; where a tape has seen them read last, when
    others are gathered, or when the backward pass has used them.

    gradient_layouts: the layouts to which the cotangents of the arrays are moved, together, when a
        backward pass leaves the block.
    """
    static = {"layouts": tuple(layouts), "gradient_layouts": tuple(gradient_layouts)}
    wholes = _gather(*arrays, **static)
    recomputation = Recomputation(_gather, tuple(arrays), static, wholes)
    last, has_tape = gathers.LAST.get(), is_taped()
    derived = _Derived(wholes, recomputation, last)
    if last is not None:
        last.read(recomputation)
        if not has_tape:
            # Aliases: a checkpointed function looks for arrays of its own that are still there.
            gather = gathers.Gather(tuple(arrays), static["layouts"])
            last.made = gathers.MadeGather(gather, [x._alias() for x in wholes])
    try:
        if OBSERVERS.get():
            with observing(derived):
                yield wholes
        else:
            yield wholes
    finally:
        if (postponed := _POSTPONED.get()) is not None:
            postponed += (recomputation, *derived.recomputations)
        else:
            for each in derived.recomputations:
                each.release()
            if last is not None and last.reader is recomputation and has_tape:
                last.unreleased = recomputation
            else:
                recomputation.release()
