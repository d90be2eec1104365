"""Tiny ops as gdt runs them on 8 virtual devices, each beside the bare NumPy call on its block.

The blocks are so small that a call's time is its overhead.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import gdt

Call = Callable[[], Any]

DEVICES = 8
ROWS, COLUMNS = 2, 4  # of every device


class TinyOp(NamedTuple):
    """`bare` is NumPy's call on the block, or blocks, of the operands of `op`."""

    op: Call
    bare: Call


def tiny_ops() -> dict[str, TinyOp]:
    """An op of every kind, none of which sends anything."""
    mesh = gdt.create_mesh({"batch": DEVICES}, device_type="CPU")
    rng = np.random.default_rng(0)

    def placed(*shape: int, split: bool) -> gdt.DistributedArray:
        specs = ["batch" if split else None, *[None] * (len(shape) - 1)]
        values = rng.standard_normal(shape).astype(np.float32)
        return gdt.asarray(values, layout=gdt.Layout(specs, mesh))

    x = placed(DEVICES * ROWS, COLUMNS, split=True)
    y = placed(DEVICES * ROWS, COLUMNS, split=True)
    w = placed(COLUMNS, COLUMNS, split=False)
    (x_block,), (y_block,), (w_block,) = x.blocks, y.blocks, w.blocks
    zero = np.float32(0)
    add, matmul, reduce, maximum, exp = np.add, np.matmul, np.add.reduce, np.maximum, np.exp
    return {
        "add": TinyOp(lambda: gdt.add(x, y), lambda: add(x_block, y_block)),
        "x + y": TinyOp(lambda: x + y, lambda: x_block + y_block),
        "matmul": TinyOp(lambda: gdt.matmul(x, w), lambda: matmul(x_block, w_block)),
        "sum": TinyOp(lambda: gdt.sum(x, axis=1), lambda: reduce(x_block, axis=-1)),
        "relu": TinyOp(lambda: gdt.relu(x), lambda: maximum(x_block, zero)),
        "exp": TinyOp(lambda: gdt.exp(x), lambda: exp(x_block)),
    }
