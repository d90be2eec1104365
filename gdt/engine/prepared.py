"""Prepared launches: what a kernel's function does is kept, and repeated without the function.

What such a function allocates and launches depends on its arguments that are no arrays, and on how
its arrays lie in memory: on their shapes, strides and alignment, and on which of them are one. So
the recording of a call becomes a function of a few lines, which tests whether other arguments are
alike in all this, allocates the same memory for them, and launches the same kernels.

A function may compute by functions of the array namespace too, which a recording does not see. Its
calls are kept only if all memory is accounted for: what a kernel reads or writes belongs to an
argument, to memory of `Launcher.empty`, to a copy of an argument by `Launcher.contiguous`, or to a
constant of the launcher; and a kernel writes all memory of `empty`, all arrays to write into, and
all results. So a cast of an operand or of a result, or a fill of memory, has its function run in
every call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from gdt.backend.graphs import CAPTURED
from gdt.backend.protocol import Backend
from gdt.cuda.runner import ArgumentPlace, KernelCall, Launch
from gdt.cuda.sources import Parameter, parameters
from gdt.cuda.tensor_map import TensorMap
from gdt.engine.source import as_tuple, define

Block = Any

ALIGNMENT = 16  # bytes, beyond which no launch function looks at addresses
VALUES = frozenset((int, float, complex, str, bool, type(None), *np.sctypeDict.values()))
INEXACT = VALUES - {int, str, bool, type(None)}  # whose equal values may differ: 0.0 is not -0.0

Repeat = Callable[..., tuple[str, Any] | None]
"""A function of the arguments of a kernel's function: the names of the kernels that it has
launched, and the results; None if it repeats no such call, and has launched nothing."""


def repeats_nothing(*xs: Any) -> None:
    """The function that repeats no call."""


def by_position(keywords: Mapping[str, Any]) -> list[Any]:
    """Return arguments that are given by name, and what is in tuples, one after another."""
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


def is_array(x: Any) -> bool:
    """Whether an argument is an array of a device. (A program has numbers in NumPy's arrays.)"""
    return type(x) not in VALUES and not (type(x) is np.ndarray and not x.shape)


class View(NamedTuple):
    """Elements of the array of that number: from `first` on, in this shape; all of the array if
    `shape` is None."""

    number: int
    first: int = 0
    shape: tuple[int, ...] | None = None


class KernelRecording:
    """The memory and the launches of one call of a kernel's function.

    arguments: of the function, by position; see `by_position`. to_write: how many arrays, the last
    ones among them, are to be written.
    """

    def __init__(self, backend: Backend, arguments: Sequence[Any], to_write: int) -> None:
        self._backend, self._arguments, self._to_write = backend, tuple(arguments), to_write
        self._given = [x for x in arguments if is_array(x)]
        self._memory: list[Block] = []
        self._sources: dict[int, Block] = {}  # of the copies among the memory, by their number
        self.calls: list[KernelCall] = []

    def facts(self) -> tuple[Any, ...]:
        """The shapes, strides and alignment of the arrays among the arguments."""
        find = self._backend.runner.address  # type: ignore[union-attr]
        return tuple([(a.shape, a.strides, find(a) % ALIGNMENT) for a in self._given])

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

    def repeat(
        self,
        results: Any,
        constants: Iterable[Block] = (),
        settings: Sequence[tuple[Callable[[], Any], Any]] = (),
        otherwise: Repeat = repeats_nothing,
    ) -> Repeat | None:
        """Return a function that repeats what was recorded for arguments that are alike, and calls
        `otherwise` for others; None if some memory is not accounted for.

        constants: the arrays that all calls share. settings: functions, and the values that they
        return if the call may be repeated.
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
        source = RepeatSource(self._backend, otherwise)
        source.test_settings(len(self._arguments), settings)
        source.test_arguments(self._arguments)
        source.test_addresses(extents.addresses[:count])
        source.allocate(memory, {view.number for view in views})
        source.launch([runner.prepare(call, places) for call, places in placed])
        names = " ".join(dict.fromkeys(str(call.instance) for call in self.calls))
        source.return_(names, views, isinstance(results, tuple), arrays[end:])
        return source.function()


class RepeatSource:
    """The source of a function that repeats a call, to which the methods add in their order.

    Its arguments are `x0`, `x1`, ...; the given arrays among them and the memory are `arrays`, and
    their addresses `a0`, `a1`, ...
    """

    def __init__(self, backend: Backend, otherwise: Repeat) -> None:
        runner = backend.runner
        assert runner is not None
        # `empty`, which passes an order by its name, takes half as long again as the constructor.
        self._names = {
            "captured": CAPTURED.get, "runner": runner, "find": runner.address,
            "new": backend.xp.ndarray, "copy": backend.xp.ascontiguousarray,
            "allocate": runner.allocate, "otherwise": otherwise,
        }  # fmt: skip
        self._arch = runner.arch
        self._lines: list[str] = []
        self._arrays: list[str] = []

    def _name(self, stem: str, value: Any) -> str:
        """Return the name of a value; calls of one kind have the same names, and one source."""
        name = f"{stem}_{len(self._names)}"
        self._names[name] = value
        return name

    def test_settings(self, count: int, settings: Sequence[tuple[Callable[[], Any], Any]]) -> None:
        """Add the test of the number of arguments and of what else decides. (A graph has memory of
        its own.)"""
        tests = [f"len(xs) == {count}", "captured() is None"]
        tests.append(f"runner.arch == {self._name('arch', self._arch)}")
        for get, value in settings:
            tests.append(f"{self._name('setting', get)}() == {self._name('value', value)}")
        self._lines.append(f"if {' and '.join(tests)}:")

    def test_arguments(self, arguments: Sequence[Any]) -> None:
        """Add the test of numbers, and of how arrays lie."""
        names = [f"x{n}" for n in range(len(arguments))]
        self._arrays += [x for x, a in zip(names, arguments, strict=True) if is_array(a)]
        tests = [test for pair in zip(names, arguments, strict=True) for test in self._tests(*pair)]
        self._lines += [f"    {_tuple_of(names)} = xs", f"    if {' and '.join(tests)}:"]

    def _tests(self, x: str, argument: Any) -> Iterator[str]:
        kind = type(argument)
        yield f"type({x}) is {self._name('kind', kind)}"
        if is_array(argument):
            for fact in ("shape", "strides", "dtype"):
                yield f"{x}.{fact} == {self._name(fact, getattr(argument, fact))}"
        elif kind is np.ndarray:
            yield f"{x}.dtype == {self._name('dtype', argument.dtype)}"
            yield f"{x}.tobytes() == {self._name('value', argument.tobytes())}"
        elif kind in INEXACT:
            yield f"repr({x}) == {self._name('value', repr(argument))}"
        else:
            yield f"{x} == {self._name('value', argument)}"

    def test_addresses(self, addresses: Sequence[int]) -> None:
        """Add the test of the alignment of arrays, and of which of them are one."""
        names = [f"a{n}" for n in range(len(addresses))]
        finds = [f"{a} = find({x})" for a, x in zip(names, self._arrays, strict=True)]
        self._lines += [f"        {find}" for find in finds]
        offsets = [a % ALIGNMENT for a in addresses]
        tests = ["True"]
        if any(offsets):
            tests = [f"{a} % {ALIGNMENT} == {n}" for a, n in zip(names, offsets, strict=True)]
        elif offsets:
            tests = [f"not ({' | '.join(names)}) % {ALIGNMENT}"]
        first = [addresses.index(a) for a in addresses]  # array with the same address
        tests += [f"a{n} == a{i}" for n, i in enumerate(first) if n != i]
        different = sorted({*first})
        if len(different) > 1:
            tests.append(f"len({{{', '.join(f'a{n}' for n in different)}}}) == {len(different)}")
        self._lines.append(f"        if {' and '.join(tests)}:")

    def allocate(
        self, memory: Sequence[tuple[tuple[int, ...], np.dtype] | int], results: Container[int]
    ) -> None:
        """Add the memory: of shapes and dtypes, or copies of arrays, by their number. Arrays that
        are no `results`, by their numbers too, need only be memory."""
        for what in memory:
            n = len(self._arrays)
            if isinstance(what, int):
                made = f"y{n} = copy({self._arrays[what]}); a{n} = find(y{n})"
            elif n in results:
                shape, dtype = self._name("shape", what[0]), _class_of_elements(what[1])
                made = f"y{n} = new({shape}, {self._name('dtype', dtype)}); a{n} = find(y{n})"
            else:
                nbytes = math.prod(what[0]) * what[1].itemsize
                made = f"y{n}, a{n} = allocate({self._name('nbytes', nbytes)})"
            self._arrays.append(f"y{n}")
            self._lines.append(f"            {made}")

    def launch(self, launches: Sequence[Launch]) -> None:
        """Add launches on the arrays."""
        addresses = [f"a{n}" for n in range(len(self._arrays))]
        self._lines.append(f"            arrays = {_tuple_of(self._arrays)}")
        self._lines.append(f"            addresses = {_tuple_of(addresses)}")
        for launch in launches:
            self._lines.append(f"            {self._name('launch', launch)}(arrays, addresses)")

    def return_(
        self, names: str, views: Sequence[View], is_tuple: bool, constants: Sequence[Block]
    ) -> None:
        """Add the names of the kernels and the results, views of the arrays and of constants."""
        arrays = [*self._arrays, *[self._name("constant", c) for c in constants]]
        results = [self._view(arrays[view.number], view) for view in views]
        shown = _tuple_of(results) if is_tuple else results[0]
        self._lines.append(f"            return {self._name('names', names)}, {shown}")

    def _view(self, array: str, view: View) -> str:
        if view.shape is None:
            return array
        part = self._name("part", slice(view.first, view.first + math.prod(view.shape)))
        return f"{array}.reshape(-1)[{part}].reshape({self._name('shape', view.shape)})"

    def function(self) -> Repeat:
        """Return the function."""
        lines = [*self._lines, "return otherwise(*xs)"]
        repeat: Repeat = define("repeat(*xs)", lines, self._names, "<gdt launch>")
        return repeat


def _tuple_of(names: Iterable[str]) -> str:
    """Return the source of a tuple."""
    return f"({''.join(f'{name}, ' for name in names)})"


def _class_of_elements(dtype: np.dtype) -> Any:
    """Return the class of a dtype's elements, which CuPy looks up in less time; or a dtype that its
    class does not tell."""
    return dtype.type if np.dtype(dtype.type) == dtype else dtype


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
