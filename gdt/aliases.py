"""Which registers of a program may share memory, so that an update of one would change another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gdt.program import Instruction


def aliases(values: Sequence[Any], instructions: Iterable[Instruction]) -> list[set[int]]:
    """Of every register, those that share its memory in some run, itself among them.

    values: what each register held when the instructions ran. What has the elements of its only
    operand counts as a view of it: a reshaping is one in one run and a copy in another, since
    arrays of one type may lie in memory differently.
    """
    groups = [{register} for register in range(len(values))]

    def join(one: int, other: int) -> None:
        if groups[one] is not groups[other]:
            groups[one] |= groups[other]
            for register in groups[other]:
                groups[register] = groups[one]

    first: dict[int, int] = {}
    for register, value in enumerate(values):
        for owner in owners_of(value):
            join(first.setdefault(id(owner), register), register)
    for k in instructions:
        operands = [r for r in k.inputs if _elements(values[r])]
        made = [_elements(values[r]) for r in k.outputs]
        if not k.donated and len(operands) == 1 and made == [_elements(values[operands[0]])]:
            join(operands[0], k.outputs[0])
    return groups


def owners_of(value: Any) -> list[Any]:
    """What owns the memory of each block that a register holds; of a scalar, that."""
    return [_owner(block) for block in _blocks(value)]


def _owner(block: Any) -> Any:
    """What owns the memory of an array, at the end of the chain of arrays that it is a view of."""
    while hasattr(base := getattr(block, "base", None), "dtype"):
        block = base
    return block


def _elements(value: Any) -> list[Any]:
    """How many elements of which dtype each block of an array has; of a scalar, nothing."""
    return [(b.size, b.dtype) for b in _blocks(value) if hasattr(b, "dtype")]


def _blocks(value: Any) -> tuple[Any, ...]:
    return value if type(value) is tuple else (value,)
