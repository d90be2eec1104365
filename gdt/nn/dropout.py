"""Dropout, the same on every mesh and layout."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from gdt import random
from gdt.arguments import checked_class
from gdt.array.array import DistributedArray
from gdt.array.placing import distribute
from gdt.errors import ArgumentError, error
from gdt.nn.module import Module
from gdt.observe import from_host
from gdt.ops.comparison import where
from gdt.ops.creation import asarray
from gdt.sharding.layout import Layout
from gdt.sharding.mesh import Mesh


@checked_class(eager=True)
class Dropout(Module):
    """Zero each element with probability `rate` in training, and divide the others by 1 - rate.

    rate: in [0, 1). key: of the random numbers; the next one of `gdt.random` if not given.

    The key, the number of earlier calls and the global index of an element decide whether it is
    dropped, so a seed drops the same elements on every layout. Key and number of calls are saved
    with the model. Source: Srivastava et al. 2014.

    Raises ArgumentError for another rate.

    >>> layer = gdt.nn.Dropout(0.5, key=0)
    >>> layer(gdt.ones((8,))).tolist()
    [0.0, 2.0, 0.0, 2.0, 0.0, 2.0, 2.0, 2.0]
    >>> layer(gdt.ones((2,)), training=False).tolist()
    [1.0, 1.0]
    """

    untrained = ("key",)
    counters = ("calls",)

    def __init__(self, rate: float, *, key: Any = None) -> None:
        if not 0 <= rate < 1:
            raise error(ArgumentError, f"rate is {rate!r}", remedy="It is in [0, 1).")
        self.rate = rate
        self.key = random.key(key)
        self.calls = 0

    def __call__(self, x: Any, training: bool | None = None) -> DistributedArray:
        """Return x with dropped elements. training: whether to drop; by default the module's
        mode."""
        if not (self.training if training is None else training) or not self.rate:
            return x  # type: ignore[no-any-return]
        x = asarray(x)
        if not x.size:
            return x
        key = self.next_key()
        mask = random.bernoulli(x.shape, 1 - self.rate, layout=x.layout.resolved, key=key)
        return where(mask, x * (1 / (1 - self.rate)), 0)

    def next_key(self) -> DistributedArray:
        """Return the key of a call, and count it.

        >>> layer = gdt.nn.Dropout(0.5, key=0)
        >>> first, second = layer.next_key(), layer.next_key()
        >>> int(first) == int(second)
        False
        """
        # A recorded step counts again where `key` may be that of all blocks of a Pipelined.
        (calls,) = from_host("Dropout", partial(self._count, self.key.mesh))
        return random.fold_in(self.key, calls)

    def _count(self, mesh: Mesh) -> tuple[DistributedArray]:
        """Return the number of calls so far as an array of a mesh, and count one more."""
        calls = distribute(np.uint64(self.calls), Layout.replicated(mesh, 0))
        self.calls += 1
        return (calls,)

    def describe(self) -> str:
        """Return the rate as text."""
        return f"{self.rate}"
