"""Observers: objects that are told about every op, move and collective while they are active.

The gradient tape, the recorder of programs, the collective counter, `explain` and `no_moves` are
observers. One context variable holds the active ones, so threads and asynchronous tasks do not see
each other's. With no observer active, reporting an op costs one lookup.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import numpy as np

from gdt.errors import DtypeError, GradientError, error


class Collective(NamedTuple):
    """One collective operation between devices.

    kind: `all_reduce`, `all_gather`, `reduce_scatter`, `all_to_all`, `exchange` (point to point),
        or `reduce` and `broadcast`, which together carry out an all-reduce.
    axes: the names of the mesh axes whose devices take part.
    bytes: the bytes that all devices together send.
    arrays: the number of arrays that travel in it.
    reduction: `sum`, `max`, `min` or `prod` of a collective that reduces; None of any other.
    """

    kind: str
    axes: tuple[str, ...]
    bytes: int
    arrays: int
    reduction: str | None = None


class Observer:
    """The base of all observers; each method ignores what it is told."""

    # True: `on_op` tells of the ops inside a `custom_vjp`. False: it tells of that alone.
    wants_parts = True
    # True: `on_move` and `on_collective` are called. A tape does without, and calls are shorter.
    wants_moves = True
    # True: `on_run`, `on_update` and `on_draw` are called, and `on_op` of ops on one block.
    wants_runs = False
    # True: told of the ops that make the arrays of layers, when those are first read.
    wants_making = False

    def on_op(self, op: Any, args: tuple[Any, ...], static: dict[str, Any], out: Any) -> None:
        """`op(*args, **static)` has returned `out`."""

    def on_move(self, op: str, types: tuple[Any, ...], target_layouts: tuple[Any, ...]) -> None:
        """`op` is about to move operands of `types` to `target_layouts` (None: it stays)."""

    def on_kernel(self, kernels: str, reason: str) -> None:
        """The current op has launched `kernels`; or, where `reason` is not empty, it has run its
        body for that reason. Only backends that have kernels report this."""

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
        """`function(*inputs)` has returned `outputs`: one list of blocks for each array. An input
        is a list of blocks or a Python scalar. op: the op that ran on several blocks (`on_op` tells
        of ops on one block); None where `function` moves arrays or computes outside any op."""

    def on_update(
        self,
        name: str,
        plan: Any,
        donated: Sequence[int],
        inputs: Sequence[Any],
        outputs: Sequence[Sequence[Any]],
    ) -> None:
        """`plan.run(inputs, free)` has returned `outputs` of the op `name`, which may overwrite
        its operands at the positions `donated`. `free`: for each donated operand, and there for
        each block, whether the op may overwrite it."""

    def on_draw(self, name: str, function: Callable[[], tuple[Any, ...]], values: Any) -> None:
        """The host has computed `values = function()`: scalars and arrays that differ from step to
        step, such as learning rates, counters, and the streams of random numbers."""

    def on_note(self, function: Callable[[], None]) -> None:
        """`function()` has noted facts that processes compare; a program must call it too."""

    def on_host(self, action: str, remedy: str) -> None:
        """Python is about to do `action`: to read a value on the host, to take data from there, or
        to read or change what gdt counts there. remedy: what a recorded step does instead."""

    def on_place(self, value: Any) -> None:
        """`value`, of NumPy or Python, is about to become a distributed array."""

    def on_count(self, function: Callable[[], tuple[Any, ...]]) -> None:
        """The host is about to compute `function()`, of which `on_draw` will tell."""

    def on_fetch(self, array_type: Any, nbytes: int) -> None:
        """`nbytes` of an array of type `array_type` are about to be gathered to the host."""

    def on_implicit_fetch(self, array: Any) -> None:
        """NumPy has fetched the values of the distributed `array`, as `np.asarray` does."""

    def on_item(self, array: Any) -> None:
        """The elements of an array are about to become Python scalars, as by `float(x)` or
        `x.tolist()`."""

    def on_write(self, array: Any, before: Any, after: Any) -> None:
        """`array` is about to take the value of the array `after`, as `array[i] = value` has it do.
        `before` holds the value that it had. An observer in `KEEPERS` is told outside of its `with`
        statement too."""

    def on_outdate(self, view: Any, before: Any) -> None:
        """`view` is about to be outdated, since its base is written; `before` holds the value that
        it had. An observer in `KEEPERS` is told outside of its `with` statement too."""

    def on_renew(self, view: Any, value: Any) -> None:
        """`view`, of which the base has been written, is about to take its value of now, that of
        the array `value`. An observer in `KEEPERS` is told outside of its `with` statement too."""

    def on_synchronize(self, what: str) -> None:
        """The host is about to wait for devices in `what`: copying to the host, or synchronize."""

    def on_enter(self, name: str) -> None:
        """A `custom_vjp`, a gradient or a resolution of partial reductions begins; may nest."""

    def on_leave(self, name: str, args: tuple[Any, ...], out: Any) -> None:
        """The innermost entered `name` has returned `out` for `args`."""


OBSERVERS: ContextVar[tuple[Observer, ...]] = ContextVar("gdt.observers", default=())
# References to observers that keep arrays which ops have had; a WeakSet takes ten times as long.
KEEPERS: set[weakref.ref[Observer]] = set()


def keep_informed(observer: Observer) -> None:
    """Add to `KEEPERS` an observer, until it is gone."""
    KEEPERS.add(weakref.ref(observer, KEEPERS.discard))


@contextmanager
def observing(observer: Observer) -> Iterator[None]:
    """Add `observer` to the active observers inside the `with` statement."""
    token = OBSERVERS.set((*OBSERVERS.get(), observer))
    try:
        yield
    finally:
        OBSERVERS.reset(token)


@contextmanager
def observing_only(*observers: Observer) -> Iterator[None]:
    """Make `observers` the only active observers inside the `with` statement."""
    token = OBSERVERS.set(observers)
    try:
        yield
    finally:
        OBSERVERS.reset(token)


def is_taped() -> bool:
    """Return whether a tape sees the ops that run, whose arrays it must be able to follow."""
    return any(not observer.wants_parts for observer in OBSERVERS.get())


def is_recorded() -> bool:
    """Return whether an active observer is told of runs (`wants_runs`), as a recorder is."""
    return any(observer.wants_runs for observer in OBSERVERS.get())


HELD = (
    "Pass it as an argument, or keep it in a variable, Module, dict or list that the step or "
    "state= names."
)
MADE_OUTSIDE = (
    "Make a gdt array of it: gdt.asarray(values) outside of the step, or gdt.arange(n) and the "
    f"like inside. {HELD}"
)
COUNTED = (
    "It is another value in every call: read it outside of the step, and pass it as an argument: "
    "gdt.asarray(n)."
)
READ_OUTSIDE = "Return the array and read it outside, or compute with gdt.where."


def met_host(action: str, remedy: str = READ_OUTSIDE) -> None:
    """Tell the observers that Python is about to do `action`: `Observer.on_host`."""
    for observer in OBSERVERS.get():
        observer.on_host(action, remedy)


def ran(
    name: str,
    function: Callable[..., Any],
    inputs: Sequence[Any],
    outputs: Sequence[Sequence[Any]],
    op: Any = None,
) -> None:
    """Tell the observers that `function(*inputs)` has returned `outputs`: `Observer.on_run`."""
    for observer in OBSERVERS.get():
        observer.on_run(name, function, inputs, outputs, op)


Draw = tuple[str, tuple[Any, ...]]  # a name, and the values that the host has computed for it

_REPEATED: ContextVar[Iterator[Draw] | None] = ContextVar("gdt.repeated", default=None)


@contextmanager
def repeating(draws: Sequence[Draw]) -> Iterator[None]:
    """Let `from_host` return these values again, in order, inside the `with` statement."""
    token = _REPEATED.set(iter(draws))
    try:
        yield
    finally:
        _REPEATED.reset(token)


def _repeated(name: str, draws: Iterator[Draw]) -> tuple[Any, ...]:
    """Return the values of the next draw; raise GradientError if it is of another name."""
    earlier, values = next(draws, ("nothing", ()))
    if earlier != name:
        raise error(
            GradientError,
            "checkpointed",
            f"the host computes {name} in the backward pass, where the forward pass had {earlier}",
            remedy="A checkpointed function does the same whenever it is called.",
        )
    for observer in OBSERVERS.get():
        if not observer.wants_runs:  # a recorder knows these values
            observer.on_draw(name, lambda: values, values)
    return values


def from_host(name: str, function: Callable[[], tuple[Any, ...]]) -> tuple[Any, ...]:
    """Return `function()`: numbers and arrays that the host computes anew in every step.

    A recorder identifies them by their identity, so it never takes them for constants. Each float
    and NumPy scalar is therefore returned as a new object.

    Raises DtypeError for an int, a bool or a string, of which Python shares one object."""
    draws = _REPEATED.get()
    if draws is not None:
        return _repeated(name, draws)
    observers = OBSERVERS.get()
    for observer in observers:
        observer.on_count(function)
    token = OBSERVERS.set(())
    try:
        values = tuple([v * 1.0 if type(v) is float else _fresh(name, v) for v in function()])
    finally:
        OBSERVERS.reset(token)
    for observer in observers:
        observer.on_draw(name, function, values)
    return values


def _fresh(name: str, value: Any) -> Any:
    """Return a copy of a NumPy scalar, or `value` itself where it is an array."""
    if isinstance(value, np.number):
        return value.copy()
    if isinstance(value, int | complex | str | np.bool_ | None):
        raise error(
            DtypeError,
            name,
            f"the host computes {value!r} of type {type(value).__name__} for a step, and Python "
            "may share one object between equal values of that type",
            remedy="Return float(n), or a NumPy scalar such as np.int64(n).",
        )
    return value


def noted(function: Callable[[], None]) -> None:
    """Call `function`, which notes facts that processes compare, and have programs call it too."""
    function()
    for observer in OBSERVERS.get():
        observer.on_note(function)


def report_fetch(array_type: Any, nbytes: int) -> None:
    """Tell the observers that values are about to be gathered to the host: `Observer.on_fetch`."""
    for observer in OBSERVERS.get():
        observer.on_fetch(array_type, nbytes)


def report_synchronization(what: str) -> None:
    """Tell the observers that the host is about to wait for devices."""
    for observer in OBSERVERS.get():
        observer.on_synchronize(what)
