"""Measure gdt on a GPU of this machine, part by part, and print the tables: in Markdown into a file
or a pipe, and otherwise as wide as the terminal.

    python -m bench.gpu.report [--parts kernels,calls,steps,peers] [--rounds 5]
        [--without PyTorch] [--output bench/results]

The file OUTPUT/<device>.json is written after every case; the parts of an earlier run of the same
commit stay in it. A case that fails is named there, and costs no other its result. PyTorch, Triton
(which `torch.compile` generates) and JAX take part where this Python has them, or `make peers-gpu`
has created their environments; each in processes of its own.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

import gdt
from bench import overhead
from bench import report as steps_report
from bench.gpu.kernels import CASES, COPIED, Bench, Case, Run, Timer
from bench.launch import launch
from bench.report import ROOT, Contender
from bench.tiny import tiny_ops
from bench.workloads import WORKLOADS
from gdt.backend import backend_of
from gdt.backend.timing import device_time
from gdt.benchmark.machine import machine
from gdt.benchmark.tables import Row, Table
from gdt.cuda import driver as cuda_driver
from gdt.debug.configuration import findings
from gdt.errors import KernelError

ROUNDS = 7  # of ten runs each, of which the median counts
DISPATCH_ROUNDS = 300
SAMPLE_STEPS = 100  # steps in one timed run, at the end of which the host waits once
UNITS = {True: ("TFLOP/s", 1e12), False: ("GB/s", 1e9)}
PARTS = ("kernels", "calls", "steps", "peers")

Json = dict[str, Any]


def device_timer(cupy: Any) -> Timer:
    """Return a timer of the device; it raises an error where the host's time is in the result."""

    def seconds(run: Run) -> float:
        measured = device_time(cupy, run, ROUNDS)
        if not measured.is_unbiased:
            raise RuntimeError("the host is slower than the device: its time would be measured")
        return measured.seconds

    return seconds


# ---------------------------------------------------------------- the file


class Report:
    """The results of a device, kept in a file that is written after each of them.

    facts: what the results belong to. Results of the same device and commit that the file holds
    already are taken over.
    """

    def __init__(self, folder: Path, facts: Mapping[str, Any]) -> None:
        self.path = folder / file_name(facts["device"])
        self.result: Json = {"facts": dict(facts), "failures": {}} | {part: {} for part in PARTS}
        if self.path.exists():
            earlier = json.loads(self.path.read_text())
            if all(earlier["facts"][key] == facts[key] for key in ("device", "commit")):
                self.result = earlier | {"facts": dict(facts)}

    def measure(self, part: str, name: str, run: Callable[[], Any]) -> None:
        """Keep the result of `run` under a name, unless it is None, or its failure."""
        failures, key = self.result["failures"], f"{part}: {name}"
        failures.pop(key, None)
        self.result[part].pop(name, None)
        try:
            if (measured := run()) is not None:
                self.result[part][name] = measured
        except (Exception, SystemExit) as problem:  # the others are measured all the same
            failures[key] = f"{type(problem).__name__}: {str(problem).strip()[-500:]}"
        self.write()

    def write(self) -> None:
        """Write the file whole, or leave it as it was."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text(json.dumps(self.result, indent=2) + "\n")
        temporary.replace(self.path)


# ---------------------------------------------------------------- kernels


def measure_kernels(
    report: Report, bench: Bench, cases: Sequence[Case], seconds: Timer, copied: int = COPIED
) -> None:
    """Measure a copy, and the cases for which the GPU has kernels."""
    report.measure(
        "kernels", "copy", lambda: {"bandwidth": 2 * copied / seconds(bench.copy(copied))}
    )
    for case in cases:
        report.measure("kernels", case.name, lambda case=case: kernel_row(bench, case, seconds))
        bench.free()


def kernel_row(bench: Bench, case: Case, seconds: Timer) -> Json | None:
    """Return the seconds of a kernel, and of cuBLAS for its product; None without a kernel."""
    try:
        run = bench.prepare(case)
    except KernelError:
        return None
    own = seconds(run)
    del run  # and the memory of its operands
    reference = bench.reference(case)
    other = seconds(reference) if reference is not None else None
    return case.as_json() | {"seconds": own, "reference": other}


def fraction(row: Mapping[str, Any], bandwidth: float | None) -> float | None:
    """Return the rate of a kernel as a fraction of cuBLAS's, or of the bandwidth of a copy."""
    case = Case(row["kernel"], row["dtype"], tuple(row["shape"]))
    reference = row["reference"]
    if not case.is_arithmetic and bandwidth:
        reference = case.work / bandwidth
    return reference / row["seconds"] if reference else None


def kernel_table(result: Mapping[str, Any]) -> Table:
    """Return the table of rates, fractions of the reference, and other libraries' times."""
    rows = {name: row for name, row in result["kernels"].items() if name != "copy"}
    bandwidth = result["kernels"].get("copy", {}).get("bandwidth")
    peers = {name: result["peers"].get(name, {}) for name in rows}
    libraries = sorted({library for times in peers.values() for library in times})
    headings = ["kernel", "rate", "of cuBLAS or of a copy", *[f"{n}, x time" for n in libraries]]
    lines = []
    for name, row in rows.items():
        case = Case(row["kernel"], row["dtype"], tuple(row["shape"]))
        unit, scale = UNITS[case.is_arithmetic]
        rate = f"{case.work / row['seconds'] / scale:,.0f} {unit}"
        part = fraction(row, bandwidth)
        ratios = [
            f"{peers[name][library] / row['seconds']:.2f}" if library in peers[name] else "-"
            for library in libraries
        ]
        lines.append(Row([name, rate, "-" if part is None else f"{part:.0%}", *ratios]))
    return Table("", headings, lines)


# ---------------------------------------------------------------- kernels of other libraries


def measure_peers(report: Report, cases: Sequence[Case], without: Sequence[str]) -> None:
    """Measure the cases in the libraries that are installed."""
    for contender in peers("kernels", "kernels"):
        if contender.present and not any(part in contender.library for part in without):
            for name, times in kernels_of_peer(contender, cases):
                if isinstance(times, str):
                    report.result["failures"][f"peers: {name}, {contender.library}"] = times
                else:
                    report.result["peers"].setdefault(name, {}).update(times)
                report.write()


def kernels_of_peer(
    contender: Contender, cases: Sequence[Case]
) -> Iterator[tuple[str, dict[str, float] | str]]:
    """Yield the name of each case with the seconds of its modes, or with what failed.

    A process that dies is started again for the cases after that at which it died.
    """
    left = list(cases)
    while left:
        with subprocess.Popen(
            [contender.python, "-m", contender.module],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        ) as process:  # fmt: skip
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps([case.as_json() for case in left]))
            process.stdin.close()
            for line in process.stdout:
                answer = json.loads(line)
                left.pop(0)
                yield answer["name"], answer.get("failure") or answer["seconds"]
        code = process.returncode
        if left:
            yield left.pop(0).name, f"the process ended with {code}"


# ---------------------------------------------------------------- calls


def measure_calls(report: Report, mesh: gdt.Mesh, rounds: int) -> None:
    """Measure the microseconds of host time of tiny ops: of gdt, with a tape, and of CuPy."""

    def best(op: Any) -> dict[str, float]:
        times = overhead.measure(op, rounds, gdt.synchronize)
        return {key: row["best"] for key, row in times.items()}

    for name, op in tiny_ops(mesh).items():
        report.measure("calls", name, lambda op=op: best(op))


def call_table(rows: Mapping[str, Mapping[str, float]]) -> Table:
    """Return the table of the microseconds of calls."""
    times = [Row([n, *[f"{r[k]:.1f}" for k in ("bare", "gdt", "tape")]]) for n, r in rows.items()]
    return Table("", ["op", "CuPy, us", "gdt, us", "with a tape, us"], times)


# ---------------------------------------------------------------- steps


def peers(torch: str, jax: str) -> list[Contender]:
    """Return the contenders PyTorch and JAX.

    torch, jax: their modules are `bench.peers.torch_<torch>` and `bench.peers.jax_<jax>`.
    """
    environments = [".venv-jax-cuda13", ".venv-jax-cuda12"]
    return [
        Contender(
            "PyTorch", "one GPU", environment_of("torch", [".venv-torch"]),
            f"bench.peers.torch_{torch}", "",
        ),
        Contender(
            "JAX jit", "one GPU", environment_of("jax", environments), f"bench.peers.jax_{jax}",
            "one-device",
        ),
    ]  # fmt: skip


def environment_of(package: str, environments: Sequence[str]) -> str:
    """Return the environment with a package: one that was created for it, or "", this one."""
    existing = [e for e in environments if (ROOT / e / "peers.stamp").exists()]
    if not existing and importlib.util.find_spec(package):
        return ""
    return [*existing, *environments][0]


def step_contenders() -> list[Contender]:
    """Return all contenders of training steps, NumPy first, whose losses the others must reach."""
    options = ("--sample-steps", str(SAMPLE_STEPS))
    torch, jax = peers("steps", "steps")
    of_torch = {
        "eager": "eager-cuda",
        "compile": "compile-cuda",
        "compile, CUDA graphs": "graphs-cuda",
    }
    return [
        Contender("NumPy in place", "CPU", "", "bench.baselines", "numpy"),
        Contender("gdt eager", "one GPU", "", "bench.gdt_steps", "data-gpu", options=options),
        Contender(
            "gdt captured", "one GPU", "", "bench.gdt_steps", "data-captured-gpu", options=options
        ),
        *[
            Contender(
                f"PyTorch {mode}", "one GPU", torch.environment, torch.module, name, options=options
            )
            for mode, name in of_torch.items()
        ],
        Contender(jax.library, "one GPU", jax.environment, jax.module, jax.name, options=options),
    ]


def measure_steps(report: Report, rounds: int, without: Sequence[str]) -> None:
    """Measure the milliseconds of a training step, of one contender after the other: a library may
    take the GPU's memory for itself, or die."""
    numpy, *others = step_contenders()
    for workload in WORKLOADS:
        for contender in (numpy, *others):
            if not contender.present or any(part in contender.library for part in without):
                continue
            rows = [numpy] if contender is numpy else [numpy, contender]
            report.measure(
                "steps",
                f"{workload}, {contender.library}",
                lambda workload=workload, rows=rows: (
                    steps_report.measure(workload, rounds, [], Console(quiet=True), rows)[-1]
                    | {"workload": workload}
                ),
            )


def step_table(steps: Iterable[Mapping[str, Any]]) -> Table:
    """Return the table of the microseconds of training steps."""
    times: dict[str, dict[str, str]] = {}
    for row in steps:
        times.setdefault(row["workload"], {})[row["library"]] = f"{row['ms'] * 1e3:.0f}"
    names = list(dict.fromkeys(name for row in times.values() for name in row))
    rows = [Row([workload, *[r.get(n, "-") for n in names]]) for workload, r in times.items()]
    return Table("", ["step", *[f"{n}, us" for n in names]], rows)


# ---------------------------------------------------------------- the whole


def device_facts(mesh: gdt.Mesh) -> dict[str, Any]:
    """Return the properties of the device, the libraries, the machine and the commit."""
    texts = {f.name: f.text for f in findings()}
    described = texts.get(mesh.devices[0], "a simulated GPU")
    libraries = {name: texts[name] for name in ("NVIDIA driver", "CuPy", "NVRTC (CUDA toolkit)")}
    device = {"device": described.split(",")[0], "described": described}
    return device | libraries | machine() | commit()


def commit() -> dict[str, str]:
    """Return the commit of this checkout; "+" marks uncommitted changes."""
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty=+"],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
    except OSError:  # a machine may have neither git nor the repository
        return {"commit": "unknown"}
    return {"commit": described.stdout.strip() or "unknown"}


def file_name(device: str) -> str:
    """Return the file of a device: `nvidia-h100-80gb-hbm3.json` of "NVIDIA H100 80GB HBM3"."""
    words = re.findall(r"[a-z0-9]+", device.lower())
    return "-".join(["nvidia", *[w for w in words if w != "nvidia"]]) + ".json"


def shown(result: Mapping[str, Any]) -> list[str | Table]:
    """Return what a report shows: where it was measured, the tables, and what failed."""
    facts = result["facts"]
    parts: list[str | Table] = [
        f"Measured on one {facts['device']} at commit {facts['commit']}, CuPy {facts['CuPy']}, "
        f"{facts['NVIDIA driver']}."
    ]
    if result["kernels"]:
        parts.append(kernel_table(result))
    if result["calls"]:
        parts.append(call_table(result["calls"]))
    if result["steps"]:
        parts.append(step_table(result["steps"].values()))
    return parts + [f"{name}: {problem}" for name, problem in result["failures"].items()]


def markdown(table: Table) -> str:
    """Return a table as Markdown, as wide as its longest cells: a line stays a line."""
    marks = ["---"] * table.labels + ["---:"] * (len(table.headings) - table.labels)
    lines = [table.headings, marks, *[row.cells for row in table.rows]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def show(result: Mapping[str, Any], console: Console) -> None:
    """Print a report: tables that fit a terminal, or else Markdown for the README."""
    for part in shown(result):
        if isinstance(part, Table) and console.is_terminal:
            console.print(part)
        else:
            text = markdown(part) if isinstance(part, Table) else part
            console.print(f"{text}\n", soft_wrap=True, highlight=False, markup=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--without", action="append", default=[], help="part of a library's name")
    parser.add_argument("--output", type=Path, default=ROOT / "bench/results")
    options = parser.parse_args()
    parts = options.parts.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"no part {', '.join(sorted(unknown))}: there are {', '.join(PARTS)}")
    problem, remedy = cuda_driver.missing()
    if problem:
        raise SystemExit(f"bench.gpu.report: {problem}\n  {remedy}")
    mesh = gdt.create_mesh({"batch": 8}, devices=["cuda:0"])
    backend = backend_of(mesh)
    if backend.runner is None:
        raise SystemExit("bench.gpu.report: there are no kernels for this GPU")
    report = Report(options.output, device_facts(mesh))
    if "kernels" in parts:
        measure_kernels(report, Bench(mesh), CASES, device_timer(backend.xp))
    if "calls" in parts:
        measure_calls(report, mesh, DISPATCH_ROUNDS)
    if "steps" in parts:
        measure_steps(report, options.rounds, options.without)
    if "peers" in parts:
        measure_peers(report, CASES, options.without)
    show(report.result, Console())
    print(f"written: {report.path}")
    if any(name.split(":")[0] in parts for name in report.result["failures"]):
        raise SystemExit(1)


if __name__ == "__main__":
    launch(main, "The cases that were measured are in the folder of --output.")
