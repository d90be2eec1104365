"""Tensor maps, which describe arrays in memory to Hopper's tensor memory accelerator.

A kernel takes a tensor map by value (`TensorMap` in kernels/ptx.cuh). For a GPU the CUDA driver
encodes it, which needs no context, only the driver's library; for the CPU its words are plain
numbers.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np

from gdt.errors import KernelError, error

WORDS = 16  # words of 64 bits in a map
WORD_ALIGNMENT = 64  # bytes to which an encoded map is aligned
ADDRESS_ALIGNMENT = 16  # bytes to which the array and its strides are aligned
ROW_BYTES = 128  # bytes of a box's row, which the 128-byte swizzle spans
BOX_LIMIT = 256  # rows of a box at most
SIZE_LIMIT, STRIDE_LIMIT = 2**32, 2**40
# CUtensorMapDataType, CUtensorMapSwizzle and CUtensorMapL2promotion of cuda.h
DATA_TYPES = {"half_t": 6, "bfloat16_t": 9, "float": 11}  # FLOAT16, BFLOAT16, TFLOAT32
ITEM_BYTES = {"half_t": 2, "bfloat16_t": 2, "float": 4}
SWIZZLE_128B, L2_PROMOTION_256B = 3, 3
STRUCT = np.dtype([("words", np.uint64, (WORDS,))])  # CuPy passes an array of one by value

Words = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class TensorMap:
    """An array seen as (items, rows, elements along memory), from which boxes are copied.

    c_type: the C type of the elements; float is rounded to tf32 as it is copied.
    sizes: the sizes of the three axes, innermost first.
    strides: the strides of the second and third axis, in bytes.
    box_rows: the number of rows of a box; each row is 128 bytes of one item.
    """

    array: Any
    c_type: str
    sizes: tuple[int, int, int]
    strides: tuple[int, int]
    box_rows: int

    def refusal(self, address: int) -> str | None:
        """Return why the accelerator cannot copy from this array at `address`; None if it can."""
        if self.c_type not in DATA_TYPES:
            return f"{self.c_type} has no tensor map"
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
        """Return the words for the CPU: the address, sizes, strides, rows of a box, bytes of an
        element, and data type."""
        item_bytes, data_type = ITEM_BYTES[self.c_type], DATA_TYPES[self.c_type]
        words = [address, *self.sizes, *self.strides, self.box_rows, item_bytes, data_type]
        return np.array(words + [0] * (WORDS - len(words)), np.uint64).view(STRUCT)

    def encoded(self, address: int) -> Words:
        """Return the words that the CUDA driver encodes for the array at `address`."""
        return _encode(driver(), address, self.c_type, self.sizes, self.strides, self.box_rows)


@cache
def driver() -> Any:
    """Load the library of the CUDA driver; raise KernelError if there is none."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as problem:
        remedy = "Install NVIDIA's driver."
        raise error(
            KernelError, "tensor map", f"no CUDA driver: {problem}", remedy=remedy
        ) from None


@lru_cache(maxsize=4096)  # recycled memory has the same addresses again
def _encode(
    library: Any,
    address: int,
    c_type: str,
    sizes: tuple[int, ...],
    strides: tuple[int, ...],
    box_rows: int,
) -> Words:
    """Return the words of a tensor map, encoded by the driver's `library`."""
    memory = np.zeros(WORDS + WORD_ALIGNMENT // 8, np.uint64)
    words = memory[-memory.ctypes.data % WORD_ALIGNMENT // 8 :][:WORDS]
    rank = len(sizes)
    box = (ROW_BYTES // ITEM_BYTES[c_type], box_rows, 1)
    status = library.cuTensorMapEncodeTiled(
        ctypes.c_void_p(words.ctypes.data),
        DATA_TYPES[c_type],
        rank,
        ctypes.c_void_p(address),
        (ctypes.c_uint64 * rank)(*sizes),
        (ctypes.c_uint64 * (rank - 1))(*strides),
        (ctypes.c_uint32 * rank)(*box),
        (ctypes.c_uint32 * rank)(*(1,) * rank),
        0,  # not interleaved
        SWIZZLE_128B,
        L2_PROMOTION_256B,
        0,  # elements outside of the array are 0
    )
    if status:
        arguments = {"sizes": sizes, "strides": strides, "box": box}
        problem = f"cuTensorMapEncodeTiled returned CUresult {status}"
        raise error(KernelError, "tensor map", problem, operands=arguments)
    words.flags.writeable = False
    return words.view(STRUCT)
