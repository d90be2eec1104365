"""Arrays of a tape's record whose values no gradient function reads, and whose memory is freed.

A product before its bias, a sum before the next layer, a partial sum and its resolved value: their
gradients take the types of these arrays alone, as ops declare by `vjp(..., reads=)`. The record
tells arrays apart by identity, so it keeps the array, and lets go of its blocks as soon as nobody
else refers to the array.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from sys import getrefcount
from typing import Any

from gdt.array.array import DistributedArray
from gdt.array.deferred import DeferredBlocks
from gdt.backend.numpy import ONE_REFERENCE
from gdt.engine.differentiable import Differentiable
from gdt.engine.forms import Forms
from gdt.errors import GradientError, error
from gdt.sharding.dtypes import INEXACT

LARGE = 1 << 16
"""The bytes of a shard from which on an array is freed: ops on smaller ones take little longer than
asking who refers to them."""


class FreedBlocks(DeferredBlocks):
    """A stand-in for the blocks of an array that only a tape's record refers to."""

    def _compute(self) -> Sequence[Any]:
        raise error(
            GradientError,
            "values are read of an array to which only a tape referred: they are freed",
            remedy="A gradient function names what it reads in its op's vjp(..., reads=), or "
            "leaves reads= out; others hold the array itself, and no weak reference to it.",
        )


FREED = FreedBlocks()


class _Entry:
    """An array, and the number of the record's references to it.

    resolved: the entry of its resolved value, once it has one. is_resolved: whether this array is
    the resolved value of one that may still be read.
    """

    __slots__ = ("array", "is_resolved", "references", "resolved")

    def __init__(self, array: DistributedArray, is_resolved: bool = False) -> None:
        self.array, self.references = array, 1
        self.resolved: _Entry | None = None
        self.is_resolved = is_resolved

    def is_alone(self) -> bool:
        """Whether nobody but the record refers to the array."""
        # What is counted is in no variable, as in `gdt.engine.ownership`.
        return not self.is_resolved and getrefcount(self.array) == ONE_REFERENCE + self.references

    def free(self, forms: Forms) -> None:
        """Let go of the blocks of the array, unless it is a view of another that has them, and of
        what an op has moved of them."""
        forms.discard(self.array)
        if type(self.array._shared) is not tuple and not isinstance(
            self.array.blocks, DeferredBlocks
        ):
            self.array.blocks = FREED
        if self.resolved is not None:
            self.resolved.is_resolved = False


class UnreadArrays:
    """The large arrays of a record whose values no gradient of its calls reads so far.

    entries: by the identity of the array, without those whose memory has been freed.
    """

    def __init__(self) -> None:
        self.entries: dict[int, _Entry] = {}

    def note(self, op: Any, args: tuple[Any, ...], out: Any, forms: Forms) -> tuple[Any, ...]:
        """Take up the call `out = op(*args)`, and free what the record alone holds.

        Return the operands for the record: the resolved value of an array that is read, if it has
        one, so that nobody reads its parts. forms: of arrays; they are freed with these.
        """
        read, entries = _read(op, args), self.entries
        self._take_up_resolved()
        if read is not None and isinstance(op, Differentiable):  # others may read parts as well
            args = tuple([self._to_read(x) if n in read else x for n, x in enumerate(args)])
        for position, x in enumerate(args):
            if (entry := entries.get(id(x))) is None:
                continue
            if read is None or position in read:
                self._remove(entry)
            else:
                entry.references += 1
        if read is not None:
            for n, x in enumerate(out if type(out) is tuple else (out,)):
                if (entry := entries.get(id(x))) is not None:
                    entry.references += 1
                elif -1 - n not in read and x.type.local_nbytes >= LARGE:
                    entries[id(x)] = _Entry(x)
        while alone := [key for key, entry in entries.items() if entry.is_alone()]:
            for key in alone:
                entries.pop(key).free(forms)
        return args

    def _take_up_resolved(self) -> None:
        """Take up the resolved values of arrays, before the first call that can have them."""
        for entry in list(self.entries.values()):
            is_partial = any(entry.array.type.layout.reductions)
            if is_partial and entry.resolved is None and entry.array._resolved is not None:
                own = entry.resolved = _Entry(entry.array._resolved, is_resolved=True)
                self.entries[id(own.array)] = own

    def _to_read(self, x: Any) -> Any:
        """Return the resolved value of an operand, if it has one; else the operand."""
        entry = self.entries.get(id(x))
        return x if entry is None or entry.resolved is None else entry.resolved.array

    def _remove(self, entry: _Entry) -> None:
        """Remove an array that is read, and its resolved value."""
        del self.entries[id(entry.array)]
        if entry.resolved is not None:
            self.entries.pop(id(entry.resolved.array), None)


def _read(op: Any, args: Sequence[Any]) -> Collection[int] | None:
    """Return what the gradients of a call read, as `Differentiable.reads` numbers it; None if that
    may be everything."""
    if op.joint_vjp is None and not op.vjps:
        return ()  # there is no gradient through it
    if op.reads is None:
        return None
    if op.joint_vjp is not None:
        return op.reads[0]  # type: ignore[no-any-return]
    read: set[int] = set()
    for x, positions in zip(args, op.reads, strict=False):
        if type(x) is DistributedArray and x.type.dtype.kind in INEXACT:
            read |= positions
    return read
