"""The coordinator: a thread of process 0 which tells every process how others have ended.

Every process holds one socket to it from the beginning to the end, so the death of any is noticed
by all at once, whether or not they exchange data with it: a socket that closes without a goodbye is
that of a process that has died. Ends are told together, those of a hundredth of a second in one
message, since a program's processes mostly end at the same time.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Mapping
from functools import partial

from gdt.comm.connection import (
    ENDS,
    FAILURE,
    GOODBYE,
    Message,
    Stream,
    packed,
    packed_header,
    silent_of,
)

TOGETHER = 0.01  # seconds in which ends are told in one message
FLUSH = 1.0  # seconds for which the last messages may take to leave

End = tuple[int, str | None, list[int]]  # a process, the reason of its goodbye, the silent ones


class Coordinator(threading.Thread):
    """The thread of process 0; ends: its sockets to all processes, by index."""

    def __init__(self, ends: Mapping[int, socket.socket]) -> None:
        super().__init__(name="gdt: coordinator", daemon=True)
        self._selector = selectors.DefaultSelector()
        self._streams = {
            i: Stream(end, self._selector, partial(self._receive, i), partial(self._lose, i))
            for i, end in ends.items()
        }
        self._news: list[End] = []  # which have ended, and were not told yet
        self._due = 0.0  # when they are
        self._said_goodbye: set[int] = set()
        self._has_failed = False

    def run(self) -> None:
        """Serve until process 0 closes its end, which it does last."""
        try:
            while 0 in self._streams:
                self._serve()
            self._tell()
            end = time.monotonic() + FLUSH
            while any(s.outgoing for s in self._streams.values()) and time.monotonic() < end:
                self._due = time.monotonic() + 0.05
                self._serve()
        finally:
            self.close()

    def _serve(self) -> None:
        """Read and write what can be; tell the ends that are due."""
        is_waiting = self._news or 0 not in self._streams
        seconds = max(self._due - time.monotonic(), 0.0) if is_waiting else None
        for key, events in self._selector.select(seconds):
            key.data(events)
        if self._news and time.monotonic() >= self._due:
            self._tell()

    def _receive(self, i: int, message: Message) -> None:
        if message.kind == GOODBYE and i not in self._said_goodbye:
            self._said_goodbye.add(i)
            self._note(i, message.what, silent_of(message))
        elif message.kind == FAILURE and not self._has_failed:  # others may have noticed it too
            self._has_failed = True
            self._send(packed_header(FAILURE, 0, "", len(message.payload)), message.payload, but=i)

    def _lose(self, i: int, _: str) -> None:
        del self._streams[i]
        if i not in self._said_goodbye:
            self._note(i, None, [])

    def _note(self, i: int, reason: str | None, silent: list[int]) -> None:
        if not self._news:
            self._due = time.monotonic() + TOGETHER
        self._news.append((i, reason, silent))

    def _tell(self) -> None:
        if self._news:
            self._send(packed(ENDS, self._news))
        self._news = []

    def _send(self, *parts: bytes | memoryview, but: int = -1) -> None:
        for i, stream in list(self._streams.items()):
            if i != but:
                stream.send(*parts)

    def close(self) -> None:
        """Close the sockets: at the end, and in a child that was forked, which has no such thread,
        and shares the system's selector with its parent."""
        for stream in self._streams.values():
            stream.socket.close()
        self._selector.close()
