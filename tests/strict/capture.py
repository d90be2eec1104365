"""Stream capture on the host: what is asked is written down, and done when the graph is launched.

As on a GPU, addresses are part of a graph and values are not: what a capture launches reads and
writes the same memory in every launch, whatever it holds by then. While it is captured nothing
happens: what it writes is put back at the end, and what it makes holds nothing that means anything.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import cupy
import numpy as np

from .order import Memory

UNSUPPORTED = 900  # cudaErrorStreamCaptureUnsupported
MERGE = 902  # cudaErrorStreamCaptureMerge: of two captures that are under way
ISOLATION = 905  # cudaErrorStreamCaptureIsolation: an event of the other side of a capture


def refused(status: int = UNSUPPORTED) -> Exception:
    """CUDA's error for what a stream that is being captured cannot do."""
    return cupy.cuda.runtime.CUDARuntimeError(status)


def memory_of(host: np.ndarray) -> np.ndarray:
    """The array that owns the memory of a view."""
    while isinstance(host.base, np.ndarray):
        host = host.base
    return host


def arrays(values: Any) -> Iterator[np.ndarray]:
    """The arrays among arguments or results."""
    if isinstance(values, np.ndarray):
        yield values
    elif isinstance(values, tuple | list):
        for value in values:
            yield from arrays(value)
    elif isinstance(values, dict):
        yield from arrays(list(values.values()))


def as_arrays(values: Any) -> Any:
    """NumPy's scalars, which no device has, as arrays."""
    if isinstance(values, tuple | list):
        return type(values)([as_arrays(v) for v in values])
    return np.asarray(values) if isinstance(values, np.generic) else values


class Capture:
    """What a stream was asked between `begin_capture` and `end_capture`; streams of other devices
    may be captured meanwhile, each for itself.

    uses: what every launch does to which memory, in order.
    """

    def __init__(self) -> None:
        self.uses: list[tuple[Callable[[Memory, int], None], Memory]] = []
        self.steps: list[Callable[[], None]] = []
        self._before: dict[int, tuple[np.ndarray, np.ndarray]] = {}  # memory that is written
        self._made: dict[int, np.ndarray] = {}

    def note(
        self,
        compute: Callable[[], Any],
        operands: Any,
        written: Sequence[np.ndarray] = (),
        is_memory: bool = False,
    ) -> Any:
        """Do it, so that what follows has shapes and dtypes, and remember how.

        compute: its results are views of `operands`, or new; it changes the arrays `written`.
        is_memory: it allocates, and writes nothing.
        """
        for host in map(memory_of, written):
            if id(host) not in self._before and id(host) not in self._made:
                self._before[id(host)] = host, host.copy("K")
        result = as_arrays(compute())
        known = {id(memory_of(x)) for x in (*arrays(operands), *written)}
        fresh = [x for x in arrays(result) if id(memory_of(x)) not in known]
        self._made.update({id(memory_of(x)): memory_of(x) for x in fresh})
        if not written and (not fresh or is_memory):
            return result  # a view, or memory that is not written yet

        def step() -> None:
            again = [x for x in arrays(as_arrays(compute())) if id(memory_of(x)) not in known]
            for kept, x in zip(fresh, again, strict=True):
                kept[...] = x

        self.steps.append(step)
        return result

    def postpone(self, compute: Callable[[], Any]) -> None:
        """Remember something that makes no arrays and cannot be done before the launch."""
        self.steps.append(compute)

    def end(self) -> Graph:
        """Undo what was done."""
        for host, before in self._before.values():
            host[...] = before
        for host in self._made.values():
            if host.flags.writeable:
                ctypes.memset(host.ctypes.data, 0xFF, host.nbytes)
        return Graph(self.steps)


class Graph:
    """The steps of a capture, to be done again and again."""

    def __init__(self, steps: list[Callable[[], None]]) -> None:
        self.steps = steps

    def run(self) -> None:
        with np.errstate(all="ignore"):
            for step in self.steps:
                step()
