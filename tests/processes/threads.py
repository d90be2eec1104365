"""Processes played by threads of one: they meet, and exchange messages, as processes do."""

from __future__ import annotations

import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from gdt.comm.connection import family_of
from gdt.comm.messages import Messages
from gdt.comm.rendezvous import Meeting, meet
from gdt.errors import DistributedError

JOB = {"name": "test"}


def together(*calls: Callable[[], Any]) -> list[Any]:
    """What each call returns or raises, all at the same time."""

    def attempt(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except DistributedError as e:
            return e

    with ThreadPoolExecutor(len(calls)) as pool:
        return [f.result() for f in [pool.submit(attempt, c) for c in calls]]


def met(count: int, host: str = "127.0.0.1") -> list[Meeting]:
    """What each of so many processes has after all have met."""
    with socket.create_server((host, 0), family=family_of((host, 0))) as server:
        address = server.getsockname()[:2]
        meetings = together(
            *(
                lambda i=i: meet(address, count, i, 20.0, JOB, None if i else server)
                for i in range(count)
            )
        )
    named = lambda peer: replace(peer, host="here", pid=100 + peer.index)
    return [m._replace(peers=[*map(named, m.peers)]) for m in meetings]


def connected(count: int, timeout: float = 5.0) -> list[Messages]:
    """The messages of so many processes."""
    return [Messages(i, meeting, timeout) for i, meeting in enumerate(met(count))]


def leave(*meetings: Meeting) -> None:
    """Close the sockets of processes that have met."""
    for meeting in meetings:
        meeting.server.close()
        meeting.control.close()
        if meeting.coordinator is not None:
            meeting.coordinator.close()
