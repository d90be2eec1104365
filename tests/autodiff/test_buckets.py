"""Buckets of gradients: what is sent early, and that nothing uses it too early, or too late."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import gdt
from gdt import Layout, Mesh
from gdt.array.registry import FUNCTIONS
from gdt.autodiff import buckets
from gdt.backend import backend_of
from gdt.backend.abstract import DEVICE
from gdt.caches import Cache
from gdt.comm.transport import transport_of
from gdt.observe import Observer, observing
from tests.allocations import allocations
from tests.strict import engine

SIZES = {"a": 2, "b": 2}


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mesh]:
    """Four GPUs, as far as CuPy's interface goes on the host, with NCCL between them."""
    yield engine.mesh_with_nccl(SIZES, 4, monkeypatch)
    assert not engine.CUPY.order.faults


def gradients(mesh: Mesh, *, split: bool = False) -> list[np.ndarray]:
    """The loss and the gradients of three layers: data parallel, or with layers split as well."""
    specs = ["a" if split else None, None], ["b", None], [None, "b"]
    rng = np.random.default_rng(0)
    sizes = [(12, 10), (10, 8), (8, 4)]
    weights = [
        gdt.asarray(rng.standard_normal(s), layout=Layout(w if split else [None, None], mesh))
        for s, w in zip(sizes, specs, strict=True)
    ]
    rows = "b" if split else ("a", "b")
    x = gdt.asarray(rng.standard_normal((16, 12)), layout=Layout([rows, None], mesh))

    def loss(w: list[gdt.DistributedArray]) -> gdt.DistributedArray:
        h = gdt.tanh(x @ w[0])
        return gdt.sum(gdt.tanh(h @ w[1]) @ w[2])

    value, slopes = gdt.value_and_grad(loss)(weights)
    assert [g.layout for g in slopes] == [w.layout for w in weights]
    return [value.numpy(), *(g.numpy() for g in slopes)]


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("size", [1, 700, 1 << 20])
@pytest.mark.parametrize("blocks", [1, 4])
def test_gradients_do_not_depend_on_buckets(
    size: int, blocks: int, split: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    mesh = gdt.create_mesh(SIZES, blocks=blocks, mesh_name=f"{size} {split}")
    want = gradients(mesh, split=split)
    monkeypatch.setattr(gdt.autodiff.backward, "BACKWARDS", Cache(0))
    monkeypatch.setattr(buckets, "SIZE", size)
    for _ in range(3):  # op by op, recorded, and replayed
        for a, b in zip(gradients(mesh, split=split), want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12)


def test_a_gradient_waits_for_every_use_of_its_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = gdt.create_mesh(SIZES, blocks=4)
    rng = np.random.default_rng(0)
    x = gdt.asarray(rng.standard_normal((8, 4)), layout=Layout([("a", "b"), None], mesh))
    weights = [
        gdt.asarray(rng.standard_normal((4, 4)), layout=Layout.replicated(mesh, 2))
        for _ in range(2)
    ]

    def loss(w: list[gdt.DistributedArray]) -> gdt.DistributedArray:
        h = gdt.tanh(gdt.tanh(x @ w[0]) @ w[1])
        return gdt.sum(h @ w[0])

    want = [g.numpy() for g in gdt.grad(loss)(weights)]
    monkeypatch.setattr(gdt.autodiff.backward, "BACKWARDS", Cache(0))
    monkeypatch.setattr(buckets, "SIZE", 1)
    for a, b in zip(gdt.grad(loss)(weights), want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


def test_a_gradient_waits_for_uses_of_its_weight_and_of_the_weights_resolved_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mesh = gdt.create_mesh(SIZES, blocks=4)
    rng = np.random.default_rng(0)
    x = gdt.asarray(rng.standard_normal((8, 4)), layout=Layout(["a", None], mesh))
    first = gdt.asarray(rng.standard_normal((4, 4)), layout=Layout.replicated(mesh, 2))
    partial = gdt.relayout(first, Layout([None, None], mesh, partial={"b": "sum"}))

    def gradients() -> list[np.ndarray]:
        with gdt.GradientTape() as tape:
            total = gdt.sum(gdt.tanh(x @ first)) + gdt.sum(x @ partial)
            total = total + gdt.sum(gdt.tanh(x @ partial.resolve()))
        return [g.numpy() for g in tape.gradient(total, [first, partial])]

    want = gradients()
    monkeypatch.setattr(gdt.autodiff.backward, "BACKWARDS", Cache(0))
    monkeypatch.setattr(buckets, "SIZE", 1)
    for a, b in zip(gradients(), want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


def test_small_gradients_are_one_reduction_and_large_ones_as_many_as_they_fill_buckets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All storage modes agree; the loss goes with the last one."""
    sent = {}
    for size in (buckets.SIZE, 500, 1):
        monkeypatch.setattr(buckets, "SIZE", size)
        for blocks in (1, 4):
            with gdt.count_collectives() as counter:
                gradients(gdt.create_mesh(SIZES, blocks=blocks))
            sent[size, blocks] = [(c.kind, c.bytes // 6, c.arrays) for c in counter]
    one = 8 * (12 * 10 + 10 * 8 + 8 * 4 + 1)
    assert sent[25 << 20, 1] == [("all_reduce", one, 4)]
    assert sent[500, 1] == [("all_reduce", 8 * (8 * 4 + 10 * 8), 2), ("all_reduce", 8 * 121, 2)]
    assert [arrays for _, _, arrays in sent[1, 1]] == [1, 1, 2]
    assert all(sent[size, 1] == sent[size, 4] for size, _ in sent)


@pytest.mark.parametrize(
    ("device_type", "call"),
    [("CPU", 3), ("abstract", 0), ("abstract", 3)],  # as written; recorded in call 1; replayed
)
def test_gradients_are_held_once_but_for_those_of_two_buckets(
    device_type: str, call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers, width = 24, 64
    nbytes = 4 * width * width
    monkeypatch.setattr(gdt.autodiff.backward, "BACKWARDS", Cache(1 << 20))
    monkeypatch.setattr(buckets, "SIZE", nbytes)
    blocks = None if device_type == "abstract" else 2
    mesh = gdt.create_mesh({"a": 2}, device_type=device_type, blocks=blocks)
    x = gdt.ones((2, width), "float32", layout=Layout(["a", None], mesh))
    whole = Layout.replicated(mesh, 2)
    weights = [gdt.ones((width, width), "float32", layout=whole) for _ in range(layers)]

    def loss(weights: list[gdt.DistributedArray]) -> gdt.DistributedArray:
        y = x
        for w in weights:
            y = gdt.tanh(y @ w)
        return gdt.sum(y)

    for _ in range(call):
        gdt.grad(loss)(weights)
    before = DEVICE.peak = DEVICE.now
    with allocations() as memory:
        gdt.grad(loss)(weights)
    held = DEVICE.peak - before if device_type == "abstract" else memory.peak // len(mesh.blocks)
    assert layers * nbytes <= held <= (layers + 4) * nbytes


def test_a_recorded_pass_keeps_no_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.collect()
    before, mesh = DEVICE.now, gdt.create_mesh({"a": 2}, device_type="abstract")
    monkeypatch.setattr(gdt.autodiff.backward, "BACKWARDS", Cache(1 << 20))
    monkeypatch.setattr(buckets, "SIZE", 1)
    x, *weights = [gdt.ones((64, 64), "float32", device=mesh) for _ in range(3)]
    x = gdt.relayout(x, Layout(["a", None], mesh))
    for _ in range(3):
        gdt.grad(lambda w, x=x: gdt.sum(gdt.tanh(x @ w[0]) @ w[1]))(weights)
    del x, weights
    gc.collect()
    assert DEVICE.now - before < 4 * 64


def test_second_derivatives_do_not_depend_on_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of weights, and of an array that the first one has made."""
    mesh = gdt.create_mesh(SIZES, blocks=4)
    rng = np.random.default_rng(0)
    x = gdt.asarray(rng.standard_normal((8, 4)), layout=Layout([("a", "b"), None], mesh))
    layouts = Layout.replicated(mesh, 2), Layout(["a", None], mesh)
    weights = [gdt.asarray(rng.standard_normal((4, 4)), layout=layout) for layout in layouts]

    def squares() -> list[np.ndarray]:
        with gdt.GradientTape() as outer:
            with gdt.GradientTape() as tape:
                made = weights[0] * 2.0
                loss = gdt.sum(gdt.tanh(gdt.tanh(x @ made) @ weights[1]))
            slopes = tape.gradient(loss, [*weights, made])
            total = sum(gdt.sum(g * g) for g in slopes)
        return [g.numpy() for g in (*slopes, *outer.gradient(total, weights))]

    want = squares()
    monkeypatch.setattr(buckets, "SIZE", 1)
    for a, b in zip(squares(), want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


@pytest.mark.parametrize("blocks", [1, 2])
def test_a_gradient_of_two_arrays_is_sent_once(
    blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buckets, "SIZE", 1)
    mesh = gdt.create_mesh({"a": 2}, blocks=blocks)
    x = gdt.ones((8, 4), layout=Layout(["a", None], mesh))
    w, v = (gdt.ones((4, 3), layout=Layout.replicated(mesh, 2)) for _ in range(2))
    with gdt.GradientTape() as tape:
        y = x @ (w + (v + 0.0))  # the gradient of w is complete before that of v
        loss = gdt.sum(y * y)
    with gdt.count_collectives() as counter:
        of_w, of_v = tape.gradient(loss, [w, v])
        assert np.array_equal(of_w.numpy(), of_v.numpy())
    assert [c.bytes for c in counter] == [2 * 8 * 12, 2 * 8]  # and the loss


class Ops(Observer):
    """Writes the ops that run among what streams are asked."""

    def on_op(self, op: Any, args: tuple[Any, ...], static: dict[str, Any], out: Any) -> None:
        engine.CUPY.calls.append((None, op.name, None))


def test_a_bucket_is_sent_beside_the_rest_of_the_backward_pass(
    gpus: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buckets, "SIZE", 500)
    backend = backend_of(gpus)
    calls, compute = engine.CUPY.calls, backend.compute_stream(2)
    communication = backend.communication_stream(2)
    calls.clear()
    with observing(Ops()):
        gradients(gpus)
    began = calls.index(next(c for c in calls if c[:2] == (communication, "wait")))
    # It begins when the gradients in it have been computed, and is waited for after all others.
    recorded = calls.index((compute, "record", calls[began][2]))
    ended = calls.index(next(c for c in calls if c[:2] == (compute, "wait")))
    assert (communication, "record", calls[ended][2]) in calls[began:ended]
    assert recorded < began < ended
    names = [name for stream, name, _ in calls[began:ended] if stream is None]
    assert names == ["tanh_gradient", "matrix_product_tn"]  # of the first layer
    # What does not fill a bucket, and the loss, come afterwards; nothing is computed meanwhile.
    assert [name for stream, name, _ in calls[ended:] if stream is None] == []
    sent = transport_of(gpus).nccl.calls
    assert [c.count for c in sent if c.rank == 0] == [112, 121]


@pytest.mark.parametrize("size", [1, 500, 1 << 20])
def test_streams_use_memory_in_order(
    size: int, gpus: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    want = gradients(gdt.create_mesh(SIZES))
    monkeypatch.setattr(gdt.autodiff.backward, "BACKWARDS", Cache(0))
    monkeypatch.setattr(buckets, "SIZE", size)
    for _ in range(3):  # op by op, recorded, and replayed
        for a, b in zip(gradients(gpus), want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12)
        assert not engine.CUPY.order.faults


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        ("uses the result", "read before it was written"),
        ("lets go of the operand", "given back while it is used"),
        ("overwrites the operand", "written while it is used"),
        ("waits", None),
    ],
)
def test_a_use_that_nothing_orders_is_found(wrong: str, fault: str | None, gpus: Mesh) -> None:
    cupy, backend, faults = engine.CUPY, backend_of(gpus), engine.CUPY.order.faults
    x = cupy.asarray(np.ones(3))
    with backend.overlapping(gpus) as events:
        y = x * 2.0
    if wrong == "waits":
        backend.join(gpus, events)
    if wrong in ("uses the result", "waits"):
        y + 1.0
    if wrong == "overwrites the operand":
        x[...] = 3.0
    if wrong in ("lets go of the operand", "waits"):
        del x
        cupy.asarray(np.ones(3))
    assert faults[:1] == ([fault] if fault else [])
    backend.join(gpus, events)
    faults.clear()


def test_an_error_on_the_way_back_leaves_nothing_under_way(
    gpus: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buckets, "SIZE", 1)

    def refuse(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no gradient")

    w = [gdt.ones((4, 4), layout=Layout([None, None], gpus)) for _ in range(2)]
    x = gdt.ones((8, 4), layout=Layout([("a", "b"), None], gpus))
    with gdt.GradientTape() as tape:
        target = gdt.sum(gdt.tanh(x @ w[0]) @ w[1])
    monkeypatch.setattr(FUNCTIONS["tanh"], "vjps", (refuse,))
    with pytest.raises(RuntimeError, match="no gradient"):
        tape.gradient(target, w)
    stream, what, event = engine.CUPY.calls[-1]
    assert what == "wait" and stream is backend_of(gpus).compute_stream(3)
    assert event.ended[backend_of(gpus).communication_stream(3).ptr]
