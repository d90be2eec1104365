"""Buckets of gradients, which are reduced while the gradients of earlier layers are computed.

Small reductions travel as one, since each costs its latency, however little it sends. But what
fills a bucket need not wait for the rest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from gdt.array.array import DistributedArray
from gdt.array.moving import send_to_layouts
from gdt.sharding.layout import Layout

# Bytes of a device in a bucket: that of PyTorch, Li et al. 2020, "PyTorch Distributed: Experiences
# on Accelerating Data Parallel Training", VLDB 13(12).
SIZE = 25 << 20

Calls = Sequence[tuple[Any, ...]]  # (op, operands, statics, output), in order


class SentGradient(NamedTuple):
    """A gradient on its way to the layout of its source, the one at that position."""

    position: int
    gradient: DistributedArray
    layout: Layout


class Buckets:
    """The gradients of some sources that wait for reductions, and do so in buckets.

    Devices wait for a bucket when the next one is sent, or when somebody reads one of its
    gradients, which `moved` holds by the positions of their sources. So at most two buckets are
    held as they were computed. What does not fill a bucket is left to be sent with the rest.

    calls: those through which cotangents flow back. replace: called with each source, but those
    that calls have made, and its gradient that has been sent.
    """

    def __init__(
        self,
        calls: Calls,
        sources: Sequence[DistributedArray],
        layouts: Sequence[Layout | None],
        replace: Callable[[DistributedArray, DistributedArray], None],
    ) -> None:
        self.moved: dict[int, DistributedArray] = {}
        self._layouts, self._replace = layouts, replace
        self._sources, self._waiting = sources, list[SentGradient]()
        self._completing: dict[int, list[int]] = defaultdict(list)  # positions, by number of call
        self._made: set[int] = set()  # identities of what calls return
        self._left = 0  # sources whose gradients are not complete
        if sum(s.type.local_nbytes for s in sources) > SIZE:
            self._find_completing(calls)

    def _find_completing(self, calls: Calls) -> None:
        """A gradient is complete when the first call that uses its source has been passed."""
        first: dict[int, int] = {}
        for number, (_, args, _, out) in enumerate(calls):
            for a in args:
                first.setdefault(id(a), number)
            self._made.update(map(id, out if type(out) is tuple else (out,)))
        for position, s in enumerate(self._sources):
            using = [first[id(x)] for x in (s, s._resolved) if x is not None and id(x) in first]
            if using:
                self._completing[min(using)].append(position)
                self._left += 1

    def passed(
        self, number: int, gradient: Callable[[DistributedArray], DistributedArray | None]
    ) -> None:
        """Cotangents have flown back through that call; `gradient` tells what a source has got."""
        for position in self._completing.get(number, ()):
            self._left -= 1
            source = self._sources[position]
            g, layout = gradient(source), self._layouts[position]
            mesh = self._sources[0].mesh
            if layout is None or g is None:
                continue
            if any(g.layout.reductions) and g.mesh is source.mesh is mesh:
                self._waiting.append(SentGradient(position, g, layout))
        if self._left and sum(m.gradient.type.local_nbytes for m in self._waiting) >= SIZE:
            self._send()

    def _send(self) -> None:
        gradients, layouts = zip(*[(m.gradient, m.layout) for m in self._waiting], strict=True)
        moved = send_to_layouts(gradients, layouts)
        for (position, _, _), result in zip(self._waiting, moved, strict=True):
            self.moved[position] = result
            source = self._sources[position]
            if id(source) not in self._made:  # whose call takes the gradient as it was computed
                self._replace(source, result)
        self._waiting = []
