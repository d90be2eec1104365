"""How processes find each other: through process 0, which listens at an address that all know.

Each tells process 0 who it is and where it listens; process 0 answers with the list of all and a
token; then every process connects to those before it, and shows the token. So every two are
connected, by one socket. The greetings of strangers are refused, and logged.

Nothing that comes from a socket is unpickled or run: greetings are lines of JSON, and later
messages are JSON and the bytes of arrays (`gdt.comm.values`). A stranger who connects before the
processes have met may still take the place of one of them, so the address must belong to a network
that is trusted.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import select
import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Any

from gdt.comm.connection import Peer
from gdt.errors import DistributedError, error

Address = tuple[str, int]
Sockets = dict[int, socket.socket]

LOG = logging.getLogger("gdt.distributed")

GREETING = "gdt 2"  # and the version of this protocol
# Seconds of silence, and between questions then, and how many of those stay without an answer: a
# host that is gone is noticed within 9 seconds (tcp(7)), unless data is on its way there.
LIFE_SIGNS = {"TCP_KEEPIDLE": 4, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 5}
GREETED = 2.0  # seconds in which a process says who it is once it is connected; others say nothing
GRACE = 5.0  # seconds in which process 0, when its time is up, still says who is missing


def meet(
    address: Address,
    count: int,
    index: int,
    timeout: float,
    listener: socket.socket | None = None,
) -> tuple[list[Peer], Sockets]:
    """All processes, and a socket to each other one.

    listener: of process 0, if it listens at `address` already. Raises DistributedError if the
    processes do not find each other within `timeout` seconds, or do not fit together.
    """
    end = time.monotonic() + timeout
    try:
        with ExitStack() as opened:  # closed if there is an error
            if index == 0:
                with listener or _listening(address) as server:
                    processes = _welcome(server, count, end, opened)
            else:
                processes = _join(address, count, index, end, opened)
            opened.pop_all()
            return processes
    except OSError as cause:
        place = f"{address[0]}:{address[1]}"
        raise _error(
            f"process {index} cannot meet the others at {place} ({_reason(cause)})",
            "Is every process started, and can this host reach that address?",
        ) from cause


def _error(problem: str, remedy: str | None = None) -> DistributedError:
    return error(DistributedError, "initialize", problem, remedy=remedy)


def _reason(cause: OSError) -> str:
    return "timed out" if isinstance(cause, TimeoutError) else str(cause)


def _server(address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    return socket.create_server(address, family=family)


def _listening(address: Address) -> socket.socket:
    try:
        return _server(address)
    except OSError as cause:
        raise _error(
            f"process 0 cannot listen at {address[0]}:{address[1]} ({cause})",
            "The address is one of its host's, with a port that nothing else uses.",
        ) from cause


# ---------------------------------------------------------------- process 0


def _welcome(
    server: socket.socket, count: int, end: float, opened: ExitStack
) -> tuple[list[Peer], Sockets]:
    sockets: Sockets = {}
    joined: list[socket.socket] = []
    table: list[Any] = [None] * count
    table[0] = [socket.gethostname(), os.getpid(), "", 0]
    problem = ""
    while None in table and not problem:
        try:
            joining, hello = _accepted(server, end, opened)
        except TimeoutError:
            missing = [i for i, entry in enumerate(table) if entry is None]
            problem = f"of {count} processes, these did not come: {str(missing)[1:-1]}"
            break
        refusal = _refusal(hello, count)
        if refusal:
            _refuse(joining, refusal)
            continue
        joined.append(joining)
        i, theirs = hello["index"], hello["count"]
        if theirs != count:
            problem = f"process {i} counts {theirs} processes, process 0 counts {count}"
        elif table[i] is not None:
            problem = f"two processes say that they are process {i}"
        else:
            table[i] = [hello["host"], hello["pid"], joining.getpeername()[0], hello["port"]]
            sockets[i] = joining
    answer = {"problem": problem, "token": secrets.token_hex(16), "table": table}
    for joining in joined:
        _send(joining, answer)
    if problem:
        raise _error(problem)
    return _peers(table), sockets


def _refusal(hello: dict[str, Any], count: int) -> str:
    """Why a greeting is not one of a process of this program; empty if it is."""
    if hello.get("greeting") != GREETING:  # somebody else, or another version
        return f"the greeting is {hello.get('greeting')!r}, and not {GREETING!r}"
    numbers = {name: hello.get(name) for name in ("index", "count", "pid", "port")}
    wrong = [name for name, number in numbers.items() if type(number) is not int]
    if wrong:
        return f"{wrong[0]} is {numbers[wrong[0]]!r}"
    if not 0 < hello["index"] < max(hello["count"], count):
        return f"index is {hello['index']}, of {count} processes"
    if not 0 < hello["port"] < 1 << 16 or not isinstance(hello.get("host"), str):
        return f"it listens at {hello.get('host')!r}, port {hello['port']}"
    return ""


def _refuse(joining: socket.socket, reason: str) -> None:
    """Close a connection, and say why to the log and to the other end."""
    with suppress(OSError):
        LOG.warning("refused a connection from %s: %s", joining.getpeername()[0], reason)
        _send(joining, {"problem": f"the greeting is refused: {reason}"})
    joining.close()


def _accepted(
    server: socket.socket, end: float, opened: ExitStack, others: Sequence[socket.socket] = ()
) -> tuple[socket.socket, dict[str, Any]]:
    """The next connection, and the greeting that it brings. others: connections that must stay
    open meanwhile."""
    server.settimeout(GREETED)
    watched = [server, *others]
    while True:
        ready, _, _ = select.select(watched, [], [], max(end - time.monotonic(), 0.001))
        if not ready:
            raise TimeoutError
        if server in ready:
            with suppress(ConnectionError, TimeoutError):  # gone already
                joining = opened.enter_context(server.accept()[0])
                break
        for other in set(ready) - {server}:
            if not other.recv(1, socket.MSG_PEEK):
                raise ConnectionError("a process that had come has gone")
            watched.remove(other)  # it sends its first message already
    _set_options(joining)
    try:
        hello = _receive(joining, time.monotonic() + GREETED)
    except (OSError, ValueError):  # gone, silent, or no process of gdt
        return joining, {}
    joining.settimeout(max(end - time.monotonic(), 0.001))
    return joining, hello


# ---------------------------------------------------------------- the others


def _join(
    address: Address, count: int, index: int, end: float, opened: ExitStack
) -> tuple[list[Peer], Sockets]:
    sockets = {0: _connected(address, end, opened)}
    with _server((sockets[0].getsockname()[0], 0)) as server:
        hello = {
            "greeting": GREETING,
            "index": index,
            "count": count,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "port": server.getsockname()[1],
        }
        _send(sockets[0], hello)
        try:
            answer = _receive(sockets[0], end + GRACE)
        except ValueError:
            raise _error(
                f"what listens at {address[0]}:{address[1]} is no process of gdt"
            ) from None
        if answer.get("problem") != "":
            raise _error(str(answer.get("problem", "process 0 gives no answer")))
        for i in range(1, index):
            _, _, host, port = answer["table"][i]
            sockets[i] = _connected((host, port), end, opened)
            _send(sockets[i], {"token": answer["token"], "index": index})
        while len(sockets) < count - 1:
            joining, hello = _accepted(server, end, opened, list(sockets.values()))
            later = hello.get("index")
            if hello.get("token") != answer["token"]:
                _refuse(joining, "it does not show the token of this program")
            elif type(later) is not int or later not in range(index + 1, count) or later in sockets:
                _refuse(joining, f"index is {later!r}, of {count} processes")
            else:
                sockets[later] = joining
    return _peers(answer["table"]), sockets


def _connected(address: Address, end: float, opened: ExitStack) -> socket.socket:
    """A connection; the process at the other end may be started later."""
    while True:
        left = end - time.monotonic()
        try:
            end_here = opened.enter_context(socket.create_connection(address, max(left, 0.001)))
            end_here.settimeout(max(left, 0) + GRACE)
            _set_options(end_here)
            return end_here
        except ConnectionRefusedError:
            if left <= 0:
                raise
            time.sleep(0.05)


def _set_options(end: socket.socket) -> None:
    """Send small messages at once, and notice a host that is gone, as one is that loses its power
    or its network: it closes no connection."""
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in LIFE_SIGNS.items():
        if hasattr(socket, name):  # systems differ in what can be set
            end.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _peers(table: list[Any]) -> list[Peer]:
    return [Peer(i, host, pid) for i, (host, pid, _, _) in enumerate(table)]


def _send(end: socket.socket, value: dict[str, Any]) -> None:
    end.sendall(json.dumps(value).encode() + b"\n")


def _receive(end: socket.socket, until: float) -> dict[str, Any]:
    """One line of JSON; ConnectionError if there is none, TimeoutError if it is not complete at the
    time `until`. Nothing behind it is read."""
    line = bytearray()
    while not line.endswith(b"\n"):
        end.settimeout(max(until - time.monotonic(), 0.001))
        byte = end.recv(1)
        if not byte:
            raise ConnectionError("the other end has closed the connection")
        line += byte
        if len(line) > 1 << 20:
            raise ValueError("no line")
    value = json.loads(line)
    if not isinstance(value, dict):
        raise ValueError("no object")
    return value
