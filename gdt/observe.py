"""Observers: what wants to know about every op and every collective while it is active.

The gradient tape, the collective counter, `explain` and `no_moves` are observers. They are kept in
one context variable, so that threads and asynchronous tasks do not see each other's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import numpy as np

from gdt.errors import DtypeError, error


class Collective(NamedTuple):
    """One collective operation between devices.

    kind: `all_reduce`, `all_gather`, `reduce_scatter`, `all_to_all` or `exchange` (point to point).
    axes: names of the mesh axes whose devices take part. bytes: sent by all devices together.
    arrays: how many arrays travel in it.
    """

    kind: str
    axes: tuple[str, ...]
    bytes: int
    arrays: int
    reduction: str | None = None


class Observer:
    """Base of everything that watches ops run; the default is to ignore what happens."""

    # Whether it wants the ops that a composite is made of, or the composite as one.
    wants_parts = True
    # Whether it wants to know of moves and collectives; a tape does not, and calls are shorter.
    wants_moves = True
    # Whether it wants to know which functions made which blocks.
    wants_runs = False

    def on_op(self, op: Any, args: tuple[Any, ...], static: dict[str, Any], out: Any) -> None:
        """`op(*args, **static)` has returned `out`."""

    def on_move(self, op: str, types: tuple[Any, ...], wanted: tuple[Any, ...]) -> None:
        """`op` is about to move operands of `types` to the layouts `wanted` (None: stays)."""

    def on_kernel(self, kernels: str, reason: str) -> None:
        """The op that runs has launched these kernels, or its body for this reason; only on
        backends that have kernels."""

    def on_collective(self, collective: Collective) -> None:
        """A collective has run."""

    def on_run(
        self,
        name: str,
        function: Callable[..., Any],
        inputs: Sequence[Any],
        outputs: Sequence[Sequence[Any]],
        op: Any = None,
    ) -> None:
        """`function(*inputs)` has made `outputs`: lists of blocks, one list for an array; an input
        may be a Python scalar. op: which op it runs on several blocks; of ops on one block `on_op`
        tells. Without one, it moves arrays, or computes what no op does."""

    def on_update(
        self,
        name: str,
        plan: Any,
        donated: Sequence[int],
        inputs: Sequence[Any],
        outputs: Sequence[Sequence[Any]],
    ) -> None:
        """An op whose operands at the positions `donated` may be overwritten has made `outputs`
        with `plan.execute(inputs, free)`, where `free` has flags for each donated operand."""

    def on_draw(self, name: str, function: Callable[[], tuple[Any, ...]], values: Any) -> None:
        """The host has computed `values = function()`, scalars and arrays that differ from step to
        step: learning rates, counters, the streams of random numbers."""

    def on_note(self, function: Callable[[], None]) -> None:
        """`function()` has noted something that processes compare; a program must note it too."""

    def on_host(self, name: str) -> None:
        """`name` has brought values to the host, or from the host to a mesh."""

    def on_implicit_fetch(self, array: Any) -> None:
        """NumPy has taken the values of a distributed array, as `np.asarray` does."""

    def on_seed(self) -> None:
        """A generator of random numbers is about to be started anew."""

    def on_synchronize(self, what: str) -> None:
        """The host waits for devices, in `what`: copying to the host, or synchronize."""

    def on_enter(self, name: str) -> None:
        """A composite, a gradient or a resolution of partial reductions begins; others may nest."""

    def on_leave(self, name: str, args: tuple[Any, ...], out: Any) -> None:
        """The innermost of those has made `out` of `args`."""


OBSERVERS: ContextVar[tuple[Observer, ...]] = ContextVar("gdt.observers", default=())


@contextmanager
def observing(observer: Observer) -> Iterator[None]:
    """Tell `observer` about what happens in this block."""
    token = OBSERVERS.set((*OBSERVERS.get(), observer))
    try:
        yield
    finally:
        OBSERVERS.reset(token)


@contextmanager
def observing_only(*observers: Observer) -> Iterator[None]:
    """Tell these, and nobody else, about what happens in this block."""
    token = OBSERVERS.set(observers)
    try:
        yield
    finally:
        OBSERVERS.reset(token)


def is_recorded() -> bool:
    """Whether an observer wants to know which functions make which blocks."""
    return any(observer.wants_runs for observer in OBSERVERS.get())


def seeding() -> None:
    """Tell observers that a generator is about to be started anew."""
    for observer in OBSERVERS.get():
        observer.on_seed()


def met_host(name: str) -> None:
    """Tell the observers that `name` brings values to the host, or from there."""
    for observer in OBSERVERS.get():
        observer.on_host(name)


def ran(
    name: str,
    function: Callable[..., Any],
    inputs: Sequence[Any],
    outputs: Sequence[Sequence[Any]],
    op: Any = None,
) -> None:
    """Tell the observers that `function` has made blocks of blocks, see `Observer.on_run`."""
    for observer in OBSERVERS.get():
        observer.on_run(name, function, inputs, outputs, op)


def from_host(name: str, function: Callable[[], tuple[Any, ...]]) -> tuple[Any, ...]:
    """`function()`: floats and arrays that the host computes anew in every step, by which no
    recorded program may take them for constants.

    Raises DtypeError for an int, or what else there may be only one of."""
    observers = OBSERVERS.get()
    token = OBSERVERS.set(())
    try:
        # A float of its own, so that a recorder knows it by its identity.
        values = tuple([v * 1.0 if type(v) is float else _fresh(name, v) for v in function()])
    finally:
        OBSERVERS.reset(token)
    for observer in observers:
        observer.on_draw(name, function, values)
    return values


def _fresh(name: str, value: Any) -> Any:
    """A number that nobody else has, or an array."""
    if isinstance(value, np.number):
        return value.copy()
    if isinstance(value, int | complex | str | np.bool_ | None):
        raise error(
            DtypeError,
            name,
            f"the host computes {value!r} of type {type(value).__name__} for a step, which equal "
            "numbers elsewhere may be one object with",
            remedy="Return float(n), or a NumPy scalar such as np.int64(n).",
        )
    return value


def noted(function: Callable[[], None]) -> None:
    """Call `function`, which notes something that processes compare, in every run of a program."""
    function()
    for observer in OBSERVERS.get():
        observer.on_note(function)


def report_synchronization(what: str) -> None:
    """Tell the observers that the host is about to wait for devices."""
    for observer in OBSERVERS.get():
        observer.on_synchronize(what)
