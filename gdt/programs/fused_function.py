"""The functions of fused instructions: on the host a loop that runs on the blocks of each register,
on a GPU a launch of one kernel."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from gdt.backend import NUMPY, threads
from gdt.backend.cupy import BlockDevice
from gdt.fusion.cuda import FusedKernel
from gdt.fusion.loop import FusedLoop, arranged, empty, is_plain
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
        # The compiled loop and its numbers, from the first run on, if it reads the values as they
        # are: for small blocks, all that `_outs` does takes longer than the loop.
        self.prepared: tuple[Callable[..., int], Any] | None = None
        self.is_plain = [i.register for i in inputs] == [*registers]

    def __call__(self, *values: Any) -> Sequence[Any]:
        """The values of the output registers: of each a block, or a tuple of blocks."""
        count = max([len(v) for v in values if type(v) is tuple], default=0)
        if not count:
            outs = self._outs(values)
            return self.run_one_by_one(*values) if outs is None else outs
        results = []
        for block in range(count):
            outs = self._outs([v[block] if type(v) is tuple else v for v in values])
            if outs is None:
                return self.run_one_by_one(*values)
            results.append(outs)
        return [*zip(*results, strict=True)]

    @cached_property
    def run_one_by_one(self) -> Run:
        """The function that runs the instructions that it replaces, made when it is first needed:
        most never give a value of which NumPy would warn."""
        return self.one_by_one()

    def _outs(self, blocks: Sequence[Any]) -> list[Block] | None:
        """The blocks of all outputs; None if the instructions have to run one by one."""
        if self.prepared is not None and all(map(is_plain, blocks)):
            function, numbers = self.prepared
            outs = [NUMPY.empty(self.shape, dtype) for dtype in self.dtypes]
            if not function(*blocks, *outs, numbers):
                return outs
            self.prepared, self.is_plain = None, False  # from now on it looks for what is odd
        arrays = []
        for place, shape, dtype in self.inputs:
            x = blocks[place]
            if not isinstance(x, np.ndarray):
                x = np.full((), x, dtype)
            arrays.append(x if shape is None else x.reshape(shape))
        found = arranged(self.shape, arrays)
        if found is None:
            return None
        nested, arrays, order = found
        outs = [empty(self.shape, dtype, order) for dtype in self.dtypes]
        targets = outs if order is None else [o.transpose(order) for o in outs]
        if self.run(nested, arrays, targets):
            return None
        if self.is_plain and math.prod(self.shape) < 2 * threads.SMALLEST:  # for one thread
            self._prepare(nested, blocks, arrays)
        return outs

    def _prepare(self, shape: Shape, blocks: Sequence[Any], arrays: Sequence[Block]) -> None:
        """Keep the compiled loop for later calls, if it reads the blocks as they are."""
        self.is_plain = False
        same = all(b.size == a.size for b, a in zip(blocks, arrays, strict=True) if is_plain(b))
        if isinstance(self.run, FusedLoop) and shape == self.shape and same:
            self.prepared = self.run.prepared(shape, *[a.shape for a in arrays])


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
