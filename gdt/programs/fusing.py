"""Fusion: consecutive element-wise instructions of a program as one loop over their elements.

A chain of element-wise ops reads and writes memory once for each op, though memory takes longer
than their arithmetic. `fused` finds instructions that compute blocks of one shape from each other
with nothing in between, and puts one instruction in their place: a `FusedFunction`, whose loop
reads each operand once and writes only what is read elsewhere. What an op computes for one element
is its formula (`gdt.fusion`); ops without one are left as they are.

The fused instruction has the bits of those that it replaces. Where a value is infinite or NaN
though its operands are finite, it runs them one by one, which gives their warnings. On a GPU, which
gives none, it is a launch of one kernel (`gdt.fusion.cuda`), for blocks of any size, or of the
product of matrices that it follows (`gdt.programs.epilogues`); there a loss and its gradient are
one launch too (`gdt.programs.joint_launches`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence, Set
from functools import partial
from itertools import groupby
from typing import Any

from gdt.fusion.cuda import FUNCTIONS, MOST_INPUTS, FusedKernel
from gdt.fusion.loop import SMALLEST, are_compiled
from gdt.programs.aliases import blocks_of, nbytes_of
from gdt.programs.element_calls import ElementCall, element_call
from gdt.programs.epilogues import with_epilogues
from gdt.programs.fused_function import FusedFunction, Run, fused_kernel
from gdt.programs.graph_writer import GraphWriter
from gdt.programs.instruction import Instruction
from gdt.programs.joint_launches import joined
from gdt.programs.reducing import Group, ReducingWriter, ReductionCall, reduction_call
from gdt.programs.slices import Slices

Shape = tuple[int, ...]
Call = ElementCall | ReductionCall

SHORTEST = 8  # calls of a chain on blocks of fewer than `SMALLEST` elements
LITTLE = 16  # times less than the largest element-wise call makes


def fused(
    instructions: Sequence[Instruction],
    outputs: Sequence[int],
    values: Sequence[Any],
    constants: Set[int],
    program: Callable[[Sequence[Instruction], Sequence[int], Sequence[int]], Run],
) -> list[Instruction]:
    """The instructions of a program, with fused ones in the place of those that can be fused.

    outputs: the registers that the program returns. values: what each register held when the
    program was recorded. constants: the registers that are the same in every run. program: makes a
    function of instructions, of the registers that it takes and of those that it returns.
    """
    calls: list[Call | None] = [
        element_call(k, values, constants) or reduction_call(k, values) for k in instructions
    ]
    readers: dict[int, set[int]] = {}
    for at, k in enumerate(instructions):
        for r in k.inputs:
            readers.setdefault(r, set()).add(at)

    def returned_by(chain: Sequence[int]) -> list[int]:
        """The registers of a chain that others read."""
        own = {*chain}
        made = [r for at in chain for r in instructions[at].outputs]
        return [r for r in made if r in outputs or not readers.get(r, set()) <= own]

    result: list[Instruction] = []
    most = max(
        (nbytes_of([c.output], values) for c in calls if isinstance(c, ElementCall)), default=0
    )

    def is_part(at: int) -> bool:
        return calls[at] is not None or _is_movable(instructions[at], values, most)

    for is_run, members in groupby(range(len(instructions)), is_part):
        numbers = [*members]
        result += (
            _of_run(numbers, calls, instructions, values, returned_by, program)
            if is_run
            else [instructions[at] for at in numbers]
        )
    return joined(with_epilogues(result, outputs, values, constants, program), values, program)


# No closure: one that calls itself keeps `values`, and so the arrays of the recorded step, alive
# until garbage is collected, and updates would copy them.
def _of_run(
    numbers: Sequence[int],
    calls: list[Call | None],
    instructions: Sequence[Instruction],
    values: Sequence[Any],
    returned_by: Callable[[Sequence[int]], list[int]],
    program: Callable[..., Run],
) -> Iterator[Instruction]:
    """The instructions in the place of some that may be put in another order."""
    for group, chain in _alike(numbers, calls, instructions, values):
        chosen = [call for at in chain if (call := calls[at]) is not None]
        segment = None
        if group is not None:
            segment = _segment(chosen, returned_by(chain), values, program, group)
        if segment:
            yield segment
        elif group is not None and group.grid is not None:
            for at in chain:  # without the reductions
                calls[at] = calls[at] if isinstance(calls[at], ElementCall) else None
            yield from _of_run(chain, calls, instructions, values, returned_by, program)
        else:
            yield from [instructions[at] for at in chain]


def _is_movable(k: Instruction, values: Sequence[Any], most: int) -> bool:
    """Whether an instruction that is no call may run before calls that stand before it: it makes a
    view, or little beside `most` bytes, as they have."""
    if k.donated or k.is_effect or k.communicates:
        return False
    return bool(k.views) or LITTLE * nbytes_of(k.outputs, values) <= most


def _alike(
    numbers: Sequence[int],
    calls: Sequence[Call | None],
    instructions: Sequence[Instruction],
    values: Sequence[Any],
) -> Iterator[tuple[Group | None, list[int]]]:
    """Instructions in groups of calls that may be a chain, ordered so that each runs after its
    operands; None with each that is no call.

    Of the calls whose operands are computed, those of the smallest shape come first: they are
    operands of larger ones, whose group would else be cut in two.
    """
    waiting = dict.fromkeys(numbers)
    while waiting:
        missing = {r for at in waiting for r in instructions[at].outputs}
        ready = [at for at in waiting if missing.isdisjoint(instructions[at].inputs)]
        chosen = [(math.prod(call.shape), at) for at in ready if (call := calls[at]) is not None]
        if len(chosen) < len(ready):
            alone = [at for at in ready if calls[at] is None]
            yield from [(None, [at]) for at in alone]
            for at in alone:
                del waiting[at]
            continue
        first = calls[min(chosen)[1]]
        assert first is not None
        group, chain = Group(first, values), []
        for at in waiting:
            call = calls[at]
            is_ready = call is not None and missing.isdisjoint(instructions[at].inputs)
            if call is not None and is_ready and group.takes(call):
                chain.append(at)
                if not group.ends(call):
                    missing.remove(call.output)
        for at in chain:
            del waiting[at]
        yield group, chain


def _is_worth_a_loop(calls: Sequence[Call], shape: Shape, values: Sequence[Any]) -> bool:
    """Whether a loop on the host may be faster than calls: of large blocks, or of several small
    ones that one call of a loop each takes."""
    size = math.prod(shape)
    several = SHORTEST if are_compiled() else math.inf
    of_all = size * len(blocks_of(values[calls[0].output]))
    return len(calls) > 1 and (size >= SMALLEST or (len(calls) >= several and of_all >= SMALLEST))


def _segment(
    calls: Sequence[Any],
    returned: Sequence[int],
    values: Sequence[Any],
    program: Callable[..., Run],
    group: Group,
) -> Instruction | None:
    """One instruction in the place of calls; None if they cannot be fused, or would not be faster.

    returned: the registers of the calls that others read."""
    shape, device = group.shape, group.device
    if not returned or not (device or _is_worth_a_loop(calls, shape, values)):
        return None
    written: Any
    if group.grid is not None:
        written = ReducingWriter(values, shape, group.grid)
    elif device or are_compiled():
        written = GraphWriter(values, FUNCTIONS if device else frozenset())
    else:
        written = Slices(values)
    for call in calls:
        if not written.write(call):
            return None
    shapes = [i.shape or _shape(values[i.register]) for i in written.inputs]
    if all(math.prod(s) == 1 for s in shapes) and not device:
        return None
    registers = list(dict.fromkeys(i.register for i in written.inputs))
    instructions = [call.instruction for call in calls]
    segment: Any
    one_by_one = partial(program, instructions, registers, returned)
    if isinstance(written, ReducingWriter):
        segment = written.function(registers, returned, one_by_one)
        if segment is None:
            return None
    elif device:
        # A body of one op, such as that of gelu, may be a dozen launches by itself.
        if len(written.inputs) > MOST_INPUTS or written.operation_count < 2:
            return None
        results = [written.nodes[r] for r in returned]
        dtypes = [i.dtype for i in written.inputs]
        kernel = FusedKernel(written.graph, dtypes, results, device.backend)
        segment = fused_kernel(kernel, registers, written.inputs, shape, device)
    else:
        made = [blocks_of(values[r])[0].dtype for r in returned]
        run = written.finished(returned)
        segment = FusedFunction(run, registers, written.inputs, shape, made, one_by_one)
    apart = [r for k in instructions for r in (*k.inputs, *k.outputs)]
    return Instruction(
        "fused", segment, tuple(registers), tuple(returned), True, line=instructions[0].line,
        fused=tuple(instructions),
        nbytes=(nbytes_of(apart, values), nbytes_of([*registers, *returned], values)),
    )  # fmt: skip


def _shape(value: Any) -> Shape:
    block = blocks_of(value)[0]
    return getattr(block, "shape", ())
