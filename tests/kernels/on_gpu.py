"""Kernel tests on hardware: the calls that other tests run on the CPU, with copies of their arrays.

    GDT_TEST_DEVICE=cuda python -m pytest tests/kernels

The arrays of a call may be views of one memory, or addresses in a table; so the memory behind them
is copied as a whole, and the views and addresses are made anew in the copy. The shim runs the same
calls, and what it finds is compared: integers and random numbers to the bit, and of everything else
the largest difference is printed at the end.
"""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from gdt.backend.cupy import CupyBackend, load_cupy
from gdt.cuda import driver as cuda_driver
from gdt.cuda import launches, runner, sources
from gdt.cuda.runner import KernelCall
from gdt.cuda.tensor_map import TensorMap

from .shim.runner import root_of

CHOSEN = os.environ.get("GDT_TEST_DEVICE") == "cuda"
EXACT_FILES = {"random.cu"}  # compiled without fused multiply-add, by both compilers

Host = np.ndarray[Any, Any]


def bytes_of(root: Host) -> Host:
    """The memory of an array that owns it, in whichever order its elements lie."""
    if not root.nbytes:
        return np.empty(0, np.uint8)
    kind = ctypes.c_uint8 * root.nbytes
    return np.frombuffer(kind.from_address(root.ctypes.data), np.uint8)


def pointers(call: KernelCall) -> list[Any]:
    """The arrays to which a call's arguments, and the entries of its table, point."""
    pairs = zip(sources.parameters(call.instance), call.arguments, strict=True)
    given = [_array(a) for p, a in pairs if p.pointer or isinstance(a, TensorMap)]
    return [a for a in (*given, *call.pointees) if a is not None]


def _array(argument: Any) -> Any:
    return argument.array if isinstance(argument, TensorMap) else argument


class Device:
    """Runs calls with copies of their memory.

    upload: a copy of bytes on the device; view: `(copy, offset, like)` an array like another one in
    a copy; fetch: the bytes of a copy; run: runs a call.
    """

    def __init__(
        self,
        upload: Callable[[Host], Any],
        view: Callable[[Any, int, Host], Any],
        fetch: Callable[[Any], Host],
        run: Callable[[KernelCall], None],
    ) -> None:
        self.upload, self.view, self.fetch, self.run = upload, view, fetch, run

    def __call__(self, calls: Sequence[KernelCall]) -> None:
        roots = roots_of(calls)
        copies = {key: self.upload(bytes_of(root)) for key, root in roots.items()}
        for call in calls:
            self.run(self._moved(call, roots, copies))
        for key, root in roots.items():
            bytes_of(root)[...] = self.fetch(copies[key])

    def _moved(
        self, call: KernelCall, roots: dict[int, Host], copies: dict[int, Any]
    ) -> KernelCall:
        def moved(array: Host) -> Any:
            root = root_of(array)
            return self.view(copies[id(root)], array.ctypes.data - root.ctypes.data, array)

        def address(value: int) -> int:
            for key, root in roots.items():
                if 0 <= value - root.ctypes.data < root.nbytes:
                    return runner.address(copies[key]) + value - root.ctypes.data
            return value  # a size, or a number of a block

        def argument(name: str, pointer: bool, given: Any) -> Any:
            if isinstance(given, TensorMap):
                return replace(given, array=moved(given.array))
            if not pointer or given is None:
                return given
            if name != "table":
                return moved(given)
            entries = [address(int(v)) for v in given.reshape(-1)]
            table = np.array(entries, given.dtype).reshape(given.shape)
            return self.view(self.upload(bytes_of(table)), 0, table)

        signature = zip(sources.parameters(call.instance), call.arguments, strict=True)
        arguments = tuple(argument(p.name, p.pointer, a) for p, a in signature)
        return replace(call, arguments=arguments, pointees=())


def roots_of(calls: Iterable[KernelCall]) -> dict[int, Host]:
    """The arrays that own the memory of the operands of calls, by identity."""
    return {id(root): root for call in calls for root in map(root_of, pointers(call))}


class Compared:
    """Runs calls on a device and on the host, and compares what they find.

    largest: filled with the largest difference between the two, as a part of the largest result,
    by kernel.
    """

    def __init__(
        self,
        device: Callable[[Sequence[KernelCall]], None],
        host: Callable[[Sequence[KernelCall]], None],
        largest: dict[str, float],
    ) -> None:
        self.device, self.host, self.largest = device, host, largest

    def __call__(self, calls: Sequence[KernelCall]) -> None:
        roots = roots_of(calls).values()
        before = [bytes_of(root).copy() for root in roots]
        self.host(calls)
        expected = [bytes_of(root).copy() for root in roots]
        for root, given in zip(roots, before, strict=True):
            bytes_of(root)[...] = given
        self.device(calls)
        on_host = {id(root): old for root, old in zip(roots, expected, strict=True)}
        for call in calls:
            for array in pointers(call):
                offset = array.ctypes.data - root_of(array).ctypes.data
                want = np.ndarray(
                    array.shape, array.dtype, on_host[id(root_of(array))], offset, array.strides
                )
                self._compare(call, array, want)

    def _compare(self, call: KernelCall, got: Host, want: Host) -> None:
        exact = got.dtype.kind in "biu" or call.instance.file in EXACT_FILES
        if exact:
            np.testing.assert_array_equal(got, want, err_msg=f"{call.instance}: not the shim's")
            return
        a, b = got.astype(np.float64), want.astype(np.float64)
        numbers = np.isfinite(a) & np.isfinite(b)
        if not numbers.any():
            return
        scale = float(np.abs(b[numbers]).max()) or 1.0
        difference = float(np.abs(a[numbers] - b[numbers]).max()) / scale
        name = call.instance.kernel
        self.largest[name] = max(self.largest.get(name, 0.0), difference)


@cache
def gpu() -> tuple[Device, str]:
    """The first GPU and its architecture. Without one the test fails: it was asked for."""
    problem, _ = cuda_driver.missing()
    if problem:
        pytest.fail(f"GDT_TEST_DEVICE=cuda: {problem}")
    cupy = load_cupy()
    runner = CupyBackend(cupy).runner
    if runner is None:
        pytest.fail("GDT_TEST_DEVICE=cuda: there are no kernels for this GPU")

    def view(copy: Any, offset: int, like: Host) -> Any:
        return cupy.ndarray(like.shape, like.dtype, copy.data + offset, like.strides)

    return Device(cupy.asarray, view, cupy.asnumpy, runner.run), runner.arch


LARGEST: dict[str, float] = {}
"""The largest differences of the test that runs; it reports them (`conftest`)."""


def run(calls: Sequence[KernelCall], host: Callable[[Sequence[KernelCall]], None]) -> None:
    """Run calls on the GPU; where there is g++ also on the host, and compare."""
    device, arch = gpu()
    for call in calls:
        if call.instance not in launches.instances(call.instance.file, arch):
            pytest.skip(f"{call.instance} is not for {arch}")
    if shutil.which("g++") is None:
        device(calls)
    else:
        Compared(device, host, LARGEST)(calls)
