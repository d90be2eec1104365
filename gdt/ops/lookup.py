"""Looking up where the elements that integer indices name are held, and adding to them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.operands import as_operand
from gdt.array.placing import distribute
from gdt.engine.loops import loop
from gdt.engine.plan import Shards
from gdt.errors import DtypeError, IndexRangeError, error
from gdt.observe import is_recorded, ran
from gdt.ops.axes import checked_axis
from gdt.ops.blocks.host_values import valid_parts
from gdt.ops.creation import zeros
from gdt.ops.shapes import reshape
from gdt.sharding.array_type import ArrayType
from gdt.sharding.layout import Layout

Block = Any
CHECK = "check_indices"  # the name of the instruction in which a program checks them


def along_axis_or_flat(
    x: DistributedArray, axis: Any, *, takes_rank_0: bool = False
) -> tuple[DistributedArray, int]:
    """The operand, flattened for an axis of None, and the axis counted from the front.

    takes_rank_0: whether an operand of rank 0 counts as one of rank 1, as some functions of NumPy
        have it.
    """
    if axis is None:
        x, axis = x if x.ndim == 1 else reshape(x, (x.size,)), 0
    elif takes_rank_0 and not x.ndim:
        x = reshape(x, (1,))
    return x, checked_axis(x.type, axis)


# ---------------------------------------------------------------- indices


def checked_indices(
    array_type: ArrayType,
    indices: Any,
    axis: int,
    name: str,
    *,
    is_constant: bool = False,
    negative: bool = True,
) -> DistributedArray:
    """`indices` as an array of integers that all point into axis `axis` of an array of that type.

    is_constant: whether they are the same in every run of a program. negative: whether they may
    count from the end.

    Raises IndexRangeError for one that does not (on the CPU: a GPU is not asked), DtypeError for
    what is no integer.
    """
    if not isinstance(indices, DistributedArray):
        indices = np.asarray(indices)
        if not indices.size:
            indices = np.zeros(indices.shape, np.int64)
        if indices.dtype.kind in "iu":
            _check_range(array_type, indices, axis, negative)
            # One copy, which all blocks of the host share.
            layout = Layout.replicated(array_type.mesh, indices.ndim)
            indices = distribute(
                indices.copy(), layout, copy=False, giver=name, is_constant=is_constant
            )
        else:
            indices = as_operand(indices, array_type.mesh, name, "indices")
    elif indices.dtype.kind in "iu" and indices.mesh.device_type() == "CPU":
        indices = _in_range(array_type, indices.resolve(), axis, negative)
    if indices.dtype.kind not in "iu":
        raise error(
            DtypeError,
            name,
            f"indices have dtype {indices.dtype}; they are integers",
            operands={"x": array_type, "indices": indices.type},
        )
    return indices


def _in_range(
    array_type: ArrayType, indices: DistributedArray, axis: int, negative: bool
) -> DistributedArray:
    """`indices` once they have been checked. In a recording they are what the check makes, so that
    a program that reads them checks them too."""
    of = indices.type

    def check(blocks: Sequence[Block]) -> list[Sequence[Block]]:
        for part in valid_parts(of, blocks):
            _check_range(array_type, part, axis, negative)
        return [[block.view() for block in blocks]]

    (checked,) = results = check(indices.blocks)
    if not is_recorded():
        return indices
    ran(CHECK, check, [indices.blocks], results)
    array = indices._alias()  # no array that processes would count: not all of them record
    array.blocks = tuple(checked)
    return array


def _check_range(array_type: ArrayType, indices: Any, axis: int, negative: bool) -> None:
    size = array_type.shape[axis]
    least = -size if negative else 0
    if indices.size == 0 or (least <= indices.min() and indices.max() < size):
        return
    wrong = indices[(indices < least) | (indices >= size)].flat[0]
    raise error(
        IndexRangeError,
        f"index {wrong} is out of range for axis {axis} of size {size}",
        operands={"x": array_type},
    )


class Located(NamedTuple):
    """The places in a block of the elements that indices name.

    coordinates: for each mesh axis that splits the indexed axis in this block, the place along it.
    offset: place along the shard. mask: where the block holds them at all; None if everywhere.
    """

    coordinates: dict[int, Any]
    offset: Any
    mask: Any


def from_the_front(xp: Any, indices: Block, size: int) -> Block:
    """Indices into an axis of `size` as they count from the front, int64; what is out of range
    becomes the nearest index, since padding may hold anything."""
    at = indices.astype(np.int64)
    at = xp.where(at < 0, at + size, at)
    # NumPy takes half the time where the bounds have the dtype.
    return at.clip(np.int64(0), np.int64(max(size - 1, 0)))


def locate(xp: Any, indices: Block, shards: Shards, chunk: int) -> Located:
    """Find global indices along factor `n`, whose shards have `chunk` elements, in a block."""
    size, start, valid = shards.size["n"], shards.start["n"], shards.valid["n"]
    at = from_the_front(xp, indices, size)
    if "n" not in shards.split:
        return Located({}, at, None)
    chunk = max(chunk, 1)
    count = -(-size // chunk)  # of shards that are not empty
    owner = at // chunk
    here = xp.where(valid > 0, start // chunk, count)  # empty shards share a place of their own
    coordinates = {}
    for axis in range(start.ndim):
        if start.shape[axis] > 1:
            place = xp.zeros(count + 1, np.int64)
            place[here] = xp.indices(start.shape)[axis]
            coordinates[axis] = place[owner]
    hosted = xp.zeros(count + 1, bool)
    hosted[here] = True
    if xp is np and hosted[:count].all():  # of a GPU it would have to be asked
        return Located(coordinates, at - owner * chunk, None)
    mask = hosted[owner]
    return Located(coordinates, at - owner * chunk, mask)


ADDED_BY_CUPY = {"int32", "uint32", "uint64", "float16", "float32", "float64"}
"""The dtypes of `add.at` in all versions of CuPy."""


def carrier_of(x: DistributedArray, axis: int) -> DistributedArray:
    """Zeros as long as axis `axis` of `x` and split like it, to tell a rule how to split it."""
    layout = Layout.of(x.mesh, (x.layout.dims[axis],))
    return zeros(x.shape[axis], bool, layout=layout)


def scatter_add(
    xp: Any, g: Block, rows: Any, mask: Any, steps: Sequence[int], shape: Sequence[int]
) -> Block:
    """Zeros of `shape` in which element `rows + sum(steps[d] * i_d)` grows by `g[i]`, for all i.

    mask: where `g` is added; None for everywhere.
    """
    run = _add_rows[g.dtype.char] if xp is np else None
    out = xp.zeros(int(np.prod(shape)), g.dtype)
    last = g.ndim if run is None else _first_contiguous(g, rows, mask, steps)
    places = rows
    for d, (count, step) in enumerate(zip(g.shape[:last], steps, strict=False)):
        if count > 1 and step:
            places = places + (xp.arange(count) * step).reshape((count,) + (1,) * (g.ndim - 1 - d))
    if run is not None:
        places = places if mask is None else np.where(mask, places, -1)
        places = np.broadcast_to(places, (*g.shape[:last], *(1,) * (g.ndim - last)))
        width = math.prod(g.shape[last:])
        run(places.astype(np.int64, copy=False).ravel(), g.ravel(), width, out)
        return out.reshape(shape)
    places = xp.broadcast_to(places, g.shape)
    if mask is not None:
        mask = xp.broadcast_to(mask, g.shape)
        if xp is np:
            places, g = places[mask], g[mask]
        else:  # how many there are would have to be asked
            g = xp.where(mask, g, xp.zeros((), g.dtype))
    add_at(xp, out, places.ravel(), g.ravel())  # the case of one axis is the fast one in NumPy
    return out.reshape(shape)


def _first_contiguous(g: Block, rows: Any, mask: Any, steps: Sequence[int]) -> int:
    """The first of the last axes of `g` along which all elements of a row follow each other in the
    output, as the features of an embedding do; the rank of `g` if there is none."""
    first: int = g.ndim
    step = 1
    for d in reversed(range(g.ndim)):
        is_shared = rows.shape[d] == 1 and (mask is None or mask.shape[d] == 1)
        if not is_shared or (g.shape[d] > 1 and steps[d] != step):
            break
        first, step = d, step * g.shape[d]
    return first


@loop("labels, input, int, output")
def _add_rows(places: Block, rows: Block, width: int, out: Block) -> None:
    """Add each row of `width` elements to the elements that begin at its place; none at -1."""
    for i in range(places.size):
        begin = places[i]
        if begin >= 0:
            for j in range(width):
                out[begin + j] += rows[i * width + j]


def add_at(xp: Any, x: Block, places: Block, values: Block) -> None:
    """Add values, of the dtype of `x`, to the elements or rows of `x` at places, in place: as
    `numpy.add.at`, of which CuPy's has few dtypes."""
    if xp is np or x.dtype.name in ADDED_BY_CUPY:
        xp.add.at(x, places, values)
    elif x.dtype.kind == "c":
        add_at(xp, x.real, places, values.real)
        add_at(xp, x.imag, places, values.imag)
    elif x.dtype == np.int64:  # whose sums have the same bits
        xp.add.at(x.view(np.uint64), places, values.view(np.uint64))
    else:  # sums wrap around when they are narrowed, and are true where one of the bools is
        total = x.astype(np.int32)
        xp.add.at(total, places, values.astype(np.int32))
        x[...] = total.astype(x.dtype)


def strides_of(shape: Sequence[int]) -> list[int]:
    """Steps, in elements, along the axes of a contiguous block."""
    return [int(np.prod(shape[d + 1 :])) for d in range(len(shape))]
