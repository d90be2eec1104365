"""Moving: arrays in new layouts."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

from gdt.array.sent import SentBlocks
from gdt.comm.agreement import HISTORIES, origin_of
from gdt.comm.launch import Launch, can_overlap, launched
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
    the arrays so without having been asked to move them. overlapped: devices that can do so compute
    meanwhile, until somebody reads one of the results.
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
    mesh = sources[next(iter(firsts))].mesh
    moved: list[Sequence[Any]]
    if overlapped and can_overlap(mesh):
        # Stand-ins of blocks are read here, where computation waits for them.
        launch, made = launched(routes, [tuple(sources[i].blocks) for i in firsts], mesh)
        moved = [SentBlocks(launch, blocks) for blocks in made]
    else:
        moved = [tuple(b) for b in run_routes(routes, [sources[i].blocks for i in firsts])]
    for (first, *others), blocks in zip(moving.values(), moved, strict=True):
        array = sources[first]
        results[first] = type(array)(array.type.with_layout(firsts[first]), blocks)
        if HISTORIES:
            results[first]._origin = origin_of(array)
        remember_resolved(array, results[first])
        for i in others:
            results[i] = results[first]
    return results


def remember_resolved(array: Any, value: Any) -> None:
    """Remember `value` as the resolved form of `array` if their layouts differ in nothing else."""
    if array._resolved is None and value.type.layout is array.type.layout.resolved:
        array._resolved = value


_LAST_SENT: ContextVar[weakref.ref[Launch] | None] = ContextVar("gdt.last_sent", default=None)


def send_to_layouts(arrays: Sequence[Any], layouts: Sequence[Layout | None]) -> list[Any]:
    """Return arrays in new layouts as `move_to_layouts` does, beside later computation.

    What the call before this one reads is freed first: computation waits for it. So at most two
    groups of arrays, such as the gradients of two layers, are held until they have been read.
    """
    reference = _LAST_SENT.get()
    if reference is not None and (last := reference()) is not None:
        last.join()
    results = move_to_layouts(arrays, layouts, overlapped=True)
    sent = [x.blocks.launch for x in results if type(x.blocks) is SentBlocks and x.blocks.launch]
    _LAST_SENT.set(weakref.ref(sent[-1]) if sent else None)
    return results
