"""Draws of integers between bounds, which may be arrays."""

from __future__ import annotations

from operator import index
from typing import Any

import numpy as np

from gdt.arguments import checked, shown_value
from gdt.array.array import DistributedArray
from gdt.errors import ArgumentError, error
from gdt.ops.comparison import equal, less, less_equal, where
from gdt.ops.elementwise import astype
from gdt.ops.shapes import Shape
from gdt.random import bits as random_bits
from gdt.random.draws import Draw, in_layout, other_shapes
from gdt.random.generator import Key
from gdt.sharding.layout import Layout


@checked
def integers(
    low: Any,
    high: Any = None,
    shape: Shape = (),
    dtype: Any = int,
    *,
    endpoint: bool = False,
    key: Key = None,
    layout: Layout | None = None,
) -> DistributedArray:
    """Integers from `low` up to, not including, `high`; from 0 up to `low` if it is None.

    low, high: integers, or arrays of them that broadcast to the shape. endpoint: whether `high`
        itself may be drawn.

    Raises ShapeError for an empty range, DtypeError for a dtype that does not hold it. Distributed
    arrays are not fetched for that: elements of empty ranges are -1.

    >>> gdt.random.integers(10, shape=5, key=0).tolist()
    [3, 8, 7, 6, 9]
    >>> gdt.random.integers([0, 10, 20], [5, 15, 25], shape=3, key=0).tolist()
    [1, 13, 24]
    """
    first = _whole_numbers("low", low)
    low, high = (0, first) if high is None else (first, _whole_numbers("high", high))
    draw = Draw.of("integers", shape, dtype, key, layout)
    if isinstance(low, int) and isinstance(high, int):
        x = draw.sampled("integers", low=low, high=high + endpoint, dtype=draw.dtype)
    else:
        x = _integers_between(draw, low, high, endpoint)
    return in_layout(x, layout)


def _whole_numbers(label: str, value: Any) -> Any:
    """Return a bound as an int, a distributed array, or an array of the host."""
    if isinstance(value, DistributedArray) and value.dtype.kind in "iu":
        return value
    if isinstance(value, int | np.integer):
        return index(value)
    numbers = None if isinstance(value, DistributedArray) else np.asarray(value)
    if numbers is not None and not numbers.size:
        return numbers.astype(np.int64)
    if numbers is None or numbers.dtype.kind not in "iu":
        problem = f"{label} is {shown_value(value)}, not integers"
        remedy = "Pass an int, or an array of integers; those of a real number are int(number)."
        raise error(ArgumentError, problem, remedy=remedy)
    return numbers if numbers.ndim else index(numbers[()])


def _integers_between(draw: Draw, low: Any, high: Any, endpoint: bool) -> DistributedArray:
    """Draw integers between bounds of which one at least is an array, by words of 64 bits."""
    _check_bounds(low, high, draw.dtype, endpoint)
    try:
        sizes = np.broadcast_shapes(np.shape(low), np.shape(high), draw.shape)
    except ValueError:
        sizes = ()
    if sizes != draw.shape:
        raise other_shapes("integers", draw.shape, {"low": low, "high": high})
    bits = draw.words()
    start, stop = _as_words(low), _as_words(high)
    count = stop - start + np.uint64(endpoint)  # modulo 2^64, where 0 stands for all of them
    values = start + where(equal(count, 0), bits, random_bits.multiply_high(bits, count))
    if isinstance(low, DistributedArray) or isinstance(high, DistributedArray):
        is_empty = less(high, low) if endpoint else less_equal(high, low)
        values = where(is_empty, np.uint64(2**64 - 1), values)
    return in_layout(astype(values, draw.dtype), draw.layout)


def _check_bounds(low: Any, high: Any, dtype: np.dtype[Any], endpoint: bool) -> None:
    """Raise the errors of `random_bits.check_integers` for bounds that are on the host."""
    is_on_host = [not isinstance(end, DistributedArray) for end in (low, high)]
    if all(is_on_host):
        is_range = np.less_equal(low, high) if endpoint else np.less(low, high)
        for place in np.argwhere(~is_range)[:1].tolist():
            ends = [int(end[tuple(place)]) for end in np.broadcast_arrays(low, high)]
            random_bits.check_integers(ends[0], ends[1] + endpoint, dtype)
    for end, last in ((low, 0), (high, 1 - endpoint)):
        if not isinstance(end, DistributedArray) and np.size(end):
            least, most = int(np.min(end)) - last, int(np.max(end)) - last
            random_bits.check_integers(least, most + 1, dtype)


def _as_words(end: Any) -> Any:
    """Return a bound modulo 2^64, as uint64."""
    if isinstance(end, int):
        return np.uint64(end % 2**64)
    return end.astype(np.uint64)
