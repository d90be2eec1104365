"""The step of an LSTM from its gates, and the steps of a sequence, each one entry on the tape."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.autodiff.functional import vjp
from gdt.backend import NUMPY
from gdt.engine.custom_vjp import custom_vjp
from gdt.engine.op import op
from gdt.fusion.formula_loop import FormulaLoop
from gdt.fusion.loop import are_compiled, is_plain
from gdt.fusion.op_formula import code_of
from gdt.nn.functions.activations.op import write_sigmoid
from gdt.ops.creation import zeros_like
from gdt.ops.exponential import tanh
from gdt.ops.indexing import getitem
from gdt.ops.joining import stack

Block = Any


@custom_vjp
def steps_of(x: DistributedArray) -> tuple[DistributedArray, ...]:
    """Return the slices of x, (batch, steps, ...), of all steps: (batch, ...). Their cotangents are
    joined once; those of single slices would be as many arrays of the size of x to add up."""
    return tuple([getitem(x, (slice(None), step)) for step in range(x.shape[1])])


def _joined(g: Sequence[Any], out: Sequence[Any], x: Any) -> Any:
    return stack(_with_zeros(g, out), 1)


def _with_zeros(g: Sequence[Any], out: Sequence[Any]) -> list[Any]:
    """Return the cotangents of outputs, zeros of those that have none."""
    return [zeros_like(y) if c is None else c for c, y in zip(g, out, strict=True)]


steps_of.vjp(_joined, reads="")


CELL = FormulaLoop(
    "i f c o cell",
    {
        "input": "sigmoid(i)",
        "forget": "sigmoid(f)",
        "candidate": "tanh(c)",
        "output": "sigmoid(o)",
        "new": "forget * cell + input * candidate",
        "hidden": "output * tanh(new)",
    },
    "hidden new input forget candidate output",
)
"""A step of a unit, of its gates before their activations."""

GRADIENT = FormulaLoop(
    "g_hidden g_cell input forget candidate output cell new",
    {
        "squashed": "tanh(new)",
        "g_new": "g_hidden * output * (1.0 - squashed * squashed) + g_cell",
        "g_before": "g_new * forget",
        "g_input": "input * (1.0 - input) * (g_new * candidate)",
        "g_forget": "forget * (1.0 - forget) * (g_new * cell)",
        "g_candidate": "g_new * input * (1.0 - candidate * candidate)",
        "g_output": "output * (1.0 - output) * (g_hidden * squashed)",
    },
    "g_input g_forget g_candidate g_output g_before",
)


@op("b g u, b u -> b u, b u, b g u", outputs=3, whole="g")
def lstm_cell(xp: Any, gates: Block, cell: Block, /) -> tuple[Block, Block, Block]:
    """Return the hidden state and the cell after a step, and the gates after their activations.

    gates: input, forget, candidate and output before their activations, (batch, 4, units).
    """
    functions = {"tanh": xp.tanh, "sigmoid": lambda x: write_sigmoid(xp, x, None)}
    hidden, new, *activated = CELL.evaluate(functions, *_parts(gates), cell)
    return hidden, new, xp.stack(activated, -2)


@op("b u, b u, b g u, b u, b u -> b g u, b u", outputs=2, whole="g", linear="g_hidden + g_cell")
def lstm_cell_gradient(
    xp: Any, g_hidden: Block, g_cell: Block, activated: Block, cell: Block, new: Block, /
) -> tuple[Block, Block]:
    """Return the cotangents of the gates and of the cell before the step.

    g_hidden, g_cell: the cotangents of the state after the step. activated, new: what `lstm_cell`
        returned. cell: before the step.
    """
    operands = g_hidden, g_cell, *_parts(activated), cell, new
    *g_gates, g_before = GRADIENT.evaluate({"tanh": xp.tanh}, *operands)
    return xp.stack(g_gates, -2), g_before


def _parts(gates: Any) -> list[Any]:
    """The four gates of a block or an array, without the axis of gates."""
    return [gates[..., gate, :] for gate in range(4)]


def _in_one_loop(formulas: FormulaLoop, outputs: str) -> Callable[..., Any]:
    """The function that chooses what runs in the place of a body (see `gdt.engine.loops`): a loop
    over rows of units, where all are of one dtype that loops have.

    outputs: `-` of a block of a cell, `4` of one of gates, for each result."""

    def choose(body: Callable[..., Any], *blocks: Block) -> Callable[..., Any] | None:
        cell = min(blocks, key=lambda b: b.size)
        if not are_compiled() or cell.dtype.char not in "fd" or not cell.size:
            return None
        if any(b.dtype != cell.dtype for b in blocks):
            return None
        dtype, shape, units = cell.dtype, cell.shape, cell.shape[-1] * cell.dtype.itemsize
        shapes = [(*shape[:-1], 4, shape[-1]) if o == "4" else shape for o in outputs]
        sizes = [math.prod(s) // cell.size for s in (*[b.shape for b in blocks], *shapes)]
        # Each gate is a matrix of its own, whose rows are those of one block.
        parts = [
            (n, gate * units, size * units) for n, size in enumerate(sizes) for gate in range(size)
        ]
        rows = cell.size // shape[-1], shape[-1]
        run = formulas[code_of(dtype)].on_rows(rows, [part[1:] for part in parts])

        def in_loop(*blocks: Block) -> tuple[Block, ...]:
            xs = [b if is_plain(b) else np.array(b, order="C") for b in blocks]
            results = [NUMPY.empty(s, dtype) for s in shapes]
            xs += results
            run(*[xs[n] for n, _, _ in parts])
            return tuple(results)

        return in_loop

    return choose


lstm_cell.specialize(_in_one_loop(CELL, "--4"))
lstm_cell_gradient.specialize(_in_one_loop(GRADIENT, "4-"))


def _gradient_by_ops(
    g_hidden: Any, g_cell: Any, activated: Any, cell: Any, new: Any
) -> tuple[DistributedArray, DistributedArray]:
    """Return what `lstm_cell_gradient` does, by ops that have gradients."""
    operands = g_hidden, g_cell, *_parts(activated), cell, new
    *g_gates, g_before = GRADIENT.evaluate({"tanh": tanh}, *operands)
    return stack(g_gates, 1), g_before


def _slopes(activated: DistributedArray) -> DistributedArray:
    """Return the derivatives of the activations, (batch, 4, units)."""
    opening, forget, candidate, output = _parts(activated)
    sigmoids = [opening * (1 - opening), forget * (1 - forget), output * (1 - output)]
    return stack([*sigmoids[:2], 1 - candidate * candidate, sigmoids[2]], 1)


def _cell_vjp(g: Sequence[Any], out: Sequence[Any], gates: Any, cell: Any) -> tuple[Any, ...]:
    _, new, activated = out
    g_hidden, g_cell = _with_zeros(g[:2], out[:2])
    g_gates, g_cell = lstm_cell_gradient(g_hidden, g_cell, activated, cell, new)
    return g_gates if g[2] is None else g_gates + g[2] * _slopes(activated), g_cell


def _gradient_vjp(g: Sequence[Any], out: Sequence[Any], *operands: Any) -> tuple[Any, ...]:
    _, pull = vjp(_gradient_by_ops, *operands)
    return pull(tuple(_with_zeros(g, out)))


lstm_cell.vjp(joint=_cell_vjp, reads="cell out1 out2")
lstm_cell_gradient.vjp(joint=_gradient_vjp)
