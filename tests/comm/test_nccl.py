"""The NCCL transport: what it asks of NCCL, and that it makes of it what copies make."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import pytest

import gdt
from gdt import Layout, Mesh, create_mesh
from gdt.array import placing
from gdt.array.registry import FUNCTIONS
from gdt.comm import messages as messages_module
from gdt.comm import nccl as nccl_module
from gdt.comm import ranks as ranks_module
from gdt.comm import transport as transports
from gdt.comm.agreement import Action
from gdt.comm.all_reduce import all_reduce_together
from gdt.comm.connection import Peer
from gdt.comm.encoding import Encoding
from gdt.comm.messages import Messages
from gdt.comm.nccl import NcclTransport
from gdt.comm.ranks import Running
from gdt.comm.transport import CopyTransport, Transfer, wait_for_all
from gdt.errors import DistributedError
from gdt.sharding import processes
from gdt.sharding.reduction import UFUNCS
from gdt.testing import Oracle, choices, layouts
from tests.processes import threads
from tests.recorded_nccl import OPS, Event, HostBackend, RecordedNccl, SharedNccl, address
from tests.samples import SAMPLES
from tests.strict import engine

DIMS: list[tuple[str, int]] = [("a", 2), ("b", 2)]
EVERY_DTYPE = ["?", "b", "B", "h", "H", "i", "I", "l", "L", "e", "f", "d", "F", "D"]


def made(mesh: Mesh, **options: Any) -> NcclTransport:
    return NcclTransport(mesh, RecordedNccl(), HostBackend(), pointer=address, **options)


@pytest.fixture
def mesh() -> Mesh:
    return create_mesh(DIMS, blocks=4, mesh_name="nccl")


@pytest.fixture
def used(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> NcclTransport:
    """The transport that everything on `mesh` goes through."""
    transport = made(mesh)
    monkeypatch.setitem(transports._transports, mesh, transport)
    return transport


def blocks_of(mesh: Mesh, shape: tuple[int, ...], dtype: str) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    found = [rng.integers(0, 7, shape).astype(dtype) for _ in mesh.blocks]
    for block in found:
        if block.dtype.kind in "fc" and block.size:
            block.flat[0] = -0.5
    return found


# ---------------------------------------------------------------- the same as copies


@pytest.mark.parametrize("reduction", UFUNCS)
@pytest.mark.parametrize("dtype", EVERY_DTYPE)
def test_reductions_are_those_of_numpy(dtype: str, reduction: str, mesh: Mesh) -> None:
    for axes in [(0,), (1,), (0, 1)]:
        blocks = blocks_of(mesh, (1, 1, 3, 5), dtype)
        copies, found = CopyTransport(mesh), made(mesh)
        want = copies.all_reduce(blocks, axes, reduction)
        got = found.all_reduce(blocks, axes, reduction)
        for a, b in zip(got, want, strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)
        want = copies.reduce(blocks, axes, reduction)
        got = found.reduce(blocks, axes, reduction)
        for i in {group[0] for group in copies._groups(axes)}:
            assert got[i].dtype == want[i].dtype
            np.testing.assert_array_equal(got[i], want[i])
        assert (found.calls, found.bytes) == (copies.calls, copies.bytes)
    full = blocks_of(mesh, (1, 2, 3), dtype)
    want = copies.reduce_scatter(full, 1, reduction)
    for a, b in zip(found.reduce_scatter(full, 1, reduction), want, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    assert (found.calls, found.bytes) == (copies.calls, copies.bytes)


@pytest.mark.parametrize(("dtype", "reduction"), [("f", "sum"), ("e", "max"), ("F", "prod")])
@pytest.mark.parametrize("apart", [0, 40, 10_000])
def test_arrays_that_are_reduced_together_are_those_reduced_alone(
    apart: int, dtype: str, reduction: str, mesh: Mesh, used: NcclTransport,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """By one call that is counted, and where NCCL knows the dtype, of large ones as they lie."""
    monkeypatch.setattr(NcclTransport, "large_nbytes", apart)
    copies, nccl = CopyTransport(mesh), used.nccl
    arrays = [blocks_of(mesh, (1, 1, *shape), dtype) for shape in ((3, 5), (2,), (0,), (4, 4))]
    want = [copies.all_reduce(blocks, (1,), reduction) for blocks in arrays]
    nbytes = copies.bytes["all_reduce"]
    got = all_reduce_together(mesh, list(zip(*arrays, strict=True)), (1,), reduction, ())
    for a, b in zip(got, zip(*want, strict=True), strict=True):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_array_equal(x, y)
    assert used.calls["all_reduce"] == 1 and used.bytes["all_reduce"] == nbytes
    sent = {call.send for call in nccl.calls}
    large = [b for blocks in arrays for b in blocks if b.nbytes >= max(apart, 1)]
    assert dtype != "f" or sent >= {b.ctypes.data for b in large}
    assert len({call.group for call in nccl.calls}) == 1
    full = [blocks_of(mesh, (1, 2, *shape), dtype) for shape in ((3,), (7, 2))]
    bundles = list(zip(*full, strict=True))
    alone = [copies.reduce_scatter(blocks, 1, reduction) for blocks in full]
    several = used.reduce_scatter_several(bundles, 1, reduction)
    for a, b in zip(several, zip(*alone, strict=True), strict=True):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_array_equal(x, y)
    assert used.bytes["reduce_scatter"] == copies.bytes["reduce_scatter"]


def test_memory_that_a_reduce_does_not_fill_is_not_read(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever lies there: these bits are a float32 that overflows as a float16."""
    empty_like = np.empty_like

    def full_of_bits(*arguments: Any, **keywords: Any) -> np.ndarray:
        memory = empty_like(*arguments, **keywords)
        memory.reshape(-1).view(np.uint8)[...] = 0x7F
        return memory

    monkeypatch.setattr(np, "empty_like", full_of_bits)
    blocks = blocks_of(mesh, (1, 1, 3, 5), "e")
    got = made(mesh).reduce(blocks, (0, 1), "max")
    np.testing.assert_array_equal(got[0], np.max(blocks, axis=0))
    assert [b.shape for b in got] == [b.shape for b in blocks]


@pytest.mark.parametrize("reduction", ["max", "min"])
@pytest.mark.parametrize("dtype", ["e", "f", "d"])
def test_nan_survives_max_and_min(dtype: str, reduction: str, mesh: Mesh) -> None:
    values = [-np.inf, -3.5, -0.0, 0.0, 5e-8, 1.0, np.inf, np.nan, -np.nan]
    pairs = np.array(list(itertools.product(values, values)), dtype).T
    blocks = [pairs[i % 2].reshape(1, 1, -1).copy() for i in range(4)]
    got = made(mesh).all_reduce(blocks, (1,), reduction)
    np.testing.assert_array_equal(got[0][0, 0], UFUNCS[reduction](*pairs))


def test_nan_is_lost_if_nccl_gets_it(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recorded NCCL loses NaN as the real one does, so that the test above can fail."""
    as_it_is = Encoding(lambda x: x, "max", lambda x: x)
    monkeypatch.setattr(nccl_module, "encoding", lambda *_: as_it_is)
    blocks = [np.full((1, 1, 1), np.nan), *(np.ones((1, 1, 1)) for _ in range(3))]
    assert made(mesh).all_reduce(blocks, (0, 1), "max")[0] == 1.0


def test_every_relayout_goes_through_nccl(mesh: Mesh, used: NcclTransport) -> None:
    apart = create_mesh(DIMS, blocks=4)
    copies = transports.transport_of(apart)
    whole = np.arange(35.0).reshape(5, 7)
    every = layouts(mesh, 2, partial=True)
    for have, want in itertools.product(every, every):
        twins = [Layout(w.sharding_specs, apart, partial=w.partial) for w in (have, want)]
        x, y = gdt.asarray(whole, layout=have), gdt.asarray(whole, layout=twins[0])
        for transport in (used, copies):
            transport.calls.clear()
            transport.bytes.clear()
        moved, twin = gdt.relayout(x, want), gdt.relayout(y, twins[1])
        assert (used.calls, used.bytes) == (copies.calls, copies.bytes), f"{have} -> {want}"
        for a, b in zip(moved.blocks, twin.blocks, strict=True):
            np.testing.assert_array_equal(a, b)
    assert {c.name for c in used.nccl.calls} == {
        "allReduce", "allGather", "reduceScatter", "send", "recv",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("way", "calls"),
    [
        ("to_one", {"reduce", "broadcast"}),
        ("hierarchical", {"reduceScatter", "allReduce", "allGather"}),
    ],
)
def test_the_ways_of_an_all_reduce_go_through_nccl(
    way: str, calls: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mesh = create_mesh(DIMS, blocks=4, mesh_name="nccl", reduce_by=way)
    transport = made(mesh)
    monkeypatch.setitem(transports._transports, mesh, transport)
    pairs = itertools.product("ifd", ("sum", "max", "prod"))
    for dtype, reduction in [*pairs, ("?", "max"), ("F", "sum")]:
        value = (np.arange(24).reshape(8, 3) % 5).astype(dtype)
        if dtype in "fd":
            value[4, 1] = np.nan
        partial = getattr(gdt, reduction)(
            gdt.asarray(value, layout=Layout([("a", "b"), None], mesh)), axis=0
        )
        before = [block.copy() for block in partial.blocks]
        transport.nccl.calls.clear()
        resolved = partial.resolve()
        np.testing.assert_array_equal(resolved.numpy(), UFUNCS[reduction].reduce(value, 0))
        assert {c.name for c in transport.nccl.calls} == calls
        for a, b in zip(partial.blocks, before, strict=True):
            np.testing.assert_array_equal(a, b)  # nothing was received in its memory


@pytest.mark.parametrize("name", sorted(SAMPLES)[::3])
def test_ops_go_through_nccl(name: str, mesh: Mesh, used: NcclTransport) -> None:
    for sample in SAMPLES[name][:2]:
        oracle = Oracle(FUNCTIONS[name], sample)
        ranks = [a.ndim for a in sample.arrays]
        for chosen in choices(mesh, ranks, limit=2, seed=len(name)):
            oracle.check(mesh, chosen, gradients=False)


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mesh]:
    """A mesh of four GPUs, as far as CuPy's interface on the host goes, with NCCL between them."""
    yield engine.mesh_with_nccl(dict(DIMS), 4, monkeypatch)
    assert not engine.CUPY.order.faults


@pytest.mark.parametrize("name", sorted(SAMPLES)[::4])
def test_ops_on_gpus_go_through_nccl(name: str, gpus: Mesh) -> None:
    oracle = Oracle(FUNCTIONS[name], SAMPLES[name][0])
    ranks = [a.ndim for a in SAMPLES[name][0].arrays]
    for chosen in choices(gpus, ranks, limit=2, seed=len(name)):
        oracle.check(gpus, chosen, gradients=False)


def test_relayouts_on_gpus_go_through_nccl(gpus: Mesh) -> None:
    whole = np.arange(35.0).reshape(5, 7)
    every = layouts(gpus, 2, partial=True)
    for have, want in itertools.islice(itertools.product(every, every), 0, None, 5):
        moved = gdt.relayout(gdt.asarray(whole, layout=have), want)
        np.testing.assert_array_equal(moved.numpy(), whole)
        assert [b.device_id for b in moved.blocks] == [0, 1, 2, 3]
    calls = transports.transport_of(gpus).nccl.calls
    assert {c.name for c in calls} == {
        "allReduce", "allGather", "reduceScatter", "send", "recv",
    }  # fmt: skip


@pytest.mark.parametrize("reduction", UFUNCS)
@pytest.mark.parametrize("dtype", EVERY_DTYPE)
def test_reductions_on_gpus(dtype: str, reduction: str, gpus: Mesh) -> None:
    whole = np.random.default_rng(0).integers(0, 7, (4, 4)).astype(dtype)
    if reduction in ("max", "min") and np.dtype(dtype).kind == "c":
        pytest.skip("complex numbers have no order on GPUs")
    have = Layout([None, None], gpus, partial=dict.fromkeys("ab", reduction))
    moved = gdt.relayout(gdt.asarray(whole, layout=have), Layout(["a", None], gpus))
    np.testing.assert_array_equal(moved.numpy(), whole)


def test_a_training_goes_through_nccl(mesh: Mesh, used: NcclTransport) -> None:
    def losses(m: Mesh) -> list[float]:
        model = gdt.nn.Sequential(
            gdt.nn.Dense(12, 8, Layout([None, "b"], m), activation="relu", key=1),
            gdt.nn.BatchNorm(8, Layout(["b"], m)),
            gdt.nn.Dense(8, 3, Layout(["b", None], m), key=2),
        )
        rng = np.random.default_rng(0)
        x = gdt.asarray(rng.random((16, 12), np.float32), layout=Layout(["a", None], m))
        y = gdt.asarray(rng.integers(0, 3, 16), layout=Layout(["a"], m))
        loss = gdt.nn.losses.sparse_softmax_cross_entropy
        trainer = gdt.training.Trainer(model, gdt.optim.SGD(0.1), loss)
        return trainer.fit([(x, y)], epochs=4, show=False)["loss"]

    got, want = losses(mesh), losses(create_mesh(DIMS))
    np.testing.assert_allclose(got, want, rtol=1e-5)
    assert got[-1] < got[0]


@pytest.mark.parametrize("shape", [(1, 1, 0), (1, 1, 0, 3)])
def test_arrays_without_elements(shape: tuple[int, ...], mesh: Mesh) -> None:
    blocks, transport = blocks_of(mesh, shape, "f"), made(mesh)
    assert [b.shape for b in transport.all_reduce(blocks, (0,), "max")] == [shape] * 4
    joined = transport.all_gather([[b] for b in blocks], (0,))
    assert [b[0].shape for b in joined] == [(2, *shape[1:])] * 4
    front = [np.zeros((2, 1, *shape[1:])) for _ in blocks]
    assert [b.shape for b in transport.all_to_all(front, 0)] == [(1, 2, *shape[1:])] * 4


# ---------------------------------------------------------------- what NCCL is asked


def test_an_all_reduce_is_one_call_of_each_rank_in_one_group(mesh: Mesh) -> None:
    transport = made(mesh)
    transport.all_reduce(blocks_of(mesh, (1, 1, 6), "f"), (1,), "sum")
    calls = transport.nccl.calls
    assert [(c.name, c.count, c.dtype, c.op) for c in calls] == [
        ("allReduce", 6, np.dtype("f"), OPS["SUM"])
    ] * 4
    assert [c.rank for c in calls] == [0, 1, 0, 1]
    assert [c.communicator for c in calls] == [100, 100, 101, 101]
    assert [c.stream for c in calls] == [1000, 1001, 1002, 1003]  # of each device
    assert len({c.group for c in calls}) == 1


@pytest.mark.parametrize(
    ("dtype", "reduction", "sent", "op"),
    [
        ("?", "sum", "u1", "MAX"), ("?", "prod", "u1", "MIN"), ("h", "sum", "i4", "SUM"),
        ("H", "max", "u4", "MAX"), ("l", "min", "i8", "MIN"), ("e", "sum", "e", "SUM"),
        ("e", "max", "i4", "MAX"), ("f", "min", "i4", "MIN"), ("d", "max", "i8", "MAX"),
        ("d", "prod", "d", "PROD"), ("F", "sum", "f", "SUM"), ("D", "sum", "d", "SUM"),
    ],
)  # fmt: skip
def test_dtypes_travel_as_those_that_nccl_has(
    dtype: str, reduction: str, sent: str, op: str, mesh: Mesh
) -> None:
    transport = made(mesh)
    transport.all_reduce(blocks_of(mesh, (1, 1, 4), dtype), (0, 1), reduction)
    (call, *_) = transport.nccl.calls
    count = 8 if dtype in "FD" else 4
    assert (call.name, call.count, call.dtype, call.op) == (
        "allReduce", count, np.dtype(sent), OPS[op],
    )  # fmt: skip


def test_what_nccl_cannot_reduce_is_gathered(mesh: Mesh) -> None:
    transport = made(mesh)
    transport.all_reduce(blocks_of(mesh, (1, 1, 4), "F"), (0,), "prod")
    assert {(c.name, c.count, c.dtype) for c in transport.nccl.calls} == {
        ("allGather", 32, np.dtype("u1"))
    }


def test_several_arrays_are_gathered_in_one_group(mesh: Mesh) -> None:
    transport = made(mesh)
    bundles = [[np.ones((1, 1, 3), "f"), np.ones((1, 1), "?")] for _ in mesh.blocks]
    transport.all_gather(bundles, (1,))
    assert [(c.count, c.rank) for c in transport.nccl.calls] == [
        (12, 0), (1, 0), (12, 1), (1, 1), (12, 0), (1, 0), (12, 1), (1, 1),
    ]  # fmt: skip
    assert len({c.group for c in transport.nccl.calls}) == 1


def test_an_exchange_is_one_group_of_sends_and_receives_in_order(mesh: Mesh) -> None:
    transport = made(mesh)
    sent = np.arange(12.0).reshape(3, 4)
    filled = np.zeros((4, 3))
    sends = [Transfer(0, 3, sent[:, 1:3]), Transfer(0, 3, sent[0, :1]), Transfer(2, 1, sent[1])]
    places = [filled[:2].T, filled[2, :1], filled.reshape(-1)[8:12]]
    receives = [Transfer(s, t, b) for (s, t, _), b in zip(sends, places, strict=True)]
    transport.exchange(sends, receives, "float64[3, 4]")
    for (_, _, have), want in zip(sends, places, strict=True):
        np.testing.assert_array_equal(want, have)
    assert [(c.name, c.rank, c.peer, c.count) for c in transport.nccl.calls] == [
        ("send", 0, 3, 48), ("send", 0, 3, 8), ("recv", 1, 2, 32), ("send", 2, 1, 32),
        ("recv", 3, 0, 48), ("recv", 3, 0, 8),
    ]  # fmt: skip
    assert transport.bytes["exchange"] == 88


def test_a_broadcast_is_one_call_of_each_rank_from_the_first(mesh: Mesh) -> None:
    transport, copies = made(mesh), CopyTransport(mesh)
    blocks = [np.full((1, 1, 3), i, "f") for i in range(4)]
    want = copies.broadcast(blocks, (0,))
    found = transport.broadcast(blocks, (0,))
    assert [b[0, 0, 0] for b in found] == [b[0, 0, 0] for b in want] == [0, 1, 0, 1]
    assert [(c.name, c.count, c.peer, c.rank) for c in transport.nccl.calls] == [
        ("broadcast", 12, 0, 0), ("broadcast", 12, 0, 0),
        ("broadcast", 12, 0, 1), ("broadcast", 12, 0, 1),
    ]  # fmt: skip
    assert (transport.calls, transport.bytes) == (copies.calls, copies.bytes)
    assert transport.bytes["broadcast"] == 24


@pytest.mark.parametrize(
    ("specs", "partial", "sent"),
    [
        ([None, None], {}, 3 * 48),
        (["a", None], {}, 2 * 24),
        ([None, ("a", "b")], {}, 0),
        ([None, None], {"a": "sum"}, 2 * 48),
        ([None, None], {"a": "max", "b": "max"}, 0),
    ],
)
def test_large_replicas_come_from_one_gpu(
    specs: list[Any],
    partial: dict[str, str],
    sent: int,
    gpus: Mesh,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(placing, "BROADCAST_SIZE", 12)
    whole, transport = np.arange(6.0).reshape(2, 3), transports.transport_of(gpus)
    x = gdt.asarray(whole, layout=Layout(specs, gpus, partial=partial))
    assert transport.bytes["broadcast"] == sent
    assert [b.device_id for b in x.blocks] == [0, 1, 2, 3]
    np.testing.assert_array_equal(x.numpy(), whole)


def test_communicators_are_made_once_for_each_set_of_axes(mesh: Mesh) -> None:
    transport = made(mesh)
    for axes in [(0,), (1,), (0, 1)] * 2:
        transport.all_reduce(blocks_of(mesh, (1, 1, 2), "f"), axes, "sum")
    assert [sorted(ranks) for ranks in transport.nccl.made.values()] == [[0, 1]] * 4 + [
        [0, 1, 2, 3]
    ]


def test_communication_is_ordered_after_and_before_what_is_computed(mesh: Mesh) -> None:
    transport = made(mesh)
    transport.all_reduce(blocks_of(mesh, (1, 1, 2), "f"), (0,), "sum")
    order = transport.backend.order
    assert order[:4] == [f"begin {i}" for i in range(4)]
    assert sorted(order[4:]) == [f"end {i}" for i in range(4)]


class OtherProcess:
    """Messages to process 0, which has drawn the identifiers of its groups."""

    timeout, peers, index = 5.0, [Peer(0, "a", 1), Peer(1, "a", 2)], 1

    def gather(self, value: Any, what: str) -> list[Any]:
        return [{0: 7, 1: 8}, value]


def test_a_process_takes_the_ranks_of_its_own_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_current", processes.Processes(1, ("a", "a")))
    mesh = create_mesh(DIMS, blocks=4)
    assert mesh.blocks == ((1, 0), (1, 1))
    transport = made(mesh, messages=OtherProcess())
    monkeypatch.setattr(transport.nccl, "groupEnd", lambda: None)  # the others are not here
    found = transport._communicators((0,), "all_reduce over 'a'")
    assert [(c.size, c.identifier, c.rank) for c in found] == [(2, 7, 1), (2, 8, 1)]
    found = transport._communicators((1,), "all_reduce over 'b'")
    assert [(c.size, c.rank) for c in found] == [(2, 0), (2, 1)]
    assert len({c.identifier for c in found} - {7, 8}) == 1  # drawn here


# ---------------------------------------------------------------- one process for each GPU


class Ranks(NamedTuple):
    """The transports of four processes with one block each, the NCCL that they share, and the
    meshes, which transports do not keep."""

    transports: list[NcclTransport]
    nccl: SharedNccl
    meshes: list[Mesh]

    def each(self, call: Callable[[int, NcclTransport], Any]) -> list[Any]:
        """What every process returns, all at the same time."""
        with ThreadPoolExecutor(len(self.transports)) as pool:
            return list(pool.map(call, range(len(self.transports)), self.transports))


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ranks]:
    count = 4
    monkeypatch.setattr(Messages, "is_in_own_thread", lambda self: True)  # threads are processes
    monkeypatch.setattr(messages_module, "LINGER", 0.1)
    nccl, found, meshes, connected = SharedNccl(count), [], [], threads.connected(count, 20.0)
    for i, messages in enumerate(connected):
        monkeypatch.setattr(processes, "_current", processes.Processes(i, ("here",) * count))
        meshes.append(create_mesh(DIMS, blocks=count))
        found.append(NcclTransport(meshes[-1], nccl, HostBackend(), messages, pointer=address))
    yield Ranks(found, nccl, meshes)
    threads.together(*(messages.close for messages in connected))


def test_other_threads_wait_for_collectives_and_begin_none(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks.each(lambda i, t: t.all_reduce([np.ones((1, 1, 4))], (0, 1), "sum"))
    monkeypatch.setattr(Messages, "is_in_own_thread", lambda self: False)
    first = ranks.transports[0]
    first.wait()
    messages = first.messages
    assert messages is not None and not messages.unsent()
    begun = first.begun
    with pytest.raises(DistributedError, match="all_reduce: thread 'MainThread' exchanges data"):
        first.all_reduce([np.ones((1, 1, 4))], (0, 1), "sum")
    assert first.begun == begun
    monkeypatch.setattr(Messages, "is_in_own_thread", lambda self: True)
    for ((total,),) in zip(
        ranks.each(lambda i, t: t.all_reduce([np.ones((1, 1, 4))], (0, 1), "sum")), strict=True
    ):
        assert (total == 4).all()  # nothing was given up


def test_one_process_for_each_gpu_moves_what_one_process_moves(mesh: Mesh, ranks: Ranks) -> None:
    copies = CopyTransport(mesh)
    blocks = blocks_of(mesh, (1, 1, 4, 3), "f")
    full = blocks_of(mesh, (1, 2, 3), "d")
    front = blocks_of(mesh, (2, 1, 1, 3), "h")
    for axes in [(0,), (1,), (0, 1)]:
        got = ranks.each(lambda i, t, axes=axes: t.all_reduce([blocks[i]], axes, "max"))
        for (a,), b in zip(got, copies.all_reduce(blocks, axes, "max"), strict=True):
            np.testing.assert_array_equal(a, b)
        got = ranks.each(lambda i, t, axes=axes: t.broadcast([full[i].copy()], axes))
        for (a,), b in zip(got, copies.broadcast(full, axes), strict=True):
            np.testing.assert_array_equal(a, b)
        got = ranks.each(lambda i, t, axes=axes: t.all_gather([[blocks[i], full[i]]], axes))
        want = copies.all_gather(list(zip(blocks, full, strict=True)), axes)
        for ((a, c),), (b, d) in zip(got, want, strict=True):
            np.testing.assert_array_equal(a, b)
            np.testing.assert_array_equal(c, d)
    got = ranks.each(lambda i, t: t.reduce_scatter([full[i]], 1, "sum"))
    for (a,), b in zip(got, copies.reduce_scatter(full, 1, "sum"), strict=True):
        np.testing.assert_array_equal(a, b)
    got = ranks.each(lambda i, t: t.all_to_all([front[i]], 0))
    for (a,), b in zip(got, copies.all_to_all(front, 0), strict=True):
        np.testing.assert_array_equal(a, b)
    filled = np.zeros(3)

    def exchange(i: int, t: NcclTransport) -> None:
        t.exchange(
            [Transfer(0, 3, np.arange(3.0))] if i == 0 else [],
            [Transfer(0, 3, filled)] if i == 3 else [],
            "float64[3]",
        )

    ranks.each(exchange)
    assert filled.tolist() == [0, 1, 2]


def test_communicators_of_an_axis_are_split_from_the_one_of_all(ranks: Ranks) -> None:
    one = np.ones((1, 1, 2), "f")
    for axes in [(0,), (1,), (0, 1)] * 2:
        ranks.each(lambda i, t, axes=axes: t.all_reduce([one], axes, "sum"))
    made = {identifier: len(ranks) for identifier, ranks in ranks.nccl.made.items()}
    assert made == {100: 4, 101: 2, 102: 2, 103: 2, 104: 2}
    assert next(ranks.nccl.identifiers) == 105  # process 0 drew one identifier, for all blocks
    assert [t.communicators[(0,)][0].rank for t in ranks.transports] == [0, 0, 1, 1]
    assert [t.communicators[(1,)][0].rank for t in ranks.transports] == [0, 1, 0, 1]


# ---------------------------------------------------------------- what fails


@pytest.fixture
def begun(mesh: Mesh) -> Iterator[NcclTransport]:
    """A transport with a collective that does not end."""
    transport = made(mesh, timeout=0.05)
    transport.all_reduce(blocks_of(mesh, (1, 1, 2), "f"), (0,), "sum")
    stuck = Event()
    stuck.done = False
    transport.running.append(Running(transport._what("all_gather", (1,)), [stuck], set()))
    yield transport


def check_names(found: DistributedError, communicators: list[Any]) -> None:
    assert str(found).startswith("all_gather: NCCL: ")
    assert "all_gather over 'b' of Mesh(a=2, b=2) on cpu:0, cpu:1, cpu:2, cpu:3" in str(found)
    assert all(c.aborted for c in communicators)  # else the devices would wait for ever


def test_an_asynchronous_error_names_the_collective(begun: NcclTransport) -> None:
    communicators = begun.communicators[(0,)]
    begun.nccl.failure = "NCCL_ERROR_REMOTE_ERROR"
    with pytest.raises(DistributedError, match="NCCL_ERROR_REMOTE_ERROR") as found:
        begun.wait()
    check_names(found.value, communicators)


def test_a_collective_that_does_not_end_is_named(begun: NcclTransport) -> None:
    communicators = begun.communicators[(0,)]
    with pytest.raises(DistributedError, match=r"it has not ended after 0\.05 s") as found:
        begun.wait()
    check_names(found.value, communicators)


@pytest.mark.parametrize(
    ("reason", "says"),
    [
        (None, r"process 1 \(host here, pid 101\) has died"),
        ("", r"process 1 \(host here, pid 101\) has ended\n"),
        ("MemoryError: 3 GB", "has ended: MemoryError: 3 GB"),
    ],
)
def test_a_process_that_has_ended_is_not_waited_for(
    reason: str | None, says: str, ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks_module, "LATE", 0.05)
    one, stuck = np.ones((1, 1, 2), "f"), Event()
    ranks.each(lambda i, t: t.all_reduce([one], (1,), "sum"))
    first, second = ranks.transports[:2]
    assert first._others((1,)) == {1} and first._others((0,)) == {2}
    communicators, stuck.done = first.communicators[(1,)], False
    first.running.append(Running(first._what("all_reduce", (1,)), [stuck], {1}))
    monkeypatch.setattr(Messages, "grace", 0.05)
    if reason is None:
        second.messages._control.close()
    else:
        second.messages.close(reason)
    with pytest.raises(DistributedError, match=says) as found:
        first.wait()
    assert "all_reduce over 'b' of Mesh(a=2, b=2) on cpu:0, cpu:1, cpu:2, cpu:3" in str(found.value)
    assert all(c.aborted for c in communicators)


def test_processes_that_have_done_different_things_are_told_so_when_they_wait(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages_module, "LINGER", 10.0)  # cores may be busy
    one = np.ones((1, 1, 2), "f")
    ranks.each(lambda i, t: t.all_reduce([one], (1,), "sum"))
    for i, transport in enumerate(ranks.transports):
        transport.messages.history.add(Action("op", "exp(float32[2])"))
        transport.messages.history.add(
            Action("op", "log(float32[2])" if i == 2 else "exp(float32[2])")
        )

    def wait(_: int, transport: NcclTransport) -> str:
        with pytest.raises(DistributedError) as found:
            while True:  # until the checksums of the others have arrived
                transport.wait()
                transport.messages.listen(0.01)  # else they send more than busy cores can read
        return str(found.value)

    for i, text in enumerate(ranks.each(wait)):
        assert "the processes have called different ops" in text
        assert "process 2 (host here, pid 102): call 2: log(float32[2]), line " in text
        assert re.search(r"process [013] \(host here, pid 10[013]\): call 2: exp\(float32", text)
        assert not ranks.transports[i].communicators  # given up


def test_processes_compare_what_they_have_done_after_some_collectives(ranks: Ranks) -> None:
    one = np.ones((1, 1, 2), "f")
    for i, transport in enumerate(ranks.transports):
        transport.messages.history.add(Action("op", f"multiply with {min(i, 1)}"))

    def reduce(_: int, transport: NcclTransport) -> int:
        for _ in range(3 * ranks_module.EVERY):
            transport.all_reduce([one], (0, 1), "sum")
            transport.messages.listen(0.001)  # else all could be done before any has listened
        return -1

    with pytest.raises(DistributedError, match="multiply with 0, line"):
        ranks.each(reduce)
    assert ranks.transports[0].begun <= 2 * ranks_module.EVERY


def test_what_has_ended_is_not_waited_for(mesh: Mesh) -> None:
    transport = made(mesh)
    for n in range(1, 2 * ranks_module.EVERY + 2):
        transport.all_reduce(blocks_of(mesh, (1, 1, 2), "f"), (0,), "sum")
        assert len(transport.running) == n % ranks_module.EVERY + bool(n >= ranks_module.EVERY)
    transport.wait()
    assert not transport.running


@pytest.mark.parametrize(
    "wait", [gdt.synchronize, lambda: gdt.ones(1).block_until_ready(), wait_for_all]
)
def test_waiting_for_devices_waits_for_collectives(
    wait: Callable[[], object], mesh: Mesh, used: NcclTransport
) -> None:
    used.timeout = 0.05
    used.all_reduce(blocks_of(mesh, (1, 1, 2), "f"), (0,), "sum")
    used.running[0].events[0].done = False
    with gdt.default_mesh(mesh), pytest.raises(DistributedError, match="it has not ended after"):
        wait()


def test_a_call_that_nccl_refuses_names_the_collective(mesh: Mesh) -> None:
    transport = made(mesh)

    def refuse() -> None:
        raise transport.nccl.NcclError("NCCL_ERROR_UNHANDLED_CUDA_ERROR")

    transport.nccl.groupStart = refuse
    with pytest.raises(DistributedError, match="all_reduce: NCCL: NCCL_ERROR_UNHANDLED_CUDA"):
        transport.all_reduce(blocks_of(mesh, (1, 1, 2), "f"), (0,), "sum")


class Installed:
    available, version = True, 23203

    def get_version(self) -> int:
        return self.version


def test_nccl_that_is_missing_or_too_old_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = Installed()
    for name, value in {"cupy": object(), "cupy.cuda": type("cuda", (), {"nccl": found})}.items():
        monkeypatch.setitem(sys.modules, name, value)
    assert nccl_module.load() is found
    found.version = 21602
    with pytest.raises(DistributedError, match=r"NCCL 2\.16\.2 is too old: 2\.18\.1"):
        nccl_module.load()
    found.available = False
    with pytest.raises(DistributedError, match=r"(?s)not installed.*pip install 'gdt\[cuda12\]'"):
        nccl_module.load()
