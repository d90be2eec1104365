"""The variables of a function as places: everything but its arguments that its code can name."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterator
from typing import Any

from gdt.state import Place, owner_of

MISSING = object()
MISSING_KEY = (KeyError, IndexError, AttributeError, ValueError)  # ValueError: an empty cell


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
    package = type(value).__module__.partition(".")[0]
    is_users = package not in ("gdt", "numpy", *sys.stdlib_module_names)
    is_users = is_users or isinstance(value, types.SimpleNamespace)
    return getattr(value, "__dict__", None) if is_users else None


def variables(function: Any, name: str = "self") -> Iterator[Place]:
    """A function, under that name, and its variables: those of enclosing functions, defaults, what
    it is bound to, and the global variables that its code names; and likewise those of functions
    among them, but of global variables only those of its own module."""
    yield Place(name, (function,), 0)
    innermost = function
    while (inner := _inside(innermost)) is not None:
        innermost = inner
    module = getattr(innermost, "__globals__", None)
    waiting, closed = [function], set[int]()
    while waiting:
        value = waiting.pop(0)
        if id(value) in closed:
            continue
        closed.add(id(value))
        places: list[Place] = []
        if isinstance(value, functools.partial):
            places = [Place(f"argument {i}", value.args, i) for i in range(len(value.args))]
            places += [Place(name, value.keywords, name) for name in value.keywords]
        elif isinstance(value, types.MethodType):
            places = [Place("self", (value.__self__,), 0)]
        elif isinstance(value, types.FunctionType):
            places = [*_of_function(value, value.__globals__ is module)]
        yield from places
        waiting += [_inside(value), *[v for v in map(read, places) if _is_function(v)]]


def _inside(function: Any) -> Any:
    """The function inside a partial, a method or a wrapper; None if there is none."""
    if isinstance(function, functools.partial):
        return function.func
    return getattr(function, "__func__", None) or getattr(function, "__wrapped__", None)


def _of_function(function: types.FunctionType, has_globals: bool) -> Iterator[Place]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield Place(name, Cell(cell), name)
    defaults = function.__defaults__ or ()
    yield from [Place(f"default {i}", defaults, i) for i in range(len(defaults))]
    named = function.__kwdefaults__ or {}
    yield from [Place(f"default {name}", named, name) for name in named]
    if has_globals:
        names = sorted(_names(function.__code__))
        yield from [Place(name, function.__globals__, name) for name in names]


def _is_function(value: Any) -> bool:
    kinds = types.FunctionType, types.MethodType, functools.partial
    return isinstance(value, kinds) or isinstance(getattr(value, "__wrapped__", None), kinds)


def _names(code: types.CodeType) -> set[str]:
    """The names of global variables, and of attributes, in a function and those in it."""
    inner = [
        _names(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)
    ]
    return {*code.co_names}.union(*inner)
