"""Array namespaces, memory and kernels of the physical devices that host a mesh.

One `Backend` serves all devices of a kind: `"cpu"`, `"cuda"`, or a kind that was registered, as the
tests register one that executes CUDA kernels on the host.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from gdt.backend.cupy import CupyBackend, load_cupy, on_gpu
from gdt.backend.flags import ErrorFlags
from gdt.backend.numpy import NumpyBackend, Order, in_own_byte_order
from gdt.devices import DEVICE_COUNTS
from gdt.mesh import Mesh
from gdt.observe import report_synchronization

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


NUMPY = NumpyBackend()
_backends: dict[str, Backend] = {"cpu": NUMPY}
_factories: dict[str, Callable[[], Backend]] = {"cuda": lambda: CupyBackend(load_cupy())}


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


def synchronize() -> None:
    """Wait until all devices that this process has used have done their work."""
    for backend in list(_backends.values()):
        backend.synchronize()


def as_array(value: Any, mesh: Mesh, dtype: Any = None) -> Array:
    """A whole array for a mesh, from anything that is one: of NumPy, or on a GPU if both are; in
    the host's byte order, which kernels, collectives and files take for granted.

    Raises TypeError or ValueError for what is no array.
    """
    if not on_gpu(value):
        return in_own_byte_order(np.asarray(value, dtype))
    if mesh.device_kind == "cpu":
        array = value if hasattr(value, "get") else load_cupy().asarray(value)
        report_synchronization("copying to the host")
        return np.asarray(array.get(), dtype)
    backend = backend_of(mesh)
    with backend.on(mesh, 0):
        return backend.asarray(value, dtype)
