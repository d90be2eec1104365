"""Slots: where the arrays of a model, an optimizer or a plain tree of containers are kept.

An array is immutable, so training, loading and restoring put new arrays in the place of old ones. A
`Slot` names that place: a container and a key, under a dotted name such as `dense1.weight`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from functools import cache
from typing import Any, ClassVar, NamedTuple

from gdt.array.array import DistributedArray
from gdt.errors import DtypeError, error, frame_of_user

Facts = tuple[tuple[int, ...], str]  # shape and name of the dtype
Tree = Any  # an array, a Stateful object, or nested lists, tuples and dicts of them


class Slot(NamedTuple):
    """A place that holds an array, or a counter: `owner[key]`."""

    name: str
    owner: MutableMapping[Any, Any]
    key: Any
    trainable: bool

    @property
    def value(self) -> Any:
        """What is kept there now."""
        return self.owner[self.key]


class Stateful:
    """Base of objects whose attributes are their state: modules and optimizers.

    Attributes that are arrays, other stateful objects, or lists and dicts of them are found by
    themselves. An array under a private name, one with a leading underscore, is a value that is
    kept for later and no state: it is left out, with a warning for each name of a class. Stateful
    objects are parts under every name.
    """

    untrained: ClassVar[tuple[str, ...]] = ()  # names of arrays that no gradient step changes
    counters: ClassVar[tuple[str, ...]] = ()  # names of integers that are saved too
    trainable: bool = True  # False freezes the object and all that it holds


Other = Callable[[str, Any], None]  # told the name of a value that is no slot, and the value


def _ignore(name: str, value: Any) -> None:
    """What else a tree holds is no state."""


def slots(tree: Tree, other: Other = _ignore) -> Iterator[Slot]:
    """Every slot of a tree, each once, in the order of definition.

    other: told of every value of a plain container that is neither a slot nor holds any. Of a
    Stateful object, what is no slot is its configuration, and not told.

    Raises DtypeError for an array that has no place of its own: a bare one, or one in a tuple.
    """
    return _walk(tree, "", True, set(), other)


def _walk(tree: Tree, name: str, trainable: bool, seen: set[int], other: Other) -> Iterator[Slot]:
    if not isinstance(tree, Stateful | list | tuple | dict | DistributedArray | MutableMapping):
        other(name, tree)
        return iter(())
    if id(tree) in seen:
        return iter(())
    seen.add(id(tree))
    if isinstance(tree, Stateful):
        return _of_attributes(tree, name, trainable and tree.trainable, seen)
    if isinstance(tree, DistributedArray) or (isinstance(tree, tuple) and _holds_arrays(tree)):
        raise error(
            DtypeError,
            "slots",
            f"{name or 'an array'} has no place where another could be put",
            remedy="Keep arrays in a Module, a dict or a list, not alone or in a tuple.",
        )
    return _of_items(tree, name, trainable, seen, other)


def _of_attributes(tree: Stateful, name: str, trainable: bool, seen: set[int]) -> Iterator[Slot]:
    untrained, counters, attributes = tree.untrained, tree.counters, vars(tree)
    for key, value in list(attributes.items()):
        if type(value) is DistributedArray:
            if key[0] == "_":
                _warn_of_private(_full_name(tree), key)
            else:
                yield Slot(_join(name, key), attributes, key, trainable and key not in untrained)
        elif key in counters:
            yield Slot(_join(name, key), attributes, key, False)
        elif not isinstance(value, Stateful | list | tuple | dict):
            continue
        elif isinstance(value, Stateful) or key[0] != "_":
            yield from _walk(value, _join(name, key), trainable, seen, _ignore)
        else:
            if _holds_arrays(value):
                _warn_of_private(_full_name(tree), key)
            for inner, part in parts(value):
                yield from _walk(part, f"{_join(name, key)}.{inner}", trainable, seen, _ignore)


def _of_items(
    tree: Any, name: str, trainable: bool, seen: set[int], other: Other
) -> Iterator[Slot]:
    items = enumerate(tree) if isinstance(tree, list | tuple) else tree.items()
    for key, value in list(items):
        counts = type(value) is int and not isinstance(tree, tuple)
        if isinstance(value, DistributedArray) or counts:
            yield Slot(_join(name, key), tree, key, trainable and not counts)
        else:
            yield from _walk(value, _join(name, key), trainable, seen, other)


def _join(name: str, key: object) -> str:
    return f"{name}.{key}" if name else str(key)


def _holds_arrays(container: Iterable[Any] | Mapping[Any, Any]) -> bool:
    values = container.values() if isinstance(container, Mapping) else container
    return any(isinstance(value, DistributedArray) for value in values)


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


def _full_name(stateful: Stateful) -> str:
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
