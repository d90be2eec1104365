"""What tells one kind of call of a recorded step from another."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gdt
from gdt.autodiff.backward import BACKWARDS, Backward
from gdt.engine.op import Op
from gdt.engine.plan import value_key
from gdt.errors import DtypeError
from gdt.ops.blocks.intervals import _move_intervals
from gdt.programs.step_state import Arguments

X = gdt.ones(2)
LIST: list[Any] = []
Call = tuple[tuple[Any, ...], dict[str, Any]]
CALLS: dict[str, Call] = {
    "dict, number, array": (([], {}, 1, X), {}),
    "dict of a number": (([], {1: X}), {}),
    "dict of a number that is a float": (([], {1.0: X}), {}),
    "dict of a tuple": (([], {(1,): X}), {}),
    "dict of a tuple of a float": (([], {(1.0,): X}), {}),
    "dict of zero": (([], {0.0: X}), {}),
    "dict of negative zero": (([], {-0.0: X}), {}),
    "dict of two": (([], {1: X, 2: X}), {}),
    "dict of a text": (([], {"a": X}), {}),
    "dict of another text": (([], {"b": X}), {}),
    "text, array": (([], {}, "y", X), {}),
    "array by name": (([], {}), {"y": X}),
    "two by name": (([], {}), {"y": X, "z": X}),
    "text of two": (("y", X), {}),
    "one list twice": ((LIST, LIST), {}),
    "two lists": (([], []), {}),
    "a list in a list": (([[]],), {}),
    "a tuple": (((), []), {}),
}


@pytest.mark.parametrize(("one", "other"), [*itertools.combinations(CALLS, 2)])
def test_no_two_kinds_of_calls_have_one_key(one: str, other: str) -> None:
    assert Arguments(*CALLS[one], "step").key != Arguments(*CALLS[other], "step").key


@pytest.mark.parametrize("name", CALLS)
def test_calls_of_one_kind_have_one_key(name: str) -> None:
    assert Arguments(*CALLS[name], "step").key == Arguments(*CALLS[name], "step").key


def test_a_dict_with_entries_is_no_empty_one_before_more_arguments() -> None:
    @gdt.function
    def step(kept: list[Any], found: dict[int, Any], n: int = 0, y: Any = None) -> Any:
        return found[1] * 10 if y is None else y * n * 100

    for _ in range(3):
        assert step([], {}, 1, X).tolist() == [100.0] * 2
        assert step([], {1: X}).tolist() == [10.0] * 2


Number = int | float


def shifted(xp: Any, x: Any, /, *, by: Number) -> Any:
    return x + by


def test_a_static_annotated_by_an_alias_may_be_any_number() -> None:
    x, op = gdt.asarray([1, 2]), Op(shifted, "... -> ...")
    assert op(x, by=1).dtype == np.int64
    assert op(x, by=1.0).dtype == np.float64


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (0.0, -0.0), (1, True), (1, 1.0), (1.0, np.float32(1.0)), (1.0, np.float64(1.0)),
        ((0.0,), (-0.0,)), ((1, 2), (True, 2)), ((1, (2, 3)), (1, (2.0, 3))), (0j, -0j), ("1", 1),
        (None, 0), (np.int64(1), np.int32(1)), (float, np.float64),
        ((np.int64(0),), (np.float64(0.0),)), ((np.int64(0),), (0,)),
    ],
)  # fmt: skip
def test_keys_tell_values_that_are_equal_or_alike(one: Any, other: Any) -> None:
    assert value_key(one) != value_key(other)
    for value in (one, other):
        assert value_key(value) == value_key(value)
        assert hash(value_key(value)) == hash(value_key(value))


def test_a_plan_is_for_statics_of_one_type_and_value() -> None:
    x = gdt.ones((2, 3))
    assert gdt.sum(x, axis=(1,)).shape == (2,)
    assert gdt.reshape(x, (1, 6)).shape == (1, 6)
    with pytest.raises(DtypeError, match="True in shape"):
        gdt.reshape(x, (True, 6))


def test_a_nan_is_no_new_static() -> None:
    x, kept = gdt.ones(1), len(_move_intervals.plans)
    for _ in range(3):
        gdt.pad(x, (0, 1), constant_values=(0.0, float("nan")))
    assert len(_move_intervals.plans) <= kept + 1
    assert value_key((1.0, float("nan"))) == value_key((1.0, -float("nan")))


def test_a_nan_is_as_good_as_another() -> None:
    w = gdt.asarray([1.0, 2.0])

    @gdt.function
    def step(factor: float) -> Any:
        return w * factor

    BACKWARDS.clear()
    for _ in range(3):
        with gdt.GradientTape() as tape:
            tape.watch(w)
            y = gdt.sum(w * float("nan"))
        assert np.isnan(tape.gradient(y, w).numpy()).all()
        assert np.isnan(step(float("nan")).numpy()).all()
    assert [type(kept) for kept in (*BACKWARDS.values(), *BACKWARDS.older.values())] == [Backward]
    assert len(step.programs) == 1


def steps_of(call: Callable[[], object]) -> int:
    """How many instructions of Python a call takes."""
    count = 0

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def test_a_tree_twice_as_large_takes_twice_the_work() -> None:
    trees = [[[X] for _ in range(n)] for n in (50, 100)]
    one, other = (steps_of(lambda t=tree: Arguments((t,), {}, "step")) for tree in trees)  # type: ignore[misc]
    assert other < 2 * one


MESH = gdt.create_mesh([("x", 2)])
SETTINGS: dict[str, Callable[[], Any]] = {
    "np.errstate": lambda: np.errstate(divide="ignore"),
    "default_mesh": lambda: gdt.default_mesh(MESH),
    "matmul_backend": lambda: gdt.matmul_backend("cublas"),
    "matmul_precision": lambda: gdt.matmul_precision("tensorfloat32"),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_are_part_of_a_signature(name: str) -> None:
    key = Arguments((X,), {}, "step").key
    with SETTINGS[name]():
        assert Arguments((X,), {}, "step").key != key
    assert Arguments((X,), {}, "step").key == key


def test_a_backward_program_is_for_one_state_of_numpys_errors() -> None:
    """It has no np.errstate where the recorded ops ran under the one around them."""
    w = gdt.asarray([0.0, 2.0])

    def gradient() -> list[float]:
        with np.errstate(divide="ignore"), gdt.GradientTape() as tape:
            y = gdt.sum(gdt.log(w))
        return tape.gradient(y, w).tolist()

    BACKWARDS.clear()
    for _ in range(3):
        with np.errstate(divide="ignore"):
            assert gradient() == [np.inf, 0.5]
    with np.errstate(divide="raise"), pytest.raises(FloatingPointError):
        gradient()
    assert len([*BACKWARDS.values(), *BACKWARDS.older.values()]) == 2
