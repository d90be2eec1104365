"""Messages between the processes of a program: every two are connected by a socket.

All processes take the same steps in the same order, so a message carries the number of its step
and what the step is. One that belongs to another step means that the processes run different
programs, and is an error at once. A connection that ends without a goodbye means that its process
died, which every other process sees while it waits for anything.
"""

from __future__ import annotations

import pickle
import select
import socket
import struct
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from gdt.comm.agreement import FIX, ArrayLog, contradiction, described, digest
from gdt.errors import ArgumentError, DistributedError, error
from gdt.sharding.array_type import ArrayType

Payload = Sequence[np.ndarray]  # contiguous arrays, sent end to end

HEADER = struct.Struct("<cQIQ")  # kind, number of the step, bytes of its name, bytes of payload
DATA, GOODBYE = b"M", b"G"
LINGER = 5.0  # seconds for which a failed process waits for the others to see why


@dataclass(frozen=True)
class Peer:
    """A process of the program."""

    index: int
    host: str
    pid: int

    def __str__(self) -> str:
        return f"process {self.index} (host {self.host}, pid {self.pid})"


class Message(NamedTuple):
    """What one process sends to another in one step."""

    kind: bytes
    number: int
    what: str
    drawn: str
    made: str
    payload: memoryview


def packed_header(
    kind: bytes, number: int, what: str, nbytes: int, drawn: str = "", made: str = ""
) -> bytes:
    """The bytes that stand before a payload. drawn, made: the random numbers that were drawn, and
    the arrays that were made, before."""
    name = f"{what}\0{drawn}\0{made}".encode()
    name += b" " * (-(HEADER.size + len(name)) % 64)  # so that payloads are aligned
    return HEADER.pack(kind, number, len(name), nbytes) + name


def unpacked(data: memoryview) -> Message:
    """A message from its bytes."""
    kind, number, length, _ = HEADER.unpack_from(data)
    end = HEADER.size + length
    what, drawn, made = str(data[HEADER.size : end], "utf-8").rstrip().rsplit("\0", 2)
    return Message(kind, number, what, drawn, made, data[end:])


def bytes_of(array: np.ndarray) -> memoryview:
    """The memory of an array, copied if it is not contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def pickled(value: Any) -> np.ndarray:
    """A value as bytes; ArgumentError if it cannot be."""
    try:
        return np.frombuffer(pickle.dumps(value), np.uint8)
    except (pickle.PicklingError, TypeError, AttributeError) as cause:
        problem = f"a {type(value).__name__} cannot be sent to other processes ({cause})"
        raise error(ArgumentError, "broadcast", problem) from cause


class Connection:
    """One end of a socket: what is to be sent, and the messages that have arrived."""

    def __init__(self, peer: Peer, end: socket.socket) -> None:
        end.setblocking(False)
        self.peer, self.socket = peer, end
        self.outgoing: deque[memoryview] = deque()
        self.arrived: deque[Message] = deque()
        self.goodbye: str | None = None  # what the process said when it ended
        self.ended = 0.0  # when
        self.closed = False
        self._start(HEADER.size)

    def fileno(self) -> int:
        """For `select`."""
        return self.socket.fileno()

    def _start(self, size: int, begun: bytes = b"") -> None:
        self._buffer = bytearray(size)
        self._buffer[: len(begun)] = begun
        self._missing = memoryview(self._buffer)[len(begun) :]

    def read(self) -> None:
        """Take what has arrived."""
        while not self.closed:
            try:
                count = self.socket.recv_into(self._missing)
            except BlockingIOError:
                return
            except OSError:
                count = 0
            self.closed = count == 0
            self._missing = self._missing[count:]
            if not self._missing and not self.closed:
                self._advance()

    def _advance(self) -> None:
        if len(self._buffer) == HEADER.size:
            _, _, name, payload = HEADER.unpack(self._buffer)
            if name + payload:
                self._start(HEADER.size + name + payload, bytes(self._buffer))
                return
        message = unpacked(memoryview(self._buffer))
        self._start(HEADER.size)
        if message.kind == GOODBYE:
            self.goodbye, self.ended = message.what, time.monotonic()
        else:
            self.arrived.append(message)

    def write(self) -> None:
        """Send as much as the socket takes now."""
        try:
            while self.outgoing:
                count = self.socket.send(self.outgoing[0])
                self.outgoing[0] = self.outgoing[0][count:]
                if not self.outgoing[0]:
                    self.outgoing.popleft()
        except BlockingIOError:
            return
        except OSError:  # closed by the other end, which reading tells
            self.outgoing.clear()


class Messages:
    """What a process exchanges with the others; all of them make the same calls in one order.

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
        self.connections = {i: Connection(peers[i], s) for i, s in sockets.items()}
        self.number = 0  # of the step
        self.drawn = ""  # the random numbers drawn so far, the same in all processes
        self.made = ArrayLog()
        self.failure: DistributedError | None = None

    @property
    def own(self) -> Peer:
        """This process."""
        return self.peers[self.index]

    def exchange(
        self, outgoing: Mapping[int, Payload], sources: Collection[int], what: str
    ) -> dict[int, memoryview]:
        """Take a step: send a payload to some processes, and receive one from those of `sources`.

        Raises DistributedError if a process has ended, takes another step, or sends nothing in
        time.
        """
        self.begin()
        for i, arrays in outgoing.items():
            parts = [p for a in arrays if (p := bytes_of(a)).nbytes]
            header = self.header(what, sum(p.nbytes for p in parts))
            self.connections[i].outgoing.extend([memoryview(header), *parts])
        found: dict[int, memoryview] = {}
        waiting = set(sources)

        def done() -> bool:
            for i in [i for i in waiting if self.connections[i].arrived]:
                found[i] = self.checked(i, self.connections[i].arrived.popleft(), what)
                waiting.discard(i)
            return not waiting and not any(c.outgoing for c in self.connections.values())

        self.wait(done, waiting, what)
        return found

    def header(self, what: str, nbytes: int) -> bytes:
        """The bytes that stand before the payload of this step."""
        return packed_header(DATA, self.number, what, nbytes, self.drawn, self.made.text)

    def note_draw(self, key: int, stream: int, what: str) -> None:
        """Random numbers were drawn for a mesh of all processes; the next message from another
        process tells whether it has drawn the same."""
        checksum = zlib.crc32(f"{self.drawn} {key} {stream} {what}".encode())
        self.drawn = f"key {key}, stream {stream}, {what} (all draws: {checksum:08x})"

    def begin(self) -> None:
        """Count a step; raises again what ended an earlier one."""
        if self.failure is not None:
            raise self.failure
        self.number += 1

    def wait(self, done: Callable[[], bool], waiting: Collection[int], what: str) -> None:
        """Listen until `done()`, which may change the processes that are waited for."""
        end = time.monotonic() + self.timeout
        while not done():
            self.listen(0.2)
            self.check(waiting, what)
            if time.monotonic() > end and not done():
                raise self.timed_out(waiting, what)

    def listen(self, seconds: float) -> None:
        """Send and receive what can be, or wait that long for it."""
        readers = [c for c in self.connections.values() if not c.closed]
        writers = [c for c in readers if c.outgoing]
        readable, writeable, _ = select.select(readers, writers, [], seconds)
        for connection in readable:
            connection.read()
        for connection in writeable:
            connection.write()

    # ---- what can go wrong

    def check(self, waiting: Iterable[int], what: str) -> None:
        """Raise if a process died, or if one that is waited for has ended or is elsewhere."""
        for connection in self.connections.values():
            if connection.closed and connection.goodbye is None:
                raise self.failed(
                    what,
                    f"{connection.peer} has died",
                    "See what it printed last; it may have been killed, or have run out of memory.",
                )
        for i in waiting:
            connection = self.connections[i]
            late = time.monotonic() - connection.ended >= self.grace
            if connection.goodbye is not None and late and not connection.arrived:
                reason = f": {connection.goodbye}" if connection.goodbye else ""
                raise self.failed(
                    what,
                    f"{connection.peer} has ended{reason}",
                    "" if reason else "All processes must run the same program to its end.",
                )

    def checked(self, source: int, message: Message, what: str) -> memoryview:
        """The payload of a message, or an error if it belongs to another step."""
        same = message.number == self.number and message.what == what
        if same and message.made == self.made.text and message.drawn == self.drawn:
            return message.payload
        names = str(self.own), str(self.peers[source])
        if message.number == self.number:
            notes = contradiction(self.made.text, message.made, same)
            if notes is not None:
                problem = "the processes have made different arrays"
                raise self.failed(what, problem, FIX, dict(zip(names, notes, strict=True)))
        if same:
            raise self.failed(
                what,
                "the processes have drawn different random numbers",
                "Seed all processes alike with gdt.random.seed, and draw with the same keys; "
                "gdt.distributed.broadcast gives all of them those of process 0.",
                dict(zip(names, (self.drawn, message.drawn), strict=True)),
            )
        raise self.failed(
            what,
            "the processes run different programs",
            "Every process must make the same meshes, arrays and calls, in the same order: "
            "print and fetch in all of them, not in process 0 alone.",
            {names[0]: f"step {self.number}, {what}"}
            | {names[1]: f"step {message.number}, {message.what}"},
        )

    def timed_out(self, waiting: Iterable[int], what: str) -> DistributedError:
        """The error of a step that took too long."""
        missing = ", ".join(str(self.peers[i]) for i in sorted(waiting)) or "the other processes"
        return self.failed(
            what,
            f"nothing came from {missing} for {self.timeout:g} s",
            "Do all processes run the same program? Give slow ones more time with "
            "gdt.distributed.initialize(timeout=...).",
        )

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
        data = pickled(value)
        others = [i for i in range(len(self.peers)) if i != self.index]
        found = self.exchange({i: [data] for i in others}, others, what)
        return [
            value if i == self.index else pickle.loads(found[i]) for i in range(len(self.peers))
        ]

    def broadcast(self, value: Any) -> Any:
        """The value that process 0 gives."""
        if self.index == 0:
            self.exchange({i: [pickled(value)] for i in self.connections}, (), "broadcast")
            return value
        return pickle.loads(self.exchange({}, (0,), "broadcast")[0])

    def close(self, reason: str = "") -> None:
        """Say goodbye, with the reason if the program failed; and then see to it that the others
        can tell before a launcher ends them."""
        goodbye = memoryview(packed_header(GOODBYE, self.number, reason, 0))
        for connection in self.connections.values():
            connection.outgoing.append(goodbye)
        end = time.monotonic() + LINGER
        while time.monotonic() < end and self._is_needed(reason):
            self.listen(0.05)
        for connection in self.connections.values():
            connection.socket.close()
            connection.closed = True

    def leave_to_parent(self) -> None:
        """After a fork, in the child: it holds copies of the sockets, which would stay open when
        the parent dies, and must not speak in its name."""
        for connection in self.connections.values():
            connection.socket.close()
            connection.closed = True
        self.failure = error(
            DistributedError,
            "fork",
            f"this process is a child of {self.own}, and does not belong to the program",
            remedy="Let the parent do what all processes do together.",
        )

    def _is_needed(self, reason: str) -> bool:
        left = [c for c in self.connections.values() if not c.closed]
        return any(c.outgoing or (reason and c.goodbye is None) for c in left)


_connected: Messages | None = None


def connected() -> Messages | None:
    """The messages between the processes of this program; None if there is one."""
    return _connected


def connect(messages: Messages | None) -> None:
    """Set what `connected` returns."""
    global _connected  # noqa: PLW0603  # a fact of the process, as its place among the others is
    _connected = messages


def gathered(num_processes: int, value: Any, what: str) -> list[Any]:
    """The values that all processes that own a mesh give, in their order."""
    if num_processes == 1 or _connected is None:
        return [value]
    return _connected.gather(value, what)


def note_draw(array_type: ArrayType, key: Any, stream: Any) -> None:
    """An array is drawn, which all processes that own its mesh must do alike. Keys on GPUs are not
    looked at, since the host would have to wait for them."""
    if array_type.mesh.num_processes > 1 and _connected is not None and isinstance(key, np.ndarray):
        _connected.note_draw(int(key), int(stream), described("", array_type))


def note_made(name: str, array_type: ArrayType, value: Any = None) -> None:
    """An array is made, by a public function that was given the value if it has a name, which all
    processes that own its mesh must do alike. Other threads than the main one, such as those that
    fetch batches ahead, have no order that processes could compare."""
    if array_type.mesh.num_processes == 1 or _connected is None:
        return
    if threading.current_thread() is threading.main_thread():
        _connected.made.add(described(name, array_type) + digest(value))


def drawn() -> str:
    """The random numbers drawn for meshes of all processes so far."""
    return "" if _connected is None else _connected.drawn
