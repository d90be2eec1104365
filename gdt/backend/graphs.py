"""CUDA graphs of one process: the work of some of its GPUs, recorded to be launched again.

A CUDA graph belongs to one device. Captures may run at the same time, one on a stream of each
device; CUDA refuses to order one of them after another (CUDA Runtime API,
cudaErrorStreamCaptureMerge and cudaErrorStreamCaptureIsolation).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import numpy as np

from gdt.backend.scope import Scope

Array = Any


class Graph:
    """Work of some devices that is launched again and again: CUDA graphs, each of one device, and
    between them calls of the host, such as those of NCCL.

    pool: CuPy's memory pool, which keeps the memory of different streams apart, and all of it as
        long as the pool lives.
    streams: by device, the stream that is captured.
    uploads: arrays that the graphs read, each with the values that are copied there once.
    counters: by device, numbers that are 0 before and after each launch of a kernel.
    steps: what a launch calls, in order.
    has_work: tells whether a CUDA graph has nodes.
    """

    def __init__(
        self,
        pool: Any,
        streams: Mapping[int, Any],
        scopes: Mapping[int, Scope],
        has_work: Callable[[Any], bool],
    ) -> None:
        self.pool, self.streams, self._scopes, self._has_work = pool, streams, scopes, has_work
        self.uploads: list[tuple[Array, np.ndarray]] = []
        self.counters: dict[int, Array] = {}
        self.steps: list[Callable[[], object]] = []
        self._begun: list[int] = []  # devices whose streams are captured now
        self._current = ExitStack()  # in which those streams are current
        self._beside: Mapping[int, Any] = {}

    def next(self) -> Graph:
        """Return a graph with the same memory, not captured yet, that is launched after this."""
        graph = Graph(self.pool, self.streams, self._scopes, self._has_work)
        graph._beside = self._beside
        return graph

    def beside(self, new_streams: Callable[[], Mapping[int, Any]]) -> Graph:
        """Return a graph of other streams with memory from the same pool, not captured yet, that
        runs beside this. new_streams: makes them, unless there are some."""
        self._beside = self._beside or new_streams()
        return Graph(self.pool, self._beside, self._scopes, self._has_work)

    def launch(self) -> None:
        """Launch all on the current stream of every device, without waiting."""
        with self._scopes[next(iter(self.streams))]:
            for step in self.steps:
                step()

    # ---- capture

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Capture the work that this context puts on the streams."""
        try:
            self._begin()
            yield
            self._end()
        except BaseException:
            for device in self._begun:
                with self._scopes[device]:
                    _abandon(self.streams[device])
            self._begun.clear()
            self._current.close()
            raise

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Capture nothing in this context of one in which work is captured: it may add steps, which
        a launch calls between what is captured before and afterwards."""
        self._end()
        yield
        self._begin()

    def call(self, step: Callable[[], object]) -> None:
        """Let each launch call `step` after what has been captured, and before what will be."""
        with self.paused():
            self.steps.append(step)

    def _begin(self) -> None:
        for device, stream in self.streams.items():
            scope = self._scopes[device]
            self._current.enter_context(scope.computing_on(stream))
            with scope:
                stream.begin_capture()
            self._begun.append(device)

    def _end(self) -> None:
        while self._begun:
            with self._scopes[self._begun[-1]] as scope:
                graph = self.streams[self._begun.pop()].end_capture()
                has_work = self._has_work(graph)
            is_alone = len(self.streams) == 1  # so that its device is current
            if has_work:
                self.steps.append(graph.launch if is_alone else partial(_launch, scope, graph))
        self._current.close()

    def upload(self) -> None:
        """Copy the values of `uploads` to the devices."""
        for copy, value in self.uploads:
            with self._scopes[copy.device.id]:
                copy.set(value)


def _launch(scope: Scope, graph: Any) -> None:
    """Launch a CUDA graph on the current stream of its device."""
    with scope:
        graph.launch()


def _abandon(stream: Any) -> None:
    """End a capture that has failed. CUDA reports the failure again; its first error tells more."""
    try:
        stream.end_capture()
    except RuntimeError:
        return


CAPTURED: ContextVar[Graph | None] = ContextVar("gdt.captured_graph", default=None)
"""The graph that the current thread captures."""

MOST_JOINED = 8  # arrays: of more, CuPy sends a table of addresses, which a graph cannot hold


def concatenated(xp: Any, arrays: Sequence[Array], axis: int) -> Array:
    """Return `xp.concatenate(arrays, axis)` of any number of arrays of one dtype, also while a
    graph is captured."""
    if CAPTURED.get() is None or len(arrays) <= MOST_JOINED:
        return xp.concatenate(arrays, axis)
    before = arrays[0].shape
    axis %= len(before)
    stops = [*itertools.accumulate(x.shape[axis] for x in arrays)]
    whole = xp.empty((*before[:axis], stops[-1], *before[axis + 1 :]), arrays[0].dtype)
    for x, stop in zip(arrays, stops, strict=True):
        whole[(slice(None),) * axis + (slice(stop - x.shape[axis], stop),)] = x
    return whole
