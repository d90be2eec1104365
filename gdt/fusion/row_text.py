"""The function of a compiled loop that computes one row, as text for LLVM."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gdt.fusion.formula import GIVEN, REDUCTIONS, ElementGraph, Node
from gdt.fusion.row_reductions import function_of

NAMES = {
    "b1": "i1", "i1": "i8", "i2": "i16", "i4": "i32", "i8": "i64",
    "u1": "i8", "u2": "i16", "u4": "i32", "u8": "i64", "f4": "float", "f8": "double",
}  # fmt: skip
"""LLVM's name of each dtype that loops compute with."""

ARITHMETIC = {
    "add": ("fadd", "add"), "subtract": ("fsub", "sub"), "multiply": ("fmul", "mul"),
    "divide": ("fdiv", ""), "and": ("", "and"), "or": ("", "or"), "xor": ("", "xor"),
    "left": ("", "shl"), "right": ("", "ashr"),
}  # fmt: skip
"""LLVM's instructions for floating-point numbers and for integers; empty if formulas use none."""

COMPARISONS = {
    "less": ("olt", "lt"), "less_equal": ("ole", "le"), "greater": ("ogt", "gt"),
    "greater_equal": ("oge", "ge"), "equal": ("oeq", "eq"), "not_equal": ("une", "ne"),
}  # fmt: skip
"""LLVM's conditions for floating-point numbers and, without the sign, for integers."""

FUNCTIONS = {
    "abs": "fabs", "sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "trunc": "trunc",
    "rint": "rint", "fma": "fma", "copysign": "copysign",
}  # fmt: skip
"""LLVM's intrinsics of floating-point numbers."""

COLUMNS = "sum of columns"
"""The operation that adds a row to that of an output, which holds the sum of earlier rows."""
LONGEST_ROW = 4096
"""The most elements of a row of which there are reductions: what is kept stays in the cache."""


class GraphCall(NamedTuple):
    """A value that an op makes of others. is_exact: whether its formula has the op's bits."""

    result: Node
    operands: tuple[Node, ...]
    is_exact: bool


class RowFunction:
    """The text of the function of one row: `int row(blocks ..., parameters, int64_t length)`.

    Values that depend on no reduction are computed first, in one loop over the row, then the
    reductions of them, then the values that depend on these, and so on. What a later loop needs of
    an earlier one is kept in the row of an output, or in one of the function's own.
    """

    def __init__(
        self,
        graph: ElementGraph,
        inputs: Sequence[tuple[str, bool]],
        outputs: Sequence[Node],
        places: Sequence[int],
        checked: Sequence[Node],
        calls: Sequence[GraphCall],
    ) -> None:
        self.graph, self.inputs, self.outputs, self.checked = graph, inputs, outputs, checked
        self.places, self.calls = places, calls
        self.before: list[str] = []  # what is computed once, before the loop that is written now
        self.lines: list[str] = []
        self.declared: set[str] = set()
        self.functions: set[str] = set()  # of reductions
        self.count = 0
        called = [n for call in calls for n in (call.result, *call.operands)]
        self.used = graph.used((*outputs, *checked, *called))
        self.has_reductions = any(graph.operations[n] in REDUCTIONS for n in self.used)
        self.at: dict[Node, int] = {}  # the loop by which a value is known
        self.once: set[Node] = set()  # the values that are the same in a whole row
        for node in self.used:
            self._place(node)
        self.pointers = {
            node: f"%row{n}"
            for n, node in zip(places, outputs, strict=True)
            if node not in self.once
        }
        self._keep()

    def _place(self, node: Node) -> None:
        operation, operands = self.graph.operations[node], self.graph.operands[node]
        self.at[node] = 0
        if operation == "input":
            is_once = self.inputs[operands[0]][1]
        elif operation in GIVEN:
            is_once = True
        else:
            is_once = operation in REDUCTIONS or self.once.issuperset(operands)
            self.at[node] = max(self.at[o] for o in operands) + (operation in REDUCTIONS)
        if is_once:
            self.once.add(node)

    def _keep(self) -> None:
        """Find rows for what later loops need: `pointers`."""
        graph = self.graph
        pairs = [(n, o) for n in self.used if graph.operations[n] not in GIVEN
                 for o in graph.operands[n]]  # fmt: skip
        pairs += [(call.result, o) for call in self.calls for o in call.operands]
        for node, operand in pairs:
            if self.at[operand] < self.at[node] and operand not in self.once:
                if graph.operations[operand] == "input":
                    self.pointers[operand] = f"%row{graph.operands[operand][0]}"
                elif operand not in self.pointers:
                    self.pointers[operand] = f"%kept{len(self.pointers)}"
                    kind = _stored(graph.dtypes[operand])
                    allocation = f"alloca [{LONGEST_ROW} x {kind}], align 64"
                    self.before.append(f"{self.pointers[operand]} = {allocation}")

    @property
    def kept_nbytes(self) -> int:
        """The bytes of the function's own rows, on the stack."""
        kept = [n for n, pointer in self.pointers.items() if pointer.startswith("%kept")]
        return sum(LONGEST_ROW * int(self.graph.dtypes[n][1]) for n in kept)

    def text(self) -> str:
        """The function `row`, which returns 1 if an element of a checked value is odd, else 0."""
        newline, names, odd = "\n", dict[Node, str](), "false"
        texts = []
        for number in range(max(self.at.values(), default=0) + 1):
            text, odd = self._loop(number, names, odd)
            texts.append(text)
            self.before = []
        count = max(len(self.inputs), *[n + 1 for n in self.places])
        parameters = [f"ptr noalias nocapture %row{n}" for n in range(count)]
        return f"""{newline.join(sorted(self.declared | self.functions))}
define internal i32 @row({", ".join(parameters)}, ptr %parameters, i64 %length) noinline {{
{newline.join(texts)}
  %told = zext i1 {odd} to i32
  ret i32 %told
}}
"""

    def _loop(self, number: int, names: dict[Node, str], odd: str) -> tuple[str, str]:
        """The text of a loop over a row and what is computed once before it, and the name of
        whether something was odd.

        names: of the values that are the same in a whole row. For each dtype the loop adds up v - v
        of all checked values v, NaN if one is infinite or NaN, and 1 for each element in which a
        call is odd."""
        graph, self.number, self.lines = self.graph, number, []
        self.elements: dict[Node, str] = {}
        own = [n for n in self.used if self.at[n] == number]
        for node in own:
            if node in self.once:
                names[node] = self._write(node, names, True)
        for node in own:
            if node not in self.once and graph.operations[node] != "input":
                self.elements[node] = self._write(node, names, False)
        for n, node in zip(self.places, self.outputs, strict=True):
            if self.at[node] == number:
                is_once = self.has_reductions and node in self.once
                self._store(f"%row{n}", self._named(node, names), graph.dtypes[node], is_once)
        for node, pointer in self.pointers.items():
            if pointer.startswith("%kept") and self.at[node] == number:
                self._store(pointer, self.elements[node], graph.dtypes[node], False)
        checked = [n for n in self.checked if self.at[n] == number]
        calls = [c for c in self.calls if self.at[c.result] == number]
        for node in checked:
            if node in self.once:
                name, x = NAMES[graph.dtypes[node]], self._difference(node, names, True)
                is_odd = self._new(f"fcmp une {name} {x}, 0.0", True)
                odd = self._new(f"or i1 {odd}, {is_odd}", True)
        sums = self._sums([n for n in checked if n not in self.once], names)
        sums |= self._told_of_calls(calls, names)
        newline, entry, loop = "\n  ", f"begin{number}", f"element{number}"
        enter = f"  br label %{entry}\n{entry}:" if number else f"{entry}:"
        if not self.lines:
            return newline.join([enter, *self.before]), odd
        begin = [
            f"%sum{number}.{d} = phi {NAMES[d]} [0.0, %{entry}], [%next{number}.{d}, %{loop}]"
            for d in sums
        ]
        # The order of a sum does not change whether it is 0, and vectors need one of their own.
        end = [
            f"%next{number}.{d} = fadd reassoc {NAMES[d]} %sum{number}.{d}, {sums[d]}" for d in sums
        ]
        told = []
        for d in sums:
            told += [
                f"%odd{number}.{d} = fcmp une {NAMES[d]} %next{number}.{d}, 0.0",
                f"%told{number}.{d} = or i1 {odd}, %odd{number}.{d}",
            ]
            odd = f"%told{number}.{d}"
        return (
            f"""{enter}
  {newline.join(self.before)}
  br label %{loop}
{loop}:
  %n{number} = phi i64 [0, %{entry}], [%n{number}.next, %{loop}]
  {newline.join(begin)}
  {newline.join(self.lines)}
  {newline.join(end)}
  %n{number}.next = add nuw nsw i64 %n{number}, 1
  %more{number} = icmp slt i64 %n{number}.next, %length
  br i1 %more{number}, label %{loop}, label %after{number}
after{number}:
  {newline.join(told)}""",
            odd,
        )

    def _named(self, node: Node, names: Mapping[Node, str]) -> str:
        """The name of a value in the loop that is written; it is read from memory there if it is
        an input, or known by an earlier loop."""
        if node in names:
            return names[node]
        if node not in self.elements:
            dtype, is_input = self.graph.dtypes[node], self.graph.operations[node] == "input"
            place = f"%row{self.graph.operands[node][0]}" if is_input else self.pointers[node]
            self.elements[node] = self._load(place, dtype, False)
        return self.elements[node]

    def _new(self, line: str, once: bool = False) -> str:
        """Add an instruction; return the name of its result."""
        self.count += 1
        (self.before if once else self.lines).append(f"%v{self.count} = {line}")
        return f"%v{self.count}"

    def _write(self, node: Node, names: Mapping[Node, str], once: bool) -> str:
        """Write the instruction of a value; return what the value is called."""
        graph, dtype = self.graph, self.graph.dtypes[node]
        operation, operands = graph.operations[node], graph.operands[node]
        kind, name = dtype[0], NAMES[dtype]
        if operation == "constant":
            return _number(operands[0], dtype)
        if operation == "input":
            return self._load(f"%row{operands[0]}", dtype, once)
        if operation == "parameter":
            place = self._new(f"getelementptr i64, ptr %parameters, i64 {operands[0]}", True)
            return self._load(place, dtype, True)
        if operation in REDUCTIONS:
            row, of = self.pointers[operands[0]], graph.dtypes[operands[0]]
            self.functions.add(function_of(operation, of))
            return self._new(f"call {name} @{operation}.{of}(ptr {row}, i64 %length)", True)
        xs = [self._named(o, names) for o in operands]
        if operation == COLUMNS:
            so_far = self._load(f"%row{self.places[self.outputs.index(node)]}", dtype, False)
            return self._new(f"fadd {name} {so_far}, {xs[0]}")
        of = graph.dtypes[operands[0]]
        if operation in ARITHMETIC:
            instruction = ARITHMETIC[operation][kind != "f"]
            if operation == "right" and kind == "u":
                instruction = "lshr"
            return self._new(f"{instruction} {name} {xs[0]}, {xs[1]}", once)
        if operation in COMPARISONS:
            of_floats, of_integers = COMPARISONS[operation]
            if of[0] == "f":
                return self._new(f"fcmp {of_floats} {NAMES[of]} {xs[0]}, {xs[1]}", once)
            sign = "" if of_integers in ("eq", "ne") else "s" if of[0] == "i" else "u"
            return self._new(f"icmp {sign}{of_integers} {NAMES[of]} {xs[0]}, {xs[1]}", once)
        if operation == "select":
            return self._new(f"select i1 {xs[0]}, {name} {xs[1]}, {name} {xs[2]}", once)
        if operation == "negative":
            zero = f"fneg {name} {xs[0]}" if kind == "f" else f"sub {name} 0, {xs[0]}"
            return self._new(zero, once)
        if operation == "invert":
            return self._new(f"xor {name} {xs[0]}, {'true' if kind == 'b' else -1}", once)
        if operation in FUNCTIONS:
            function = f"@llvm.{FUNCTIONS[operation]}.f{8 * int(dtype[1])}"
            self.declared.add(f"declare {name} {function}({', '.join([name] * len(xs))})")
            return self._new(
                f"call {name} {function}({', '.join(f'{name} {x}' for x in xs)})", once
            )
        if operation in ("bits", "number"):
            return self._new(f"bitcast {NAMES[of]} {xs[0]} to {name}", once)
        assert operation == "cast", operation
        return self._cast(xs[0], of, dtype, once)

    def _load(self, row: str, dtype: str, once: bool) -> str:
        """The first number of a row, or the one of this turn of the loop."""
        pointer, stored = row, _stored(dtype)
        if not once:
            pointer = self._new(f"getelementptr {stored}, ptr {row}, i64 %n{self.number}")
        value = self._new(f"load {stored}, ptr {pointer}", once)
        return self._new(f"icmp ne i8 {value}, 0", once) if dtype == "b1" else value

    def _store(self, row: str, value: str, dtype: str, once: bool) -> None:
        stored = _stored(dtype)
        if dtype == "b1":
            value = self._new(f"zext i1 {value} to i8", once)
        pointer = row
        if not once:
            pointer = self._new(f"getelementptr {stored}, ptr {row}, i64 %n{self.number}")
        (self.before if once else self.lines).append(f"store {stored} {value}, ptr {pointer}")

    def _difference(self, node: Node, names: Mapping[Node, str], once: bool = False) -> str:
        """0 of a finite value, and else NaN."""
        x = self._named(node, names)
        return self._new(f"fsub {NAMES[self.graph.dtypes[node]]} {x}, {x}", once)

    def _sums(self, checked: Sequence[Node], names: Mapping[Node, str]) -> dict[str, str]:
        """For each dtype a value that is NaN if a checked one is infinite or NaN, else 0."""
        sums: dict[str, str] = {}
        for node in checked:
            dtype, difference = self.graph.dtypes[node], self._difference(node, names)
            if dtype in sums:
                difference = self._new(f"fadd {NAMES[dtype]} {sums[dtype]}, {difference}")
            sums[dtype] = difference
        return sums

    def _told_of_calls(
        self, calls: Sequence[GraphCall], names: Mapping[Node, str]
    ) -> dict[str, str]:
        """A value that is 1 if a call makes infinities or NaN, else 0."""
        odd = "false"
        for call in calls:
            finite = numbers = "true"
            for node in call.operands:
                name, x = NAMES[self.graph.dtypes[node]], self._named(node, names)
                if self.graph.dtypes[node][0] == "f":
                    difference = self._difference(node, names)
                    is_finite = self._new(f"fcmp ord {name} {difference}, {difference}")
                    is_number = self._new(f"fcmp ord {name} {x}, {x}")
                    finite = self._new(f"and i1 {finite}, {is_finite}")
                    numbers = self._new(f"and i1 {numbers}, {is_number}")
            name, x = NAMES[self.graph.dtypes[call.result]], self._named(call.result, names)
            difference = self._difference(call.result, names)
            is_odd = self._new(f"fcmp uno {name} {difference}, {difference}")
            made = self._new(f"and i1 {finite}, {is_odd}")
            if call.is_exact:
                is_nan = self._new(f"fcmp uno {name} {x}, {x}")
                made = self._new(f"or i1 {made}, {self._new(f'and i1 {numbers}, {is_nan}')}")
            odd = self._new(f"or i1 {odd}, {made}")
        return {"f4": self._new(f"uitofp i1 {odd} to float")} if calls else {}

    def _cast(self, x: str, of: str, to: str, once: bool) -> str:
        """The value x, of dtype `of`, as dtype `to`; no float becomes an integer."""
        if to == "b1":
            zero = (
                f"fcmp une {NAMES[of]} {x}, 0.0" if of[0] == "f" else f"icmp ne {NAMES[of]} {x}, 0"
            )
            return self._new(zero, once)
        width, wanted = (1 if d == "b1" else 8 * int(d[1]) for d in (of, to))
        if of[0] == "f":
            instruction = "fpext" if wanted > width else "fptrunc"
        elif to[0] == "f":
            instruction = "sitofp" if of[0] == "i" else "uitofp"
        elif wanted == width:
            return x
        else:
            instruction = "trunc" if wanted < width else "sext" if of[0] == "i" else "zext"
        return self._new(f"{instruction} {NAMES[of]} {x} to {NAMES[to]}", once)


def _stored(dtype: str) -> str:
    """LLVM's name of a dtype in memory."""
    return "i8" if dtype == "b1" else NAMES[dtype]


def _number(value: Any, dtype: str) -> str:
    """A number as LLVM writes it, a floating-point number as the bits of a float64."""
    if dtype == "b1":
        return "true" if value else "false"
    return f"0x{struct.pack('>d', value).hex().upper()}" if dtype[0] == "f" else str(value)
