"""Time the programs in every library whose environment exists, in turns, and print the tables.

    make peers
    python -m bench.programs [--size 1000000] [--rounds 7] [--program masks] [--without PyTorch]

In each round all contenders take turns, so that other load of the machine meets all of them. Wall
is the time of the clock for a call, CPU the time of all threads; a ratio is the median, over
rounds, of a contender's time divided by NumPy's, or by that of JAX jit on one device, in the same
round. NumPy has no gradients, and numexpr the programs that are expressions. Before that, all
results are compared with those in float64, and derivatives with differences: `differs` marks a row
whose error is above the tolerance (see `bench.programs.program`).
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

from rich.console import Console
from rich.progress import Progress

from bench.launch import launch
from bench.programs.contenders import FLOAT64
from bench.programs.worker import PROGRAMS, save_reference
from bench.report import Contender, Running
from gdt.benchmark.machine import machine
from gdt.benchmark.tables import Row, Table, three_digits
from gdt.engine import loops

MODULE = "bench.programs.contenders"
NUMPY = Contender("NumPy", "one array", "", MODULE, "numpy")
JAX = Contender("JAX jit", "one device", ".venv-jax", "bench.peers.jax_programs", "one-device")
BASES = {"NumPy": NUMPY, "JAX": JAX}
TIMES = ("wall", "cpu")


def contenders() -> list[Contender]:
    """Return all contenders, NumPy first."""
    variants: list[tuple[str, tuple[tuple[str, str], ...]]] = [("", ())]
    if loops.are_compiled():
        variants.append((", no numba", ((loops.VARIABLE, "0"),)))
    modes = [
        ("gdt", "1 block", "eager"),
        ("gdt.function", "1 block", "function"),
        ("gdt.function", "8 blocks", "function-blocks"),
    ]
    jax, torch = (f"bench.peers.{name}_programs" for name in ("jax", "torch"))
    numexpr = "bench.peers.numexpr_programs"
    return [
        NUMPY,
        Contender("numexpr", "one array", ".venv-numexpr", numexpr, "numexpr"),
        JAX,
        Contender("JAX jit", "8 devices", ".venv-jax", jax, "devices"),
        Contender("PyTorch eager", "one tensor", ".venv-torch", torch, "eager"),
        Contender("PyTorch compile", "one tensor", ".venv-torch", torch, "compile"),
        *(
            Contender(library, arrays + suffix, "", MODULE, name, variables=variables)
            for suffix, variables in variants
            for library, arrays, name in modes
        ),
    ]


@dataclass
class Line:
    """A contender's line in the table of a program.

    failed: why there are no turns, or "". first: milliseconds of the first call. error: in units of
    the tolerance. turns: milliseconds of a call by the clock, `wall`, and of all threads, `cpu`.
    ratios: medians over the turns, by time and base.
    """

    contender: Contender
    program: str
    failed: str = ""
    first: float = 0.0
    error: float = 0.0
    turns: list[dict[str, float]] = field(default_factory=list)
    ratios: dict[str, float] = field(default_factory=dict)

    @property
    def times(self) -> dict[str, float]:
        """Medians of the turns."""
        return {time: median(turn[time] for turn in self.turns) for time in TIMES if self.turns}

    def is_of(self, contender: Contender) -> bool:
        mine = self.contender
        return (mine.library, mine.scheme) == (contender.library, contender.scheme)


# ---------------------------------------------------------------- measuring


def measure(name: str, running: Sequence[Running], rounds: int) -> list[Line]:
    """Return the lines of a program, without the contenders that have no such program."""
    answers = {one: one.ask(name) for one in running}
    lines = {one: Line(one.contender, name, **answer) for one, answer in answers.items() if answer}
    for _ in range(rounds):
        for one, line in lines.items():
            if not line.failed:
                line.turns.append(one.ask(name))
    for label, contender in BASES.items():
        for base in lines.values():
            if base.is_of(contender) and base.turns:
                for line in lines.values():
                    line.ratios |= ratios(line, base, label)
    return list(lines.values())


def ratios(line: Line, base: Line, label: str) -> dict[str, float]:
    """Return the medians of the ratios within a round."""
    pairs = list(zip(line.turns, base.turns, strict=False))  # there are no turns where it failed
    return {
        f"{time} x {label}": median(mine[time] / other[time] for mine, other in pairs)
        for time in TIMES
        if pairs
    }


# ---------------------------------------------------------------- tables

RATIOS = [f"{time} x {base}" for base in BASES for time in TIMES]


def table(title: str, lines: Sequence[Line]) -> Table:
    """Return the table of one program."""
    headings = ["contender", "arrays", "wall, ms", "CPU, ms", *heading(RATIOS), "error"]
    rows = [Row([ln.contender.library, ln.contender.scheme, *cells(ln)]) for ln in lines]
    return Table(title, headings, rows, labels=2)


def heading(names: Iterable[str]) -> list[str]:
    return [name.replace("cpu", "CPU") for name in names]


def cells(line: Line) -> list[str]:
    """Return the numbers of a line."""
    if line.failed:
        return ["failed", *["–"] * (len(TIMES) - 1 + len(RATIOS)), "–"]
    error = f"{line.error:.2g}" if line.error <= 1 else f"{line.error:.2g}, differs"
    return [
        *(three_digits(line.times[time]) for time in TIMES),
        *(f"{line.ratios[name]:.2f}" if name in line.ratios else "–" for name in RATIOS),
        error,
    ]


def summary(lines: Sequence[Line], contenders: Sequence[Contender]) -> list[dict[str, Any]]:
    """Return, for each contender, geometric means of its ratios over programs, their number, and
    the program that is slowest beside JAX."""
    rows = []
    for contender in contenders:
        own = [line for line in lines if line.contender == contender]
        if not own:
            continue
        ratios = {
            name: geometric_mean(values)
            for name in RATIOS
            if (values := [line.ratios[name] for line in own if name in line.ratios])
        }
        slowest = max(own, key=lambda line: line.ratios.get("wall x JAX", 0))
        rows.append(
            {
                "library": contender.library,
                "arrays": contender.scheme,
                "programs": sum(not line.failed for line in own),
                "ratios": ratios,
                "slowest": slowest.program if "wall x JAX" in slowest.ratios else "–",
                "slowest_ratio": slowest.ratios.get("wall x JAX"),
            }
        )
    return rows


def summary_table(rows: Sequence[dict[str, Any]]) -> Table:
    """Return the table of geometric means."""
    headings = ["contender", "arrays", "programs", *heading(RATIOS), "slowest beside JAX"]
    body = []
    for row in rows:
        means = [f"{row['ratios'][k]:.2f}" if k in row["ratios"] else "–" for k in RATIOS]
        slowest = row["slowest"]
        if row["slowest_ratio"] is not None:
            slowest += f", {row['slowest_ratio']:.2f}"
        body.append(Row([row["library"], row["arrays"], str(row["programs"]), *means, slowest]))
    return Table("Geometric means of the programs", headings, body, labels=2)


# ---------------------------------------------------------------- the command


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=1_000_000, help="elements of an array")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--program", action="append", choices=PROGRAMS, help="by default all")
    parser.add_argument("--without", action="append", default=[], help="part of a row's name")
    parser.add_argument("--json", type=Path, help="a file that is written")
    options = parser.parse_args()
    for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
        os.environ.pop(name, None)

    console = Console()
    chosen = [
        replace(one, options=("--size", str(options.size)))
        for one in contenders()
        if one.present
        and not any(part in f"{one.library} {one.scheme}" for part in options.without)
    ]
    lines: list[Line] = []
    with tempfile.TemporaryDirectory() as folder:
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task("starting", total=len(chosen))
            running = []
            for one in chosen:
                running.append(Running(one, folder))
                progress.advance(task)
        for name in options.program or PROGRAMS:
            program = PROGRAMS[name]
            save_reference(Path(folder), name, program.reference(FLOAT64, options.size))
            with console.status(name):
                measured = measure(name, running, options.rounds)
            console.print(table(f"{name}, {options.size:,} elements", measured))
            for line in measured:
                if line.failed:
                    console.print(f"{line.contender.library}: {line.failed}", markup=False)
            lines += measured
        for one in running:
            one.close()
    rows = summary(lines, chosen)
    console.print(summary_table(rows))
    versions = {name: v for one in running for name, v in one.versions.items()}
    properties = machine() | versions | {"load": round(os.getloadavg()[0], 1)}
    console.print(", ".join(f"{key} {value}" for key, value in properties.items()))
    if options.json:
        result = {
            "machine": properties,
            "size": options.size,
            "rounds": options.rounds,
            "lines": [
                asdict(ln)
                | {"contender": [ln.contender.library, ln.contender.scheme], "times": ln.times}
                for ln in lines
            ],
            "means": rows,
        }
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    launch(main)
