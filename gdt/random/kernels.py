"""Draw the random numbers of one block, by NumPy's functions or by the kernels of random.cu, which
give the same bits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np

from gdt.backend import backend_of
from gdt.cuda import launches
from gdt.engine.launcher import KernelBody, Launcher
from gdt.ops.blocks.philox import CounterRun
from gdt.ops.generation import shard_starts
from gdt.random import bits as random_bits
from gdt.random import distributions
from gdt.sharding.array_type import ArrayType

Block = Any

KERNELS = {  # the kernel of each function of `gdt.random.bits`
    "bits32": "bits",
    "uniform": "uniform",
    "normal": "normal",
    "truncated_normal": "truncated",
    "integers": "integers",
    "bernoulli": "bernoulli",
}


def block_run(array_type: ArrayType, block: int) -> CounterRun:
    """Return the global row-major indices of the elements of block number `block`.

    They are runs over the last split axis and all axes behind it, which lie end to end in memory.
    Padding continues the run that it follows.
    """
    last = max((d for d, axes in enumerate(array_type.layout.dims) if axes), default=0)
    start = np.zeros((1,) * (array_type.mesh.ndim + last), np.int64)
    for d in range(min(last + 1, array_type.ndim)):
        index = shard_starts(array_type, array_type.mesh.blocks[block], d)
        index = index.reshape(index.shape + (1,) * last)
        if d < last:
            along = [-1 if k == d else 1 for k in range(last)]
            index = index + np.arange(array_type.local_shape[d]).reshape(along)
        start = start + index * math.prod(array_type.shape[d + 1 :])
    return CounterRun(start, math.prod(array_type.local_shape[last:]))


def draw_block(
    sampler: str,
    array_type: ArrayType,
    block: int,
    options: Mapping[str, Any],
    key: Block,
    stream: Any,
    *parameters: Block | float,
) -> Block:
    """Draw the elements of block number `block`, in the block's shape.

    sampler: the name of a function of `gdt.random.bits` or `gdt.random.distributions`. options: its
    arguments. parameters: those of a sampler that takes some, numbers or blocks of the same shape.
    """
    backend = backend_of(array_type.mesh)
    if array_type.mesh.device_kind == "abstract":  # as by a kernel, without temporary arrays
        return backend.empty(array_type.block_shape, array_type.dtype)
    if backend.runner is not None and sampler in KERNELS:
        values = _kernel_body(sampler, array_type, block, tuple(options.items()))(key, stream)
        return values.reshape(array_type.block_shape)
    run = block_run(array_type, block)
    if parameters:
        values = _draw_with_parameters(backend.xp, key, stream, sampler, run, parameters)
        if array_type.dtype.kind in "iu":
            values = backend.xp.where(values == values, values, -1.0)
        values = values.astype(array_type.dtype)
    else:
        values = _draw(backend.xp, key, stream, sampler, run, options)
    values = values.reshape(array_type.block_shape)
    if array_type.memory_order is None:
        return values
    return backend.asarray(values, copy=True, order=array_type.memory_order)


@lru_cache(maxsize=64)
def _kernel_body(
    sampler: str, array_type: ArrayType, block: int, options: tuple[tuple[str, Any], ...]
) -> KernelBody:
    """Return the kernel of a draw, with `_draw` as its body."""
    backend = backend_of(array_type.mesh)
    return KernelBody(
        sampler,
        array_type.mesh.ndim,
        backend,
        partial(_draw_with_kernel, dtype=array_type.dtype),
        _draw,
        {"sampler": sampler, "run": block_run(array_type, block), "options": dict(options)},
    )


def _draw(
    xp: Any, key: Block, stream: Any, sampler: str, run: CounterRun, options: Mapping[str, Any]
) -> Block:
    """Draw by a function of `gdt.random.bits`: (..., length)."""
    module = random_bits if hasattr(random_bits, sampler) else distributions
    return getattr(module, sampler)(xp, run, key, stream, **options)


def _draw_with_parameters(
    xp: Any, key: Block, stream: Any, sampler: str, run: CounterRun, parameters: Sequence[Any]
) -> Block:
    """Draw by one of `distributions.SAMPLERS`, in float64; NaN where parameters are wrong."""
    start = xp.asarray(np.asarray(run.start, np.uint64))
    index = (start[..., None] + xp.arange(run.length, dtype=np.uint64)).reshape(-1)
    vectors = [p if isinstance(p, float) else p.reshape(-1) for p in parameters]
    return distributions.drawn(sampler, xp, index, key, stream, *vectors)


def _draw_with_kernel(
    launcher: Launcher,
    key: Block,
    stream: Any,
    *,
    sampler: str,
    run: CounterRun,
    options: Mapping[str, Any],
    dtype: np.dtype,
) -> Block:
    """Draw by a kernel of random.cu: (rows, length)."""
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
    out = launcher.empty((start.size, run.length), dtype)
    launcher.run(launches.random(KERNELS[sampler], out, start, *numbers, **limits))
    return out


def _number(launcher: Launcher, value: Any) -> Block:
    """Return a key or a stream as an array of one element on the device."""
    if not isinstance(value, int):
        return launcher.xp.asarray(value, np.uint64).reshape(1)
    if value == 0:  # the stream of draws with a key of their own
        return launcher.keep("zero", lambda: launcher.xp.zeros(1, np.uint64))
    return launcher.xp.full(1, value, np.uint64)
