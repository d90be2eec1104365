"""The signature of a call: what tells it from calls that need another recording."""

from __future__ import annotations

from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.engine.plan import value_key
from gdt.errors import FunctionError, error, line_of_user
from gdt.settings import MATMUL_BACKEND, MATMUL_PRECISION
from gdt.sharding.default_mesh import chosen_mesh

PRIMITIVES = (int, float, complex, bool, str, bytes, type(None), np.generic, np.dtype)


class Arguments:
    """The arguments of a call, `args` and `kwargs`: `key`, all but the values in arrays; `places`,
    owner and key of every array; `objects`, what is no array, number or container, by name;
    `containers`, lists and dicts.
    """

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> None:
        self.args, self.kwargs = args, kwargs
        self.places: list[tuple[Any, Any]] = []
        self.objects: list[tuple[str, Any]] = []
        self.containers: list[Any] = []
        self._numbers: dict[int, int] = {}  # of the containers, by identity
        # Every part says how many follow: no two calls that differ are to have one key.
        settings = (chosen_mesh(), MATMUL_BACKEND.get(), MATMUL_PRECISION.get())
        self._parts: list[Any] = [*settings, *np.geterr().values(), len(args), *kwargs]
        self._name = name
        try:
            self._add(args, range(len(args)), ())
            if kwargs:
                self._add(kwargs, kwargs, ())
        except RecursionError:
            raise error(
                FunctionError, name, "an argument is nested too deep", remedy="Pass flat lists."
            ) from None
        self.key = tuple(self._parts)

    def _add(self, owner: Any, keys: Any, path: tuple[Any, ...]) -> None:
        """Take in what a container holds under these keys."""
        parts = self._parts
        for key in keys:
            value = owner[key]
            kind = type(value)
            if kind is DistributedArray:
                parts.append(value.type)
                self.places.append((owner, key))
            elif isinstance(value, PRIMITIVES):
                parts.append(value_key(value))
            elif isinstance(value, np.ndarray):
                raise error(
                    FunctionError,
                    self._name,
                    f"{_spelled((*path, key))} is a NumPy array {value.dtype}{list(value.shape)}, "
                    f"in the call in {line_of_user()}",
                    remedy="Pass gdt.asarray(values, layout=...), made once: a recorded step "
                    "reads the arrays of gdt anew.",
                )
            elif kind is dict:
                parts += (dict, len(value), *value)
                kinds = [*map(type, value)]
                if kinds.count(str) != len(kinds):  # equal keys may differ if they are no texts
                    parts += map(value_key, value)
                if self._is_new(value):
                    self._add(value, value, (*path, key))
            elif kind is list or kind is tuple or hasattr(value, "_fields"):
                parts += (kind, len(value))
                if kind is not list or self._is_new(value):
                    self._add(value, range(len(value)), (*path, key))
            else:
                parts.append(id(value))
                self.objects.append((_spelled((*path, key)), value))

    def _is_new(self, container: Any) -> bool:
        """Whether it has not been given before; the key has its number among the containers, which
        tells one that is given twice from two."""
        count = len(self.containers)
        number = self._numbers.setdefault(id(container), count)
        self._parts.append(number)
        if number == count:
            self.containers.append(container)
        return number == count


def _spelled(path: tuple[Any, ...]) -> str:
    """An argument, or a part of one, as messages name it."""
    first, *keys = path
    return f"argument {first!r}" + "".join([f"[{key!r}]" for key in keys])
