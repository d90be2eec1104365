"""The protocols by which the engine uses a kind of device: `Backend` and `KernelRunner`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from gdt.backend.flags import ErrorFlags
from gdt.backend.numpy import Order
from gdt.cuda.cudnn import Cudnn
from gdt.cuda.runner import ArgumentPlace, KernelCall, Launch
from gdt.sharding.mesh import Mesh

Array = Any


class KernelRunner(Protocol):
    """An object that executes the calls of `gdt.cuda.launches` on the current device."""

    arch: str  # the architecture of its kernels, such as "sm_90a"

    @property
    def address(self) -> Callable[[Array], int]:
        """The function that returns the address of the first element of an array."""

    @property
    def multiprocessors(self) -> int:
        """The number of multiprocessors of the device."""

    @property
    def cudnn(self) -> Cudnn:
        """cuDNN on the current device and stream; KernelError where there is none."""

    def allocate(self, nbytes: int) -> tuple[Any, int]:
        """Return uninitialised memory that is no array, and its address."""

    def run(self, call: KernelCall) -> None:
        """Check the arguments and launch, without waiting for the end.

        Raises KernelError if the arguments do not fit the kernel, or if it does not compile."""

    def prepare(self, call: KernelCall, places: Sequence[ArgumentPlace]) -> Launch:
        """Return the launch of a call that has run, with other arrays in some places: of the same
        shapes, strides and dtypes, and aligned alike. It checks nothing and refers to no array: the
        caller refers to those that are in no place."""


class Backend(Protocol):
    """Namespace, memory, kernels and streams of one kind of device.

    xp: the array namespace in which bodies of ops compute.
    runner: the runner of kernels; None where every op runs its body.
    flags: the errors that kernels note; a backend with a runner has flags.
    recycled_size: the bytes from which on a body gets memory of `empty` to write into.
    most_joined: the number of arrays that one `concatenate` may join in a captured graph.
    overlaps: whether communication may run beside computation.

    An attribute that is slow to create may be a cached property.
    """

    xp: Any
    runner: KernelRunner | None
    flags: ErrorFlags | None
    recycled_size: float
    most_joined: float
    overlaps: bool

    def empty(self, shape: tuple[int, ...], dtype: np.dtype, order: Order = None) -> Array:
        """Return an uninitialised array on the current device.

        order: the order of its axes in memory, slowest first; a backend may ignore it.
        """

    def free_memory(self) -> int:
        """Free the memory that is kept for arrays to come; return its bytes."""

    def asarray(
        self, value: Any, dtype: Any = None, *, copy: bool = False, order: Order = None
    ) -> Array:
        """Return `value` as an array of this backend; an array of the backend is copied if `copy`.

        order: the order of the copy's axes in memory, as in `empty`.
        """

    def copying_ahead(self) -> AbstractContextManager[None]:
        """Return a context for another thread, in which `asarray` copies arrays of the host beside
        what this thread computes, and returns when they have arrived."""

    def upload(self, value: np.ndarray) -> Array:
        """Return a copy of a host array in the memory of the current device, for kernels; while a
        graph is captured, it is filled once, after the capture."""

    def to_host(self, block: Array) -> np.ndarray:
        """Return a block as a NumPy array; wait for it, and raise the error that a kernel noted."""

    def synchronize(self) -> None:
        """Wait until all work has ended, and raise the error that a kernel noted."""

    def seconds(self, run: Callable[[], Any]) -> float:
        """Return the seconds that the current device computes for one `run`."""

    def owns(self, buffer: object) -> bool:
        """Return whether `buffer` is recycled memory, to which the backend itself refers."""

    def on(self, mesh: Mesh, block: int) -> AbstractContextManager[object]:
        """Return a context in which arrays are created, and ops run, on the device of block number
        `block` of this process."""

    def placed(self, mesh: Mesh, block: int, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that calls `function` in the context `on(mesh, block)`."""

    def overlapping(self, mesh: Mesh) -> AbstractContextManager[list[Any]]:
        """Return a context for communication that may run beside later computation, until `join`.

        The work of this context is packing, collectives and unpacking on the devices of `mesh`. It
        provides a list, to which it adds at its end the events of the end of its work. Until `join`
        the caller holds references to the memory that it reads, and does not use its results."""

    def join(self, mesh: Mesh, events: Sequence[Any], *, is_read: bool = True) -> None:
        """Let later computation of the devices of `mesh` wait for these events of `overlapping`;
        the host does not wait. is_read: whether somebody reads the results now, and the memory of
        the operands is not only free."""
