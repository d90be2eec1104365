"""Transforms of axes that are whole on every device: ops whose bodies are the library's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.backend import NUMPY, threads
from gdt.engine.declaration import FROM_ENGINE
from gdt.engine.op import op
from gdt.engine.plan import Memory, Shards
from gdt.ops.elementwise import conj, like
from gdt.ops.indexing import getitem
from gdt.ops.matrices import rows_and_columns
from gdt.ops.padding import pad
from gdt.settings import host_thread_count
from gdt.sharding.array_type import ArrayType
from gdt.sharding.rule import RuleSpec

Block = Any

FACTORS = 1 << 16
"""Factors that the host computes at once: those that its caches hold."""

SWAPPED = {"backward": "forward", "ortho": "ortho", "forward": "backward"}
"""For each norm, the one with which an inverse transform divides by as much as a transform does."""


def _same_dims(array_type: ArrayType, *, axes: tuple[int, ...], **_: Any) -> RuleSpec:
    names = [f"d{i}" for i in range(array_type.ndim)]
    whole = frozenset(names[a] for a in axes)
    return RuleSpec(f"{' '.join(names)} -> {' '.join(names)}", whole=whole)


def _other_length(array_type: ArrayType, *, axis: int, n: int, **_: Any) -> RuleSpec:
    names = [f"d{i}" for i in range(array_type.ndim)]
    out = [*names]
    out[axis] = "n"
    text = f"{' '.join(names)} -> {' '.join(out)}"
    return RuleSpec(text, {"n": n}, frozenset({names[axis], "n"}))


def _memory(out: Memory | None) -> dict[str, Memory]:
    """Return the argument for memory of a result, which CuPy's transforms do not have."""
    return {} if out is None else {"out": out}


@op(_same_dims, linear="x")
def fft_of_whole(
    xp: Any,
    x: Block,
    /,
    axes: tuple[int, ...],
    inverse: bool = False,
    norm: str = "backward",
    *,
    out: Memory | None = None,
) -> Block:
    """`gdt.fft.fftn`, or `ifftn` if `inverse`, along axes that are not split.

    axes: counted from the end.

    >>> gdt.fft.local.fft_of_whole(gdt.asarray([1.0, 0.0]), axes=(-1,)).tolist()
    [(1+0j), (1+0j)]
    """
    transform = xp.fft.ifftn if inverse else xp.fft.fftn
    return transform(x, axes=axes, norm=norm, **_memory(out))


fft_of_whole.vjp(lambda g, out, x, **static: like(fft_of_whole(g, **static), x))


def _half(array_type: ArrayType, *, axis: int, norm: str = "backward") -> dict[str, Any]:
    return {"axis": axis, "norm": norm, "n": array_type.shape[axis] // 2 + 1}


@op(_other_length, linear="x", prepare=_half)
def rfft_of_whole(
    xp: Any, x: Block, /, axis: int, norm: str = "backward", n: int = FROM_ENGINE
) -> Block:
    """`gdt.fft.rfft` along an axis that is not split.

    axis: counted from the end.

    >>> gdt.fft.local.rfft_of_whole(gdt.asarray([1.0, 0.0]), axis=-1).tolist()
    [(1+0j), (1+0j)]
    """
    return xp.fft.rfft(x, axis=axis, norm=norm)


def _rfft_vjp(g: Any, out: Any, x: Any, *, axis: int, norm: str = "backward") -> DistributedArray:
    return like(fft_of_whole(resized(g, axis, x.shape[axis]), axes=(axis,), norm=norm), x)


rfft_of_whole.vjp(_rfft_vjp)


@op(_other_length, linear="x")
def irfft_of_whole(xp: Any, x: Block, /, axis: int, n: int, norm: str = "backward") -> Block:
    """`gdt.fft.irfft` along an axis of n // 2 + 1 elements that is not split.

    axis: counted from the end.

    >>> gdt.fft.local.irfft_of_whole(gdt.asarray([1.0, 1.0]), axis=-1, n=2).tolist()
    [1.0, 0.0]
    """
    return xp.fft.irfft(x, n, axis=axis, norm=norm)


def _irfft_vjp(
    g: Any, out: Any, x: Any, *, axis: int, n: int, norm: str = "backward"
) -> DistributedArray:
    # Every element but the first, and the middle one of an even length, stands for two.
    counts = np.full(x.shape[axis], 2, x.real.dtype)
    counts[0] = 1
    if n % 2 == 0:
        counts[-1] = 1
    spectrum = conj(rfft_of_whole(g, axis=axis, norm=SWAPPED[norm]))
    return like(spectrum * counts.reshape((-1,) + (1,) * (-axis - 1)), x)


irfft_of_whole.vjp(_irfft_vjp)


def resized(x: DistributedArray, axis: int, n: int) -> DistributedArray:
    """`x` with n elements along an axis counted from the end: its first ones, or all and zeros."""
    size = x.shape[axis]
    if n < size:
        return getitem(x, (..., slice(n), *[slice(None)] * (-axis - 1)))
    if n > size:
        widths = [(0, 0)] * x.ndim
        widths[axis] = (0, n - size)
        return pad(x, widths)
    return x


# ---------------------------------------------------------------- the factors between two steps


def tables_of_factors(
    xp: Any, row: Block, first: Block, count: int, n: int, sign: int
) -> tuple[Block, Block]:
    """Return two short tables of factors exp(sign 2 pi i row column / n) for `count` columns from
    `first` on, of which `products_of_tables` makes those of all columns.

    row and first broadcast; the tables are (..., h) and (..., w), and h * w is at least the count.
    """
    # Column l is h * width + w: the factors of h and of w, of which there are few, give those of l.
    width = max(1, math.isqrt(count))
    turn = sign * 2j * np.pi / n
    high = xp.exp(turn * (row * (first + xp.arange(0, count, width)) % n))
    return high, xp.exp(turn * (row * xp.arange(width) % n))


def products_of_tables(high: Block, low: Block, count: int) -> Block:
    """Return the first `count` products of each number of one table and each of another:
    (..., count)."""
    products = high[..., None] * low[..., None, :]
    return products.reshape(*products.shape[:-2], -1)[..., :count]


@op("... i j -> ... i j", linear="x")
def twiddled(
    xp: Any, x: Block, /, n: int, inverse: bool = False, *, shards: Shards = FROM_ENGINE
) -> Block:
    """Matrices (..., i, j) times exp(-2 pi i k l / n) at row k and column l; times the conjugate
    of that if `inverse`.

    >>> gdt.fft.local.twiddled(gdt.ones((2, 2), complex), n=4).round(3).tolist()
    [[(1+0j), (1+0j)], [(1+0j), -1j]]
    """
    rows, columns = x.shape[-2:]
    row, column = rows_and_columns(xp, x, shards)
    sign = 1 if inverse else -1
    high, low = tables_of_factors(xp, row, column[..., :1], columns, n, sign)
    dtype = xp.result_type(x.dtype, np.complex64)

    def product(part: slice) -> Block:
        """Some rows of the result. Factors may be as large as x, which they are not all at once."""
        factors = products_of_tables(high[..., part, :], low[..., part, :], columns)
        factors = factors.astype(dtype)
        if factors.shape != x[..., part, :].shape or dtype != x.dtype:
            return x[..., part, :] * factors
        factors *= x[..., part, :]
        return factors

    if xp is not np or x.size < 2 * FACTORS:
        return product(slice(None))
    out = NUMPY.empty(np.broadcast_shapes(x.shape, (*high.shape[:-1], 1)), dtype)
    step = max(1, rows * FACTORS // x.size)

    def fill(some: slice) -> None:
        for start in range(0, rows, step)[some]:
            part = slice(start, start + step)
            out[..., part, :] = product(part)

    threads.in_turns(fill, host_thread_count())
    return out


twiddled.vjp(lambda g, out, x, **static: twiddled(g, **static))
