"""The recorder: which functions made which blocks out of which, noted while they ran.

A block is known by its identity, so everything that only wraps blocks (arrays, their types, trees
of them) is transparent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from functools import partial
from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.sent import SentBlocks
from gdt.backend import NUMPY
from gdt.comm.agreement import Action
from gdt.comm.notes import makers_of, note_count, notes_since
from gdt.comm.relayout import JOIN
from gdt.comm.transport import sent
from gdt.engine.op import Op
from gdt.engine.plan import Plan
from gdt.errors import FunctionError, error, line_of_user
from gdt.observe import Observer, observing_only
from gdt.ops.lookup import CHECK
from gdt.ops.movement import relayout
from gdt.programs.aliases import aliases, blocks_of, owners_of
from gdt.programs.fusing import fused
from gdt.programs.instruction import Instruction, Value, value_of, value_of_blocks
from gdt.programs.program import Program
from gdt.sharding import processes


class Recorder(Observer):
    """A recorder of the functions that make blocks from blocks."""

    wants_runs = True

    def __init__(self) -> None:
        self.instructions: list[Instruction] = []
        self.values: list[Any] = []  # of every register, alive so that no identity comes twice
        self.constants: set[int] = set()  # the registers that are the same in every run
        self.inputs: set[int] = set()
        self.unknown: set[int] = set()  # blocks that came from somewhere else
        self.met_host = False  # whether values came from the host, or were read by it
        self._registers: dict[Any, int] = {}
        self._told = sent(), note_count()
        self._sent = sent()
        self._has_waited = False  # the host, for a device since the last instruction
        self._settings = np.geterr()  # what is done about invalid values, around all of it

    def declare(self, array: DistributedArray) -> int:
        """The register of an array that is an input of the program."""
        register = self._register(array)
        self.inputs.add(register)
        return register

    def find(self, array: DistributedArray) -> int:
        """The register of an array."""
        return self._read(array)

    def find_sent(self, arrays: Sequence[DistributedArray]) -> tuple[list[int], list[int]]:
        """The registers of arrays, then of the launches that make those of them for which nobody
        has waited yet; and for each array the place of its launch among all of these, or -1.

        The recorder is told no more of the launches.
        """
        launches: list[Any] = []
        registers, places = [], []
        for array in arrays:
            blocks: Any = array.blocks
            launch = blocks.launch if type(blocks) is SentBlocks else None
            if launch is None:
                registers.append(self.find(array))
                places.append(-1)
                continue
            registers.append(self._read(blocks.made))
            if launch not in launches:
                launch.recorders = ()
                launches.append(launch)
            places.append(len(arrays) + launches.index(launch))
        return registers + [self._read([launch]) for launch in launches], places

    def on_op(self, op: Any, args: tuple[Any, ...], static: dict[str, Any], out: Any) -> None:
        outs = out if isinstance(out, tuple) else (out,)
        is_told = not isinstance(op, Op) or op.declaration.donated  # or is made of ops that were
        if is_told or op.plan_of_call(args, static).fast is None:
            return
        plan, args = self._with_moved_constants(op, args, static)
        views = [x for i, x in enumerate(args) if op.declaration.is_viewed(i)]
        self._note(op.name, plan.fast, args, outs, len(outs) > 1, views=views)  # type: ignore[arg-type]

    def _with_moved_constants(
        self, op: Op[..., Any], args: tuple[Any, ...], static: dict[str, Any]
    ) -> tuple[Plan, tuple[Any, ...]]:
        """The plan of a call, and its operands, of which constants of the recording are moved to
        the plan's layouts now, and not in every run."""
        plan = op.plan_of_call(args, static)
        routed = [i for i, route in enumerate(plan.routes) if route]
        fixed = {i: plan.target_layouts[i] for i in routed if self.find(args[i]) in self.constants}
        if not fixed:
            return plan, args
        operands = list(args)
        with observing_only(self):
            for i, layout in fixed.items():
                operands[i] = relayout(args[i], layout)  # type: ignore[arg-type]
        with observing_only():
            op(*operands, **static)  # makes the plan ready
        moved = op.plan_of_call(tuple(operands), static)
        if moved.fast is None or moved.outs != plan.outs:  # it goes another way from there
            return plan, args
        return moved, tuple(operands)

    def on_run(
        self,
        name: str,
        function: Callable[..., Any],
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        op: Any = None,
    ) -> None:
        if inputs:
            views = [x for i, x in enumerate(inputs) if op is None or op.declaration.is_viewed(i)]
            self._note(name, _on_registers(function), inputs, outputs, True, views=views)
        else:
            self._has_sent()
            self.constants.update(map(self._register, outputs))

    def on_update(
        self,
        name: str,
        plan: Any,
        donated: Sequence[int],
        inputs: Sequence[Any],
        outputs: Sequence[Sequence[Any]],
    ) -> None:
        phase = plan.phase
        update = phase.update or partial(_update, plan.run, len(outputs[0]))
        scratch = phase.scratch
        self._note(name, update, inputs, outputs, True, donated=donated, scratch=scratch, plan=plan)

    def on_draw(self, name: str, function: Callable[[], tuple[Any, ...]], values: Any) -> None:
        self.met_host = True

        def run() -> list[Value]:
            return [value_of(x) if type(x) is DistributedArray else x for x in function()]

        self._note(name, run, (), values, True, is_effect=True)

    def on_note(self, function: Callable[[], None]) -> None:
        def run() -> tuple[()]:
            function()
            return ()

        self._note("note", run, (), (), True, is_effect=True)

    def on_host(self, action: str, remedy: str) -> None:
        self.met_host = True

    def on_synchronize(self, what: str) -> None:
        # A step's own `gdt.synchronize` is for no data, and no part of the op that it records next.
        self._has_waited |= what != "synchronize"

    def on_write(self, array: Any, before: Any, after: Any) -> None:
        register = self._registers.get(_identity(_value(before)))
        if register is None or register in self.unknown or register in self.inputs:
            raise refused_write(before)

    def _note(
        self,
        name: str,
        function: Callable[..., Any],
        inputs: Iterable[Any],
        outputs: Iterable[Any],
        several: bool,
        *,
        donated: Sequence[int] = (),
        scratch: int = -1,
        is_effect: bool = False,
        views: Iterable[Any] = (),
        plan: Plan | None = None,
    ) -> None:
        notes: Sequence[tuple[Action, Sequence[Any]]] = ()
        if processes.current().count > 1:
            # Another process may run this as written: all must send and note the same, even what
            # nobody reads.
            before, self._told = self._told, (sent(), note_count())
            is_effect = is_effect or self._told != before
            notes = notes_since(before[1])
        communicates = self._has_sent() or name == JOIN
        waits, self._has_waited = communicates and self._has_waited, False
        read = tuple([self._read(x) for x in inputs])
        written = tuple([self._register(x, new=True) for x in outputs])
        if self.constants.issuperset(read) and not is_effect:
            self.constants.update(written)
            return
        if (settings := np.geterr()) != self._settings:
            function = _under(settings, function)
        overwritten = tuple([read[i] for i in donated])
        used_up = read[scratch] if scratch >= 0 else -1
        self.instructions.append(
            Instruction(
                name, function, read, written, several,
                donated=overwritten, scratch=used_up, is_effect=is_effect,
                views=tuple([self._read(x) for x in views]), communicates=communicates,
                waits=waits, line=self.line(), plan=plan, notes=tuple(notes),
                last_note=self._told[1], named=self._named(written) if notes else (),
            )
        )  # fmt: skip

    def _named(self, registers: Sequence[int]) -> tuple[int, ...]:
        """The registers whose blocks the op of the newest note has made, as collectives say it."""
        makers = makers_of([blocks_of(self.values[r])[0] for r in registers])
        return tuple(
            [r for r, maker in zip(registers, makers, strict=True) if maker == note_count()]
        )

    def _has_sent(self) -> bool:
        """Whether anything has been sent since this was asked last."""
        before, self._sent = self._sent, sent()
        return self._sent != before

    def line(self) -> str:
        """The line of the running code that errors name; a recorder may know none."""
        return ""

    def _read(self, x: Any) -> int:
        """The register of an array, a list of blocks or a scalar; a new one if it has none."""
        value = _value(x)
        register = self._registers.get(_identity(value))
        if register is None:
            register = self._register(value)
            (self.constants if _is_scalar(value) else self.unknown).add(register)
        return register

    def _register(self, x: Any, new: bool = False) -> int:
        value = _value(x)
        identity = _identity(value)
        if new or identity not in self._registers:
            self._registers[identity] = len(self.values)
            self.values.append(value)
        return self._registers[identity]

    def program(
        self,
        inputs: Sequence[int],
        outputs: Sequence[int],
        replaced: Set[int] = frozenset(),
        *,
        takes_list: bool = False,
    ) -> Program | None:
        """The program that computes the registers `outputs` from the registers `inputs`; None if it
        needs blocks that no recorded call made. Updates may overwrite the inputs `replaced`."""
        instructions, registers = self._needed(outputs)
        if registers & self.unknown:
            return None
        constants = {r: self.values[r] for r in registers & self.constants}
        program_inputs = [i for i in inputs if i in registers]
        alone = self._alone(instructions) - {*inputs, *outputs, *constants}
        shared = aliases(self.values, self.instructions)

        def part(
            instructions: Sequence[Instruction], inputs: Sequence[int], outputs: Sequence[int]
        ) -> Callable[..., Any]:
            read = {r for k in instructions for r in k.inputs}
            known = {r: v for r, v in constants.items() if r in read and r not in inputs}
            own = alone - {*outputs}
            return Program(instructions, inputs, outputs, known, set(), own, shared).run

        instructions = fused(instructions, outputs, self.values, self.constants, part)
        return Program(
            instructions,
            program_inputs,
            outputs,
            constants,
            replaced,
            alone,
            shared,
            takes_list=takes_list,
        )

    def _alone(self, instructions: Sequence[Instruction]) -> set[int]:
        """The registers whose memory comes from the pool and is shared with no other register in
        any run. Outputs of updates are not among them: they may be the memory of an input."""
        memory = Counter(id(m) for value in self.values for m in owners_of(value))
        registers = {r for k in instructions if not k.donated for r in k.outputs}
        return {
            r
            for r in registers
            if all(memory[id(m)] == 1 and NUMPY.owns(m) for m in owners_of(self.values[r]))
        }

    def _needed(self, outputs: Sequence[int]) -> tuple[list[Instruction], set[int]]:
        """The instructions that make `outputs`, and all registers that they read or write."""
        registers, instructions = set(outputs), []
        for instruction in reversed(self.instructions):
            if instruction.is_effect or registers & set(instruction.outputs):
                instructions.append(instruction)
                registers.update(instruction.inputs)
        return _checks_first(instructions[::-1]), registers

    def first_unknown(self, outputs: Sequence[int]) -> str:
        """The first instruction that reads a block from somewhere else, its line, and the dtype and
        shape of that block."""
        for instruction in self._needed(outputs)[0]:
            for register in instruction.inputs:
                if register in self.unknown:
                    value = self.values[register]
                    block = value[0] if type(value) is tuple else value
                    kind = f"an array of blocks {block.dtype}{list(block.shape)}"
                    return f"{instruction.name}, in {instruction.line}, reads {kind}"
        return "it returns an array"


def refused_write(array: DistributedArray) -> FunctionError:
    """The error for writing to an array that the step has not made."""
    return error(
        FunctionError,
        "write",
        "a recorded step cannot write to an array that it has not made, as "
        f"{line_of_user()} does: no replay would change it",
        operands={"x": array.type},
        remedy="Make another array, as by x = x.at[i].set(value) or x = gdt.sort(x), and return it "
        "or put it where the step keeps its state.",
    )


def _is_scalar(value: Any) -> bool:
    return value is None or isinstance(value, int | float | complex)


def _identity(value: Any) -> Any:
    return tuple(map(id, value)) if type(value) is tuple else id(value)


def _value(x: Any) -> Value:
    """The value of a register that holds an array, a list of blocks or a scalar."""
    if type(x) is DistributedArray:
        return value_of(x)
    return value_of_blocks(x) if isinstance(x, list | tuple) else x


def _lists(values: Iterable[Any]) -> list[Any]:
    """The blocks of each register's value as a sequence; scalars as they are."""
    return [v if type(v) is tuple or _is_scalar(v) else (v,) for v in values]


def _checks_first(instructions: Sequence[Instruction]) -> list[Instruction]:
    """The instructions, with each check of data right after the instruction that it reads from: so
    before updates and counts of steps, which an error would leave half done."""
    ordered: list[Instruction] = []
    for k in instructions:
        at = len(ordered)
        if k.name == CHECK:
            makers = [n for n, other in enumerate(ordered) if {*other.outputs} & {*k.inputs}]
            at = max(makers, default=-1) + 1
        ordered.insert(at, k)
    return ordered


def _under(settings: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that calls `function` under the settings of `np.errstate` that a step has used."""

    def run(*operands: Any) -> Any:
        with np.errstate(**settings):
            return function(*operands)

    return run


def _update(
    function: Callable[..., Any], count: int, values: tuple[Any, ...], free: tuple[Any, ...]
) -> list[Any]:
    """Call an update, a function of lists of blocks, on the values of registers; `free` has a flag
    for each donated operand, or a flag for each of its blocks."""
    flags = [f if isinstance(f, list) else (f,) * count for f in free]
    return [*map(value_of_blocks, function(_lists(values), flags))]


def _on_registers(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function of the values of registers from a function of lists of blocks."""

    def run(*values: Any) -> list[Any]:
        return [*map(value_of_blocks, function(*_lists(values)))]

    # In which each operand is a sequence of several blocks, as the value of its register is.
    run.expression = getattr(function, "expression", None)  # type: ignore[attr-defined]
    return run
