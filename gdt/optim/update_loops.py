"""Updates of parameters as compiled loops, in one pass over their arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gdt.engine.loops import Loop, are_arrays, are_floats, loop, vectors

Block = Any
Body = Callable[..., Any]

# A loop updates its operands in place; an operand that may not be overwritten is copied first. With
# separate outputs, which may share the operands' memory, a compiler could not use vectors.


@loop("output, output, input, float, float")
def momentum_loop(p: Block, v: Block, g: Block, rate: float, momentum: float) -> None:
    step, factor = p.dtype.type(-rate), p.dtype.type(momentum)
    for i in range(p.size):
        v[i] = v[i] * factor + g[i] * step
        p[i] += v[i]


@loop("output, output, input, float, float")
def nesterov_loop(p: Block, v: Block, g: Block, rate: float, momentum: float) -> None:
    step, factor = p.dtype.type(-rate), p.dtype.type(momentum)
    for i in range(p.size):
        change = g[i] * step
        v[i] = v[i] * factor + change
        p[i] = (p[i] + change) + v[i] * factor


@loop("output, output, output, input, float, float, float, float, float")
def adam_loop(
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


def in_place(update: Loop, flagged: Loop | None = None) -> Callable[..., Any]:
    """Return the function that chooses what runs in the place of an update op's body (see
    `gdt.engine.loops`): a loop; None where operands differ in shape or dtype, and
    where no loop has their dtype.

    flagged: the loop of a call in which a static is true."""

    def choose(body: Body, *operands: Any, **flags: bool) -> Body | None:
        count = len([x for x in operands if isinstance(x, np.ndarray)]) - 1  # without the gradient
        *donated, g = operands[: count + 1]
        if not are_arrays(g) or not are_floats(*operands[count + 1 :]):
            return None
        if any(x.shape != g.shape or x.dtype != g.dtype for x in donated):
            return None
        run = (flagged if flagged and any(flags.values()) else update)[g.dtype.char]
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

        return updated

    return choose
