"""The devices and libraries of this machine, and the commands that install what is missing."""

from __future__ import annotations

import importlib
import os
import platform
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gdt.arguments import checked
from gdt.backend.cupy import load_cupy
from gdt.caches import BUDGET
from gdt.cuda import driver as cuda_driver
from gdt.cuda.compiler import architecture
from gdt.cuda.nvrtc import nvrtc
from gdt.engine import loops
from gdt.errors import DeviceError, KernelError
from gdt.fusion import llvm
from gdt.sharding import processes

__all__ = ["show_config"]


GIB = 1 << 30


class Finding(NamedTuple):
    """One line of `gdt.show_config`.

    name: the device or library. text: its version or properties, or why there is none. remedy: what
    to do about it; empty where nothing is missing.
    """

    name: str
    text: str
    remedy: str = ""


def findings() -> list[Finding]:
    """Return the findings about all that gdt uses: Python and the host, CUDA's libraries, GPUs.

    >>> [f.name for f in gdt.debug.configuration.findings()][:3]
    ['gdt', 'Python', 'NumPy']
    """
    return [*_host(), *_cuda(), *_gpus()]


@checked
def show_config() -> None:
    """Print the devices of this machine, their memory and links, the libraries that gdt uses, and a
    command that installs each library that is missing.

    >>> gdt.show_config()  # doctest: +SKIP
    """
    table = Table(title="gdt.show_config", title_justify="left", show_header=False, box=None)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text, remedy in findings():
        table.add_row(name, Text(text))  # not as markup: `gdt[cuda13]` would lose its brackets
        if remedy:
            table.add_row("", Text(remedy, style="yellow"))
    Console().print(table)


def _host() -> Iterator[Finding]:
    """Yield the findings about Python and its packages, the CPU, caches and processes."""
    yield Finding("gdt", _version("gdt") or "a checkout that is not installed")
    yield Finding("Python", f"{platform.python_version()} on {platform.platform()}")
    yield Finding("NumPy", np.__version__)
    yield Finding("Compiled loops", *loops.described())
    yield Finding("Loops of chains", llvm.described())
    yield Finding("CPU", f"{os.cpu_count()} cores: any number of virtual devices cpu:0, cpu:1, ...")
    taken, most = BUDGET.estimate() >> 20, BUDGET.nbytes >> 20
    yield Finding("Caches", f"plans, routes and programs take about {taken} of at most {most} MiB")
    here = processes.current()
    yield Finding("Processes", f"{here.count}, of which this is number {here.index}")
    mpi, install = _version("mpi4py"), "pip install 'gdt[mpi]'"
    absent = "not installed; only needed for several processes"
    yield Finding("MPI", f"mpi4py {mpi}") if mpi else Finding("MPI", absent, install)


def _cuda() -> Iterator[Finding]:
    """Yield the findings about the driver and the libraries of CUDA."""
    driver = cuda_driver.driver()
    runs = f"runs CUDA up to {driver.version[0]}.{driver.version[1]}" if driver.version else ""
    state = "; ".join(filter(None, [runs, driver.problem]))
    _, remedy = cuda_driver.missing()
    yield Finding("NVIDIA driver", state, remedy if driver.problem else "")
    extra = "cuda12" if driver.version is not None and driver.version[0] < 13 else "cuda13"
    install = f"pip install 'gdt[{extra}]'"
    version = next(filter(None, map(_version, ("cupy-cuda13x", "cupy-cuda12x", "cupy"))), None)
    if version is None:
        yield Finding("CuPy", "not installed; only needed for GPUs", install)
    else:
        yield Finding("CuPy", version)
    try:
        yield Finding("NVRTC (CUDA toolkit)", ".".join(map(str, nvrtc().version)))
    except KernelError:
        yield Finding("NVRTC (CUDA toolkit)", "not installed; compiles gdt's kernels", install)
    nccl = _version("nvidia-nccl-cu13") or _version("nvidia-nccl-cu12")
    if nccl is None:
        yield Finding("NCCL", "not installed; only needed for meshes over several GPUs", install)
    else:
        yield Finding("NCCL", nccl)
    cudnn = _version("nvidia-cudnn-frontend")
    if cudnn is None:
        install = f"pip install 'gdt[{extra.replace('cuda', 'cudnn')}]'"
        yield Finding("cuDNN frontend", "not installed; convolves on GPUs", install)
    else:
        yield Finding("cuDNN frontend", cudnn)


def _version(distribution: str) -> str | None:
    """Return the version of an installed distribution; None if it is not installed."""
    metadata = importlib.import_module("importlib.metadata")  # takes long, and is needed here alone
    try:
        return str(metadata.version(distribution))
    except metadata.PackageNotFoundError:
        return None


def _gpus() -> Iterator[Finding]:
    """Yield a finding for each GPU, or one that says why none can be used."""
    count = cuda_driver.usable_gpus()
    if not count:
        yield Finding("GPUs", "none that can be used: meshes are on the CPU")
        return
    try:
        cupy = load_cupy()
    except DeviceError as problem:
        first, *rest = str(problem).splitlines()
        yield Finding("GPUs", first, " ".join(line.strip() for line in rest))
        return
    for i in range(count):
        yield Finding(f"cuda:{i}", _described(cupy, i, count))


def _described(cupy: Any, index: int, count: int) -> str:
    """Return the name, compute capability, kernels, memory and direct links of one GPU."""
    properties = cupy.cuda.runtime.getDeviceProperties(index)
    capability = properties["major"], properties["minor"]
    free, total = cupy.cuda.Device(index).mem_info
    try:
        kernels = f"kernels for {architecture(capability)}"
    except KernelError:
        kernels = "no kernels: ops run through CuPy"
    others = [i for i in range(count) if i != index]
    linked = [i for i in others if cupy.cuda.runtime.deviceCanAccessPeer(index, i)]
    links = f"; reaches {', '.join(f'cuda:{i}' for i in linked) or 'no other GPU'} directly"
    name = properties["name"]
    name = name.decode() if isinstance(name, bytes) else name
    return (
        f"{name}, compute capability {capability[0]}.{capability[1]}, {kernels}, "
        f"{free / GIB:.1f} of {total / GIB:.1f} GiB free{links if others else ''}"
    )
