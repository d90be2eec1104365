"""Ops: one operation, declared once, and the plans that run it on blocks.

    @op("... i k, k j -> ... i j", linear="x, w")
    def matmul(xp, x, w, /):
        return xp.matmul(x, w)

The parameters after the namespace `xp` and before `/` are the operands; the others are statics, part of
the plan's key. A body may name, after `*`, what the engine knows and it needs:

- `out`: the array(s) to write into, or None; a body that takes it gets recycled or donated memory;
- `block_shape`: the shape of the block that the first output has;
- `shards`: where the shards of each factor begin, and how many of their elements are valid;
- `labels`: for contractions, the mesh axes and factors of every operand's and the output's block.

Bodies address array axes from the end: the leading axes of a block are mesh axes. They return what each
coordinate computes; the engine combines coordinates inside a block, and leaves the rest pending.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from gdt.array import FUNCTIONS, DistributedArray, is_array_like, place
from gdt.backend import backend_of
from gdt.backend.numpy import ONE_REFERENCE
from gdt.comm.transport import transport_of
from gdt.errors import DtypeError, ShapeError, error
from gdt.layout import ArrayType, Axes, Layout
from gdt.mesh import Mesh, get_default_mesh
from gdt.observe import OBSERVERS, Collective
from gdt.relayout import Step, route, run_routes
from gdt.rule import Rule, RuleSpec, bind, check_meshes, choose, out_shapes, parse

Block = Any
Vjp = Callable[..., Any]

OPS: dict[str, Op] = {}
SCALARS = (int, float, bool, complex)  # weak in promotion, as in NumPy (NEP 50)
INJECTED = ("out", "block_shape", "shards", "labels")


class Shards(NamedTuple):
    """For one block, what a body needs to know about the shards of each factor.

    start[f]: global index at which the shard of factor f begins, int64, shaped as the block's mesh axes.
    valid[f]: how many of its elements are not padding, shaped alike. size[f]: global size.
    """

    start: Mapping[str, Any]
    valid: Mapping[str, Any]
    size: Mapping[str, int]


class Labels:
    """Mesh axes and factors along the block of every operand and of the output of a contraction.

    terms: one tuple per operand, then the output's; None labels a dim of length 1. function: how the
    blocks are contracted, once the contraction has found it.
    """

    __slots__ = ("function", "terms")

    def __init__(self, terms: tuple[tuple[Any, ...], ...]) -> None:
        self.terms = terms
        self.function: Callable[..., Block] | None = None


class Plan:
    """Everything about one call that does not depend on data."""

    __slots__ = ("execute", "outs", "quick", "routes", "types", "wanted")

    def __init__(self, types: tuple[ArrayType | None, ...], wanted: tuple[Layout | None, ...]) -> None:
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


class Op:
    """One operation: rule, body, vjp. `op(x, y, axis=0)` runs it on distributed arrays."""

    def __init__(
        self,
        body: Callable[..., Any],
        rule: str | Callable[..., str | RuleSpec],
        *,
        linear: str = "",
        reduce: str = "sum",
        whole: str = "",
        fill: Mapping[str, Any] | None = None,
        merge: Callable[..., Any] | None = None,
        finish: Callable[..., Any] | None = None,
        donate: str = "",
        prepare: Callable[..., dict[str, Any]] | None = None,
    ) -> None:
        self.body, self.rule, self.name = body, rule, body.__name__.rstrip("_")
        self.__name__, self.__doc__, self.__module__ = self.name, body.__doc__, body.__module__
        parameters = list(inspect.signature(body).parameters.values())[1:]
        kinds = inspect.Parameter
        self.operands = [p.name for p in parameters if p.kind is kinds.POSITIONAL_ONLY]
        self.variadic = any(p.kind is kinds.VAR_POSITIONAL for p in parameters)
        named = [p.name for p in parameters if p.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)]
        self.statics = [n for n in named if n not in INJECTED]
        self.injected = {n for n in named if n in INJECTED}
        self.count = -1 if self.variadic else len(self.operands)
        self.linear = [[n.strip() for n in part.split("+")] for part in linear.split(",") if part.strip()]
        self.reduce, self.whole, self.fill = reduce, frozenset(whole.split()), fill or {}
        self.merge, self.finish, self.prepare = merge, finish, prepare
        self.donated = [self.operands.index(n.strip()) for n in donate.split(",") if n.strip()]
        self.plans: dict[tuple[Any, ...], Plan] = {}
        self.vjps: tuple[Vjp | None, ...] = ()
        self.joint_vjp: Vjp | None = None

    def __repr__(self) -> str:
        return f"<op {self.name}>"

    def vjp(self, *per_operand: Vjp | None, joint: Vjp | None = None) -> None:
        """Declare gradients: one function `(g, out, *operands, **statics) -> cotangent` per operand, None
        for one that has none; or one `joint` function that returns the tuple of all of them.

        Of an op with several outputs, `g` and `out` are tuples, and `g` has None for an output without
        cotangent.
        """
        self.vjps, self.joint_vjp = per_operand, joint

    # ---- calling

    def __call__(self, *args: Any, **static: Any) -> Any:
        types: list[Any] = []
        for a in args:
            kind = type(a)
            if kind is DistributedArray:
                types.append(a.type)
            elif kind in SCALARS:
                types.append(kind)
            else:
                return self._convert(args, static)
        if static:
            types.extend(static.items())
        key = tuple(types)
        try:
            plan = self.plans.get(key)
        except TypeError:  # a static that cannot be hashed, such as a list
            return self._convert(args, static)
        if plan is None:
            if not self._is_bound(args, static):
                return self._convert(args, static)
            plan = self._plan(args, static)
            out = self._general(plan, args)
            self.plans[key] = plan  # only a plan that has run is kept
        elif plan.quick is not None:
            block = plan.quick(*[a.blocks[0] if type(a) is DistributedArray else a for a in args])
            out = DistributedArray(plan.outs[0], (block,))
        else:
            out = self._general(plan, args)
        observers = OBSERVERS.get()
        if observers:
            for observer in observers:
                observer.on_op(self, args, static, out)
        return out

    def _is_bound(self, args: tuple[Any, ...], static: dict[str, Any]) -> bool:
        """Whether operands are given by position, statics by name, and one operand is an array."""
        counted = len(args) == self.count or self.count < 0
        named = static.keys() <= set(self.statics)
        return counted and named and any(type(a) is DistributedArray for a in args)

    def _general(self, plan: Plan, args: Sequence[Any], owned: Mapping[int, Sequence[bool]] = {}) -> Any:  # noqa: B006
        operands = self._moved(plan, args) if any(plan.routes) else _blocks(args)
        results = plan.execute(operands, owned) if self.donated else plan.execute(operands)
        outs = [DistributedArray(t, tuple(b)) for t, b in zip(plan.outs, results, strict=True)]
        return outs[0] if len(outs) == 1 else tuple(outs)

    def _moved(self, plan: Plan, args: Sequence[Any]) -> list[Any]:
        """The operands' blocks in the layouts that the plan wants; what must be resolved is resolved
        together, and once."""
        for observer in OBSERVERS.get():
            observer.on_move(self.name, plan.types, plan.wanted)
        routes, operands = list(plan.routes), _blocks(args)
        resolving: dict[int, DistributedArray] = {}
        for i, (a, wanted) in enumerate(zip(args, plan.wanted, strict=True)):
            if routes[i] and wanted is a.layout.resolved:
                if a._resolved is not None:
                    routes[i], operands[i] = (), a._resolved.blocks
                else:
                    resolving[i] = a
        arrays = [i for i, t in enumerate(plan.types) if t is not None]
        moved = run_routes([routes[i] for i in arrays], [operands[i] for i in arrays])
        for i, blocks in zip(arrays, moved, strict=True):
            operands[i] = blocks
        for i, a in resolving.items():
            a._resolved = DistributedArray(a.type.with_layout(a.layout.resolved), tuple(operands[i]))
        return operands

    def _convert(self, args: tuple[Any, ...], static: dict[str, Any]) -> Any:
        """Bring arguments to the form that a key needs, and call again."""
        if self.count >= 0:
            args, static = self._bind(args, static)
        static = {k: _hashable(v) for k, v in static.items()}
        for k, v in static.items():
            try:
                hash(v)
            except TypeError:
                raise error(DtypeError, self.name, f"argument {k!r} is {v!r}, which is no static value") from None
        mesh = next((a.mesh for a in args if isinstance(a, DistributedArray)), None) or get_default_mesh()
        if not any(isinstance(a, DistributedArray) for a in args) and args:
            args = (as_operand(args[0], mesh, self.name, self._operand_name(0)), *args[1:])
        converted = tuple(
            a if type(a) is DistributedArray or type(a) in SCALARS
            else as_operand(a, mesh, self.name, self._operand_name(i))
            for i, a in enumerate(args)
        )  # fmt: skip
        return self(*converted, **static)

    def _bind(self, args: tuple[Any, ...], static: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Operands by position, statics by name."""
        names = [*self.operands, *self.statics]
        if len(args) > len(names):
            raise error(DtypeError, self.name, f"takes {len(names)} arguments ({', '.join(names)}), got {len(args)}")
        given = dict(zip(names, args, strict=False))
        for k, v in static.items():
            if k not in names:
                raise error(DtypeError, self.name, f"no argument {k!r}", remedy=f"It has {', '.join(names)}.")
            if k in given:
                raise error(DtypeError, self.name, f"argument {k!r} is given twice")
            given[k] = v
        missing = [n for n in self.operands if n not in given]
        if missing:
            raise error(DtypeError, self.name, f"argument {missing[0]!r} is missing")
        operands = tuple(given.pop(n) for n in self.operands)
        return operands, given

    def _operand_name(self, i: int) -> str:
        return self.operands[i] if i < len(self.operands) else f"operand {i}"

    def update(self, owners: Sequence[tuple[MutableMapping[str, Any], str]], *args: Any, **static: Any) -> None:
        """Run an op with donated operands, and put its outputs in their place.

        `owners` says where each donated operand is kept: `mapping[name]`. A block that nobody else refers
        to is overwritten; any other is left as it is, and the output gets memory of its own.
        """
        owned = {i: _is_owned(mapping, name) for i, (mapping, name) in zip(self.donated, owners, strict=True)}
        donated = iter(owners)
        rest = iter(args)
        operands = []
        for i in range(self.count):
            if i in self.donated:
                mapping, name = next(donated)
                operands.append(mapping[name])
            else:
                operands.append(next(rest))
        key = (*(a.type if type(a) is DistributedArray else type(a) for a in operands), *static.items())
        plan = self.plans.get(key) or self._plan(operands, static)
        self.plans[key] = plan
        outs = self._general(plan, operands, owned)
        for (mapping, name), out in zip(owners, outs if isinstance(outs, tuple) else (outs,), strict=True):
            mapping[name] = out

    # ---- planning

    def _plan(self, args: Sequence[Any], static: dict[str, Any]) -> Plan:
        types = tuple(a.type if type(a) is DistributedArray else None for a in args)
        names = [self._operand_name(i) for i in range(len(args))]
        check_meshes(types, self.name, names)
        if self.prepare is not None:
            static = self.prepare(*types, **static)
        spec = self.rule(*types, **static) if callable(self.rule) else self.rule
        if isinstance(spec, str):
            spec = RuleSpec(spec)
        linear = tuple(frozenset(names.index(n) for n in part) for part in self.linear) if not self.variadic else ()
        if self.variadic and self.linear:
            linear = (frozenset(range(len(args))),)
        ranks = tuple(t.ndim if t is not None else 0 for t in types)
        rule = parse(spec.text, ranks, self.whole | spec.whole, linear, self.reduce, self.merge is not None)
        sizes = bind(rule, types, spec.sizes, self.name, names)
        way = choose(rule, types, sizes)
        plan = Plan(types, way.wanted)
        _Builder(self, plan, rule, sizes, way.axes, way.outs, static).build(args)
        return plan


def _blocks(args: Sequence[Any]) -> list[Any]:
    return [a.blocks if type(a) is DistributedArray else a for a in args]


def _hashable(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(_hashable(v) for v in value)
    if isinstance(value, np.ndarray) and value.ndim <= 1:
        return tuple(value.tolist()) if value.ndim else value.item()
    return value


def as_operand(value: Any, mesh: Mesh, op: str, name: str) -> DistributedArray:
    """A NumPy array, scalar or nested list as an array replicated on `mesh`."""
    if not is_array_like(value):
        raise error(
            DtypeError, op, f"{name} is a {type(value).__name__}", remedy="Operands are arrays, numbers or nested lists."
        )
    try:
        whole = np.asarray(value)
    except ValueError as e:
        raise error(ShapeError, op, f"{name} is no array: {e}") from None
    if whole.dtype.kind not in "biufc":
        raise error(DtypeError, op, f"{name} has dtype {whole.dtype}, which is no number")
    return place(whole, Layout.replicated(mesh, whole.ndim))


def _is_owned(mapping: Mapping[str, Any], name: str) -> list[bool]:
    """For every block of the array in `mapping[name]`, whether nothing else refers to it."""
    count = sys.getrefcount
    if count(mapping[name]) != ONE_REFERENCE or count(mapping[name].blocks) != ONE_REFERENCE:
        return [False] * len(mapping[name].blocks)
    array = mapping[name]
    if array._resolved is not None:
        return [False] * len(array.blocks)
    pool = backend_of(array.mesh).pool
    owned = []
    for i in range(len(array.blocks)):
        alone = count(array.blocks[i]) == ONE_REFERENCE
        base = array.blocks[i].base
        if base is not None:
            # `base` itself is one more reference, the pool's list another.
            alone = alone and count(base) == ONE_REFERENCE + 1 + pool.owns(base)
        owned.append(alone and array.blocks[i].flags.writeable)
    return owned


class _Builder:
    """Builds what a plan runs from a rule and the way that was chosen."""

    def __init__(self, op: Op, plan: Plan, rule: Rule, sizes: Mapping[str, int], axes: Mapping[str, Axes], layouts: Sequence[Layout], static: Mapping[str, Any]) -> None:
        self.op, self.plan, self.rule, self.sizes, self.axes, self.layouts = op, plan, rule, sizes, axes, layouts
        self.mesh = next(t.mesh for t in plan.types if t is not None)
        self.backend = backend_of(self.mesh)
        self.static = dict(static)
        self.shapes = out_shapes(rule, sizes)
        self.moved = [
            t.with_layout(w) if t is not None and w is not None else None
            for t, w in zip(plan.types, plan.wanted, strict=True)
        ]
        self.buffers: list[tuple[tuple[int, ...], np.dtype] | None] = []

    # ---- what surrounds the body

    def fills(self, n: int, block: int) -> list[tuple[tuple[Any, ...], Any]]:
        """Where operand `n` has padding that would enter a reduction: (index, value) in one block."""
        kind, name = self.moved[n], self.op._operand_name(n)
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
        """Block shape of operand `n` with 1s for the leading `...` dims that others have; None if none."""
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
        return Shards(starts, valids, dict(self.sizes))

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
        """Mesh axes and factors along the block of every operand and of the output; None for length 1."""
        found = []
        for n, kind in enumerate(self.moved):
            shape = kind.block_shape if kind is not None else ()
            mesh_axes: list[Any] = [a if shape[a] > 1 else None for a in range(self.mesh.ndim)]
            dims = [dim[0] if dim and self.moved_size(n, d) == self.sizes[dim[0]] else None for d, dim in enumerate(self.rule.ins[n])]
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
                xs = [o[i] if t is not None else o for o, t in zip(operands, self.moved, strict=True)]
                raw.append(self._after(run_block(i, xs, **self._out())))
            return self._combined(raw)

        def execute_donating(operands: Sequence[Any], owned: Mapping[int, Sequence[bool]] = {}) -> tuple[Sequence[Block], ...]:  # noqa: B006
            raw = []
            for i in range(blocks):
                xs = [o[i] if t is not None else o for o, t in zip(operands, self.moved, strict=True)]
                targets = tuple(
                    xs[d] if d in owned and owned[d][i] else self.backend.empty(xs[d].shape, xs[d].dtype)
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
        outs = raw if isinstance(raw, tuple) else (raw,)
        if self.op.merge is not None:
            return outs
        done = []
        for n, x in enumerate(outs):
            over = self._over(n, x)
            done.append(COMBINE[self.op.reduce](self.backend.xp, x, over) if over else x)
        return tuple(done)

    def _over(self, output: int, x: Block) -> Axes:
        axes = {a for f in self.rule.reduced(output) for a in self.axes.get(f, ())}
        return tuple(a for a in sorted(axes) if x.shape[a] > 1)

    def _combined(self, raw: Sequence[tuple[Block, ...]]) -> tuple[Sequence[Block], ...]:
        op, xp = self.op, self.backend.xp
        if op.merge is not None:
            axes = tuple(a for f in self.rule.reduced(0) for a in self.axes.get(f, ()))
            if axes:
                raw = self._merged(raw, axes)
            if op.finish is not None:
                raw = [op.finish(xp, *r, **self._finish_statics()) for r in raw]
                raw = [r if isinstance(r, tuple) else (r,) for r in raw]
        return tuple(zip(*raw, strict=True))

    def _finish_statics(self) -> dict[str, Any]:
        names = inspect.signature(self.op.finish).parameters  # type: ignore[arg-type]
        return {k: v for k, v in self.static.items() if k in names}

    def _merged(self, raw: Sequence[tuple[Block, ...]], axes: Axes) -> Sequence[tuple[Block, ...]]:
        """One all-gather of all statistics, then the merge in coordinate order, minor axes first."""
        mesh, op = self.mesh, self.op
        p = math.prod(mesh.sizes[a] for a in axes)
        local_bytes = sum(x.nbytes // math.prod(x.shape[: mesh.ndim]) for x in raw[0])
        if p > 1:
            names = tuple(mesh.axis_names[a] for a in axes)
            collective = Collective("all_gather", names, mesh.size * (p - 1) * local_bytes, len(raw[0]))
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

    def _checked(self, execute: Callable[..., Any], run_block: Callable[..., Any]) -> Callable[..., Any]:
        """The first run: checks the promised shapes, learns the dtypes, and clears the way for the rest."""

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
        over = tuple(a for a, (n, k) in enumerate(zip(raw_shape, self.block_shape(0, reduced=True), strict=True)) if n != k)
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
                return plain_body(*[x if f is None else f(x) for f, x in zip(befores, xs, strict=True)])

            body = prepared
        if over:
            combine, xp, whole_body = COMBINE[op.reduce], self.backend.xp, body

            def combined(*xs: Block) -> Block:
                return combine(xp, whole_body(*xs), over)

            return combined
        return body

    def _described(self) -> dict[str, object]:
        names = [self.op._operand_name(i) for i in range(len(self.plan.types))]
        return {n: t if t is not None else "Python scalar" for n, t in zip(names, self.plan.types, strict=True)}

    def _type_error(self, cause: TypeError) -> Exception:
        if isinstance(cause, DtypeError):
            return cause
        return error(DtypeError, self.op.name, str(cause).splitlines()[0], operands=self._described())


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


def op(rule: str | Callable[..., str | RuleSpec], **options: Any) -> Callable[[Callable[..., Any]], Op]:
    """Declare an op: a decorator of its body. See `Op` for the options.

    rule: the sharding rule, or a function `(*types, **statics) -> rule`.
    linear: operands in which the op is linear: `"x, w"` in each alone, `"x + y"` in both together.
    reduce: `sum`, `max`, `min` or `prod`: how shards of a reduced factor combine.
    whole: factors that must not be split.
    fill: what padding of a reduced factor becomes, per operand; the identity of `reduce` if not said, None
        if the body copes with padding by itself (through `shards`).
    merge, finish: for reductions that are no sums: the body returns statistics, `merge(xp, *statistics,
        axis)` combines them along a mesh axis (kept, with length 1), `finish(xp, *statistics)` makes the outputs.
    donate: operands whose memory the outputs may take, see `Op.update`.
    prepare: `(*types, **statics) -> statics`: checks and normalises the statics before a body sees them.
    """

    def declare(body: Callable[..., Any]) -> Op:
        declared = Op(body, rule, **options)
        OPS[declared.name] = declared
        FUNCTIONS[declared.name] = declared
        return declared

    return declare


class Composite:
    """A function of ops that is one entry on the tape, with a gradient of its own.

    Declared as a decorator; `vjp` is that of `Op`. What its gradient needs it returns as outputs.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.name = function, function.__name__.strip("_")
        self.__name__, self.__doc__, self.__module__ = self.name, function.__doc__, function.__module__
        self.vjps: tuple[Vjp | None, ...] = ()
        self.joint_vjp: Vjp | None = None

    vjp = Op.vjp

    def __call__(self, *args: Any, **static: Any) -> Any:
        observers = OBSERVERS.get()
        outer = [o for o in observers if not o.wants_parts]
        if not outer:
            return self.function(*args, **static)
        token = OBSERVERS.set(tuple(o for o in observers if o.wants_parts))
        try:
            out = self.function(*args, **static)
        finally:
            OBSERVERS.reset(token)
        for observer in outer:
            observer.on_op(self, args, static, out)
        return out


def public(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a plain function of ops one of gdt's public functions (and of the array's methods)."""
    FUNCTIONS[function.__name__.rstrip("_")] = function
    return function
