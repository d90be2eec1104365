"""The part of a recorded program that runs on devices alone, after what the host computes; and its
segments, which a graph holds or in which the host waits."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from gdt.backend import backend_of
from gdt.engine.launcher import KernelBody
from gdt.engine.op import OPS
from gdt.engine.plan import Plan
from gdt.engine.updates import UpdateOp
from gdt.programs.aliases import blocks_of
from gdt.programs.graphs.host_values import Scalar
from gdt.programs.instruction import Instruction, Value, value_of_blocks
from gdt.programs.program import Program
from gdt.sharding.dtypes import BFLOAT16, FLOAT32


class DeviceProgram(NamedTuple):
    """A program of devices, whose last inputs the host draws: `scalars`, then `arrays`.

    arrays: for each array, the number of its draw in `draws` and of the result of that draw."""

    program: Program
    draws: list[Instruction]
    scalars: list[Scalar]
    arrays: list[tuple[int, int]]


def device_program(program: Program, values: Sequence[Any]) -> DeviceProgram | None:
    """Return the part of a program that runs on devices. None if another op than updates and
    products takes a float from the host: only these take an array in its place.

    values: the blocks or the scalar that each register held when the program was recorded.
    """
    draws = [k for k in program.instructions if k.is_draw]
    origin = {r: (n, i) for n, k in enumerate(draws) for i, r in enumerate(k.outputs)}
    arrays = [r for r in origin if hasattr(blocks_of(values[r])[0], "shape")]
    scalars: dict[Scalar, int] = {}
    numbers = itertools.count(len(values))  # of new registers
    remaining = []
    for k in program.instructions:
        if k.is_draw:
            continue
        floats = [r for r in k.inputs if r in origin and r not in arrays]
        if floats and not k.donated and k.name != "multiply":  # by which `apply` gets its numbers
            return None
        if floats:
            first_blocks = (blocks_of(values[r])[0] for r in k.inputs)
            dtype = next(block.dtype for block in first_blocks if hasattr(block, "shape"))
            wide = FLOAT32 if dtype == BFLOAT16 else dtype  # in which a rounded plan computes
            scalar_of = {r: Scalar(*origin[r], wide) for r in floats}
            for scalar in scalar_of.values():
                if scalar not in scalars:
                    scalars[scalar] = next(numbers)
            registers = {r: scalars[s] for r, s in scalar_of.items()}
            k = k._replace(inputs=tuple([registers.get(r, r) for r in k.inputs]))  # noqa: PLW2901
        remaining.append(k)
    if any(r in origin and r not in arrays for r in program.outputs):
        return None
    on_devices = Program(
        _with_multi_tensor_updates(remaining),
        [*program.inputs, *scalars.values(), *arrays],
        program.outputs,
        program.constants,
        program.replaced,
        set(),
        program.aliases,
    )
    return DeviceProgram(on_devices, draws, list(scalars), [origin[r] for r in arrays])


# ---------------------------------------------------------------- updates that run together


class MultiTensorUpdate:
    """Many updates by one kernel launch on every device, as one instruction.

    plan: the plan of one of the updates. arrays: the number of operands that each update has of its
    own, before the scalars that all updates share.
    """

    def __init__(self, plan: Plan, launch: Callable[..., None], arrays: int, count: int) -> None:
        self._bodies, self._mesh = plan.phase.kernel_bodies, plan.outs[0].mesh
        self._launch, self.arrays, self.count = launch, arrays, count

    def __call__(self, values: Sequence[Value], free: Sequence[bool]) -> list[Value]:
        results = []
        for i, body in enumerate(self._bodies):
            with backend_of(self._mesh).on(self._mesh, i):
                results.append(self._of_block(body, [blocks_of(v)[i] for v in values], free))
        return [value_of_blocks(blocks) for blocks in zip(*results, strict=True)]

    def _of_block(self, body: KernelBody, values: list[Any], free: Sequence[bool]) -> list[Any]:
        n, scalars = self.arrays, values[self.arrays * self.count :]
        operands = [values[i * n : (i + 1) * n] for i in range(self.count)]
        flags = [free[i * (n - 1) : (i + 1) * (n - 1)] for i in range(self.count)]
        results = body.multi_tensor(self._launch, operands, scalars, flags, body.static)
        return [block for outs in results for block in outs]


def _with_multi_tensor_updates(instructions: Sequence[Instruction]) -> list[Instruction]:
    """Return the instructions, with one in place of updates that follow each other and that one
    launch of a kernel can do."""
    results: list[Instruction] = []
    for _, group in itertools.groupby(instructions, _update_key):
        updates = list(group)
        first, outputs = updates[0], {r for k in updates for r in k.outputs}
        launch = _multi_tensor_kernel(first)
        is_read = any(outputs & {*k.inputs} for k in updates)
        if len(updates) == 1 or launch is None or first.plan is None or is_read:
            results += updates
            continue
        count = len(first.donated) + 1
        arrays = [r for k in updates for r in k.inputs[:count]]
        results.append(
            first._replace(
                function=MultiTensorUpdate(first.plan, launch, count, len(updates)),
                inputs=(*arrays, *first.inputs[count:]),
                outputs=tuple([r for k in updates for r in k.outputs]),
                donated=tuple([r for k in updates for r in k.donated]),
                scratch=-1,
            )
        )
    return results


def _update_key(k: Instruction) -> Any:
    """Return a key that is equal for updates that one launch may run, and different for all other
    instructions."""
    if k.plan is None or _multi_tensor_kernel(k) is None:
        return id(k)
    static = tuple(k.plan.phase.kernel_bodies[0].static.items())
    return k.name, k.inputs[len(k.donated) + 1 :], k.plan.outs[0].mesh, static


def _multi_tensor_kernel(k: Instruction) -> Callable[..., None] | None:
    """Return the function that launches many updates like `k` at once; None unless their kernel
    applies on every device."""
    bodies = k.plan.phase.kernel_bodies if k.plan is not None else ()
    if not bodies or not all(body.applies for body in bodies):
        return None
    op = OPS[k.name]
    return op.multi_tensor_kernel if isinstance(op, UpdateOp) else None


# ---------------------------------------------------------------- segments


class Segment(NamedTuple):
    """Consecutive instructions of a program.

    waits: whether the host waits for data in them; then there is one. program: it or them, from
    registers that were there before to those that are read afterwards. ends: registers that nothing
    reads after it.
    """

    waits: bool
    program: Program
    ends: frozenset[int]


def pieces(program: Program) -> list[Segment]:
    """The pieces of a program, in order. The last may be empty; the host does not wait in it."""
    instructions = program.instructions
    last = _last_reads(instructions, program.outputs)
    segments: list[Segment] = []
    waits = [k.waits for k in instructions]
    for start, stop in _bounds(waits):
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
        segments.append(Segment(any(waits[start:stop]), part, ends))
    return segments


def _bounds(waits: Sequence[bool]) -> Iterable[tuple[int, int]]:
    """The bounds (start, stop) of pieces. waits: of each instruction."""
    starts = [i for i, is_wait in enumerate(waits) if i == 0 or is_wait or waits[i - 1]]
    if not waits or waits[-1]:
        starts.append(len(waits))
    return itertools.pairwise([*starts, len(waits)])


def _last_reads(instructions: Sequence[Instruction], outputs: Iterable[int]) -> dict[int, int]:
    """For each register that is read, the number of the last instruction that does; outputs are
    read after all of them."""
    last = {r: at for at, k in enumerate(instructions) for r in k.inputs}
    return last | dict.fromkeys(outputs, len(instructions))
