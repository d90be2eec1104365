"""The state of a step: where it keeps arrays besides its arguments, and what it is recorded for."""

from __future__ import annotations

import inspect
import itertools
import pickle
import random
import sys
import types
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import numpy as np

from gdt.arguments import shown_value
from gdt.array.array import DistributedArray
from gdt.backend import backend_of
from gdt.engine.plan import value_key
from gdt.errors import FunctionError, error, line_of_user
from gdt.programs.variables import MISSING, Cell, read, variables
from gdt.random.generator import Generator, generator
from gdt.state import Place, Stateful, owner_of, places

PRIMITIVES = (int, float, complex, bool, str, bytes, type(None), np.generic, np.dtype)

# What a step may put at a place, and what a recording relies on there. state: arrays in the place
# of arrays; all else is guarded. argument: the same, but it is part of the signature. counter:
# anything, as gdt counts there. constant: nothing.
Role = Literal["state", "argument", "counter", "constant"]


class Kept(NamedTuple):
    """The value that a place held when a step was recorded."""

    place: Place
    value: Any
    role: Role


class Structure(NamedTuple):
    """The keys that a container had."""

    name: str
    owner: Any
    keys: list[Any]
    role: Role

    @classmethod
    def of(cls, name: str, owner: Any, role: Role) -> Structure:
        """The structure of `owner` with the keys that it has now."""
        return cls(name, owner, _keys(owner), role)

    def is_changed(self) -> bool:
        """Whether the owner has other keys now."""
        now = _keys(self.owner)
        return len(now) != len(self.keys) or not all(map(_is_same, now, self.keys))


def _keys(owner: Any) -> list[Any]:
    return [*owner] if isinstance(owner, Mapping) else [*range(len(owner))]


class HostRandom:
    """The random numbers of Python and NumPy, as an owner of their states."""

    def __getitem__(self, name: str) -> bytes:
        return pickle.dumps(random.getstate() if name == "random" else np.random.get_state())

    def __setitem__(self, name: str, state: bytes) -> None:
        (random.setstate if name == "random" else np.random.set_state)(pickle.loads(state))


HOST_RANDOM = HostRandom()


class RefusedIterator:
    """Stands in for an iterator while a step is recorded: its next value is a FunctionError."""

    def __init__(self, iterator: Iterator[Any], variable: str, step: str) -> None:
        vars(self).update(_iterator=iterator, _variable=variable, _step=step)

    def __iter__(self) -> RefusedIterator:
        return self

    def __next__(self) -> Any:
        kind = type(self._iterator).__name__
        problem = f"take the next value of {self._variable} ({kind}), as {line_of_user()} does"
        raise error(
            FunctionError,
            self._step,
            f"a recorded step cannot {problem}",
            remedy="Take it outside of the step, and pass the value: as an array if it changes.",
        )

    def send(self, value: Any) -> Any:
        """Refuse what a generator would do with a value."""
        return next(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._iterator, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._iterator, name, value)


class State:
    """The state of a step as it is now: the values that it keeps besides its arguments.

    named: the values that `state=` names; None takes the variables of the step in their place.
    objects: the arguments that are no arrays, numbers or containers, by name. containers: the
    arguments that are containers.

    A variable is state if its value holds an array, a Stateful object or a generator. Other
    variables are constants, which are compared to find out what the step itself changes in them.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        named: tuple[Any, ...] | None,
        objects: Sequence[tuple[str, Any]] = (),
        containers: Sequence[Any] = (),
    ) -> None:
        self._name, self._line = name_of(function), _line_of(function)
        self._kept: list[Kept] = []
        self._structures: list[Structure] = []
        self.entered: set[int] = set()  # identities of all containers
        roots = [Place("self", (function,), 0), *variables(function)]  # that may be a Module
        if named is not None:
            self._kept += [Kept(place, read(place), "constant") for place in roots]
            roots = [Place(f"state[{i}]", named, i) for i in range(len(named))]
        for name, value in objects:
            roots += [Place(name, (value,), 0), *variables(value)]
        for root in roots:
            self._enter(root)
        for container in containers:
            if id(container) not in self.entered:
                self._structures.append(Structure.of("an argument", container, "argument"))
                inside = [Place(f"argument[{k!r}]", container, k) for k in _keys(container)]
                self._kept += [Kept(place, place.value, "argument") for place in inside]
        self._keep_draws("gdt.random", generator)
        for name in ("random", "numpy.random"):
            self._kept.append(Kept(Place(name, HOST_RANDOM, name), HOST_RANDOM[name], "constant"))

    def _enter(self, root: Place) -> None:
        """Take in what a variable holds, or what is named in a tuple."""
        value, is_named = read(root), isinstance(root.owner, tuple)
        tree = _attributes(value) if is_named and owner_of(value) is None else value
        inside = places(tree, root.name, on_cycle=self._refuse_cycle, closed=self.entered)
        contents = [(root, value), *[(place, place.value) for place in inside]]
        is_state = is_named or any(isinstance(item, STATE) for _, item in contents)
        role: Role = "state" if is_state else "constant"
        for place, item in contents:
            self._kept.append(Kept(place, item, "counter" if place.is_counter else role))
            owner = owner_of(tree if place is root else item)
            if owner is not None:
                self._structures.append(Structure.of(place.name, owner, role))
            if isinstance(item, Generator):
                self._keep_draws(place.name, item)

    def _keep_draws(self, name: str, source: Generator) -> None:
        self._kept.append(Kept(Place(name, vars(source), "_state"), source.state, "counter"))

    def _refuse_cycle(self, name: str) -> None:
        raise error(
            FunctionError,
            self._name,
            f"{name}, in the state of the step at {self._line}, holds itself",
            remedy="Keep arrays in trees without cycles, or name those that it needs: state=[...].",
        )

    @property
    def arrays(self) -> list[Place]:
        """The places of arrays."""
        return [
            place
            for place, value, role in self._kept
            if role == "state" and isinstance(value, DistributedArray)
        ]

    @contextmanager
    def refusing_iterators(self) -> Iterator[None]:
        """Refuse, in this context, to take the next value of an iterator in a variable: a replay
        would not take it."""
        refusing = []
        try:
            for place, value, _ in self._kept:
                if not isinstance(value, Iterator):
                    continue
                if not hasattr(type(place.owner), "__setitem__"):
                    raise self._refused_iterator(place, value)
                place.owner[place.key] = refused = RefusedIterator(value, place.name, self._name)
                refusing.append((place, value, refused))
            yield
        finally:
            for place, iterator, refused in refusing:
                if read(place) is refused:  # the step may have put something else there
                    place.owner[place.key] = iterator

    def _refused_iterator(self, place: Place, iterator: Iterator[Any]) -> FunctionError:
        """The error for an iterator that is given to a step, where no other can take its place."""
        return error(
            FunctionError,
            self._name,
            f"{place.name} of the step at {self._line} is an iterator "
            f"({type(iterator).__name__}), whose next value a replay would not take",
            remedy="Take it outside of the step, and pass the value: as an array if it changes.",
        )

    # ---- before and after a call

    def put_back(self) -> None:
        """Let everything be again what it was, counters and random numbers too."""
        for _, owner, keys, _ in [s for s in self._structures if s.is_changed()]:
            values = {
                entry.place.key: entry.value for entry in self._kept if entry.place.owner is owner
            }
            if isinstance(owner, list):
                owner[:] = values.values()
            elif isinstance(owner, MutableMapping):
                for key in _keys(owner):
                    del owner[key]
                for key in keys:
                    owner[key] = values[key]
        for place, value, _ in self._kept:
            if read(place) is value or isinstance(place.owner, tuple | types.MappingProxyType):
                continue
            if value is MISSING:
                del place.owner[place.key]
            else:
                place.owner[place.key] = value

    def refuse_changes(self) -> None:
        """Raise FunctionError if a step has changed something that a replay would not change."""
        for structure in self._structures:
            if structure.is_changed():
                count = f"{len(structure.keys)} entries, to {len(structure.owner)}"
                raise self._changed(structure.name, count)
        for place, was, role in self._kept:
            now, is_array = read(place), isinstance(was, DistributedArray)
            may_be_another = role != "constant" and is_array and isinstance(now, DistributedArray)
            if not (role == "counter" or may_be_another or _is_same(now, was)):
                raise self._changed(place.name, f"{_shown(was)}, to {_shown(now)}")

    def _changed(self, name: str, change: str) -> FunctionError:
        return error(
            FunctionError,
            self._name,
            f"the step at {self._line} changes {name}, {change}",
            remedy="A replay puts arrays in the places of arrays, and does nothing else in Python: "
            "return it, or change it outside of the step.",
        )

    def forget(self) -> None:
        """Drop all but what a recording relies on: arrays may be large."""
        self._structures = [s for s in self._structures if s.role == "state"]
        self._kept = [entry for entry in self._kept if _is_guarded(*entry)]

    # ---- verification

    def copy_arrays(self) -> None:
        """Keep copies of the arrays, so that a replay may overwrite these."""
        copies: dict[int, DistributedArray] = {}
        for i, (place, value, role) in enumerate(self._kept):
            if isinstance(value, DistributedArray):
                if id(value) not in copies:
                    copies[id(value)] = _copy(value)
                self._kept[i] = Kept(place, copies[id(value)], role)

    def difference(self, other: State) -> tuple[str, Any, Any] | None:
        """The name of the first thing that differs by a bit in two states, and what both hold."""
        pairs = itertools.zip_longest(self._kept, other._kept, fillvalue=NOTHING)
        for (place, value, _), (twin, other_value, _) in pairs:
            if place.name != twin.name or not same_bits(value, other_value):
                return place.name, value, other_value
        return None

    # ---- guards

    def unchanged(self, namespace: dict[str, Any]) -> str:
        """An expression that is true if everything that a recording relies on is what it was; its
        names are put into `namespace`. It may raise MISSING_KEY."""
        names: dict[int, str] = {}

        def name(thing: Any) -> str:
            if id(thing) not in names:
                names[id(thing)] = f"guard{len(names)}"
                namespace[names[id(thing)]] = thing
            return names[id(thing)]

        checks = [f"{_expression(place, name)} is {name(value)}" for place, value, _ in self._kept]
        checks += [
            f"[*{name(owner)}] == {name(keys)}" if isinstance(owner, Mapping)
            else f"len({name(owner)}) == {len(keys)}"
            for _, owner, keys, _ in self._structures
        ]  # fmt: skip
        # Numbers may be equal without being one object.
        return f"{' and '.join(dict.fromkeys(checks)) or True} or changed() is None"

    def changed(self) -> str | None:
        """The name of something that a recording relies on and that is not what it was; or None."""
        others = [
            entry.place.name for entry in self._kept if not _is_same(read(entry.place), entry.value)
        ]
        others += [f"the keys of {s.name}" for s in self._structures if s.is_changed()]
        return others[0] if others else None


NOTHING = Kept(Place("its structure", {}, None), None, "constant")


def _is_guarded(place: Place, value: Any, role: Role) -> bool:
    """Whether a recording relies on the very value at a place."""
    is_fixed = isinstance(value, DistributedArray) or isinstance(place.owner, tuple)
    return role == "state" and not is_fixed


STATE = (DistributedArray, Stateful, Generator)


def name_of(function: Callable[..., Any]) -> str:
    """The name of a step in errors."""
    return getattr(function, "__name__", type(function).__name__)


def _line_of(function: Callable[..., Any]) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"line {code.co_firstlineno} of {code.co_filename}" if code else name_of(function)


def _attributes(value: Any) -> Any:
    """The attributes of an object of a class that is neither gdt's nor Python's; or None."""
    package = type(value).__module__.partition(".")[0]
    is_users = package not in ("gdt", "numpy", *sys.stdlib_module_names)
    is_users = is_users or isinstance(value, types.SimpleNamespace)
    return getattr(value, "__dict__", None) if is_users else None


def _expression(place: Place, name: Callable[[Any], str]) -> str:
    """The source that reads a place; `name(value)` returns the name of a value in that source."""
    if isinstance(place.owner, Cell):
        return f"{name(place.owner.cell)}.cell_contents"
    key = repr(place.key) if type(place.key) in (str, int) else name(place.key)
    return f"{name(place.owner)}[{key}]"


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


def same_bits(a: Any, b: Any) -> bool:
    """Whether two arrays are of one type and hold the same bits; of others, whether they are the
    same."""
    if not (isinstance(a, DistributedArray) and isinstance(b, DistributedArray)):
        return _is_same(a, b)
    host = backend_of(a.mesh).to_host
    return a.type is b.type and all(
        host(x.data).tobytes() == host(y.data).tobytes()
        for x, y in zip(a.shards, b.shards, strict=True)
    )


def _copy(array: DistributedArray) -> DistributedArray:
    """A copy whose blocks lie in memory as those of the array: it decides how products add up."""
    blocks = []
    for i, block in enumerate(array.blocks):
        with backend_of(array.mesh).on(array.mesh, i):
            blocks.append(block.copy(order="K"))
    return DistributedArray(array.type, tuple(blocks))


def _shown(value: Any) -> str:
    if value is MISSING:
        return "which is nothing yet"
    return str(value.type) if isinstance(value, DistributedArray) else shown_value(value)
