"""One of two processes of a GPU each, of which the other does the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import gdt
from gdt import Mesh
from gdt.backend import backend_of
from gdt.comm import notes
from gdt.comm import transport as transports
from gdt.comm.agreement import CallHistory
from gdt.comm.connection import Peer
from gdt.comm.nccl import NcclTransport
from gdt.sharding import processes
from tests.recorded_nccl import RecordedNccl


class TwinNccl(RecordedNccl):
    """NCCL in one of several processes, of which the others have what this one has."""

    def _end(self) -> None:
        self.groups += 1
        queued, self.queued = self.queued, []
        for call in queued:
            size = self.made[call.communicator][call.rank].size
            others = [call._replace(rank=r) for r in range(size) if r != call.rank]
            self._collective((*others, call))  # the own one writes last


class Twin:
    """Messages to another process, which does what this one does."""

    timeout, index, peers = 5.0, 0, (Peer(0, "a", 1), Peer(1, "a", 2))

    def __init__(self) -> None:
        self.history = CallHistory()

    def decide(self, value: Any, decision: Callable[[list[Any]], Any], what: str) -> Any:
        return decision([value, value])

    def gather(self, value: Any, what: str) -> list[Any]:
        return [value, value]

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


@contextmanager
def one_of_two(kind: str = "graph") -> Iterator[tuple[CallHistory, Mesh]]:
    """In this context the process is the first of two: provide the history of its notes, and a mesh
    of a device of that kind of each."""
    twin = Twin()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "_current", processes.Processes(0, ("a", "a")))
        mesh = gdt.create_mesh({"batch": 2}, devices=[f"{kind}:0", f"{kind}:1"])
        transport = NcclTransport(mesh, TwinNccl(), backend_of(mesh), twin)
        patch.setitem(transports._transports, mesh, transport)
        notes.connect(twin)
        try:
            with gdt.default_mesh(mesh):
                yield twin.history, mesh
        finally:
            notes.connect(None)
