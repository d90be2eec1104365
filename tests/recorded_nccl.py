"""NCCL as `cupy.cuda.nccl` shows it, for ranks of one process in the memory of the host.

It keeps a list of every call, refuses what NCCL forbids or would hang on, and does what the calls
ask for when their group ends.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import numpy as np

from gdt.sharding.dtypes import BFLOAT16

from .strict.order import Order

NUMBERS = {
    "INT8": 0, "UINT8": 1, "INT32": 2, "UINT32": 3, "INT64": 4, "UINT64": 5, "FLOAT16": 6,
    "FLOAT32": 7, "FLOAT64": 8, "BFLOAT16": 9,
}  # fmt: skip
DTYPES = {n: BFLOAT16 if n == 9 else np.dtype(name.lower()) for name, n in NUMBERS.items()}
OPS = {"SUM": 0, "PROD": 1, "MAX": 2, "MIN": 3}
# NCCL's maximum and minimum drop NaN, as C's fmax and fmin do.
COMBINE = {0: np.add, 1: np.multiply, 2: np.fmax, 3: np.fmin}


class NcclError(RuntimeError):
    """CuPy's error."""


class Call(NamedTuple):
    """One call: what CuPy's method was given, on which rank of which communicator."""

    name: str
    communicator: int
    rank: int
    count: int
    dtype: np.dtype
    op: int | None
    peer: int | None
    stream: int
    group: int  # number of the group in which it was made
    send: int  # addresses
    receive: int


def memory(address: int, count: int, dtype: np.dtype) -> np.ndarray:
    """The array that begins at an address."""
    kind = ctypes.c_char * (count * dtype.itemsize)
    return np.frombuffer(kind.from_address(address), dtype)


class RecordedNccl:
    """The module `cupy.cuda.nccl`."""

    NcclError = NcclError
    available = True

    def __init__(self, order: Order | None = None) -> None:
        self.order = order  # of the uses of memory, where devices are simulated
        for name, number in NUMBERS.items():
            setattr(self, f"NCCL_{name}", number)
        for name, number in OPS.items():
            setattr(self, f"NCCL_{name}", number)
        self.calls: list[Call] = []
        self.depth = self.groups = 0
        self.queued: list[Call] = []
        self.made: dict[int, dict[int, Communicator]] = defaultdict(dict)
        self.identifiers = itertools.count(100)
        self.failure = ""  # what check_async_error says

    def get_version(self) -> int:
        return 23203

    def get_unique_id(self) -> int:
        return next(self.identifiers)

    def groupStart(self) -> None:
        self.depth += 1

    def groupEnd(self) -> None:
        self.depth -= 1
        if self.depth:
            return
        self._end()

    def _end(self) -> None:
        """Do what the calls of a group ask for."""
        self.groups += 1
        for identifier, ranks in self.made.items():
            size = next(iter(ranks.values())).size
            assert sorted(ranks) == list(range(size)), f"{identifier} lacks ranks: NCCL would hang"
        queued, self.queued = self.queued, []
        for identifier in dict.fromkeys(c.communicator for c in queued):
            self._execute([c for c in queued if c.communicator == identifier])

    def NcclCommunicator(self, ndev: int, commId: int, rank: int) -> Communicator:
        assert self.depth, "one thread makes several communicators in a group"
        assert 0 <= rank < ndev
        assert rank not in self.made[commId]
        made = Communicator(self, ndev, commId, rank)
        self.made[commId][rank] = made
        return made

    # ---- doing it

    def _execute(self, calls: list[Call]) -> None:
        """The calls of one communicator in one group."""
        by_rank: dict[int, list[Call]] = defaultdict(list)
        pairs: dict[tuple[int, int], list[Call]] = defaultdict(list)
        waiting: dict[tuple[int, int], list[Call]] = defaultdict(list)
        for call in calls:
            if call.name == "send":
                pairs[call.rank, call.peer].append(call)
            elif call.name == "recv":
                waiting[call.peer, call.rank].append(call)
            else:
                by_rank[call.rank].append(call)
        assert pairs.keys() == waiting.keys(), "a send without its recv: NCCL would hang"
        for pair, sent in pairs.items():
            for a, b in zip(sent, waiting[pair], strict=True):
                assert (a.count, a.dtype) == (b.count, b.dtype), f"{a} does not fit {b}"
                memory(b.receive, b.count, b.dtype)[:] = memory(a.send, a.count, a.dtype)
        if by_rank:
            size = self.made[calls[0].communicator][0].size
            assert sorted(by_rank) == list(range(size)), "a rank does not take part"
            for row in zip(*(by_rank[r] for r in range(size)), strict=True):
                self._collective(row)

    def _collective(self, row: tuple[Call, ...]) -> None:
        first = row[0]
        assert len({(c.name, c.count, c.dtype, c.op, c.peer) for c in row}) == 1, (
            f"ranks differ: {row}"
        )
        blocks = first.count * (len(row) if first.name == "reduceScatter" else 1)
        sent = [memory(c.send, blocks, c.dtype).copy() for c in row]
        if first.name == "broadcast":
            found = sent[first.peer or 0]
        elif first.name == "allGather":
            found = np.concatenate(sent)
        else:
            with np.errstate(all="ignore"):
                found = sent[0]
                for other in sent[1:]:
                    found = COMBINE[first.op](found, other)
        for c in row:
            if first.name == "reduce" and c.rank != first.peer:
                continue  # NCCL does not write to the others
            own = found
            if first.name == "reduceScatter":
                own = found[c.rank * c.count : (c.rank + 1) * c.count]
            memory(c.receive, own.size, c.dtype)[:] = own


class SharedNccl(RecordedNccl):
    """The NCCL of CuPy 14 in several processes of one GPU each, which are threads here: a group
    ends when all of them have come to its end."""

    def __init__(self, count: int) -> None:
        self._own = threading.local()
        self._all = threading.Barrier(count, self._end, timeout=20)
        self._asked: dict[int, tuple[int, int]] = {}  # by rank: color and key
        self._split: dict[int, Communicator] = {}
        super().__init__()
        make: Any = functools.partial(RecordedNccl.NcclCommunicator, self)
        make.commSplit = Communicator.commSplit
        self.NcclCommunicator = make

    @property
    def depth(self) -> int:
        return getattr(self._own, "depth", 0)

    @depth.setter
    def depth(self, depth: int) -> None:
        self._own.depth = depth

    def groupEnd(self) -> None:
        self.depth -= 1
        if not self.depth:
            self._all.wait()

    def _end(self) -> None:
        if not self._asked:
            super()._end()
            return
        for color in sorted({c for c, _ in self._asked.values()}):
            members = [r for r, (c, _) in self._asked.items() if c == color]
            identifier = next(self.identifiers)
            for place, rank in enumerate(sorted(members, key=lambda r: self._asked[r][1])):
                made = Communicator(self, len(members), identifier, place)
                self.made[identifier][place] = self._split[rank] = made
        self._asked.clear()

    def split(self, rank: int, color: int, key: int) -> Communicator:
        assert not self.depth, "CuPy returns before a group has made the communicator"
        self._asked[rank] = color, key
        self._all.wait()
        return self._split[rank]


class Communicator:
    """`NcclCommunicator`."""

    def __init__(self, nccl: RecordedNccl, size: int, identifier: int, rank: int) -> None:
        self.nccl, self.size, self.identifier, self.rank = nccl, size, identifier, rank
        self.aborted = False

    def _record(
        self, name: str, send: int, receive: int, count: int, datatype: int, op: int | None,
        peer: int | None, stream: int,
    ) -> None:  # fmt: skip
        assert self.nccl.depth, f"{name} of several GPUs in one thread is in no group"
        call = Call(
            name, self.identifier, self.rank, count, DTYPES[datatype], op, peer, stream,
            self.nccl.groups, send, receive,
        )  # fmt: skip
        self.nccl.calls.append(call)
        self.nccl.queued.append(call)
        if self.nccl.order is not None:
            if send:
                self.nccl.order.at(send).reads(stream)
            if receive:
                self.nccl.order.at(receive).writes(stream)

    def allReduce(
        self, sendbuf: int, recvbuf: int, count: int, datatype: int, op: int, stream: int
    ) -> None:
        self._record("allReduce", sendbuf, recvbuf, count, datatype, op, None, stream)

    def allGather(self, sendbuf: int, recvbuf: int, count: int, datatype: int, stream: int) -> None:
        self._record("allGather", sendbuf, recvbuf, count, datatype, None, None, stream)

    def reduceScatter(
        self, sendbuf: int, recvbuf: int, recvcount: int, datatype: int, op: int, stream: int
    ) -> None:
        self._record("reduceScatter", sendbuf, recvbuf, recvcount, datatype, op, None, stream)

    def reduce(
        self, sendbuf: int, recvbuf: int, count: int, datatype: int, op: int, root: int, stream: int
    ) -> None:
        self._record("reduce", sendbuf, recvbuf, count, datatype, op, root, stream)

    def broadcast(
        self, sendbuff: int, recvbuff: int, count: int, datatype: int, root: int, stream: int
    ) -> None:
        self._record("broadcast", sendbuff, recvbuff, count, datatype, None, root, stream)

    def send(self, sendbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        self._record("send", sendbuf, 0, count, datatype, None, peer, stream)

    def recv(self, recvbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        self._record("recv", 0, recvbuf, count, datatype, None, peer, stream)

    def commSplit(self, color: int, key: int, config: Any = None) -> Communicator:
        assert isinstance(self.nccl, SharedNccl), "CuPy 13 has no commSplit"
        return self.nccl.split(self.rank, color, key)

    def check_async_error(self) -> None:
        if self.nccl.failure:
            raise NcclError(self.nccl.failure)

    def abort(self) -> None:
        self.aborted = True


class Event:
    """The end of what was put on a stream, which has `done` when the test says so."""

    done = True


class Stream:
    """The communication stream of a device: its address is the device's number, and a bit."""

    def __init__(self, device: int) -> None:
        self.ptr = 1000 + device

    def record(self) -> Event:
        return Event()


class HostBackend:
    """What the transport asks of a backend, with NumPy's memory."""

    xp = np

    def __init__(self) -> None:
        self.order: list[str] = []

    def on(self, mesh: Any, block: int) -> Any:
        return nullcontext()

    @contextmanager
    def communicating(self, devices: Sequence[int]) -> Iterator[tuple[list[Stream], list[Any]]]:
        streams, ends = [*map(Stream, devices)], list[Any]()
        self.order += [f"begin {device}" for device in devices]
        yield streams, ends
        self.order += [f"end {device}" for device in devices]
        ends += [stream.record() for stream in streams]


def address(array: np.ndarray) -> int:
    """Where an array begins; NCCL reads and writes on from there."""
    assert array.flags.c_contiguous
    return array.ctypes.data
