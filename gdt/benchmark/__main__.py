"""Turn a file of pytest-benchmark into tables, pictures and one HTML page.

pytest bench --benchmark-only --benchmark-json run.json
python -m gdt.benchmark run.json [--before old.json] [--output FOLDER]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from gdt.benchmark.records import read
from gdt.errors import BenchmarkError

try:
    from gdt.benchmark.report import report_on, show, write
except ModuleNotFoundError as e:
    sys.exit(f"gdt.benchmark needs {e.name}\n  Install it with: pip install 'gdt[benchmark]'")


def main(arguments: Sequence[str] | None = None) -> None:
    """Read a run, show its tables, and write its page.

    An unusable file ends the program with its error and status 1.
    """
    parser = argparse.ArgumentParser(
        prog="python -m gdt.benchmark",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", type=Path, help="JSON of pytest-benchmark")
    parser.add_argument("--before", type=Path, help="JSON of an earlier run, to compare with")
    parser.add_argument("--output", type=Path, help="folder of the report; RUN-report by default")
    options = parser.parse_args(arguments)
    try:
        before = read(options.before) if options.before else None
        report = report_on(read(options.run), before)
    except BenchmarkError as e:
        sys.exit(str(e))
    show(report, Console())
    folder = options.output or options.run.with_name(f"{options.run.stem}-report")
    try:
        page = write(report, folder)
    except OSError as e:
        sys.exit(f"write: cannot write the report to {folder}: {e.strerror}")
    Console().print(f"\nwritten: {page}", soft_wrap=True, highlight=False)


if __name__ == "__main__":
    main()
