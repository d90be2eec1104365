"""The CuPy backend on CuPy's interface on the host."""

from __future__ import annotations

from gdt.backend.cupy import CupyBackend

from .cuda import CudaGraph


class SimulatedGpus(CupyBackend):
    """The CuPy backend where no driver is: graphs count their own nodes."""

    def _has_work(self, graph: CudaGraph) -> bool:
        return graph.node_count > 0
