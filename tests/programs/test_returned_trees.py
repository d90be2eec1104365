"""What a recorded step may return, and under which settings it replays."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import numpy as np
import pytest

import gdt
from gdt.array.array import DistributedArray
from gdt.errors import FunctionError


class Pair(tuple[Any, ...]):
    """A tuple that is not made of its items."""

    def __new__(cls, one: Any, other: Any) -> Pair:
        return super().__new__(cls, (one, other))


def circle(x: DistributedArray) -> list[Any]:
    found: list[Any] = [x]
    found.append(found)
    return found


def deep(x: DistributedArray) -> Any:
    found: Any = x
    for _ in range(2000):
        found = [found]
    return found


@pytest.mark.parametrize("returned", [circle, deep, lambda x: Pair(x, x * 2)])
def test_what_cannot_be_made_again_is_refused(returned: Any) -> None:
    w = {"w": gdt.ones(1)}

    def step(x: DistributedArray) -> Any:
        w["w"] = w["w"] * 2
        return returned(x)

    with pytest.raises(FunctionError, match=r"step: it returns a .*could not make another"):
        gdt.function(step)(gdt.ones(1))
    assert w["w"].tolist() == [1.0]


def test_an_argument_that_is_nested_too_deep_is_refused() -> None:
    with pytest.raises(FunctionError, match="nested too deep"):
        gdt.function(lambda tree: tree)(deep(gdt.ones(1)))


@pytest.mark.parametrize(
    "make", [lambda x: Counter(a=x), lambda x: defaultdict(list, a=x)], ids=["counter", "default"]
)
def test_a_dict_of_another_class_is_made_again(make: Any) -> None:
    step = gdt.function(make)
    for n in range(4):
        found = step(gdt.full(1, float(n)))
        assert type(found) is type(make(0)) and found["a"].tolist() == [float(n)]
    assert len(step.programs) == 1


# ---------------------------------------------------------------- invalid values


def test_what_a_step_says_of_invalid_values_holds_wherever_it_was_recorded() -> None:
    x = gdt.asarray([1.0, 0.0])

    @gdt.function
    def step() -> DistributedArray:
        with np.errstate(divide="ignore"):
            return 1.0 / x

    with np.errstate(divide="ignore"):
        for _ in range(3):
            step()
    assert len(step.programs) == 1
    with np.errstate(divide="raise"):
        assert [step().tolist() for _ in range(4)] == [[1.0, np.inf]] * 4


def test_what_is_around_a_step_holds_for_all_else() -> None:
    x = gdt.asarray([1.0, 0.0])
    step = gdt.function(lambda: 1.0 / x)
    with np.errstate(divide="ignore"):
        for _ in range(3):
            assert step().tolist() == [1.0, np.inf]
    for _ in range(4):
        with np.errstate(divide="raise"), pytest.raises(FloatingPointError):
            step()
