"""Runs the stages of `make gpu`, one after the other, and prints a table of how each ended.

    python3 -m tests.gpu.run [--bundle FOLDER] [--work FOLDER] [--workers 12] [--patience 1]
        [--seconds N] [STAGE ...]

--patience is a factor of the limit of every stage; --seconds is a limit of all of them together.
OUT names the folder of results: STAGE.log, JSON of what was measured, and summary.json, which is
written after every stage.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tests.gpu.stages import ROOT, Places, Stage, environment, stages

TAIL = 25  # lines of a log that are shown
WIDTH = 78  # of the line that tells how a stage ended


@dataclass(frozen=True)
class Outcome:
    """How a stage ended: `problem` is empty where it is well."""

    stage: str
    problem: str
    seconds: float
    last_line: str

    def __str__(self) -> str:
        how = self.problem or "passed"
        return f"{self.stage:10} {how:24} {self.seconds:6.0f} s  {self.last_line}"[:WIDTH].rstrip()


def run_stage(name: str, stage: Stage, variables: Mapping[str, str], log: Path) -> Outcome:
    """Run a stage, whose output goes to `log`; a process that does not end is killed with its
    children."""
    began = time.monotonic()
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(
                stage.command,
                cwd=ROOT,
                env=os.environ | variables | stage.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError:
            return Outcome(name, "not started", 0.0, f"there is no {stage.command[0]}")
        try:
            problem = f"exit {code}" if (code := process.wait(stage.seconds)) else ""
        except subprocess.TimeoutExpired:
            problem = f"killed after {stage.seconds} s"
        finally:
            _end(process)
    lines = log.read_text(errors="replace").splitlines()
    print(f"\n===== {name}: {stage.proves}", *lines[-TAIL:], sep="\n", flush=True)
    last_line = next((line for line in reversed(lines) if line.strip()), "")
    return Outcome(name, problem, time.monotonic() - began, last_line)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill whatever is left of a process and its children."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run(
    chosen: Mapping[str, Stage],
    variables: Mapping[str, str],
    output: Path,
    seconds: float = math.inf,
) -> list[Outcome]:
    """Run stages, in `seconds` together; summary.json holds how those ended that have."""
    output.mkdir(parents=True, exist_ok=True)
    outcomes: list[Outcome] = []
    end = time.monotonic() + seconds
    for name, stage in chosen.items():
        left = end - time.monotonic()
        if left < 1:
            outcomes.append(Outcome(name, "not started", 0.0, "no time is left"))
        else:
            limited = replace(stage, seconds=int(min(left, stage.seconds)))
            outcomes.append(run_stage(name, limited, variables, output / f"{name}.log"))
        summary = json.dumps([asdict(outcome) for outcome in outcomes], indent=1)
        (output / "summary.json").write_text(summary + "\n")
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bundle", type=Path, default=ROOT / "build/gpu-bundle")
    parser.add_argument("--work", type=Path, default=ROOT / "build/gpu")
    parser.add_argument("--workers", type=int, default=min(12, os.cpu_count() or 1))
    parser.add_argument("--patience", type=int, default=1, help="times the limits of stages")
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("stages", nargs="*", metavar="STAGE")
    options = parser.parse_args()
    output = Path(os.environ.get("OUT") or options.work / "results").resolve()
    places = Places(options.bundle.resolve(), options.work.resolve(), output)
    every = {
        name: replace(stage, seconds=stage.seconds * options.patience)
        for name, stage in stages(places, options.workers).items()
    }
    if unknown := set(options.stages) - every.keys():
        parser.error(f"no stage {', '.join(sorted(unknown))}: there are {', '.join(every)}")
    names = options.stages or list(every)
    outcomes = run(
        {name: every[name] for name in names}, environment(places), output, options.seconds
    )
    print("\n", *outcomes, sep="\n")
    sys.exit(any(outcome.problem for outcome in outcomes))


if __name__ == "__main__":
    main()
