"""Plans: everything about one call of an op that does not depend on data.

A plan is built once per (op, operand types, statics): where each operand moves, what runs on each
block, and the types of the outputs. Its first run checks the shapes that the rule promises and
learns the dtypes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NewType

import numpy as np

from gdt.array.views import Step
from gdt.backend.numpy import Order
from gdt.comm.agreement import Action, call_text
from gdt.comm.notes import note, note_result
from gdt.engine.launcher import KernelBody
from gdt.engine.source import Expression
from gdt.sharding.array_type import ArrayType
from gdt.sharding.layout import Layout
from gdt.sharding.mesh import Mesh
from gdt.sharding.routes import Transition, route

Block = Any

Results = tuple[Sequence[Block], ...]  # for each output its blocks

Memory = NewType("Memory", object)
"""An array that the engine lets a body write into. Users have no values of this type, so that type
checkers refuse `out=` in calls of ops."""

NUMBERS = (int, float, complex, np.generic)
HOST = (*NUMBERS, np.ndarray)  # of a number that is an operand; not in the memory of a GPU


class Shards(NamedTuple):
    """For one block, what a body needs to know about the shards of each factor.

    start[f]: global index at which the shard of factor f begins, int64, shaped as the block's mesh
    axes. valid[f]: how many of its elements are not padding, shaped alike. size[f]: global size.
    split: the factors that are cut over several coordinates; uneven: those whose shards have
    padding.
    """

    start: Mapping[str, Any]
    valid: Mapping[str, Any]
    size: Mapping[str, int]
    split: frozenset[str]
    uneven: frozenset[str]


# Types of which equal values mean the same.
EXACT: set[Any] = {int, bool, str, type(None), type, ArrayType, Layout}
EXACT |= {type(np.dtype(code)) for code in np.typecodes["All"]}
INTS = {int}


def value_key(value: Any) -> tuple[Any, Any]:
    """A key that two values share only if they are of one type and mean the same: 0.0 is not -0.0,
    1 is not True, and any NaN is as good as another."""
    kind: Any = type(value)
    if kind is float:  # the text of a float takes longer than its hash
        return kind, value if value and value == value else repr(value)
    if kind is tuple and EXACT.issuperset(kinds := tuple(map(type, value))):
        return tuple if INTS.issuperset(kinds) else kinds, value
    if kind not in EXACT:
        if isinstance(value, tuple):
            value = tuple(map(value_key, value))
        elif isinstance(value, NUMBERS):
            value = repr(value)
    return kind, value


class Labels:
    """Mesh axes and factors along the block of every operand and of the output of a contraction.

    terms: one tuple per operand, then the output's; None labels a dim of length 1. order: the
    output's dims by their order in memory, slowest first; None if that is their own order.
    function: the function that contracts the blocks, once the contraction has chosen it.
    """

    __slots__ = ("function", "order", "terms")

    def __init__(self, terms: tuple[tuple[Any, ...], ...], order: Order = None) -> None:
        self.terms, self.order = terms, order
        self.function: Callable[..., Block] | None = None


class Phase:
    """A phase of a plan: the work that it does at present; see the figure in `gdt.engine`.

    expression: of a function of the blocks of all operands, as a program writes it into its source;
        None where `run` has to be called. The others are those of an update, see
        `gdt.engine.donated`.
    """

    expression: Expression | None = None
    update: Callable[..., tuple[Block, ...]] | None = None
    scratch = -1
    kernel_bodies: tuple[KernelBody, ...] = ()

    def run(self, operands: Sequence[Any], free: Sequence[Sequence[bool]]) -> Results:
        """Compute the blocks of every output from the operands, which have moved: the blocks of an
        array, or a Python scalar. free: for each donated operand, which blocks it may overwrite."""
        raise NotImplementedError


class Plan:
    """Everything about one call that does not depend on data.

    types: of the operands; None for a Python scalar. target_layouts: to which each operand moves
    first; None leaves it as it is. moved: the types of the operands then. outs: the types of the
    outputs, from the first run on. phase: what runs.
    """

    __slots__ = (
        "exchanged",
        "fast",
        "forms",
        "moved",
        "moves",
        "noted",
        "only",
        "outs",
        "passes",
        "phase",
        "resolved_when_reread",
        "resolves",
        "routes",
        "sends",
        "settled",
        "steps",
        "target_layouts",
        "types",
    )

    def __init__(
        self, types: tuple[ArrayType | None, ...], target_layouts: tuple[Layout | None, ...]
    ) -> None:
        self.types, self.target_layouts = types, target_layouts
        pairs = list(zip(types, target_layouts, strict=True))
        self.routes: tuple[tuple[Transition, ...], ...] = tuple(
            route(t, w) if t is not None and w not in (None, t.layout) else () for t, w in pairs
        )
        self.moves = any(self.routes)
        self.moved: tuple[ArrayType | None, ...] = tuple(
            t.with_layout(w) if t is not None and w is not None else None for t, w in pairs
        )
        # The operands whose partial reductions are resolved and that do not move besides, with the
        # types that they have then.
        self.resolves: tuple[tuple[int, ArrayType], ...] = tuple(
            (i, m)
            for i, (t, m) in enumerate(zip(types, self.moved, strict=True))
            if t is not None and m is not None and m is not t and m.layout is t.layout.resolved
        )
        # The operands whose partial reductions pass through the op; and, by those of them that
        # another op has passed on before, the ones to resolve.
        self.passes: tuple[int, ...] = tuple(
            i
            for i, (t, w) in enumerate(pairs)
            if t is not None and w is not None and any(t.layout.reductions) and any(w.reductions)
        )
        self.resolved_when_reread: dict[tuple[int, ...], list[int]] = {}
        # The operands that are sent so that no device gets more of them than it has; by the types
        # of the forms that are kept of operands, which of them to take in their place; and, by the
        # layouts of those that have moved, whether the call comes to an end with them.
        self.exchanged: tuple[int, ...] = tuple(
            i
            for i, (t, m) in enumerate(zip(types, self.moved, strict=True))
            if t is not None
            and m is not None
            and any(step.nbytes for step in self.routes[i])
            and not any(m.layout.reductions)
            and m.layout is not t.layout.resolved
            and math.prod(m.layout.shard_counts) >= math.prod(t.layout.shard_counts)
        )
        self.forms: dict[tuple[ArrayType | None, ...], list[int]] = {}
        self.settled: dict[tuple[Layout | None, ...], bool] = {}
        # Whether a call sends something: the operands move, or some calls resolve one, or the
        # phase sends.
        self.sends = self.moves or bool(self.passes)
        # The mesh and the action of which its processes make a note in each call.
        self.noted: tuple[Mesh, Action] | None = None
        self.outs: tuple[ArrayType, ...] = ()
        # From the operand to the output that is a view of it; () before the first run, and None
        # for other outputs.
        self.steps: tuple[Step, ...] | None = None
        # On a mesh of one block, from the first run on: from the operands' blocks, which have not
        # moved, to the block, or the tuple of blocks, of the outputs.
        self.fast: Callable[..., Any] | None = None
        # The type of the only output, if `fast` makes it and sends nothing.
        self.only: ArrayType | None = None
        self.phase: Phase

    def note(self, mesh: Mesh, name: str, static: Mapping[str, Any], kind: str = "op") -> None:
        """Have the processes of a mesh note the calls of this plan, of the op `name`.

        kind: of the action, see `agreement.Action`.
        """
        if mesh.num_processes > 1:
            self.noted = mesh, Action(kind, call_text(name, self.types, static))

    def run(self, operands: Sequence[Any], free: Sequence[Sequence[bool]] = ()) -> Results:
        """As `Phase.run`, after a note of the call where processes compare them."""
        if self.noted is None:
            return self.phase.run(operands, free)
        note(*self.noted, [x for x in operands if isinstance(x, HOST)])
        results = self.phase.run(operands, free)
        for array_type, blocks in zip(self.outs, results, strict=True):
            if any(array_type.layout.reductions):
                note_result(blocks[0])
        return results

    def set_fast(self, fast: Callable[..., Any]) -> None:
        """Set the fast path of a plan whose output types are set."""
        self.fast = fast
        if len(self.outs) == 1 and not self.sends:
            (self.only,) = self.outs

    def __repr__(self) -> str:
        """The types of operands and outputs; of operands that move, their transitions and bytes."""
        lines = []
        for i, (have, target) in enumerate(zip(self.types, self.target_layouts, strict=True)):
            transitions = ", ".join(f"{t.collective} {t.nbytes:,} bytes" for t in self.routes[i])
            moves = f" -> {target}: {transitions}" if transitions else ""
            lines.append(f"operand {i}: {'Python scalar' if have is None else have}{moves}")
        lines += [f"output {i}: {t}" for i, t in enumerate(self.outs)]
        return "\n".join(lines)


PLAN_BYTES = 10_000  # an estimate of what a plan takes, with its types and functions
