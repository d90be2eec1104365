"""What is kept between calls is shared by threads, and bounded for shapes that never come again."""

import gc
import threading

import numpy as np
import pytest

import gdt
from gdt.layout import ArrayType
from gdt.op import OPS
from gdt.plan import Plans


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
            kind = ArrayType.of((n,) * (n % 7), np.dtype("int16"), layout)
            found.append((n, layout, kind))

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for n in range(200):
        assert len({id(kind) for m, _, kind in found if m == n}) == 1
