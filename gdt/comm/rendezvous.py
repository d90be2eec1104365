"""Let the processes of a program meet at process 0, which listens at an address that all know.

Every process tells process 0 its job, its index and where it listens. Process 0 answers with a
table of all processes and a token, in one message. The sockets of the meeting stay, to the
coordinator; others are opened when two processes first exchange data, and show the token. Greetings
of strangers and of processes of other jobs are refused and logged.

Nothing that comes from a socket is unpickled or run: greetings are lines of JSON, and later
messages are JSON and the bytes of arrays (`gdt.comm.values`). One who knows the job and connects
before the processes have met may still take the place of one of them, so the address must belong to
a network that is trusted.
"""

from __future__ import annotations

import os
import secrets
import selectors
import socket
import time
from contextlib import ExitStack, closing, suppress
from importlib import import_module
from typing import Any, NamedTuple

from gdt.comm import job
from gdt.comm.connection import Address, Peer, family_of, set_options
from gdt.comm.coordinator import Coordinator
from gdt.comm.greetings import LOG, MOST, Greetings, receive, refuse, send
from gdt.errors import DistributedError, error

Job = dict[str, str]

GREETING = "gdt 4"  # the name and the version of this protocol
GRACE = 5.0  # seconds after the timeout in which process 0 still tells the others who is missing
ENTRY = 1 << 10  # the most bytes of a process in the table
DESCRIPTORS = 256  # of a process, beside its sockets
BACKLOG = 1 << 12  # connections that wait until a process accepts them


class Meeting(NamedTuple):
    """The sockets and the token of a process after all have met.

    token: what a process shows to another when it opens a socket to it. server: listens for those
    that do. control: the socket to the coordinator, which is a thread of process 0.
    """

    peers: list[Peer]
    token: str
    server: socket.socket
    control: socket.socket
    coordinator: Coordinator | None = None


def meet(
    address: Address,
    count: int,
    index: int,
    timeout: float,
    own_job: Job,
    listener: socket.socket | None = None,
) -> Meeting:
    """Meet all other processes.

    own_job: what the processes have in common (`gdt.comm.job`).
    listener: the socket with which process 0 listens at `address`, if it does so already.

    Raises DistributedError if the processes do not find each other within `timeout` seconds, or
    disagree about their number or indices.
    """
    deadline = time.monotonic() + timeout
    _allow_descriptors(2 * count + DESCRIPTORS)
    try:
        with ExitStack() as stack:  # closes all sockets if there is an error
            if index == 0:
                with (
                    listener or _listen(address) as server,
                    selectors.DefaultSelector() as selector,
                    closing(Greetings(server, selector, MOST + count)) as greetings,
                ):
                    meeting = _welcome(greetings, selector, count, deadline, own_job, stack)
            else:
                meeting = _join(address, count, index, deadline, own_job, stack)
            stack.pop_all()
            return meeting
    except OSError as cause:
        place = f"{address[0]}:{address[1]}"
        raise _error(
            f"process {index} cannot meet the others at {place} ({_reason(cause)})",
            "Is every process started, and can this host reach that address? Once all have met, "
            "process 0 listens there no more.",
        ) from cause


def _error(problem: str, remedy: str | None = None) -> DistributedError:
    return error(DistributedError, "initialize", problem, remedy=remedy)


def _reason(cause: OSError) -> str:
    return "timed out" if isinstance(cause, TimeoutError) else str(cause)


def _allow_descriptors(count: int) -> None:
    """Let this process open so many files, if the system's hard limit allows them: the soft one is
    often 1,024. Without them, opening a socket is the error."""
    with suppress(ImportError, ValueError, OSError):
        resource = import_module("resource")  # which not every system has
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY and soft < count:
            most = count if hard == resource.RLIM_INFINITY else min(count, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _server(address: Address) -> socket.socket:
    return socket.create_server(address, family=family_of(address), backlog=BACKLOG)


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
    greetings: Greetings,
    selector: selectors.BaseSelector,
    count: int,
    deadline: float,
    own_job: Job,
    stack: ExitStack,
) -> Meeting:
    own_server = stack.enter_context(_server((greetings.server.getsockname()[0], 0)))
    sockets: dict[int, socket.socket] = {}
    # Where process 0 listens the others know but for the port.
    table: list[Any] = [None] * count
    table[0] = [socket.gethostname(), os.getpid(), "", own_server.getsockname()[1]]
    problem = ""

    def look_at(i: int) -> None:
        """Forget a process that has gone again: it may be started anew."""
        with suppress(OSError):  # it was reset, or its host has gone
            if sockets[i].recv(1, socket.MSG_PEEK):
                return
        LOG.warning("process %d (host %s, pid %d) has gone again", i, *table[i][:2])
        selector.unregister(sockets[i])
        sockets.pop(i).close()
        table[i] = None

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
        set_options(stack.enter_context(connection))
        i, its_count = hello["index"], hello["count"]
        if its_count != count:
            problem = f"process {i} counts {its_count} processes, process 0 counts {count}"
        elif table[i] is not None:
            problem = f"two processes say that they are process {i}"
        if problem:
            send(connection, {"problem": problem})
        else:
            table[i] = [hello["host"], hello["pid"], host, hello["port"]]
            sockets[i] = connection
            selector.register(connection, selectors.EVENT_READ, lambda _, i=i: look_at(i))
    token = secrets.token_hex(16)
    answer = {"problem": problem, "token": token, "table": table}
    for connection in sockets.values():
        with suppress(OSError):  # the coordinator will notice that it has gone
            connection.settimeout(max(deadline + GRACE - time.monotonic(), 0.001))
            send(connection, answer)
    if problem:
        raise _error(problem)
    control, other_end = socket.socketpair()
    return Meeting(
        _peers(table, ""),
        token,
        own_server,
        control,
        Coordinator({0: other_end, **sockets}),
    )


def _peers(table: Any, host_of_first: str) -> list[Peer]:
    """The processes of a table: host, id, and the address at which each listens."""
    return [
        Peer(i, host, pid, (str(at or host_of_first), int(port)))
        for i, (host, pid, at, port) in enumerate(table)
    ]


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
) -> Meeting:
    control = stack.enter_context(_connected(address, deadline))
    server = stack.enter_context(_server((control.getsockname()[0], 0)))
    hello = {
        "greeting": GREETING,
        "job": own_job,
        "index": index,
        "count": count,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "port": server.getsockname()[1],
    }
    send(control, hello)
    try:
        answer = receive(control, deadline + GRACE, (1 << 20) + ENTRY * count)
        if answer["problem"] != "":
            raise _error(str(answer["problem"]), str(answer.get("remedy", "")) or None)
        peers = _peers(answer["table"], control.getpeername()[0])
        return Meeting(peers, str(answer["token"]), server, control)
    except (LookupError, TypeError, ValueError):
        problem = f"what listens at {address[0]}:{address[1]} is no process of gdt"
        raise _error(problem) from None


def _connected(address: Address, deadline: float) -> socket.socket:
    """A socket to process 0; retries until the deadline, since it may start later, and its name
    become known later."""
    while True:
        seconds = deadline - time.monotonic()
        try:
            connection = socket.create_connection(address, max(seconds, 0.001))
            set_options(connection)
            return connection
        except (ConnectionRefusedError, socket.gaierror):
            if seconds <= 0:
                raise
            time.sleep(min(0.05, seconds))
