"""Fusion without a compiler: element-wise instructions as NumPy's functions on slices of blocks,
which stay in the cache of a core from one function to the next."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from gdt.backend import threads
from gdt.engine.source import Names, define
from gdt.fusion.loop import nest_of
from gdt.programs.element_calls import Argument, ElementCall, LoopInput

Block = Any
Shape = tuple[int, ...]


class Slices:
    """Calls of NumPy's functions on slices of blocks: what takes the place of a compiled loop, with
    the methods of `gdt.programs.fusing`'s writer of graphs.

    values: what each register held when the program was recorded. inputs: of all calls.
    """

    def __init__(self, values: Sequence[Any]) -> None:
        self.values = values
        self.inputs: list[LoopInput] = []
        self._calls: list[ElementCall] = []
        self._made: dict[int, str] = {}  # the registers of outputs, with their dtypes

    def write(self, call: ElementCall) -> bool:
        """Add a call; return True, since NumPy takes all operands."""
        for argument in call.arguments:
            if isinstance(argument, Argument) and argument.register not in self._made:
                key = LoopInput(*argument, "f8")  # as which Python's numbers are
                self.inputs += [] if key in self.inputs else [key]
        self._made[call.output] = call.dtype
        self._calls.append(call)
        return True

    def finished(self, returned: Sequence[int]) -> Callable[..., bool]:
        """The function that computes the outputs of these registers, see `FusedLoop.run`."""
        names = Names(["xs", "outs"])
        last = {
            a.register: n
            for n, c in enumerate(self._calls)
            for a in c.arguments
            if isinstance(a, Argument)
        }
        lines = []
        for n, call in enumerate(self._calls):
            function = names.add(call.instruction.name, call.run)
            arguments = [self._source(a, names) for a in call.arguments]
            ends = [r for r in self._made if last.get(r) == n and r not in returned]
            is_returned = call.output in returned
            if isinstance(call.run, np.ufunc):
                alike = [f"r{r}" for r in ends if self._made[r] == call.dtype]
                into = [f"outs[{returned.index(call.output)}]"] if is_returned else alike[:1]
                arguments += [f"out={place}" for place in into]
            lines.append(f"r{call.output} = {function}({', '.join(arguments)})")
            if is_returned and not isinstance(call.run, np.ufunc):
                lines.append(f"outs[{returned.index(call.output)}][...] = r{call.output}")
            lines += [f"del {', '.join(f'r{r}' for r in ends)}"] if ends else []
        return partial(_sliced, define("run(xs, outs)", lines, names))

    def _source(self, argument: Any, names: Names) -> str:
        if not isinstance(argument, Argument):
            return names.add("number", argument)
        if argument.register in self._made:
            return f"r{argument.register}"
        return f"xs[{self.inputs.index(LoopInput(*argument, 'f8'))}]"


SLICE = 1 << 15
"""The elements of a slice, of which several stay in the cache of a core; measured from 2 ** 13 to
2 ** 16."""


def _sliced(
    run: Callable[..., None], shape: Shape, blocks: Sequence[Block], outs: Sequence[Block]
) -> bool:
    """Run a function on slices of blocks, in threads; see `FusedLoop.run`."""
    nest = nest_of(shape, *[b.shape for b in blocks])
    assert nest is not None
    lengths = nest.lengths
    # What broadcasts along an axis has length 1 there.
    xs = [b.reshape(nest.shape_of(n)) for n, b in enumerate(blocks)]
    whole = [o.reshape(lengths) for o in outs]
    rows = max(1, SLICE // lengths[2])
    places = [
        (slice(i, i + 1), slice(j, j + rows), slice(k, k + SLICE))
        for i in range(lengths[0])
        for j in range(0, lengths[1], rows)
        for k in range(0, lengths[2], SLICE)
    ]

    def compute(some: slice) -> None:
        for place in places[some]:
            own = [
                x[
                    tuple(
                        [slice(None) if n == 1 else p for n, p in zip(x.shape, place, strict=True)]
                    )
                ]
                for x in xs
            ]
            run(own, [o[place] for o in whole])

    threads.in_turns(compute, threads.count_for(math.prod(shape)))
    return False
