"""What a recorded step depends on: arguments and state; all else is constant, or refused."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import inspect
import itertools
import operator
import random
import types
from collections import OrderedDict, UserDict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

import gdt
from gdt import DistributedArray, nn
from gdt.data import Batches
from gdt.errors import ArgumentError, DtypeError, FunctionError
from gdt.programs.function import MANY, RerecordedWarning
from gdt.random import generator
from gdt.state import Stateful

# ---------------------------------------------------------------- what is refused


class Training(nn.Module):
    """Parameters, counters and random numbers that a step has changed when it is refused."""

    def __init__(self) -> None:
        self.w = {"w": gdt.ones(3)}
        self.optimizer = gdt.optim.Adam(0.1)
        self.dropout = nn.Dropout(0.5, key=1)
        self.batches = Batches(np.arange(6.0), batch_size=2, seed=0)
        self.rows = iter(self.batches)
        self.losses: list[Any] = []
        self.other = gdt.random.Generator(3)

    def step(self) -> None:
        noise = self.dropout(self.w["w"] + gdt.random.uniform(3))
        self.optimizer.update(self.w, {"w": noise})

    def now(self) -> list[Any]:
        moments = [kept["w"].tolist() for kept in self.optimizer.state.values()]
        counts = [self.optimizer.steps, self.dropout.calls, self.batches.epoch]
        return [self.w["w"].tolist(), moments, counts, generator.state, self.other.state]


HIDDEN: contextvars.ContextVar[Any] = contextvars.ContextVar("hidden")  # is no place of a state
HIDDEN.set(gdt.ones(3))


ON_THE_HOST = "cannot read values on the host"
FROM_THE_HOST = "cannot take data from the host"
COUNTS = "It is another value in every call"
Action = Callable[[Training], object]

# What a step does, and what the error says; it names the line of the function.
REFUSED: dict[str, tuple[Action, str]] = {
    "float": (lambda t: float(t.w["w"][0]), ON_THE_HOST),
    "bool": (lambda t: bool(gdt.all(t.w["w"] > 0)), ON_THE_HOST),
    "item": (lambda t: t.w["w"][0].item(), ON_THE_HOST),
    "numpy": (lambda t: t.w["w"].numpy(), ON_THE_HOST),
    "tolist": (lambda t: t.w["w"].tolist(), ON_THE_HOST),
    "shards": (lambda t: t.w["w"].shards, ON_THE_HOST),
    "dlpack": (lambda t: np.from_dlpack(t.w["w"]), ON_THE_HOST),
    "np.asarray": (lambda t: np.asarray(t.w["w"]), ON_THE_HOST),
    "str": (lambda t: str(t.w["w"]), ON_THE_HOST),
    "gdt.asarray of an array": (lambda t: gdt.asarray(np.ones(3)), FROM_THE_HOST),
    "gdt.asarray of a list": (lambda t: gdt.asarray([1.0, 2.0]), FROM_THE_HOST),
    "gdt.asarray with a dtype": (lambda t: gdt.asarray(np.ones(3), "float32"), FROM_THE_HOST),
    "an operand": (lambda t: t.w["w"] * np.ones(3), FROM_THE_HOST),
    "an operand of rank 0": (lambda t: t.w["w"] * np.array(2.0), FROM_THE_HOST),
    "a seed": (lambda t: gdt.random.seed(3), "cannot seed random numbers"),
    "another generator": (lambda t: t.other.take(), "cannot draw from a generator on the host"),
    "the generator": (lambda t: generator.state, "cannot read the state of a generator"),
    "steps": (lambda t: t.optimizer.steps, f"(?s)cannot read Adam.steps.*{COUNTS}"),
    "steps, set": (lambda t: setattr(t.optimizer, "steps", 7), "cannot set Adam.steps"),
    "init": (lambda t: t.optimizer.init(t.w), "cannot set Adam.steps"),
    "calls": (lambda t: t.dropout.calls, f"(?s)cannot read Dropout.calls.*{COUNTS}"),
    "epoch": (lambda t: t.batches.epoch, f"(?s)cannot read Batches.epoch.*{COUNTS}"),
    "an epoch": (lambda t: iter(t.batches), "cannot begin an epoch of batches"),
    "a batch": (lambda t: next(t.rows), "cannot take the next value of training.rows .Epoch."),
    "an optimizer of its own": (
        lambda t: gdt.optim.SGD(0.1).update(t.w, t.w), "in a place that no state names .SGD."),
    "an array elsewhere": (
        lambda t: t.w.update(w=t.w["w"] * HIDDEN.get()),
        r"(?s)multiply, in line .* reads an array of blocks float64\[.*in a place that no state "
        ".*Pass it as an argument, or keep it"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_replay_could_not_do_again_is_refused(name: str) -> None:
    action, message = REFUSED[name]
    training = Training()

    def step() -> None:
        training.step()
        action(training)

    recorded, line = gdt.function(step), action.__code__.co_firstlineno
    recorded()
    before, seen = training.now(), []
    for _ in range(2):
        with pytest.raises(FunctionError, match=message) as caught:
            recorded()
        seen.append(str(caught.value))
        assert training.now() == before
    lines = range(line, line + 3)  # of the entry
    assert any(f"line {n} of {__file__}" in seen[0] for n in lines), seen[0]
    assert seen[0] == seen[1]
    rest = [batch[0].tolist() for batch in training.rows]
    assert rest == [b[0].tolist() for b in Training().rows][name == "a batch" :]


NUMBERS = iter(range(100))


@pytest.mark.parametrize("where", ["closure", "global", "list", "generator", "named"])
def test_the_next_value_of_an_iterator_is_refused(where: str) -> None:
    x, numbers, kept = gdt.ones(2), iter(range(100)), [iter(range(100))]
    generator = (n for n in range(100))
    steps = {
        "closure": lambda: x * next(numbers),
        "global": lambda: x * next(NUMBERS),
        "list": lambda: x * next(kept[0]),
        "generator": lambda: x * generator.send(None),
        "named": lambda: x * next(numbers),
    }
    step = steps[where]
    recorded = gdt.function(step, state=[{"x": x}] if where == "named" else None)
    recorded()
    line = step.__code__.co_firstlineno
    for _ in range(2):
        with pytest.raises(FunctionError, match=rf"cannot take the next value of .* line {line}"):
            recorded()
    if where == "closure":
        assert next(numbers) == 1 and type(kept[0]) is type(iter(range(1)))


LAST = 0


class Changes(NamedTuple):
    """A step that changes what a replay would leave as it is."""

    step: Callable[[], object]
    kept: Callable[[], object]


def rebinds_a_variable() -> Changes:
    count = 0

    def step() -> None:
        nonlocal count
        count += 1

    return Changes(step, lambda: count)


def rebinds_a_global_variable() -> Changes:
    def step() -> None:
        global LAST  # noqa: PLW0603
        LAST += 1

    return Changes(step, lambda: LAST)


def appends() -> Changes:
    losses: list[Any] = []
    return Changes(lambda: losses.append(gdt.ones(1)), lambda: len(losses))


def adds_an_entry() -> Changes:
    kept: dict[int, Any] = {}
    return Changes(lambda: kept.update({len(kept): gdt.ones(1)}), lambda: len(kept))


def counts_in_a_dict() -> Changes:
    kept = {"w": gdt.ones(1), "steps": 0}
    return Changes(lambda: kept.update(steps=kept["steps"] + 1), lambda: kept["steps"])


def counts_in_a_module() -> Changes:
    module = nn.Dropout(0.5)

    def step() -> None:
        module.rate += 0.125

    return Changes(step, lambda: module.rate)


def makes_another_dict() -> Changes:
    kept = {"state": {"w": gdt.ones(1)}}
    return Changes(
        lambda: operator.setitem(kept, "state", {"w": kept["state"]["w"] * 2}),
        lambda: [kept["state"]["w"].tolist()],
    )


def puts_a_number_in_the_place_of_an_array() -> Changes:
    kept: dict[str, Any] = {"w": gdt.ones(1)}
    return Changes(
        lambda: kept.update(w=float(len(kept)) if type(kept["w"]) is not float else gdt.ones(1)),
        lambda: type(kept["w"]),
    )


def draws_in_python() -> Changes:
    return Changes(random.random, random.getstate)


def draws_in_numpy() -> Changes:
    return Changes(np.random.rand, lambda: np.random.get_state()[2])


CHANGES = {
    rebinds_a_variable: "changes count, 1, to 2",
    rebinds_a_global_variable: "changes LAST, 1, to 2",
    appends: "changes the length of losses, 1, to 2",
    adds_an_entry: r"changes the keys of kept, \(0,\), to \(0, 1\)",
    counts_in_a_dict: "changes kept.steps, 1, to 2",
    counts_in_a_module: "changes module.rate, 0.625, to 0.75",
    makes_another_dict: "changes kept.state, a dict, to a dict",
    puts_a_number_in_the_place_of_an_array: r"changes kept.w, 1.0, to float64\[1\]",
    draws_in_python: "draws from random, and not from gdt",
    draws_in_numpy: "draws from numpy.random, and not",
}


@pytest.mark.parametrize("make", CHANGES, ids=lambda f: f.__name__)
def test_what_a_replay_would_not_change_is_refused(make: Callable[[], Changes]) -> None:
    training, (change, kept) = Training(), make()

    def step() -> None:
        training.step()
        change()

    recorded = gdt.function(step)
    recorded()
    before = [training.now(), kept()]
    for _ in range(2):
        with pytest.raises(FunctionError, match=CHANGES[make]) as caught:
            recorded()
        assert f"line {step.__code__.co_firstlineno} of {__file__}" in str(caught.value)
        assert [training.now(), kept()] == before
    globals()["LAST"] = 0


def test_a_state_may_hold_itself() -> None:
    kept: dict[str, Any] = {"w": gdt.ones(1), "inner": {}}
    kept["inner"]["outer"] = kept
    step = gdt.function(lambda x: x * kept["inner"]["outer"]["w"])
    for n in range(5):
        kept["w"] = gdt.full(1, float(n))
        assert step(gdt.ones(1)).tolist() == [n]
    assert len(step.programs) == 1


@pytest.mark.parametrize("where", ["argument", "list", "state"])
def test_writes_to_elements_of_arguments_and_state_are_repeated(where: str) -> None:
    seen = []
    for decorate in (lambda step: step, gdt.function, gdt.function(verify=1)):
        training, x, rows = Training(), gdt.ones(3), [gdt.ones(3)]
        gdt.random.seed(3)

        @decorate
        def step(
            x: DistributedArray, rows: list[DistributedArray], training: Training = training
        ) -> DistributedArray:
            training.step()
            own = x * 2
            own[0] = 5.0
            written = {"argument": x, "list": rows[0], "state": training.w["w"]}[where]
            written[0] = own[0]
            written[1:] += own[1:]
            return own

        for _ in range(6):
            returned = step(x, rows).tolist()
        seen.append([returned, x.tolist(), rows[0].tolist(), training.now()[:3]])
    assert seen[0] == seen[1] == seen[2]


def test_a_step_that_raises_has_written_nothing() -> None:
    training, x = Training(), gdt.ones(3)

    @gdt.function
    def step(x: DistributedArray, stops: bool) -> DistributedArray:
        training.step()
        x[0] = 5.0
        training.w["w"][1] = 7.0
        if stops:
            raise KeyError("stop")
        return x * 1

    step(x, False)
    before = [x.tolist(), training.now()]
    for _ in range(3):
        with pytest.raises(KeyError):
            step(x, True)
        assert [x.tolist(), training.now()] == before


def test_an_error_in_a_first_call_leaves_everything_as_it_was() -> None:
    training = Training()

    @gdt.function
    def step() -> None:
        training.step()
        training.losses.append(1.0)
        raise ValueError("of the user")

    counts, key = [training.optimizer.steps, training.dropout.calls], generator.state
    with pytest.raises(ValueError, match="of the user"):
        step()
    assert training.w["w"].tolist() == [1.0] * 3
    assert training.losses == [] and training.optimizer.state == {"m": {}, "v": {}}
    assert [training.optimizer.steps, training.dropout.calls] == counts and generator.state == key


# ---------------------------------------------------------------- what is seen, and what is not


class Scaled(nn.Module):
    factor = 2.0

    def __init__(self) -> None:
        self.w = gdt.ones(1)

    def __call__(self, x: DistributedArray) -> DistributedArray:
        return self.w * x * self.factor


def test_numbers_that_a_step_refers_to_are_seen_and_those_in_numpys_arrays_are_not() -> None:
    number, plain, model, rates = 2.0, {"number": 2.0}, Scaled(), np.array([1.0])
    step = gdt.function(lambda x: model(x) * number * plain["number"] * float(rates[0]))
    for _ in range(3):
        assert step(gdt.ones(1)).tolist() == [8.0]
    number, plain["number"] = 5.0, 5.0
    assert step(gdt.ones(1)).tolist() == [50.0]
    model.factor = 3.0
    for _ in range(3):
        assert step(gdt.ones(1)).tolist() == [75.0]
    model.w = gdt.full(1, 2.0)
    assert step(gdt.ones(1)).tolist() == [150.0]
    rates[0] = 7.0
    assert step(gdt.ones(1)).tolist() == [150.0]


def test_numbers_taken_from_the_host_are_constants() -> None:
    step = gdt.function(lambda x: x * np.float64(2) + gdt.asarray(1.0) + gdt.asarray(1, "float64"))
    assert [step(gdt.full(1, float(n))).tolist() for n in range(4)] == [
        [2.0 * n + 2] for n in range(4)
    ]


# ---------------------------------------------------------------- where arrays may be


W: dict[str, Any] = {"w": gdt.zeros(1)}


def of_the_module(x: DistributedArray) -> DistributedArray:
    W["w"] = W["w"] + x
    return W["w"] * 1


class Kept(NamedTuple):
    arrays: list[DistributedArray]


def in_a_named_tuple() -> Any:
    kept = Kept([gdt.zeros(1)])

    def step(x: DistributedArray) -> DistributedArray:
        kept.arrays[0] = kept.arrays[0] + x
        return kept.arrays[0] * 1

    return step


def in_a_mapping() -> Any:
    kept = UserDict(w=gdt.zeros(1))

    def step(x: DistributedArray) -> DistributedArray:
        kept["w"] = kept["w"] + x
        return kept["w"] * 1

    return step


def in_an_ordered_dict() -> Any:
    kept = OrderedDict(w=gdt.zeros(1))

    def step(x: DistributedArray) -> DistributedArray:
        kept["w"] = kept["w"] + x
        return kept["w"] * 1

    return step


def in_a_variable() -> Any:
    total = gdt.zeros(1)

    def step(x: DistributedArray) -> DistributedArray:
        nonlocal total
        total = total + x
        return total * 1

    return step


def in_what_a_helper_names() -> Any:
    W["w"] = gdt.zeros(1)

    def helper(x: DistributedArray) -> DistributedArray:
        return of_the_module(x)

    return lambda x: helper(x) * 1


def in_a_default() -> Any:
    first = {"w": gdt.zeros(1)}

    def step(x: DistributedArray, kept: dict[str, Any] = first) -> Any:
        kept["w"] = kept["w"] + x
        return kept["w"] * 1

    return step


def in_a_partial() -> Any:
    def step(kept: dict[str, Any], x: DistributedArray) -> DistributedArray:
        kept["w"] = kept["w"] + x
        return kept["w"] * 1

    return functools.partial(step, {"w": gdt.zeros(1)})


class Trainer:
    def __init__(self) -> None:
        self.total, self.factor = gdt.zeros(1), 1.0
        self.recorded: Any = None

    def step(self, x: DistributedArray) -> DistributedArray:
        self.total = self.total + x * self.factor
        return self.total * 1


def in_a_bound_object() -> Any:
    return Trainer().step


class Called(Trainer):
    def __call__(self, x: DistributedArray) -> DistributedArray:
        return self.step(x)


def in_an_object_that_is_called() -> Any:
    return Called()


class Summed(nn.Module):
    untrained = ("total",)

    def __init__(self) -> None:
        self.total = gdt.zeros(1)

    def __call__(self, x: DistributedArray) -> DistributedArray:
        self.total = self.total + x
        return self.total * 1


def in_a_module_that_is_called() -> Any:
    return Summed()


def in_a_namespace() -> Any:
    trainer = types.SimpleNamespace(total=gdt.zeros(1))
    return types.MethodType(Trainer.step, types.SimpleNamespace(**vars(trainer), factor=1.0))


def behind_a_function_of_functions() -> Any:
    kept = {"w": gdt.zeros(1)}

    def loss(w: Any, x: DistributedArray) -> DistributedArray:
        return gdt.sum(w * kept["w"] * x)

    gradient = gdt.grad(loss)

    def step(x: DistributedArray) -> DistributedArray:
        gradient(x, x)
        kept["w"] = kept["w"] + x
        return kept["w"] * 1

    return step


PLACES = [
    in_a_named_tuple, in_a_mapping, in_an_ordered_dict, in_a_variable, in_what_a_helper_names,
    in_a_default, in_a_partial, in_a_bound_object, in_an_object_that_is_called,
    in_a_module_that_is_called, in_a_namespace, behind_a_function_of_functions,
]  # fmt: skip


@pytest.mark.parametrize("verify", [0, 1])
@pytest.mark.parametrize("make", PLACES, ids=lambda f: f.__name__)
def test_arrays_are_read_and_put_where_they_are_kept(make: Callable[[], Any], verify: int) -> None:
    step = gdt.function(make(), verify=verify)
    assert [step(gdt.ones(1)).tolist() for _ in range(5)] == [[n + 1.0] for n in range(5)]
    assert len(step.programs) == 1


LATEST: DistributedArray


def test_a_global_variable_that_is_only_assigned_is_assigned_by_a_replay() -> None:
    @gdt.function
    def step(x: DistributedArray) -> DistributedArray:
        global LATEST  # noqa: PLW0603
        LATEST = x * 2
        return x * 3

    for i in range(5):
        step(gdt.full(1, float(i)))
        assert LATEST.tolist() == [2.0 * i]
    assert len(step.programs) == 1


def test_the_class_of_a_returned_dict_stays() -> None:
    step = gdt.function(lambda x: OrderedDict(b=x, a=x * 2), verify=2)
    for _ in range(4):
        out = step(gdt.ones(1))
        assert type(out) is OrderedDict and [*out] == ["b", "a"]


def test_numbers_of_the_object_that_a_method_is_bound_to_are_no_constants() -> None:
    trainer = Trainer()
    step = gdt.function(trainer.step)
    trainer.recorded = step  # which holds no part of the state
    found = []
    for n in range(6):
        trainer.factor = 1.0 if n < 3 else 10.0
        found.append(step(gdt.ones(1)).tolist()[0])
    assert found == [1.0, 2.0, 3.0, 13.0, 23.0, 33.0]
    assert len(step.programs) == 2


def test_an_argument_may_hold_itself() -> None:
    def circle(value: float) -> dict[str, Any]:
        tree: dict[str, Any] = {"w": gdt.full(1, value)}
        tree["self"], tree["list"] = tree, [tree]
        return tree

    step = gdt.function(lambda tree: tree["self"]["w"] * 2 + tree["list"][0]["w"])
    assert [step(circle(i)).tolist() for i in (1.0, 2.0, 3.0)] == [[3.0], [6.0], [9.0]]
    other = circle(4.0) | {"self": circle(1.0)}
    assert [step(other).tolist() for _ in range(3)] == [[6.0]] * 3


def test_another_object_where_one_was_is_not_taken_for_it() -> None:
    """Objects are told apart by their identity, which another one may have when one is gone."""
    step = gdt.function(lambda trainer, x: x * trainer.total * trainer.factor)
    for n in range(12):
        trainer = Trainer()
        trainer.total = gdt.full(1, float(n))
        for _ in range(3):
            assert step(trainer, gdt.ones(1)).tolist() == [n]
        del trainer


def test_a_generator_that_the_step_makes_itself_is_recorded() -> None:
    def numbers() -> Iterator[float]:
        yield from (1.0, 2.0, 3.0)

    step = gdt.function(lambda x: sum(x * n for n in numbers()))
    assert [step(gdt.ones(1)).tolist() for _ in range(4)] == [[6.0]] * 4
    assert len(step.programs) == 1


def test_batches_are_taken_around_a_step() -> None:
    class Loop:
        def __init__(self) -> None:
            self.batches = Batches(np.arange(6.0), batch_size=2, place=gdt.asarray)
            self.step = gdt.function(self.take_one, verify=1)

        def take_one(self, x: DistributedArray) -> DistributedArray:
            return x * 2

    loop = Loop()
    found = [loop.step(x).tolist() for _ in range(2) for x in loop.batches]
    assert found == [[0.0, 2.0], [4.0, 6.0], [8.0, 10.0]] * 2
    assert len(loop.step.programs) == 1 and loop.batches.epoch == 2


# ---------------------------------------------------------------- state that is named


def test_named_state_is_read_anew_and_all_else_is_refused() -> None:
    holder, other = types.SimpleNamespace(w=gdt.zeros(1)), {"w": gdt.ones(1)}

    @gdt.function(state=[holder], verify=2)
    def step(x: DistributedArray) -> DistributedArray:
        holder.w = holder.w + x
        return holder.w * 1

    assert [step(gdt.ones(1)).tolist() for _ in range(5)] == [[n + 1.0] for n in range(5)]
    holder.w = gdt.full(1, 10.0)
    assert step(gdt.ones(1)).tolist() == [11.0]
    assert len(step.programs) == 1
    read = gdt.function(lambda: other["w"] * 2, state=[holder])
    read()
    with pytest.raises(FunctionError, match="in a place that no state names"):
        read()


@pytest.mark.parametrize("where", ["state", "argument"])
def test_a_variable_that_holds_a_named_array_must_go_on_to_do_so(where: str) -> None:
    x, w = gdt.ones(1), {"w": gdt.ones(1)}
    array = {"state": w["w"], "argument": x}[where]
    step = gdt.function(lambda x: x * w["w"] * array, state=w)
    for _ in range(3):
        assert step(x).tolist() == [1.0]
    x, w["w"] = gdt.full(1, 2.0), gdt.full(1, 3.0)
    with pytest.raises(FunctionError, match="in a place that no state names"):
        step(x)
    array = {"state": w["w"], "argument": x}[where]
    assert step(x).tolist() == [6.0 * float(array)]


@pytest.mark.parametrize("where", ["list", "attribute", "bound object", "container"])
def test_a_place_that_leads_to_a_named_array_must_go_on_to_do_so(where: str) -> None:
    w, rows, holder = {"w": gdt.full(1, 2.0)}, [0, gdt.ones(1)], types.SimpleNamespace()
    rows[1], holder.rows, holder.w, holder.calls = w["w"], [{"w": w["w"]}], w, 0
    reading: Callable[..., DistributedArray] = {
        "list": lambda *_: rows[-1],
        "attribute": lambda *_: holder.rows[0]["w"],
        "bound object": lambda *it: it[0].rows[0]["w"],
        "container": lambda *_: holder.w["w"],
    }[where]

    def step(*it: Any) -> DistributedArray:
        return reading(*it) * w["w"]

    bound = types.MethodType(step, holder)
    run = gdt.function(bound if where == "bound object" else step, state=[w])
    for _ in range(4):
        assert run().tolist() == [4.0]
        rows[0], holder.calls = rows[0] + 1, holder.calls + 1  # these are constants
    assert len(run.programs) == 1
    other = gdt.full(1, 5.0)
    rows.append(other)
    holder.rows, holder.w = [{"w": other}], {"w": other}
    with pytest.raises(FunctionError, match="in a place that no state names"):
        run()
    rows[:], holder.rows, holder.w = [w["w"]], [{"w": w["w"]}], w
    for _ in range(3):
        assert run().tolist() == [4.0]


def test_a_step_changes_nothing_where_no_state_is_named() -> None:
    w, losses = {"w": gdt.ones(1)}, [[0.0]]
    step = gdt.function(lambda: losses[0].append(1.0), state=[w])
    step()
    with pytest.raises(FunctionError, match=r"changes the length of losses.0, 2, to 3"):
        step()
    assert losses == [[0.0, 1.0]]


def test_a_variable_is_no_state_where_others_are_named() -> None:
    total = gdt.zeros(1)

    @gdt.function(state=[])
    def step(x: DistributedArray) -> DistributedArray:
        nonlocal total
        total = x * 2
        return x

    step(gdt.ones(1))
    with pytest.raises(FunctionError, match="changes total"):
        step(gdt.ones(1))


@pytest.mark.parametrize("named", ["module", "dict", "list", "dict of dicts", "several"])
def test_state_is_one_tree_or_several(named: str) -> None:
    module, w, generator = Summed(), {"w": gdt.zeros(1)}, gdt.random.Generator(0)
    state = {
        "module": module, "dict": w, "list": [w], "dict of dicts": {"params": w},
        "several": (w, generator, module),
    }[named]  # fmt: skip

    def step(x: DistributedArray) -> DistributedArray:
        if named == "module":
            return module(x)
        w["w"] = w["w"] + x
        return w["w"] * 1

    recorded = gdt.function(step, state=state, verify=2)
    assert [recorded(gdt.ones(1)).tolist() for _ in range(5)] == [[n + 1.0] for n in range(5)]
    w["w"], module.total = gdt.full(1, 10.0), gdt.full(1, 10.0)
    assert recorded(gdt.ones(1)).tolist() == [11.0]
    assert len(recorded.programs) == 1


@pytest.mark.parametrize("alone", [gdt.ones(1), 3, "w", {1}, gdt.sum, np.ones(1), None])
def test_what_has_no_place_for_an_array_is_no_state(alone: Any) -> None:
    with pytest.raises(DtypeError, match=r"state\[1\] is .*, which has no place for an array"):
        gdt.function(lambda x: x, state=[{}, alone])
    if alone is not None:
        with pytest.raises(DtypeError, match=r"state\[0\] is .*, which has no place for an array"):
            gdt.function(lambda x: x, state=alone)
    with pytest.raises(DtypeError, match=r"write state=\[arrays\] of a list of arrays"):
        gdt.function(lambda x: x, state=[gdt.ones(1)])


def test_how_often_a_step_is_verified_is_no_negative_number() -> None:
    with pytest.raises(ArgumentError, match="verify is -1"):
        gdt.function(lambda x: x, verify=-1)


def test_the_decorator_with_and_without_arguments() -> None:
    def step(x: DistributedArray, factor: float = 2.0) -> DistributedArray:
        """Scale."""
        return x * factor

    forms = [gdt.function(step), gdt.function(verify=3)(step), gdt.function(step, state=[])]
    for recorded in forms:
        assert [recorded(gdt.ones(1)).tolist() for _ in range(4)] == [[2.0]] * 4
        assert inspect.signature(recorded) == inspect.signature(step)
        assert recorded.__doc__ == "Scale."
    assert str(inspect.signature(gdt.function)).startswith("(f: ")
    assert [*inspect.signature(gdt.function(Trainer().step)).parameters] == ["x"]


# ---------------------------------------------------------------- verification


RATES = np.array([1.0])  # of whose elements a recording sees nothing


@pytest.mark.parametrize("every", [1, 3])
def test_verification_finds_a_stale_value(every: int) -> None:
    training = Training()

    @gdt.function(verify=every)
    def step(x: DistributedArray) -> Any:
        training.step()
        return {"out": [x, x * float(RATES[0])]}

    try:
        for _ in range(6):
            step(gdt.ones(2))
        RATES[0] = 2.0
        calls = 0
        with pytest.raises(
            FunctionError, match=r"(?s)differ in what it returns.out.1\n.*replay: .*written: "
        ):
            for _ in range(every):
                calls += 1
                step(gdt.ones(2))
        assert calls == every
    finally:
        RATES[0] = 1.0
    # The last call has been taken as it is written.
    assert training.optimizer.steps == 6 + every == training.dropout.calls


def test_verification_finds_stale_state_and_leaves_that_of_the_step_as_written() -> None:
    w = {"w": gdt.ones(2), "v": gdt.ones(2)}

    @gdt.function(verify=1)
    def step() -> None:
        w["w"] = w["w"] * 2.0
        w["v"] = w["v"] * float(RATES[0])

    try:
        for _ in range(3):
            step()
        RATES[0] = 3.0
        with pytest.raises(FunctionError, match=r"differ in w\.v"):
            step()
    finally:
        RATES[0] = 1.0
    assert (w["w"].tolist(), w["v"].tolist()) == ([16.0] * 2, [3.0] * 2)


def test_verification_finds_another_structure() -> None:
    extra = np.array([0])
    step = gdt.function(lambda x: [x] * int(1 + extra[0]), verify=1)
    for _ in range(3):
        step(gdt.ones(1))
    for count in (1, -1):
        extra[0] = count
        with pytest.raises(FunctionError, match=r"differ in (its structure|what it returns.0)\n"):
            step(gdt.ones(1))


def test_verification_leaves_no_trace() -> None:
    def trained(verify: int) -> list[Any]:
        gdt.random.seed(1)
        training = Training()
        step = gdt.function(training.step, verify=verify)
        for _ in range(6):
            step()
        assert len(step.programs) == 1
        return training.now()

    assert trained(0) == trained(1) == trained(2)


def test_verification_of_what_is_overwritten_replays_it_in_its_memory() -> None:
    w, optimizer, g = {"w": gdt.ones(4096)}, gdt.optim.SGD(0.1), {"w": gdt.ones(4096)}
    step = gdt.function(lambda: optimizer.update(w, g), verify=1)
    for _ in range(3):
        step()
    where = w["w"].blocks[0].ctypes.data
    step()
    assert w["w"].blocks[0].ctypes.data == where


@pytest.mark.parametrize("where", ["argument", "default", "partial", "tuple"])
def test_an_iterator_that_nothing_can_stand_in_for_is_refused(where: str) -> None:
    numbers = itertools.count(1)
    pair = (itertools.count(1), 0)
    step = {
        "argument": lambda x, numbers: x * next(numbers),
        "default": lambda x, numbers=numbers: x * next(numbers),
        "partial": functools.partial(lambda numbers, x: x * next(numbers), itertools.count(1)),
        "tuple": lambda x: x * next(pair[0]),
    }[where]
    recorded, x = gdt.function(step), gdt.ones(2)
    arguments = (x, numbers) if where == "argument" else (x,)
    recorded(*arguments)
    message = rf"cannot take the next value of .*\(count\), in line \d+ of {__file__}"
    with pytest.raises(FunctionError, match=message):
        recorded(*arguments)


class Countdown:
    """An iterator of the user's, with an attribute."""

    def __init__(self) -> None:
        self.first = 3.0

    def __iter__(self) -> Countdown:
        return self

    def __next__(self) -> int:
        return 3


def test_another_iterator_in_the_place_of_one_is_a_change() -> None:
    held = {"x": gdt.ones(2), "numbers": iter(range(3))}

    def step() -> gdt.DistributedArray:
        held["numbers"] = iter(range(3))
        return held["x"] + 1

    recorded = gdt.function(step)
    recorded()
    with pytest.raises(FunctionError, match=r"changes .*numbers"):
        recorded()


def test_an_iterator_that_is_not_advanced_keeps_its_attributes() -> None:
    x, countdown = gdt.ones(2), Countdown()

    recorded = gdt.function(lambda: x + countdown.first)
    assert [recorded().tolist() for _ in range(4)] == [[4.0, 4.0]] * 4


WEIGHTS = {"w": gdt.asarray([2.0, 3.0])}


@contextlib.contextmanager
def surroundings() -> Iterator[None]:
    yield


def test_a_step_under_a_wrapper_of_another_file_has_its_global_state() -> None:
    @gdt.function
    @surroundings()
    def step(x: gdt.DistributedArray) -> gdt.DistributedArray:
        return x * WEIGHTS["w"]

    for factor in (1.0, 2.0, 3.0):
        WEIGHTS["w"] = gdt.asarray([2.0 * factor, 3.0])
        assert step(gdt.ones(2)).tolist() == [2.0 * factor, 3.0]


def test_many_signatures_are_warned_of() -> None:
    """Each of them runs twice as written: for its plans, and to be recorded."""
    recorded = gdt.function(lambda x: x + 1)
    for size in range(1, MANY // 2):
        for _ in range(3):
            recorded(gdt.ones(size))
    recorded(gdt.ones(MANY))
    with pytest.warns(RerecordedWarning, match=f"{MANY} calls of <lambda> have run as written"):
        recorded(gdt.ones(MANY))


def test_counters_have_the_defaults_of_their_class() -> None:
    class Counting(Stateful):
        counters = ("n",)
        n = 3

    counting = Counting()
    assert counting.n == 3
    counting.n += 1
    assert counting.n == 4 and Counting().n == 3
