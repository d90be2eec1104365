"""The memory that the blocks of a program take on one device, counted while it runs."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gdt.array.array import DistributedArray
from gdt.observe import Observer, observing
from gdt.state import slots
from gdt.state.trees import Tree, leaves


class PeakMemory(Observer):
    """The bytes of blocks on the first device of this process: now, and at most so far.

    Views count with all the memory that they keep, once; recycled memory may be an eighth larger
    than the block in it. The memory that an op takes while it runs is not seen.
    """

    wants_parts = True
    wants_runs = True
    wants_making = True

    def __init__(self) -> None:
        self.peak = 0
        self._views: dict[int, weakref.ref[Any]] = {}

    def add(self, block: Any) -> None:
        """Count a block as long as somebody holds it."""
        if hasattr(block, "dtype"):
            self._views[id(block)] = weakref.ref(block)

    def add_arrays(self, tree: Tree) -> None:
        """Count the blocks of the arrays of a tree. Nothing here refers to them afterwards, since
        an update overwrites only what its optimizer and model alone hold."""
        if isinstance(tree, list | tuple | dict):
            arrays = list(leaves(tree))
        else:
            arrays = [slot.value for slot in slots(tree)]
        for x in arrays:
            if isinstance(x, DistributedArray):
                self.add(x.blocks[0])

    @property
    def now(self) -> int:
        """The bytes that blocks take now."""
        sizes: dict[int, int] = {}
        for key, reference in list(self._views.items()):
            block = reference()
            if block is None:
                del self._views[key]
            else:
                owner = block if getattr(block.base, "nbytes", None) is None else block.base
                sizes[id(owner)] = owner.nbytes
        return sum(sizes.values())

    def on_op(self, op: Any, args: tuple[Any, ...], static: dict[str, Any], out: Any) -> None:
        for array in out if isinstance(out, tuple) else (out,):
            self.add(array.blocks[0])
        self.peak = max(self.peak, self.now)

    def on_run(
        self,
        name: str,
        function: Callable[..., Any],
        inputs: Sequence[Any],
        outputs: Sequence[Sequence[Any]],
        op: Any = None,
    ) -> None:
        for blocks in outputs:
            self.add(blocks[0])
        self.peak = max(self.peak, self.now)


@contextmanager
def peak_memory(*trees: Tree) -> Iterator[PeakMemory]:
    """Count the bytes of the blocks that the first device of this process holds in this `with`
    block: those of arrays in `trees`, and of all that the block computes.

    On a mesh with one block per coordinate these are the bytes of one device of many.

    >>> mesh = gdt.create_mesh([("data", 4)], blocks=4)
    >>> x = gdt.ones((8, 8), layout=gdt.Layout(["data", None], mesh))
    >>> with gdt.testing.peak_memory([x]) as memory:
    ...     whole = gdt.relayout(x, [None, None])
    >>> x.nbytes // 4, memory.peak
    (128, 640)
    """
    memory = PeakMemory()
    for tree in trees:
        memory.add_arrays(tree)
    memory.peak = memory.now
    with observing(memory):
        yield memory
