"""Stand-ins for the blocks of an array, which are computed when they are read."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

Block = Any


class DeferredBlocks(tuple[Block, ...]):
    """A stand-in for the blocks of an array: whoever reads them computes them, and sees no
    difference."""

    _blocks: Sequence[Block] | None = None

    @abstractmethod
    def _compute(self) -> Sequence[Block]:
        """Return the blocks, and give them to the array."""

    def _read(self) -> Sequence[Block]:
        if self._blocks is None:  # kept for a reader that reads block by block
            self._blocks = self._compute()
        return self._blocks

    def __len__(self) -> int:
        return len(self._read())

    def __iter__(self) -> Iterator[Block]:
        return iter(self._read())

    def __getitem__(self, index: Any) -> Any:
        return self._read()[index]
