"""Prepared launches: what a kernel's function does is kept, and repeated without the function.

What such a function allocates and launches depends on its arguments that are no arrays, and on how
its arrays lie in memory: on their shapes, strides and alignment, and on which of them are one. So
the recording of a call is kept by these as a `Prepared`, which allocates the same memory and
launches the same kernels on other arrays.

A function may compute by functions of the array namespace too, which a recording does not see. Its
calls are kept only if all memory is accounted for: what a kernel reads or writes belongs to an
argument, to memory of `Launcher.empty`, to a copy of an argument by `Launcher.contiguous`, or to a
constant of the launcher; and a kernel writes all memory of `empty`, all arrays to write into, and
all results. So a cast of an operand or of a result, or a fill of memory, has its function run in
every call.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from itertools import combinations
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from gdt.backend.protocol import Backend, KernelRunner
from gdt.cuda.runner import ArgumentPlace, KernelCall, Launch
from gdt.cuda.sources import Parameter, parameters
from gdt.cuda.tensor_map import TensorMap
from gdt.engine.source import as_tuple

Block = Any

ALIGNMENT = 16  # bytes, beyond which no launch function looks at addresses
VALUES = frozenset((int, float, complex, str, bool, type(None), *np.sctypeDict.values()))
INEXACT = VALUES - {int, str, bool, type(None)}  # whose equal values may differ


def arguments(
    runner: KernelRunner, setting: Any, xs: Sequence[Any], keywords: Mapping[str, Any] = {}
) -> tuple[tuple[Any, ...], list[Block], list[int]]:
    """Return the key of a call of a kernel's function, which holds all that decides what the call
    does; the arrays among its arguments; and their addresses.

    setting: what decides too. xs, keywords: arrays and numbers; and tuples of them by name.
    """
    key: list[Any] = [setting, runner.arch]
    arrays: list[Block] = []
    addresses: list[int] = []
    find, rest = runner.address, 0
    for x in (*xs, *_named(keywords)) if keywords else xs:
        kind = type(x)
        if kind in VALUES:
            key.append((kind, repr(x) if kind in INEXACT else x))  # 0.0 is not -0.0
            continue
        if kind is np.ndarray and not x.shape:  # a number that a program has
            key.append((x.dtype, x.tobytes()))
            continue
        address = find(x)
        rest |= address
        arrays.append(x)
        addresses.append(address)
        key += (x.shape, x.strides, x.dtype)
    if rest % ALIGNMENT:
        key.append(tuple([a % ALIGNMENT for a in addresses]))
    if len(set(addresses)) < len(addresses):  # some of them are one
        key.append(tuple(map(addresses.index, addresses)))
    return tuple(key), arrays, addresses


def _named(keywords: Mapping[str, Any]) -> list[Any]:
    values: list[Any] = []
    for name, value in keywords.items():
        values += (name, len(value), *_flat(value)) if isinstance(value, tuple) else (name, value)
    return values


def _flat(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, tuple):
            yield len(value)
            yield from _flat(value)
        else:
            yield value


class View(NamedTuple):
    """Elements of the array of that number: from `first` on, in this shape; all of the array if
    `shape` is None."""

    number: int
    first: int = 0
    shape: tuple[int, ...] | None = None

    def of(self, arrays: Sequence[Block]) -> Block:
        """Return the view."""
        array, shape = arrays[self.number], self.shape
        if shape is None:
            return array
        return array.reshape(-1)[self.first : self.first + math.prod(shape)].reshape(shape)


class Prepared:
    """A call of a kernel's function on other arrays.

    names: the kernels that it launches. memory: what it allocates: shapes and dtypes, or the number
    of an array of which it makes a copy without gaps. results: views of its arrays, of the memory
    and of `constants`, in this order.
    """

    __slots__ = (
        "_constants",
        "_copy",
        "_find",
        "_launches",
        "_memory",
        "_new",
        "_pick",
        "_views",
        "names",
    )

    def __init__(
        self,
        backend: Backend,
        names: str,
        memory: Sequence[tuple[tuple[int, ...], np.dtype] | int],
        launches: Sequence[Launch],
        results: View | tuple[View, ...],
        constants: Sequence[Block],
    ) -> None:
        self.names, self._launches = names, tuple(launches)
        # CuPy looks up the class of an element in less time than a dtype, and `empty`, which passes
        # an order by its name, takes half as long again as the constructor.
        self._memory: list[tuple[Any, Any]] = [
            (None, m) if isinstance(m, int) else (m[0], _class_of_elements(m[1])) for m in memory
        ]
        self._new, self._copy = backend.xp.ndarray, backend.xp.ascontiguousarray
        self._find = backend.runner.address  # type: ignore[union-attr]
        self._views, self._constants = results, constants
        # Of most kernels the results are whole arrays.
        views = (results,) if isinstance(results, View) else results
        is_plain = all(view.shape is None for view in views) and (
            len(views) > 1 or views is not results
        )
        self._pick = itemgetter(*[view.number for view in views]) if is_plain else None

    def run(self, arrays: list[Block], addresses: list[int]) -> Any:
        """Allocate, launch on the arrays of a call, and return the results."""
        for shape, what in self._memory:
            array = self._copy(arrays[what]) if shape is None else self._new(shape, what)
            arrays.append(array)
            addresses.append(self._find(array))
        for launch in self._launches:
            launch(arrays, addresses)
        arrays += self._constants
        if self._pick is not None:
            return self._pick(arrays)
        if isinstance(self._views, View):
            return self._views.of(arrays)
        return tuple([view.of(arrays) for view in self._views])


def _class_of_elements(dtype: np.dtype) -> Any:
    """Return the class of a dtype's elements, or a dtype that its class does not tell."""
    return dtype.type if np.dtype(dtype.type) == dtype else dtype


class KernelRecording:
    """The memory and the launches of one call of a kernel's function.

    arrays: the arrays among its arguments, of which the last `to_write` are to be written.
    """

    def __init__(self, backend: Backend, arrays: Sequence[Block], to_write: int) -> None:
        self._backend, self._given, self._to_write = backend, tuple(arrays), to_write
        self._memory: list[Block] = []
        self._sources: dict[int, Block] = {}  # of the copies among the memory, by their number
        self.calls: list[KernelCall] = []

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> Block:
        """Uninitialised memory."""
        self._memory.append(self._backend.empty(shape, dtype))
        return self._memory[-1]

    def add_copy(self, source: Block, copy: Block) -> None:
        """Note a copy without gaps of an array."""
        self._sources[len(self._memory)] = source
        self._memory.append(copy)

    def add(self, call: KernelCall) -> None:
        """Note a call that was launched."""
        self.calls.append(call)

    def prepared(self, results: Any, constants: Iterable[Block]) -> Prepared | None:
        """Return what was recorded, for calls with the same key; None if some memory is not
        accounted for.

        constants: the arrays that all calls share.
        """
        assert self._backend.runner is not None
        runner, find, count = self._backend.runner, self._backend.runner.address, len(self._given)
        arrays = [*self._given, *self._memory, *constants]
        extents = Extents(arrays, list(map(find, arrays)))
        end = count + len(self._memory)  # of the arrays that other calls have in their place
        if not self.calls or extents.overlap(count):
            return None
        memory: list[Any] = [(a.shape, a.dtype) for a in self._memory]
        placed, written = [], set()
        for n, source in self._sources.items():
            # Copies are made before all launches, so of arrays that none of these writes.
            given = (i for i, a in enumerate(self._given[: count - self._to_write]) if a is source)
            memory[n] = next(given, None)
            if memory[n] is None:
                return None
            written.add(count + n)
        for call in self.calls:
            places = []
            for n, parameter, array in pointers(call):
                address = find(array)
                number = extents.holding(address)
                if number is None:
                    return None
                if number < end:
                    places.append(ArgumentPlace(n, number, address - extents.addresses[number]))
                if parameter.pointer and not parameter.const:
                    written.add(number)
            if call.pointees:
                return None
            placed.append((call, places))
        to_write = range(count - self._to_write, end)
        if not written.issuperset([extents.holding(extents.addresses[n]) for n in to_write]):
            return None
        views = []
        for result in as_tuple(results):
            if not hasattr(result, "strides"):
                return None
            view = extents.view(result, find(result), range(count, end))
            if view is None:
                return None
            views.append(view)
        for n, view in enumerate(views):
            at = view.number - count
            if at in self._sources:
                return None
            if view.shape is not None and math.prod(view.shape) == math.prod(memory[at][0]):
                memory[at] = view.shape, memory[at][1]
                views[n] = View(view.number)
        return Prepared(
            self._backend,
            " ".join(dict.fromkeys(str(call.instance) for call in self.calls)),
            memory,
            [runner.prepare(call, places) for call, places in placed],
            tuple(views) if isinstance(results, tuple) else views[0],
            arrays[end:],
        )


def pointers(call: KernelCall) -> Iterator[tuple[int, Parameter, Block]]:
    """Yield the arrays of a call, each with its parameter and the number of that."""
    for n, parameter in enumerate(parameters(call.instance)):
        argument = call.arguments[n]
        if isinstance(argument, TensorMap):
            yield n, parameter, argument.array
        elif parameter.pointer and argument is not None:
            yield n, parameter, argument


class Extents:
    """The memory of arrays: from which address to which."""

    def __init__(self, arrays: Sequence[Block], addresses: Sequence[int]) -> None:
        self.arrays, self.addresses = arrays, addresses
        self._bounds = []
        for array, address in zip(arrays, addresses, strict=True):
            steps = [(n - 1) * s for n, s in zip(array.shape, array.strides, strict=True)]
            low = address + sum(step for step in steps if step < 0)
            high = address + sum(step for step in steps if step > 0) + array.dtype.itemsize
            self._bounds.append((low, high if array.size else low))

    def overlap(self, count: int) -> bool:
        """Whether two of the first `count` arrays share memory, and do not begin together."""
        pairs = combinations(zip(self.addresses[:count], self._bounds, strict=False), 2)
        return any(
            a != b and max(low, lower) < min(high, higher)
            for (a, (low, high)), (b, (lower, higher)) in pairs
        )

    def holding(self, address: int) -> int | None:
        """Return the number of the first array that begins at `address`; else of one around it."""
        if address in self.addresses:
            return self.addresses.index(address)
        inside = (n for n, (low, high) in enumerate(self._bounds) if low <= address < high)
        return next(inside, None)

    def view(self, result: Block, address: int, memory: range) -> View | None:
        """Return a result as a view: of an array that it is, or of one of `memory`."""
        number = self.holding(address)
        if number is None:
            return None
        array = self.arrays[number]
        if result is array:
            return View(number)
        first, rest = divmod(address - self.addresses[number], array.dtype.itemsize)
        is_view = number in memory and result.dtype == array.dtype and not rest
        return View(number, first, result.shape) if is_view and result.flags.c_contiguous else None


RECORDING: ContextVar[KernelRecording | None] = ContextVar("gdt.recorded_launches", default=None)
"""The recording of the call that the current thread makes."""
