"""Messages between the processes of a program: every two are connected by a socket.

All processes take the same steps in the same order, so a message carries the number of its step,
its description, and the checksum of the sender's history. A message of another step, or of another
history, means that the processes run different programs, and is an error at once. A connection that
ends without a goodbye means that its process died, which every other process sees while it waits
for anything.
"""

from __future__ import annotations

import json
import select
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from gdt.comm.agreement import (
    CallHistory,
)
from gdt.comm.connection import (
    DATA,
    GOODBYE,
    HISTORY,
    NOTES,
    Connection,
    Message,
    Peer,
    packed_header,
)
from gdt.comm.differences import DIFFERENT_PROGRAMS, Difference, difference, step_text
from gdt.comm.values import decoded, encoded
from gdt.errors import DistributedError, error

Payload = Sequence[np.ndarray]  # contiguous arrays, sent end to end

LINGER = 5.0  # seconds for which a failed process waits for the others to see why


def bytes_of(array: np.ndarray) -> memoryview:
    """The memory of an array, copied if it is not contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


class Messages:
    """The messages of a process to and from the others; all of them make the same calls in one
    order, and so in one thread: the one that has made this object.

    timeout: seconds for which a process waits for a message before it gives up.
    """

    grace = 0.0  # seconds after a goodbye for which messages may still arrive

    def __init__(
        self,
        index: int,
        peers: Sequence[Peer],
        sockets: Mapping[int, socket.socket],
        timeout: float,
    ) -> None:
        self.index, self.peers, self.timeout = index, tuple(peers), timeout
        self._thread = threading.current_thread()
        self.connections = {i: Connection(peers[i], s) for i, s in sockets.items()}
        self.number = 0  # of the step
        self.history = CallHistory()
        self.silent: set[int] = set()  # processes from which nothing came in time
        self.failure: DistributedError | None = None

    @property
    def own(self) -> Peer:
        """This process."""
        return self.peers[self.index]

    def exchange(
        self, outgoing: Mapping[int, Payload], sources: Collection[int], what: str
    ) -> dict[int, memoryview]:
        """Take a step: send a payload to some processes, and receive one from those of `sources`.

        Raises DistributedError if a process has ended, takes another step, has another history, or
        sends nothing in time.
        """
        self.begin(what)
        for i, arrays in outgoing.items():
            parts = [p for a in arrays if (p := bytes_of(a)).nbytes]
            header = self.header(what, sum(p.nbytes for p in parts))
            self.connections[i].outgoing.extend([memoryview(header), *parts])
        payloads: dict[int, memoryview] = {}
        missing = set(sources)

        def done() -> bool:
            for i in [i for i in missing if self.connections[i].arrived]:
                payloads[i] = self.checked(i, self.connections[i].arrived.popleft(), what)
                missing.discard(i)
            return not missing and not any(c.outgoing for c in self.connections.values())

        self.wait(done, missing, what)
        return payloads

    def header(self, what: str, nbytes: int, kind: bytes = DATA) -> bytes:
        """The bytes that stand before a payload of this step."""
        history = self.history
        return packed_header(kind, self.number, what, nbytes, history.count, history.checksum)

    def begin(self, what: str) -> None:
        """Count a step; raises again the error that has ended an earlier one."""
        if self.failure is not None:
            raise self.failure
        self.check_thread(what)
        self.number += 1

    def is_in_own_thread(self) -> bool:
        """Whether the thread that calls this is the one that sends and receives."""
        return threading.current_thread() is self._thread

    def check_thread(self, what: str) -> None:
        """Raise if this is another thread than the one that sends and receives: steps have numbers
        and no names, so processes whose threads take turns in other orders would mix up data."""
        if self.is_in_own_thread():
            return
        own = f"thread {self._thread.name!r}"
        raise error(
            DistributedError,
            what.split(" ", maxsplit=1)[0],
            f"thread {threading.current_thread().name!r} exchanges data with other processes, "
            f"which {own} alone does",
            operands={"in": what},
            remedy=f"Run it in {own}, which has called gdt.distributed.initialize(): processes "
            "could run their threads in other orders.",
        )

    def wait(self, is_done: Callable[[], bool], missing: Collection[int], what: str) -> None:
        """Listen until `done()`, which may change the processes that are missing."""
        end = time.monotonic() + self.timeout
        while not is_done():
            self.listen(min(0.2, max(end - time.monotonic(), 0.0)))
            if is_done():  # what a process has sent before it ended counts
                return
            self.check(missing, what)
            if time.monotonic() > end:
                raise self.timed_out(missing, what)

    def listen(self, seconds: float) -> None:
        """Send and receive what can be, or wait that long for it."""
        readers = [c for c in self.connections.values() if not c.closed]
        writers = [c for c in readers if c.outgoing]
        readable, writeable, _ = select.select(readers, writers, [], seconds)
        for connection in readable:
            connection.read()
        for connection in writeable:
            connection.write()

    # ---- histories

    def checked(self, source: int, message: Message, what: str) -> memoryview:
        """The payload of a message; an error if it belongs to another step or another history."""
        history = self.history
        if (
            message.number == self.number
            and message.what == what
            and message.checksum == history.checksum
            and message.notes == history.count
        ):
            return message.payload
        raise self.disagreement(what, {source: f"step {message.number}, {message.what}"})

    def tell_notes(self, what: str) -> None:
        """Send all others the checksum of this history, and compare those that they have sent;
        without waiting for any."""
        if self.failure is not None:
            raise self.failure
        header = self.header("", 0, NOTES)
        for connection in self.connections.values():
            if not connection.closed:
                connection.outgoing.append(memoryview(header))
        self.listen(0)
        self.check((), what)

    def _has_other_notes(self, connection: Connection) -> bool:
        """Whether a checksum that a process has sent differs from that of this history."""
        while connection.notes and connection.notes[0][0] <= self.history.count:
            count, checksum = connection.notes.popleft()
            if self.history.checksum_after(count) not in (checksum, None):
                return True
        return False

    def disagreement(self, what: str, steps: Mapping[int, str]) -> DistributedError:
        """The error of processes that have done different things, which names the first of these.

        steps: descriptions of the steps that other processes take. All processes are told the
        history of this one, and tell theirs before they end.
        """
        own = self.history.told(f"step {self.number}, {what}")
        data = np.frombuffer(json.dumps(own).encode(), np.uint8)
        for connection in self.connections.values():
            header = self.header(what, data.nbytes, HISTORY)
            connection.outgoing.extend([memoryview(header), data.data])
        open_ended = [c for c in self.connections.values() if c.goodbye is None]
        end = time.monotonic() + LINGER
        while time.monotonic() < end and any(
            c.outgoing or c.history is None for c in open_ended if not c.closed
        ):
            self.listen(0.05)
        histories = {i: c.history for i, c in self.connections.items() if c.history is not None}
        processes, first = self._first_difference({self.index: own} | histories, steps)
        operands = {str(self.peers[i]): s for i, s in zip(processes, first.sides, strict=True)}
        return self.failed(what, first.problem, first.remedy, operands)

    def _first_difference(
        self, histories: Mapping[int, dict[str, Any]], steps: Mapping[int, str]
    ) -> tuple[tuple[int, int], Difference]:
        """Two processes, one of them this one if it can be, and the first thing that they have done
        differently."""
        steps = {i: h["step"] for i, h in histories.items()} | dict(steps)
        pairs = [(i, j) for i in histories for j in histories if i < j]
        pairs.sort(key=lambda pair: self.index not in pair)
        for i, j in pairs:
            is_same_step = steps[i] == steps[j]
            calls = difference(histories[i], histories[j], is_same_step)
            if calls is not None:
                return (i, j), calls
        pairs = [(i, j) for i in steps for j in steps if i < j]
        # The others may be a step ahead, so those that take one step differently come first.
        pairs.sort(
            key=lambda pair: (
                _number(steps[pair[0]]) != _number(steps[pair[1]]),
                self.index not in pair,
            )
        )
        for i, j in pairs:
            if steps[i] != steps[j]:
                first, second = [
                    step_text(histories[k]) if k in histories else steps[k] for k in (i, j)
                ]
                return (i, j), Difference(*DIFFERENT_PROGRAMS, (first, second))
        i, j = pairs[0]
        untold = f"{steps[j]}, after other calls, which it has not told in time"
        return (i, j), Difference(*DIFFERENT_PROGRAMS, (steps[i], untold))

    # ---- what can go wrong

    def check(self, missing: Iterable[int], what: str) -> None:
        """Raise if a process has died, failed or done other things, or if one that is waited for
        has ended."""
        for connection in self.connections.values():
            if connection.history is not None or self._has_other_notes(connection):
                raise self.disagreement(what, {})
        for connection in self.connections.values():
            if connection.garbage:
                raise self.no_message(what, connection.peer, connection.garbage)
            if connection.closed and connection.goodbye is None:
                raise self.failed(
                    what,
                    f"{connection.peer} has died",
                    "See what it printed last; it may have been killed, have run out of memory, or "
                    "have ended with an error.",
                )
        waited_for = set(missing)
        for i, connection in self.connections.items():
            if connection.goodbye is None or time.monotonic() - connection.ended < self.grace:
                continue
            # One that has failed is not waited for, but others will fail or wait for it.
            if connection.goodbye or (i in waited_for and not connection.arrived):
                reason = f": {connection.goodbye}" if connection.goodbye else ""
                raise self.failed(
                    what,
                    f"{connection.peer} has ended{reason}",
                    "" if reason else "All processes must run the same program to its end.",
                )

    def timed_out(self, missing: Iterable[int], what: str) -> DistributedError:
        """The error of a step that took too long."""
        silent = {*missing, *self.unsent()}
        self.silent |= silent
        names = ", ".join(str(self.peers[i]) for i in sorted(silent))
        return self.failed(
            what,
            f"nothing came from {names} for {self.timeout:g} s",
            "Do all processes run the same program? Give slow ones more time with "
            "gdt.distributed.initialize(timeout=...).",
        )

    def no_message(self, what: str, peer: Peer, reason: object) -> DistributedError:
        """The error of what a process has sent that cannot be read."""
        return self.failed(
            what,
            f"{peer} sent what is no message: {reason}",
            "Has something else written to its sockets, or a child that it has forked?",
        )

    def unsent(self) -> list[int]:
        """The processes that have not taken all that this one has sent them."""
        return [i for i, c in self.connections.items() if c.outgoing]

    def failed(
        self, what: str, problem: str, remedy: str, operands: Mapping[str, object] | None = None
    ) -> DistributedError:
        """The error that ends this program; later steps raise it again."""
        where = operands or {str(self.own): f"step {self.number}, {what}"}
        self.failure = error(
            DistributedError,
            what.split(" ", maxsplit=1)[0],
            problem,
            operands=where,
            remedy=remedy or None,
        )
        return self.failure

    # ---- values of the host

    def gather(self, value: Any, what: str) -> list[Any]:
        """The values that all processes give, in their order; small ones, such as shapes."""
        data = encoded(value, what.split(" ", maxsplit=1)[0])
        others = [i for i in range(len(self.peers)) if i != self.index]
        payloads = self.exchange({i: [data] for i in others}, others, what)
        told = {self.index: value} | {i: self._decoded(i, payloads[i], what) for i in others}
        return [told[i] for i in range(len(self.peers))]

    def _decoded(self, source: int, payload: memoryview, what: str) -> Any:
        """The value that a process has sent."""
        try:
            return decoded(payload)
        except (LookupError, RecursionError, TypeError, ValueError) as cause:
            raise self.no_message(what, self.peers[source], cause) from cause

    def broadcast(self, value: Any) -> Any:
        """The value that process 0 gives."""
        if self.index == 0:
            data = encoded(value)
            self.exchange({i: [data] for i in self.connections}, (), "broadcast")
            return value
        return self._decoded(0, self.exchange({}, (0,), "broadcast")[0], "broadcast")

    def close(self, reason: str = "") -> None:
        """Say goodbye, with the reason if the program failed; and then see to it that the others
        can tell before a launcher ends them."""
        silent = json.dumps(sorted(self.silent)).encode()
        goodbye = memoryview(self.header(reason, len(silent), GOODBYE) + silent)
        for connection in self.connections.values():
            connection.outgoing.append(goodbye)
        end = time.monotonic() + LINGER
        while time.monotonic() < end and self._is_needed(reason):
            self.listen(0.05)
        for connection in self.connections.values():
            connection.close()

    def leave_to_parent(self) -> None:
        """After a fork, in the child: it holds copies of the sockets, which would stay open when
        the parent dies, and must not speak in its name."""
        for connection in self.connections.values():
            connection.close()
        self.failure = error(
            DistributedError,
            "fork",
            f"this process is a child of {self.own}, and does not belong to the program",
            remedy="Let the parent do what all processes do together.",
        )

    def _is_needed(self, reason: str) -> bool:
        """Whether a process is still to hear from this one, or to say that it has understood."""
        silent = self.silent.union(*(c.silent for c in self.connections.values()))
        others = [c for i, c in self.connections.items() if not c.closed and i not in silent]
        return any(c.outgoing or (reason and c.goodbye is None) for c in others)


def _number(step: str) -> str:
    """The number of a step, of its description."""
    return step.partition(",")[0]
