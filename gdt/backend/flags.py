"""Errors in data that kernels find: noted on the device, raised at the next read by the host.

Asking the device after every launch would make the host wait for it. So a kernel notes an error in
a flag and goes on, and the host reads the flags when it waits for the device anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

UNSET = 2**64 - 1
CHUNK = 64  # flags are allocated and read in chunks of so many

Explain = Callable[[int], Exception | None]


class ErrorFlags:
    """The error flags of one device: uint64 numbers, `UNSET` as long as nothing is wrong.

    full: `full(length, value)` returns an array of uint64 on the device. fetch: `fetch(array)`
    returns the array on the host.
    """

    def __init__(self, full: Callable[[int, int], Any], fetch: Callable[[Any], np.ndarray]) -> None:
        self._full, self._fetch = full, fetch
        self._chunks: list[tuple[Any, list[Explain]]] = []

    def new(self, explain: Explain) -> Any:
        """Return a flag: an array of one element on the current device.

        explain: a function from the number that a kernel wrote to the error to raise, or to None if
        nothing is wrong.
        """
        if not self._chunks or len(self._chunks[-1][1]) == CHUNK:
            self._chunks.append((self._full(CHUNK, UNSET), []))
        values, explanations = self._chunks[-1]
        explanations.append(explain)
        return values[len(explanations) - 1 : len(explanations)]

    def check(self) -> None:
        """Raise the error of the first flag that is set, and reset all flags."""
        errors = []
        for values, explanations in self._chunks:
            numbers = self._fetch(values)
            places = np.flatnonzero(numbers != UNSET)
            if places.size:
                errors += [explanations[i](int(numbers[i])) for i in places]
                values[...] = UNSET
        for problem in errors:
            if problem is not None:
                raise problem
