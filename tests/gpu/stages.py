"""The stages of `make gpu`: what each runs, for how long at most, in which environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import util
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
INI = Path(__file__).with_name("pytest.ini")
KERNELS = (
    "attention", "attention_hopper", "batchnorm", "engine", "matmul", "matmul_hopper", "models",
    "random", "reduce", "samples", "softmax_ce", "update",
)  # fmt: skip
FUNCTIONS, SHARED = "function_equals", "twin or processes or rank_of or ranks_of"
"""Of tests/test_gpu.py: single functions, and what needs several ranks of NCCL on the GPU."""
PLAIN = "not (gpu or kernels_full)"  # of the tests of kernels
SECONDS_OF_TEST = 120
# NCCL takes several ranks on one GPU since 2.30 ("experimental"). Each rank has thread blocks of
# its own, which all have to fit; NVLink's multicast (NVLS) takes one rank of a GPU only.
SHARED_GPU = {
    "NCCL_MULTI_RANK_GPU_ENABLE": "1",
    "NCCL_MAX_CTAS": "4",
    "NCCL_NVLS_ENABLE": "0",
}


@dataclass(frozen=True)
class Stage:
    """A process, what it proves, and the seconds after which it is killed."""

    proves: str
    seconds: int
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Places:
    """Folders: of what was brought, of what is made of it, and of results."""

    bundle: Path
    work: Path
    output: Path

    @property
    def packages(self) -> Path:
        """The Python packages that were brought."""
        return self.work / "packages"

    @property
    def cubins(self) -> Path:
        """The compiled kernels that were brought, and those that are compiled here."""
        return self.work / "cubins"

    @property
    def nccl(self) -> Path:
        """An NCCL that lets several ranks share a GPU."""
        return self.work / "libnccl.so.2"

    @property
    def packed_nccl(self) -> Path:
        """The same as it is brought."""
        return self.bundle / "libnccl.so.2.xz"


def environment(places: Places) -> dict[str, str]:
    """The variables of every stage, beside those that are set."""
    path = [str(places.packages), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "",  # set, every worker would compile every module
        "OPENBLAS_NUM_THREADS": "1",
        "GDT_CACHE_DIR": str(places.cubins),
        "CUPY_CACHE_DIR": str(places.work / "cupy"),
        "GDT_TEST_DEVICE": "cuda",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # else JAX takes most of the memory for itself
        "CI": "",  # in which whatever is missing fails
    }


def pytest(*options: str, workers: int = 0) -> tuple[str, ...]:
    """A run of pytest, since version 8.

    workers: the number of processes that run tests. A test that does not end within its seconds
        ends its process; with at least one worker, another one goes on with the tests that are
        left.
    """
    command = [sys.executable, "-m", "pytest", "-c", str(INI), f"--rootdir={ROOT}"]
    command += [f"--confcutdir={ROOT}"]
    if util.find_spec("pytest_benchmark"):
        command += ["--benchmark-disable"]
    if util.find_spec("pytest_timeout"):
        command += [f"--timeout={SECONDS_OF_TEST}", "--timeout-method=thread"]
    if workers and util.find_spec("xdist"):
        command += ["-n", str(workers)]
    return (*command, *options)


def of_kernels(families: Sequence[str]) -> list[str]:
    """The files of tests of families of kernels."""
    return [f"tests/kernels/test_{family}.py" for family in families]


def stages(places: Places, workers: int) -> dict[str, Stage]:
    """Every stage, in the order in which they run."""
    module = lambda name, *options: (sys.executable, "-m", name, *map(str, options))
    sanitized = lambda *families: (
        "compute-sanitizer", "--error-exitcode", "9",
        *pytest("-x", "-vv", "-m", PLAIN, *of_kernels(families), "-k", "not sanitizers"),
    )  # fmt: skip
    report = lambda parts, *options: module(
        "bench.gpu.report", "--output", places.output, "--parts", parts, *options
    )
    on_gpu = lambda chosen, workers: pytest(
        "-m", "gpu", "tests/test_gpu.py", "-k", chosen, workers=workers
    )
    shared = SHARED_GPU | {"NCCL_DEBUG": "WARN"}
    if places.nccl.exists() or places.packed_nccl.exists():
        shared["LD_PRELOAD"] = str(places.nccl)
    return {
        "setup": Stage(
            "what was brought can be unpacked",
            90,
            module("tests.gpu.setup", places.bundle, places.work),
        ),
        "probe": Stage(
            "what there is, and what a launch and an op cost",
            90,
            module("tests.gpu.probe", places.output / "probe.json"),
        ),
        "kernels": Stage(
            "every kernel computes on the GPU what it does on the host",
            270,
            pytest("-m", PLAIN, *of_kernels(KERNELS), workers=workers),
        ),
        "functions": Stage("every function equals NumPy's", 300, on_gpu(FUNCTIONS, workers)),
        "train": Stage(
            "trainings reach the host's losses, captured steps are the eager ones to the bit",
            200,
            on_gpu(f"not ({FUNCTIONS} or {SHARED})", workers),
        ),
        "bench": Stage("rates of kernels, costs of calls", 200, report("kernels,calls")),
        "two_ranks": Stage(
            "NCCL lets several ranks of one process share the GPU",
            60,
            module("tests.gpu.ranks"),
            shared,
        ),
        "nccl": Stage(
            "devices of one process, and processes, that share the GPU through NCCL",
            200,
            on_gpu(SHARED, 1),  # one at a time: they share the GPU among themselves
            shared,
        ),
        "steps": Stage("steps beside other libraries", 300, report("steps", "--rounds", 2)),
        "peers": Stage("kernels beside other libraries", 240, report("peers")),
        "sanitizer": Stage(
            "compute-sanitizer finds no fault in kernels with shared memory",
            100,
            sanitized("softmax_ce"),
        ),
        "copies": Stage(
            "compute-sanitizer finds no fault in kernels with asynchronous copies and barriers",
            150,
            sanitized("attention_hopper", "matmul_hopper"),
        ),
    }
