"""Counter-based random numbers: each element is a pure function of key, stream and global index.

Philox-4x32-10 (Salmon, Moraes, Dror, Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3")
turns a 64-bit key and a 128-bit counter into four 32-bit words. Counter c of stream s is

    words (c0, c1, c2, c3) = (c mod 2^32, c >> 32, s mod 2^32, s >> 32)
    key words   (k0, k1)   = (key mod 2^32, key >> 32)

and an element takes its bits from the words (w0, w1, w2, w3) of one counter, without rejection:

| draw                | counter | bits                                                  |
|---------------------|---------|-------------------------------------------------------|
| 32 bits, element i  | i // 4  | w[i % 4]                                              |
| 64 bits, element i  | i // 2  | (w0 << 32) + w1 for even i, (w2 << 32) + w3 for odd i |

So elements of one draw never share a word, and two draws are independent if their keys or their
streams differ (a 32-bit and a 64-bit draw of one key and stream do share words). Streams `FOLD`
and `SPLIT`, the two largest, belong to the derivation of keys.

Everything is exact in integers, and in floating point uses only conversions, comparisons, + - * /
and sqrt, each rounded once, in the order written here. The same numbers therefore come out of
NumPy, of CuPy, and of a CUDA kernel that keeps each rounding (`__fmul_rn` and its relatives: no
contraction to fma).

`xp` is the array namespace. `index` is an integer array of any shape and any indices, or a
`CounterRun`, which says that they are consecutive and computes each counter once for its elements;
the numbers are the same. `key` and `stream` are integers below 2^64, or uint64 arrays that
broadcast with `index`."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from gdt.backend.abstract import AbstractArray
from gdt.errors import DtypeError, ShapeError, error
from gdt.ops.blocks.philox import HALF, LOW, CounterRun, as_uint64, draw, philox
from gdt.ops.blocks.radix_sort import argsort
from gdt.random import loops
from gdt.random.normal_quantile import centred_quantile, half_integers, quantile
from gdt.sharding.dtypes import BFLOAT16

Array: TypeAlias = Any
Namespace: TypeAlias = Any

FOLD, SPLIT = 2**64 - 1, 2**64 - 2
"""Streams of `fold_in` and `split`, which no draw should use."""

NARROW_COUNT = 1 << 16
"""The most values that `integers` draws from 32 bits; more take 64."""

TRUNCATED_MASS = 0.9544997361036416
"""P(-2 < z < 2) of a standard normal, the probability of the range of `truncated_normal`."""


# Draws --------------------------------------------------------------------------------------------


def bits32(
    xp: Namespace, index: Array | CounterRun, key: Array | int, stream: Array | int = 0
) -> Array:
    """Draw uniform uint32, one word per element.

    >>> [hex(word) for word in bits32(np, CounterRun(0, 4), key=0).tolist()]
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    return draw(xp, index, key, stream, np.uint32, np.uint32, lambda bits: bits)


def bits64(
    xp: Namespace, index: Array | CounterRun, key: Array | int, stream: Array | int = 0
) -> Array:
    """Draw uniform uint64, two words per element, the earlier one in the upper half.

    >>> [hex(pair) for pair in bits64(np, CounterRun(0, 2), key=0).tolist()]
    ['0x6627e8d5e169c58d', '0xbc57ac4c9b00dbd8']
    """
    return draw(xp, index, key, stream, np.uint64, np.uint64, lambda bits: bits)


def uniform(
    xp: Namespace,
    index: Array | CounterRun,
    key: Array | int,
    stream: Array | int = 0,
    dtype: npt.DTypeLike = np.float32,
) -> Array:
    """Draw uniform numbers in [0, 1): multiples of 2^-8 (bfloat16), 2^-11 (float16), 2^-24
    (float32) or 2^-53 (float64).

    float64 takes the top bits of `bits64`, the others those of `bits32`. Raises DtypeError for
    another dtype.

    >>> uniform(np, np.array([2, 0]), key=0)
    array([0.73571277, 0.39904642], dtype=float32)
    """
    dtype = float_dtype("uniform", dtype)
    word, integer, unit, digits = _FORMATS[dtype]

    def finish(bits: Array) -> Array:
        values = loops.uniform(bits, unit) if xp is np and dtype == unit else None
        if values is not None:
            return values
        bits >>= 8 * word.itemsize - digits
        values = bits.view(integer).astype(unit)  # small, and signed integers convert faster
        values *= 2.0**-digits
        return values

    return draw(xp, index, key, stream, word, dtype, finish)


def integers(
    xp: Namespace,
    index: Array | CounterRun,
    key: Array | int,
    stream: Array | int = 0,
    *,
    low: int,
    high: int,
    dtype: npt.DTypeLike = np.int64,
) -> Array:
    """Draw integers from `low` up to, not including, `high`: `low + floor(bits * n / 2^w)`.

    n = high - low, w = 32 for n <= 2^16 and 64 above; the arithmetic is exact. Every value's
    probability is within 2^-w of 1 / n, so its relative bias is below 2^-16 for n <= 2^16, below
    n * 2^-64 above, and 0 if n is a power of two.

    Raises ShapeError if n < 1; DtypeError if `dtype` cannot hold the values or is no integer.

    >>> integers(np, CounterRun(0, 6), key=1, low=-3, high=3, dtype=np.int8)
    array([2, 2, 0, 1, 1, 2], dtype=int8)
    """
    dtype = np.dtype(dtype)
    check_integers(low, high, dtype)
    count = high - low

    def finish(bits: Array) -> Array:
        if bits.dtype == np.uint32:
            values = (bits.astype(np.uint64) * count) >> 32
        else:
            values = bits if count == 2**64 else multiply_high(bits, count)
        values += low % 2**64
        return values.astype(dtype)

    word = np.uint32 if count <= NARROW_COUNT else np.uint64
    return draw(xp, index, key, stream, word, dtype, finish)


def bernoulli(
    xp: Namespace,
    index: Array | CounterRun,
    key: Array | int,
    stream: Array | int = 0,
    *,
    p: Array | float,
) -> Array:
    """Draw booleans that are true with probability p, rounded up to a multiple of 2^-32.

    An element is true where `bits32 < p * 2^32` in float64. p: a float, or a floating-point array
    that broadcasts with `index`.

    >>> bernoulli(np, CounterRun(0, 8), key=3, p=0.5).tolist()
    [False, True, False, False, True, False, True, False]
    """
    threshold = xp.asarray(p, dtype=np.float64) * 2.0**32
    return xp.less(bits32(xp, index, key, stream), threshold)


def normal(
    xp: Namespace,
    index: Array | CounterRun,
    key: Array | int,
    stream: Array | int = 0,
    dtype: npt.DTypeLike = np.float32,
) -> Array:
    """Draw standard normal numbers by the inverse CDF; they are always finite.

    float32 uses 32 bits and reaches 6.3 deviations, float64 uses 64 bits and reaches 9.2;
    float16 and bfloat16 are float32 rounded. `gdt.random.normal_quantile` states formulas, source
    and accuracy. Raises DtypeError for another dtype.

    >>> normal(np, CounterRun(0, 3), key=0, dtype=np.float64).round(3).tolist()
    [1.276, -0.72, -0.07]
    """
    dtype = float_dtype("normal", dtype)
    word, integer, unit, _ = _FORMATS[dtype]

    def finish(bits: Array) -> Array:
        values = loops.normal(bits, unit) if xp is np else None
        return quantile(xp, bits.view(integer), unit) if values is None else values

    return draw(xp, index, key, stream, word, dtype, finish)


def truncated_normal(
    xp: Namespace,
    index: Array | CounterRun,
    key: Array | int,
    stream: Array | int = 0,
    dtype: npt.DTypeLike = np.float32,
) -> Array:
    """Draw standard normal numbers given that they lie in [-2, 2], by the inverse CDF.

    Their standard deviation is 0.8796. Bits, dtypes and errors are those of `normal`.

    >>> bool(abs(truncated_normal(np, CounterRun(0, 1000), key=0)).max() <= 2)
    True
    """
    dtype = float_dtype("truncated_normal", dtype)
    word, integer, unit, _ = _FORMATS[dtype]

    def finish(bits: Array) -> Array:
        scale = TRUNCATED_MASS * 2.0 ** (-8 * word.itemsize)
        q = half_integers(bits.view(integer), unit, scale)
        return xp.clip(centred_quantile(xp, q), -2.0, 2.0)

    return draw(xp, index, key, stream, word, dtype, finish)


def permutation(xp: Namespace, n: int, key: Array | int, stream: Array | int = 0) -> Array:
    """Return the int64 permutation of n that sorts (`bits64` of element i, i).

    >>> permutation(np, 5, key=0).tolist()
    [4, 0, 3, 1, 2]
    """
    bits = bits64(xp, CounterRun(0, n), key, stream)
    return argsort(xp, bits).astype(np.int64, copy=False)


# Keys ---------------------------------------------------------------------------------------------


def key_from_seed(xp: Namespace, seed: int) -> Array:
    """Return the key (uint64, 0-d) of a seed: the seed itself if it is below 2^64, else its lowest
    64 bits with the higher ones folded in.

    Raises ShapeError if `seed` is negative.

    >>> int(key_from_seed(np, 42))
    42
    """
    if seed < 0:
        raise error(
            ShapeError, "seed", f"{seed} is negative", remedy="Seeds are integers of 0 or more."
        )
    key = xp.asarray(seed % 2**64, dtype=np.uint64)
    while seed := seed >> 64:
        key = fold_in(xp, key, seed % 2**64)
    return key


def fold_in(xp: Namespace, key: Array | int, data: Array | int) -> Array:
    """Return a new key from a key and an integer below 2^64, such as a step or a layer's number.

    The new key is the first 64 bits of counter `data` in stream `FOLD`. key and data broadcast; the
    result is uint64 of their shape.

    >>> hex(int(fold_in(np, 0, 1)))
    '0xc819ce2a359cf688'
    """
    return _first_pair(xp, key, data, FOLD)


def split(xp: Namespace, key: Array | int, n: int) -> Array:
    """Return n new keys, uint64 (*key.shape, n): the first 64 bits of n counters in stream `SPLIT`.

    >>> [hex(k) for k in split(np, 0, 2).tolist()]
    ['0x21d66b2c6bdf5054', '0xa1778aa2b15ca30a']
    """
    return _first_pair(xp, as_uint64(xp, key)[..., None], xp.arange(n, dtype=np.uint64), SPLIT)


def _first_pair(xp: Namespace, key: Array | int, index: Array | int, stream: int) -> Array:
    """Return the first 64 bits of counters `index` in a stream, in the broadcast shape of key and
    index."""
    key, index = as_uint64(xp, key), as_uint64(xp, index)
    shape = np.broadcast_shapes(key.shape, index.shape)
    if isinstance(key, AbstractArray):  # as by a kernel, without temporary arrays
        return xp.empty(shape, np.uint64)
    key, index = xp.atleast_1d(key), xp.atleast_1d(index)
    stream = xp.full(1, stream, dtype=np.uint64)
    pair, _ = philox(xp, (index & LOW, index >> HALF, stream & LOW, stream >> HALF), key)
    return pair.reshape(shape)


# Small pieces -------------------------------------------------------------------------------------


_FORMATS = {
    dtype: (np.dtype(word), np.dtype(integer), np.dtype(unit), digits)
    for dtype, word, integer, unit, digits in [
        (BFLOAT16, np.uint32, np.int32, np.float32, 8),
        (np.dtype("float16"), np.uint32, np.int32, np.float32, 11),
        (np.dtype("float32"), np.uint32, np.int32, np.float32, 24),
        (np.dtype("float64"), np.uint64, np.int64, np.float64, 53),
    ]
}
"""By dtype of the result: the word that is drawn, the signed integer of its size, the dtype of the
arithmetic, and the digits of the result's significand."""


def float_dtype(op: str, dtype: npt.DTypeLike) -> np.dtype[Any]:
    """Return `dtype` as a NumPy dtype, or raise DtypeError if no draw gives it."""
    dtype = np.dtype(dtype)
    if dtype in _FORMATS:
        return dtype
    names = ", ".join(map(str, _FORMATS))
    raise error(DtypeError, op, f"cannot draw {dtype}", remedy=f"It draws {names}.")


def check_integers(low: int, high: int, dtype: np.dtype[Any]) -> None:
    """Raise ShapeError if no integer lies in [low, high), DtypeError if `dtype` cannot hold all."""
    if dtype.kind not in "biu":
        raise error(DtypeError, f"{dtype} is not an integer dtype")
    if low >= high:
        raise error(ShapeError, f"no integer lies in [{low}, {high})")
    least, most = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    if low < least or high > most + 1:
        raise error(
            DtypeError,
            f"{dtype} holds {least}..{most}, not all of {low}..{high - 1}",
            remedy="Pass a wider dtype, or a smaller range.",
        )


def multiply_high(bits: Array, count: Array | int) -> Array:
    """Return `bits * count // 2^64` of uint64 bits for 1 <= count < 2^64, in 32-bit halves."""
    bits_high, bits_low = bits >> 32, bits & LOW
    count_high, count_low = count >> 32, count & LOW
    middle = bits_high * count_low + (bits_low * count_low >> 32)  # < 2^64
    carry = (bits_low * count_high + (middle & LOW)) >> 32
    return bits_high * count_high + (middle >> 32) + carry
