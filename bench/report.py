"""Times every contender whose environment exists, in one run, and prints the table of ratios.

    python -m bench.report [--workload mnist] [--rounds 7] [--name steps] [--without DTensor]

Each contender is a process of its own (see `bench.worker`). Rounds go around all of them, so that
whatever else the machine does meets everyone: a ratio is the median, over rounds, of a contender's
median in a round to NumPy's in the same round. Slow contenders take part in the first rounds only.
On a busy machine look at the quiet column: the ratio of the lower quartiles of the rounds.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench.workloads import WORKLOADS
from gdt.benchmark.machine import machine
from gdt.engine import loops

ROOT = Path(__file__).resolve().parent.parent
SETTLE_SECONDS = 0.1  # for the BLAS threads of the last contender to stop spinning
SLOW_ROUNDS = 2
LOSS_TOLERANCE = 1e-3


@dataclass(frozen=True)
class Contender:
    """One row of a table: who computes, how arrays are split, how the process is started."""

    library: str
    scheme: str
    environment: str
    module: str
    name: str
    slow: bool = False
    options: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()  # of its environment

    @property
    def python(self) -> Path:
        """The interpreter of its environment; "" is the one that runs this report."""
        return ROOT / self.environment / "bin/python" if self.environment else Path(sys.executable)

    @property
    def present(self) -> bool:
        """Whether `make peers` has finished its environment."""
        return not self.environment or (ROOT / self.environment / "peers.stamp").exists()


def contenders(workload: str) -> list[Contender]:
    """All rows for a workload, NumPy first; the MNIST network is only trained data parallel."""
    schemes = ["data", "model", "spatial"] if workload == "imdb" else ["data"]
    strategies: list[tuple[str, tuple[tuple[str, str], ...]]] = [("", ())]
    if loops.are_compiled():
        strategies.append((" without numba", ((loops.VARIABLE, "0"),)))
    gdt = [
        Contender(
            f"{library}{how}", f"{s}, 8 devices", "", "bench.gdt_steps", s + mode, variables=v
        )
        for how, v in strategies
        for library, mode in (("gdt", ""), ("gdt.function", "-captured"))
        for s in schemes
    ]
    torch = [
        Contender(f"PyTorch {mode}", "one device", ".venv-torch", "bench.peers.torch_steps", mode)
        for mode in ("eager", "fused", "compile")
    ]
    return [
        Contender("NumPy in place", "one array", "", "bench.baselines", "numpy"),
        *gdt,
        Contender("JAX jit", "one device", ".venv-jax", "bench.peers.jax_steps", "one-device"),
        *[
            Contender("JAX jit", f"{s}, 8 devices", ".venv-jax", "bench.peers.jax_steps", s)
            for s in schemes
        ],
        *torch,
        *[
            Contender(
                "PyTorch DTensor",
                f"{s}, 8 processes",
                ".venv-torch",
                "bench.peers.torch_dtensor",
                s,
                slow=True,
            )
            for s in schemes
        ],
    ]


class Running:
    """A contender's process, started and warmed up, and what it has measured."""

    def __init__(self, contender: Contender, workload: str) -> None:
        self.contender = contender
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (lives as long as the process)
        self.process = subprocess.Popen(
            [
                contender.python,
                "-m",
                contender.module,
                workload,
                contender.name,
                *contender.options,
            ],
            cwd=ROOT,
            env=os.environ | dict(contender.variables),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
        )
        self.versions: dict[str, str] = self.answer()["versions"]
        self.medians: list[float] = []
        self.losses: list[float] = []

    def answer(self) -> dict[str, Any]:
        line = self.process.stdout.readline()
        if not line:
            self.errors.seek(0)
            sys.exit(
                f"{self.contender.library} ({self.contender.scheme}) died:\n{self.errors.read()}"
            )
        return json.loads(line)

    def run_round(self) -> None:
        time.sleep(SETTLE_SECONDS)
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        measured = self.answer()
        self.medians.append(median(measured["ms"]))
        self.losses.append(measured["loss"])

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def measure(
    workload: str,
    rounds: int,
    without: list[str],
    console: Console,
    rows: Sequence[Contender] | None = None,
) -> list[dict[str, Any]]:
    """One dictionary a contender: its names and versions, ms a step, ratio to NumPy, loss."""
    present = [
        c
        for c in (contenders(workload) if rows is None else rows)
        if c.present and not any(part in c.library for part in without)
    ]
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task(f"{workload}: starting", total=len(present) + rounds)
        running = []
        for contender in present:
            running.append(Running(contender, workload))
            progress.advance(task)
        progress.update(task, description=f"{workload}: timing")
        for number in range(rounds):
            for one in running:
                if number < SLOW_ROUNDS or not one.contender.slow:
                    one.run_round()
            progress.advance(task)
        for one in running:
            one.close()
    return [summary(one, running[0]) for one in running]


def summary(one: Running, numpy: Running) -> dict[str, Any]:
    ratios = [a / b for a, b in zip(one.medians, numpy.medians, strict=False)]
    expected = numpy.losses[0]
    if any(abs(loss - expected) > LOSS_TOLERANCE * expected for loss in one.losses):
        sys.exit(f"{one.contender.library} ({one.contender.scheme}): {one.losses}, not {expected}")
    return {
        "library": one.contender.library,
        "scheme": one.contender.scheme,
        "versions": one.versions,
        "ms": round(median(one.medians), 4),
        "ratio": round(median(ratios), 3),
        "quiet_ratio": round(lower_quartile(one.medians) / lower_quartile(numpy.medians), 3),
        "loss": one.losses[0],
    }


def lower_quartile(values: list[float]) -> float:
    return quantiles(values, method="inclusive")[0] if len(values) > 1 else values[0]


def table(workload: str, rows: list[dict[str, Any]]) -> Table:
    sizes = "-".join(map(str, WORKLOADS[workload].sizes))
    shown = Table(title=f"{workload}: {sizes}, batch {WORKLOADS[workload].batch}")
    for heading in ("contender", "arrays", "ms a step", "x NumPy", "quiet", "loss"):
        shown.add_column(heading, justify="left" if heading in ("contender", "arrays") else "right")
    for row in rows:
        ratios = f"{row['ratio']:.2f}", f"{row['quiet_ratio']:.2f}"
        loss = f"{row['loss']:.4f}"
        shown.add_row(row["library"], row["scheme"], f"{row['ms']:.3g}", *ratios, loss)
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workload", choices=WORKLOADS, action="append")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--without", action="append", default=[], help="part of a library's name")
    parser.add_argument("--name", default="steps", help="bench/results/NAME.json is written")
    options = parser.parse_args()
    for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
        os.environ.pop(name, None)

    console = Console()
    result: dict[str, Any] = {"machine": machine(), "rounds": options.rounds, "workloads": {}}
    versions: dict[str, str] = {}
    for workload in options.workload or WORKLOADS:
        rows = measure(workload, options.rounds, options.without, console)
        result["workloads"][workload] = rows
        versions |= {name: v for row in rows for name, v in row["versions"].items()}
        console.print(table(workload, rows))
    facts = [f"{key} {value}" for key, value in (result["machine"] | versions).items()]
    console.print(", ".join(facts))

    path = ROOT / "bench/results" / f"{options.name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(result, indent=2) + "\n")
    console.print(f"written: {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
