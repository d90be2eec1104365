"""Gradients of activations as compiled loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gdt.loops import are_arrays, loop

Block = Any
Body = Callable[..., Any]


@loop("input, input, output")
def _relu_gradient(g: Block, y: Block, out: Block) -> None:
    zero = g.dtype.type(0)
    for i in range(g.size):
        out[i] = g[i] if y[i] > zero else g[i] * zero


def relu_gradient_loop(body: Body, g: Block, y: Block, /) -> Body | None:
    """`relu_gradient`, where both operands have the same shape and dtype."""
    if not are_arrays(g, y) or y.dtype != g.dtype or y.shape != g.shape:
        return None
    run, shape, dtype = _relu_gradient[g.dtype.char], g.shape, g.dtype
    if run is None:
        return None

    def relu_gradient(g: Block, y: Block, *, out: Block = None) -> Block:
        made = np.empty(shape, dtype) if out is None else out
        elements = made.ravel()
        if elements.base is None:  # a copy: they lie in another order
            return body(g, y, out=out)
        run(g.ravel(), y.ravel(), elements)
        return made

    return relu_gradient
