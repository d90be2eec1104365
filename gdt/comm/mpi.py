"""MPI: how processes that `mpiexec` has started find each other, and their messages in its memory.

Data travels as MPI's messages, which between processes of one host are copies in shared memory;
the sockets beside them tell when a process dies, which MPI does not. Reductions are computed from
messages, not by MPI: its max and min lose NaN, it has no float16, and the order of its sums is its
own.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import numpy as np

from gdt.comm.connection import unpacked
from gdt.comm.messages import Messages, Payload, bytes_of
from gdt.errors import DistributedError, error

# What launchers of MPI tell the processes that they start: MPICH and Intel MPI, Open MPI, PMIx.
SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "PMIX_SIZE", "MPI_LOCALNRANKS")

PATIENCE = 0.002  # seconds between two looks at the sockets


def launched() -> bool:
    """Whether a launcher of MPI has started this process as one of several."""
    return any(os.environ.get(name, "1") not in ("", "1") for name in SIZES)


class Mpi(NamedTuple):
    """MPI's module, a communicator of all processes, and whether gdt is to finalize MPI."""

    module: Any
    world: Any
    finalizes: bool


def started() -> Mpi:
    """MPI, initialised. DistributedError if mpi4py is missing."""
    finalizes = "mpi4py.MPI" not in sys.modules
    try:
        import mpi4py  # noqa: PLC0415

        # Finalizing waits for all processes, and would wait for those that died.
        mpi4py.rc.finalize = False
        from mpi4py import MPI  # noqa: PLC0415
    except (ImportError, RuntimeError) as cause:
        raise error(
            DistributedError,
            "initialize",
            f"mpiexec has started this process, but MPI cannot be loaded ({cause})",
            remedy="Install it with: pip install 'gdt[mpi]'",
        ) from cause
    return Mpi(MPI, MPI.COMM_WORLD.Dup(), finalizes)


class MpiMessages(Messages):
    """Messages whose data goes through MPI; `mpi` is set before the first one."""

    mpi: Mpi
    grace = 1.0  # a goodbye may be faster than the last message

    def exchange(
        self, outgoing: Mapping[int, Payload], sources: Collection[int], what: str
    ) -> dict[int, memoryview]:
        self.begin()
        world = self.mpi.world
        sending = [world.Isend(self._packed(a, what), i) for i, a in outgoing.items()]
        receiving: dict[int, tuple[np.ndarray, Any]] = {}
        found: dict[int, memoryview] = {}
        waiting = set(sources)

        def done() -> bool:
            for i in waiting - receiving.keys():
                begun = self._receive(i)
                if begun is not None:
                    receiving[i] = begun
            for i in [i for i in receiving if receiving[i][1].Test()]:
                data, _ = receiving.pop(i)
                found[i] = self.checked(i, unpacked(data.data), what)
                waiting.discard(i)
            sending[:] = [request for request in sending if not request.Test()]
            return not waiting and not sending

        self.wait(done, waiting, what)
        return found

    def _packed(self, arrays: Payload, what: str) -> np.ndarray:
        parts = [bytes_of(a) for a in arrays]
        nbytes = sum(p.nbytes for p in parts)
        header = self.header(what, nbytes)
        data = np.empty(len(header) + nbytes, np.uint8)
        at = 0
        for part in (memoryview(header), *parts):
            data[at : at + part.nbytes] = part
            at += part.nbytes
        return data

    def _receive(self, source: int) -> tuple[np.ndarray, Any] | None:
        """Memory for the next message of a process and the request that fills it, if it is here."""
        module, status = self.mpi.module, self.mpi.module.Status()
        message = self.mpi.world.Improbe(source, 0, status)
        if message is None:
            return None
        data = np.empty(status.Get_count(module.BYTE), np.uint8)
        return data, message.Irecv([data, module.BYTE])

    def wait(self, done: Callable[[], bool], waiting: Collection[int], what: str) -> None:
        """As `Messages.wait`, with MPI polled all the time and the sockets now and then."""
        now = time.monotonic()
        look, end = now + PATIENCE, now + self.timeout
        while not done():
            os.sched_yield()  # there may be fewer cores than processes
            now = time.monotonic()
            if now > look:
                self.listen(0)
                self.check(waiting, what)
                look = now + PATIENCE
                if now > end:
                    raise self.timed_out(waiting, what)

    def close(self, reason: str = "") -> None:
        """As `Messages.close`; then MPI is finalized, unless processes may be missing."""
        super().close(reason)
        if not reason and self.mpi.finalizes:
            self.mpi.module.Finalize()
        elif reason and not self.mpi.finalizes:
            self.mpi.world.Abort(1)  # else mpi4py would wait at exit for those that died
