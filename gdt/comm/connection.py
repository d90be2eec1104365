"""The sockets between processes, and the messages that they carry."""

from __future__ import annotations

import errno
import json
import selectors
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

Address = tuple[str, int]

# Kind, number of the step, bytes of its description, bytes of payload, number of notes of the
# sender's history and their checksum.
HEADER = struct.Struct("<4sQIQQQ")
DATA, GOODBYE = b"gdtM", b"gdtG"
NOTES = b"gdtN"  # the number of notes and their checksum alone
HISTORY = b"gdtH"  # the sender's history, after processes have done different things
FAILURE = b"gdtF"  # in what processes differ: to the coordinator, and from it to all others
ENDS = b"gdtE"  # from the coordinator: which processes have ended, and how

# The most bytes of a description, and of the payloads whose size does not depend on arrays.
LONGEST = 1 << 24
LARGEST = {GOODBYE: 1 << 20, NOTES: 0, HISTORY: 1 << 28, FAILURE: 1 << 24, ENDS: 1 << 28}
# A message beyond this size gets memory as its bytes arrive: the size alone is no proof of them.
TRUSTED = 1 << 26
FACTS = {"step": str, "line": str, "count": int, "notes": list}  # of a history
NOTE = [int, str, str, str, str]

# After 4 seconds of silence TCP sends a probe every second, and gives up after 5 without an answer:
# a host that is gone is noticed within 9 seconds (tcp(7)), unless data is on its way there.
LIFE_SIGNS = {"TCP_KEEPIDLE": 4, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 5}
# Seconds for which the end of a process may be known before all that it has sent has arrived, or
# before it is known whether a process that cannot be reached has died.
GRACE = 1.0


@dataclass(frozen=True)
class Peer:
    """A process of the program. address: where it listens for others."""

    index: int
    host: str
    pid: int
    address: Address = ("", 0)

    def __str__(self) -> str:
        return f"process {self.index} (host {self.host}, pid {self.pid})"


class Message(NamedTuple):
    """A message of one process to another.

    number, what: the step that it belongs to, and its description. notes, checksum: how many notes
    the sender had made before, and their checksum.
    """

    kind: bytes
    number: int
    what: str
    notes: int
    checksum: int
    payload: memoryview


def packed_header(
    kind: bytes, number: int, what: str, nbytes: int, notes: int = 0, checksum: int = 0
) -> bytes:
    """The bytes that stand before a payload of `nbytes`; see `Message`."""
    text = what.encode(errors="surrogatepass")
    text += b" " * (-(HEADER.size + len(text)) % 64)  # so that payloads are aligned
    return HEADER.pack(kind, number, len(text), nbytes, notes, checksum) + text


def packed(kind: bytes, value: Any, what: str = "") -> bytes:
    """The bytes of a message whose payload is a value of JSON."""
    data = json.dumps(value).encode()
    return packed_header(kind, 0, what, len(data)) + data


def unpacked(data: memoryview) -> Message:
    """A message from its bytes."""
    kind, number, length, _, notes, checksum = HEADER.unpack_from(data)
    end = HEADER.size + length
    what = str(data[HEADER.size : end], "utf-8", "surrogatepass").rstrip()
    return Message(kind, number, what, notes, checksum, data[end:])


def size_of(header: bytes | memoryview) -> int:
    """The bytes of the message that begins with this header; ValueError if it is no header."""
    kind, _, text, payload, _, _ = HEADER.unpack(header)
    if kind not in (DATA, *LARGEST):
        raise ValueError(f"it begins with {kind!r}")
    if text > LONGEST or payload > LARGEST.get(kind, payload):
        raise ValueError(f"it would have {text:,} and {payload:,} bytes")
    return int(HEADER.size + text + payload)


def silent_of(goodbye: Message) -> list[int]:
    """The processes from which nothing came in time to the sender of a goodbye."""
    return [int(i) for i in json.loads(bytes(goodbye.payload) or b"[]")]


def _history(value: Any) -> dict[str, Any]:
    """A history as `agreement.History.told` makes it; an error if it is none."""
    wrong = [fact for fact, kind in FACTS.items() if not isinstance(value[fact], kind)]
    if wrong or any([type(part) for part in note] != NOTE for note in value["notes"]):
        raise ValueError("it is no history")
    return dict(value)


def family_of(address: Address) -> socket.AddressFamily:
    """The family of the sockets for an address: IPv6 if its host is a number of that."""
    return socket.AF_INET6 if ":" in address[0] else socket.AF_INET


def set_options(end: socket.socket) -> None:
    """Let a socket send small messages at once, and notice that a host has lost its power or its
    network, in which case nothing closes the connection."""
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in LIFE_SIGNS.items():
        if hasattr(socket, name):  # systems differ in the options that they have
            end.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class Stream:
    """A socket: the bytes to be sent, and the messages that arrive.

    selector: calls the stream when something can be read or written; one is called by a function
    of the events, its data. receive: takes each message; what it raises is taken for garbage.
    lost: is called once, when the other end has closed, or has sent what is no message: the text
    says why it is none.
    """

    def __init__(
        self,
        end: socket.socket,
        selector: selectors.BaseSelector,
        receive: Callable[[Message], None],
        lost: Callable[[str], None],
    ) -> None:
        end.setblocking(False)
        self.socket, self._selector, self._receive, self._lost = end, selector, receive, lost
        self.outgoing: deque[memoryview] = deque()
        self.closed = False
        self._start(HEADER.size)
        self._events = selectors.EVENT_READ
        selector.register(end, self._events, self._go_on)

    def _start(self, size: int, beginning: bytes | memoryview = b"") -> None:
        """Wait for a message of so many bytes, of which the beginning has arrived."""
        self._size = size
        self._buffer = np.empty(min(size, TRUSTED), np.uint8)
        self._missing = self._buffer.data
        if beginning:
            self._missing[: len(beginning)] = beginning
            self._missing = self._missing[len(beginning) :]

    def _go_on(self, events: int) -> None:
        """Read and write what can be."""
        if events & selectors.EVENT_READ:
            self._read()
        if events & selectors.EVENT_WRITE and not self.closed:
            self.send()

    def _read(self) -> None:
        while not self.closed:
            try:
                count = self.socket.recv_into(self._missing)
            except BlockingIOError:
                return
            except OSError:
                count = 0
            self._missing = self._missing[count:]
            try:
                if not count:
                    self._end("")
                elif not self._missing:
                    self._advance()
            except (LookupError, RecursionError, TypeError, ValueError) as cause:
                self._end(str(cause) or type(cause).__name__)

    def _advance(self) -> None:
        """Take a message whose bytes have arrived, or wait for those that are missing."""
        arrived = self._buffer.size
        if arrived == HEADER.size and (size := size_of(self._buffer.data)) > arrived:
            self._start(size, self._buffer.data)
            return
        if arrived < self._size:
            self._missing.release()
            self._buffer.resize(min(2 * arrived, self._size), refcheck=False)
            self._missing = self._buffer.data[arrived:]
            return
        message = unpacked(self._buffer.data)
        self._start(HEADER.size)
        self._receive(message)

    def send(self, *parts: bytes | memoryview) -> None:
        """Send these bytes after those that are waiting: as many as the socket takes now, and the
        others as soon as it takes them."""
        if self.closed:
            return
        self.outgoing.extend(map(memoryview, parts))
        try:
            while self.outgoing:
                count = self.socket.send(self.outgoing[0])
                self.outgoing[0] = self.outgoing[0][count:]
                if not self.outgoing[0]:
                    self.outgoing.popleft()
        except OSError as cause:
            # Not yet connected, or the socket is full; else the other end has closed, which
            # reading tells.
            if cause.errno not in (errno.EAGAIN, errno.ENOTCONN):
                self.outgoing.clear()
        writes = selectors.EVENT_WRITE if self.outgoing else 0
        if self._events != selectors.EVENT_READ | writes:
            self._events = selectors.EVENT_READ | writes
            self._selector.modify(self.socket, self._events, self._go_on)

    def _end(self, garbage: str) -> None:
        self.close()
        self._lost(garbage)

    def close(self) -> None:
        """Close this end."""
        if not self.closed:
            self.closed = True
            self.outgoing.clear()
            self._selector.unregister(self.socket)
            self.socket.close()


class Connection:
    """Another process, as this one knows it, and the streams between them.

    Each process opens a stream when it first sends to the other, unless the other has opened one
    before. So there may be two, where both have begun at the same time; each process sends on one
    of them alone, which keeps its messages in order.

    noticed: the set of the indices of those processes of which there is more to say than data.
    """

    def __init__(self, peer: Peer, noticed: set[int]) -> None:
        self.peer, self._noticed = peer, noticed
        self.streams: list[Stream] = []  # this process sends on the first one
        self.arrived: deque[Message] = deque()
        self.notes: deque[tuple[int, int]] = deque()  # counts and checksums, to be compared
        self.history: dict[str, Any] | None = None  # the peer's, after a difference was seen
        self.goodbye: str | None = None  # the reason that the peer gave when it ended
        self.is_last = False  # whether the goodbye has come after all that the peer has sent here
        self.ended = 0.0  # when
        self.lost: float | None = None  # when it is clear that it has died, without a goodbye
        self.garbage = ""  # why what the peer has sent is no message
        self.silent: set[int] = set()  # processes of which the peer said that nothing came in time

    def add(self, end: socket.socket, selector: selectors.BaseSelector, grace: float) -> Stream:
        """Add a stream. grace: the seconds for which another way may tell why it has closed: the
        peer does not know of a stream that it has not accepted yet."""
        set_options(end)
        self.streams.append(Stream(end, selector, self.receive, lambda g: self._lose(g, grace)))
        return self.streams[-1]

    def receive(self, message: Message) -> None:
        """Take a message."""
        if message.kind == DATA:
            self.arrived.append(message)
            return
        if message.kind == GOODBYE:
            self.end(message.what, silent_of(message))
            self.is_last = True
        elif message.kind == NOTES:
            self.notes.append((message.notes, message.checksum))
        elif message.kind == HISTORY:
            self.history = _history(json.loads(bytes(message.payload)))
        else:
            raise ValueError(f"it is {message.kind!r}, of the coordinator alone")
        self._noticed.add(self.peer.index)

    def end(self, reason: str | None, silent: list[int]) -> None:
        """Note that the peer has ended: with a goodbye and a reason, which may be empty; or it has
        died."""
        if reason is None:
            self.lose(0.0)
        elif self.goodbye is None:
            self.goodbye, self.ended = reason, time.monotonic()
            self.silent.update(silent)
        self._noticed.add(self.peer.index)

    def lose(self, grace: float) -> None:
        """Note that the peer has died, unless it says goodbye within some seconds."""
        self.lost = min(self.lost or np.inf, time.monotonic() + grace)
        self._noticed.add(self.peer.index)

    def _lose(self, garbage: str, grace: float) -> None:
        self.garbage = self.garbage or garbage
        if garbage or all(stream.closed for stream in self.streams):
            self.lose(grace)

    def has_died(self) -> bool:
        """Whether the peer has ended without a goodbye."""
        return self.goodbye is None and self.lost is not None and self.lost <= time.monotonic()

    def is_over(self) -> bool:
        """Whether the peer has ended, or cannot be heard any more."""
        return self.goodbye is not None or self.lost is not None

    def unsent(self) -> bool:
        """Whether the peer has not taken all that was sent to it."""
        return any(stream.outgoing for stream in self.streams)
