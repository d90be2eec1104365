"""Launches: routes that devices run beside their computation, until somebody reads a result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gdt.backend import backend_of
from gdt.comm.relayout import JOIN, RELAYOUT, Blocks, carry_out
from gdt.observe import OBSERVERS, Observer, is_recorded, ran
from gdt.sharding.mesh import Mesh
from gdt.sharding.routes import Transition

Routes = Sequence[tuple[Transition, ...]]


def can_overlap(mesh: Mesh) -> bool:
    """Return whether devices of `mesh` may communicate beside their computation."""
    return mesh.divided and backend_of(mesh).overlaps


class Launch:
    """Routes that run on the communication streams of the devices of `mesh`.

    It refers to the operands until computation waits for it (`join`), since a pool would give their
    memory to computation while it is read.

    events: what tells that the routes have ended, of each device. results: what they make.
    recorders: the observers of the launch that are told where it ends, wherever that is.
    """

    def __init__(
        self,
        mesh: Mesh,
        events: Sequence[Any],
        operands: Sequence[Blocks],
        results: Sequence[Blocks] = (),
    ) -> None:
        self.mesh, self.events = mesh, events
        self._operands, self._results = operands, results
        self.recorders: tuple[Observer, ...] = ()

    def join(self) -> None:
        """Let later computation wait for the routes."""
        operands, results, recorders = self._operands, self._results, self.recorders
        self.wait()
        for recorder in recorders:
            inputs = [*results, [self], *operands]
            recorder.on_run(JOIN, _Joined(len(results)), inputs, results)

    def wait(self, *, is_read: bool = True) -> None:
        """`join`, of which no recorder is told."""
        if self._operands:
            backend_of(self.mesh).join(self.mesh, self.events, is_read=is_read)
        self._operands, self._results, self.recorders = (), (), ()

    def __del__(self) -> None:
        """Wait where nobody has read a result: the memory of the operands is free now. The stream
        that computes now may be one that is captured."""
        self.wait(is_read=False)


class _Joined:
    """The wait for a launch in a program: a function of its results, itself, and its operands,
    which the program keeps so until they have been read."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __call__(self, *values: Any) -> Sequence[Blocks]:
        """Return the results."""
        (launch,) = values[self._count]
        launch.wait()
        return values[: self._count]


def launched(routes: Routes, operands: Sequence[Blocks], mesh: Mesh) -> tuple[Launch, list[Blocks]]:
    """Run routes as `run_routes` does, beside later computation of the devices of `mesh`. The
    results must not be read before the launch has been joined."""
    launch, results = _launched(routes, operands, mesh)
    if is_recorded():

        def again(*blocks: Blocks) -> list[Any]:
            launch, results = _launched(routes, blocks, mesh)
            return [*results, [launch]]

        ran(RELAYOUT, again, operands, [*results, [launch]])
        launch.recorders = tuple([o for o in OBSERVERS.get() if o.wants_runs])
    return launch, results


def _launched(
    routes: Routes, operands: Sequence[Blocks], mesh: Mesh
) -> tuple[Launch, list[Blocks]]:
    backend, events = backend_of(mesh), []
    try:
        with backend.overlapping(mesh) as events:
            results = carry_out(routes, operands)
    except BaseException:
        backend.join(mesh, events)
        raise
    return Launch(mesh, events, operands, results), results
