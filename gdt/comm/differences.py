"""The first thing that two processes have done differently, found in their histories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

ToldNote = tuple[int, str, str, str, str]  # as `agreement.History.told` returns them

SAME_CALLS = (
    "Every process must make the same meshes, arrays and calls, in the same order: "
    "print and fetch in all of them, not in process 0 alone."
)
DIFFERENT_ARRAYS = (
    "the processes have called an op with different arrays",
    "Every process must pass the same arrays in the same places. #5 is the array that call 5 has "
    "made, #5.1 the next one.",
)
# What is wrong where two notes of one kind differ, and what to do about it.
DIFFERENCES = {
    "array": (
        "the processes have made different arrays",
        "Every process makes the same arrays, in the same order, each from the whole shape and the "
        "whole value, of which it keeps its share. An array of the parts that processes have, such "
        "as their own batches, is made by gdt.pack(parts, layout); gdt.distributed.broadcast gives "
        "all what process 0 has.",
    ),
    "draw": (
        "the processes have drawn different random numbers",
        "Seed all processes alike with gdt.random.seed, and draw with the same keys; "
        "gdt.distributed.broadcast gives all of them those of process 0.",
    ),
    "update": (
        "the processes have taken different steps of an optimizer",
        "Every process updates the same parameters, with the same learning rates and numbers.",
    ),
    "op": ("the processes have called different ops", SAME_CALLS),
    "dataflow": DIFFERENT_ARRAYS,
}
DIFFERENT_PROGRAMS = ("the processes run different programs", SAME_CALLS)


class Difference(NamedTuple):
    """The first thing in which two histories differ: what is wrong, what to do, and what each
    process has done."""

    problem: str
    remedy: str
    sides: tuple[str, str]


def difference(
    own: Mapping[str, Any], other: Mapping[str, Any], is_same_step: bool
) -> Difference | None:
    """The first note in which two histories, as `History.told` returns them, differ.

    is_same_step: whether both processes take the same step, so that neither may be ahead.
    """
    first = max(h["count"] - len(h["notes"]) + 1 for h in (own, other))
    numbered = [dict(enumerate(h["notes"], h["count"] - len(h["notes"]) + 1)) for h in (own, other)]
    for number in range(first, min(own["count"], other["count"]) + 1):
        notes = [notes[number] for notes in numbered]
        if notes[0][0] != notes[1][0]:
            kinds, texts, operands = [{note[i] for note in notes} for i in (1, 2, 3)]
            problem, remedy = DIFFERENCES[min(kinds)] if len(kinds) == 1 else DIFFERENT_PROGRAMS
            if len(texts) == 1 and len(operands) > 1:
                problem, remedy = DIFFERENT_ARRAYS
            before = "" if number > first or first == 1 else ", or earlier"
            call = _other_operands(numbered, number) if kinds == {"dataflow"} else number
            sides = [f"call {call}{before}: {''.join(notes[call][2:])}" for notes in numbered]
            return Difference(problem, remedy, (sides[0], sides[1]))
    if own["count"] == other["count"] or not is_same_step:
        return None
    number = min(own["count"], other["count"]) + 1
    notes = [notes.get(number) for notes in numbered]
    kind = next((note[1] for note in notes if note), "op")
    sides = [
        f"call {number}: {''.join(note[2:])}" if note else f"{step_text(h)}, without call {number}"
        for note, h in zip(notes, (own, other), strict=True)
    ]
    return Difference(*DIFFERENCES[kind], (sides[0], sides[1]))


def _other_operands(numbered: Sequence[Mapping[int, ToldNote]], end: int) -> int:
    """The number of the first op of other operands in two histories, in a step whose dataflow
    differs, as note `end` tells; that note itself where a replay has not told the operands."""
    first = number = end
    while all(number - 1 in notes for notes in numbered):
        number -= 1
        notes = [notes[number] for notes in numbered]
        if notes[0][1] == "dataflow":
            break
        if all(note[3] for note in notes) and notes[0][3] != notes[1][3]:
            first = number
    return first


def step_text(history: Mapping[str, Any]) -> str:
    """The step that a process takes, and the user's line."""
    return f"{history['step']}, {history['line']}"
