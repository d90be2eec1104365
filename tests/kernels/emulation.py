"""The emulated device `emu:i`: NumPy arrays are its memory, and g++ executes its kernels.

A mesh on it runs as a GPU does in the engine, kernels included, on any machine. Several
coordinates may share `emu:0` in one block; `emu:0`, `emu:1`, ... hold a block each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from gdt import backend
from gdt.backend.flags import ErrorFlags
from gdt.backend.numpy import NumpyBackend
from gdt.cuda.cudnn import Cudnn
from gdt.cuda.runner import ArgumentPlace, KernelCall, Launch, address
from gdt.cuda.tensor_map import TensorMap
from gdt.errors import KernelError, error
from tests.strict import StrictArray

from .harness import Execute
from .shim.runner import root_of

DEVICES = 8


class EmulatedRunner:
    """Executes calls on the host, and counts them by kernel."""

    multiprocessors = 4
    address = staticmethod(address)
    new_array: Callable[..., Any] = np.empty

    def __init__(self, arch: str = "sm_80") -> None:
        self.arch = arch
        self.ran: Counter[str] = Counter()
        self.prepared = 0
        self._execute = Execute()
        self.recorded_cudnn: Cudnn | None = None

    @property
    def cudnn(self) -> Cudnn:
        if self.recorded_cudnn is None:
            raise error(KernelError, "cudnn", "an emulated device has none of its own")
        return self.recorded_cudnn

    def allocate(self, nbytes: int) -> tuple[Any, int]:
        memory = self.new_array((nbytes,), np.uint8)
        return memory, address(memory)

    def run(self, call: KernelCall) -> None:
        self._execute([call])
        self.ran[call.instance.kernel] += 1

    def prepare(self, call: KernelCall, places: Sequence[ArgumentPlace]) -> Launch:
        self.prepared += 1
        arguments = list(call.arguments)
        for n, _, _ in places:
            arguments[n] = without_memory(arguments[n])
        call = replace(call, arguments=tuple(arguments))

        def launch(arrays: Sequence[Any], addresses: Sequence[int]) -> None:
            arguments = list(call.arguments)
            for n, array, offset in places:
                arguments[n] = arguments[n](arrays[array], addresses[array] + offset)
            self.run(replace(call, arguments=tuple(arguments)))

        return launch


def without_memory(argument: Any) -> Callable[[Any, int], Any]:
    """The function that makes an argument like this one of an array and of an address in it."""
    if isinstance(argument, TensorMap):
        view = without_memory(argument.array)
        return lambda array, address: replace(argument, array=view(array, address))
    facts = argument.shape, argument.dtype, argument.strides
    return partial(view_at, *facts)


def view_at(
    shape: tuple[int, ...], dtype: np.dtype, strides: tuple[int, ...], array: Any, address: int
) -> Any:
    """A view of the memory of an array: of the one that owns it, since aliases must have one
    owner."""
    is_strict = isinstance(array, StrictArray)
    owner = root_of(array._host if is_strict else array)
    memory = owner.transpose(np.argsort([-abs(s) for s in owner.strides], kind="stable"))
    view = np.ndarray(shape, dtype, memory, address - owner.ctypes.data, strides)
    return StrictArray(view, array._machine, array) if is_strict else view


class EmulatedBackend(NumpyBackend):
    """NumPy's memory and namespace, with kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = EmulatedRunner()
        self.flags = ErrorFlags(lambda n: np.empty(n, np.uint64))
        self.empty = lambda shape, dtype, order=None: self.pool.empty(shape, dtype)  # as on a GPU

    def to_host(self, block: np.ndarray) -> np.ndarray:
        self.flags.check()
        return super().to_host(block)

    def synchronize(self) -> None:
        self.flags.check()


EMULATED = EmulatedBackend()  # one for all tests: plans are kept, and know their backend


@contextmanager
def emulated_devices() -> Iterator[EmulatedBackend]:
    """Devices `emu:0` to `emu:7`, and their backend."""
    backend.register_backend("emu", lambda: EMULATED, lambda: DEVICES)
    try:
        yield EMULATED
    finally:
        backend.unregister_backend("emu")
