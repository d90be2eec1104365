"""Arrays that are made when they are first read.

A model is larger than a device, and where its arrays lie is said after it is built, by the names
that they have in it. So an initialiser returns an array of a shape, a dtype and a layout whose
blocks nobody has made. Whoever reads them makes them; if the array is moved before, each device
makes its own shards of the new layout, and nothing is sent.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from gdt.array.array import DistributedArray
from gdt.array.deferred import DeferredBlocks
from gdt.comm.notes import unnoted
from gdt.observe import OBSERVERS, observing_only
from gdt.sharding.array_type import ArrayType
from gdt.sharding.layout import Layout

Block = Any
Shape = tuple[int, ...]
Make = Callable[[Shape, Layout], DistributedArray]
"""A function of a shape and a layout on one mesh: equal values, in C order, in every shape of as
many elements and on every layout."""


def made_when_read(array_type: ArrayType, make: Make) -> DistributedArray:
    """Return an array of a type with nothing partial, which is `make(shape, layout)`, made when it
    is read; at once in a recorded step, whose replays make it too.

    make: a function which any thread may call at any time, and again: it draws from no generator,
        and sends nothing.
    """
    if any(o.wants_runs and not o.wants_making for o in OBSERVERS.get()):
        return make(array_type.shape, array_type.layout)
    array = DistributedArray(array_type, ())
    array.blocks = UnmadeBlocks(array, make)
    return array


def moved_unmade(
    x: DistributedArray, layout: Layout, shape: Shape | None = None
) -> DistributedArray | None:
    """Return `x` in another layout on its mesh, and in another shape if there is one, if nobody has
    read it; else None."""
    blocks = x.blocks
    if type(blocks) is not UnmadeBlocks or layout.mesh is not x.mesh:
        return None
    array_type = ArrayType.of(x.shape if shape is None else shape, x.dtype, layout)
    return made_when_read(array_type, blocks.make)


class UnmadeBlocks(DeferredBlocks):
    """A stand-in for the blocks of an array, which are made when they are read."""

    make: Make
    array_type: ArrayType
    array: weakref.ref[DistributedArray]

    def __new__(cls, array: DistributedArray, make: Make) -> UnmadeBlocks:
        unmade = super().__new__(cls)
        unmade.array, unmade.array_type, unmade.make = weakref.ref(array), array.type, make
        return unmade

    def _compute(self) -> Sequence[Block]:
        # Tapes and steps know the array by identity, not by the ops that make it.
        observers = [o for o in OBSERVERS.get() if o.wants_making]
        with observing_only(*observers), unnoted():
            blocks = self.make(self.array_type.shape, self.array_type.layout).blocks
        array = self.array()
        if array is not None and array.blocks is self:
            array.blocks = blocks
        return blocks
