"""What a function works with besides its arguments: the arrays that it can reach, and all that its
behaviour may depend on.

A recorded function reads and writes the places where Python keeps arrays: attributes of modules and
optimizers, entries of dicts and lists, variables of enclosing functions, global variables. It is
only as good as long as everything on the way there is what it was: that is what a guard checks.
Which functions have a say is seen while one call runs (`Ran`): methods and whatever else it calls.
"""

from __future__ import annotations

import argparse
import functools
import keyword
import operator
import threading
import types
from collections import ChainMap, UserDict, UserList, deque
from collections.abc import Callable, Iterator, Sequence, Set
from contextvars import ContextVar
from typing import Any, NamedTuple

import numpy as np

from gdt.array.array import DistributedArray
from gdt.engine.plan import exact_key
from gdt.programs.moving_values import OF_THE_PROCESS, is_moving, parts_that_move
from gdt.programs.user_code import (
    Ran,
    imported,
    is_of_a_user,
    is_users_code,
    is_users_file,
    names_in,
)
from gdt.sharding.array_type import ArrayType
from gdt.sharding.layout import Layout
from gdt.sharding.mesh import Mesh
from gdt.state import Stateful

PRIMITIVES = (int, float, complex, bool, str, bytes, type(None), np.generic, np.dtype)
OPAQUE = (np.ndarray, ArrayType, Layout, Mesh)
HOLDERS = (  # the standard library's classes that keep a user's values in attributes
    types.FunctionType, types.SimpleNamespace, argparse.Namespace, UserDict, UserList, ChainMap,
)  # fmt: skip
MISSING = object()
MISSING_KEY = (KeyError, IndexError, AttributeError, ValueError)  # ValueError: an empty cell
COLLECTIONS = (dict, list, tuple, deque, set, frozenset)
LARGEST = 4096  # members of a collection that are looked at one by one


class Place(NamedTuple):
    """Where a value is kept: `owner[key]`; `path` is what a person would call it."""

    owner: Any
    key: Any
    path: str

    def read(self) -> Any:
        """What is kept there now; MISSING if nothing is."""
        try:
            return self.owner[self.key]
        except MISSING_KEY:
            return MISSING


class Cell:
    """A variable of an enclosing function, as an owner of one value."""

    def __init__(self, cell: Any) -> None:
        self.cell = cell

    def __getitem__(self, key: str) -> Any:
        return self.cell.cell_contents

    def __setitem__(self, key: str, value: Any) -> None:
        self.cell.cell_contents = value


class Attributes:
    """The attributes of an object, a class or a function that are not in a dict of their own, or in
    one that must not be written to, as an owner."""

    def __init__(self, thing: Any) -> None:
        self.thing = thing

    def __getitem__(self, key: str) -> Any:
        return getattr(self.thing, key)

    def __setitem__(self, key: str, value: Any) -> None:
        setattr(self.thing, key, value)


class ContextVariable:
    """The value of a context variable, as an owner of one value."""

    def __init__(self, variable: ContextVar[Any]) -> None:
        self.variable = variable

    def __getitem__(self, key: str) -> Any:
        return self.variable.get(MISSING)

    def __setitem__(self, key: str, value: Any) -> None:
        self.variable.set(value)


class Captures:
    """What can be reached from some values: `arrays`, places with the arrays kept there; `values`,
    places whose values a recording relies on; `absent`, dicts with keys that they lack; `sizes`,
    containers with their lengths; `keys`, dicts with theirs; `contents`, sets with what they hold;
    `moving`, what gives another value whenever it is asked. `ran` says which functions have been
    seen to run."""

    def __init__(self, ran: Ran) -> None:
        self.arrays: list[tuple[Place, DistributedArray]] = []
        self.values: list[tuple[Place, Any]] = []
        self.absent: list[Place] = []
        self.sizes: list[tuple[Any, int, str]] = []
        self.keys: list[tuple[dict[Any, Any], list[Any], str]] = []
        self.contents: list[tuple[Any, frozenset[Any]]] = []
        self.moving = [*OF_THE_PROCESS]
        self.functions: set[types.CodeType] = set()
        self.ran = ran
        self._modules: list[types.ModuleType] = []
        self._attributes: set[str] = set()  # names that code looks up in whatever it has
        self._waiting: deque[tuple[Any, str]] = deque()
        self._seen: set[int] = set()
        self._alive: list[Any] = []  # so that no identity comes twice

    def add(self, place: Place, value: Any) -> None:
        """A value that is kept at that place, and all that is reached from there."""
        if isinstance(value, DistributedArray):
            self.arrays.append((place, value))
            return
        if value is MISSING and isinstance(place.owner, dict):
            self.absent.append(place)
            return
        if not isinstance(place.owner, tuple | types.MappingProxyType):  # those stay as they are
            self.values.append((place, value))
        if not isinstance(value, PRIMITIVES):
            self.enter(value, place.path)

    def enter(self, value: Any, path: str) -> None:
        """All that is reached from a value; looked at by `enter_ran`, as structures may be deep."""
        self._waiting.append((value, path))

    def _enter_waiting(self) -> None:
        while self._waiting:
            value, path = self._waiting.popleft()
            if not isinstance(value, OPAQUE) and id(value) not in self._seen:
                self._enter(value, path)

    def _enter(self, value: Any, path: str) -> None:
        self._seen.add(id(value))
        self._alive.append(value)
        if isinstance(value, types.ModuleType):
            if is_users_file(vars(value)):
                self._modules.append(value)
        elif isinstance(value, COLLECTIONS) and len(value) > LARGEST:
            self.sizes.append((value, len(value), path))
        elif isinstance(value, set | frozenset):
            self.contents.append((value, frozenset(value)))
        elif is_moving(value):
            self.moving += parts_that_move(value, path)
        else:
            self._enter_inside(value, path)

    def _enter_inside(self, value: Any, path: str) -> None:
        for place, found in _inside(value, path):
            self.add(place, found)
        if isinstance(value, types.FunctionType):
            self.functions.add(value.__code__)
            if is_users_code(value.__code__):
                self._enter_code(value.__code__, value.__globals__)
        if isinstance(value, type):
            self._enter_class(value)
            return
        cls: type = type(value)
        if is_of_a_user(cls):
            place = Place(Attributes(value), "__class__", f"{path}.__class__")
            self.add(place, cls)
        if isinstance(value, dict):
            self.keys.append((value, [*value], path))
        if isinstance(value, list | deque):
            self.sizes.append((value, len(value), path))
        attributes = _own_attribute(value, "__dict__")
        if attributes is not MISSING:
            self.sizes.append((attributes, len(attributes), path))

    def enter_ran(self) -> None:
        """All that is reached from the functions that ran, and by way of modules."""
        for code, variables in self.ran.codes.items():
            self._enter_code(code, variables)
        for function in self.ran.functions():
            self.enter(function, function.__name__)
        self._enter_waiting()
        looked_up: set[tuple[int, str]] = set()
        while new := [
            (module, name)
            for module in self._modules
            for name in sorted(self._attributes & vars(module).keys())
            if (id(module), name) not in looked_up
        ]:
            for module, name in new:
                looked_up.add((id(module), name))
                place = Place(vars(module), name, f"{module.__name__}.{name}")
                self.add(place, vars(module)[name])
            self._enter_waiting()

    def _enter_code(self, code: types.CodeType, variables: dict[str, Any]) -> None:
        """The global variables that code may look up, and the modules that it imports."""
        names = names_in(code)
        self._attributes |= names.attributes
        for module in imported(names.modules, variables):
            self.enter(module, module.__name__)
        for name in sorted(names.variables):
            self.add(Place(variables, name, name), variables.get(name, MISSING))

    def _enter_class(self, cls: type) -> None:
        """Of a class of the user's, the methods that ran, which may be replaced; and its bases."""
        if not is_of_a_user(cls):
            return
        members = vars(cls)
        self.sizes.append((members, len(members), cls.__name__))
        for name, method in members.items():
            if getattr(_function_of(method), "__code__", None) in self.ran.codes:
                self.values.append((Place(members, name, f"{cls.__name__}.{name}"), method))
        for base in cls.__mro__[1:]:
            if is_of_a_user(base):
                self.enter(base, base.__name__)

    def shared(self, containers: Sequence[Any]) -> list[int]:
        """Which of these lists and dicts are among what was reached: the identity of each that is,
        and 0 for others."""
        return [id(c) if id(c) in self._seen else 0 for c in containers]

    def counters(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """The attributes of what counts steps, and the counters among them as they are now."""
        counting = [v for v in self._alive if isinstance(v, Stateful) and v.counters]
        return [(vars(v), {n: vars(v)[n] for n in v.counters if n in vars(v)}) for v in counting]

    def unchanged(self, namespace: dict[str, Any]) -> str:
        """An expression that is true if everything is what it was; its names are put into
        `namespace`. It may raise MISSING_KEY."""
        names: dict[int, str] = {}

        def name(thing: Any) -> str:
            if id(thing) not in names:
                names[id(thing)] = f"guard{len(names)}"
                namespace[names[id(thing)]] = thing
            return names[id(thing)]

        checks = [f"{_expression(p, name)} is {name(value)}" for p, value in self.values]
        checks += [f"{name(p.key)} not in {name(p.owner)}" for p in self.absent]
        checks += [f"len({name(container)}) == {size}" for container, size, _ in self.sizes]
        checks += [f"[*{name(found)}] == {name(keys)}" for found, keys, _ in self.keys]
        checks += [  # equal ones may differ if they are no texts
            f"all(map({name(operator.is_)}, {name(found)}, {name(keys)}))"
            for found, keys, _ in self.keys
            if not all(type(key) is str for key in keys)
        ]
        # Texts are equal only to texts; of others one may take the place of an equal one.
        checks += [
            f"{name(members)} == {name(held)}" if _is_of_texts(held)
            else f"{name(_exact_members)}({name(members)}) == {name(_exact_members(held))}"
            for members, held in self.contents
        ]  # fmt: skip
        # Functions may share variables; numbers may be equal, and methods the same, without
        # being one object.
        return f"{' and '.join(dict.fromkeys(checks)) or True} or changed() is None"

    def changed(self) -> str | None:
        """The path of something that is not what it was; None if all is."""
        for place, value in self.values:
            now = place.read()
            if now is not value and not _is_same(now, value):
                return place.path
        for place in self.absent:
            if place.key in place.owner:
                return place.path
        for container, size, path in self.sizes:
            if len(container) != size:
                return f"the length of {path}"
        for found, keys, path in self.keys:
            pairs = zip(found, keys, strict=False)
            if len(found) != len(keys) or not all(a is b or _is_same(a, b) for a, b in pairs):
                return f"the keys of {path}"
        for members, contents in self.contents:
            if _exact_members(members) != _exact_members(contents):
                return f"a set of {len(contents)}"
        return None


def _is_of_texts(members: frozenset[Any]) -> bool:
    return all(type(member) is str for member in members)


def _exact_members(members: Set[Any]) -> frozenset[Any]:
    """The members of a set, each with what tells it from equal ones."""
    return frozenset([(exact_key(member), member) for member in members])


def _expression(place: Place, name: Callable[[Any], str]) -> str:
    """What reads a place, with the names that `name` gives to things."""
    owner, key = place.owner, place.key
    if isinstance(owner, Cell):
        return f"{name(owner.cell)}.cell_contents"
    if isinstance(owner, Attributes) and str(key).isidentifier() and not keyword.iskeyword(key):
        return f"{name(owner.thing)}.{key}"
    return f"{name(owner)}[{repr(key) if type(key) in (str, int) else name(key)}]"


def _is_same(now: Any, value: Any) -> bool:
    """Whether two values are the same number, text or constant."""
    if type(now) is not type(value) or not isinstance(value, PRIMITIVES):
        # Methods are made anew whenever they are looked up.
        return isinstance(value, types.MethodType) and bool(now == value)
    if now == value:
        return bool(exact_key(now) == exact_key(value))
    return bool(now != now and value != value)


def _inside(value: Any, path: str) -> Iterator[tuple[Place, Any]]:
    """The places in a container, an object or a function, with what they hold."""
    if isinstance(value, dict):
        for key, found in value.items():
            yield Place(value, key, f"{path}[{key!r}]"), found
    elif isinstance(value, list | tuple | deque):
        for index, found in enumerate(value):
            yield Place(value, index, f"{path}[{index}]"), found
    elif isinstance(value, ContextVar):
        yield Place(ContextVariable(value), "value", f"{path}.get()"), value.get(MISSING)
    elif isinstance(value, functools.partial):
        yield from _parts(
            {"func": value.func, "args": value.args, "keywords": value.keywords}, path
        )
    elif isinstance(value, types.MethodType):
        yield from _parts({"__self__": value.__self__, "__func__": value.__func__}, path)
    elif isinstance(value, types.BuiltinMethodType):
        yield from _parts({"__self__": value.__self__}, path)
    elif isinstance(value, types.FunctionType):
        yield from _inside_function(value)
    elif isinstance(value, type):
        if is_of_a_user(value):
            for key, found in vars(value).items():
                if not key.startswith("__") and not callable(found) and not _is_descriptor(found):
                    yield Place(Attributes(value), key, f"{path}.{key}"), found
        return
    elif (wrapped := _own_attribute(value, "__wrapped__")) is not MISSING:
        yield from _parts({"__wrapped__": wrapped}, path)
    yield from _attributes(value, path)


def _attributes(value: Any, path: str) -> Iterator[tuple[Place, Any]]:
    """The places of an object's attributes, of a function's too."""
    cls: type = type(value)
    members = _own_attribute(value, "__dict__")
    attributes = {} if members is MISSING else members
    if isinstance(value, Stateful):
        attributes = {k: v for k, v in attributes.items() if k not in value.counters}
    elif isinstance(value, threading.local):
        for key, found in vars(value).items():  # of this thread
            yield Place(Attributes(value), key, f"{path}.{key}"), found
        return
    elif not isinstance(value, HOLDERS) and not _holds_a_users_values(cls):
        return
    for key, found in attributes.items():
        yield Place(members, key, f"{path}.{key}"), found
    for key in _slots(cls):
        if (found := _own_attribute(value, key)) is not MISSING:
            yield Place(Attributes(value), key, f"{path}.{key}"), found


def _holds_a_users_values(cls: type) -> bool:
    """Whether it is a class of the user's, or a library's that is used like a dict: configuration
    is often kept in those."""
    return is_of_a_user(cls) or _is_like_a_dict(cls)


@functools.lru_cache(maxsize=1 << 12)
def _is_like_a_dict(cls: type) -> bool:
    is_dict = all(hasattr(cls, name) for name in ("keys", "__getitem__", "__setitem__"))
    return is_dict and not hasattr(cls, "__array__")


def _own_attribute(value: Any, name: str) -> Any:
    """An attribute that an object has, and does not make up in a `__getattr__`; or MISSING."""
    try:
        return object.__getattribute__(value, name)
    except AttributeError:
        return MISSING


def _is_descriptor(found: Any) -> bool:
    return hasattr(type(found), "__get__")


def _function_of(method: Any) -> Any:
    """The function of a method, a property, or a static or class method."""
    for name in ("__func__", "fget", "func"):
        method = getattr(method, name, method)
    return method


def _slots(cls: type) -> Iterator[str]:
    for base in cls.__mro__:
        names = vars(base).get("__slots__", ())
        yield from (names,) if isinstance(names, str) else names


def _parts(parts: dict[str, Any], path: str) -> Iterator[tuple[Place, Any]]:
    """The parts of an object that does not change."""
    fixed = types.MappingProxyType(parts)
    for key, found in parts.items():
        yield Place(fixed, key, f"{path}.{key}"), found


def _inside_function(function: types.FunctionType) -> Iterator[tuple[Place, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        place = Place(Cell(cell), name, name)
        if (found := place.read()) is not MISSING:
            yield place, found
    for name in ("__code__", "__defaults__", "__kwdefaults__"):
        path = f"{function.__name__}.{name}"
        yield Place(Attributes(function), name, path), getattr(function, name)
