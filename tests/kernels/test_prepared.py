"""Launches that were prepared equal those that are made anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from gdt.cuda import launches
from gdt.cuda.launches import prepared
from gdt.cuda.runner import KernelCall, address, check
from gdt.cuda.sources import parameters
from gdt.cuda.tensor_map import TensorMap

Array = np.ndarray[Any, Any]


def array(*shape: int, dtype: Any = np.float32) -> Array:
    return np.zeros(shape, dtype)


class Memory:
    """Allocates arrays, and gives the same ones again after `rewind`."""

    def __init__(self) -> None:
        self.arrays: list[Array] = []
        self.next = 0

    def __call__(self, shape: tuple[int, ...], dtype: Any) -> Array:
        if self.next == len(self.arrays):
            self.arrays.append(np.zeros(shape, dtype))
        self.next += 1
        found = self.arrays[self.next - 1]
        assert found.shape == tuple(shape)
        return found

    def rewind(self) -> None:
        self.next = 0


Case = Callable[[], tuple[Any, tuple[Any, ...], dict[str, Any]]]


def attention() -> Any:
    q, k, v = (array(2, 3, n, 8, dtype=np.float16) for n in (40, 50, 50))
    mask = array(2, 1, 40, 50, dtype=bool)
    sight = launches.Sight(40, 50, 0.5, True, mask=mask)
    lse = array(2, 3, 40)
    return launches.attention, (q, k, v, q.copy(), lse, sight), {"mesh_ndim": 2}


def attention_on_hopper() -> Any:
    q, k, v = (array(2, h, 40, 64, dtype=np.float16) for h in (3, 1, 1))
    arguments = (q, k, v, q.copy(), array(2, 3, 40), launches.Sight(40, 40, 0.5))
    return launches.attention, arguments, {"mesh_ndim": 2, "arch": "sm_90a"}


def attention_gradients() -> Any:
    q, k, v, g = (array(3, 20, 8, dtype=np.float16) for _ in range(4))
    results = tuple(array(3, 20, 8) for _ in range(3))
    arguments = (q, k, v, g, array(3, 20), array(3, 20), results, launches.Sight(20, 20, 0.5))
    return launches.attention_gradients, arguments, {"mesh_ndim": 1}


def matmul(arch: str) -> Case:
    def case() -> Any:
        x, w = (array(2, n, m, dtype=np.float16) for n, m in ((64, 4096), (4096, 32)))
        options = {"mesh_ndim": 1, "bias": array(1, 32, dtype=np.float16), "activation": "relu"}
        options |= {"tensor_cores": True, "arch": arch}
        out = array(2, 64, 32, dtype=np.float16)
        return launches.matmul, (x, w, out, Memory()), options

    return case


def total() -> Any:
    return launches.reduce, ("Sum", array(1, 100_000, 1), array(1, 1), Memory()), {}


def position() -> Any:
    index = array(1, 1, dtype=np.int64)
    return launches.arg_reduce, ("Max", array(1, 100_000, 1), None, index, Memory()), {}


def moments() -> Any:
    merged = array(2, 3, 4)
    return launches.bn_moments, (array(2, 50, 4, 6), merged, None, Memory()), {"mesh_ndim": 1}


def sums() -> Any:
    x = array(9000, 3, 1)
    return launches.bn_sums, (x, x.copy(), array(1, 2, 3), Memory()), {}


def normalisation() -> Any:
    x, mean = array(5, 3, 4), array(3)
    return launches.bn_apply, (x, mean, mean.copy(), None, mean.copy(), x.copy()), {"eps": 0.1}


def classes() -> Any:
    labels, flag = array(7, dtype=np.int32), array(1, dtype=np.uint64)
    arguments = (array(7, 5), labels, array(7), array(7), None, flag)
    return launches.softmax_ce, arguments, {"smoothing": 0.1}


def numbers() -> Any:
    start, one = array(1, dtype=np.int64), array(1, dtype=np.uint64)
    return launches.random, ("uniform", array(1, 9), start, one, one), {}


CASES: dict[str, Case] = {
    "attention": attention, "attention on Hopper": attention_on_hopper,
    "gradients": attention_gradients, "mma": matmul("sm_80"), "wgmma": matmul("sm_90a"),
    "total": total, "position": position, "moments": moments, "sums": sums,
    "normalisation": normalisation, "classes": classes, "numbers": numbers,
}  # fmt: skip


def facts(call: KernelCall) -> Iterator[Any]:
    """All that a runner sees of a call."""
    yield call.instance, call.grid, call.block, call.shared
    for parameter, argument in zip(parameters(call.instance), check(call), strict=True):
        if isinstance(argument, TensorMap):
            yield parameter.name, address(argument.array), argument.sizes, argument.strides
        elif parameter.pointer:
            yield parameter.name, None if argument is None else address(argument)
        else:
            yield parameter.name, argument.tobytes()


def assert_as_made_anew(launch: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
    calls = launch(*arguments, **options)
    for a in arguments:
        if isinstance(a, Memory):
            a.rewind()
    anew = launch.__wrapped__(*arguments, **options)
    assert [list(facts(c)) for c in calls] == [list(facts(c)) for c in anew]


@pytest.mark.parametrize("name", CASES)
def test_a_second_call_is_as_made_anew_and_checks_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = [CASES[name]() for _ in range(3)]  # of which all arrays are alive, so that none are one
    for launch, arguments, options in kept[:2]:
        assert_as_made_anew(launch, arguments, options)
    monkeypatch.setattr(prepared, "_first", None)
    launch, arguments, options = kept[2]
    assert all(c.checked for c in launch(*arguments, **options))


def test_what_calls_depend_on_is_told_apart() -> None:
    launch = launches.bn_apply
    for x, y in ((array(6, 4, 4), array(6, 4, 4)), (array(6, 5, 4), array(6, 5, 4))):
        mean, variance, scale = (array(x.shape[1]) for _ in range(3))
        for result in (y, x):  # apart, and in place
            for factor in (None, scale, mean):
                assert_as_made_anew(launch, (x, mean, variance, factor, None, result), {"eps": 0.1})
    whole = array(2 * 3 * 8 * 4 + 1, dtype=np.float16)
    sight, lse = launches.Sight(3, 3, 1.0), array(2, 3)
    for first in (0, 1):  # which tensor cores read, and which they do not
        q = whole[first : first + 48].reshape(2, 3, 8)
        (call,) = launches.attention(q, q, q, q.copy(), lse, sight, mesh_ndim=1)
        assert call.instance.kernel == ("attention" if first else "attention_mma")
