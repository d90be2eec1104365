"""Blocks that were freed, and are computed again when they are read.

An array that a tape or a user still holds can be released: `ReleasedBlocks` take the place of its
blocks, and their memory is freed. Whoever reads the blocks next runs the call that made the array
again, and the array has blocks as before. Readers see no difference.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from gdt.array.array import DistributedArray
from gdt.array.deferred import DeferredBlocks
from gdt.observe import OBSERVERS, observing_only

Block = Any


class Recomputation:
    """A call, `op(*args, **static)`, that computes arrays again. `op` is a pure function."""

    def __init__(
        self,
        op: Any,
        args: tuple[Any, ...],
        static: Mapping[str, Any],
        results: Sequence[DistributedArray],
    ) -> None:
        self.op, self.args, self.static = op, args, static
        self.results = [weakref.ref(x) for x in results]  # strong ones would make cycles

    def release(self) -> None:
        """Free the blocks of all results that are still referred to."""
        for number in range(len(self.results)):
            self.release_one(number)

    def release_one(self, number: int) -> None:
        """Free the blocks of the result of this number."""
        array = self.results[number]()
        if array is not None and type(array.blocks) is not ReleasedBlocks:
            array.blocks = ReleasedBlocks(self, number)

    def restore(self) -> list[Sequence[Block]]:
        """Compute the blocks of all results, give them to those that are released, and return
        them."""
        # Tapes and checkpoints know the results by identity, not by a second call that makes them.
        observers = [o for o in OBSERVERS.get() if o.wants_parts and o.wants_moves]
        with observing_only(*observers):
            out = self.op(*self.args, **self.static)
        arrays = out if isinstance(out, tuple) else (out,)
        for reference, source in zip(self.results, arrays, strict=True):
            array = reference()
            if array is not None and type(array.blocks) is ReleasedBlocks:
                array.blocks = source.blocks
        return [source.blocks for source in arrays]


class ReleasedBlocks(DeferredBlocks):
    """A stand-in for the blocks of an array, which are computed again when they are read."""

    recomputation: Recomputation
    number: int

    def __new__(cls, recomputation: Recomputation, number: int) -> ReleasedBlocks:
        released = super().__new__(cls)
        released.recomputation, released.number = recomputation, number
        return released

    def _compute(self) -> Sequence[Block]:
        array = self.recomputation.results[self.number]()
        if array is not None and type(array.blocks) is not ReleasedBlocks:
            return array.blocks
        return self.recomputation.restore()[self.number]
