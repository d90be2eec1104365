"""Transforms along a split axis of a length without two large factors: convolutions with a chirp.

With w[k] = exp(-pi i k^2 / n), element k of a transform is w[k] times the sum over j of x[j] w[j]
conj(w[k - j]) (Bluestein 1970), a cyclic convolution of any length that holds all k - j. A
convolution twice as long as x, transformed at once, would hold eight times the share of x. Here the
sums are taken in parts: of K * h numbers, those at t, t + K, t + 2 K ... of the transform are the h
numbers of a transform of length h, of x times exp(-2 pi i t j / (K h)), folded to h numbers. So for
each t one convolution of h numbers, a small part of x, is transformed in four steps (`gdt.fft`),
times the chirp's, and back, and is added to the result.

The first and the last of the four steps, which move all of x and of the result, are done once; the
chirp is computed where it is used. A device holds its share of x as a matrix, of the result, and of
three parts of a quarter of a share each.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from gdt.array.array import DistributedArray
from gdt.engine.declaration import FROM_ENGINE
from gdt.engine.op import op
from gdt.engine.plan import Shards
from gdt.fft.local import SWAPPED, fft_of_whole, products_of_tables, tables_of_factors, twiddled
from gdt.fft.matrices import Step, as_matrix, as_vector
from gdt.ops.elementwise import conj, like, real
from gdt.ops.generation import from_indices
from gdt.ops.indexing import getitem
from gdt.ops.joining import concat
from gdt.ops.matrices import rows_and_columns
from gdt.ops.movement import with_axes_moved
from gdt.ops.rearranging import swapaxes
from gdt.sharding.array_type import ArrayType
from gdt.sharding.dtypes import promoted
from gdt.sharding.layout import Layout

Block = Any

PARTS = 4
"""The parts of the shorter one of operand and result: a part is a convolution of its own."""

SHORT = 1 << 14
"""The length from which on there are parts: below it calls take longer than arithmetic."""


class Wave(NamedTuple):
    """The function exp(pi i (sign k^2 / n + 2 turns k / period)) of integers k."""

    sign: int
    n: int
    turns: int
    period: int

    def at(self, xp: Any, first: Block, columns: Block) -> Block:
        """The values at first + columns: first (..., rows, 1), and columns (..., 1, columns), which
        follow each other."""
        # k^2 = first^2 + 2 first column + column^2
        count = columns.shape[-1]
        high, low = tables_of_factors(xp, first, columns[..., :1], count, self.n, self.sign)
        values = products_of_tables(high * self._alone(xp, first), low, count)
        values *= self._alone(xp, columns)
        return values

    def _alone(self, xp: Any, k: Block) -> Block:
        square = self.sign * (k * k % (2 * self.n)) / self.n
        return xp.exp(1j * np.pi * (square + 2 * (self.turns * k % self.period) / self.period))


class Parts(NamedTuple):
    """The matrices of rows and columns in which a transform of n numbers is computed: as many for
    its operand, and for its result."""

    n: int
    rows: int
    columns: int
    operands: int
    results: int
    sign: int  # of the exponent of the transform

    @property
    def convolutions(self) -> int:
        """The number of parts, of rows * columns numbers each."""
        return self.operands + self.results

    def wave(self, sign: int, turns: int) -> Wave:
        """A chirp of a sign, times the factors of a convolution, or those of its inverse."""
        return Wave(sign, self.n, turns, self.convolutions * self.rows * self.columns)


def steps_by_chirp(x: ArrayType, axis: int, inverse: bool, norm: str) -> list[Step]:
    """Return functions that one after the other transform along a split axis, which stays split."""
    n = x.shape[axis]
    return _steps(x, axis, n, n, 1 if inverse else -1, _scale(n, inverse, norm))


def rfft_by_chirp(x: DistributedArray, axis: int, norm: str) -> DistributedArray:
    """The elements 0 to n // 2 of the transform of n real numbers along a split axis."""
    n = x.shape[axis]
    for step in _steps(x.type, axis, n, n // 2 + 1, -1, _scale(n, False, norm)):
        x = step(x)  # which releases the array before it
    return x


def irfft_by_chirp(
    x: DistributedArray, axis: int, n: int, norm: str, conjugated: bool
) -> DistributedArray:
    """The n real numbers, n odd, whose transform begins with the n // 2 + 1 elements of a split
    axis, or their conjugates."""
    x = conj(x) if conjugated else x
    scale = _scale(n, True, norm)
    first = real(getitem(x, (*[slice(None)] * axis, slice(1)))).copy()
    # Every element but the first stands for two, whose sum is twice the real part of one.
    for step in _steps(x.type, axis, n, n, 1, 2 * scale, is_real=True):
        x = step(x)
    return x - first * scale


def _scale(n: int, inverse: bool, norm: str) -> float:
    scales = {"backward": 1.0, "ortho": 1 / math.sqrt(n), "forward": 1 / n}
    return scales[SWAPPED[norm] if inverse else norm]


def _steps(
    x: ArrayType,
    axis: int,
    n: int,
    count: int,
    sign: int,
    scale: float,
    is_real: bool = False,
) -> list[Step]:
    """Return functions that compute, for k below `count`, the sums over j of
    x[j] exp(sign 2 pi i j k / n), times a scale, or their real parts."""
    last, shards = x.ndim - 1, x.layout.num_shards(axis)
    parts = parts_of(n, x.shape[axis], count, sign, shards)
    dims = [*x.layout.resolved.dims]
    dims[axis], dims[last] = dims[last], dims[axis]
    return [
        lambda x: swapaxes(x.resolve(), axis, -1),
        *as_matrix(parts.operands * parts.rows, parts.columns, shards),
        lambda x: with_axes_moved(x, last, last + 1),  # (..., rows, columns), columns split
        lambda x: _sums(x, parts, scale / parts.convolutions, is_real),
        lambda results: concat(results, -2),
        lambda x: with_axes_moved(x, last + 1, last),
        *as_vector(count, Layout.of(x.mesh, tuple(dims))),
        lambda x: swapaxes(x, axis, -1),
    ]


def _sums(x: DistributedArray, parts: Parts, scale: float, is_real: bool) -> list[DistributedArray]:
    """Return the parts of the result."""
    results: list[DistributedArray | None] = [None] * parts.results
    for turns in range(parts.convolutions):
        _add(results, _convolved(x, parts, turns), parts.wave(parts.sign, turns), scale, is_real)
    return results  # type: ignore[return-value]


def _add(
    results: list[DistributedArray | None],
    convolved: DistributedArray,
    wave: Wave,
    scale: float,
    is_real: bool,
) -> None:
    """Add one of the convolutions to the parts of the result, which are None at first."""
    for part, before in enumerate(results):
        y = waved(convolved, wave=wave, start=part * convolved.shape[-2], scale=scale)
        y = real(y).copy() if is_real else y
        results[part] = y if before is None else before + y


def _convolved(x: DistributedArray, parts: Parts, turns: int) -> DistributedArray:
    """Return one of the convolutions of the operand, a matrix of split columns, and the chirp."""
    spectrum = _spectrum(_folded(x, parts, turns))
    spectrum = spectrum * _spectrum(_filter(x.type, parts, turns))
    last, n = x.ndim - 2, parts.rows * parts.columns
    y = fft_of_whole(spectrum, axes=(-1,), inverse=True)
    del spectrum
    y = with_axes_moved(twiddled(y, n=n, inverse=True), last, last + 1)
    return fft_of_whole(y, axes=(-2,), inverse=True)


def _folded(x: DistributedArray, parts: Parts, turns: int) -> DistributedArray:
    """Return the sum of the parts of the operand, each times its factors."""
    wave, total = parts.wave(parts.sign, -turns), None
    for start in range(0, x.shape[-2], parts.rows):
        part = getitem(x, (..., slice(start, start + parts.rows), slice(None)))
        part = waved(part, wave=wave, start=start)
        total = part if total is None else total + part
    return total  # type: ignore[return-value]


def _spectrum(x: DistributedArray) -> DistributedArray:
    """Return the transform of the numbers of a matrix, row by row: number q + rows * s at row q and
    column s. The columns are split before, the rows after it."""
    last, n = x.ndim - 2, x.shape[-2] * x.shape[-1]
    x = fft_of_whole(x, axes=(-2,))
    x = twiddled(x, n=n)
    x = with_axes_moved(x, last + 1, last)
    return fft_of_whole(x, axes=(-1,))


def _filter(array_type: ArrayType, parts: Parts, turns: int) -> DistributedArray:
    """Return the chirp with which the operand is convolved, as it is folded."""
    rows, columns, count = parts.rows, parts.columns, parts.convolutions
    wave = parts.wave(-parts.sign, -turns)

    def values(xp: Any, *indices: Any) -> Any:
        row, column = indices[-2:]
        # Of differences of indices, those from 0 stand first, and those below it at the end.
        starts = [(p if p < parts.results else p - count) * rows for p in range(count)]
        total = wave.at(xp, (row + starts[0]) * columns, column)
        for start in starts[1:]:
            total += wave.at(xp, (row + start) * columns, column)
        return total

    shape = (*[1] * (array_type.ndim - 2), rows, columns)
    dims = (*[()] * (array_type.ndim - 1), array_type.layout.dims[-1])
    dtype = promoted(array_type.dtype, np.complex64)
    return from_indices(ArrayType.of(shape, dtype, Layout.of(array_type.mesh, dims)), values)


@lru_cache(maxsize=1 << 10)
def parts_of(n: int, size: int, count: int, sign: int, shards: int) -> Parts:
    """Return the parts of a transform of `size` numbers to `count`: matrices of as many rows as
    columns, about, both of which fill the shards."""
    least = -(-min(size, count) // (PARTS if n >= SHORT else 1))
    part = _smooth(-(-least // shards**2))  # of rows and columns that are as many as the shards
    width = max(d for d in range(1, math.isqrt(part) + 1) if part % d == 0)
    rows, columns = shards * (part // width), shards * width
    part = rows * columns
    return Parts(n, rows, columns, -(-size // part), -(-count // part), sign)


def _smooth(least: int) -> int:
    """Return the smallest product of powers of 2, 3 and 5 that is not below `least`."""
    powers = range(least.bit_length() + 1)
    numbers = [2**a * 3**b * 5**c for a in powers for b in powers[:7] for c in powers[:5]]
    smallest: int = min(m for m in numbers if m >= least)
    return smallest


@op("... i j -> ... i j", linear="x")
def waved(
    xp: Any,
    x: Block,
    /,
    wave: Wave,
    start: int,
    scale: float = 1.0,
    *,
    shards: Shards = FROM_ENGINE,
) -> Block:
    """Matrices (..., rows, columns) times a scale and the values of a wave, from start * columns on
    in row 0.

    >>> wave = gdt.fft.chirp.Wave(1, 2, 0, 4)
    >>> gdt.fft.chirp.waved(gdt.ones((2, 2)), wave=wave, start=0).round(3).tolist()
    [[(1+0j), 1j], [(1+0j), 1j]]
    """
    row, column = rows_and_columns(xp, x, shards)
    values = wave.at(xp, (row + start) * shards.size["j"], column)
    values *= scale
    values = values.astype(xp.result_type(x.dtype, np.complex64), copy=False)
    if values.shape != x.shape:
        return x * values
    values *= x  # in place, since values are as large as x
    return values


waved.vjp(lambda g, out, x, **static: like(waved(g, **static), x))
