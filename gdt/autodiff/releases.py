"""Released arrays that a backward pass restores, and releases again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence, Set
from types import TracebackType
from typing import Any

from gdt.array.array import DistributedArray
from gdt.array.gathers import Gather
from gdt.array.released import Recomputation, ReleasedBlocks
from gdt.ops.gathering import gather_of

Result = tuple[Recomputation, int]  # an array: its recomputation, and its number among the results


def _result(x: Any, unreleased: Mapping[int, Result]) -> Result | None:
    """Return the recomputation of an array that is released, or will be; None of any other."""
    if _is_released(x):
        return x.blocks.recomputation, x.blocks.number
    return unreleased.get(id(x))


def _is_released(x: Any) -> bool:
    return type(x) is DistributedArray and type(x.blocks) is ReleasedBlocks


def _reads(op: Any, args: Sequence[Any], dependent: Set[int]) -> Collection[int]:
    """Return the positions of the operands that the gradients of a call may read."""
    positions = [i for i, x in enumerate(args) if id(x) in dependent]
    if op.reads is None:
        return range(len(args)) if positions else ()
    of_each = (
        op.reads[:1]
        if op.joint_vjp is not None
        else [op.reads[i] for i in positions if i < len(op.reads)]
    )
    return {i for read in of_each for i in read if i >= 0}


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
        self._calls = calls
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

    def gathers(self, dependent: Set[int]) -> list[Gather]:
        """Return the gathers that the backward pass makes, in its order: those of arrays that are
        released, when it comes to the last call that reads them, and those of checkpointed
        functions, when it runs them again.

        dependent: the identities of the arrays that depend on the sources.
        """
        found: dict[int, Gather] = {}  # by the identity of the first array of each
        for op, args, _, _ in self._calls:
            read = [args[i] for i in _reads(op, args, dependent)]
            released = [x.blocks.recomputation for x in read if _is_released(x)]
            gathers = [gather for r in released if (gather := gather_of(r)) is not None]
            for gather in (*gathers, *reversed(getattr(op, "gathers", ()))):
                found.pop(id(gather.arrays[0]), None)  # to come behind those that are there
                found[id(gather.arrays[0])] = gather
        return [*reversed(found.values())]

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
