"""Graphs as compiled loops of the host: LLVM writes their machine code, by way of llvmlite.

A loop is one function of C, `int loop(PyArrayObject *block, ..., const int64_t *numbers, const
int64_t *parameters)`, over three nested axes, of which the last lies in memory without gaps:
`numbers` are the three lengths, and for each block, in bytes, the place of its first element and
its steps along the first two; `parameters` have 8 bytes each. A block of one element along the last
axis is read once for each row. The text says what is computed for one element; LLVM makes vectors
of it. Machine code is kept on disk, in a file whose name is a hash of the text, the version of LLVM
and the processor with its features.

Arrays are passed as objects, since asking an array for its address takes as long as computing a
thousand elements: the address is the first field after the header of the object (`PyArrayObject` of
NumPy's C API).
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

from gdt.fusion.formula import GIVEN, REDUCTIONS, ElementGraph, Node
from gdt.fusion.row_reductions import function_of
from gdt.machine_code import read_code, user_folder, write_code

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

VARIABLE = "GDT_COMPILED_LOOPS"
WANTED = os.environ.get(VARIABLE, "").strip().lower() not in ("0", "false", "no", "off")


def problem() -> str:
    """The reason why loops cannot be compiled here; empty if they can."""
    return _target()[1] if WANTED else f"turned off by {VARIABLE}"


@cache
def _target() -> tuple[Any, str]:
    """The machine for which llvmlite compiles; or None, and the reason why there is none."""
    try:
        import llvmlite.binding as llvm  # noqa: PLC0415 - takes 50 ms, and only loops need it
    except Exception as e:
        return None, f"llvmlite cannot be imported: {type(e).__name__}: {e}"
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features()
    triple = llvm.get_process_triple()
    if triple.startswith(("x86", "i686")) and not features.get("fma"):
        return None, "the processor has no fused multiply-add"
    machine = llvm.Target.from_triple(triple).create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=features.flatten(), opt=3
    )
    return machine, ""


# ---------------------------------------------------------------- text


class GraphCall(NamedTuple):
    """A value that an op makes of others. is_exact: whether its formula has the op's bits."""

    result: Node
    operands: tuple[Node, ...]
    is_exact: bool


def text_of(graph: ElementGraph, inputs: Sequence[tuple[str, bool]], outputs: Sequence[Node],
            checked: Sequence[Node] = (), calls: Sequence[GraphCall] = (),
            places: Sequence[int] = ()) -> str:  # fmt: skip
    """The text of the function `loop` that computes the values `outputs` of a graph. It returns 1
    if an element of a value in `checked` is infinite or NaN, or if one of `calls` makes infinities
    of finite operands or NaN of numbers, as inf - inf does; else 0.

    inputs: for each block that is read its dtype, and whether it has one element along the last
        axis. places: the blocks into which the outputs go; by default new ones, after the inputs.
    """
    places = places or range(len(inputs), len(inputs) + len(outputs))
    rows, count = (
        _Rows(graph, inputs, outputs, places, checked, calls),
        max(len(inputs), *[n + 1 for n in places]),
    )
    objects, pointers = (", ".join(f"ptr %{c}{n}" for n in range(count)) for c in ("object", "row"))
    # Of each block, the address of its first element and its steps along the outer axes.
    loads = [
        line
        for n in range(count)
        for line in (
            f"%field{n} = getelementptr i8, ptr %object{n}, i64 {object.__basicsize__}",
            f"%array{n} = load ptr, ptr %field{n}",
            f"%number.f{n} = getelementptr i64, ptr %numbers, i64 {3 + 3 * n}",
            f"%first{n} = load i64, ptr %number.f{n}",
            f"%block{n} = getelementptr i8, ptr %array{n}, i64 %first{n}",
            f"%number.i{n} = getelementptr i64, ptr %numbers, i64 {4 + 3 * n}",
            f"%step.i{n} = load i64, ptr %number.i{n}",
            f"%number.j{n} = getelementptr i64, ptr %numbers, i64 {5 + 3 * n}",
            f"%step.j{n} = load i64, ptr %number.j{n}",
        )
    ]
    steps = [
        line
        for n in range(count)
        for line in (
            f"%offset.i{n} = mul i64 %step.i{n}, %i", f"%offset.j{n} = mul i64 %step.j{n}, %j",
            f"%rows{n} = getelementptr i8, ptr %block{n}, i64 %offset.i{n}",
            f"%row{n} = getelementptr i8, ptr %rows{n}, i64 %offset.j{n}",
        )
    ]  # fmt: skip
    body = "\n  ".join
    return f"""{rows.text()}
define i32 @loop({objects}, ptr %numbers, ptr %parameters) {{
entry:
  %length.i = load i64, ptr %numbers
  %number.j = getelementptr i64, ptr %numbers, i64 1
  %length.j = load i64, ptr %number.j
  %number.n = getelementptr i64, ptr %numbers, i64 2
  %length.n = load i64, ptr %number.n
  {body(loads)}
  br label %outer
outer:
  %i = phi i64 [0, %entry], [%i.next, %outer.next]
  %flag.i = phi i32 [0, %entry], [%flag.next, %outer.next]
  br label %inner
inner:
  %j = phi i64 [0, %outer], [%j.next, %inner]
  %flag.j = phi i32 [%flag.i, %outer], [%flag.next, %inner]
  {body(steps)}
  %flag = call i32 @row({pointers}, ptr %parameters, i64 %length.n)
  %flag.next = or i32 %flag.j, %flag
  %j.next = add i64 %j, 1
  %more.j = icmp slt i64 %j.next, %length.j
  br i1 %more.j, label %inner, label %outer.next
outer.next:
  %i.next = add i64 %i, 1
  %more.i = icmp slt i64 %i.next, %length.i
  br i1 %more.i, label %outer, label %exit
exit:
  ret i32 %flag.next
}}
"""


def kept_nbytes(graph: ElementGraph, inputs: Sequence[tuple[str, bool]], outputs: Sequence[Node],
                checked: Sequence[Node], calls: Sequence[GraphCall]) -> int:  # fmt: skip
    """The bytes of the stack that a loop with reductions takes for what it keeps of a row."""
    places = range(len(inputs), len(inputs) + len(outputs))
    return _Rows(graph, inputs, outputs, places, checked, calls).kept_nbytes


class _Rows:
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


# ---------------------------------------------------------------- machine code

Function = Callable[..., int]

_LOCK = threading.Lock()
# A fork waits for the thread that compiles, for which its child would wait without end.
os.register_at_fork(
    before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release
)
_COMPILED: dict[str, Function] = {}
SECONDS: list[float] = []
"""What LLVM has taken for each loop that was not on disk."""


def described() -> str:
    """The number of loops of chains in this process, and the time of their compilation."""
    made = f"{len(SECONDS)} compiled in {sum(SECONDS):.2f} s, the others from disk"
    return problem() or f"{len(_COMPILED)} in this process: {made}"


def compiled(text: str, count: int) -> Function:
    """The function `loop` of a text, which takes `count` blocks; compiled once in a process."""
    with _LOCK:  # LLVM compiles in one thread at a time
        if text not in _COMPILED:
            _COMPILED[text] = _compile(text, count)
        return _COMPILED[text]


@cache
def _engine() -> Any:
    """The holder of the machine code of all loops; it owns the target machine from now on."""
    import llvmlite.binding as llvm  # noqa: PLC0415

    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), _target()[0])


def _compile(text: str, count: int) -> Function:
    import llvmlite.binding as llvm  # noqa: PLC0415

    machine, engine = _target()[0], _engine()
    # A virtual machine may lack features of the processor that it names, and share the folder.
    processor = f"{llvm.get_host_cpu_name()} {llvm.get_host_cpu_features().flatten()}"
    digest = hashlib.sha256(f"{llvm.llvm_version_info} {processor} {text}".encode()).hexdigest()
    name, folder = f"loop_{digest}", user_folder("loops")
    path = folder and folder / f"{digest}.o"
    code = read_code(path) if path else None
    if code is None:
        begin = time.perf_counter()
        module = llvm.parse_assembly(text.replace("@loop(", f"@{name}("))
        module.verify()
        options = llvm.create_pipeline_tuning_options(speed_level=2)
        options.loop_vectorization = True
        passes = llvm.create_pass_builder(machine, options)
        passes.getModulePassManager().run(module, passes)
        code = machine.emit_object(module)
        SECONDS.append(time.perf_counter() - begin)
        if path:
            with suppress(OSError):  # a folder that cannot be written: each process compiles anew
                write_code(path, code)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    blocks = (ctypes.py_object,) * count
    kind = ctypes.CFUNCTYPE(ctypes.c_int, *blocks, ctypes.c_void_p, ctypes.c_void_p)
    return kind(engine.get_function_address(name))
