"""relu and its gradient as compiled loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gdt.engine.loops import Loop, loop, vectors
from gdt.engine.specialization import are_arrays

Block = Any
Body = Callable[..., Any]


@loop("input, output")
def _relu(x: Block, out: Block) -> None:
    zero = x.dtype.type(0)
    for i in range(x.size):
        out[i] = zero if x[i] <= zero else x[i]


@loop("input, input, output")
def _relu_gradient(g: Block, y: Block, out: Block) -> None:
    zero = g.dtype.type(0)
    for i in range(g.size):
        out[i] = g[i] if y[i] > zero else g[i] * zero


def relu_loop(body: Body, x: Block, /) -> Body | None:
    """`gdt.relu`"""
    return _element_wise("relu", _relu, body, x)


def relu_gradient_loop(body: Body, g: Block, y: Block, /) -> Body | None:
    """`relu_gradient`, where both operands have the same shape and dtype."""
    return _element_wise("relu_gradient", _relu_gradient, body, g, y)


def _element_wise(name: str, of_dtypes: Loop, body: Body, *operands: Any) -> Body | None:
    """A loop over the elements of blocks that have the same shape and dtype."""
    like = operands[0]
    if not are_arrays(*operands):
        return None
    if any(x.shape != like.shape or x.dtype != like.dtype for x in operands):
        return None
    run = of_dtypes[like.dtype.char]
    if run is None:
        return None

    def made(*blocks: Block, out: Block = None) -> Block:
        target = np.empty_like(blocks[0]) if out is None else out
        elements = vectors(*blocks, target)
        if elements is None:
            return body(*blocks, out=out)
        run(*elements)
        return target

    made.__name__ = name
    return made
