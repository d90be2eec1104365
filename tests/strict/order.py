"""Which uses of memory, on the streams of a simulated machine, no event orders."""

from __future__ import annotations

import weakref
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

Stream = int  # its address
Uses = dict[Stream, int]  # the last use of every stream


class Noted(NamedTuple):
    """What was asked of a stream: that it reads or writes a memory, or records or waits for an
    event. time: of the stream, then."""

    what: str
    stream: Stream
    thing: Any
    time: int


class Order:
    """Vector clocks of streams (Mattern 1989): `clocks[a][b]`, or `_ended[b]` where that is more,
    is how much of stream b has come to its end when what is asked of stream a next begins.
    faults: what nothing orders. log: what was asked, in the host's order, where somebody reads
    it."""

    def __init__(self) -> None:
        self._ended: Counter[Stream] = Counter()  # for which the host has waited: of all streams
        self.clocks: dict[Stream, Counter[Stream]] = defaultdict(Counter)
        self.streams: dict[int, set[Stream]] = defaultdict(set)  # by device
        self.faults: list[str] = []
        self.log: list[Noted] | None = None
        self.given_back: dict[Stream, list[Uses]] = defaultdict(list)
        self._memories: weakref.WeakValueDictionary[int, Memory] = weakref.WeakValueDictionary()

    def now(self, stream: Stream) -> int:
        """The time of what is asked of a stream now."""
        self.clocks[stream][stream] += 1
        return self.clocks[stream][stream]

    def recorded(self, stream: Stream) -> Counter[Stream]:
        """What has ended when an event that is recorded now on that stream happens."""
        time = self.now(stream)
        event = self.clocks[stream].copy()
        self.note("record", stream, event, time)
        return event

    def waits(self, stream: Stream, event: Counter[Stream]) -> None:
        """The stream begins what it is asked next when the event has happened."""
        self.clocks[stream] |= event
        self.note("wait", stream, event, self.clocks[stream][stream])

    def note(self, what: str, stream: Stream, thing: Any, time: int) -> None:
        """Add to the log."""
        if self.log is not None:
            self.log.append(Noted(what, stream, thing, time))

    def waited(self, streams: Iterable[Stream]) -> None:
        """The host has waited for streams: what is asked next, of any, comes after their work."""
        for stream in streams:
            for other, time in self.clocks[stream].items():
                self._ended[other] = max(self._ended[other], time)

    def allocated(self, address: int, nbytes: int, stream: Stream) -> Memory:
        """Memory at an address that a stream was given, and has written. CuPy's pool may give it
        any that had come from that stream and was given back."""
        for uses in self.given_back.pop(stream, ()):
            self.check(uses, stream, "given back while it is used")
        found = self._memories[address] = Memory(self, nbytes, stream)
        self.note("write", stream, found, found.written[stream])
        return found

    def at(self, address: int) -> Memory:
        """The memory that an address is in."""
        if (whole := self._memories.get(address)) is not None:
            return whole
        start, found = max((a, m) for a, m in self._memories.items() if a <= address)
        assert address < start + max(found.nbytes, 1), "no memory of the device"
        return found

    def check(self, uses: Uses, stream: Stream, problem: str) -> None:
        """Note a fault unless that stream waits for all these uses."""
        for other, time in uses.items():
            if max(self.clocks[stream][other], self._ended[other]) < time:
                self.faults.append(problem)


class Memory:
    """Memory of a device: who has written and read it last, on which streams."""

    def __init__(self, order: Order, nbytes: int, stream: Stream) -> None:
        self.order, self.nbytes, self.home = order, nbytes, stream
        self.is_of_graph = False  # whose pool gives it to nobody else
        self.is_of_pool = False  # of the graph, which gives it to what is captured later
        self._others: weakref.WeakSet[Memory] = weakref.WeakSet()  # of which this may be
        self.written: Uses = {stream: order.now(stream)}
        self.read: Uses = {}

    def reads(self, stream: Stream) -> None:
        """A stream reads it."""
        self.order.check(self.written, stream, "read before it was written")
        self.read[stream] = self.order.now(stream)
        self.order.note("read", stream, self, self.read[stream])

    def shares(self, others: Iterable[Memory]) -> None:
        """Note others, which a pool was given back, as memory of which this may be."""
        for other in others:
            self._others.add(other)
            other._others.add(self)

    def writes(self, stream: Stream) -> None:
        """A stream writes it."""
        for other in self._others:
            self.order.check(other.written | other.read, stream, "given again while it is used")
        self.order.check(self.written | self.read, stream, "written while it is used")
        self.written, self.read = {stream: self.order.now(stream)}, {}
        self.order.note("write", stream, self, self.written[stream])

    def __del__(self) -> None:
        if not self.is_of_graph:
            self.order.given_back[self.home].append(self.written | self.read)
