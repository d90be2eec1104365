"""Tensor maps: how Hopper's tensor memory accelerator is told where an array lies.

A kernel takes one by value (`TensorMap` in kernels/ptx.cuh). On a GPU the CUDA driver encodes it,
which needs no context but the driver's library; for the CPU its words are plain numbers.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np

from gdt.errors import KernelError, error

WORDS = 16  # of 64 bits, in a map
WORD_ALIGNMENT = 64  # bytes, of an encoded map
ADDRESS_ALIGNMENT = 16  # bytes, of the array and of its strides
ROW_BYTES = 128  # of a box, which the 128-byte swizzle spans
BOX_LIMIT = 256  # rows
SIZE_LIMIT, STRIDE_LIMIT = 2**32, 2**40
# CUtensorMapDataType, CUtensorMapSwizzle and CUtensorMapL2promotion of cuda.h
DATA_TYPES = {"half_t": 6, "bfloat16_t": 9, "float": 11}  # FLOAT16, BFLOAT16, TFLOAT32
ITEM_BYTES = {"half_t": 2, "bfloat16_t": 2, "float": 4}
SWIZZLE_128B, L2_PROMOTION_256B = 3, 3
STRUCT = np.dtype([("words", np.uint64, (WORDS,))])  # an array of one is passed by value

Words = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class TensorMap:
    """An array seen as (items, rows, elements along memory), of which boxes are copied.

    kind: C type of the elements; float is rounded to tf32 as it is copied. sizes and strides:
    innermost axis first, the strides in bytes and from the second axis on. A box is `box_rows` rows
    of 128 bytes of one item.
    """

    array: Any
    kind: str
    sizes: tuple[int, int, int]
    strides: tuple[int, int]
    box_rows: int

    def refusal(self, address: int) -> str | None:
        """Why the accelerator cannot copy from this array, at this address; None if it can."""
        if self.kind not in DATA_TYPES:
            return f"{self.kind} has no tensor map"
        if address % ADDRESS_ALIGNMENT:
            return f"the array does not begin on a multiple of {ADDRESS_ALIGNMENT} bytes"
        for stride in self.strides:
            if stride % ADDRESS_ALIGNMENT or not 0 < stride < STRIDE_LIMIT:
                return f"a stride of {stride} bytes is no positive multiple of {ADDRESS_ALIGNMENT}"
        if not all(0 < size <= SIZE_LIMIT for size in self.sizes):
            return f"sizes {self.sizes} are not between 1 and 2^32"
        if not 0 < self.box_rows <= BOX_LIMIT:
            return f"a box has 1 to {BOX_LIMIT} rows, not {self.box_rows}"
        return None

    def plain(self, address: int) -> Words:
        """The words for the CPU: address, sizes, strides, rows, bytes of an element, kind."""
        item, kind = ITEM_BYTES[self.kind], DATA_TYPES[self.kind]
        words = [address, *self.sizes, *self.strides, self.box_rows, item, kind]
        return np.array(words + [0] * (WORDS - len(words)), np.uint64).view(STRUCT)

    def encoded(self, address: int) -> Words:
        """The words that the CUDA driver makes of it."""
        return _encode(driver(), address, self.kind, self.sizes, self.strides, self.box_rows)


@cache
def driver() -> Any:
    """The library of the CUDA driver."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as problem:
        remedy = "Install NVIDIA's driver."
        raise error(
            KernelError, "tensor map", f"no CUDA driver: {problem}", remedy=remedy
        ) from None


@lru_cache(maxsize=4096)  # recycled memory comes back at the same addresses
def _encode(
    library: Any,
    address: int,
    kind: str,
    sizes: tuple[int, ...],
    strides: tuple[int, ...],
    box_rows: int,
) -> Words:
    memory = np.zeros(WORDS + WORD_ALIGNMENT // 8, np.uint64)
    words = memory[-memory.ctypes.data % WORD_ALIGNMENT // 8 :][:WORDS]
    rank = len(sizes)
    box = (ROW_BYTES // ITEM_BYTES[kind], box_rows, 1)
    status = library.cuTensorMapEncodeTiled(
        ctypes.c_void_p(words.ctypes.data),
        DATA_TYPES[kind],
        rank,
        ctypes.c_void_p(address),
        (ctypes.c_uint64 * rank)(*sizes),
        (ctypes.c_uint64 * (rank - 1))(*strides),
        (ctypes.c_uint32 * rank)(*box),
        (ctypes.c_uint32 * rank)(*(1,) * rank),
        0,  # not interleaved
        SWIZZLE_128B,
        L2_PROMOTION_256B,
        0,  # zeros outside of the array
    )
    if status:
        facts = {"sizes": sizes, "strides": strides, "box": box}
        problem = f"cuTensorMapEncodeTiled returned CUresult {status}"
        raise error(KernelError, "tensor map", problem, operands=facts)
    words.flags.writeable = False
    return words.view(STRUCT)
