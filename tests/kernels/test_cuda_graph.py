"""Training steps as CUDA graphs, kernels included, on devices that simulate stream capture."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import pytest

import gdt
from gdt.backend import backend_of
from gdt.caches import Cache
from gdt.engine.launcher import Launcher
from gdt.optim.adam import adam_step
from gdt.optim.update_kernels import _scalars, _table
from gdt.state.trees import leaves
from tests.needs import need_compiler
from tests.programs.test_function import OPTIMIZERS, training

from . import strict_kernels
from .strict_kernels import using_nccl

STEPS, BATCH = 7, 8
BEFORE = 3  # the first launch: as written, recorded, and by the program


@pytest.fixture(autouse=True)
def mesh() -> Iterator[gdt.Mesh]:
    need_compiler()
    strict_kernels.register()
    with gdt.default_mesh(gdt.create_mesh([("x", 2), ("y", 2)], devices=["graph:0"])) as made:
        yield made


def trained(
    name: str, mesh: gdt.Mesh, captured: bool, watch: Callable[[int], Any] = lambda n: nullcontext()
) -> tuple[list[np.ndarray], list[int]]:
    """Losses, and everything that a training changes: arrays, and counts of steps and calls.

    watch: a context for each call of the step.
    """
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((STEPS, BATCH, 6)).astype(np.float32)
    labels = rng.integers(0, 3, (STEPS, BATCH))
    optimizer = OPTIMIZERS[name]()
    step, network = training(mesh, optimizer, gdt.function if captured else lambda step: step)
    kept = []
    for n, (x, y) in enumerate(zip(inputs, labels, strict=True)):
        given = [
            gdt.asarray(x, layout=gdt.Layout(["x", None], mesh)),
            gdt.asarray(y, layout=gdt.Layout(["x"], mesh)),
        ]
        with watch(n):
            out = step(*given)
        kept.append(out["loss"].numpy())
    kept += [p.numpy() for p in network.parameters().values()]
    kept += [network.norm.moving_mean.numpy(), network.norm.moving_variance.numpy()]
    kept += [s.numpy() for kind in optimizer.state.values() for s in kind.values()]
    assert not captured or all(r[0].graph.is_captured for r, _ in step._recordings.values())
    return kept, [optimizer.steps, network.dropout.calls]


def check_training(name: str, mesh: gdt.Mesh, watch: Any = lambda n: nullcontext()) -> None:
    """A captured training is the eager one, to the bit."""
    eager, counts = trained(name, mesh, False)
    replayed, others = trained(name, mesh, True, watch)
    assert counts == others == [STEPS, STEPS]
    for want, got in zip(eager, replayed, strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_captured_training_is_bitwise_the_eager_one(
    name: str, mesh: gdt.Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    for plans in ("plans", "multi_tensor_plans"):  # those of Adam are AdamW's too
        monkeypatch.setattr(adam_step, plans, Cache(1 << 20))
    cupy, runner = strict_kernels.CUPY, backend_of(mesh).runner
    kernel = {"nesterov": "momentum", "adamw": "adam"}.get(name, name)

    @contextmanager
    def watch(n: int) -> Iterator[None]:
        calls, waits, ran = len(cupy.calls), len(cupy.transfers), runner.ran[kernel]
        yield
        if n >= BEFORE:  # by then it is recorded and verified: one launch updates all parameters
            assert runner.ran[kernel] == ran + 1
        asked = [what for _, what, _ in cupy.calls[calls:]]
        assert asked.count("launch") == (n >= BEFORE)
        assert asked.count("begin_capture") == (n == BEFORE)
        # The host waits for nothing, but where it compares what the first replay has made.
        assert (len(cupy.transfers) == waits) is (n != BEFORE - 1)

    check_training(name, mesh, watch)


def test_captured_convolutions_are_bitwise_the_eager_ones(mesh: gdt.Mesh) -> None:
    rng = np.random.default_rng(0)
    images = rng.standard_normal((STEPS, 4, 6, 5, 4)).astype(np.float32)
    kernels = [rng.standard_normal((3, 2, c, 4)).astype(np.float32) for c in (4, 2)]
    first, second = (gdt.asarray(k, layout=gdt.Layout.replicated(mesh, 4)) for k in kernels)

    def step(x: gdt.DistributedArray) -> Any:
        def loss(first: gdt.DistributedArray, second: gdt.DistributedArray) -> Any:
            y = gdt.convolution(gdt.relu(gdt.convolution(x, first, 2)), second, 1, "same", groups=2)
            return gdt.sum(y * y)

        return gdt.value_and_grad(loss, argnums=(0, 1))(first, second)

    captured = gdt.function(step)
    for image in images:
        x = gdt.asarray(image, layout=gdt.Layout(["x", "y", None, None], mesh))
        for got, want in zip(leaves(captured(x)), leaves(step(x)), strict=True):
            np.testing.assert_array_equal(got.numpy(), want.numpy())


def test_a_training_on_two_gpus_is_bitwise_the_eager_one() -> None:
    """Dropout, noise and normalisation too, with graphs of what is computed between collectives."""
    two = gdt.create_mesh([("x", 2), ("y", 2)], devices=["graph:0", "graph:1"])
    faults = strict_kernels.CUPY.order.faults
    faults.clear()
    with gdt.default_mesh(two), using_nccl(two):
        check_training("adam", two)
    assert not faults


def test_labels_that_are_no_classes_are_found_by_a_launch(mesh: gdt.Mesh) -> None:
    layout = gdt.Layout(["x", None], mesh)
    x = gdt.ones((4, 3), dtype="float32", layout=layout)

    @gdt.function
    def step(labels: gdt.DistributedArray) -> gdt.DistributedArray:
        return gdt.nn.losses.sparse_softmax_cross_entropy(labels, x)

    right = gdt.asarray([0, 1, 2, 0], layout=layout.delete([1]))
    for _ in range(BEFORE + 1):
        step(right)
    loss = step(gdt.asarray([0, 1, 3, 0], layout=layout.delete([1])))
    with pytest.raises(gdt.errors.IndexRangeError, match="label 3"):
        float(loss)
    waits = len(strict_kernels.CUPY.transfers)
    assert np.isfinite(float(step(right)))
    # The host waits for the value that it reads, and not for the flags too.
    assert [t.what for t in strict_kernels.CUPY.transfers[waits:]] == ["get"]


def test_numbers_that_lie_together_are_read_where_they_are(mesh: gdt.Mesh) -> None:
    launcher = Launcher("adam_step", 2, backend_of(mesh))
    whole = strict_kernels.CUPY.asarray(np.arange(6, dtype=np.float32))
    dtype, address = np.dtype(np.float32), whole.data.ptr
    numbers = [whole[i] for i in (1, 2, 3)]
    found = _scalars(launcher, numbers, dtype)
    assert found.get().tolist() == [1, 2, 3]
    assert found.data.ptr == address + 4
    for others in ([whole[2], whole[1]], [whole[1], whole[3]], [whole[1], whole[2].copy()]):
        found = _scalars(launcher, others, dtype)
        assert found.get().tolist() == [float(x) for x in others]
        assert not address <= found.data.ptr < address + whole.nbytes
    assert _scalars(launcher, numbers, np.dtype(np.float64)).dtype == np.float64


def test_a_graph_refers_to_its_own_table_of_addresses(mesh: gdt.Mesh) -> None:
    """The table of eager steps is freed when an address changes, and a graph would read on."""
    backend, table = backend_of(mesh), np.arange(4, dtype=np.uint64)
    launcher = Launcher("adam_step", 2, backend)
    with backend.on(mesh, 0):
        eager = _table(launcher, table)
        assert _table(launcher, table) is eager
        with backend.capture(0) as graph:
            captured = _table(launcher, table)
    assert captured is not eager and graph.uploads[0][0] is captured
    assert captured.get().tolist() == table.tolist()
