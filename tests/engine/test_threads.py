"""Ops on large blocks in several threads: the same bits, and the same errors and warnings."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import tracemalloc
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_info

import gdt
from gdt.array.registry import FUNCTIONS
from gdt.backend import NUMPY, backend_of, threads
from gdt.engine import blas as engine_blas
from gdt.engine.op import Op
from gdt.errors import ArgumentError
from gdt.fusion import llvm
from gdt.settings import host_thread_count
from gdt.testing.oracle import Oracle
from tests.samples import SAMPLES

LENGTH = threads.SMALLEST * 2 + 17


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of calls that run at the same time, one for each op that is cut."""
    counts = []
    together = threads.together

    def counting(calls):  # type: ignore[no-untyped-def]
        counts.append(len(calls))
        return together(calls)

    monkeypatch.setattr(threads, "together", counting)
    return counts


@pytest.mark.parametrize("blocks", [1, 4])
def test_parts_are_what_whole_blocks_are(
    blocks: int, counted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every op that can be cut, in blocks of which each element may be a part."""
    monkeypatch.setattr(threads, "SMALLEST", 1)
    mesh = gdt.create_mesh([("rows", 2), ("columns", 2)], blocks=blocks, mesh_name="cut")
    cut = set()
    for name, samples in sorted(SAMPLES.items()):
        sample = replace(samples[0], grad=False)
        function = FUNCTIONS[name]
        if not isinstance(function, Op) or not sample.arrays:
            continue
        before = len(counted)
        oracle = Oracle(function, sample)
        for layouts in ([()] * len(sample.arrays), [("rows",)] * len(sample.arrays)):
            chosen = [
                gdt.Layout([*dims[: a.ndim], *[None] * (a.ndim - len(dims))], mesh)
                for a, dims in zip(sample.arrays, layouts, strict=True)
            ]
            with gdt.host_threads(3):
                oracle.check(mesh, chosen)
        if len(counted) > before:
            cut.add(name)
    assert {"exp", "add", "hypot", "power", "maximum"} <= cut and len(cut) > 50, cut
    assert "sum" not in cut and "matmul" not in cut


def large(value: float = 1.0) -> gdt.DistributedArray:
    mesh = gdt.create_mesh([("x", 2)])
    return gdt.full((LENGTH,), value, dtype="float32", layout=gdt.Layout(["x"], mesh))


def test_bits_are_the_same_for_any_number_of_threads(counted: list[int]) -> None:
    values = np.random.default_rng(0).standard_normal((3, LENGTH // 3)).astype(np.float32)
    x = gdt.asarray(values)
    for function in (gdt.exp, gdt.sin, gdt.abs, lambda x: x / 3, lambda x: x > 0):
        results = []
        counted.clear()
        for count in (1, 2, 3, 16):
            with gdt.host_threads(count):
                results.append([function(x).numpy().tobytes() for _ in range(2)])
        assert len({bits for pair in results for bits in pair}) == 1
        # No thread gets less than SMALLEST, of which the loops of some functions count as several.
        is_long = function in (gdt.exp, gdt.sin) and not llvm.problem()
        assert set(counted) == ({2, 3, 16} if is_long else {2})


@pytest.mark.parametrize("function", [gdt.exp, gdt.cumsum, lambda x: x + 2])
def test_the_first_call_holds_its_result_once(
    function: Callable[..., Any], counted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "SMALLEST", 1 << 10)
    mesh = gdt.create_mesh([("x", 2)], mesh_name="first call")
    x = gdt.ones((32, 1 << 14), layout=gdt.Layout(["x", None], mesh))
    backend_of(mesh).pool.trim()
    tracemalloc.start()
    try:
        with gdt.host_threads(2):
            y = function(x, axis=1) if function is gdt.cumsum else function(x)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert counted == [2]
    assert y.nbytes <= peak < 1.4 * y.nbytes


@pytest.mark.parametrize("blocks", [1, 8])
@pytest.mark.parametrize(
    ("images", "results", "groups"),
    [((33, 27, 27, 3), 32, 1), ((32, 14, 14, 64), 64, 1), ((9, 41, 40, 16), 16, 16)],
)
def test_convolutions_and_pools_have_the_bits_of_one_thread(
    images: tuple[int, ...], results: int, groups: int, blocks: int, counted: list[int]
) -> None:
    """Windows by lines and whole ones, channels by themselves, and numbers of images that no number
    of threads divides."""
    rng = np.random.default_rng(0)
    mesh = gdt.create_mesh([("batch", blocks)])
    x = gdt.asarray(
        rng.standard_normal(images, np.float32),
        layout=gdt.Layout(["batch", None, None, None], mesh),
    )
    taps = (3, 3, images[-1] // groups, results)
    whole = gdt.Layout.replicated(mesh, 4)
    kernel = gdt.asarray(rng.standard_normal(taps, np.float32), layout=whole)

    def loss(x: Any, kernel: Any) -> Any:
        y = gdt.convolution(x, kernel, padding="same", groups=groups)
        return (gdt.max_pool(y, 2) ** 2).sum()

    found = []
    for count in (1, 2, 3, 7):
        counted.clear()
        with gdt.host_threads(count):
            value, gradients = gdt.value_and_grad(loss, (0, 1))(x, kernel)
            found.append([a.numpy().tobytes() for a in (value, *gradients)])
        assert len(counted) >= 2 if count > 1 else counted == []
    assert all(bits == found[0] for bits in found)


def test_operands_broadcast_to_parts(counted: list[int]) -> None:
    rows, columns = gdt.arange(1024.0), gdt.arange(1030.0)
    with gdt.host_threads(2):
        table = columns[:, None] * rows
    assert counted == [2]
    np.testing.assert_array_equal(
        table.numpy(), np.multiply.outer(np.arange(1030.0), np.arange(1024.0))
    )


def test_small_blocks_and_one_thread_are_not_cut(counted: list[int]) -> None:
    with gdt.host_threads(4):
        gdt.exp(gdt.ones(1000))
    with gdt.host_threads(1):
        gdt.exp(large())
    assert counted == []


def test_errors_and_warnings_are_those_of_one_thread(counted: list[int]) -> None:
    x = large(1000.0)
    with gdt.host_threads(2):
        with np.errstate(over="ignore"):
            assert np.isinf(gdt.exp(x).numpy()).all()
        with np.errstate(over="raise"), pytest.raises(FloatingPointError, match="overflow"):
            gdt.exp(x)
        with pytest.warns(RuntimeWarning, match="overflow"):
            gdt.exp(x)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(RuntimeWarning, match="overflow"):
                gdt.exp(x)
    assert set(counted) == {2}


def test_calls_in_threads_get_no_threads_of_their_own() -> None:
    """They would wait for threads that wait for them."""
    with gdt.host_threads(8):
        assert threads.together([host_thread_count] * 3) == [1, 1, 1]
        assert host_thread_count() == 8


def test_all_calls_have_ended_when_one_raises() -> None:
    ended = []

    def slow() -> None:
        time.sleep(0.05)
        ended.append(True)

    def broken() -> None:
        raise ValueError("mine")

    for calls in ([broken, slow, slow], [slow, broken, slow]):
        ended.clear()
        with pytest.raises(ValueError, match="mine"):
            threads.together(calls)
        assert len(ended) == 2


def test_nothing_refers_to_blocks_afterwards() -> None:
    with gdt.host_threads(2):
        for _ in range(3):
            x = large()
            y = gdt.exp(x)
            one = [sys.getrefcount(a.blocks[0]) for a in (x, y)]
            assert one == [2, 2]


def test_recorded_steps_are_cut(counted: list[int]) -> None:
    step = gdt.function(lambda x: gdt.exp(x) * 2)
    x = large()
    with gdt.host_threads(2):
        results = [step(x).numpy() for _ in range(4)]
    assert len(counted) == 8  # of two ops as written, three times, and of two replays
    assert all((r == results[0]).all() for r in results)


FORKED = f"""
import os, warnings, gdt
warnings.simplefilter("ignore")
x = gdt.ones({LENGTH})
with gdt.host_threads(2):
    gdt.exp(x)
    child = os.fork()
    gdt.exp(x)
    if child == 0:
        os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
"""


def test_a_forked_process_has_threads_of_its_own() -> None:
    root = str(Path(gdt.__file__).parents[1])
    subprocess.run([sys.executable, "-c", FORKED], check=True, timeout=60, cwd=root)


@pytest.mark.parametrize("lock", [NUMPY.pool.lock, llvm._LOCK], ids=["memory", "compiling"])
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # of a fork beside threads
def test_a_fork_waits_for_a_lock_that_another_thread_holds(lock: Any) -> None:
    is_held = threading.Event()

    def hold() -> None:
        with lock:
            is_held.set()
            time.sleep(0.1)

    thread = threading.Thread(target=hold)
    thread.start()
    is_held.wait()
    child = os.fork()
    if not child:
        os._exit(not lock.acquire(timeout=5))
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


def test_counts_below_one_are_refused() -> None:
    with pytest.raises(ArgumentError, match="host_threads: count is 0"), gdt.host_threads(0):
        pass


# ---------------------------------------------------------------- threads of BLAS


class Blas:
    """The number of threads of a BLAS, and what it was set to."""

    def __init__(self, count: int) -> None:
        self.count, self.told = count, [count]

    def exchange(self, count: int) -> int:
        before, self.count = self.count, count
        self.told.append(count)
        return before


@pytest.mark.parametrize("count", [1, 2, 8])
@pytest.mark.parametrize(
    ("rows", "inner", "columns", "dtype", "is_small"),
    [
        (64, 1200, 48, "float32", True),  # the first layer of IMDB, 79 us in one thread
        (1200, 64, 48, "float32", True),
        (64, 1200, 48, "float64", False),  # which takes twice as long
        (64, 500, 48, "float64", True),
        (100, 100, 100, "float32", False),  # OpenBLAS itself takes one
        (256, 256, 256, "float32", False),
        (1, 1500, 1200, "float32", True),
        (0, 1200, 48, "float32", False),
    ],
)
def test_small_products_run_in_one_thread_of_blas(
    rows: int, inner: int, columns: int, dtype: str, is_small: bool, count: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """On one block and on several, with gradients, and in recorded steps."""
    blas = Blas(count)
    monkeypatch.setattr(engine_blas, "exchange_threads", blas.exchange)
    x = gdt.random.normal((rows, inner), dtype=dtype)
    w = gdt.random.normal((inner, columns), dtype=dtype)
    multiply = gdt.function(lambda x, w: x @ w, verify=0)
    for call in (lambda: x @ w, *[lambda: multiply(x, w)] * 4):
        del blas.told[1:]
        call()
        back = [count] if count > 1 else []
        assert blas.told == [count, *([1, *back] if is_small else [])]
        assert blas.count == count
    del blas.told[1:]
    gdt.grad(lambda w: gdt.sum(x @ w))(w)
    assert (1 in blas.told[1:]) == is_small


def test_products_give_back_the_threads_of_blas(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an error, and where another thread multiplies meanwhile."""
    blas = Blas(2)
    monkeypatch.setattr(engine_blas, "exchange_threads", blas.exchange)
    x, w = np.ones((64, 1200), np.float32), np.ones((1200, 48), np.float32)
    with pytest.raises(ValueError, match="matmul"):
        engine_blas.multiply(np, x, w, np.ones(3))
    assert blas.count == 2

    def while_it_multiplies(x: Any, w: Any, out: Any) -> Any:
        monkeypatch.undo()
        monkeypatch.setattr(engine_blas, "exchange_threads", blas.exchange)
        return engine_blas.multiply(np, x, w, out)

    monkeypatch.setattr(np, "matmul", while_it_multiplies)
    assert engine_blas.multiply(np, x, w).shape == (64, 48)
    assert blas.told[-4:] == [2, 1, 1, 2]
    assert blas.count == 2


def test_the_blas_of_numpy_is_told() -> None:
    """Wherever it is OpenBLAS, whose threads are exchanged."""
    found = {info["internal_api"]: info for info in threadpool_info()}
    if "openblas" not in found:
        pytest.skip("NumPy's BLAS is not OpenBLAS")
    before = engine_blas.exchange_threads(2)
    try:
        assert engine_blas.exchange_threads(1) == 2
        counts = [i["num_threads"] for i in threadpool_info() if i["internal_api"] == "openblas"]
        assert 1 in counts
    finally:
        engine_blas.exchange_threads(before)
