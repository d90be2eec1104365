"""A small libnccl.so.2: the code of one architecture, and nothing that is not loaded.

NVIDIA's library holds its kernels for every architecture, several hundred megabytes of them. The
file keeps its layout, with zeros in place of the rest, so that it compresses to the part that is
used.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

FATBIN_MAGIC = 0xBA55ED50  # fatbinary_section.h, CUDA toolkit
CUBIN = 2  # kinds of entries: 1 is PTX, 2 machine code
UNUSED = (".debug_", "__nv_relfatbin")  # the latter is for linking device code anew
FATBIN = ".nv_fatbin"


class Section(NamedTuple):
    """Of an ELF file: name, and where its bytes are."""

    name: str
    start: int
    size: int


def sections(library: bytes) -> list[Section]:
    """The sections of a 64-bit ELF file (System V ABI, "Section Header")."""
    if library[:5] != b"\x7fELF\x02":
        raise ValueError("no 64-bit ELF file")
    (table,) = struct.unpack_from("<Q", library, 40)
    size, count, names = struct.unpack_from("<HHH", library, 58)
    headers = [struct.unpack_from("<IIQQQQ", library, table + i * size) for i in range(count)]
    texts = headers[names][4]

    def text(offset: int) -> str:
        start = texts + offset
        return library[start : library.index(0, start)].decode()

    return [Section(text(name), start, length) for name, _, _, _, start, length in headers]


def entries(library: bytes, section: Section) -> Iterator[tuple[int, int, int, int]]:
    """Of a section of fat binaries: kind, architecture, start and size of the code of each."""
    at, end = section.start, section.start + section.size
    while at + 16 <= end:
        magic, _, header, size = struct.unpack_from("<IHHQ", library, at)
        if magic != FATBIN_MAGIC:
            at += 8
            continue
        at += header
        last = at + size
        while at < last:
            kind, _, header, size = struct.unpack_from("<HHIQ", library, at)
            (architecture,) = struct.unpack_from("<I", library, at + 28)
            yield kind, architecture & 0xFFFF, at + header, size
            at += header + size
        at = last


def slim(library: bytes, architecture: int) -> bytes:
    """The library with zeros where there is code for other architectures, or none that runs."""
    kept = bytearray(library)
    found = False
    for section in sections(library):
        if section.name.startswith(UNUSED):
            kept[section.start : section.start + section.size] = bytes(section.size)
        if section.name == FATBIN:
            for kind, other, start, size in entries(library, section):
                if kind == CUBIN and other == architecture:
                    found = True
                else:
                    kept[start : start + size] = bytes(size)
    if not found:
        raise ValueError(f"no code for sm_{architecture}")
    return bytes(kept)
