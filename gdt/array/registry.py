"""The public functions by name, as arrays' methods and NumPy's protocols find them."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from gdt.arguments import checked

A = TypeVar("A")
F = TypeVar("F", bound=Callable[..., Any])


class ArrayFunction(Protocol):
    """A public function as methods of arrays call it: with an array, of whose class its result
    is."""

    def __call__(self, x: A, /, *args: Any, **static: Any) -> A: ...


FUNCTIONS: dict[str, ArrayFunction] = {}  # by name; `public` and `gdt.op` add to them
# What operators call, which have looked at the arguments: the same functions without `checked`, and
# the methods `__call__` of ops, since a call of an object takes longer.
UNCHECKED: dict[str, ArrayFunction] = {}
ALIASES: dict[str, str] = {}  # NumPy's other names of them; `gdt.functions.aliases` fills it
METHODS: dict[str, Callable[..., Any]] = {}  # of arrays, which call the function of their name


def register(name: str, function: Callable[..., Any], unchecked: Callable[..., Any]) -> None:
    """Make a function known by its name; the method of that name shows its signature and text."""
    FUNCTIONS[name], UNCHECKED[name] = function, unchecked
    if name in METHODS:
        signature = inspect.signature(function)
        first, *others = signature.parameters.values()
        own = first.replace(name="self", annotation=first.empty)
        described: Any = METHODS[name]
        described.__signature__ = signature.replace(parameters=[own, *others])
        described.__doc__ = function.__doc__


def public(function: F) -> F:
    """Register a plain function of ops as a public function, which methods of arrays and NumPy's
    protocols find by its name. A decorator; the function's arguments are checked."""
    return _registered(function, function.__name__.rstrip("_"))


def public_of(chapter: str) -> Callable[[F], F]:
    """Register functions of `gdt.fft` or `gdt.linalg`, as `public` does, by the name that NumPy's
    chapter has for them: `"fft.rfft"`. A decorator."""
    return lambda function: _registered(function, f"{chapter}.{function.__name__}")


def _registered(function: F, name: str) -> F:
    if not inspect.isfunction(function):
        register(name, function, function.__call__)  # type: ignore[operator]
        return function
    public_function = checked(function, name)
    register(name, public_function, function)
    return public_function


def public_names(namespace: dict[str, Any]) -> list[str]:
    """Return the names in a package's namespace that are neither private nor those of modules."""
    return sorted(
        name
        for name, value in namespace.items()
        if not (name.startswith("_") or isinstance(value, types.ModuleType))
    )
