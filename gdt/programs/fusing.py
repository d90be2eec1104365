"""Fusion: consecutive element-wise instructions of a program as one loop over their elements.

A chain of element-wise ops reads and writes memory once for each op, though memory takes longer
than their arithmetic. `fused` finds instructions that compute blocks of one shape from each other
with nothing in between, and puts one instruction in their place: a `FusedFunction`, whose loop
reads each operand once and writes only what is read elsewhere. What an op computes for one element
is its formula (`gdt.fusion`); ops without one are left as they are.

The fused instruction has the bits of those that it replaces. Where a value is infinite or NaN
though its operands are finite, it runs them one by one, which gives their warnings. On a GPU, which
gives none, it is a launch of one kernel (`gdt.fusion.cuda`), for blocks of any size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence, Set
from functools import partial
from itertools import groupby
from typing import Any

from gdt.fusion.cuda import FUNCTIONS, MOST_INPUTS, FusedKernel
from gdt.fusion.loop import SMALLEST, are_compiled
from gdt.programs.aliases import blocks_of
from gdt.programs.element_calls import ElementCall, element_call
from gdt.programs.fused_function import FusedFunction, Run, fused_kernel
from gdt.programs.graph_writer import GraphWriter
from gdt.programs.instruction import Instruction
from gdt.programs.slices import Slices

Shape = tuple[int, ...]


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
    calls = [element_call(k, values, constants) for k in instructions]
    readers: dict[int, set[int]] = {}
    for at, k in enumerate(instructions):
        for r in k.inputs:
            readers.setdefault(r, set()).add(at)
    result: list[Instruction] = []
    for is_run, group in groupby(enumerate(calls), lambda pair: pair[1] is not None):
        numbers = [at for at, _ in group]
        if not is_run:
            result += [instructions[at] for at in numbers]
            continue
        for part in _alike(numbers, calls):
            own = {*part}
            returned = [
                r
                for at in part
                for r in instructions[at].outputs
                if r in outputs or not readers.get(r, set()) <= own
            ]
            chosen = [call for at in part if (call := calls[at]) is not None]
            segment = _segment(chosen, returned, values, program)
            result += [segment] if segment else [instructions[at] for at in part]
    return result


def _alike(numbers: Sequence[int], calls: Sequence[ElementCall | None]) -> Iterator[list[int]]:
    """Consecutive calls in groups of one shape and device, ordered so that each runs after its
    operands.

    Of the calls whose operands are computed, those of the smallest shape come first: they are
    operands of larger ones, whose group would else be cut in two.
    """
    waiting = {at: call for at in numbers if (call := calls[at]) is not None}
    while waiting:
        missing = {call.output for call in waiting.values()}
        ready = [c for c in waiting.values() if missing.isdisjoint(c.instruction.inputs)]
        first = min(ready, key=lambda c: math.prod(c.shape))
        group = []
        for at, call in waiting.items():
            is_alike = (call.shape, call.device) == (first.shape, first.device)
            if is_alike and missing.isdisjoint(call.instruction.inputs):
                group.append(at)
                missing.remove(call.output)
        for at in group:
            del waiting[at]
        yield group


def _segment(
    calls: Sequence[ElementCall],
    returned: Sequence[int],
    values: Sequence[Any],
    program: Callable[..., Run],
) -> Instruction | None:
    """One instruction in the place of calls; None if they cannot be fused, or would not be faster.

    returned: the registers of the calls that others read."""
    shape, device = calls[0].shape, calls[0].device
    if not returned or (not device and (len(calls) < 2 or math.prod(shape) < SMALLEST)):
        return None
    functions = FUNCTIONS if device else frozenset()
    is_loop = are_compiled() or device
    written = GraphWriter(values, functions) if is_loop else Slices(values)
    for call in calls:
        if not written.write(call):
            return None
    shapes = [i.shape or _shape(values[i.register]) for i in written.inputs]
    if all(math.prod(s) == 1 for s in shapes) and not device:
        return None
    registers = list(dict.fromkeys(i.register for i in written.inputs))
    instructions = [call.instruction for call in calls]
    segment: Any
    if device and isinstance(written, GraphWriter):
        # A body of one op, such as that of gelu, may be a dozen launches by itself.
        if len(written.inputs) > MOST_INPUTS or written.operation_count < 2:
            return None
        results = [written.nodes[r] for r in returned]
        dtypes = [i.dtype for i in written.inputs]
        kernel = FusedKernel(written.graph, dtypes, results, device.backend)
        segment = fused_kernel(kernel, registers, written.inputs, shape, device)
    else:
        made = [blocks_of(values[r])[0].dtype for r in returned]
        one_by_one = partial(program, instructions, registers, returned)
        run = written.finished(returned)
        segment = FusedFunction(run, registers, written.inputs, shape, made, one_by_one)
    apart = [r for k in instructions for r in (*k.inputs, *k.outputs)]
    return Instruction(
        "fused", segment, tuple(registers), tuple(returned), True, line=instructions[0].line,
        fused=tuple(instructions),
        nbytes=(_nbytes(apart, values), _nbytes([*registers, *returned], values)),
    )  # fmt: skip


def _nbytes(registers: Sequence[int], values: Sequence[Any]) -> int:
    """The bytes of the blocks of some registers."""
    return sum(getattr(b, "nbytes", 0) for r in registers for b in blocks_of(values[r]))


def _shape(value: Any) -> Shape:
    block = blocks_of(value)[0]
    return getattr(block, "shape", ())
