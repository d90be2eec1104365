"""What the two streams of a simulated GPU are asked in a step: tasks, and what each waits for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from gdt.backend import backend_of
from gdt.observe import Collective, Observer, observing
from gdt.sharding.mesh import Mesh

from . import engine
from .order import Memory, Noted


@dataclass(eq=False)
class Task:
    """What a stream does at a time: an op, on the stream that computes, or what is launched on the
    one that communicates, with its packing.

    number: of the first request in the log; a task of later ones may be asked for earlier ones.
    after: the last task of the other stream that a launch begins after. waits: the launches that an
    op waits for, or that computation waits for so that a launch may free what they have read.
    """

    name: str
    communicates: bool
    number: int
    after: Task | None = None
    waits: list[Task] = field(default_factory=list)
    reads: set[Memory] = field(default_factory=set)
    writes: set[Memory] = field(default_factory=set)


class _Marks(Observer):
    """An observer that puts ops and collectives among what streams are asked."""

    def on_op(self, op: Any, args: tuple[Any, ...], static: dict[str, Any], out: Any) -> None:
        engine.CUPY.order.note("op", 0, op.name, 0)

    def on_collective(self, collective: Collective) -> None:
        engine.CUPY.order.note("collective", 0, collective.kind, 0)


@contextmanager
def logged() -> Iterator[list[Noted]]:
    """Provide the log of what all streams are asked in this `with` statement."""
    order = engine.CUPY.order
    order.log = log = []
    try:
        yield log
    finally:
        order.log = None


def tasks_of(step: Callable[[], Any], mesh: Mesh, is_observed: bool = True) -> list[Task]:
    """Return the tasks of the first device of a mesh in a step. is_observed: whether ops run one by
    one, and give tasks their names; else a step runs as it would, and tasks have none."""
    with logged() as log:
        if is_observed:
            with observing(_Marks()):
                step()
        else:
            step()
    backend = backend_of(mesh)
    return tasks_in(log, backend.compute_stream(0).ptr, backend.communication_stream(0).ptr)


def tasks_in(log: Sequence[Noted], compute: int, communication: int) -> list[Task]:
    """Return the tasks of the two streams of a device, in the host's order."""
    tasks: list[Task] = []
    ends: dict[int, Task] = {}  # by the identity of the event of its end
    op: Task | None = None
    launch: Task | None = None
    latest: Task | None = None  # of those that compute
    collective, unnamed, waits = "", list[Task](), list[Task]()
    for number, noted in enumerate(log):
        if noted.what == "op":
            for task in unnamed:
                task.name = noted.thing
            op, unnamed = None, []
        elif noted.what == "collective":
            collective = noted.thing
        elif noted.stream == compute and noted.what == "wait":
            waits += [ends[id(noted.thing)]] if id(noted.thing) in ends else []
            op = None
        elif noted.stream == compute and noted.what != "record":
            if op is None:
                op = latest = Task("", False, number, None, waits)
                tasks.append(op)
                unnamed.append(op)
                waits = []
            (op.reads if noted.what == "read" else op.writes).add(noted.thing)
        elif noted.stream == communication and noted.what == "wait":
            if id(noted.thing) not in ends:  # of the other stream: a launch begins
                launch = Task("", True, number, latest, waits)
                tasks.append(launch)
                waits = []
        elif noted.stream == communication and launch is not None:
            if noted.what == "record":
                ends[id(noted.thing)] = launch
            else:
                launch.name = collective or launch.name
                (launch.reads if noted.what == "read" else launch.writes).add(noted.thing)
                collective = ""
    return tasks
