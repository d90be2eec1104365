"""The public functions by name, as arrays' methods and NumPy's protocols find them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from gdt.arguments import checked

F = TypeVar("F", bound=Callable[..., Any])

FUNCTIONS: dict[str, Callable[..., Any]] = {}  # filled as they are declared


def public(function: F) -> F:
    """Make a plain function of ops one of gdt's public functions (and of the array's methods)."""
    if inspect.isfunction(function):
        function = checked(function)
    FUNCTIONS[function.__name__.rstrip("_")] = function
    return function
