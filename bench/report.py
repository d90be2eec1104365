"""Time every contender whose environment exists, in one run, and print the table of ratios.

    python -m bench.report [--workload mnist] [--rounds 7] [--name steps] [--without DTensor]

Each contender is a process of its own (see `bench.worker`). In each round all contenders take
turns, so that other load of the machine meets all of them. A ratio is the median, over rounds, of a
contender's median time divided by NumPy's in the same round. Slow contenders take part in the first
rounds only. On a busy machine look at the quiet column: the ratio of the lower quartiles.
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

from bench.launch import launch
from bench.workloads import WORKLOADS
from gdt.benchmark.machine import machine
from gdt.benchmark.tables import Row, Table
from gdt.engine import loops

ROOT = Path(__file__).resolve().parent.parent
SETTLE_SECONDS = 0.1  # for the BLAS threads of the last contender to stop spinning
SLOW_ROUNDS = 2
LOSS_TOLERANCE = 1e-3


@dataclass(frozen=True)
class Contender:
    """One row of a table: the library, the split of the arrays, and the command of its process.

    environment: the folder of its virtual environment; "" for this one. name: the contender's name
    in `module`. slow: whether it takes part in the first rounds only. variables: environment
    variables of the process.
    """

    library: str
    scheme: str
    environment: str
    module: str
    name: str
    slow: bool = False
    options: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()

    @property
    def python(self) -> Path:
        """The interpreter of its environment."""
        return ROOT / self.environment / "bin/python" if self.environment else Path(sys.executable)

    @property
    def present(self) -> bool:
        """Whether its environment exists: `make peers` has finished it."""
        return not self.environment or (ROOT / self.environment / "peers.stamp").exists()


def contenders(workload: str) -> list[Contender]:
    """Return all rows for a workload, NumPy first; MNIST is only trained data parallel."""
    schemes = ["data", "model", "spatial"] if workload == "imdb" else ["data"]
    variants: list[tuple[str, tuple[tuple[str, str], ...]]] = [("", ())]
    if loops.are_compiled():
        variants.append((" without numba", ((loops.VARIABLE, "0"),)))
    gdt = [
        Contender(
            f"{library}{suffix}", f"{s}, 8 devices", "", "bench.gdt_steps", s + mode, variables=v
        )
        for suffix, v in variants
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
    """A contender's process, started and warmed up, with the medians and losses of its rounds."""

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
        """Return the process's next line; exit with its errors if it has ended."""
        line = self.process.stdout.readline()
        if not line:
            self.errors.seek(0)
            sys.exit(
                f"{self.contender.library} ({self.contender.scheme}) died:\n{self.errors.read()}"
            )
        return json.loads(line)

    def ask(self, line: str = "") -> dict[str, Any]:
        """Return the process's answer to a line."""
        time.sleep(SETTLE_SECONDS)
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return self.answer()

    def run_round(self) -> None:
        """Let the process train one round, and store its median time and its loss."""
        results = self.ask()
        self.medians.append(median(results["ms"]))
        self.losses.append(results["loss"])

    def close(self) -> None:
        """End the process."""
        self.process.stdin.close()
        self.process.wait()


def measure(
    workload: str,
    rounds: int,
    without: list[str],
    console: Console,
    rows: Sequence[Contender] | None = None,
) -> list[dict[str, Any]]:
    """Return a summary of each contender: its names and versions, ms a step, ratio to NumPy, loss.

    without: parts of the names of libraries to leave out. rows: the contenders; by default all.
    """
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
    """Return the results of one contender; exit if its loss is not NumPy's."""
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
    """Return the lower quartile, or the value if there is one."""
    return quantiles(values, method="inclusive")[0] if len(values) > 1 else values[0]


def table(workload: str, rows: list[dict[str, Any]]) -> Table:
    """Return the table of one workload."""
    sizes = "-".join(map(str, WORKLOADS[workload].sizes))
    headings = ["contender", "arrays", "ms a step", "x NumPy", "quiet", "loss"]
    numbers = {"ms": ".3g", "ratio": ".2f", "quiet_ratio": ".2f", "loss": ".4f"}
    cells = [
        [row["library"], row["scheme"], *(format(row[key], spec) for key, spec in numbers.items())]
        for row in rows
    ]
    title = f"{workload}: {sizes}, batch {WORKLOADS[workload].batch}"
    return Table(title, headings, [Row(c) for c in cells], labels=2)


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
    properties = result["machine"] | versions
    console.print(", ".join(f"{key} {value}" for key, value in properties.items()))

    path = ROOT / "bench/results" / f"{options.name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(result, indent=2) + "\n")
    console.print(f"written: {path.relative_to(ROOT)}")


if __name__ == "__main__":
    launch(main)
