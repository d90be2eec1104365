"""update.cu against the bodies of the optimizers' ops, in float64 and to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gdt.cuda import launches
from gdt.cuda.sources import C_TYPES, constants
from gdt.errors import KernelError
from gdt.optim.adam import adam_step
from gdt.optim.sgd import momentum_step, sgd_step
from tests.covering import covering, every

from . import on_gpu
from .harness import (
    DTYPES,
    SANITIZERS,
    SCHEDULES,
    Execute,
    assert_close,
    garbage,
    name,
    normal,
    run_case,
)

CHUNK = constants("update.cu")["CHUNK"]
SIZES = {
    "one": [(1,)],
    "odd": [(3,), (5, 7), (0,), (1,), ()],
    "blocks": [(CHUNK,), (CHUNK + 1,), (2, CHUNK)],
}
STEPS: dict[str, tuple[Any, Any, int, tuple[float, ...]]] = {  # op, launch, operands, scalars
    "sgd": (sgd_step, launches.sgd, 2, (0.3,)),
    "momentum": (momentum_step, launches.momentum, 3, (0.3, 0.9)),
    "adam": (adam_step, launches.adam, 4, (0.9, 0.999, 0.97, 0.01, 1e-3)),
}
OPTIONS: dict[str, Any] = {
    "step": ["sgd", "momentum", "nesterov", "adam"],
    "dtype": ["float32", "float64"],
    "sizes": list(SIZES),
    "in_place": [False, True],
    "misaligned": ["nothing", "operands", "results"],
    "order": SCHEDULES,
}


def tensors(
    step: str, dtype: str, sizes: str, misaligned: bool = False
) -> list[tuple[np.ndarray[Any, Any], ...]]:
    """Operands of each tensor; misaligned: they lie differently relative to 16 bytes."""
    rng = np.random.default_rng(0)
    count = STEPS[step][2]
    given = [
        tuple(normal(rng, shape, dtype, misaligned and i % 2 == 0) for i in range(count))
        for shape in SIZES[sizes]
    ]
    if step == "adam":
        for _, _, second, _ in given:
            np.abs(second, out=second)
    return given


def check_update(
    step: str,
    dtype: str,
    sizes: str,
    in_place: bool,
    misaligned: str,
    execute: Execute,
    exactly: bool = False,
) -> None:
    """misaligned: which arrays lie otherwise than the parameter relative to 16 bytes.
    exactly: to the bit, which only the CPU can promise, since it fuses no products and sums."""
    exactly = exactly and not on_gpu.CHOSEN
    flags = {"nesterov": {"nesterov": True}}.get(step, {})
    step = {"nesterov": "momentum"}.get(step, step)
    op, launch, operands, scalars = STEPS[step]
    given = tensors(step, dtype, sizes, misaligned == "operands")
    before = [[a.copy() for a in arrays] for arrays in given]
    shift = int(misaligned == "results")
    new = [
        tuple(
            a if in_place else garbage((a.size + 1,), a.dtype)[shift:][: a.size].reshape(a.shape)
            for a in arrays[: operands - 1]
        )
        for arrays in given
    ]
    together = [(*arrays, *results) for arrays, results in zip(given, new, strict=True)]
    execute(launch(together, {C_TYPES[dtype]: np.array(scalars, dtype)}, **flags))
    for old, arrays, results in zip(before, given, new, strict=True):
        exact = [a if exactly else a.astype(np.float64) for a in old]
        want = [np.empty_like(a) for a in exact[: operands - 1]]
        op.declaration.body(np, *exact, *scalars, **flags, out=want)
        for got, wanted in zip(results, want, strict=True):
            if exactly:
                assert (got == wanted).all()
            else:
                assert_close(got, wanted, dtype, 1, 2.0)
        unchanged = slice(operands - 1, None) if in_place else slice(None)
        for a, was in zip(arrays[unchanged], old[unchanged], strict=True):
            assert (a == was).all()


@pytest.mark.parametrize("case", covering(**OPTIONS), ids=name)
def test_update(case: dict[str, Any]) -> None:
    run_case(check_update, case)


@pytest.mark.parametrize("step", OPTIONS["step"])
@pytest.mark.parametrize("dtype", OPTIONS["dtype"])
def test_updates_are_those_of_the_ops_to_the_bit(step: str, dtype: str) -> None:
    check_update(step, dtype, "blocks", False, "nothing", Execute(), exactly=True)


@pytest.mark.kernels_full
def test_update_in_full() -> None:
    for case in every(**OPTIONS):
        run_case(check_update, case)


@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_under_sanitizers(sanitizer: str) -> None:
    for step in ("sgd", "nesterov", "adam"):
        for misaligned, in_place in (("operands", False), ("results", False), ("nothing", True)):
            execute = Execute(sanitizer=sanitizer)
            check_update(step, "float32", "odd", in_place, misaligned, execute)


def test_mixed_dtypes_are_one_launch_each_and_nothing_is_none() -> None:
    scalars = {"float": np.full(1, 0.1, np.float32), "double": np.full(1, 0.1)}
    given = [*tensors("sgd", "float32", "odd", False), *tensors("sgd", "float64", "odd", False)]
    calls = launches.sgd([(p, g, p) for p, g in given], scalars)
    assert [c.instance.arguments for c in calls] == [("float",), ("double",)]
    assert launches.sgd([], scalars) == []


def test_what_no_kernel_updates_is_refused() -> None:
    array = lambda dtype, shape=(3,): np.zeros(shape, DTYPES[dtype])
    scalars = {"float": np.full(1, 0.1, np.float32), "half_t": array("float16", (1,))}
    turned = np.zeros((3, 4), np.float32).T
    for p, g in (
        (array("float16"), array("float16")),
        (array("float32"), array("float64")),
        (array("float32"), array("float32", (1,))),
        (turned, turned),
    ):
        with pytest.raises(KernelError):
            launches.sgd([(p, g, p)], scalars)
