"""Notes of what this process does, which processes that own a mesh together compare.

Messages carry the checksum of the history of notes (`gdt.comm.agreement`); a program of one process
notes nothing.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, lru_cache
from operator import call
from typing import Any

import numpy as np

from gdt.comm.agreement import (
    HISTORIES,
    UNKNOWN,
    Action,
    Maker,
    described,
    digest,
    origins_of,
)
from gdt.comm.messages import Messages
from gdt.errors import line_of_user
from gdt.observe import noted
from gdt.settings import matmul_choices
from gdt.sharding.array_type import ArrayType
from gdt.sharding.mesh import Mesh

_connected: Messages | None = None


def connected() -> Messages | None:
    """The messages between the processes of this program; None if there is one."""
    return _connected


def connect(messages: Messages | None) -> None:
    """Set what `connected` returns."""
    global _connected  # noqa: PLW0603  # a fact of the process, as its place among the others is
    _connected = messages
    HISTORIES[:] = [] if messages is None else [messages.history]


def gathered(num_processes: int, value: Any, what: str) -> list[Any]:
    """The values that all processes that own a mesh give, in their order."""
    return list(decided(num_processes, value, lambda values: values, what))


def decided(num_processes: int, value: Any, decision: Callable[[list[Any]], Any], what: str) -> Any:
    """Return what process 0 makes of the values that all processes that own a mesh give, in order.
    The others are told the result alone."""
    if num_processes == 1 or _connected is None:
        return decision([value])
    return _connected.decide(value, decision, what)


def gathered_with_lines(
    num_processes: int, value: Any, what: str
) -> tuple[list[Any], list[tuple[str, str]]]:
    """As `gathered`; and, for errors, every process with the user's line that has called it."""
    both = lambda values, sides: (values, sides)
    values, sides = decided_with_lines(num_processes, value, both, what)
    return list(values), list(sides)


def decided_with_lines(
    num_processes: int,
    value: Any,
    decision: Callable[[list[Any], list[tuple[str, str]]], Any],
    what: str,
) -> Any:
    """As `decided`, with every process and the user's line that has called it, for errors."""
    if num_processes == 1 or _connected is None:
        return decision([value], [("", "")])
    peers = _connected.peers

    def decide(told: list[Any]) -> Any:
        sides = [(str(peer), line) for peer, (_, line) in zip(peers, told, strict=True)]
        return decision([value for value, _ in told], sides)

    return _connected.decide((value, line_of_user()), decide, what)


def note(
    mesh: Mesh, action: Action, numbers: Sequence[Any] = (), operands: Sequence[Any] = ()
) -> None:
    """Note an action that all processes that own a mesh must do alike; see `History.add`.

    operands: the arrays that the action is given, where those are to be compared. The numbers
    that an op computes also depend on settings, which are noted where they are chosen.
    """
    if mesh.num_processes > 1 and _connected is not None:
        if action.kind == "op" and (choices := matmul_choices()):
            numbers = [*numbers, *choices]
        if operands:
            _connected.history.begin(origins_of(operands))
        _connected.history.add(action, numbers)


def unnoted() -> AbstractContextManager[None]:
    """A context in which nothing is noted: what runs there has been noted before."""
    return nullcontext() if _connected is None else _connected.history.paused()


def note_operands(text: str, arrays: Sequence[Any]) -> None:
    """Note that these arrays are used, in a way that the text describes."""
    if _connected is None or _connected.history.in_step:
        return
    origins = origins_of(arrays)
    if any(origin is not UNKNOWN for origin in origins):
        _connected.history.begin(origins)
        _connected.history.add(_use(text))


@lru_cache(maxsize=256)
def _use(text: str) -> Action:
    """The action of a use of arrays."""
    return Action("op", text)


@contextmanager
def noted_dataflow(name: str) -> Iterator[list[Any]]:
    """A context in which the step or backward pass of that name runs as it is written.

    Its results are added to the list that the context returns. At the end of the context the
    dataflow is noted, and so it is in every replay.
    """
    results: list[Any] = []
    history = None if _connected is None else _connected.history
    is_outermost = history is not None and history.begin_dataflow()
    yield results
    if history is None or not is_outermost:
        return
    checksum = history.end_dataflow(results)
    if checksum is not None:
        action = Action("dataflow", f"the dataflow of {name} ({checksum:016x})")
        noted(lambda: history.add(action))


@contextmanager
def noted_step(name: str, operands: Callable[[], list[Any]]) -> Iterator[list[Any]]:
    """A context in which a step runs, as it is written or as a replay: processes compare the arrays
    that it is given, and not what its ops are given.

    operands: a function that returns the arrays in the places which the step reads and writes. What
    the step returns is added to the list that the context returns.
    """
    history, before, results = HISTORIES[0], operands(), list[Any]()
    note_operands(name, before)
    history.begin_step(before)
    # A step writes into the memory of arrays to which nothing else refers.
    references = [*map(weakref.ref, before)]
    del before
    try:
        yield results
    finally:
        history.end_step()
    arrays = [*map(call, references)]
    new = [now for now, array in zip(operands(), arrays, strict=True) if now is not array]
    results = [x for x in (*new, *results) if type(getattr(x, "type", None)) is ArrayType]
    history.place_results(results, arrays)


def note_fetch(name: str, array: Any) -> None:
    """Note that the parts of an array are gathered from other processes, if they are."""
    if _connected is not None and not array.type.is_whole():
        note_operands(f"{name} of {array.type}", [array])


def note_held(notes: Iterable[tuple[Action, Sequence[Any]]]) -> None:
    """Note the actions of another thread, as `held_notes` has them."""
    for action, numbers in notes:
        if _connected is not None:
            _connected.history.add(action, numbers)


def note_result(block: Any) -> None:
    """Remember a block as one that the op of the newest note has made."""
    if _connected is not None:
        _connected.history.add_result(block)


def note_reduction(mesh: Mesh, kind: str, blocks: Iterable[Any]) -> None:
    """Note which ops have made the blocks that a collective of several processes combines."""
    if mesh.num_processes > 1 and _connected is not None:
        history, blocks = _connected.history, list(blocks)
        history.add(_reduction(kind), list(map(Maker.of, blocks, history.makers(blocks))))


@cache
def _reduction(kind: str) -> Action:
    """The action of a collective of that kind, whose numbers are those of makers."""
    return Action("op", f"{kind} of the results", "of calls")


def note_draw(array_type: ArrayType, key: Any, stream: Any) -> None:
    """Note that an array is drawn. Keys on GPUs are not compared, since the host would have to wait
    for them."""
    if array_type.mesh.num_processes > 1 and isinstance(key, np.ndarray):
        text = f"key {int(key)}, stream {int(stream)}, {described('', array_type)}"
        note(array_type.mesh, Action("draw", text))


def note_made(maker: str, array: Any, value: Any = None, numbers: Sequence[Any] = ()) -> None:
    """Note that an array has been made by a public function, of these numbers, or of the value that
    the user gave it."""
    if array.type.mesh.num_processes > 1 and _connected is not None:
        contents = digest(value)
        action = Action("array", described(maker, array.type) + contents)
        _connected.history.add(action, numbers)
        if value is None or contents:  # the note tells all that the array was made of
            array._origin = _connected.history.origin(action, numbers)


def note_copied(copy: Any, x: Any) -> None:
    """Note the contents of an array of a process's own mesh that is copied to a mesh of several:
    outside of recorded steps, of which a replay would not know them."""
    if _connected is None or _connected.history.in_step or copy.type.mesh.num_processes == 1:
        return
    contents = "".join(dict.fromkeys(map(digest, x.blocks)))  # of replicas once
    _connected.history.add(Action("array", described("copy_to_mesh", copy.type) + contents))


def notes_since(count: int) -> list[tuple[Action, Sequence[Any]]]:
    """The newest notes of this process, after the first `count`: actions and their numbers."""
    return [] if _connected is None else _connected.history.since(count)


def makers_of(blocks: Sequence[Any]) -> list[int]:
    """The numbers of the notes of the ops that have made these blocks; 0 for others."""
    return [0] * len(blocks) if _connected is None else _connected.history.makers(blocks)


def set_makers(blocks: Iterable[Any], numbers: Iterable[int]) -> None:
    """Remember these blocks as made by the ops of the notes of these numbers; of 0, by no op."""
    if _connected is not None:
        _connected.history.set_makers(zip(blocks, numbers, strict=True))


def notes_here() -> bool:
    """Whether this thread's actions are noted."""
    return _connected is not None and _connected.history.notes_here()


def note_count() -> int:
    """The number of notes that this process has made."""
    return 0 if _connected is None else _connected.history.count
