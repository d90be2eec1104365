"""Sliding windows along axes that may be split: halos are exchanged, and added up in gradients.

An axis of n elements is cut into one tile for every shard: the elements that the windows of this
shard's results cover. Tiles overlap, and reach over the ends of the axis, where they hold `fill`.
A tiled axis is two axes, (tiles, length), of which the first is split into single tiles. So what is
computed from windows is computed from tiles without communication, by ops that know no halo.

`tiled` sends an element only to the devices whose windows cover it, from wherever it is held: a
window may be wider than a shard. `untiled` is its adjoint.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from gdt.array.array import DistributedArray
from gdt.comm.recut import RecutRunner
from gdt.engine.plan import EXACT
from gdt.engine.planned import BlockPlan, on_each_block, planned_op
from gdt.engine.source import reshaped
from gdt.errors import ArgumentError, ShapeError, error
from gdt.observe import Collective
from gdt.sharding.array_type import ArrayType
from gdt.sharding.layout import Axes, Layout
from gdt.sharding.mesh import Mesh
from gdt.sharding.recut import Piece, Recut

Block = Any
Padding = str | int | Sequence[int] | Sequence[Sequence[int]]


class Windows(NamedTuple):
    """The windows along one axis: window i covers `i * stride - before + j * dilation` for the taps
    j in `range(taps)`.

    size: the length of the axis. number: how many windows there are.
    """

    size: int
    taps: int
    stride: int
    dilation: int
    before: int
    number: int

    @property
    def reach(self) -> int:
        """The length of the interval from a window's first tap to its last."""
        return (self.taps - 1) * self.dilation + 1


def windows_of(
    op: str,
    shape: Sequence[int],
    taps: Sequence[int],
    strides: Any,
    padding: Padding,
    dilation: Any,
) -> tuple[Windows, ...]:
    """Return the windows along every axis of `shape`.

    strides, dilation: an int, or one for each axis. padding: `"valid"` (none), `"same"` (as many
    windows as strides begin on the axis; of an odd number of elements one more is added after it),
    an int, or for each axis an int or a pair (before, after).

    Raises ArgumentError for numbers that are no strides, dilations or paddings, ShapeError for an
    axis that is shorter than a window.
    """
    rank = len(taps)
    steps = one_for_each_axis(op, "strides", strides, rank, 1)
    dilations = one_for_each_axis(op, "dilation", dilation, rank, 1)
    pads = paddings_of(op, padding, rank)
    windows = []
    for axis, (size, k, s, d) in enumerate(zip(shape, taps, steps, dilations, strict=True)):
        reach = (k - 1) * d + 1
        if pads == "same":
            number = -(-size // s)
            before = max((number - 1) * s + reach - size, 0) // 2
        else:
            before, after = (0, 0) if pads == "valid" else pads[axis]
            number = (size + before + after - reach) // s + 1
        if number < 1 or reach < 1:
            problem = f"a window of {reach} does not fit axis {axis} of {size} elements"
            raise error(ShapeError, f"{problem} with padding {padding!r}")
        windows.append(Windows(size, k, s, d, before, number))
    return tuple(windows)


def one_for_each_axis(op: str, name: str, value: Any, rank: int, least: int) -> tuple[int, ...]:
    """Return an int, or a sequence of ints, as one int for each of `rank` axes."""
    numbers = (value,) * rank if isinstance(value, int | np.integer) else tuple(value)
    is_int = [isinstance(n, int | np.integer) and not isinstance(n, bool) for n in numbers]
    if len(numbers) != rank or not all(is_int) or min(numbers, default=least) < least:
        problem = f"{name} is {value!r}"
        remedy = f"It is an int of at least {least}, or one for each of {rank} axes."
        raise error(ArgumentError, op, problem, remedy=remedy)
    return tuple(int(n) for n in numbers)


def paddings_of(op: str, padding: Any, rank: int) -> Any:
    """Return "same", "valid", or a pair (before, after) for each axis; ArgumentError for another
    padding."""
    if isinstance(padding, str):
        if padding.lower() in ("same", "valid"):
            return padding.lower()
        pairs = []
    else:
        whole = (int, np.integer)
        numbers = (padding,) * rank if isinstance(padding, whole) else tuple(padding)
        pairs = [(n, n) if isinstance(n, whole) else tuple(n) for n in numbers]
    is_pair = [len(pair) == 2 and min(pair) >= 0 for pair in pairs]
    if len(pairs) != rank or not all(is_pair):
        remedy = f'It is "same", "valid", an int, or for each of {rank} axes an int or a pair.'
        raise error(ArgumentError, op, f"padding is {padding!r}", remedy=remedy)
    return [(int(before), int(after)) for before, after in pairs]


# ---------------------------------------------------------------- tiles


class Tiling(NamedTuple):
    """The tiles of axis `dim` of `size` elements, which the mesh axes `axes` split.

    Tile t has `length` elements, of which the first is element `starts[t]` of the axis. It holds
    those before `stops[t]` that lie on the axis; the others are filled.
    """

    dim: int
    size: int
    length: int
    starts: tuple[int, ...]
    stops: tuple[int, ...]
    axes: Axes

    @property
    def is_plain(self) -> bool:
        """Whether the tiles are the shards themselves, with their padding."""
        plain = [t * self.length for t in range(len(self.starts))]
        return self.length == -(-self.size // len(self.starts)) and all(
            start == min(at, self.size) and stop == min(at + self.length, self.size)
            for start, stop, at in zip(self.starts, self.stops, plain, strict=True)
        )

    @property
    def pieces(self) -> list[Piece]:
        """The intervals of the axis that go into the tiles, which lie end to end."""
        pieces = []
        for t, (start, stop) in enumerate(zip(self.starts, self.stops, strict=True)):
            first, last = max(start, 0), min(stop, self.size)
            pieces.append(Piece(0, first, t * self.length + first - start, last - first))
        return [p for p in pieces if p.count > 0]


EXACT.add(Tiling)


@lru_cache(maxsize=1 << 12)
def tiling_of(windows: Windows, dim: int, axes: Axes, mesh: Mesh) -> Tiling:
    """Return the tiles of axis `dim`, which the mesh axes `axes` split: one for each shard of the
    results."""
    shards = math.prod(mesh.sizes[a] for a in axes)
    chunk = -(-windows.number // shards)
    bounds = [min(t * chunk, windows.number) for t in range(shards + 1)]
    starts = [u * windows.stride - windows.before for u in bounds[:-1]]
    stops = [
        (v - 1) * windows.stride - windows.before + windows.reach if v > u else start
        for (u, v), start in zip(pairwise(bounds), starts, strict=True)
    ]
    length = (chunk - 1) * windows.stride + windows.reach
    return Tiling(dim, windows.size, length, tuple(starts), tuple(stops), axes)


@lru_cache(maxsize=1 << 12)
def plain_tiling(size: int, dim: int, tiles: int, axes: Axes) -> Tiling:
    """Return the tiling of an axis into its shards."""
    length = -(-size // tiles)
    bounds = [min(t * length, size) for t in range(tiles + 1)]
    return Tiling(dim, size, length, tuple(bounds[:-1]), tuple(bounds[1:]), axes)


def without_fill(how: Tiling) -> tuple[Tiling, tuple[int, int]]:
    """Return a tiling without the elements beyond the ends of an axis that is whole, and their
    numbers before and after it.

    Of an axis in several tiles they stay, since not all tiles have them.
    """
    (first, *others), (stop, *_) = how.starts, how.stops
    start, end = max(first, 0), min(stop, how.size)
    if others or start >= end:
        return how, (0, 0)
    tiling = how._replace(length=end - start, starts=(start,), stops=(end,))
    return tiling, (start - first, first + how.length - end)


def tiled(x: DistributedArray, how: Tiling, fill: bytes | int = 0) -> DistributedArray:
    """Return x with axis `how.dim` as two: (tiles, length).

    fill: the value of elements beyond the ends of the axis: 0, or the bytes of a number.
    """
    return exchange_halos(x, how=how, fill=fill)


def untiled(x: DistributedArray, how: Tiling) -> DistributedArray:
    """Return x with axes `how.dim` and the next, (tiles, length), as the axis that was tiled:
    elements of several tiles are added up, and those beyond the ends are left out."""
    return add_halos(x, how=how)


def _placed(layout: Layout, dim: int, axes: Axes, *, keeps_sums: bool = True) -> Layout:
    """Return `layout` with axis `dim` split over the mesh axes `axes`, and no other axis."""
    dims = [tuple(a for a in dim_axes if a not in axes) for dim_axes in layout.dims]
    dims[dim] = axes
    return (layout if keeps_sums else layout.resolved).split_as(tuple(dims))


def _types(x: ArrayType, how: Tiling, *, is_tiled: bool) -> tuple[ArrayType, ArrayType, ArrayType]:
    """Return the types of the axis whole, of the tiles end to end, and of the tiles."""
    dim, mesh = how.dim, x.mesh
    shape, dims = x.shape, x.layout.dims
    before, after = slice(dim), slice(dim + 1 + is_tiled, None)
    rest, reductions = dims[after], x.layout.reductions

    def array_type(sizes: tuple[int, ...], new_dims: tuple[Axes, ...]) -> ArrayType:
        layout = Layout.of(mesh, (*dims[before], *new_dims, *rest), reductions)
        return ArrayType.of((*shape[before], *sizes, *shape[after]), x.dtype, layout)

    tiles = len(how.starts)
    return (
        array_type((how.size,), (how.axes,)),
        array_type((tiles * how.length,), (how.axes,)),
        array_type((tiles, how.length), (how.axes, ())),
    )


def _planned(
    layout: Layout, out: ArrayType, recut: Recut | None, first: ArrayType | None = None
) -> BlockPlan:
    """Return the plan of a recut between two reshapes of blocks: to the type `first`, if it is
    given, and to the type `out`. Without a recut there is one reshape."""
    blocks = len(out.mesh.blocks)
    last = _reshaper(out)
    if recut is None:
        return BlockPlan([layout], out, [last] * blocks)
    run = RecutRunner(recut)
    prepare = _reshaper(first) if first is not None else _itself
    if not out.mesh.divided:

        def on_block(block: Block) -> Block:
            return last(run.inside_block(prepare(block)))

        return BlockPlan([layout], out, [on_block], None, _collectives(recut))
    before, after = (on_each_block(out.mesh, [f] * blocks) for f in (prepare, last))

    def together(operand: Sequence[Block]) -> list[Block]:
        return after(run(before(operand)))

    return BlockPlan([layout], out, (), together, _collectives(recut))


def _reshaper(array_type: ArrayType) -> Callable[[Block], Block]:
    shape = array_type.block_shape
    return lambda block: reshaped(shape, block)


def _itself(block: Block) -> Block:
    return block


def _collectives(recut: Recut) -> tuple[Collective, ...]:
    if not recut.nbytes:
        return ()
    names = tuple([recut.mesh.axis_names[a] for a in recut.source_axes])
    return (Collective("exchange", names, recut.nbytes, 1),)


@planned_op(view="x")
def exchange_halos(x: ArrayType, /, *, how: Tiling, fill: bytes | int = 0) -> BlockPlan:
    """Cut an axis into overlapping tiles."""
    layout = _placed(x.layout, how.dim, how.axes, keeps_sums=fill == 0)
    whole, flat, tiles = _types(x.with_layout(layout), how, is_tiled=False)
    is_full = len(how.starts) * how.length == how.size
    if how.is_plain and is_full:
        return _planned(layout, tiles, None)
    return _planned(layout, tiles, Recut([whole], flat, how.dim, how.pieces, fill))


@planned_op(view="x")
def add_halos(x: ArrayType, /, *, how: Tiling) -> BlockPlan:
    """Add up the tiles of an axis where they overlap."""
    layout = _placed(x.layout, how.dim, how.axes)
    whole, flat, _ = _types(x.with_layout(layout), how, is_tiled=True)
    if how.is_plain:
        return _planned(layout, whole, None)
    pieces = [p.transposed() for p in how.pieces]
    return _planned(layout, whole, Recut([flat], whole, how.dim, pieces, adds=True), flat)


exchange_halos.vjp(lambda g, out, x, *, how, fill=0: untiled(g, how), reads="")
add_halos.vjp(lambda g, out, x, *, how: tiled(g, how), reads="")
