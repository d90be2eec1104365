"""Launches that are prepared once: a second call with arrays alike only fills in the arrays.

What a launch function computes of its arguments (the instance, the grid, strides, the numbers a
kernel takes) depends on the shapes, strides and dtypes of its arrays, on how they are aligned, on
which of them are one, and on its other arguments. So its calls are kept by these, with their
arguments checked, and with a place for each array.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any, NamedTuple, ParamSpec

import numpy as np

from gdt.caches import Cache
from gdt.cuda.launches.calls import Array
from gdt.cuda.runner import KernelCall, address, check
from gdt.cuda.sources import parameters
from gdt.cuda.tensor_map import TensorMap

P = ParamSpec("P")
Launch = Callable[P, list[KernelCall]]

CACHED_BYTES = 4000  # estimate of a cached list of calls
ALIGNMENT = 16  # bytes, beyond which no launch function looks at addresses
VALUES = frozenset((bool, int, float, str, type(None)))


class PreparedCall(NamedTuple):
    """A call whose arrays are missing.

    places: the position of each array among the arguments, and its number among the arrays that
    the launch function was given, then those that it allocated.
    """

    call: KernelCall
    places: tuple[tuple[int, int], ...]

    def filled(self, arrays: Sequence[Array]) -> KernelCall:
        """Return the call with these arrays."""
        call = self.call
        arguments = list(call.arguments)
        for place, number in self.places:
            like = arguments[place]
            array = arrays[number]
            arguments[place] = array if like is None else replace(like, array=array)
        return KernelCall(
            call.instance, call.grid, call.block, tuple(arguments), call.shared, checked=True
        )


class PreparedCalls(NamedTuple):
    """The calls of a launch function, and the shapes and dtypes of the memory that they need."""

    calls: tuple[PreparedCall, ...]
    scratch: tuple[tuple[tuple[int, ...], Any], ...]


class _Arguments:
    """The arguments of a launch function, flattened.

    arrays: the arrays among them. key: all that calls depend on. empty: the function that
    allocates memory, if there is one.
    """

    def __init__(self, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        self.arrays: list[Array] = []
        self.addresses: list[int] = []
        self.empty: Any = None
        self.key = (self._flat(arguments), tuple(options), self._flat(tuple(options.values())))

    def _flat(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        key: list[Any] = []
        for a in arguments:
            if type(a) in VALUES or isinstance(a, np.generic):
                key.append(a)
            elif isinstance(a, tuple):
                key.append(self._flat(a))
            elif callable(a):
                self.empty = a
            else:
                at = address(a)
                if at in self.addresses:
                    key.append(self.addresses.index(at))
                self.addresses.append(at)
                self.arrays.append(a)
                key += (a.shape, a.strides, a.dtype, at % ALIGNMENT)
        return tuple(key)


def _prepare(call: KernelCall, addresses: Sequence[int]) -> PreparedCall | None:
    """Return a call without its arrays, which lie at `addresses`; None if it has another array."""
    if call.pointees:
        return None
    arguments, places = check(call), []
    for place, parameter in enumerate(parameters(call.instance)):
        argument = arguments[place]
        is_map = isinstance(argument, TensorMap)
        if argument is None or not (parameter.pointer or is_map):
            continue
        at = address(argument.array if is_map else argument)
        if at not in addresses:
            return None
        places.append((place, addresses.index(at)))
        arguments[place] = replace(argument, array=None) if is_map else None
    return PreparedCall(replace(call, arguments=tuple(arguments)), tuple(places))


def prepared(launch: Launch[P]) -> Launch[P]:
    """Return `launch`, a function from arrays to calls, that keeps the calls it has made."""
    kept: Cache[PreparedCalls | None] = Cache(CACHED_BYTES)

    @wraps(launch)
    def fill(*args: P.args, **kwargs: P.kwargs) -> list[KernelCall]:
        given = _Arguments(args, kwargs)
        try:
            found = kept[given.key]
        except KeyError:
            return _first(launch, kept, given, args, kwargs)
        if found is None:
            return launch(*args, **kwargs)
        arrays = given.arrays
        for shape, dtype in found.scratch:
            arrays.append(given.empty(shape, dtype))
        return [call.filled(arrays) for call in found.calls]

    return fill


def _first(
    launch: Callable[..., list[KernelCall]],
    kept: Cache[PreparedCalls | None],
    given: _Arguments,
    args: Any,
    kwargs: Any,
) -> list[KernelCall]:
    """Return the calls of `launch`, and keep them without their arrays."""
    scratch: list[tuple[tuple[int, ...], Any]] = []

    def empty(shape: tuple[int, ...], dtype: Any) -> Array:
        array = given.empty(shape, dtype)
        scratch.append((shape, dtype))
        given.addresses.append(address(array))
        return array

    args = tuple(empty if a is given.empty and a is not None else a for a in args)
    calls = launch(*args, **kwargs)
    without_arrays = [_prepare(call, given.addresses) for call in calls]
    known = tuple(c for c in without_arrays if c is not None)
    kept[given.key] = PreparedCalls(known, tuple(scratch)) if len(known) == len(calls) else None
    return calls
