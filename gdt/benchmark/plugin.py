"""pytest fixtures for scaling benchmarks: `pytest_plugins = ["gdt.benchmark.plugin"]`.

    def test_product(scaling):
        layout = gdt.Layout(["x", None], scaling.mesh)
        rows = gdt.random.normal((1024, 512), layout=layout)
        scaling.strong(lambda: rows @ rows.mT)

This test runs on 1, 2, 4 and 8 devices of the host, and of the machine's GPUs. Every number of
devices is measured in turns with one device, whose arrays are held until the next test of one
device: a busy machine slows both down.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from gdt.benchmark.commit import commit_of
from gdt.benchmark.machine import machine
from gdt.benchmark.measure import Devices, device_counts, measure, whole_call
from gdt.benchmark.tables import time_text
from gdt.benchmark.turns import OneDevice
from gdt.sharding.default_mesh import default_mesh
from gdt.sharding.mesh import Mesh

ONES = pytest.StashKey[dict[str, tuple[str, OneDevice]]]()
"""By kind of devices, the test that was last measured on one device, and its call."""
PROPERTY = "gdt.benchmark"  # of a test's report: what it has measured, in words
TIMES = ("max_time", "min_rounds")  # options and marks of pytest-benchmark


class Scaling:
    """The value of the fixture `scaling`, with a mesh and the methods `strong` and `weak`."""

    def __init__(
        self, devices: Devices, workload: str, benchmark: Any, one: OneDevice | None = None
    ) -> None:
        self.devices, self.workload, self.benchmark = devices, workload, benchmark
        self._mesh, self._one = devices.mesh(), one
        self.call: Callable[[], Any] | None = None  # that was measured

    @property
    def mesh(self) -> Mesh:
        """The mesh of one axis `"x"`; its `size` is the number of devices."""
        return self._mesh

    def strong(self, function: Callable[..., Any], *args: Any, **facts: Any) -> Any:
        """Time `function(*args)`, whose work is the same on any number of devices.

        facts: `flops`, `memory_bytes` and `predicted` seconds of one call; see
        `gdt.benchmark.measure`.
        """
        return self._measure("strong", function, args, facts)

    def weak(self, function: Callable[..., Any], *args: Any, **facts: Any) -> Any:
        """Time `function(*args)`, whose work is proportional to the number of devices; else as
        `strong`."""
        return self._measure("weak", function, args, facts)

    def _measure(
        self, kind: str, function: Callable[..., Any], args: tuple[Any, ...], facts: dict[str, Any]
    ) -> Any:
        self.benchmark.group = f"{self.workload}, {kind} scaling"
        self.call = whole_call(function, *args)
        return measure(
            self.benchmark,
            function,
            *args,
            mesh=self.mesh,
            kind=kind,
            workload=self.workload,
            one=self._one,
            **facts,
        )


@pytest.fixture(params=device_counts(), ids=str)
def devices(request: pytest.FixtureRequest) -> Devices:
    """Return the devices of one measurement; skip the test where the machine lacks them.

    Other counts: `@pytest.mark.parametrize("devices", gdt.benchmark.device_counts([1, 16]),
    ids=str, indirect=True)`.
    """
    these: Devices = request.param
    if these.missing:
        pytest.skip(f"{these} {these.missing}")
    return these


@pytest.fixture
def scaling(request: pytest.FixtureRequest, devices: Devices, benchmark: Any) -> Any:
    """Yield a Scaling on a mesh of `devices`, on which arrays without a layout are replicated."""
    node = request.node
    others = [str(v) for k, v in node.callspec.params.items() if k != "devices"]
    workload = " ".join([node.originalname.removeprefix("test_").replace("_", " "), *others])
    ones = request.config.stash[ONES]
    this = f"{_without_devices(node)} on {devices.kind}"
    name, one = ones.get(devices.kind, ("", None))
    with default_mesh(devices.mesh()):
        made = Scaling(devices, workload, benchmark, one if name == this else None)
        yield made
    if devices.size == 1 and made.call is not None:
        options = {name: request.config.getoption(f"benchmark_{name}") for name in TIMES}
        options |= getattr(node.get_closest_marker("benchmark"), "kwargs", {})
        seconds, fewest = float(options["max_time"]), int(options["min_rounds"])
        ones[devices.kind] = this, OneDevice(made.mesh, made.call, seconds, fewest)
    if made.benchmark.stats:
        node.user_properties.append((PROPERTY, _told(made)))


def _told(scaling: Scaling) -> str:
    """Return what was measured, in words."""
    times = scaling.benchmark.stats.stats
    told = f"{scaling.workload} on {scaling.devices}: {time_text(times.median)}"
    turns = scaling.benchmark.extra_info.get("in_turns")
    return f"{told}, beside {time_text(turns['one_device'])} on one device" if turns else told


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


def _without_devices(item: Any) -> str:
    """Return the name of a test with its parameters, the devices left out."""
    others = [f"{k}={v}" for k, v in sorted(item.callspec.params.items()) if k != "devices"]
    return "|".join([item.nodeid.split("[")[0], *others])


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let all numbers of devices of a test follow each other, one device first."""
    places: dict[str, int] = {}

    def key(place: int) -> tuple[int, int]:
        item: Any = items[place]
        these = getattr(getattr(item, "callspec", None), "params", {}).get("devices")
        if not isinstance(these, Devices) or "scaling" not in item.fixturenames:
            return place, 0
        name = f"{_without_devices(item)} on {these.kind}"
        return places.setdefault(name, place), 0 if these.size == 1 else place + 1

    items[:] = [items[place] for place in sorted(range(len(items)), key=key)]


def pytest_configure(config: pytest.Config) -> None:
    """Raise UsageError with the command that installs pytest-benchmark where it is missing."""
    if not config.pluginmanager.hasplugin("benchmark"):
        raise pytest.UsageError(
            "gdt.benchmark.plugin: pytest-benchmark is missing or switched off\n"
            "  Install it with: pip install 'gdt[benchmark]'"
        )
    config.stash[ONES] = {}
    config.pluginmanager.register(Progress(config))


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_machine_info(machine_info: dict[str, Any]) -> None:
    """Add the properties of the machine that the report shows."""
    machine_info["gdt"] = machine()


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_commit_info(config: pytest.Config, commit_info: dict[str, Any]) -> None:
    """Add the commit of the tests where the current folder is in no repository."""
    commit = commit_of(config.rootpath)
    if commit_info.get("id") in ("unversioned", "unknown") and commit:
        identity, *changes = commit.split(" ", 1)
        commit_info |= {"id": identity, "dirty": bool(changes)}
