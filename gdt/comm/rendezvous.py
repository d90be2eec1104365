"""Connect the processes of a program, through process 0, which listens at an address that all know.

Every process tells process 0 its job, its index and where it listens. Process 0 answers with a
table of all processes and a token. Then every process connects to the processes of lower index, and
shows the token. So one socket connects any two processes. Greetings of strangers and of processes
of other jobs are refused and logged.

Nothing that comes from a socket is unpickled or run: greetings are lines of JSON, and later
messages are JSON and the bytes of arrays (`gdt.comm.values`). One who knows the job and connects
before the processes have met may still take the place of one of them, so the address must belong to
a network that is trusted.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from contextlib import ExitStack
from typing import Any

from gdt.comm import job
from gdt.comm.connection import Peer
from gdt.comm.greetings import Greetings, receive, refuse, send
from gdt.errors import DistributedError, error

Address = tuple[str, int]
Sockets = dict[int, socket.socket]
Job = dict[str, str]

GREETING = "gdt 3"  # the name and the version of this protocol
# After 4 seconds of silence TCP sends a probe every second, and gives up after 5 without an answer:
# a host that is gone is noticed within 9 seconds (tcp(7)), unless data is on its way there.
LIFE_SIGNS = {"TCP_KEEPIDLE": 4, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 5}
GRACE = 5.0  # seconds after the timeout in which process 0 still tells the others who is missing


def meet(
    address: Address,
    count: int,
    index: int,
    timeout: float,
    own_job: Job,
    listener: socket.socket | None = None,
) -> tuple[list[Peer], Sockets]:
    """Connect to all other processes; return all processes, and a socket to each of the others.

    own_job: what the processes have in common (`gdt.comm.job`).
    listener: the socket with which process 0 listens at `address`, if it does so already.

    Raises DistributedError if the processes do not find each other within `timeout` seconds, or
    disagree about their number or indices.
    """
    deadline = time.monotonic() + timeout
    try:
        with ExitStack() as stack:  # closes all sockets if there is an error
            if index == 0:
                with listener or _listen(address) as server, Greetings(server) as greetings:
                    peers, sockets = _welcome(greetings, count, deadline, own_job, stack)
            else:
                peers, sockets = _join(address, count, index, deadline, own_job, stack)
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
    greetings: Greetings, count: int, deadline: float, own_job: Job, stack: ExitStack
) -> tuple[list[Peer], Sockets]:
    sockets: Sockets = {}
    connections: list[socket.socket] = []
    table: list[Any] = [None] * count
    table[0] = [socket.gethostname(), os.getpid(), "", 0]
    problem = ""
    while None in table and not problem:
        try:
            connection, host, hello = greetings.next(deadline)
        except TimeoutError:
            missing = [i for i, entry in enumerate(table) if entry is None]
            problem = f"of {count} processes, these did not come: {str(missing)[1:-1]}"
            break
        refusal = _refusal(hello, count)
        other_job = "" if refusal else job.difference(own_job, hello.get("job"))
        if refusal or other_job:
            refuse(connection, refusal or other_job, job.OWN_PORT if other_job else "")
            continue
        _set_options(connection, deadline)
        connections.append(stack.enter_context(connection))
        i, its_count = hello["index"], hello["count"]
        if its_count != count:
            problem = f"process {i} counts {its_count} processes, process 0 counts {count}"
        elif table[i] is not None:
            problem = f"two processes say that they are process {i}"
        else:
            table[i] = [hello["host"], hello["pid"], host, hello["port"]]
            sockets[i] = connection
    answer = {"problem": problem, "token": secrets.token_hex(16), "table": table}
    for connection in connections:
        send(connection, answer)
    if problem:
        raise _error(problem)
    return [Peer(i, host, pid) for i, (host, pid, _, _) in enumerate(table)], sockets


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


# ---------------------------------------------------------------- the others


def _join(
    address: Address, count: int, index: int, deadline: float, own_job: Job, stack: ExitStack
) -> tuple[list[Peer], Sockets]:
    sockets = {0: _connect(address, deadline, stack)}
    with _server((sockets[0].getsockname()[0], 0)) as server, Greetings(server) as greetings:
        hello = {
            "greeting": GREETING,
            "job": own_job,
            "index": index,
            "count": count,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "port": server.getsockname()[1],
        }
        send(sockets[0], hello)
        try:
            answer = receive(sockets[0], deadline + GRACE)
            if answer["problem"] != "":
                raise _error(str(answer["problem"]), str(answer.get("remedy", "")) or None)
            token, table = answer["token"], answer["table"]
            peers = [Peer(i, host, pid) for i, (host, pid, _, _) in enumerate(table)]
            addresses = [(str(at), int(port)) for _, _, at, port in table]
        except (LookupError, TypeError, ValueError):
            raise _error(
                f"what listens at {address[0]}:{address[1]} is no process of gdt"
            ) from None
        for i in range(1, index):
            sockets[i] = _connect(addresses[i], deadline, stack)
            send(sockets[i], {"token": token, "index": index})
        greetings.watch(sockets.values())
        while len(sockets) < count - 1:
            connection, _, hello = greetings.next(deadline)
            later = hello.get("index")
            if hello.get("token") != token:
                refuse(connection, "it does not show the token of this program")
            elif type(later) is not int or later not in range(index + 1, count) or later in sockets:
                refuse(connection, f"index is {later!r}, of {count} processes")
            else:
                _set_options(connection, deadline)
                sockets[later] = stack.enter_context(connection)
                greetings.watch([connection])
    return peers, sockets


def _connect(address: Address, deadline: float, stack: ExitStack) -> socket.socket:
    """Connect to a process; retry until the deadline, since it may start later."""
    while True:
        seconds = deadline - time.monotonic()
        try:
            connection = stack.enter_context(socket.create_connection(address, max(seconds, 0.001)))
            _set_options(connection, deadline + GRACE)
            return connection
        except ConnectionRefusedError:
            if seconds <= 0:
                raise
            time.sleep(0.05)


def _set_options(connection: socket.socket, deadline: float) -> None:
    """Let a socket wait until a deadline, send small messages at once, and notice that a host has
    lost its power or its network, in which case nothing closes the connection."""
    connection.settimeout(max(deadline - time.monotonic(), 0.001))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in LIFE_SIGNS.items():
        if hasattr(socket, name):  # systems differ in the options that they have
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
