"""Errors in data that kernels find: noted on the device, raised at the next read by the host.

Asking the device after every launch would make the host wait for it. So a kernel notes an error in
a flag and goes on, and the host reads the flags when it has waited for the device anyway. They are
in memory of the host that devices write, so that reading them is no second wait.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

UNSET = 2**64 - 1
CHUNK = 64  # flags are allocated and read in chunks of so many

Explain = Callable[[int], Exception | None]


class ErrorFlags:
    """Error flags: uint64 numbers, `UNSET` as long as nothing is wrong.

    empty: `empty(length)` returns an array of uint64 in memory of the host that devices write.
    on_device: `on_device(array)` returns the same memory as an array on the current device.
    """

    def __init__(
        self,
        empty: Callable[[int], np.ndarray],
        on_device: Callable[[np.ndarray], Any] = lambda array: array,
    ) -> None:
        self._empty, self._on_device = empty, on_device
        self._chunks: list[tuple[np.ndarray, list[Explain]]] = []

    def new(self, explain: Explain) -> Any:
        """Return a flag: an array of one element on the current device.

        explain: a function from the number that a kernel wrote to the error to raise, or to None if
        nothing is wrong.
        """
        if not self._chunks or len(self._chunks[-1][1]) == CHUNK:
            self._chunks.append((self._empty(CHUNK), []))
            self._chunks[-1][0][:] = UNSET
        values, explanations = self._chunks[-1]
        explanations.append(explain)
        return self._on_device(values[len(explanations) - 1 : len(explanations)])

    def check(self) -> None:
        """Raise the error of the first flag that is set, and reset those that are."""
        errors = []
        for values, explanations in self._chunks:
            for i in np.flatnonzero(values != UNSET):
                errors.append(explanations[i](int(values[i])))
                values[i] = UNSET
        for problem in errors:
            if problem is not None:
                raise problem
