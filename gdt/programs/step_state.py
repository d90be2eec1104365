"""The places that a call of a step depends on: its arguments, and the state that it refers to.

A recording of the step is valid as long as its signature and its state, but for the values in
arrays, are what they were: `Arguments` has the signature, `State` guards the rest.
"""

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
from gdt.engine.forms import keeping_forms
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
RANDOM = (  # generators that a step may draw from without referring to them
    ("random", random.getstate.__self__),  # type: ignore[attr-defined]
    ("numpy.random", np.random.get_state.__self__),  # type: ignore[attr-defined]
    ("gdt.random", generator),
)
HOST_GENERATORS = (
    random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator,
)  # fmt: skip
CONSTANT = (tuple, types.MappingProxyType)  # containers in which no value can be set


# ---------------------------------------------------------------- arguments


class Arguments:
    """The arguments of a call: `args` and `kwargs`.

    key: the signature of the call: all that its arguments and settings are, but for the values in
    arrays. places: the owner and the key of every array. objects: the arguments, and parts of them,
    that are no arrays, numbers or containers, each with its name. containers: the lists and dicts.

    Raises FunctionError for a NumPy array, and for arguments that are nested too deep.
    """

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> None:
        self.args, self.kwargs, self._name = args, kwargs, name
        self.places: list[tuple[Any, Any]] = []
        self.objects: list[tuple[str, Any]] = []
        self.containers: list[Any] = []
        self._numbers: dict[int, int] = {}  # of the containers, by identity
        # A part that others belong to says how many: calls that differ must have different keys.
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
        """Add the values that a container holds under these keys. path: what leads to it."""
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
                if kinds.count(str) != len(kinds):  # other keys may be equal, as 1 and True
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
        """Whether a container has not been given before. The signature gets its number, which tells
        one container that is given twice from two that are equal."""
        count = len(self.containers)
        number = self._numbers.setdefault(id(container), count)
        self._parts.append(number)
        if number == count:
            self.containers.append(container)
        return number == count


def _spelled(path: tuple[Any, ...]) -> str:
    """The name of an argument, or of a part of one, in messages."""
    first, *keys = path
    return f"argument {first!r}" + "".join([f"[{key!r}]" for key in keys])


# ---------------------------------------------------------------- random numbers and iterators


class Draws:
    """The owner of the state of a generator of Python or NumPy, as one value under any key."""

    def __init__(self, source: Any) -> None:
        self._source = getattr(source, "bit_generator", source)

    def __getitem__(self, key: int) -> bytes:
        return pickle.dumps(self._source.__getstate__())

    def __setitem__(self, key: int, state: bytes) -> None:
        self._source.__setstate__(pickle.loads(state))


class RefusedIterator:
    """A stand-in for the iterator in a place while a step is recorded: it gives no value, and has
    the attributes of the iterator.

    step: the name of the step, for errors.
    """

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
    """Whether a value is an iterator with a hidden position. (That of a user's class is in
    attributes, which are guarded; that of a file is not Python's.)"""
    return isinstance(value, Iterator) and not (is_own(type(value)) or isinstance(value, io.IOBase))


# ---------------------------------------------------------------- state

# The role of a place says what a step may put there, and whether a recording guards the value:
#   given     an array that is an argument: another array; not guarded.
#   state     an array in the place of an array; all values but arrays are guarded.
#   argument  as state, and not guarded: the signature covers it.
#   counter   anything, since gdt counts there; not guarded.
#   constant  nothing; guarded only where there is no value, or None.
Role = Literal["given", "state", "argument", "counter", "constant"]


class State(Observer):
    """A snapshot of the state of a step, and of all else that the step may read or change.

    As an observer it holds the values that arrays had before the step wrote to them.

    named: the values that `state=` names; None if the state is all that the variables of the step
    refer to. What `named` leaves out is in the snapshot only to refuse changes that the step makes
    there. entered: the identities of the containers and generators of the state.
    """

    wants_moves = False

    def __init__(
        self, function: Callable[..., Any], named: tuple[Any, ...] | None, arguments: Arguments
    ) -> None:
        self._name, self._line = name_of(function), _line_of(function)
        # By identity, the arrays to which the step has written, each with its value from before.
        self._held: dict[int, tuple[Any, Any]] = {}
        # The snapshot. The keys of a container are a place and a value, too.
        self._kept: list[tuple[Place, Any, Role]] = []
        roots = itself = [Place("self", (function,), 0)]
        if named is not None:
            # A part may refuse to be asked whether it is true, as a Keras variable does.
            trees = [
                part if is_own(type(part)) or (tree := tree_of(part)) is None else tree
                for part in named
            ]
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
        """Add places and values that have been reached, and the states of generators among them."""
        for (place, value, _), role in zip(reached, roles, strict=False):
            self._kept.append((place, value, "counter" if place.is_counter else role))
            if isinstance(value, Generator):
                draws = Place(place.name, vars(value), "_state")
                self._kept.append((draws, read(draws), "counter"))
            elif isinstance(value, HOST_GENERATORS) and not isinstance(value, random.SystemRandom):
                draws = Place(place.name, Draws(value), 0)
                self._kept.append((draws, read(draws), "constant"))

    def _keep_unnamed(self, reached: list[Reached]) -> None:
        """Add what has been reached and `state=` does not name.

        A place through which the step reaches the state is guarded: if it led elsewhere, the step
        would read another array there, while a replay reads the one that `state=` names."""
        state = {*self.entered, *[id(array) for _, array in self.arrays]}
        roles: list[Role] = []
        for place, value, whole in reversed(reached):
            leads = id(whole if isinstance(place.owner, Items) else value) in state
            if leads:
                state.add(id(whole))
            roles.append("state" if leads else "constant")
        self._keep(reached, reversed(roles))

    @property
    def arrays(self) -> list[tuple[Place, DistributedArray]]:
        """The places and values of the arrays that a call may read: its arguments, then others."""
        return [
            (place, value)
            for place, value, role in self._kept
            if role in ("given", "state") and isinstance(value, DistributedArray)
        ]

    @property
    def places(self) -> list[Place]:
        """The places of the arrays that a call may read and that are no arguments."""
        count = sum(role == "given" for _, _, role in self._kept)
        return [place for place, _ in self.arrays[count:]]

    @property
    def values(self) -> list[tuple[str, Any]]:
        """The name of every place and its value in the snapshot, from before any write."""
        held = {i: value for i, (_, value) in self._held.items()}
        return [(place.name, held.get(id(value), value)) for place, value, _ in self._kept]

    # ---- around a call

    def on_write(self, array: Any, before: Any, after: Any) -> None:
        """Hold the value that an array had before the step first wrote to it."""
        if any(array is x for _, x in self.arrays):
            self._held.setdefault(id(array), (array, before))

    def is_written(self, array: Any) -> bool:
        """Whether the step has written to an array of the state, as `x += y` does."""
        return id(array) in self._held

    def hold(self, step: State) -> None:
        """Hold the values that arrays have now, of those to which a run of the step has written.

        step: the snapshot from before that run."""
        self._held = {i: (array, array._alias()) for i, (array, _) in step._held.items()}

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Put everything back if the context raises: a user who catches the error would otherwise
        be left with half a step, and take a part of it twice when it is repeated.

        In the context, arrays have neither resolved values nor other forms, nor notes that ops have
        passed their partial reductions on. So every call moves the same data, whether it is
        replayed, recorded or runs as written: processes may differ in that, and still have to meet.
        """
        traces = [(array, array._resolved, array._is_passed) for _, array in self.arrays]
        for array, *_ in traces:
            array._resolved, array._is_passed = None, False
        try:
            with keeping_forms(None):
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
        would not take it. If the context raises, `attempt` puts the iterators back."""
        iterators = [(place, value) for place, value, _ in self._kept if _is_iterator(value)]
        stand_ins = [RefusedIterator(self._name, *iterator) for iterator in iterators]
        for (place, _), stand_in in zip(iterators, stand_ins, strict=True):
            try:
                place.owner[place.key] = stand_in
            except TypeError:  # in a tuple, no stand-in can take its place: refused at once
                next(stand_in)
        yield
        for (place, iterator), stand_in in zip(iterators, stand_ins, strict=True):
            if read(place) is stand_in:  # the step may have put something else there
                place.owner[place.key] = iterator

    def put_back(self) -> None:
        """Put back everything as it is in the snapshot, counters and random numbers too."""
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
        """Raise FunctionError if the step has changed what a replay would not change."""
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
        """Drop all that is not guarded: arrays may be large."""
        self._kept, self._held = [kept for kept in self._kept if _is_guarded(*kept)], {}
        for place, *_ in self._kept:
            if isinstance(place.owner, Items):
                place.owner.held = ()

    def changed(self) -> str | None:
        """The name of the first guarded place whose value has changed; None if none has."""
        others = (place.name for place, value, _ in self._kept if not _is_same(read(place), value))
        return next(others, None)

    def unchanged(self, namespace: dict[str, Any]) -> str:
        """The source of an expression that is true if no guarded value has changed; the names that
        it needs are put into `namespace`. It may raise MISSING_KEY."""
        names: dict[int, tuple[str, Any]] = {}

        def name(thing: Any) -> str:
            return names.setdefault(id(thing), (f"guard{len(names)}", thing))[0]

        checks = [_comparison(place, value, name) for place, value, _ in self._kept]
        namespace |= names.values()
        # The checks are quick, but compare identities: equal numbers need the second look.
        return f"{' and '.join(dict.fromkeys(checks)) or True} or changed() is None"


def _is_guarded(place: Place, value: Any, role: Role) -> bool:
    """Whether a recording is valid only as long as a place holds this value."""
    is_fixed = isinstance(value, DistributedArray) or isinstance(place.owner, tuple)
    is_nothing = value is None or value is MISSING
    is_nothing = is_nothing or (isinstance(place.owner, Items) and not value)
    return (role == "state" or (role == "constant" and is_nothing)) and not is_fixed


def _comparison(place: Place, value: Any, name: Callable[[Any], str]) -> str:
    """The source of the check that a place holds a value; `name(x)` is the name of `x` in it."""
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
    """The first name whose values are not bitwise equal, and both values; None if all are."""
    pairs = zip_longest(values, others, fillvalue=("its structure", None))
    differing = (
        (name, value, other)
        for (name, value), (twin, other) in pairs
        if name != twin or not _has_same_bits(value, other)
    )
    return next(differing, None)


def _is_same(now: Any, value: Any) -> bool:
    """Whether two values are one object, equal numbers or texts of one type, or tuples of such."""
    if now is value:
        return True
    if type(now) is tuple is type(value):
        return len(now) == len(value) and all(map(_is_same, now, value))
    if isinstance(value, types.MethodType | frozenset):  # made anew whenever they are looked up
        return bool(now == value)
    return isinstance(value, PRIMITIVES) and value_key(now) == value_key(value)


def _has_same_bits(a: Any, b: Any) -> bool:
    """Whether two arrays are of one type and hold the same bits, if any; `_is_same` of other
    values."""
    if not (isinstance(a, DistributedArray) and isinstance(b, DistributedArray)):
        return _is_same(a, b)
    is_abstract = a.mesh.device_kind == "abstract"
    return a.type is b.type and (is_abstract or all(map(operator.eq, _bits(a), _bits(b))))


def _bits(x: DistributedArray) -> Iterator[bytes]:
    """The bits of every shard; those of replicas that share memory are yielded once.

    All NaN count as one: which of several NaN an op passes on, and with which sign, may differ."""
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
    """The line at which a step is written, for errors; its name if it is not a function."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"line {code.co_firstlineno} of {code.co_filename}" if code else name_of(function)


def _shown(value: Any) -> str:
    """A value of the snapshot, for errors."""
    if value is MISSING:
        return "which is nothing yet"
    return reprlib.repr(value) if isinstance(value, tuple) else shown_value(value)
