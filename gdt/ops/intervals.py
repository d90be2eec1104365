"""Moving index intervals along one axis: what slicing, concat, flip, roll and pad are made of."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from gdt.array import DistributedArray
from gdt.layout import ArrayType
from gdt.observe import OBSERVERS, Collective
from gdt.op import Composite
from gdt.ops.movement import relayout_together
from gdt.recut import Piece, Recut


@lru_cache(maxsize=None)
def _plan(have: tuple[ArrayType, ...], dim: int, pieces: tuple[Piece, ...], size: int, fill: Any) -> Recut:
    first = have[0]
    shape = (*first.shape[:dim], size, *first.shape[dim + 1 :])
    return Recut(have, ArrayType.of(shape, first.dtype, first.layout), dim, pieces, fill)


@Composite
def _move_intervals(*arrays: DistributedArray, dim: int, pieces: tuple[Piece, ...], size: int, fill: Any) -> DistributedArray:
    layout = arrays[0].layout if fill == 0 else arrays[0].layout.resolved
    operands = relayout_together(arrays, [layout] * len(arrays))
    recut = _plan(tuple(a.type for a in operands), dim, pieces, size, fill)
    if recut.nbytes:
        names = tuple(recut.mesh.axis_names[a] for a in layout.dims[dim])
        for observer in OBSERVERS.get():
            observer.on_collective(Collective("exchange", names, recut.nbytes, 1))
    return DistributedArray(recut.want, tuple(recut(*[a.blocks for a in operands])))


def _vjp(g: Any, out: Any, *arrays: Any, dim: int, pieces: tuple[Piece, ...], size: int, fill: Any) -> tuple[Any, ...]:
    return tuple(
        move_intervals([g], dim, [p.transposed() for p in pieces if p.source == n], a.shape[dim])
        for n, a in enumerate(arrays)
    )


_move_intervals.vjp(joint=_vjp)


def move_intervals(
    arrays: Sequence[DistributedArray], dim: int, pieces: Sequence[Piece], size: int, fill: Any = 0
) -> DistributedArray:
    """An array whose axis `dim` has `size` elements made of intervals of that axis of the arrays.

    The arrays have one dtype and agree in all other axes; they are brought to the layout of the first,
    which the result has too. Indices that no piece covers become `fill`. No source index may be used by
    two pieces (its gradient would be lost).
    """
    kept = tuple(p for p in pieces if p.count > 0)
    out: DistributedArray = _move_intervals(*arrays, dim=dim, pieces=kept, size=size, fill=fill)
    return out
