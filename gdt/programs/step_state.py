"""The state of a step: where it keeps arrays besides its arguments, and what it is recorded for."""

from __future__ import annotations

import inspect
import itertools
import pickle
import random
import reprlib
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
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
from gdt.state.variables import MISSING, Cell, read, tree_of, variables

STATE = (DistributedArray, Stateful, Generator)  # what makes a variable state
CONSTANT = (tuple, types.MappingProxyType)  # containers whose values cannot be set

# What a step may put at a place, and what a recording relies on there. state: arrays in the place
# of arrays; all else is guarded. argument: the same, but it is part of the signature. counter:
# anything, as gdt counts there. constant: nothing.
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
        self._entries = [
            Entry.of(Place("argument", owner, key), "argument", n)
            for n, (owner, key) in enumerate(arguments.places)
        ]
        self.entered: set[int] = set()  # identities of the state's containers and generators
        roots, unnamed = [*variables(function)], []
        if named is not None:
            unnamed, roots = roots, [Place(f"state[{i}]", named, i) for i in range(len(named))]
        for name, value in arguments.objects:
            roots += variables(value, name)
        for root in roots:
            self._enter(root)
        tree: Any = {**dict(enumerate(arguments.args)), **arguments.kwargs}
        contents = _contents(Place("argument", (tree,), 0), tree, closed={*self.entered})
        self._add(contents[1:], itertools.repeat("argument"))
        closed, state = {*self.entered}, {id(entry.value) for entry in self.arrays}
        state |= {id(entry.place.owner) for entry in self._entries if entry.role == "state"}
        for root in unnamed:
            self._enter_unnamed(root, closed, state)
        self._enter_draws("gdt.random", generator)
        for name in ("random", "numpy.random"):
            self._entries.append(Entry.of(Place(name, HostRandom(), name), "constant"))

    def _enter(self, root: Place) -> None:
        """Take in what a variable holds, or what is named in a tuple."""
        value, is_named = read(root), isinstance(root.owner, tuple)
        tree = tree_of(value) if is_named else value
        contents = _contents(root, tree, on_cycle=self._refuse_cycle, closed=self.entered)
        is_state = is_named or any(isinstance(item, STATE) for _, item, _ in contents)
        self._add(contents, itertools.repeat("state" if is_state else "constant"))

    def _enter_unnamed(self, root: Place, closed: set[int], state: set[int]) -> None:
        """Take in what a variable holds that `state=` does not name. A place in it that leads to
        the state must go on to do so: the step reads it there, and a replay where it is named.

        closed: identities of containers to leave out. state: identities of the state's arrays and
        owners, and of the owners around these, which are added.
        """
        contents, roles = _contents(root, tree_of(read(root)), closed=closed), list[Role]()
        for place, item, _ in reversed(contents):
            leads = not state.isdisjoint((id(item), id(owner_of(tree_of(item)))))
            if leads:
                state.add(id(place.owner))
            roles.insert(0, "state" if leads else "constant")
        self._add(contents, roles)

    def _add(self, contents: list[tuple[Place, Any, Any]], roles: Iterable[Role]) -> None:
        for (place, item, tree), role in zip(contents, roles, strict=False):
            self._entries.append(Entry(place, item, "counter" if place.is_counter else role))
            self._enter_keys(place.name, owner_of(tree), role)
            if isinstance(item, Generator):
                self._enter_draws(place.name, item)

    def _enter_keys(self, name: str, container: Any, role: Role) -> None:
        if container is not None and not isinstance(container, tuple):
            fact, read = ("keys", tuple) if isinstance(container, Mapping) else ("length", len)
            place = Place(f"the {fact} of {name}", Keys(container), read)
            self._entries.append(Entry.of(place, role))

    def _enter_draws(self, name: str, source: Generator) -> None:
        self.entered.add(id(source))
        self._entries.append(Entry.of(Place(name, vars(source), "_state"), "counter"))

    def _refuse_cycle(self, name: str) -> None:
        raise error(
            FunctionError,
            self._name,
            f"{name}, in the state of the step at {self._line}, holds itself",
            remedy="Keep arrays in trees without cycles, or name those that it needs: state=[...].",
        )

    @property
    def arrays(self) -> list[Entry]:
        """The entries of the arrays that a call may read, those of its arguments first."""
        return [entry for entry in self._entries if entry.is_read]

    @property
    def values(self) -> list[tuple[str, Any]]:
        """The name and the value of every entry."""
        return [(entry.place.name, entry.value) for entry in self._entries]

    # ---- around a call

    def on_write(self, array: Any, before: Any, after: Any) -> None:
        if any(array is entry.value for entry in self.arrays):
            raise refused_write(before)

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
                array._resolved, array._is_passed = resolved, is_passed

    @contextmanager
    def refusing_iterators(self) -> Iterator[None]:
        """Refuse, in this context, to take the next value of an iterator in a variable: a replay
        would not take it. Where something raises, iterators are put back by `attempt`."""
        iterators = [entry for entry in self._entries if isinstance(entry.value, Iterator)]
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
                if isinstance(place.owner, HostRandom):
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

    # ---- guards

    def unchanged(self, namespace: dict[str, Any]) -> str:
        """An expression that is true if everything that a recording relies on is what it was; its
        names are put into `namespace`. It may raise MISSING_KEY."""
        names: dict[int, tuple[str, Any]] = {}

        def name(thing: Any) -> str:
            return names.setdefault(id(thing), (f"guard{len(names)}", thing))[0]

        checks = [f"{_expression(place, name)} {name(value)}" for place, value, *_ in self._entries]
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


def _contents(root: Place, tree: Any, **options: Any) -> list[tuple[Place, Any, Any]]:
    """A place and all places in the tree there: of each the place, the value, and the tree that it
    is. options: those of `places`."""
    inside = [(place, place.value, place.value) for place in places(tree, root.name, **options)]
    return [(root, read(root), tree), *inside]


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
    if isinstance(value, types.MethodType):  # which is made anew whenever it is looked up
        return bool(now == value)
    return isinstance(value, PRIMITIVES) and value_key(now) == value_key(value)


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
