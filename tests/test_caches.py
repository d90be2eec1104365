"""What is kept between calls is shared by threads, and bounded for shapes that never come again."""

import gc
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest

import gdt
from gdt.caches import BUDGET, Cache, memoized
from gdt.engine.op import OPS, Op
from gdt.sharding.array_type import ArrayType


def test_plans_of_ever_new_shapes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = OPS["add"].plans
    plans.clear()
    monkeypatch.setattr(BUDGET, "nbytes", 16 * plans.nbytes)
    for n in range(30):
        assert (gdt.ones((n,)) + 1).tolist() == [2.0] * n
        assert len(plans) + len(plans.older) <= 17


def test_entries_that_are_used_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BUDGET, "nbytes", 20)
    cache: Cache[int] = Cache(1)
    cache["used"] = -1
    for n in range(100):
        cache[n] = n
        assert cache["used"] == -1
        assert len(cache) + len(cache.older) <= 21
    assert 0 not in cache and cache.recall(0) is None and cache.recall(99) == 99
    with pytest.raises(KeyError):
        cache[0]


def test_all_caches_share_one_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BUDGET, "nbytes", 100)
    monkeypatch.setattr(BUDGET, "_new_nbytes", 0)  # whatever tests before this one have left
    large, small = Cache[int](30), Cache[int](1)
    small["old"] = 0
    large["first"], large["second"] = 1, 2  # 61 bytes: more than half of the budget
    assert not small and small.older == {"old": 0}
    large["third"], large["fourth"] = 3, 4
    assert small.recall("old") is None and large.recall("first") is None


def test_meshes_and_layouts_that_nobody_refers_to_are_forgotten() -> None:
    mesh = gdt.create_mesh([("gone", 3)], blocks=3)
    assert gdt.ones((3,), layout=gdt.Layout(["gone"], mesh)).shape == (3,)
    known = weakref.ref(mesh)
    del mesh
    for _ in range(2):  # what plans refer to is gone after two turns
        for cache in list(BUDGET.caches):
            cache.turn()
    gc.collect()
    assert known() is None


GROWTH = """
import gc, numpy as np, gdt

def resident():
    with open("/proc/self/statm") as pages:
        return int(pages.read().split()[1]) * 4096

mesh = gdt.create_mesh([("batch", 8)])
weights = gdt.random.normal((8, 4), layout=gdt.Layout.replicated(mesh, 2))

def loss(weights, x):
    return gdt.mean(gdt.relu(x @ weights) ** 2)

def step(size):
    x = gdt.asarray(np.ones((size, 8)), layout=gdt.Layout(["batch", None], mesh))
    float(gdt.value_and_grad(loss)(weights, x)[0])

for size in range(50):
    step(size)
start = resident()
for size in range(50, {sizes}):
    step(size)
for n in range({meshes}):
    own = gdt.create_mesh([("x", 2), (f"y{{n}}", 2)])
    gdt.ones((4, 4), layout=gdt.Layout(["x", f"y{{n}}"], own)).sum()
gc.collect()
print((resident() - start) >> 20)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc to read memory from")
@pytest.mark.parametrize(
    ("sizes", "meshes"),
    [(600, 100), pytest.param(5000, 2000, marks=pytest.mark.memory_full)],
)
def test_memory_is_bounded(sizes: int, meshes: int) -> None:
    code = GROWTH.format(sizes=sizes, meshes=meshes)
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(ended.stdout) < 200  # MiB


def test_types_of_shapes_that_never_come_again_are_forgotten() -> None:
    layout = gdt.Layout([None], gdt.create_mesh([("forgotten", 2)]))
    kept = ArrayType.of((123457,), np.dtype("int16"), layout)
    for n in range(1000):
        ArrayType.of((200000 + n,), np.dtype("int16"), layout)
    gc.collect()
    known = [key for key in ArrayType._interned if key[2] is layout]
    assert known == [((123457,), np.dtype("int16"), layout)]
    assert ArrayType.of((123457,), np.dtype("int16"), layout) is kept


def test_equal_types_of_many_threads_are_one_object() -> None:
    mesh, found = gdt.create_mesh([("threads", 2)]), []
    barrier = threading.Barrier(8)

    def make() -> None:
        barrier.wait()
        for n in range(200):
            layout = gdt.Layout([None] * (n % 7), mesh)
            array_type = ArrayType.of((n,) * (n % 7), np.dtype("int16"), layout)
            found.append((n, layout, array_type))

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for n in range(200):
        assert len({id(array_type) for m, _, array_type in found if m == n}) == 1


@pytest.mark.parametrize("blocks", [1, 2])
def test_statics_that_are_equal_are_told_apart(blocks: int) -> None:
    mesh = gdt.create_mesh([("equal", 2)], blocks=blocks)
    x = gdt.asarray([1, 2], layout=gdt.Layout(["equal"], mesh))

    def times_static(xp, x, /, factor=1.0):
        return x * factor

    times = Op(times_static, "... -> ...")
    for factor in (0.0, -0.0, 0, False, 1.0, 1, True, 0.0j, -0.0j):
        got, want = times(x, factor=factor), x.numpy() * factor
        assert got.dtype == want.dtype and str(got.tolist()) == str(want.tolist())
    for factor in (0.0, -0.0):
        assert str(gdt.leaky_relu(gdt.asarray([-1.0]), factor).tolist()) == f"[{-factor}]"


@pytest.mark.parametrize("blocks", [1, 2])
def test_constants_of_padding_keep_their_sign(blocks: int) -> None:
    mesh = gdt.create_mesh([("sign", 2)], blocks=blocks)
    x = gdt.asarray([1.0, 2.0], layout=gdt.Layout(["sign"], mesh))
    for values in (0.0, -0.0, (0.0, -0.0), (-0.0, 0.0), 0, (7.0, 8.0), (7, 0)):
        got = gdt.pad(x, 1, constant_values=values).tolist()
        assert str(got) == str(np.pad([1.0, 2.0], 1, constant_values=values).tolist())


def test_recorded_gradients_tell_zeros_apart() -> None:
    x = gdt.asarray([1.0, 2.0])
    for zero in (0.0, 0.0, 0.0, -0.0, -0.0, -0.0):
        gradient = gdt.grad(lambda x, zero=zero: gdt.sum(x * zero))(x)
        assert str(gradient.tolist()) == str([zero, zero])


def test_an_entry_that_is_written_again_takes_no_more_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    added: list[int] = []
    monkeypatch.setattr(BUDGET, "add", added.append)
    cache: Cache[int] = Cache(7)
    for n in range(100):
        cache["one"] = n
    assert added == [7] and cache["one"] == 99


def test_remembered_results_tell_positions_from_keywords() -> None:
    @memoized(1)
    def shown(*args: object, **kwargs: object) -> str:
        return f"{args} {kwargs}"

    assert shown(("a", 1)) != shown(a=1)


@pytest.mark.parametrize("blocks", [1, 2])
def test_optimizers_plan_nothing_again_and_take_no_more_memory(
    blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    mesh = gdt.create_mesh([("steps", 2)], blocks=blocks)
    layout = gdt.Layout(["steps"], mesh)
    weights = {f"w{n}": gdt.ones((4,), layout=layout) for n in range(5)}
    optimizer = gdt.optim.SGD(0.1)

    def step() -> None:
        optimizer.update(weights, {n: gdt.ones((4,), layout=layout) for n in weights})

    step(), step()
    planned, added = [], []
    monkeypatch.setattr(Op, "plan", lambda self, *args: planned.append(self))
    monkeypatch.setattr(BUDGET, "add", added.append)
    step()
    assert not planned and not added
    for cache in list(BUDGET.caches):
        cache.turn()
    step()
    assert not planned
