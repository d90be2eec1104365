"""Errors that kernels find in data: noted on the device, raised at the next read by the host.

Asking the device after every launch would make the host wait for it. So a kernel notes what is
wrong in a flag, goes on without it, and the host looks when it waits for the device anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

UNSET = 2**64 - 1
CHUNK = 64  # flags that are allocated, and read, together

Explain = Callable[[int], Exception | None]


class ErrorFlags:
    """The flags of one kind of device: uint64 numbers, `UNSET` as long as nothing is wrong.

    full: makes an array of that length and value on the current device; fetch: brings one to the
    host.
    """

    def __init__(self, full: Callable[[int, int], Any], fetch: Callable[[Any], np.ndarray]) -> None:
        self._full, self._fetch = full, fetch
        self._chunks: list[tuple[Any, list[Explain]]] = []

    def new(self, explain: Explain) -> Any:
        """A flag, as an array of one element on the current device.

        explain: from what a kernel wrote there to the error to raise, or None if nothing is wrong.
        """
        if not self._chunks or len(self._chunks[-1][1]) == CHUNK:
            self._chunks.append((self._full(CHUNK, UNSET), []))
        values, explanations = self._chunks[-1]
        explanations.append(explain)
        return values[len(explanations) - 1 : len(explanations)]

    def check(self) -> None:
        """Raise the error of the first flag that is set, and take all of them back."""
        errors = []
        for values, explanations in self._chunks:
            found = self._fetch(values)
            places = np.flatnonzero(found != UNSET)
            if places.size:
                errors += [explanations[i](int(found[i])) for i in places]
                values[...] = UNSET
        for problem in errors:
            if problem is not None:
                raise problem
