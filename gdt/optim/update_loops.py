"""Updates of parameters as compiled loops, in one pass over their arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gdt.engine.loops import loop, vectors
from gdt.engine.specialization import are_arrays, are_floats

Block = Any
Body = Callable[..., Any]

# A loop updates its operands in place; an operand that may not be overwritten is copied first. With
# separate outputs, which may share the operands' memory, a compiler could not use vectors.


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


def adam_loop(
    body: Body,
    p: Block,
    m: Block,
    v: Block,
    g: Block,
    /,
    *scalars: Any,
    decay: bool = False,
) -> Body | None:
    """`adam_step` in the memory of its outputs; None if blocks differ in shape or dtype."""
    if not are_arrays(p, m, v, g) or not are_floats(*scalars):
        return None
    if any(x.shape != g.shape or x.dtype != g.dtype for x in (p, m, v)):
        return None
    run = (_adam_with_decay if decay else _adam)[g.dtype.char]
    if run is None:
        return None

    def adam_step(*operands: Any, out: Any, **scratch: Any) -> Any:
        elements = vectors(*out, operands[3])
        if elements is None:
            return body(*operands, out=out, **scratch)
        for x, new in zip(operands, out, strict=False):
            if new is not x:
                np.copyto(new, x)
        run(*elements, *operands[4:])
        return out

    return adam_step
