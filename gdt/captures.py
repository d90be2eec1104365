"""What a function works with besides its arguments: the arrays that it can reach, and all that its
behaviour may depend on.

A recorded function reads and writes the places where Python keeps arrays: attributes of modules and
optimizers, entries of dicts and lists, variables of enclosing functions, global variables. It is
only as good as long as everything on the way there is what it was: that is what a guard checks.
"""

from __future__ import annotations

import functools
import sys
import sysconfig
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from gdt.array import DistributedArray
from gdt.layout import ArrayType, Layout
from gdt.mesh import Mesh
from gdt.slots import Stateful

PRIMITIVES = (int, float, complex, bool, str, bytes, type(None), np.generic, np.dtype)
OPAQUE = (types.ModuleType, type, np.ndarray, ArrayType, Layout, Mesh)
LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platlib", "purelib")})
MISSING = object()
MISSING_KEY = (KeyError, IndexError, ValueError)  # ValueError: an empty cell
LARGEST = 4096  # entries of a list or dict that are looked at one by one


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


class Captures:
    """What can be reached from some values: `arrays`, places with the arrays kept there; `values`,
    places whose values a recording relies on; `sizes`, containers with their lengths."""

    def __init__(self) -> None:
        self.arrays: list[tuple[Place, DistributedArray]] = []
        self.values: list[tuple[Place, Any]] = []
        self.sizes: list[tuple[Any, int]] = []
        self._seen: set[int] = set()
        self._alive: list[Any] = []  # so that no identity comes twice

    def add(self, place: Place, value: Any) -> None:
        """A value that is kept at that place, and all that is reached from there."""
        if isinstance(value, DistributedArray):
            self.arrays.append((place, value))
            return
        if not isinstance(place.owner, tuple | types.MappingProxyType):  # those stay as they are
            self.values.append((place, value))
        if not isinstance(value, PRIMITIVES):
            self.enter(value, place.path)

    def enter(self, value: Any, path: str) -> None:
        """All that is reached from a value."""
        if isinstance(value, OPAQUE) or id(value) in self._seen:
            return
        self._seen.add(id(value))
        self._alive.append(value)
        if isinstance(value, dict | list | tuple) and len(value) > LARGEST:
            self.sizes.append((value, len(value)))
            return
        for place, found in _inside(value, path):
            self.add(place, found)
        contents = value if isinstance(value, dict | list) else getattr(value, "__dict__", None)
        if contents is not None:
            self.sizes.append((contents, len(contents)))

    def unchanged(self, namespace: dict[str, Any]) -> str:
        """An expression that is true if everything is what it was; its names are put into
        `namespace`. It may raise MISSING_KEY."""
        checks = []
        for n, (place, value) in enumerate(self.values):
            owner, key = place.owner, place.key
            namespace |= {f"owner{n}": owner, f"key{n}": key, f"value{n}": value}
            checks.append(f"owner{n}[key{n}] is value{n}")
            if isinstance(owner, Cell):
                namespace[f"owner{n}"] = owner.cell
                checks[-1] = f"owner{n}.cell_contents is value{n}"
        for n, (container, size) in enumerate(self.sizes):
            namespace[f"container{n}"] = container
            checks.append(f"len(container{n}) == {size}")
        # Numbers may be equal, and methods the same, without being one object.
        return f"{' and '.join(checks) or True} or changed() is None"

    def changed(self) -> str | None:
        """The path of something that is not what it was; None if all is."""
        for place, value in self.values:
            try:
                if place.owner[place.key] is value:
                    continue
            except MISSING_KEY:
                return place.path
            if not _is_same(place.read(), value):
                return place.path
        for container, size in self.sizes:
            if len(container) != size:
                return f"a {type(container).__name__} of {size}"
        return None


def _is_same(now: Any, value: Any) -> bool:
    """Whether two values are the same number, text or constant."""
    if type(now) is not type(value) or not isinstance(value, PRIMITIVES):
        # Methods are made anew whenever they are looked up.
        return isinstance(value, types.MethodType) and bool(now == value)
    return bool(now == value) or (now != now and value != value)


def _inside(value: Any, path: str) -> Iterator[tuple[Place, Any]]:
    """The places in a container, an object or a function, with what they hold."""
    if isinstance(value, Stateful):
        untracked = value.counters
        for key, found in vars(value).items():
            if key not in untracked:
                yield Place(vars(value), key, f"{path}.{key}"), found
    elif isinstance(value, dict):
        for key, found in value.items():
            yield Place(value, key, f"{path}[{key!r}]"), found
    elif isinstance(value, list | tuple):
        for index, found in enumerate(value):
            yield Place(value, index, f"{path}[{index}]"), found
    elif isinstance(value, functools.partial):
        yield from _parts(
            {"func": value.func, "args": value.args, "keywords": value.keywords}, path
        )
    elif isinstance(value, types.MethodType):
        yield from _parts({"__self__": value.__self__, "__func__": value.__func__}, path)
    elif isinstance(value, types.FunctionType):
        yield from _inside_function(value)
    elif hasattr(value, "__wrapped__"):
        yield from _parts({"__wrapped__": value.__wrapped__}, path)
    elif hasattr(value, "__dict__") and _is_of_a_user(type(value)):
        for key, found in vars(value).items():
            yield Place(vars(value), key, f"{path}.{key}"), found


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
    for name, found in (function.__kwdefaults__ or {}).items():
        yield Place(function.__kwdefaults__, name, name), found
    for index, found in enumerate(function.__defaults__ or ()):
        yield Place(function.__defaults__, index, f"{function.__name__} default {index}"), found
    if _is_of_a_user(function):
        for name in sorted(_names(function.__code__)):
            if name in function.__globals__:
                yield Place(function.__globals__, name, name), function.__globals__[name]


def _names(code: types.CodeType) -> set[str]:
    """The global names that a function, or one inside it, may look up."""
    inner = (c for c in code.co_consts if isinstance(c, types.CodeType))
    return {*code.co_names}.union(*map(_names, inner))


def _is_of_a_user(thing: Any) -> bool:
    """Whether a class or a function is of a program, and not of gdt or a library."""
    import_name = str(getattr(thing, "__module__", "") or "")
    if import_name.split(".", maxsplit=1)[0] in ("gdt", "builtins"):
        return False
    code = getattr(thing, "__code__", None)
    if code is not None:
        return not code.co_filename.startswith((*LIBRARIES, "<frozen"))
    file = getattr(sys.modules.get(import_name), "__file__", None) or ""
    return not file.startswith(LIBRARIES)
