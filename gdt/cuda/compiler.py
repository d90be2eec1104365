"""Compile the CUDA sources of `kernels/`, and cache the cubins on disk.

NVRTC (`gdt.cuda.nvrtc`) compiles to cubin, which needs no GPU. CuPy's own `RawKernel` is not used,
because it checks no argument types, cannot ask for `sm_90a`, and cannot be tested without a driver.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gdt.cuda.nvrtc import nvrtc
from gdt.cuda.sources import GENERATED, Instance, included, parameters, read_source
from gdt.errors import KernelError, error
from gdt.machine_code import read_code, user_folder, write_code

ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100", "sm_120")
BASE_OPTIONS = (
    "-std=c++17",
    "-default-device",
    "-lineinfo",
    "--ptxas-options=-v",
    "-diag-suppress=177",  # functions of shared headers that a file does not use
)
# Random numbers equal the CPU's to the bit, so a * b + c must round twice; so must it where ops are
# one kernel, and have the bits of CuPy's kernel for each.
TO_THE_BIT = ("--fmad=false",)
FILE_OPTIONS: Mapping[str, tuple[str, ...]] = {"random.cu": TO_THE_BIT}


@dataclass(frozen=True)
class Cubin:
    """Machine code for one architecture.

    names: the symbol of each kernel by `str(instance)`. log: the compiler's report.
    """

    code: bytes
    names: Mapping[str, str]
    log: str


def architecture(capability: tuple[int, int]) -> str:
    """Return the architecture whose cubins a device of this compute capability runs.

    Raises KernelError if none of `ARCHITECTURES` does."""
    major, minor = capability
    digits = {a: int(a.removeprefix("sm_").rstrip("a")) for a in ARCHITECTURES}
    fitting = [a for a, n in digits.items() if n // 10 == major and n % 10 <= minor]
    if not fitting:
        remedy = f"Kernels exist for {', '.join(ARCHITECTURES)}."
        problem = f"no kernel runs on compute capability {major}.{minor}"
        raise error(KernelError, "kernels", problem, remedy=remedy)
    return fitting[-1]


def compile_file(
    file: str, instances: Sequence[Instance], arch: str, folder: Path | None = None
) -> Cubin:
    """Compile `instances`, which are all of `file`, for `arch`, or read them from the disk cache.

    Raises KernelError for an unknown architecture or kernel, CompileError where NVRTC refuses."""
    if arch not in ARCHITECTURES:
        remedy = f"Kernels exist for {', '.join(ARCHITECTURES)}."
        raise error(KernelError, file, f"no kernel for architecture {arch!r}", remedy=remedy)
    for instance in instances:
        parameters(instance, folder)
    source, headers = read_source(file, folder), included(file, folder)
    own = TO_THE_BIT if file in GENERATED else FILE_OPTIONS.get(file, ())
    options = [f"-arch={arch}", *BASE_OPTIONS, *own]
    expressions = sorted({str(i) for i in instances})
    toolkit = nvrtc().version
    key = hashlib.sha256(
        json.dumps([source, headers, options, expressions, toolkit]).encode()
    ).hexdigest()
    cubin = _read_cache(key)
    if cubin is None:
        cubin = Cubin(*nvrtc().compile(file, source, headers, options, expressions))
        _write_cache(key, cubin)
    return cubin


def cache_folder() -> Path | None:
    """Return `GDT_CACHE_DIR`, or gdt/kernels in the user's cache; None without a home folder."""
    folder = os.environ.get("GDT_CACHE_DIR")
    return Path(folder) if folder else user_folder("kernels")


def _read_cache(key: str) -> Cubin | None:
    """Return the cached cubin of `key`; None if there is none or its file is damaged."""
    folder = cache_folder()
    content = None if folder is None else read_code(folder / key)
    if content is None:
        return None
    head, code = content.split(b"\n", 1)
    names, log = json.loads(head)
    return Cubin(code, names, log)


def _write_cache(key: str, cubin: Cubin) -> None:
    """Keep a cubin; a full or read-only disk costs the next process a compilation, and this one
    nothing."""
    head, folder = json.dumps([dict(cubin.names), cubin.log]).encode(), cache_folder()
    if folder is not None:
        with suppress(OSError):
            write_code(folder / key, head + b"\n" + cubin.code)
