"""pytest fixtures for scaling benchmarks: `pytest_plugins = ["gdt.benchmark.plugin"]`.

    def test_product(scaling):
        layout = gdt.Layout(["x", None], scaling.mesh)
        rows = gdt.random.normal((1024, 512), layout=layout)
        scaling.strong(lambda: rows @ rows.mT)

This test runs on 1, 2, 4 and 8 devices of the host, and of the machine's GPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gdt.benchmark.machine import machine
from gdt.benchmark.measure import Devices, device_counts, measure
from gdt.sharding.default_mesh import default_mesh
from gdt.sharding.mesh import Mesh


class Scaling:
    """The value of the fixture `scaling`, with a mesh and the methods `strong` and `weak`."""

    def __init__(self, devices: Devices, workload: str, benchmark: Any) -> None:
        self.devices, self.workload, self.benchmark = devices, workload, benchmark
        self._mesh = devices.mesh()

    @property
    def mesh(self) -> Mesh:
        """The mesh of one axis `"x"`; its `size` is the number of devices."""
        return self._mesh

    def strong(self, function: Callable[..., Any], *args: Any, **facts: Any) -> Any:
        """Time `function(*args)`, whose work is the same on any number of devices.

        facts: `flops` and `memory_bytes` of one call; see `gdt.benchmark.measure`.
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
        return measure(
            self.benchmark,
            function,
            *args,
            mesh=self.mesh,
            kind=kind,
            workload=self.workload,
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
    with default_mesh(devices.mesh()):
        yield Scaling(devices, workload, benchmark)


def pytest_configure(config: pytest.Config) -> None:
    """Raise UsageError with the command that installs pytest-benchmark where it is missing."""
    if not config.pluginmanager.hasplugin("benchmark"):
        raise pytest.UsageError(
            "gdt.benchmark.plugin: pytest-benchmark is missing or switched off\n"
            "  Install it with: pip install 'gdt[benchmark]'"
        )


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_machine_info(machine_info: dict[str, Any]) -> None:
    """Add the properties of the machine that the report shows."""
    machine_info["gdt"] = machine()
