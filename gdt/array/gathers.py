"""Gathers of arrays that are kept split, and those that are to come, which run ahead of their use.

Where devices may communicate beside computation, the next gather is under way while what the last
one has made is used: that of the next layer. So one layer more is in memory, and no other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from gdt.array.array import DistributedArray
from gdt.array.moving import move_to_layouts
from gdt.observe import OBSERVERS, observing_only
from gdt.sharding.layout import Layout


class Gather(NamedTuple):
    """Arrays that travel together, and the layouts that they get."""

    arrays: tuple[DistributedArray, ...]
    layouts: tuple[Layout, ...]

    def run(self) -> list[DistributedArray]:
        """Return the arrays in their layouts, which devices may still be moving."""
        return move_to_layouts(self.arrays, self.layouts, overlapped=True)


class ComingGathers:
    """The gathers that are to come, in order, of which the next one is under way.

    A gather that nobody expected runs when it is asked for, and leaves the others as they are.
    """

    def __init__(self, expected: Iterable[Gather]) -> None:
        self._expected = iter(expected)
        self._start()

    def _start(self) -> None:
        self._next, self._recorders = next(self._expected, None), _recorders()
        if self._next is not None:
            self._blocks = [x.blocks for x in self._next.arrays]
            with observing_only(*[o for o in OBSERVERS.get() if o.wants_parts and o.wants_moves]):
                self._wholes = self._next.run()

    def take(self, gather: Gather) -> list[DistributedArray]:
        """Return what a gather makes, and start the next one."""
        # A recorded function that begins in between could not tell where the arrays come from.
        if not self._fits(gather) or self._recorders != _recorders():
            return gather.run()
        wholes = self._wholes
        self._wholes = []
        self._start()
        return wholes

    def _fits(self, gather: Gather) -> bool:
        """Return whether the gather under way is of the same arrays, to which nobody has written
        since."""
        if self._next is None or self._next.layouts != gather.layouts:
            return False
        kept = zip(self._next.arrays, gather.arrays, self._blocks, strict=True)
        return all(a is b and b.blocks is blocks for a, b, blocks in kept)


def _recorders() -> list[Any]:
    return [o for o in OBSERVERS.get() if o.wants_runs]


COMING: ContextVar[ComingGathers | None] = ContextVar("gdt.coming_gathers", default=None)
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
