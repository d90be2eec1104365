"""Planted bugs: every detector finds what it is there for, and correct kernels pass all of them."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from gdt.cuda import sources
from gdt.cuda.runner import KernelCall
from gdt.cuda.sources import Instance
from tests.needs import need_compiler

from .shim import worker
from .shim.runner import ASYNC_MODES, ORDERS, CpuRunner, LaunchError, build

BLOCKS, THREADS = (
    {"grid_race": 4, "last_block": 4, "last_block_without_fence": 4},
    {
        "grid_race": 32,
        "warp_synchronous": 32,
        "shuffle_in_branch": 32,
        "misaligned_pack": 8,
        "row_overrun": 32,
        "last_block": 32,
        "last_block_without_fence": 32,
        "copy_without_wait": 32,
        "copy_with_wait": 32,
    },
)
CORRECT = ["with_atomic", "with_barrier", "last_block", "copy_with_wait"]
REPORTED = [  # kernel, sanitizer, a piece of the report
    ("write_past_the_end", None, "wrote outside buffer"),
    ("write_to_input", None, "wrote to a const argument"),
    ("barrier_in_branch", None, "barrier divergence"),
    ("shuffle_in_branch", None, "has exited|divergent|deadlock"),
    ("write_past_the_end", "address", "heap-buffer-overflow"),
    ("read_past_the_end", "address", "heap-buffer-overflow"),
    ("shared_overrun", "address", "global-buffer-overflow"),
    ("row_overrun", "address", "out of bounds"),
    ("misaligned_pack", "address", "misaligned address"),
    ("missing_barrier", "thread", "data race"),
    ("missing_atomic", "thread", "data race"),
    ("warp_synchronous", "thread", "data race"),
    ("grid_race", "thread", "data race"),
    ("last_block_without_fence", "thread", "data race"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need_compiler()
    path = tmp_path_factory.mktemp("planted")
    shutil.copy(Path(__file__).with_name("planted.cu"), path)
    for header in sources.source_folder().glob("*.cuh"):
        shutil.copy(header, path)
    return path


@pytest.fixture
def run(folder: Path) -> Iterator[object]:
    started = []

    @cache
    def runner(name: str, sanitizer: str | None) -> CpuRunner:
        everything = [Instance("planted.cu", k) for k in sources.declarations("planted.cu", folder)]
        started.append(CpuRunner("planted.cu", everything, sanitizer, folder))
        return started[-1]

    def run(
        name: str, sanitizer: str | None = None, shared: int = 0, **schedule: object
    ) -> np.ndarray:
        blocks, threads = BLOCKS.get(name, 1), THREADS.get(name, 64)
        extra = {
            "misaligned_pack": 1,
            "read_past_the_end": 0,
            "copy_with_wait": 96,
            "copy_without_wait": 96,
        }
        elements = (
            4 * threads + 4 if name == "misaligned_pack" else blocks * threads + extra.get(name, 0)
        )
        x = np.arange(1, elements + 1, dtype=np.float32)
        out = np.zeros(blocks * threads, np.float32)
        arguments = [out, x]
        if "last_block" in name:
            arguments.append(np.zeros(1, np.uint32))
        call = KernelCall(
            Instance("planted.cu", name), (blocks,), (threads,), tuple(arguments), shared
        )
        runner(name, sanitizer).run(call, **schedule)
        return out

    yield run
    for each in started:
        each.close()


@pytest.mark.parametrize(("name", "sanitizer", "says"), REPORTED)
def test_planted_bugs_are_reported(name: str, sanitizer: str | None, says: str, run) -> None:
    with pytest.raises(LaunchError, match=says):
        run(name, sanitizer, fresh=sanitizer == "thread")


@pytest.mark.parametrize("name", CORRECT)
@pytest.mark.parametrize("sanitizer", [None, "address", "thread"])
def test_correct_kernels_pass_every_detector(name: str, sanitizer: str | None, run) -> None:
    for order in ("forward", "reverse", "random"):
        for async_mode in ("early", "late", "tossed"):
            run(name, sanitizer, order=order, async_mode=async_mode, fresh=sanitizer == "thread")


@pytest.mark.parametrize("name", ["missing_barrier", "unwritten_shared", "copy_without_wait"])
def test_what_nobody_wrote_yet_is_nan(name: str, run) -> None:
    assert np.isnan(run(name, async_mode="late")).any()


def test_static_and_dynamic_shared_memory_are_one_blocks(run) -> None:
    static, most = 64 * 4, 227 << 10
    run("with_barrier", shared=most - static)
    for shared in (most - static + 16, most):
        with pytest.raises(LaunchError, match=f"{static} static and {shared} dynamic"):
            run("with_barrier", shared=shared)


def test_the_order_of_threads_shows_in_a_race(run) -> None:
    results = {run("warp_synchronous", order=o).tobytes() for o in ("forward", "reverse")}
    assert len(results) == 2


def test_the_correct_twins_are_right(run) -> None:
    assert run("with_atomic")[0] == 64 * 65 / 2
    assert run("with_barrier").tolist() == list(range(64, 0, -1))
    assert run("last_block")[0] == 1 + 2 + 3 + 4
    assert run("copy_with_wait").tolist() == list(range(1, 129, 4))


def test_libraries_of_a_process_share_the_stacks_of_their_threads(folder: Path) -> None:
    """A stack is two mappings, of which Linux lets a process have 65,530: enough for 128
    libraries."""

    def mappings() -> int:
        return len(Path("/proc/self/maps").read_text().splitlines())

    counts = [mappings()]
    schedule = struct.pack("iiiiQQ", ORDERS.index("random"), ASYNC_MODES.index("late"), 0, 1, 0, 0)
    for name in ("with_atomic", "with_barrier", "missing_atomic"):
        path = build("planted.cu", [Instance("planted.cu", name)], None, folder)
        library, out, x = worker.load(str(path)), np.zeros(256, "f4"), np.ones(256, "f4")
        pointers = [np.array([a.ctypes.data]) for a in (out, x)]
        places = [p.ctypes.data for p in pointers]
        assert not worker.launch(library, name, (1,) * 3, (64, 1, 1), 0, places, schedule)
        assert out.any()
        counts.append(mappings())
    assert counts[-1] - counts[-2] < 64


def product_in_registers(kernel: str, folder: Path, **schedule: str) -> bool:
    """Whether a product of a warpgroup with a left factor in registers is NumPy's."""
    rng = np.random.default_rng(0)
    a, b = rng.integers(-8, 8, (64, 16)), rng.integers(-8, 8, (16, 64))
    given = np.concatenate([a.ravel(), b.ravel()]).astype(np.float32)
    out = np.zeros((64, 64), np.float32)
    call = KernelCall(Instance("planted.cu", kernel), (1,), (128,), (out, given), 2048)
    everything = [Instance("planted.cu", k) for k in sources.declarations("planted.cu", folder)]
    runner = CpuRunner("planted.cu", everything, None, folder)
    try:
        runner.run(call, **schedule)
    finally:
        runner.close()
    return np.array_equal(out, a @ b)


def test_registers_of_a_left_factor_are_read_until_the_wait(folder: Path) -> None:
    for mode in ("early", "late"):
        assert product_in_registers("registers_fenced", folder, order="random", async_mode=mode)
    assert not product_in_registers("registers_overwritten", folder, async_mode="late")
    with pytest.raises(LaunchError, match="no fence before the registers"):
        product_in_registers("registers_unfenced", folder)
