"""Predictions of deep models: parts that are repeated are traced at two lengths, and extended.

Blocks of one structure, and micro-batches, add to a step what the one before added: seconds, bytes
and memory are linear in how many there are, once there are two (in several kinds of parts,
multilinear). So a step of 96 blocks costs two traces, of 2 and of 4.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakSet

from gdt.backend.abstract import DEVICE
from gdt.errors import ArgumentError, error
from gdt.nn.module import Module
from gdt.prediction.machine import Machine
from gdt.prediction.plans import Notes, ParallelPlan, shortest
from gdt.prediction.pricing import Prediction, predict

MakeStep = Callable[[ParallelPlan], Callable[[], Any]]
KINDS = 2  # of parts that are extended; the traces of n kinds are 2 ** n
LINEAR = (
    "seconds", "products", "memory", "launches", "exposed", "hidden", "flops", "collectives",
    "state", "peak",
)  # fmt: skip


# What a model may raise of whose blocks there are a few: one that takes them by number, or unpacks
# them, or joins what all of them return.
OF_FEWER_BLOCKS = (LookupError, ValueError, AssertionError)


@dataclass
class PlanTracer:
    """A tracer of the steps that `make_step` makes.

    models: those that plans were applied to, while they are there. freezes: whether what is older
    than a trace is frozen.
    """

    make_step: MakeStep
    machine: Machine
    models: WeakSet[Module] = field(default_factory=WeakSet)
    freezes: bool = False

    @contextmanager
    def older_objects_frozen(self) -> Iterator[None]:
        """Let `gc.collect`, of which a trace needs two, look at the objects of that trace alone in
        this `with` statement: it takes a quarter of a second where a program has a million."""
        self.freezes = not gc.get_freeze_count()  # what the program has frozen stays so
        try:
            yield
        finally:
            if self.freezes:
                gc.unfreeze()
            self.freezes = False

    def predict(self, plan: ParallelPlan) -> tuple[Prediction, Notes]:
        """Return the prediction of a plan, and what the plan was asked for.

        Raises ArgumentError for a `make_step` that does not apply the plan to a new model, that
        returns no step, or that makes it on another mesh; and what `make_step` and its step raise
        with the whole model.
        """
        notes = Notes({}, models=self.models)
        try:
            found = self._traced(plan, notes)
            if len(notes.counts) <= KINDS:
                return self._extended(plan, notes.counts, {}, found), notes
        except OF_FEWER_BLOCKS:
            if not notes.counts:  # there were no fewer
                raise
        notes = Notes(models=self.models)
        return self._traced(plan, notes), notes

    def _traced(self, plan: ParallelPlan, notes: Notes) -> Prediction:
        """Return the prediction with parts of the lengths of `notes`."""
        gc.collect()
        if self.freezes:
            gc.freeze()
        before = DEVICE.now
        step: Any = self.make_step(replace(plan, notes=notes))
        if not callable(step):
            problem = f"make_step has returned {step!r}"
            raise error(
                ArgumentError, "plan", problem, remedy="Return a function without arguments."
            )
        found = predict(step, machine=self.machine)
        if found.mesh is not plan.mesh:
            problem = f"the step has run on {found.mesh}, and the plan is of {plan.mesh}"
            remedy = "Make the model and its batch on plan.mesh."
            raise error(ArgumentError, "plan", problem, remedy=remedy)
        if not notes.shapes:
            problem = "make_step has not applied the plan to a model"
            raise error(ArgumentError, "plan", problem, remedy="Call plan.apply(model).")
        return replace(found, state=found.state - before, peak=found.peak - before)

    def _extended(
        self,
        plan: ParallelPlan,
        counts: Mapping[str, int],
        lengths: dict[str, int],
        found: Prediction | None = None,
    ) -> Prediction:
        """Return the prediction with the parts of `counts` as often as that says, and the others
        with their lengths. found: the prediction with all of them at their shortest, if known."""
        if not counts:
            return found or self._traced(plan, Notes(lengths, models=self.models))
        (name, count), *others = counts.items()
        rest, short = dict(others), shortest(count)
        few = self._extended(plan, rest, lengths | {name: short}, found)
        more = self._extended(plan, rest, lengths | {name: short + 2})
        return _on_the_line(few, more, (count - short) / 2)


def _on_the_line(few: Prediction, more: Prediction, times: float) -> Prediction:
    """Return the prediction that lies `times` as far beyond `few` as `more` does."""

    def beyond(a: float, b: float) -> float:
        return a + times * (b - a)

    values: dict[str, Any] = {k: beyond(getattr(few, k), getattr(more, k)) for k in LINEAR}
    values |= {k: round(values[k]) for k in ("flops", "collectives", "state", "peak")}
    axes = dict.fromkeys([*few.bytes, *more.bytes])
    nbytes = {a: beyond(few.bytes.get(a, 0.0), more.bytes.get(a, 0.0)) for a in axes}
    useful = beyond(few.mfu * few.seconds, more.mfu * more.seconds)
    return replace(more, **values, bytes=nbytes, mfu=useful / values["seconds"])
