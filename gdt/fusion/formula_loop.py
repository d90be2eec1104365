"""Loops of several formulas: the body of an op that makes several blocks, in one pass over them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any

from gdt.fusion.formula import ElementGraph
from gdt.fusion.loop import FusedLoop

# Of all formulas: Python keeps there which warnings have been given.
NAMESPACE = {"__name__": __name__}


class FormulaLoop:
    """Formulas of an op, and a loop of them for each dtype: `loop[code]`.

    operands, scalars: the names of blocks and of numbers. formulas: the value of each name that is
    computed, of these and of those before (`gdt.fusion.formula`). results: the names that are
    results; a result of an operand's name is written in its place.
    """

    def __init__(
        self, operands: str, formulas: Mapping[str, str], results: str, scalars: str = ""
    ) -> None:
        self.operands, self.scalars = operands.split(), scalars.split()
        self.formulas, self.results = formulas, results.split()
        self._codes: dict[str, CodeType] = {}
        self._loops: dict[str, FusedLoop] = {}

    def __getitem__(self, code: str) -> FusedLoop:
        if code not in self._loops:
            graph = ElementGraph()
            values = {name: graph.add("input", code, n) for n, name in enumerate(self.operands)}
            values |= {name: graph.add("parameter", code, n) for n, name in enumerate(self.scalars)}
            for name, formula in self.formulas.items():
                values[name] = graph.write(formula, **values)
            outputs = [values[name] for name in self.results]
            places = [self.operands.index(name) for name in self.results if name in self.operands]
            loop = FusedLoop(graph, [code] * len(self.operands), outputs, places=places)
            self._loops[code] = loop
        return self._loops[code]

    def evaluate(self, functions: Mapping[str, Callable[..., Any]], *operands: Any) -> list[Any]:
        """The results, computed by the operators of arrays and numbers. operands: blocks, and then
        numbers. functions: those that the formulas name."""
        named = zip([*self.operands, *self.scalars], operands, strict=True)
        values = {**functions, **dict(named)}
        for name, formula in self.formulas.items():
            if name not in self._codes:
                self._codes[name] = compile(formula, f"<formula of {name}>", "eval")
            values[name] = eval(self._codes[name], NAMESPACE, values)
        return [values[name] for name in self.results]
