"""The step of an LSTM from its gates, and the steps of a sequence, each one entry on the tape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gdt.array.array import DistributedArray
from gdt.autodiff.functional import vjp
from gdt.engine.custom_vjp import custom_vjp
from gdt.engine.op import op
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


steps_of.vjp(_joined)


@op("b g u, b u -> b u, b u, b g u", outputs=3, whole="g")
def lstm_cell(xp: Any, gates: Block, cell: Block, /) -> tuple[Block, Block, Block]:
    """Return the hidden state and the cell after a step, and the gates after their activations.

    gates: input, forget, candidate and output before their activations, (batch, 4, units).
    """
    activated = write_sigmoid(xp, gates, xp.empty(gates.shape, gates.dtype))
    xp.tanh(gates[..., 2, :], out=activated[..., 2, :])
    new = activated[..., 1, :] * cell
    new += activated[..., 0, :] * activated[..., 2, :]
    return activated[..., 3, :] * xp.tanh(new), new, activated


@op("b u, b u, b g u, b u, b u -> b g u, b u", outputs=2, whole="g", linear="g_hidden + g_cell")
def lstm_cell_gradient(
    xp: Any, g_hidden: Block, g_cell: Block, activated: Block, cell: Block, new: Block, /
) -> tuple[Block, Block]:
    """Return the cotangents of the gates and of the cell before the step.

    g_hidden, g_cell: the cotangents of the state after the step. activated, new: what `lstm_cell`
        returned. cell: before the step.
    """
    candidate = activated[..., 2, :]
    squashed = xp.tanh(new)
    g_new = g_hidden * activated[..., 3, :]
    g_new *= 1 - squashed * squashed
    g_new += g_cell
    g_gates = activated * (1 - activated)
    g_gates[..., 0, :] *= g_new * candidate
    g_gates[..., 1, :] *= g_new * cell
    xp.multiply(g_new * activated[..., 0, :], 1 - candidate * candidate, out=g_gates[..., 2, :])
    g_gates[..., 3, :] *= g_hidden * squashed
    return g_gates, g_new * activated[..., 1, :]


def _gates_of(activated: DistributedArray) -> list[DistributedArray]:
    return [getitem(activated, (slice(None), gate)) for gate in range(4)]


def _slopes(activated: DistributedArray) -> DistributedArray:
    """Return the derivatives of the activations, (batch, 4, units)."""
    opening, forget, candidate, output = _gates_of(activated)
    sigmoids = [opening * (1 - opening), forget * (1 - forget), output * (1 - output)]
    return stack([*sigmoids[:2], 1 - candidate * candidate, sigmoids[2]], 1)


def _gradient_by_ops(
    g_hidden: Any, g_cell: Any, activated: Any, cell: Any, new: Any
) -> tuple[DistributedArray, DistributedArray]:
    """Return what `lstm_cell_gradient` does, by ops that have gradients."""
    opening, forget, candidate, output = _gates_of(activated)
    squashed = tanh(new)
    g_new = g_cell + g_hidden * output * (1 - squashed * squashed)
    shares = [g_new * candidate, g_new * cell, g_new * opening, g_hidden * squashed]
    return stack(shares, 1) * _slopes(activated), g_new * forget


def _cell_vjp(g: Sequence[Any], out: Sequence[Any], gates: Any, cell: Any) -> tuple[Any, ...]:
    _, new, activated = out
    g_hidden, g_cell = _with_zeros(g[:2], out[:2])
    g_gates, g_cell = lstm_cell_gradient(g_hidden, g_cell, activated, cell, new)
    return g_gates if g[2] is None else g_gates + g[2] * _slopes(activated), g_cell


def _gradient_vjp(g: Sequence[Any], out: Sequence[Any], *operands: Any) -> tuple[Any, ...]:
    _, pull = vjp(_gradient_by_ops, *operands)
    return pull(tuple(_with_zeros(g, out)))


lstm_cell.vjp(joint=_cell_vjp)
lstm_cell_gradient.vjp(joint=_gradient_vjp)
