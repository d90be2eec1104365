"""Trees and places: what holds arrays, and where each of them is kept.

A tree is an array, a container (a list, tuple, named tuple, dict or other mapping, or a `Stateful`
object, which holds its attributes), or nested containers. A place is where a container keeps a
value: `owner[key]`, under a dotted name such as `dense1.weight`. An array is immutable, so
training, loading and restoring put new arrays in the places of old ones.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any, ClassVar, NamedTuple

from gdt.array.array import DistributedArray
from gdt.errors import DtypeError, error, frame_of_user
from gdt.observe import COUNTED, OBSERVERS, met_host

Facts = tuple[tuple[int, ...], str]  # shape and name of the dtype
Tree = Any


class Counter:
    """An integer that gdt counts, as an attribute of a class: recorded steps, whose replays count
    without running Python, cannot read or set it."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self
        if OBSERVERS.get():
            met_host(f"read {type(instance).__name__}.{self._name}", COUNTED)
        try:
            return vars(instance)[self._name]
        except KeyError:
            raise AttributeError(self._name) from None

    def __set__(self, instance: Any, value: int) -> None:
        if OBSERVERS.get() and self._name in vars(instance):
            met_host(f"set {type(instance).__name__}.{self._name}", COUNTED)
        vars(instance)[self._name] = value


class Stateful:
    """Base of objects whose attributes are their state: modules and optimizers.

    Attributes that are arrays, other stateful objects, or containers of them are found by
    themselves. An array under a private name, one with a leading underscore, is a value that is
    kept for later and no state: it is left out, with a warning for each name of a class. Stateful
    objects are parts under every name.
    """

    untrained: ClassVar[tuple[str, ...]] = ()  # names of arrays that no gradient step changes
    counters: ClassVar[tuple[str, ...]] = ()  # names of integers that are saved too
    trainable: bool = True  # False freezes the object and all that it holds

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in cls.counters:
            if not isinstance(getattr(cls, name, None), Counter):
                counter = Counter()
                counter.__set_name__(cls, name)
                setattr(cls, name, counter)


# ---------------------------------------------------------------- places


class Place(NamedTuple):
    """Where a value is kept: `owner[key]`.

    owner: a container; of a Stateful object, the dict of its attributes. stateful: the innermost
    Stateful object around it. trainable: whether a gradient step may change an array there.
    private: the private name that leads to it from that object, or "".
    """

    name: str
    owner: Any
    key: Any
    stateful: Stateful | None = None
    trainable: bool = True
    private: str = ""

    @property
    def value(self) -> Any:
        """What is kept there now."""
        return self.owner[self.key]

    @property
    def is_counter(self) -> bool:
        """Whether it is a counter of its Stateful object."""
        stateful = self.stateful
        return (
            stateful is not None and self.key in stateful.counters and self.owner is vars(stateful)
        )


Slot = Place  # of an array or a counter


def owner_of(value: Any) -> Any:
    """What keeps the values of a container; None if `value` is none."""
    if isinstance(value, Stateful):
        return vars(value)
    return value if isinstance(value, list | tuple | dict | Mapping) else None


def places(
    tree: Tree,
    name: str = "",
    on_cycle: Callable[[Place], None] = lambda place: None,
    closed: set[int] | None = None,
) -> Iterator[Place]:
    """Every place in a tree, depth first in the order of definition, each container once.

    name: of the tree itself. on_cycle: called with a place that holds a container around it.
    closed: identities of containers to leave out; those of the tree are added.
    """
    closed = set() if closed is None else closed
    if owner_of(tree) is None or id(tree) in closed:
        return
    opened = {id(tree): _inside(tree, Place(name, None, None))}
    while opened:
        last = next(reversed(opened))
        place = next(opened[last], None)
        if place is None:
            del opened[last]
            closed.add(last)
            continue
        yield place
        value = place.value
        if owner_of(value) is None or id(value) in closed:
            continue
        if id(value) in opened:
            on_cycle(place)
        else:
            opened[id(value)] = _inside(value, place)


def _inside(container: Any, at: Place) -> Iterator[Place]:
    """The places of the container that lies `at` a place."""
    owner, prefix = owner_of(container), f"{at.name}." if at.name else ""
    if isinstance(container, Stateful):
        trainable, untrained = at.trainable and container.trainable, container.untrained
        for key in list(owner):
            is_trained = trainable and key not in untrained
            private = key if key[0] == "_" else ""
            yield Place(prefix + key, owner, key, container, is_trained, private)
    else:
        for key in list(owner) if isinstance(owner, Mapping) else range(len(owner)):
            yield Place(f"{prefix}{key}", owner, key, *at[3:])


Other = Callable[[str, Any], None]  # told the name of a value that is no slot, and the value


def _ignore(name: str, value: Any) -> None:
    """What else a tree holds is no state."""


def slots(tree: Tree, other: Other = _ignore) -> Iterator[Slot]:
    """The places of a tree's arrays and counters, in the order of definition.

    Counters are those of Stateful objects, and each int in a list or mapping.
    other: told of every value of a plain container that is neither a slot nor holds any. Of a
    Stateful object, what is no slot is its configuration, and not told.

    Raises DtypeError for an array that has no place of its own: a bare one, or one in a tuple.
    """
    if isinstance(tree, DistributedArray):
        raise _without_place("")
    if owner_of(tree) is None:
        other("", tree)
    for place in places(tree):
        value = place.value
        if isinstance(value, DistributedArray):
            if place.private:
                _warn_of_private(_full_name(place.stateful), place.private)
            elif isinstance(place.owner, tuple):
                raise _without_place(place.name.rpartition(".")[0])
            else:
                yield place
        elif place.is_counter:
            yield place._replace(trainable=False)
        elif owner_of(value) is None and not place.private:
            is_attribute = place.stateful is not None and place.owner is vars(place.stateful)
            if type(value) is int and not is_attribute and not isinstance(place.owner, tuple):
                yield place._replace(trainable=False)
            elif place.stateful is None:
                other(place.name, value)


def _without_place(name: str) -> DtypeError:
    return error(
        DtypeError,
        "slots",
        f"{name or 'an array'} has no place where another could be put",
        remedy="Keep arrays in a Module, a dict or a list, not alone or in a tuple.",
    )


def parts(container: Any, within: tuple[int, ...] = ()) -> Iterator[tuple[str, Stateful]]:
    """The stateful objects in nested lists, tuples and dicts, by name, but not what they hold."""
    if id(container) in within:
        return
    items = container.items() if isinstance(container, Mapping) else enumerate(container)
    for key, value in list(items):
        if isinstance(value, Stateful):
            yield str(key), value
        elif isinstance(value, Mapping | list | tuple):
            for name, part in parts(value, (*within, id(container))):
                yield f"{key}.{name}", part


def _full_name(stateful: object) -> str:
    return f"{type(stateful).__module__}.{type(stateful).__qualname__}"


@cache  # so that each name is told once
def _warn_of_private(owner: str, key: str) -> None:
    """An array that was meant to be trained would otherwise stay as it is without a word."""
    warnings.warn(
        f"{owner}.{key}: arrays under a private name are neither trained nor saved; call it "
        f"{key.lstrip('_') or 'something else'} if it is a parameter",
        stacklevel=frame_of_user()[1],
    )


def trainable_slots(tree: Tree) -> list[Slot]:
    """The slots that a gradient step changes: trainable floating-point arrays."""
    return [s for s in slots(tree) if s.trainable and s.value.dtype.kind in "fc"]


def check_untied(found: Iterable[Slot]) -> None:
    """Raise DtypeError if two slots hold one array: its gradient could not be told apart."""
    names: dict[int, str] = {}
    for slot in found:
        first = names.setdefault(id(slot.value), slot.name)
        if first != slot.name:
            raise error(
                DtypeError,
                "parameters",
                f"{first} and {slot.name} hold one array",
                operands={slot.name: slot.value.type},
                remedy="Share the module, not the array, or give each a copy: x.copy().",
            )


def mismatches(wanted: Mapping[str, Facts], given: Mapping[str, Facts]) -> list[str]:
    """Every name, shape and dtype in which two states differ, a line each."""
    found = []
    for name, facts in wanted.items():
        if name not in given:
            found.append(f"{name}: missing")
        elif given[name] != facts:
            (shape, dtype), (other_shape, other_dtype) = facts, given[name]
            found.append(
                f"{name}: {dtype}{list(shape)} wanted, {other_dtype}{list(other_shape)} given"
            )
    return found + [f"{name}: given, and not wanted" for name in given if name not in wanted]


def sequence_like(like: Any, items: Iterable[Any]) -> Any:
    """A list or tuple of the type of `like` with other items; of a named tuple a named tuple."""
    return type(like)(*items) if hasattr(like, "_fields") else type(like)(items)


def with_values(like: Any, values: Iterable[Any]) -> Any:
    """A container of the class of `like`, and with its keys, that holds other values."""
    if not isinstance(like, Mapping):
        return sequence_like(like, values)
    pairs = zip(like, values, strict=True)
    if type(like) is dict:
        return dict(pairs)
    copied: Any = copy.copy(like)
    for key, value in pairs:  # the `update` of a Counter would add them
        copied[key] = value
    return copied
