from __future__ import annotations

from collections.abc import Iterator

import pytest

from . import harness, on_gpu

MUTATION = "mutation"  # the property of a test's report that holds a row of the table


@pytest.fixture(scope="session", autouse=True)
def sanitizer_processes() -> Iterator[None]:
    yield
    harness.close_runners()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table of mutations, whichever processes ran them, and of what a GPU found."""
    if on_gpu.LARGEST:
        terminalreporter.section("largest differences between the GPU and the CPU")
        for kernel, difference in sorted(on_gpu.LARGEST.items()):
            terminalreporter.line(f"{kernel:24} {difference:.1e} of the largest result")
    reports = [r for kind in ("passed", "failed") for r in terminalreporter.getreports(kind)]
    calls = [r for r in reports if r.when == "call"]
    rows = [row for r in calls for name, row in r.user_properties if name == MUTATION]
    if rows:
        terminalreporter.section("mutations")
        for row in sorted(rows):
            terminalreporter.line(row)
