"""Array namespaces, memory and kernels of the physical devices that host a mesh.

One `Backend` serves all devices of a kind: `"cpu"`, `"cuda"`, or a kind that was registered, as the
tests register one that executes CUDA kernels on the host. A backend with a `runner` executes
hand-written CUDA kernels; one without, such as the host's, builds the same plans with the ops'
bodies.

**Recycled memory.** Fresh pages from the operating system cost as much as the arithmetic that fills
them, so the host's blocks of 32 KiB and more come from a pool (`numpy`). A buffer is free when only
the pool refers to it, which CPython's reference count tells; the count that means "one reference"
is measured at import, since Python versions differ.

**Order in memory.** A large block of the host lies in memory as the global array does: every array
axis behind the mesh axes that split it (`ArrayType.memory_order`). A matrix product of such blocks
is one product of the whole arrays in every layout, without a copy; an element-wise op is one loop;
gathering and cutting evenly are views. This is a matter of speed alone: bodies see the axes that
the block's shape names, and any order gives the same values (except for the last bits of a product
of a large array with its own transpose, for which BLAS has another kernel where both are one
memory). Scans, arg-reductions and copies along another axis cost what they cost NumPy on the whole
array, which may be more than on shards that lie apart. Memory for kernels (CuPy's, and that of the
emulated devices) is row-major over the block's axes, as kernels expect.

**Abstract devices** (`abstract`) compute no values: a mesh of them is that of the first of as many
processes as it has devices, whose blocks have shapes, dtypes and sizes in memory alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import numpy as np

from gdt.arguments import checked
from gdt.backend import abstract
from gdt.backend.cupy import CupyBackend, load_cupy, on_gpu
from gdt.backend.numpy import NumpyBackend, in_own_byte_order
from gdt.backend.protocol import Backend, KernelRunner
from gdt.cuda import driver
from gdt.errors import ArgumentError, error
from gdt.observe import report_synchronization
from gdt.sharding.devices import DEVICE_COUNTS, WHY_MISSING
from gdt.sharding.mesh import Mesh

Array = Any


NUMPY = NumpyBackend()
# A fork waits for the thread that takes memory, for which its child would wait without end.
os.register_at_fork(
    before=NUMPY.pool.lock.acquire,
    after_in_parent=NUMPY.pool.lock.release,
    after_in_child=NUMPY.pool.lock.release,
)
_backends: dict[str, Backend] = {"cpu": NUMPY}
_factories: dict[str, Callable[[], Backend]] = {
    "cuda": lambda: CupyBackend(load_cupy()),
    "abstract": abstract.AbstractBackend,
}
DEVICE_COUNTS["cuda"] = driver.usable_gpus
WHY_MISSING["cuda"] = driver.missing


def register_backend(
    kind: str, make: Callable[[], Backend], device_count: Callable[[], int]
) -> None:
    """Register a kind of device, so that meshes may name `kind:0` to `kind:{device_count() - 1}`.

    make: a function that returns the backend; it is called once, when a mesh first needs it.
    Each device holds one block.
    """
    DEVICE_COUNTS[kind] = device_count
    _factories[kind] = make
    _backends.pop(kind, None)


def unregister_backend(kind: str) -> None:
    """Remove a kind of device. Arrays that live on such devices remain as they are."""
    del DEVICE_COUNTS[kind], _factories[kind]


def backend_of(mesh: Mesh) -> Backend:
    """Return the backend of the devices of `mesh`."""
    backend = _backends.get(mesh.device_kind)
    if backend is None:
        backend = _backends[mesh.device_kind] = _factories[mesh.device_kind]()
    return backend


@checked
def free_memory() -> int:
    """Free the memory of the host and of GPUs that no array uses, but which is kept for arrays to
    come; return how many bytes it was.

    Fresh memory takes as long as the arithmetic that fills it, so that of arrays which are gone is
    kept: on the host up to `gdt.set_cache_limit` bytes, on GPUs by CuPy's pool. Call this before
    another program, or another library, needs the memory. Follows `torch.cuda.empty_cache` and
    CuPy's `free_all_blocks`.

    >>> x = gdt.ones((1000, 1000)) + 1.0
    >>> del x
    >>> gdt.free_memory() >= 8_000_000, gdt.free_memory()
    (True, 0)
    """
    return sum(backend.free_memory() for backend in list(_backends.values()))


@checked
def set_cache_limit(nbytes: int) -> int:
    """Bound the memory of the host that is kept for arrays to come; return the limit until now.

    nbytes: how many bytes at most, 1 GiB by default; 0 keeps none. Memory beyond it that no array
    uses is freed at once. On GPUs CuPy decides: `cupy.get_default_memory_pool().set_limit` bounds
    what arrays use and what is kept together. Follows `mlx.core.set_cache_limit`.

    Raises ArgumentError for a negative number.

    >>> before = gdt.set_cache_limit(100_000_000)
    >>> gdt.set_cache_limit(before)
    100000000
    """
    if nbytes < 0:
        problem = f"nbytes is {nbytes}"
        raise error(ArgumentError, problem, remedy="Pass 0 or more.")
    return NUMPY.pool.limit(nbytes)


def copying_ahead() -> AbstractContextManager[None]:
    """Return a context for another thread, in which arrays of the host are copied to devices beside
    what this thread computes; see `Backend.copying_ahead`."""
    return _entered([backend.copying_ahead() for backend in list(_backends.values())])


@contextmanager
def _entered(contexts: Iterable[AbstractContextManager[None]]) -> Iterator[None]:
    with ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        yield


def synchronize() -> None:
    """Wait until all devices that this process has used have finished their work."""
    for backend in list(_backends.values()):
        backend.synchronize()


def empty(xp: Any, shape: tuple[int, ...], dtype: Any) -> Array:
    """Return an array of a namespace that is not initialised; of NumPy's in recycled memory."""
    return NUMPY.empty(shape, np.dtype(dtype)) if xp is np else xp.empty(shape, dtype)


def as_array(value: Any, mesh: Mesh, dtype: Any = None) -> Array:
    """Return `value` as one array that is not split, ready to be placed on `mesh`.

    If `value` and `mesh` are on GPUs, the array is CuPy's, else NumPy's. Its elements have the
    host's byte order, which kernels, collectives and files take for granted.

    Raises TypeError or ValueError for an argument that is no array.
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
