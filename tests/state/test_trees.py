"""Trees: every container is treated alike wherever arrays are found, mapped or put back."""

from __future__ import annotations

from collections import Counter, OrderedDict, UserDict, defaultdict
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

import gdt
from gdt import DistributedArray
from gdt.benchmark.measure import resolved
from gdt.errors import DtypeError, NestingError
from gdt.state import places, slots
from gdt.state.trees import leaves, mapped


class Pair(NamedTuple):
    a: Any
    b: Any


class Fields(MutableMapping[str, Any]):
    """A mapping of a user's, of which a shallow copy shares its dict."""

    def __init__(self, **fields: Any) -> None:
        self.fields = fields

    def __getitem__(self, key: str) -> Any:
        return self.fields[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self.fields[key] = value

    def __delitem__(self, key: str) -> None:
        del self.fields[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)


# By name: a function of two values that returns a container of them, and the class of a copy.
CONTAINERS: dict[str, tuple[Callable[[Any, Any], Any], type]] = {
    "list": (lambda a, b: [a, b], list),
    "tuple": (lambda a, b: (a, b), tuple),
    "named tuple": (Pair, Pair),
    "dict": (lambda a, b: {"a": a, "b": b}, dict),
    "OrderedDict": (lambda a, b: OrderedDict(a=a, b=b), OrderedDict),
    "Counter": (lambda a, b: Counter(a=a, b=b), Counter),
    "defaultdict": (lambda a, b: defaultdict(list, a=a, b=b), defaultdict),
    "UserDict": (lambda a, b: UserDict(a=a, b=b), UserDict),
    "a mapping of a user's": (lambda a, b: Fields(a=a, b=b), dict),
    "MappingProxyType": (lambda a, b: MappingProxyType({"a": a, "b": b}), dict),
    "nested": (lambda a, b: [{"a": (a,)}, Pair(b, [])], list),
}
ALL = pytest.mark.parametrize("name", CONTAINERS)


def arrays() -> tuple[DistributedArray, DistributedArray]:
    return gdt.asarray([1.0, 2.0]), gdt.asarray([3.0, 4.0])


def values_of(tree: Any) -> list[Any]:
    return [x.tolist() for x in leaves(tree) if isinstance(x, DistributedArray)]


@ALL
def test_leaves_and_places(name: str) -> None:
    a, b = arrays()
    tree = CONTAINERS[name][0](a, b)
    assert list(leaves(tree)) == [a, b]
    array_places = [p for p in places(tree, "tree") if isinstance(p.value, DistributedArray)]
    assert [p.value for p in array_places] == [a, b]
    assert all(p.name.startswith("tree.") for p in array_places)


@ALL
def test_a_mapped_tree_is_another_of_the_same_class(name: str) -> None:
    make, kind = CONTAINERS[name]
    a, b = arrays()
    tree = make(a, b)
    for by_name in (False, True):
        doubled = mapped(lambda x: x * 2, tree, by_name=by_name)
        assert type(doubled) is kind and doubled is not tree
        assert values_of(doubled) == [[2.0, 4.0], [6.0, 8.0]]
        assert values_of(tree) == [[1.0, 2.0], [3.0, 4.0]]
        if isinstance(tree, Mapping):
            assert [*doubled] == [*tree]


@ALL
def test_a_gradient_has_the_containers_of_its_source(name: str) -> None:
    make, kind = CONTAINERS[name]

    def loss(tree: Any) -> DistributedArray:
        a, b = leaves(tree)
        return gdt.sum(a * b)

    value, gradient = gdt.value_and_grad(loss)(make(*arrays()))
    assert float(value) == 11.0
    assert type(gradient) is kind and values_of(gradient) == [[3.0, 4.0], [1.0, 2.0]]


@ALL
def test_a_recorded_step_reads_and_returns_every_container(name: str) -> None:
    make, kind = CONTAINERS[name]
    state = {"tree": make(*arrays())}

    @gdt.function(verify=1)
    def step(x: DistributedArray) -> Any:
        return mapped(lambda leaf: leaf * x, state["tree"])

    for n in range(4):
        out = step(gdt.asarray([1.0, float(n)]))
        assert type(out) is kind
        assert values_of(out) == [[1.0, 2.0 * n], [3.0, 4.0 * n]]
    assert len(step.programs) == 1


@ALL
def test_partial_sums_are_resolved_in_every_container(name: str) -> None:
    layout = gdt.Layout(["x"], gdt.create_mesh({"x": 2}))
    total = gdt.sum(gdt.ones(4, layout=layout))
    assert total.layout.reductions != (None,)
    tree = resolved(CONTAINERS[name][0](total, total))
    assert not any(any(x.layout.reductions) for x in leaves(tree))


@ALL
def test_slots_are_places_where_another_array_could_be_put(name: str) -> None:
    tree = CONTAINERS[name][0](*arrays())
    if name in ("tuple", "named tuple", "nested"):
        with pytest.raises(DtypeError, match="no place where another could be put"):
            list(slots(tree))
        return
    names = ["0", "1"] if name == "list" else ["a", "b"]
    assert [s.name for s in slots(tree)] == names
    if name != "MappingProxyType":
        for slot in slots(tree):
            slot.owner[slot.key] = gdt.zeros(1)
        assert values_of(tree) == [[0.0], [0.0]]


def test_a_container_that_holds_itself_is_named() -> None:
    tree: dict[str, Any] = {"x": gdt.ones(2)}
    tree["self"] = tree
    with pytest.raises(NestingError, match="tree: a dict holds itself, or too many in one"):
        gdt.grad(lambda t: gdt.sum(t["x"]))(tree)
    with pytest.raises(NestingError, match="tree: a dict holds itself"):
        list(leaves(tree))
