"""Released arrays that a backward pass restores, and releases again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from gdt.array.array import DistributedArray
from gdt.array.released import Recipe, Released


class Releases:
    """The released arrays of some calls, which a backward pass restores when it reads them.

    A context around the backward pass, which releases them again: all arrays of a recipe when the
    pass has left the first call that makes or uses one of them, and at the end those that are
    left.

    calls: the calls (op, operands, statics, output) through which cotangents flow back, in order.
    unreleased: recipes of arrays that have not been released yet.
    """

    def __init__(self, calls: Sequence[tuple[Any, ...]], unreleased: Sequence[Recipe]) -> None:
        self._recipes: dict[int, list[Recipe]] = defaultdict(list)  # by the number of a call
        waiting = {id(x()): recipe for recipe in unreleased for x in recipe.results}
        seen: set[int] = set()
        for number, (_, args, _, out) in enumerate(calls):
            for x in (*args, *(out if type(out) is tuple else (out,))):
                if type(x) is not DistributedArray:
                    continue
                recipe = x.blocks.recipe if type(x.blocks) is Released else waiting.get(id(x))
                if recipe is not None and id(recipe) not in seen:
                    seen.add(id(recipe))
                    self._recipes[number].append(recipe)
        self._recipes[-1] += [recipe for recipe in unreleased if id(recipe) not in seen]

    def passed(self, number: int) -> None:
        """Release what no call before this one reads."""
        for recipe in self._recipes.get(number, ()):
            recipe.release()

    def __enter__(self) -> Releases:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        cause: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number in self._recipes:
            self.passed(number)
