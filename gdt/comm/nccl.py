"""NCCL: collectives between the GPUs of one process or of several, one block on each.

The blocks along some mesh axes share a communicator; a process has one for each of its GPUs, and
issues the calls of all of them in one group, as one thread that drives several GPUs must. They run
on the devices' communication streams, between what was computed before and what is computed after.

NCCL differs from NumPy in three ways, which are mended here: its max and min lose NaN, it knows no
bool and no 16-bit or complex numbers, and a failure shows only when somebody asks.
"""

from __future__ import annotations

import time
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np

from gdt.backend import backend_of
from gdt.backend.cupy import device_of
from gdt.comm.encoding import encoding
from gdt.comm.messages import Messages, connected
from gdt.comm.transport import (
    Axes,
    Block,
    BlockTransport,
    CopyTransport,
    Transfer,
    Transport,
    combined,
    joined,
)
from gdt.errors import DistributedError, error
from gdt.mesh import Mesh

OLDEST = 21801  # NCCL 2.18.1, as CuPy asks for
TIMEOUT = 300.0  # seconds for which the host waits for a collective, without other processes
LATE = 2.0  # seconds after the end of another process in which its collectives end here
POLL = 0.0005  # seconds between two looks at collectives that have not ended

TYPES = {
    "int8": "NCCL_INT8", "uint8": "NCCL_UINT8", "int32": "NCCL_INT32", "uint32": "NCCL_UINT32",
    "int64": "NCCL_INT64", "uint64": "NCCL_UINT64", "float16": "NCCL_FLOAT16",
    "float32": "NCCL_FLOAT32", "float64": "NCCL_FLOAT64", "bfloat16": "NCCL_BFLOAT16",
}  # fmt: skip
OPS = {"sum": "NCCL_SUM", "prod": "NCCL_PROD", "max": "NCCL_MAX", "min": "NCCL_MIN"}


class Running(NamedTuple):
    """A collective that was begun: what it is, the events of its end on every device, and the other
    processes that take part."""

    what: str
    events: list[Any]
    others: set[int]


class NcclTransport(BlockTransport):
    """Blocks on GPUs, each a rank: its number in the grid.

    nccl: the module `cupy.cuda.nccl`. backend: gives the array namespace, and a context in which a
    device communicates. messages: to the other processes that own blocks, if there are some.
    pointer: the address of an array's memory.
    """

    def __init__(
        self,
        mesh: Mesh,
        nccl: Any,
        backend: Any,
        messages: Messages | None = None,
        pointer: Callable[[Block], int] = lambda x: int(x.data.ptr),
        timeout: float = TIMEOUT,
    ) -> None:
        super().__init__(mesh)
        self.nccl, self.backend, self.xp, self.messages = nccl, backend, backend.xp, messages
        self.pointer = pointer
        self.timeout = timeout if messages is None else messages.timeout
        self.communicators: dict[Axes, list[Any]] = {}  # of own blocks, by mesh axes
        self.running: deque[Running] = deque()

    # ---- collectives

    def all_reduce(self, blocks: Sequence[Block], axes: Axes, reduction: str) -> list[Block]:
        groups = self._groups(axes)
        self._count("all_reduce", groups, 2 * (len(groups[0]) - 1) * blocks[0].nbytes)
        how, what = encoding(self.xp, blocks[0].dtype, reduction), self._what("all_reduce", axes)
        if how is None:
            gathered = self._gathered([[b] for b in blocks], axes, what)
            return self._on_devices(lambda i: combined([m[0] for m in gathered[i]], reduction))
        flat = self._on_devices(lambda i: self._contiguous(blocks[i]).reshape(-1))
        sent = self._on_devices(lambda i: self._contiguous(how.encode(flat[i])))
        found = self._on_devices(lambda i: self.xp.empty_like(sent[i]))
        kind, op = self._type(sent[0].dtype), getattr(self.nccl, OPS[how.reduction])

        def issue(i: int, communicator: Any, stream: int) -> None:
            addresses = self.pointer(sent[i]), self.pointer(found[i])
            communicator.allReduce(*addresses, sent[i].size, kind, op, stream)

        self._run(axes, what, issue)
        return self._on_devices(lambda i: how.decode(found[i]).reshape(blocks[i].shape))

    def all_gather(self, bundles: Sequence[Sequence[Block]], axes: Axes) -> list[list[Block]]:
        groups = self._groups(axes)
        size, grid = len(groups[0]), [self.mesh.grid[a] for a in axes]
        nbytes = sum(block.nbytes for block in bundles[0])
        self._count("all_gather", groups, size * (size - 1) * nbytes)
        gathered = self._gathered(bundles, axes, self._what("all_gather", axes))

        def whole(i: int) -> list[Block]:
            group = next(g for g in groups if self.first + i in g)
            places = [tuple(self.mesh.all_blocks[n][a] for a in axes) for n in group]
            return [
                joined(
                    self.xp, {p: m[k] for p, m in zip(places, gathered[i], strict=True)}, axes, grid
                )
                for k in range(len(bundles[i]))
            ]

        return self._on_devices(whole)

    def _gathered(
        self, bundles: Sequence[Sequence[Block]], axes: Axes, what: str
    ) -> list[list[list[Block]]]:
        """For every own block, the bundles of its group, in coordinate order."""
        size, kind = len(self._groups(axes)[0]), self.nccl.NCCL_UINT8
        sent = self._on_devices(lambda i: [self._bytes(b) for b in bundles[i]])
        found = self._on_devices(
            lambda i: [self.xp.empty((size, b.size), np.uint8) for b in sent[i]]
        )

        def issue(i: int, communicator: Any, stream: int) -> None:
            for own, every in zip(sent[i], found[i], strict=True):
                if own.size:
                    addresses = self.pointer(own), self.pointer(every)
                    communicator.allGather(*addresses, own.size, kind, stream)

        self._run(axes, what, issue)

        def members(i: int) -> list[list[Block]]:
            pairs = list(zip(bundles[i], found[i], strict=True))
            return [
                [every[k].view(b.dtype).reshape(b.shape) for b, every in pairs] for k in range(size)
            ]

        return self._on_devices(members)

    def reduce_scatter(self, blocks: Sequence[Block], axis: int, reduction: str) -> list[Block]:
        groups = self._groups((axis,))
        size = len(groups[0])
        self._count("reduce_scatter", groups, (size - 1) * blocks[0].nbytes)
        how = encoding(self.xp, blocks[0].dtype, reduction)
        what = self._what("reduce_scatter", (axis,))
        split = self._on_devices(lambda i: self.xp.stack(self.xp.split(blocks[i], size, axis)))
        if how is None:
            gathered = self._gathered([[s] for s in split], (axis,), what)
            rank = [next(g.index(n) for g in groups if n in g) for n in self.own]
            return self._on_devices(
                lambda i: combined([m[0][rank[i]] for m in gathered[i]], reduction)
            )
        rows = size, blocks[0].size // size
        flat = self._on_devices(lambda i: self._contiguous(split[i]).reshape(rows))
        sent = self._on_devices(lambda i: self._contiguous(how.encode(flat[i])))
        found = self._on_devices(lambda i: self.xp.empty_like(sent[i][0]))
        kind, op = self._type(sent[0].dtype), getattr(self.nccl, OPS[how.reduction])

        def issue(i: int, communicator: Any, stream: int) -> None:
            addresses = self.pointer(sent[i]), self.pointer(found[i])
            communicator.reduceScatter(*addresses, found[i].size, kind, op, stream)

        self._run((axis,), what, issue)
        return self._on_devices(lambda i: how.decode(found[i]).reshape(split[i].shape[1:]))

    def all_to_all(self, blocks: Sequence[Block], axis: int) -> list[Block]:
        groups = self._groups((axis,))
        size, kind = len(groups[0]), self.nccl.NCCL_UINT8
        self._count("all_to_all", groups, (size - 1) * blocks[0].nbytes)
        rows = size, blocks[0].nbytes // size
        sent = self._on_devices(lambda i: self._bytes(blocks[i]).reshape(rows))
        found = self._on_devices(lambda i: self.xp.empty_like(sent[i]))

        def issue(i: int, communicator: Any, stream: int) -> None:
            for peer in range(size):
                count = sent[i][peer].size
                communicator.send(self.pointer(sent[i][peer]), count, kind, peer, stream)
                communicator.recv(self.pointer(found[i][peer]), count, kind, peer, stream)

        if sent[0].size:
            self._run((axis,), self._what("all_to_all", (axis,)), issue)

        def whole(i: int) -> Block:
            shape = (blocks[i].shape[0] // size, *blocks[i].shape[1:])
            parts = [part.view(blocks[i].dtype).reshape(shape) for part in found[i]]
            return self.xp.concatenate(parts, axis + 1)

        return self._on_devices(whole)

    def exchange(self, sends: Sequence[Transfer], receives: Sequence[Transfer], what: str) -> None:
        self._count_exchange(sends)
        every = tuple(range(self.mesh.ndim))
        kind = self.nccl.NCCL_UINT8
        outgoing: list[list[tuple[int, Block]]] = [[] for _ in self.own]
        incoming: list[list[tuple[int, Block, Block]]] = [[] for _ in self.own]

        def pack(i: int) -> None:
            for source, target, block in sends:
                if source == self.first + i and block.size:
                    outgoing[i].append((target, self._bytes(block)))
            for source, target, block in receives:
                if target == self.first + i and block.size:
                    incoming[i].append((source, block, self.xp.empty(block.nbytes, np.uint8)))

        def issue(i: int, communicator: Any, stream: int) -> None:
            for peer, data in outgoing[i]:
                communicator.send(self.pointer(data), data.size, kind, peer, stream)
            for peer, _, data in incoming[i]:
                communicator.recv(self.pointer(data), data.size, kind, peer, stream)

        def unpack(i: int) -> None:
            for _, block, data in incoming[i]:
                block[...] = data.view(block.dtype).reshape(block.shape)

        self._on_devices(pack)
        self._run(every, f"{self._what('exchange', every)} of {what}", issue)
        self._on_devices(unpack)

    # ---- memory

    def _on_devices(self, make: Callable[[int], Any]) -> list[Any]:
        """What `make` returns for every own block, on its device."""
        found = []
        for i in range(len(self.own)):
            with self.backend.on(self.mesh, i):
                found.append(make(i))
        return found

    def _contiguous(self, block: Block) -> Block:
        return self.xp.ascontiguousarray(block)

    def _bytes(self, block: Block) -> Block:
        """The memory of a block as bytes, copied if it is not contiguous."""
        return self._contiguous(block).reshape(-1).view(np.uint8)

    def _type(self, dtype: np.dtype) -> int:
        return int(getattr(self.nccl, TYPES[dtype.name]))

    # ---- communicators and streams

    def _what(self, collective: str, axes: Axes) -> str:
        devices = ", ".join(dict.fromkeys(self.mesh.devices))
        return f"{collective} over {self._named(axes)} of {self.mesh} on {devices}"

    def _others(self, axes: Axes) -> set[int]:
        """The other processes that hold blocks in the groups along `axes`."""
        owners = {n // len(self.own) for group in self._groups(axes) for n in group}
        return owners - {self.first // len(self.own)}

    def _run(self, axes: Axes, what: str, issue: Callable[[int, Any, int], None]) -> None:
        """Issue the calls of every own block in one group, on the communication streams."""
        communicators = self._communicators(axes, what)
        self._forget_ended()
        with ExitStack() as stack:
            streams = [
                stack.enter_context(self.backend.communicating(device_of(self.mesh, i)))
                for i in range(len(self.own))
            ]
            self._grouped(what, lambda i: issue(i, communicators[i], streams[i].ptr))
            events = self._on_devices(lambda i: streams[i].record())
        self.running.append(Running(what, events, self._others(axes)))

    def _grouped(self, what: str, call: Callable[[int], None]) -> None:
        try:
            self.nccl.groupStart()
            try:
                for i in range(len(self.own)):
                    call(i)
            finally:
                self.nccl.groupEnd()
        except self.nccl.NcclError as cause:
            raise self._failed(what, str(cause)) from cause

    def _communicators(self, axes: Axes, what: str) -> list[Any]:
        """The communicator of every own block with those that differ along `axes` alone."""
        if axes not in self.communicators:
            made = self._split(axes, what) if self._splits() else self._joined(axes, what)
            self.communicators[axes] = made
        return self.communicators[axes]

    def _splits(self) -> bool:
        """Whether communicators are split from the one of all blocks. CuPy 13 cannot, and CuPy 14
        not in a group, which a process of several GPUs needs: it returns before NCCL has written
        the new communicator."""
        return len(self.own) == 1 and hasattr(self.nccl.NcclCommunicator, "commSplit")

    def _split(self, axes: Axes, what: str) -> list[Any]:
        every = tuple(range(self.mesh.ndim))
        (group,) = self._groups(axes)
        if len(group) == len(self.mesh.all_blocks):
            return self._joined(axes, what) if axes == every else self._communicators(every, what)
        (whole,) = self._communicators(every, what)
        self.wait()  # nothing may run on what is split
        if self.messages is not None:
            self.messages.gather(None, what)  # NCCL would wait for a process that is elsewhere
        try:
            with self.backend.on(self.mesh, 0):
                return [whole.commSplit(group[0], group.index(self.first))]
        except self.nccl.NcclError as cause:
            raise self._failed(f"{what}, whose communicator is split", str(cause)) from cause

    def _joined(self, axes: Axes, what: str) -> list[Any]:
        """Communicators from an identifier for each group, which the process of its first block
        draws."""
        groups = self._groups(axes)
        drawn = {g[0]: self.nccl.get_unique_id() for g in groups if g[0] in self.own}
        parts = [drawn] if self.messages is None else self.messages.gather(drawn, what)
        identifiers = {first: found for part in parts for first, found in part.items()}
        made: list[Any] = [None] * len(self.own)

        def create(i: int) -> None:
            group = next(g for g in groups if self.first + i in g)
            rank, identifier = group.index(self.first + i), identifiers[group[0]]
            with self.backend.on(self.mesh, i):
                made[i] = self.nccl.NcclCommunicator(len(group), identifier, rank)

        self._grouped(f"{what}, whose communicators are made", create)
        return made

    # ---- failures

    def _forget_ended(self) -> None:
        while self.running and all(event.done for event in self.running[0].events):
            self.running.popleft()

    def wait(self) -> None:
        """Let the host wait until the collectives that were begun have ended.

        Raises DistributedError, which names the collective, its mesh axes and devices, if one of
        them fails or does not end in time; their communicators are given up then.
        """
        end = time.monotonic() + self.timeout
        while True:
            self._forget_ended()
            if not self.running:
                return
            what, _, others = self.running[0]
            self._check(what, others)
            if time.monotonic() > end:
                raise self._failed(what, f"it has not ended after {self.timeout:g} s")
            time.sleep(POLL)

    def _check(self, what: str, others: set[int]) -> None:
        try:
            for made in self.communicators.values():
                for communicator in made:
                    communicator.check_async_error()
            if self.messages is not None:
                self.messages.listen(0)
                self.messages.check(self._gone(self.messages, others), what)
        except self.nccl.NcclError as cause:
            raise self._failed(what, str(cause)) from cause
        except DistributedError:
            self._abort()
            raise

    @staticmethod
    def _gone(messages: Messages, others: set[int]) -> list[int]:
        """Those that have ended so long ago that their part of what runs is missing."""
        ended = [i for i in others if messages.connections[i].goodbye is not None]
        return [i for i in ended if time.monotonic() - messages.connections[i].ended > LATE]

    def _abort(self) -> None:
        """Give up all communicators, so that nothing waits for them any more."""
        for made in self.communicators.values():
            for communicator in made:
                communicator.abort()
        self.communicators.clear()
        self.running.clear()

    def _failed(self, what: str, problem: str) -> DistributedError:
        self._abort()
        return error(
            DistributedError,
            what.split(" ", maxsplit=1)[0],
            f"NCCL: {problem}",
            operands={"in": what},
            remedy="NCCL_DEBUG=WARN in the environment makes NCCL say more.",
        )


def load() -> Any:
    """The module `cupy.cuda.nccl`; DistributedError if NCCL is missing or too old."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # CuPy's, that NCCL is missing
        from cupy.cuda import nccl  # noqa: PLC0415
    install = "Install it with: pip install 'gdt[cuda12]', or 'gdt[cuda13]' for CUDA 13."
    if not nccl.available:
        problem = "several GPUs need NCCL, which is not installed"
        raise error(DistributedError, "transport", problem, remedy=install)
    version = nccl.get_version()
    if version < OLDEST:
        problem = f"NCCL is of version code {version}, and {OLDEST} is the oldest that works"
        raise error(DistributedError, "transport", problem, remedy=install)
    return nccl


def transport(mesh: Mesh) -> Transport:
    """The transport between the GPUs of `mesh`."""
    if not mesh.divided:
        return CopyTransport(mesh)
    messages = connected() if mesh.num_processes > 1 else None
    return NcclTransport(mesh, load(), backend_of(mesh), messages)
