"""The machine of a measurement: processor, cores, BLAS and its threads, versions."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import Any

import numpy as np

import gdt
from gdt.benchmark.commit import commit_of
from gdt.sharding.devices import DEVICE_COUNTS

try:
    from threadpoolctl import threadpool_info
except ModuleNotFoundError as e:
    message = f"gdt.benchmark needs {e.name}\n  Install it with: pip install 'gdt[benchmark]'"
    raise ModuleNotFoundError(message, name=e.name) from e


def machine() -> dict[str, Any]:
    """Return by name the properties that two runs must share to be comparable.

    >>> sorted(gdt.benchmark.machine.machine())
    ['blas', 'blas_threads', 'cores', 'cpu', 'gdt', 'gpus', 'numpy', 'python', 'vectors']
    """
    lines = Path("/proc/cpuinfo").read_text().splitlines() if sys.platform == "linux" else []
    models = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    flags = {flag for line in lines if line.startswith("flags") for flag in line.split()}
    libraries = [info for info in threadpool_info() if info["user_api"] == "blas"]
    return {
        "cpu": models[0] if models else platform.processor(),
        "vectors": next((name for name in ("avx512f", "avx2") if name in flags), ""),
        "cores": _usable_cores(),
        "gpus": DEVICE_COUNTS["cuda"](),
        "blas": ", ".join(sorted({_blas(info) for info in libraries})) or _built_with(),
        "blas_threads": max((info["num_threads"] for info in libraries), default=1),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "gdt": ", ".join(filter(None, (gdt.__version__, _commit()))),
    }


def _commit() -> str:
    """Return the commit of gdt's sources in words; nothing where it is not known."""
    commit = commit_of(Path(gdt.__file__).parent)
    return commit and f"commit {commit}"


def _usable_cores() -> int:
    """Return the number of cores that this process may use; a container may have fewer than the
    machine."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _blas(info: dict[str, Any]) -> str:
    """Return the name, version and kernels of a BLAS."""
    kernels = info.get("architecture")
    return f"{info['internal_api']} {info['version']}" + (f" ({kernels})" if kernels else "")


def _built_with() -> str:
    """Return the name of the BLAS that NumPy was built with, for one that threadpoolctl misses."""
    configuration: Any = np.show_config(mode="dicts")
    return str(configuration["Build Dependencies"]["blas"]["name"])
