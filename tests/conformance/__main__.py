"""Run the conformance suite on several meshes, in both storage modes, and print the results."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import rich
from rich.table import Table

ROOT = Path(__file__).parent.parent.parent
MESHES = ("8/1", "8/8", "2x4/1", "2x4/8")  # sizes, and the number of blocks
PARTS = {"test_has_names": "names", "test_signatures": "signatures", "test_special": "special"}


def part_of(test: str) -> str:
    """Return the part of the suite that a test belongs to."""
    file = test.split("::", maxsplit=1)[0].rsplit("/", maxsplit=1)[-1]
    return next((part for start, part in PARTS.items() if file.startswith(start)), "behaviour")


def run(suite: Path, mesh: str, options: list[str]) -> dict[str, Any]:
    """Run the suite on one mesh, and return what the plugin reports."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "ARRAY_API_TESTS_MODULE": "gdt",
            "GDT_CONFORMANCE": mesh,
            "GDT_CONFORMANCE_REPORT": str(report),
        }
        command = [sys.executable, "-m", "pytest", "-q", "--tb=line", "--no-header", "-p",
                   "no:cacheprovider", "-p", "tests.conformance.plugin", *options]  # fmt: skip
        quiet = subprocess.run(
            command, cwd=suite, env=environment, capture_output=True, text=True, check=False
        )
        if not report.exists():
            raise SystemExit(f"the suite did not run on {mesh}:\n{quiet.stdout}{quiet.stderr}")
        result: dict[str, Any] = json.loads(report.read_text())
        return result


def main() -> int:
    """Print how many tests pass on each mesh, by part; which fail; and how arrays were placed."""
    parser = argparse.ArgumentParser(prog="tests.conformance", description=main.__doc__)
    parser.add_argument("suite", type=Path, help="a checkout of data-apis/array-api-tests")
    parser.add_argument("--max-examples", type=int, default=100)
    parser.add_argument("--meshes", nargs="+", default=MESHES, help="such as 8/1 or 2x4/8")
    parser.add_argument("-k", dest="select", default="", help="of pytest")
    arguments = parser.parse_args()
    options = ["--max-examples", str(arguments.max_examples), "array_api_tests"]
    options += ["-k", arguments.select] if arguments.select else []
    names = ("names", "signatures", "special", "behaviour")
    table = Table("mesh/blocks", "passed", "failed", "skipped", *names, title="passed, by part")
    failures: dict[str, set[str]] = {}
    for mesh in arguments.meshes:
        report = run(arguments.suite, mesh, options)
        outcomes = Counter(r["outcome"] for r in report["results"])
        parts = Counter(part_of(r["test"]) for r in report["results"] if r["outcome"] == "passed")
        totals = [str(outcomes[o]) for o in ("passed", "failed", "skipped")]
        table.add_row(mesh, *totals, *[str(parts[n]) for n in names])
        counts = ", ".join(f"{n} {name}" for name, n in sorted(report["counts"].items()))
        rich.print(f"{mesh}: {counts}")
        for r in report["results"]:
            if r["outcome"] == "failed":
                failures.setdefault(f"{r['test']}  {r['text']}", set()).add(mesh)
    for failure, meshes in sorted(failures.items()):
        print(f"{' '.join(sorted(meshes))}: {failure}")
    rich.print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
