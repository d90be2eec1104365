"""What processes must do alike though nothing is sent: make arrays of the same type and contents.

Each keeps its own part of an array, so different wholes need not show in what they send. Every
array that is made is noted, and messages carry the newest notes and a checksum of all.
"""

from __future__ import annotations

import zlib
from collections import deque
from functools import lru_cache
from typing import Any

import numpy as np

from gdt.sharding.array_type import ArrayType

NEWEST = 8  # notes that travel with every message, so that an error can name the array
WHOLE = 1 << 16  # bytes up to which contents are compared whole
PIECES, PIECE = 64, 1 << 10  # of larger arrays, this many evenly spaced pieces of so many bytes

SHOWN = 3  # types of arrays that are moved together

FIX = (
    "Every process makes the same arrays, in the same order, each from the whole shape and the "
    "whole value, of which it keeps its share. An array of the parts that processes have, such as "
    "their own batches, is made by gdt.pack(parts, layout); gdt.distributed.broadcast gives all "
    "what process 0 has."
)


class ArrayLog:
    """The arrays that this process has made on meshes of several processes."""

    def __init__(self) -> None:
        self.count, self.checksum = 0, 0
        self.newest: deque[str] = deque(maxlen=NEWEST)
        self.text = "no arrays"  # what messages carry

    def add(self, note: str) -> None:
        """Note an array."""
        self.count += 1
        self.checksum = zlib.crc32(note.encode(), self.checksum)
        self.newest.append(f"array {self.count}: {note}")
        self.text = "\n".join([f"{self.checksum:08x} after {self.count} arrays", *self.newest])


def contradiction(own: str, other: str, same_step: bool) -> tuple[str, str] | None:
    """The first array that the histories of two processes tell differently; None if there is none.
    That one goes on longer tells something only of processes that take the same step."""
    if own == other:
        return None
    all_of_them, *ours = own.split("\n")
    of_other, *theirs = other.split("\n")
    of_number = {note.split(":")[0]: note for note in theirs}
    pairs = [(note, of_number.get(note.split(":")[0], note)) for note in ours]
    for pair in pairs:
        if pair[0] != pair[1]:
            return pair
    if ours and theirs and ours[-1] == theirs[-1]:  # the one that differs is not among the newest
        return f"checksum {all_of_them}", f"checksum {of_other}"
    if not same_step:
        return None
    return (ours or [all_of_them])[-1], (theirs or [of_other])[-1]


@lru_cache(maxsize=1024)
def described(name: str, array_type: ArrayType) -> str:
    """An array of that type, and the public function that was given its value."""
    given = f", given to {name}" if name else ""
    return f"{array_type} on {array_type.mesh} as {array_type.mesh.grid}{given}"


@lru_cache(maxsize=256)
def whole_arrays(types: tuple[ArrayType, ...]) -> str:
    """The types of arrays that travel together; of many, the first and a checksum of all."""
    if not types:
        return ""
    named = [str(kind) for kind in types]
    if len(named) <= SHOWN:
        return f" of {', '.join(named)}"
    checksum = zlib.crc32("\n".join(named).encode())
    return f" of {', '.join(named[:SHOWN])} and {len(named) - SHOWN} more ({checksum:08x})"


def digest(value: Any) -> str:
    """What stands for the contents of a host's array, so that processes can compare them; nothing
    for arrays on GPUs, for which the host would have to wait."""
    if not isinstance(value, np.ndarray):
        return ""
    if value.nbytes <= WHOLE:
        return f", contents {zlib.crc32(np.ascontiguousarray(value).tobytes()):08x}"
    checksum, length = 0, max(1, PIECE // value.itemsize)
    for start in np.linspace(0, value.size - length, PIECES, dtype=np.int64).tolist():
        checksum = zlib.crc32(value.flat[start : start + length].tobytes(), checksum)
    return f", contents {checksum:08x}"
