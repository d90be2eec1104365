"""Lines that tell how far a run of scaling benchmarks is."""

from __future__ import annotations

import time
from typing import Any

import pytest

PROPERTY = "gdt.benchmark"  # of a test's report: what it has measured, in words


class Progress:
    """A pytest plugin that prints a line for every measurement; none with `-q`."""

    def __init__(self, config: pytest.Config) -> None:
        self._config, self._count, self._done, self._began = config, 0, 0, time.monotonic()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Count the measurements of the run."""
        given = [item for item in session.items if "scaling" in getattr(item, "fixturenames", ())]
        devices = [getattr(item, "callspec").params.get("devices") for item in given]  # noqa: B009
        self._count = sum(not getattr(these, "missing", "") for these in devices)
        self._began = time.monotonic()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Print what a test has measured, and how many have."""
        told = dict(report.user_properties).get(PROPERTY)
        reporter: Any = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.when != "teardown" or told is None:
            return
        self._done += 1
        if reporter is not None and self._config.get_verbosity() >= 0:
            seconds = time.monotonic() - self._began
            reporter.ensure_newline()
            reporter.write_line(f"{self._done} of {self._count}, {seconds:.0f} s: {told}")
