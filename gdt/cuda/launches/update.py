"""Launches of update.cu: one optimizer step of many tensors in one launch.

A tensor is a tuple of arrays of one shape: the operands of the step, in the order of the op's body
in `gdt.optim`, then its results, which may be the operands themselves. `scalars` maps each C type
among the tensors to an array on the device, which holds the scalars of the body in its order.
`to_device` copies an array of the host to the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from gdt.cuda.launches.calls import Array, c_type, ceil_div, named_call
from gdt.cuda.runner import KernelCall, address
from gdt.cuda.sources import Instance, constants
from gdt.errors import KernelError, error

FILE = "update.cu"
COLUMNS = (  # addresses in a row of the table; the tensor's size and first block follow
    "parameter", "moment", "second", "gradient", "new parameter", "new moment", "new second",
)  # fmt: skip
SGD = ("parameter", "gradient", "new parameter")
MOMENTUM = ("parameter", "moment", "gradient", "new parameter", "new moment")
ADAM = COLUMNS

Tensors = Sequence[Sequence[Array]]
Scalars = Mapping[str, Array]


def update_instances() -> Iterator[Instance]:
    """Yield every instance that this module launches."""
    kernels, types = ("sgd", "momentum", "adam"), ("float", "double")
    yield from (Instance(FILE, kernel, (t,)) for kernel, t in product(kernels, types))


def update_table(tensors: Tensors, roles: Sequence[str]) -> tuple[np.ndarray[Any, Any], int]:
    """Return the table that the kernels read, of the host, and the number of thread blocks.

    roles: the column of each array of a tensor. Raises KernelError where the arrays of a tensor
    differ in shape or dtype, or are not contiguous.
    """
    chunk = constants(FILE)["CHUNK"]
    table, blocks = [], 0
    for arrays in tensors:
        if len({(a.shape, a.dtype) for a in arrays}) != 1:
            shown = ", ".join(f"{a.dtype.name}{[*a.shape]}" for a in arrays)
            raise error(KernelError, "update", f"the arrays of a tensor differ: {shown}")
        if not all(a.flags.c_contiguous for a in arrays):
            raise error(KernelError, "update", "an array is not contiguous in C order")
        addresses = dict(zip(roles, map(address, arrays), strict=True))
        table.append([*(addresses.get(c, 0) for c in COLUMNS), arrays[0].size, blocks])
        blocks += ceil_div(arrays[0].size, chunk)
    return np.array(table, np.uint64), blocks


def _update(
    kernel: str,
    roles: Sequence[str],
    tensors: Tensors,
    scalars: Scalars,
    to_device: Callable[[np.ndarray[Any, Any]], Array],
    **flags: bool,
) -> list[KernelCall]:
    """Return one call for each C type among the tensors, none for tensors without elements."""
    calls = []
    by_type: dict[str, list[Sequence[Array]]] = {}
    for arrays in tensors:
        if arrays[0].size:
            by_type.setdefault(c_type(arrays[0]), []).append(arrays)
    for element_type, group in by_type.items():
        instance = Instance(FILE, kernel, (element_type,))
        if instance not in update_instances():
            raise error(KernelError, "update", f"no kernel {instance} for {group[0][0].dtype}")
        table, blocks = update_table(group, roles)
        call = named_call(
            instance,
            (blocks,),
            (constants(FILE)["THREADS"],),
            table=to_device(table),
            tensors=len(group),
            scalars=scalars[element_type],
            **{name: int(flag) for name, flag in flags.items()},
        )
        calls.append(replace(call, pointees=tuple(a for arrays in group for a in arrays)))
    return calls


def sgd(tensors: Tensors, scalars: Scalars, *, to_device: Any = np.asarray) -> list[KernelCall]:
    """Return the calls of `gdt.optim.sgd.sgd_step` for tensors (p, g, new p).

    scalars: rate."""
    return _update("sgd", SGD, tensors, scalars, to_device)


def momentum(
    tensors: Tensors, scalars: Scalars, *, nesterov: bool = False, to_device: Any = np.asarray
) -> list[KernelCall]:
    """Return the calls of `gdt.optim.sgd.momentum_step` for tensors (p, v, g, new p, new v).

    scalars: rate, momentum."""
    return _update("momentum", MOMENTUM, tensors, scalars, to_device, nesterov=nesterov)


def adam(tensors: Tensors, scalars: Scalars, *, to_device: Any = np.asarray) -> list[KernelCall]:
    """Return the calls of `gdt.optim.adam.adam_step` for tensors (p, m, v, g, new p, new m, new v).

    scalars: beta1, beta2, keep, rate, epsilon."""
    return _update("adam", ADAM, tensors, scalars, to_device)
