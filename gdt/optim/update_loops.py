"""Updates of parameters as compiled loops, in one pass over their arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gdt.engine.loops import Loop, loop, vectors
from gdt.engine.specialization import are_arrays, are_floats

Block = Any
Body = Callable[..., Any]

# A loop updates its operands in place; an operand that may not be overwritten is copied first. With
# separate outputs, which may share the operands' memory, a compiler could not use vectors.


@loop("output, output, input, float, float")
def _momentum(p: Block, v: Block, g: Block, rate: float, momentum: float) -> None:
    step, factor = p.dtype.type(-rate), p.dtype.type(momentum)
    for i in range(p.size):
        v[i] = v[i] * factor + g[i] * step
        p[i] += v[i]


@loop("output, output, input, float, float")
def _nesterov(p: Block, v: Block, g: Block, rate: float, momentum: float) -> None:
    step, factor = p.dtype.type(-rate), p.dtype.type(momentum)
    for i in range(p.size):
        change = g[i] * step
        v[i] = v[i] * factor + change
        p[i] = (p[i] + change) + v[i] * factor


@loop("output, output, output, input, float, float, float, float, float")
def _adam(
    p: Block,
    m: Block,
    v: Block,
    g: Block,
    beta1: float,
    beta2: float,
    keep: float,
    rate: float,
    epsilon: float,
) -> None:
    element = p.dtype.type
    b1, b2, step, small = element(beta1), element(beta2), element(rate), element(epsilon)
    for i in range(p.size):
        m[i] = m[i] * b1 + g[i]
        v[i] = v[i] * b2 + g[i] * g[i]
        p[i] -= m[i] / (np.sqrt(v[i]) + small) * step


@loop("output, output, output, input, float, float, float, float, float")
def _adam_with_decay(
    p: Block,
    m: Block,
    v: Block,
    g: Block,
    beta1: float,
    beta2: float,
    keep: float,
    rate: float,
    epsilon: float,
) -> None:
    element = p.dtype.type
    b1, b2, factor = element(beta1), element(beta2), element(keep)
    step, small = element(rate), element(epsilon)
    for i in range(p.size):
        m[i] = m[i] * b1 + g[i]
        v[i] = v[i] * b2 + g[i] * g[i]
        p[i] = p[i] * factor - m[i] / (np.sqrt(v[i]) + small) * step


def momentum_loop(
    body: Body, p: Block, v: Block, g: Block, *scalars: Any, nesterov: bool = False
) -> Body | None:
    """Return the loop of `momentum_step`, or None."""
    return _loop_of(
        "momentum_step", _nesterov if nesterov else _momentum, body, (p, v), g, *scalars
    )


def adam_loop(
    body: Body, p: Block, m: Block, v: Block, g: Block, *scalars: Any, decay: bool = False
) -> Body | None:
    """Return the loop of `adam_step`, or None."""
    return _loop_of("adam_step", _adam_with_decay if decay else _adam, body, (p, m, v), g, *scalars)


def _loop_of(
    name: str, update: Loop, body: Body, donated: Sequence[Block], g: Block, *scalars: Any
) -> Body | None:
    """Return the function that runs the loop `update` in the place of `body`; None where operands
    differ in shape or dtype, or no loop has their dtype.

    name: of the op. donated: the operands that the loop updates."""
    if not are_arrays(*donated, g) or not are_floats(*scalars):
        return None
    if any(x.shape != g.shape or x.dtype != g.dtype for x in donated):
        return None
    run, count = update[g.dtype.char], len(donated)
    if run is None:
        return None

    def updated(*operands: Any, out: Any) -> Any:
        elements = vectors(*out, operands[count])
        if elements is None:
            return body(*operands, out=out)
        for x, new in zip(operands, out, strict=False):
            if new is not x:
                np.copyto(new, x)
        run(*elements, *operands[count + 1 :])
        return out

    updated.__name__ = name
    return updated
