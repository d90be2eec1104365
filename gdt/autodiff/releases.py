"""Released arrays that a backward pass restores, and releases again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from gdt.array.array import DistributedArray
from gdt.array.released import Recomputation, ReleasedBlocks

Result = tuple[Recomputation, int]  # an array: its recomputation, and its number among the results


def _result(x: Any, unreleased: Mapping[int, Result]) -> Result | None:
    """Return the recomputation of an array that is released, or will be; None of any other."""
    if type(x) is DistributedArray and type(x.blocks) is ReleasedBlocks:
        return x.blocks.recomputation, x.blocks.number
    return unreleased.get(id(x))


class Releases:
    """The released arrays of some calls, which a backward pass restores when it reads them.

    A context around the backward pass, which releases them again: each array when the pass has left
    the first call that uses it, all results of a recomputation when it has left the call that makes
    them, and at the end those that are left.

    calls: the calls (op, operands, statics, output) through which cotangents flow back, in order.
    unreleased: recomputations of arrays that have not been released yet.
    """

    def __init__(
        self, calls: Sequence[tuple[Any, ...]], unreleased: Sequence[Recomputation]
    ) -> None:
        self._recomputations = {id(r): r for r in unreleased}
        self._last_uses: dict[int, list[Result]] = defaultdict(list)  # by the number of a call
        self._results_of_call: dict[int, list[Recomputation]] = defaultdict(list)
        results = {id(x()): (r, n) for r in unreleased for n, x in enumerate(r.results)}
        seen: set[int] = set()
        for number, (_, args, _, out) in enumerate(calls):
            for x in out if type(out) is tuple else (out,):
                if (result := _result(x, results)) is not None:
                    self._recomputations[id(result[0])] = result[0]
                    self._results_of_call[number].append(result[0])
            for x in args:
                if id(x) not in seen and (result := _result(x, results)) is not None:
                    seen.add(id(x))
                    self._recomputations[id(result[0])] = result[0]
                    self._last_uses[number].append(result)

    def last_use(self, number: int, array: DistributedArray) -> None:
        """Release an array of which this call was the first use, before the call has been left."""
        for recomputation, position in self._last_uses.get(number, ()):
            if recomputation.results[position]() is array:
                recomputation.release_one(position)

    def passed(self, number: int) -> None:
        """Release what no call before this one reads."""
        for recomputation, position in self._last_uses.get(number, ()):
            recomputation.release_one(position)
        for recomputation in self._results_of_call.get(number, ()):
            recomputation.release()

    def __enter__(self) -> Releases:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        cause: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for recomputation in self._recomputations.values():
            recomputation.release()
