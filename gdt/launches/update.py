"""Launches of update.cu: one optimizer step of many tensors together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from gdt.errors import KernelError, error
from gdt.kernels import Call, Instance, address, constants
from gdt.launches.calls import Array, c_type, ceil_div, named_call

FILE = "update.cu"


def update_instances() -> Iterator[Instance]:
    """Every instance launched here."""
    return (
        Instance(FILE, kernel, (t,)) for kernel, t in product(("sgd", "adam"), ("float", "double"))
    )


def update_table(tensors: Sequence[Sequence[Array | None]]) -> tuple[np.ndarray[Any, Any], int]:
    """The table of (parameter, gradient, moment, second moment), on the host, and its blocks."""
    chunk = constants(FILE)["CHUNK"]
    table, blocks = [], 0
    for arrays in tensors:
        shapes = {a.shape for a in arrays if a is not None}
        if len(shapes) != 1 or not all(a is None or a.flags.c_contiguous for a in arrays):
            raise error(KernelError, "update", f"arrays of shapes {shapes} do not match")
        size = next(a.size for a in arrays if a is not None)
        table.append([*(0 if a is None else address(a) for a in arrays), size, blocks])
        blocks += ceil_div(size, chunk)
    return np.array(table, np.uint64).reshape(len(table), -1), blocks


def _update(
    kernel: str, tensors: Sequence[Sequence[Array | None]], to_device: Any, **arguments: Any
) -> list[Call]:
    """One call for each dtype among the tensors."""
    calls = []
    by_type: dict[str, list[Sequence[Array | None]]] = {}
    for arrays in tensors:
        if arrays[0] is not None and arrays[0].size:
            by_type.setdefault(c_type(arrays[0]), []).append(arrays)
    for kind, group in by_type.items():
        instance = Instance(FILE, kernel, (kind,))
        table, blocks = update_table(group)
        rates = {name: value[kind] for name, value in arguments.items() if isinstance(value, dict)}
        call = named_call(
            instance,
            (blocks,),
            (constants(FILE)["THREADS"],),
            table=to_device(table),
            tensors=len(group),
            **(arguments | rates),
        )
        pointees = tuple(a for arrays in group for a in arrays if a is not None)
        calls.append(replace(call, pointees=pointees))
    return calls


def sgd(
    tensors: Sequence[tuple[Array, Array, Array | None]],
    rate: dict[str, Array],
    *,
    momentum: float = 0.0,
    decay: float = 0.0,
    nesterov: bool = False,
    to_device: Any = np.asarray,
) -> list[Call]:
    """One launch for all (parameter, gradient, moment or None); rate: by C type."""
    return _update(
        "sgd",
        [(*arrays, None) for arrays in tensors],
        to_device,
        rate=rate,
        momentum=momentum,
        decay=decay,
        nesterov=int(nesterov),
    )


def adam(
    tensors: Sequence[tuple[Array, Array, Array, Array]],
    rate: dict[str, Array],
    count: dict[str, Array],
    *,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    decay: float = 0.0,
    decoupled: bool = False,
    to_device: Any = np.asarray,
) -> list[Call]:
    """One launch for all (parameter, gradient, moment, second moment); count: the step, from 1."""
    return _update(
        "adam",
        tensors,
        to_device,
        rate=rate,
        count=count,
        beta1=beta1,
        beta2=beta2,
        eps=eps,
        decay=decay,
        decoupled=int(decoupled),
    )
