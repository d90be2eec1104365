"""What a recorded step depends on: nothing that it reads may change unnoticed."""

from __future__ import annotations

import cProfile
import functools
import itertools
import random
import subprocess
import sys
import threading
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gdt
from gdt import DistributedArray
from gdt.programs.captures import Captures
from gdt.programs.function import MANY
from gdt.programs.user_code import LIBRARIES, Ran, exempt

Number = Callable[[], float]
Case = tuple[Number, Callable[[], object]]  # how a step reads a number, and what changes it


def default_of_a_function() -> Case:
    def scale(factor: float = 2.0) -> float:
        return factor

    return scale, lambda: setattr(scale, "__defaults__", (3.0,))


def keyword_default_of_a_function() -> Case:
    def scale(*, factor: float = 2.0) -> float:
        return factor

    return scale, lambda: setattr(scale, "__kwdefaults__", {"factor": 3.0})


def code_of_a_function() -> Case:
    def scale() -> float:
        return 2.0

    return scale, lambda: setattr(scale, "__code__", (lambda: 3.0).__code__)


def attribute_of_a_function() -> Case:
    def scale() -> float:
        return float(scale.factor)  # type: ignore[attr-defined]

    scale.factor = 2.0  # type: ignore[attr-defined]
    return scale, lambda: setattr(scale, "factor", 3.0)


def attribute_of_a_decorator() -> Case:
    class Scaled:
        def __init__(self, f: Number) -> None:
            functools.update_wrapper(self, f)
            self.factor, self.f = 2.0, f

        def __call__(self) -> float:
            return self.factor * self.f()

    @Scaled
    def one() -> float:
        return 1.0

    return one, lambda: setattr(one, "factor", 3.0)


def order_of_a_dict() -> Case:
    kept = {"a": 2.0, "b": 3.0}
    return lambda: next(iter(kept.values())), lambda: kept.update(a=kept.pop("a"))


def type_of_a_key() -> Case:
    kept: dict[Any, float] = {1: 2.0}
    return (
        lambda: 2.0 if type(next(iter(kept))) is int else 3.0,
        lambda: (kept.clear(), kept.update({1.0: 2.0})),
    )


def type_of_a_member() -> Case:
    kept: set[Any] = {1}
    return (
        lambda: 2.0 if type(next(iter(kept))) is int else 3.0,
        lambda: (kept.clear(), kept.add(1.0)),
    )


def sign_of_a_member() -> Case:
    kept = {(0.0,)}
    return (
        lambda: 2.0 + np.copysign(1.0, next(iter(kept))[0]),
        lambda: (kept.clear(), kept.add((-0.0,))),
    )


def attribute_of_a_dict() -> Case:
    class Settings(dict[str, float]):
        factor = 2.0

    settings = Settings()
    settings.factor = 2.0
    return lambda: settings.factor, lambda: setattr(settings, "factor", 3.0)


def attribute_of_a_list() -> Case:
    class Layers(list[float]):
        factor: float

    layers = Layers()
    layers.factor = 2.0
    return lambda: layers.factor, lambda: setattr(layers, "factor", 3.0)


class Base:
    factor = 2.0

    @property
    def double(self) -> float:
        return 2 * self.factor

    @staticmethod
    def fixed() -> float:
        return 2.0

    @classmethod
    def own(cls) -> float:
        return cls.factor


def subclass() -> Any:
    return type("Derived", (type("Between", (Base,), dict(vars(Base))),), {"__module__": __name__})


def attribute_of_a_base() -> Case:
    derived = subclass()
    return lambda: derived.factor, lambda: setattr(derived.__mro__[1], "factor", 3.0)


def attribute_that_hides_another() -> Case:
    derived = subclass()
    thing = derived()
    return lambda: thing.factor, lambda: setattr(derived, "factor", 3.0)


def replaced(name: str, by: Any) -> Callable[[], Case]:
    def case() -> Case:
        derived = subclass()
        thing = derived()
        read = lambda: (derived, float(m() if callable(m := getattr(thing, name)) else m))[1]
        return read, lambda: setattr(derived.__mro__[1], name, by)

    return case


def class_of_an_object() -> Case:
    thing, other = subclass()(), subclass()
    other.factor = 3.0
    return lambda: float(thing.factor), lambda: setattr(thing, "__class__", other)


def module_in_a_module() -> Case:
    outer, inner = types.ModuleType("outer"), types.ModuleType("inner")
    outer.inner, inner.factor = inner, 2.0  # type: ignore[attr-defined]
    return lambda: float(outer.inner.factor), lambda: setattr(inner, "factor", 3.0)


def module_in_an_attribute() -> Case:
    holder, module = types.SimpleNamespace(), types.ModuleType("settings")
    holder.settings, module.factor = module, 2.0  # type: ignore[attr-defined]
    return lambda: float(holder.settings.factor), lambda: setattr(module, "factor", 3.0)


def modules_of_one_name() -> Case:
    one, other = types.ModuleType("settings"), types.ModuleType("settings")
    one.factor, other.factor = 1.0, 2.0  # type: ignore[attr-defined]
    return lambda: float(one.factor * other.factor), lambda: setattr(other, "factor", 3.0)


def variable_of_a_thread() -> Case:
    local = threading.local()
    local.factor = 2.0
    return lambda: float(local.factor), lambda: setattr(local, "factor", 3.0)


def name_that_hides_a_builtin() -> Case:
    # Pytest takes the variables of a module away with the module, so nothing is left behind.
    variables = {"__name__": "typed_in"}
    exec("def scale(): return float(len('ab'))", variables)
    return variables["scale"], lambda: variables.update(len=lambda text: 3)  # type: ignore[return-value]


def configuration_of_a_library() -> Case:
    """As `ml_collections.ConfigDict` keeps its fields."""
    code = """class ConfigDict:
        def __init__(self, **fields): self.__dict__["_fields"] = fields
        def __getattr__(self, name): return self._fields[name]
        def __setattr__(self, name, value): self._fields[name] = value
        def keys(self): return self._fields.keys()
        def __getitem__(self, key): return self._fields[key]
        def __setitem__(self, key, value): self._fields[key] = value
    """
    module = types.ModuleType("config_of_a_library")
    module.__file__ = f"{Path(np.__file__).parents[1]}/config_of_a_library.py"
    sys.modules[module.__name__] = module
    exec(compile(code, module.__file__, "exec"), vars(module))
    config = module.ConfigDict(factor=2.0)
    return lambda: float(config.factor), lambda: setattr(config, "factor", 3.0)


CASES: dict[str, Callable[[], Case]] = {
    f.__name__: f
    for f in (
        default_of_a_function, keyword_default_of_a_function, code_of_a_function,
        attribute_of_a_function, attribute_of_a_decorator, order_of_a_dict, type_of_a_key,
        type_of_a_member, sign_of_a_member,
        attribute_of_a_dict, attribute_of_a_list, attribute_of_a_base,
        attribute_that_hides_another, class_of_an_object, module_in_a_module,
        module_in_an_attribute, modules_of_one_name, variable_of_a_thread,
        name_that_hides_a_builtin,
        configuration_of_a_library,
    )
} | {
    "a property": replaced("double", property(lambda self: 3.0)),
    "a static method": replaced("fixed", staticmethod(lambda: 3.0)),
    "a class method": replaced("own", classmethod(lambda cls: 3.0)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_change_is_noticed(name: str) -> None:
    read, change = CASES[name]()
    step = gdt.function(lambda x: x * read())
    x = gdt.ones(2)
    before = read()
    for _ in range(3):
        assert step(x).tolist() == [before] * 2
    programs = step.programs
    assert len(programs) == 1
    change()
    assert read() != before
    for _ in range(3):
        assert step(x).tolist() == [read()] * 2


def test_modules_that_a_step_imports(tmp_path: Path) -> None:
    package = tmp_path / "steps"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "settings.py").write_text("factor = 2.0\n")
    (package / "step.py").write_text(
        """import gdt
import steps.settings

@gdt.function
def by_path(x):
    return x * steps.settings.factor

@gdt.function
def imported(x):
    import steps.settings as settings
    return x * settings.factor

@gdt.function
def relative(x):
    from .settings import factor
    return x * factor

@gdt.function
def of_the_package(x):
    from . import settings
    return x * settings.factor

@gdt.function
def given(x, module):
    return x * module.factor
"""
    )
    program = """
import gdt, steps.step as s
x = gdt.ones(1)
calls = [s.by_path, s.imported, s.relative, s.of_the_package,
         lambda x: s.given(x, s.steps.settings)]
for factor in (2.0, 3.0):
    s.steps.settings.factor = factor
    for call in calls:
        print([call(x).tolist()[0] for _ in range(3)] == [factor] * 3)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{tmp_path}:{Path(gdt.__file__).parents[1]}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["True"] * 10, done.stdout + done.stderr


def test_a_folder_whose_name_begins_like_the_librarys_is_the_users(tmp_path: Path) -> None:
    """The file `gdt_training.py` beside the package `gdt`."""
    folder = Path(gdt.__file__).parent
    code = compile("def scale(): return FACTOR", f"{folder}_training.py", "exec")
    variables = {"__name__": "gdt_training", "__file__": f"{folder}_training.py", "FACTOR": 2.0}
    exec(code, variables)
    scale = variables["scale"]
    step = gdt.function(lambda x: x * scale())  # type: ignore[operator]
    assert [step(gdt.ones(1)).tolist() for _ in range(3)] == [[2.0]] * 3
    variables["FACTOR"] = 3.0
    assert [step(gdt.ones(1)).tolist() for _ in range(3)] == [[3.0]] * 3


LAST: DistributedArray


def test_a_global_variable_that_is_only_assigned_is_assigned_by_a_replay() -> None:
    @gdt.function
    def step(x: DistributedArray) -> DistributedArray:
        global LAST  # noqa: PLW0603
        LAST = x * 2
        return x * 3

    for i in range(5):
        step(gdt.full(1, float(i)))
        assert LAST.tolist() == [2.0 * i]
    assert len(step.programs) == 1


def test_an_array_that_a_function_keeps() -> None:
    def total(x: DistributedArray) -> DistributedArray:
        total.sum = total.sum + x  # type: ignore[attr-defined]
        return total.sum * 1  # type: ignore[attr-defined,no-any-return]

    total.sum = gdt.zeros(1)  # type: ignore[attr-defined]
    step = gdt.function(total)
    assert [step(gdt.ones(1)).tolist() for _ in range(4)] == [[1.0], [2.0], [3.0], [4.0]]


def test_the_class_of_a_returned_dict_stays() -> None:
    step = gdt.function(lambda x: OrderedDict(b=x, a=x * 2))
    for _ in range(4):
        out = step(gdt.ones(1))
        assert type(out) is OrderedDict and [*out] == ["b", "a"]


def test_a_class_of_what_becomes_a_library_is_not_entered_any_more(tmp_path: Path) -> None:
    file = tmp_path / "backend.py"
    variables = {"__name__": "backend_to_exempt", "__file__": str(file)}
    module = types.ModuleType("backend_to_exempt")
    vars(module).update(variables)
    sys.modules[module.__name__] = module
    exec(compile("class Settings: pass", str(file), "exec"), vars(module))
    settings = module.Settings()
    settings.factor = 2.0

    def entered() -> bool:
        captures = Captures(Ran())
        captures.enter(settings, "settings")
        captures.enter_ran()
        return any(path.endswith("factor") for (_, _, path), _ in captures.values)

    try:
        assert entered()
        exempt(str(tmp_path))
        assert not entered()
    finally:
        LIBRARIES.remove(str(tmp_path))
        exempt("<none>")  # forgets what was found
        LIBRARIES.remove("<none>")
        del sys.modules[module.__name__]


# ---------------------------------------------------------------- what moves on by itself


def rates() -> Iterator[float]:
    for n in range(100):
        yield 1.0 / (1 + n)


def with_others(source: Iterator[float]) -> Iterator[float]:
    yield from source


def around(source: Iterator[float]) -> Iterator[float]:
    while True:
        yield next(source)


def with_state_in_a_dict() -> Iterator[float]:
    state = {"n": 0.0}
    while True:
        state["n"] += 1
        yield state["n"]


def over(values: Sequence[float]) -> Iterator[float]:
    for value in values:  # noqa: UP028
        yield value


def started(iterator: Iterator[Any]) -> Iterator[Any]:
    next(iterator)
    return iterator


NUMBERS = (1.0, 2.0, 3.0)
ONE = 1.0
ITERATORS: dict[str, Callable[[], Iterator[Any]]] = {
    "cycle": lambda: itertools.cycle(NUMBERS),
    "cycle that goes round": lambda: itertools.islice(itertools.cycle(NUMBERS), 2, None),
    "tee": lambda: itertools.tee(range(9))[0],
    "product": lambda: itertools.product(range(9)),
    "permutations": lambda: itertools.permutations(range(9), 1),
    "combinations": lambda: itertools.combinations(range(9), 1),
    "call": lambda: iter(iter(range(9)).__next__, None),
    "flat": lambda: np.arange(9.0).flat,
    "chain": lambda: itertools.chain(NUMBERS, range(9)),
    "accumulate": lambda: itertools.accumulate(range(9)),
    "starmap": lambda: itertools.starmap(pow, [(n, 1) for n in range(9)]),
    "compress": lambda: itertools.compress(range(9), itertools.repeat(1)),
    "reversed": lambda: reversed(range(9)),
    "yield from": lambda: with_others(iter(range(9))),
    "yield from a generator": lambda: with_others(with_state_in_a_dict()),
    "yield next": lambda: around(iter(range(9))),
    "yield next of cycle": lambda: around(itertools.cycle(NUMBERS)),
    "state in a dict": with_state_in_a_dict,
    "one object several times": lambda: over([ONE, ONE, ONE, ONE, 2.0, 3.0]),
    "expression": lambda: (n for n in (ONE, ONE, ONE, ONE, 2.0, 3.0)),
}


def numbers_of(iterator: Iterator[Any]) -> Number:
    def draw() -> float:
        value = next(iterator)
        return float(value[0] if isinstance(value, tuple) else value)

    return draw


def moving() -> dict[str, Number]:
    fresh = {name: numbers_of(make()) for name, make in ITERATORS.items()}
    begun = {f"{name}, begun": numbers_of(started(make())) for name, make in ITERATORS.items()}
    return fresh | begun | moving_by_name()


def moving_by_name() -> dict[str, Number]:
    generator, listed, counted = rates(), iter([1.0, 2.0, 3.0, 4.0, 5.0]), itertools.count()
    pairs, shuffler = zip(range(9), itertools.count(), strict=False), random.Random(1)
    modern, legacy = np.random.default_rng(1), np.random.RandomState(1)
    return {
        "generator": lambda: next(generator),
        "listed": lambda: next(listed),
        "counted": lambda: float(next(counted)),
        "pairs": lambda: float(next(pairs)[1]),
        "shuffler": shuffler.random,
        "modern": lambda: float(modern.random()),
        "legacy": lambda: float(legacy.rand()),
        "the module random": random.random,
        "numpy.random": lambda: float(np.random.rand()),
    }


@pytest.mark.parametrize("name", moving())
def test_a_step_that_takes_what_moves_on_runs_as_written(name: str) -> None:
    def taken(wrapped: Callable[[Number], Number]) -> list[float]:
        random.seed(3)
        np.random.seed(3)
        draw, w = moving()[name], {"w": gdt.ones(1)}

        def step() -> DistributedArray:
            w["w"] = w["w"] * 2
            return w["w"] * draw()

        step = wrapped(step)
        return [float(step()) for _ in range(5)]

    assert taken(gdt.function) == taken(lambda step: step)


def test_what_moves_on_is_named_in_a_warning() -> None:
    rate = rates()
    step = gdt.function(lambda x: x * next(rate))
    with pytest.warns(gdt.RerecordedWarning, match="because the state of rate has changed"):
        found = [step(gdt.ones(1)).tolist() for _ in range(MANY + 1)]
    assert found == [[1.0 / (1 + n)] for n in range(MANY + 1)]
    assert not step.programs


def test_a_generator_that_only_a_library_holds() -> None:
    """Nothing leads from the step to it, but it is seen to go on."""
    hidden = with_state_in_a_dict()
    found = weakref.ref(hidden)
    step = gdt.function(lambda x: x * next(found()))  # type: ignore[call-overload]
    assert [step(gdt.ones(1)).tolist() for _ in range(5)] == [[n + 1.0] for n in range(5)]


def test_an_iterator_that_cannot_be_measured_is_named_in_a_warning() -> None:
    turns = itertools.cycle(NUMBERS)
    step = gdt.function(lambda x: x * next(turns))
    with pytest.warns(gdt.RerecordedWarning, match="position of turns, a cycle, cannot be read"):
        found = [step(gdt.ones(1)).tolist() for _ in range(MANY + 1)]
    assert found == [[NUMBERS[n % 3]] for n in range(MANY + 1)]


def test_a_generator_that_the_step_makes_itself_is_recorded() -> None:
    step = gdt.function(lambda x: sum(x * n for n in with_others(iter(NUMBERS))))
    assert [step(gdt.ones(1)).tolist() for _ in range(4)] == [[6.0]] * 4
    assert len(step.programs) == 1


def test_an_iterator_that_others_move_on_may_be_within_reach() -> None:
    class Loop:
        def __init__(self) -> None:
            self.batches = iter([gdt.full(1, float(i)) for i in range(5)])
            self.step = gdt.function(self.take_one)

        def take_one(self, x: DistributedArray) -> DistributedArray:
            return x * 2

    loop = Loop()
    assert [loop.step(x).tolist() for x in loop.batches] == [[2.0 * i] for i in range(5)]
    assert len(loop.step.programs) == 1


# ---------------------------------------------------------------- any structure


def test_of_large_collections_the_length_is_watched() -> None:
    large: dict[str, Any] = {
        "set": set(range(5000)), "list": [0.0] * 5000, "dict": dict.fromkeys(range(5000))
    }  # fmt: skip
    step = gdt.function(lambda x: x * len(large["set"]) * len(large["list"]) * len(large["dict"]))
    for grow in (lambda: None, lambda: large["set"].add(-1), lambda: large["list"].append(1.0)):
        grow()
        size = 5000.0 * len(large["set"]) * len(large["list"])
        assert [step(gdt.ones(1)).tolist() for _ in range(3)] == [[size]] * 3
    ((recording, *_),) = step._known.values()
    assert not recording.captures.contents


def test_a_chain_of_objects_may_be_long() -> None:
    first = last = types.SimpleNamespace()
    for _ in range(3000):
        last.next = types.SimpleNamespace()
        last = last.next
    last.factor = 2.0

    def end() -> float:
        node = first
        while hasattr(node, "next"):
            node = node.next
        return float(node.factor)

    step = gdt.function(lambda x: x * end())
    assert [step(gdt.ones(1)).tolist() for _ in range(3)] == [[2.0]] * 3
    last.factor = 3.0
    assert [step(gdt.ones(1)).tolist() for _ in range(3)] == [[3.0]] * 3


def test_an_argument_may_hold_itself() -> None:
    def circle(value: float) -> dict[str, Any]:
        tree: dict[str, Any] = {"w": gdt.full(1, value)}
        tree["self"], tree["list"] = tree, [tree]
        return tree

    step = gdt.function(lambda tree: tree["self"]["w"] * 2 + tree["list"][0]["w"])
    assert [step(circle(i)).tolist() for i in (1.0, 2.0, 3.0)] == [[3.0], [6.0], [9.0]]
    other = circle(4.0) | {"self": circle(1.0)}
    assert [step(other).tolist() for _ in range(3)] == [[6.0]] * 3


# ---------------------------------------------------------------- profilers


def test_a_step_runs_as_written_under_a_profiler_that_is_not_to_be_shared() -> None:
    @gdt.function
    def step(x: DistributedArray) -> DistributedArray:
        return x * 2

    def afterwards() -> None: ...

    with cProfile.Profile() as profiler:
        is_seen_by_python = sys.getprofile() is not None  # from Python 3.12 on it is another hook
        assert [step(gdt.ones(1)).tolist() for _ in range(4)] == [[2.0]] * 4
        afterwards()
    assert any("afterwards" in str(entry.code) for entry in profiler.getstats())
    assert len(step.programs) == (0 if is_seen_by_python else 1)
    assert [step(gdt.ones(1)).tolist() for _ in range(3)] == [[2.0]] * 3
    assert len(step.programs) == 1


def test_a_profiler_written_in_python_is_put_back() -> None:
    step = gdt.function(lambda x: x * 2)
    before = sys.getprofile()
    profiler = lambda *_: None
    sys.setprofile(profiler)
    try:
        assert [step(gdt.ones(1)).tolist() for _ in range(4)] == [[2.0]] * 4
        assert sys.getprofile() is profiler
    finally:
        sys.setprofile(before)
    assert len(step.programs) == 1
