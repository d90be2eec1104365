"""The programs in NumPy, on one array, and in gdt on 8 virtual devices of one block or eight."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from scipy.special import erf

import gdt
from bench.programs.program import Operand, Program, in_tree
from bench.programs.worker import Prepare, Run, serve
from gdt.engine import loops

DEVICES = 8
NUMPY = SimpleNamespace(**vars(np) | {"erf": erf})
FLOAT64 = SimpleNamespace(**vars(NUMPY) | {"float32": np.float64})  # for references


def in_numpy(program: Program, size: int) -> Run | None:
    """Return a program's call in NumPy, which has no gradients."""
    if program.has_gradient:
        return None
    operands = [operand.values for operand in program.operands(size)]
    return lambda: program.run(NUMPY, *operands)


def in_gdt(blocks: int, is_recorded: bool) -> Prepare:
    """Return what prepares a program on 8 devices whose shards lie in this number of blocks."""

    def prepare(program: Program, size: int) -> Run:
        mesh = gdt.create_mesh([("x", DEVICES)], device_type="CPU", blocks=blocks)
        operands = [in_tree(lambda one: placed(one, mesh), tree) for tree in program.operands(size)]
        step = step_of(program)
        if is_recorded:
            step = gdt.function(step)
        return lambda: step(*operands)

    return prepare


def placed(operand: Operand, mesh: gdt.Mesh) -> gdt.DistributedArray:
    """Return an operand as an array on a mesh."""
    axes = range(operand.values.ndim)
    layout = gdt.Layout(["x" if axis == operand.axis else None for axis in axes], mesh)
    return gdt.asarray(operand.values, layout=layout)


def step_of(program: Program) -> Any:
    """Return the function whose results are whole, no pending sums."""
    run = program.run
    if program.has_gradient:
        return gdt.value_and_grad(lambda *arrays: run(gdt, *arrays), has_aux=True)
    return lambda *arrays: [result.resolve() for result in run(gdt, *arrays)]


CONTENDERS: dict[str, Prepare] = {
    "numpy": in_numpy,
    "eager": in_gdt(1, is_recorded=False),
    "function": in_gdt(1, is_recorded=True),
    "function-blocks": in_gdt(DEVICES, is_recorded=True),
}

if __name__ == "__main__":
    compiled = {"compiled loops": loops.described()[0]} if loops.are_compiled() else {}
    serve(CONTENDERS, {"gdt": gdt.__version__, "numpy": np.__version__} | compiled)
