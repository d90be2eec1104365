"""Updates in place: what an op makes of donated operands takes their place, and their memory where
nobody else refers to it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

from gdt.array import DistributedArray
from gdt.backend import backend_of
from gdt.backend.numpy import ONE_REFERENCE
from gdt.observe import OBSERVERS, is_recorded
from gdt.plan import Plan

if TYPE_CHECKING:
    from gdt.op import Op


def update(
    op: Op, owners: Sequence[tuple[MutableMapping[str, Any], str]], *args: Any, **static: Any
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
    key = (*types, *op._key_of(static))
    plan = op.plans.get(key)
    if plan is not None and plan.quick_update is not None and not is_recorded():
        xs = [a.blocks[0] if type(a) is DistributedArray else a for a in operands]
        made = plan.quick_update(xs, [blocks[0] for blocks in owned])
        outs = tuple([DistributedArray(t, (b,)) for t, b in zip(plan.outs, made, strict=True)])
    else:
        plan = plan or op._plan(operands, static)
        outs = op._general(plan, operands, owned)
        outs = outs if isinstance(outs, tuple) else (outs,)
        op.plans[key] = plan
    for (mapping, name), out in zip(owners, outs, strict=True):
        mapping[name] = out
    for observer in OBSERVERS.get():
        observer.on_op(op, tuple(operands), static, outs if len(outs) > 1 else outs[0])


def update_all(
    op: Op,
    owners: Sequence[Sequence[tuple[MutableMapping[str, Any], str]]],
    others: Sequence[DistributedArray],
    *args: Any,
    **static: Any,
) -> None:
    """`update(owners[i], others[i], *args)` for every i, with one lookup of plans for all."""
    types: list[Any] = []
    for group, other in zip(owners, others, strict=True):
        for mapping, name in group:
            types.append(mapping[name].type)
        types.append(other.type)
    key = (*types, *map(type, args), *op._key_of(static))
    plans = op.plans_of_all.get(key)
    if plans and not OBSERVERS.get():
        if not plans[0].kernel_bodies:
            _update_on_host(plans, owners, others, args)
            return
        if _launched_for_all(op, plans, owners, others, args, static):
            return
    for group, other in zip(owners, others, strict=True):
        op.update(group, other, *args, **static)
    if not plans:
        _remember_all(op, key, owners, others, args, static)


def _update_on_host(plans: Sequence[Plan], owners: Any, others: Any, args: Any) -> None:
    """Update all by plans that have the short way."""
    for group, other, plan in zip(owners, others, plans, strict=True):
        free = [is_owned(mapping, name)[0] for mapping, name in group]
        blocks = [mapping[name].blocks[0] for mapping, name in group]
        made = plan.quick_update((*blocks, other.blocks[0], *args), free)  # type: ignore[misc]
        for (mapping, name), kind, block in zip(group, plan.outs, made, strict=True):
            mapping[name] = DistributedArray(kind, (block,))


def _remember_all(
    op: Op, key: tuple[Any, ...], owners: Any, others: Any, args: Any, static: Any
) -> None:
    """Keep the plans of an `update_all`, if each of them has the short way."""
    found = []
    for group, other in zip(owners, others, strict=True):
        operands = (*[mapping[name] for mapping, name in group], other, *args)
        found.append(op.plan_of_call(operands, static))
    if all(plan.quick_update is not None or plan.kernel_bodies for plan in found):
        op.plans_of_all[key] = tuple(found)


def _launched_for_all(
    op: Op, plans: Sequence[Plan], owners: Any, others: Any, args: Any, static: Any
) -> bool:
    """Update all by the op's kernel, in one launch for each block and dtype; False if it does
    not apply."""
    launch = op.kernel_of_all
    if launch is None or not all(k.applies for p in plans for k in p.kernel_bodies):
        return False
    owned = [[is_owned(mapping, name) for mapping, name in group] for group in owners]
    arrays = [
        (*[mapping[name].blocks for mapping, name in group], other.blocks)
        for group, other in zip(owners, others, strict=True)
    ]
    made = [
        body.update_all(
            launch,
            [tuple([blocks[i] for blocks in xs]) for xs in arrays],
            [a.blocks[i] if type(a) is DistributedArray else a for a in args],
            [[mine[i] for mine in own] for own in owned],
            static,
        )
        for i, body in enumerate(plans[0].kernel_bodies)
    ]
    for n, (group, plan) in enumerate(zip(owners, plans, strict=True)):
        for d, ((mapping, name), kind) in enumerate(zip(group, plan.outs, strict=True)):
            mapping[name] = DistributedArray(kind, tuple(blocks[n][d] for blocks in made))
    return True


def is_owned(mapping: Mapping[str, Any], name: str) -> list[bool]:
    """For every block of the array in `mapping[name]`, whether nothing else refers to it."""
    count = sys.getrefcount
    if count(mapping[name]) != ONE_REFERENCE or count(mapping[name].blocks) != ONE_REFERENCE:
        return [False] * len(mapping[name].blocks)
    array = mapping[name]
    if array._resolved is not None:
        return [False] * len(array.blocks)
    owned = []
    for i in range(len(array.blocks)):
        alone = count(array.blocks[i]) == ONE_REFERENCE
        if alone and array.blocks[i].base is not None:
            # In no variable, which CPython 3.14 counts once and others twice.
            references = count(array.blocks[i].base)
            alone = references == ONE_REFERENCE + _is_of_pool(array, i)
        owned.append(alone and getattr(array.blocks[i].flags, "writeable", True))  # CuPy's all are
    return owned


def _is_of_pool(array: DistributedArray, i: int) -> bool:
    """Whether the memory of block `i` is the backend's, which then refers to it too."""
    return backend_of(array.mesh).owns(array.blocks[i].base)
