"""Compiled loops of uniform and normal numbers: the bits of the NumPy code, faster.

They do the arithmetic of `bits` and `normal_quantile` in its order, one element at a time, so
every number has the same bits. See `gdt.engine.loops`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gdt.engine.loops import loop
from gdt.ops.blocks.philox import SMALLEST
from gdt.random.normal_quantile import CENTRE, CENTRE_SQUARED, FORMATS

Array = Any


@loop("output, words")
def uniform_32(out: Array, bits: Array) -> None:
    for i in range(out.size):
        out[i] = np.float32(np.int32(bits[i] >> np.uint32(8))) * np.float32(2.0**-24)


@loop("output, words")
def uniform_64(out: Array, bits: Array) -> None:
    for i in range(out.size):
        out[i] = np.float64(np.int64(bits[i] >> np.uint64(11))) * 2.0**-53


# The quantile: A / B in the centre; C / D and E / F in the tails; L of the logarithm. Processors
# compute several numbers at once where no step depends on a number, so every number's formula of
# the centre and of the tail is computed, and one of them chosen.
_F64, _F32 = FORMATS[np.dtype(np.float64)], FORMATS[np.dtype(np.float32)]
(A, B), (C, D), L = _F64.centre, _F64.tail, _F64.log
E, F = _F64.far_tail or ((), ())
LN2_HIGH, LN2_LOW = _F64.ln2_high, _F64.ln2_low
OFFSET, ROOT, MASK = _F64.one - _F64.root_half, _F64.root_half, (1 << 52) - 1
FAR = 1024.0  # no quantile is as large, and multiples of a power of two are exact


@loop("output, words")
def normal_64(out: Array, words: Array) -> int:
    """Write quantiles, but `FAR` times the roots r, with the sign of the quantile, where these are
    above 5; return how many those are."""
    beyond = 0
    for i in range(out.size):
        bits = np.int64(words[i])
        q = (np.float64(bits) + 0.5) * 2.0**-64
        r = q * q * -1.0 + CENTRE_SQUARED
        z = ((((r * A[7] + A[6]) * r + A[5]) * r + A[4]) * r + A[3]) * r + A[2]
        w = ((((r * B[7] + B[6]) * r + B[5]) * r + B[4]) * r + B[3]) * r + B[2]
        z_centre, w_centre = ((z * r + A[1]) * r + A[0]) * q, (w * r + B[1]) * r + B[0]

        p = (np.float64(np.int64(2**63 - 1) - (bits ^ (bits >> 63))) + 0.5) * 2.0**-64
        shifted = np.float64(p).view(np.int64) + OFFSET
        k = np.float64((shifted >> 52) - 1023)
        f = np.int64((shifted & MASK) + ROOT).view(np.float64) - 1.0
        h, s = f * 0.5 * f, f / (f + 2.0)
        t = s * s
        log = ((((t * L[6] + L[5]) * t + L[4]) * t + L[3]) * t + L[2]) * t + L[1]
        log = ((log * t + L[0]) * t + h) * s + k * LN2_LOW - h + f + k * LN2_HIGH
        root = np.sqrt(-log)
        r = root - 1.6
        z = ((((r * C[7] + C[6]) * r + C[5]) * r + C[4]) * r + C[3]) * r + C[2]
        w = ((((r * D[7] + D[6]) * r + D[5]) * r + D[4]) * r + D[3]) * r + D[2]
        z_tail, w_tail = (z * r + C[1]) * r + C[0], (w * r + D[1]) * r + D[0]

        is_centre = abs(q) <= CENTRE
        quantile = (z_centre if is_centre else z_tail) / (w_centre if is_centre else w_tail)
        is_beyond = root > 5.0
        beyond += 1 if is_beyond else 0
        tail = np.copysign(root * FAR if is_beyond else quantile, q)
        out[i] = quantile if is_centre else tail
    return beyond


@loop("output")
def far_tails_64(out: Array) -> None:
    """Overwrite the roots that `normal_64` has written by quantiles."""
    for i in range(out.size):
        if abs(out[i]) > FAR:
            r = abs(out[i]) / FAR - 5.0
            z = ((((r * E[7] + E[6]) * r + E[5]) * r + E[4]) * r + E[3]) * r + E[2]
            w = ((((r * F[7] + F[6]) * r + F[5]) * r + F[4]) * r + F[3]) * r + F[2]
            quantile = ((z * r + E[1]) * r + E[0]) / ((w * r + F[1]) * r + F[0])
            out[i] = np.copysign(quantile, out[i])


def _narrow(values: tuple[float, ...]) -> tuple[np.float32, ...]:
    return tuple(np.float32(v) for v in values)


A32, B32, C32, D32, L32 = map(_narrow, (*_F32.centre, *_F32.tail, _F32.log))
LN2_HIGH_32, LN2_LOW_32 = np.float32(_F32.ln2_high), np.float32(_F32.ln2_low)
OFFSET_32, ROOT_32 = np.int32(_F32.one - _F32.root_half), np.int32(_F32.root_half)
MASK_32, MOST_32 = np.int32((1 << 23) - 1), np.int32(2**31 - 1)
HALF_32, ONE_32, TWO_32 = np.float32(0.5), np.float32(1.0), np.float32(2.0)
UNIT_32, CENTRE_32 = np.float32(2.0**-32), np.float32(CENTRE)
SQUARED_32, SHIFT_32 = np.float32(CENTRE_SQUARED), np.float32(1.6)


@loop("output, words")
def normal_32(out: Array, words: Array) -> int:
    for i in range(out.size):
        bits = np.int32(words[i])
        q = (np.float32(bits) + HALF_32) * UNIT_32
        r = SQUARED_32 - q * q
        z_centre = (((r * A32[3] + A32[2]) * r + A32[1]) * r + A32[0]) * q
        w_centre = ((r * B32[3] + B32[2]) * r + B32[1]) * r + B32[0]

        p = (np.float32(np.int32(MOST_32 - (bits ^ (bits >> 31)))) + HALF_32) * UNIT_32
        shifted = np.int32(np.float32(p).view(np.int32) + OFFSET_32)
        k = np.float32(np.int32((shifted >> 23) - 127))
        f = np.int32((shifted & MASK_32) + ROOT_32).view(np.float32) - ONE_32
        h, s = f * HALF_32 * f, f / (f + TWO_32)
        t = s * s
        log = ((t * L32[3] + L32[2]) * t + L32[1]) * t + L32[0]
        log = (log * t + h) * s + k * LN2_LOW_32 - h + f + k * LN2_HIGH_32
        r = np.sqrt(-log) - SHIFT_32
        z_tail = ((r * C32[3] + C32[2]) * r + C32[1]) * r + C32[0]
        w_tail = (r * D32[2] + D32[1]) * r + D32[0]

        is_centre = abs(q) <= CENTRE_32
        quantile = (z_centre if is_centre else z_tail) / (w_centre if is_centre else w_tail)
        out[i] = quantile if is_centre else np.copysign(quantile, q)
    return 0  # 32 bits do not reach beyond


# ---------------------------------------------------------------- tiles of numbers

UNIFORM, NORMAL = {"f": uniform_32, "d": uniform_64}, {"f": normal_32, "d": normal_64}


def uniform(bits: Array, dtype: np.dtype[Any]) -> Array:
    """Return the uniform numbers of words, in float32 or float64; None for few, and without
    numba."""
    fill = UNIFORM[dtype.char][dtype.char] if bits.size >= SMALLEST else None
    if fill is None:
        return None
    out = np.empty(bits.size, dtype)
    fill(out, bits.reshape(-1))
    return out.reshape(bits.shape)


def normal(bits: Array, dtype: np.dtype[Any]) -> Array:
    """Return the normal numbers of words, in float32 or float64; None for few, and without
    numba."""
    fill = NORMAL[dtype.char][dtype.char] if bits.size >= SMALLEST else None
    if fill is None:
        return None
    out = np.empty(bits.size, dtype)
    if fill(out, bits.reshape(-1)):
        far_tails_64["d"](out)
    return out.reshape(bits.shape)
