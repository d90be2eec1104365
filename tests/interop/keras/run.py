"""Run Keras' own tests, which its wheel ships, on gdt.

    python -m tests.interop.keras.run                        # all folders, one after the other
    python -m tests.interop.keras.run ops/nn_test.py --devices 8
    python -m tests.interop.keras.run --devices 1 8 --jax PYTHON --peers

Prints a table of Markdown: what passed, failed and was skipped in each folder, on one device, and
on 8 with DataParallel. A failure is expected if `expected_failures.txt` has its name with the
reason, a line each; anything else, and an expected failure that passes, ends the program with
status 1. The dtypes of most functions are compared with JAX's: PYTHON is an interpreter that has
it, and without one those cases are skipped. `--peers` runs Keras on JAX and on NumPy by PYTHON,
which then has Keras too, and tells how much of what passes on JAX passes on gdt.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

FOLDERS = (
    "ops", "layers", "activations", "initializers", "random", "losses", "metrics", "regularizers",
    "constraints", "utils", "optimizers", "models", "trainers", "callbacks", "distribution",
    "saving",
)  # fmt: skip
EXPECTED = Path(__file__).with_name("expected_failures.txt")
Outcomes = dict[str, str]  # of each case: "passed", "failed", or "skipped", ": " and the reason


def expected_failures() -> dict[str, str]:
    """Return the patterns of the names of cases that fail, with the reasons."""
    lines = [line for line in EXPECTED.read_text().splitlines() if line and line[0] != "#"]
    return {
        pattern.strip(): reason.strip() for pattern, _, reason in (x.partition("|") for x in lines)
    }


def root_of(package: str, python: str = sys.executable) -> Path:
    """Return the folder of a package in the environment of a Python."""
    asked = f"import importlib.util as u; print(u.find_spec({package!r}).origin)"
    out = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=True, cwd="/")
    return Path(out.stdout.strip()).parent


def run(
    paths: Sequence[str],
    options: list[str],
    environment: dict[str, str],
    python: str = sys.executable,
) -> Outcomes:
    """Return the outcomes of Keras' cases below paths, by their names `file::class::case`."""
    root = root_of("keras", python) / "src"
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [
            python, "-m", "pytest", "-p", "tests.interop.keras.plugin", "-c", os.devnull,
            f"--rootdir={root}", "--import-mode=importlib", "-q",
            "-p", "no:cacheprovider", "-p", "no:benchmark",
            f"--junitxml={report}", *options, *[str(root / path) for path in paths],
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
    kinds = {child.tag: child for child in case}
    if kinds.keys() & {"failure", "error"}:
        return "failed"
    return f"skipped: {kinds['skipped'].get('message')}" if "skipped" in kinds else "passed"


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


def counted(outcomes: Outcomes, path: str) -> str:
    """Return how many cases below a path passed, failed and were skipped."""
    kinds = [o.partition(":")[0] for name, o in outcomes.items() if name.startswith(path)]
    total = Counter(kinds)
    return " / ".join(f"{total[kind]:,}" for kind in ("passed", "failed", "skipped"))


def beside(ours: Outcomes, theirs: Outcomes) -> str:
    """Return what the cases that pass in `theirs` do in ours, with the reasons."""
    passed = [name for name, outcome in theirs.items() if outcome == "passed"]
    total = Counter(ours.get(name, "skipped: not collected") for name in passed)
    lines = [f"{total.pop('passed', 0):,} of {len(passed):,} that pass on JAX"]
    return "\n".join([*lines, *[f"  {n:5,} {reason}" for reason, n in total.most_common()]])


def main() -> None:
    """Run the folders, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="*", default=FOLDERS, help="below keras/src")
    parser.add_argument("--devices", type=int, nargs="+", default=[1], help="8: DataParallel on 8")
    parser.add_argument("--jax", metavar="PYTHON", help="an interpreter that has JAX")
    parser.add_argument("--peers", action="store_true", help="run Keras on JAX and NumPy too")
    parser.add_argument("--pytest", default="", help="more options for pytest, such as '-n 2'")
    options = parser.parse_args()
    own = {"KERAS_BACKEND": "numpy"}
    if options.jax:
        own["GDT_KERAS_ORACLE"] = str(root_of("jax", options.jax).parent)
    runs = {f"gdt, {n}": (own | {"GDT_DEVICES": str(n)}, sys.executable) for n in options.devices}
    for name, backend in (("JAX", "jax"), ("NumPy", "numpy")) if options.peers else ():
        runs[name] = ({"KERAS_BACKEND": backend, "GDT_KERAS_PEER": "1"}, options.jax)
    whole: dict[str, Outcomes] = {
        name: run(options.paths, options.pytest.split(), environment, python)
        for name, (environment, python) in runs.items()
    }
    print("|", " | ".join(["folder", *runs]), "|\n" + "|---" * (len(runs) + 1) + "|")
    for path in (*options.paths, ""):
        print("|", " | ".join([path or "all", *(counted(o, path) for o in whole.values())]), "|")
    ours = {name: outcomes for name, outcomes in whole.items() if name.startswith("gdt")}
    for name in ours if options.peers else ():
        print(f"{name}: {beside(whole[name], whole['JAX'])}")
    unexpected = [f"{name}: {line}" for name in ours for line in surprises(whole[name])]
    if unexpected:
        sys.exit("\n".join(unexpected))


if __name__ == "__main__":
    main()
