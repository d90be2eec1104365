"""Loops over the elements of blocks: a graph, compiled for the shapes that it meets."""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from gdt.backend import NUMPY, threads
from gdt.backend.numpy import Order, order_in_memory
from gdt.fusion import llvm
from gdt.fusion.formula import ElementGraph, Node
from gdt.fusion.op_formula import OpFormula
from gdt.fusion.row_text import GraphCall

Block = Any
Shape = tuple[int, ...]

SMALLEST = 4096
"""The fewest elements of a block that a loop of several ops takes: for fewer, NumPy takes no longer
than the call of a loop."""
SMALLEST_OP = 2 * SMALLEST
"""The fewest elements of a block that a loop of one op takes."""
SHORTEST_ROW = 16  # elements; for shorter rows it is faster to broadcast blocks in memory
PIECE = 512  # elements of the pieces in which a row is copied many times
AXES = 3  # of the nest of loops
NBYTES = 12  # of the values of an element of a sum of float32, for which `threads.SMALLEST` stands


def is_known(number: Any) -> bool:
    """Whether a number is part of a loop's code, as exponents are that make a power a product or a
    root: another small number makes another loop. Others are parameters."""
    return bool(abs(number) <= 4 and 2 * number == int(2 * number))


def are_compiled() -> bool:
    """Whether loops can be compiled here."""
    return not llvm.problem()


class FusedLoop:
    """A loop that computes values of a graph for every element of blocks, which broadcast.

    dtypes: of the inputs of the graph. outputs: the values that it computes. checked: the values of
    which it tells whether an element is infinite or NaN; calls: once an input was so itself, the
    ops of which it tells instead whether one has made such an element, see `llvm.text_of`.
    parameters: of the graph, see `packed`. places: see `llvm.text_of`.
    """

    def __init__(
        self,
        graph: ElementGraph,
        dtypes: Sequence[str],
        outputs: Sequence[Node],
        checked: Sequence[Node] = (),
        calls: Sequence[GraphCall] = (),
        parameters: Any = None,
        places: Sequence[int] = (),
    ) -> None:
        self.graph, self.dtypes, self.outputs = graph, dtypes, outputs
        self.checked, self.calls = checked, calls
        self.parameters, self.places = parameters, places
        dtypes = [*dtypes, *[graph.dtypes[node] for node in outputs if not places]]
        self.itemsizes = tuple([int(dtype[1]) for dtype in dtypes])
        self.result = np.dtype(graph.dtypes[outputs[0]])
        # Of all values of an element: what a loop takes is about proportional to it.
        used = graph.used([*outputs, *checked])
        self.nbytes = sum(int(graph.dtypes[n][1]) for n in used) + sum(self.itemsizes)
        # Whether the compiled loop looks at the calls, which takes time: it does from the first run
        # on in which an input is not finite.
        self.is_tolerant = False
        self._functions: dict[tuple[bool, ...], llvm.Function] = {}
        self.seconds = 0.0  # what its compilation has taken

    def __call__(self, shape: Shape, blocks: Sequence[Block], outs: Sequence[Block]) -> bool:
        """Compute `outs`, C-ordered blocks of this shape, from C-ordered blocks that broadcast to
        it, large ones in several threads; return whether an op may have made infinities or NaN."""
        function, parts = self.prepared(shape, *[b.shape for b in blocks])
        is_odd = run_together(function, [(*blocks, *outs)], parts, self.work(shape))
        if is_odd and not self.is_tolerant and not all(map(is_finite, blocks)):
            self.is_tolerant = True
            return self(shape, blocks, outs)
        return is_odd

    def prepared(
        self, shape: Shape, *shapes: Shape, calls: int = 1
    ) -> tuple[llvm.Function, Sequence[tuple[Any, Any]]]:
        """The compiled loop for blocks of these shapes, and its last two arguments for each part of
        the blocks that a thread computes.

        calls: how many such loops run at the same time."""
        nest = nest_of(shape, *shapes)
        assert nest is not None
        count = threads.count_for(calls * self.work(shape))
        parts = _numbers(nest, self.itemsizes, -(-count // calls))
        return self._function(nest.ones), [(part, self.parameters) for part in parts]

    def on_rows(self, shape: Shape, places: Sequence[tuple[int, int]]) -> Callable[..., int]:
        """The loop over matrices of this shape, of which each row lies in memory without gaps: a
        function of the arrays in which the inputs and the outputs lie.

        places: for each of them, in bytes, where the matrix begins, and the step from row to row.
        """
        numbers = (1, *shape, *[n for first, step in places for n in (first, 0, step)])
        last = (ctypes.c_int64 * len(numbers))(*numbers), self.parameters
        function = self._function((False,) * len(self.dtypes))
        return lambda *arrays: function(*arrays, *last)

    def work(self, shape: Shape) -> float:
        """The work of the loop for blocks of this shape, in elements of a sum of float32."""
        return math.prod(shape) * self.nbytes / NBYTES

    def _function(self, ones: tuple[bool, ...]) -> llvm.Function:
        """The compiled loop for inputs of which these have one element along the innermost axis."""
        key = (self.is_tolerant, *ones)
        if key not in self._functions:
            begin, pairs = time.perf_counter(), list(zip(self.dtypes, ones, strict=True))
            checked, calls = ((), self.calls) if self.is_tolerant else (self.checked, ())
            text = llvm.text_of(self.graph, pairs, self.outputs, checked, calls, self.places)
            self._functions[key] = llvm.compiled(text, len(self.itemsizes))
            self.seconds += time.perf_counter() - begin
        return self._functions[key]


def packed(parameters: Sequence[tuple[Any, str]]) -> Any:
    """Numbers with their dtypes as compiled loops take them."""
    slots = [np.array(x, dtype).tobytes().ljust(8, b"\0") for x, dtype in parameters]
    return ctypes.create_string_buffer(b"".join(slots))


def run_together(
    function: llvm.Function,
    rows: Sequence[Sequence[Block]],
    parts: Sequence[tuple[Any, Any]],
    work: float,
) -> bool:
    """Run a loop on all parts of some rows of blocks, in threads if its work is worth it; return
    whether a call gives 1."""
    if len(rows) == len(parts) == 1:
        return function(*rows[0], *parts[0]) > 0
    calls = [partial(function, *row, *part) for row in rows for part in parts]
    count = min(len(calls), threads.count_for(work))

    def run(some: slice) -> bool:
        return sum([call() for call in calls[some]]) > 0

    return any(threads.in_turns(run, count))


def is_plain(value: Any) -> bool:
    """Whether a value is a C-ordered block, which compiled loops read as it is."""
    if type(value) is not np.ndarray:
        return False
    flags = value.flags
    return flags.carray or (flags.c_contiguous and flags.aligned)  # the former asks for writable


def is_finite(block: Block) -> bool:
    """Whether all elements of a block are finite."""
    return block.dtype.kind != "f" or bool(np.isfinite(block).all())


class Nest(NamedTuple):
    """The nest of loops over blocks that broadcast to a shape: the lengths of its axes; for each
    block its steps along the outer ones, in elements; and whether it has one element along the
    innermost."""

    lengths: Shape
    steps: tuple[tuple[int, int], ...]
    ones: tuple[bool, ...]

    def shape_of(self, n: int) -> Shape:
        """The shape of block `n` along the axes of the nest."""
        outer, middle, inner = self.lengths
        first, second = self.steps[n]
        return outer if first else 1, middle if second else 1, 1 if self.ones[n] else inner


@lru_cache(maxsize=4096)
def _numbers(nest: Nest, itemsizes: tuple[int, ...], count: int) -> Sequence[Any]:
    """The lengths, places and steps in bytes that a compiled loop takes for each of `count` parts
    of its blocks, see `gdt.fusion.llvm`."""
    _, middle, inner = nest.lengths
    own = (middle * inner, inner, 1)  # of a block of the whole shape
    steps = [(*pair, 0 if one else 1) for pair, one in zip(nest.steps, nest.ones, strict=True)]
    steps += [own] * (len(itemsizes) - len(steps))
    sizes = [[n * size for n in along] for along, size in zip(steps, itemsizes, strict=True)]
    # The outermost axis that gives parts of about the same length.
    axis = next((a for a in range(AXES) if nest.lengths[a] >= 8 * count), np.argmax(nest.lengths))
    made = []
    for part in threads.parts_of(nest.lengths[axis], min(count, nest.lengths[axis])):
        lengths = [*nest.lengths]
        lengths[axis] = part.stop - part.start
        blocks = [n for along in sizes for n in (part.start * along[axis], *along[:2])]
        numbers = (*lengths, *blocks)
        made.append((ctypes.c_int64 * len(numbers))(*numbers))
    return made


@lru_cache(maxsize=4096)
def nest_of(shape: Shape, *shapes: Shape, shortest: int = SHORTEST_ROW) -> Nest | None:
    """The nest of loops over C-ordered blocks of these shapes. Adjacent axes along which the same
    blocks broadcast are one. None for a nest of more than `AXES`, and for rows shorter than
    `shortest` elements, since loops over them are slow."""
    padded = [(1,) * (len(shape) - len(s)) + s for s in shapes]
    lengths: list[int] = []
    present: list[tuple[bool, ...]] = []  # along each axis, which blocks have more than one element
    for length, *own in zip(shape, *padded, strict=True):
        if length == 1:
            continue
        has = tuple([n > 1 for n in own])
        if present and present[-1] == has:
            lengths[-1] *= length
        else:
            lengths.append(length)
            present.append(has)
    if len(lengths) > AXES or (len(lengths) > 1 and lengths[-1] < shortest):
        return None
    missing = AXES - len(lengths)
    lengths = [1] * missing + lengths
    present = [tuple([False] * len(shapes))] * missing + present
    steps = []
    for n in range(len(shapes)):
        size, along = 1, []
        for length, has in zip(reversed(lengths), reversed(present), strict=True):
            along.append(size if has[n] else 0)
            size *= length if has[n] else 1
        steps.append((along[2], along[1]))
    ones = tuple([not has for has in present[-1]]) if lengths[-1] > 1 else (False,) * len(shapes)
    return Nest((lengths[0], lengths[1], lengths[2]), tuple(steps), ones)


def arranged(shape: Shape, blocks: Sequence[Block]) -> tuple[Shape, list[Block], Order] | None:
    """Blocks that broadcast to a shape, as C-ordered blocks for a loop.

    Return the shape with its axes in the order of memory, the blocks with theirs in that order, and
    the order; None if the blocks of the whole shape have different orders. Where no nest of loops
    fits, blocks are broadcast in memory."""
    blocks = [b if b.flags.c_contiguous else narrowed(b) for b in blocks]
    in_order = tuple(range(len(shape)))
    orders = {order_in_memory(b) or in_order for b in blocks if b.shape == shape}
    if len(orders) > 1:
        return None
    found = orders.pop() if orders else in_order
    order: Order = None
    if found != in_order:
        order = found
        rank = len(shape)
        blocks = [b.reshape((1,) * (rank - b.ndim) + b.shape).transpose(order) for b in blocks]
        shape = tuple([shape[a] for a in order])
    if nest_of(shape, *[b.shape for b in blocks]) is None:
        blocks = [b if b.size == 1 else _whole(b, shape) for b in blocks]
    arrays = [
        b if b.flags.c_contiguous and b.flags.aligned else np.array(b, order="C") for b in blocks
    ]
    return shape, arrays, order


def narrowed(block: Block) -> Block:
    """A view of a block with one element along each axis along which it repeats one, as the
    gradient of a sum does."""
    if 0 not in block.strides:
        return block
    parts = [slice(None) if step else slice(1) for step in block.strides]
    return block if block.size == 0 else block[tuple(parts)]


def _whole(block: Block, shape: Shape) -> Block:
    """A copy of a block, broadcast to a shape. A row that many rows share is copied several times
    at once: one row at a time takes NumPy a dozen times as long."""
    result = NUMPY.empty(shape, block.dtype)
    length = shape[-1]
    if block.size != length or block.shape[-1:] != (length,):
        result[...] = block
        return result
    rows, row = result.reshape(-1, length), block.reshape(length)
    count = min(len(rows), PIECE // length + 1)
    whole = len(rows) // count * count
    rows[:whole].reshape(-1, count * length)[...] = np.tile(row, count)
    rows[whole:] = row
    return result


def empty(shape: Shape, dtype: np.dtype, order: Order) -> Block:
    """A new block, whose axes lie in memory in `order`."""
    block = NUMPY.empty(shape, dtype, order)
    if order is None or block.transpose(order).flags.c_contiguous:
        return block
    ordered = np.empty([shape[a] for a in order], dtype)  # small blocks have no order in the pool
    return ordered.transpose(np.argsort(order))


class CompiledOp:
    """A formula as a loop, in the place of an op's body.

    Elements that are infinite or NaN though their operands are finite are computed again by the
    body: for its warnings, and since a formula gives NaN where it does not apply, as for the sine
    of a large angle.

    body: a function of blocks.
    """

    def __init__(self, name: str, formula: OpFormula, body: Callable[..., Block]) -> None:
        self.__name__, self._formula, self.body = name, formula, body
        self._loops: dict[tuple[Any, ...], FusedLoop] = {}
        # From the first run of a single operand on, what runs for a block of the same shape.
        self._shape: Shape | None = None
        self._dtype: np.dtype
        self._prepared: tuple[llvm.Function, Any]

    def __eq__(self, other: object) -> bool:
        """Whether both compute the same: the blocks of one op have a `CompiledOp` each."""
        return type(other) is CompiledOp and other._formula == self._formula

    def __hash__(self) -> int:
        return hash(self._formula)

    def formula(self) -> OpFormula:
        """The formula that the loop computes."""
        return self._formula

    def __call__(self, *operands: Any, out: Block | None = None) -> Block:
        """The result for blocks that broadcast, or for numbers."""
        if len(operands) == 1 and (x := operands[0]).shape == self._shape and is_plain(x):
            result = NUMPY.empty(x.shape, self._dtype) if out is None else out
            function, numbers = self._prepared
            if result.flags.carray and not function(x, result, *numbers):
                return result
        loop, blocks = self._loop_for(operands)
        shape = blocks[0].shape
        if any(b.shape != shape for b in blocks):
            shape = np.broadcast_shapes(*[b.shape for b in blocks])
        found = arranged(shape, blocks)
        if found is None:
            blocks = [np.ascontiguousarray(np.broadcast_to(b, shape)) for b in blocks]
            found = shape, blocks, None
        nested, arrays, order = found
        result = empty(shape, loop.result, order) if out is None else out
        target = result if order is None else result.transpose(order)
        if not (target.flags.c_contiguous and target.flags.aligned):
            result[...] = self(*operands)
            return result
        if loop(nested, arrays, [target]):
            odd = ~np.isfinite(result)
            for b in blocks:
                odd &= np.isfinite(b)
            xs = [np.broadcast_to(np.asarray(x, loop.result), shape)[odd] for x in operands]
            result[odd] = self.body(*xs)
        if len(operands) == 1 and loop.work(shape) < 2 * threads.SMALLEST:  # for one thread
            function, (numbers,) = loop.prepared(shape, shape)
            self._shape, self._dtype, self._prepared = shape, loop.result, (function, numbers)
        return result

    def _loop_for(self, operands: Sequence[Any]) -> tuple[FusedLoop, list[Block]]:
        """The loop for such operands, and their blocks."""
        kinds = [x.dtype if isinstance(x, np.ndarray) else type(x) for x in operands]
        dtypes = self._formula.dtypes(kinds, None)
        assert dtypes is not None
        known = tuple([x if type(x) is int and is_known(x) else None for x in operands])
        triples = list(zip(operands, dtypes, known, strict=True))
        blocks = [np.asarray(x, dtype) for x, dtype, number in triples if number is None]
        key = (*dtypes, known)
        if key not in self._loops:
            self._loops[key] = self._compiled(dtypes, known)
        return self._loops[key], blocks

    def _compiled(self, dtypes: Sequence[str], known: Sequence[int | None]) -> FusedLoop:
        graph, names = ElementGraph(), dict[str, Node]()
        inputs: list[str] = []
        for name, dtype, number in zip("xyz", dtypes, known, strict=False):
            if number is None:
                names[name] = graph.add("input", dtype, len(inputs))
                inputs.append(dtype)
            else:
                names[name] = graph.constant(number, dtype)
        result = graph.write(self._formula.text, **names)
        if self._formula.is_exact:  # without a value of which NumPy would warn
            return FusedLoop(graph, inputs, [result], [], [])
        call = GraphCall(result, tuple(names.values()), is_exact=False)
        return FusedLoop(graph, inputs, [result], [result], [call])
