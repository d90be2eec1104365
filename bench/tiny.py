"""Tiny ops of gdt on 8 devices, each beside the array library's bare call on its block.

The blocks are so small that a call's time is its overhead.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import gdt
from gdt.backend import backend_of

Call = Callable[[], Any]

DEVICES = 8
ROWS, COLUMNS = 2, 4  # of every device


class TinyOp(NamedTuple):
    """A call `op` of gdt, and NumPy's (or CuPy's) call `bare` on the blocks of its operands."""

    op: Call
    bare: Call


def tiny_ops(mesh: gdt.Mesh | None = None) -> dict[str, TinyOp]:
    """Return an op of every family, none of which sends anything.

    mesh: has one axis of 8 coordinates in one block; by default 8 virtual devices.
    """
    if mesh is None:
        mesh = gdt.create_mesh({"batch": DEVICES}, device_type="CPU")
    xp, rng = backend_of(mesh).xp, np.random.default_rng(0)

    def placed(*shape: int, split: bool) -> gdt.DistributedArray:
        specs = [mesh.axis_names[0] if split else None, *[None] * (len(shape) - 1)]
        values = rng.standard_normal(shape).astype(np.float32)
        return gdt.asarray(values, layout=gdt.Layout(specs, mesh))

    x = placed(DEVICES * ROWS, COLUMNS, split=True)
    y = placed(DEVICES * ROWS, COLUMNS, split=True)
    w = placed(COLUMNS, COLUMNS, split=False)
    (a,), (b,), (c,) = x.blocks, y.blocks, w.blocks
    zero = xp.float32(0)
    add, matmul, reduce, maximum, exp = xp.add, xp.matmul, xp.add.reduce, xp.maximum, xp.exp
    where, concatenate = xp.where, xp.concatenate
    return {
        "add": TinyOp(lambda: gdt.add(x, y), lambda: add(a, b)),
        "x + y": TinyOp(lambda: x + y, lambda: a + b),
        "x * 0.5": TinyOp(lambda: x * 0.5, lambda: a * 0.5),
        "exp": TinyOp(lambda: gdt.exp(x), lambda: exp(a)),
        "relu": TinyOp(lambda: gdt.relu(x), lambda: maximum(a, zero)),
        "where": TinyOp(lambda: gdt.where(x, x, y), lambda: where(a, a, b)),
        "sum": TinyOp(lambda: gdt.sum(x, axis=1), lambda: reduce(a, axis=-1)),
        "matmul": TinyOp(lambda: gdt.matmul(x, w), lambda: matmul(a, c)),
        "reshape": TinyOp(lambda: x.reshape(-1, 2, 2), lambda: a.reshape(DEVICES, -1, 2, 2)),
        "x[:, 0]": TinyOp(lambda: x[:, 0], lambda: a[:, :, 0]),
        "concat": TinyOp(lambda: gdt.concat([x, y], 1), lambda: concatenate([a, b], -1)),
        "astype": TinyOp(lambda: x.astype(np.int32), lambda: a.astype(np.int32)),
    }


TINY_OPS = list(tiny_ops())
