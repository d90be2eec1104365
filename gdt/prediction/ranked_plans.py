"""The plans that a search has found, as a sequence and as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import overload

from gdt.prediction.plans import ParallelPlan
from gdt.prediction.pricing import seconds_text, size_text

SHOWN = 16  # rows of a table


class RankedPlans(Sequence[ParallelPlan]):
    """The plans that `gdt.plan` has found, the fastest first; `print` shows them as a table.

    The table has the time of a step, and the bytes of one device: the peak of memory, and what it
    sends in a step (by mesh axes: `plan.prediction.bytes`).

    considered: how many were compared by formulas. traced: how many of them were traced. seconds:
    how long the search took. is_complete: whether `time_limit` left it the time that it needed.
    refused: what `make_step`, or its step, has raised for plans that were to be traced.

    >>> plans = gdt.prediction.RankedPlans([], considered=0, traced=0, seconds=0.0)
    >>> len(plans), plans.is_complete
    (0, True)
    """

    def __init__(
        self,
        plans: Sequence[ParallelPlan],
        considered: int,
        traced: int,
        seconds: float,
        is_complete: bool = True,
        refused: Mapping[ParallelPlan, str] | None = None,
    ) -> None:
        self._plans = [*plans]
        self.considered, self.traced, self.seconds = considered, traced, seconds
        self.is_complete, self.refused = is_complete, dict(refused or {})

    @overload
    def __getitem__(self, n: int) -> ParallelPlan: ...
    @overload
    def __getitem__(self, n: slice) -> list[ParallelPlan]: ...
    def __getitem__(self, n: int | slice) -> ParallelPlan | list[ParallelPlan]:
        return self._plans[n]

    def __len__(self) -> int:
        return len(self._plans)

    def __repr__(self) -> str:
        rows = [["mesh", "scheme", "checkpointing", "micro-batches", "step", "peak", "sent"]]
        rows += [_row(plan) for plan in self._plans[:SHOWN]]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(t.ljust(w) for t, w in zip(row, widths, strict=True)) for row in rows]
        cut = "" if self.is_complete else "; time_limit has ended the search"
        total = f"{self.traced} of {self.considered:,} plans traced in {self.seconds:.1f} s{cut}"
        reasons = Counter(self.refused.values())
        lines += [total, *[f"refused by {n} plans: {reason}" for reason, n in reasons.items()]]
        return "\n".join([line.rstrip() for line in lines])


def _row(plan: ParallelPlan) -> list[str]:
    """Return the cells of a plan."""
    found = plan.prediction
    seconds, peak, sent = "", "", ""
    if found is not None:
        seconds, peak = seconds_text(found.seconds), size_text(found.peak)
        sent = size_text(sum(found.bytes.values()))
    mesh = " x ".join(
        f"{name} {size}" for name, size in zip(plan.mesh.axis_names, plan.mesh.sizes, strict=True)
    )
    checkpointing = "yes" if plan.checkpoint else "no"
    return [mesh, plan.scheme, checkpointing, str(plan.micro_batches), seconds, peak, sent]
