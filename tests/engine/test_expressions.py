"""Functions of blocks that are put together as source."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from gdt.engine.source import (
    CallExpression,
    Choice,
    Expression,
    Names,
    Operand,
    Reshaped,
    Tuple,
    Unpacked,
    Value,
    called,
    compiled,
    reshaped,
    written,
)

X, Y = Operand(0), Operand(1)
ADD, XP = Value("add", np.add), Value("xp", np)


def pair(x: Any, y: Any = 0, *, scale: float = 1.0) -> tuple[Any, Any]:
    return x * scale, y


CASES: list[tuple[Expression, str, object]] = [
    (CallExpression(ADD, (X, Y)), "add(x0, x1)", 5),
    (CallExpression(ADD, (CallExpression(ADD, (X, X)), Y)), "add(add(x0, x0), x1)", 7),
    (
        CallExpression(Value("pair", pair), (Y,), {"scale": Value("scale", 3.0)}),
        "pair(x1, scale=scale)",
        (9, 0),
    ),
    (
        CallExpression(ADD, (Unpacked(CallExpression(Value("pair", pair), (X, Y))),)),
        "add(*pair(x0, x1))",
        5,
    ),
    (Tuple((X,)), "(x0, )", (2,)),
    (Choice(X, Y, Value("none", None)), "(x1 if x0 else None)", 3),
    (Choice(Value("x", None), X, Y), "(x0 if None else x1)", 3),
    (CallExpression(ADD, (X, Value("add", 40))), "add(x0, add_2)", 42),  # one name for two values
    (CallExpression(Value("<lambda>", lambda x: x), (Y,)), "function(x1)", 3),
    (CallExpression(Value("run", abs), (Y,)), "run(x1)", 3),
    (CallExpression(Value("x1", abs), (Value("lambda", -4),)), "x1(lambda_2)", 4),
    (called(partial(pair, scale=3.0), (Y,)), "pair(x1, scale=scale)", (9.0, 0)),
    (called(partial(np.add, 40), (X,), name="sum"), "sum(given, x0)", 42),
    (called(partial(partial(pair, 5), scale=2.0), (X,)), "pair(given, x0, scale=scale)", (10.0, 2)),
    (CallExpression(ADD, (Value("c", 1), Value("c", 1))), "add(c, c)", 2),
]


@pytest.mark.parametrize(("expression", "source", "value"), CASES, ids=lambda c: str(c)[:40])
def test_an_expression_is_the_function_that_its_source_says(
    expression: Expression, source: str, value: object
) -> None:
    assert written(expression, ["x0", "x1"], Names()) == source
    run = compiled(expression, 2)
    assert run(2, 3) == value
    is_body = run is np.add  # an expression that is nothing but a call is the function called
    assert is_body or run.expression is expression  # type: ignore[attr-defined]
    assert is_body == (source == "add(x0, x1)")


def test_a_reshaped_operand_is_a_view() -> None:
    x = np.arange(6)
    view = compiled(Reshaped(X, (2, 3)), 1)(x)
    assert view.shape == (2, 3) and np.shares_memory(view, x)
    twice = called(partial(reshaped, (3, 2)), [called(partial(reshaped, (2, 3)), [X])])
    assert twice == Reshaped(X, (3, 2))  # the last shape is all that matters


def test_a_choice_by_a_constant_is_no_choice_in_the_source() -> None:
    for operand, source in {"True": "1", "False": "2", "free3": "(1 if free3 else 2)"}.items():
        assert written(Choice(X, Operand(1), Operand(2)), [operand, "1", "2"], Names()) == source


def test_names_of_a_program_are_told_apart() -> None:
    names = Names()
    first = written(CallExpression(ADD, (X, Reshaped(Y, (1,)))), ["r1", "r2"], names)
    second = written(CallExpression(ADD, (X, Reshaped(Y, (2,)))), ["r3", "r4"], names)
    assert (first, second) == ("add(r1, r2.reshape(shape))", "add(r3, r4.reshape(shape_2))")
    assert names == {"add": np.add, "shape": (1,), "shape_2": (2,)}
