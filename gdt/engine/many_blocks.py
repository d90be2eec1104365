"""Plans on a mesh of several blocks: a body runs on every block of this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gdt.engine.blocks import PlanBlocks
from gdt.engine.merging import Merge
from gdt.engine.one_block import block_function, combined
from gdt.engine.plan import Phase, Results
from gdt.engine.source import (
    Buffer,
    Expression,
    Item,
    NewMemory,
    Operand,
    called,
    compiled_on_blocks,
)
from gdt.engine.threads import in_threads


class ManyBlocks(Phase):
    """The phase of a plan on several blocks.

    On the host the second run compiles one function of all blocks, which takes longer than a run.
    """

    def __init__(self, blocks: PlanBlocks) -> None:
        self.blocks = blocks
        self.bodies = [in_threads(blocks.body(i), blocks) for i in range(len(blocks.mesh.blocks))]
        self.functions = [block_function(blocks, body, i) for i, body in enumerate(self.bodies)]
        self.merge = Merge(blocks)
        self.buffer: Buffer | None = None  # memory for a body that takes it
        self.compiles = False  # in the next run
        self.compiled: Callable[..., Results] | None = None

    def begin(self, results: Results) -> None:
        """Take up the phase after the first run, which has had these results."""
        self.buffer = self.blocks.buffer(results[0][0])
        self.compiles = self.blocks.op.merge is None and self.blocks.backend.xp is np

    def run(self, operands: Sequence[Any], free: Sequence[Sequence[bool]]) -> Results:
        """See `Phase.run`."""
        blocks = self.blocks
        if self.compiles:
            self.compiles, outputs = False, [self._outputs(i) for i in range(len(self.bodies))]
            self.compiled = compiled_on_blocks(outputs, len(blocks.moved), len(blocks.shapes))
            self.expression = self.compiled.expression  # type: ignore[attr-defined]
        if self.compiled is not None:
            return self.compiled(operands)
        results, backend = [], blocks.backend
        for i, function in enumerate(self.functions):
            xs = blocks.at(operands, i)
            with backend.on(blocks.mesh, i):
                out = {"out": backend.empty(*self.buffer)} if self.buffer else {}
                results.append(function(*xs, **out))
        if blocks.op.merge is not None:
            results = self.merge.merged(results)
        return tuple(zip(*results, strict=True))

    def _outputs(self, block: int) -> Expression:
        """The expression of the outputs' blocks at one grid coordinate."""
        arguments: list[Expression] = []
        for n, array_type in enumerate(self.blocks.moved):
            operand = Operand(n) if array_type is None else Item(Operand(n), block)
            before = self.blocks.before(n, block)
            arguments.append(operand if before is None else called(before, [operand]))
        empty = self.blocks.backend.empty
        keywords = {"out": NewMemory(empty, self.buffer)} if self.buffer else {}
        call = called(self.bodies[block], arguments, keywords, self.blocks.op.name)
        return combined(call, self.blocks)
