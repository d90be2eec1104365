"""On an NVIDIA GPU (`make test-gpu`): ops, trainings, captured steps, memory, CuPy and NCCL.

What needs no hardware also runs on the strict devices of `tests/strict`, in every `make test`.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gdt
from bench.gdt_steps import trainer_on
from bench.workloads import WORKLOADS, Workload
from gdt.array.registry import FUNCTIONS
from gdt.backend import backend_of
from gdt.backend.cupy import load_cupy
from gdt.cuda import driver as cuda_driver
from gdt.testing import Oracle, choices

from .kernels.test_cuda_graph import check_training
from .processes.launch import command, ended, results, start
from .processes.test_processes import COUNTS, STEPS, training_data
from .samples import SAMPLES
from .strict import engine
from .test_function import OPTIMIZERS
from .test_training_equivalence import SCHEMES, TRAININGS, losses

engine.register()
GPU = pytest.param("cuda:0", marks=pytest.mark.gpu)
# The kernel returns (log-sum-exp, 1) where the body returns (largest, total): the same softmax.
OTHER_STATISTICS = {"fused_cross_entropy"}
RELATIVE = 1e-4  # of losses: a GPU adds in another order, in every step


@pytest.fixture(params=["strict:0", GPU])
def device(request: pytest.FixtureRequest) -> str:
    """A device; a GPU that is asked for and not there fails the test, or skips it."""
    name: str = request.param
    problem, remedy = cuda_driver.missing()
    if name.startswith("cuda") and problem:
        wanted = os.environ.get("GDT_TEST_DEVICE") == "cuda"
        (pytest.fail if wanted else pytest.skip)(f"{problem}: {remedy}")
    return name


@pytest.fixture
def mesh(device: str) -> Iterator[gdt.Mesh]:
    """Eight coordinates that share the device."""
    on = gdt.create_mesh([("x", 4), ("y", 2)], devices=[device])
    with gdt.default_mesh(on):
        yield on


on_hardware = pytest.mark.parametrize("device", [GPU], indirect=True)


@on_hardware
@pytest.mark.parametrize("name", sorted(SAMPLES.keys() - OTHER_STATISTICS))
def test_function_equals_numpys(name: str, mesh: gdt.Mesh) -> None:
    for n, sample in enumerate(SAMPLES[name]):
        oracle = Oracle(FUNCTIONS[name], sample)
        seed = zlib.crc32(f"{name} {n}".encode())
        for chosen in choices(mesh, [a.ndim for a in sample.arrays], limit=4, seed=seed):
            oracle.check(mesh, chosen)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", TRAININGS)
def test_losses_are_those_of_the_cpu(name: str, scheme: str, device: str) -> None:
    steps = None if device.startswith("cuda") else 2
    on = gdt.create_mesh([("a", 2), ("b", 4)], devices=[device])
    host = gdt.create_mesh([("a", 1)], device_type="CPU")
    want = losses(name, host, (None, None, None), steps)
    np.testing.assert_allclose(losses(name, on, SCHEMES[scheme][1], steps), want, RELATIVE)


@on_hardware
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_captured_steps_are_bitwise_the_eager_ones(name: str, mesh: gdt.Mesh) -> None:
    check_training(name, mesh)


@on_hardware
@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS)
def test_captured_steps_of_the_benchmarks_have_the_losses_of_the_cpu(
    workload: Workload, device: str
) -> None:
    losses = []
    for on in ({"devices": [device]}, {"device_type": "CPU"}):
        step = trainer_on(gdt.create_mesh({"batch": 8}, **on), "data", "captured")(workload)()
        losses.append([float(step(index)) for index in range(20)])
    np.testing.assert_allclose(*losses, RELATIVE)


# ---------------------------------------------------------------- memory and CuPy


def test_arrays_are_shared_with_cupy(device: str) -> None:
    on = gdt.create_mesh([("x", 1)], devices=[device])
    cupy = backend_of(on).xp
    with gdt.default_mesh(on):
        value = cupy.arange(6, dtype=np.float32)
        x = gdt.asarray(value, copy=False)
        assert x.blocks[0].data.ptr == value.data.ptr
        assert cupy.from_dlpack(x).data.ptr == value.data.ptr
    split = gdt.asarray(
        value, layout=gdt.Layout(["x"], gdt.create_mesh([("x", 2)], devices=[device]))
    )
    assert all(isinstance(s.data, cupy.ndarray) for s in split.shards)


@on_hardware
def test_arrays_of_other_libraries_are_taken_over(mesh: gdt.Mesh) -> None:
    value = load_cupy().arange(6, dtype=np.float32)
    assert gdt.from_dlpack(value).tolist() == value.tolist()


@on_hardware
def test_kernels_of_users_run_on_shards(mesh: gdt.Mesh) -> None:
    cupy = load_cupy()
    source = """extern "C" __global__ void twice(float* x, int n) {
        if (threadIdx.x < n) x[threadIdx.x] *= 2;
    }"""
    kernel = cupy.RawKernel(source, "twice")

    def twice(x: Any) -> Any:
        out = x.copy()
        kernel((1,), (32,), (out, np.int32(out.size)))
        return out

    layout = gdt.Layout(["x"], mesh)
    x = gdt.arange(10, dtype="float32", layout=layout)
    assert gdt.map_shards(twice, layout, layout)(x).tolist() == [2 * i for i in range(10)]


def test_arrays_move_between_the_host_and_the_device(mesh: gdt.Mesh) -> None:
    host = gdt.create_mesh([("x", 2)], device_type="CPU")
    x = gdt.arange(9.0, layout=gdt.Layout(["x"], host))
    there = gdt.relayout(x, gdt.Layout([("x", "y")], mesh))
    assert gdt.relayout(there, x.layout).tolist() == x.tolist()


@on_hardware
def test_out_of_memory_is_told_and_survived(mesh: gdt.Mesh) -> None:
    total = load_cupy().cuda.Device(0).mem_info[1]
    with pytest.raises(gdt.errors.OutOfMemoryError, match="cuda:0: Out of memory allocating"):
        gdt.ones(total, dtype="float32")
    assert gdt.ones(3).tolist() == [1, 1, 1]


def test_a_step_waits_for_the_device_only_where_values_are_read(mesh: gdt.Mesh) -> None:
    x = gdt.random.normal((64, 64), layout=gdt.Layout(["x", "y"], mesh))
    (x @ x).mean()
    with gdt.sync_debug_mode("error"):
        y = (x @ x).mean()
    assert np.isfinite(float(y))


# ---------------------------------------------------------------- several processes on one GPU


def in_processes(count: int, name: str, output: Path, *arguments: object, **more: str) -> None:
    """Run a program of `tests.processes.programs`, each process on the devices that it sees."""
    codes, errors = ended(start(count, *command(name, output, *arguments), **more), 600)
    assert codes == [0] * count, "\n".join(errors)


# NCCL runs several ranks on one GPU since 2.30 (its environment variables, "experimental"); each
# rank has thread blocks of its own, which all have to fit.
SHARED_GPU = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "4"}


@on_hardware
def test_a_single_rank_of_nccl(device: str, tmp_path: Path) -> None:
    in_processes(1, "collectives", tmp_path / "one", **SHARED_GPU)


@pytest.mark.parametrize(
    ("device", "count"),
    [("strict:0", 2), *[pytest.param("cuda:0", n, marks=pytest.mark.gpu) for n in (2, 4)]],
    indirect=["device"],
)
def test_ranks_of_nccl_share_a_gpu(count: int, device: str, tmp_path: Path) -> None:
    """On hosts without a GPU the same program goes through sockets."""
    in_processes(count, "collectives", tmp_path / "shared", **SHARED_GPU)


def trained(folder: Path) -> dict[int, list[Any]]:
    """What every process of every number of processes found in the examples' trainings."""
    folder.mkdir()
    data = training_data(folder)
    return {n: results(n, "trainings", folder / str(n), data, STEPS) for n in COUNTS}


@on_hardware
def test_trainings_of_processes_that_share_a_gpu(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    host = trained(tmp_path / "host")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    for name, value in SHARED_GPU.items():
        monkeypatch.setenv(name, value)
    shared = trained(tmp_path / "shared")
    for count, processes in shared.items():
        for found, want in zip(processes, host[count], strict=True):
            for training in want:
                for what in ("losses", "recorded"):
                    np.testing.assert_allclose(
                        found[training][what], want[training][what], RELATIVE, err_msg=training
                    )
                assert found[training]["collectives"] == want[training]["collectives"]
