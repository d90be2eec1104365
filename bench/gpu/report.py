"""Measure gdt on the GPUs of this machine, write bench/results/<device>.json, print the tables.

    python -m bench.gpu.report [--rounds 5] [--without PyTorch]

PyTorch, Triton (which `torch.compile` generates) and JAX take part where `make peers-gpu` has
created their environments, each in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track

import gdt
from bench import overhead
from bench import report as steps_report
from bench.gpu.kernels import CASES, COPIED, Bench, Case, Run, Timer
from bench.report import ROOT, Contender
from bench.tiny import tiny_ops
from bench.workloads import WORKLOADS
from gdt.backend import backend_of
from gdt.benchmark.machine import machine
from gdt.cuda import driver as cuda_driver
from gdt.debug.configuration import findings
from gdt.errors import KernelError

REPEATS, WARMUP = 20, 3
DISPATCH_ROUNDS = 300
SAMPLE_STEPS = 100  # steps in one timed run, at the end of which the host waits once
UNITS = {True: ("TFLOP/s", 1e12), False: ("GB/s", 1e9)}


def by_events(run: Run) -> float:
    """Return the median, over several runs, of the seconds between CUDA events around a run."""
    from cupyx.profiler import benchmark  # noqa: PLC0415

    times = benchmark(run, n_repeat=REPEATS, n_warmup=WARMUP).gpu_times
    return float(np.median(times))


# ---------------------------------------------------------------- kernels


@dataclass
class Row:
    """The seconds of one kernel at one size, of its reference, and of other libraries by name."""

    case: Case
    seconds: float
    reference: float | None
    peers: dict[str, float] = field(default_factory=dict)

    @property
    def fraction(self) -> float | None:
        """The kernel's rate as a fraction of the reference's."""
        return self.reference / self.seconds if self.reference else None


def measured_kernels(
    bench: Bench,
    cases: Sequence[Case],
    seconds: Timer,
    peers: Mapping[str, Mapping[str, float]],
    copied: int = COPIED,
) -> list[Row]:
    """Measure the cases for which the GPU has kernels.

    seconds: times a run. peers: the seconds of other libraries, by name of the case and of the
    library. copied: the bytes of the copy that is the reference.
    """
    bandwidth = 2 * copied / seconds(bench.copy(copied))  # bytes a second, read and written
    rows = []
    for case in track(cases, "timing kernels", transient=True):
        try:
            run = bench.prepare(case)
        except KernelError:
            continue
        reference = bench.reference(case)
        own = seconds(run)
        other = seconds(reference) if reference is not None else None
        if not case.is_product:
            other = case.work / bandwidth
        rows.append(Row(case, own, other, dict(peers.get(case.name, {}))))
        del run, reference
    return rows


def kernels_of_peers(cases: Iterable[Case], without: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return the seconds of the installed libraries, by name of the case and of the library."""
    seconds: dict[str, dict[str, float]] = {}
    text = json.dumps([case.as_json() for case in cases])
    for contender in peers("kernels", "kernels"):
        if not contender.present or any(part in contender.library for part in without):
            continue
        command = [contender.python, "-m", contender.module]
        process = subprocess.run(
            command, cwd=ROOT, input=text, text=True, check=True, stdout=subprocess.PIPE
        )
        for name, times in json.loads(process.stdout).items():
            seconds.setdefault(name, {}).update(times)
    return seconds


def kernel_table(rows: Sequence[Row]) -> str:
    """Return a Markdown table of rates, fractions of the reference, and other libraries' times."""
    libraries = sorted({library for row in rows for library in row.peers})
    lines = [
        ["kernel", "rate", "of cuBLAS or of a copy", *[f"{name}, x time" for name in libraries]],
        ["---", "---:", "---:", *["---:"] * len(libraries)],
    ]
    for row in rows:
        unit, scale = UNITS[row.case.is_product]
        rate = f"{row.case.work / row.seconds / scale:,.0f} {unit}"
        ratios = [
            f"{row.peers[name] / row.seconds:.2f}" if name in row.peers else "-"
            for name in libraries
        ]
        fraction = "-" if row.fraction is None else f"{row.fraction:.0%}"
        lines.append([row.case.name, rate, fraction, *ratios])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


# ---------------------------------------------------------------- calls


def measured_calls(mesh: gdt.Mesh, rounds: int) -> dict[str, dict[str, float]]:
    """Return the microseconds of host time of tiny ops: of gdt, with a tape, and of CuPy."""
    return {
        name: {
            key: times["best"]
            for key, times in overhead.measure(op, rounds, gdt.synchronize).items()
        }
        for name, op in track(tiny_ops(mesh).items(), "timing calls", transient=True)
    }


def call_table(rows: Mapping[str, Mapping[str, float]]) -> str:
    """Return a Markdown table of the microseconds of calls."""
    lines = ["| op | CuPy, us | gdt, us | with a tape, us |", "| --- | ---: | ---: | ---: |"]
    lines += [
        f"| {name} | {r['bare']:.1f} | {r['gdt']:.1f} | {r['tape']:.1f} |"
        for name, r in rows.items()
    ]
    return "\n".join(lines)


# ---------------------------------------------------------------- steps


def peers(torch: str, jax: str) -> list[Contender]:
    """Return the contenders PyTorch and JAX.

    torch, jax: their modules are `bench.peers.torch_<torch>` and `bench.peers.jax_<jax>`.
    """
    jax_environments = [".venv-jax-cuda13", ".venv-jax-cuda12"]
    existing = [e for e in jax_environments if (ROOT / e).exists()] or jax_environments
    return [
        Contender("PyTorch", "one GPU", ".venv-torch", f"bench.peers.torch_{torch}", ""),
        Contender("JAX jit", "one GPU", existing[0], f"bench.peers.jax_{jax}", "one-device"),
    ]


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


def step_table(workloads: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return a Markdown table of the microseconds of training steps."""
    names = list(dict.fromkeys(row["library"] for rows in workloads.values() for row in rows))
    lines = [f"| step | {' | '.join(f'{n}, us' for n in names)} |"]
    lines.append(f"| --- |{' ---: |' * len(names)}")
    for workload, rows in workloads.items():
        by_name = {row["library"]: f"{row['ms'] * 1e3:.0f}" for row in rows}
        lines.append(f"| {workload} | {' | '.join(by_name.get(n, '-') for n in names)} |")
    return "\n".join(lines)


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


def tables(result: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """Return the Markdown tables for the README."""
    facts = result["facts"]
    parts = [
        f"Measured on one {facts['device']} at commit {facts['commit']}, CuPy {facts['CuPy']}, "
        f"{facts['NVIDIA driver']}.",
        kernel_table(rows),
        call_table(result["calls"]),
    ]
    if result["steps"]:
        parts.append(step_table(result["steps"]))
    return "\n\n".join(parts)


def written(result: Mapping[str, Any], folder: Path) -> Path:
    """Write the file of the device, whole or not at all; return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / file_name(result["facts"]["device"])
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(result, indent=2) + "\n")
    temporary.replace(path)
    return path


def collected(
    mesh: gdt.Mesh,
    cases: Sequence[Case],
    seconds: Timer,
    peer_kernels: Mapping[str, Mapping[str, float]],
    steps: Mapping[str, Any],
    rounds: int = DISPATCH_ROUNDS,
    copied: int = COPIED,
) -> tuple[dict[str, Any], list[Row]]:
    """Measure kernels and calls in this process; return all results, with those of the other
    processes, and the rows of the kernels."""
    rows = measured_kernels(Bench(mesh), cases, seconds, peer_kernels, copied)
    kernels = [
        r.case.as_json()
        | {"seconds": r.seconds, "reference": r.reference, "fraction": r.fraction, "peers": r.peers}
        for r in rows
    ]
    calls = measured_calls(mesh, rounds)
    facts = device_facts(mesh)
    return {"facts": facts, "kernels": kernels, "calls": calls, "steps": dict(steps)}, rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--without", action="append", default=[], help="part of a library's name")
    options = parser.parse_args()
    problem, remedy = cuda_driver.missing()
    if problem:
        raise SystemExit(f"bench.gpu.report: {problem}\n  {remedy}")
    console = Console()
    peer_kernels = kernels_of_peers(CASES, options.without)
    steps = {
        workload: steps_report.measure(
            workload, options.rounds, options.without, console, step_contenders()
        )
        for workload in WORKLOADS
    }
    mesh = gdt.create_mesh({"batch": 8}, devices=["cuda:0"])
    if backend_of(mesh).runner is None:
        raise SystemExit("bench.gpu.report: there are no kernels for this GPU")
    result, rows = collected(mesh, CASES, by_events, peer_kernels, steps)
    path = written(result, ROOT / "bench/results")
    print(tables(result, rows))
    console.print(f"written: {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
