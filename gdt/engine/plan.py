"""Plans: everything about one call of an op that does not depend on data.

A plan is built once per (op, operand types, statics): where each operand moves, what runs on each
block, and the types of the outputs. Its first run checks the shapes that the rule promises and
learns the dtypes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NewType

import numpy as np

from gdt.array.views import Step
from gdt.backend.numpy import Order
from gdt.comm.agreement import Action, call_text
from gdt.comm.notes import note, note_result
from gdt.engine.launcher import KernelBody
from gdt.sharding.array_type import ArrayType
from gdt.sharding.layout import Layout
from gdt.sharding.mesh import Mesh
from gdt.sharding.routes import Transition, route

Block = Any

Execute = Callable[..., tuple[Sequence[Block], ...]]

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


class Plan:
    """Everything about one call that does not depend on data."""

    __slots__ = (
        "execute",
        "fast",
        "fast_update",
        "is_noted",
        "kernel_bodies",
        "moved",
        "moves",
        "only",
        "outs",
        "passes",
        "resolved_when_reread",
        "resolves",
        "routes",
        "scratch",
        "sends",
        "steps",
        "target_layouts",
        "types",
    )

    def __init__(
        self, types: tuple[ArrayType | None, ...], target_layouts: tuple[Layout | None, ...]
    ) -> None:
        self.types, self.target_layouts = types, target_layouts
        self.routes: tuple[tuple[Transition, ...], ...] = tuple(
            route(t, w) if t is not None and w is not None else ()
            for t, w in zip(types, target_layouts, strict=True)
        )
        self.moves = any(self.routes)
        self.is_noted = False  # whether processes compare the calls
        self.sends = self.moves  # or what runs then sends something
        # Operands whose partial reductions are resolved and nothing else, with what they become.
        self.resolves: tuple[tuple[int, ArrayType], ...] = tuple(
            (i, t.with_layout(w))
            for i, (t, w, r) in enumerate(zip(types, target_layouts, self.routes, strict=True))
            if t is not None and w is not None and r and w is t.layout.resolved
        )
        # Operands whose partial reductions pass through the op; and which of all operands are to be
        # resolved where some of them have passed through another op before.
        self.passes: tuple[int, ...] = tuple(
            i
            for i, (t, w) in enumerate(zip(types, target_layouts, strict=True))
            if t is not None and w is not None and any(t.layout.reductions) and any(w.reductions)
        )
        self.sends |= bool(self.passes)  # some calls resolve such an operand first
        self.resolved_when_reread: dict[tuple[int, ...], list[int]] = {}
        self.moved: tuple[ArrayType | None, ...] = tuple(
            t.with_layout(w) if t is not None and w is not None else None
            for t, w in zip(types, target_layouts, strict=True)
        )
        self.outs: tuple[ArrayType, ...] = ()
        # From the operand to the output that is a view of it; () before the first run, and None
        # for other outputs.
        self.steps: tuple[Step, ...] | None = None
        # With one block: from the operands' blocks to the block, or the tuple of blocks, that they
        # make, moves included.
        self.fast: Callable[..., Any] | None = None
        # The type of the only output, if there is a fast path and it sends nothing.
        self.only: ArrayType | None = None
        # The same for donated operands that stay where they are: from blocks, and whether each
        # donated one may be overwritten, to the tuple of blocks that take their place.
        self.fast_update: Callable[..., tuple[Block, ...]] | None = None
        # The operand that the latter may use up, if there is one more flag and that says so; or -1.
        self.scratch = -1
        # Of donated operands that stay where they are, on a backend with kernels: of every block.
        self.kernel_bodies: tuple[KernelBody, ...] = ()
        # From the blocks of every (moved) operand to the blocks of every output.
        self.execute: Execute

    def noted(
        self, run: Execute, mesh: Mesh, name: str, static: Mapping[str, Any], kind: str = "op"
    ) -> Execute:
        """`run`; with several processes, `run` after a note of the call, which they compare.

        kind: of the action, see `agreement.Action`.
        """
        if mesh.num_processes == 1:
            return run
        self.is_noted = True
        action = Action(kind, call_text(name, self.types, static))

        def run_noted(operands: Sequence[Any], *owned: Any) -> tuple[Sequence[Block], ...]:
            numbers = [x for x in operands if isinstance(x, HOST)]
            note(mesh, action, numbers)
            results = run(operands, *owned)
            for array_type, blocks in zip(self.outs, results, strict=True):
                if any(array_type.layout.reductions):
                    note_result(blocks[0])
            return results

        return run_noted

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
