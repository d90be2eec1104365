"""Devices `graph:0`, ...: CuPy's interface on the host, with kernels that g++ has compiled.

With the emulated device (`emulation`) kernels compute in NumPy's arrays; here in arrays that refuse
what CuPy refuses, on streams that can be captured.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from gdt.backend import backend_of, register_backend
from gdt.comm import transport as transports
from gdt.comm.nccl import NcclTransport
from gdt.cuda import sources
from gdt.cuda.runner import KernelCall
from gdt.cuda.tensor_map import TensorMap
from gdt.sharding.mesh import Mesh
from tests.recorded_nccl import RecordedNccl
from tests.strict import SimulatedGpus, StrictArray, StrictCupy
from tests.strict.arrays import unwrapped
from tests.strict.arrays import written as note_written

from . import libm
from .emulation import EmulatedRunner

CUPY = StrictCupy(4, libm.FUNCTIONS)


class StrictRunner(EmulatedRunner):
    """Executes calls in the memory of strict devices: at once, or when a graph is launched."""

    new_array = CUPY.ndarray

    def run(self, call: KernelCall) -> None:
        opened = replace(
            call,
            arguments=tuple(map(_opened, call.arguments)),
            pointees=tuple(map(_opened, call.pointees)),
        )
        signature = sources.parameters(call.instance)
        pairs = zip(signature, opened.arguments, strict=True)
        written = [a for p, a in pairs if p.pointer and not p.const and a is not None]
        for argument in (*call.arguments, *call.pointees):
            if isinstance(argument, StrictArray):
                unwrapped(argument, CUPY.machine)  # which is on the current device
        for p, argument in zip(signature, call.arguments, strict=True):
            if p.pointer and not p.const and isinstance(argument, StrictArray):
                note_written(argument, CUPY.machine)
        for argument in call.pointees:
            note_written(argument, CUPY.machine)
        run, capture = super().run, CUPY.machine.capture
        if capture is not None and call.pointees:  # by a table that is filled after the capture
            capture.postpone(lambda: run(opened))
        else:
            CUPY.machine.launch(lambda: run(opened), opened.arguments, written)


def _opened(argument: Any) -> Any:
    if isinstance(argument, TensorMap):
        return replace(argument, array=_opened(argument.array))
    return argument._host if isinstance(argument, StrictArray) else argument


class StrictKernels(SimulatedGpus):
    """The CuPy backend, whose kernels are executed on the host."""

    def _runner(self) -> Any:
        return StrictRunner()


@cache
def _backend() -> StrictKernels:
    return StrictKernels(CUPY)  # one for all tests: plans are kept, and know their backend


def register() -> None:
    """Let meshes name the devices."""
    register_backend("graph", _backend, lambda: 4)


@contextmanager
def using_nccl(mesh: Mesh) -> Iterator[RecordedNccl]:
    """In this context a recorded NCCL moves data between the devices of a mesh."""
    nccl = RecordedNccl(CUPY.order)
    with pytest.MonkeyPatch.context() as patch:
        transport = NcclTransport(mesh, nccl, backend_of(mesh))
        patch.setitem(transports._transports, mesh, transport)
        yield nccl
