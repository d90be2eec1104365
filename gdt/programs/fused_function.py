"""The functions of fused instructions: on the host a loop that runs on the blocks of each register,
on a GPU a launch of one kernel."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np

from gdt.backend import NUMPY, threads
from gdt.backend.cupy import BlockDevice
from gdt.fusion.cuda import FusedKernel
from gdt.fusion.loop import FusedLoop, arranged, empty, is_plain, narrowed, run_together
from gdt.programs.element_calls import LoopInput

Block = Any
Shape = tuple[int, ...]
Run = Callable[..., Sequence[Any]]


class FusedFunction:
    """The function of a fused instruction.

    run: computes all elements, see `FusedLoop.run`. registers: those whose values the function
    takes. inputs: what `run` takes of these values. shape: of each block that it makes. dtypes: of
    its outputs. one_by_one: makes `run_one_by_one`.
    """

    prepared: tuple[Callable[..., int], Any] | None = None

    def __init__(
        self,
        run: Callable[[Shape, Sequence[Block], Sequence[Block]], bool],
        registers: Sequence[int],
        inputs: Sequence[LoopInput],
        shape: Shape,
        dtypes: Sequence[np.dtype],
        one_by_one: Callable[[], Run],
    ) -> None:
        self.run, self.shape, self.dtypes = run, shape, dtypes
        self.one_by_one = one_by_one
        self.inputs = [(registers.index(i.register), i.shape, i.dtype) for i in inputs]
        self.takes_all = [i.register for i in inputs] == [*registers]
        # The shapes in which a compiled loop reads the values as they are, from the first run on;
        # for one small block also the loop with its last arguments: to find them, and the calls of
        # methods here, take longer than the loop.
        self.shapes: Sequence[Shape] | None = None
        self.sizes: list[int] = []
        self.is_first = True

    def __call__(self, *values: Any) -> Sequence[Any]:
        """The values of the output registers: of each a block, or a tuple of blocks."""
        if self.prepared is not None and all(map(is_plain, values)):
            made = [NUMPY.empty(self.shape, dtype) for dtype in self.dtypes]
            function, numbers = self.prepared
            if [x.size for x in values] == self.sizes and not function(*values, *made, *numbers):
                return made
        count = max([len(v) for v in values if type(v) is tuple], default=0)
        rows = [values]
        if count:
            rows = [tuple([v[n] if type(v) is tuple else v for v in values]) for n in range(count)]
        outs = self._of_all(rows)
        if outs is None:
            return self.run_one_by_one(*values)
        return [*zip(*outs, strict=True)] if count else outs[0]

    @property
    def seconds(self) -> float:
        """The time that the compilation of the loop has taken."""
        return self.run.seconds if isinstance(self.run, FusedLoop) else 0.0

    @cached_property
    def run_one_by_one(self) -> Run:
        """The function that runs the instructions that it replaces, made when it is first needed:
        most never give a value of which NumPy would warn."""
        return self.one_by_one()

    def _of_all(self, rows: Sequence[Sequence[Any]]) -> list[list[Block]] | None:
        """The blocks of all outputs for each of `rows`, a block of every value; None if the
        instructions have to run one by one."""
        outs = self._as_they_are(rows) if self.shapes else None
        if outs is None:
            found = [self._outs(row) for row in rows]
            outs = [row for row in found if row is not None]
            return outs if len(outs) == len(found) else None
        return outs

    def _as_they_are(self, rows: Sequence[Sequence[Any]]) -> list[list[Block]] | None:
        """The blocks of all outputs, computed in one go, for all blocks of the values; None where
        the loop cannot read one of them as it is, or makes infinities or NaN."""
        if not self.takes_all:
            rows = [[row[place] for place, _, _ in self.inputs] for row in rows]
        if not all(map(is_plain, chain.from_iterable(rows))):
            rows = [[narrowed(x) if type(x) is np.ndarray else x for x in row] for row in rows]
            if not all(map(is_plain, chain.from_iterable(rows))):
                return None
        if any([x.size for x in row] != self.sizes for row in rows):
            return None
        if len(rows) == 1:
            outs = [[NUMPY.empty(self.shape, dtype) for dtype in self.dtypes]]
        else:  # blocks side by side: to get memory for each takes as long as a loop
            together = [NUMPY.empty((len(rows), *self.shape), dtype) for dtype in self.dtypes]
            outs = [[blocks[n] for blocks in together] for n in range(len(rows))]
        assert isinstance(self.run, FusedLoop) and self.shapes is not None
        function, parts = self.run.prepared(self.shape, *self.shapes, calls=len(rows))
        pairs = [(*row, *out) for row, out in zip(rows, outs, strict=True)]
        work = len(rows) * self.run.work(self.shape)
        is_odd = run_together(function, pairs, parts, work)
        if is_odd:
            self.shapes = self.prepared = None  # from now on it looks for what is odd
        return None if is_odd else outs

    def _outs(self, blocks: Sequence[Any]) -> list[Block] | None:
        """The blocks of all outputs; None if the instructions have to run one by one."""
        arrays = []
        for place, shape, dtype in self.inputs:
            x = blocks[place]
            if not isinstance(x, np.ndarray):
                x = np.full((), x, dtype)
            arrays.append(narrowed(x) if shape is None else x.reshape(shape))
        found = arranged(self.shape, arrays)
        if found is None:
            return None
        nested, laid, order = found
        outs = [empty(self.shape, dtype, order) for dtype in self.dtypes]
        targets = outs if order is None else [o.transpose(order) for o in outs]
        if self.run(nested, laid, targets):
            self.is_first = False
            return None
        if self.is_first:
            self.is_first = False
            is_same = all(x.size == a.size for x, a in zip(arrays, laid, strict=True))
            if isinstance(self.run, FusedLoop) and order is None and is_same:
                self._prepare([a.shape for a in laid])
        return outs

    def _prepare(self, shapes: Sequence[Shape]) -> None:
        """Keep the compiled loop for later calls, in which it reads blocks of these shapes."""
        assert isinstance(self.run, FusedLoop)
        self.shapes, self.sizes = shapes, [*map(math.prod, shapes)]
        if self.takes_all and self.run.work(self.shape) < 2 * threads.SMALLEST:  # for one thread
            function, (numbers,) = self.run.prepared(self.shape, *shapes)
            self.prepared = function, numbers


def fused_kernel(
    kernel: FusedKernel,
    registers: Sequence[int],
    inputs: Sequence[LoopInput],
    shape: Shape,
    device: BlockDevice,
) -> Callable[..., Sequence[Any]]:
    """The function of the values of `registers` that launches a kernel for blocks of this shape."""
    places = [(registers.index(i.register), i.shape) for i in inputs]

    def run(*values: Any) -> Sequence[Any]:
        return kernel(shape, [values[n] if s is None else values[n].reshape(s) for n, s in places])

    return device.backend.placed(device.mesh, device.block, run)
