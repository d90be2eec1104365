"""Programs: what ran on blocks, recorded once, and run again without types, dispatch or tape.

A `Recorder` notes which functions made which blocks out of which; a `Program` is what of that is
needed for some of the blocks, as one Python function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

from gdt.engine.source import Expression, Names, NewMemory, define, in_place, memory_of, written
from gdt.programs.instruction import Instruction, Value

PROGRAM_FILE = "<gdt program>"


class Program:
    """A recorded computation as one Python function of the values of its input registers.

    `source` is its text, a line for each plan that runs. `run` takes the values of the registers
    `inputs`, then for each of the registers `donated` a list that says which of its blocks may be
    overwritten, and returns a tuple of outputs. `at_line` maps a line of the source to its
    instruction.
    aliases: for each register, the registers that may share its memory. alone: the registers that
    share their memory with no other. takes_list: whether `run` takes its values in a list, which it
    empties, so that the memory of each is free after its last use.
    """

    def __init__(
        self,
        instructions: Sequence[Instruction],
        inputs: Sequence[int],
        outputs: Sequence[int],
        constants: Mapping[int, Any],
        replaced: Set[int],
        alone: Set[int],
        aliases: Sequence[Set[int]],
        *,
        takes_list: bool = False,
    ) -> None:
        self.instructions, self.outputs, self.aliases = instructions, outputs, aliases
        self.constants, self.replaced = constants, replaced
        self.inputs = list(dict.fromkeys(inputs))
        self.at_line: dict[int, Instruction] = {}
        self.donated: list[int] = []
        self._memory: dict[int, NewMemory] = {}  # by register, where it is known
        self._last = {r: at for at, k in enumerate(instructions) for r in (*k.inputs, *k.outputs)}
        ends: dict[int, list[int]] = {}
        for register in self._last.keys() - {*outputs, *constants}:
            ends.setdefault(self._last[register], []).append(register)

        def name(register: int) -> str:
            return f"{'c' if register in constants else 'r'}{register}"

        flags = {f"free{r}" for k in instructions for r in k.donated}
        namespace = Names(
            ["run", "values", *map(name, self._last.keys() | {*self.inputs, *outputs}), *flags]
        )
        namespace.update({name(r): value for r, value in constants.items()})
        lines = []
        if takes_list:
            lines = [f"[{', '.join(map(name, self.inputs))}] = values", "values.clear()"]
        for at, k in enumerate(instructions):
            if k.fused:
                apart, together = k.nbytes
                lines.append(f"# one loop, of {together:,} bytes read and written, not {apart:,}:")
                lines += [f"# {name(f.outputs[0])} = {_shown(f, name)}" for f in k.fused]
            lines.append(self._line(k, at, name, namespace, alone))
            self.at_line[len(lines) + 1] = k
            if at in ends:
                lines.append(f"del {', '.join(map(name, ends[at]))}")
        lines.append(f"return ({''.join(f'{name(r)}, ' for r in outputs)})")
        values = ["values"] if takes_list else map(name, self.inputs)
        parameters = [*values, *[f"free{r}" for r in self.donated]]
        run = define(f"run({', '.join(parameters)})", lines, namespace, PROGRAM_FILE)
        self.run: Callable[..., tuple[Value, ...]] = run
        self.source: str = run.source

    def _line(
        self,
        k: Instruction,
        at: int,
        name: Callable[[int], str],
        namespace: Names,
        alone: Set[int],
    ) -> str:
        """The source of instruction `at`. name: a function from a register to its variable."""
        results = ", ".join(map(name, k.outputs)) + "," * (k.several and len(k.outputs) == 1)
        results = results or "()"  # of an instruction that makes nothing
        operands, flags = [*map(name, k.inputs)], self._flags(k, at, alone)
        expression = getattr(k.function, "expression", None)
        if expression is not None:
            expression = self._in_place(expression, k, at, alone)
            call = written(expression, operands + flags, namespace)
        elif k.donated:
            function = namespace.add(k.name, k.function)
            call = f"{function}(({', '.join(operands)},), ({', '.join(flags)},))"
        else:
            call = f"{namespace.add(k.name, k.function)}({', '.join(operands)})"
        return f"{results} = {call}"

    def _in_place(
        self, expression: Expression, k: Instruction, at: int, alone: Set[int]
    ) -> Expression:
        """The expression of instruction `at`, with the memory of an operand that is not read again
        in the place of new memory, where it can be: what was used last is still in the cache."""
        free = {
            n: self._memory[r]
            for n, r in enumerate(k.inputs)
            if r in self._memory
            and r in alone
            and self._last[r] == at
            and len(self.aliases[r]) == 1
        }
        memory = memory_of(expression)
        if memory is not None and len(k.outputs) == 1:
            self._memory[k.outputs[0]] = memory
        return in_place(expression, free)

    def _flags(self, update: Instruction, at: int, alone: Set[int]) -> list[str]:
        """For each donated operand of an update, the source of whether it may be overwritten.

        It may not if a later instruction or another operand of the update reads its memory.
        """
        flags = []
        for r in update.donated:
            free = r in self.replaced and self._ends(r, at) and self._is_read_once(r, update)
            flags.append(f"free{r}" if free else "False")
            self.donated += [r] * free
        if update.scratch >= 0:
            last = self._last[update.scratch] == at and self._is_read_once(update.scratch, update)
            flags.append(str(update.scratch in alone and last))
        return flags

    def _is_read_once(self, register: int, update: Instruction) -> bool:
        """Whether only one operand of an update is the memory of a register."""
        return sum(r in self.aliases[register] for r in update.inputs) == 1

    def _ends(self, register: int, at: int) -> bool:
        """Whether nothing after instruction `at` reads the memory of a register, also by views."""
        same = self.aliases[register]
        return same.isdisjoint(self.outputs) and all(self._last.get(r, at) <= at for r in same)


def _shown(k: Instruction, name: Callable[[int], str]) -> str:
    """An instruction of which a loop computes the elements, as a call."""
    return f"{k.name}({', '.join(map(name, k.inputs))})"
