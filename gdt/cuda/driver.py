"""What the NVIDIA driver of this machine says, without CuPy: nothing here needs a GPU, or is slow.

The driver is asked once per process, and only when a mesh, or a person, wants to know of GPUs.
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
    """version: of the newest CUDA that the driver runs, such as (13, 0); None without a driver.

    device_count: GPUs that this process may use (`CUDA_VISIBLE_DEVICES` hides others). problem: why
    there are none; empty if there are some.
    """

    version: tuple[int, int] | None
    device_count: int
    problem: str = ""


def _library() -> Any:
    """The driver's library; OSError if there is none."""
    return ctypes.CDLL(LIBRARY)


@cache
def driver() -> Driver:
    """The driver of this machine."""
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
    name = ctypes.c_char_p()
    library.cuGetErrorName(status, ctypes.byref(name))
    return f"{(name.value or b'unknown error').decode()} ({status})"


def have_cupy() -> bool:
    """Whether CuPy is installed; it is not imported."""
    return importlib.util.find_spec("cupy") is not None


@cache
def usable_gpus() -> int:
    """Number of GPUs that meshes may use: those that the driver sees, if CuPy is installed."""
    found = driver().device_count
    if found and not have_cupy():
        logging.getLogger("gdt").warning(
            "%d GPU(s) found, but CuPy is not installed: meshes use the CPU. %s",
            found,
            INSTALL_CUPY,
        )
        return 0
    return found


def missing() -> tuple[str, str]:
    """Why no GPU can be used, and what to do; both empty if some can."""
    here = driver()
    if here.version is None:
        return here.problem, "Install NVIDIA's driver, or use device_type='CPU'."
    if here.version < OLDEST:
        return here.problem, "Update NVIDIA's driver, or use device_type='CPU'."
    if here.problem:
        return here.problem, "Run nvidia-smi to see what is wrong, or use device_type='CPU'."
    if not have_cupy():
        return f"{here.device_count} GPU(s) found, but CuPy is not installed", INSTALL_CUPY
    return "", ""
