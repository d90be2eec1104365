"""The transport between blocks that several processes hold in the memory of their hosts.

Parts of a reduction are combined in coordinate order, as one process combines its blocks, so the
number of processes changes no bit of a result.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from gdt.comm.agreement import whole_arrays
from gdt.comm.messages import Messages
from gdt.comm.transport import Axes, Block, CopyTransport, Transfer, Types, combined, pairs_in
from gdt.sharding.mesh import Mesh

Groups = Sequence[Sequence[int]]


class MessageArrays:
    """The arrays that one message carries, one after the other."""

    def __init__(self, payload: memoryview) -> None:
        self.rest = payload

    def next(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """The next array, which has this shape and dtype."""
        nbytes = math.prod(shape) * dtype.itemsize
        part, self.rest = self.rest[:nbytes], self.rest[nbytes:]
        return np.frombuffer(part, dtype).reshape(shape)


# Bytes up to which blocks are sent whole: between two processes each sends its own, among more one
# process combines them. Either way as many bytes are sent as by reducing parts, in fewer messages.
SMALL = 1 << 14


class ProcessTransport(CopyTransport):
    """Blocks of several processes; what is for the same process travels in one message."""

    def __init__(self, mesh: Mesh, messages: Messages) -> None:
        super().__init__(mesh)
        self.messages = messages

    def _owner(self, block: int) -> int:
        return block // len(self.mesh.blocks)

    def _others(self, group: Sequence[int]) -> list[int]:
        """The other processes that hold blocks of a group."""
        return sorted({self._owner(n) for n in group} - {self.messages.index})

    def _what(self, what: str, blocks: Sequence[Block], types: Types) -> str:
        texts = ", ".join(f"{b.dtype}{list(b.shape)}" for b in blocks)
        return f"{what} of {self.mesh} as {self.mesh.grid}: {texts}{whole_arrays(types)}"

    def all_reduce(
        self, blocks: Sequence[Block], axes: Axes, reduction: str, types: Types = ()
    ) -> list[Block]:
        groups = self._groups(axes)
        if not any(map(self._others, groups)):
            return super().all_reduce(blocks, axes, reduction, types)
        size, (shape, dtype) = len(groups[0]), (blocks[0].shape, blocks[0].dtype)
        self._count("all_reduce", groups, 2 * (size - 1) * blocks[0].nbytes)
        what = f"all_reduce ({reduction}) over {self._named(axes)}"
        if blocks[0].nbytes <= SMALL and max(len(self._others(g)) for g in groups) == 1:
            whole = self._spread([[b] for b in blocks], groups, what, types)
            return [combined([whole[n][0] for n in g], reduction) for g in self._by_own(groups)]
        if blocks[0].nbytes <= SMALL:
            totals = self._to_first(blocks, groups, reduction, what, types)
            return self._from_first(totals, groups, what, types)
        # Each block of a group combines one part of all, and then sends it to all.
        parts = [np.array_split(b.reshape(-1), size) for b in blocks]
        length = parts[0][0].size  # the first parts are the longest
        pieces = {
            (n, target): np.pad(part, (0, length - part.size))
            for n, group, cut in zip(self.own, self._by_own(groups), parts, strict=True)
            for target, part in zip(group, cut, strict=True)
        }
        like = next(iter(pieces.values()))
        piece_of = self._deliver(pieces, pairs_in(groups), like, what, types)
        totals = [
            [combined([piece_of[source, n] for source in group], reduction)]
            for n, group in zip(self.own, self._by_own(groups), strict=True)
        ]
        spread = self._spread(totals, groups, what, types)
        sizes = [part.size for part in parts[0]]
        return [
            np.concatenate([spread[n][0][:k] for n, k in zip(g, sizes, strict=True)])
            .reshape(shape)
            .astype(dtype, copy=False)
            for g in self._by_own(groups)
        ]

    def _by_own(self, groups: Groups) -> list[Sequence[int]]:
        """The group of every own block."""
        return [next(g for g in groups if n in g) for n in self.own]

    def _spread(
        self,
        bundles: Sequence[Sequence[Block]],
        groups: Groups,
        what: str,
        types: Types = (),
    ) -> Mapping[int, Sequence[Block]]:
        bundle_of: dict[int, Sequence[Block]] = dict(zip(self.own, bundles, strict=True))
        outgoing: dict[int, list[Block]] = {}
        for n, group in zip(self.own, self._by_own(groups), strict=True):
            for other in self._others(group):
                outgoing.setdefault(other, []).extend(bundle_of[n])
        sources = sorted(n for g in groups for n in g if n not in self.own)
        payloads = self._exchange(outgoing, sources, self._what(what, bundles[0], types))
        for n in sources:
            bundle_of[n] = [payloads[self._owner(n)].next(b.shape, b.dtype) for b in bundles[0]]
        return bundle_of

    def _deliver(
        self,
        pieces: Mapping[tuple[int, int], Block],
        pairs: Iterable[tuple[int, int]],
        like: Block,
        what: str,
        types: Types = (),
    ) -> Mapping[tuple[int, int], Block]:
        outgoing: dict[int, list[Block]] = {}
        for (_, target), piece in sorted(pieces.items(), key=lambda item: item[0]):
            if target not in self.own:
                outgoing.setdefault(self._owner(target), []).append(piece)
        awaited = sorted((n, t) for n, t in pairs if n not in self.own and t in self.own)
        sources = [n for n, _ in awaited]
        payloads = self._exchange(outgoing, sources, self._what(what, [like], types))
        piece_of = dict(pieces)
        for n, target in awaited:
            piece_of[n, target] = payloads[self._owner(n)].next(like.shape, like.dtype)
        return piece_of

    def exchange(self, sends: Sequence[Transfer], receives: Sequence[Transfer], what: str) -> None:
        self._count_exchange(sends)
        outgoing: dict[int, list[Block]] = {}
        inside: dict[tuple[int, int], deque[Block]] = {}
        for source, target, block in sends:
            if target in self.own:
                inside.setdefault((source, target), deque()).append(block)
            else:
                outgoing.setdefault(self._owner(target), []).append(block)
        sources = [source for source, _, _ in receives if source not in self.own]
        payloads = self._exchange(
            outgoing, sources, f"exchange of {what} on {self.mesh} as {self.mesh.grid}"
        )
        for source, target, block in receives:
            if source in self.own:
                block[...] = inside[source, target].popleft()
            else:
                block[...] = payloads[self._owner(source)].next(block.shape, block.dtype)

    def _exchange(
        self, outgoing: Mapping[int, Sequence[Block]], blocks: Sequence[int], what: str
    ) -> dict[int, MessageArrays]:
        """Send blocks to processes, and receive from the owners of the blocks of these numbers."""
        owners = {self._owner(n) for n in blocks}
        payloads = self.messages.exchange(outgoing, owners, what)
        return {owner: MessageArrays(payload) for owner, payload in payloads.items()}
