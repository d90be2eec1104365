"""Loops with reductions: sums, largest and smallest numbers of rows, sums of columns and blocks.

A block is taken as rows of one length, its `Grid`, in the order of memory. Where rows are reduced,
each is read, reduced, and read again for what is computed with the result, while it is in the
cache. Of a whole block the sums of rows are added up at the end; of columns, a row of sums takes up
a chunk of rows. Rows and chunks depend on the shape alone, so results are the same in any number of
threads. Sums are computed in float64, and those of float32 rounded once.

An op that reduces a large block calls the loop as well (`reduced`), and so has its bits.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import time
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from gdt.backend import NUMPY, threads
from gdt.backend.numpy import order_in_memory
from gdt.fusion import llvm
from gdt.fusion.formula import REDUCTIONS, ElementGraph, Node
from gdt.fusion.loop import NBYTES, SMALLEST_OP, are_compiled, is_finite, run_together
from gdt.fusion.row_text import COLUMNS, LONGEST_ROW, GraphCall

Block = Any
Shape = tuple[int, ...]

SMALLEST = SMALLEST_OP
"""The fewest elements of a block of which a loop reduces rows."""
SMALLEST_SUM = 1 << 16
"""The fewest elements of a block of which a loop adds up columns, or all."""
SHORTEST_ROW = 16  # elements; for shorter ones the calls of `row` take longer than the arithmetic
LONGEST_COLUMNS = 1024  # elements; NumPy adds up longer rows faster
CHUNK = 128  # rows that are added up one after the other, at least
SUMS = {"all", "columns"}


class Grid(NamedTuple):
    """The way in which a block is reduced: its rows, or its columns, or all of it. A whole block
    may have a last, shorter row.

    reduced: "rows", "columns" or "all". size: the number of elements.
    """

    reduced: str
    rows: int
    length: int
    size: int


@lru_cache(maxsize=4096)
def grid_of(shape: Shape, axes: tuple[int, ...], name: str) -> Grid | None:
    """The grid of a block of which there is a reduction over negative axes; None if no loop does
    that. NumPy finds the largest number of columns or of a block as fast as a loop."""
    size = math.prod(shape)
    reduced = [i for i, n in enumerate(shape) if n > 1 and i - len(shape) in axes]
    kept = [i for i, n in enumerate(shape) if n > 1 and i - len(shape) not in axes]
    if not size or not reduced:
        return None
    is_sum = name == "sum"
    if not kept and is_sum:
        last = shape[-1]
        is_row = 4 * SHORTEST_ROW <= last <= LONGEST_ROW
        length = last if is_row else min(size, LONGEST_ROW)
        return Grid("all", size // length, length, size)
    if not kept:
        return None
    length = math.prod([shape[i] for i in (reduced if kept[-1] < reduced[0] else kept)])
    if kept[-1] < reduced[0] and SHORTEST_ROW <= length <= LONGEST_ROW:
        return Grid("rows", size // length, length, size)
    if is_sum and reduced[-1] < kept[0] and SHORTEST_ROW <= length <= LONGEST_COLUMNS:
        return Grid("columns", size // length, length, size)
    return None


def large_grid(shape: Shape, axes: tuple[int, ...], name: str) -> Grid | None:
    """The grid of a block that is large enough for a loop; None if there is none."""
    grid = grid_of(shape, axes, name)
    smallest = SMALLEST_SUM if grid is not None and grid.reduced in SUMS else SMALLEST
    return grid if grid is not None and grid.size >= smallest else None


class ReducingLoop:
    """A loop over the rows of blocks, some of whose values are reductions.

    inputs: of the graph, each a dtype and which elements of a row a block has: "whole" for all,
    "row" for one, "column" for those of the only row, "one" for one element in all. outputs: values
    and their kinds: "whole", "row", or "all" and "columns" for sums. checked, calls: see
    `FusedLoop`; reductions of rows are checked always.
    parameters: of the graph, see `packed`.
    """

    def __init__(
        self,
        graph: ElementGraph,
        inputs: Sequence[tuple[str, str]],
        outputs: Sequence[tuple[Node, str]],
        checked: Sequence[Node],
        calls: Sequence[GraphCall],
        parameters: Any = None,
    ) -> None:
        self.graph, self.inputs, self.outputs = graph, inputs, outputs
        self.reductions = [n for n in graph.used([n for n, _ in outputs]) if _is_reduced(graph, n)]
        self.checked, self.calls = sorted({*checked, *self.reductions}), calls
        dtypes = [*[dtype for dtype, _ in inputs], *[graph.dtypes[node] for node, _ in outputs]]
        self.kinds = (*[kind for _, kind in inputs], *[kind for _, kind in outputs])
        self.itemsizes = tuple([int(dtype[1]) for dtype in dtypes])
        self.dtypes = [np.dtype(graph.dtypes[node]) for node, _ in outputs]
        self.parameters = parameters
        # Of all values of an element, see `FusedLoop`.
        apart = {"cast", COLUMNS, *REDUCTIONS}
        used = [n for n in graph.used([n for n, _ in outputs]) if graph.operations[n] not in apart]
        self.nbytes = sum(int(graph.dtypes[n][1]) for n in used)
        self.is_tolerant = False  # see `FusedLoop`
        self._functions: dict[bool, llvm.Function] = {}
        self.seconds = 0.0  # what its compilation has taken

    def __call__(
        self,
        grid: Grid,
        rows: Sequence[Sequence[Block]],
        shapes: Sequence[Shape],
        dtypes: Sequence[Any],
    ) -> list[list[Block]] | None:
        """The outputs, of these shapes and dtypes, for each of `rows`, C-ordered blocks for all
        inputs; None if an op may have made infinities or NaN, or a sum is one."""
        function = self._functions.get(self.is_tolerant) or self._compiled()
        work = len(rows) * self.work(grid)
        count = -(-threads.count_for(work) // len(rows))
        parts = _numbers(grid, self.kinds, self.itemsizes, count)
        outputs = [*zip(self.outputs, shapes, self.dtypes, dtypes, strict=True)]
        # The outputs for all rows side by side: to get memory for each takes as long as a loop.
        together = [self._memory(kind, len(rows), s, d, grid) for (_, kind), s, d, _ in outputs]
        results = [[out[n] for out in together] for n in range(len(rows))]
        of_all = [(*row, *outs) for row, outs in zip(rows, results, strict=True)]
        if run_together(function, of_all, [(part, self.parameters) for part in parts], work):
            if self.is_tolerant or all(is_finite(b) for row in rows for b in row):
                return None
            self.is_tolerant = True
            return self(grid, rows, shapes, dtypes)
        for n, ((_, kind), shape, _, dtype) in enumerate(outputs):
            for outs in results if kind in SUMS else ():
                with np.errstate(all="ignore"):
                    outs[n] = np.add.reduce(outs[n], axis=0).astype(dtype).reshape(shape)
                if not is_finite(outs[n]):
                    return None
        return results

    def work(self, grid: Grid) -> float:
        """The work of the loop, in elements of a sum of float32."""
        return grid.size * self.nbytes / NBYTES

    def _memory(self, kind: str, count: int, shape: Shape, dtype: np.dtype, grid: Grid) -> Any:
        """The memory of `count` outputs; of a sum, of the numbers that are added up at the end."""
        if kind == "columns":
            return np.full((count, -(-grid.rows // _chunk(grid.rows)), grid.length), -0.0)
        if kind == "all":
            return np.empty((count, -(-grid.size // grid.length)), dtype)
        if count == 1:
            return [NUMPY.empty(shape, dtype)]
        return NUMPY.empty((count, *shape), dtype)

    @property
    def kept_nbytes(self) -> int:
        """The bytes of the stack that the loop takes in a thread."""
        outputs = [node for node, _ in self.outputs]
        return llvm.kept_nbytes(self.graph, self._pairs(), outputs, self.checked, self.calls)

    def _pairs(self) -> list[tuple[str, bool]]:
        return [(dtype, kind in ("row", "one")) for dtype, kind in self.inputs]

    def _compiled(self) -> llvm.Function:
        begin = time.perf_counter()
        told = (self.reductions, self.calls) if self.is_tolerant else (self.checked, ())
        text = llvm.text_of(self.graph, self._pairs(), [node for node, _ in self.outputs], *told)
        function = llvm.compiled(text, len(self.kinds))
        self._functions[self.is_tolerant] = function
        self.seconds += time.perf_counter() - begin
        return function


@lru_cache(maxsize=4096)
def _numbers(
    grid: Grid,
    kinds: tuple[str, ...],
    itemsizes: tuple[int, ...],
    count: int,
) -> Sequence[Any]:
    """The lengths, places and steps in bytes that a compiled loop takes, see `gdt.fusion.llvm`, for
    each of `count` parts of a grid, and for what is left over."""
    rows, length = grid.rows, grid.length
    chunk = _chunk(rows) if grid.reduced == "columns" else 1
    edges = [rows // chunk * n // count for n in range(count + 1)]
    parts = [
        (start * chunk, stop - start, chunk, length)
        for start, stop in itertools.pairwise(edges)
        if stop > start
    ]
    if chunk == 1:
        parts = [(start, 1, number, length) for start, number, _, _ in parts]
    if rows % chunk:
        parts.append((rows // chunk * chunk, 1, rows % chunk, length))
    if rows * length < grid.size:
        parts.append((rows, 1, 1, grid.size - rows * length))
    made = []
    for start, chunks, rows_of_chunk, own in parts:
        numbers = [chunks, rows_of_chunk, own]
        for kind, size in zip(kinds, itemsizes, strict=True):
            step = size * {"whole": length, "row": 1, "all": 1}.get(kind, 0)
            if kind == "columns":
                numbers += [start // chunk * length * size, length * size, 0]
            else:
                numbers += [start * step, chunk * step, step]
        made.append((ctypes.c_int64 * len(numbers))(*numbers))
    return made


def _chunk(rows: int) -> int:
    """The rows of a chunk: about as many as there are chunks, so that few errors add up."""
    return max(CHUNK, math.isqrt(rows))


def _is_reduced(graph: ElementGraph, node: Node) -> bool:
    """Whether a value is the reduction of a row, or that in another dtype, and a floating-point
    number, which may be infinite or NaN."""
    operation = graph.operations[node]
    of = graph.operations[graph.operands[node][0]] if operation == "cast" else operation
    return of in REDUCTIONS and graph.dtypes[node][0] == "f"


def add_sums(graph: ElementGraph, operand: Node, reduced: str) -> Node:
    """The value of sums of which there are still several to add up."""
    if reduced == "columns":
        return graph.add(COLUMNS, "f8", graph.cast(operand, "f8"))
    return graph.add("sum", "f8", operand)


def in_c_order(block: Block) -> Block | None:
    """A block without gaps, or a copy of it; None if its axes lie in memory in another order."""
    if block.flags.c_contiguous and block.flags.aligned:
        return block
    order = order_in_memory(block)
    if order is not None and order != tuple(range(block.ndim)):
        return None
    return np.array(block, order="C")


# ---------------------------------------------------------------- ops


def reduced(name: str, x: Block, axes: Any, keepdims: bool) -> Block | None:
    """The reduction `name` of a block over negative axes (None: all); None where no loop computes
    it, or where the result is not finite."""
    axes = tuple(range(-x.ndim, 0)) if axes is None else axes
    shape = [
        1 if i - x.ndim in axes else n
        for i, n in enumerate(x.shape)
        if keepdims or i - x.ndim not in axes
    ]
    return _run(name, f"{name}(x)", [x], axes, tuple(shape))


def of_rows(text: str, axes: Any, *operands: Block) -> Block | None:
    """The elements that a formula gives, in which reductions are over negative axes, of operands of
    one shape; None where no loop computes it, or where a reduction is not finite."""
    return _run("", text, operands, axes, operands[0].shape)


def squares_around(x: Block, mean: Block, axes: tuple[int, ...], keepdims: bool) -> Block | None:
    """The sums over negative axes of the squared distances to means, which have these axes kept;
    None where no loop computes them, or where one is not finite."""
    found = _run("squares", "d = x - y\nsum(d * d)", [x, mean], axes, mean.shape)
    return found if found is None or keepdims else found.squeeze(axes)


def _run(
    name: str, text: str, operands: Sequence[Block], axes: tuple[int, ...], shape: Shape
) -> Block | None:
    x = operands[0]
    if x.size < SMALLEST or x.dtype.char not in "fd" or not are_compiled():
        return None
    if any(o.shape not in (x.shape, shape) or o.dtype != x.dtype for o in operands):
        return None
    grid = large_grid(x.shape, axes, name)
    blocks = [] if grid is None else [in_c_order(o) for o in operands]
    if grid is None or any(b is None for b in blocks):
        return None
    kind = grid.reduced if grid.reduced in SUMS else "row" if name else "whole"
    kinds = tuple(["whole" if o.shape == x.shape else "row" for o in operands])
    loop = _loop(text, x.dtype.char, kinds, kind)
    found = loop(grid, [blocks], [shape], [x.dtype])
    return None if found is None else found[0][0]


@lru_cache
def _loop(text: str, char: str, kinds: tuple[str, ...], kind: str) -> ReducingLoop:
    """The loop of one formula. kinds: of its operands. kind: of its result."""
    graph, dtype = ElementGraph(), "f4" if char == "f" else "f8"
    operands = [graph.add("input", dtype, n) for n in range(len(kinds))]
    inputs = [(dtype, own) for own in kinds]
    if kind in SUMS:
        return ReducingLoop(graph, inputs, [(add_sums(graph, operands[0], kind), kind)], [], [])
    result = graph.write(text, **dict(zip("xyz", operands, strict=False)))
    calls = [GraphCall(result, tuple(operands), is_exact=True)] if kind == "whole" else []
    return ReducingLoop(graph, inputs, [(result, kind)], [result], calls)
