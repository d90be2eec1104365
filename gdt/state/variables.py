"""What a function refers to, as places: its variables, and all that they lead to."""

from __future__ import annotations

import dis
import functools
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gdt.array.array import DistributedArray
from gdt.state import Place, Stateful, owner_of

MISSING = object()
MISSING_KEY = (KeyError, IndexError, AttributeError, ValueError)  # ValueError: an empty cell
MOST_ITEMS = 1000  # of a container of whose items numbers and texts are looked at
PLAIN = (int, float, complex, str, bytes, type(None), DistributedArray)
NO_VALUES = (types.GetSetDescriptorType, types.MemberDescriptorType)  # of a class
DESCRIPTORS = (property, staticmethod, classmethod, functools.cached_property)
FUNCTIONS_IN = ("fget", "fset", "fdel", "func", "__func__")  # of these
HOLDERS = ("types", "argparse")  # modules of Python with a class of objects that hold anything


class Cell:
    """A variable of an enclosing function, as an owner of one value."""

    def __init__(self, cell: Any) -> None:
        self.cell = cell

    def __getitem__(self, key: str) -> Any:
        return self.cell.cell_contents

    def __setitem__(self, key: str, value: Any) -> None:
        self.cell.cell_contents = value

    def __delitem__(self, key: str) -> None:
        del self.cell.cell_contents


class Attributes:
    """The attributes of a class, a function, or an object with slots, as an owner of values."""

    def __init__(self, holder: Any) -> None:
        self.holder = holder
        self._type = type if isinstance(holder, type) else object

    def __getitem__(self, name: str) -> Any:
        return vars(self.holder)[name] if self._type is type else getattr(self.holder, name)

    def __setitem__(self, name: str, value: Any) -> None:
        self._type.__setattr__(self.holder, name, value)

    def __delitem__(self, name: str) -> None:
        self._type.__delattr__(self.holder, name)


class Keys:
    """The owner of a container's keys, under the key `tuple`, of its elements, under `frozenset`,
    or of its length, under `len`."""

    def __init__(self, container: Any) -> None:
        self.container = container

    def __getitem__(self, read: Any) -> Any:
        return read(self.container)

    def __setitem__(self, read: Any, keys: Any) -> None:
        """Set the keys; the entries of the values, which come later, put values under them."""
        container = self.container
        if isinstance(container, list | deque):
            values = [*container, *[MISSING] * keys][:keys]
            container.clear()
            container.extend(values)
        elif isinstance(container, set):
            container.clear()
            container.update(keys)
        elif read is tuple and hasattr(container, "clear"):
            items = dict(container)
            container.clear()
            for k in keys:
                container[k] = items.get(k, MISSING)


def read(place: Place) -> Any:
    """The value at a place now; MISSING if there is none."""
    try:
        return place.value
    except MISSING_KEY:
        return MISSING


def tree_of(value: Any) -> Any:
    """A container itself; the attributes of an object of a class that is neither gdt's nor
    Python's; None for any other value."""
    if owner_of(value) is not None:
        return value
    module = type(value).__module__
    is_known = _package(module) in ("gdt", "numpy", *sys.stdlib_module_names)
    return None if is_known and module not in HOLDERS else getattr(value, "__dict__", None)


def is_users(value: Any) -> bool:
    """Whether a value has places by itself: it is a container or generator of gdt's or Python's, or
    an object of a class of the user's own."""
    return owner_of(value) is not None or tree_of(value) is None or _is_own(type(value).__module__)


Reached = tuple[Place, Any, Any]  # a place, its value, and the value that it is part of


class Reach:
    """What can be reached from places, each value once.

    closed: identities of the values that have been entered, or are not to be. Of the methods of
    classes and the variables of modules, those are reached whose names some function reached uses.
    """

    def __init__(self) -> None:
        self.closed: set[int] = set()
        self._names: set[str] = set()
        self._by_name: list[tuple[Place, Any]] = []

    def walk(self, roots: Iterable[Place]) -> Iterator[Reached]:
        """The places, depth first, each with its value and the value that it is part of."""
        waiting: list[tuple[Place, Any]] = [(root, None) for root in roots][::-1]
        while waiting or (waiting := self._named()):
            place, whole = waiting.pop()
            value = read(place)
            yield place, value, whole
            is_entered = isinstance(value, PLAIN) or isinstance(place.owner, Keys)
            if not is_entered and id(value) not in self.closed:
                self.closed.add(id(value))
                waiting += [(inner, value) for inner in [*self._inside(place.name, value)][::-1]]

    def _named(self) -> list[tuple[Place, Any]]:
        """Take the methods and the variables of modules that have been named meanwhile."""
        waiting: list[tuple[Place, Any]] = []
        others, self._by_name = self._by_name, []
        for item in others:
            key = item[0].key
            is_named = key in self._names or key.startswith("__")
            (waiting if is_named else self._by_name).append(item)
        return waiting

    def _inside(self, name: str, value: Any) -> Iterator[Place]:
        """The places that are part of a value."""
        if isinstance(value, types.FunctionType):
            yield from self._of_function(name, value)
        elif isinstance(value, type):
            if _is_own(value.__module__):
                yield from self._of_class(value)
        elif isinstance(value, types.ModuleType):
            if _is_own(value.__name__):
                variables = [Place(f"{value.__name__}.{n}", vars(value), n) for n in vars(value)]
                self._by_name += [(p, value) for p in variables if not p.key.startswith("__")]
        elif isinstance(value, types.MethodType):
            yield Place(name, (value.__func__,), 0)
            yield Place("self", (value.__self__,), 0)
        elif isinstance(value, types.BuiltinMethodType | types.MethodWrapperType):
            yield Place(name, (value.__self__,), 0)
        elif isinstance(value, functools.partial):
            yield Place(name, (value.func,), 0)
            yield from [Place(f"argument {i}", value.args, i) for i in range(len(value.args))]
            yield from [Place(f"argument {n}", value.keywords, n) for n in value.keywords]
        elif isinstance(value, Stateful):
            yield from _of_mapping(name, vars(value), value)
            yield from _class_of(value)
        else:
            yield from _of_container(name, value)
            yield from _of_object(name, value)

    def _of_function(self, name: str, function: types.FunctionType) -> Iterator[Place]:
        module = function.__globals__.get("__name__") or ""
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        if _package(module) in ("gdt", "numpy"):  # it holds what the user has given it
            given = [(variable, (read(Place("", Cell(cell), "")),)) for variable, cell in cells]
            yield from [Place(n, x, 0) for n, x in given if not isinstance(x[0], dict | list)]
        else:
            yield from [Place(variable, Cell(cell), variable) for variable, cell in cells]
            if function.__defaults__:
                yield Place("default", Attributes(function), "__defaults__")
            if function.__kwdefaults__:
                yield Place("default", Attributes(function), "__kwdefaults__")
            yield from [Place(f"{name}.{n}", vars(function), n) for n in vars(function)]
        if _is_own(module):
            variables, names = _names(function.__code__)
            self._names |= names
            yield from [Place(n, function.__globals__, n) for n in sorted(variables)]
        elif "__wrapped__" in vars(function):
            yield Place(name, vars(function), "__wrapped__")

    def _of_class(self, cls: type) -> Iterator[Place]:
        attributes = Attributes(cls)
        yield Place(f"the length of {cls.__name__}", Keys(vars(cls)), len)
        for name, value in vars(cls).items():
            place = Place(f"{cls.__name__}.{name}", attributes, name)
            if isinstance(value, NO_VALUES):
                continue
            if hasattr(type(value), "__get__"):
                self._by_name.append((place, cls))
            elif not name.startswith("__"):
                yield place
        yield from [Place(base.__name__, (base,), 0) for base in cls.__bases__]


def _of_mapping(name: str, mapping: Any, stateful: Stateful | None = None) -> Iterator[Place]:
    is_large = len(mapping) > MOST_ITEMS
    read: Any = len if is_large else tuple
    yield Place(f"the keys of {name}", Keys(mapping), read)
    prefix = f"{name}." if name else ""
    for key, value in mapping.items():
        if not (is_large and _is_number(value)):
            yield Place(f"{prefix}{key}", mapping, key, stateful)


def _of_container(name: str, value: Any) -> Iterator[Place]:
    if isinstance(value, Mapping):
        yield from _of_mapping(name, value)
    elif isinstance(value, set):
        yield Place(f"the elements of {name}", Keys(value), frozenset)
        value = tuple(value)
    elif isinstance(value, list | deque):
        yield Place(f"the length of {name}", Keys(value), len)
    if isinstance(value, list | tuple | deque):
        is_large = len(value) > MOST_ITEMS
        for i, item in enumerate(value):
            if not (is_large and _is_number(item)):
                yield Place(f"{name}.{i}", value, i)


def _of_object(name: str, value: Any) -> Iterator[Place]:
    """The attributes of an object of the user's, and what is wrapped in others."""
    if _is_own(type(value).__module__):
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            yield from _of_mapping(name, attributes)
        for cls in type(value).__mro__:
            slots = [n for n, slot in vars(cls).items() if isinstance(slot, NO_VALUES[1])]
            yield from [Place(f"{name}.{n}", Attributes(value), n) for n in slots]
        yield from _class_of(value)
        return
    is_descriptor = isinstance(value, DESCRIPTORS)
    functions = [getattr(value, n, None) for n in FUNCTIONS_IN] if is_descriptor else []
    functions.append(getattr(value, "__dict__", {}).get("__wrapped__"))
    yield from [Place(name, (function,), 0) for function in functions if function is not None]


def _class_of(value: Any) -> Iterator[Place]:
    yield Place(type(value).__name__, (type(value),), 0)


def _is_number(value: Any) -> bool:
    return isinstance(value, PLAIN) and not isinstance(value, DistributedArray)


def _package(module: str) -> str:
    return module.partition(".")[0]


@functools.cache
def _is_own(module: str) -> bool:
    """Whether what a module defines is the user's own: not gdt's, Python's or installed."""
    if module in HOLDERS:
        return True
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    is_installed = "site-packages" in file or "dist-packages" in file
    known = ("gdt", "numpy", "builtins", *sys.stdlib_module_names)
    return not is_installed and (module == "__main__" or _package(module) not in known)


@functools.lru_cache(maxsize=4096)
def _names(code: types.CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """The names of global variables in a function and those in it; and all names, of attributes
    too, and texts, which may be such names."""
    steps = dis.get_instructions(code)
    variables = {step.argval for step in steps if step.opname.endswith(("_GLOBAL", "_NAME"))}
    names = {*code.co_names, *[text for text in code.co_consts if type(text) is str]}
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            more = _names(inner)
            variables, names = variables | more[0], names | more[1]
    return frozenset(variables), frozenset(names)
