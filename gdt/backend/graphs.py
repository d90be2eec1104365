"""CUDA graphs of one process: the work of some of its GPUs, recorded to be launched again.

A CUDA graph belongs to one device. Captures may run at the same time, one on a stream of each
device; CUDA refuses to order one of them after another (CUDA Runtime API,
cudaErrorStreamCaptureMerge and cudaErrorStreamCaptureIsolation).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from gdt.backend.scope import Scope

Array = Any


class Graph:
    """A CUDA graph for each of some devices, and the pool that holds their memory.

    pool: CuPy's memory pool, which keeps the memory of different streams apart, and all of it as
        long as the pool lives.
    streams: by device, the stream that is captured.
    uploads: arrays that the graphs read, each with the values that are copied there once.
    counters: by device, numbers that are 0 before and after each launch of a kernel.
    """

    def __init__(self, pool: Any, streams: Mapping[int, Any], scopes: Mapping[int, Scope]) -> None:
        self.pool, self.streams, self._scopes = pool, streams, scopes
        self.uploads: list[tuple[Array, np.ndarray]] = []
        self.counters: dict[int, Array] = {}
        self._graphs: dict[int, Any] = {}

    def next(self) -> Graph:
        """Return a graph with the same memory, not captured yet, that is launched after this."""
        return Graph(self.pool, self.streams, self._scopes)

    def launch(self) -> None:
        """Launch the graphs on the current stream of every device, without waiting."""
        for device, graph in self._graphs.items():
            with self._scopes[device]:
                graph.launch()

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Capture the work that this context puts on the streams."""
        begun: list[int] = []
        with ExitStack() as current:
            try:
                for device, stream in self.streams.items():
                    scope = self._scopes[device]
                    current.enter_context(scope.computing_on(stream))
                    with scope:
                        stream.begin_capture()
                    begun.append(device)
                yield
                while begun:
                    with self._scopes[begun[-1]]:
                        device = begun.pop()
                        self._graphs[device] = self.streams[device].end_capture()
            except BaseException:
                for device in begun:
                    with self._scopes[device]:
                        _abandon(self.streams[device])
                raise

    def upload(self) -> None:
        """Copy the values of `uploads` to the devices."""
        for copy, value in self.uploads:
            with self._scopes[copy.device.id]:
                copy.set(value)


def _abandon(stream: Any) -> None:
    """End a capture that has failed. CUDA reports the failure again; its first error tells more."""
    try:
        stream.end_capture()
    except RuntimeError:
        return


CAPTURED: ContextVar[Graph | None] = ContextVar("gdt.captured_graph", default=None)
"""The graph that the current thread captures."""
