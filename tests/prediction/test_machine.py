"""Machines: figures with sources, and none that no machine has."""

from __future__ import annotations

import json
from typing import Any

import pytest

import gdt
from gdt.errors import ArgumentError
from gdt.prediction import machine as machines

GOOD: dict[str, Any] = {"flops": {"float32": 1e12}, "bandwidth": 1e11, "memory": 1e10}


@pytest.mark.parametrize(
    "changes",
    [
        {"share": 1.2}, {"share": 0.0}, {"bandwidth_share": 80}, {"flops": {"bfloat16": 312.0}},
        {"flops": {"bfloat16": 312e3}}, {"flops": {"float32": 312e18}}, {"flops": {}},
        {"bandwidth": 2039}, {"bandwidth": 2.039e15}, {"memory": 80}, {"memory": 80e12},
        {"memory": True}, {"launch": 5.0}, {"links": {"data": 25e9}}, {"bandwidth": "fast"},
    ],
    ids=str,
)  # fmt: skip
def test_figures_that_no_machine_has_are_refused(changes: dict[str, Any]) -> None:
    gdt.Machine(**GOOD)
    with pytest.raises(ArgumentError):
        gdt.Machine(**GOOD | changes)


@pytest.mark.parametrize("figures", [(300, 1e-6), (300e15, 1e-6), (300e9, 3.0), (300e9, -1e-6)])
def test_links_that_do_not_exist_are_refused(figures: tuple[float, float]) -> None:
    with pytest.raises(ArgumentError):
        gdt.Link(*figures)


def test_every_figure_of_the_data_file_has_a_source() -> None:
    data = json.loads(machines.DATA.read_text())
    for name, entry in data["machines"].items():
        figures = [v for k, v in entry.items() if k != "flops"] + list(entry["flops"].values())
        assert all(source in data["sources"] for _, source in figures)
        machine = gdt.Machine.named(name)
        assert machine.name == name and machine.links["host"].bandwidth > 1e11


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ArgumentError, match="a100-80gb"):
        gdt.Machine.named("a100")


def test_rates_are_read_from_a_run_of_benchmarks(tmp_path: Any) -> None:
    limits = [("copy", "memory_bytes", 2e9, 0.1), ("matmul", "flops", 3e9, 0.03)]
    runs = [
        {"extra_info": {"kind": "limit", "workload": w, amount: n}, "stats": {"min": seconds}}
        for w, amount, n, seconds in limits
    ]
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"benchmarks": runs}))
    machine = gdt.Machine.read(path, memory=8e9)
    assert machine.flops["float32"] == pytest.approx(1e11)
    assert machine.bandwidth == pytest.approx(2e10)
    path.write_text(json.dumps({"benchmarks": runs[:1]}))
    with pytest.raises(ArgumentError, match="no benchmark of matmul"):
        gdt.Machine.read(path)


def test_an_axis_inside_of_a_host_has_the_hosts_link() -> None:
    machine = gdt.Machine.named("a100-80gb")
    mesh = gdt.create_mesh({"data": 4, "model": 8}, device_type="abstract")
    host, network = (machine.link(mesh, [axis]).bandwidth for axis in ("model", "data"))
    assert (host, network) == (300e9 * 0.8, 25e9 * 0.8)
    assert machine.link(mesh, ["data", "model"]).bandwidth == network
    with pytest.raises(ArgumentError, match="no link for the mesh axis 'data'"):
        gdt.Machine(**GOOD).link(mesh, ["data"])


def test_a_collective_takes_the_time_of_a_ring_or_of_a_tree() -> None:
    mesh = gdt.create_mesh({"x": 64}, device_type="abstract")
    machine = gdt.Machine(**GOOD, links={"x": gdt.Link(1e10, 1e-5)}, launch=0.0, bandwidth_share=1)
    large = machine.collective_seconds("all_reduce", mesh, ["x"], 1e10)
    assert large == pytest.approx(1.0 + 2 * 63 * 1e-5)
    small = machine.collective_seconds("all_reduce", mesh, ["x"], 63.0)
    assert small == pytest.approx(12 * 1e-5, rel=1e-3)
