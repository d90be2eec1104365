"""Benchmarks of strong scaling (the same work on p devices) and weak scaling (p times the work)."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest

import gdt
from bench.gdt_steps import trainer_on
from bench.predicted import machine_of
from bench.workloads import MNIST

pytest_plugins = ["gdt.benchmark.plugin"]

ROWS, COLUMNS, WIDTH = 2048, 1024, 512
ITEM = 4  # bytes of a float32


class Work(NamedTuple):
    """A call, with its floating-point operations and the bytes that memory moves at least."""

    call: Callable[[], Any]
    flops: float | None = None
    memory_bytes: float | None = None


def array(mesh, shape, *specs):
    values = np.random.default_rng(0).standard_normal(shape, np.float32)
    return gdt.asarray(values, layout=gdt.Layout(specs, mesh))


def elementwise(mesh: gdt.Mesh, factor: int) -> Work:
    """relu(x * y + z) of split rows, which sends nothing."""
    x, y, z = (array(mesh, (factor * ROWS, COLUMNS), "x", None) for _ in range(3))
    return Work(lambda: gdt.relu(x * y + z), memory_bytes=4 * ITEM * x.size)


def column_sums(mesh: gdt.Mesh, factor: int) -> Work:
    """The sum of split rows: one all-reduce of a row."""
    x = array(mesh, (factor * ROWS, COLUMNS), "x", None)
    return Work(lambda: gdt.sum(x, axis=0), memory_bytes=ITEM * x.size)


def matmul_rows(mesh: gdt.Mesh, factor: int) -> Work:
    """The product of split rows with a whole matrix, which sends nothing."""
    x = array(mesh, (factor * ROWS, WIDTH), "x", None)
    w = array(mesh, (WIDTH, WIDTH), None, None)
    return Work(lambda: x @ w, flops=2 * x.size * WIDTH)


def matmul_contraction(mesh: gdt.Mesh, factor: int) -> Work:
    """A product whose contraction is split: one all-reduce of the product."""
    x = array(mesh, (WIDTH, factor * ROWS), None, "x")
    w = array(mesh, (factor * ROWS, WIDTH), "x", None)
    return Work(lambda: x @ w, flops=2 * x.size * WIDTH)


def training_step(mesh: gdt.Mesh, factor: int) -> Work:
    """A step of data parallel MNIST with Adam: one all-reduce of all gradients and the loss."""
    workload = replace(MNIST, batch=factor * MNIST.batch)
    step = trainer_on(mesh, "data")(workload)()
    first, *others = (n * m for n, m in zip(MNIST.sizes[:-1], MNIST.sizes[1:], strict=True))
    # The forward pass and both gradients; the first layer needs no gradient of its inputs.
    return Work(lambda: step(0), flops=workload.batch * (4 * first + 6 * sum(others)))


WORKLOADS = {
    "element-wise": elementwise,
    "column sums": column_sums,
    "matmul, rows split": matmul_rows,
    "matmul, contraction split": matmul_contraction,
    "training step": training_step,
}


@cache
def host(devices: int) -> gdt.Machine:
    """Return what so many devices of this host reach, as calls say that are no workloads."""
    return machine_of(devices, time.perf_counter)


def facts(scaling, workload: str, factor: int) -> dict[str, Any]:
    """Return the call of a workload, and what is known of it: of devices of the host that have a
    block each, its predicted seconds too."""
    mesh, make = scaling.mesh, WORKLOADS[workload]
    work, predicted = make(mesh, factor), None
    if mesh.device_kind == "cpu" and 1 < mesh.size == len(mesh.blocks):
        abstract = gdt.create_mesh([("x", mesh.size)], device_type="abstract")
        step = make(abstract, factor).call
        predicted = gdt.predict(step, machine=host(mesh.size)).seconds
    scaling.workload = workload
    known = {"flops": work.flops, "memory_bytes": work.memory_bytes, "predicted": predicted}
    return {"function": work.call, **known}


@pytest.mark.parametrize("workload", WORKLOADS)
def test_strong(scaling, workload):
    scaling.strong(**facts(scaling, workload, 1))


@pytest.mark.parametrize("workload", WORKLOADS)
def test_weak(scaling, workload):
    scaling.weak(**facts(scaling, workload, scaling.mesh.size))
