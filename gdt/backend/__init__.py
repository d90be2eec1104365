"""Array namespaces, memory and kernels of the physical devices that host a mesh.

One `Backend` serves all devices of a kind: `"cpu"`, `"cuda"`, or a kind that was registered, as the
tests register one that executes CUDA kernels on the host.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from gdt.backend.flags import ErrorFlags
from gdt.backend.numpy import NumpyBackend
from gdt.devices import DEVICE_COUNTS
from gdt.mesh import Mesh

if TYPE_CHECKING:
    from gdt.kernels import Call

Array = Any


class KernelRunner(Protocol):
    """Executes the calls that `gdt.launches` makes, on the current device."""

    arch: str  # whose machine code it runs, such as "sm_90a"

    @property
    def multiprocessors(self) -> int:
        """How many multiprocessors the device has."""

    def run(self, call: Call) -> None:
        """Check the arguments and launch, without waiting for the end. KernelError if they do not
        fit the kernel, or if it does not compile."""


class Backend(Protocol):
    """What the engine needs of a kind of device. An attribute that is slow to make may be a
    property that makes it once."""

    xp: Any  # the array namespace in which bodies of ops compute
    runner: KernelRunner | None  # None: there are no kernels, and every op runs its body
    flags: ErrorFlags | None  # what kernels found wrong in data; with a runner there are flags
    recycled_size: float  # bytes from which on a body is given memory of `empty` to write into

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> Array:
        """An uninitialised array."""

    def asarray(self, value: Any, dtype: Any = None) -> Array:
        """`value` as an array of this backend, not copied if it is one."""

    def to_host(self, block: Array) -> np.ndarray:
        """A block as a NumPy array; this waits for it, and raises what kernels found wrong."""

    def synchronize(self) -> None:
        """Wait until all work has ended; raises what kernels found wrong."""

    def owns(self, buffer: object) -> bool:
        """Whether `buffer` is recycled memory, to which the backend refers itself."""


NUMPY = NumpyBackend()
_backends: dict[str, Backend] = {"cpu": NUMPY}
_factories: dict[str, Callable[[], Backend]] = {}


def register_backend(
    kind: str, make: Callable[[], Backend], device_count: Callable[[], int]
) -> None:
    """Let meshes name devices `kind:0`, `kind:1`, ... below `device_count()`.

    make: called once, when an array is first placed on such a mesh. Each device holds one block.
    """
    DEVICE_COUNTS[kind] = device_count
    _factories[kind] = make
    _backends.pop(kind, None)


def unregister_backend(kind: str) -> None:
    """Forget a kind of device. Arrays that live on one remain as they are."""
    del DEVICE_COUNTS[kind], _factories[kind]


def backend_of(mesh: Mesh) -> Backend:
    """The backend of the devices of `mesh`."""
    backend = _backends.get(mesh.device_kind)
    if backend is None:
        backend = _backends[mesh.device_kind] = _factories[mesh.device_kind]()
    return backend
