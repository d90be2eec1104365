"""Graphs as CUDA kernels: the text of one for a graph, and its launches.

A kernel is a file of its own beside those of `kernels/`, generated, with what all of them share in
`kernels/fused.cuh`. Launches are grid-stride loops over the nest of loops that the host's loops
have; each thread reads and writes 16 bytes at a time where all blocks lie so.

**Bits.** A kernel has the bits of the kernels of CuPy's ufuncs, one for each op, that it replaces.
A product is rounded before it is added to anything (`--fmad=false`), and the functions of
`FUNCTIONS` are CUDA's own, as CuPy calls them, in the place of the host's polynomials. Values of
bfloat16 are computed in float32, and rounded after each op, as `gdt.engine.rounded` does it. So are
those of float16, as ufuncs do it, where an op has one step that rounds (`rounds_once`). Ops
whose formula would need those polynomials are not part of a kernel (`is_of_cuda`): `erf` and what
is made of it, which CuPy's ufuncs compute in other ways, and powers.
"""

from __future__ import annotations

import hashlib
import math
import operator
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from gdt.backend.protocol import Backend
from gdt.cuda.launches.calls import INT_LIMIT, ceil_div
from gdt.cuda.runner import ArgumentPlace, KernelCall, Launch, address
from gdt.cuda.sources import C_TYPES, GENERATED, Instance, constants, structs
from gdt.fusion.elementary import ELEMENTARY
from gdt.fusion.formula import GIVEN, ElementGraph, Node
from gdt.fusion.loop import Nest, nest_of
from gdt.fusion.op_formula import (
    CODE_OF_BFLOAT16,
    FLOAT16,
    OPERANDS,
    ROUNDED,
    UFUNCS,
    Kind,
    OpFormula,
    code_of,
    computed_dtypes,
    dtype_of,
    only,
)
from gdt.sharding.dtypes import BFLOAT16

Block = Any
Shape = tuple[int, ...]

HEADER = "fused.cuh"
PACK_BYTES = 16
LONGEST_PACK = 8  # elements; of 16 the values of a long formula take too many registers
MOST_INPUTS = 32  # of a `Nest`
MOST_PREPARED = 16  # launches of a kernel that are kept
RESIDENT = 16  # blocks of 128 threads that a multiprocessor holds

FUNCTIONS = frozenset(
    ["exp", "expm1", "log", "log1p", "tanh", "sin", "cos", "maximum", "minimum", "clip"]
)
"""The formulas that are functions of CUDA, or of `fused.cuh`."""

CLOSE = {name: OpFormula(f"{name}(x)", only(["f4"]), is_exact=False) for name in ELEMENTARY}
"""The formulas of CuPy's ufuncs that are functions of CUDA; see `is_of_kernels`."""

NAMES = {
    code_of(dtype): C_TYPES[dtype.name]
    for dtype in (
        *map(np.dtype, ("b1", "i1", "i4", "i8", "u1", "u4", "u8", "f2", "f4", "f8")), BFLOAT16
    )
}  # fmt: skip
"""The C type of each dtype that kernels read and write."""

OPERATORS = {
    "add": "+", "subtract": "-", "multiply": "*", "divide": "/", "and": "&", "or": "|", "xor": "^",
    "left": "<<", "right": ">>", "less": "<", "less_equal": "<=", "greater": ">",
    "greater_equal": ">=", "equal": "==", "not_equal": "!=",
}  # fmt: skip
COMPARISONS = {"less", "less_equal", "greater", "greater_equal", "equal", "not_equal"}
ROUNDING = {"add", "subtract", "multiply", "divide", "sqrt"}
EXACT = GIVEN | COMPARISONS | {"select", "negative", "abs", "and", "or", "xor", "invert", "cast"}
WRAPPING = {"add", "subtract", "multiply", "left"}  # of integers, whose overflow C does not define


def kernel_formula(function: Any, static: Mapping[str, Any], xp: Any) -> OpFormula | None:
    """The formula of a ufunc or of a body on arrays of `xp`, if a kernel of it has the bits of
    the function; None if there is none."""
    formula: OpFormula | None
    if isinstance(function, type(xp.add)):
        name = getattr(np, function.name.removeprefix("cupy_")).__name__
        formula = CLOSE.get(name)
        formula = None if static else UFUNCS.get(name, formula)
    else:
        names = ("formula", "replacement", "formula_of_kernels")
        find = next((f for name in names if (f := getattr(function, name, None))), None)
        formula = find(**static) if find else None
    return formula if formula and is_of_cuda(formula.text) else None


def is_of_kernels(formula: OpFormula, kinds: Sequence[Kind], result: str) -> bool:
    """Whether a kernel has the bits of an op of operands of these kinds, and of this result: CUDA's
    logarithms of float64 are other code where products and sums are not fused."""
    dtypes = computed_dtypes(formula, kinds, result)
    if dtypes is None or not {*dtypes, result} <= NAMES.keys():
        return False
    if FLOAT16 in kinds or result == code_of(FLOAT16):
        return formula.is_exact and rounds_once(formula.text)
    return formula.is_exact or result in ("f4", CODE_OF_BFLOAT16)


@cache
def is_of_cuda(formula: str) -> bool:
    """Whether a formula needs none of the host's polynomials."""
    graph = ElementGraph(FUNCTIONS)
    graph.write(formula, **{name: graph.add("input", "f4", n) for n, name in enumerate(OPERANDS)})
    return {"fma", "bits", "number"}.isdisjoint(graph.operations)


@cache
def rounds_once(formula: str) -> bool:
    """Whether a formula in float32, rounded, has the bits of a body whose every step rounds to
    float16: one step rounds, no comparison follows it, and its numbers are of float16."""
    graph = ElementGraph(FUNCTIONS)
    graph.write(formula, **{name: graph.add("input", "f4", n) for n, name in enumerate(OPERANDS)})
    steps = [*zip(graph.operations, graph.operands, strict=True)]
    given = {n for n, (operation, _) in enumerate(steps) if operation in GIVEN}
    numbers = [operands[0] for operation, operands in steps if operation == "constant"]
    rounding = [operation for operation, _ in steps if operation not in EXACT]
    compared = {n for operation, operands in steps if operation in COMPARISONS for n in operands}
    is_one = len(rounding) <= 1 and ROUNDING.issuperset(rounding)
    return is_one and compared <= given and all(float(np.float16(x)) == x for x in numbers)


def text_of(
    graph: ElementGraph, inputs: Sequence[tuple[str, bool]], outputs: Sequence[Node]
) -> str:
    """The text of the kernel `fused` that computes the values `outputs` of a graph.

    inputs: for each block that is read its dtype, and whether it has one element along the
        innermost axis.
    """
    names: dict[Node, str] = {}
    lines, loads, parameters = [], [], []
    for n, (dtype, is_one) in enumerate(inputs):
        parameters.append(f"const {NAMES[dtype]}* __restrict__ p{n}")
        loads.append(f"const auto x{n} = at.{'spread' if is_one else 'load'}(p{n}, {n});")
    for node in graph.used(outputs):
        names[node] = f"v{node}"
        lines.append(f"const {NAMES[graph.dtypes[node]]} v{node} = {_value(graph, node, names)};")
    made = [*enumerate(outputs, len(inputs))]
    for n, node in made:
        dtype = NAMES[graph.dtypes[node]]
        parameters.append(f"{dtype}* __restrict__ p{n}")
        loads.append(f"Pack<{dtype}, at.SIZE> x{n};")
        lines.append(f"x{n}.of[k] = v{node};")
    stores = [f"at.store(p{n}, x{n});" for n, _ in made]
    dtypes = [*[dtype for dtype, _ in inputs], *[graph.dtypes[node] for node in outputs]]
    count = pack_length([int(dtype[1]) for dtype in dtypes])
    inner, body = "\n      ", "\n    "
    return f"""#include "{HEADER}"

template <typename I, bool ROWS>
__global__ void __launch_bounds__(THREADS)
    fused({", ".join(parameters)}, Nest nest, int packs) {{
  visit_nest<I, ROWS, {count}>(nest, packs, [&](auto at) {{
    {body.join(loads)}
#pragma unroll
    for (int k = 0; k < at.SIZE; k++) {{
      {inner.join(lines)}
    }}
    {body.join(stores)}
  }});
}}
"""


def pack_length(itemsizes: Sequence[int]) -> int:
    """The number of elements that a thread reads and writes at a time."""
    return min(LONGEST_PACK, PACK_BYTES // max(itemsizes))


def _value(graph: ElementGraph, node: Node, names: dict[Node, str]) -> str:
    """The expression of a value."""
    operation, operands = graph.operations[node], graph.operands[node]
    dtype = graph.dtypes[node]
    if operation == "input":
        return f"x{operands[0]}.of[k]"
    if operation == "constant":
        return _number(operands[0], dtype)
    xs = [names[o] for o in operands]
    is_float = graph.dtypes[operands[0]][0] == "f"
    if operation in OPERATORS:
        if operation in WRAPPING and not is_float:
            wide = "unsigned long long" if dtype[1] == "8" else "unsigned"
            xs = [f"static_cast<{wide}>({x})" for x in xs]
        return f"static_cast<{NAMES[dtype]}>({xs[0]} {OPERATORS[operation]} {xs[1]})"
    match operation:
        case "select":
            return f"{xs[0]} ? {xs[1]} : {xs[2]}"
        case "negative":
            return f"-{xs[0]}" if is_float else f"static_cast<{NAMES[dtype]}>(0ull - {xs[0]})"
        case "invert":
            return f"!{xs[0]}" if dtype == "b1" else f"static_cast<{NAMES[dtype]}>(~{xs[0]})"
        case "cast":
            if graph.dtypes[operands[0]] in ROUNDED:
                return f"widen({xs[0]})"
            function = "narrow" if dtype in ROUNDED else "static_cast"
            return f"{function}<{NAMES[dtype]}>({xs[0]})"
    return f"{'fabs' if operation == 'abs' else operation}({', '.join(xs)})"


def _number(value: Any, dtype: str) -> str:
    """A number in C: a floating-point one by its bits."""
    if dtype[0] != "f":
        return f"static_cast<{NAMES[dtype]}>({int(value) % 2**64}ull)"
    wide = dtype == "f8"
    bits = np.array(value, dtype).view("u8" if wide else "u4")
    return f"__longlong_as_double({bits}ull)" if wide else f"__uint_as_float({bits}u)"


def generated(text: str) -> str:
    """The name of the file that has this text from now on."""
    file = f"fused_{hashlib.sha256(text.encode()).hexdigest()[:16]}.cu"
    GENERATED[file] = text
    return file


class FusedKernel:
    """A kernel that computes values of a graph for every element of blocks, which broadcast.

    dtypes: of the inputs of the graph. outputs: the values that it computes.
    """

    def __init__(
        self, graph: ElementGraph, dtypes: Sequence[str], outputs: Sequence[Node], backend: Backend
    ) -> None:
        self.graph, self.dtypes, self.outputs, self.backend = graph, dtypes, outputs, backend
        self.results = [dtype_of(graph.dtypes[n]) for n in outputs]
        self._files: dict[tuple[bool, ...], str] = {}
        self._prepared: dict[Any, Launch] = {}  # by how the blocks lie

    def __call__(self, shape: Shape, blocks: Sequence[Block]) -> list[Block]:
        """The blocks of all outputs, of this shape, on the current device."""
        outs = [self.backend.empty(shape, dtype) for dtype in self.results]
        if not math.prod(shape):
            return outs
        runner, arrays = self.backend.runner, [*blocks, *outs]
        assert runner is not None
        addresses = list(map(runner.address, arrays))
        key = shape, *[(b.shape, b.strides) for b in blocks], *[a % PACK_BYTES for a in addresses]
        prepared = self._prepared.get(key)
        if prepared is not None:
            prepared(arrays, addresses)
            return outs
        call = self.launch(shape, blocks, outs)
        runner.run(call)
        if len(self._prepared) < MOST_PREPARED and all(map(operator.is_, call.arguments, arrays)):
            places = [ArgumentPlace(n, n, 0) for n in range(len(arrays))]
            self._prepared[key] = runner.prepare(call, places)
        return outs

    def launch(self, shape: Shape, blocks: Sequence[Block], outs: Sequence[Block]) -> KernelCall:
        """The launch that computes `outs`, which have elements."""
        xp, nest = self.backend.xp, nest_of(shape, *[b.shape for b in blocks], shortest=1)
        if nest is None:  # of more axes than there are loops
            blocks = [b if b.size == 1 else xp.broadcast_to(b, shape) for b in blocks]
            nest = nest_of(shape, *[b.shape for b in blocks], shortest=1)
            assert nest is not None
        blocks = [b if b.flags.c_contiguous else xp.ascontiguousarray(b) for b in blocks]
        if nest.ones not in self._files:
            pairs = list(zip(self.dtypes, nest.ones, strict=True))
            self._files[nest.ones] = generated(text_of(self.graph, pairs, self.outputs))
        file, size = self._files[nest.ones], math.prod(shape)
        count = pack_length([b.dtype.itemsize for b in (*blocks, *outs)])
        packed = [b for b, is_one in zip(blocks, nest.ones, strict=True) if not is_one]
        has_rows = nest.lengths[:2] != (1, 1)
        packs = not (has_rows and nest.lengths[2] % count) and all(
            address(b) % (count * b.dtype.itemsize) == 0 for b in (*packed, *outs)
        )
        index = "unsigned" if size <= INT_LIMIT else "unsigned long long"
        grid = min(
            ceil_div(size, constants(HEADER)["THREADS"] * (count if packs else 1)),
            RESIDENT * self.backend.runner.multiprocessors,  # type: ignore[union-attr]
        )
        return KernelCall(
            Instance(file, "fused", (index, str(has_rows).lower())), (grid,),
            (constants(HEADER)["THREADS"],), (*blocks, *outs, _struct(nest), int(packs)),
        )  # fmt: skip


@cache
def _struct(nest: Nest) -> np.ndarray:
    """A nest as the kernels take it."""
    value = np.zeros(1, structs(HEADER)["Nest"])
    value["length"] = nest.lengths
    value["step"][0, : 2 * len(nest.steps)] = [step for pair in nest.steps for step in pair]
    return value
