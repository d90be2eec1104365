"""Formulas: what an element-wise op computes for one element, as text in a small language.

A formula is one or more lines in the syntax of Python: assignments, and an expression that is the
result. Its names are the op's operands. It may use

    + - * / & | ^ ~ << >>, comparisons, `a if condition else b`, numbers, inf, nan,
    abs, sqrt, floor, ceil, trunc, rint, copysign(a, b), fma(a, b, c): a * b + c rounded once,
    full_like(x, c): a number of the dtype of x,
    bits(x): the bits of a floating-point number as an integer, number(i): the reverse,
    real(i): the floating-point number equal to an integer,
    wide(x): float32 as float64, narrow(x): float64 as float32,
    sum(x), max(x), min(x): of the row of a block that x is an element of; sums are float64, rounded
    once,
    and calls of other formulas, whose values are written in place of the call, unless the target
    has functions of their names.

Both operands of an operator have one dtype; a literal number takes that of the other operand. All
is computed as IEEE 754 says, in the order of the text, so that a formula of + - * / and sqrt has
the bits of NumPy. `a if c else b` computes both a and b.

    >>> graph = ElementGraph()
    >>> x = graph.add("input", "f4", 0)
    >>> graph.dtypes[graph.write("x * x if x > 0 else 0", x=x)]
    'f4'
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence, Set
from functools import cache
from typing import Any

import numpy as np

Node = int  # the number of a value of a graph

OPERATORS: Mapping[type[ast.AST], str] = {
    ast.Add: "add", ast.Sub: "subtract", ast.Mult: "multiply", ast.Div: "divide",
    ast.BitAnd: "and", ast.BitOr: "or", ast.BitXor: "xor", ast.LShift: "left", ast.RShift: "right",
    ast.Lt: "less", ast.LtE: "less_equal", ast.Gt: "greater", ast.GtE: "greater_equal",
    ast.Eq: "equal", ast.NotEq: "not_equal",
}  # fmt: skip
SAME = {"abs", "sqrt", "floor", "ceil", "trunc", "rint", "fma", "copysign"}  # dtype of operands
GIVEN = {"input", "parameter", "constant"}  # the operations of values that are not computed
REDUCTIONS = {"sum", "max", "min"}  # the operations that make one number of a row
INTEGER_OF = {"f4": "i4", "f8": "i8"}
FLOAT_OF = {"i4": "f4", "i8": "f8"}
CONVERSIONS = {
    "bits": INTEGER_OF, "number": FLOAT_OF, "real": FLOAT_OF,
    "wide": {"f4": "f8"}, "narrow": {"f8": "f4"},
}  # fmt: skip

FORMULAS: dict[str, str] = {}
"""The formulas that others may name; `exp f8` is the one for float64, if that is another."""


class ElementGraph:
    """The values of a loop over elements. Each is an operation, its dtype and its operands;
    equal ones are one value.

    dtypes: of each value, as `b1`, `i4` or `f8`. operations: of each value. operands: of each
    value, the values that it is computed from; of an input and of a parameter, which is one number
    in each run, its number; of a constant its value.
    functions: the names of formulas that the target has as functions, and that are operations.
    """

    def __init__(self, functions: Set[str] = frozenset()) -> None:
        self.functions = functions
        self.operations: list[str] = []
        self.dtypes: list[str] = []
        self.operands: list[tuple[Any, ...]] = []
        self._known: dict[tuple[Any, ...], Node] = {}

    def add(self, operation: str, dtype: str, *operands: Any) -> Node:
        """The value of an operation, a new one unless the graph has it already.

        Choices between constants are made here: a formula may have cases for exponents, of which a
        known exponent leaves one."""
        if operation == "select" and self.operations[operands[0]] == "constant":
            chosen: Node = operands[1] if self.operands[operands[0]][0] else operands[2]
            return chosen
        if operation in ("equal", "or") and all(self.operations[o] == "constant" for o in operands):
            a, b = (self.operands[o][0] for o in operands)
            return self.constant(a == b if operation == "equal" else a or b, "b1")
        # Constants are compared by their text: 0.0 equals -0.0, and NaN does not equal itself.
        key = (operation, dtype, *(map(repr, operands) if operation == "constant" else operands))
        if key not in self._known:
            self._known[key] = len(self.operations)
            self.operations.append(operation)
            self.dtypes.append(dtype)
            self.operands.append(operands)
        return self._known[key]

    def cast(self, value: Node, dtype: str) -> Node:
        """A value as another dtype."""
        return value if self.dtypes[value] == dtype else self.add("cast", dtype, value)

    def constant(self, value: Any, dtype: str) -> Node:
        """A number, rounded to `dtype`."""
        return self.add("constant", dtype, np.dtype(dtype).type(value).item())

    def reduce(self, name: str, operand: Node) -> Node:
        """The sum, the largest or the smallest number of a row, in the dtype of the operand."""
        dtype = self.dtypes[operand]
        return self.cast(self.add(name, "f8" if name == "sum" else dtype, operand), dtype)

    def write(self, formula: str, **names: Node) -> Node:
        """Add the values of a formula, and return its result. names: the values of its names."""
        return _FormulaWriter(self, names).run(formula)

    def used(self, outputs: Sequence[Node]) -> list[Node]:
        """The values that `outputs` are computed from, and these, each after its operands."""
        used = set(outputs)
        for node in reversed(range(len(self.operations))):
            if node in used and self.operations[node] not in GIVEN:
                used.update(self.operands[node])
        return sorted(used)


@cache
def _lines(formula: str) -> list[ast.stmt]:
    return ast.parse(formula).body


class _FormulaWriter:
    """A writer of one formula into a graph."""

    def __init__(self, graph: ElementGraph, names: dict[str, Node]) -> None:
        self.graph, self.names = graph, names

    def run(self, formula: str) -> Node:
        """Write the lines of a formula; return the value of the last."""
        *assignments, last = _lines(formula)
        for line in assignments:
            match line:
                case ast.Assign([ast.Name(name)], value):
                    self.names[name] = self._node(value)
                case _:
                    raise ValueError(f"no formula: {ast.unparse(line)}")
        if not isinstance(last, ast.Expr):
            raise ValueError(f"no formula: {ast.unparse(last)}")
        return self._node(last.value)

    def _node(self, part: ast.expr) -> Node:
        """The value of a part that is no literal number."""
        value = self._value(part)
        if isinstance(value, ast.Constant):
            raise ValueError(
                f"{ast.unparse(part)} has no dtype: full_like(x, number) has that of x"
            )
        return value

    def _value(self, part: ast.expr) -> Node | ast.Constant:
        """The value of a part; a literal number stays one until it meets an operand's dtype."""
        graph = self.graph
        match part:
            case ast.Constant():
                return part
            case ast.Name(id="inf" | "nan" as name):
                return ast.Constant(float(name))
            case ast.Name(name):
                if name not in self.names:
                    raise ValueError(f"{name} is no name of the formula")
                return self.names[name]
            case ast.UnaryOp(ast.USub(), ast.Constant(value)):
                return ast.Constant(-value)  # type: ignore[operator]
            case ast.UnaryOp(ast.USub(), operand):
                x = self._value(operand)
                if isinstance(x, ast.Constant):
                    return ast.Constant(-x.value)  # type: ignore[operator]
                return graph.add("negative", graph.dtypes[x], x)
            case ast.UnaryOp(ast.Invert(), operand):
                x = self._node(operand)
                return graph.add("invert", graph.dtypes[x], x)
            case ast.BinOp(left, operator, right) if type(operator) in OPERATORS:
                x, y = self._together(left, right)
                return graph.add(OPERATORS[type(operator)], graph.dtypes[x], x, y)
            case ast.Compare(left, [operator], [right]):
                x, y = self._together(left, right)
                return graph.add(OPERATORS[type(operator)], "b1", x, y)
            case ast.IfExp(condition, chosen, other):
                x, y = self._together(chosen, other)
                return graph.add("select", graph.dtypes[x], self._node(condition), x, y)
            case ast.Call(ast.Name(name), arguments):
                return self._call(name, arguments)
        raise ValueError(f"no formula: {ast.unparse(part)}")

    def _call(self, name: str, arguments: list[ast.expr]) -> Node:
        """The value of the call of a function or of another formula, whose operands are x, y, z."""
        if name in SAME:
            operands = self._together(*arguments)
            return self.graph.add(name, self.graph.dtypes[operands[0]], *operands)
        if name == "full_like":
            like, number = self._node(arguments[0]), self._value(arguments[1])
            assert isinstance(number, ast.Constant)
            return self.graph.constant(number.value, self.graph.dtypes[like])
        values = [self._node(a) for a in arguments]
        if name in REDUCTIONS:
            return self.graph.reduce(name, *values)
        if name in CONVERSIONS:
            dtype = CONVERSIONS[name][self.graph.dtypes[values[0]]]
            operation = "cast" if name in ("real", "wide", "narrow") else name
            return self.graph.add(operation, dtype, *values)
        if name in self.graph.functions:
            return self.graph.add(name, self.graph.dtypes[values[0]], *values)
        own = f"{name} {self.graph.dtypes[values[0]]}"
        formula = FORMULAS.get(own) or FORMULAS.get(name)
        if formula is None:
            raise ValueError(f"no formula is called {name}")
        return self.graph.write(formula, **dict(zip("xyz", values, strict=False)))

    def _together(self, *parts: ast.expr) -> list[Node]:
        """The values of operands, which must have one dtype; literal numbers become constants."""
        values = [self._value(p) for p in parts]
        dtypes = [self.graph.dtypes[v] for v in values if isinstance(v, int)]
        if len({*dtypes}) != 1:
            shown = " and ".join(map(ast.unparse, parts))
            raise ValueError(f"{shown} are {' and '.join(dtypes) or 'numbers of no dtype'}")
        (dtype,) = {*dtypes}
        return [v if isinstance(v, int) else self.graph.constant(v.value, dtype) for v in values]
