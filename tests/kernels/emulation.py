"""The emulated device `emu:i`: NumPy arrays are its memory, and g++ executes its kernels.

A mesh on it runs as a GPU does in the engine, kernels included, on any machine. Several
coordinates may share `emu:0` in one block; `emu:0`, `emu:1`, ... hold a block each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from gdt import backend
from gdt.backend.flags import ErrorFlags
from gdt.backend.numpy import NumpyBackend
from gdt.cuda.cudnn import Cudnn
from gdt.cuda.runner import KernelCall
from gdt.errors import KernelError, error

from .harness import Execute

DEVICES = 8


class EmulatedRunner:
    """Executes calls on the host, and counts them by kernel."""

    multiprocessors = 4

    def __init__(self, arch: str = "sm_80") -> None:
        self.arch = arch
        self.ran: Counter[str] = Counter()
        self._execute = Execute()
        self.recorded_cudnn: Cudnn | None = None

    @property
    def cudnn(self) -> Cudnn:
        if self.recorded_cudnn is None:
            raise error(KernelError, "cudnn", "an emulated device has none of its own")
        return self.recorded_cudnn

    def run(self, call: KernelCall) -> None:
        self._execute([call])
        self.ran[call.instance.kernel] += 1


class EmulatedBackend(NumpyBackend):
    """NumPy's memory and namespace, with kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = EmulatedRunner()
        self.flags = ErrorFlags(lambda n, value: np.full(n, value, np.uint64), np.asarray)
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
