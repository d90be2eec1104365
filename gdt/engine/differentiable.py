"""The declaration of gradients, which ops and functions of ops share."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import cast

from gdt.caches import BUDGET
from gdt.errors import ArgumentError, error

Vjp = Callable[..., object]
OUTPUTS = 8  # as many outputs of an op can be told apart by name


class Differentiable:
    """The base of what a tape records: a name, and gradients, declared by `vjp`.

    vjps: a function for each operand, None for an operand that counts as a constant. joint_vjp: one
        function for all operands in their place. reads: for each of these functions the positions
        of the operands whose values it reads, and -1 - n for output n; None where that is not
        known.
    """

    name: str
    vjps: tuple[Vjp | None, ...] = ()
    joint_vjp: Vjp | None = None
    reads: tuple[frozenset[int], ...] | None = None

    def vjp(
        self,
        *per_operand: Vjp | None,
        joint: Vjp | None = None,
        reads: str | Sequence[str] | None = None,
    ) -> None:
        """Declare gradients: one function `(g, out, *operands, **statics) -> cotangent` for each
        operand, None for one that counts as a constant; or one `joint` function that returns the
        tuple of all cotangents.

        The statics are those that a call passes, as it passes them. With several outputs, `g` and
        `out` are tuples, and `g` has None for an output without cotangent.

        reads: the names of the operands whose values the functions read, and `out`, or `out1` for
            the second of several outputs: a text for each function, or one for all. Of everything
            else they take shape, dtype and layout alone, so that a tape frees its memory. By
            default they may read everything.

        Raises ArgumentError unless there is a function for each operand, and for `reads` that name
        something else.
        """
        wrong = [f for f in (*per_operand, joint) if f is not None and not callable(f)]
        if wrong:
            self._refuse(f"a gradient is of type {type(wrong[0]).__name__}, and no function")
        if per_operand and joint is not None:
            self._refuse("there are functions for each operand, and a joint one")
        if joint is None and not self._takes(len(per_operand)):
            signature = inspect.signature(cast(Callable[..., object], self))
            called = f"{self.name}({', '.join(signature.parameters)})"
            self._refuse(
                f"{len(per_operand)} gradient{'s' * (len(per_operand) != 1)} for {called}",
                "Pass a function for each operand; None for one that counts as a constant.",
            )
        if self.vjps or self.joint_vjp:
            BUDGET.clear()  # of programs of the gradients that were declared before
        self.vjps, self.joint_vjp = per_operand, joint
        self.reads = None if reads is None else self._positions(reads)

    def _positions(self, reads: str | Sequence[str]) -> tuple[frozenset[int], ...] | None:
        """Return what texts of names say, as `reads` keeps it; None where they name `*arrays`,
        which are at any number of positions."""
        texts = [reads] * max(1, len(self.vjps)) if isinstance(reads, str) else reads
        numbers = {name: n for n, name in enumerate(self._operand_names())}
        numbers |= {"out": -1} | {f"out{n}": -1 - n for n in range(OUTPUTS)}
        for name in " ".join(texts).split():
            if name not in numbers:
                self._refuse(f"reads= names {name!r}, which is no operand and no output")
        parameters = inspect.signature(cast(Callable[..., object], self)).parameters.values()
        variadic = {p.name for p in parameters if p.kind is p.VAR_POSITIONAL}
        if variadic.intersection(" ".join(texts).split()):
            return None
        return tuple([frozenset(numbers[name] for name in text.split()) for text in texts])

    def _operand_names(self) -> Sequence[str]:
        """The names of the operands."""
        raise NotImplementedError

    def _takes(self, count: int) -> bool:
        """Whether so many gradients fit the operands."""
        raise NotImplementedError

    def _refuse(self, problem: str, remedy: str | None = None) -> None:
        raise error(ArgumentError, f"{self.name}.vjp", problem, remedy=remedy)
