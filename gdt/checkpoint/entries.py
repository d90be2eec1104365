"""The entries of a checkpoint: arrays and counters by name, and their dtypes in a file."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any, NamedTuple

import numpy as np

from gdt.arguments import shown_value
from gdt.checkpoint.checksums import Bounds
from gdt.comm.notes import connected, decided, decided_with_lines
from gdt.errors import CheckpointError, error
from gdt.sharding import processes
from gdt.state import Slot, slots
from gdt.state.trees import Tree

CODES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32",
    "int32": "I32", "uint64": "U64", "int64": "I64", "float16": "F16", "float32": "F32",
    "float64": "F64", "complex64": "C64", "bfloat16": "BF16",
}  # fmt: skip
DTYPES = {code: name for name, code in CODES.items()}

Index = tuple[slice, ...]
Pieces = dict[Bounds, np.ndarray]  # parts of an array of a file, by their bounds


def entries_of(tree: Tree) -> list[Slot]:
    """Return the slots of a tree's arrays and counters.

    Raises CheckpointError, which lists all other values of the tree, and if there is no slot.
    """
    others: list[str] = []
    places = list(slots(tree, lambda name, value: others.append(_described(name, value))))
    remedy = "A tree holds Modules, Optimizers, arrays and ints in dicts and lists"
    if others:
        raise error(
            CheckpointError,
            "a checkpoint cannot hold\n  " + "\n  ".join(others),
            remedy=f"{remedy}: use gdt.asarray or int, and leave out what is no state.",
        )
    if not places:
        problem = f"{_described('', tree)} holds no array and no counter"
        raise error(CheckpointError, problem, remedy=f"{remedy}.")
    return places


def _described(name: str, value: Any) -> str:
    """Return a value as an error lists it: `model.rate: 0.5`, `state: a TrainState`."""
    if isinstance(value, np.ndarray):
        text = f"a NumPy array, {value.dtype}{list(value.shape)}"
    else:
        text = shown_value(value)
    if not name:
        return text
    return f"{name}: {text} in a tuple" if type(value) is int else f"{name}: {text}"


def of_first_process(value: Any) -> Any:
    """Return the value that process 0 passes."""
    messages = connected()
    return value if messages is None else messages.broadcast(value)


class Unlike(NamedTuple):
    """A process that passes another value than process 0, by its index: both values, and for errors
    both processes with the user's lines."""

    process: int
    first: Any
    other: Any
    sides: list[tuple[str, str]]


def unlike(value: Any, what: str) -> Unlike | None:
    """Return the first process that passes another value than process 0; None if all are alike.

    Their checksums are compared, and where they differ two values travel: so much for every process
    however many there are. value: numbers and texts in dicts, tuples and lists.
    """
    count = processes.current().count

    def first_other(sums: list[str], sides: list[tuple[str, str]]) -> Any:
        others = [i for i, other in enumerate(sums) if other != sums[0]]
        return (others[0], [sides[0], sides[others[0]]]) if others else None

    checksum = hashlib.sha256(json.dumps(value).encode()).hexdigest()
    found = decided_with_lines(count, checksum, first_other, what)
    if found is None:
        return None
    i, sides = found
    own = value if processes.current().index in (0, i) else None
    first, other = decided(count, own, lambda values: (values[0], values[i]), what)
    return Unlike(i, first, other, sides)


def shape_of(value: Any) -> tuple[int, ...]:
    """The shape that a file has for an array, or for a counter."""
    return () if isinstance(value, int) else value.shape


def dtype_of(value: Any) -> np.dtype:
    """The dtype that a file has for an array, or for a counter; little-endian."""
    return np.dtype("<i8") if isinstance(value, int) else value.dtype.newbyteorder("<")


def nbytes_of(value: Any) -> int:
    """The bytes of an array, or of a counter, in a file."""
    return math.prod(shape_of(value)) * dtype_of(value).itemsize
