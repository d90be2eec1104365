"""gdt.function: what changes between calls is seen where a step finds it, or refused by name."""

from __future__ import annotations

# ruff: noqa: PLW0108  # the lambdas look up what they call in every call
import argparse
import collections
import contextlib
import dataclasses
import functools
import itertools
import operator
import random
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import gdt
from gdt import DistributedArray, nn
from gdt.errors import FunctionError, OutOfMemoryError
from gdt.programs.function import UnverifiedWarning
from tests.replays import same

Get, Put = Callable[[], Any], Callable[[Any], Any]
Step = Callable[..., DistributedArray]


class Holder:
    """An object of the user's."""

    def __init__(self, held: Any = None) -> None:
        self.held = held


class Slots:
    __slots__ = ("held",)


@dataclasses.dataclass(frozen=True)
class Frozen:
    held: Any


class Pair(collections.namedtuple("Pair", "first held")):
    """A named tuple."""


class Number(int):
    """A number with an attribute."""


class Model(nn.Module):
    def __init__(self, held: Any) -> None:
        self.held = held


GLOBAL: Any = None
helpers = types.ModuleType("helpers")
exec("HELD = None\ndef held(): return HELD", vars(helpers))


# ---------------------------------------------------------------- where values are


def in_a_closure(value: Any) -> tuple[Get, Put]:
    def put(new: Any) -> None:
        nonlocal value
        value = new

    return lambda: value, put


def in_a_global_variable(value: Any) -> tuple[Get, Put]:
    def put(new: Any) -> None:
        global GLOBAL  # noqa: PLW0603
        GLOBAL = new

    put(value)
    return lambda: GLOBAL, put


def in_a_dict(value: Any) -> tuple[Get, Put]:
    kept = {"held": value}
    return lambda: kept["held"], lambda new: kept.update(held=new)


def in_a_dict_that_was_empty(value: Any) -> tuple[Get, Put]:
    kept: dict[str, Any] = {}

    def put(new: Any) -> None:
        kept.clear()
        kept.update({} if new is None else {"held": new})

    put(value)
    return lambda: kept.get("held"), put


def in_a_list_that_was_empty(value: Any) -> tuple[Get, Put]:
    kept: list[Any] = []

    def put(new: Any) -> None:
        kept[:] = [] if new is None else [new]

    put(value)
    return lambda: kept[0] if kept else None, put


def in_a_deque_that_was_empty(value: Any) -> tuple[Get, Put]:
    kept: collections.deque[Any] = collections.deque(maxlen=1)

    def put(new: Any) -> None:
        kept.clear()
        kept.extend([] if new is None else [new])

    put(value)
    return lambda: kept[0] if kept else None, put


def in_a_nested_container(value: Any) -> tuple[Get, Put]:
    kept = {"a": [1, ({"held": value},)]}
    return lambda: kept["a"][1][0]["held"], lambda new: kept["a"][1][0].update(held=new)


def in_a_default_dict(value: Any) -> tuple[Get, Put]:
    kept = collections.defaultdict(lambda: None, held=value)
    return lambda: kept["held"], lambda new: kept.update(held=new)


def behind_a_proxy(value: Any) -> tuple[Get, Put]:
    kept = {"held": value}
    proxy = types.MappingProxyType(kept)
    return lambda: proxy["held"], lambda new: kept.update(held=new)


def in_an_attribute(value: Any) -> tuple[Get, Put]:
    holder = Holder(value)
    return lambda: holder.held, lambda new: setattr(holder, "held", new)


def in_an_attribute_that_was_not_there(value: Any) -> tuple[Get, Put]:
    holder = Holder()

    def put(new: Any) -> None:
        vars(holder).clear()
        vars(holder).update({} if new is None else {"held": new})

    put(value)
    return lambda: getattr(holder, "held", None), put


def in_an_object_that_is_another(value: Any) -> tuple[Get, Put]:
    holder = Holder(Holder(value))
    return lambda: holder.held.held, lambda new: setattr(holder, "held", Holder(new))


def in_attributes_that_are_others(value: Any) -> tuple[Get, Put]:
    holder = Holder(value)
    return lambda: holder.held, lambda new: setattr(holder, "__dict__", {"held": new})


def in_an_object_that_holds_itself(value: Any) -> tuple[Get, Put]:
    holder = Holder(value)
    holder.others = [Holder(holder)]
    return lambda: holder.others[0].held.held, lambda new: setattr(holder, "held", new)


def in_a_slot(value: Any) -> tuple[Get, Put]:
    holder = Slots()
    holder.held = value
    return lambda: holder.held, lambda new: setattr(holder, "held", new)


def in_a_class(value: Any) -> tuple[Get, Put]:
    class Kept:
        held = value

    return lambda: Kept.held, lambda new: setattr(Kept, "held", new)


def in_a_base_class(value: Any) -> tuple[Get, Put]:
    class Base:
        held = value

    holder = type("Inner", (Base,), {"__module__": __name__})()
    return lambda: holder.held, lambda new: setattr(Base, "held", new)


def in_a_subclass_that_had_none(value: Any) -> tuple[Get, Put]:
    base = type("Base", (), {"__module__": __name__, "held": value})
    inner = type("Inner", (base,), {"__module__": __name__})
    holder = inner()
    return lambda: holder.held, lambda new: setattr(inner, "held", new)


def in_a_metaclass(value: Any) -> tuple[Get, Put]:
    meta = type("Meta", (type,), {"__module__": __name__, "held": value})
    kept = meta("Kept", (), {"__module__": __name__})
    return lambda: kept.held, lambda new: setattr(meta, "held", new)


def in_another_class(value: Any) -> tuple[Get, Put]:
    def kind(held: Any) -> type:
        return type("Kind", (), {"__module__": __name__, "held": held})

    holder = kind(value)()
    return lambda: holder.held, lambda new: setattr(holder, "__class__", kind(new))


def in_a_frozen_dataclass(value: Any) -> tuple[Get, Put]:
    kept = [Frozen(value)]
    return lambda: kept[0].held, lambda new: kept.__setitem__(0, Frozen(new))


def in_a_named_tuple(value: Any) -> tuple[Get, Put]:
    kept = [Pair(1, value)]
    return lambda: kept[0].held, lambda new: kept.__setitem__(0, Pair(1, new))


def in_a_set(value: Any) -> tuple[Get, Put]:
    kept = {Holder(value)}
    return lambda: next(iter(kept)).held, lambda new: (kept.clear(), kept.add(Holder(new)))


def in_a_namespace(value: Any) -> tuple[Get, Put]:
    kept = argparse.Namespace(inner=types.SimpleNamespace(held=value))
    return lambda: kept.inner.held, lambda new: setattr(kept.inner, "held", new)


def in_an_attribute_of_a_number(value: Any) -> tuple[Get, Put]:
    number = Number(3)
    number.held = value
    return lambda: number.held, lambda new: setattr(number, "held", new)


def in_replaced_defaults(value: Any) -> tuple[Get, Put]:
    def get(held: Any = value) -> Any:
        return held

    return get, lambda new: setattr(get, "__defaults__", (new,))


def in_replaced_keyword_defaults(value: Any) -> tuple[Get, Put]:
    def get(*, held: Any = value) -> Any:
        return held

    return get, lambda new: setattr(get, "__kwdefaults__", {"held": new})


def in_an_attribute_of_a_function(value: Any) -> tuple[Get, Put]:
    def get() -> Any:
        return get.held

    get.held = value
    return get, lambda new: setattr(get, "held", new)


def in_a_partial(value: Any) -> tuple[Get, Put]:
    get = functools.partial(lambda holder: holder.held, Holder(value))
    return get, lambda new: setattr(get.args[0], "held", new)


def in_a_bound_object(value: Any) -> tuple[Get, Put]:
    class Bound(Holder):
        def get(self) -> Any:
            return self.held

    holder = Bound(value)
    return holder.get, lambda new: setattr(holder, "held", new)


def in_a_bound_builtin(value: Any) -> tuple[Get, Put]:
    kept = {"held": value}
    get = kept.get
    return lambda: get("held"), lambda new: kept.update(held=new)


def in_an_object_that_is_called(value: Any) -> tuple[Get, Put]:
    class Called(Holder):
        def __call__(self) -> Any:
            return self.held

    holder = Called(value)
    return holder, lambda new: setattr(holder, "held", new)


def behind_a_property(value: Any) -> tuple[Get, Put]:
    def put(new: Any) -> None:
        global GLOBAL  # noqa: PLW0603
        GLOBAL = new

    class Kept:
        @property
        def held(self) -> Any:
            return GLOBAL

    put(value)
    holder = Kept()
    return lambda: holder.held, put


def behind_a_partial_method(value: Any) -> tuple[Get, Put]:
    kept = [value]

    class Kept:
        def item(self, number: int) -> Any:
            return kept[number]

        held = functools.partialmethod(item, 0)

    holder = Kept()
    return lambda: holder.held(), lambda new: kept.__setitem__(0, new)


def in_a_method_that_is_another(value: Any) -> tuple[Get, Put]:
    kind = type("Kind", (), {"__module__": __name__, "get": lambda self: value})
    holder = kind()
    return lambda: holder.get(), lambda new: setattr(kind, "get", lambda self: new)


def in_a_context(value: Any) -> tuple[Get, Put]:
    kept = [value]

    @contextlib.contextmanager
    def context() -> Iterator[Any]:
        yield kept[0]

    def get() -> Any:
        with context() as held:
            return held

    return get, lambda new: kept.__setitem__(0, new)


def behind_a_weak_reference(value: Any) -> tuple[Get, Put]:
    holder = Holder(value)
    reference = weakref.ref(holder)

    def put(new: Any) -> None:
        holder.held = new

    return lambda: reference().held, put


def in_another_module(value: Any) -> tuple[Get, Put]:
    helpers.HELD = value
    return lambda: helpers.HELD, lambda new: setattr(helpers, "HELD", new)


def in_a_function_of_another_module(value: Any) -> tuple[Get, Put]:
    helpers.HELD = value
    return lambda: helpers.held(), lambda new: setattr(helpers, "HELD", new)


def in_a_module_that_the_step_imports(value: Any) -> tuple[Get, Put]:
    helpers.HELD = value
    sys.modules["trap_helpers"] = helpers

    def get() -> Any:
        import trap_helpers  # noqa: PLC0415

        return trap_helpers.HELD

    return get, lambda new: setattr(helpers, "HELD", new)


def in_a_method_that_a_library_calls(value: Any) -> tuple[Get, Put]:
    def put(new: Any) -> None:
        global GLOBAL  # noqa: PLW0603
        GLOBAL = new

    class Kept(nn.Module):
        def own_step(self) -> Any:
            return GLOBAL

    put(value)
    model = Kept()
    return lambda: getattr(model, "_".join(("own", "step")))(), put


def in_a_function_in_a_list(value: Any) -> tuple[Get, Put]:
    kept = [value]
    functions = [lambda: kept[0]]
    return lambda: functions[0](), lambda new: kept.__setitem__(0, new)


def in_a_function_that_is_another(value: Any) -> tuple[Get, Put]:
    functions = {"get": lambda: value}
    return lambda: functions["get"](), lambda new: functions.update(get=lambda: new)


def in_a_module(value: Any) -> tuple[Get, Put]:
    model = Model(value)
    return lambda: model.held, lambda new: setattr(model, "held", new)


def in_an_object_of_a_module(value: Any) -> tuple[Get, Put]:
    model = Model(Holder({"held": value}))
    return lambda: model.held.held["held"], lambda new: model.held.held.update(held=new)


def in_the_class_of_a_module(value: Any) -> tuple[Get, Put]:
    kind = type("Kind", (Model,), {"__module__": __name__, "scale": value})
    model = kind(None)
    return lambda: model.scale, lambda new: setattr(kind, "scale", new)


def of_an_item_getter(value: Any) -> tuple[Get, Put]:
    kept, get = {"held": value}, operator.itemgetter("held")
    return lambda: get(kept), lambda new: kept.update(held=new)


PLACES = [f for name, f in globals().items() if name.startswith(("in_", "behind_", "of_"))]
ARRAY, OTHER = gdt.asarray([3.0, 4.0]), gdt.asarray([5.0, 6.0])
CHANGES: dict[str, list[Any]] = {
    "an array appears": [None, None, None, None, ARRAY, ARRAY, OTHER],
    "an array goes": [ARRAY, ARRAY, ARRAY, ARRAY, None, None],
    "an array is another": [gdt.asarray([float(n), 1.0]) for n in range(6)],
    "a number is another": [2.0, 2.0, 2.0, 2.0, 5.0, 5.0, 2.0],
    "a number becomes an array": [2.0, 2.0, 2.0, 2.0, ARRAY, OTHER],
    "a number changes in every call": [1.0, 2.0, 3.0, 4.0, 5.0],
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("where", PLACES, ids=lambda f: f.__name__)
def test_what_a_step_refers_to_is_seen(
    where: Callable[[Any], tuple[Get, Put]], change: str
) -> None:
    first, *others = CHANGES[change]
    get, put = where(first)

    def step(x: DistributedArray) -> DistributedArray:
        held = get()
        return x * 2 if held is None else x * held

    recorded, x = gdt.function(step), gdt.asarray([1.0, 7.0])
    assert same(recorded(x), step(x))
    for value in others:
        put(value)
        assert same(recorded(x), step(x))
    assert recorded.programs


@pytest.mark.parametrize("package", ["trap_library", "another_library"])
def test_of_installed_packages_only_that_of_the_step_is_seen(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library may be where all of a user's steps are."""
    library = types.ModuleType(f"{package}.steps")
    library.__file__ = f"/lib/site-packages/{package}/steps.py"
    monkeypatch.setitem(sys.modules, library.__name__, library)
    exec("RATE = 2.0\ndef step(x): return x * RATE", vars(library))
    called = library.step
    step = gdt.function(called if package == "trap_library" else lambda x: called(x))
    for n in range(6):
        library.RATE = 2.0 if n < 4 else 3.0
        expected = library.RATE if package == "trap_library" else 2.0
        assert step(gdt.ones(1)).tolist() == [expected]


def test_numbers_in_sets_are_told_apart() -> None:
    signs = {0.0}
    step = gdt.function(lambda x: gdt.copysign(x, min(signs)))
    for n in range(6):
        if n == 4:
            signs.clear()
            signs.add(-0.0)
        assert step(gdt.ones(1)).tolist() == [1.0 if n < 4 else -1.0]


def test_of_large_containers_arrays_and_modules_and_the_length_are_seen() -> None:
    rows: list[Any] = [1.0] * 2000
    rows[7], rows[8] = gdt.ones(1), Model(2.0)
    step = gdt.function(lambda x: x * rows[7] * rows[8].held * len(rows))
    for n in range(8):
        if n == 4:
            rows[7] = gdt.full(1, 3.0)
        elif n == 5:
            rows[8].held = 4.0
        elif n == 6:
            rows.append(1.0)
        assert step(gdt.ones(1)).tolist() == [float(rows[7]) * rows[8].held * len(rows)]


# ---------------------------------------------------------------- what counts


def counting(make: Callable[[], Any]) -> Callable[[], tuple[Step, Get]]:
    """A step that counts on an object with an attribute `held`."""

    def made() -> tuple[Step, Get]:
        holder = make()
        holder.held = 0

        def step(x: DistributedArray) -> DistributedArray:
            holder.held += 1
            return x * holder.held

        return step, lambda: holder.held

    return made


def counts_in_a_class() -> tuple[Step, Get]:
    kind = type("Kind", (), {"__module__": __name__})
    return counting(lambda: kind)()


def counts_in_a_property() -> tuple[Step, Get]:
    class Counter(Holder):
        @property
        def next(self) -> int:
            self.held += 1
            return self.held

    counter = Counter(0)
    return lambda x: x * counter.next, lambda: counter.held


def counts_in_a_context_manager() -> tuple[Step, Get]:
    class Counter(Holder):
        def __enter__(self) -> int:
            self.held += 1
            return self.held

        def __exit__(self, *_: object) -> None: ...

    counter = Counter(0)

    def step(x: DistributedArray) -> DistributedArray:
        with counter as count:
            return x * count

    return step, lambda: counter.held


def counts_in_a_schedule() -> tuple[Step, Get]:
    class Schedule(Holder):
        def __call__(self) -> float:
            self.held += 1
            return 0.5**self.held

    schedule = Schedule(0)
    return lambda x: x * schedule(), lambda: schedule.held


def counts_in_a_set() -> tuple[Step, Get]:
    seen: set[int] = set()

    def step(x: DistributedArray) -> DistributedArray:
        seen.add(len(seen))
        return x * len(seen)

    return step, lambda: len(seen)


def counts_in_a_deque() -> tuple[Step, Get]:
    seen = collections.deque([0], maxlen=2)

    def step(x: DistributedArray) -> DistributedArray:
        seen.append(seen[-1] + 1)
        return x * seen[-1]

    return step, lambda: seen[-1]


def counts_in_a_decorator() -> tuple[Step, Get]:
    counts = collections.Counter(calls=0)

    def counted(f: Step) -> Step:
        @functools.wraps(f)
        def call(x: DistributedArray) -> DistributedArray:
            counts["calls"] += 1
            return f(x) * counts["calls"]

        return call

    return counted(lambda x: x * 2), lambda: counts["calls"]


def counts_in_an_iterator_of_a_class() -> tuple[Step, Get]:
    kind = type("Kind", (), {"__module__": __name__, "numbers": itertools.count(1)})
    return lambda x: x * next(kind.numbers), lambda: 1


COUNTERS = {
    "attribute": counting(Holder),
    "slot": counting(Slots),
    "attribute of a module": counting(lambda: Model(None)),
    "namespace": counting(types.SimpleNamespace),
    "variable of a module": counting(lambda: helpers),
    "attribute of a function": counting(lambda: lambda: None),
    **{f.__name__: f for name, f in list(globals().items()) if name.startswith("counts_")},
}


@pytest.mark.parametrize("name", COUNTERS)
def test_what_a_step_counts_is_refused_and_put_back(name: str) -> None:
    step, count = COUNTERS[name]()
    recorded, x = gdt.function(step), gdt.ones(1)
    recorded(x)
    for _ in range(2):
        with pytest.raises(FunctionError, match=r"changes |cannot take the next value of"):
            recorded(x)
        assert count() == 1


GENERATORS: dict[str, tuple[Callable[[], Any], Callable[[Any], float]]] = {
    "Generator": (lambda: np.random.default_rng(0), lambda rng: rng.normal()),
    "RandomState": (lambda: np.random.RandomState(0), lambda rng: rng.rand()),
    "Random": (lambda: random.Random(0), lambda rng: rng.random()),
}


@pytest.mark.parametrize("where", ["closure", "attribute", "list", "method", "argument"])
@pytest.mark.parametrize("name", GENERATORS)
def test_generators_of_others_are_refused_and_put_back(name: str, where: str) -> None:
    make, draw = GENERATORS[name]
    rng, expected = make(), make()
    holder, rows, method = (
        Holder(rng),
        [0, (rng,)],
        rng.rand if name == "RandomState" else rng.random,
    )
    steps: dict[str, Callable[..., DistributedArray]] = {
        "closure": lambda x: x * draw(rng),
        "attribute": lambda x: x * draw(holder.held),
        "list": lambda x: x * draw(rows[1][0]),
        "method": lambda x: x * method(),
        "argument": lambda x, given: x * draw(given),
    }
    recorded, arguments = gdt.function(steps[where]), (gdt.ones(1), rng)
    arguments = arguments if where == "argument" else arguments[:1]
    recorded(*arguments)
    for _ in range(2):
        with pytest.raises(FunctionError, match=r"draws from .*, and not from gdt.random"):
            recorded(*arguments)
    # As after one call.
    if where == "method" and name == "Generator":
        expected.random()
    else:
        draw(expected)
    assert draw(rng) == draw(expected)


def test_a_generator_may_be_drawn_from_outside_of_a_step() -> None:
    holder = Holder(np.random.default_rng(0))
    step = gdt.function(lambda x: x if holder.held is None else x * 2)
    for _ in range(5):
        holder.held.normal()
        assert step(gdt.ones(1)).tolist() == [2.0]
    assert len(step.programs) == 1


# ---------------------------------------------------------------- the first replay


def test_the_first_replay_of_each_recording_runs_both_ways() -> None:
    calls, flag = np.zeros(1), {"on": True}

    def step(x: DistributedArray) -> DistributedArray:
        calls[0] += 1
        return x * 2 if flag["on"] else x * 3

    counts = {}
    for verify in (None, 0, 3, 4):
        calls[0], counts[verify] = 0, []
        recorded = gdt.function(step, verify=verify)
        for n in range(8):
            flag["on"] = n < 5
            recorded(gdt.ones(1))
            counts[verify].append(int(calls[0]))
    assert counts == {
        None: [1, 2, 3, 3, 3, 4, 5, 5],
        0: [1, 2, 2, 2, 2, 3, 3, 3],
        3: [1, 2, 3, 3, 3, 5, 6, 6],
        4: [1, 2, 3, 4, 4, 5, 6, 7],
    }


def test_what_a_recording_does_not_see_is_found_by_the_first_replay() -> None:
    w, optimizer, rates = {"w": gdt.ones(2)}, gdt.optim.Adam(0.1), np.array([1.0])

    @gdt.function
    def step(x: DistributedArray) -> DistributedArray:
        optimizer.update(w, {"w": x * float(rates[0])})
        return x * float(rates[0])

    for n in range(2):
        rates[0] = n
        step(gdt.ones(2))
    for n in range(2, 4):  # from the first that differs every call is verified
        rates[0] = n
        with pytest.raises(FunctionError, match=r"(?s)what it returns\n.*NumPy array: pass it as"):
            step(gdt.ones(2))
        assert optimizer.steps == n + 1
    rates[0] = 1.0  # as it was recorded
    for _ in range(2):
        assert step(gdt.ones(2)).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("when", ["as written", "replayed"])
def test_a_first_replay_without_the_memory_to_verify_it_warns(when: str) -> None:
    w, g, fails = {"w": gdt.ones(2)}, {"w": gdt.ones(2)}, np.zeros(1, int)

    def rate(_: int) -> float:
        fails[0] -= 1
        if fails[0] == 0:
            raise OutOfMemoryError("no memory")
        return 0.5

    optimizer = gdt.optim.SGD(rate)

    @gdt.function
    def step() -> DistributedArray:
        optimizer.update(w, g)
        return w["w"] * 1

    found = [step().tolist() for _ in range(2)]
    fails[0] = {"as written": 1, "replayed": 2}[when]
    with pytest.warns(UnverifiedWarning, match="not the memory to compare a replay of step"):
        found.append(step().tolist())
    found.append(step().tolist())
    assert found == [[1 - 0.5 * n] * 2 for n in range(1, 5)] and optimizer.steps == 4


# ---------------------------------------------------------------- where other state is named


@pytest.mark.parametrize("kept", ["variable", "list", "dict", "attribute"])
def test_an_array_that_appears_where_other_state_is_named_is_refused(kept: str) -> None:
    variable, rows, table, holder = None, [], {}, Holder()
    w = {"w": gdt.ones(1)}

    @gdt.function(state=w)
    def step(x: DistributedArray) -> DistributedArray:
        found = [variable, *rows, *table.values(), holder.held]
        return sum((f for f in found if f is not None), x * w["w"])

    for _ in range(4):
        assert step(gdt.ones(1)).tolist() == [1.0]
    if kept == "variable":
        variable = gdt.ones(1)
    elif kept == "list":
        rows.append(gdt.ones(1))
    elif kept == "dict":
        table["b"] = gdt.ones(1)
    else:
        holder.held = gdt.ones(1)
    with pytest.raises(FunctionError, match="in a place that no state names"):
        step(gdt.ones(1))
