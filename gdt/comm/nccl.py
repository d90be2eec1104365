"""NCCL: collectives between the GPUs of one process or of several, one block on each.

They run on the devices' communication streams, between what was computed before and what is
computed after. NCCL differs from NumPy, which `encoding` makes up for: its max and min lose NaN,
and it knows no bool and no 16-bit or complex numbers.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from gdt.backend import backend_of
from gdt.backend.graphs import concatenated
from gdt.comm.encoding import encoding
from gdt.comm.notes import connected
from gdt.comm.ranks import Ranks
from gdt.comm.transport import (
    Axes,
    Block,
    CopyTransport,
    Transfer,
    Transport,
    Types,
    combined,
    joined,
)
from gdt.errors import DistributedError, error
from gdt.sharding.mesh import Mesh

OLDEST = 21801  # NCCL 2.18.1, as CuPy asks for

TYPES = {
    "int8": "NCCL_INT8", "uint8": "NCCL_UINT8", "int32": "NCCL_INT32", "uint32": "NCCL_UINT32",
    "int64": "NCCL_INT64", "uint64": "NCCL_UINT64", "float16": "NCCL_FLOAT16",
    "float32": "NCCL_FLOAT32", "float64": "NCCL_FLOAT64", "bfloat16": "NCCL_BFLOAT16",
}  # fmt: skip
OPS = {"sum": "NCCL_SUM", "prod": "NCCL_PROD", "max": "NCCL_MAX", "min": "NCCL_MIN"}


class NcclTransport(Ranks):
    """The transport that moves data between blocks on GPUs by NCCL.

    Calls in one group run as one (NCCL's documentation, Aggregated Operations): so arrays that
    take longer to copy than a call has latency are not copied beside others.
    """

    large_nbytes: float = 1 << 20

    # ---- collectives

    def all_reduce_several(
        self, bundles: Sequence[Sequence[Block]], axes: Axes, reduction: str
    ) -> list[list[Block]]:
        return self._combined("all_reduce", bundles, axes, reduction)

    def reduce(
        self, blocks: Sequence[Block], axes: Axes, reduction: str, types: Types = ()
    ) -> list[Block]:
        return [b for (b,) in self._combined("reduce", [[b] for b in blocks], axes, reduction)]

    def _combined(
        self, kind: str, bundles: Sequence[Sequence[Block]], axes: Axes, reduction: str
    ) -> list[list[Block]]:
        """`all_reduce_several` or `reduce`, as `kind` says."""
        groups, to_all = self._groups(axes), kind == "all_reduce"
        nbytes = sum(block.nbytes for block in bundles[0])
        self._count(kind, groups, (1 + to_all) * (len(groups[0]) - 1) * nbytes)
        how, what = encoding(self.xp, bundles[0][0].dtype, reduction), self._what(kind, axes)
        if how is None:
            gathered = self._gathered(bundles, axes, what)
            return self._on_devices(
                lambda i: [combined([*m], reduction) for m in zip(*gathered[i], strict=True)]
            )
        encode = lambda block: self._contiguous(how.encode(self._contiguous(block).reshape(-1)))
        outgoing = self._on_devices(lambda i: [*map(encode, bundles[i])])
        incoming = self._on_devices(lambda i: [*map(self.xp.empty_like, outgoing[i])])
        datatype, op = self._type(outgoing[0][0].dtype), getattr(self.nccl, OPS[how.reduction])

        def issue(i: int, communicator: Any, stream: int) -> None:
            for own, result in zip(outgoing[i], incoming[i], strict=True):
                buffers = self.pointer(own), self.pointer(result), own.size
                if to_all:
                    communicator.allReduce(*buffers, datatype, op, stream)
                else:
                    communicator.reduce(*buffers, datatype, op, 0, stream)

        self._run(axes, what, issue)
        firsts = {group[0] for group in groups}

        def results(i: int) -> list[Block]:
            if to_all or self.first + i in firsts:
                pairs = zip(incoming[i], bundles[i], strict=True)
                return [how.decode(found).reshape(b.shape) for found, b in pairs]
            # NCCL has left `incoming` as it was: no numbers.
            return [*map(self.xp.empty_like, bundles[i])]

        return self._on_devices(results)

    def all_gather(
        self, bundles: Sequence[Sequence[Block]], axes: Axes, types: Types = ()
    ) -> list[list[Block]]:
        groups = self._groups(axes)
        size, grid = len(groups[0]), [self.mesh.grid[a] for a in axes]
        nbytes = sum(block.nbytes for block in bundles[0])
        self._count("all_gather", groups, size * (size - 1) * nbytes)
        members = self._gathered(bundles, axes, self._what("all_gather", axes))

        def whole(i: int) -> list[Block]:
            group = next(g for g in groups if self.first + i in g)
            places = [tuple(self.mesh.all_blocks[n][a] for a in axes) for n in group]
            return [
                joined(
                    self.xp, {p: m[k] for p, m in zip(places, members[i], strict=True)}, axes, grid
                )
                for k in range(len(bundles[i]))
            ]

        return self._on_devices(whole)

    def _gathered(
        self, bundles: Sequence[Sequence[Block]], axes: Axes, what: str
    ) -> list[list[list[Block]]]:
        """For every own block, the bundles of its group, in coordinate order."""
        size, datatype = len(self._groups(axes)[0]), self.nccl.NCCL_UINT8
        outgoing = self._on_devices(lambda i: [self._bytes(b) for b in bundles[i]])
        incoming = self._on_devices(
            lambda i: [self.xp.empty((size, b.size), np.uint8) for b in outgoing[i]]
        )

        def issue(i: int, communicator: Any, stream: int) -> None:
            for own, every in zip(outgoing[i], incoming[i], strict=True):
                if own.size:
                    addresses = self.pointer(own), self.pointer(every)
                    communicator.allGather(*addresses, own.size, datatype, stream)

        self._run(axes, what, issue)

        def members(i: int) -> list[list[Block]]:
            pairs = list(zip(bundles[i], incoming[i], strict=True))
            return [
                [every[k].view(b.dtype).reshape(b.shape) for b, every in pairs] for k in range(size)
            ]

        return self._on_devices(members)

    def reduce_scatter_several(
        self, bundles: Sequence[Sequence[Block]], axis: int, reduction: str
    ) -> list[list[Block]]:
        groups = self._groups((axis,))
        size = len(groups[0])
        nbytes = sum(block.nbytes for block in bundles[0])
        self._count("reduce_scatter", groups, (size - 1) * nbytes)
        how = encoding(self.xp, bundles[0][0].dtype, reduction)
        what = self._what("reduce_scatter", (axis,))
        shares = self._on_devices(lambda i: [self._shares(b, axis, size) for b in bundles[i]])
        if how is None:
            gathered = self._gathered(shares, (axis,), what)
            rank = [next(g.index(n) for g in groups if n in g) for n in self.own]
            return self._on_devices(
                lambda i: [
                    combined([part[rank[i]] for part in m], reduction)
                    for m in zip(*gathered[i], strict=True)
                ]
            )
        encode = lambda s: self._contiguous(how.encode(self._contiguous(s).reshape(size, -1)))
        outgoing = self._on_devices(lambda i: [*map(encode, shares[i])])
        incoming = self._on_devices(lambda i: [self.xp.empty_like(own[0]) for own in outgoing[i]])
        datatype, op = self._type(outgoing[0][0].dtype), getattr(self.nccl, OPS[how.reduction])

        def issue(i: int, communicator: Any, stream: int) -> None:
            for own, result in zip(outgoing[i], incoming[i], strict=True):
                addresses = self.pointer(own), self.pointer(result)
                communicator.reduceScatter(*addresses, result.size, datatype, op, stream)

        self._run((axis,), what, issue)

        def results(i: int) -> list[Block]:
            pairs = zip(incoming[i], shares[i], strict=True)
            return [how.decode(found).reshape(s.shape[1:]) for found, s in pairs]

        return self._on_devices(results)

    def _shares(self, block: Block, axis: int, size: int) -> Block:
        """A block as what each of `size` members of its group gets, (size, ..., box, ...)."""
        shape = (*block.shape[:axis], size, block.shape[axis] // size, *block.shape[axis + 1 :])
        return self.xp.moveaxis(block.reshape(shape), axis, 0)

    def all_to_all(self, blocks: Sequence[Block], axis: int, types: Types = ()) -> list[Block]:
        groups = self._groups((axis,))
        size, datatype = len(groups[0]), self.nccl.NCCL_UINT8
        self._count("all_to_all", groups, (size - 1) * blocks[0].nbytes)
        rows = size, blocks[0].nbytes // size
        outgoing = self._on_devices(lambda i: self._bytes(blocks[i]).reshape(rows))
        incoming = self._on_devices(lambda i: self.xp.empty_like(outgoing[i]))

        def issue(i: int, communicator: Any, stream: int) -> None:
            for peer in range(size):
                count = outgoing[i][peer].size
                communicator.send(self.pointer(outgoing[i][peer]), count, datatype, peer, stream)
                communicator.recv(self.pointer(incoming[i][peer]), count, datatype, peer, stream)

        if outgoing[0].size:
            self._run((axis,), self._what("all_to_all", (axis,)), issue)

        def whole(i: int) -> Block:
            shape = (blocks[i].shape[0] // size, *blocks[i].shape[1:])
            parts = [part.view(blocks[i].dtype).reshape(shape) for part in incoming[i]]
            return concatenated(self.xp, parts, axis + 1)

        return self._on_devices(whole)

    def broadcast(self, blocks: Sequence[Block], axes: Axes, types: Types = ()) -> list[Block]:
        groups, datatype = self._groups(axes), self.nccl.NCCL_UINT8
        self._count("broadcast", groups, (len(groups[0]) - 1) * blocks[0].nbytes)
        copies = self._on_devices(lambda i: self._contiguous(blocks[i]))

        def issue(i: int, communicator: Any, stream: int) -> None:
            address = self.pointer(copies[i])
            communicator.broadcast(address, address, copies[i].nbytes, datatype, 0, stream)

        if copies[0].size:
            self._run(axes, self._what("broadcast", axes), issue)
        return copies

    def exchange(self, sends: Sequence[Transfer], receives: Sequence[Transfer], what: str) -> None:
        self._count_exchange(sends)
        every = tuple(range(self.mesh.ndim))
        datatype = self.nccl.NCCL_UINT8
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
                communicator.send(self.pointer(data), data.size, datatype, peer, stream)
            for peer, _, data in incoming[i]:
                communicator.recv(self.pointer(data), data.size, datatype, peer, stream)

        def unpack(i: int) -> None:
            for _, block, data in incoming[i]:
                block[...] = data.view(block.dtype).reshape(block.shape)

        self._on_devices(pack)
        self._run(every, f"{self._what('exchange', every)} of {what}", issue)
        self._on_devices(unpack)

    # ---- memory

    def _contiguous(self, block: Block) -> Block:
        return self.xp.ascontiguousarray(block)

    def _bytes(self, block: Block) -> Block:
        """The memory of a block as bytes, copied if it is not contiguous."""
        return self._contiguous(block).reshape(-1).view(np.uint8)

    def _type(self, dtype: np.dtype) -> int:
        return int(getattr(self.nccl, TYPES[dtype.name]))


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
        problem = (
            f"NCCL {_written(version)} is too old: {_written(OLDEST)} is the oldest that works"
        )
        raise error(DistributedError, "transport", problem, remedy=install)
    return nccl


def _written(version: int) -> str:
    """A version as NCCL numbers them since 2.9: 22907 is 2.29.7."""
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"


def transport(mesh: Mesh) -> Transport:
    """The transport between the GPUs of `mesh`."""
    if not mesh.divided:
        return CopyTransport(mesh)
    messages = connected() if mesh.num_processes > 1 else None
    return NcclTransport(mesh, load(), backend_of(mesh), messages)
