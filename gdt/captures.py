"""What a function works with besides its arguments: the arrays that it can reach, and all that its
behaviour may depend on.

A recorded function reads and writes the places where Python keeps arrays: attributes of modules and
optimizers, entries of dicts and lists, variables of enclosing functions, global variables. It is
only as good as long as everything on the way there is what it was: that is what a guard checks.
Which functions have a say is seen while one call runs (`Ran`): methods and whatever else it calls.
"""

from __future__ import annotations

import argparse
import dis
import functools
import gc
import sys
import sysconfig
import types
import weakref
from collections import ChainMap, UserDict, UserList, deque
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gdt.array import DistributedArray
from gdt.layout import ArrayType, Layout
from gdt.mesh import Mesh
from gdt.plan import exact_key
from gdt.slots import Stateful

PRIMITIVES = (int, float, complex, bool, str, bytes, type(None), np.generic, np.dtype)
OPAQUE = (types.ModuleType, np.ndarray, ArrayType, Layout, Mesh)
NAMESPACES = (  # the library's classes that keep a user's values in attributes
    types.SimpleNamespace, argparse.Namespace, UserDict, UserList, ChainMap,
)  # fmt: skip
PACKAGE = str(Path(__file__).parent)
LIBRARIES = [PACKAGE, *{sysconfig.get_path(name) for name in ("stdlib", "platlib", "purelib")}]
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


class Attributes:
    """The attributes of an object, a class or a module that are not in a dict of their own, or in
    one that must not be written to, as an owner."""

    def __init__(self, thing: Any) -> None:
        self.thing = thing

    def __getitem__(self, key: str) -> Any:
        try:
            return getattr(self.thing, key)
        except AttributeError:
            raise KeyError(key) from None

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


class Ran:
    """The functions of the user's that have run, by their code, with their global variables."""

    def __init__(self) -> None:
        self.codes: dict[types.CodeType, dict[str, Any]] = {}
        self._functions: list[weakref.ref[types.FunctionType]] = []

    @contextmanager
    def watching(self, reached: Set[types.CodeType]) -> Iterator[None]:
        """Add what runs in this block, in this thread; `reached` are functions that are known."""
        before, known = sys.getprofile(), len(self.codes)
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(before)
        # A function that another one makes works with the variables of that call.
        made = {inner for code in (*self.codes, *reached) for inner in _made_by(code)}
        new = {c for c in [*self.codes][known:] if c.co_freevars} - made - reached
        if new:  # a search of all objects, for what decorators have made, say
            self._functions += [
                weakref.ref(f)
                for f in gc.get_referrers(*new)
                if isinstance(f, types.FunctionType) and f.__code__ in new
            ]

    def _note(self, frame: types.FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code not in self.codes and _is_users_code(frame.f_code):
            variables = frame.f_globals
            made = str(variables.get("__name__")).startswith("namedtuple_")
            if not made and _is_users_file(variables):
                self.codes[frame.f_code] = variables

    def functions(self) -> Iterator[types.FunctionType]:
        """Those of them that have variables of enclosing functions."""
        for reference in self._functions:
            if (function := reference()) is not None:
                yield function


class Captures:
    """What can be reached from some values: `arrays`, places with the arrays kept there; `values`,
    places whose values a recording relies on; `sizes`, containers with their lengths; `contents`,
    sets with what they hold. `ran` says which functions have been seen to run."""

    def __init__(self, ran: Ran) -> None:
        self.arrays: list[tuple[Place, DistributedArray]] = []
        self.values: list[tuple[Place, Any]] = []
        self.sizes: list[tuple[Any, int]] = []
        self.contents: list[tuple[Any, frozenset[Any]]] = []
        self.functions: set[types.CodeType] = set()
        self.ran = ran
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
        if isinstance(value, types.FunctionType):
            self.functions.add(value.__code__)
        if isinstance(value, set | frozenset):
            self.contents.append((value, frozenset(value)))
            return
        if isinstance(value, dict | list | tuple | deque) and len(value) > LARGEST:
            self.sizes.append((value, len(value)))
            return
        for place, found in _inside(value, path):
            self.add(place, found)
        if isinstance(value, type):
            return
        for cls in type(value).__mro__:
            self._enter_methods(cls)
        contents = (
            value if isinstance(value, dict | list | deque) else getattr(value, "__dict__", None)
        )
        if contents is not None:
            self.sizes.append((contents, len(contents)))

    def enter_ran(self) -> None:
        """All that is reached from the functions that ran."""
        for code, variables in self.ran.codes.items():
            for place, found in _inside_code(code, variables):
                self.add(place, found)
        for function in self.ran.functions():
            self.enter(function, function.__name__)

    def _enter_methods(self, cls: type) -> None:
        """The data in a class of the user's, and the methods that ran, which may be replaced."""
        if not _is_of_a_user(cls) or id(cls) in self._seen:
            return
        self.enter(cls, cls.__name__)
        for name, method in vars(cls).items():
            if isinstance(method, types.FunctionType) and method.__code__ in self.ran.codes:
                self.values.append((Place(Attributes(cls), name, f"{cls.__name__}.{name}"), method))

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
        for n, (container, contents) in enumerate(self.contents):
            namespace |= {f"set{n}": container, f"contents{n}": contents}
            checks.append(f"set{n} == contents{n}")
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
        for members, contents in self.contents:
            if members != contents:
                return f"a set of {len(contents)}"
        return None


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
    if isinstance(value, Stateful):
        untracked = value.counters
        for key, found in vars(value).items():
            if key not in untracked:
                yield Place(vars(value), key, f"{path}.{key}"), found
    elif isinstance(value, dict):
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
    elif hasattr(value, "__wrapped__"):
        yield from _parts({"__wrapped__": value.__wrapped__}, path)
    elif isinstance(value, type):
        if _is_of_a_user(value):
            for key, found in vars(value).items():
                if not key.startswith("__") and not callable(found) and not _is_descriptor(found):
                    yield Place(Attributes(value), key, f"{path}.{key}"), found
    elif isinstance(value, NAMESPACES) or _is_of_a_user(type(value)):  # type: ignore[arg-type]
        for key, found in getattr(value, "__dict__", {}).items():
            yield Place(vars(value), key, f"{path}.{key}"), found
        for key in _slots(type(value)):
            if hasattr(value, key):
                yield Place(Attributes(value), key, f"{path}.{key}"), getattr(value, key)


def _is_descriptor(found: Any) -> bool:
    return hasattr(type(found), "__get__")


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
    for name, found in (function.__kwdefaults__ or {}).items():
        yield Place(function.__kwdefaults__, name, name), found
    for index, found in enumerate(function.__defaults__ or ()):
        yield Place(function.__defaults__, index, f"{function.__name__} default {index}"), found
    if _is_users_code(function.__code__):
        yield from _inside_code(function.__code__, function.__globals__)


def _inside_code(code: types.CodeType, variables: dict[str, Any]) -> Iterator[tuple[Place, Any]]:
    """The global variables that code may look up, and what it may look up in modules there."""
    names, attributes = _names(code)
    for name in sorted(names):
        if name in variables:
            found = variables[name]
            yield Place(variables, name, name), found
            if isinstance(found, types.ModuleType) and _is_users_file(found.__dict__):
                for key in sorted(attributes & vars(found).keys()):
                    yield Place(vars(found), key, f"{name}.{key}"), vars(found)[key]


def _made_by(code: types.CodeType) -> list[types.CodeType]:
    """The functions that a function makes while it runs."""
    return [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]


@functools.lru_cache(maxsize=1 << 12)
def _names(code: types.CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """The names of global variables, and of attributes, that a function, or one inside it, may
    look up."""
    variables, attributes = set(), set()
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            variables.add(instruction.argval)
        elif instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            attributes.add(instruction.argval)
    for inner in _made_by(code):
        more = _names(inner)
        variables |= more[0]
        attributes |= more[1]
    return frozenset(variables), frozenset(attributes)


def exempt(path: str) -> None:
    """Let code in files whose names begin like this be a library's, on which no recording relies:
    that of a backend which is no part of gdt."""
    LIBRARIES.append(path)
    _is_of_a_user.cache_clear()
    _is_users_code.cache_clear()


@functools.lru_cache(maxsize=1 << 12)
def _is_of_a_user(thing: type) -> bool:
    """Whether a class is of a program, and not of gdt or a library."""
    module = str(getattr(thing, "__module__", "") or "")
    if module.split(".", maxsplit=1)[0] in ("gdt", "builtins"):
        return False
    return _is_users_file(vars(sys.modules[module]) if module in sys.modules else {})


@functools.lru_cache(maxsize=1 << 12)
def _is_users_code(code: types.CodeType) -> bool:
    return not code.co_filename.startswith((*LIBRARIES, "<frozen", "<gdt", "<__array"))


def _is_users_file(variables: dict[str, Any]) -> bool:
    """Whether a module, by its variables, is of a program; one that was typed in is."""
    file, name = variables.get("__file__") or "", variables.get("__name__")
    return name not in sys.builtin_module_names and not file.startswith(tuple(LIBRARIES))
