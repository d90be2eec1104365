"""One end of the socket between two processes, and the messages that it carries."""

from __future__ import annotations

import json
import socket
import struct
import time
from collections import deque
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

# Kind, number of the step, bytes of its description, bytes of payload, number of notes of the
# sender's history and their checksum.
HEADER = struct.Struct("<4sQIQQQ")
DATA, GOODBYE = b"gdtM", b"gdtG"
NOTES = b"gdtN"  # the number of notes and their checksum alone
HISTORY = b"gdtH"  # the sender's history, after processes have done different things

# The most bytes of a description, and of the payloads whose size does not depend on arrays.
LONGEST = 1 << 24
LARGEST = {GOODBYE: 1 << 20, NOTES: 0, HISTORY: 1 << 28}
# A message beyond this size gets memory as its bytes arrive: the size alone is no proof of them.
TRUSTED = 1 << 26
FACTS = {"step": str, "line": str, "count": int, "notes": list}  # of a history
NOTE = [int, str, str, str, str]


@dataclass(frozen=True)
class Peer:
    """A process of the program."""

    index: int
    host: str
    pid: int

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


def unpacked(data: memoryview) -> Message:
    """A message from its bytes."""
    kind, number, length, _, notes, checksum = HEADER.unpack_from(data)
    end = HEADER.size + length
    what = str(data[HEADER.size : end], "utf-8", "surrogatepass").rstrip()
    return Message(kind, number, what, notes, checksum, data[end:])


def size_of(header: bytes | memoryview) -> int:
    """The bytes of the message that begins with this header; ValueError if it is no header."""
    kind, _, text, payload, _, _ = HEADER.unpack(header)
    if kind not in (DATA, GOODBYE, NOTES, HISTORY):
        raise ValueError(f"it begins with {kind!r}")
    if text > LONGEST or payload > LARGEST.get(kind, payload):
        raise ValueError(f"it would have {text:,} and {payload:,} bytes")
    return int(HEADER.size + text + payload)


def _history(value: Any) -> dict[str, Any]:
    """A history as `agreement.History.told` makes it; an error if it is none."""
    wrong = [fact for fact, kind in FACTS.items() if not isinstance(value[fact], kind)]
    if wrong or any([type(part) for part in note] != NOTE for note in value["notes"]):
        raise ValueError("it is no history")
    return dict(value)


class Connection:
    """One end of a socket: the bytes to be sent, and the messages that have arrived."""

    def __init__(self, peer: Peer, end: socket.socket) -> None:
        end.setblocking(False)
        self.peer, self.socket = peer, end
        self.outgoing: deque[memoryview] = deque()
        self.arrived: deque[Message] = deque()
        self.notes: deque[tuple[int, int]] = deque()  # counts and checksums, to be compared
        self.history: dict[str, Any] | None = None  # the peer's, after a difference was seen
        self.goodbye: str | None = None  # the reason that the peer gave when it ended
        self.ended = 0.0  # when
        self.garbage = ""  # why what the peer has sent is no message
        self.closed = False
        self.silent: set[int] = set()  # processes of which the peer said that nothing came in time
        self._start(HEADER.size)

    def fileno(self) -> int:
        """For `select`."""
        return self.socket.fileno()

    def _start(self, size: int, beginning: bytes | memoryview = b"") -> None:
        """Wait for a message of so many bytes, of which the beginning has arrived."""
        self._size = size
        self._buffer = np.empty(min(size, TRUSTED), np.uint8)
        self._missing = self._buffer.data
        if beginning:
            self._missing[: len(beginning)] = beginning
            self._missing = self._missing[len(beginning) :]

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
                try:
                    self._advance()
                except (LookupError, RecursionError, TypeError, ValueError) as cause:
                    self.garbage, self.closed = str(cause), True

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
        if message.kind == GOODBYE:
            silent = json.loads(bytes(message.payload) or b"[]")
            self.silent.update([int(i) for i in silent])
            self.goodbye, self.ended = message.what, time.monotonic()
        elif message.kind == NOTES:
            self.notes.append((message.notes, message.checksum))
        elif message.kind == HISTORY:
            self.history = _history(json.loads(bytes(message.payload)))
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

    def close(self) -> None:
        """Close this end."""
        self.socket.close()
        self.closed = True
