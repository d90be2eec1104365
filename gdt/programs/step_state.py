"""Places that a call of a step depends on: its arguments, and the state that it refers to."""

from __future__ import annotations

import inspect
import io
import operator
import pickle
import random
import reprlib
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import repeat, zip_longest
from typing import Any, Literal, NoReturn

import numpy as np

from gdt.arguments import shown_value
from gdt.array.array import DistributedArray
from gdt.array.views import rebind
from gdt.backend import backend_of
from gdt.engine.plan import value_key
from gdt.errors import FunctionError, error, line_of_user
from gdt.observe import Observer
from gdt.random.generator import Generator, generator
from gdt.settings import MATMUL_BACKEND, MATMUL_PRECISION
from gdt.sharding.default_mesh import chosen_mesh
from gdt.state import Place
from gdt.state.variables import (
    MISSING,
    Attributes,
    Items,
    Reach,
    Reached,
    is_own,
    items,
    read,
    tree_of,
)

PRIMITIVES = (int, float, complex, bool, str, bytes, type(None), np.generic, np.dtype)
RANDOM = (  # what draws without being referred to
    ("random", random.getstate.__self__),  # type: ignore[attr-defined]
    ("numpy.random", np.random.get_state.__self__),  # type: ignore[attr-defined]
    ("gdt.random", generator),
)
HOST_GENERATORS = (
    random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator,
)  # fmt: skip
CONSTANT = (tuple, types.MappingProxyType)  # containers whose values cannot be set


# ---------------------------------------------------------------- arguments


class Arguments:
    """The arguments of a call: `args` and `kwargs`.

    key: the signature of the call, which is all but the values in arrays. places: the owner and the
    key of every array. objects: what is no array, number or container, by name. containers: lists
    and dicts.
    """

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> None:
        self.args, self.kwargs, self._name = args, kwargs, name
        self.places: list[tuple[Any, Any]] = []
        self.objects: list[tuple[str, Any]] = []
        self.containers: list[Any] = []
        self._numbers: dict[int, int] = {}  # of the containers, by identity
        # Every part says how many follow: no two calls that differ are to have one key.
        settings = (chosen_mesh(), MATMUL_BACKEND.get(), MATMUL_PRECISION.get())
        self._parts: list[Any] = [*settings, *np.geterr().values(), len(args), *kwargs]
        try:
            self._add(args, range(len(args)), ())
            if kwargs:
                self._add(kwargs, kwargs, ())
        except RecursionError:
            problem, remedy = "an argument is nested too deep", "Pass flat lists."
            raise error(FunctionError, name, problem, remedy=remedy) from None
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
                problem = f"a NumPy array {value.dtype}{list(value.shape)}"
                raise error(
                    FunctionError,
                    self._name,
                    f"{_spelled((*path, key))} is {problem}, in the call in {line_of_user()}",
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


# ---------------------------------------------------------------- random numbers and iterators


class Draws:
    """A generator of random numbers of Python or NumPy, as an owner of its state."""

    def __init__(self, source: Any) -> None:
        self._source = getattr(source, "bit_generator", source)

    def __getitem__(self, key: int) -> bytes:
        return pickle.dumps(self._source.__getstate__())

    def __setitem__(self, key: int, state: bytes) -> None:
        self._source.__setstate__(pickle.loads(state))


class RefusedIterator:
    """A stand-in for the iterator in a place while the step of that name is recorded."""

    def __init__(self, step: str, place: Place, iterator: Iterator[Any]) -> None:
        vars(self).update(_step=step, _place=place, _iterator=iterator)

    def __iter__(self) -> RefusedIterator:
        return self

    def __next__(self) -> NoReturn:
        what = f"{self._place.name} ({type(self._iterator).__name__})"
        raise error(
            FunctionError,
            self._step,
            f"a recorded step cannot take the next value of {what}, in {line_of_user()}",
            remedy="Take it outside of the step, and pass its value: an array, if it changes.",
        )

    def send(self, value: Any) -> NoReturn:
        """Raise FunctionError, as `next` does."""
        next(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._iterator, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._iterator, name, value)


def _is_iterator(value: Any) -> bool:
    """Whether a value is an iterator whose position is not in attributes, which are compared."""
    return isinstance(value, Iterator) and not (is_own(type(value)) or isinstance(value, io.IOBase))


# ---------------------------------------------------------------- state

# What a step may put in a place, and what a recording relies on there. given: another array, which
# is an argument. state: an array in the place of an array; all else is guarded. argument: the same,
# but it is part of the signature. counter: anything, as gdt counts there. constant: nothing; where
# there was nothing, that is guarded.
Role = Literal["given", "state", "argument", "counter", "constant"]


class State(Observer):
    """The state of a step, and what else it may read or change, as it is now. As an observer it
    holds the values that its arrays had before the step has written to them.

    named: the values that `state=` names; None takes the variables of the step in their place. What
    `named` leaves out is compared, to find out what the step itself changes in it. entered: the
    identities of the containers and generators of the state.
    """

    wants_moves = False

    def __init__(
        self, function: Callable[..., Any], named: tuple[Any, ...] | None, arguments: Arguments
    ) -> None:
        self._name, self._line = name_of(function), _line_of(function)
        # Arrays to which the step writes, by identity, and the values that they are put back to.
        self._held: dict[int, tuple[Any, Any]] = {}
        # Values in variables, containers and attributes, and the keys of containers.
        self._kept: list[tuple[Place, Any, Role]] = []
        roots = itself = [Place("self", (function,), 0)]
        if named is not None:
            trees = [part if is_own(type(part)) else tree_of(part) or part for part in named]
            roots = [Place(f"state[{i}]", trees, i) for i in range(len(trees))]
        given = [Place("argument", owner, key) for owner, key in arguments.places]
        objects = [Place(name, (value,), 0) for name, value in (*RANDOM, *arguments.objects)]
        in_arguments = [*items("argument", arguments.args), *items("argument", arguments.kwargs)]

        reach = Reach(function)
        self._keep([(place, read(place), None) for place in given], repeat("given"))
        self._keep(reach.walk([*objects, *roots]), repeat("state"))
        self.entered = {*reach.closed}
        self._keep(reach.walk(in_arguments), repeat("argument"))
        if named is not None:
            reach.closed = {*self.entered}
            self._keep_unnamed([*reach.walk(itself)])

    def _keep(self, reached: Iterable[Reached], roles: Iterable[Role]) -> None:
        for (place, value, _), role in zip(reached, roles, strict=False):
            self._kept.append((place, value, "counter" if place.is_counter else role))
            if isinstance(value, Generator):
                draws = Place(place.name, vars(value), "_state")
                self._kept.append((draws, read(draws), "counter"))
            elif isinstance(value, HOST_GENERATORS) and not isinstance(value, random.SystemRandom):
                draws = Place(place.name, Draws(value), 0)
                self._kept.append((draws, read(draws), "constant"))

    def _keep_unnamed(self, reached: list[Reached]) -> None:
        """Take in what is reached that `state=` does not name. A place that leads to the state must
        go on to do so: the step reads it there, and a replay where it is named."""
        state, roles = {*self.entered, *[id(array) for _, array in self.arrays]}, list[Role]()
        for place, value, whole in reversed(reached):
            leads = id(whole if isinstance(place.owner, Items) else value) in state
            if leads:
                state.add(id(whole))
            roles.append("state" if leads else "constant")
        self._keep(reached, reversed(roles))

    @property
    def arrays(self) -> list[tuple[Place, DistributedArray]]:
        """The places and values of the arrays that a call may read, those given to it first."""
        return [
            (place, value)
            for place, value, role in self._kept
            if role in ("given", "state") and isinstance(value, DistributedArray)
        ]

    @property
    def places(self) -> list[Place]:
        """The places of the arrays that a call may read besides those given to it."""
        count = sum(role == "given" for _, _, role in self._kept)
        return [place for place, _ in self.arrays[count:]]

    @property
    def values(self) -> list[tuple[str, Any]]:
        """The name and the value of every place."""
        held = {i: value for i, (_, value) in self._held.items()}
        return [(place.name, held.get(id(value), value)) for place, value, _ in self._kept]

    # ---- around a call

    def on_write(self, array: Any, before: Any, after: Any) -> None:
        """Hold the value that an array had before the step has written to it."""
        if any(array is x for _, x in self.arrays):
            self._held.setdefault(id(array), (array, before))

    def is_written(self, array: Any) -> bool:
        """Whether the step has written to an array of the state, as `x += y` does."""
        return id(array) in self._held

    def hold(self, step: State) -> None:
        """Hold the values that arrays have now, to which a step has written that had the state
        `step` before."""
        self._held = {i: (array, array._alias()) for i, (array, _) in step._held.items()}

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Put everything back if what runs in this context raises: else somebody who catches that
        would take half a step, or take one twice.

        Until its end, resolved values of arrays are forgotten, and whether ops have passed their
        partial reductions on. So every call sends the same, whether it is replayed, recorded or
        runs as written, and processes may differ in that.
        """
        traces = [(array, array._resolved, array._is_passed) for _, array in self.arrays]
        for array, *_ in traces:
            array._resolved, array._is_passed = None, False
        try:
            yield
        except BaseException:
            self.put_back()
            raise
        finally:
            for array, resolved, is_passed in traces:
                if not self.is_written(array):
                    array._resolved, array._is_passed = resolved, is_passed

    @contextmanager
    def refusing_iterators(self) -> Iterator[None]:
        """Refuse, in this context, to take the next value of an iterator in a variable: a replay
        would not take it. Where something raises, iterators are put back by `attempt`."""
        iterators = [(place, value) for place, value, _ in self._kept if _is_iterator(value)]
        stand_ins = [RefusedIterator(self._name, *iterator) for iterator in iterators]
        for (place, _), stand_in in zip(iterators, stand_ins, strict=True):
            try:
                place.owner[place.key] = stand_in
            except TypeError:  # a tuple, where nothing can stand in for it
                next(stand_in)
        yield
        for (place, iterator), stand_in in zip(iterators, stand_ins, strict=True):
            if read(place) is stand_in:  # the step may have put something else there
                place.owner[place.key] = iterator

    def put_back(self) -> None:
        """Let everything be again what it was, counters and random numbers too."""
        for array, value in self._held.values():
            rebind(array, value)
        for place, value, _ in self._kept:
            if _is_same(read(place), value) or isinstance(place.owner, CONSTANT):
                continue
            if value is MISSING:
                del place.owner[place.key]
            else:
                place.owner[place.key] = value

    def refuse_changes(self) -> None:
        """Raise FunctionError if a step has changed something that a replay would not change."""
        for place, was, role in self._kept:
            now, is_array = read(place), isinstance(was, DistributedArray)
            may_be_another = role != "constant" and is_array and isinstance(now, DistributedArray)
            if not (role == "counter" or may_be_another or _is_same(now, was)):
                change = f"changes {place.name}, {_shown(was)}, to {_shown(now)}"
                if isinstance(place.owner, Draws):
                    change = f"draws from {place.name}, and not from gdt.random"
                raise error(
                    FunctionError,
                    self._name,
                    f"the step at {self._line} {change}",
                    remedy="A replay puts arrays in the places of arrays, and does nothing else in "
                    "Python: return it, or change it outside of the step.",
                )

    # ---- guards

    def forget(self) -> None:
        """Drop all but what a recording relies on: arrays may be large."""
        self._kept, self._held = [kept for kept in self._kept if _is_guarded(*kept)], {}
        for place, *_ in self._kept:
            if isinstance(place.owner, Items):
                place.owner.held = ()

    def changed(self) -> str | None:
        """The name of something that a recording relies on and that is not what it was; or None."""
        others = (place.name for place, value, _ in self._kept if not _is_same(read(place), value))
        return next(others, None)

    def unchanged(self, namespace: dict[str, Any]) -> str:
        """An expression that is true if everything that a recording relies on is what it was; its
        names are put into `namespace`. It may raise MISSING_KEY."""
        names: dict[int, tuple[str, Any]] = {}

        def name(thing: Any) -> str:
            return names.setdefault(id(thing), (f"guard{len(names)}", thing))[0]

        checks = [_comparison(place, value, name) for place, value, _ in self._kept]
        namespace |= names.values()
        # Numbers may be equal without being one object.
        return f"{' and '.join(dict.fromkeys(checks)) or True} or changed() is None"


def _is_guarded(place: Place, value: Any, role: Role) -> bool:
    """Whether a recording relies on the very value in a place."""
    is_fixed = isinstance(value, DistributedArray) or isinstance(place.owner, tuple)
    is_nothing = value is None or value is MISSING
    is_nothing = is_nothing or (isinstance(place.owner, Items) and not value)
    return (role == "state" or (role == "constant" and is_nothing)) and not is_fixed


def _comparison(place: Place, value: Any, name: Callable[[Any], str]) -> str:
    """The source of whether a place holds a value; `name(value)` is the name of a value in it."""
    owner, key = place.owner, place.key
    if isinstance(owner, Items):
        return f"{name(key)}({name(owner.container)}) == {name(value)}"
    if value is MISSING and type(owner) is dict:
        return f"{key!r} not in {name(owner)}"
    if value is MISSING:
        return f"{name(read)}({name(place)}) is {name(MISSING)}"
    if isinstance(owner, Attributes) and not owner.of_class:
        return f"{name(owner.holder)}.{key} is {name(value)}"
    values = vars(owner.holder) if isinstance(owner, Attributes) else owner
    return f"{name(values)}[{repr(key) if type(key) in (str, int) else name(key)}] is {name(value)}"


# ---------------------------------------------------------------- comparing


def difference(
    values: Iterable[tuple[str, Any]], others: Iterable[tuple[str, Any]]
) -> tuple[str, Any, Any] | None:
    """The name of the first value that differs by a bit from its twin, and both; None if none."""
    pairs = zip_longest(values, others, fillvalue=("its structure", None))
    differing = (
        (name, value, other)
        for (name, value), (twin, other) in pairs
        if name != twin or not _has_same_bits(value, other)
    )
    return next(differing, None)


def _is_same(now: Any, value: Any) -> bool:
    """Whether two values are one object, or the same number or text, or tuples of such."""
    if now is value:
        return True
    if type(now) is tuple is type(value):
        return len(now) == len(value) and all(map(_is_same, now, value))
    if isinstance(value, types.MethodType | frozenset):  # made anew whenever they are looked up
        return bool(now == value)
    return isinstance(value, PRIMITIVES) and value_key(now) == value_key(value)


def _has_same_bits(a: Any, b: Any) -> bool:
    """Whether two arrays are of one type and hold the same bits; of others, whether they are the
    same."""
    if not (isinstance(a, DistributedArray) and isinstance(b, DistributedArray)):
        return _is_same(a, b)
    return a.type is b.type and all(map(operator.eq, _bits(a), _bits(b)))


def _bits(x: DistributedArray) -> Iterator[bytes]:
    """The bits of every shard, with one NaN in the place of all; of replicas that are stored once,
    once. Which of several NaN an op passes on, and with which sign, is nobody's promise."""
    parts = [shard.data for shard in x.shards]
    once = {p.ctypes.data if isinstance(p, np.ndarray) else id(p): p for p in parts}
    for part in once.values():
        elements = backend_of(x.mesh).to_host(part)
        if elements.dtype.kind in "fc" and (odd := np.isnan(elements)).any():
            elements = np.where(odd, elements.dtype.type(np.nan), elements)
        yield elements.tobytes()


# ---------------------------------------------------------------- names


def name_of(function: Callable[..., Any]) -> str:
    """The name of a step in errors."""
    return getattr(function, "__name__", type(function).__name__)


def _line_of(function: Callable[..., Any]) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"line {code.co_firstlineno} of {code.co_filename}" if code else name_of(function)


def _shown(value: Any) -> str:
    if value is MISSING:
        return "which is nothing yet"
    return reprlib.repr(value) if isinstance(value, tuple) else shown_value(value)
