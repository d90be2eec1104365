"""The state of a step: where it keeps arrays besides its arguments, and what it is recorded for."""

from __future__ import annotations

import inspect
import io
import itertools
import pickle
import random
import reprlib
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, NoReturn

import numpy as np

from gdt.arguments import shown_value
from gdt.array.array import DistributedArray
from gdt.array.views import rebind
from gdt.backend import backend_of
from gdt.engine.plan import value_key
from gdt.errors import FunctionError, error, line_of_user
from gdt.observe import Observer
from gdt.programs.signature import PRIMITIVES, Arguments
from gdt.random.generator import Generator, generator
from gdt.state import Place
from gdt.state.variables import (
    MISSING,
    Attributes,
    Cell,
    Keys,
    Reach,
    Reached,
    is_own,
    read,
    tree_of,
)

HOST_RANDOM = (("random", random), ("numpy.random", np.random.get_state.__self__))  # type: ignore[attr-defined]
HOST_GENERATORS = (
    random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator,
)  # fmt: skip
CONSTANT = (tuple, types.MappingProxyType)  # containers whose values cannot be set

# What a step may put at a place, and what a recording relies on there. state: arrays in the place
# of arrays; all else is guarded. argument: the same, but it is part of the signature. counter:
# anything, as gdt counts there. constant: nothing; where nothing is, that is guarded.
Role = Literal["state", "argument", "counter", "constant"]


class Entry(NamedTuple):
    """A place, the value that it had when the state was taken, and what a step may put there.

    argument: the number of its array among those of the arguments, or -1.
    """

    place: Place
    value: Any
    role: Role
    argument: int = -1

    @classmethod
    def of(cls, place: Place, role: Role, argument: int = -1) -> Entry:
        """The entry of a place with the value that it has now."""
        return cls(place, read(place), role, argument)

    @property
    def is_read(self) -> bool:
        """Whether it is of an array that a call may read."""
        is_state = self.role == "state" and isinstance(self.value, DistributedArray)
        return is_state or self.argument >= 0

    @property
    def is_guarded(self) -> bool:
        """Whether a recording relies on the very value at the place."""
        is_fixed = isinstance(self.value, DistributedArray) or isinstance(self.place.owner, tuple)
        is_nothing = self.value is None or self.value is MISSING
        is_nothing = is_nothing or (isinstance(self.place.owner, Keys) and not self.value)
        return (self.role == "state" or (self.role == "constant" and is_nothing)) and not is_fixed


class Draws:
    """A generator of random numbers of Python or NumPy, as an owner of its state."""

    def __init__(self, source: Any) -> None:
        self._source = getattr(source, "bit_generator", source)

    def __getitem__(self, key: int) -> bytes:
        get = getattr(self._source, "getstate", None) or getattr(self._source, "get_state", None)
        return pickle.dumps(get() if get else self._source.state)

    def __setitem__(self, key: int, state: bytes) -> None:
        put = getattr(self._source, "setstate", None) or getattr(self._source, "set_state", None)
        if put:
            put(pickle.loads(state))
        else:
            self._source.state = pickle.loads(state)


class RefusedIterator:
    """A stand-in for an iterator while the step of that name is recorded."""

    def __init__(self, step: str, entry: Entry) -> None:
        vars(self).update(_step=step, _place=entry.place, _iterator=entry.value)

    def __iter__(self) -> RefusedIterator:
        return self

    def __next__(self) -> NoReturn:
        iterator_type = type(self._iterator).__name__
        raise error(
            FunctionError,
            self._step,
            f"a recorded step cannot take the next value of {self._place.name} ({iterator_type}), "
            f"in {line_of_user()}",
            remedy="Take it outside of the step, and pass its value: an array, if it changes.",
        )

    def send(self, value: Any) -> NoReturn:
        """Raise FunctionError, as `next` does."""
        next(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._iterator, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._iterator, name, value)


class State(Observer):
    """The state of a step, and what else it may read or change, as it is now. As an observer it
    holds the values that its arrays had before the step has written to them.

    named: the values that `state=` names; None takes the variables of the step in their place.
    arguments: those of the call. The state has an `Entry` for every value in variables, containers
    and attributes, and for the keys of containers.

    What `named` leaves out is compared, to find out what the step itself changes in it.
    """

    wants_moves = False

    def __init__(
        self, function: Callable[..., Any], named: tuple[Any, ...] | None, arguments: Arguments
    ) -> None:
        self._name, self._line = name_of(function), _line_of(function)
        # Arrays to which the step writes, by identity, and the values that they are put back to.
        self._held: dict[int, tuple[Any, Any]] = {}
        self._entries = [
            Entry.of(Place("argument", owner, key), "argument", n)
            for n, (owner, key) in enumerate(arguments.places)
        ]
        for name, source in HOST_RANDOM:
            self._entries.append(Entry.of(Place(name, Draws(source), 0), "constant"))
        roots, unnamed, reach = [Place("self", (function,), 0)], list[Place](), Reach(function)
        if named is not None:
            trees = [part if is_own(type(part)) else tree_of(part) or part for part in named]
            unnamed = roots
            roots = [Place(f"state[{i}]", trees, i) for i in range(len(trees))]
        roots += [Place(name, (value,), 0) for name, value in arguments.objects]
        self._add(reach.walk(roots), itertools.repeat("state"))
        # Identities of the state's containers and generators.
        self.entered = {*reach.closed, id(generator)}
        tree: Any = {**dict(enumerate(arguments.args)), **arguments.kwargs}
        given = [*reach.walk([Place("argument", (tree,), 0)])]
        self._add(given[2:], itertools.repeat("argument"))
        reach.closed = {*self.entered}
        self._add_unnamed([*reach.walk(unnamed)])
        self._add([(Place("gdt.random", (generator,), 0), generator, None)], ["constant"])

    def _add_unnamed(self, reached: list[Reached]) -> None:
        """Take in what is reached that `state=` does not name. A place that leads to the state must
        go on to do so: the step reads it there, and a replay where it is named."""
        state, roles = {*self.entered, *[id(entry.value) for entry in self.arrays]}, list[Role]()
        for place, value, whole in reversed(reached):
            leads = id(whole if isinstance(place.owner, Keys) else value) in state
            if leads:
                state.add(id(whole))
            roles.append("state" if leads else "constant")
        self._add(reached, reversed(roles))

    def _add(self, reached: Iterable[Reached], roles: Iterable[Role]) -> None:
        for (place, value, _), role in zip(reached, roles, strict=False):
            self._entries.append(Entry(place, value, "counter" if place.is_counter else role))
            if isinstance(value, Generator):
                draws = Place(place.name, vars(value), "_state")
                self._entries.append(Entry.of(draws, "counter"))
            elif isinstance(value, HOST_GENERATORS) and not isinstance(value, random.SystemRandom):
                self._entries.append(Entry.of(Place(place.name, Draws(value), 0), "constant"))

    @property
    def arrays(self) -> list[Entry]:
        """The entries of the arrays that a call may read, those of its arguments first."""
        return [entry for entry in self._entries if entry.is_read]

    @property
    def values(self) -> list[tuple[str, Any]]:
        """The name and the value of every entry."""
        held = {i: value for i, (_, value) in self._held.items()}
        entries = self._entries
        return [(entry.place.name, held.get(id(entry.value), entry.value)) for entry in entries]

    # ---- around a call

    def on_write(self, array: Any, before: Any, after: Any) -> None:
        """Hold the value that an array had before the step has written to it."""
        if id(array) in {id(entry.value) for entry in self.arrays}:
            self._held.setdefault(id(array), (array, before))

    def is_written(self, array: Any) -> bool:
        """Whether the step has written to an array of the state, as `x += y` does."""
        return id(array) in self._held

    def hold(self, step: State) -> None:
        """Hold the values that arrays have now, to which a step has written that had the state
        `step` before."""
        self._held = {i: (array, array._alias()) for i, (array, _) in step._held.items()}

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Put everything back if what runs in this context raises: else somebody who catches that
        would take half a step, or take one twice.

        Until its end, resolved values of arrays are forgotten, and whether ops have passed their
        partial reductions on. So every call sends the same, whether it is replayed, recorded or
        runs as written, and processes may differ in that.
        """
        arrays = [entry.value for entry in self.arrays]
        traces = [(array, array._resolved, array._is_passed) for array in arrays]
        for array, *_ in traces:
            array._resolved, array._is_passed = None, False
        try:
            yield
        except BaseException:
            self.put_back()
            raise
        finally:
            for array, resolved, is_passed in traces:
                if not self.is_written(array):
                    array._resolved, array._is_passed = resolved, is_passed

    @contextmanager
    def refusing_iterators(self) -> Iterator[None]:
        """Refuse, in this context, to take the next value of an iterator in a variable: a replay
        would not take it. Where something raises, iterators are put back by `attempt`."""
        iterators = [entry for entry in self._entries if _is_iterator(entry.value)]
        refused = [(entry, RefusedIterator(self._name, entry)) for entry in iterators]
        for (place, *_), stand_in in refused:
            try:
                place.owner[place.key] = stand_in
            except TypeError:  # a tuple, where nothing can stand in for it
                next(stand_in)
        yield
        for (place, iterator, *_), stand_in in refused:
            if read(place) is stand_in:  # the step may have put something else there
                place.owner[place.key] = iterator

    def put_back(self) -> None:
        """Let everything be again what it was, counters and random numbers too."""
        for array, value in self._held.values():
            rebind(array, value)
        for place, value, *_ in self._entries:
            if _is_same(read(place), value) or isinstance(place.owner, CONSTANT):
                continue
            if value is MISSING:
                del place.owner[place.key]
            else:
                place.owner[place.key] = value

    def refuse_changes(self) -> None:
        """Raise FunctionError if a step has changed something that a replay would not change."""
        for place, was, role, _ in self._entries:
            now, is_array = read(place), isinstance(was, DistributedArray)
            may_be_another = role != "constant" and is_array and isinstance(now, DistributedArray)
            if not (role == "counter" or may_be_another or _is_same(now, was)):
                change = f"changes {place.name}, {_shown(was)}, to {_shown(now)}"
                if isinstance(place.owner, Draws):
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
        self._entries = [entry for entry in self._entries if entry.is_guarded]
        self._held = {}

    # ---- guards

    def unchanged(self, namespace: dict[str, Any]) -> str:
        """An expression that is true if everything that a recording relies on is what it was; its
        names are put into `namespace`. It may raise MISSING_KEY."""
        names: dict[int, tuple[str, Any]] = {}

        def name(thing: Any) -> str:
            return names.setdefault(id(thing), (f"guard{len(names)}", thing))[0]

        namespace["is_missing"] = _is_missing
        checks = [
            _absence(place, name)
            if value is MISSING
            else f"{_expression(place, name)} {name(value)}"
            for place, value, *_ in self._entries
        ]
        namespace |= names.values()
        # Numbers may be equal without being one object.
        return f"{' and '.join(dict.fromkeys(checks)) or True} or changed() is None"

    def changed(self) -> str | None:
        """The name of something that a recording relies on and that is not what it was; or None."""
        others = (e.place.name for e in self._entries if not _is_same(read(e.place), e.value))
        return next(others, None)


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


def _expression(place: Place, name: Callable[[Any], str]) -> str:
    """The source that reads a place and compares it with what follows; `name(value)` returns the
    name of a value in that source."""
    owner, key = place.owner, place.key
    if isinstance(owner, Keys):
        return f"{name(key)}({name(owner.container)}) =="
    if isinstance(owner, Cell):
        return f"{name(owner.cell)}.cell_contents is"
    if isinstance(owner, Attributes):
        is_type = isinstance(owner.holder, type)
        return (
            f"{name(vars(owner.holder))}[{key!r}] is"
            if is_type
            else f"{name(owner.holder)}.{key} is"
        )
    return f"{name(owner)}[{repr(key) if type(key) in (str, int) else name(key)}] is"


def _absence(place: Place, name: Callable[[Any], str]) -> str:
    """The source that says whether there is nothing at a place."""
    if type(place.owner) is dict:
        return f"{place.key!r} not in {name(place.owner)}"
    return f"is_missing({name(place)})"


def _is_iterator(value: Any) -> bool:
    """Whether a value is an iterator whose position is not in attributes, which are compared."""
    return isinstance(value, Iterator) and not (is_own(type(value)) or isinstance(value, io.IOBase))


def _is_missing(place: Place) -> bool:
    return read(place) is MISSING


def _is_same(now: Any, value: Any) -> bool:
    """Whether two values are one object, or the same number or text, or tuples of such."""
    if now is value:
        return True
    if type(now) is tuple is type(value):
        return len(now) == len(value) and all(map(_is_same, now, value))
    if isinstance(value, types.MethodType | frozenset):  # made anew whenever they are looked up
        return bool(now == value)
    return isinstance(value, PRIMITIVES) and value_key(now) == value_key(value)


def _has_same_bits(a: Any, b: Any) -> bool:
    """Whether two arrays are of one type and hold the same bits; of others, whether they are the
    same."""
    if not (isinstance(a, DistributedArray) and isinstance(b, DistributedArray)):
        return _is_same(a, b)
    host = backend_of(a.mesh).to_host
    return a.type is b.type and all(
        _are_same_bits(host(x), host(y)) for x, y in zip(_parts(a), _parts(b), strict=True)
    )


def _parts(x: DistributedArray) -> list[Any]:
    """The shards' elements; of replicas that are stored once, once."""
    parts = [shard.data for shard in x.shards]
    return [*{p.ctypes.data if isinstance(p, np.ndarray) else id(p): p for p in parts}.values()]


def _are_same_bits(x: Any, y: Any) -> bool:
    if x.itemsize > 8:
        return bool(x.tobytes() == y.tobytes())
    bits = f"u{x.itemsize}"  # compares without a copy
    return np.array_equal(x.view(bits), y.view(bits))


def _shown(value: Any) -> str:
    if value is MISSING:
        return "which is nothing yet"
    return reprlib.repr(value) if isinstance(value, tuple) else shown_value(value)
