"""The text of an array: values as NumPy prints them, then type and layout."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.operands import as_operands
from gdt.array.registry import public
from gdt.backend import backend_of
from gdt.comm.notes import gathered, note_operands
from gdt.observe import report_fetch
from gdt.sharding.reduction import UFUNCS

__all__ = ["array2string", "array_repr", "array_str"]


@public
def array_repr(x: DistributedArray) -> str:
    """The values, type and layout of an array, formatted under `numpy.printoptions`.

    An array above the options' `threshold` is summarised, and then only `edgeitems` from both
    ends of every axis are fetched. A partial reduction is carried out on what is shown, without a
    collective. Where several processes own the mesh, all of them must call it, but for an array of
    which each holds all elements.

    >>> print(gdt.array_repr(gdt.asarray([[1, 2], [3, 4]])))
    DistributedArray([[1, 2],
                      [3, 4]], int64[2, 2]  [-, -])
    """
    return f"DistributedArray({_values(x, separator=', ', prefix='DistributedArray(')}, {x.type})"


@public
def array_str(x: DistributedArray) -> str:
    """The values of an array alone, as `str` of NumPy's arrays; fetched as by `gdt.array_repr`.

    >>> print(gdt.array_str(gdt.asarray([[1, 2], [3, 4]])))
    [[1 2]
     [3 4]]
    """
    return _values(x) if x.ndim else str(edges(x, 0))


@public
def array2string(
    a: Any,
    max_line_width: int | None = None,
    precision: int | None = None,
    suppress_small: bool | None = None,
    separator: str = " ",
    prefix: str = "",
    *,
    formatter: Any = None,
    threshold: int | None = None,
    edgeitems: int | None = None,
    sign: Any = None,
    floatmode: Any = None,
    suffix: str = "",
    legacy: Any = None,
) -> str:
    """The values of an array as text, as `numpy.array2string` writes it; fetched as by
    `gdt.array_repr`.

    >>> gdt.array2string(gdt.asarray([0.25, 0.5]), precision=1, separator=", ")
    '[0.2, 0.5]'
    """
    (x,) = as_operands("array2string", a=a)
    return _values(
        x, separator, prefix, max_line_width=max_line_width, precision=precision,
        suppress_small=suppress_small, formatter=formatter, threshold=threshold,
        edgeitems=edgeitems, sign=sign, floatmode=floatmode, suffix=suffix, legacy=legacy,
    )  # fmt: skip


def _values(x: DistributedArray, separator: str = " ", prefix: str = "", **given: Any) -> str:
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


def edges(x: DistributedArray, count: int) -> np.ndarray:
    """The first and last `count` elements along every axis, and between them one zero for those
    that are left out.

    NumPy shows of it, with `count` edge items, what it shows of the whole.
    """
    if x._resolved is not None:
        x = x._resolved
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
    x: DistributedArray, picked: Sequence[Sequence[int]], partial_axes: Sequence[int]
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
