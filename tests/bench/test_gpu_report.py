"""`make bench-gpu` but for the time: every kernel, call and table, on simulated devices."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

import gdt
from bench import gdt_steps, report
from bench.gpu import kernels
from bench.gpu import report as gpu_report
from bench.gpu.kernels import CASES, PASSES, PRODUCTS, Bench, Case
from bench.tiny import TINY_OPS
from bench.workloads import WORKLOADS
from gdt.backend.timing import DeviceTime
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
        "matmul": "matmul_", "attention and gradient": "attention_dkv",
        "batch norm: moments": "bn_", "batch norm: apply": "bn_apply",
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


def report_of(mesh: gdt.Mesh, folder: Path) -> gpu_report.Report:
    return gpu_report.Report(folder, gpu_report.device_facts(mesh))


def text_of(result: Any, *, columns: int | None = None) -> str:
    """What is printed into a file, or on a terminal of so many columns."""
    console = Console(file=io.StringIO(), force_terminal=columns is not None, width=columns)
    gpu_report.show(result, console)
    return console.file.getvalue()


def written(of: gpu_report.Report) -> Any:
    """What the file holds."""
    return json.loads(of.path.read_text())


def test_what_a_gpu_has_no_kernel_for_is_left_out(
    mesh: gdt.Mesh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, results = Bench(mesh), report_of(mesh, tmp_path)
    monkeypatch.setattr(bench.runner, "arch", "sm_75")  # which lacks matmul_mma
    cases = [Case("matmul", "float16", (40, 24, 32)), Case("adam", "float32", (33,))]
    gpu_report.measure_kernels(results, bench, cases, once, COPIED)
    assert list(written(results)["kernels"]) == ["copy", cases[1].name]
    assert not written(results)["failures"]


def test_operands_are_normal_numbers(mesh: gdt.Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "DRAWN", 1000)
    values = Bench(mesh)._normal(50, 50, dtype=np.float16).get().astype(float)
    assert values.shape == (50, 50)
    assert abs(values.mean()) < 0.2
    assert 0.8 < values.std() < 1.2
    assert values.ravel()[1000:2000].tolist() == values.ravel()[:1000].tolist()


def test_work_is_what_must_be_done() -> None:
    assert Case("matmul", "float32", (2, 3, 4)).work == 48
    assert Case("adam", "float32", (10,)).work == 7 * 40
    assert Case("cross-entropy and gradient", "bfloat16", (2, 5)).work == 2 * 20
    assert Case("attention", "float16", (2, 3, 5)).work == 2 * (2 * 2 * 3 * 3 * 5)
    assert {c.kernel for c in CASES} == {*PRODUCTS, *PASSES}
    assert len({c.name for c in CASES}) == len(CASES)


def test_the_file_and_the_tables_hold_what_was_measured(mesh: gdt.Mesh, tmp_path: Path) -> None:
    cases = [small(c) for c in CASES if c.kernel in ("matmul", "adam") and c.shape[0] != 8192]
    results = report_of(mesh, tmp_path)
    gpu_report.measure_kernels(results, Bench(mesh), cases, once, COPIED)
    gpu_report.measure_calls(results, mesh, rounds=2)
    results.result["peers"] = {cases[0].name: {"PyTorch": 2.0, "JAX jit": 0.5}}
    for library, ms in (("gdt captured", 0.05), ("JAX jit", 0.1)):
        row = {"workload": "mnist", "library": library, "ms": ms}
        results.measure("steps", f"mnist, {library}", lambda row=row: row)
    assert results.path.name == "nvidia-a-simulated-gpu.json"
    result = written(results)
    assert result == results.result
    assert result["facts"]["commit"]
    assert set(result["calls"]) == set(TINY_OPS)
    assert all(us > 0 for row in result["calls"].values() for us in row.values())
    adam = next(row for row in result["kernels"].values() if row.get("kernel") == "adam")
    bandwidth = result["kernels"]["copy"]["bandwidth"]
    work = Case("adam", "float32", tuple(adam["shape"])).work
    assert gpu_report.fraction(adam, bandwidth) == pytest.approx(work / (2 * COPIED))
    text = text_of(result)
    first = next(line for line in text.splitlines() if line.startswith(f"| {cases[0].name} |"))
    assert first.endswith("| 100% | 0.50 | 2.00 |")
    assert "| mnist | 50 | 100 |" in text
    assert "Measured on one a simulated GPU at commit" in text
    result["failures"] = {}
    tables = text_of(result, columns=60).split("\n\n", 1)[1]
    assert max(map(cell_len, Text.from_ansi(tables).plain.splitlines())) <= 60
    assert "100%" in tables


def test_what_fails_costs_no_other_its_result(mesh: gdt.Mesh, tmp_path: Path) -> None:
    cases = [small(c) for c in CASES if c.kernel in ("sgd", "momentum", "adam")]
    results, seen = report_of(mesh, tmp_path), []

    def fails_at_the_second(run: Any) -> float:
        seen.append([*written(results)["kernels"]] if results.path.exists() else [])
        if len(seen) == 3:  # after a copy and a kernel
            raise RuntimeError("out of luck")
        return once(run)

    gpu_report.measure_kernels(results, Bench(mesh), cases, fails_at_the_second, COPIED)
    assert seen == [[], ["copy"], ["copy", cases[0].name], ["copy", cases[0].name]]
    result = written(results)
    assert list(result["kernels"]) == ["copy", cases[0].name, cases[2].name]
    assert result["failures"] == {f"kernels: {cases[1].name}": "RuntimeError: out of luck"}
    assert f"kernels: {cases[1].name}: RuntimeError: out of luck" in text_of(result)
    again = report_of(mesh, tmp_path)  # of the same commit: what was measured is there
    gpu_report.measure_kernels(again, Bench(mesh), cases[1:2], once, COPIED)
    assert len(written(again)["kernels"]) == 4
    assert not written(again)["failures"]
    other = gpu_report.Report(tmp_path, gpu_report.device_facts(mesh) | {"commit": "another"})
    assert not other.result["kernels"]


def test_contenders_that_die_cost_no_other_its_result(
    mesh: gdt.Mesh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contenders = [
        gpu_report.Contender(library, "one GPU", "", "bench.gdt_steps", "")
        for library in ("NumPy in place", "gdt eager", "another")
    ]

    def measure(workload: str, rounds: int, without: Any, console: Any, rows: Any) -> Any:
        if rows[-1].library == "gdt eager":
            raise SystemExit("gdt eager (one GPU) died:")
        return [{"library": row.library, "ms": 1.0} for row in rows]

    monkeypatch.setattr(gpu_report, "step_contenders", lambda: contenders)
    monkeypatch.setattr(gpu_report.steps_report, "measure", measure)
    results = report_of(mesh, tmp_path)
    gpu_report.measure_steps(results, 2, ["no such library"])
    assert {row["library"] for row in written(results)["steps"].values()} == {
        "NumPy in place",
        "another",
    }
    assert len(written(results)["failures"]) == len(WORKLOADS)
    assert "| mnist | 1000 | 1000 |" in text_of(written(results))


PEER = """
import json, os, sys
for case in json.load(sys.stdin):
    if case["kernel"] == "momentum":
        os._exit(3)
    answer = {"failure": "too large"} if case["kernel"] == "sgd" else {"seconds": {"Peer": 1.0}}
    print(json.dumps({"name": case["name"]} | answer), flush=True)
"""


def test_a_library_that_dies_at_one_kernel_is_asked_for_the_others(
    mesh: gdt.Mesh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a_peer.py").write_text(PEER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    peer = gpu_report.Contender("Peer", "one GPU", "", "a_peer", "")
    monkeypatch.setattr(gpu_report, "peers", lambda torch, jax: [peer])
    cases = [Case(kernel, "float32", (8,)) for kernel in ("sgd", "momentum", "adam", "uniform")]
    results = report_of(mesh, tmp_path)
    gpu_report.measure_peers(results, cases, [])
    assert written(results)["peers"] == {case.name: {"Peer": 1.0} for case in cases[2:]}
    assert written(results)["failures"] == {
        f"peers: {cases[0].name}, Peer": "too large",
        f"peers: {cases[1].name}, Peer": "the process ended with 3",
    }


def test_units_are_those_of_the_work() -> None:
    product = Case("matmul", "float32", (1000,) * 3).as_json() | {
        "seconds": 1e-3, "reference": 0.5e-3
    }  # fmt: skip
    update = Case("adam", "float32", (1000,)).as_json() | {"seconds": 1e-6, "reference": None}
    rows = {row["name"]: row for row in (product, update)}
    table = gpu_report.kernel_table({"kernels": rows, "peers": {}})
    lines = gpu_report.markdown(table).splitlines()
    assert lines[2] == "| matmul, float32, 1000 x 1000 x 1000 | 2 TFLOP/s | 50% |"
    assert lines[3] == "| adam, float32, 1000 | 28 GB/s | - |"


def test_libraries_of_this_python_take_part_without_an_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gpu_report, "ROOT", Path("/nowhere"))
    assert gpu_report.environment_of("json", [".venv-json"]) == ""
    assert gpu_report.environment_of("no_such_library", [".venv-a", ".venv-b"]) == ".venv-a"


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


def test_the_timer_refuses_times_that_hold_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([DeviceTime(2e-6, True), DeviceTime(9e-6, False)])
    monkeypatch.setattr(gpu_report, "device_time", lambda cupy, run, rounds: next(times))
    seconds = gpu_report.device_timer(None)
    assert seconds(once) == 2e-6
    with pytest.raises(RuntimeError, match="the host is slower"):
        seconds(once)
    assert kernels.COPIED > 1 << 29  # more than the caches of any GPU hold
