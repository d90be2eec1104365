"""Devices `twin:0` to `twin:3`: one GPU, each of whose streams stands for a device of its own.

A mesh of twins holds a block on each, and takes the way of several GPUs in one process, with groups
of NCCL calls, communicators for every rank and graphs between collectives, on a machine that has
one GPU. NCCL runs several ranks on a GPU where `tests.gpu.stages.SHARED_GPU` is in the environment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from gdt.backend import backend_of, register_backend
from gdt.backend.cupy import CupyBackend, load_cupy
from gdt.backend.graphs import Graph
from gdt.backend.scope import Scope
from gdt.comm import nccl
from gdt.comm.nccl import NcclTransport
from gdt.comm.transport import CopyTransport, Transport, register_transport
from gdt.sharding.mesh import Mesh

from .kernels.strict_kernels import CUPY, StrictRunner
from .recorded_nccl import RecordedNccl
from .strict import SimulatedGpus

COUNT = 4


class TwinScope(Scope):
    """A context in which the first GPU is current, and computes on a stream of this scope."""

    def __init__(self, cupy: Any, kind: str, index: int) -> None:
        super().__init__(cupy, 0)
        self.name = f"{kind}:{index}"
        self.is_current = False  # its stream is not
        with self.device:
            self._stream = cupy.cuda.Stream(non_blocking=True)
        self._streams: list[Any] = []

    @property
    def stream(self) -> Any:
        return self._stream

    @contextmanager
    def computing_on(self, stream: Any) -> Iterator[None]:
        before, self._stream = self._stream, stream
        try:
            yield
        finally:
            self._stream = before

    def use(self, stream: Any) -> None:
        self._stream = stream

    def __enter__(self) -> Scope:
        super().__enter__()
        self._streams.append(self._stream.__enter__())
        return self

    def __exit__(self, *failure: Any) -> None:
        self._streams.pop().__exit__(*failure)
        super().__exit__(*failure)


class TwinBackend(CupyBackend):
    """The CuPy backend, to which the streams of one GPU are devices."""

    def __init__(self, cupy: Any, kind: str) -> None:
        super().__init__(cupy, [TwinScope(cupy, kind, i) for i in range(COUNT)])

    def to_host(self, block: Any) -> np.ndarray:
        """A block as a NumPy array; an array does not know its stream, so this waits for all."""
        self._scopes[0].device.synchronize()
        return super().to_host(block)

    @contextmanager
    def capture(self, *devices: int, after: Graph | None = None) -> Iterator[Graph]:
        """As for several GPUs; what the graphs read is sent by one stream, for which all wait."""
        with super().capture(*devices, after=after) as graph:
            yield graph
        self._scopes[0].device.synchronize()


class StrictTwins(TwinBackend):
    """Twins of a simulated GPU, whose kernels are executed on the host."""

    _has_work = SimulatedGpus._has_work

    def _runner(self) -> Any:
        return StrictRunner()


def _recorded(mesh: Mesh) -> Transport:
    if not mesh.divided:
        return CopyTransport(mesh)
    return NcclTransport(mesh, RecordedNccl(CUPY.order), backend_of(mesh))


def register() -> None:
    """Let meshes name `twin:0`, ..., of the first GPU, and `stricttwin:0`, ..., of a simulated
    one."""
    kinds: dict[str, tuple[Callable[[], Any], Callable[[Mesh], Transport]]] = {
        "twin": (lambda: TwinBackend(load_cupy(), "twin"), nccl.transport),
        "stricttwin": (lambda: StrictTwins(CUPY, "stricttwin"), _recorded),
    }
    for kind, (make, transport) in kinds.items():
        register_backend(kind, make, lambda: COUNT)
        register_transport(kind, transport)
