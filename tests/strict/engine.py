"""Devices `strict:0` to `strict:3`: the CuPy backend on CuPy's interface on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gdt.backend import backend_of, register_backend
from gdt.comm import transport as transports
from gdt.comm.nccl import NcclTransport
from gdt.comm.transport import CopyTransport, Transport, register_transport
from gdt.sharding.mesh import Mesh, create_mesh

from ..recorded_nccl import RecordedNccl
from .arrays import StrictArray
from .backend import SimulatedGpus
from .namespace import StrictCupy

CUPY = StrictCupy(device_count=4)


class StrictBackend(SimulatedGpus):
    """The CuPy backend without kernels: every op runs its body."""

    def _runner(self) -> None:
        return None


def register() -> None:
    """Let meshes name strict devices; arrays on them compute with the namespace `CUPY`."""
    register_backend("strict", lambda: StrictBackend(CUPY), lambda: 4)
    register_transport("strict", _transport)


def _transport(mesh: Mesh) -> Transport:
    """A recorded NCCL between the blocks of a mesh."""
    if not mesh.divided:
        return CopyTransport(mesh)
    return NcclTransport(mesh, RecordedNccl(CUPY.order), backend_of(mesh))


def mesh(sizes: dict[str, int], devices: int = 1) -> Mesh:
    """A mesh on the first strict devices, which share its coordinates."""
    return create_mesh(sizes, devices=[f"strict:{i}" for i in range(devices)])


def mesh_with_nccl(sizes: dict[str, int], devices: int, patch: pytest.MonkeyPatch) -> Mesh:
    """Such a mesh, between whose blocks a recorded NCCL moves data that has done nothing yet."""
    register()
    made = mesh(sizes, devices)
    patch.setitem(transports._transports, made, _transport(made))
    CUPY.order.faults.clear()
    return made


def host(block: Any) -> np.ndarray:
    """The values of a block, without writing down that they were read."""
    return block._host if isinstance(block, StrictArray) else block  # type: ignore[no-any-return]
