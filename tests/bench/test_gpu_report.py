"""`make bench-gpu` but for the time: every kernel, call and table, on simulated devices."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cupyx.profiler import benchmark

import gdt
from bench import gdt_steps, report
from bench.gpu import kernels
from bench.gpu import report as gpu_report
from bench.gpu.kernels import CASES, PASSES, Bench, Case
from bench.tiny import TINY_OPS
from bench.workloads import WORKLOADS
from tests.kernels import strict_kernels
from tests.needs import need_compiler

SMALL = {"float16": "float16", "bfloat16": "float16"}  # simulated devices lack bfloat16
COPIED = 1 << 16


@pytest.fixture
def mesh() -> Iterator[gdt.Mesh]:
    need_compiler()
    strict_kernels.register()
    yield gdt.create_mesh({"batch": 8}, devices=["graph:0"])


def small(case: Case) -> Case:
    """The case at a size for which the host has time."""
    shape = (40, 24, 32) if case.is_product else tuple(33 + d for d, _ in enumerate(case.shape))
    return replace(case, shape=shape, dtype=SMALL.get(case.dtype, case.dtype))


def once(run: Any) -> float:
    """A timer that runs what it is given, and says a second."""
    run()
    return 1.0


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_case_launches_its_kernel(case: Case, mesh: gdt.Mesh) -> None:
    runner, bench = strict_kernels.StrictKernels(strict_kernels.CUPY).runner, Bench(mesh)
    bench.runner = runner
    bench.prepare(small(case))()
    expected = {
        "matmul": "matmul_", "batch norm: moments": "bn_", "batch norm: apply": "bn_apply",
        "batch norm: gradient": "bn_backward", "cross-entropy and gradient": "softmax_ce",
        "sum of rows": "reduce", "uniform": "random_uniform", "normal": "random_normal",
    }.get(case.kernel, case.kernel)  # fmt: skip
    assert any(name.startswith(expected) for name in runner.ran), runner.ran
    assert (bench.reference(small(case)) is not None) == (case.is_product and case.dtype != "tf32")


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_products_are_those_of_the_reference(dtype: str, mesh: gdt.Mesh) -> None:
    bench, case = Bench(mesh), Case("matmul", dtype, (40, 24, 32))
    x, w, out = bench._factors(case)
    bench._factors = lambda _: (x, w, out)  # type: ignore[method-assign]
    bench.prepare(case)()
    with np.errstate(all="ignore"):
        want = x.get().astype(float) @ w.get().astype(float)
    np.testing.assert_allclose(out.get(), want, rtol=0, atol=0.05 if dtype == "float16" else 1e-4)


def test_what_a_gpu_has_no_kernel_for_is_left_out(
    mesh: gdt.Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(mesh)
    monkeypatch.setattr(bench.runner, "arch", "sm_75")  # which lacks matmul_mma
    cases = [Case("matmul", "float16", (40, 24, 32)), Case("adam", "float32", (33,))]
    rows = gpu_report.measured_kernels(bench, cases, once, {}, COPIED)
    assert [row.case.kernel for row in rows] == ["adam"]


def test_work_is_what_must_be_done() -> None:
    assert Case("matmul", "float32", (2, 3, 4)).work == 48
    assert Case("adam", "float32", (10,)).work == 7 * 40
    assert Case("cross-entropy and gradient", "bfloat16", (2, 5)).work == 2 * 20
    assert {c.kernel for c in CASES} == {"matmul", *PASSES}
    assert len({c.name for c in CASES}) == len(CASES)


def test_the_file_and_the_tables_hold_what_was_measured(mesh: gdt.Mesh, tmp_path: Path) -> None:
    cases = [small(c) for c in CASES if c.kernel in ("matmul", "adam") and c.shape[0] != 8192]
    peers = {cases[0].name: {"PyTorch": 2.0, "JAX jit": 0.5}}
    steps = {"mnist": [{"library": "gdt captured", "ms": 0.05}, {"library": "JAX jit", "ms": 0.1}]}
    result, rows = gpu_report.collected(mesh, cases, once, peers, steps, rounds=2, copied=COPIED)
    path = gpu_report.written(result, tmp_path)
    assert path.name == "nvidia-a-simulated-gpu.json"
    assert json.loads(path.read_text()) == result
    assert result["facts"]["commit"]
    assert set(result["calls"]) == set(TINY_OPS)
    assert all(us > 0 for row in result["calls"].values() for us in row.values())
    adam = next(row for row in rows if row.case.kernel == "adam")
    assert adam.fraction == pytest.approx(adam.case.work / (2 * COPIED))
    text = gpu_report.tables(result, rows)
    first = next(line for line in text.splitlines() if line.startswith(f"| {cases[0].name} |"))
    assert first.endswith("| 100% | 0.50 | 2.00 |")
    assert "| mnist | 50 | 100 |" in text
    assert "Measured on one a simulated GPU at commit" in text


def test_units_are_those_of_the_work() -> None:
    product = gpu_report.Row(Case("matmul", "float32", (1000,) * 3), 1e-3, 0.5e-3)
    update = gpu_report.Row(Case("adam", "float32", (1000,)), 1e-6, None)
    lines = gpu_report.kernel_table([product, update]).splitlines()
    assert lines[2] == "| matmul, float32, 1000 x 1000 x 1000 | 2 TFLOP/s | 50% |"
    assert lines[3] == "| adam, float32, 1000 | 28 GB/s | - |"


def test_contenders_exist() -> None:
    found = gpu_report.step_contenders()
    assert {c.name for c in found if c.module == "bench.gdt_steps"} <= set(gdt_steps.CONTENDERS)
    text = (report.ROOT / "bench/peers/torch_steps.py").read_text()
    for contender in found:
        if contender.module.startswith("bench.peers"):
            assert (report.ROOT / f"{contender.module.replace('.', '/')}.py").exists()
        if "torch" in contender.module:
            assert f'"{contender.name}"' in text
    assert [c.module for c in gpu_report.peers("kernels", "kernels")] == [
        "bench.peers.torch_kernels",
        "bench.peers.jax_kernels",
    ]


@pytest.mark.parametrize("workload", WORKLOADS)
def test_captured_steps_of_the_workloads_are_the_eager_ones(workload: str, mesh: gdt.Mesh) -> None:
    """At a tenth of their widths, for the host to have time."""
    given = WORKLOADS[workload]
    sizes = tuple(max(2, math.ceil(n / 40)) for n in given.sizes)
    narrow = replace(given, sizes=sizes, batch=16)
    losses = []
    for mode in ("eager", "captured"):
        step = gdt_steps.trainer_on(mesh, "data", mode)(narrow)()
        losses.append([float(step(index)) for index in range(6)])
    assert losses[0] == losses[1]
    assert losses[0][0] != losses[0][-1]


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["report"])
    monkeypatch.setattr(gpu_report.cuda_driver, "missing", lambda: ("no driver", "Install it."))
    with pytest.raises(SystemExit, match=r"bench\.gpu\.report: no driver\n  Install it\."):
        gpu_report.main()


def test_the_timer_is_cupys() -> None:
    """Which runs on a GPU alone; here its parameters are looked at."""
    inspect.signature(benchmark).bind(once, n_repeat=gpu_report.REPEATS, n_warmup=3)
    assert kernels.COPIED > 1 << 29  # more than the caches of any GPU hold
