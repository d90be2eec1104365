"""The example models' steps on several simulated GPUs, kernels included: CUDA graphs of what they
compute between collectives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

import gdt
from examples import imdb, mnist
from gdt import Layout, Mesh
from gdt.comm.transport import transport_of
from gdt.nn.losses import sparse_softmax_cross_entropy
from gdt.programs import replay
from tests.needs import need_compiler
from tests.recorded_nccl import RecordedNccl

from . import strict_kernels
from .strict_kernels import using_nccl

CUPY = strict_kernels.CUPY
STEPS, BATCH, FEATURES, HIDDEN = 7, 16, 24, 8
BEFORE = 3  # the first launch: as written, recorded, and by the program
OTHER = 5  # the call before which somebody puts another parameter in its place


class Case(NamedTuple):
    """A step, and what its replay asks for.

    splits: of the rows of a batch, and of the hidden units. collectives: what NCCL is asked for,
    on all GPUs together. launches: of graphs, likewise. allocations: of arrays, by what the
    collectives pack and unpack, and by what the step returns.
    """

    model: str
    sizes: dict[str, int]
    gpus: int
    splits: tuple[str | None, str | None]
    launches: int
    collectives: int
    allocations: int


CASES = {
    "imdb, data parallel on 2": Case("imdb", {"a": 2}, 2, ("a", None), 12, 8, 2),
    "imdb, data parallel on 4": Case("imdb", {"a": 4}, 4, ("a", None), 24, 16, 4),
    "imdb, model parallel on 2": Case("imdb", {"a": 2}, 2, (None, "a"), 4, 2, 2),
    "imdb, both on 4": Case("imdb", {"a": 2, "b": 2}, 4, ("a", "b"), 28, 20, 4),
    "imdb, 8 coordinates on 2": Case("imdb", {"a": 4, "b": 2}, 2, ("a", "b"), 14, 10, 2),
    "mnist, data parallel on 2": Case("mnist", {"a": 2}, 2, ("a", None), 6, 2, 2),
    "mnist, 8 coordinates on 2": Case("mnist", {"a": 8}, 2, ("a", None), 6, 2, 2),
    "mnist, model parallel on 2": Case("mnist", {"a": 2}, 2, (None, "a"), 18, 24, 2),
}


def model_of(case: Case, mesh: Mesh) -> tuple[Any, gdt.optim.Optimizer]:
    _, hidden = case.splits
    if case.model == "imdb":
        layouts = Layout([None, hidden], mesh), Layout([hidden, None], mesh)
        return imdb.MLP(*layouts), gdt.optim.SGD(lambda step: 0.02 / (1 + step))
    sizes = [FEATURES, HIDDEN, 4, 2]
    return mnist.MLP(sizes, Layout([None, hidden], mesh)), gdt.optim.Adam(1e-3)


class Asked(NamedTuple):
    """What a call asked of the devices."""

    launches: int
    captures: int
    collectives: int
    allocations: int
    waits: int

    @classmethod
    def so_far(cls, nccl: RecordedNccl) -> Asked:
        asked = [what for _, what, _ in CUPY.calls]
        return cls(
            asked.count("launch"), asked.count("begin_capture"), len(nccl.calls),
            CUPY.machine.allocations, len(CUPY.transfers),
        )  # fmt: skip

    def since(self, before: Asked) -> Asked:
        return Asked(*[now - then for now, then in zip(self, before, strict=True)])


def trained(
    case: Case, mesh: Mesh, nccl: RecordedNccl, wrap: Callable[[Any], Any]
) -> tuple[list[np.ndarray], list[Asked]]:
    """Losses of the steps and the parameters at the end, with what each call asked for."""
    rng = np.random.default_rng(0)
    batches = rng.standard_normal((STEPS, BATCH, FEATURES)).astype(np.float32)
    labels = rng.integers(0, 2, (STEPS, BATCH))
    model, optimizer = model_of(case, mesh)
    loss = lambda m, x, y: sparse_softmax_cross_entropy(y, m(x))
    value_and_grad = gdt.value_and_grad(loss)

    def step(x: gdt.DistributedArray, y: gdt.DistributedArray) -> gdt.DistributedArray:
        value, gradients = value_and_grad(model, x, y)
        optimizer.update(model, gradients)
        return value

    call, layout, losses, asked = wrap(step), Layout([case.splits[0], None], mesh), [], []
    for n in range(STEPS):
        x = gdt.asarray(batches[n], layout=layout)
        y = gdt.asarray(labels[n], layout=layout.delete([1]))
        if n == OTHER:
            first = model.dense1 if case.model == "imdb" else model.layers[0]
            first.weight = first.weight * 0.5
        before = Asked.so_far(nccl)
        value = call(x, y)
        asked.append(Asked.so_far(nccl).since(before))
        losses.append(value.numpy())
    return [*losses, *[p.numpy() for p in model.parameters().values()]], asked


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    need_compiler()
    strict_kernels.register()
    monkeypatch.setattr(imdb, "TOKENS", FEATURES)
    monkeypatch.setattr(imdb, "HIDDEN", HIDDEN)
    CUPY.order.faults.clear()
    yield
    assert not CUPY.order.faults


@pytest.mark.parametrize("name", CASES)
@pytest.mark.usefixtures("small")
def test_graphs_are_bitwise_the_plans(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[name]
    mesh = gdt.create_mesh(case.sizes, devices=[f"graph:{i}" for i in range(case.gpus)])
    counts = []
    with using_nccl(mesh) as nccl, monkeypatch.context() as patch:
        transport = transport_of(mesh)
        found, asked = trained(case, mesh, nccl, gdt.function)
        counts.append((transport.calls.copy(), transport.bytes.copy()))
        transport.calls.clear(), transport.bytes.clear()
        patch.setattr(replay, "step_graph", lambda *_: None)
        want, by_plans = trained(case, mesh, nccl, gdt.function)
        counts.append((transport.calls, transport.bytes))
    assert counts[0] == counts[1]
    for a, b in zip(found, want, strict=True):
        np.testing.assert_array_equal(a, b)
    assert [a.launches for a in by_plans] == [0] * STEPS
    each = Asked(case.launches, 0, case.collectives, case.allocations, 0)
    captured = [n for n, a in enumerate(asked) if a.captures]
    assert captured == [BEFORE]
    assert asked[BEFORE + 1 :] == [each] * (STEPS - BEFORE - 1)
    assert each.collectives == by_plans[-1].collectives
    assert each.allocations < by_plans[-1].allocations
