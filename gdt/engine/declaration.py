"""The declaration of an op: one frozen object, of which the planner makes plans."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Concatenate, ParamSpec

import numpy as np

from gdt.arguments import same_arguments
from gdt.errors import ArgumentError, DtypeError, error
from gdt.sharding.array_type import ArrayType
from gdt.sharding.dtypes import BFLOAT16, FLOAT8, FLOAT32, Dtype, kind_of
from gdt.sharding.rule import Rule, RuleSpec, bind, parse

INJECTED = ("out", "block_shape", "shards", "labels", "scratch")
FROM_ENGINE: Any = object()
"""The default of the parameters of a body that calls do not pass: those that the engine injects,
and the statics that `prepare` makes."""
P = ParamSpec("P")
RuleOf = str | Callable[..., str | RuleSpec]


Merging = Generator[tuple[str, Sequence[Any]], Sequence[Any], tuple[Any, ...]]
"""What `merge` of an op returns; see `gdt.engine.merging`."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Declaration:
    """An op as it was declared: rule, body, and how its blocks are combined.

    operands, statics: names of the body's parameters before and after `/`. injected: those that the
    engine fills in, of `INJECTED`. linear: groups of operands in which the op is linear together.
    donated: positions of operands whose memory the outputs may take; output i takes the place of
    donated operand i. scratch: the position of an operand that the op may use up, or -1. views:
    names of the operands whose memory the outputs may share. positions: the parameters that follow
    the operands in a call. extended: those of them that `extension` takes in the place of the body,
    a function of ops, with their defaults; of these, `out` is an array that the result is written
    into. The other fields are the options of `gdt.engine.op.op`, and what `Op.kernel` and
    `Op.specialize` add.
    """

    name: str
    body: Callable[..., Any]
    rule: RuleOf
    operands: tuple[str, ...]
    variadic: bool
    statics: tuple[str, ...]
    required: frozenset[str]
    injected: frozenset[str]
    linear: tuple[tuple[str, ...], ...]
    reduce: str
    whole: frozenset[str]
    fill: Mapping[str, Any]
    merge: Callable[..., Any] | None
    finish: Callable[..., Any] | None
    prepare: Callable[..., dict[str, Any]] | None
    donated: tuple[int, ...]
    scratch: int
    views: frozenset[str]
    computes: bool
    rounded: tuple[str, ...]
    kernel: Callable[..., Any] | None = None
    has_library: bool = False
    takes_bfloat16: bool = False
    joined: Callable[..., Any] | None = None
    specialization: Callable[..., Any] | None = None
    positions: tuple[str, ...] = ()
    extended: Mapping[str, Any] = field(default_factory=dict)
    extension: Callable[..., Any] | None = None

    def operand_name(self, i: int) -> str:
        """Name of the operand at that position, as errors say it."""
        return self.operands[i] if i < len(self.operands) else f"operand {i}"

    def is_viewed(self, i: int) -> bool:
        """Whether outputs may share the memory of the operand at that position."""
        return bool(self.views) and (self.variadic or self.operand_name(i) in self.views)

    def rounds(
        self, types: Sequence[ArrayType | None], static: Mapping[str, Any]
    ) -> tuple[bool, ...] | None:
        """For each output whether it is rounded to bfloat16, or one answer for all of them; None
        for a call that bfloat16 has no part in."""
        dtypes, result_dtype = [t.dtype for t in types if t is not None], asked_dtype(static)
        if not self.computes or BFLOAT16 not in (*dtypes, result_dtype):
            return None
        if self.rounded:
            alike = {n: t for n, t in zip(self.operands, types, strict=True) if t is not None}
            return tuple(n in alike and alike[n].dtype == BFLOAT16 for n in self.rounded)
        if result_dtype is not None:
            return (result_dtype == BFLOAT16,)
        return (all(d == BFLOAT16 for d in dtypes if kind_of(d) in "fc"),)

    def is_linear_in(self, position: int) -> bool:
        """Return whether the op is linear in the operand at a position, whatever the others are."""
        return (self.operand_name(position),) in self.linear

    def bound_rule(
        self, types: Sequence[ArrayType | None], static: dict[str, Any]
    ) -> tuple[Rule, dict[str, int], dict[str, Any]]:
        """The rule for operands of these types (None: a Python scalar), the sizes of its factors,
        and the statics as the body gets them."""
        if self.rounds(types, static) is not None:
            types = wide_types(types)
            if asked_dtype(static) == BFLOAT16:
                static = {**static, "dtype": FLOAT32}
        names = [self.operand_name(i) for i in range(len(types))]
        if self.computes:
            operands = [
                (name, t.dtype) for name, t in zip(names, types, strict=True) if t is not None
            ]
            _check_computable(self.name, [*operands, ("the result", asked_dtype(static))])
        for name in self.required - static.keys():
            raise error(ArgumentError, self.name, f"argument {name!r} is missing")
        if self.prepare is not None:
            static = self.prepare(*types, **static)
        spec = self.rule(*types, **static) if callable(self.rule) else self.rule
        if isinstance(spec, str):
            spec = RuleSpec(spec)
        if self.variadic:
            linear = [frozenset(range(len(types)))] if self.linear else []
        else:
            linear = [frozenset(names.index(n) for n in part) for part in self.linear]
        groups = tuple(part for part in linear if spec.linear and _parts_add_up(part, types))
        ranks = tuple(t.ndim if t is not None else 0 for t in types)
        is_merged = self.merge is not None
        rule = parse(spec.text, ranks, self.whole | spec.whole, groups, self.reduce, is_merged)
        return rule, bind(rule, types, spec.sizes, self.name, names), static


def declaration_of(
    body: Callable[..., Any],
    rule: RuleOf,
    *,
    linear: str = "",
    reduce: str = "sum",
    whole: str = "",
    fill: Mapping[str, Any] | None = None,
    merge: Callable[..., Any] | None = None,
    finish: Callable[..., Any] | None = None,
    donate: str = "",
    scratch: str = "",
    view: str = "",
    prepare: Callable[..., dict[str, Any]] | None = None,
    extended: str = "",
    computes: bool = True,
    rounded: str = "",
    takes_namespace: bool = True,
) -> Declaration:
    """Read the declaration of an op from the signature of its body and the options of `op`.

    takes_namespace: whether the first parameter of the body is the namespace `xp`.

    Raises ArgumentError for a rule without an arrow, and where it lacks a factor of `whole`, and
    for a `merge` that is no generator.
    """
    if merge is not None and not inspect.isgeneratorfunction(merge):
        problem = f"merge of {body.__name__} is no generator"
        remedy = 'Ask for reductions by yield: (total,) = yield "sum", (total,).'
        raise error(ArgumentError, "op", problem, remedy=remedy)
    if rule and isinstance(rule, str):
        _check_rule(rule, whole.split())
    kinds = inspect.Parameter
    parameters = list(inspect.signature(body).parameters.values())[takes_namespace:]
    operands = tuple(p.name for p in parameters if p.kind is kinds.POSITIONAL_ONLY)
    named = [p for p in parameters if p.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)]
    names = {n.strip() for n in extended.split(",")}
    others = {p.name: p.default for p in named if p.name in names}
    passed = [p for p in named if _is_passed(p, names)]
    statics = [p for p in passed if p.name not in others]
    return Declaration(
        name=body.__name__.strip("_"),
        body=body,
        rule=rule,
        operands=operands,
        variadic=any(p.kind is kinds.VAR_POSITIONAL for p in parameters),
        statics=tuple(p.name for p in statics),
        required=frozenset(p.name for p in statics if p.default is p.empty),
        injected=frozenset(
            p.name for p in named if p.name in INJECTED and _takes_memory(p, others)
        ),
        linear=tuple(
            tuple(n.strip() for n in part.split("+")) for part in linear.split(",") if part.strip()
        ),
        reduce=reduce,
        whole=frozenset(whole.split()),
        fill=fill or {},
        merge=merge,
        finish=finish,
        prepare=prepare,
        donated=tuple(operands.index(n.strip()) for n in donate.split(",") if n.strip()),
        scratch=operands.index(scratch) if scratch else -1,
        views=frozenset(view.split()),
        computes=computes and not view,
        rounded=tuple((rounded or donate.replace(",", " ")).split()),
        positions=tuple(p.name for p in passed),
        extended=others,
    )


def same_statics(
    model: Callable[P, Any],
) -> Callable[[Callable[..., Any]], Callable[Concatenate[Any, P], Any]]:
    """A decorator of a body that hands its statics on: it has the operands and the statics of the
    op `model`."""
    return same_arguments(model.declaration.body, eval_str=True)  # type: ignore[attr-defined]


def _check_rule(rule: str, whole: Sequence[str]) -> None:
    if "->" not in rule:
        problem, remedy = f"the rule {rule!r} has no arrow", 'Write "... i -> ... i", say.'
        raise error(ArgumentError, "op", problem, remedy=remedy)
    factors = rule.replace("->", " ").replace(",", " ").split()
    absent = sorted(set(whole).difference(factors))
    if absent:
        problem = f"whole= names {', '.join(absent)}, and the rule {rule!r} does not"
        raise error(ArgumentError, "op", problem)


def signature_of(
    body: Callable[..., Any],
    returns: object,
    takes_namespace: bool = True,
    extended: Collection[str] = (),
) -> inspect.Signature:
    """The signature of calls of the op with this body: its operands and statics, which are given by
    position or by name; and what a call returns."""
    parameters = list(inspect.signature(body, eval_str=True).parameters.values())[takes_namespace:]
    operands = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL)]
    statics = [p for p in parameters if p not in operands and _is_passed(p, extended)]
    is_variadic = any(p.kind is p.VAR_POSITIONAL for p in operands)
    kinds = inspect.Parameter
    kind = kinds.KEYWORD_ONLY if is_variadic else kinds.POSITIONAL_OR_KEYWORD
    shown = [
        *[p.replace(kind=p.kind if is_variadic else kind, annotation=p.empty) for p in operands],
        *[p.replace(kind=kind) for p in statics],
    ]
    return inspect.Signature(shown, return_annotation=returns)


def wide_types(types: Sequence[ArrayType | None]) -> tuple[ArrayType | None, ...]:
    """The types of operands with float32 in place of bfloat16."""
    return tuple(
        t if t is None or t.dtype != BFLOAT16 else ArrayType.of(t.shape, FLOAT32, t.layout)
        for t in types
    )


def asked_dtype(static: Mapping[str, Any]) -> Dtype | None:
    """The dtype that a call asks for by its static `dtype`; None if it does not."""
    try:
        return None if static.get("dtype") is None else np.dtype(static["dtype"])
    except TypeError:  # which the op refuses
        return None


def _check_computable(op: str, dtypes: Iterable[tuple[str, Dtype | None]]) -> None:
    """Raise DtypeError for a dtype that is stored alone, of an operand or of the result."""
    for name, dtype in dtypes:
        if dtype in FLOAT8:
            found = f"{name} has dtype {dtype}, with which gdt does not compute"
            raise error(DtypeError, op, found, remedy="Cast: x.astype('float32').")


def _is_passed(parameter: inspect.Parameter, extended: Collection[str]) -> bool:
    """Whether calls of an op may pass this parameter of its body."""
    is_injected = parameter.name in INJECTED and parameter.name not in extended
    return not is_injected and parameter.default is not FROM_ENGINE


def _takes_memory(parameter: inspect.Parameter, extended: Collection[str]) -> bool:
    """Whether the engine fills in a parameter, of those that it knows: an `out` that calls may pass
    goes to the body as well if its annotation says so."""
    return parameter.name not in extended or "Memory" in str(parameter.annotation)


def _parts_add_up(part: frozenset[int], types: Sequence[ArrayType | None]) -> bool:
    """Whether sums of `part` may stay partial: parts of small integers may have wrapped around, and
    add up to the sum only as long as they are not widened."""
    dtypes = {t.dtype if t is not None else None for t in types}
    part_dtypes = [t.dtype for i in part if (t := types[i]) is not None]
    narrow = any(d.kind == "b" or (d.kind in "iu" and d.itemsize < 8) for d in part_dtypes)
    return not narrow or len(dtypes) == 1
