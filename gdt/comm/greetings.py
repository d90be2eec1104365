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
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

LOG = logging.getLogger("gdt.distributed")

GREETING_TIMEOUT = 2.0  # seconds in which a new connection must send its greeting
LONGEST = 1 << 13  # bytes of a greeting
MOST = 64  # connections that may be silent at the same time


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


def receive(connection: socket.socket, deadline: float) -> dict[str, Any]:
    """Read the line of a process that this one has connected to, and nothing beyond it.

    Raises ConnectionError if the other end closes before the line is complete, TimeoutError if the
    line is not complete at the time `deadline`, ValueError for anything but an object.
    """
    line, is_complete = Line(connection, 1 << 20), False
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

    A context, at the end of which the connections are closed whose greetings are not complete.
    """

    def __init__(self, server: socket.socket) -> None:
        server.setblocking(False)
        self._server, self._selector = server, selectors.DefaultSelector()
        self._selector.register(server, selectors.EVENT_READ)
        self._watched: set[socket.socket] = set()
        # Those that have not greeted yet, with the host of each and the time when it is up.
        self._silent: dict[socket.socket, tuple[Line, str, float]] = {}

    def __enter__(self) -> Greetings:
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self._silent:
            connection.close()
        self._selector.close()

    def watch(self, connections: Iterable[socket.socket]) -> None:
        """Let `next` raise ConnectionError once one of these has closed."""
        for connection in connections:
            self._selector.register(connection, selectors.EVENT_READ)
            self._watched.add(connection)

    def next(self, deadline: float) -> tuple[socket.socket, str, dict[str, Any]]:
        """Return the next connection whose greeting is complete, its host, and the greeting.

        What is no JSON object, or not complete in time, is refused. Raises TimeoutError at the time
        `deadline`."""
        while (now := time.monotonic()) < deadline:
            until = min([deadline, *(end for _, _, end in self._silent.values())])
            for key, _ in self._selector.select(max(until - now, 0.0)):
                connection = key.fileobj
                if not isinstance(connection, socket.socket):
                    continue
                if connection is self._server:
                    self._accept()
                elif connection in self._watched:
                    self._look_at(connection)
                elif connection in self._silent:  # it may just have been sent away
                    greeting = self._greeting(connection)
                    if greeting is not None:
                        _, host, _ = self._forget(connection)
                        return connection, host, greeting
            for connection, (_, _, end) in list(self._silent.items()):
                if end < time.monotonic():
                    self._refuse(connection, f"it sent no greeting in {GREETING_TIMEOUT:g} s")
        raise TimeoutError

    def _accept(self) -> None:
        with suppress(ConnectionError, BlockingIOError):  # it has closed again
            connection, (host, *_) = self._server.accept()
            connection.setblocking(False)
            if len(self._silent) == MOST:
                self._refuse(next(iter(self._silent)), f"{MOST} others are silent as well")
            end = time.monotonic() + GREETING_TIMEOUT
            self._silent[connection] = Line(connection, LONGEST), host, end
            self._selector.register(connection, selectors.EVENT_READ)

    def _look_at(self, other: socket.socket) -> None:
        """Raise if a process that had come has gone; its first message is read later."""
        self._selector.unregister(other)
        self._watched.remove(other)
        if not other.recv(1, socket.MSG_PEEK):
            raise ConnectionError("a process that had come has gone")

    def _greeting(self, connection: socket.socket) -> dict[str, Any] | None:
        """Read from a connection that is silent so far; return its greeting if it is complete."""
        line, _, _ = self._silent[connection]
        try:
            return line.value() if line.read() else None
        except (OSError, ValueError) as cause:  # gone, or no process of gdt
            self._refuse(connection, f"it sent no greeting ({cause})")
            return None

    def _refuse(self, connection: socket.socket, reason: str) -> None:
        self._forget(connection)
        refuse(connection, reason)

    def _forget(self, connection: socket.socket) -> tuple[Line, str, float]:
        self._selector.unregister(connection)
        return self._silent.pop(connection)
