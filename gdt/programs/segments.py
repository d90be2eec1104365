"""Programs in pieces: segments that only compute, which can be captured, and what moves data
between devices, which runs as it is."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gdt.programs.instruction import Instruction
from gdt.programs.program import Program


class Segment(NamedTuple):
    """Consecutive instructions of a program.

    communicates: whether they move data, or wait for that; then there is one. program: it or them,
    from registers that were there before to those that are read afterwards. ends: registers that
    nothing reads after it.
    """

    communicates: bool
    program: Program
    ends: frozenset[int]


def pieces(program: Program) -> list[Segment]:
    """The pieces of a program, in order. The last is a segment, which may be empty.

    An op that computes and communicates at once, as one that merges statistics of all devices, is a
    piece of its own that communicates.
    """
    instructions = program.instructions
    last = _last_reads(instructions, program.outputs)
    segments: list[Segment] = []
    for start, stop in _bounds(instructions):
        own = instructions[start:stop]
        outputs = [r for k in own for r in k.outputs]
        own_registers = {*outputs, *program.constants}
        inputs = dict.fromkeys(r for k in own for r in k.inputs if r not in own_registers)
        ends = frozenset(r for r in (*inputs, *outputs) if last.get(r, -1) < stop)
        part = Program(
            own,
            list(inputs),
            [r for r in outputs if r not in ends],
            {r: c for r, c in program.constants.items() if any(r in k.inputs for k in own)},
            {r for r in program.donated if start <= last[r] < stop},
            set(),
            program.aliases,
        )
        segments.append(Segment(any(k.communicates for k in own), part, ends))
    return segments


def _bounds(instructions: Sequence[Instruction]) -> Iterable[tuple[int, int]]:
    """The bounds (start, stop) of pieces."""
    moves = [k.communicates for k in instructions]
    starts = [i for i, is_move in enumerate(moves) if i == 0 or is_move or moves[i - 1]]
    if not moves or moves[-1]:
        starts.append(len(moves))
    return itertools.pairwise([*starts, len(moves)])


def _last_reads(instructions: Sequence[Instruction], outputs: Iterable[int]) -> dict[int, int]:
    """For each register that is read, the number of the last instruction that does; outputs are
    read after all of them."""
    last = {r: at for at, k in enumerate(instructions) for r in k.inputs}
    return last | dict.fromkeys(outputs, len(instructions))
