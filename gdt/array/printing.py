"""The values of an array as text, of which a summary fetches the edges alone."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gdt.backend import backend_of
from gdt.comm.notes import gathered, note_operands
from gdt.observe import report_fetch
from gdt.sharding.reduction import UFUNCS


def repr_of(x: Any) -> str:
    """The values, type and layout of an array."""
    return f"DistributedArray({text_of(x, separator=', ', prefix='DistributedArray(')}, {x.type})"


def str_of(x: Any) -> str:
    """The values of an array alone."""
    return text_of(x) if x.ndim or _is_abstract(x) else str(edges(x, 0))


def _is_abstract(x: Any) -> bool:
    """Whether an array has no values."""
    return bool(x.mesh.device_kind == "abstract")


def text_of(x: Any, separator: str = " ", prefix: str = "", **given: Any) -> str:
    """The values of an array as `numpy.array2string` writes them under these options; `...` of an
    array on abstract devices."""
    if _is_abstract(x):
        return "..."
    options: dict[str, Any] = {**np.get_printoptions()} | {
        k: v for k, v in given.items() if v is not None
    }
    summarised = x.size > options["threshold"]
    edge = options["edgeitems"] if summarised else max(x.shape, default=0)
    given |= {
        "threshold": 0 if summarised else max(x.size, options["threshold"]),
        "edgeitems": edge,
    }
    return np.array2string(edges(x, edge), separator=separator, prefix=prefix, **given)


def edges(x: Any, count: int) -> np.ndarray:
    """The first and last `count` elements along every axis, and between them one zero for those
    that are left out.

    NumPy shows of it, with `count` edge items, what it shows of the whole.
    """
    if (form := x._resolved) is not None:  # read once: a step of another thread may hide it
        x = form
    picked = [_picked(n, count) for n in x.shape]
    partial_axes = [a for a, p in enumerate(x.layout.reductions) if p]
    elements = math.prod(sum(i >= 0 for i in indices) for indices in picked)
    report_fetch(x.type, elements * x.itemsize)
    own = _shown(x, picked, partial_axes)
    if x.type.is_whole() and not partial_axes:
        pieces = [own]
    else:
        what = f"array_repr of {x.type}"
        note_operands(what, [x])
        pieces = gathered(x.mesh.num_processes, own, what)
    parts: dict[tuple[int, ...], np.ndarray] = {}
    for part, to, values in itertools.chain(*pieces):
        target = parts.setdefault(part, np.zeros([len(p) for p in picked], x.dtype))
        target[to] = values
    return _combined(parts, [str(x.layout.reductions[a]) for a in partial_axes])


def _shown(
    x: Any, picked: Sequence[Sequence[int]], partial_axes: Sequence[int]
) -> list[tuple[tuple[int, ...], Any, np.ndarray]]:
    """The elements to show that this process has, as triples of the coordinate along the mesh axes
    whose reduction is partial, the place in the text, and values."""
    pieces, backend = [], backend_of(x.mesh)
    for shard in x.shards:
        part = tuple(shard.coordinate[a] for a in partial_axes)
        places = [
            [(to, i - s.start) for to, i in enumerate(p) if s.start <= i < s.stop]
            for p, s in zip(picked, shard.index, strict=True)
        ]
        values = np.zeros((), x.dtype)
        to, at = (np.ix_(*([pair[k] for pair in pairs] for pairs in places)) for k in (0, 1))
        if all(places):
            with backend.on(x.mesh, x.mesh.own_block(shard.coordinate)):
                fetched = shard.data[tuple(backend.asarray(i) for i in at)]
                values = backend.to_host(fetched)
        pieces.append((part, to, values))
    return pieces


def _picked(size: int, count: int) -> list[int]:
    """The indices to show along an axis; -1 stands for those that are left out."""
    if size <= 2 * count:
        return list(range(size))
    return [*range(count), -1, *range(size - count, size)]


def _combined(parts: dict[tuple[int, ...], np.ndarray], reductions: Sequence[str]) -> np.ndarray:
    """The value of `parts`, which are keyed by coordinates along mesh axes with partial
    `reductions`.

    Reductions are carried out as `relayout` resolves them: those like the first one first.
    """
    with np.errstate(all="ignore"):
        for reduction in dict.fromkeys(reductions):
            wholes: dict[tuple[int, ...], np.ndarray] = {}
            for at, part in parts.items():
                rest = tuple(c for c, r in zip(at, reductions, strict=True) if r != reduction)
                wholes[rest] = UFUNCS[reduction](wholes[rest], part) if rest in wholes else part
            parts, reductions = wholes, [r for r in reductions if r != reduction]
    return parts[()]
