"""The cost of a call beyond NumPy's: tiny ops on 8 virtual devices, with and without a tape.

    python -m bench.overhead

NumPy, gdt and gdt under a tape take turns, some thousand short runs each. The table shows the
fastest run of each, in microseconds a call, which is the time on an idle machine, and the median
in brackets.
"""

import gc
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.progress import track

import gdt
from bench.launch import launch
from bench.tiny import Call, TinyOp, tiny_ops
from gdt.benchmark.machine import machine
from gdt.benchmark.tables import Row, Table

ROUNDS = 2000
CALLS = 20  # per run: long beside the clock's resolution, short beside a scheduler's tick
RESULTS = Path(__file__).resolve().parent / "results/overhead.json"


def timed(call: Call) -> float:
    """Return the seconds of `CALLS` calls."""
    begin = time.perf_counter()
    for _ in range(CALLS):
        call()
    return time.perf_counter() - begin


def timed_with_tape(call: Call) -> float:
    """Return the seconds of `CALLS` calls that a tape records; creating the tape is not timed."""
    with gdt.GradientTape():
        return timed(call)


def measure(
    op: TinyOp, rounds: int = ROUNDS, settle: Callable[[], object] = lambda: None
) -> dict[str, dict[str, float]]:
    """Return the microseconds of a call, `best` and `median`, of the array library (`bare`), of gdt
    and of gdt under a tape.

    settle: called after each run, untimed.
    """
    runs = {
        "bare": lambda: timed(op.bare),
        "gdt": lambda: timed(op.op),
        "tape": lambda: timed_with_tape(op.op),
    }
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            for name, run in runs.items():
                seconds[name].append(run())
                settle()
    finally:
        gc.enable()
    return {
        name: {"best": min(s) * 1e6 / CALLS, "median": median(s) * 1e6 / CALLS}
        for name, s in seconds.items()
    }


def table(rows: dict[str, dict[str, dict[str, float]]]) -> Table:
    """Return the table of all ops."""
    headings = ["op", "NumPy", "gdt", "gdt - NumPy", "with tape", "with tape - NumPy"]
    cells = []
    for name, row in rows.items():
        numpy, plain, tape = row["bare"], row["gdt"], row["tape"]
        times = [both(numpy), both(plain), above(plain, numpy), both(tape), above(tape, numpy)]
        cells.append(Row([name, *times]))
    return Table("overhead of a call, us: best of many runs (median)", headings, cells)


def both(times: dict[str, float]) -> str:
    """Return the best time, and the median in brackets."""
    return f"{times['best']:.2f} ({times['median']:.2f})"


def above(times: dict[str, float], numpy: dict[str, float]) -> str:
    """Return the difference to NumPy's times."""
    return both({key: times[key] - numpy[key] for key in times})


def main() -> None:
    console = Console()
    ops = tiny_ops().items()
    rows: dict[str, Any] = {
        name: measure(op)
        for name, op in track(ops, "timing calls", console=console, transient=True)
    }
    console.print(table(rows))
    properties = machine() | {"load": round(os.getloadavg()[0], 1)}
    console.print(", ".join(f"{key} {value}" for key, value in properties.items()))
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"machine": properties, "us": rows}, indent=2) + "\n")
    console.print(f"written: bench/results/{RESULTS.name}")


if __name__ == "__main__":
    launch(main)
