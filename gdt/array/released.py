"""Blocks that were freed, and are computed again when they are read.

An array that a tape or a user still holds can be released: `ReleasedBlocks` take the place of its
blocks, and their memory is freed. Whoever reads the blocks next runs the call that made the array
again, and the array has blocks as before. Readers see no difference.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gdt.array.array import DistributedArray
from gdt.observe import OBSERVERS

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
        token = OBSERVERS.set(tuple(observers))
        try:
            out = self.op(*self.args, **self.static)
        finally:
            OBSERVERS.reset(token)
        arrays = out if isinstance(out, tuple) else (out,)
        for reference, source in zip(self.results, arrays, strict=True):
            array = reference()
            if array is not None and type(array.blocks) is ReleasedBlocks:
                array.blocks = source.blocks
        return [source.blocks for source in arrays]


class ReleasedBlocks(tuple[Block, ...]):
    """A stand-in for the blocks of an array, which are computed again when they are read."""

    recomputation: Recomputation
    number: int
    _blocks: Sequence[Block] | None

    def __new__(cls, recomputation: Recomputation, number: int) -> ReleasedBlocks:
        released = super().__new__(cls)
        released.recomputation, released.number, released._blocks = recomputation, number, None
        return released

    def _read(self) -> Sequence[Block]:
        if self._blocks is None:  # kept for a reader that reads block by block
            array = self.recomputation.results[self.number]()
            is_restored = array is not None and type(array.blocks) is not ReleasedBlocks
            self._blocks = (
                array.blocks  # type: ignore[union-attr]
                if is_restored
                else self.recomputation.restore()[self.number]
            )
        return self._blocks

    def __len__(self) -> int:
        return len(self._read())

    def __iter__(self) -> Iterator[Block]:
        return iter(self._read())

    def __getitem__(self, index: Any) -> Any:
        return self._read()[index]
