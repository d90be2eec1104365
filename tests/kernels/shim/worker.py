"""Executes packed launches of a kernel library; under a sanitizer, as a process of its own.

It imports neither NumPy nor gdt: all that runs under the sanitizer is the kernel and this file.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import sys
from dataclasses import dataclass

CANARY = 0xA5
ALIGNMENT = 128
LIBC = ctypes.CDLL(None)
LIBC.posix_memalign.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]
LIBC.free.argtypes = [ctypes.c_void_p]


class Options(ctypes.Structure):
    """`shim::Options`: order of threads, timing of copies, new TSan fibers for every block."""

    _fields_ = [
        ("order", ctypes.c_int),
        ("async_mode", ctypes.c_int),
        ("fresh_fibers", ctypes.c_int),
        ("unused", ctypes.c_int),
        ("seed", ctypes.c_uint64),
    ]


Pointer = tuple[int, int]  # an address as (buffer, bytes into it)


@dataclass
class Packed:
    """A launch without addresses: whole buffers, and arguments as pointers into them or bytes.

    `fixups` are places (buffer, offset) whose 8 bytes are an address, and that address.
    """

    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    buffers: list[bytes]
    arguments: list[Pointer | bytes | None]
    fixups: list[tuple[int, int, Pointer]]
    options: bytes


def allocate(size: int) -> int:
    address = ctypes.c_void_p()
    if LIBC.posix_memalign(ctypes.byref(address), ALIGNMENT, max(1, size)):
        raise MemoryError(size)
    assert address.value is not None
    return address.value


def load(path: str) -> ctypes.CDLL:
    library = ctypes.CDLL(path)
    library.gdt_message.restype = ctypes.c_char_p
    return library


def execute(library: ctypes.CDLL, packed: Packed, canary: int) -> tuple[list[bytes], str]:
    """Run on copies between `canary` guard bytes; the buffers after it, and what is wrong."""
    bases = [allocate(len(b) + 2 * canary) for b in packed.buffers]
    at = [base + canary for base in bases]
    for base, address, content in zip(bases, at, packed.buffers, strict=True):
        ctypes.memset(base, CANARY, canary)
        ctypes.memmove(address, content, len(content))
        ctypes.memset(address + len(content), CANARY, canary)
    resolve = lambda p: ctypes.c_uint64(at[p[0]] + p[1])
    for buffer, offset, pointer in packed.fixups:
        ctypes.memmove(at[buffer] + offset, ctypes.byref(resolve(pointer)), 8)
    slots = []
    for argument in packed.arguments:
        content = bytes(resolve(argument)) if isinstance(argument, tuple) else argument or bytes(8)
        slot = allocate(ALIGNMENT)
        ctypes.memmove(slot, content, len(content))
        slots.append(slot)
    failed = library.gdt_launch(
        packed.name.encode(),
        (ctypes.c_uint * 3)(*packed.grid),
        (ctypes.c_uint * 3)(*packed.block),
        ctypes.c_size_t(packed.shared),
        (ctypes.c_void_p * len(slots))(*slots),
        packed.options,
    )
    message = library.gdt_message().decode() if failed else ""
    after = []
    guard = bytes([CANARY]) * canary
    for i, (base, address) in enumerate(zip(bases, at, strict=True)):
        size = len(packed.buffers[i])
        after.append(ctypes.string_at(address, size))
        edges = ctypes.string_at(base, canary), ctypes.string_at(address + size, canary)
        if edges != (guard, guard):
            message = message or f"{packed.name} wrote outside buffer {i} of {size} bytes"
    for pointer in (*bases, *slots):
        LIBC.free(pointer)
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
