"""Two calls of a function on the same layouts: one to be recorded, one whose values a replay must
compute with."""

from __future__ import annotations

import random
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

import gdt
from gdt.array.array import DistributedArray
from gdt.array.registry import FUNCTIONS
from gdt.sharding.mesh import Mesh
from gdt.state.trees import leaves
from gdt.testing import Sample, layouts
from gdt.testing.operands import placed

Operands = list[DistributedArray]


@contextmanager
def any_values() -> Iterator[None]:
    """Without NumPy's warnings of what the values of samples lead to."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield


def placed_twice(arrays: Sequence[np.ndarray], mesh: Mesh, seed: str) -> tuple[Operands, Operands]:
    """The arrays in layouts that are drawn, and in the same layouts with their elements rolled.

    Nothing is partial: the first call that reads a partial sum resolves it, and the second reads
    what was remembered, which is another call."""
    draw = random.Random(zlib.crc32(seed.encode()))
    chosen = [draw.choice(layouts(mesh, a.ndim)) for a in arrays]
    rolled = [np.roll(a.reshape(-1), 1).reshape(a.shape) for a in arrays]
    with any_values():
        first, second = (
            [placed(a, w) for a, w in zip(values, chosen, strict=True)]
            for values in (arrays, rolled)
        )
    return first, second


class TwoCalls(NamedTuple):
    """A function of a sample's operands, and operands of two calls of it."""

    function: Callable[..., Any]
    first: Operands
    second: Operands

    @classmethod
    def of(cls, name: str, sample: Sample, mesh: Mesh, seed: str) -> TwoCalls:
        """Calls of the public function of that name."""
        function = FUNCTIONS[name]  # a step that names the table would look for state in all of it

        def call(*operands: DistributedArray) -> Any:
            return function(*sample.with_arrays(operands), **sample.static)

        return cls(call, *placed_twice(sample.arrays, mesh, seed))

    def expected(self) -> Any:
        """What the second call returns as it is written; None if that is not arrays alone."""
        out = self.function(*self.second)
        return out if all(isinstance(leaf, DistributedArray) for leaf in leaves(out)) else None

    def types(self) -> list[gdt.ArrayType]:
        """The types of the operands, for messages."""
        return [x.type for x in self.first]


def same(a: Any, b: Any) -> bool:
    """Whether two trees hold equal values, NaN included."""
    return all(
        np.array_equal(x.numpy(), y.numpy(), equal_nan=x.dtype.kind in "fc")
        if isinstance(x, DistributedArray)
        else x == y
        for x, y in zip(leaves(a), leaves(b), strict=True)
    )
