"""On an NVIDIA GPU (`make test-gpu`): ops, trainings, captured steps, memory, CuPy and NCCL.

What needs no hardware also runs on the strict devices of `tests/strict`, in every `make test`.
"""

from __future__ import annotations

import itertools
import json
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
from gdt.backend.cupy import CupyBackend, load_cupy
from gdt.backend.graphs import Graph
from gdt.comm import nccl
from gdt.comm.transport import transport_of
from gdt.cuda import cudnn
from gdt.cuda import driver as cuda_driver
from gdt.errors import KernelError
from gdt.sharding.reduction import UFUNCS
from gdt.testing import Oracle, choices, layouts

from . import twin
from .gpu.stages import SHARED_GPU
from .kernels.harness import assert_close
from .kernels.strict_kernels import CUPY
from .kernels.test_convolution import CALLS as CONVOLUTIONS
from .kernels.test_convolution import OPERATIONS, kernels_of, results_and_gradients
from .kernels.test_cuda_graph import check_training
from .needs import need_compiler
from .processes.launch import command, ended, start
from .processes.test_processes import COUNTS, STEPS, training_data
from .programs.test_function import OPTIMIZERS
from .samples import SAMPLES
from .strict import engine
from .training.test_training_equivalence import SCHEMES, TRAININGS, losses

engine.register()
twin.register()
GPU = pytest.param("cuda:0", marks=pytest.mark.gpu)
# The kernel returns (log-sum-exp, 1) where the body returns (largest, total): the same softmax.
OTHER_STATISTICS = {"fused_cross_entropy"}
RELATIVE = 1e-4  # of losses: a GPU adds in another order, in every step


@pytest.fixture(params=["strict:0", GPU])
def device(request: pytest.FixtureRequest) -> str:
    """A device; a GPU that is asked for and not there fails the test, or skips it."""
    name: str = request.param
    if name.startswith("cuda"):
        need_gpu()
    return name


def need_gpu() -> None:
    """Fail where a GPU is asked for and not there; skip where none is asked for."""
    problem, remedy = cuda_driver.missing()
    if problem:
        wanted = os.environ.get("GDT_TEST_DEVICE") == "cuda"
        (pytest.fail if wanted else pytest.skip)(f"{problem}: {remedy}")


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


@on_hardware
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_convolutions_by_cudnn_equal_the_hosts(dtype: str, mesh: gdt.Mesh) -> None:
    try:
        cudnn.load()
    except KernelError as missing:
        pytest.skip(str(missing))
    rng = np.random.default_rng(0)
    host, kernels = gdt.create_mesh([("a", 1)], device_type="CPU"), []
    on = lambda a, at: gdt.asarray(a, layout=gdt.Layout.replicated(at, a.ndim))
    for *shapes, statics in CONVOLUTIONS:
        arrays = [rng.standard_normal(shape).astype(dtype) for shape in shapes]
        wide = [on(a.astype(np.float64), host) for a in arrays]
        g = rng.standard_normal(gdt.convolution(*wide, **statics).shape).astype(dtype)
        exact = results_and_gradients(*wide, on(g.astype(np.float64), host), statics)
        placed = [on(a, mesh) for a in (*arrays, g)]
        explanation = gdt.explain(results_and_gradients, *placed, statics)
        kernels += kernels_of(explanation)
        for result, want in zip(explanation.value, exact, strict=True):
            assert_close(result.numpy(), want.numpy(), dtype, want.size, 8.0)
    assert {f"cudnn.{name}" for name in OPERATIONS} <= set(kernels), kernels


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


# ---------------------------------------------------------------- several devices of one process


@pytest.fixture(params=["stricttwin", pytest.param("twin", marks=pytest.mark.gpu)])
def twins(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[gdt.Mesh]:
    """Four devices that are streams of one GPU, simulated or real."""
    if request.param == "twin":
        need_gpu()
        for name, value in SHARED_GPU.items():
            monkeypatch.setenv(name, value)
        version = nccl.load().get_version()
        if version < 23000:
            pytest.skip(f"NCCL {version} refuses several ranks on one GPU, 2.30 is needed")
    else:
        need_compiler()
    on = gdt.create_mesh([("x", 2), ("y", 2)], devices=[f"{request.param}:{i}" for i in range(4)])
    with gdt.default_mesh(on):
        yield on
    faults, CUPY.order.faults[:] = [*CUPY.order.faults], []
    assert not faults


def test_relayouts_between_devices_keep_every_value(twins: gdt.Mesh) -> None:
    whole = np.arange(35.0).reshape(5, 7)
    every = layouts(twins, 2, partial=True)
    for have, want in itertools.islice(itertools.product(every, every), 0, None, 5):
        moved = gdt.relayout(gdt.asarray(whole, layout=have), want)
        np.testing.assert_array_equal(moved.numpy(), whole)
    calls = transport_of(twins).calls
    assert {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "exchange"} <= calls.keys()


@pytest.mark.parametrize("reduction", UFUNCS)
@pytest.mark.parametrize("dtype", ["bool", "float16", "int16", "uint8", "float64"])
def test_reductions_between_devices_are_numpys(dtype: str, reduction: str, twins: gdt.Mesh) -> None:
    whole = np.random.default_rng(0).integers(0, 7, (4, 4)).astype(dtype)
    have = gdt.Layout([None, None], twins, partial=dict.fromkeys("xy", reduction))
    moved = gdt.relayout(gdt.asarray(whole, layout=have), gdt.Layout(["x", None], twins))
    np.testing.assert_array_equal(moved.numpy(), whole)


@pytest.mark.parametrize("name", sorted(SAMPLES.keys() - OTHER_STATISTICS)[::8])
def test_functions_of_arrays_on_several_devices_equal_numpys(name: str, twins: gdt.Mesh) -> None:
    sample = SAMPLES[name][0]
    oracle = Oracle(FUNCTIONS[name], sample)
    for chosen in choices(twins, [a.ndim for a in sample.arrays], limit=2, seed=len(name)):
        oracle.check(twins, chosen)


@pytest.mark.parametrize(("name", "count"), [("adam", 2), ("sgd", 4)])
def test_graphs_between_collectives_are_bitwise_the_eager_steps(
    name: str, count: int, twins: gdt.Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched, launch = [], Graph.launch
    monkeypatch.setattr(Graph, "launch", lambda graph: launched.append(launch(graph)))
    on = gdt.create_mesh([("x", 2), ("y", 2)], devices=twins.devices[:count])
    with gdt.default_mesh(on):
        check_training(name, on)
    assert len(launched) > STEPS  # a step has collectives, and so several graphs


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", TRAININGS)
def test_losses_on_several_devices_are_those_of_the_cpu(
    name: str, scheme: str, twins: gdt.Mesh
) -> None:
    steps = 2 if twins.device_kind == "stricttwin" else None
    on = gdt.create_mesh([("a", 2), ("b", 2)], devices=twins.devices)
    host = gdt.create_mesh([("a", 1)], device_type="CPU")
    want = losses(name, host, (None, None, None), steps)
    np.testing.assert_allclose(losses(name, on, SCHEMES[scheme][1], steps), want, RELATIVE)


def test_a_read_that_waits_for_no_other_stream_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the tests above can fail."""
    need_compiler()
    on = gdt.create_mesh([("x", 4)], devices=["stricttwin:1"])
    monkeypatch.setattr(twin.TwinBackend, "to_host", CupyBackend.to_host)
    assert gdt.ones(4, layout=gdt.Layout(["x"], on)).tolist() == [1] * 4
    faults, CUPY.order.faults[:] = [*CUPY.order.faults], []
    assert "read before it was written" in faults


# ---------------------------------------------------------------- several processes on one GPU


def in_processes(count: int, name: str, output: Path, *arguments: object, **more: str) -> None:
    """Run a program of `tests.processes.programs`, each process on the devices that it sees."""
    codes, errors = ended(start(count, *command(name, output, *arguments), **more), 600)
    assert codes == [0] * count, "\n".join(errors)


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


def trained(count: int, output: Path, data: Path, **more: str) -> list[Any]:
    """What every process found in the examples' trainings."""
    in_processes(count, "trainings", output, data, STEPS, **more)
    return [json.loads(Path(f"{output}.{i}").read_text()) for i in range(count)]


@pytest.mark.parametrize(
    ("device", "count"),
    [("strict:0", 1), *[pytest.param("cuda:0", n, marks=pytest.mark.gpu) for n in COUNTS]],
    indirect=["device"],
)
def test_trainings_of_processes_that_share_a_gpu(count: int, device: str, tmp_path: Path) -> None:
    """On hosts without a GPU both are trained by processes of the host."""
    data = training_data(tmp_path)
    host = trained(count, tmp_path / "host", data, CUDA_VISIBLE_DEVICES="")
    shared = trained(count, tmp_path / "shared", data, **SHARED_GPU)
    for found, want in zip(shared, host, strict=True):
        for training in want:
            for what in ("losses", "recorded"):
                np.testing.assert_allclose(
                    found[training][what], want[training][what], RELATIVE, err_msg=training
                )
            assert found[training]["collectives"] == want[training]["collectives"]
