"""The notes of a program of several processes, which its graphs do not make: see
`gdt.comm.agreement`.

Processes may launch the graphs of a step, run its plans or its own code at different times, and
compare what they note. So between launches the notes of the plans are made, in the program's order,
with the numbers that the host has computed; collectives, which run as plans, note themselves.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from gdt.comm.agreement import HISTORIES, Action, held_notes
from gdt.comm.notes import notes_here, unnoted
from gdt.engine.plan import HOST
from gdt.programs.aliases import blocks_of
from gdt.programs.instruction import Instruction, Value
from gdt.programs.program import Program


def identity(value: Value) -> int:
    """The identity of the first block of an array, by which notes name it; of a scalar, its own."""
    return id(blocks_of(value)[0])


def can_note(program: Program, values: Sequence[Value], states: Iterable[int]) -> bool:
    """Whether graphs of a program can make the notes of its plans.

    They cannot where it has been recorded in a thread whose actions are not noted; where what runs
    before the rest sends something, or a collective would note a number that it gets in the memory
    of a device; and where an output has the blocks of an input, or a state those of another output:
    processes tell arrays apart by their blocks, of which graphs have copies.

    values: the blocks or the scalar that each register held then. states: the numbers of the
    outputs that overwrite inputs.
    """
    draws = [k for k in program.instructions if k.is_draw]
    drawn = {r for k in draws for r in k.outputs if isinstance(values[r], HOST)}
    collectives = [k for k in program.instructions if k.communicates]
    outputs = Counter(identity(values[r]) for r in program.outputs)
    is_copied = any(identity(values[r]) in outputs for r in program.inputs) or any(
        outputs[identity(values[program.outputs[n]])] > 1 for n in states
    )
    is_late = any(k.is_draw or (k.plan is None and drawn & {*k.inputs}) for k in collectives)
    return notes_here() and not is_copied and not is_late


class OwnNote(NamedTuple):
    """A note of an instruction.

    numbers: as recorded. drawn: for those that the host draws, by their place, the number of the
    draw and of the result of that draw. place: where the number of this note is put for collectives
    to name it, or -1.
    """

    action: Action
    numbers: Sequence[Any]
    drawn: tuple[tuple[int, tuple[int, int]], ...]
    place: int


class ProgramNotes:
    """The notes of a program.

    values: the blocks or the scalar that each register held when the program was recorded.
    named: for each collective, in order, the registers that it reads whose blocks were made by ops
        that are noted here; at last, of the outputs of the program, the numbers of such ones.
    """

    def __init__(self, program: Program, values: Sequence[Value]) -> None:
        draws = [k for k in program.instructions if k.is_draw]
        origin = {r: (n, i) for n, k in enumerate(draws) for i, r in enumerate(k.outputs)}
        # Before each collective and at the end, notes, or the numbers of draws that have made some;
        # and places in `_numbers`, of the notes that name what is named there.
        self._parts: list[list[OwnNote | int]] = [[]]
        self._places: list[list[int]] = []
        self.named: list[list[int]] = []
        self._numbers: list[int] = []  # of notes that collectives name, in the last call
        self._results: list[Sequence[Any]] = []  # of draws, in this call
        self._held: list[list[tuple[Action, Sequence[Any]]]] = []  # the notes that each has made
        numbers_of_draws = itertools.count()
        makers: dict[int, int] = {}  # by the identity of a block, a place in `_numbers`
        for k in program.instructions:
            if k.is_draw:
                self._parts[-1].append(next(numbers_of_draws))
            elif k.communicates:
                self._name({r: makers.get(identity(values[r]), -1) for r in k.inputs})
                for r in k.named:  # these it names itself
                    makers.pop(identity(values[r]), None)
                self._parts.append([])
            else:
                drawn = {id(values[r]): origin[r] for r in k.inputs if r in origin}
                notes = [_own_note(action, numbers, drawn) for action, numbers in k.notes]
                if k.named:
                    makers |= {identity(values[r]): len(self._numbers) for r in k.named}
                    notes[-1] = notes[-1]._replace(place=len(self._numbers))
                    self._numbers.append(0)
                self._parts[-1] += notes
        outputs = enumerate(program.outputs)
        self._name({n: makers.get(identity(values[r]), -1) for n, r in outputs})

    def _name(self, places: Mapping[int, int]) -> None:
        """Add what is named at the end of a part, with the place of a number, or -1."""
        self.named.append([key for key, place in places.items() if place >= 0])
        self._places.append([place for place in places.values() if place >= 0])

    def draw(self, draws: Sequence[Instruction]) -> list[Any]:
        """Return what each draw returns; the notes that they make are held."""
        self._results, self._held = [], []
        with unnoted(), held_notes() as notes:
            for draw in draws:
                count = len(notes)
                self._results.append(draw.function())
                self._held.append(notes[count:])
        return self._results

    def make(self, part: int, blocks: Iterable[Any]) -> None:
        """Make the notes before collective number `part`; of the last part, those at the end.

        blocks: the first ones of what is named then."""
        for history in HISTORIES:
            notes: list[tuple[Action, Sequence[Any]]] = []
            for note in self._parts[part]:
                if isinstance(note, int):
                    notes += self._held[note]
                    continue
                action, numbers, drawn, place = note
                if drawn:
                    numbers = [*numbers]
                    for at, (draw, result) in drawn:
                        numbers[at] = self._results[draw][result]
                notes.append((action, numbers))
                if place >= 0:
                    self._numbers[place] = history.count + len(notes)
            history.add_all(notes)
            numbers_of_makers = [self._numbers[place] for place in self._places[part]]
            history.set_makers(zip(blocks, numbers_of_makers, strict=True))


def _own_note(
    action: Action, numbers: Sequence[Any], drawn: Mapping[int, tuple[int, int]]
) -> OwnNote:
    """A note of an instruction. drawn: by the identity of a number, its draw and place there."""
    places = [(at, drawn[id(x)]) for at, x in enumerate(numbers) if id(x) in drawn]
    return OwnNote(action, numbers, tuple(places), -1)
