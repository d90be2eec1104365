"""Trees and places: what holds arrays, and where each of them is kept.

A tree is an array, a container (a list, tuple, named tuple, dict or other mapping, or a `Stateful`
object, which holds its attributes), or nested containers. A place is where a container keeps a
value: `owner[key]`, under a dotted name such as `dense1.weight`. Training, loading
and restoring put new arrays in the places of old ones, and write to none. `trees` has the functions
of a tree's values, which take a `Stateful` object for a leaf, and `variables` the places in the
variables of a function.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from gdt.array.array import DistributedArray
from gdt.errors import DtypeError, error, frame_of_user
from gdt.errors.foreign_names import ATTRIBUTES, no_attribute
from gdt.observe import COUNTED, OBSERVERS, met_host
from gdt.sharding.dtypes import INEXACT, kind_of
from gdt.sharding.layout import Layout
from gdt.state.trees import CONTAINERS, LEAVES, Tree

Facts = tuple[tuple[int, ...], str]  # shape and name of the dtype


class Counter:
    """An integer that gdt counts, as an attribute of a class: recorded steps, whose replays count
    without running Python, cannot read or set it."""

    def __init__(self, default: int | None = None) -> None:
        self._default = default

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self
        if OBSERVERS.get():
            met_host(f"read {type(instance).__name__}.{self._name}", COUNTED)
        value = vars(instance).get(self._name, self._default)
        if value is None:
            raise AttributeError(self._name)
        return value

    def __set__(self, instance: Any, value: int) -> None:
        if OBSERVERS.get() and self._name in vars(instance):
            met_host(f"set {type(instance).__name__}.{self._name}", COUNTED)
        vars(instance)[self._name] = value


class Stateful:
    """Base of objects whose attributes are their state: modules and optimizers.

    Attributes that are arrays, other stateful objects, or containers of them need not be
    registered. A private name, one with a leading underscore, marks an array as a value that is
    kept for later and is no state: it is left out, with a warning, once for each name of a class.
    Stateful objects are parts under every name.
    """

    untrained: ClassVar[tuple[str, ...]] = ()  # names of arrays that no gradient step changes
    counters: ClassVar[tuple[str, ...]] = ()  # names of integers that are saved too
    trainable: bool = True  # False freezes the object and all that it holds
    _placement: Any = None  # of its arrays on the mesh, if they lie elsewhere when they are used

    if not TYPE_CHECKING:  # a type checker would take every name for an attribute

        def __getattr__(self, name: str) -> object:
            if name not in ATTRIBUTES or hasattr(type(self), name):
                # Raises as Python does; where the code of a property has raised, its error again.
                return super().__getattribute__(name)
            raise no_attribute(self, name, ATTRIBUTES)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in cls.counters:
            if not isinstance(getattr(cls, name, None), Counter):
                counter = Counter(getattr(cls, name, None))
                counter.__set_name__(cls, name)
                setattr(cls, name, counter)


# ---------------------------------------------------------------- places


class Place(NamedTuple):
    """A place that holds a value: `owner[key]`.

    owner: a container; of a Stateful object, the dict of its attributes. stateful: the innermost
    Stateful object around it. trainable: whether a gradient step may change an array there.
    private: the private name that leads to it from that object, or "". state_layout: the layout of
    the gradient and of an optimizer's state of an array there; None if it is that of the array.
    """

    name: str
    owner: Any
    key: Any
    stateful: Stateful | None = None
    trainable: bool = True
    private: str = ""
    state_layout: Layout | None = None

    @property
    def value(self) -> Any:
        """The value at this place now."""
        return self.owner[self.key]

    @property
    def is_counter(self) -> bool:
        """Whether it is a counter of its Stateful object."""
        stateful = self.stateful
        return (
            stateful is not None and self.key in stateful.counters and self.owner is vars(stateful)
        )


Slot = Place  # of an array or a counter
SLOTS = {DistributedArray, int}
PARAMETERS = "Parameters are gdt's arrays of floats under public names: make them by gdt.asarray."
ARRAYS = {DistributedArray, np.ndarray}
SLOTS_AND_ARRAYS = SLOTS | ARRAYS


@lru_cache(maxsize=256)
def _holds_values(value_type: type) -> bool:
    """Whether values of a type are containers."""
    return issubclass(value_type, (Stateful, *CONTAINERS))


def owner_of(value: Any) -> Any:
    """The object that holds the values of a container, by key; None for a leaf."""
    if isinstance(value, Stateful):
        return vars(value)
    value_type: Any = type(value)
    return value if _holds_values(value_type) else None


def places(
    tree: Tree,
    name: str = "",
    *,
    types: Set[type] | None = None,
    on_cycle: Callable[[str], None] = lambda name: None,
    closed: set[int] | None = None,
) -> Iterator[Place]:
    """Every place in a tree, depth first in the order of definition, each container once.

    name: the name of the tree itself. types: the types of the values whose places are yielded; None
    yields all places. on_cycle: a function that is called with the name of a container within
    itself. closed: identities of containers to leave out; those of the tree are added.
    """
    closed = set() if closed is None else closed
    skipped = LEAVES - types if types is not None else ()
    stack: dict[int, Opened] = {}  # by identity, the containers around the current place
    if owner_of(tree) is not None and id(tree) not in closed:
        stack[id(tree)] = _opened(tree, name, None, True, "")
    while stack:
        innermost = next(reversed(stack))
        items, owner, prefix, stateful, untrained, trainable, private = stack[innermost]
        for key, value in items:
            value_type: Any = type(value)
            if value_type in skipped:
                continue
            is_leaf = value_type in LEAVES or not _holds_values(value_type)
            if is_leaf and types is not None and value_type not in types:
                continue
            full_name, is_trainable, private_name = f"{prefix}{key}", trainable, private
            if untrained is not None:
                is_trainable = trainable and key not in untrained
                private_name = key if key[0] == "_" else ""
            if types is None or value_type in types:
                # As `Place(...)` does, without the frame of its call.
                fields = (full_name, owner, key, stateful, is_trainable, private_name, None)
                yield tuple.__new__(Place, fields)
            if is_leaf or id(value) in closed:
                continue
            if id(value) in stack:
                on_cycle(full_name)
                continue
            stack[id(value)] = _opened(value, full_name, stateful, is_trainable, private_name)
            break
        else:
            del stack[innermost]
            closed.add(innermost)


# A container whose places are being yielded: its items, its owner, the prefix of its names, the
# Stateful object around it, the names of the arrays of that which are not trained (None in other
# containers), whether its arrays are trained, and the private name that leads to it.
Opened = tuple[
    Iterator[tuple[Any, Any]], Any, str, Stateful | None, Sequence[str] | None, bool, str
]


def _opened(container: Any, name: str, stateful: Any, trainable: bool, private: str) -> Opened:
    """The container at a place of that name, before its first item."""
    prefix, untrained = f"{name}." if name else "", None
    if isinstance(container, Stateful):
        stateful, untrained = container, container.untrained
        trainable, container = trainable and container.trainable, vars(container)
    is_sequence = isinstance(container, list | tuple)  # asking for a Mapping takes longer
    pairs = enumerate(container) if is_sequence else container.items()
    return iter([*pairs]), container, prefix, stateful, untrained, trainable, private


Other = Callable[[str, Any], None]  # told the name of a value that is no slot, and the value


def slots(tree: Tree, other: Other | None = None) -> Iterator[Slot]:
    """The places of a tree's arrays and counters, in the order of definition.

    Counters are those of Stateful objects, and each int in a list or mapping.
    other: told of every value of a plain container that is neither a slot nor holds any. Of a
    Stateful object, what is no slot is its configuration, and not told; a trainable NumPy array
    of floats gives a warning.

    Raises DtypeError for an array that has no place of its own: a bare one, or one in a tuple.
    """
    if isinstance(tree, DistributedArray):
        raise _without_place("")
    if other is not None and owner_of(tree) is None:
        other("", tree)
    for place in places(tree, types=None if other else SLOTS_AND_ARRAYS):
        value = place.owner[place.key]
        if type(value) is DistributedArray:
            if place.private:
                _warn_of_private(_full_name(place.stateful), place.private)
            elif isinstance(place.owner, tuple):
                raise _without_place(place.name.rpartition(".")[0])
            else:
                yield place
        elif type(value) is int and _counts(place):
            yield place._replace(trainable=False)
        elif type(value) is np.ndarray and _looks_trainable(place):
            _warn_of_numpy(place.name, _full_name(place.stateful), _described(place))
        elif other is not None and place.stateful is None and owner_of(value) is None:
            other(place.name, value)


def _counts(place: Place) -> bool:
    """Whether an int at a place is a counter."""
    stateful = place.stateful
    if stateful is not None and place.owner is vars(stateful):
        return place.key in stateful.counters
    return not (place.private or isinstance(place.owner, tuple))


def _looks_trainable(place: Place) -> bool:
    """Whether the NumPy array at a place would be a parameter if it were gdt's."""
    return (
        place.stateful is not None
        and place.trainable
        and not place.private
        and kind_of(place.value.dtype) in "fc"
    )


def _without_place(name: str) -> DtypeError:
    return error(
        DtypeError,
        f"{name or 'an array'} has no place where another could be put",
        remedy="Keep arrays in a Module, a dict or a list, not alone or in a tuple.",
    )


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


@cache  # so that each name is told once
def _warn_of_numpy(name: str, owner: str, description: str) -> None:
    """A NumPy array that was meant to be trained would otherwise stay as it is without a word."""
    warnings.warn(
        f"{name}, of a {owner}, is {description}: neither trained nor saved. Make a parameter of "
        f"it with gdt.asarray, or name it in `untrained` of its class if it is a constant",
        stacklevel=frame_of_user()[1],
    )


def trainable_slots(tree: Tree) -> list[Slot]:
    """The slots that a gradient step changes: trainable floating-point arrays."""
    trainable = [
        s for s in slots(tree) if s.trainable and s.owner[s.key].type.dtype.kind in INEXACT
    ]
    layouts = state_layouts(tree)
    if not layouts:
        return trainable
    return [s._replace(state_layout=layouts.get(s.name)) for s in trainable]


def state_layouts(tree: Tree) -> Mapping[str, Layout]:
    """The layouts of gradients and of an optimizer's state, by the names of parameters that are
    kept in another layout."""
    placement = tree._placement if isinstance(tree, Stateful) else None
    return placement.state_layouts if placement is not None else {}


def reasons(tree: Tree) -> dict[str, str]:
    """Return, for each array of a tree without parameters, why it is none, by the array's name."""
    return {place.name: _described(place) for place in places(tree, types=ARRAYS)}


def _described(place: Place) -> str:
    """The type of the array at a place, and what keeps it from being trained."""
    value = place.value
    if type(value) is np.ndarray:
        return f"a NumPy array, {value.dtype}{list(value.shape)}"
    if place.private:
        return f"{value.type}, under a private name"
    if not place.trainable:
        return f"{value.type}, frozen or named in `untrained`"
    return str(value.type)


def check_untied(array_slots: Iterable[Slot]) -> None:
    """Raise DtypeError if two slots hold one array: its gradient would be that of both places."""
    names: dict[int, str] = {}
    for slot in array_slots:
        first = names.setdefault(id(slot.owner[slot.key]), slot.name)
        if first != slot.name:
            raise error(
                DtypeError,
                "parameters",
                f"{first} and {slot.name} hold one array",
                operands={slot.name: slot.value.type},
                remedy="Share the module, not the array, or give each a copy: x.copy().",
            )


def mismatches(target: Mapping[str, Facts], source: Mapping[str, Facts]) -> list[str]:
    """Return a line for every name, shape and dtype in which the state `source` does not fit the
    state `target`."""
    problems = []
    for name, facts in target.items():
        if name not in source:
            problems.append(f"{name}: missing")
        elif source[name] != facts:
            (shape, dtype), (other_shape, other_dtype) = facts, source[name]
            problems.append(
                f"{name}: {dtype}{list(shape)} wanted, {other_dtype}{list(other_shape)} given"
            )
    return problems + [f"{name}: given, and not wanted" for name in source if name not in target]
