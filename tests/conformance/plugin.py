"""A plugin of pytest: the suite's arrays are long enough to split, split, and counted.

`GDT_CONFORMANCE` names the mesh and the number of its blocks, such as `2x4/8`; the report of the
run is written to the file that `GDT_CONFORMANCE_REPORT` names.
"""

from __future__ import annotations

import functools
import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis.extra import array_api

import gdt
from gdt.array.array import DistributedArray
from gdt.observe import OBSERVERS, Collective, Observer
from gdt.sharding.mesh import Mesh

LONGEST_AXIS = 17  # two more than twice the devices: shards are uneven, and some are empty
CREATION = (
    "arange", "asarray", "empty", "empty_like", "eye", "from_dlpack", "full", "full_like",
    "linspace", "ones", "ones_like", "zeros", "zeros_like", "reshape",
)  # fmt: skip


def mesh_of_text(text: str) -> Mesh:
    """Return the mesh that `GDT_CONFORMANCE` names."""
    sizes, blocks = text.split("/")
    names = [(f"axis{i}", int(n)) for i, n in enumerate(sizes.split("x"))]
    return gdt.create_mesh(names, device_type="CPU", blocks=int(blocks))


class Counts(Observer):
    """The number of arrays by placement, of gathers, and of what the library fetches by itself."""

    wants_moves = True

    def __init__(self) -> None:
        self.number: Counter[str] = Counter()

    def placed(self, x: DistributedArray) -> None:
        """Count an array that the suite has created."""
        shards = [s for s in x.shards if s.data.size]
        indices = {str(s.index) for s in shards}
        self.number["arrays"] += 1
        self.number["split over several devices"] += len(indices) > 1
        self.number["with uneven or empty shards"] += (
            len({s.data.shape for s in x.shards}) > 1 and len(indices) > 1
        )

    def on_collective(self, collective: Collective) -> None:
        self.number[collective.kind] += 1

    def on_implicit_fetch(self, array: Any) -> None:
        self.number["implicit fetches"] += 1


def split(x: Any, mesh: Mesh) -> Any:
    """An array on `mesh` with its first axes split over the mesh axes, one each; of rank 1 over all
    of them."""
    if not isinstance(x, DistributedArray) or not x.ndim or x.mesh is not mesh:
        return x
    names = mesh.axis_names
    specs = [names] if x.ndim == 1 else [*names, *[None] * x.ndim][: x.ndim]
    return gdt.relayout(x, gdt.Layout(specs, mesh))


def splitting(create: Callable[..., Any], mesh: Mesh, counts: Counts) -> Callable[..., Any]:
    """`create`, whose result is split over `mesh` and counted."""

    @functools.wraps(create)
    def call(*args: Any, **kwargs: Any) -> Any:
        x = create(*args, **kwargs)
        if kwargs.get("copy") is False:
            return x
        x = split(x, mesh)
        if isinstance(x, DistributedArray):
            counts.placed(x)
        return x

    return call


def longer(array_shapes: Callable[..., Any]) -> Callable[..., Any]:
    """The strategy of shapes, with axes that are longer than the mesh has devices."""

    @functools.wraps(array_shapes)
    def shapes(**limits: Any) -> Any:
        if limits.get("max_side") is None:
            limits["max_side"] = LONGEST_AXIS
        return array_shapes(**limits)

    return shapes


MESH = mesh_of_text(os.environ.get("GDT_CONFORMANCE", "8/8"))
COUNTS = Counts()
RESULTS: list[dict[str, str]] = []

gdt.set_default_mesh(MESH)
OBSERVERS.set((COUNTS,))
np.seterr(all="ignore")  # the suite draws infinities and zeros to divide by
for _name in CREATION:
    setattr(gdt, _name, splitting(getattr(gdt, _name), MESH, COUNTS))
array_api.array_shapes = longer(array_api.array_shapes)  # type: ignore[assignment]


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Report failures as they are found: to shrink an example takes ten times as long."""
    phases = [p for p in hypothesis.Phase if p is not hypothesis.Phase.shrink]
    hypothesis.settings.register_profile(
        "gdt",
        parent=hypothesis.settings.default,
        phases=phases,
        deadline=None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    hypothesis.settings.load_profile("gdt")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep the outcome of a test."""
    if report.when == "call" or report.outcome != "passed":
        crash = getattr(report.longrepr, "reprcrash", None) if report.failed else None
        text = "" if crash is None else crash.message.splitlines()[0]
        RESULTS.append({"test": report.nodeid, "outcome": report.outcome, "text": text})


def pytest_sessionfinish() -> None:
    """Write the report, if a file was named."""
    path = os.environ.get("GDT_CONFORMANCE_REPORT")
    if path:
        Path(path).write_text(json.dumps({"results": RESULTS, "counts": dict(COUNTS.number)}))
