"""The notes of a program of several processes, which its graphs do not make: see
`gdt.comm.agreement`.

Processes may launch the graphs of a step, run its plans or its own code at different times, and
compare what they note. So with each launch the notes of the plans are made, in the program's order,
with the numbers that the host has computed. Those of collectives name the notes of the ops that
have made what they combine. What the host waits in runs as plans, and notes itself.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from gdt.comm.agreement import HISTORIES, Action, Maker, held_notes
from gdt.comm.notes import makers_of, notes_here, unnoted
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
    before the rest sends something, or what the host waits in would note a number that it gets in
    the memory of a device; and where an output has the blocks of an input, or a state those of
    another output: processes tell arrays apart by their blocks, of which graphs have copies.

    values: the blocks or the scalar that each register held then. states: the numbers of the
    outputs that overwrite inputs.
    """
    draws = [k for k in program.instructions if k.is_draw]
    drawn = {r for k in draws for r in k.outputs if isinstance(values[r], HOST)}
    outputs = Counter(identity(values[r]) for r in program.outputs)
    is_copied = any(identity(values[r]) in outputs for r in program.inputs) or any(
        outputs[identity(values[program.outputs[n]])] > 1 for n in states
    )
    is_late = any(k.communicates for k in draws) or any(
        k.waits and k.plan is None and drawn & {*k.inputs} for k in program.instructions
    )
    return notes_here() and not is_copied and not is_late


class OwnNote(NamedTuple):
    """A note of an instruction.

    numbers: as recorded. drawn: for those that the host draws, by their place, the number of the
    draw and of the result of that draw. makers: of a collective, for each of its numbers, which are
    those of makers, the place where it is found. place: where the number of this note is put for
    others to name it, or -1.
    """

    action: Action
    numbers: Sequence[Any]
    drawn: tuple[tuple[int, tuple[int, int]], ...] = ()
    makers: tuple[int, ...] = ()
    place: int = -1


class ProgramNotes:
    """The notes of a program.

    values: the blocks or the scalar that each register held when the program was recorded.
    given: the numbers of the inputs whose makers are named.
    named: for each instruction in which the host waits, in order, the registers that it reads whose
        blocks were made by ops that are noted here; at last, of the outputs of the program, the
        numbers of such ones.
    is_complete: whether it is known of each block that a collective combines what makes it.
    """

    def __init__(self, program: Program, values: Sequence[Value]) -> None:
        # By register. Blocks that are gone had other identities than those that an instruction
        # reads, as all of these were alive together.
        self._identities = identities = [*map(identity, values)]
        draws = [k for k in program.instructions if k.is_draw]
        self._origin = {r: (n, i) for n, k in enumerate(draws) for i, r in enumerate(k.outputs)}
        # Before each such instruction and at the end, notes, or the numbers of draws that have made
        # some; and places in `_numbers`, of the notes that name what is named there.
        self._parts: list[list[OwnNote | int]] = [[]]
        self._places: list[list[int]] = []
        self.given: list[int] = []
        self.named: list[list[int]] = []
        self.is_complete = True
        self._results: list[Sequence[Any]] = []  # of draws, in this call
        self._held: list[list[tuple[Action, Sequence[Any]]]] = []  # the notes that each has made
        # 0, for what no op makes; then those of the makers of inputs, and of notes that are named,
        # in the last call.
        self._numbers = [0]
        inputs = {identities[r]: n for n, r in enumerate(program.inputs)}
        makers: dict[int, int] = {}  # by the identity of a block, a place in `_numbers`
        for k in program.instructions:
            for maker in [x for _, numbers in k.notes for x in numbers if isinstance(x, Maker)]:
                if maker.block in inputs and self._reads(k, maker.block):
                    makers[maker.block] = self._new_place()
                    self.given.append(inputs.pop(maker.block))
        numbers_of_draws = itertools.count()
        for k in program.instructions:
            if k.is_draw:
                self._parts[-1].append(next(numbers_of_draws))
            elif k.waits:
                self._name({r: makers.get(identities[r], -1) for r in k.inputs})
                for r in k.named:  # these it names itself
                    makers.pop(identities[r], None)
                self._parts.append([])
            else:
                self._parts[-1] += self._notes_of(k, makers)
        self._name({n: makers.get(identities[r], -1) for n, r in enumerate(program.outputs)})

    def _new_place(self) -> int:
        self._numbers.append(0)
        return len(self._numbers) - 1

    def _notes_of(self, k: Instruction, makers: dict[int, int]) -> list[OwnNote]:
        """The notes of an instruction. makers: to which it adds what it makes."""
        identities = self._identities
        drawn = {identities[r]: self._origin[r] for r in k.inputs if r in self._origin}
        notes = [
            OwnNote(
                action,
                numbers,
                tuple([(at, drawn[id(x)]) for at, x in enumerate(numbers) if id(x) in drawn]),
            )
            for action, numbers in k.notes
        ]
        first = k.last_note - len(notes) + 1
        for n, note in enumerate(notes):
            if not all(isinstance(x, Maker) for x in note.numbers):
                continue
            places = []
            for maker in note.numbers:
                place = 0
                if maker.block in makers and self._reads(k, maker.block):
                    place = makers[maker.block]
                elif first <= maker < first + n:  # made by the instruction itself
                    own = maker - first
                    if notes[own].place < 0:
                        notes[own] = notes[own]._replace(place=self._new_place())
                    place = notes[own].place
                elif maker:
                    self.is_complete = False
                places.append(place)
            notes[n] = notes[n]._replace(makers=tuple(places))
        if k.named:
            if notes[-1].place < 0:
                notes[-1] = notes[-1]._replace(place=self._new_place())
            makers |= {identities[r]: notes[-1].place for r in k.named}
        return notes

    def _reads(self, k: Instruction, block: int) -> bool:
        """Whether an instruction reads the block of that identity."""
        return any(self._identities[r] == block for r in k.inputs)

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

    def begin(self, blocks: Sequence[Any]) -> None:
        """Begin a call. blocks: the first ones of the inputs `given`."""
        self._numbers[1 : 1 + len(blocks)] = makers_of(blocks)

    def make(self, part: int, blocks: Iterable[Any]) -> None:
        """Make the notes of a part: before a wait of that number, or at the end.

        blocks: the first ones of what is named then."""
        for history in HISTORIES:
            notes: list[tuple[Action, Sequence[Any]]] = []
            for note in self._parts[part]:
                if isinstance(note, int):
                    notes += self._held[note]
                    continue
                action, numbers, drawn, makers, place = note
                if makers:
                    numbers = [*map(self._numbers.__getitem__, makers)]
                elif drawn:
                    numbers = [*numbers]
                    for at, (draw, result) in drawn:
                        numbers[at] = self._results[draw][result]
                notes.append((action, numbers))
                if place >= 0:
                    self._numbers[place] = history.count + len(notes)
            history.add_all(notes)
            numbers_of_makers = map(self._numbers.__getitem__, self._places[part])
            history.set_makers(zip(blocks, numbers_of_makers, strict=True))
