"""The kernels of optimizer steps, for one parameter or for all parameters in one launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gdt.backend.graphs import CAPTURED
from gdt.cuda.runner import KernelCall, address
from gdt.cuda.sources import C_TYPES
from gdt.engine.launcher import Launcher
from gdt.engine.updates import UpdateOp

Block = Any
Blocks = Sequence[Block]


def declare(op: UpdateOp, launch: Callable[..., list[KernelCall]]) -> None:
    """Declare `launch`, a function of `gdt.cuda.launches.update`, as the kernel of an update op.

    The operands of the op are its donated arrays, then the gradient, then scalars.
    """
    arrays = len(op.declaration.donated) + 1

    def multi_tensor(
        launcher: Launcher,
        operands: Sequence[Blocks],
        scalars: Sequence[Any],
        outs: Sequence[Blocks],
        **flags: Any,
    ) -> None:
        """Update all parameters in one launch; flags: the statics of the op."""
        tensors = [
            (*map(launcher.contiguous, xs), *out) for xs, out in zip(operands, outs, strict=True)
        ]
        dtypes = {out[0].dtype.name for out in outs if out[0].dtype.name in C_TYPES}
        numbers = {C_TYPES[d]: _scalars(launcher, scalars, np.dtype(d)) for d in dtypes}
        to_device = lambda table: _table(launcher, table)
        launcher.run(launch(tensors, numbers, to_device=to_device, **flags))

    def update(launcher: Launcher, *operands: Any, out: Blocks, **flags: Any) -> Any:
        multi_tensor(launcher, [operands[:arrays]], operands[arrays:], [out], **flags)
        return out[0] if len(out) == 1 else tuple(out)

    op.kernel(update)
    op.multi_tensor_kernel = multi_tensor


def _scalars(launcher: Launcher, values: Sequence[Any], dtype: np.dtype) -> Block:
    """Return the scalars of a step as one array on the device.

    values: Python numbers, or arrays of one element on the device, as a recorded step has them."""
    xp = launcher.xp
    if not any(hasattr(v, "dtype") for v in values):
        return launcher.backend.upload(np.array(values, dtype))
    whole = getattr(values[0], "base", None)
    if whole is not None and all(v.base is whole for v in values):
        places = [(address(v) - address(whole)) // dtype.itemsize for v in values]
        if whole.dtype == dtype and places == list(range(places[0], places[0] + len(values))):
            return whole[places[0] : places[0] + len(values)]  # neighbours in the right order
    return xp.concatenate([xp.asarray(v, dtype).reshape(1) for v in values])


def _table(launcher: Launcher, table: np.ndarray) -> Block:
    """Return the table on the device; the one of the last step if no address has changed.

    A graph gets a table of its own, to which it refers: the kept one may be replaced before it is
    launched."""
    tables = launcher.kept.get("table")  # on the host and on the device
    is_captured = CAPTURED.get() is not None
    if tables is None or is_captured or not np.array_equal(tables[0], table):
        tables = launcher.kept["table"] = table, launcher.backend.upload(table)
    return tables[1]
