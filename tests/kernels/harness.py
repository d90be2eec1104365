"""What the kernel tests share: runners, data and tolerances."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gdt.cuda import launches
from gdt.cuda.runner import KernelCall
from gdt.cuda.sources import C_TYPES, GENERATED, Instance
from tests.needs import need_compiler

from . import on_gpu
from .shim.runner import CpuRunner

DTYPES = {
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
EPSILONS = {"float32": 2.0**-23, "float64": 2.0**-52, "float16": 2.0**-10, "bfloat16": 2.0**-7}
SCHEDULES = ("forward", "reverse", "random")
SANITIZERS = ("address", "thread")
FULL = pytest.mark.kernels_full


def with_sanitizers(first: Any, second: Any) -> list[Any]:
    """Two variants under both sanitizers, as pytest's parameters: the first under that of
    addresses, the second under that of threads, and the rest marked `kernels_full`."""
    return [
        pytest.param(variant, sanitizer, marks=() if sanitizer == usual else FULL)
        for variant, usual in zip((first, second), SANITIZERS, strict=True)
        for sanitizer in SANITIZERS
    ]


def name(case: dict[str, Any]) -> str:
    return "-".join(str(v) for v in case.values()).replace(" ", "")


def group(instance: Instance) -> list[Instance]:
    """The instances that share a library: those of one file and one data type. A generated file
    has a library for each."""
    if instance.file in GENERATED:
        return [instance]
    known = set(C_TYPES.values())
    c_type = next((a for a in instance.arguments if a in known), "")
    return [
        i
        for i in launches.instances(instance.file)
        if next((a for a in i.arguments if a in known), "") == c_type
    ]


RUNNERS: list[CpuRunner] = []


@cache
def runner(
    instances: tuple[Instance, ...], sanitizer: str | None, folder: Path | None
) -> CpuRunner:
    RUNNERS.append(CpuRunner(instances[0].file, instances, sanitizer, folder))
    return RUNNERS[-1]


def close_runners() -> None:
    for each in RUNNERS:
        each.close()


class Execute:
    """Runs calls on the CPU under one schedule, or on a GPU (see `on_gpu`); `folder` may hold other
    sources than gdt's."""

    def __init__(
        self,
        order: str = "forward",
        async_mode: str = "late",
        sanitizer: str | None = None,
        folder: Path | None = None,
    ):
        self.schedule = {"order": order, "async_mode": async_mode, "seed": 7}
        self.sanitizer, self.folder = sanitizer, folder

    def __call__(self, calls: Sequence[KernelCall]) -> None:
        if not on_gpu.CHOSEN:
            self._on_host(calls)
        elif self.sanitizer is None and self.folder is None:
            on_gpu.run(calls, self._on_host)
        else:
            pytest.skip("sanitizers, and changed sources, are for the CPU")

    def _on_host(self, calls: Sequence[KernelCall]) -> None:
        need_compiler()
        for call in calls:
            instances = tuple(group(call.instance))
            assert call.instance in instances, f"{call.instance} is not among the known instances"
            if self.folder is not None or self.sanitizer is not None:  # build only these
                used = {c.instance for c in calls if c.instance.file == call.instance.file}
                instances = tuple(sorted(used, key=str))
            runner(instances, self.sanitizer, self.folder).run(call, **self.schedule)


def run_case(check: Callable[..., None], case: dict[str, Any], **how: Any) -> None:
    """`check` with a case's options; its order (and timing) go to the runner."""
    schedule = {k: case[k] for k in ("order", "async_mode") if k in case}
    options = {k: v for k, v in case.items() if k not in schedule}
    check(**options, execute=Execute(**schedule, **how))


def empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
    """Memory as a GPU gives it: full of something, here NaN (or a large number)."""
    return garbage(shape, np.dtype(dtype))


def garbage(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    return np.frombuffer(bytearray(b"\xff" * int(np.prod(shape) * dtype.itemsize)), dtype).reshape(
        shape
    )


def normal(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: str, misaligned: bool = False
) -> np.ndarray[Any, Any]:
    """Normal numbers; `misaligned` puts the first one past a 16-byte boundary."""
    size = int(np.prod(shape))
    whole = np.zeros(size + 1, DTYPES[dtype])
    start = int(misaligned)
    whole[start : start + size] = rng.standard_normal(size).astype(DTYPES[dtype])
    return whole[start : start + size].reshape(shape)


def assert_close(
    got: np.ndarray[Any, Any],
    want: np.ndarray[Any, Any],
    dtype: str,
    terms: int = 1,
    scale: float = 1.0,
    more: Any = 0.0,
) -> None:
    """Within the rounding of the result's dtype plus that of `terms` sums in the accumulator, and
    `more`.

    A sum of n terms of size `scale` in precision e is off by about e sqrt(n) scale; the rest
    is margin.
    """
    wide = EPSILONS["float64" if dtype == "float64" else "float32"]
    allowed = 4 * EPSILONS[got.dtype.name] * np.abs(want) + 8 * wide * (4 + terms**0.5) * scale
    allowed = allowed + np.where(np.abs(want) < 1, EPSILONS[got.dtype.name] * scale, 0)
    allowed = allowed + more
    wrong = ~(
        (np.abs(got.astype(np.float64) - want) <= allowed)
        | (np.isnan(got.astype(np.float64)) & np.isnan(want))
    )
    assert not wrong.any(), (
        f"{wrong.sum()} of {wrong.size} wrong, first at {np.argwhere(wrong)[0]}: "
        f"{got[wrong][0]} for {want[wrong][0]}"
    )
