"""MPI: how processes that `mpiexec` has started find each other, and their messages in its memory.

Data travels as MPI's messages, which between processes of one host are copies in shared memory;
the sockets beside them tell when a process dies, which MPI does not. Reductions are computed from
messages, not by MPI: its max and min lose NaN, it has no float16, and the order of its sums is its
own.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

from gdt.comm.connection import GOODBYE, unpacked
from gdt.comm.launchers import SLURM
from gdt.comm.messages import Messages, Payload, bytes_of
from gdt.errors import DistributedError, error

# What launchers of MPI tell the processes that they start: MPICH and Intel MPI, Open MPI, PMIx.
SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "PMIX_SIZE", "MPI_LOCALNRANKS")

PATIENCE = 0.002  # seconds between two looks at the sockets
STUCK = 1.0  # seconds without such a look after which MPI is taken to wait for ever
FINALIZING = 5  # seconds in which MPI is finalized, once all processes have come to their end

LOG = logging.getLogger("gdt.distributed")


def launched() -> bool:
    """Whether a launcher of MPI has started this process as one of several. Slurm tells all that
    MPI's libraries need, also where there is none, and what `launchers` reads."""
    told = any(os.environ.get(name, "1") not in ("", "1") for name in SIZES)
    return told and (SLURM[1] not in os.environ or find_spec("mpi4py") is not None)


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


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """A context in which MPI may wait for processes that have died: the system ends this process,
    without Python, which waits in MPI, unless the context is left in time."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or not hasattr(signal, "SIGALRM"):
        yield
        return
    handler = signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, min(seconds, 1e8))  # a timeout may be infinite
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)


class Wait(NamedTuple):
    """The wait of a process: the step, the processes whose messages are missing, and the time at
    which it gives up."""

    what: str
    missing: Collection[int]
    end: float


class MpiMessages(Messages):
    """Messages whose data goes through MPI; `mpi` is set before the first one.

    A process that dies, or is stopped, while it puts a message into a queue in shared memory leaves
    the queue half changed, and MPI waits in the owner of the queue for the other half, in whatever
    function it was called. A thread watches for that, and ends the process instead.
    """

    mpi: Mpi

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._sending: dict[int, Any] = {}  # requests that are under way, by process
        self._current_wait: Wait | None = None
        self._sockets, self._looked = threading.RLock(), 0.0  # when somebody looked at them
        self._closed = threading.Event()
        threading.Thread(target=self._watch, name="gdt: watch MPI", daemon=True).start()

    def transfer(
        self, outgoing: Mapping[int, Payload], sources: Collection[int], what: str
    ) -> dict[int, memoryview]:
        """As `exchange`, in the step that was begun."""
        missing = set(sources)
        self._looked = time.monotonic()
        self._current_wait = Wait(what, missing, self._looked + self.timeout)
        try:
            return self._transfer(outgoing, missing, what)
        # mpi4py may fail to decode MPI's text about a process whose memory is gone.
        except (self.mpi.module.Exception, UnicodeError) as cause:
            raise self._lost(what, cause) from cause
        finally:
            with self._sockets:
                self._current_wait = None

    def _watch(self) -> None:
        """End the process if MPI does not return although a process has died, or time is up."""
        while not self._closed.wait(STUCK / 2):
            with self._sockets:
                if self._current_wait is None or time.monotonic() - self._looked < STUCK:
                    continue
                what, missing, end = self._current_wait
                try:
                    self.listen(0)
                    self.check(missing, what)
                    if time.monotonic() > end:
                        raise self.timed_out(missing, what)
                except DistributedError as failure:
                    text = f"{type(failure).__name__}: {failure}"
                    LOG.error("MPI does not return from a step that has failed: %s", text)
                    super().close(text.split("\n", maxsplit=1)[0])
                    os._exit(1)

    def listen(self, seconds: float) -> None:
        """As `Messages.listen`, in one thread at a time."""
        with self._sockets:
            self._looked = time.monotonic()
            super().listen(seconds)

    def _transfer(
        self, outgoing: Mapping[int, Payload], missing: set[int], what: str
    ) -> dict[int, memoryview]:
        world = self.mpi.world
        self._sending = {i: world.Isend(self._packed(a, what), i) for i, a in outgoing.items()}
        receiving: dict[int, tuple[np.ndarray, Any]] = {}
        payloads: dict[int, memoryview] = {}

        def done() -> bool:
            for i in missing - receiving.keys():
                pair = self._receive(i)
                if pair is not None:
                    receiving[i] = pair
            for i in [i for i in receiving if receiving[i][1].Test()]:
                data, _ = receiving.pop(i)
                payloads[i] = self.checked(i, unpacked(data.data), what)
                missing.discard(i)
            for i in [i for i, request in self._sending.items() if request.Test()]:
                del self._sending[i]
            return not missing and not self._sending

        self.wait(done, missing, what)
        return payloads

    def _lost(self, what: str, cause: Exception) -> DistributedError:
        """The error of a step in which MPI has failed. Nearly always a process has died, and the
        sockets tell which, a moment later."""
        end = time.monotonic() + 2 * self.grace
        while time.monotonic() < end:
            self.listen(0.05)
            try:
                self.check(self.connections, what)
            except DistributedError as failure:
                return failure
        problem = f"MPI has failed ({type(cause).__name__})"
        return self.failed(what, problem, "See what the other processes printed last.")

    def unsent(self) -> list[int]:
        """The processes with a message that is still on its way to them."""
        return [*self._sending]

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

    def wait(self, is_done: Callable[[], bool], missing: Collection[int], what: str) -> None:
        """As `Messages.wait`, with MPI polled all the time and the sockets now and then."""
        now = time.monotonic()
        look, end = now + PATIENCE, now + self.timeout
        while not is_done():
            os.sched_yield()  # there may be fewer cores than processes
            now = time.monotonic()
            if now > look:
                self.listen(0)
                self.check(missing, what)
                look = now + PATIENCE
                if now > end:
                    raise self.timed_out(missing, what)

    def close(self, reason: str = "") -> None:
        """As `Messages.close`; then MPI is finalized, unless processes may be missing: finalizing
        would wait for them."""
        if not reason:
            reason = self._missing_at_end()
            if reason:
                LOG.error("shutdown: %s", reason)
        self._closed.set()
        super().close(reason)
        if not reason and self.mpi.finalizes:
            with limited(FINALIZING):
                self.mpi.module.Finalize()
        elif reason and not self.mpi.finalizes:
            self.mpi.world.Abort(1)  # else mpi4py would wait at exit for those that died

    def _missing_at_end(self) -> str:
        """Say goodbye, and wait until all others have; why one of them never will, or empty."""
        self._control.send(self.header("", 0, GOODBYE))
        end = time.monotonic() + self.timeout
        try:
            while missing := [i for i, c in self.connections.items() if c.goodbye is None]:
                self.listen(0.02)
                self.check((), "shutdown")
                if time.monotonic() > end:
                    raise self.timed_out(missing, "shutdown")
        except DistributedError as failure:
            return str(failure).splitlines()[0]
        failed = [c for c in self.connections.values() if c.goodbye]
        return f"{failed[0].peer} has ended: {failed[0].goodbye}" if failed else ""
