"""Run Keras' own tests, which its wheel ships, on gdt.

    python -m tests.interop.keras.run                        # all folders, one after the other
    python -m tests.interop.keras.run ops/nn_test.py --devices 8
    python -m tests.interop.keras.run ops --peer "JAX=jax:/path/to/bin/python"

Prints what passed, failed and was skipped in each folder, and in the same folder of Keras on its
own backends, which `--peer` names. A failure is expected if `expected_failures.txt` has its name
with the reason, a line each; anything else, and an expected failure that passes, ends the program
with status 1. The dtypes of most functions are compared with JAX's: `--oracle` names the packages
of an environment that has it, and without it those cases are skipped.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

from rich.console import Console
from rich.table import Table

FOLDERS = (
    "ops", "layers", "activations", "initializers", "random", "losses", "metrics", "regularizers",
    "constraints", "utils", "optimizers", "models", "trainers", "callbacks", "distribution",
    "saving",
)  # fmt: skip
EXPECTED = Path(__file__).with_name("expected_failures.txt")
Outcomes = dict[str, str]  # of each case: passed, failed or skipped


def expected_failures() -> dict[str, str]:
    """Return the patterns of the names of cases that fail, with the reasons."""
    lines = [line for line in EXPECTED.read_text().splitlines() if line and line[0] != "#"]
    return {
        pattern.strip(): reason.strip() for pattern, _, reason in (x.partition("|") for x in lines)
    }


def root_of_keras(python: str = sys.executable) -> Path:
    """Return the folder of Keras' sources in the environment of a Python."""
    if python == sys.executable:
        spec = importlib.util.find_spec("keras")
        assert spec is not None and spec.origin is not None
        return Path(spec.origin).parent / "src"
    asked = "import importlib.util as u; print(u.find_spec('keras').origin)"
    out = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=True, cwd="/")
    return Path(out.stdout.strip()).parent / "src"


def run(
    path: str,
    options: list[str],
    environment: dict[str, str],
    python: str = sys.executable,
) -> Outcomes:
    """Return the outcomes of Keras' cases below a path, by their names `file::class::case`."""
    root = root_of_keras(python)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [
            python, "-m", "pytest", "-p", "tests.interop.keras.plugin", "-c", os.devnull,
            f"--rootdir={root}", "--import-mode=importlib", "-q",
            "-p", "no:cacheprovider", "-p", "no:benchmark",
            f"--junitxml={report}", *options, str(root / path),
        ]  # fmt: skip
        repository = str(Path(__file__).parents[3])
        variables = os.environ | environment | {"PYTHONPATH": repository}
        done = subprocess.run(
            command, cwd=folder, env=variables, capture_output=True, text=True, check=False
        )
        if not report.exists():
            sys.exit(f"{' '.join(command)}\n{done.stdout}\n{done.stderr}")
        cases = ElementTree.parse(report).getroot().iter("testcase")
        return {_name_of(case): _outcome_of(case) for case in cases}


def _name_of(case: ElementTree.Element) -> str:
    place = case.get("classname", "").replace(".", "/").replace("_test/", "_test.py::")
    return f"{place.removeprefix('src/')}::{case.get('name')}"


def _outcome_of(case: ElementTree.Element) -> str:
    kinds = {child.tag for child in case}
    if kinds & {"failure", "error"}:
        return "failed"
    return "skipped" if "skipped" in kinds else "passed"


def surprises(outcomes: Outcomes) -> list[str]:
    """Return what failed without a reason, and what passed in spite of one."""
    patterns = expected_failures()
    lines = []
    for name, outcome in outcomes.items():
        is_expected = any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
        if outcome == "failed" and not is_expected:
            lines.append(f"failed: {name}")
        elif outcome == "passed" and is_expected:
            lines.append(f"passed, and is expected to fail: {name}")
    return lines


def main() -> None:
    """Run the folders, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="*", default=FOLDERS, help="below keras/src")
    parser.add_argument("--devices", type=int, default=1, help="8: DataParallel on 8 devices")
    parser.add_argument("--oracle", help="the site-packages of an environment that has JAX")
    parser.add_argument("--peer", action="append", default=[], help="NAME=BACKEND:PYTHON")
    parser.add_argument("--pytest", default="", help="more options for pytest, such as '-n 2'")
    options = parser.parse_args()
    own = {"KERAS_BACKEND": "numpy", "GDT_DEVICES": str(options.devices)}
    if options.oracle:
        own["GDT_KERAS_ORACLE"] = options.oracle
    runs: dict[str, tuple[dict[str, str], str]] = {"gdt": (own, sys.executable)}
    for peer in options.peer:
        name, _, rest = peer.partition("=")
        backend, _, python = rest.partition(":")
        runs[name] = ({"KERAS_BACKEND": backend, "GDT_KERAS_PEER": "1"}, python)
    table = Table("folder", *runs)
    unexpected: list[str] = []
    for path in options.paths:
        counts = []
        for name, (environment, python) in runs.items():
            outcomes = run(path, options.pytest.split(), environment, python)
            unexpected += surprises(outcomes) if name == "gdt" else []
            total = Counter(outcomes.values())
            counts.append(" / ".join(f"{total[k]:,}" for k in ("passed", "failed", "skipped")))
        table.add_row(path, *counts)
    Console().print(table)
    if unexpected:
        sys.exit("\n".join(unexpected))


if __name__ == "__main__":
    main()
