"""Dropout, the same on every mesh and layout."""

from __future__ import annotations

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
from gdt.sharding.layout import Layout


@checked_class(eager=True)
class Dropout(Module):
    """Zeroes elements with probability `rate` in training, and scales the others by 1 / (1 - rate).

    Which ones depends on the key, the number of calls before, and the global index of the element:
    a seed drops the same elements on every layout. Key and number of calls are saved with the
    model.
    """

    untrained = ("key",)
    counters = ("calls",)

    def __init__(self, rate: float, *, key: Any = None) -> None:
        if not 0 <= rate < 1:
            raise error(ArgumentError, "Dropout", f"rate is {rate!r}", remedy="It is in [0, 1).")
        self.rate = rate
        self.key = random.key(key)
        self.calls = 0

    def __call__(self, x: DistributedArray, training: bool | None = None) -> Any:
        """training: whether to drop; the module's mode if not given."""
        if not (self.training if training is None else training) or not self.rate:
            return x
        (calls,) = from_host("Dropout", self._count)
        key = random.fold_in(self.key, calls)
        kept = random.bernoulli(x.shape, 1 - self.rate, layout=x.layout.resolved, key=key)
        return where(kept, x * (1 / (1 - self.rate)), 0)

    def _count(self) -> tuple[DistributedArray]:
        """How many calls there were, as an operand; and one more."""
        calls = distribute(np.uint64(self.calls), Layout.replicated(self.key.mesh, 0))
        self.calls += 1
        return (calls,)

    def describe(self) -> str:
        """The rate."""
        return f"{self.rate}"
