"""Plans: everything about one call of an op that does not depend on data.

A plan is built once per (op, operand types, statics): where each operand moves, what runs on each
block, and the types of the outputs. Its first run checks the shapes that the rule promises and
learns the dtypes.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gdt.backend import backend_of
from gdt.comm.transport import transport_of
from gdt.errors import DtypeError, ShapeError, error
from gdt.layout import ArrayType, Axes, Layout
from gdt.observe import OBSERVERS, Collective
from gdt.relayout import Step, route
from gdt.rule import Rule, out_shapes

if TYPE_CHECKING:
    from gdt.op import Op

Block = Any


class Shards(NamedTuple):
    """For one block, what a body needs to know about the shards of each factor.

    start[f]: global index at which the shard of factor f begins, int64, shaped as the block's mesh
    axes. valid[f]: how many of its elements are not padding, shaped alike. size[f]: global size.
    split: the factors that are cut over several coordinates; uneven: those whose shards have padding.
    """

    start: Mapping[str, Any]
    valid: Mapping[str, Any]
    size: Mapping[str, int]
    split: frozenset[str]
    uneven: frozenset[str]


class Labels:
    """Mesh axes and factors along the block of every operand and of the output of a contraction.

    terms: one tuple per operand, then the output's; None labels a dim of length 1. function: how
    the blocks are contracted, once the contraction has found it.
    """

    __slots__ = ("function", "terms")

    def __init__(self, terms: tuple[tuple[Any, ...], ...]) -> None:
        self.terms = terms
        self.function: Callable[..., Block] | None = None


class Plan:
    """Everything about one call that does not depend on data."""

    __slots__ = ("execute", "outs", "quick", "routes", "types", "wanted")

    def __init__(
        self, types: tuple[ArrayType | None, ...], wanted: tuple[Layout | None, ...]
    ) -> None:
        self.types, self.wanted = types, wanted
        self.routes: tuple[tuple[Step, ...], ...] = tuple(
            route(t, w) if t is not None and w is not None else ()
            for t, w in zip(types, wanted, strict=True)
        )
        self.outs: tuple[ArrayType, ...] = ()
        # With one block, nothing to move and one output: from blocks to the output's block.
        self.quick: Callable[..., Block] | None = None
        # From the blocks of every (moved) operand to the blocks of every output.
        self.execute: Callable[..., tuple[Sequence[Block], ...]]


class PlanBuilder:
    """Builds what a plan runs from a rule and the way that was chosen."""

    def __init__(
        self,
        op: Op,
        plan: Plan,
        rule: Rule,
        sizes: Mapping[str, int],
        axes: Mapping[str, Axes],
        layouts: Sequence[Layout],
        static: Mapping[str, Any],
    ) -> None:
        self.op, self.plan, self.rule, self.sizes, self.axes, self.layouts = (
            op,
            plan,
            rule,
            sizes,
            axes,
            layouts,
        )
        self.mesh = next(t.mesh for t in plan.types if t is not None)
        self.backend = backend_of(self.mesh)
        self.static = dict(static)
        self.shapes = out_shapes(rule, sizes)
        self.moved = [
            t.with_layout(w) if t is not None and w is not None else None
            for t, w in zip(plan.types, plan.wanted, strict=True)
        ]
        self.buffers: list[tuple[tuple[int, ...], np.dtype] | None] = []
        self.finish = self._finish()

    # ---- what surrounds the body

    def fills(self, n: int, block: int) -> list[tuple[tuple[Any, ...], Any]]:
        """Where operand `n` has padding that would enter a reduction: (index, value) in one
        block."""
        kind, name = self.moved[n], self.op.operand_name(n)
        if kind is None or not kind.uneven or self.op.fill.get(name, 0) is None:
            return []
        kept = {f for term in self.rule.outs for dim in term for f in dim}
        found: list[tuple[tuple[Any, ...], Any]] = []
        for d in kind.uneven:
            if any(f in kept for f in self.rule.ins[n][d]):
                continue
            value = self.op.fill.get(name, self.op.reduce)
            if isinstance(value, str):
                value = identity(value, kind.dtype)
            for at, valid in kind.padded_shards(d):
                place = self._place(kind.layout.dims[d], at, block)
                if place is not None:
                    index: list[Any] = [slice(None)] * self.mesh.ndim
                    for a, c in place.items():
                        index[a] = slice(c, c + 1)
                    found.append(((*index, *[slice(None)] * d, slice(valid, None)), value))
        return found

    def _place(self, axes: Axes, at: Sequence[int], block: int) -> dict[int, int] | None:
        """Where a block holds the coordinates `at` of mesh axes; None if it does not."""
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
        kind = self.moved[n]
        most = max((self._batch(i) for i in range(len(self.moved))), default=0)
        missing = most - self._batch(n)
        if kind is None or not missing or not self._has_batch(n):
            return None
        lead = self.mesh.ndim
        return kind.block_shape[:lead] + (1,) * missing + kind.block_shape[lead:]

    def _batch(self, n: int) -> int:
        return sum(1 for dim in self.rule.ins[n] if dim[:1] and dim[0].startswith("..."))

    def _has_batch(self, n: int) -> bool:
        terms = self.rule.text.split("->")[0].split(",")
        return "..." in terms[n]

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
            starts[f] = self.backend.asarray(start)
            valids[f] = self.backend.asarray(np.clip(size - start, 0, chunk))
        counts = {f: math.prod(mesh.sizes[a] for a in self.axes.get(f, ())) for f in self.sizes}
        split = frozenset(f for f, p in counts.items() if p > 1)
        uneven = frozenset(f for f in split if self.sizes[f] % counts[f])
        return Shards(starts, valids, dict(self.sizes), split, uneven)

    def block_shape(self, output: int, *, reduced: bool) -> tuple[int, ...]:
        """Shape of a block of an output, before or after coordinates are combined in it."""
        kind = ArrayType.of(self.shapes[output], np.dtype(bool), self.layouts[output])
        shape = list(kind.block_shape)
        if not reduced:
            for f in self.rule.reduced(output):
                for a in self.axes.get(f, ()):
                    shape[a] = self.mesh.box[a]
        return tuple(shape)

    def labels(self) -> tuple[tuple[Any, ...], ...]:
        """Mesh axes and factors along the block of every operand and of the output; None for length
        1."""
        found = []
        for n, kind in enumerate(self.moved):
            shape = kind.block_shape if kind is not None else ()
            mesh_axes: list[Any] = [a if shape[a] > 1 else None for a in range(self.mesh.ndim)]
            dims = [
                dim[0] if dim and self.moved_size(n, d) == self.sizes[dim[0]] else None
                for d, dim in enumerate(self.rule.ins[n])
            ]
            found.append((*mesh_axes, *dims))
        shape = self.block_shape(0, reduced=True)
        mesh_axes = [a if shape[a] > 1 else None for a in range(self.mesh.ndim)]
        found.append((*mesh_axes, *[dim[0] if dim else None for dim in self.rule.outs[0]]))
        return tuple(found)

    def moved_size(self, n: int, d: int) -> int:
        kind = self.moved[n]
        return kind.shape[d] if kind is not None else 1

    # ---- assembling

    def build(self, args: Sequence[Any]) -> None:
        """Set the plan's `execute`; its output types and `quick` follow from the first run."""
        op, blocks = self.op, len(self.mesh.blocks)
        if "block_shape" in op.injected:
            self.static["block_shape"] = self.block_shape(0, reduced=False)
        if "labels" in op.injected:
            self.static["labels"] = Labels(self.labels())
        bodies = []
        for i in range(blocks):
            extra = {"shards": self.shards(i)} if "shards" in op.injected else {}
            bodies.append(partial(op.body, self.backend.xp, **self.static, **extra))
        before = [[self._before(n, i) for n in range(len(args))] for i in range(blocks)]
        if not any(f for fs in before for f in fs):
            before = []

        def run_block(i: int, xs: list[Any], **out: Any) -> Any:
            if before:
                xs = [x if f is None else f(x) for f, x in zip(before[i], xs, strict=True)]
            return bodies[i](*xs, **out)

        def execute(operands: Sequence[Any]) -> tuple[Sequence[Block], ...]:
            raw = []
            for i in range(blocks):
                xs = [
                    o[i] if t is not None else o for o, t in zip(operands, self.moved, strict=True)
                ]
                raw.append(self._after(run_block(i, xs, **self._out())))
            return self._combined(raw)

        def execute_donating(
            operands: Sequence[Any], owned: Mapping[int, Sequence[bool]] = {}
        ) -> tuple[Sequence[Block], ...]:
            raw = []
            for i in range(blocks):
                xs = [
                    o[i] if t is not None else o for o, t in zip(operands, self.moved, strict=True)
                ]
                targets = tuple(
                    xs[d]
                    if d in owned and owned[d][i]
                    else self.backend.empty(xs[d].shape, xs[d].dtype)
                    for d in op.donated
                )
                raw.append(self._after(run_block(i, xs, out=targets)))
            return self._combined(raw)

        self.plan.execute = self._checked(execute_donating if op.donated else execute, run_block)

    def _before(self, n: int, block: int) -> Callable[[Block], Block] | None:
        fills, shape = self.fills(n, block), self.aligned(n)
        if not fills and shape is None:
            return None

        def prepare(x: Block) -> Block:
            if fills:
                x = x.copy()
                for index, value in fills:
                    x[index] = value
            return x if shape is None else x.reshape(shape)

        return prepare

    def _out(self) -> dict[str, Any]:
        """Recycled memory for a body that takes it, once its output is known to be large."""
        if self.buffers and self.buffers[0] is not None:
            return {"out": self.backend.empty(*self.buffers[0])}
        return {}

    def _after(self, raw: Any) -> tuple[Block, ...]:
        """Combine coordinates inside a block, where the rule says that a factor is reduced."""
        outs = _tuple(raw)
        if self.op.merge is not None:
            return outs
        done = []
        for n, x in enumerate(outs):
            over = self._over(n, x)
            done.append(COMBINE[self.op.reduce](self.backend.xp, x, over) if over else x)
        return tuple(done) if self.finish is None else _tuple(self.finish(*done))

    def _over(self, output: int, x: Block) -> Axes:
        axes = {a for f in self.rule.reduced(output) for a in self.axes.get(f, ())}
        return tuple(a for a in sorted(axes) if x.shape[a] > 1)

    def _combined(self, raw: Sequence[tuple[Block, ...]]) -> tuple[Sequence[Block], ...]:
        if self.op.merge is not None:
            axes = tuple(a for f in self.rule.reduced(0) for a in self.axes.get(f, ()))
            axes = tuple(a for a in axes if self.mesh.sizes[a] > 1)
            if axes:
                raw = self._merged(raw, axes)
            if self.finish is not None:
                raw = [_tuple(self.finish(*r)) for r in raw]
        return tuple(zip(*raw, strict=True))

    def _finish(self) -> Callable[..., Any] | None:
        """The op's `finish` with the statics that it names, and the number of elements reduced."""
        if self.op.finish is None:
            return None
        reduced = math.prod(self.sizes[f] for f in self.rule.reduced(0))
        names = inspect.signature(self.op.finish).parameters
        known = {**self.static, "count": reduced}
        known = {k: v for k, v in known.items() if k in names}
        return partial(self.op.finish, self.backend.xp, **known)

    def _merged(self, raw: Sequence[tuple[Block, ...]], axes: Axes) -> Sequence[tuple[Block, ...]]:
        """One all-gather of all statistics, then the merge in coordinate order, minor axes
        first."""
        mesh, op = self.mesh, self.op
        p = math.prod(mesh.sizes[a] for a in axes)
        local_bytes = sum(x.nbytes // math.prod(x.shape[: mesh.ndim]) for x in raw[0])
        if p > 1:
            names = tuple(mesh.axis_names[a] for a in axes)
            collective = Collective(
                "all_gather", names, mesh.size * (p - 1) * local_bytes, len(raw[0])
            )
            for observer in OBSERVERS.get():
                observer.on_collective(collective)
        if len(raw) > 1 and p > 1:
            raw = [tuple(r) for r in transport_of(mesh).all_gather(raw, axes)]
        merged = []
        for r in raw:
            for a in reversed(axes):
                r = op.merge(self.backend.xp, *r, axis=a)  # type: ignore[misc]
            merged.append(r)
        return merged

    def _checked(
        self, execute: Callable[..., Any], run_block: Callable[..., Any]
    ) -> Callable[..., Any]:
        """The first run: checks the promised shapes, learns the dtypes, and clears the way for the
        rest."""

        def first(*operands: Any) -> Any:
            try:
                results = execute(*operands)
            except TypeError as e:
                raise self._type_error(e) from e
            for n, blocks in enumerate(results):
                promised = self.block_shape(n, reduced=True)
                for b in blocks:
                    if b.shape != promised or b.dtype != blocks[0].dtype:
                        raise error(
                            ShapeError, self.op.name,
                            f"the rule promises blocks of {promised}, the body returned {b.dtype}{b.shape}",
                            operands=self._described(), rule=self.rule.text,
                        )  # fmt: skip
            self.plan.outs = tuple(
                ArrayType.of(s, b[0].dtype, w)
                for s, b, w in zip(self.shapes, results, self.layouts, strict=True)
            )
            self._learn_buffers(results)
            self.plan.execute = execute
            self.plan.quick = self._quick(run_block)
            return results

        return first

    def _learn_buffers(self, results: tuple[Sequence[Block], ...]) -> None:
        if "out" in self.op.injected and not self.op.donated and len(results) == 1:
            shape, block = self.block_shape(0, reduced="labels" in self.op.injected), results[0][0]
            if block.nbytes >= self.backend.pool.smallest:
                self.buffers.append((shape, block.dtype))

    def _quick(self, run_block: Callable[..., Any]) -> Callable[..., Block] | None:
        op, plan = self.op, self.plan
        plain = len(plan.outs) == 1 and len(self.mesh.blocks) == 1 and not any(plan.routes)
        if not plain or op.donated or op.merge is not None or op.variadic:
            return None
        befores = [self._before(n, 0) for n in range(len(self.moved))]
        extra = {"shards": self.shards(0)} if "shards" in op.injected else {}
        body: Callable[..., Any] = partial(op.body, self.backend.xp, **self.static, **extra)
        raw_shape = self.block_shape(0, reduced=False)
        over = tuple(
            a
            for a, (n, k) in enumerate(
                zip(raw_shape, self.block_shape(0, reduced=True), strict=True)
            )
            if n != k
        )
        if "labels" in op.injected:
            over = ()
        if self.buffers:
            (shape, dtype), empty, inner = self.buffers[0], self.backend.empty, body  # type: ignore[misc]

            def recycled(*xs: Block) -> Block:
                return inner(*xs, out=empty(shape, dtype))

            body = recycled
        if any(befores):
            plain_body = body

            def prepared(*xs: Block) -> Block:
                return plain_body(
                    *[x if f is None else f(x) for f, x in zip(befores, xs, strict=True)]
                )

            body = prepared
        if over:
            combine, xp, whole_body = COMBINE[op.reduce], self.backend.xp, body

            def combined(*xs: Block) -> Block:
                return combine(xp, whole_body(*xs), over)

            body = combined
        if self.finish is not None:
            finish, unfinished = self.finish, body

            def finished(*xs: Block) -> Block:
                return finish(unfinished(*xs))

            return finished
        return body

    def _described(self) -> dict[str, object]:
        names = [self.op.operand_name(i) for i in range(len(self.plan.types))]
        return {
            n: t if t is not None else "Python scalar"
            for n, t in zip(names, self.plan.types, strict=True)
        }

    def _type_error(self, cause: TypeError) -> Exception:
        if isinstance(cause, DtypeError):
            return cause
        return error(
            DtypeError, self.op.name, str(cause).splitlines()[0], operands=self._described()
        )


def _tuple(outputs: Any) -> tuple[Block, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


def identity(reduction: str, dtype: np.dtype) -> Any:
    """The value that changes nothing in a reduction."""
    if reduction in ("sum", "prod"):
        return {"sum": 0, "prod": 1}[reduction]
    lowest = reduction == "max"
    if dtype.kind == "b":
        return not lowest
    if dtype.kind in "iu":
        return np.iinfo(dtype).min if lowest else np.iinfo(dtype).max
    return -np.inf if lowest else np.inf


def _combine(ufunc: str) -> Callable[[Any, Block, Axes], Block]:
    return lambda xp, x, axes: getattr(xp, ufunc).reduce(x, axis=axes, dtype=x.dtype, keepdims=True)


COMBINE = {
    "sum": _combine("add"),
    "prod": _combine("multiply"),
    "max": _combine("maximum"),
    "min": _combine("minimum"),
}
