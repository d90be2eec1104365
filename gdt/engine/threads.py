"""Bodies of large blocks in several threads of the host.

NumPy computes with one thread, and releases Python's lock while it does. A rule says along which
factors an op can be split between devices; along the same factors a block can be cut between
threads, and every element is computed as by one. Ops that reduce a factor are not cut: their sums
would be added in another order. Matrix products are not either: BLAS has threads of its own (see
`gdt.engine.blas`).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from gdt.backend import NUMPY, threads
from gdt.backend.numpy import order_in_memory
from gdt.engine.blocks import PlanBlocks
from gdt.fusion.loop import CompiledOp

Block = Any

PIECES = 8
"""The most pieces of a part that are computed one after the other."""


class Cut(NamedTuple):
    """An axis along which blocks can be cut: of the output and of every operand; None for an
    operand that every part needs whole."""

    output: int
    operands: tuple[int | None, ...]


def in_threads(body: Callable[..., Any], blocks: PlanBlocks) -> Callable[..., Any]:
    """Return a function that runs `body` on parts of its blocks in several threads; `body` itself
    where they are small, where the op cannot be cut, or where it does little but move data."""
    op, rule = blocks.op, blocks.rule
    computes = "out" in op.injected or (rule.whole and not op.views)
    is_plain = op.merge is None and op.specialization is None and not op.donated
    if isinstance(body, CompiledOp):  # which has threads of its own
        return body
    if blocks.backend.xp is not np or not computes or not is_plain or len(rule.outs) > 1:
        return body
    if op.injected & {"labels", "shards", "block_shape"} or rule.reduced(0):
        return body
    size = math.prod(blocks.block_shape(0, reduced=False))
    cuts = _cuts(blocks) if size >= 2 * threads.SMALLEST else []
    return ThreadedBody(body, cuts, size) if cuts else body


def _cuts(blocks: PlanBlocks) -> list[Cut]:
    """Return the axes of the output along which the op can be cut, as its rule says."""
    *operands, output = blocks.labels()
    mesh_ndim, cuts = blocks.mesh.ndim, []
    for axis, label in enumerate(output):
        places = [[i for i, other in enumerate(o) if other == label] for o in operands]
        is_once = output.count(label) == 1 and all(len(p) <= 1 for p in places)
        if label is None or label in blocks.rule.whole or not is_once:
            continue
        # An operand of lower rank gets axes of length 1 behind the mesh axes.
        axes = [
            None if not p else p[0] if p[0] < mesh_ndim else p[0] - len(o)
            for p, o in zip(places, operands, strict=True)
        ]
        cuts.append(Cut(axis, tuple(axes)))
    return cuts


class ThreadedBody:
    """The body of an op, called for parts of its blocks at the same time.

    size: the number of elements of the output's block.
    """

    def __init__(self, body: Callable[..., Any], cuts: Sequence[Cut], size: int) -> None:
        self.body, self.cuts, self.size = body, cuts, size

    def __call__(self, *operands: Any, **memory: Any) -> Any:
        count = threads.count_for(self.size)
        cut, size = self._cut(operands, count)
        if cut is None:
            return self.body(*operands, **memory)
        parts = threads.parts_of(size, count)
        if not memory:
            return self._joined(operands, cut, parts)
        threads.together([self._call(operands, memory, cut, part) for part in parts])
        return memory["out"]

    def _joined(self, operands: Sequence[Any], cut: Cut, parts: Sequence[slice]) -> Any:
        """Return the results for all parts as one array, into which every thread puts those of a
        piece of its part at a time: the results for whole parts would take its memory again."""
        most = min(PIECES, self.size // len(parts) // threads.SMALLEST)
        lock, arrays = threading.Lock(), list[Any]()

        def fill(part: slice) -> None:
            xs = _of_part(operands, cut, part)
            inner, length = self._cut(xs, most)
            if inner is None:
                inner, length, pieces = cut, part.stop - part.start, [slice(None)]
            else:
                pieces = threads.parts_of(length, most)
            for piece in pieces:
                result = self.body(*_of_part(xs, inner, piece))
                with lock:
                    if not arrays:
                        lengths = {inner.output: length} | {cut.output: parts[-1].stop}
                        arrays.append(_with_axes(result, lengths))
                arrays[0][_index(cut.output, part)][_index(inner.output, piece)] = result

        threads.together([partial(fill, part) for part in parts])
        return arrays[0]

    def _cut(self, operands: Sequence[Any], count: int) -> tuple[Cut | None, int]:
        """Return the cut into `count` parts whose elements lie closest together in memory, and the
        length of its axis; None if there is none."""
        options = [
            (abs(x.strides[axis]), x.shape[axis], cut)
            for cut in self.cuts
            for x, axis in zip(operands, cut.operands, strict=True)
            if count > 1 and axis is not None and x.shape[axis] >= count
        ]
        _, size, best = max(options, key=lambda option: option[0], default=(0, 0, None))
        return best, size

    def _call(
        self, operands: Sequence[Any], memory: dict[str, Any], cut: Cut, part: slice
    ) -> Callable[[], Any]:
        """Return the call of the body for a part of every block."""
        memory = {name: block[_index(cut.output, part)] for name, block in memory.items()}
        return partial(self.body, *_of_part(operands, cut, part), **memory)


def _of_part(operands: Sequence[Any], cut: Cut, part: slice) -> list[Any]:
    """Return a part of every operand that is cut, and the others."""
    return [
        x if axis is None else x[_index(axis, part)]
        for x, axis in zip(operands, cut.operands, strict=True)
    ]


def _with_axes(block: Block, lengths: dict[int, int]) -> Block:
    """Return memory like that of a block, of other lengths along some axes."""
    shape = list(block.shape)
    for axis, length in lengths.items():
        shape[axis] = length
    return NUMPY.empty(tuple(shape), block.dtype, order_in_memory(block))


def _index(axis: int, part: slice) -> tuple[Any, ...]:
    """Return the index of a part along an axis that is counted from the front or from the end."""
    if axis >= 0:
        return (*[slice(None)] * axis, part)
    return (..., part, *[slice(None)] * (-axis - 1))
