"""Ops: one operation, declared once, and the plans that run it on blocks.

    @op("... i k, k j -> ... i j", linear="x, w")
    def matmul(xp, x, w, /):
        return xp.matmul(x, w)

The parameters after the namespace `xp` and before `/` are the operands; the others are statics,
part of the plan's key. A body may name, after `*`, what the engine knows and it needs:

- `out`: the array(s) to write into, or None; a body that takes it gets recycled or donated memory,
  whose axes may lie in any order: a reshape of it may be a copy. What it returns is never a view
  of an operand;
- `block_shape`: the shape of the block that the first output has;
- `shards`: where the shards of each factor begin, and how many of their elements are valid;
- `scratch`: the memory of the operand that `scratch=` names, where a program knows that nobody
  reads it afterwards, or None;
- `labels`: for contractions, the mesh axes and factors of every operand's and the output's block.

Bodies address array axes from the end: the leading axes of a block are mesh axes. They return what
each coordinate computes; the engine combines coordinates inside a block, and leaves the rest
pending.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from gdt import updates
from gdt.arguments import MISFITS, misfit_value, of_all_arguments, out_of_memory
from gdt.array import DistributedArray
from gdt.errors import ArgumentError, GdtError, error
from gdt.layout import ArrayType
from gdt.observe import OBSERVERS, is_recorded, ran
from gdt.operands import SCALARS, bind_arguments, converted, hashable_statics
from gdt.plan import Plan, Plans, exact_key, takes_numbers
from gdt.plan_builder import PlanBuilder
from gdt.registry import FUNCTIONS
from gdt.relayout import run_routes
from gdt.rule import Rule, RuleSpec, Way, bind, check_meshes, choose, parse

Vjp = Callable[..., Any]
F = TypeVar("F", bound=Callable[..., Any])

OPS: dict[str, Op] = {}
INJECTED = ("out", "block_shape", "shards", "labels", "scratch")


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
        scratch: str = "",
        prepare: Callable[..., dict[str, Any]] | None = None,
    ) -> None:
        self.body, self.rule, self.name = body, rule, body.__name__.rstrip("_")
        self.__name__, self.__doc__, self.__module__ = self.name, body.__doc__, body.__module__
        parameters = list(inspect.signature(body).parameters.values())[1:]
        kinds = inspect.Parameter
        self.operands = [p.name for p in parameters if p.kind is kinds.POSITIONAL_ONLY]
        self.variadic = any(p.kind is kinds.VAR_POSITIONAL for p in parameters)
        named = [
            p.name
            for p in parameters
            if p.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)
        ]
        self.statics = [n for n in named if n not in INJECTED]
        # Then equal statics need not mean the same: 0.0 is -0.0, and 1 is True.
        self.takes_numbers = takes_numbers(p for p in parameters if p.name in self.statics)
        self.injected = {n for n in named if n in INJECTED}
        self.required = {
            p.name for p in parameters if p.name in self.statics and p.default is p.empty
        }
        self.count = -1 if self.variadic else len(self.operands)
        self.linear = [
            [n.strip() for n in part.split("+")] for part in linear.split(",") if part.strip()
        ]
        self.reduce, self.whole, self.fill = reduce, frozenset(whole.split()), fill or {}
        self.merge, self.finish, self.prepare = merge, finish, prepare
        # Donated operands come first; output i takes the place of donated operand i.
        self.donated = [self.operands.index(n.strip()) for n in donate.split(",") if n.strip()]
        self.scratch = self.operands.index(scratch) if scratch else -1
        self.plans: Plans[Plan] = Plans()
        self.plans_of_all: Plans[Callable[[Any, Any, Any], bool]] = Plans()
        self.vjps: tuple[Vjp | None, ...] = ()
        self.joint_vjp: Vjp | None = None
        self.kernel_body: Callable[..., Any] | None = None
        self.has_library = False
        self.specialization: Callable[..., Any] | None = None
        # Of an op with donated operands: the kernel of many updates in one launch.
        self.kernel_of_all: Callable[..., None] | None = None

    def __repr__(self) -> str:
        return f"<op {self.name}>"

    def __reduce__(self) -> tuple[object, ...]:
        """By module and name, as functions are; a copy is the op itself."""
        return declared_op, (self.__module__, self.name)

    def vjp(self, *per_operand: Vjp | None, joint: Vjp | None = None) -> None:
        """Declare gradients: one function `(g, out, *operands, **statics) -> cotangent` per
        operand, None for one that has none; or one `joint` function that returns the tuple of all
        of them.

        Of an op with several outputs, `g` and `out` are tuples, and `g` has None for an output
        without cotangent.
        """
        self.vjps, self.joint_vjp = per_operand, joint

    def kernel(self, function: F, *, has_library: bool = False) -> F:
        """Declare a kernel: a function like the body, with a `Launcher` in the place of `xp`. It
        takes the statics, and of `INJECTED` what the body takes; see `gdt.launcher`.

        has_library: whether the body calls a library of GPU kernels, between which and gdt's own
        `gdt.matmul_backend` chooses.
        """
        self.kernel_body, self.has_library = function, has_library
        return function

    def specialize(self, function: F) -> F:
        """Declare what runs in the body's place on the host: a function of the body, of what the
        first call passes to it and of the statics, which returns it, or None; see
        `gdt.specialization`."""
        self.specialization = function
        return function

    # ---- calling

    def __call__(self, *args: Any, **static: Any) -> Any:
        if len(args) > self.count >= 0:
            args, static = self._named(args, static)
        types: list[Any] = []
        blocks: list[Any] = []  # the only ones; a list here costs less than a comprehension below
        for a in args:
            kind = type(a)
            if kind is DistributedArray:
                types.append(a.type)
                blocks.append(a.blocks[0])
            elif kind in SCALARS:
                types.append(kind)
                blocks.append(a)
            else:
                return self._convert(args, static)
        if static:
            types.extend(static.items())
            if self.takes_numbers:
                types.extend(map(exact_key, static.values()))
        key = tuple(types)
        try:
            plan = self.plans.get(key)
        except TypeError:  # a static that cannot be hashed, such as a list
            plan = key = None  # type: ignore[assignment]
        try:
            if plan is None:
                if key is None or not self._is_bound(args, static):
                    return self._convert(args, static)
                plan = self._plan(args, static)
                out = self._general(plan, args)
                self.plans[key] = plan  # only a plan that has run is kept
                observers = OBSERVERS.get()
            elif plan.quick is not None:
                observers = OBSERVERS.get()
                if plan.moves and (plan.resolves or observers):
                    return self._with_moves(plan, args, static, observers, blocks)
                if plan.only is not None:
                    out = DistributedArray(plan.only, (plan.quick(*blocks),))
                else:
                    out = _wrapped(plan, plan.quick(*blocks))
            else:
                out = self._general(plan, args)
                observers = OBSERVERS.get()
        except GdtError:
            raise
        except MISFITS as cause:
            raise self._blamed(args, static, cause) from cause
        if observers:
            for observer in observers:
                observer.on_op(self, args, static, out)
        return out

    def _blamed(
        self, args: Sequence[Any], static: Mapping[str, Any], cause: Exception
    ) -> Exception:
        """What the arguments did wrong, for an error of Python's that they caused."""
        if isinstance(cause, MemoryError):
            return out_of_memory(self.name, cause)
        given = {self.operand_name(i): a for i, a in enumerate(args)} | dict(static)
        return misfit_value(self.body, self.name, static) or of_all_arguments(
            self.name, given, cause
        )

    def _with_moves(
        self,
        plan: Plan,
        args: tuple[Any, ...],
        static: dict[str, Any],
        observers: Sequence[Any],
        blocks: Sequence[Any],
    ) -> Any:
        """A call on one block whose operands move: the short way, unless somebody watches moves."""
        for observer in observers:
            if observer.wants_moves:
                out = self._general(plan, args)
                break
        else:
            made = plan.quick(*blocks)  # type: ignore[misc]
            for i, kind in plan.resolves:
                if args[i]._resolved is None:
                    args[i]._resolved = DistributedArray(kind, args[i].blocks)
            out = _wrapped(plan, made)
        for observer in observers:
            observer.on_op(self, args, static, out)
        return out

    def _named(
        self, args: tuple[Any, ...], static: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Statics that were given by position, by name."""
        given = args[self.count :]
        if len(given) == 1 and self.statics and not static:  # as most calls are
            return args[: self.count], {self.statics[0]: given[0]}
        if len(given) > len(self.statics) or static.keys() & set(self.statics[: len(given)]):
            return self.bind_arguments(args, static)
        return args[: self.count], dict(zip(self.statics, given, strict=False)) | static

    def _is_bound(self, args: tuple[Any, ...], static: dict[str, Any]) -> bool:
        """Whether operands are given by position, statics by name, and one operand is an array."""
        counted = len(args) == self.count or self.count < 0
        named = static.keys() <= set(self.statics)
        return counted and named and any(type(a) is DistributedArray for a in args)

    def _general(
        self, plan: Plan, args: Sequence[Any], owned: Sequence[Sequence[bool]] = ()
    ) -> Any:
        operands = self._moved(plan, args) if plan.moves else _blocks(args)
        results = plan.execute(operands, owned) if self.donated else plan.execute(operands)
        if is_recorded():
            self._report_run(plan, operands, results)
        outs = [DistributedArray(t, tuple(b)) for t, b in zip(plan.outs, results, strict=True)]
        return outs[0] if len(outs) == 1 else tuple(outs)

    def _report_run(
        self, plan: Plan, operands: Sequence[Any], results: Sequence[Sequence[Any]]
    ) -> None:
        if self.donated:
            for observer in OBSERVERS.get():
                observer.on_update(self.name, plan, self.donated, operands, results)
        elif plan.quick is None:
            ran(self.name, lambda *xs: plan.execute(xs), operands, results, self)

    def _moved(self, plan: Plan, args: Sequence[Any]) -> list[Any]:
        """The operands' blocks in the layouts that the plan wants; what must be resolved is
        resolved together, and once."""
        routes, operands = list(plan.routes), _blocks(args)
        resolving: dict[int, list[int]] = {}  # by array: an operand may be given twice
        for i, (a, wanted) in enumerate(zip(args, plan.wanted, strict=True)):
            if routes[i] and wanted is a.layout.resolved:
                if a._resolved is not None:
                    routes[i], operands[i] = (), a._resolved.blocks
                else:
                    resolving.setdefault(id(a), []).append(i)
        for same in resolving.values():
            for i in same[1:]:
                routes[i] = ()
        moving = tuple(w if r else None for w, r in zip(plan.wanted, routes, strict=True))
        for observer in OBSERVERS.get():
            observer.on_move(self.name, plan.types, moving)
        arrays = [i for i, t in enumerate(plan.types) if t is not None]
        moved = run_routes([routes[i] for i in arrays], [operands[i] for i in arrays])
        for i, blocks in zip(arrays, moved, strict=True):
            operands[i] = blocks
        for first, *others in resolving.values():
            a, blocks = args[first], operands[first]
            a._resolved = DistributedArray(a.type.with_layout(a.layout.resolved), tuple(blocks))
            for i in others:
                operands[i] = blocks
        return operands

    def _convert(self, args: tuple[Any, ...], static: dict[str, Any]) -> Any:
        """Bring arguments to the form that a key needs, and call again."""
        if self.count >= 0:
            if static or len(args) != self.count:
                args, static = self.bind_arguments(args, static)
        elif not args or not static.keys() <= set(self.statics):
            given = ", ".join(static.keys() - set(self.statics)) or "no operands"
            raise error(
                ArgumentError,
                self.name,
                f"got {given}",
                remedy=f"It takes arrays and {self.statics}.",
            )
        static = hashable_statics(self.name, static)
        return self(*converted(self.name, args, self.operand_name), **static)

    def plan_of_call(self, args: Sequence[Any], static: Mapping[str, Any]) -> Plan:
        """The plan of a call that has been made, from what an observer was told of it."""
        types = [a.type if type(a) is DistributedArray else type(a) for a in args]
        return self.plans[(*types, *self._key_of(static))]

    def _key_of(self, static: Mapping[str, Any]) -> tuple[Any, ...]:
        """The part of a plan's key that is of statics."""
        key = (*static.items(),)
        return (*key, *map(exact_key, static.values())) if self.takes_numbers else key

    def bind_arguments(
        self, args: tuple[Any, ...], static: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Operands by position, statics by name."""
        return bind_arguments(self.name, self.operands, self.statics, args, static)

    def operand_name(self, i: int) -> str:
        """Name of the operand at that position, as errors say it."""
        return self.operands[i] if i < len(self.operands) else f"operand {i}"

    # Of an op with donated operands.
    update, update_all = updates.update, updates.update_all

    # ---- planning

    def _plan(self, args: Sequence[Any], static: dict[str, Any]) -> Plan:
        types = tuple(a.type if type(a) is DistributedArray else None for a in args)
        names = [self.operand_name(i) for i in range(len(args))]
        check_meshes(types, self.name, names)
        rule, sizes, static = self.bound_rule(types, static)
        return self.plan_of(types, rule, sizes, static, choose(rule, types, sizes))

    def bound_rule(
        self, types: Sequence[ArrayType | None], static: dict[str, Any]
    ) -> tuple[Rule, dict[str, int], dict[str, Any]]:
        """The rule for operands of these types (None: a Python scalar), the sizes of its factors,
        and the statics as the body gets them."""
        names = [self.operand_name(i) for i in range(len(types))]
        for name in self.required - static.keys():
            raise error(ArgumentError, self.name, f"argument {name!r} is missing")
        if self.prepare is not None:
            static = self.prepare(*types, **static)
        spec = self.rule(*types, **static) if callable(self.rule) else self.rule
        if isinstance(spec, str):
            spec = RuleSpec(spec)
        linear = (
            tuple(frozenset(names.index(n) for n in part) for part in self.linear)
            if not self.variadic
            else ()
        )
        if self.variadic and self.linear:
            linear = (frozenset(range(len(types))),)
        linear = tuple(part for part in linear if spec.linear and _parts_add_up(part, types))
        ranks = tuple(t.ndim if t is not None else 0 for t in types)
        rule = parse(
            spec.text, ranks, self.whole | spec.whole, linear, self.reduce, self.merge is not None
        )
        return rule, bind(rule, types, spec.sizes, self.name, names), static

    def plan_of(
        self,
        types: tuple[ArrayType | None, ...],
        rule: Rule,
        sizes: Mapping[str, int],
        static: Mapping[str, Any],
        way: Way,
    ) -> Plan:
        """The plan that runs the op in one of the ways that its rule allows."""
        plan = Plan(types, way.wanted)
        PlanBuilder(self, plan, rule, sizes, way.axes, way.outs, static).build()
        return plan


def _wrapped(plan: Plan, made: Any) -> Any:
    """The output, or the tuple of outputs, that one block's run has made."""
    if len(plan.outs) == 1:
        return DistributedArray(plan.outs[0], (made,))
    return tuple([DistributedArray(t, (b,)) for t, b in zip(plan.outs, made, strict=True)])


def _parts_add_up(part: frozenset[int], types: Sequence[ArrayType | None]) -> bool:
    """Whether sums of `part` may stay pending: parts of small integers may have wrapped around, and
    add up to the sum only as long as they are not widened."""
    dtypes = {t.dtype if t is not None else None for t in types}
    held = [t.dtype for i in part if (t := types[i]) is not None]
    narrow = any(d.kind == "b" or (d.kind in "iu" and d.itemsize < 8) for d in held)
    return not narrow or len(dtypes) == 1


def _blocks(args: Sequence[Any]) -> list[Any]:
    return [a.blocks if type(a) is DistributedArray else a for a in args]


def op(
    rule: str | Callable[..., str | RuleSpec], **options: Any
) -> Callable[[Callable[..., Any]], Op]:
    """Declare an op: a decorator of its body. See `Op` for the options.

    rule: the sharding rule, or a function `(*types, **statics) -> rule`.
    linear: operands in which the op is linear: `"x, w"` in each alone, `"x + y"` in both together.
    reduce: `sum`, `max`, `min` or `prod`: how shards of a reduced factor combine.
    whole: factors that must not be split.
    fill: what padding of a reduced factor becomes, per operand; the identity of `reduce` if not
        said, None if the body copes with padding by itself (through `shards`).
    merge, finish: for reductions that are no sums: the body returns statistics (a tuple, or an
        array if it is one), `merge(xp, *statistics, axis)` combines them along a mesh axis (kept,
        with length 1), `finish(xp, *statistics)` makes the outputs. Without `merge`, `finish`
        scales what a block holds of a sum, and must be linear. It may name statics, and `count`,
        the number of elements reduced.
    donate: operands whose memory the outputs may take, see `Op.update`.
    scratch: an operand of the type of the first, which such an op may use up.
    prepare: `(*types, **statics) -> statics`: checks and normalises the statics before a body sees
    them.
    """

    def declare(body: Callable[..., Any]) -> Op:
        declared = Op(body, rule, **options)
        OPS[declared.name] = declared
        FUNCTIONS[declared.name] = declared
        return declared

    return declare


def declared_op(module: str, name: str) -> Op:
    """The op of that name, which importing the module declares."""
    importlib.import_module(module)
    return OPS[name]
