"""How many collectives a training step of a batch-normalised network takes, counted by observers
and by the transport between blocks: no more than the computation itself needs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest

import gdt
from gdt.array.moving import move_to_layouts
from gdt.comm.transport import transport_of
from gdt.observe import Collective

BATCH, WORDS, HIDDEN, CLASSES = 64, 1200, 48, 2


class Scheme(NamedTuple):
    """A mesh, the layouts of x, w1 and w2, and the collectives of a step: (kind, mesh axis)."""

    mesh: Sequence[tuple[str, int]]
    x: Sequence[str | None]
    w1: Sequence[str | None]
    w2: Sequence[str | None]
    collectives: Sequence[tuple[str, str]]


MOMENTS = [("all_reduce", "batch")] * 2  # of means, then of variances around their mean
BACKWARD_PAIR = ("all_reduce", "batch")
GRADIENTS = ("all_reduce", "batch")  # with the loss and the accuracy

SCHEMES = {
    "data parallel": Scheme(
        [("batch", 8)],
        ["batch", None],
        [None, None],
        [None, None],
        [*MOMENTS, BACKWARD_PAIR, GRADIENTS],
    ),
    "model parallel": Scheme(
        [("batch", 4), ("model", 2)],
        ["batch", None],
        [None, "model"],
        ["model", None],
        [*MOMENTS, ("all_reduce", "model"), BACKWARD_PAIR, GRADIENTS],
    ),
    "spatially parallel": Scheme(
        [("batch", 2), ("feature", 2), ("model", 2)],
        ["batch", "feature"],
        ["feature", "model"],
        ["model", None],
        [
            ("all_reduce", "feature"),
            *MOMENTS,
            ("all_reduce", "model"),
            BACKWARD_PAIR,
            GRADIENTS,
        ],
    ),
}


def network(
    params: dict[str, gdt.DistributedArray], x: gdt.DistributedArray, labels: gdt.DistributedArray
) -> tuple[gdt.DistributedArray, gdt.DistributedArray]:
    hidden, _, _ = gdt.batch_norm(gdt.relu(x @ params["w1"]))
    logits = hidden @ params["w2"]
    loss = gdt.mean(gdt.sparse_softmax_cross_entropy_with_logits(labels, logits))
    right = gdt.argmax(logits, axis=-1) == labels
    return loss, gdt.mean(right, dtype="float32")


def step(scheme: Scheme, blocks: int) -> tuple[list[Collective], gdt.Mesh, list[np.ndarray]]:
    """The second of two steps: plans are made in the first."""
    rng = np.random.default_rng(0)
    mesh = gdt.create_mesh(scheme.mesh, blocks=blocks, device_type="CPU")

    def placed(shape: tuple[int, ...], specs: Sequence[str | None]) -> gdt.DistributedArray:
        value = rng.standard_normal(shape).astype(np.float32)
        return gdt.asarray(value, layout=gdt.Layout(specs, mesh))

    x = placed((BATCH, WORDS), scheme.x)
    params = {
        "w1": placed((WORDS, HIDDEN), scheme.w1),
        "w2": placed((HIDDEN, CLASSES), scheme.w2),
    }
    whole = rng.integers(0, CLASSES, BATCH)
    labels = gdt.asarray(whole, layout=gdt.Layout(["batch"], mesh))
    run = gdt.value_and_grad(network, has_aux=True)
    run(params, x, labels)
    transport_of(mesh).calls.clear()
    transport_of(mesh).bytes.clear()
    with gdt.count_collectives() as counter:
        (loss, accuracy), gradients = run(params, x, labels)
        for array in (loss, accuracy, *gradients.values()):
            assert not array.layout.partial
    values = [loss, accuracy, gradients["w1"], gradients["w2"]]
    return list(counter), mesh, [v.numpy() for v in values]


@pytest.mark.parametrize("apart", [False, True], ids=["folded", "one block per coordinate"])
@pytest.mark.parametrize("name", SCHEMES)
def test_a_step_takes_no_more_collectives_than_it_must(name: str, apart: bool) -> None:
    scheme = SCHEMES[name]
    found, _, _ = step(scheme, blocks=8 if apart else 1)
    assert [(c.kind, *c.axes) for c in found] == list(scheme.collectives)


@pytest.mark.parametrize("name", SCHEMES)
def test_the_transport_counts_what_observers_are_told(name: str) -> None:
    found, mesh, _ = step(SCHEMES[name], blocks=8)
    transport = transport_of(mesh)
    for kind in {c.kind for c in found}:
        told = [c for c in found if c.kind == kind]
        assert transport.calls[kind] == len(told)
        assert transport.bytes[kind] == sum(c.bytes for c in told)
    assert sum(transport.calls.values()) == len(found)


def test_every_scheme_computes_the_same_step() -> None:
    one = Scheme([("batch", 1)], ["batch", None], [None, None], [None, None], [])
    _, _, want = step(one, blocks=1)
    for scheme in SCHEMES.values():
        for blocks in (1, 8):
            _, _, got = step(scheme, blocks)
            for a, b in zip(got, want, strict=True):
                np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


def test_a_mean_of_a_split_batch_stays_partial() -> None:
    mesh = gdt.create_mesh([("batch", 4)], blocks=4)
    x = gdt.asarray(np.arange(6.0), layout=gdt.Layout(["batch"], mesh))
    with gdt.count_collectives() as counter:
        mean = gdt.mean(gdt.mean(x) * 2.0)
    assert mean.layout.partial == {"batch": "sum"}
    assert not len(counter)
    assert float(mean) == 5.0


@pytest.mark.parametrize("blocks", [1, 4])
def test_split_classes_reduce_statistics_and_no_rows(blocks: int) -> None:
    mesh = gdt.create_mesh([("model", 4)], blocks=blocks)
    rows, classes = 16, 4096
    logits = gdt.ones((rows, classes), layout=gdt.Layout([None, "model"], mesh))
    with gdt.default_mesh(mesh), gdt.count_collectives() as counter:
        gdt.sparse_softmax_cross_entropy_with_logits(np.arange(rows), logits)
        gdt.softmax(logits)
        gdt.argmax(logits, axis=-1)
        gdt.logsumexp(logits, axis=-1)
        gdt.cumsum(logits, axis=-1)
    names = ["max", "sum", "max", "sum", "max", "min", "max", "sum"]
    reductions = [("all_reduce", name) for name in names]
    assert [(c.kind, c.reduction) for c in counter] == [*reductions, ("all_gather", None)]
    sizes = [c.bytes / (2 * 3 * 8 * rows) for c in counter]
    assert sizes == [1, 2, 1, 1, 1, 1, 1, 1, 2]


@pytest.mark.parametrize("p", [8, 64, 512, 2048])
def test_statistics_send_what_an_all_reduce_of_them_sends(p: int) -> None:
    mesh, channels, rows = gdt.create_mesh([("b", p)]), 64, 16
    layout = lambda *specs: gdt.Layout(specs, mesh)
    # Of two rows a device, statistics would be as large as the rows, which travel instead.
    x = gdt.ones((p, 8, channels), "float32", layout=layout("b", None, None))
    v = gdt.ones((rows, 8 * p), "float32", layout=layout(None, "b"))
    labels = gdt.zeros((rows,), "int64", layout=layout(None))
    calls = [
        (lambda: gdt.batch_norm(x), 2 * channels),
        (lambda: gdt.var(x, axis=(0, 1)), 2 * channels),
        (lambda: gdt.softmax(v), 2 * rows),
        (lambda: gdt.logsumexp(v, axis=-1), 2 * rows),
        (lambda: gdt.argmax(v, axis=-1), 3 * rows),  # an index takes twice as much as a value
        (lambda: gdt.sparse_softmax_cross_entropy_with_logits(labels, v), 3 * rows),
        (lambda: gdt.linalg.norm(v, axis=-1).resolve(), rows),
    ]
    for call, numbers in calls:
        with gdt.count_collectives() as counter:
            call()
        assert counter.bytes == 2 * (p - 1) * 4 * numbers
        assert len(counter) <= 2 and set(counter.by_kind) == {"all_reduce"}


@pytest.mark.parametrize("blocks", [1, 4])
def test_partial_reductions_of_different_kinds_are_not_bundled(blocks: int) -> None:
    mesh = gdt.create_mesh([("x", 4)], blocks=blocks)
    values = np.arange(-6.0, 6.0)
    x = gdt.asarray(values, layout=gdt.Layout(["x"], mesh))
    partial = [gdt.sum(x), gdt.max(x), gdt.min(x), gdt.prod(x + 7.0), gdt.sum(x * x)]
    with gdt.count_collectives() as counter:
        moved = move_to_layouts(partial, [p.layout.resolved for p in partial])
    expected = [values.sum(), values.max(), values.min(), np.prod(values + 7.0), values @ values]
    assert [float(m) for m in moved] == expected
    kinds = sorted((c.kind, c.reduction, c.arrays) for c in counter)
    assert kinds == [("all_reduce", r, 1 + (r == "sum")) for r in ("max", "min", "prod", "sum")]


@pytest.mark.parametrize("blocks", [1, 4])
def test_an_operand_that_is_given_twice_is_reduced_once(blocks: int) -> None:
    mesh = gdt.create_mesh([("x", 4)], blocks=blocks)
    x = gdt.asarray(np.arange(8.0).reshape(4, 2), layout=gdt.Layout(["x", None], mesh))
    for combine in (gdt.maximum, gdt.hypot, gdt.minimum):
        total = gdt.sum(x, axis=0)
        assert any(total.layout.reductions)
        with gdt.count_collectives() as counter:
            combined = combine(total, total)
        assert [(c.kind, c.arrays, c.bytes) for c in counter] == [("all_reduce", 1, 96)]
        whole = gdt.asarray([12.0, 16.0])
        np.testing.assert_array_equal(combined.numpy(), combine(whole, whole).numpy())
        assert total.resolve().numpy().tolist() == whole.tolist()


def test_blocks_that_a_collective_makes_alike_have_memory_of_their_own() -> None:
    mesh = gdt.create_mesh([("x", 4)], blocks=4)
    x = gdt.asarray(np.arange(8.0).reshape(4, 2), layout=gdt.Layout(["x", None], mesh))
    for replicated in (gdt.sum(x, axis=0).resolve(), gdt.relayout(x, [None, None])):
        for one, other in itertools.combinations(replicated.blocks, 2):
            assert not np.shares_memory(one, other)
            np.testing.assert_array_equal(one, other)


# The collectives of an all-reduce over 2 hosts of 4 devices: kind, axes, and bytes for each byte
# that is reduced.
WAYS = {
    "all_reduce": [("all_reduce", ("host", "device"), 2 * 7)],
    "to_one": [("reduce", ("host", "device"), 7), ("broadcast", ("host", "device"), 7)],
    "hierarchical": [
        ("reduce_scatter", ("device",), 2 * 3),
        ("all_reduce", ("host",), 2 * 1),
        ("all_gather", ("device",), 2 * 3),
    ],
}


@pytest.mark.parametrize("blocks", [1, 2, 8])
@pytest.mark.parametrize("way", WAYS)
def test_an_all_reduce_is_carried_out_as_the_mesh_says(way: str, blocks: int) -> None:
    mesh = gdt.create_mesh([("host", 2), ("device", 4)], blocks=blocks, reduce_by=way)
    assert gdt.Mesh.from_string(mesh.to_string()) is mesh
    rng = np.random.default_rng(0)
    layout = gdt.Layout([("host", "device"), None], mesh)
    for dtype, n in itertools.product(("float32", "int64", "bool", gdt.bfloat16), (0, 1, 5, 40)):
        value = rng.integers(0, 3, (16, n)).astype(dtype)
        x = gdt.asarray(value, layout=layout)
        for reduction in ("max",) if dtype == "bool" else ("sum", "max", "prod"):
            np.testing.assert_array_equal(
                getattr(gdt, reduction)(x, axis=0).astype(float).numpy(),
                getattr(np, reduction)(value.astype(float), axis=0),
            )
    x = gdt.ones((16, 12), "float32", layout=layout)
    recorded = gdt.function(lambda x: (x.mT @ x).resolve())
    for _ in range(4):
        transport = transport_of(mesh)
        transport.calls.clear()
        transport.bytes.clear()
        with gdt.count_collectives() as counter:
            product = recorded(x)
        found = [(c.kind, c.axes, c.bytes) for c in counter]
        assert found == [(*kind, factor * product.nbytes) for *kind, factor in WAYS[way]]
        assert (product.numpy() == 16).all()
        if blocks == 8:
            assert dict(transport.bytes) == {kind: nbytes for kind, _, nbytes in found}
            assert dict(transport.calls) == dict.fromkeys(transport.bytes, 1)
