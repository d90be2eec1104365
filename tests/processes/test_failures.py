"""What can go wrong between processes: each is an error that names it, and none is a hang."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import gdt
from gdt import distributed
from gdt.comm import connection, launchers, messages, mpi
from gdt.comm.agreement import Action, CallHistory, digest, held_notes
from gdt.comm.connection import DATA, GOODBYE, HISTORY, NOTES, Stream
from gdt.comm.messages import Messages
from gdt.comm.notes import connected, note_held
from gdt.comm.rendezvous import Meeting
from gdt.errors import ArgumentError, DistributedError, MeshError
from gdt.sharding import processes

from . import threads
from .forks import run
from .launch import Ended, command, ended, mpiexec, remove, results, shared_memory, start
from .threads import together

PROMISED = 10.0  # seconds after which a process that dies has ended the others
HANG = 60.0  # seconds after which a test gives up: time to start Python is in it


# ---------------------------------------------------------------- programs


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """Where processes that come to their end write what they return."""
    return tmp_path / "output"


# mpiexec kills the others at once, before they can say why, unless it is told not to and sees a
# shell in between.
SHELL = """
trap '' USR1
{command} 2>{directory}/$PMI_RANK
echo $? >{directory}/code.$PMI_RANK
"""


def over_sockets(count: int, line: list[str]) -> list[subprocess.Popen[str]]:
    """The program in processes that cannot import mpi4py, as on a machine without MPI."""
    blocked = f"import runpy, sys; sys.modules['mpi4py'] = None; sys.argv[1:] = {line[3:]!r}; "
    program = "runpy.run_module('tests.processes.programs', run_name='__main__')"
    return start(count, sys.executable, "-c", blocked + program)


@pytest.mark.parametrize("where", ["compute", "collective, and a child"])
def test_a_killed_process_ends_the_others_with_an_error_that_names_it(
    where: str, output: Path
) -> None:
    running = over_sockets(3, command("endless", output, where))
    victim, _ = killed(running, 1)
    codes, errors = ended(running, PROMISED)
    assert codes == [1, -signal.SIGKILL, 1]
    check_death([errors[0], errors[2]], victim)


@pytest.mark.parametrize(("where", "of_user"), [("compute", "yes"), ("collective", "")])
def test_a_process_killed_under_mpiexec_ends_the_others_too(
    where: str, of_user: str, tmp_path: Path, output: Path
) -> None:
    """of_user: whether the user's program has started MPI, which then waits at its end."""
    line = SHELL.format(command=shlex.join(command("endless", output, where)), directory=tmp_path)
    launcher = mpiexec("-disable-auto-cleanup", "-n", "3", "sh", "-c", line)
    running = start(1, *launcher, MPI_OF_USER=of_user)
    victim, shared = killed(running, 0)
    try:
        ended(running, PROMISED)
    finally:
        remove(shared)
    codes = [int((tmp_path / f"code.{i}").read_text()) for i in range(3)]
    assert codes == [1, 128 + signal.SIGKILL, 1]
    check_death([(tmp_path / str(i)).read_text() for i in (0, 2)], victim)


def killed(running: list[subprocess.Popen[str]], teller: int) -> tuple[int, set[Path]]:
    """Kill the process whose number one of those running prints; that number, and the files of
    shared memory that the process leaves behind."""
    stdout = running[teller].stdout
    assert stdout is not None
    line = stdout.readline()
    if not line:
        raise AssertionError(f"it has ended before: {ended(running, HANG)}")
    shared = shared_memory([int(line)])
    os.kill(int(line), signal.SIGKILL)
    return int(line), shared


def check_death(texts: list[str], victim: int) -> None:
    for text in texts:
        assert "DistributedError: all_reduce: process 1 (host " in text
        assert f", pid {victim}) has died" in text
        assert "all_reduce (sum) over 'batch' of Mesh(batch=3)" in text


def test_an_error_in_one_process_is_told_to_the_others(ends: dict[str, Ended]) -> None:
    codes, errors = ends["failing"]
    assert codes == [1, 1]
    assert "process 1 (host " in errors[0]
    assert "has ended: ValueError: no such file" in errors[0]


# What processes do differently, and what the errors of both say.
DIFFERENT = {
    "mesh": ["call 1: float64[16]  ['batch'] on Mesh(batch=8) as (2,)", "Mesh(batch=4) as"],
    "shape": ["call 1: float64[16]", "call 1: float64[15]", "gdt.pack(parts, layout)"],
    "batch": ["call 2: float64[20000]  ['batch']", "by asarray, contents ", "gdt.pack"],
    "slice": ["call 2: copy_to_mesh(float64[14]  [-], ", "copy_to_mesh(float64[13]  [-], layout="],
    "print": [
        "call 2: array_repr of float64[16]  ['batch'] of #1, line ",
        "call 2: sum(float64[16]",
    ],
    "dtype": ["call 2: cast(float64[16]  ['batch'], dtype=dtype('float32')"],
    "scalar": ["called different ops", "(float64[16]  ['batch'], number) with 2.0", "with 3"],
    "sign": ["number) with 0.0 of #1, line ", "number) with -0.0 of #1, line "],
    "operand": ["all_reduce of the results of calls 3,", "all_reduce of the results of calls 4,"],
    "op": ["call 2: exp(float64[16]", "call 2: log(float64[16]", "programs.py (<lambda>)"],
    "static": ["dtype=None, keepdims=True", "dtype=None, keepdims=False"],
    "one more": ["call 5: exp(float64[16]", "call 5: sum(float64[16]"],
    "layout": ["call 3: relayout(float64[4]  [-], ", "call 3: alias(float64[4]  [-])"],
    "way": ["call 2: float64[16]  ['batch'] on Mesh(batch=4) as", "reduce_by='to_one') as (2,)"],
    "rate": ["different steps of an optimizer", "step 1 of SGD", "with 0.1,", "with 0.2,"],
    "momentum": ["step 2 of MovingAverage for 1 ", "with 0.9, 0.0999", "with 0.8, 0.1999"],
    "flag": ["step 1 of SGD for 1 ", "step 1 of SGD nesterov for 1 "],
    "averages": [
        "different steps of an optimizer",
        "step 2 of MovingAverage for 2 parameters, a: ",
    ],
    "recorded scalar": ["number) with 1.0 of #", "number) with 2.0 of #"],
    "index": ["cut(float64[16]  ['batch'], how=Cut(Interval(start=3", "Interval(start=4"],
    "written": ["move_intervals(float64[1]", "at=0, start=3,", "at=0, start=4,"],
    "bounds": ["different arrays", "with 0.0, 1.0, True, line ", "with 0.0, 2.0, True, line "],
    "option": ["different random numbers", "'poisson') with 3.0 of #", "'poisson') with 4.0 of #"],
    "shards": ["map_shards of <lambda>.<locals>.<lambda> (code ", "(float64[16]  ['batch'])"],
    "bound": ["<lambda> (code ", ", factor=2.0)(float64[16]  ['batch'])", ", factor=3.0)("],
    "given first": ["partial of multiply (0=2.0)(float64[16]", "partial of multiply (0=3.0)("],
    "bound function": [
        "map_shards of calling.<locals>.call (code ",
        ", f=<lambda>.<locals>.<lambda> (code ",
    ],
    "inner function": [
        "map_shards of <lambda>.<locals>.<lambda> (code ",
        ")(float64[16]  ['batch'])",
    ],
    "default by name": [", factor=2.0)(float64[16]  ['batch'])", ", factor=3.0)("],
    "own array": ["call 3: float64[16]  [-] on Mesh(batch=4)", ", by copy_to_mesh, contents "],
    "running moments": ["moving_mean of BatchNorm", ") with 0.9, line ", ") with 0.8, line "],
    "packed": ["step 1, pack to ['batch', -] on ", "pack to [-, 'batch'] on ", ", line "],
    "parts": ["different dtypes", *(f"process {i} (host " for i in "01"), "): line ", "(<lambda>)"],
    "precision": ["(float64[16]  ['batch'], number) with 2, 'gdt.matmul_precision tensorfloat32'"],
    "fetched ahead": ["made different arrays", ", by ", ", contents ", "(fetch_ahead)"],
    "operands": [
        "an op with different arrays",
        "subtract(float64[16]  ['batch'], float64[16]  ['batch']) of #2, #3, line ",
        " of #3, #2, line ",
    ],
    "fetched": ["numpy of float64[16]  ['batch'] of #2, line ", " of #3, line "],
    "sources": ["GradientTape.gradient of #5, #2, line ", " of #5, #3, line "],
    "arguments": ["the step <lambda> of #2, #3, line ", " of #3, #2, line "],
    "gradients": [
        "different steps of an optimizer",
        "step 1 of SGD for 2 parameters, a: ",
        " (take_step)",
    ],
    "shown": ["array_repr of float64[16]  ['batch'] of #2, line ", " of #3, line "],
    "shards of another": [
        "map_shards of exp(float64[16]  ['batch']) of #2, line ",
        " of #3, line ",
    ],
    "operands in a step": [
        "an op with different arrays",
        "subtract(float64[16]  ['batch'], float64[16]  ['batch']) of #4, #5, line ",
        " of #5, #4, line ",
    ],
    "results of a step": ["with different arrays", "the dataflow of the step <lambda> ("],
    "gradients in a step": ["different steps of an optimizer", "step 1 of SGD for 2 parameters"],
    "state": ["different steps of an optimizer", ": step 2 of Adam for 2 parameters, a: "],
    "rebound": ["an op with different arrays", ", line "],
    "maker": ["on Mesh(batch=4) as (2,), by eye with 0, line ", ", by tri with 0, line "],
    "parameters": ["step 1 of SGD for 1 parameters, b: float64[16]", "parameters, a: "],
    "seed": ["have drawn different random numbers", ": key 5, stream 1", ": key 6, stream 1"],
    "draw": ["different random numbers", "float64[16]  ['batch']", "float64[15]  ['batch']"],
    "folder": ["/x cannot be written by process 0 (", "must see its folder: a shared file system"],
    "thread": ["all_reduce: thread 'worker_0' exchanges data", " thread 'MainThread', which has c"],
    "two threads": [
        "thread 'worker_",
        "with other processes, which thread 'MainThread' alone does",
    ],
    "thread that saves": [
        "checkpoint.save: thread 'worker_0' exchanges data",
        "in: checkpoint.save",
    ],
    "end": ["process 0 (host ", "has ended"],
    "exit": ["process 0 (host ", "has died"],
}


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    """How two processes end that do something differently, by what it is or by their program."""
    timeout = {"TIMEOUT": "20"}
    programs = [("different", what) for what in DIFFERENT] + [("failing", "1")]
    programs += [(name, str(tmp_path_factory.mktemp(name))) for name in ("saves", "models")]
    cases = [
        {"name": name, "arguments": [argument], "count": 2, "environment": timeout}
        for name, argument in programs
    ]
    names = [*DIFFERENT, "failing", "saves", "models"]
    return dict(zip(names, run(cases, tmp_path_factory.mktemp("different")), strict=True))


@pytest.mark.parametrize("what", DIFFERENT)
def test_processes_that_do_different_things_are_told_so(what: str, ends: dict[str, Ended]) -> None:
    codes, errors = ends[what]
    assert codes == ([0, 1] if what in ("end", "exit") else [1, 1])
    for text in DIFFERENT[what]:
        assert text in errors[1]
        assert codes[0] == 0 or text in errors[0]


def test_processes_that_save_different_trees_replace_nothing(ends: dict[str, Ended]) -> None:
    for program in ("saves", "models"):
        codes, errors = ends[program]
        assert codes == [0, 0], errors


def test_the_order_in_which_a_dict_was_filled_does_not_matter(output: Path) -> None:
    (alone,) = results(1, "ordered", output)
    for found in results(2, "ordered", output):
        for name, want in alone.items():
            np.testing.assert_allclose(found[name], want, rtol=1e-12)


# ---------------------------------------------------------------- messages


@pytest.fixture(autouse=True)
def threads_are_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the threads of this process send and receive as processes do."""
    monkeypatch.setattr(Messages, "is_in_own_thread", lambda self: True)


@pytest.fixture
def pair() -> Iterator[tuple[Messages, Messages]]:
    a, b = threads.connected(2)
    yield a, b
    together(a.close, b.close)


def stream(sender: Messages, target: int) -> Stream:
    """A stream on which a process sends to another."""
    sender._send(target)
    return sender.connections[target].streams[0]


def test_values_are_gathered_in_order(pair: tuple[Messages, Messages]) -> None:
    a, b = pair
    large = b"x" * (1 << 21)  # more than sockets buffer
    for value, name in (([1], "v"), (large, "v"), (2, "a\0name ä")):
        found = together(lambda v=value, n=name: a.gather(v, n), lambda n=name: b.gather("b", n))
        assert found == [[value, "b"], [value, "b"]]


def test_a_value_that_cannot_be_sent_is_named(pair: tuple[Messages, Messages]) -> None:
    a, b = pair
    with pytest.raises(ArgumentError, match="broadcast: a function cannot be sent to other proces"):
        a.broadcast(lambda: 0)
    assert together(lambda: a.broadcast("x"), lambda: b.broadcast("y")) == ["x", "x"]


def header_of(kind: bytes, nbytes: int, text: int = 0) -> bytes:
    return connection.HEADER.pack(kind, 1, text, nbytes, 0, 0)


# What a process may send that is no message, and what is said of it.
GARBAGE = {
    "letters": (b"hello" * 100, "it begins with b'hell'"),
    "zeros": (bytes(1 << 10), "it begins with b"),
    "a long text": (header_of(DATA, 8, 1 << 31), "it would have 2,147,483,648 and 8 bytes"),
    "a large goodbye": (header_of(GOODBYE, 8 << 30), "would have 0 and 8,589,934,592 bytes"),
    "notes that hold something": (header_of(NOTES, 8), "would have 0 and 8 bytes"),
    "no text": (header_of(DATA, 0, 4) + b"\xff" * 4, "can't decode"),
    "no goodbye": (header_of(GOODBYE, 4) + b"{{{{", "Expecting property name"),
    "a goodbye of words": (header_of(GOODBYE, 5) + b'["a"]', "invalid literal"),
    "no history": (header_of(HISTORY, 4) + b"null", "not subscriptable"),
    "an empty history": (header_of(HISTORY, 2) + b"{}", "'step'"),
    "a nested history": (header_of(HISTORY, 90_000) + b"[" * 90_000, "recursion"),
    "half a history": (
        header_of(HISTORY, 52) + b'{"step": "a", "line": "b", "count": 1, "notes": [1]}',
        "not iterable",
    ),
}


@pytest.mark.parametrize("what", GARBAGE)
def test_what_is_no_message_is_named(what: str, pair: tuple[Messages, Messages]) -> None:
    a, b = pair
    sent, reason = GARBAGE[what]
    stream(b, 0).send(sent)
    for _ in range(2):
        with pytest.raises(DistributedError) as found:
            a.gather(1, "all_gather over x")
        problem = r"^all_gather: process 1 \(host here, pid 101\) sent what is no message: "
        assert re.search(problem, str(found.value)) and reason in str(found.value)


def test_what_is_no_value_is_named(pair: tuple[Messages, Messages]) -> None:
    a, b = pair
    for data in (b"hello", b'{"a": 1}', b"{}", b'{"array": [1]}', b"[" * 9000):
        a.failure = None
        b.begin("barrier")
        b._send(0, b.header("barrier", len(data)), data)
        with pytest.raises(DistributedError, match=r"process 1 \(.*\) sent what is no message: "):
            a.gather(None, "barrier")


def test_memory_is_taken_as_bytes_arrive(pair: tuple[Messages, Messages]) -> None:
    a, b = pair
    stream(b, 0).send(header_of(DATA, 1 << 62) + bytes(1000))
    while not a.connections[1].streams:
        a.listen(1.0)
    a.listen(1.0)
    (from_b,) = a.connections[1].streams
    assert not from_b.closed
    assert from_b._buffer.nbytes == connection.TRUSTED


def test_messages_beyond_what_is_trusted_arrive_whole(
    pair: tuple[Messages, Messages], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "TRUSTED", 1 << 10)
    a, b = pair
    for size in (1, 100, 120, 1 << 10, 5000, 1 << 15, 100_003):
        data = np.arange(size)
        found, _ = together(
            lambda: a.exchange({}, (1,), "v")[1],
            lambda data=data: b.exchange({0: [data]}, (), "v"),
        )
        np.testing.assert_array_equal(np.frombuffer(found, np.int64), data)


def test_what_a_process_sent_before_it_failed_counts(pair: tuple[Messages, Messages]) -> None:
    a, b = pair
    b.exchange({0: [np.arange(2)]}, (), "v")
    stream(b, 0).send(b.header("ValueError: no", 0, GOODBYE))
    assert np.frombuffer(a.exchange({}, (1,), "v")[1], np.int64).tolist() == [0, 1]
    with pytest.raises(DistributedError, match="has ended: ValueError: no"):
        a.gather(1, "w")


def test_a_faster_process_does_not_disturb_a_slower_one(pair: tuple[Messages, Messages]) -> None:
    a, b = pair
    for i in range(3):  # nothing comes back, so it may be three steps ahead
        a.exchange({1: [np.full(2, i)]}, [], f"step {i}")
    got = [b.exchange({}, [0], f"step {i}")[0] for i in range(3)]
    assert [np.frombuffer(data, np.int64).tolist() for data in got] == [[0, 0], [1, 1], [2, 2]]


def test_another_step_is_an_error_in_both(pair: tuple[Messages, Messages]) -> None:
    a, b = pair
    first, second = together(lambda: a.gather(1, "all_reduce of x"), lambda: b.gather(1, "print"))
    for found in (first, second):
        assert isinstance(found, DistributedError)
        assert "the processes run different programs" in str(found)
        assert "process 0 (host here, pid 100): step 1, all_reduce of x" in str(found)
        assert "process 1 (host here, pid 101): step 1, print" in str(found)


@pytest.mark.parametrize(
    ("mine", "other", "says"),
    [
        (["f[4]", "f[2]"], ["f[5]", "f[2]"], ["call 1: f[4], line ", "call 1: f[5], line "]),
        (["f[4]", "f[2]"], ["f[4]"], ["call 2: f[2]", "step 1, sum, line ", "without call 2"]),
        (["f[4]"], [], ["call 1: f[4]", "step 1, sum, line ", "without call 1"]),
        (["a", *"b" * 2000], ["c", *"b" * 2000], ["call 978, or earlier: b, line "]),
    ],
)
def test_different_arrays_are_an_error_in_both(
    mine: list[str], other: list[str], says: list[str], pair: tuple[Messages, Messages]
) -> None:
    for end, notes in zip(pair, (mine, other), strict=True):
        for note in notes:
            end.history.add(Action("array", note))
    a, b = pair
    for found in together(lambda: a.gather(1, "sum"), lambda: b.gather(1, "sum")):
        assert isinstance(found, DistributedError)
        assert "sum: the processes have made different arrays" in str(found)
        assert all(text in str(found) for text in says), str(found)


def test_another_step_is_not_taken_for_an_array_that_is_missing(
    pair: tuple[Messages, Messages],
) -> None:
    a, b = pair
    a.history.add(Action("array", "float64[4]"))
    first, second = together(lambda: a.gather(1, "all_reduce"), lambda: b.gather(1, "print"))
    for found in (first, second):
        assert "the processes run different programs" in str(found)


def test_a_process_that_ends_before_it_tells_what_it_has_done_is_named(
    pair: tuple[Messages, Messages], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "LINGER", 0.2)
    a, b = pair
    together(lambda: a.gather(1, "sum"), lambda: b.gather(1, "sum"))
    for end, note in ((a, "exp"), (b, "log")):
        for _ in range(50):
            end.history.add(Action("op", note))
    b.tell_notes("wait")
    for stream in b.connections[0].streams:
        stream.close()
    with pytest.raises(DistributedError, match=r"wait: process 1 .* has called other ops, and end"):
        while True:
            a.tell_notes("wait")


@pytest.mark.parametrize("size", [1, 100, 8192, 8193, 100_000])
def test_contents_are_compared_by_value_and_place(size: int) -> None:
    whole = np.arange(float(size))
    assert digest(whole) == digest(np.repeat(whole, 2)[::2])
    assert digest(np.asfortranarray(whole.reshape(1, -1))) == digest(whole)
    for i in (0, size - 1):
        other = whole.copy()
        other[i] += 0.5
        assert digest(other) != digest(whole)
    assert size == 1 or digest(whole[::-1]) != digest(whole)
    assert digest(object()) == ""


def test_what_failed_once_fails_again(pair: tuple[Messages, Messages]) -> None:
    a, b = pair
    b.close()
    for _ in range(2):
        with pytest.raises(DistributedError, match=r"process 1 \(host here, pid 101\) has ended"):
            a.gather(1, "all_gather")


def test_a_silent_process_is_named_when_time_is_up() -> None:
    waiting, silent = threads.connected(2, 0.3)
    with pytest.raises(DistributedError) as found:
        waiting.gather(1, "all_gather over 'x'")
    assert str(found.value).startswith(
        "all_gather: nothing came from process 1 (host here, pid 101) for 0.3 s"
    )
    assert "all_gather over 'x'" in str(found.value)
    began = time.monotonic()
    waiting.close("DistributedError")  # the others hear of it, but nobody waits for a silent one
    assert time.monotonic() - began < messages.LINGER / 2
    silent.close()


def test_a_process_that_takes_nothing_is_named_when_time_is_up() -> None:
    sending, other = threads.connected(2, 0.3)
    with pytest.raises(DistributedError, match="nothing came from process 1 "):
        sending.exchange({1: [np.zeros(1 << 22)]}, [], "all_gather")
    together(sending.close, other.close)


def test_a_process_that_is_a_step_behind_is_not_the_one_that_differs() -> None:
    ends = threads.connected(3, 9.0)

    def differ(end: Messages, what: str, step: int, other: int) -> str:
        end.number = step - 1
        with pytest.raises(DistributedError) as found:
            end.exchange({} if step == 17 else {other: []}, (other,), what)
        end.close("DistributedError")
        return str(found.value)

    texts = together(
        lambda: differ(ends[0], "all_reduce", 17, 1),
        lambda: differ(ends[1], "all_gather", 18, 2),
        lambda: differ(ends[2], "all_to_all", 18, 1),
    )
    for text in texts:
        assert "the processes run different programs" in text
        assert "process 1 (host here, pid 101): step 18, all_gather, line " in text
        assert "process 2 (host here, pid 102): step 18, all_to_all, line " in text


def test_nobody_lingers_for_a_process_that_was_silent_to_another() -> None:
    ends = threads.connected(3)
    for end, timeout in zip(ends, [0.3, 20.0, 20.0], strict=True):
        end.timeout = timeout
    began = time.monotonic()

    def fail(end: Messages) -> str:
        with pytest.raises(DistributedError) as found:
            end.gather(1, "all_gather")
        end.close("DistributedError")
        return str(found.value)

    texts = together(*(lambda end=end: fail(end) for end in ends[:2]))  # process 2 is stopped
    assert "nothing came from process 2 " in texts[0]
    assert "process 0 (host here, pid 100) has ended: DistributedError" in texts[1]
    assert time.monotonic() - began < messages.LINGER / 2
    ends[2].close()


@contextmanager
def over_mpi(world: Any) -> Iterator[tuple[mpi.MpiMessages, Meeting]]:
    """The messages of process 0 of two over a communicator of MPI, and what process 1 has."""
    first, other = threads.met(2)
    own = mpi.MpiMessages(0, first, 5.0)
    own.mpi = mpi.Mpi(SimpleNamespace(Exception=RuntimeError), world, False)
    try:
        yield own, other
    finally:
        own._closed.set()
        threads.leave(other)
        Messages.close(own)


@pytest.mark.parametrize("failure", [RuntimeError("MPI_ERR"), UnicodeError("utf-8")])
@pytest.mark.parametrize("is_dead", [True, False], ids=["dead", "alive"])
def test_what_mpi_raises_names_the_process_that_died(
    failure: Exception, is_dead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mpi.MpiMessages, "grace", 0.05)
    world = SimpleNamespace(Isend=Mock(side_effect=failure))
    with over_mpi(world) as (own, other):
        if is_dead:
            other.control.close()
        problem = r"process 1 \(.*\) has died" if is_dead else r"MPI has failed \(\w+Error\)"
        with pytest.raises(DistributedError, match=f"all_reduce: {problem}"):
            own.exchange({1: [np.ones(3)]}, (1,), "all_reduce over x")


def test_an_exchange_by_mpi_ends_when_what_was_sent_has_left() -> None:
    left = Mock(side_effect=[False, False, True])
    world = SimpleNamespace(Isend=Mock(return_value=SimpleNamespace(Test=left)))
    with over_mpi(world) as (own, _):
        assert own.exchange({1: [np.ones(3)]}, (), "all_reduce over x") == {}
    assert left.call_count == 3


def test_a_process_that_mpi_does_not_return_to_ends_when_time_is_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(mpi, "STUCK", 0.02)
    ended = threading.Event()
    monkeypatch.setattr(mpi.os, "_exit", lambda code: ended.set())
    with over_mpi(None) as (own, _):
        own.begin("all_reduce over x")
        with caplog.at_level("ERROR"):
            own._current_wait = mpi.Wait("all_reduce over x", {1}, time.monotonic() + 0.2)
            assert ended.wait(5)
    assert "MPI does not return from a step that has failed" in caplog.text
    assert "nothing came from process 1 " in caplog.text


def test_what_another_thread_holds_is_noted_with_its_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own, other = CallHistory(), CallHistory()
    monkeypatch.setattr("gdt.comm.notes._connected", SimpleNamespace(history=own))
    action, held = Action("op", "the batch"), []

    def fetch() -> None:
        with held_notes() as made:
            own.add(action, (3, 4))
        held.extend(made)

    together(fetch)
    assert own.count == 0
    note_held(held)
    other.add(action, (3, 4))
    assert (own.count, own.checksum) == (1, other.checksum)


def test_a_thread_that_makes_no_notes_for_a_while_stops_no_other() -> None:
    """Also where it goes on later than the thread whose actions are noted."""
    history, other = CallHistory(), ExitStack()
    with history.paused():
        together(lambda: other.enter_context(history.paused()))
    together(other.close)
    history.add(Action("op", "negative"))
    assert history.count == 1


def test_the_reason_of_an_end_is_told(pair: tuple[Messages, Messages]) -> None:
    a, b = pair
    closing = threading.Thread(target=b.close, args=["MemoryError: 3 GB"])
    closing.start()
    with pytest.raises(DistributedError, match="has ended: MemoryError: 3 GB"):
        a.gather(1, "all_gather")
    a.close("DistributedError")
    closing.join()


# ---------------------------------------------------------------- arguments


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A process in which nothing was initialized, no mesh was made, and no launcher is known."""
    for name in (*launchers.NAMES, *mpi.SIZES):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(gdt.Mesh, "_interned", {})
    monkeypatch.setattr(distributed, "_is_initialized", False)
    return monkeypatch


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("node:1", 2, 2), r"process_id is 2, of 2 processes\n  It is one of 0..1"),
        (("node:1", 2, -1), "process_id is -1"),
        (("node:1", 0, 0), "num_processes is 0"),
        (("node:1", None, 0), "num_processes is None"),
        (("node:1", 2, True), "process_id is True"),
        (("node:1", 2.5, 0), "num_processes is 2.5"),
        (("node", 2, 0), "coordinator_address is 'node'"),
        (("node:x", 2, 0), "coordinator_address is 'node:x'"),
        (("node:99999", 2, 0), "coordinator_address is 'node:99999'"),
        ((None, 2, 0), "coordinator_address is None"),
        ((5, 2, 0), "coordinator_address is 5"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(
    arguments: tuple[Any, ...], says: str, fresh: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DistributedError, match=says):
        distributed.initialize(*arguments)
    assert not distributed.is_initialized()


@pytest.mark.parametrize("timeout", [0, -1.0, None, "3", True, float("nan")])
def test_a_timeout_is_a_positive_number(timeout: Any, fresh: pytest.MonkeyPatch) -> None:
    with pytest.raises(DistributedError, match="timeout is"):
        distributed.initialize(timeout=timeout)


@pytest.mark.parametrize("job_name", ["", 5, "x" * 201])
def test_a_job_has_a_name(job_name: Any, fresh: pytest.MonkeyPatch) -> None:
    with pytest.raises(DistributedError, match=r"job is .*; it is a name of 1 to 200 characters"):
        distributed.initialize(job=job_name)


def test_a_missing_variable_is_named(fresh: pytest.MonkeyPatch) -> None:
    fresh.setenv("WORLD_SIZE", "2")
    fresh.setenv("MASTER_ADDR", "localhost")
    with pytest.raises(DistributedError, match="the environment variable RANK is missing"):
        distributed.initialize()
    fresh.setenv("RANK", "x")
    with pytest.raises(DistributedError, match="process_id is 'x'"):
        distributed.initialize()


def test_initialize_is_called_once_and_first(fresh: pytest.MonkeyPatch) -> None:
    gdt.create_mesh([("x", 2)])
    with pytest.raises(DistributedError, match=r"there is a mesh already, Mesh\(x=2\)"):
        distributed.initialize()
    gdt.Mesh._interned.clear()
    distributed.initialize()
    with pytest.raises(DistributedError, match="connected already"):
        distributed.initialize()
    distributed.shutdown()
    assert not distributed.is_initialized()


def test_a_launcher_without_mpi4py_says_how_to_install_it(fresh: pytest.MonkeyPatch) -> None:
    fresh.setenv("PMI_SIZE", "2")
    fresh.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(DistributedError, match=r"pip install 'gdt\[mpi\]'"):
        distributed.initialize()


@pytest.fixture
def second_of_four(fresh: pytest.MonkeyPatch) -> None:
    fresh.setattr(processes, "_current", processes.Processes(1, ("a", "a", "b", "b")))


@pytest.mark.parametrize(
    ("sizes", "blocks", "says"),
    [
        ([6], None, "6 coordinates cannot be shared equally by 4 processes"),
        ([2], None, "2 coordinates cannot be shared equally by 4 processes"),
        ([8], 2, "2 blocks cannot be shared equally by 4 processes"),
        ([3, 4], None, "cannot be split contiguously into 4 equal boxes"),
    ],
)
def test_a_mesh_that_processes_cannot_share_is_refused(
    sizes: list[int], blocks: int | None, says: str, second_of_four: None
) -> None:
    with pytest.raises(MeshError, match=says):
        gdt.create_mesh(list(zip("ab", sizes, strict=False)), blocks=blocks)


def test_a_process_owns_a_box_of_the_mesh(second_of_four: None) -> None:
    mesh = gdt.create_mesh([("a", 4), ("b", 2)])
    assert mesh.blocks == ((1, 0),)
    assert mesh.local_coordinates() == [(1, 0), (1, 1)]
    assert mesh.local_devices() == ["cpu:2", "cpu:3"]
    apart = gdt.create_mesh([("a", 4), ("b", 2)], blocks=8)
    assert apart.blocks == ((1, 0), (1, 1))
    assert gdt.Mesh.from_string(apart.to_string()) is apart
    own = gdt.create_mesh([("x", 1)])
    assert own.num_processes == 1
    assert own.blocks == ((0,),)


def test_a_mesh_outlives_no_connection(second_of_four: None) -> None:
    mesh = gdt.create_mesh([("a", 4)])
    with pytest.raises(DistributedError, match="not connected any more"):
        distributed._transport(mesh)
    assert connected() is None


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        (2, ["cuda:0", "cuda:1"] * 2),  # two processes on each host share its GPUs
        (1, ["cuda:0"] * 4),  # the launcher shows each process one of its own
        (4, ["cuda:0", "cuda:1", "cuda:2", "cuda:3"] * 2),
    ],
)
def test_processes_of_a_host_share_its_gpus(
    visible: int, names: list[str], second_of_four: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(gdt.sharding.devices.DEVICE_COUNTS, "cuda", lambda: visible)
    assert list(gdt.sharding.devices.default_devices("cuda", 4)) == names
