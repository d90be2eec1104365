"""The backend of abstract devices: shapes, dtypes, memory and work, and no values.

A mesh of abstract devices runs every program as the first of its devices would: with its plans,
moves and collectives, on blocks that hold nothing (`array`). So the step of a network of any size
runs on any number of devices in seconds, on a laptop. Bodies of ops run as they are (`functions`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NoReturn

import numpy as np

from gdt.backend.abstract import functions  # the rules that arrays find
from gdt.backend.abstract.array import DEVICE, AbstractArray, Work, refused
from gdt.backend.abstract.namespace import AbstractNamespace
from gdt.backend.numpy import Order

__all__ = ["DEVICE", "AbstractArray", "AbstractBackend", "Work"]

HERE = nullcontext()


class AbstractBackend:
    """The backend of abstract devices."""

    xp: Any = AbstractNamespace()
    runner: Any = None
    flags: Any = None
    recycled_size = math.inf
    most_joined = math.inf
    overlaps = True

    def empty(self, shape: tuple[int, ...], dtype: Any, order: Order = None) -> AbstractArray:
        """Return an array; see `Backend.empty`."""
        return AbstractArray.new(shape, dtype, order)

    def free_memory(self) -> int:
        """Return 0: no memory is kept."""
        return 0

    def asarray(
        self, value: Any, dtype: Any = None, *, copy: bool = False, order: Order = None
    ) -> AbstractArray:
        """Return an array like `value`, without its values."""
        array = AbstractNamespace.asarray(value, dtype)
        return array.copy() if copy and array is value else array

    upload = asarray

    def to_host(self, block: Any) -> NoReturn:
        """Refuse: a block has no values."""
        refused("reading an array")

    def synchronize(self) -> None:
        """Do nothing: no work is left."""

    def seconds(self, run: Callable[[], Any]) -> float:
        """Run, and return 0."""
        run()
        return 0.0

    def owns(self, buffer: object) -> bool:
        """Return False: no memory is kept."""
        return False

    def on(self, mesh: Any, block: int) -> AbstractContextManager[object]:
        """Return a context that does nothing."""
        return HERE

    def placed(self, mesh: Any, block: int, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function`."""
        return function

    def copying_ahead(self) -> AbstractContextManager[None]:
        """Return a context that does nothing: there are no values to copy."""
        return nullcontext()

    @contextmanager
    def overlapping(self, mesh: Any) -> Iterator[list[Any]]:
        """Tell the listener that what is sent in this context may run beside computation."""
        DEVICE.overlap = object()
        events = [DEVICE.overlap]
        try:
            yield events
        finally:
            DEVICE.overlap = None

    def join(self, mesh: Any, events: Sequence[Any], *, is_read: bool = True) -> None:
        """Tell the listener that computation waits for what was sent."""
        if DEVICE.listener is not None:
            DEVICE.listener.joined(*events)
