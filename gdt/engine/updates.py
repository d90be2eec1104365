"""Updates in place: what an op makes of donated operands takes their place, and their memory where
nobody else refers to it."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from functools import partial
from typing import Any

from gdt.array.array import DistributedArray
from gdt.caches import Cache
from gdt.engine.declaration import RuleOf
from gdt.engine.op import Op, declared
from gdt.engine.ownership import OWNERSHIP, is_only_owned_source, is_owned
from gdt.engine.plan import PLAN_BYTES, Block, Plan
from gdt.engine.source import Names, define, written
from gdt.engine.update_launches import UpdateLaunch
from gdt.observe import OBSERVERS, is_recorded


class UpdateOp(Op[..., Any]):
    """An op with donated operands: its outputs take their place, and their memory where nobody else
    refers to it. See `update_op`."""

    def __init__(self, body: Callable[..., Any], rule: RuleOf, **options: Any) -> None:
        super().__init__(body, rule, **options)
        self.multi_tensor_plans: Cache[Callable[[Any, Any, Any], bool]] = Cache(PLAN_BYTES)
        # The kernel of many updates in one launch.
        self.multi_tensor_kernel: Callable[..., None] | None = None

    def update(
        self, owners: Sequence[tuple[MutableMapping[str, Any], str]], *args: Any, **static: Any
    ) -> None:
        """Run an op with donated operands, and put its outputs in their place.

        `owners` says where each donated operand is kept, `mapping[name]`; `args` are the operands
        after those. A block that nobody else refers to is overwritten; any other is left as it is,
        and the output gets memory of its own.
        """
        owned = [is_owned(mapping, name) for mapping, name in owners]
        operands = [mapping[name] for mapping, name in owners]
        operands += args
        types = [a.type if type(a) is DistributedArray else type(a) for a in operands]
        key = (*types, *self.key_of(static))
        plan = self.plans.get(key) or self.plans.older.get(key)
        update = None if plan is None else plan.phase.update
        if plan is not None and update is not None and not is_recorded():
            xs = [a.blocks[0] if type(a) is DistributedArray else a for a in operands]
            made = update(xs, [blocks[0] for blocks in owned])
            outs = tuple([DistributedArray(t, (b,)) for t, b in zip(plan.outs, made, strict=True)])
        else:
            plan = plan or self.plan(operands, static)
            outs = self.run_plan(plan, operands, owned=owned)
            outs = outs if isinstance(outs, tuple) else (outs,)
        if key not in self.plans:
            self.plans[key] = plan
        for (mapping, name), out in zip(owners, outs, strict=True):
            mapping[name] = out
        for observer in OBSERVERS.get():
            observer.on_op(self, tuple(operands), static, outs if len(outs) > 1 else outs[0])

    def multi_tensor(
        self,
        owners: Sequence[Sequence[tuple[MutableMapping[str, Any], str]]],
        others: Sequence[DistributedArray],
        *args: Any,
        **static: Any,
    ) -> None:
        """`update(owners[i], others[i], *args)` for every i, with one lookup of plans for all."""
        if not owners:
            return
        types: list[Any] = []
        for group, other in zip(owners, others, strict=True):
            for mapping, name in group:
                types.append(mapping[name].type)
            types.append(other.type)
        key = (*types, *map(type, args), *(self.key_of(static) if static else ()))
        run = self.multi_tensor_plans.recall(key)
        if run is not None and not OBSERVERS.get() and run(owners, others, args):
            return
        for group, other in zip(owners, others, strict=True):
            self.update(group, other, *args, **static)
        if run is None:
            _remember_all(self, key, owners, others, args, static)


def update_op(
    rule: RuleOf, *, donate: str, scratch: str = "", **options: Any
) -> Callable[[Callable[..., Any]], UpdateOp]:
    """Declare an op that updates in place: a decorator of its body. See `op` for the other options.

    donate: operands whose memory the outputs may take; they come first, and output i takes the
        place of donated operand i.
    scratch: an operand of the type of the first, which the op may use up.
    """
    return lambda body: declared(UpdateOp(body, rule, donate=donate, scratch=scratch, **options))


def _updated_on_host(
    updates: Sequence[Callable[[Any, Block, Any], None]], owners: Any, others: Any, args: Any
) -> bool:
    """Update all by plans that have the short way, see `_in_place`."""
    for in_place, group, other in zip(updates, owners, others, strict=True):
        in_place(group, other.blocks[0], args)
    return True


def _in_place(plan: Plan) -> Callable[[Any, Block, Any], None]:
    """An update of one group of owners by a plan that has the short way: from them, the block of
    the operand that follows and the scalars after that. Parameters may be small and many, so it is
    compiled as one function."""
    donated, count = range(len(plan.outs)), len(plan.types) - len(plan.outs) - 1
    namespace = {"array": DistributedArray, "types": plan.outs, **OWNERSHIP}
    local = ["run", "group", "block", "scalars", "made", *[f"scalar{i}" for i in range(count)]]
    names = Names([*namespace, *local, *[f"{c}{d}" for d in donated for c in ("o", "k", "free")]])
    operands = [f"o{d}[k{d}].blocks[0]" for d in donated]
    operands += ["block", *[f"scalar{i}" for i in range(count)]]
    operands += [f"free{d}" for d in donated] + ["False"] * (plan.phase.scratch >= 0)
    made = written(plan.phase.update.expression, operands, names)  # type: ignore[union-attr]
    names |= namespace
    lines = [
        f"{', '.join(f'(o{d}, k{d})' for d in donated)}, = group",
        *[f"scalar{i} = scalars[{i}]" for i in range(count)],
        *[f"free{d} = {is_only_owned_source(f'o{d}[k{d}]')}" for d in donated],
        f"made = {made}",
        *[f"o{d}[k{d}] = array(types[{d}], (made[{d}],))" for d in donated],
    ]
    return define("run(group, block, scalars)", lines, names)  # type: ignore[no-any-return]


def _remember_all(
    op: UpdateOp, key: tuple[Any, ...], owners: Any, others: Any, args: Any, static: Any
) -> None:
    """Cache how to run many updates at once: by one launch, or by the fast paths of their plans."""
    plans = []
    for group, other in zip(owners, others, strict=True):
        operands = (*[mapping[name] for mapping, name in group], other, *args)
        plans.append(op.plan_of_call(operands, static))
    kernel = op.multi_tensor_kernel
    if kernel is not None and all(plan.phase.kernel_bodies for plan in plans):
        op.multi_tensor_plans[key] = UpdateLaunch(kernel, plans, static)
    elif all(hasattr(plan.phase.update, "expression") for plan in plans):
        op.multi_tensor_plans[key] = partial(_updated_on_host, [_in_place(plan) for plan in plans])
    else:
        op.multi_tensor_plans[key] = _updated_one_by_one


def _updated_one_by_one(owners: Any, others: Any, args: Any) -> bool:
    """Leave updates to their own plans, where blocks are several."""
    return False
