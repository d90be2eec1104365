"""The state of a step: where it keeps arrays besides its arguments, and what it is recorded for."""

from __future__ import annotations

import inspect
import itertools
import pickle
import random
import reprlib
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, NamedTuple, NoReturn

import numpy as np

from gdt.arguments import shown_value
from gdt.array.array import DistributedArray
from gdt.backend import backend_of
from gdt.engine.plan import value_key
from gdt.errors import FunctionError, error, line_of_user
from gdt.observe import Observer
from gdt.programs.recorder import refused_write
from gdt.programs.signature import PRIMITIVES, Arguments
from gdt.random.generator import Generator, generator
from gdt.state import Place, Stateful, owner_of, places
from gdt.state.variables import MISSING, Cell, read, variables

STATE = (DistributedArray, Stateful, Generator)  # what makes a variable state
CONSTANT = (tuple, types.MappingProxyType)  # containers whose values cannot be set

# What a step may put at a place, and what a recording relies on there. state: arrays in the place
# of arrays; all else is guarded. argument: the same, but it is part of the signature. counter:
# anything, as gdt counts there. constant: nothing.
Role = Literal["state", "argument", "counter", "constant"]


class Entry(NamedTuple):
    """A place, the value that it had when the state was taken, and what a step may put there."""

    place: Place
    value: Any
    role: Role

    @classmethod
    def of(cls, place: Place, role: Role) -> Entry:
        """The entry of a place with the value that it has now."""
        return cls(place, read(place), role)

    @property
    def is_guarded(self) -> bool:
        """Whether a recording relies on the very value at the place."""
        is_fixed = isinstance(self.value, DistributedArray) or isinstance(self.place.owner, tuple)
        return self.role == "state" and not is_fixed


class Keys:
    """The owner of a container's keys, under the key `tuple`, or of its length, under `len`."""

    def __init__(self, container: Any) -> None:
        self.container = container

    def __getitem__(self, read: Callable[[Any], Any]) -> Any:
        return read(self.container)

    def __setitem__(self, read: Callable[[Any], Any], keys: Any) -> None:
        """Set the keys; the entries of the values, which come later, put values under them."""
        if isinstance(self.container, list):
            self.container[:] = [MISSING] * keys
        elif isinstance(self.container, MutableMapping):
            self.container.clear()
            for k in keys:
                self.container[k] = MISSING


class HostRandom:
    """The random numbers of Python and NumPy, as an owner of their states."""

    def __getitem__(self, name: str) -> bytes:
        return pickle.dumps(random.getstate() if name == "random" else np.random.get_state())

    def __setitem__(self, name: str, state: bytes) -> None:
        (random.setstate if name == "random" else np.random.set_state)(pickle.loads(state))


HOST_RANDOM = HostRandom()


class RefusedIterator:
    """A stand-in for an iterator while a step is recorded. refuse: a function that raises the error
    for taking its next value, or for sending it one."""

    def __init__(self, iterator: Iterator[Any], refuse: Callable[..., NoReturn]) -> None:
        vars(self).update(_iterator=iterator, send=refuse)

    def __iter__(self) -> RefusedIterator:
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._iterator, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._iterator, name, value)


class State(Observer):
    """The state of a step, and what else it may read or change, as it is now. As an observer it
    refuses writes to the elements of its arrays: nobody could put those back.

    named: the values that `state=` names; None takes the variables of the step in their place.
    arguments: those of the call. The state has an `Entry` for every value in variables, containers
    and attributes, and for the keys of containers.

    A variable is state if its value holds an array, a Stateful object or a generator. Other
    variables are constants, which are compared to find out what the step itself changes in them.
    """

    wants_moves = False

    def __init__(
        self, function: Callable[..., Any], named: tuple[Any, ...] | None, arguments: Arguments
    ) -> None:
        self._name, self._line = name_of(function), _line_of(function)
        self._arguments = [
            (Place("an argument", owner, key), n, owner[key])
            for n, (owner, key) in enumerate(arguments.places)
        ]
        self._entries: list[Entry] = []
        self.entered: set[int] = set()  # identities of all containers
        roots, unnamed = [*variables(function)], []
        if named is not None:
            unnamed, roots = roots, [Place(f"state[{i}]", named, i) for i in range(len(named))]
        for name, value in arguments.objects:
            roots += variables(value, name)
        for root in roots:
            self._enter(root)
        for container in arguments.containers:
            if id(container) not in self.entered:
                self._enter_keys("an argument", container, "argument")
                keys = container if isinstance(container, Mapping) else range(len(container))
                inside = [Place(f"argument[{key!r}]", container, key) for key in keys]
                self._entries += [Entry.of(place, "argument") for place in inside]
        # A variable that holds an array of the state as well must go on to do so.
        held = {id(array) for *_, array in self.arrays}
        for place in unnamed:
            self._entries.append(
                Entry.of(place, "state" if id(read(place)) in held else "constant")
            )
        self._enter_draws("gdt.random", generator)
        for name in ("random", "numpy.random"):
            self._entries.append(Entry.of(Place(name, HOST_RANDOM, name), "constant"))

    def _enter(self, root: Place) -> None:
        """Take in what a variable holds, or what is named in a tuple."""
        value, is_named = read(root), isinstance(root.owner, tuple)
        tree = _tree_of(value) if is_named else value
        inside = places(tree, root.name, on_cycle=self._refuse_cycle, closed=self.entered)
        contents = [(root, value), *[(place, place.value) for place in inside]]
        is_state = is_named or any(isinstance(item, STATE) for _, item in contents)
        role: Role = "state" if is_state else "constant"
        for place, item in contents:
            self._entries.append(Entry(place, item, "counter" if place.is_counter else role))
            self._enter_keys(place.name, owner_of(tree if place is root else item), role)
            if isinstance(item, Generator):
                self._enter_draws(place.name, item)

    def _enter_keys(self, name: str, container: Any, role: Role) -> None:
        if container is not None and not isinstance(container, tuple):
            fact, read = ("keys", tuple) if isinstance(container, Mapping) else ("length", len)
            place = Place(f"the {fact} of {name}", Keys(container), read)
            self._entries.append(Entry.of(place, role))

    def _enter_draws(self, name: str, source: Generator) -> None:
        self._entries.append(Entry.of(Place(name, vars(source), "_state"), "counter"))

    def _refuse_cycle(self, name: str) -> None:
        raise error(
            FunctionError,
            self._name,
            f"{name}, in the state of the step at {self._line}, holds itself",
            remedy="Keep arrays in trees without cycles, or name those that it needs: state=[...].",
        )

    @property
    def arrays(self) -> list[tuple[Place, int, DistributedArray]]:
        """The arrays that a call may read: place, number among those of the arguments (-1: it is in
        the state), and array."""
        return self._arguments + [
            (place, -1, value)
            for place, value, role in self._entries
            if role == "state" and isinstance(value, DistributedArray)
        ]

    @property
    def values(self) -> list[tuple[str, Any]]:
        """The name and the value of every entry."""
        return [(place.name, value) for place, value, _ in self._entries]

    # ---- around a call

    def on_write(self, array: Any, before: Any, after: Any) -> None:
        if any(array is read for *_, read in self.arrays):
            raise refused_write(before)

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Put everything back if what runs in this context raises: else somebody who catches that
        would take half a step, or take one twice.

        Until its end, resolved values of arrays are forgotten, and whether ops have passed their
        partial reductions on. So every call sends the same, whether it is replayed, recorded or
        runs as written, and processes may differ in that.
        """
        traces = [(a, a._resolved, a._is_passed) for *_, a in self.arrays]
        for array, *_ in traces:
            array._resolved, array._is_passed = None, False
        try:
            yield
        except BaseException:
            self.put_back()
            raise
        finally:
            for array, resolved, is_passed in traces:
                array._resolved, array._is_passed = resolved, is_passed

    @contextmanager
    def refusing_iterators(self) -> Iterator[None]:
        """Refuse, in this context, to take the next value of an iterator in a variable: a replay
        would not take it."""

        def refuse(place: Place, iterator: Any, _: Any) -> NoReturn:
            raise error(
                FunctionError,
                self._name,
                f"a recorded step cannot take the next value of {place.name} "
                f"({type(iterator).__name__}), in {line_of_user()}",
                remedy="Take it outside of the step, and pass its value: an array, if it changes.",
            )

        refused = [
            (place, value, RefusedIterator(value, partial(refuse, place, value)))
            for place, value, _ in self._entries
            if isinstance(value, Iterator)
        ]
        try:
            for place, _, stand_in in refused:
                try:
                    place.owner[place.key] = stand_in
                except TypeError:  # a tuple, where nothing can stand in for it
                    next(stand_in)
            yield
        finally:
            for place, iterator, stand_in in refused:
                if read(place) is stand_in:  # the step may have put something else there
                    place.owner[place.key] = iterator

    def put_back(self) -> None:
        """Let everything be again what it was, counters and random numbers too."""
        for place, value, _ in self._entries:
            if _is_same(read(place), value) or isinstance(place.owner, CONSTANT):
                continue
            if value is MISSING:
                del place.owner[place.key]
            else:
                place.owner[place.key] = value

    def refuse_changes(self) -> None:
        """Raise FunctionError if a step has changed something that a replay would not change."""
        for place, was, role in self._entries:
            now, is_array = read(place), isinstance(was, DistributedArray)
            may_be_another = role != "constant" and is_array and isinstance(now, DistributedArray)
            if not (role == "counter" or may_be_another or _is_same(now, was)):
                change = f"changes {place.name}, {_shown(was)}, to {_shown(now)}"
                if place.owner is HOST_RANDOM:
                    change = f"draws from {place.name}, and not from gdt.random"
                raise error(
                    FunctionError,
                    self._name,
                    f"the step at {self._line} {change}",
                    remedy="A replay puts arrays in the places of arrays, and does nothing else in "
                    "Python: return it, or change it outside of the step.",
                )

    def forget(self) -> None:
        """Drop all but what a recording relies on: arrays may be large."""
        self._entries, self._arguments = [e for e in self._entries if e.is_guarded], []

    # ---- guards

    def unchanged(self, namespace: dict[str, Any]) -> str:
        """An expression that is true if everything that a recording relies on is what it was; its
        names are put into `namespace`. It may raise MISSING_KEY."""
        names: dict[int, tuple[str, Any]] = {}

        def name(thing: Any) -> str:
            return names.setdefault(id(thing), (f"guard{len(names)}", thing))[0]

        checks = [f"{_expression(place, name)} {name(value)}" for place, value, _ in self._entries]
        namespace |= names.values()
        # Numbers may be equal without being one object.
        return f"{' and '.join(dict.fromkeys(checks)) or True} or changed() is None"

    def changed(self) -> str | None:
        """The name of something that a recording relies on and that is not what it was; or None."""
        others = (place for place, value, _ in self._entries if not _is_same(read(place), value))
        return next((place.name for place in others), None)


def difference(
    values: Iterable[tuple[str, Any]], others: Iterable[tuple[str, Any]]
) -> tuple[str, Any, Any] | None:
    """The name of the first value that differs by a bit from its twin, and both; None if none."""
    pairs = itertools.zip_longest(values, others, fillvalue=("its structure", None))
    differing = (
        (name, value, other)
        for (name, value), (twin, other) in pairs
        if name != twin or not _has_same_bits(value, other)
    )
    return next(differing, None)


def name_of(function: Callable[..., Any]) -> str:
    """The name of a step in errors."""
    return getattr(function, "__name__", type(function).__name__)


def _line_of(function: Callable[..., Any]) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"line {code.co_firstlineno} of {code.co_filename}" if code else name_of(function)


def holds_places(value: Any) -> bool:
    """Whether a value may be named as state: a container, a user's object, or a generator."""
    return _tree_of(value) is not None or isinstance(value, Generator)


def _tree_of(value: Any) -> Any:
    """A container itself; the attributes of an object of a class that is neither gdt's nor
    Python's; None for any other value."""
    if owner_of(value) is not None:
        return value
    package = type(value).__module__.partition(".")[0]
    is_users = package not in ("gdt", "numpy", *sys.stdlib_module_names)
    is_users = is_users or isinstance(value, types.SimpleNamespace)
    return getattr(value, "__dict__", None) if is_users else None


def _expression(place: Place, name: Callable[[Any], str]) -> str:
    """The source that reads a place and compares it with what follows; `name(value)` returns the
    name of a value in that source."""
    owner, key = place.owner, place.key
    if isinstance(owner, Keys):
        return f"{key.__name__}({name(owner.container)}) =="
    if isinstance(owner, Cell):
        return f"{name(owner.cell)}.cell_contents is"
    return f"{name(owner)}[{repr(key) if type(key) in (str, int) else name(key)}] is"


def _is_same(now: Any, value: Any) -> bool:
    """Whether two values are one object, or the same number or text, or tuples of such."""
    if now is value:
        return True
    if type(now) is tuple is type(value):
        return len(now) == len(value) and all(map(_is_same, now, value))
    if type(now) is not type(value) or not isinstance(value, PRIMITIVES):
        # Methods are made anew whenever they are looked up.
        return isinstance(value, types.MethodType) and bool(now == value)
    return bool(value_key(now) == value_key(value))


def _has_same_bits(a: Any, b: Any) -> bool:
    """Whether two arrays are of one type and hold the same bits; of others, whether they are the
    same."""
    if not (isinstance(a, DistributedArray) and isinstance(b, DistributedArray)):
        return _is_same(a, b)
    host = backend_of(a.mesh).to_host
    return a.type is b.type and all(
        host(x.data).tobytes() == host(y.data).tobytes()
        for x, y in zip(a.shards, b.shards, strict=True)
    )


def _shown(value: Any) -> str:
    if value is MISSING:
        return "which is nothing yet"
    return reprlib.repr(value) if isinstance(value, tuple) else shown_value(value)
