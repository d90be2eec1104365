"""How a block of random numbers is drawn: by NumPy's functions, or by the kernels of random.cu,
which give the same numbers to the bit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any

import numpy as np

from gdt.backend import backend_of
from gdt.cuda import launches
from gdt.engine.launcher import KernelBody, Launcher
from gdt.ops.creation import shard_starts
from gdt.random import bits as random_bits
from gdt.random.philox import Run
from gdt.sharding.array_type import ArrayType

Block = Any

KERNELS = {  # by function of `gdt.random.bits`
    "bits32": "bits",
    "uniform": "uniform",
    "normal": "normal",
    "truncated_normal": "truncated",
    "integers": "integers",
    "bernoulli": "bernoulli",
}


def block_run(kind: ArrayType, block: int) -> Run:
    """The global row-major indices of the elements of a block: runs over the last split axis and
    all behind it, which lie end to end. Padding has the indices that follow."""
    last = max((d for d, axes in enumerate(kind.layout.dims) if axes), default=0)
    start = np.zeros((1,) * (kind.mesh.ndim + last), np.int64)
    for d in range(min(last + 1, kind.ndim)):
        index = shard_starts(kind, kind.mesh.blocks[block], d)
        index = index.reshape(index.shape + (1,) * last)
        if d < last:
            along = [-1 if k == d else 1 for k in range(last)]
            index = index + np.arange(kind.local_shape[d]).reshape(along)
        start = start + index * math.prod(kind.shape[d + 1 :])
    return Run(start, math.prod(kind.local_shape[last:]))


def draw_block(
    sampler: str, kind: ArrayType, block: int, options: Mapping[str, Any], key: Block, stream: Any
) -> Block:
    """The elements of one block.

    sampler: a function of `gdt.random.bits`, options: its arguments.
    """
    backend = backend_of(kind.mesh)
    if backend.runner is not None and sampler in KERNELS:
        values = _kernel_body(sampler, kind, block, tuple(options.items()))(key, stream)
    else:
        values = _draw(backend.xp, key, stream, sampler, block_run(kind, block), options)
        if kind.memory_order is not None:
            values = values.reshape(kind.block_shape)
            return backend.asarray(values, copy=True, order=kind.memory_order)
    return values.reshape(kind.block_shape)


@lru_cache(maxsize=64)
def _kernel_body(
    sampler: str, kind: ArrayType, block: int, options: tuple[tuple[str, Any], ...]
) -> KernelBody:
    backend = backend_of(kind.mesh)
    return KernelBody(
        sampler,
        kind.mesh.ndim,
        backend,
        partial(_draw_with_kernel, dtype=kind.dtype),
        _draw,
        {"sampler": sampler, "run": block_run(kind, block), "options": dict(options)},
    )


def _draw(
    xp: Any, key: Block, stream: Any, sampler: str, run: Run, options: Mapping[str, Any]
) -> Block:
    values: Block = getattr(random_bits, sampler)(xp, run, key, stream, **options)
    return values


def _draw_with_kernel(
    launcher: Launcher,
    key: Block,
    stream: Any,
    *,
    sampler: str,
    run: Run,
    options: Mapping[str, Any],
    dtype: np.dtype,
) -> Block:
    limits = {}
    if sampler == "integers":
        limits = {"low": options["low"], "high": options["high"]}
        random_bits.check_integers(limits["low"], limits["high"], dtype)
    elif sampler == "bernoulli":
        limits = {"p": options["p"]}
    start = launcher.keep(
        "start", lambda: launcher.xp.asarray(np.asarray(run.start, np.int64).reshape(-1))
    )
    numbers = [_number(launcher, n) for n in (key, stream)]
    out = launcher.empty((start.size, run.length), dtype.name)
    launcher.run(launches.random(KERNELS[sampler], out, start, *numbers, **limits))
    return out


def _number(launcher: Launcher, value: Any) -> Block:
    """A key or a stream as an array of one element."""
    if isinstance(value, int):
        return launcher.xp.full(1, value, np.uint64)
    return launcher.xp.asarray(value, np.uint64).reshape(1)
