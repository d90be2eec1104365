"""The process of a contender: for each line on standard input, the name of a program, prints JSON.

    echo 'masks' | python -m bench.programs.contenders FOLDER numpy --size 10000

The first line with a name prepares the program, and tells how far its results are from those that
FOLDER holds in float64; each later one is a turn, of as many calls as `TURN` seconds take. A
program that the contender has not is answered with an empty object.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from bench.programs import arrays, gradients
from bench.programs.program import Program, in_tree

PROGRAMS = arrays.PROGRAMS | gradients.PROGRAMS
WARM_CALLS = 4  # gdt records the second, and verifies the third
TURN = 0.05
PREPARED = 90  # seconds after which a program that a library still compiles has failed

Run = Callable[[], Any]
"""A call of a program, which returns when all its results are there."""

Prepare = Callable[[Program, int], Run | None]
"""A function of a program and a number of elements; None where the library has no such program."""


def turn(run: Run, count: int) -> dict[str, float]:
    """Return the milliseconds of one of `count` calls: of the clock, and of all processors."""
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(count):
        run()
    ends = time.perf_counter(), time.process_time()
    return {"wall": (ends[0] - wall) * 1e3 / count, "cpu": (ends[1] - cpu) * 1e3 / count}


def reference(folder: Path, name: str) -> list[np.ndarray]:
    """Return what `save_reference` has written."""
    with np.load(folder / f"{name}.npz") as file:
        return [file[key] for key in file.files]


def save_reference(folder: Path, name: str, results: list[np.ndarray]) -> None:
    """Write the results of a program in float64."""
    np.savez(folder / f"{name}.npz", *results)


def prepared(
    run: Run, program: Program, expected: list[np.ndarray]
) -> tuple[int, dict[str, float]]:
    """Return the calls of a turn, and what preparing has shown: the milliseconds of the first call,
    and the error in units of the tolerance."""
    first = turn(run, 1)["wall"]
    turn(run, WARM_CALLS - 1)
    error = program.error(in_tree(np.asarray, run()), expected)
    count = max(1, round(TURN * 1e3 / turn(run, 1)["wall"]))
    return count, {"first": first, "error": error}


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raise TimeoutError in the block after these seconds."""

    def stop(number: int, frame: object) -> None:
        raise TimeoutError(f"not prepared after {seconds} s")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def serve(contenders: Mapping[str, Prepare], versions: Mapping[str, str]) -> None:
    """Run a contender's command line: print the versions, then answer each line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("contender", choices=contenders)
    parser.add_argument("--size", type=int, required=True)
    options = parser.parse_args()
    print(json.dumps({"versions": versions}), flush=True)
    current, run, count = "", None, 0
    for line in sys.stdin:
        name, answer = line.strip(), {}
        if name == current and run is not None:
            answer = turn(run, count)
        else:
            current, run = name, None  # frees the arrays of the program before
            try:
                with limited(PREPARED):
                    run = contenders[options.contender](PROGRAMS[name], options.size)
                    if run is not None:
                        expected = reference(options.folder, name)
                        count, answer = prepared(run, PROGRAMS[name], expected)
            except Exception as problem:  # one program less, and the table says so
                answer = {"failed": f"{type(problem).__name__}: {problem}".splitlines()[0]}
        print(json.dumps(answer), flush=True)
