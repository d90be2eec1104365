"""Blocks of a planned call: their shapes, shards and padding, as the rule has them, and what
computes them."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np

from gdt.backend import backend_of
from gdt.backend.numpy import Order
from gdt.engine.declaration import Declaration
from gdt.engine.launcher import KernelBody
from gdt.engine.loops import ChosenBody
from gdt.engine.plan import Block, Labels, Shards
from gdt.engine.source import Buffer, reshaped
from gdt.fusion.loop import SMALLEST_OP, CompiledOp, are_compiled
from gdt.fusion.op_formula import OpFormula
from gdt.sharding.array_type import ArrayType
from gdt.sharding.dtypes import promoted
from gdt.sharding.layout import Axes, Layout
from gdt.sharding.reduction import identity
from gdt.sharding.rule import Rule, out_shapes


class PlanBlocks:
    """The blocks of a call's operands and outputs.

    moved: the types of the operands as the body gets them, None for a Python scalar. axes: the mesh
    axes along which each factor is split. layouts: the layouts of the outputs. static: the statics
    of the call, to which what the body asks the engine for is added. rounds: `Declaration.rounds`
    of the call.
    """

    def __init__(
        self,
        op: Declaration,
        rule: Rule,
        sizes: Mapping[str, int],
        axes: Mapping[str, Axes],
        layouts: Sequence[Layout],
        moved: Sequence[ArrayType | None],
        static: Mapping[str, Any],
        rounds: tuple[bool, ...] | None = None,
    ) -> None:
        self.op, self.rule, self.sizes, self.axes = op, rule, sizes, axes
        self.rounds = rounds
        self.layouts, self.moved = layouts, moved
        self.mesh = next(t.mesh for t in moved if t is not None)
        self.backend = backend_of(self.mesh)
        self.shapes = out_shapes(rule, sizes)
        self.static = dict(static)
        if "block_shape" in op.injected:
            self.static["block_shape"] = self.block_shape(0, reduced=False)
        if "labels" in op.injected and "labels" not in static:
            self.static["labels"] = Labels(self.labels(), self.product_order())

    # ---- what computes a block

    def at(self, operands: Sequence[Any], block: int) -> list[Any]:
        """One block of every operand, and Python scalars as they are; a program may have scalars in
        the memory of every device."""
        return [
            o[block] if t is not None or type(o) is tuple else o
            for o, t in zip(operands, self.moved, strict=True)
        ]

    def body(self, block: int) -> Callable[..., Any]:
        """The op's body for a block; on a backend with kernels its kernel, where that applies; on
        the host its specialized body."""
        op, backend, static = self.op, self.backend, self.static
        if "shards" in op.injected:
            static = {**static, "shards": self.shards(block)}
        if backend.runner is not None and op.kernel is not None:
            return KernelBody(
                op.name, self.mesh.ndim, backend, op.kernel, op.body, static,
                selectable=op.has_library, rounds=self._rounded_by_kernels(), joined=op.joined,
            )  # fmt: skip
        replacement = getattr(op.body, "replacement", None)
        if replacement is not None and self._is_compiled(replacement(**static)):
            return CompiledOp(op.name, replacement(**static), partial(op.body, np, **static))
        ufunc = getattr(op.body, "ufunc", None)  # which is all that the body calls
        if ufunc is not None:
            return getattr(backend.xp, ufunc)  # type: ignore[no-any-return]
        if op.specialization is not None and backend.xp is np:
            return ChosenBody(op.specialization, op.body, static)
        return partial(op.body, backend.xp, **static)

    def _is_compiled(self, formula: OpFormula) -> bool:
        """Whether a loop of a formula takes the place of the op's body."""
        size = math.prod(self.block_shape(0, reduced=True))
        if self.backend.xp is not np or size < formula.fewest * SMALLEST_OP or not are_compiled():
            return False
        kinds = [float if t is None else t.dtype for t in self.moved]
        return formula.dtypes(kinds, None) is not None

    def _rounded_by_kernels(self) -> tuple[bool, ...] | None:
        """Return, for each output, whether a kernel that takes bfloat16 rounds it: not where it is
        combined after the kernel; None if the operands are float32."""
        if self.rounds is None or not self.op.takes_bfloat16:
            return None
        is_last = self.op.merge is None and self.finish is None and not any(self.overs)
        return self.rounds if is_last else (False,)

    @property
    def reduced_count(self) -> int:
        """The number of elements that are reduced to one."""
        return math.prod(self.sizes[f] for f in self.rule.reduced(0))

    @cached_property
    def finish(self) -> Callable[..., Any] | None:
        """The op's `finish` with the statics that it names, and the number of elements reduced."""
        if self.op.finish is None:
            return None
        names = inspect.signature(self.op.finish).parameters
        arguments = {**self.static, "count": self.reduced_count}
        arguments = {k: v for k, v in arguments.items() if k in names}
        return partial(self.op.finish, self.backend.xp, **arguments)

    def buffer(self, output: Block) -> Buffer | None:
        """Recycled memory that a body may write blocks like `output` into, the only one of the op;
        None for a body that does not take it, and for small blocks."""
        op, is_contraction = self.op, "labels" in self.op.injected
        takes = "out" in op.injected and not op.donated and len(self.shapes) == 1
        if not takes or output.nbytes < self.backend.recycled_size:
            return None
        order = ArrayType.of(self.shapes[0], output.dtype, self.layouts[0]).memory_order
        if is_contraction:  # which relies on the order
            order = self.static["labels"].order
        return Buffer(self.block_shape(0, reduced=is_contraction), output.dtype, order)

    # ---- what is done before the body

    def before(self, n: int, block: int) -> Callable[[Block], Block] | None:
        """The function that prepares a block of operand `n` for the body; None if not needed."""
        fills, shape = self.fills(n, block), self.aligned(n)
        if fills:
            return partial(_filled, fills, shape)
        return None if shape is None else partial(reshaped, shape)

    def fills(self, n: int, block: int) -> list[tuple[tuple[Any, ...], Any]]:
        """The parts of one block of operand `n` that must be overwritten since they are padding
        that would enter a reduction: pairs of an index and the value to put there."""
        array_type, name = self.moved[n], self.op.operand_name(n)
        if array_type is None or not array_type.uneven or self.op.fill.get(name, 0) is None:
            return []
        outputs = [{f for dim in term for f in dim} for term in self.rule.outs]
        fills: list[tuple[tuple[Any, ...], Any]] = []
        for d in array_type.uneven:
            if all(factors & {*self.rule.ins[n][d]} for factors in outputs):  # none reduces it
                continue
            value = self.op.fill.get(name, self.op.reduce)
            if isinstance(value, str):
                value = identity(value, array_type.dtype)
            for at, valid in array_type.padded_shards(d):
                place = self._place(array_type.layout.dims[d], at, block)
                if place is not None:
                    index: list[Any] = [slice(None)] * self.mesh.ndim
                    for a, c in place.items():
                        index[a] = slice(c, c + 1)
                    fills.append(((*index, *[slice(None)] * d, slice(valid, None)), value))
        return fills

    def _place(self, axes: Axes, at: Sequence[int], block: int) -> dict[int, int] | None:
        """The index per mesh axis of coordinates `at` in a block; None if they lie outside it."""
        inside = {}
        for a, c in zip(axes, at, strict=True):
            offset = c - self.mesh.blocks[block][a] * self.mesh.box[a]
            if not 0 <= offset < self.mesh.box[a]:
                return None
            inside[a] = offset
        return inside

    def aligned(self, n: int) -> tuple[int, ...] | None:
        """Block shape of operand `n` with 1s for the leading `...` dims that others have; None if
        none."""
        array_type = self.moved[n]
        most = max((self._batch(i) for i in range(len(self.moved))), default=0)
        missing = most - self._batch(n)
        if array_type is None or not missing or not self._has_batch(n):
            return None
        mesh_ndim = self.mesh.ndim
        return (
            array_type.block_shape[:mesh_ndim] + (1,) * missing + array_type.block_shape[mesh_ndim:]
        )

    def _batch(self, n: int) -> int:
        return sum(1 for dim in self.rule.ins[n] if dim[:1] and dim[0].startswith("..."))

    def _has_batch(self, n: int) -> bool:
        terms = self.rule.text.split("->")[0].split(",")
        return "..." in terms[n]

    # ---- what a body is told

    def shards(self, block: int) -> Shards:
        """Starts and valid lengths of the shards of every factor in one block."""
        mesh, starts, valids = self.mesh, {}, {}
        for f, size in self.sizes.items():
            axes = self.axes.get(f, ())
            shape = [mesh.box[a] if a in axes else 1 for a in range(mesh.ndim)]
            p = math.prod(mesh.sizes[a] for a in axes)
            chunk = -(-size // p)
            start = np.empty(shape, np.int64)
            for inside in np.ndindex(*shape):
                shard = 0
                for a in axes:
                    shard = shard * mesh.sizes[a] + mesh.blocks[block][a] * mesh.box[a] + inside[a]
                start[inside] = min(shard * chunk, size)
            with self.backend.on(mesh, block):
                starts[f] = self.backend.asarray(start)
                valids[f] = self.backend.asarray(np.clip(size - start, 0, chunk))
        counts = {f: math.prod(mesh.sizes[a] for a in self.axes.get(f, ())) for f in self.sizes}
        split = frozenset(f for f, p in counts.items() if p > 1)
        uneven = frozenset(f for f in split if self.sizes[f] % counts[f])
        return Shards(starts, valids, dict(self.sizes), split, uneven)

    def block_shape(self, output: int, *, reduced: bool) -> tuple[int, ...]:
        """Shape of a block of an output, before or after coordinates are combined in it."""
        array_type = ArrayType.of(self.shapes[output], np.dtype(bool), self.layouts[output])
        shape = list(array_type.block_shape)
        if not reduced:
            for f in self.rule.reduced(output):
                for a in self.axes.get(f, ()):
                    shape[a] = self.mesh.box[a]
        return tuple(shape)

    def labels(self) -> tuple[tuple[Any, ...], ...]:
        """Mesh axes and factors along the block of every operand and of the output; None for length
        1."""
        labels = []
        for n, array_type in enumerate(self.moved):
            scalar = (1,) * self.mesh.ndim
            shape = scalar if array_type is None else array_type.block_shape
            mesh_axes: list[Any] = [a if shape[a] > 1 else None for a in range(self.mesh.ndim)]
            dims = [
                dim[0] if dim and self.moved_size(n, d) == self.sizes[dim[0]] else None
                for d, dim in enumerate(self.rule.ins[n])
            ]
            labels.append((*mesh_axes, *dims))
        shape = self.block_shape(0, reduced=True)
        mesh_axes = [a if shape[a] > 1 else None for a in range(self.mesh.ndim)]
        labels.append((*mesh_axes, *[dim[0] if dim else None for dim in self.rule.outs[0]]))
        return tuple(labels)

    def product_order(self) -> Order:
        """The order in memory of a block that a contraction makes, if that is large."""
        dtypes = [t.dtype for t in self.moved if t is not None]
        product_type = ArrayType.of(self.shapes[0], promoted(*dtypes), self.layouts[0])
        nbytes = math.prod(product_type.block_shape) * product_type.dtype.itemsize
        is_large = self.backend.runner is None and nbytes >= self.backend.recycled_size
        return product_type.memory_order if is_large else None

    def moved_size(self, n: int, d: int) -> int:
        """Size of dim `d` of operand `n`; 1 for a Python scalar."""
        array_type = self.moved[n]
        return array_type.shape[d] if array_type is not None else 1

    # ---- what is combined after the body

    def reduces(self) -> bool:
        """Whether any output lacks a factor that is split."""
        reduced = (f for n in range(len(self.shapes)) for f in self.rule.reduced(n))
        return any(self.axes.get(f) for f in reduced)

    @cached_property
    def overs(self) -> list[Axes]:
        """For each output of a body, the mesh axes along which it is still to be combined in its
        block."""
        if not self.reduces() or "labels" in self.op.injected:  # a contraction combines by itself
            return [()] * len(self.shapes)
        reduced = [self.rule.reduced(n) for n in range(len(self.shapes))]
        return [
            tuple(sorted({a for f in fs for a in self.axes.get(f, ()) if self.mesh.box[a] > 1}))
            for fs in reduced
        ]

    def merged_axes(self) -> Axes:
        """The mesh axes along which statistics of coordinates are merged."""
        axes = (a for f in self.rule.reduced(0) for a in self.axes.get(f, ()))
        return tuple(a for a in axes if self.mesh.sizes[a] > 1)


def _filled(
    fills: Sequence[tuple[tuple[Any, ...], Any]], shape: tuple[int, ...] | None, x: Block
) -> Block:
    x = x.copy(order="K")  # a transposed block stays so, for the library that multiplies it
    for index, value in fills:
        x[index] = value
    return x if shape is None else x.reshape(shape)
