"""The IDX format of the original MNIST files (Y. LeCun, C. Cortes, C. Burges).

Two zero bytes, a byte for the element type, a byte for the rank, each size as a big-endian uint32,
then the elements, big-endian, last axis fastest.
"""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gdt.errors import DataError, error

DTYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(path: Path) -> npt.NDArray[Any]:
    """Return the array in an IDX file, in the machine's byte order.

    path: of the file, which may be compressed by gzip under any name. Raises DataError if the
    header is not IDX, or the file is shorter or longer than the header says.
    """
    content = _content(path)
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in DTYPES:
        raise _damaged(path, f"begins with {content[:4].hex(' ') or 'nothing'}, which is not IDX")
    dtype, rank = np.dtype(DTYPES[content[2]]), content[3]
    header = 4 + 4 * rank
    if len(content) < header:
        raise _damaged(path, f"ends inside its header, at byte {len(content)} of {header}")
    shape = np.frombuffer(content, ">u4", rank, offset=4).tolist()
    nbytes = header + math.prod(shape) * dtype.itemsize
    if len(content) != nbytes:
        raise _damaged(path, f"has {len(content)} bytes, but shape {shape} takes {nbytes}")
    array = np.frombuffer(content, dtype, offset=header).reshape(shape)
    return array.astype(dtype.newbyteorder("="))


def _content(path: Path) -> bytes:
    """Return the content of a file, decompressed if it begins as gzip does."""
    content = path.read_bytes()
    if content[:2] != b"\x1f\x8b":
        return content
    try:
        return gzip.decompress(content)
    except (EOFError, OSError, zlib.error) as cause:
        raise _damaged(path, f"is a damaged gzip file ({cause})") from cause


def _damaged(path: Path, problem: str) -> DataError:
    return error(DataError, "read_idx", f"{path} {problem}", remedy="Fetch the file again.")
