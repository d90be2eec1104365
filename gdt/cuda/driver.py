"""The NVIDIA driver of this machine: its version and the number of GPUs, found without CuPy.

Nothing here needs a GPU, and nothing is slow. The driver is asked once per process, when the first
mesh is created or `gdt.show_config` is called.
"""

from __future__ import annotations

import ctypes
import importlib.util
import logging
import sys
from functools import cache
from typing import Any, NamedTuple

LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE
OLDEST = 12, 0  # CUDA that CuPy 13 and 14 run on
INSTALL_CUPY = (
    "Install gdt[cuda13], or gdt[cuda12] for drivers older than 580: pip install 'gdt[cuda13]'."
)


class Driver(NamedTuple):
    """The report of the NVIDIA driver.

    version: the newest CUDA that the driver runs, such as (13, 0); None without a driver.
    device_count: the number of GPUs that this process may use (`CUDA_VISIBLE_DEVICES` hides
        others).
    problem: why there is no GPU; empty if there are some.
    """

    version: tuple[int, int] | None
    device_count: int
    problem: str = ""


def _library() -> Any:
    """Load the driver's library; raise OSError if there is none."""
    return ctypes.CDLL(LIBRARY)


@cache
def driver() -> Driver:
    """Return the report of the driver of this machine."""
    try:
        library = _library()
    except OSError:
        return Driver(None, 0, f"no NVIDIA driver is installed ({LIBRARY} is not found)")
    number = ctypes.c_int()
    library.cuDriverGetVersion(ctypes.byref(number))
    version = number.value // 1000, number.value % 1000 // 10
    if version < OLDEST:
        runs, needs = (".".join(map(str, v)) for v in (version, OLDEST))
        return Driver(version, 0, f"the NVIDIA driver runs CUDA {runs}, and gdt needs {needs}")
    status = library.cuInit(0) or library.cuDeviceGetCount(ctypes.byref(number))
    if status == NO_DEVICE:
        return Driver(
            version, 0, "the NVIDIA driver sees no GPU, or CUDA_VISIBLE_DEVICES hides all"
        )
    if status:
        return Driver(version, 0, f"the NVIDIA driver does not start: {_error(library, status)}")
    return Driver(version, number.value, "" if number.value else "the NVIDIA driver sees no GPU")


def _error(library: Any, status: int) -> str:
    """Return the name and number of a driver's error."""
    name = ctypes.c_char_p()
    library.cuGetErrorName(status, ctypes.byref(name))
    return f"{(name.value or b'unknown error').decode()} ({status})"


def is_empty(graph: int) -> bool:
    """Return whether the CUDA graph at an address has no nodes (CUDA Driver API, cuGraphGetNodes);
    False where that is not known, as of the address 0, which CuPy 13 has for graphs."""
    count = ctypes.c_size_t()
    status = _library().cuGraphGetNodes(ctypes.c_void_p(graph), None, ctypes.byref(count))
    return not status and not count.value


def have_cupy() -> bool:
    """Return whether CuPy is installed, without importing it."""
    return importlib.util.find_spec("cupy") is not None


@cache
def usable_gpus() -> int:
    """Return the number of GPUs that meshes may use: those that the driver sees, or 0 where CuPy
    is not installed, which a warning of the logger `gdt` says."""
    count = driver().device_count
    if count and not have_cupy():
        logging.getLogger("gdt").warning(
            "%d GPU(s) found, but CuPy is not installed: meshes use the CPU. %s",
            count,
            INSTALL_CUPY,
        )
        return 0
    return count


def missing() -> tuple[str, str]:
    """Return why no GPU can be used, and what to do; both are empty if some can."""
    version, device_count, problem = driver()
    if version is None:
        return problem, "Install NVIDIA's driver, or use device_type='CPU'."
    if version < OLDEST:
        return problem, "Update NVIDIA's driver, or use device_type='CPU'."
    if problem:
        return problem, "Run nvidia-smi to see what is wrong, or use device_type='CPU'."
    if not have_cupy():
        return f"{device_count} GPU(s) found, but CuPy is not installed", INSTALL_CUPY
    return "", ""
