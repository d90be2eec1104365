from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gdt import backend
from gdt.sharding.devices import DEVICE_COUNTS
from tests.needs import need_compiler

from . import harness, on_gpu
from .emulation import EmulatedBackend, emulated_devices

# Properties of a test's report that hold a row of a table.
MUTATION, SHARE = "mutations", "calls that ran a kernel"
DIFFERENCE = "largest differences between the GPU and the CPU"  # a property: kernel, difference


@pytest.fixture(scope="session", autouse=True)
def sanitizer_processes() -> Iterator[None]:
    yield
    harness.close_runners()


@pytest.fixture(scope="module")
def emulated() -> Iterator[EmulatedBackend]:
    """The devices emu:0, emu:1, ..., whose kernels run on the CPU."""
    need_compiler()
    with emulated_devices() as backend:
        yield backend


@pytest.fixture
def own_backends() -> Iterator[None]:
    """Kinds of devices that a test registers are forgotten after it: what is done on all devices
    that a process has used would find stand-ins that cannot do it."""
    tables: list[dict[str, Any]] = [backend._backends, backend._factories, DEVICE_COUNTS]
    before = [dict(table) for table in tables]
    yield
    for table, entries in zip(tables, before, strict=True):
        table.clear()
        table.update(entries)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Report how far the GPU was from the CPU in this test, from whichever process runs it."""
    on_gpu.LARGEST.clear()
    try:
        return (yield)
    finally:
        item.user_properties += [(DIFFERENCE, row) for row in on_gpu.LARGEST.items()]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the tables that tests have made, whichever processes ran them."""
    reports = [r for kind in ("passed", "failed") for r in terminalreporter.getreports(kind)]
    calls = [r for r in reports if r.when == "call"]
    differences: dict[str, float] = {}
    for kernel, difference in (
        row for r in calls for n, row in r.user_properties if n == DIFFERENCE
    ):
        differences[kernel] = max(difference, differences.get(kernel, 0.0))
    if differences:
        terminalreporter.section(DIFFERENCE)
        for kernel, difference in sorted(differences.items()):
            terminalreporter.line(f"{kernel:24} {difference:.1e} of the largest result")
    for table in (MUTATION, SHARE):
        rows = [row for r in calls for name, row in r.user_properties if name == table]
        if rows:
            terminalreporter.section(table)
            for row in sorted(rows):
                terminalreporter.line(row)
