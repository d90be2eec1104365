"""How kernel tests get to a GPU and back, with copies on the host in the place of a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gdt.cuda import launches
from gdt.cuda.runner import KernelCall
from tests.covering import covering

from . import (
    conftest,
    on_gpu,
    test_batchnorm,
    test_matmul,
    test_matmul_hopper,
    test_reduce,
    test_update,
)
from .harness import Execute
from .on_gpu import Compared, Device

CHECKS: dict[str, tuple[Callable[..., None], dict[str, Any]]] = {
    "batch norm": (test_batchnorm.check_forward_and_backward, test_batchnorm.OPTIONS),
    "matmul": (test_matmul.check_matmul, test_matmul.SIMT_OPTIONS),
    "reduce": (test_reduce.check_values, test_reduce.OPTIONS),
    "tensor maps": (test_matmul_hopper.check_wgmma, test_matmul_hopper.OPTIONS),
    "update": (test_update.check_update, test_update.OPTIONS),
}
CASES = 4  # of each, about


class Copies:
    """Runs calls in copies of their memory and in their own, and compares; `spoil` may change what
    the copies hold after that."""

    def __init__(self, spoil: Callable[[np.ndarray[Any, Any]], Any] = lambda copy: copy) -> None:
        self.largest: dict[str, float] = {}
        self.host = Execute()._on_host
        self.device = Device(
            np.copy,
            lambda copy, at, like: np.ndarray(like.shape, like.dtype, copy, at, like.strides),
            spoil,
            lambda call: self.host([call]),
        )

    def __call__(self, calls: Sequence[KernelCall]) -> None:
        Compared(self.device, self.host, self.largest)(calls)


@pytest.mark.parametrize("family", CHECKS)
def test_calls_give_the_same_in_copies_of_their_memory(family: str) -> None:
    check, options = CHECKS[family]
    execute, cases = Copies(), covering(**options)
    for case in cases[:: len(cases) // CASES]:
        given = {k: v for k, v in case.items() if k not in ("order", "async_mode")}
        check(**given, execute=execute)
    assert execute.largest
    assert set(execute.largest.values()) == {0.0}


def test_a_result_that_is_not_the_shims_is_found() -> None:
    """As far as it has to be: integers to the bit; what is rounded is only measured."""
    x, out = np.arange(12).reshape(3, 4, 1), np.zeros((3, 1), np.int64)
    calls = launches.reduce("Sum", x, out, np.empty)
    with pytest.raises(AssertionError, match="not the shim's"):
        Copies(lambda copy: copy[::-1])(calls)
    values, total = x.astype(np.float32), out.astype(np.float32)
    execute = Copies(lambda copy: (copy.view(np.float32) * 2).view(np.uint8))
    execute(launches.reduce("Sum", values, total, np.empty))
    assert max(execute.largest.values()) == 1.0


def test_a_gpu_that_is_asked_for_and_not_there_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_gpu.cuda_driver, "missing", lambda: ("no driver", ""))
    on_gpu.gpu.cache_clear()
    with pytest.raises(pytest.fail.Exception, match="GDT_TEST_DEVICE=cuda: no driver"):
        on_gpu.run([], Execute()._on_host)


def test_a_test_reports_its_largest_differences() -> None:
    """In its properties, which come from whichever process has run it."""
    item = SimpleNamespace(user_properties=[])
    call = conftest.pytest_runtest_call(item)  # type: ignore[arg-type]
    next(call)
    on_gpu.LARGEST["reduce_rows"] = 0.5
    with pytest.raises(StopIteration):
        call.send(None)
    assert item.user_properties == [(conftest.DIFFERENCE, ("reduce_rows", 0.5))]
    on_gpu.LARGEST.clear()
