"""Executes packed launches of a kernel library; under a sanitizer, as a process of its own.

It imports neither NumPy nor gdt: all that runs under the sanitizer is the kernel and this file.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock

CANARY = 0xA5
ALIGNMENT = 128
LIBC = ctypes.CDLL(None)
LIBC.memalign.argtypes, LIBC.memalign.restype = [ctypes.c_size_t] * 2, ctypes.c_void_p
LIBC.free.argtypes = [ctypes.c_void_p]
RUNNING = Lock()  # libraries share the stacks of their threads
STACKS = ctypes.c_void_p()


Pointer = tuple[int, int]  # a place as (buffer, bytes into it)


@dataclass
class Packed:
    """A launch without addresses: whole buffers, and the bytes of each argument.

    `addresses` are places whose 8 bytes are an address, and that address; as places, arguments are
    numbered after the buffers.
    """

    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    buffers: list[bytes]
    arguments: list[bytes]
    addresses: list[tuple[Pointer, Pointer]]
    options: bytes


def load(path: str) -> ctypes.CDLL:
    library = ctypes.CDLL(path)
    library.gdt_message.restype = ctypes.c_char_p
    library.gdt_stacks.restype = ctypes.c_void_p
    with RUNNING:
        STACKS.value = library.gdt_stacks(STACKS)
    return library


def launch(
    library: ctypes.CDLL,
    name: str,
    grid: Sequence[int],
    block: Sequence[int],
    shared: int,
    arguments: Sequence[int],
    options: bytes,
) -> str:
    """Run a kernel; what is wrong, or an empty text. arguments: where they are in memory."""
    with RUNNING:
        failed = library.gdt_launch(
            name.encode(),
            (ctypes.c_uint * 3)(*grid),
            (ctypes.c_uint * 3)(*block),
            ctypes.c_size_t(shared),
            (ctypes.c_void_p * len(arguments))(*arguments),
            options,
        )
        return library.gdt_message().decode() if failed else ""


def execute(library: ctypes.CDLL, packed: Packed, canary: int) -> tuple[list[bytes], str]:
    """Run on copies between `canary` guard bytes; the buffers after it, and what is wrong."""
    contents = [*packed.buffers, *packed.arguments]
    bases = [LIBC.memalign(ALIGNMENT, len(content) + 2 * canary or 1) for content in contents]
    at = [base + canary for base in bases]
    for base, address, content in zip(bases, at, contents, strict=True):
        ctypes.memset(base, CANARY, len(content) + 2 * canary)
        ctypes.memmove(address, content, len(content))
    for (place, offset), (to, further) in packed.addresses:
        ctypes.c_uint64.from_address(at[place] + offset).value = at[to] + further
    arguments = at[len(packed.buffers) :]
    message = launch(
        library, packed.name, packed.grid, packed.block, packed.shared, arguments, packed.options
    )
    after = [ctypes.string_at(a, len(b)) for a, b in zip(at, packed.buffers, strict=False)]
    for i, (content, base) in enumerate(zip(after, bases, strict=False)):
        whole = ctypes.string_at(base, len(content) + 2 * canary)
        if whole != content.join([bytes([CANARY]) * canary] * 2):
            message = message or f"{packed.name} wrote outside buffer {i} of {len(content)} bytes"
    for base in bases:
        LIBC.free(base)
    return after, message


def main(path: str, guard: str) -> None:
    """Serve launches from standard input; what comes to standard error is the message."""
    library = load(path)
    while True:
        try:
            packed = Packed(**pickle.load(sys.stdin.buffer))
        except EOFError:
            return
        seen = os.fstat(2).st_size
        after, message = execute(library, packed, int(guard))
        message = message or os.pread(2, os.fstat(2).st_size - seen, seen).decode(errors="replace")
        pickle.dump((after, message), sys.stdout.buffer)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
