"""How processes meet: who may come, who is refused, and what is said of those who do not come."""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from gdt.comm import greetings, job, rendezvous
from gdt.comm.connection import LIFE_SIGNS
from gdt.comm.messages import STAR, Messages
from gdt.comm.rendezvous import Meeting, meet
from gdt.errors import DistributedError

from . import threads
from .threads import JOB, leave, together


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def joining(
    *counts_and_indices: tuple[int, int], timeout: float = 10.0, host: str = "127.0.0.1"
) -> list[Any]:
    address = (host, free_port())
    return together(
        *(lambda c=c, i=i: meet(address, c, i, timeout, JOB) for c, i in counts_and_indices)
    )


@pytest.fixture(autouse=True)
def threads_are_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the threads of this process send and receive as processes do."""
    monkeypatch.setattr(Messages, "is_in_own_thread", lambda self: True)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8, 13])
def test_values_reach_all_processes_along_a_tree(count: int) -> None:
    ends = threads.connected(count)
    assert (
        together(*(lambda e=e: e.gather(e.index, "hello") for e in ends))
        == [[*range(count)]] * count
    )
    given = {"seed": 7}
    assert together(*(lambda e=e: e.broadcast(given) for e in ends)) == [given] * count
    for end in ends:
        met = [c for c in end.connections.values() if c.streams]
        assert len(met) <= (count - 1 if count <= STAR else count.bit_length())
        streams = [s for c in met for s in c.streams]
        if end.index:
            streams.append(end._control)
        elif end._met.coordinator is not None:
            streams += [s for i, s in end._met.coordinator._streams.items() if i]
        for stream in streams:
            assert stream.socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            for name, value in LIFE_SIGNS.items():
                if hasattr(socket, name):
                    option = getattr(socket, name)
                    assert stream.socket.getsockopt(socket.IPPROTO_TCP, option) == value
    together(*(e.close for e in ends))


def test_addresses_may_be_of_the_sixth_version() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    ends = [Messages(i, m, 5.0) for i, m in enumerate(threads.met(3, "::1"))]
    assert together(*(lambda e=e: e.gather(e.index, "v") for e in ends)) == [[0, 1, 2]] * 3
    together(*(e.close for e in ends))


def test_processes_that_open_sockets_to_each_other_at_once_both_receive() -> None:
    ends = threads.connected(2)
    for end, other in ((0, 1), (1, 0)):
        ends[end]._send(other)  # neither has heard of the other's yet
    found = together(*(lambda e=e: e.gather(e.index, "v") for e in ends))
    assert found == [[0, 1]] * 2
    assert [len(e.connections[1 - e.index].streams) for e in ends] == [2, 2]
    together(*(e.close for e in ends))


# What strangers send who connect to a process that waits for others: a text, again and again or
# once, and how many do so.
STRANGERS = {
    "silent": (b"", False, 1),
    "many": (b"", False, 100),
    "slow": (b"{", True, 1),
    "endless": (b"x" * (1 << 16), True, 3),
    "nested": (b'{"a":' * 1600 + b"\n", False, 1),
    "nested too long": (b'{"a":' * 20_000 + b"\n", False, 1),
    "many digits": (b'{"index": ' + b"9" * 8000 + b"}\n", False, 1),
    "a browser": (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", False, 1),
    "bytes": (bytes(range(256)) * 8, False, 1),
    "no text": (b"\xff\xfe\n", False, 1),
    "no object": (b"[1, 2]\n", False, 1),
    "empty": (b"{}\n", False, 1),
}


@contextmanager
def strangers(address: Any, says: bytes, is_repeated: bool, count: int) -> Iterator[None]:
    """A context in which strangers are connected to an address."""
    is_over = threading.Event()

    def speak(end: socket.socket) -> None:
        with suppress(OSError):
            end.sendall(says)
            while is_repeated and not is_over.wait(0.01):
                end.sendall(says)

    with ExitStack() as stack:
        ends = [stack.enter_context(socket.create_connection(address)) for _ in range(count)]
        threads = [threading.Thread(target=speak, args=[end]) for end in ends if says]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            is_over.set()
            for thread in threads:
                thread.join()


@pytest.mark.parametrize("who", STRANGERS)
def test_strangers_hold_nobody_up(who: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(greetings, "GREETING_TIMEOUT", 60.0)  # longer than they meet
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        with strangers(address, *STRANGERS[who]):
            meetings = together(
                lambda: meet(address, 2, 0, 20.0, JOB, server),
                lambda: meet(address, 2, 1, 20.0, JOB),
            )
    ends = [Messages(i, meeting, 20.0) for i, meeting in enumerate(meetings)]
    with strangers(ends[0].peers[1].address, *STRANGERS[who]):
        assert together(*(lambda e=e: e.gather(e.index, "v") for e in ends)) == [[0, 1]] * 2
    together(*(e.close for e in ends))


def test_silent_strangers_are_sent_away(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(greetings, "GREETING_TIMEOUT", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()

        def wait(end: socket.socket) -> str:
            answer = greetings.receive(end, time.monotonic() + 10.0)
            leave(meet(address, 2, 1, 20.0, JOB))
            return str(answer["problem"])

        with socket.create_connection(address) as end:
            met, answer = together(
                lambda: meet(address, 2, 0, 20.0, JOB, server), lambda: wait(end)
            )
    assert answer == "the greeting is refused: it sent no greeting in 0.1 s"
    assert "refused a connection from 127.0.0.1: it sent no greeting in 0.1 s" in caplog.text
    leave(met)


def said(address: Any, *says: dict[str, Any]) -> list[str]:
    """What a stranger is answered who connects and says that."""
    answers = []
    for greeting in says:
        with socket.create_connection(address, 10.0) as end:
            greetings.send(end, greeting)
            answers.append(greetings.receive(end, time.monotonic() + 10.0)["problem"])
    return answers


def hello(**changed: Any) -> dict[str, Any]:
    """The greeting of process 1 of two, with some changes."""
    right = {"greeting": rendezvous.GREETING, "job": JOB, "index": 1, "count": 2}
    return right | {"host": "here", "pid": 5, "port": 4000} | changed


@pytest.mark.parametrize("index", [99, 2, 0, -1, "1", None, 1.0, True, [1]])
def test_wrong_greetings_are_refused_and_logged(
    index: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        met = together(
            lambda: meet(address, 2, 0, 20.0, JOB, server),
            lambda: (said(address, hello(index=index)), meet(address, 2, 1, 20.0, JOB)),
        )
    assert met[1][0][0].startswith("the greeting is refused: index is ")
    assert "refused a connection from 127.0.0.1: index is " in caplog.text
    leave(met[0], met[1][1])


@pytest.mark.parametrize(
    "changed",
    [{"greeting": "gdt 1"}, {"greeting": None}, {"port": "x"}, {"host": 5}, {"pid": None}],
)
def test_greetings_of_others_are_refused(changed: dict[str, Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        met = together(
            lambda: meet(address, 2, 0, 20.0, JOB, server),
            lambda: (said(address, hello(**changed)), meet(address, 2, 1, 20.0, JOB)),
        )
    assert met[1][0][0].startswith("the greeting is refused: ")
    leave(met[0], met[1][1])


@pytest.mark.parametrize(
    ("own", "other", "says"),
    [
        ({"name": "a"}, {"name": "b"}, "the name of its job is 'b', and that of process 0 'a'"),
        ({"name": "a"}, {"program": "p"}, "the name of its job is none, and that of process 0 'a'"),
        ({"program": "p"}, {"name": "a"}, "the name of its job is 'a', and that of process 0 none"),
        ({"program": "p"}, {"program": "q"}, "the program of its job is 'q', and that of"),
        ({"program": "p"}, {"program": ""}, "the program of its job is '', and that of"),
        ({"program": "p", "run": "1"}, {"program": "p", "run": "2"}, "the run of its job is '2'"),
        ({"program": "p"}, None, "it names its job None"),
        ({"program": "p", "run": "1"}, {"program": "p"}, ""),
        ({"program": "p"}, {"program": "p", "run": "2"}, ""),
    ],
)
def test_processes_of_different_jobs_never_meet(own: Any, other: Any, says: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()

        def joins() -> Any:
            try:
                return "", meet(address, 2, 1, 20.0, other)
            except DistributedError as refusal:
                return str(refusal), meet(address, 2, 1, 20.0, own)

        zero, (refusal, one) = together(lambda: meet(address, 2, 0, 20.0, own, server), joins)
    assert says in refusal and bool(says) == bool(refusal)
    assert not says or refusal.endswith(f"\n  {job.OWN_PORT}")
    leave(zero, one)


def test_a_program_is_told_apart_by_what_its_file_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)

    def facts_of(folder: str, text: bytes, name: str = "train.py") -> dict[str, str]:
        path = tmp_path / folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(text)
        monkeypatch.setattr(sys, "argv", [str(path), "--process-id", folder])
        return job.facts(None)

    own = facts_of("a", b"#!/a/python\nx = 1\ny = 2\n")
    assert own["program"].startswith("train.py (")
    assert own == facts_of("b", b"#!/b/python\r\nx = 1\r\ny = 2\r\n")
    assert own != facts_of("b", b"#!/b/python\nx = 1\ny = 3\n")
    assert own != facts_of("b", b"x = 1\ny = 2\n", "serve.py")
    monkeypatch.setattr(sys, "argv", ["-c"])
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    assert job.facts(None) == {"program": ""}
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "7")
    assert job.facts(None) == {"program": "", "run": "7"}
    assert job.facts("mine") == {"name": "mine"}


def test_strangers_between_two_processes_are_refused() -> None:
    zero, one = threads.connected(2)
    token = one._met.token
    wrong = [{"token": "0" * 32, "index": 0}, {"index": 0}]
    wrong += [{"token": token, "index": index} for index in (1, "0", None, 2, False)]

    def tells() -> list[str]:
        answers = said(one.own.address, *wrong)
        zero.exchange({1: []}, (), "v")
        return answers

    answers, _ = together(tells, lambda: one.exchange({}, (0,), "v"))
    assert all("does not show the token" in answer for answer in answers[:2])
    assert all("refused: index is " in answer for answer in answers[2:])
    together(zero.close, one.close)


def joined(address: Any, index: int, count: int) -> socket.socket:
    """A socket with which a process has come to process 0."""
    end = rendezvous._connected(address, time.monotonic() + 10.0)
    greetings.send(end, hello(index=index, count=count))
    return end


@pytest.mark.parametrize("is_reset", [False, True])
def test_a_process_that_goes_again_may_come_again(
    is_reset: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()

        def comes_again() -> list[Meeting]:
            end = joined(address, 1, 3)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", is_reset, 0))
            end.close()
            until = time.monotonic() + 10.0
            while "has gone again" not in caplog.text:
                assert time.monotonic() < until
                time.sleep(0.01)
            return together(*(lambda i=i: meet(address, 3, i, 20.0, JOB) for i in (1, 2)))

        zero, others = together(lambda: meet(address, 3, 0, 20.0, JOB, server), comes_again)
    assert "process 1 (host here, pid 5) has gone again" in caplog.text
    leave(zero, *others)


def test_a_process_that_dies_as_it_is_told_of_the_others_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()

        def dies() -> None:
            with joined(address, 2, 3) as end:
                greetings.receive(end, time.monotonic() + 10.0)

        zero, one, _ = together(
            lambda: meet(address, 3, 0, 20.0, JOB, server),
            lambda: meet(address, 3, 1, 20.0, JOB),
            dies,
        )
    ends = [Messages(0, zero, 5.0), Messages(1, one, 5.0)]
    for found in together(*(lambda e=e: e.gather(1, "barrier") for e in ends)):
        assert "barrier: process 2 (host here, pid 5) has died" in str(found)
    together(*(lambda e=e: e.close("DistributedError") for e in ends))


def closed(found: list[Any]) -> list[str]:
    """The errors of a meeting that failed."""
    assert all(isinstance(f, DistributedError) for f in found)
    return [str(f) for f in found]


def test_two_processes_of_one_index_are_named() -> None:
    first, second, third = closed(joining((3, 0), (3, 1), (3, 1)))
    for text in (first, second, third):
        assert "initialize: two processes say that they are process 1" in text


def test_different_numbers_of_processes_are_named() -> None:
    for text in closed(joining((2, 0), (3, 1))):
        assert "process 1 counts 3 processes, process 0 counts 2" in text


def test_processes_that_do_not_come_are_named() -> None:
    for text in closed(joining((4, 0), (4, 2), timeout=1.0)):
        assert "of 4 processes, these did not come: 1, 3" in text


def test_an_address_without_process_is_named() -> None:
    (text,) = closed(joining((2, 1), timeout=0.2))
    assert "process 1 cannot meet the others at 127.0.0.1:" in text
    assert "Connection refused" in text


def test_an_address_of_another_host_or_in_use_is_named() -> None:
    with pytest.raises(DistributedError, match=r"cannot listen at 192\.0\.2\.1:29500"):
        meet(("192.0.2.1", 29500), 2, 0, 1.0, JOB)
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = used.getsockname()[1]
        with pytest.raises(DistributedError, match=f"cannot listen at 127.0.0.1:{port}"):
            meet(("127.0.0.1", port), 2, 0, 1.0, JOB)


@pytest.mark.parametrize(
    ("says", "is_repeated", "problem"),
    [
        (b"HTTP/1.1 400 Bad Request\n", False, "is no process of gdt"),
        (b'{"problem": ""}\n', False, "is no process of gdt"),
        (b'{"problem": "", "token": "", "table": [[1, 2]]}\n', False, "is no process of gdt"),
        (b"[" * 9000 + b"\n", False, "is no process of gdt"),
        (b"x" * (1 << 16), True, "is no process of gdt"),
        (b"x", True, r"cannot meet the others at .* \(timed out\)"),
        (b"", False, r"cannot meet the others at .* \(timed out\)"),
    ],
)
def test_an_address_of_another_program_is_named(
    says: bytes, is_repeated: bool, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous, "GRACE", 0.2)
    is_over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as other:

        def answer() -> None:
            with other.accept()[0] as end, suppress(OSError):
                end.recv(1 << 12)
                end.sendall(says)
                while not is_over.wait(0.01):
                    end.sendall(says * is_repeated)

        thread = threading.Thread(target=answer)
        thread.start()
        began = time.monotonic()
        with pytest.raises(DistributedError, match=problem):
            meet(other.getsockname(), 2, 1, 1.0, JOB)
        assert time.monotonic() - began < 10.0
        is_over.set()
        thread.join()


@pytest.mark.parametrize(
    ("soft", "hard", "raised"),
    [
        (256, 4096, 500),
        (256, 400, 400),
        (256, -1, 500),
        (500, 500, None),
        (1 << 62, 1 << 62, None),
        (-1, -1, None),
    ],
)
def test_a_low_limit_of_open_files_is_raised(
    soft: int, hard: int, raised: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    resource = pytest.importorskip("resource")
    limits = [resource.RLIM_INFINITY if n == -1 else n for n in (soft, hard)]
    setrlimit = Mock()
    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(limits))
    monkeypatch.setattr(resource, "setrlimit", setrlimit)
    rendezvous._allow_descriptors(500)
    given = [call.args[1] for call in setrlimit.call_args_list]
    assert given == ([] if raised is None else [(raised, limits[1])])


def test_processes_meet_beyond_1024_open_files() -> None:
    """As process 0 of a thousand, whose sockets `select.select` does not take."""
    rendezvous._allow_descriptors(1500)
    with ExitStack() as stack, Path(os.devnull).open() as file:
        for _ in range(1100):
            stack.callback(os.close, os.dup(file.fileno()))
        ends = threads.connected(3)
        assert all(s.socket.fileno() > 1100 for e in ends for s in e._streams())
        assert together(*(lambda e=e: e.gather(e.index, "v") for e in ends)) == [[0, 1, 2]] * 3
        together(*(e.close for e in ends))


def test_too_few_open_files_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    zero, one = threads.connected(2)
    opened = Mock(side_effect=OSError(errno.EMFILE, "Too many open files"))
    monkeypatch.setattr("gdt.comm.messages.socket.socket", opened)
    with pytest.raises(DistributedError, match=r"a socket cannot be opened .*Too many open files"):
        zero.exchange({1: []}, (), "v")
    monkeypatch.undo()
    together(zero.close, one.close)
