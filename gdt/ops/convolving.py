"""Convolution and correlation of vectors, and sliding windows: devices exchange halos."""

from __future__ import annotations

from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.operands import as_operands
from gdt.array.registry import public
from gdt.engine.op import op
from gdt.errors import ArgumentError, ShapeError, error
from gdt.ops.blocks.windows import Windows, tiled, tiling_of
from gdt.ops.blocks.windows import untiled as joined
from gdt.ops.elementwise import astype, conj, like
from gdt.ops.padding import pad
from gdt.ops.rearranging import flip
from gdt.sharding.array_type import ArrayType
from gdt.sharding.dtypes import promoted
from gdt.sharding.rule import RuleSpec

__all__ = ["convolve", "correlate"]

Block = Any


def _rows_rule(x: ArrayType, v: ArrayType) -> RuleSpec:
    number = x.shape[-1] - v.shape[-1] + 1
    return RuleSpec("... d, ... k -> ... n", whole=frozenset("dkn"), sizes={"n": number})


@op(_rows_rule, linear="x, v")
def convolve_rows(xp: Any, x: Block, v: Block, /) -> Block:
    """The products of every row of `x` with the reversed row of `v`, wherever `v` lies inside.

    x: (..., d), v: (..., k), k at most d, result: (..., d - k + 1).
    """
    lead = np.broadcast_shapes(x.shape[:-1], v.shape[:-1])
    rows = xp.broadcast_to(x, (*lead, x.shape[-1])).reshape(-1, x.shape[-1])
    kernels = xp.broadcast_to(v, (*lead, v.shape[-1])).reshape(-1, v.shape[-1])
    dtype = xp.result_type(x, v)
    out = xp.empty((len(rows), x.shape[-1] - v.shape[-1] + 1), dtype)
    for i in range(len(rows)):
        out[i] = xp.convolve(rows[i], kernels[i], "valid")
    return out.reshape(*lead, out.shape[-1])


def _ends(x: DistributedArray, width: int) -> DistributedArray:
    return pad(x, [*[(0, 0)] * (x.ndim - 1), (width, width)])


convolve_rows.vjp(
    lambda g, out, x, v: like(convolve_rows(_ends(g, v.shape[-1] - 1), flip(v, axis=-1)), x),
    lambda g, out, x, v: like(flip(convolve_rows(x, flip(g, axis=-1)), axis=-1), v),
)


def _valid(x: DistributedArray, v: DistributedArray) -> DistributedArray:
    """`convolve_rows` of a vector, of whose results every device computes its own: the elements
    that these cover beyond its shard come from its neighbours."""
    axes = x.layout.dims[0]
    if not axes:
        return convolve_rows(x, v)
    number = x.shape[0] - v.shape[0] + 1
    windows = Windows(x.shape[0], v.shape[0], 1, 1, 0, number)
    x = tiled(x, tiling_of(windows, 0, axes, x.mesh))  # which releases padded operands
    results = Windows(number, 1, 1, 1, 0, number)
    return joined(convolve_rows(x, v), tiling_of(results, 0, axes, x.mesh))


def _checked(name: str, a: Any, v: Any, mode: str) -> list[DistributedArray]:
    operands = as_operands(name, a=a, v=v)
    for key, x in zip(("a", "v"), operands, strict=True):
        if x.ndim != 1 or not x.size:
            problem = f"{key} of shape {list(x.shape)} is no vector with elements"
            raise error(ShapeError, problem, operands={key: x.type})
    if mode not in ("full", "same", "valid"):
        problem = f"mode is {mode!r}, not 'full', 'same' or 'valid'"
        raise error(ArgumentError, name, problem)
    dtype = promoted(*[x.dtype for x in operands])
    return [astype(x, dtype) for x in operands]


def _convolved(a: DistributedArray, v: DistributedArray, mode: str) -> DistributedArray:
    """The convolution of a vector with one that is not longer."""
    k = v.shape[0]
    before = {"full": k - 1, "same": k // 2, "valid": 0}[mode]
    after = {"full": k - 1, "same": (k - 1) // 2, "valid": 0}[mode]
    return _valid(pad(a, (before, after)) if k > 1 else a, v)


@public
def convolve(a: Any, v: Any, mode: str = "full") -> DistributedArray:
    """The convolution of two vectors: the coefficients of the product of two polynomials.

    mode: "full" for all results, "same" for as many as the longer vector has, "valid" for those
        where the shorter one lies inside. The longer vector stays split, and devices exchange
        halos; every device has the shorter one, of which an infinity
    gives NaN where it reaches over an end. Raises ShapeError for what is no vector.

    >>> gdt.convolve([1, 2, 3], [0, 1, 0.5]).tolist()
    [0.0, 1.0, 2.5, 4.0, 1.5]
    """
    a, v = _checked("convolve", a, v, mode)
    return _convolved(v, a, mode) if v.shape[0] > a.shape[0] else _convolved(a, v, mode)


@public
def correlate(a: Any, v: Any, mode: str = "valid") -> DistributedArray:
    """The correlation of two vectors: sums of the products of `a` and the conjugate of `v`, moved
    along. mode: see `gdt.convolve`.

    >>> gdt.correlate([1, 2, 3], [0, 1, 0.5], "same").tolist()
    [2.0, 3.5, 3.0]
    """
    a, v = _checked("correlate", a, v, mode)
    reverse = flip(conj(v) if v.dtype.kind == "c" else v)
    if v.shape[0] <= a.shape[0]:
        return _convolved(a, reverse, mode)
    # NumPy exchanges the vectors, and reverses and conjugates what it gets.
    longer = flip(_convolved(v, flip(conj(a) if a.dtype.kind == "c" else a), mode))
    return conj(longer) if longer.dtype.kind == "c" else longer
