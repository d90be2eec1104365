"""Connect the processes of a program, through process 0, which listens at an address that all know.

Every process tells process 0 its index and where it listens. Process 0 answers with a table of all
processes and a token. Then every process connects to the processes of lower index, and shows the
token. So one socket connects any two processes. Greetings of strangers are refused and logged.

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

GREETING = "gdt 2"  # the name and the version of this protocol
# After 4 seconds of silence TCP sends a probe every second, and gives up after 5 without an answer:
# a host that is gone is noticed within 9 seconds (tcp(7)), unless data is on its way there.
LIFE_SIGNS = {"TCP_KEEPIDLE": 4, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 5}
GREETING_TIMEOUT = 2.0  # seconds in which a new connection must send its greeting
GRACE = 5.0  # seconds after the timeout in which process 0 still tells the others who is missing


def meet(
    address: Address,
    count: int,
    index: int,
    timeout: float,
    listener: socket.socket | None = None,
) -> tuple[list[Peer], Sockets]:
    """Connect to all other processes; return all processes, and a socket to each of the others.

    listener: the socket with which process 0 listens at `address`, if it does so already.

    Raises DistributedError if the processes do not find each other within `timeout` seconds, or
    disagree about their number or indices.
    """
    deadline = time.monotonic() + timeout
    try:
        with ExitStack() as stack:  # closes all sockets if there is an error
            if index == 0:
                with listener or _listen(address) as server:
                    peers, sockets = _welcome(server, count, deadline, stack)
            else:
                peers, sockets = _join(address, count, index, deadline, stack)
            stack.pop_all()
            return peers, sockets
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


def _listen(address: Address) -> socket.socket:
    try:
        return _server(address)
    except OSError as cause:
        raise _error(
            f"process 0 cannot listen at {address[0]}:{address[1]} ({cause})",
            "Give an address of the host of process 0, with a port that nothing else uses.",
        ) from cause


# ---------------------------------------------------------------- process 0


def _welcome(
    server: socket.socket, count: int, deadline: float, stack: ExitStack
) -> tuple[list[Peer], Sockets]:
    sockets: Sockets = {}
    connections: list[socket.socket] = []
    table: list[Any] = [None] * count
    table[0] = [socket.gethostname(), os.getpid(), "", 0]
    problem = ""
    while None in table and not problem:
        try:
            connection, hello = _accept(server, deadline, stack)
        except TimeoutError:
            missing = [i for i, entry in enumerate(table) if entry is None]
            problem = f"of {count} processes, these did not come: {str(missing)[1:-1]}"
            break
        refusal = _refusal(hello, count)
        if refusal:
            _refuse(connection, refusal)
            continue
        connections.append(connection)
        i, its_count = hello["index"], hello["count"]
        if its_count != count:
            problem = f"process {i} counts {its_count} processes, process 0 counts {count}"
        elif table[i] is not None:
            problem = f"two processes say that they are process {i}"
        else:
            table[i] = [hello["host"], hello["pid"], connection.getpeername()[0], hello["port"]]
            sockets[i] = connection
    answer = {"problem": problem, "token": secrets.token_hex(16), "table": table}
    for connection in connections:
        _send(connection, answer)
    if problem:
        raise _error(problem)
    return _peers(table), sockets


def _refusal(hello: dict[str, Any], count: int) -> str:
    """The reason to refuse a greeting; empty if it is that of a process of this program."""
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


def _refuse(connection: socket.socket, reason: str) -> None:
    """Close a connection; log the reason, and send it to the other end."""
    with suppress(OSError):
        LOG.warning("refused a connection from %s: %s", connection.getpeername()[0], reason)
        _send(connection, {"problem": f"the greeting is refused: {reason}"})
    connection.close()


def _accept(
    server: socket.socket, deadline: float, stack: ExitStack, others: Sequence[socket.socket] = ()
) -> tuple[socket.socket, dict[str, Any]]:
    """Accept the next connection; return it and its greeting, which is empty if it is not valid.

    others: connections to other processes; ConnectionError if one of them closes meanwhile.
    """
    server.settimeout(GREETING_TIMEOUT)
    sockets = [server, *others]
    while True:
        ready, _, _ = select.select(sockets, [], [], max(deadline - time.monotonic(), 0.001))
        if not ready:
            raise TimeoutError
        if server in ready:
            with suppress(ConnectionError, TimeoutError):  # it has closed again
                connection = stack.enter_context(server.accept()[0])
                break
        for other in set(ready) - {server}:
            if not other.recv(1, socket.MSG_PEEK):
                raise ConnectionError("a process that had come has gone")
            sockets.remove(other)  # its first message is read later
    _set_options(connection)
    try:
        hello = _receive(connection, time.monotonic() + GREETING_TIMEOUT)
    except (OSError, ValueError):  # gone, silent, or no process of gdt
        return connection, {}
    connection.settimeout(max(deadline - time.monotonic(), 0.001))
    return connection, hello


# ---------------------------------------------------------------- the others


def _join(
    address: Address, count: int, index: int, deadline: float, stack: ExitStack
) -> tuple[list[Peer], Sockets]:
    sockets = {0: _connect(address, deadline, stack)}
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
            answer = _receive(sockets[0], deadline + GRACE)
        except ValueError:
            raise _error(
                f"what listens at {address[0]}:{address[1]} is no process of gdt"
            ) from None
        if answer.get("problem") != "":
            raise _error(str(answer.get("problem", "process 0 gives no answer")))
        for i in range(1, index):
            _, _, host, port = answer["table"][i]
            sockets[i] = _connect((host, port), deadline, stack)
            _send(sockets[i], {"token": answer["token"], "index": index})
        while len(sockets) < count - 1:
            connection, hello = _accept(server, deadline, stack, list(sockets.values()))
            later = hello.get("index")
            if hello.get("token") != answer["token"]:
                _refuse(connection, "it does not show the token of this program")
            elif type(later) is not int or later not in range(index + 1, count) or later in sockets:
                _refuse(connection, f"index is {later!r}, of {count} processes")
            else:
                sockets[later] = connection
    return _peers(answer["table"]), sockets


def _connect(address: Address, deadline: float, stack: ExitStack) -> socket.socket:
    """Connect to a process; retry until the deadline, since it may start later."""
    while True:
        seconds = deadline - time.monotonic()
        try:
            connection = stack.enter_context(socket.create_connection(address, max(seconds, 0.001)))
            connection.settimeout(max(seconds, 0) + GRACE)
            _set_options(connection)
            return connection
        except ConnectionRefusedError:
            if seconds <= 0:
                raise
            time.sleep(0.05)


def _set_options(connection: socket.socket) -> None:
    """Let a socket send small messages at once, and notice that a host has lost its power or its
    network, in which case nothing closes the connection."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in LIFE_SIGNS.items():
        if hasattr(socket, name):  # systems differ in the options that they have
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _peers(table: list[Any]) -> list[Peer]:
    return [Peer(i, host, pid) for i, (host, pid, _, _) in enumerate(table)]


def _send(connection: socket.socket, value: dict[str, Any]) -> None:
    connection.sendall(json.dumps(value).encode() + b"\n")


def _receive(connection: socket.socket, deadline: float) -> dict[str, Any]:
    """Read one line, a JSON object, and nothing beyond it.

    Raises ConnectionError if the other end closes before the line is complete, TimeoutError if the
    line is not complete at the time `deadline`, ValueError for anything but an object.
    """
    line = bytearray()
    while not line.endswith(b"\n"):
        connection.settimeout(max(deadline - time.monotonic(), 0.001))
        byte = connection.recv(1)
        if not byte:
            raise ConnectionError("the other end has closed the connection")
        line += byte
        if len(line) > 1 << 20:
            raise ValueError("the line is too long")
    value = json.loads(line)
    if not isinstance(value, dict):
        raise ValueError("the line is no JSON object")
    return value
