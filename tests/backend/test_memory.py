"""Where the memory goes: replicas are stored once per physical device, a training step copies no
parameter, and recycled buffers are bounded."""

from __future__ import annotations

import array
import gc
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gdt
from gdt import Layout, nn
from gdt.array.array import DistributedArray
from gdt.backend import backend_of
from gdt.backend.numpy import BufferPool
from gdt.errors import ArgumentError
from gdt.observe import Observer, observing
from gdt.ops.products.contraction import matrix_product, matrix_product_nt, matrix_product_tn
from gdt.optim import SGD, Adam, Optimizer
from tests.allocations import allocations

BATCH, WORDS, HIDDEN, CLASSES = 64, 1200, 48, 2

MESHES: list[dict[str, int]] = [
    {"batch": 1, "feature": 1, "model": 1},
    {"batch": 8, "feature": 1, "model": 1},
    {"batch": 4, "feature": 1, "model": 2},
    {"batch": 2, "feature": 2, "model": 2},
    {"batch": 3, "feature": 1, "model": 2},
]
ON_EVERY_MESH = pytest.mark.parametrize(
    "dims", MESHES, ids=lambda d: "x".join(map(str, d.values()))
)
APART = pytest.mark.parametrize("apart", [False, True], ids=["folded", "apart"])
OPTIMIZERS = pytest.mark.parametrize(
    "optimizer", [SGD(0.01), SGD(0.01, momentum=0.9), Adam(0.01)], ids=["SGD", "momentum", "Adam"]
)


class Network(nn.Module):
    """Dense, ReLU, batch normalisation, dense."""

    def __init__(self, mesh: gdt.Mesh) -> None:
        first = Layout(["feature", "model"], mesh)
        self.dense1 = nn.Dense(WORDS, HIDDEN, first, activation="relu", key=1)
        self.norm = nn.BatchNorm(HIDDEN, first.delete([0]))
        self.dense2 = nn.Dense(HIDDEN, CLASSES, Layout(["model", None], mesh), key=2)

    def __call__(self, x: DistributedArray) -> DistributedArray:
        return self.dense2(self.norm(self.dense1(x)))


@given(data=st.data(), shape=st.tuples(st.sampled_from([96, 97, 128]), st.sampled_from([90, 128])))
def test_large_blocks_lie_in_memory_as_the_whole_array_does(
    data: st.DataObject, shape: tuple[int, int]
) -> None:
    mesh = gdt.create_mesh([("a", 2), ("b", 3), ("c", 2)])
    axes = data.draw(st.permutations(["a", "b", "c"]))
    first, second = sorted(data.draw(st.tuples(st.integers(0, 3), st.integers(0, 3))))
    layout = Layout([tuple(axes[:first]) or None, tuple(axes[first:second]) or None], mesh)
    x = gdt.asarray(np.arange(np.prod(shape), dtype="f").reshape(shape), layout=layout)
    padded = tuple(n * p for n, p in zip(x.type.local_shape, layout.shard_counts, strict=True))
    for made in (x, x + 1, x.copy(), gdt.zeros_like(x), gdt.random.normal(shape, layout=layout)):
        (block,) = made.blocks
        shards = [*np.argsort(-np.array(block.strides), kind="stable")]
        shards = [a for a in shards if block.shape[a] > 1]
        in_order = [a for d in (0, 1) for a in (*layout.dims[d], mesh.ndim + d)]
        assert shards == [a for a in in_order if block.shape[a] > 1]
        assert block.transpose(
            shards + [a for a in range(block.ndim) if a not in shards]
        ).flags.c_contiguous
        assert np.shares_memory(block, made.numpy())
        assert made.numpy().strides == (padded[1] * made.dtype.itemsize, made.dtype.itemsize)


def test_recycled_memory_begins_a_cache_line_and_belongs_to_the_pool() -> None:
    pool = BufferPool()
    kept = [pool.empty((n, 1 << 10), np.dtype(kind)) for n in (64, 65, 300) for kind in "bfd"]
    for block in kept:
        assert block.ctypes.data % 64 == 0 and block.flags.writeable
        assert pool.owns(block.base) and pool.owns(block.T[::2].base)
    assert not pool.owns(kept[0]) and not pool.owns(None)
    addresses = {block.ctypes.data for block in kept}
    assert len(addresses) == len(kept)
    held = pool.nbytes
    kept.clear()
    del block
    again = pool.empty((64, 1 << 10), np.dtype("d"))
    assert again.ctypes.data in addresses and pool.nbytes == held
    pool.trim()
    assert pool.nbytes == again.nbytes and pool.owns(again.base)


def test_kept_memory_has_a_limit() -> None:
    pool = BufferPool(smallest=1 << 15, capacity=1 << 20)
    fresh = lambda: pool.empty((1 << 15,), np.dtype("d"))  # 256 KiB
    assert pool.limit(1 << 19) == 1 << 20
    held = [fresh() for _ in range(5)]
    assert pool.nbytes == 1 << 19  # the others are memory of their own
    held.pop(0)
    assert pool.limit(1 << 18) == 1 << 19 and pool.nbytes == 1 << 18
    assert pool.owns(held[0].base)
    held[0][:] = 7.0
    pool.limit(0)  # what is in use stays what it is
    assert pool.nbytes == 0 and not pool.owns(held[0].base) and (held[0] == 7.0).all()
    held.append(fresh())
    assert pool.nbytes == 0
    pool.limit(1 << 20)
    held.append(fresh())
    assert pool.free() == 0
    held.clear()
    assert pool.free() == 1 << 18 and pool.nbytes == 0


def test_arrays_stay_what_they_are_where_no_memory_is_kept() -> None:
    gdt.free_memory()  # of the devices of other tests
    x = gdt.ones((64, 1 << 10)) + 1.0
    before = gdt.set_cache_limit(0)
    try:
        step = gdt.function(lambda x: gdt.exp(x * 0.0) + x)
        for _ in range(4):
            x = step(x)
        x += 1.0
        x[0] = 0.0
        assert (x.numpy()[1:] == 7.0).all() and gdt.free_memory() == 0
    finally:
        gdt.set_cache_limit(before)
    with pytest.raises(ArgumentError, match="set_cache_limit: nbytes is -1"):
        gdt.set_cache_limit(-1)


def test_a_pool_is_at_most_an_eighth_larger_than_its_blocks_and_makes_room_for_them() -> None:
    pool = BufferPool(smallest=1 << 10, capacity=1 << 12)
    for size in range(1 << 10, 1 << 12, 37):
        block = pool.empty((size,), np.dtype("u1"))
        assert pool.owns(block.base) and size <= block.base.nbytes <= size * 9 / 8
        del block
    assert pool.nbytes <= pool.capacity


@pytest.mark.parametrize(
    "specs", [["a", "b", "c"], [None, ("b", "a"), None], [None, None, "a"], ["c", None, "a"]]
)
def test_taking_from_large_blocks_keeps_their_order(specs: list[Any]) -> None:
    mesh = gdt.create_mesh([("a", 2), ("b", 2), ("c", 2)])
    whole = np.random.default_rng(0).normal(size=(64, 48, 60))
    x = gdt.asarray(whole, layout=Layout(specs, mesh))
    for axis, size in enumerate(whole.shape):
        for at in (
            3,
            np.array([1, 0, 2]),
            np.array([[1, 2], [3, 4]]),
            np.arange(size)[::-1].copy(),
        ):
            taken = gdt.take(x, at, axis=axis)
            np.testing.assert_array_equal(taken.numpy(), whole.take(at, axis=axis))
            if taken.type.memory_order and not x.layout.dims[axis]:
                block = taken.blocks[0].transpose(taken.type.memory_order)
                assert block.flags.c_contiguous


def test_elementwise_functions_of_transposed_views_lie_as_these_do() -> None:
    mesh = gdt.create_mesh([("x", 2)])
    x = gdt.ones((1024, 256), dtype="float32", layout=Layout(["x", None], mesh))
    for _ in range(3):  # the later calls write into recycled memory
        for transposed in (x.T, x.T + 1):
            lengths = {n: s for n, s in zip(*_facts(gdt.exp(transposed)), strict=True) if n > 2}
            assert lengths == {256: 4, 512: 1024}
        assert _facts(gdt.exp(x))[1][-1] == 4  # and plans of other views are not changed by it
    broadcast = gdt.broadcast_to(gdt.ones(1024, dtype="float32"), (256, 1024)) + 1
    assert broadcast.blocks[0].flags.c_contiguous


def _facts(x: DistributedArray) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shape and the strides of the only block."""
    return x.blocks[0].shape, x.blocks[0].strides


def test_products_of_large_blocks_are_one_product_of_views(monkeypatch: Any) -> None:
    mesh = gdt.create_mesh([("batch", 2), ("feature", 2), ("model", 2)])
    random = np.random.default_rng(0)

    def drawn(*sizes: int) -> Any:  # small integers, whose products are exact
        return random.integers(-8, 8, sizes).astype("f")

    x, w, g = drawn(128, 640), drawn(640, 320), drawn(128, 320)
    products = [x @ w, g @ w.T, x.T @ g]
    x = gdt.asarray(x, layout=Layout(["batch", "feature"], mesh))
    w = gdt.asarray(w, layout=Layout(["feature", "model"], mesh))
    g = gdt.asarray(g, layout=Layout(["batch", "model"], mesh))
    cases = [
        (matrix_product, x, w, [(128, 640), (640, 320), (128, 320)]),
        (matrix_product_nt, g, w, [(128, 320), (320, 640), (128, 640)]),
        (matrix_product_tn, x, g, [(640, 128), (128, 320), (640, 320)]),
    ]
    calls: list[Any] = []
    matmul = np.matmul

    def noted(left: Any, right: Any, out: Any = None) -> Any:
        made = matmul(left, right, out=out)
        calls.append((left, right, made))
        return made

    for (product, left, right, shapes), exact in zip(cases, products, strict=True):
        expected = product(left, right).numpy()  # and a plan that has run
        calls.clear()
        with monkeypatch.context() as patch:
            patch.setattr(np, "matmul", noted)
            out = product(left, right)
        (wholes,) = calls
        assert [whole.shape for whole in wholes] == shapes
        for whole, made in zip(wholes, (left, right, out), strict=True):
            assert np.shares_memory(whole, made.blocks[0])
        np.testing.assert_array_equal(out.numpy(), expected)
        np.testing.assert_array_equal(expected, exact)


@pytest.mark.parametrize(
    "subscripts, left, right",
    [
        ("ik,ljk->lij", (40, 300), (6, 50, 300)),
        ("ik,ljk->jil", (40, 300), (6, 50, 300)),
        ("ik,kj->ji", (128, 300), (300, 80)),
        ("aik,ljk->laij", (3, 20, 300), (4, 50, 300)),
        ("ik,ljk->lij", (40, 30), (6, 50, 30)),
    ],
)
@pytest.mark.parametrize("blocks", [1, 4])
def test_products_in_any_order_in_recycled_memory(
    subscripts: str, left: tuple[int, ...], right: tuple[int, ...], blocks: int
) -> None:
    random = np.random.default_rng(0)
    x, w = (random.integers(-8, 8, sizes).astype("f") for sizes in (left, right))
    mesh = gdt.create_mesh([("a", 2), ("b", 2)], blocks=blocks)
    for x_specs in (["a", *[None] * (x.ndim - 1)], [None] * (x.ndim - 1) + ["b"]):
        for w_specs in ([None, "b", *[None] * (w.ndim - 2)], ["a", *[None] * (w.ndim - 1)]):
            operands = [
                gdt.asarray(x, layout=Layout(x_specs, mesh)),
                gdt.asarray(w, layout=Layout(w_specs, mesh)),
            ]
            for _ in range(3):  # the first run gives no memory
                out = gdt.einsum(subscripts, *operands).numpy()
                np.testing.assert_array_equal(out, np.einsum(subscripts, x, w, optimize=True))


class Blocks(Observer):
    """Checks what every op returns; collects how many arrays were replicated."""

    def __init__(self) -> None:
        self.seen = self.replicated = 0

    def on_op(self, op: Any, args: tuple[Any, ...], static: dict[str, Any], out: Any) -> None:
        for x in out if isinstance(out, tuple | list) else (out,):
            if isinstance(x, DistributedArray):
                self.check(x, op.name)

    def on_leave(self, name: str, args: tuple[Any, ...], out: Any) -> None:
        self.on_op(type("Op", (), {"name": name}), args, {}, out)

    def check(self, x: DistributedArray, name: str) -> None:
        self.seen += 1
        self.replicated += x.layout.is_fully_replicated()
        for block in x.blocks:
            assert block.nbytes == block_bytes(x), f"{name}: {x.type} in a block {block.shape}"


def block_bytes(x: DistributedArray) -> int:
    """What one physical device needs: each of its shards once, whatever number of its coordinates
    hold it. A partial sum is added up in its block."""
    shards = math.prod(x.mesh.box[a] for axes in x.layout.dims for a in axes)
    return shards * math.prod(x.type.local_shape) * x.dtype.itemsize


def training(
    dims: dict[str, int], apart: bool, optimizer: Optimizer
) -> tuple[Network, Callable[[], DistributedArray]]:
    """A network, and a function that trains it by one step."""
    mesh = gdt.create_mesh(dims, blocks=math.prod(dims.values()) if apart else 1, device_type="CPU")
    rng = np.random.default_rng(0)
    values = rng.random((BATCH, WORDS), dtype=np.float32)
    x = gdt.asarray(values, layout=Layout(["batch", "feature"], mesh))
    y = gdt.asarray(rng.integers(0, CLASSES, BATCH), layout=Layout(["batch"], mesh))
    network = Network(mesh)
    optimizer.init(network)

    def loss(model: Network) -> DistributedArray:
        return nn.losses.sparse_softmax_cross_entropy(y, model(x))

    value_and_grad = gdt.value_and_grad(loss)

    def step() -> DistributedArray:
        value, gradients = value_and_grad(network)
        optimizer.update(network, gradients)
        return value

    return network, step


def addresses(network: Network, optimizer: Optimizer) -> dict[str, list[int]]:
    """Where the blocks of all parameters and of the optimizer's state lie."""
    arrays = dict(network.parameters())
    for kind, kept in optimizer.state.items():
        arrays |= {f"{kind} of {name}": x for name, x in kept.items()}
    return {
        name: [block.__array_interface__["data"][0] for block in x.blocks]
        for name, x in arrays.items()
    }


@ON_EVERY_MESH
@APART
def test_replicas_are_stored_once_after_every_op_of_a_step(
    dims: dict[str, int], apart: bool
) -> None:
    network, step = training(dims, apart, Adam(0.01))
    for _ in range(
        2
    ):  # plans are made in the first step, and run on their fast paths in the second
        blocks = Blocks()
        with observing(blocks):
            step()
        assert blocks.seen > 20
    for name, x in network.parameters().items():
        blocks.check(x, name)
    if dims["batch"] == 8:
        assert blocks.replicated > 5


@pytest.mark.parametrize("dims", MESHES, ids=lambda d: "x".join(map(str, d.values())))
def test_a_replicated_array_takes_its_own_bytes_on_one_device(dims: dict[str, int]) -> None:
    mesh = gdt.create_mesh(dims, blocks=1, device_type="CPU")
    x = gdt.asarray(np.ones((40, 30), np.float32), layout=Layout.replicated(mesh, 2))
    for made in (x, x + 1, gdt.relu(x), x.T @ x, gdt.sum(x, axis=0)):
        assert sum(b.nbytes for b in made.blocks) == made.nbytes


@ON_EVERY_MESH
@APART
@OPTIMIZERS
def test_a_step_copies_no_parameter(
    dims: dict[str, int], apart: bool, optimizer: Optimizer
) -> None:
    network, step = training(dims, apart, optimizer)
    step()
    before = addresses(network, optimizer)
    values = {name: x.numpy().copy() for name, x in network.parameters().items()}
    for _ in range(3):
        step()
    assert addresses(network, optimizer) == before
    for name, x in network.parameters().items():
        assert not np.array_equal(x.numpy(), values[name]), name


@APART
def test_a_parameter_that_somebody_kept_is_left_alone(apart: bool) -> None:
    network, step = training(MESHES[2], apart, Adam(0.01))
    step()
    kept = network.parameters()["dense1.weight"]
    value = kept.numpy().copy()
    step()
    assert np.array_equal(kept.numpy(), value)
    assert not np.array_equal(network.parameters()["dense1.weight"].numpy(), value)


@pytest.mark.parametrize("dims", MESHES[1:4:2], ids=lambda d: "x".join(map(str, d.values())))
@APART
def test_recycled_buffers_do_not_grow(dims: dict[str, int], apart: bool) -> None:
    network, step = training(dims, apart, optimizer := Adam(0.01))
    addresses(network, optimizer)  # parameters are made when they are first read
    pool = backend_of(network.dense1.weight.mesh).pool
    gc.collect()
    pool.trim()
    others = pool.nbytes
    for _ in range(3):
        step()
    settled = pool.nbytes - others
    assert 0 < settled <= 16 * sum(x.nbytes for x in network.parameters().values())
    for _ in range(200):
        step()
        assert pool.nbytes - others == settled
    assert sum(n * len(buffers) for n, buffers in pool.buffers.items()) == pool.nbytes


@APART
def test_a_replay_overwrites_intermediate_results_after_their_last_use(apart: bool) -> None:
    mesh = gdt.create_mesh([("a", 2)], device_type="CPU", blocks=2 if apart else 1)
    x = gdt.asarray(np.arange(1 << 16, dtype="f").reshape(64, -1), layout=Layout(["a", None], mesh))

    def chain(x: DistributedArray) -> list[DistributedArray]:
        doubled = x * 2.0
        shifted = doubled + 1.0  # and `doubled` is read again
        squared = (doubled - shifted * 3.0) * (shifted + 0.5)
        turned = (x.T + 1.0).T * x  # in the order of x.T
        return [squared / 3.0, turned - turned.astype("float64")]

    expected, replayed = [a.numpy() for a in chain(x)], gdt.function(chain)
    pool = backend_of(mesh).pool
    for _ in range(4):
        results = replayed(x)
        assert all(np.array_equal(a.numpy(), b) for a, b in zip(results, expected, strict=True))
        del results
        gc.collect()
        pool.trim()
    before = pool.nbytes
    results = replayed(x)
    # Three of float32, and two of float64 at most; a new one for each would be one more. Chains in
    # loops make the results, of float32 and float64, and little else.
    assert 3 * x.nbytes <= pool.nbytes - before <= 7 * x.nbytes
    assert [a.numpy().strides for a in results] == [a.strides for a in expected]


@pytest.mark.parametrize("kind", ["file", "bytearray", "array.array"])
def test_an_update_writes_into_no_memory_of_other_objects(kind: str, tmp_path: Path) -> None:
    values = np.full(10_000, 5.0)
    values.tofile(tmp_path / "weights")
    memory: Any = {
        "file": lambda: np.memmap(tmp_path / "weights", float, "r+"),
        "bytearray": lambda: np.frombuffer(bytearray(values.tobytes())),
        "array.array": lambda: array.array("d", values),
    }[kind]()
    before = np.asarray(memory).copy()
    w = {"w": gdt.asarray(memory, copy=False)}
    assert np.shares_memory(w["w"].numpy(), memory)
    buffer = memory.base if kind == "bytearray" else memory if kind == "array.array" else None
    del memory
    for _ in range(3):
        SGD(1.0).update(w, {"w": gdt.ones(10_000)})
    assert np.array_equal(w["w"].numpy(), values - 3.0)
    assert np.array_equal(np.fromfile(tmp_path / "weights"), before)
    assert buffer is None or np.array_equal(np.frombuffer(buffer), before)


def test_memory_beyond_what_the_pool_keeps_is_overwritten_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = backend_of(gdt.get_default_mesh()).pool  # type: ignore[attr-defined]
    monkeypatch.setattr(pool, "capacity", 0)
    pool.trim()
    w = {"w": gdt.ones(10_000)}
    for _ in range(3):  # an op recycles memory once it knows what its results are
        w = {"w": w["w"] * 2.0}
    assert not pool.owns(w["w"].blocks[0].base)
    g, where = gdt.ones(10_000), w["w"].blocks[0].ctypes.data
    assert where % 64 == 0
    for _ in range(3):
        SGD(0.1).update(w, {"w": g})
    assert w["w"].blocks[0].ctypes.data == where


class Block(nn.Module):
    """A residual block of two matrices."""

    def __init__(self, key: int) -> None:
        self.up = nn.Dense(64, 256, activation="relu", key=key, use_bias=False)
        self.down = nn.Dense(256, 64, key=key + 1, use_bias=False)

    def __call__(self, x: DistributedArray) -> DistributedArray:
        return x + self.down(self.up(x))


@pytest.mark.parametrize("wrap", [lambda block: block, gdt.checkpointed], ids=["", "checkpointed"])
@pytest.mark.parametrize(
    ("entry", "parts"),
    [(nn.Sharded(state="data"), (8, 8, 2)), (nn.Sharded(kept="data"), (1, 1, 2))],
    ids=["ZeRO", "FSDP"],
)
def test_a_device_holds_its_parts_and_one_layer(
    entry: nn.Sharded, parts: tuple[int, int, int], wrap: Callable[..., Any]
) -> None:
    mesh, count = gdt.create_mesh([("data", 8)], blocks=8), 6
    with gdt.default_mesh(mesh):
        model = nn.Sequential(*[wrap(Block(2 * n)) for n in range(count)])
    layouts = gdt.nn.LayoutMap(mesh)
    layouts[".*"] = entry
    layouts.apply(model)
    optimizer = Adam(1e-3).init(model)
    x = gdt.ones((8, 64), "float32", layout=Layout(["data", None], mesh))

    def step() -> None:
        _, gradients = gdt.value_and_grad(lambda m: gdt.mean(m(x) ** 2))(model)
        optimizer.update(model, gradients)

    step()
    nbytes = sum(p.nbytes for p in model.parameters().values())
    parameters, gradients, state = [nbytes // 8 * part for part in parts]
    with gdt.testing.peak_memory(model, optimizer) as memory:
        assert memory.now == parameters + state
        step()
    layer = nbytes // count  # its weights, gathered or just updated, or their gradients
    # A row of x for each layer, and what is between: of one layer that runs again, or of all.
    rows = 4 * (64 * count + (64 + 4 * 256) * (1 if wrap is gdt.checkpointed else count))
    assert memory.peak <= parameters + gradients + state + layer + rows


class Chain(nn.Module):
    """Products of four weights, which are gathered together, with what is on one of their sides."""

    def __init__(self, side: str) -> None:
        self.side, self.weights = side, [gdt.full((64, 64), 0.01, "float32") for _ in range(4)]

    def __call__(self, x: DistributedArray) -> DistributedArray:
        for w in self.weights:
            x = gdt.tanh(w @ x if self.side == "left" else x @ w)
        return x


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_gathered_weight_is_freed_when_its_product_has_been_passed_on_the_way_back(
    side: str,
) -> None:
    mesh = gdt.create_mesh([("data", 8)], blocks=8)
    with gdt.default_mesh(mesh):
        model = Chain(side)
    layouts = nn.LayoutMap(mesh)
    layouts[".*"] = nn.Sharded(kept="data")
    layouts.apply(model)
    shape, specs = ((64, 8), [None, "data"]) if side == "left" else ((8, 64), ["data", None])
    x = gdt.ones(shape, "float32", layout=Layout(specs, mesh))
    gradients = lambda: gdt.grad(lambda m: gdt.sum(m(x)))(model)
    gradients()
    with gdt.testing.peak_memory(model, [x]) as memory:
        before = memory.now
        gradients()
    # All weights, the gradient of one before it is scattered, and the activations.
    assert memory.peak - before <= 5.5 * 4 * 64 * 64


@pytest.mark.parametrize("segments", [1, 2, 3, 4, 6, 12])
def test_checkpointing_takes_the_memory_of_its_formula(segments: int) -> None:
    """An activation for each segment, and all of one segment; source: Chen et al. 2016."""
    mesh, rows, size, count = gdt.create_mesh([("data", 8)], blocks=8), 64, 32, 12
    rng = np.random.default_rng(0)
    weights = [
        gdt.asarray(w, layout=Layout([None, None], mesh))
        for w in rng.standard_normal((count, size, size)).astype(np.float32) / 6
    ]
    x = gdt.ones((8 * rows, size), "float32", layout=Layout(["data", None], mesh))

    def segment(weights: list[DistributedArray], x: DistributedArray) -> DistributedArray:
        for w in weights:
            x = gdt.tanh(x @ w)  # two activations
        return x

    def loss(weights: list[DistributedArray]) -> DistributedArray:
        y, length = x, count // segments
        for n in range(0, count, length):
            y = gdt.checkpointed(segment)(weights[n : n + length], y)
        return gdt.sum(y * y)

    gdt.grad(loss)(weights)
    activation = 4 * rows * size
    with gdt.testing.peak_memory(weights, [x]) as memory:
        before = memory.now
        gdt.grad(loss)(weights)
    # Gradients take the place of activations, which are free once the pass has left them.
    formula = (segments + 2 * count // segments) * activation
    # Beside it there are the square of y, and the cotangents on their way.
    assert formula <= memory.peak - before <= formula + 6 * activation


@pytest.mark.parametrize("persistent", [False, True])
def test_a_backward_pass_frees_activations_as_it_goes(persistent: bool) -> None:
    count, nbytes = 12, 4 * 64 * 64  # of a weight, its gradient, and each of two activations
    weights = [gdt.full((64, 64), 0.01 * n, "float32") for n in range(count)]

    def step() -> Any:
        x = weights[0]
        with gdt.GradientTape(persistent) as tape:
            for w in weights:
                x = gdt.tanh(x @ w)
            loss = gdt.sum(x)
        del x
        return tape.gradient(loss, weights)

    with gdt.testing.peak_memory(weights) as memory:  # op by op
        before = memory.now
        step()
    assert (memory.peak - before >= 3 * count * nbytes) == persistent
    assert persistent or memory.peak - before <= (2 * count + 5) * nbytes
    for _ in range(3):
        step()
    with allocations() as allocated:  # of a replay, which nothing observes
        step()
    assert (allocated.peak >= 3 * count * nbytes) == persistent
    assert persistent or allocated.peak <= (2 * count + 5) * nbytes
