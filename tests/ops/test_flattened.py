"""What reshapes of split axes send, beside the elements of every shard."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np

import gdt
from gdt.ops.blocks.flattened import FlatMove
from gdt.sharding.array_type import ArrayType
from gdt.sharding.layout import Layout

MESH = gdt.create_mesh([("a", 3), ("b", 2)])


def shape_of(size: int) -> tuple[int, ...]:
    """A shape of so many elements."""
    shape = []
    while size > 1:
        shape.append(random.choice([n for n in range(2, size + 1) if size % n == 0]))
        size //= shape[-1]
    return tuple(shape)


def elements(array_type: ArrayType) -> list[np.ndarray]:
    """The places in the flattened array of the elements of every device."""
    places = np.arange(math.prod(array_type.shape)).reshape(array_type.shape)
    coordinates = itertools.product(*map(range, MESH.sizes))
    return [places[array_type.shard_slices(at)].reshape(-1) for at in coordinates]


def test_the_bytes_are_those_of_elements_that_a_device_lacks() -> None:
    random.seed(0)
    for _ in range(300):
        size, axes = random.choice([6, 13, 24, 30, 36, 60]), random.choice([(0,), (1,), (0, 1)])
        types = []
        for _ in range(2):
            shape = shape_of(size)
            dim = random.randrange(len(shape))
            dims = tuple([axes if d == dim else () for d in range(len(shape))])
            types.append(ArrayType.of(shape, np.dtype(np.float32), Layout.of(MESH, dims)))
        pairs = zip(*map(elements, types), strict=True)
        lacking = sum(len(np.setdiff1d(want, have)) for have, want in pairs)
        assert FlatMove(*types, axes).nbytes == 4 * lacking, types
