"""CUDA graphs of one process: what is launched on some of its GPUs, recorded to be launched again.

A graph belongs to one device. Captures that are under way at the same time, one on a stream of each
device, stay graphs of their own: CUDA refuses what would order one after another (CUDA Runtime API,
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

    streams: by device, the one that is captured; CuPy's pool keeps apart what comes from different
    ones. uploads: arrays that the graphs read, each with what is copied there once.
    """

    def __init__(self, pool: Any, streams: Mapping[int, Any], scopes: Mapping[int, Scope]) -> None:
        self.pool, self.streams, self._scopes = pool, streams, scopes
        self.uploads: list[tuple[Array, np.ndarray]] = []
        self._recorded: dict[int, Any] = {}

    def next(self) -> Graph:
        """One that is not captured yet, with the same memory: it is always launched afterwards."""
        return Graph(self.pool, self.streams, self._scopes)

    def launch(self) -> None:
        """Run it on the current stream of every device; returns at once."""
        for device, recorded in self._recorded.items():
            with self._scopes[device]:
                recorded.launch()

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Capture what the devices are asked in this context."""
        begun: list[int] = []
        with ExitStack() as current:
            try:
                for device, stream in self.streams.items():
                    with self._scopes[device]:
                        current.enter_context(stream)
                        stream.begin_capture()
                    begun.append(device)
                yield
                while begun:
                    with self._scopes[begun[-1]]:
                        device = begun.pop()
                        self._recorded[device] = self.streams[device].end_capture()
            except BaseException:
                for device in begun:
                    with self._scopes[device]:
                        _abandon(self.streams[device])
                raise

    def upload(self) -> None:
        """Send what the graphs read and capturing could not send."""
        for copy, value in self.uploads:
            with self._scopes[copy.device.id]:
                copy.set(value)


def _abandon(stream: Any) -> None:
    """End a capture that has failed; CUDA says so again, and the first error is the telling one."""
    try:
        stream.end_capture()
    except RuntimeError:
        return


CAPTURED: ContextVar[Graph | None] = ContextVar("gdt.captured_graph", default=None)
"""The graph that this thread captures."""
