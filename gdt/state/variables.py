"""The places that a function refers to: its variables, and all that they lead to."""

from __future__ import annotations

import dis
import functools
import sys
import types
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gdt.array.array import DistributedArray
from gdt.state import Place, Stateful, owner_of

MISSING = object()
MISSING_KEY = (KeyError, IndexError, AttributeError, ValueError)  # ValueError: an empty cell
MOST_ITEMS = 1000  # of a container in which not only arrays and Modules are looked at
STATE = (DistributedArray, Stateful)
NUMBERS = {int, float, complex, bool, str, bytes, type(None)}  # and texts
# What functions are wrapped in, and the attributes that hold the functions and their arguments.
WRAPPERS = (
    types.MethodType, types.BuiltinMethodType, types.MethodWrapperType, functools.partial,
    functools.partialmethod, functools.cached_property, property, staticmethod, classmethod,
)  # fmt: skip
WRAPPED = ("__func__", "__self__", "func", "args", "keywords", "fget", "fset", "fdel")
KNOWN_PACKAGES = {"gdt", "numpy", "builtins", *sys.stdlib_module_names}
HOLDERS = {"types", "argparse"}  # modules of Python with a class of objects that hold anything
# The method of an object of another library that tells the places of its arrays: of each a name, a
# dict, and the key under which the dict holds the array.
TELLS = "__gdt_places__"
GLOBALS = ("LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_NAME", "STORE_NAME")


class Attributes:
    """The attributes of an object, a class, a function or a cell, as an owner of values."""

    def __init__(self, holder: Any) -> None:
        self.holder = holder
        self.of_class = isinstance(holder, type)

    def __getitem__(self, name: str) -> Any:
        return vars(self.holder)[name] if self.of_class else getattr(self.holder, name)

    def __setitem__(self, name: str, value: Any) -> None:
        (type if self.of_class else object).__setattr__(self.holder, name, value)

    def __delitem__(self, name: str) -> None:
        (type if self.of_class else object).__delattr__(self.holder, name)


class Items:
    """The keys of a mapping, under the key `tuple`; the elements of a set, under `elements`; or the
    length of a container, under `len`. `held`: the items, which are put back if those change."""

    def __init__(self, container: Any) -> None:
        self.container = container
        self.held: Any = dict(container) if isinstance(container, Mapping) else tuple(container)

    def __getitem__(self, read: Any) -> Any:
        return read(self.container)

    def __setitem__(self, read: Any, value: Any) -> None:
        if hasattr(self.container, "clear"):
            self.container.clear()
            put = getattr(self.container, "update", None) or self.container.extend
            put(self.held)


def elements(values: set[Any]) -> frozenset[Any]:
    """The elements of a set; -0.0 is not 0.0, and 1 is not 1.0."""
    return frozenset([(type(v), repr(v)) if type(v) in NUMBERS else id(v) for v in values])


def read(place: Place) -> Any:
    """The value at a place now; MISSING if there is none."""
    try:
        return place.value
    except MISSING_KEY:
        return MISSING


def read_all(places: Iterable[Place]) -> list[Any]:
    """Return the values in some places, as `read` does, without a call for each."""
    values = []
    for _, owner, key, *_ in places:
        try:
            values.append(owner[key])
        except MISSING_KEY:
            values.append(MISSING)
    return values


# ---------------------------------------------------------------- whose code it is


def is_own(value: Any, package: str = "") -> bool:
    """Whether a function, a class or a module is the user's: not gdt's, Python's or installed, but
    as that package."""
    return _is_own_module(_module_of(value), package)


@functools.cache
def _is_own_module(module: str, package: str) -> bool:
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    is_installed = "site-packages" in file or "dist-packages" in file
    is_others = is_installed and _package(module) != package
    return not (_is_known(module) or is_others)


def _is_known(module: str) -> bool:
    """Whether a module is gdt's, NumPy's or Python's, and has no class of objects that hold what a
    user gives them."""
    return _package(module) in KNOWN_PACKAGES and module not in HOLDERS


def _module_of(value: Any) -> str:
    if isinstance(value, types.FunctionType):
        return str(value.__globals__.get("__name__") or "")
    module = value.__name__ if isinstance(value, types.ModuleType) else value.__module__
    return module if isinstance(module, str) else "builtins"  # of classes made by Cython


def _package(module: str) -> str:
    return module.partition(".")[0]


def _package_of(function: Any) -> str:
    """The package of the innermost function in partials, methods and wrappers."""
    while inner := _wrapped(function):
        function = inner[0]
    is_function = isinstance(function, types.FunctionType)
    return _package(_module_of(function if is_function else type(function)))


def tree_of(value: Any) -> Any:
    """A container itself, and an object that tells the places of its arrays; the attributes of an
    object of a class that is neither gdt's nor Python's; None for any other value."""
    if owner_of(value) is not None or hasattr(type(value), TELLS):
        return value
    return None if _is_known(_module_of(type(value))) else getattr(value, "__dict__", None)


# ---------------------------------------------------------------- the walk


Reached = tuple[Place, Any, Any]  # a place, its value, and the value that it is part of


class Reach:
    """The places and values that can be reached from some places, each value once.

    function: a function of whose package everything is the user's own, wherever it is installed.
    closed: identities of the values that have been entered, or are not to be. Of the methods of
    classes and the variables of modules, those are reached whose names some function reached uses.
    """

    def __init__(self, function: Any) -> None:
        self.closed: set[int] = set()
        self._is_own = functools.partial(is_own, package=_package_of(function))
        self._names: set[str] = set()
        self._by_name: list[tuple[Place, Any]] = []

    def walk(self, roots: Iterable[Place]) -> Iterator[Reached]:
        """The places, depth first, each with its value and the value that it is part of."""
        waiting: list[tuple[Place, Any]] = [(root, None) for root in roots][::-1]
        while waiting or (waiting := self._named()):
            place, whole = waiting.pop()
            value = read(place)
            yield place, value, whole
            is_leaf = type(value) in NUMBERS or type(value) is DistributedArray
            if not (is_leaf or isinstance(place.owner, Items) or id(value) in self.closed):
                self.closed.add(id(value))
                waiting += [(inner, value) for inner in [*self._inside(place.name, value)][::-1]]

    def _named(self) -> list[tuple[Place, Any]]:
        """Take the methods and the variables of modules that have been named meanwhile."""
        named = [item for item in self._by_name if item[0].key in self._names]
        self._by_name = [item for item in self._by_name if item[0].key not in self._names]
        return named

    def _inside(self, name: str, value: Any) -> Iterator[Place]:
        """The places that are part of a value."""
        if isinstance(value, types.FunctionType):
            yield from self._of_function(name, value)
        elif isinstance(value, type):
            yield from self._of_class(value) if self._is_own(value) else ()
        elif hasattr(type(value), TELLS):
            yield from [Place(*told) for told in getattr(value, TELLS)()]
        elif isinstance(value, types.ModuleType):
            variables = vars(value) if self._is_own(value) else {}
            places = [Place(f"{value.__name__}.{n}", variables, n) for n in variables]
            self._by_name += [(place, value) for place in places]
        elif isinstance(value, Stateful):
            yield from items(name, vars(value), value)
            if self._is_own(type(value)):
                yield Place(type(value).__name__, Attributes(value), "__class__")
        else:
            yield from items(name, value)
            if self._is_own(type(value)):
                yield from _attributes(name, value)
            else:
                yield from [Place(name, (part,), 0) for part in _wrapped(value)]

    def _of_function(self, name: str, function: types.FunctionType) -> Iterator[Place]:
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        variables = [Place(name, Attributes(cell), "cell_contents") for name, cell in cells]
        if _package(_module_of(function)) == "gdt":  # it holds what the user has given it
            given = [(place.name, read(place)) for place in variables]
            yield from [Place(n, (v,), 0) for n, v in given if not isinstance(v, dict | list)]
            return
        attributes, fields = Attributes(function), ("__defaults__", "__kwdefaults__")
        yield from variables
        yield from [Place("default", attributes, n) for n in fields if attributes[n]]
        yield from [Place(f"{name}.{n}", vars(function), n) for n in vars(function)]
        if self._is_own(function):
            code = _names(function.__code__)
            self._names |= code["names"]
            yield from [Place(n, function.__globals__, n) for n in sorted(code["globals"])]
            yield from [Place(n, sys.modules, n) for n in sorted(code["modules"])]

    def _of_class(self, cls: type) -> Iterator[Place]:
        attributes = Attributes(cls)
        yield Place(f"the length of {cls.__name__}", Items(vars(cls)), len)
        # What a library's class is a base of, the library may call too.
        is_called = not all(self._is_own(base) or base is object for base in cls.__mro__)
        for name, value in vars(cls).items():
            place = Place(f"{cls.__name__}.{name}", attributes, name)
            if not hasattr(type(value), "__get__"):
                yield from [] if name.startswith("__") else [place]
            elif is_called or name.startswith("__"):
                yield place
            else:
                self._by_name.append((place, cls))
        yield from [Place(c.__name__, (c,), 0) for c in (*cls.__bases__, type(cls))]


def items(name: str, container: Any, stateful: Stateful | None = None) -> Iterator[Place]:
    """The places that are part of a mapping, a set, a sequence or a deque; of other values none.

    stateful: the object whose attributes the mapping holds.
    """
    if isinstance(container, set):
        yield Place(f"the elements of {name}", Items(container), elements)
        yield from [Place(name, (element,), 0) for element in container]
    elif isinstance(container, Mapping | list | tuple | deque):
        is_small = len(container) <= MOST_ITEMS
        if is_small and isinstance(container, Mapping):
            yield Place(f"the keys of {name}", Items(container), tuple)
        elif not isinstance(container, tuple):
            yield Place(f"the length of {name}", Items(container), len)
        pairs = container.items() if isinstance(container, Mapping) else enumerate(container)
        for key, value in pairs:
            if is_small or isinstance(value, STATE):
                yield Place(f"{name}.{key}" if name else str(key), container, key, stateful)


def _attributes(name: str, value: Any) -> Iterator[Place]:
    """The attributes of an object of the user's."""
    attributes = Attributes(value)
    yield Place(type(value).__name__, attributes, "__class__")
    if type(getattr(value, "__dict__", None)) is dict:
        yield Place(name, attributes, "__dict__")
    for cls in type(value).__mro__:
        slots = [n for n, s in vars(cls).items() if isinstance(s, types.MemberDescriptorType)]
        yield from [Place(f"{name}.{n}", attributes, n) for n in slots]


def _wrapped(value: Any) -> list[Any]:
    """The object that a method, a partial function, a descriptor, a weak reference or another
    wrapper holds, which is always the same."""
    if isinstance(value, weakref.ref):
        return [value()]
    if isinstance(value, WRAPPERS):
        return [getattr(value, n) for n in WRAPPED if hasattr(value, n)]
    wrapped = getattr(value, "__dict__", {}).get("__wrapped__")
    return [] if wrapped is None else [wrapped]


@functools.lru_cache(maxsize=4096)
def _names(code: types.CodeType) -> dict[str, set[str]]:
    """The names of global variables and of modules that a function and those in it import; and all
    `names`, also those of attributes, and texts, which may name some."""
    steps = [*dis.get_instructions(code)]
    found = {
        "globals": {step.argval for step in steps if step.opname in GLOBALS},
        "modules": {step.argval for step in steps if step.opname == "IMPORT_NAME"},
        "names": {*code.co_names, *[text for text in code.co_consts if type(text) is str]},
    }
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            found = {kind: found[kind] | more for kind, more in _names(inner).items()}
    return found
