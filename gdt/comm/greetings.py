"""The line of JSON with which a connection begins, from anybody who can reach the address.

Scanners of ports and other programs connect too: they say nothing, or never end, or say what is no
JSON. So all that connect are heard at the same time, each for a short while and up to a few
kilobytes, and nothing is taken that lies beyond the line: the messages of a process follow it.
"""

from __future__ import annotations

import json
import logging
import selectors
import socket
import time
from collections import deque
from contextlib import suppress
from typing import Any

LOG = logging.getLogger("gdt.distributed")

GREETING_TIMEOUT = 2.0  # seconds in which a new connection must send its greeting
LONGEST = 1 << 13  # bytes of a greeting
MOST = 64  # connections that may be silent at the same time, beside those of the program

# A connection, its host, and what it has said.
Greeting = tuple[socket.socket, str, dict[str, Any]]


class Line:
    """The first line of a connection, of at most `longest` bytes."""

    def __init__(self, connection: socket.socket, longest: int) -> None:
        self._connection, self._longest, self._text = connection, longest, bytearray()

    def read(self) -> bool:
        """Take what has arrived of the line; return whether it is complete.

        Raises ConnectionError if the other end has closed, ValueError if the line is too long.
        """
        arrived = self._connection.recv(self._longest, socket.MSG_PEEK)
        if not arrived:
            raise ConnectionError("the other end has closed the connection")
        end = arrived.find(b"\n") + 1
        self._text += self._connection.recv(end or len(arrived))
        if len(self._text) > self._longest:
            raise ValueError(f"the line is longer than {self._longest} bytes")
        return end > 0

    def value(self) -> dict[str, Any]:
        """Return the JSON object that the line is; ValueError if it is none."""
        try:
            value = json.loads(self._text)
        except RecursionError:
            raise ValueError("the line is nested too deeply") from None
        if not isinstance(value, dict):
            raise ValueError("the line is no JSON object")
        return value


def send(connection: socket.socket, value: dict[str, Any]) -> None:
    """Send a line, a JSON object."""
    connection.sendall(json.dumps(value).encode() + b"\n")


def receive(connection: socket.socket, deadline: float, longest: int = 1 << 20) -> dict[str, Any]:
    """Read the line of a process that this one has connected to, and nothing beyond it.

    Raises ConnectionError if the other end closes before the line is complete, TimeoutError if the
    line is not complete at the time `deadline`, ValueError for anything but an object.
    """
    line, is_complete = Line(connection, longest), False
    while not is_complete:
        seconds = deadline - time.monotonic()
        if seconds <= 0:
            raise TimeoutError
        connection.settimeout(seconds)
        is_complete = line.read()
    return line.value()


def refuse(connection: socket.socket, reason: str, remedy: str = "") -> None:
    """Close a connection; log the reason, and send it to the other end."""
    with suppress(OSError):
        LOG.warning("refused a connection from %s: %s", connection.getpeername()[0], reason)
        send(connection, {"problem": f"the greeting is refused: {reason}", "remedy": remedy})
    connection.close()


class Greetings:
    """The greetings of all that connect to a server, in the order in which they are complete.

    selector: calls functions of events, which are its data. most: the number of connections that
    may be silent at the same time.
    """

    def __init__(
        self, server: socket.socket, selector: selectors.BaseSelector, most: int = MOST
    ) -> None:
        server.setblocking(False)
        self.server, self._selector, self._most = server, selector, most
        selector.register(server, selectors.EVENT_READ, self._accept)
        self.complete: deque[Greeting] = deque()
        # Those that have not greeted yet, with the host of each and the time when it is up.
        self._silent: dict[socket.socket, tuple[Line, str, float]] = {}

    def next(self, deadline: float) -> Greeting:
        """Return the next connection whose greeting is complete, its host, and the greeting.

        What is no JSON object, or not complete in time, is refused. Raises TimeoutError at the time
        `deadline`."""
        while not self.complete:
            now = time.monotonic()
            if now >= deadline:
                raise TimeoutError
            self.listen(min([deadline, *(end for _, _, end in self._silent.values())]) - now)
        return self.complete.popleft()

    def listen(self, seconds: float) -> None:
        """Let the selector call functions, for what happens in some seconds; refuse those that
        have been silent for too long."""
        for key, events in self._selector.select(max(seconds, 0.0)):
            if not _is_closed(key.fileobj):  # by another of the functions
                key.data(events)
        for connection, (_, _, end) in list(self._silent.items()):
            if end < time.monotonic():
                self._refuse(connection, f"it sent no greeting in {GREETING_TIMEOUT:g} s")

    def _accept(self, _: int) -> None:
        with suppress(ConnectionError, BlockingIOError):  # it has closed again
            connection, (host, *_) = self.server.accept()
            connection.setblocking(False)
            if len(self._silent) == self._most:
                self._refuse(next(iter(self._silent)), f"{self._most} others are silent as well")
            end = time.monotonic() + GREETING_TIMEOUT
            self._silent[connection] = Line(connection, LONGEST), host, end
            hear = lambda _: self._hear(connection)
            self._selector.register(connection, selectors.EVENT_READ, hear)

    def _hear(self, connection: socket.socket) -> None:
        """Read from a connection that is silent so far."""
        line, host, _ = self._silent[connection]
        try:
            if line.read():
                greeting = line.value()
                self._forget(connection)
                self.complete.append((connection, host, greeting))
        except (OSError, ValueError) as cause:  # gone, or no process of gdt
            self._refuse(connection, f"it sent no greeting ({cause})")

    def _refuse(self, connection: socket.socket, reason: str) -> None:
        self._forget(connection)
        refuse(connection, reason)

    def _forget(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        del self._silent[connection]

    def close(self) -> None:
        """Close the server, and the connections whose greetings are not complete."""
        for connection in [self.server, *self._silent, *(c for c, _, _ in self.complete)]:
            connection.close()


def _is_closed(file: Any) -> bool:
    return isinstance(file, socket.socket) and file.fileno() < 0
