"""A check that ops return no views but those that they declare."""

from __future__ import annotations

from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.engine.op import Op
from gdt.observe import Observer


class ViewObserver(Observer):
    """Raises AssertionError for an op whose output shares memory with an operand that the op does
    not declare with `view=`: an update of the one would change the other."""

    wants_moves = False

    def on_op(self, op: Any, args: tuple[Any, ...], static: dict[str, Any], out: Any) -> None:
        if not isinstance(op, Op) or op.declaration.donated:
            return
        outs = out if isinstance(out, tuple) else (out,)
        for i, array in enumerate(args):
            if type(array) is DistributedArray and not op.declaration.is_viewed(i):
                name = op.declaration.operand_name(i)
                if any(_share_memory(array, result) for result in outs):
                    problem = f"{op.name} returns a view of {name}, and does not declare it"
                    raise AssertionError(problem)


def _share_memory(one: DistributedArray, other: DistributedArray) -> bool:
    return any(
        isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and np.shares_memory(a, b)
        for a, b in zip(one.blocks, other.blocks, strict=False)
    )
