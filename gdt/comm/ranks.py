"""Ranks of NCCL: a block on a GPU is one; their communicators, and what can go wrong with them.

The blocks along some mesh axes share a communicator; a process has one for each of its GPUs, and
issues the calls of all of them in one group, as one thread that drives several GPUs must. A failure
shows only when somebody asks: `Ranks.wait` does.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

from gdt.backend.cupy import device_of
from gdt.backend.graphs import CAPTURED
from gdt.comm.messages import Messages
from gdt.comm.transport import Axes, Block, BlockTransport
from gdt.errors import DistributedError, error
from gdt.sharding.mesh import Mesh

TIMEOUT = 300.0  # seconds for which the host waits for a collective, without other processes
LATE = 2.0  # seconds after the end of another process in which its collectives end here
# Collectives, after which those that have ended are forgotten, and processes compare, through their
# sockets, what they have done.
EVERY = 16
_ISSUING = threading.RLock()
"""Held while calls are issued: NCCL forbids two threads on one communicator (User Guide, Thread
Safety), and all GPUs of a process must get the calls of two threads in one order. Of several
processes each has one thread that issues calls (`Messages.check_thread`)."""
DONE, ADDRESS = attrgetter("done"), attrgetter("ptr")  # of an event, and of a stream
POLL = 0.0005  # seconds between two looks at collectives that have not ended


class Running(NamedTuple):
    """A collective that was begun: its description, the events of its end on every device, and the
    other processes that take part."""

    what: str
    events: list[Any]
    others: set[int]


Issue = Callable[[int, Any, int], None]  # of an own block, with its communicator, on a stream


class RecordedCalls:
    """The calls of NCCL of some blocks, to be issued again: with the addresses of arrays, of which
    it holds none."""

    def __init__(self, issue: Issue, count: int) -> None:
        self._calls = [list[tuple[str, Sequence[Any]]]() for _ in range(count)]
        for i, calls in enumerate(self._calls):
            issue(i, _Recorder(calls), 0)

    def __call__(self, i: int, communicator: Any, stream: int) -> None:
        """Issue the calls of own block `i`."""
        for name, arguments in self._calls[i]:
            getattr(communicator, name)(*arguments, stream)


class _Recorder:
    """A communicator of which the calls are written down, without their streams."""

    def __init__(self, calls: list[tuple[str, Sequence[Any]]]) -> None:
        self._calls = calls

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *arguments: self._calls.append((name, arguments[:-1]))


class Ranks(BlockTransport):
    """Blocks on GPUs, each a rank: its number in the grid.

    nccl: the module `cupy.cuda.nccl`. backend: gives the array namespace, and a context in which a
    device communicates. messages: to the other processes that own blocks, if there are some.
    pointer: the address of an array's memory.
    """

    def __init__(
        self,
        mesh: Mesh,
        nccl: Any,
        backend: Any,
        messages: Messages | None = None,
        pointer: Callable[[Block], int] = lambda x: int(x.data.ptr),
        timeout: float = TIMEOUT,
    ) -> None:
        super().__init__(mesh)
        self.nccl, self.backend, self.xp, self.messages = nccl, backend, backend.xp, messages
        self.pointer = pointer
        self.timeout = timeout if messages is None else messages.timeout
        self.communicators: dict[Axes, list[Any]] = {}  # of own blocks, by mesh axes
        self.running: deque[Running] = deque()
        self._devices = [device_of(mesh, i) for i in range(len(self.own))]
        self._lock = threading.Lock()  # of `running`, which several threads may wait for
        self.begun = 0  # collectives

    def _on_devices(self, make: Callable[[int], Any]) -> list[Any]:
        """Return `make(i)` for every own block `i`, called on its device."""
        results = []
        for i in range(len(self.own)):
            with self.backend.on(self.mesh, i):
                results.append(make(i))
        return results

    # ---- communicators and streams

    def _what(self, collective: str, axes: Axes) -> str:
        devices = ", ".join(dict.fromkeys(self.mesh.devices))
        return f"{collective} over {self._named(axes)} of {self.mesh} on {devices}"

    def _others(self, axes: Axes) -> set[int]:
        """The other processes that hold blocks in the groups along `axes`."""
        owners = {n // len(self.own) for group in self._groups(axes) for n in group}
        return owners - {self.first // len(self.own)}

    def _run(self, axes: Axes, what: str, issue: Issue) -> None:
        """Issue the calls of every own block in one group, on the communication streams: now, or
        in each launch of the graph that is captured."""
        others, graph = self._others(axes), CAPTURED.get()
        if graph is None:
            self._issue(axes, what, others, issue)
        else:
            again = RecordedCalls(issue, len(self.own))
            graph.call(partial(self._issue, axes, what, others, again))

    def _issue(self, axes: Axes, what: str, others: set[int], issue: Issue) -> None:
        if self.messages is not None and others:
            self.messages.check_thread(what)
        with _ISSUING if self.messages is None else nullcontext():
            communicators = self.communicators.get(axes) or self._communicators(axes, what)
            self.begun += 1
            if self.begun % EVERY == 0:
                self._oldest()
                self._tell_notes(what)
            with self.backend.communicating(self._devices) as (streams, events):
                self._grouped(what, issue, communicators, map(ADDRESS, streams))
            self.running.append(Running(what, events, others))

    def _grouped(self, what: str, call: Callable[..., None], *lists: Iterable[Any]) -> None:
        """Call `call(i, *items)` for each own block `i` in one group of NCCL's."""
        try:
            self.nccl.groupStart()
            try:
                for i, *items in zip(range(len(self.own)), *lists, strict=True):
                    call(i, *items)
            finally:
                self.nccl.groupEnd()
        except self.nccl.NcclError as cause:
            raise self._failed(what, str(cause)) from cause

    def _communicators(self, axes: Axes, what: str) -> list[Any]:
        """The communicator of every own block with those that differ along `axes` alone."""
        if axes not in self.communicators:
            make = self._split if self._splits() else self._joined
            self.communicators[axes] = make(axes, what)
        return self.communicators[axes]

    def _splits(self) -> bool:
        """Whether communicators are split from the one of all blocks. CuPy 13 cannot, and CuPy 14
        not in a group, which a process of several GPUs needs: it returns before NCCL has written
        the new communicator."""
        return len(self.own) == 1 and hasattr(self.nccl.NcclCommunicator, "commSplit")

    def _split(self, axes: Axes, what: str) -> list[Any]:
        every = tuple(range(self.mesh.ndim))
        (group,) = self._groups(axes)
        if len(group) == len(self.mesh.all_blocks):
            return self._joined(axes, what) if axes == every else self._communicators(every, what)
        (whole,) = self._communicators(every, what)
        self.wait()  # nothing may run on what is split
        if self.messages is not None:
            self.messages.gather(None, what)  # NCCL would wait for a process that is elsewhere
        try:
            with self.backend.on(self.mesh, 0):
                return [whole.commSplit(group[0], group.index(self.first))]
        except self.nccl.NcclError as cause:
            raise self._failed(f"{what}, whose communicator is split", str(cause)) from cause

    def _joined(self, axes: Axes, what: str) -> list[Any]:
        """Communicators from an identifier for each group, which the process of its first block
        draws."""
        groups = self._groups(axes)
        own_ids = {g[0]: self.nccl.get_unique_id() for g in groups if g[0] in self.own}
        parts = [own_ids] if self.messages is None else self.messages.gather(own_ids, what)
        identifiers = {first: identifier for part in parts for first, identifier in part.items()}
        communicators: list[Any] = [None] * len(self.own)

        def create(i: int) -> None:
            group = next(g for g in groups if self.first + i in g)
            rank, identifier = group.index(self.first + i), identifiers[group[0]]
            with self.backend.on(self.mesh, i):
                communicators[i] = self.nccl.NcclCommunicator(len(group), identifier, rank)

        self._grouped(f"{what}, whose communicators are made", create)
        return communicators

    # ---- failures

    def _oldest(self) -> Running | None:
        """Forget the collectives that have ended; return the oldest of the others, if there is
        one."""
        with self._lock:
            while self.running and all(map(DONE, self.running[0].events)):
                self.running.popleft()
            return self.running[0] if self.running else None

    def wait(self) -> None:
        """Let the host wait until the collectives that were begun have ended.

        Raises DistributedError, which names the collective, its mesh axes and devices, if one of
        them fails or does not end in time; their communicators are given up then.
        """
        end = time.monotonic() + self.timeout
        oldest = self._oldest()
        self._tell_notes("wait for collectives" if oldest is None else oldest.what)
        while (oldest := self._oldest()) is not None:
            what, _, others = oldest
            self._check(what, others)
            if time.monotonic() > end:
                raise self._failed(what, f"it has not ended after {self.timeout:g} s")
            time.sleep(POLL)

    def _tell_notes(self, what: str) -> None:
        """Compare what this process has done with what the others have: the data that NCCL moves
        carries no description of it. Other threads than that of the messages only wait."""
        if self.messages is None or not self.messages.is_in_own_thread():
            return
        try:
            self.messages.tell_notes(what)
        except DistributedError:
            self._abort()
            raise

    def _check(self, what: str, others: set[int]) -> None:
        try:
            for communicators in self.communicators.values():
                for communicator in communicators:
                    communicator.check_async_error()
            if self.messages is not None and self.messages.is_in_own_thread():
                self.messages.listen(0)
                self.messages.check(self._gone(self.messages, others), what)
        except self.nccl.NcclError as cause:
            raise self._failed(what, str(cause)) from cause
        except DistributedError:
            self._abort()
            raise

    @staticmethod
    def _gone(messages: Messages, others: set[int]) -> list[int]:
        """The processes that have ended so long ago that their part of a collective is missing."""
        ended = [i for i in others if messages.connections[i].goodbye is not None]
        return [i for i in ended if time.monotonic() - messages.connections[i].ended > LATE]

    def _abort(self) -> None:
        """Give up all communicators, so that nothing waits for them any more."""
        for communicators in self.communicators.values():
            for communicator in communicators:
                communicator.abort()
        self.communicators.clear()
        self.running.clear()

    def _failed(self, what: str, problem: str) -> DistributedError:
        self._abort()
        return error(
            DistributedError,
            what.split(" ", maxsplit=1)[0],
            f"NCCL: {problem}",
            operands={"in": what},
            remedy="NCCL_DEBUG=WARN in the environment makes NCCL say more.",
        )
