"""Devices `strict:0` to `strict:3`: the CuPy backend on CuPy's interface on the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from gdt.backend import backend_of, register_backend
from gdt.backend.cupy import CupyBackend
from gdt.comm import transport as transports
from gdt.comm.nccl import NcclTransport
from gdt.comm.transport import CopyTransport, Transfer, register_transport
from gdt.sharding.mesh import Mesh, create_mesh

from ..recorded_nccl import RecordedNccl
from .arrays import StrictArray
from .namespace import StrictCupy

CUPY = StrictCupy(device_count=4)


class HostTransport:
    """Moves blocks between strict devices as `CopyTransport` does between those of the host."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh, self.host = mesh, CopyTransport(mesh)
        self.calls, self.bytes, self.large_nbytes = (
            self.host.calls,
            self.host.bytes,
            self.host.large_nbytes,
        )

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def collective(blocks: Sequence[Any], *args: Any) -> list[Any]:
            moved = getattr(self.host, name)([_opened(b) for b in blocks], *args)
            return [self._closed(i, m) for i, m in enumerate(moved)]

        return collective

    def wait(self) -> None:
        """Nothing is under way."""

    def exchange(
        self, sends: Sequence[Transfer], receives: Sequence[Transfer], what: str = ""
    ) -> None:
        opened = [[t._replace(block=t.block._host) for t in ts] for ts in (sends, receives)]
        self.host.exchange(*opened, what)

    def _closed(self, block: int, value: Any) -> Any:
        with backend_of(self.mesh).on(self.mesh, block):
            if isinstance(value, list):
                return [CUPY.asarray(v) for v in value]
            return CUPY.asarray(value)


def _opened(block: Any) -> Any:
    return block._host if isinstance(block, StrictArray) else [b._host for b in block]


class StrictBackend(CupyBackend):
    """The CuPy backend without kernels: every op runs its body."""

    def _runner(self) -> None:
        return None


def register() -> None:
    """Let meshes name strict devices; arrays on them compute with the namespace `CUPY`."""
    register_backend("strict", lambda: StrictBackend(CUPY), lambda: 4)
    register_transport("strict", HostTransport)


def mesh(sizes: dict[str, int], devices: int = 1) -> Mesh:
    """A mesh on the first strict devices, which share its coordinates."""
    return create_mesh(sizes, devices=[f"strict:{i}" for i in range(devices)])


def mesh_with_nccl(sizes: dict[str, int], devices: int, patch: pytest.MonkeyPatch) -> Mesh:
    """Such a mesh, between whose blocks a recorded NCCL moves data."""
    register()
    made = mesh(sizes, devices)
    transport = NcclTransport(made, RecordedNccl(CUPY.order), backend_of(made))
    patch.setitem(transports._transports, made, transport)
    CUPY.order.faults.clear()
    return made


def host(block: Any) -> np.ndarray:
    """The values of a block, without writing down that they were read."""
    return block._host if isinstance(block, StrictArray) else block  # type: ignore[no-any-return]
