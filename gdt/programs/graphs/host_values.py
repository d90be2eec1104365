"""Values that the host computes for each step of a recorded program, in its devices' memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gdt.programs.aliases import blocks_of
from gdt.programs.graphs.memory import Blocks, GraphMemory
from gdt.programs.graphs.program_notes import ProgramNotes
from gdt.programs.instruction import Instruction, Value, value_of_blocks


class Scalar(NamedTuple):
    """A float that the host computes: result number `place` of draw number `draw`.

    dtype: that in which the program reads the float.
    """

    draw: int
    place: int
    dtype: np.dtype


class HostValues:
    """The values that the host computes for each step, such as learning rates and random keys, in
    buffers of every device.

    draws: instructions without inputs, whose functions the host calls in this order.
    scalars: the floats among the results of the draws that the program reads.
    arrays: the arrays among the results: of each the number of its draw, and its own in that draw.
    notes: those of the program, where processes compare them.
    operands: the buffers of the scalars, then those of the arrays; the buffer of an array is made
        by the first call of `draw`, and stays the same from then on.
    """

    def __init__(
        self,
        memory: GraphMemory,
        draws: Sequence[Instruction],
        scalars: Sequence[Scalar],
        arrays: Sequence[tuple[int, int]],
        notes: ProgramNotes | None,
    ) -> None:
        self._memory, self._draws, self._arrays, self._notes = memory, draws, arrays, notes
        # The scalars of one dtype are one buffer, which takes one copy from the host.
        self._of_dtype: dict[np.dtype, list[Scalar]] = {}
        for scalar in scalars:
            self._of_dtype.setdefault(scalar.dtype, []).append(scalar)
        self._packed = {d: memory.filled((len(s),), d) for d, s in self._of_dtype.items()}
        indices = {s: i for group in self._of_dtype.values() for i, s in enumerate(group)}
        self._buffers: list[Blocks] = [()] * len(arrays)
        self.operands: list[Value] = []
        for scalar in scalars:
            blocks = [packed[indices[scalar]] for packed in self._packed[scalar.dtype]]
            self.operands.append(value_of_blocks(blocks))
        self.operands += [None] * len(arrays)

    def draw(self) -> None:
        """Compute the values of one step, and copy them into the buffers."""
        draws, notes = self._draws, self._notes
        results = [k.function() for k in draws] if notes is None else notes.draw(draws)
        for dtype, scalars in self._of_dtype.items():
            values = np.array([results[s.draw][s.place] for s in scalars], dtype)
            self._memory.each(lambda packed, host=values: packed.set(host), self._packed[dtype])
        first = len(self.operands) - len(self._arrays)
        for i, (draw, place) in enumerate(self._arrays):
            blocks = blocks_of(results[draw][place])
            if not self._buffers[i]:
                empty = self._memory.backend.xp.empty_like
                self._buffers[i] = self._memory.each(empty, blocks)
                self.operands[first + i] = value_of_blocks(self._buffers[i])
            self._memory.copy(self._buffers[i], blocks)
