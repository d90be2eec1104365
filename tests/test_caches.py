"""What is kept between calls is shared by threads, and bounded for shapes that never come again."""

import gc
import threading

import numpy as np
import pytest

import gdt
from gdt.engine.op import OPS, Op
from gdt.engine.plan import Plans
from gdt.sharding.array_type import ArrayType


def test_plans_of_ever_new_shapes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Plans, "CAPACITY", 8)
    for n in range(30):
        assert (gdt.ones((n,)) + 1).tolist() == [2.0] * n
        assert len(OPS["add"].plans) <= 8


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
