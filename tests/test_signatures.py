"""What tells one kind of call of a recorded step from another."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from inspect import Parameter
from typing import Any

import numpy as np
import pytest

import gdt
from gdt.array.registry import FUNCTIONS
from gdt.autodiff.backward import BACKWARDS, Backward
from gdt.engine.op import Op
from gdt.engine.plan import takes_numbers
from gdt.programs.function import Arguments

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
    ("annotation", "expected"),
    [
        (int, False), ("int", False), ("bool", False), ("tuple[int, ...]", False),
        (tuple[int, ...], False), (Sequence[int], False), ("Axis", False), (int | None, False),
        (float, True), ("float", True), ("int | float", True), ("Number", True), (Number, True),
        ("typing.Any", True), (Any, True), (Parameter.empty, True), (Sequence[float], True),
        ("tuple[Any, ...]", True), (list, True),
    ],
)  # fmt: skip
def test_equal_statics_mean_the_same_only_where_the_annotation_says_so(
    annotation: Any, expected: bool
) -> None:
    parameter = Parameter("by", Parameter.KEYWORD_ONLY, annotation=annotation)
    assert takes_numbers([parameter]) is expected


def test_ops_on_the_way_of_every_step_have_the_short_keys() -> None:
    for name in ("sum", "mean", "reshape", "transpose", "broadcast_to", "add", "argmax", "tril"):
        found = FUNCTIONS[name]
        assert isinstance(found, Op) and not found.takes_numbers, name


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
