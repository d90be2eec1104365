"""The state of a step: where it keeps arrays besides its arguments, and what it is recorded for."""

from __future__ import annotations

import inspect
import operator
import sys
import types
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gdt.arguments import shown_value
from gdt.array.array import DistributedArray
from gdt.backend import backend_of
from gdt.engine.plan import value_key
from gdt.errors import FunctionError, error
from gdt.programs.variables import MISSING, Cell, read, variables
from gdt.random.draws import Generator, generator
from gdt.state import Place, Stateful, owner_of, places

PRIMITIVES = (int, float, complex, bool, str, bytes, type(None), np.generic, np.dtype)


class Contents(NamedTuple):
    """What a container held: by key, and the keys of what gdt counts in it."""

    name: str
    owner: Any
    values: dict[Any, Any]
    counters: Sequence[str] = ()

    @classmethod
    def of(cls, name: str, container: Any) -> Contents:
        """What a container, or a generator, holds now."""
        if isinstance(container, Generator):
            return cls(name, vars(container), _by_key(vars(container)), ("_state",))
        counters = container.counters if isinstance(container, Stateful) else ()
        owner = owner_of(container)
        return cls(name, owner, _by_key(owner), counters)

    def put_back(self) -> None:
        """Let the container hold that again."""
        owner, now = self.owner, _by_key(self.owner)
        if _is_like(now, self.values):
            return
        if isinstance(owner, list):
            owner[:] = self.values.values()
        elif isinstance(owner, MutableMapping):
            if [*now] != [*self.values]:
                for key in now:
                    del owner[key]
            for key, value in self.values.items():
                owner[key] = value


def _by_key(owner: Any) -> dict[Any, Any]:
    return dict(owner.items() if isinstance(owner, Mapping) else enumerate(owner))


def _keys(owner: Any) -> list[Any]:
    return [*owner] if isinstance(owner, Mapping) else [*range(len(owner))]


def _is_like(now: dict[Any, Any], values: dict[Any, Any]) -> bool:
    """Whether two dicts have the same keys, in order, and the very same values."""
    return [*now] == [*values] and all(map(operator.is_, now.values(), values.values()))


class State:
    """What a step keeps besides its arguments, as it is now.

    named: what `state=` names; None for what the variables of the step hold. objects: arguments
    that are no arrays, numbers or containers, by name. containers: those among the arguments.

    arrays: places of arrays. values: all other places in trees that hold arrays, with what is
    there. structures: those trees' containers, with their keys. A tree without arrays is constant,
    and looked at only for what the step itself changes in it.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        named: tuple[Any, ...] | None,
        objects: Sequence[tuple[str, Any]] = (),
        containers: Sequence[Any] = (),
    ) -> None:
        self._name, self._line = name_of(function), _line_of(function)
        self.arrays: list[Place] = []
        self.values: list[tuple[Place, Any]] = []
        self.structures: list[tuple[str, Any, list[Any]]] = []
        self._variables: list[tuple[Place, Any]] = []
        self._constants: list[tuple[Place, Any]] = []  # variables, where others are the state
        self._contents: list[Contents] = []
        self.entered: set[int] = set()  # identities of all containers
        roots = [*variables(function)]
        if named is not None:
            self._constants = [(place, read(place)) for place in roots]
            roots = [Place(f"state[{i}]", named, i) for i in range(len(named))]
        for name, value in objects:
            roots += [Place(name, (value,), 0), *variables(value)]
        for place in roots:
            self._enter(place)
        self._enter(Place("gdt.random", (generator,), 0))
        for container in containers:
            if id(container) not in self.entered:
                self._contents.append(Contents.of("an argument", container))

    def _enter(self, root: Place) -> None:
        """Take in what a variable holds, or what is named in a tuple."""
        value, is_variable = read(root), not isinstance(root.owner, tuple)
        if is_variable:
            self._variables.append((root, value))
        if isinstance(value, DistributedArray):
            self.arrays.append(root)
            return
        tree = value if is_variable or owner_of(value) is not None else _attributes(value)
        found = [
            (p, p.value)
            for p in places(tree, root.name, on_cycle=self._refuse_cycle, closed=self.entered)
        ]
        trees = [(root.name, tree), *[(p.name, v) for p, v in found]]
        trees = [(name, t) for name, t in trees if owner_of(t) is not None]
        self._contents += [Contents.of(name, t) for name, t in trees]
        if is_variable and not any(isinstance(v, STATE) for v in (value, *[v for _, v in found])):
            return
        if isinstance(value, Generator):
            self._contents.append(Contents.of(root.name, value))
        if is_variable:
            self.values.append((root, value))
        for place, held in found:
            if isinstance(held, DistributedArray):
                self.arrays.append(place)
            elif not place.is_counter and not isinstance(place.owner, tuple):
                self.values.append((place, held))
            if isinstance(held, Generator):
                self._contents.append(Contents.of(place.name, held))
        self.structures += [(name, owner_of(t), _keys(owner_of(t))) for name, t in trees]

    def _refuse_cycle(self, name: str) -> None:
        raise error(
            FunctionError,
            self._name,
            f"{name}, in the state of the step at {self._line}, holds itself",
            remedy="Keep arrays in trees without cycles, or name those that it needs: state=[...].",
        )

    # ---- before and after a call

    def put_back(self) -> None:
        """Let everything be again what it was, counters and random numbers too."""
        for place, value in self._variables + self._constants:
            if read(place) is value:
                continue
            if value is MISSING:
                del place.owner[place.key]
            else:
                place.owner[place.key] = value
        for contents in self._contents:
            contents.put_back()

    def refuse_changes(self) -> None:
        """Raise FunctionError for what a step has changed that a replay would not."""
        for place, was in self._variables:
            self._refuse_change(f"variable {place.name}", was, read(place))
        for place, was in self._constants:
            if not _is_same(now := read(place), was):
                raise self._changed(f"variable {place.name}, {_shown(was)}, to {_shown(now)}")
        for contents in self._contents:
            now = _by_key(contents.owner)
            if [*now] != [*contents.values]:
                problem = f"{len(contents.values)} entries of {contents.name}, now {len(now)}"
                raise self._changed(problem)
            for key, was in contents.values.items():
                if key not in contents.counters:
                    self._refuse_change(f"{contents.name}[{key!r}]", was, now[key])

    def _refuse_change(self, name: str, was: Any, now: Any) -> None:
        is_array = isinstance(was, DistributedArray) and isinstance(now, DistributedArray)
        if not (is_array or _is_same(now, was)):
            raise self._changed(f"{name}, {_shown(was)}, to {_shown(now)}")

    def _changed(self, problem: str) -> FunctionError:
        return error(
            FunctionError,
            self._name,
            f"the step at {self._line} changes {problem}",
            remedy="A replay puts arrays in the places of arrays, and does nothing else in Python: "
            "return it, or change it outside of the step.",
        )

    def forget(self) -> None:
        """Drop what was only there to be put back: arrays may be large."""
        self._variables.clear()
        self._constants.clear()
        self._contents.clear()

    # ---- verification

    def copy_arrays(self) -> None:
        """Put back copies of the arrays, so that a replay may overwrite these."""
        copies: dict[int, DistributedArray] = {}

        def copied(value: Any) -> Any:
            if not isinstance(value, DistributedArray):
                return value
            if id(value) not in copies:
                copies[id(value)] = _copy(value)
            return copies[id(value)]

        self._variables = [(place, copied(value)) for place, value in self._variables]
        for _, _, values, _ in self._contents:
            values.update({key: copied(value) for key, value in values.items()})

    def difference(self, other: State) -> tuple[str, Any, Any] | None:
        """The name of the first thing that differs by a bit in two states, and what both hold."""
        pairs = zip(self._leaves(), other._leaves(), strict=False)
        return next(((n, a, b) for (n, a), (_, b) in pairs if not same_bits(a, b)), None)

    def _leaves(self) -> Iterator[tuple[str, Any]]:
        for place, value in self._variables:
            yield place.name, value
        for name, _, values, _ in self._contents:
            yield f"the number of entries of {name}", len(values)
            for key, value in values.items():
                yield f"{name}[{key!r}]", value

    # ---- guards

    def unchanged(self, namespace: dict[str, Any]) -> str:
        """An expression that is true if everything that a recording relies on is what it was; its
        names are put into `namespace`. It may raise MISSING_KEY."""
        names: dict[int, str] = {}

        def name(thing: Any) -> str:
            if id(thing) not in names:
                names[id(thing)] = f"guard{len(names)}"
                namespace[names[id(thing)]] = thing
            return names[id(thing)]

        checks = [f"{_expression(place, name)} is {name(value)}" for place, value in self.values]
        checks += [
            f"[*{name(owner)}] == {name(keys)}" if isinstance(owner, Mapping)
            else f"len({name(owner)}) == {len(keys)}"
            for _, owner, keys in self.structures
        ]  # fmt: skip
        # Numbers may be equal without being one object.
        return f"{' and '.join(dict.fromkeys(checks)) or True} or changed() is None"

    def changed(self) -> str | None:
        """The name of something that a recording relies on and that is not what it was; or None."""
        for place, value in self.values:
            if not _is_same(read(place), value):
                return place.name
        for name, owner, keys in self.structures:
            now = _keys(owner)
            if len(now) != len(keys) or not all(map(_is_same, now, keys)):
                return f"the keys of {name}"
        return None


STATE = (DistributedArray, Stateful, Generator)


def name_of(function: Callable[..., Any]) -> str:
    """What errors call a step."""
    return getattr(function, "__name__", type(function).__name__)


def _line_of(function: Callable[..., Any]) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"line {code.co_firstlineno} of {code.co_filename}" if code else name_of(function)


def _attributes(value: Any) -> Any:
    """The attributes of an object of a class that is neither gdt's nor Python's; or None."""
    package = type(value).__module__.partition(".")[0]
    is_users = package not in ("gdt", "numpy", *sys.stdlib_module_names)
    is_users = is_users or isinstance(value, types.SimpleNamespace)
    return getattr(value, "__dict__", None) if is_users else None


def _expression(place: Place, name: Callable[[Any], str]) -> str:
    """What reads a place, with the names that `name` gives to things."""
    if isinstance(place.owner, Cell):
        return f"{name(place.owner.cell)}.cell_contents"
    key = repr(place.key) if type(place.key) in (str, int) else name(place.key)
    return f"{name(place.owner)}[{key}]"


def _is_same(now: Any, value: Any) -> bool:
    """Whether two values are one object, or the same number or text, or tuples of such."""
    if now is value:
        return True
    if type(now) is tuple is type(value):
        return len(now) == len(value) and all(map(_is_same, now, value))
    if type(now) is not type(value) or not isinstance(value, PRIMITIVES):
        # Methods are made anew whenever they are looked up.
        return isinstance(value, types.MethodType) and bool(now == value)
    return bool(value_key(now) == value_key(value))


def same_bits(a: Any, b: Any) -> bool:
    """Whether two arrays are of one type and hold the same bits; of others, whether they are the
    same."""
    if not (isinstance(a, DistributedArray) and isinstance(b, DistributedArray)):
        return _is_same(a, b)
    host = backend_of(a.mesh).to_host
    return a.type is b.type and all(
        host(x.data).tobytes() == host(y.data).tobytes()
        for x, y in zip(a.shards, b.shards, strict=True)
    )


def _copy(array: DistributedArray) -> DistributedArray:
    """A copy whose blocks lie in memory as those of the array: it decides how products add up."""
    blocks = []
    for i, block in enumerate(array.blocks):
        with backend_of(array.mesh).on(array.mesh, i):
            blocks.append(block.copy(order="K"))
    return DistributedArray(array.type, tuple(blocks))


def _shown(value: Any) -> str:
    if value is MISSING:
        return "which is nothing yet"
    return str(value.type) if isinstance(value, DistributedArray) else shown_value(value)
