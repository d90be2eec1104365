"""Gathers of arrays that are kept split: those that are to come, which run ahead of their use, and
the one whose arrays a forward pass reads last, with which the backward pass begins.

Where devices may communicate beside computation, the next gather is under way while what the last
one has made is used: that of the next layer. So one layer more is in memory, and no other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from gdt.array.array import DistributedArray
from gdt.array.moving import move_to_layouts
from gdt.array.released import Recomputation
from gdt.observe import OBSERVERS, observing_only
from gdt.sharding.layout import Layout


class Gather(NamedTuple):
    """Arrays that travel together, and the layouts that they get."""

    arrays: tuple[DistributedArray, ...]
    layouts: tuple[Layout, ...]

    def run(self) -> list[DistributedArray]:
        """Return the arrays in their layouts, which devices may still be moving, or which the last
        gather of the forward pass has made."""
        last = LAST.get()
        if last is not None and (wholes := last.take(self)) is not None:
            return wholes
        return move_to_layouts(self.arrays, self.layouts, overlapped=True)


class MadeGather:
    """A gather, and what it has made."""

    def __init__(self, gather: Gather, wholes: Sequence[DistributedArray]) -> None:
        self.wholes = [*wholes]
        self._gather, self._recorders = gather, _recorders()
        self._blocks = [x.blocks for x in gather.arrays]

    def fits(self, gather: Gather) -> bool:
        """Return whether another gather would make the same: of the same arrays, to which nobody
        has written since."""
        # A recorded function that begins in between could not tell where the arrays come from.
        if self._gather.layouts != gather.layouts or self._recorders != _recorders():
            return False
        kept = zip(self._gather.arrays, gather.arrays, self._blocks, strict=True)
        return all(a is b and b.blocks is blocks for a, b, blocks in kept)


class LastGather:
    """The gather whose arrays a forward pass under a tape has read last. They stay until another
    gather begins, which is mostly the first of the backward pass: the same.

    reader: the recomputation of these arrays. unreleased: the same, once the block of code has
        ended that reads them, if the tape refers to them. made: the arrays, for a backward pass
        that makes the gather again, or for a checkpointed function that does so there.
    """

    def __init__(self) -> None:
        self.reader: Recomputation | None = None
        self.unreleased: Recomputation | None = None
        self.made: MadeGather | None = None

    def read(self, reader: Recomputation) -> None:
        """Note which arrays are read, and free the others."""
        if self.reader is not reader:
            self.release()
            self.reader = reader

    def begin_backward(self) -> None:
        """Release the arrays to which the tape refers, as all others are; they are made already."""
        if (again := self.unreleased) is None:
            return
        wholes = [x._alias() for reference in again.results if (x := reference()) is not None]
        self.release()
        if len(wholes) == len(again.results):
            self.made = MadeGather(Gather(again.args, again.static["layouts"]), wholes)

    def take(self, gather: Gather) -> list[DistributedArray] | None:
        """Return what this gather would make, if it is the last one; free the arrays."""
        made = self.made
        self.release()
        return made.wholes if made is not None and made.fits(gather) else None

    def release(self) -> None:
        """Free the arrays, but those that have been taken."""
        if self.unreleased is not None:
            self.unreleased.release()
        self.reader = self.unreleased = self.made = None


class ComingGathers:
    """The gathers that are to come, in order, of which the next one is under way.

    A gather that nobody expected runs when it is asked for, and leaves the others as they are.
    """

    def __init__(self, expected: Iterable[Gather]) -> None:
        self._expected = iter(expected)
        self._next: MadeGather | None = None
        self._start()

    def _start(self) -> None:
        self._next = None
        if (gather := next(self._expected, None)) is not None:
            with observing_only(*[o for o in OBSERVERS.get() if o.wants_parts and o.wants_moves]):
                wholes = gather.run()
            self._next = MadeGather(gather, wholes)

    def take(self, gather: Gather) -> list[DistributedArray]:
        """Return what a gather makes, and start the next one."""
        if self._next is None or not self._next.fits(gather):
            return gather.run()
        wholes = self._next.wholes
        self._start()
        return wholes


def _recorders() -> list[Any]:
    return [o for o in OBSERVERS.get() if o.wants_runs]


COMING: ContextVar[ComingGathers | None] = ContextVar("gdt.coming_gathers", default=None)
LAST: ContextVar[LastGather | None] = ContextVar("gdt.last_gather", default=None)
"""The last gather of the tape that records or whose backward pass runs; None where all arrays are
released at once."""
_NOTED: ContextVar[list[Gather] | None] = ContextVar("gdt.noted_gathers", default=None)


@contextmanager
def coming(expected: Iterable[Gather]) -> Iterator[None]:
    """Let these gathers run ahead in this `with` statement."""
    token = COMING.set(ComingGathers(expected))
    try:
        yield
    finally:
        COMING.reset(token)


@contextmanager
def noted_gathers() -> Iterator[list[Gather]]:
    """Provide a list of the gathers that are made in this `with` statement."""
    noted: list[Gather] = []
    token = _NOTED.set(noted)
    try:
        yield noted
    finally:
        _NOTED.reset(token)


def made(gather: Gather) -> list[DistributedArray]:
    """Return what a gather makes: one that is under way, or begins now."""
    if (noted := _NOTED.get()) is not None:
        noted.append(gather)
    expected = COMING.get()
    return gather.run() if expected is None else expected.take(gather)
