"""What the engine asks of a kind of device: the protocols of backends and of kernel runners."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from gdt.backend.flags import ErrorFlags
from gdt.backend.numpy import Order
from gdt.cuda.compiler import KernelCall
from gdt.sharding.mesh import Mesh

Array = Any


class KernelRunner(Protocol):
    """Executes the calls that `gdt.cuda.launches` makes, on the current device."""

    arch: str  # whose machine code it runs, such as "sm_90a"

    @property
    def multiprocessors(self) -> int:
        """How many multiprocessors the device has."""

    def run(self, call: KernelCall) -> None:
        """Check the arguments and launch, without waiting for the end. KernelError if they do not
        fit the kernel, or if it does not compile."""


class Backend(Protocol):
    """What the engine needs of a kind of device. An attribute that is slow to make may be a
    property that makes it once."""

    xp: Any  # the array namespace in which bodies of ops compute
    runner: KernelRunner | None  # None: there are no kernels, and every op runs its body
    flags: ErrorFlags | None  # what kernels found wrong in data; with a runner there are flags
    recycled_size: float  # bytes from which on a body is given memory of `empty` to write into

    def empty(self, shape: tuple[int, ...], dtype: np.dtype, order: Order = None) -> Array:
        """An uninitialised array. order: of its axes in memory, slowest first, which a backend may
        follow if it is large."""

    def asarray(
        self, value: Any, dtype: Any = None, *, copy: bool = False, order: Order = None
    ) -> Array:
        """`value` as an array of this backend; not copied if it is one, unless `copy`, which may be
        in an `order` as that of `empty`."""

    def upload(self, value: np.ndarray) -> Array:
        """A host array in the memory of the current device, for kernels; copied once if a graph is
        captured."""

    def to_host(self, block: Array) -> np.ndarray:
        """A block as a NumPy array; this waits for it, and raises what kernels found wrong."""

    def synchronize(self) -> None:
        """Wait until all work has ended; raises what kernels found wrong."""

    def owns(self, buffer: object) -> bool:
        """Whether `buffer` is recycled memory, to which the backend refers itself."""

    def on(self, mesh: Mesh, block: int) -> AbstractContextManager[object]:
        """A context in which arrays are made, and ops run, on the device of that block of this
        process."""

    def placed(self, mesh: Mesh, block: int, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, called in that context."""

    def overlapping(self, mesh: Mesh) -> AbstractContextManager[object]:
        """A context in which the devices of a mesh are asked for communication, with the packing
        and unpacking around it, that may run beside what they are asked afterwards, until `join`.
        What it reads must be referred to until then, and what it makes not be used."""

    def join(self, mesh: Mesh) -> None:
        """Let what the devices of a mesh are asked next wait for the end of what was asked in
        `overlapping`; the host does not wait."""
