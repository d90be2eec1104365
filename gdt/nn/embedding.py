"""Embedding: a table of vectors, of which any axis may be split."""

from __future__ import annotations

from typing import Any

import numpy as np

from gdt.arguments import checked_class
from gdt.array.array import DistributedArray
from gdt.nn import initializers
from gdt.nn.initializers import Initializer
from gdt.nn.module import Module
from gdt.nn.parameters import ParameterSpec, check_sizes, in_compute_dtype
from gdt.ops.products.op import matmul
from gdt.ops.taking import take_at
from gdt.sharding.layout import Layout


@checked_class(eager=True)
class Embedding(Module):
    """A table of vectors, one for each id.

    ids: integers (...), of 0 to count - 1; result: (..., size).
    count: the number of ids, such as the size of a vocabulary. size: that of a vector.
    weight_layout: the layout of the table (count, size); replicated on the default mesh if not
        given. Where `count` is split, every device looks up the ids of its share, and the result is
        a partial sum of rows and zeros until its value is needed.
    initializer: the name of an initialiser or a function. dtype: of the table. key: of the random
        numbers; the next one of `gdt.random` if not given.

    Raises ArgumentError for sizes below 1; calls raise IndexRangeError for ids out of range.

    >>> layer = gdt.nn.Embedding(10, 3)
    >>> layer(gdt.asarray([[1, 2], [3, 3]])).shape, layer.logits(gdt.ones((2, 3), "float32")).shape
    ((2, 2, 3), (2, 10))
    """

    def __init__(
        self,
        count: int,
        size: int,
        weight_layout: Layout | None = None,
        initializer: str | Initializer = "normal",
        *,
        dtype: Any = np.float32,
        key: Any = None,
    ) -> None:
        check_sizes(count=count, size=size)
        spec = ParameterSpec("Embedding", initializers.get(initializer), dtype, weight_layout, key)
        self.weight = spec.create((count, size))

    def __call__(self, ids: Any) -> DistributedArray:
        (rows,) = in_compute_dtype(self, take_at("Embedding", self.weight, ids, 0, negative=False))
        return rows  # type: ignore[no-any-return]

    def logits(self, x: Any) -> DistributedArray:
        """Return the products of x with the vector of every id, for a head that is tied to the
        table. x: (..., size), result: (..., count).

        >>> table = gdt.nn.Embedding(10, 4, key=0)
        >>> table.logits(gdt.ones((2, 4), "float32")).shape
        (2, 10)
        """
        x, weight = in_compute_dtype(self, x, self.weight)
        return matmul(x, weight.T)

    def describe(self) -> str:
        """Return the sizes as text."""
        count, size = self.weight.shape
        return f"{count} ids -> {size}"
