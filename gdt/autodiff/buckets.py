"""Buckets of gradients, which are reduced while the gradients of earlier layers are computed.

Small reductions travel as one, since each costs its latency, however little it sends. But what
fills a bucket need not wait for the rest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, NamedTuple

from gdt.array.array import DistributedArray
from gdt.array.moving import move_to_layouts, remember_resolved
from gdt.comm.relayout import join
from gdt.sharding.layout import Layout

# Bytes of a device in a bucket: that of PyTorch, Li et al. 2020, "PyTorch Distributed: Experiences
# on Accelerating Data Parallel Training", VLDB 13(12).
SIZE = 25 << 20

Operands = Sequence[Sequence[Any]]  # of the calls through which cotangents flow back, in order


class SentGradient(NamedTuple):
    """A gradient on its way to the layout of its source, the one at that position."""

    position: int
    gradient: DistributedArray
    layout: Layout


class Buckets:
    """The gradients of some sources that wait for reductions, and do so in buckets.

    A context around the backward pass: at its end devices wait for what was sent, and `moved` holds
    the gradients that have been, by the positions of their sources. What does not fill a bucket is
    left to be sent with the rest.
    """

    def __init__(
        self,
        operands: Operands,
        sources: Sequence[DistributedArray],
        layouts: Sequence[Layout | None],
    ) -> None:
        self.moved: dict[int, DistributedArray] = {}
        self._layouts = layouts
        self._sources, self._waiting = sources, list[SentGradient]()
        self._sent: list[tuple[SentGradient, DistributedArray]] = []
        self._completing: dict[int, list[int]] = defaultdict(list)  # positions, by number of call
        self._left = 0  # sources whose gradients are not complete
        if sum(s.type.local_nbytes for s in sources) > SIZE:
            self._find_completing(operands)

    def _find_completing(self, operands: Operands) -> None:
        """A gradient is complete when the first call that uses its source has been passed."""
        first: dict[int, int] = {}
        for number, arrays in enumerate(operands):
            for a in arrays:
                first.setdefault(id(a), number)
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
        moved = move_to_layouts(gradients, layouts, overlapped=True)
        self._sent += zip(self._waiting, moved, strict=True)
        self._waiting = []

    def __enter__(self) -> Buckets:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        cause: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._sent:
            return
        sent, moved = zip(*self._sent, strict=True)
        gradients = [m.gradient for m in sent]
        join(gradients[0].mesh, [g.blocks for g in gradients], [g.blocks for g in moved])
        for (position, gradient, _), result in self._sent:
            remember_resolved(gradient, result)
            self.moved[position] = result
