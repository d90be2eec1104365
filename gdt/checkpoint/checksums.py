"""Checksums of an array in a file, slab by slab, so that a reader of a part can verify that part.

A slab is a run of rows (indices of the first axis), contiguous in the file. An array has up to
`SLABS` of them. A reader of some rows verifies the slabs that it has read whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gdt.comm.agreement import crc32_of

SLABS = 64
"""The most slabs of an array: up to so many processes can each verify a share of its rows."""

Bounds = tuple[tuple[int, int], ...]  # start and stop along each axis


def slabs(shape: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first row and the end of every slab of an array of that shape; none if it is empty.

    >>> list(slabs((130, 3)))[:2], len(list(slabs((130, 3)))), list(slabs(()))
    ([(0, 3), (3, 6)], 44, [(0, 1)])
    """
    if 0 in shape:
        return
    rows = shape[0] if shape else 1
    step = -(-rows // SLABS)
    for start in range(0, rows, step):
        yield start, min(start + step, rows)


def checksum(part: np.ndarray) -> str:
    """Return the CRC-32 of an array's bytes in row-major order, as eight hexadecimal digits."""
    return f"{crc32_of(part):08x}"


def checksums(whole: np.ndarray) -> list[str]:
    """Return the checksum of every slab."""
    rows = whole if whole.ndim else whole.reshape(1)
    return [checksum(rows[start:stop]) for start, stop in slabs(whole.shape)]


def damaged(sums: Sequence[str], shape: Sequence[int], pieces: Mapping[Bounds, Any]) -> bool:
    """Return whether a slab that `pieces` cover has another checksum than `sums` says.

    sums: the checksum of every slab. pieces: disjoint parts of an array of that shape, by their
    bounds. Slabs of which a part is missing are ignored.
    """
    pieces = {bounds: piece for bounds, piece in pieces.items() if piece.size}
    for (start, stop), expected in zip(slabs(shape), sums, strict=True):
        slab, elements = None, 0
        for bounds, piece in pieces.items():
            first, last = bounds[0] if bounds else (0, 1)
            low, high = max(first, start), min(last, stop)
            if low >= high:
                continue
            rows = piece[low - first : high - first] if bounds else piece.reshape(1)
            if slab is None:
                slab = np.empty((stop - start, *shape[1:]), piece.dtype)
            inside = tuple(slice(a, b) for a, b in bounds[1:])
            slab[(slice(low - start, high - start), *inside)] = rows
            elements += rows.size
        if slab is not None and elements == slab.size and checksum(slab) != expected:
            return True
    return False
