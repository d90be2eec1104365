"""Moving: arrays in new layouts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gdt.comm.agreement import HISTORIES, origin_of
from gdt.comm.relayout import run_routes
from gdt.observe import OBSERVERS
from gdt.sharding.layout import Layout
from gdt.sharding.routes import route


def move_to_layouts(
    arrays: Sequence[Any],
    layouts: Sequence[Layout | None],
    *,
    op: str = "",
    overlapped: bool = False,
) -> list[Any]:
    """Return arrays of one mesh in new layouts; reductions that can travel together do.

    An array remembers its value, resolved or moved, so nothing is resolved twice.

    layouts: None leaves an array, or a Python scalar, as it is. op: the name of an op that needs
    the arrays so without having been asked to move them. overlapped: devices may compute meanwhile;
    the results must not be used before `gdt.comm.relayout.join`, nor remembered before that.
    """
    results, sources = list(arrays), list(arrays)
    moving: dict[Any, list[int]] = {}  # positions; an array may be given twice
    for i, layout in enumerate(layouts):
        if layout is None or layout is arrays[i].type.layout:
            continue
        form, have = arrays[i]._resolved, arrays[i].type.layout
        if form is not None and not any(layout.reductions):
            results[i] = sources[i] = form
            have = form.type.layout
        if layout is not have:
            moving.setdefault((id(sources[i]), layout), []).append(i)
    if not moving:
        return results
    firsts: dict[int, Any] = {p[0]: layouts[p[0]] for p in moving.values()}
    if op:
        types = tuple([getattr(a, "type", None) for a in arrays])  # None of a scalar
        targets = tuple([firsts.get(i) for i in range(len(arrays))])
        for observer in OBSERVERS.get():
            observer.on_move(op, types, targets)
    routes = [route(sources[i].type, layout) for i, layout in firsts.items()]
    block_lists = run_routes(routes, [sources[i].blocks for i in firsts], overlapped=overlapped)
    for (first, *others), blocks in zip(moving.values(), block_lists, strict=True):
        array = sources[first]
        results[first] = type(array)(array.type.with_layout(firsts[first]), tuple(blocks))
        if HISTORIES:
            results[first]._origin = origin_of(array)
        if not overlapped:
            remember_resolved(array, results[first])
        for i in others:
            results[i] = results[first]
    return results


def remember_resolved(array: Any, value: Any) -> None:
    """Remember `value` as the resolved form of `array` if their layouts differ in nothing else."""
    if array._resolved is None and value.type.layout is array.type.layout.resolved:
        array._resolved = value
