"""Array namespaces and memory of the physical devices that host a mesh."""

from __future__ import annotations

from typing import Any

from gdt.backend.numpy import NumpyBackend
from gdt.mesh import Mesh

NUMPY = NumpyBackend()


def backend_of(mesh: Mesh) -> Any:
    """The backend of the devices of `mesh`."""
    return NUMPY
