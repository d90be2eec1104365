"""Instructions: what a program does in each of its steps, and what its registers hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from gdt.array.array import DistributedArray
from gdt.comm.agreement import Action
from gdt.engine.plan import Plan
from gdt.sharding.array_type import ArrayType

Block = Any
Value = Any  # the block of an array, or the tuple of its blocks where it has several


class Instruction(NamedTuple):
    """A call of `function`, with the numbers of the registers that it reads and writes.

    several: whether it returns a tuple of results, one for each register. donated: for an update,
    the registers that it may overwrite; an update is called with a tuple of its inputs and a tuple
    of flags. scratch: the register that an update may use up, or -1. plan: the plan of an update.
    is_effect: whether it runs even if nothing reads its outputs. views: the inputs whose memory the
    outputs may share. communicates: whether devices send each other data in it, or wait for data.
    waits: whether the host waits for data then, which tell it what to send. line: the user's line
    that it comes from. fused: the instructions in whose place it is. nbytes: the bytes that these
    would read and write, and the bytes that it does. notes: what it notes for processes to compare.
    last_note: the number of the last of these, when it was recorded. named: the outputs that notes
    of collectives name by its last note.
    """

    name: str
    function: Callable[..., Any]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    several: bool
    donated: tuple[int, ...] = ()
    scratch: int = -1
    is_effect: bool = False
    views: tuple[int, ...] = ()
    communicates: bool = False
    waits: bool = False
    line: str = ""
    plan: Plan | None = None
    fused: tuple[Instruction, ...] = ()
    nbytes: tuple[int, int] = 0, 0
    notes: tuple[tuple[Action, Sequence[Any]], ...] = ()
    last_note: int = 0
    named: tuple[int, ...] = ()

    @property
    def is_draw(self) -> bool:
        """Whether the host computes what it makes or notes, and nothing in registers."""
        return self.is_effect and not self.inputs


def value_of(array: DistributedArray) -> Value:
    """The value of a register that holds an array: its block, or a tuple of several blocks."""
    blocks = array.blocks  # without a call: gradients ask for each of their inputs
    return blocks[0] if len(blocks) == 1 else tuple(blocks)


def value_of_blocks(blocks: Sequence[Block]) -> Value:
    """The value of a register that holds an array with these blocks."""
    return blocks[0] if len(blocks) == 1 else tuple(blocks)


def array_of(array_type: ArrayType, value: Value) -> DistributedArray:
    """The array of `array_type` with the blocks that a register holds."""
    return DistributedArray(array_type, value if isinstance(value, tuple) else (value,))
