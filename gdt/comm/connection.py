"""One end of the socket between two processes, and the messages that it carries."""

from __future__ import annotations

import json
import socket
import struct
import time
from collections import deque
from dataclasses import dataclass
from typing import Any, NamedTuple

# Kind, number of the step, bytes of its description, bytes of payload, number of notes of the
# sender's history and their checksum.
HEADER = struct.Struct("<cQIQQQ")
DATA, GOODBYE = b"M", b"G"
NOTES = b"N"  # the number of notes and their checksum alone
HISTORY = b"H"  # the sender's history, after processes have done different things


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
        self.closed = False
        self.silent: set[int] = set()  # processes of which the peer said that nothing came in time
        self._start(HEADER.size)

    def fileno(self) -> int:
        """For `select`."""
        return self.socket.fileno()

    def _start(self, size: int, beginning: bytes = b"") -> None:
        self._buffer = bytearray(size)
        self._buffer[: len(beginning)] = beginning
        self._missing = memoryview(self._buffer)[len(beginning) :]

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
            _, _, text, payload, _, _ = HEADER.unpack(self._buffer)
            if text + payload:
                self._start(HEADER.size + text + payload, bytes(self._buffer))
                return
        message = unpacked(memoryview(self._buffer))
        self._start(HEADER.size)
        if message.kind == GOODBYE:
            self.goodbye, self.ended = message.what, time.monotonic()
            self.silent.update(json.loads(bytes(message.payload) or b"[]"))
        elif message.kind == NOTES:
            self.notes.append((message.notes, message.checksum))
        elif message.kind == HISTORY:
            self.history = json.loads(bytes(message.payload))
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
