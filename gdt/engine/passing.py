"""Partial reductions that an op passes on to its result, and those that are resolved instead.

A sum that passes through two ops is carried out twice, once for each result. So an array remembers
that an op has passed its reduction on, and the next op may resolve it. It remembers its resolved
value too, for the ops that read the array later.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gdt.array.array import DistributedArray
from gdt.array.moving import move_to_layouts
from gdt.engine.declaration import Declaration
from gdt.engine.plan import Plan
from gdt.sharding.strategy import choose


def resolved_operands(
    op: Declaration, plan: Plan, args: Sequence[Any], static: dict[str, Any]
) -> Sequence[Any] | None:
    """The operands of a call whose plan passes partial reductions on, with some of them
    resolved in one bundle; None if they are to pass.

    Resolved are those of which the value is known, or is needed by this very call; else those
    that another op has passed on before, unless `choose` finds that passing them on again is
    cheaper.
    """
    for i in plan.passes:  # without the comprehensions below, as nearly all calls end here
        if args[i]._resolved is not None or hasattr(args[i], "_passed"):
            break
    else:
        if not plan.resolves:
            for i in plan.passes:
                args[i]._passed = True
            return None
    arrays = [(i, a) for i, a in enumerate(args) if type(a) is DistributedArray]
    partial = [(i, a) for i, a in arrays if any(a.type.layout.reductions)]
    positions = [i for i, a in partial if a._resolved is not None]
    if not positions:
        others = [args[i] for i, _ in plan.resolves]
        positions = [i for i in plan.passes if any(args[i] is other for other in others)]
    reread = tuple([i for i in plan.passes if hasattr(args[i], "_passed")])
    if not positions and reread:
        if reread not in plan.resolved_when_reread:
            rule, sizes, _ = op.bound_rule(plan.types, static)
            passed = choose(rule, plan.types, sizes, frozenset(reread)).passed()
            plan.resolved_when_reread[reread] = [i for i in plan.passes if i not in passed]
        positions = plan.resolved_when_reread[reread]
    if positions:
        args = [
            a._resolved if i in positions and a._resolved is not None else a
            for i, a in enumerate(args)
        ]
        layouts = [a.layout.resolved if i in positions else None for i, a in enumerate(args)]
        return move_to_layouts(args, layouts, op=op.name)
    for i in plan.passes:
        args[i]._passed = True
    return None
