"""Bits packed into bytes, and bytes as bits."""

from __future__ import annotations

from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.operands import as_operands
from gdt.array.registry import public
from gdt.errors import ArgumentError, DtypeError, error
from gdt.ops.elementwise import astype
from gdt.ops.joining import concat
from gdt.ops.lookup import along_axis_or_flat
from gdt.ops.padding import pad
from gdt.ops.reductions import sum_
from gdt.ops.shapes import expand_dims, reshape

__all__ = [
    "packbits",
    "unpackbits",
]


_PLACES = {"big": (128, 64, 32, 16, 8, 4, 2, 1), "little": (1, 2, 4, 8, 16, 32, 64, 128)}


def _places(bitorder: str, name: str) -> np.ndarray:
    """The powers of two of the eight bits of a byte, in that order."""
    if bitorder not in _PLACES:
        raise error(ArgumentError, name, f"bitorder is {bitorder!r}, neither 'big' nor 'little'")
    return np.array(_PLACES[bitorder], np.uint8)


@public
def packbits(x: Any, axis: int | None = None, bitorder: str = "big") -> DistributedArray:
    """Integers or bools, eight in one byte of uint8 along `axis` (None: of the flattened array).

    bitorder: whether the first of eight is the highest bit ("big") or the lowest ("little").

    >>> gdt.packbits([1, 0, 0, 0, 0, 0, 1, 1]).tolist()
    [131]
    """
    (x,) = as_operands("packbits", x=x)
    places = _places(bitorder, "packbits")
    if x.dtype.kind not in "biu":
        problem = f"bits are integers or bools, not {x.dtype}"
        raise error(DtypeError, problem, operands={"x": x.type})
    x, at = along_axis_or_flat(x, axis, takes_rank_0=True)
    widths = [(0, 0)] * x.ndim
    widths[at] = (0, -x.shape[at] % 8)
    x = pad(astype(x != 0, np.uint8), widths)
    x = reshape(x, (*x.shape[:at], x.shape[at] // 8, 8, *x.shape[at + 1 :]))
    return sum_(x * places.reshape(8, *[1] * (x.ndim - at - 2)), axis=at + 1, dtype=np.uint8)


@public
def unpackbits(
    x: Any, axis: int | None = None, count: int | None = None, bitorder: str = "big"
) -> DistributedArray:
    """The bits of bytes along `axis` (None: of the flattened array), as uint8 of 0 and 1.

    count: the number of bits to return, with zeros behind the last; a negative number leaves out
        that many bits at the end.

    >>> gdt.unpackbits(gdt.asarray([131], dtype="uint8")).tolist()
    [1, 0, 0, 0, 0, 0, 1, 1]
    """
    (x,) = as_operands("unpackbits", x=x)
    places = _places(bitorder, "unpackbits")
    if x.dtype != np.uint8:
        problem = f"packed bits are uint8, not {x.dtype}"
        raise error(DtypeError, problem, operands={"x": x.type})
    x, at = along_axis_or_flat(x, axis, takes_rank_0=True)
    bits = expand_dims(x, at + 1) & places.reshape(8, *[1] * (x.ndim - at - 1))
    bits = astype(bits != 0, np.uint8)
    bits = reshape(bits, (*x.shape[:at], x.shape[at] * 8, *x.shape[at + 1 :]))
    if count is None:
        return bits
    size = bits.shape[at]
    if count < -size:
        problem = f"count is {count}, and leaves out more than {size} bits"
        raise error(ArgumentError, problem, operands={"x": x.type})
    keep = (*[slice(None)] * at, slice(count))
    if count <= size:
        return bits[keep]
    zeros = np.zeros((*bits.shape[:at], count - size, *bits.shape[at + 1 :]), np.uint8)
    return concat([bits, zeros], axis=at)
