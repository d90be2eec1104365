"""Pictures for notebooks, as SVG: which devices hold which part of an array.

A picture is bounded however many devices there are: of each axis the first `SHOWN` shards are drawn
one by one, and the others as one grey field; of the axes beyond two, the first `PANELS` shards.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

from gdt.sharding.array_type import ArrayType

SIDE = 260  # pixels of the longer side of an array
SHORTEST = 44  # pixels of its shorter side, at least
SHOWN = 8  # shards of an axis that are drawn one by one
PANELS = 4  # pictures of an array that is split along more than two axes
LISTED = 8  # devices that a tooltip lists
COLOURS = ["#4e79a7", "#d1495b", "#3a8f5c", "#b07aa1", "#b6740a", "#3c8f98", "#8c564b", "#6b6bbf"]
GREY = "#9a9a9a"
LETTER = 6.2  # pixels of a letter of size 10


class Span(NamedTuple):
    """A part of a side of a picture: pixels `start` to `stop`, which show the shard `shard`; the
    field of all further shards has none. text: the global indices, or the number of shards."""

    start: float
    stop: float
    shard: int | None
    text: str


def picture(array_type: ArrayType, names: Sequence[str] | None = None) -> str:
    """Return an array as SVG: a rectangle of two of its axes, cut into shards, each with the names
    of the devices that hold it.

    names: the names of the array's axes; by default their numbers.
    """
    if names is None:
        names = [f"axis {d}" for d in range(array_type.ndim)]
    down, across, outer = _drawn_axes(array_type)
    width, height = _sides(array_type, down, across, SIDE / 2 if outer else SIDE)
    rows, columns = _spans(array_type, down, height), _spans(array_type, across, width)
    shards = [range(array_type.layout.shard_counts[d]) for d in outer]
    panels = list(itertools.islice(itertools.product(*shards), PANELS))
    lines = list(_captions(array_type, down, across, names))
    elements: list[str] = []
    top = 14.0
    for line in lines:
        elements.append(_text(0, top, line))
        top += 14
    for panel in panels:
        fixed: dict[int | None, int | None] = {}
        for d, index in zip(outer, panel, strict=True):
            fixed[d] = index
            start, stop = array_type.extent(d, index)
            elements.append(_text(0, top, f"{names[d]}: {start}:{stop}"))
            top += 14
        for (r, row), (c, column) in itertools.product(enumerate(rows), enumerate(columns)):
            indices = {**fixed, down: row.shard, across: column.shard}
            elements += _field(array_type, indices, row, column, top - 8, r * len(columns) + c)
        top += height + 12
    left_out = math.prod(map(len, shards)) - len(panels)
    if left_out:
        elements.append(
            _text(0, top, f"and {left_out} more of {', '.join(names[d] for d in outer)}")
        )
        top += 14
    longest = max(map(len, [*lines, " " * 40 * bool(left_out)]), default=0)
    width = max(width, longest * LETTER) + 2
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{top:.0f}" '
        f'viewBox="-1 0 {width:.0f} {top:.0f}" font-family="sans-serif" font-size="10">'
        f"{''.join(elements)}</svg>"
    )


def _drawn_axes(array_type: ArrayType) -> tuple[int | None, int | None, list[int]]:
    """Return the axes that are drawn downwards and across, and the split axes that are not drawn.

    The last two split axes are drawn; where fewer are split, the last of the others."""
    ndim, dims = array_type.ndim, array_type.layout.dims
    by_use = sorted(range(ndim), key=lambda d: (bool(dims[d]), d))
    axes = sorted(by_use[-2:])
    outer = sorted(d for d in by_use[:-2] if dims[d])
    if len(axes) < 2:
        return None, axes[0] if axes else None, outer
    return axes[0], axes[1], outer


def _sides(
    array_type: ArrayType, down: int | None, across: int | None, side: float
) -> tuple[float, float]:
    """Return the width and the height of a picture in the proportions of the axes, of which the
    longer is `side` pixels."""
    columns = 1 if across is None else max(array_type.shape[across], 1)
    rows = max(columns // 8, 1) if down is None else max(array_type.shape[down], 1)
    longer = max(rows, columns)
    width, height = side * columns / longer, side * rows / longer
    if across is None:
        return SHORTEST * 2, SHORTEST
    return max(width, SHORTEST), max(height, SHORTEST)


def _spans(array_type: ArrayType, dim: int | None, length: float) -> list[Span]:
    """Return the shards of an axis along a side of `length` pixels; shards without elements are
    left out."""
    if dim is None or not array_type.shape[dim]:
        return [Span(0, length, 0, "" if dim is None else "0:0")]
    size, chunk = array_type.shape[dim], array_type.local_shape[dim]
    count = -(-size // chunk)  # shards with elements
    extents = [array_type.extent(dim, i) for i in range(min(count, SHOWN))]
    sizes = [stop - start for start, stop in extents]
    texts = [f"{start}:{stop}" for start, stop in extents]
    if count > SHOWN:
        sizes.append(chunk)
        texts.append(f"{count - SHOWN} more")
    ends = [length * n / sum(sizes) for n in itertools.accumulate(sizes)]
    starts = [0, *ends[:-1]]
    indices = [i if i < SHOWN else None for i in range(len(sizes))]
    return [Span(*span) for span in zip(starts, ends, indices, texts, strict=True)]


def _captions(
    array_type: ArrayType, down: int | None, across: int | None, names: Sequence[str]
) -> Iterator[str]:
    """Yield a line for each drawn axis: its direction, name, size and mesh axes."""
    layout = array_type.layout
    for arrow, dim in (("↓", down), ("→", across)):
        if dim is not None:
            axis_names = ", ".join(layout.mesh.axis_names[a] for a in layout.dims[dim])
            over = f" over {axis_names}" if axis_names and axis_names != names[dim] else ""
            shards, size = layout.shard_counts[dim], array_type.shape[dim]
            empty = shards - -(-size // array_type.local_shape[dim]) if size else shards
            without = f", {empty} of {shards} shards empty" if axis_names and empty else ""
            yield f"{arrow} {names[dim]}: {size}{over}{without}"


def _field(
    array_type: ArrayType,
    indices: dict[int | None, int | None],
    row: Span,
    column: Span,
    top: float,
    number: int,
) -> Iterator[str]:
    """Yield the rectangle of one shard with its tooltip, and the name of its first device where
    that fits. indices: the shard's index along each drawn or fixed axis."""
    x, y = column.start, top + row.start
    width, height = column.stop - column.start, row.stop - row.start
    if 0 in array_type.shape:
        label, colour, tip = "no elements", GREY, "no device holds an element"
    elif row.shard is None or column.shard is None:
        label, colour = "…", GREY
        tip = ", ".join(s.text for s in (row, column) if s.shard is None) + " shards"
    else:
        first, count, listed = _holders(array_type, indices)
        label = f"{first} +{count - 1}" if count > 1 else first
        colour = COLOURS[number % len(COLOURS)]
        more = f" and {count - len(listed)} more" if count > len(listed) else ""
        part = ", ".join(s.text for s in (row, column) if s.text)
        tip = f"[{part}] on {', '.join(listed)}{more}"
    yield (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
        f'fill="{colour}" stroke="white" stroke-width="1"><title>{escape(tip)}</title></rect>'
    )
    fitting = [t for t in (label, label.partition(" +")[0]) if len(t) * LETTER < width]
    if fitting and height >= 12:
        yield (
            f'<text x="{x + width / 2:.1f}" y="{y + height / 2 + 3.5:.1f}" fill="white" '
            f'text-anchor="middle" pointer-events="none">{escape(fitting[0])}</text>'
        )


def _holders(
    array_type: ArrayType, indices: dict[int | None, int | None]
) -> tuple[str, int, list[str]]:
    """Return the first device that holds a shard, the number of coordinates that do, and the
    devices of the first `LISTED` of them."""
    mesh, layout = array_type.mesh, array_type.layout
    at: dict[int, int] = {}  # the shard's coordinate along the mesh axes that split the array
    for dim, axes in enumerate(layout.dims):
        index = indices.get(dim) or 0
        for axis in reversed(axes):
            index, at[axis] = divmod(index, mesh.sizes[axis])
    choices = [[at[a]] if a in at else range(n) for a, n in enumerate(mesh.sizes)]
    coordinates = itertools.islice(itertools.product(*choices), LISTED)
    devices = [mesh.devices[_position(c, mesh.sizes)] for c in coordinates]
    return devices[0], math.prod(map(len, choices)), list(dict.fromkeys(devices))


def _position(coordinate: Sequence[int], sizes: Sequence[int]) -> int:
    """Return the row-major number of a coordinate."""
    number = 0
    for c, n in zip(coordinate, sizes, strict=True):
        number = number * n + c
    return number


def _text(x: float, y: float, text: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="currentColor">{escape(text)}</text>'
