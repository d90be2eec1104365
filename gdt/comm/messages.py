"""Messages between the processes of a program.

All processes take the same steps in the same order, so a message carries the number of its step,
its description, and the checksum of the sender's history. A message of another step, or of another
history, means that the processes run different programs, and is an error at once. Two processes
are connected when one of them first sends something to the other. That a process has died every
other one hears of the coordinator (`gdt.comm.coordinator`), while it waits for anything; those that
are connected to it see it themselves.

Values of the host travel along a tree, with process 0 as its root: of N processes none sends more
than log2(N) + 1 messages (binomial), all together 2 (N - 1); up to `STAR` processes are all below
the root. Each compares its history with those of its neighbours in the tree, so all are compared.
"""

from __future__ import annotations

import itertools
import json
import selectors
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
    ENDS,
    FAILURE,
    GOODBYE,
    GRACE,
    HISTORY,
    NOTES,
    Connection,
    Message,
    Peer,
    Stream,
    family_of,
    packed,
    packed_header,
)
from gdt.comm.differences import DIFFERENT_PROGRAMS, Difference, difference, step_text
from gdt.comm.greetings import MOST, Greetings, refuse
from gdt.comm.rendezvous import Meeting
from gdt.comm.values import decoded, encoded
from gdt.errors import DistributedError, error

Payload = Sequence[np.ndarray]  # contiguous arrays, sent end to end

LINGER = 5.0  # seconds for which a failed process waits for the others to see why
STAR = 8  # processes that are all below process 0: a barrier of them is 2 messages long, not 6


def neighbours(index: int, count: int) -> tuple[list[int], list[int]]:
    """Return the parent of a process in the tree, if it has one, and its children.

    Those below a process are the ones that follow it, child by child in their order.
    """
    if count <= STAR:
        return ([0], []) if index else ([], [*range(1, count)])
    # In a binomial tree the parent of a process lacks its lowest bit.
    lowest = index & -index or 1 << count.bit_length()
    powers = [1 << k for k in range(lowest.bit_length() - 1)]
    return [index & (index - 1)] if index else [], [index + n for n in powers if index + n < count]


def bytes_of(array: np.ndarray) -> memoryview:
    """The memory of an array, copied if it is not contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


class Messages:
    """The messages of a process to and from the others; all of them make the same calls in one
    order, and so in one thread: the one that has made this object.

    timeout: seconds for which a process waits for a message before it gives up.
    """

    grace = GRACE  # seconds after a goodbye for which messages may still arrive

    def __init__(self, index: int, met: Meeting, timeout: float) -> None:
        self.index, self.peers, self.timeout, self._met = index, tuple(met.peers), timeout, met
        self._thread = threading.current_thread()
        self._selector = selectors.DefaultSelector()
        self._greetings = Greetings(met.server, self._selector, MOST + len(self.peers))
        self._control = Stream(met.control, self._selector, self._hear, self._lose_coordinator)
        self._noticed: set[int] = set()  # processes that have ended, or have told a history
        self.connections = {
            i: Connection(peer, self._noticed) for i, peer in enumerate(self.peers) if i != index
        }
        self.number = 0  # of the step
        self.history = CallHistory()
        self.silent: set[int] = set()  # processes from which nothing came in time
        self.failure: DistributedError | None = None
        self._told: dict[str, Any] | None = None  # in what other processes differ
        self._parent, self._children = neighbours(index, len(self.peers))
        if met.coordinator is not None:
            met.coordinator.start()

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
        return self.transfer(outgoing, sources, what)

    def transfer(
        self, outgoing: Mapping[int, Payload], sources: Collection[int], what: str
    ) -> dict[int, memoryview]:
        """As `exchange`, in the step that was begun."""
        payloads: dict[int, memoryview] = {}
        missing = set(sources)

        def done() -> bool:
            for i in [i for i in missing if self.connections[i].arrived]:
                payloads[i] = self.checked(i, self.connections[i].arrived.popleft(), what)
                missing.discard(i)
            return not missing and not any(self.connections[i].unsent() for i in outgoing)

        try:
            for i, arrays in outgoing.items():
                parts = [p for a in arrays if (p := bytes_of(a)).nbytes]
                self._send(i, self.header(what, sum(p.nbytes for p in parts)), *parts)
            self.wait(done, missing, what)
        except OSError as cause:
            remedy = "See `ulimit -n` for how many files a process may open."
            raise self.failed(what, f"a socket cannot be opened ({cause})", remedy) from cause
        return payloads

    def _send(self, i: int, *parts: bytes | memoryview) -> None:
        """Send to a process; connect to it if it has not connected to this one."""
        connection = self.connections[i]
        if not connection.streams:
            if connection.is_over():
                return
            self._connect(connection)
        connection.streams[0].send(*parts)

    def _connect(self, connection: Connection) -> None:
        """Open a stream to a process, which begins with a greeting."""
        address = connection.peer.address
        end = socket.socket(family_of(address), socket.SOCK_STREAM)
        end.setblocking(False)
        end.connect_ex(address)  # what is sent waits until it is connected; failures are read
        greeting = json.dumps({"token": self._met.token, "index": self.index}).encode() + b"\n"
        connection.add(end, self._selector, GRACE).send(greeting)

    def _welcome(self, end: socket.socket, _: str, greeting: Mapping[str, Any]) -> None:
        """Let a process that has connected to this one send."""
        index = greeting.get("index")
        if greeting.get("token") != self._met.token:
            refuse(end, "it does not show the token of this program")
        elif type(index) is not int or index not in self.connections:
            refuse(end, f"index is {index!r}, of {len(self.peers)} processes")
        else:
            self.connections[index].add(end, self._selector, 0.0)

    def _hear(self, message: Message) -> None:
        """Take a message of the coordinator."""
        news = json.loads(bytes(message.payload))
        if message.kind == FAILURE:
            self._told = {key: news[key] for key in ("problem", "remedy", "operands")}
        elif message.kind == ENDS:
            for i, reason, silent in news:
                if i != self.index:
                    self.connections[i].end(reason, silent)

    def _lose_coordinator(self, _: str) -> None:
        if self.index:
            self.connections[0].lose(0.0)

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
        self._greetings.listen(seconds)
        while self._greetings.complete:
            self._welcome(*self._greetings.complete.popleft())

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
        """Send the neighbours in the tree the checksum of this history, and compare those that they
        have sent; without waiting for any."""
        if self.failure is not None:
            raise self.failure
        header = self.header("", 0, NOTES)
        for i in (*self._parent, *self._children):
            self._send(i, header)
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

        steps: the processes that differ from this one, and descriptions of the steps that they
        take, "" if they are not known. They are told the history of this one, and tell theirs;
        what is found all processes are told, by the coordinator.
        """
        own = self.history.told(f"step {self.number}, {what}")
        data = json.dumps(own).encode()
        told: set[int] = set()
        end = time.monotonic() + LINGER
        while self._told is None:
            asked = {i for i in self._noticed if self.connections[i].history is not None}
            for i in (steps.keys() | asked) - told:
                self._send(i, self.header(what, len(data), HISTORY), data)
                told.add(i)
            others = [self.connections[i] for i in told]
            is_open = any(c.unsent() or (c.history is None and not c.is_over()) for c in others)
            # Where the others have ended without a word, the coordinator may still tell why.
            is_known = any(steps.values()) or any(c.history is not None for c in others)
            if (is_known and not is_open) or time.monotonic() > end:
                break
            self.listen(0.05)
        if self._told is not None:
            return self.failed(what, **self._told)
        histories = {i: c.history for i in told if (c := self.connections[i]).history is not None}
        if not histories and not any(steps.values()):
            problem = f"{self.peers[min(told)]} has called other ops, and ended before it told them"
            return self.failed(what, problem, "See what it printed last.")
        known = {i: step for i, step in steps.items() if step}
        processes, first = self._first_difference({self.index: own} | histories, known)
        operands = {str(self.peers[i]): s for i, s in zip(processes, first.sides, strict=True)}
        found: dict[str, Any] = {
            "problem": first.problem,
            "remedy": first.remedy,
            "operands": operands,
        }
        self._control.send(packed(FAILURE, found))
        return self.failed(what, **found)

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
        if self._told is not None:
            raise self.failed(what, **self._told)
        noticed = [self.connections[i] for i in sorted(self._noticed)]
        for connection in noticed:
            if connection.history is not None or self._has_other_notes(connection):
                raise self.disagreement(what, {connection.peer.index: ""})
        for connection in noticed:
            if connection.garbage:
                raise self.no_message(what, connection.peer, connection.garbage)
            if connection.has_died():
                raise self.failed(
                    what,
                    f"{connection.peer} has died",
                    "See what it printed last; it may have been killed, have run out of memory, or "
                    "have ended with an error.",
                )
        waited_for = set(missing) if noticed else set()
        for connection in noticed:
            if connection.goodbye is None:
                continue
            # One that has failed is not waited for, but others will fail or wait for it.
            is_waited_for = connection.peer.index in waited_for and not connection.arrived
            seconds = 0.0 if connection.is_last else self.grace
            if connection.goodbye or (
                is_waited_for and time.monotonic() - connection.ended >= seconds
            ):
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
        return [i for i, c in self.connections.items() if c.unsent()]

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
        return list(self.decide(value, lambda values: values, what))

    def decide(self, value: Any, decision: Callable[[list[Any]], Any], what: str) -> Any:
        """The value that process 0 makes of the values that all processes give, in their order."""
        op = what.split(" ", maxsplit=1)[0]
        own = encoded(value, op)
        self.begin(what)
        below = self.transfer({}, self._children, what)
        data = [own, *(part for i in self._children for part in self._parts(i, below[i], what))]
        if self._parent:
            lengths = np.array([len(data), *map(len, data)], np.int64)
            self.transfer({self._parent[0]: [lengths, *data]}, (), what)
            return self._from_first(what)
        values = [self._decoded(i, part.data, what) for i, part in enumerate(data) if i]
        decided = decision([value, *values])
        self._to_children(encoded(decided, op), what)
        return decided

    def _from_first(self, what: str) -> Any:
        """The value of process 0, in the step that was begun; it goes on to all below this one."""
        payload = self.transfer({}, self._parent, what)[self._parent[0]]
        self._to_children(np.frombuffer(payload, np.uint8), what)
        return self._decoded(0, payload, what)

    def _to_children(self, data: np.ndarray, what: str) -> None:
        self.transfer({i: [data] for i in reversed(self._children)}, (), what)

    def _parts(self, source: int, payload: memoryview, what: str) -> list[np.ndarray]:
        """Return the parts in a payload that a child sends of all processes below it: their number,
        the lengths of the parts, and the parts."""
        try:
            count = int(np.frombuffer(payload, np.int64, 1)[0])
            stops = np.cumsum(np.frombuffer(payload, np.int64, 1 + count)).tolist()
            data = np.frombuffer(payload, np.uint8)[8 * (1 + count) :]
            return [data[i - count : j - count] for i, j in itertools.pairwise(stops)]
        except ValueError as cause:
            raise self.no_message(what, self.peers[source], cause) from cause

    def _decoded(self, source: int, payload: memoryview, what: str) -> Any:
        """The value that a process has sent."""
        try:
            return decoded(payload)
        except (LookupError, RecursionError, TypeError, ValueError) as cause:
            raise self.no_message(what, self.peers[source], cause) from cause

    def broadcast(self, value: Any) -> Any:
        """The value that process 0 gives."""
        if self._parent:
            self.begin("broadcast")
            return self._from_first("broadcast")
        data = encoded(value)  # nothing is begun with one that cannot be sent
        self.begin("broadcast")
        self._to_children(data, "broadcast")
        return value

    # ---- the end

    def close(self, reason: str = "") -> None:
        """Say goodbye, with the reason if the program failed; and then see to it that the others
        can tell before a launcher ends them."""
        silent = json.dumps(sorted(self.silent)).encode()
        goodbye = self.header(reason, len(silent), GOODBYE) + silent
        for stream in (self._control, *(c.streams[0] for c in self._connected())):
            stream.send(goodbye)
        end = time.monotonic() + LINGER
        while time.monotonic() < end and self._is_needed(reason):
            self.listen(0.05)
        for stream in self._streams():
            stream.close()
        self._greetings.close()
        if self._met.coordinator is not None:
            self._met.coordinator.join(LINGER)
        self._selector.close()

    def _connected(self) -> list[Connection]:
        return [c for c in self.connections.values() if c.streams]

    def _streams(self) -> list[Stream]:
        return [self._control, *(s for c in self._connected() for s in c.streams)]

    def leave_to_parent(self) -> None:
        """After a fork, in the child: it holds copies of the sockets, which would stay open when
        the parent dies, and must not speak in its name. The system's selector is the parent's."""
        self._selector.close()
        self._greetings.close()
        for stream in self._streams():
            stream.socket.close()
        if self._met.coordinator is not None:
            self._met.coordinator.close()
        self.failure = error(
            DistributedError,
            "fork",
            f"this process is a child of {self.own}, and does not belong to the program",
            remedy="Let the parent do what all processes do together.",
        )

    def _is_needed(self, reason: str) -> bool:
        """Whether a process is still to hear from this one, or to say that it has understood; or
        the coordinator, which ends with process 0, is to tell of it."""
        silent = self.silent.union(*(c.silent for c in self.connections.values()))
        others = [c for i, c in self.connections.items() if i not in silent]
        if self._control.closed or 0 in silent:  # the coordinator tells of nobody any more
            others = [c for c in others if c.streams]
        waits = bool(reason) or self.index == 0
        return any(c.unsent() or (waits and not c.is_over()) for c in others) or (
            bool(self._control.outgoing) and 0 not in silent
        )


def _number(step: str) -> str:
    """The number of a step, of its description."""
    return step.partition(",")[0]
