"""Find registers of a program that may share memory, where updating one would change another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

from gdt.comm.relayout import JOIN, RELAYOUT
from gdt.programs.instruction import Instruction


def aliases(values: Sequence[Any], instructions: Iterable[Instruction]) -> list[set[int]]:
    """For each register, the registers (itself included) that may share memory with it in some run.

    values: the blocks or the scalar that each register held when the instructions ran. A reshape is
    a view in one run and a copy in another, since arrays of one type may lie in memory differently.
    So every result that its op declares a view counts, whether it was one in this run or not.
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
        each = k.views == k.inputs and len(k.inputs) == len(k.outputs)  # to its own output
        each = each or k.name in (RELAYOUT, JOIN)  # a launch has one more output than inputs
        pairs = zip(k.inputs, k.outputs, strict=False) if each else product(k.views, k.outputs)
        for one, other in pairs:
            if _is_array(values[one]):
                join(one, other)
    return groups


def owners_of(value: Any) -> list[Any]:
    """The objects that own the memory of a register's blocks; for a scalar, the scalar itself."""
    return [_owner(block) for block in blocks_of(value)]


def _owner(block: Any) -> Any:
    """The array that owns the memory of a block: the last of the chain of `base` arrays."""
    while hasattr(base := getattr(block, "base", None), "dtype"):
        block = base
    return block


def _is_array(value: Any) -> bool:
    """Whether a register holds blocks, not a scalar."""
    return all(hasattr(block, "dtype") for block in blocks_of(value))


def blocks_of(value: Any) -> tuple[Any, ...]:
    """The blocks that a register holds."""
    return value if type(value) is tuple else (value,)


def nbytes_of(registers: Iterable[int], values: Sequence[Any]) -> int:
    """The bytes of the blocks of some registers."""
    return sum(getattr(b, "nbytes", 0) for r in registers for b in blocks_of(values[r]))
