"""Predictions of deep models: parts that are repeated are traced at two lengths, and extended.

Blocks of one structure, and micro-batches, add to a step what the one before added: seconds, bytes
and memory are linear in how many there are, once there are two (in several kinds of parts,
multilinear). So a step of 96 blocks costs two traces, of 2 and of 4.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from gdt.backend.abstract import DEVICE
from gdt.errors import ArgumentError, error
from gdt.prediction.machine import Machine
from gdt.prediction.plans import Notes, ParallelPlan, shortest
from gdt.prediction.pricing import Prediction, predict

MakeStep = Callable[[ParallelPlan], Callable[[], Any]]
KINDS = 2  # of parts that are extended; the traces of n kinds are 2 ** n
LINEAR = (
    "seconds", "products", "memory", "launches", "exposed", "hidden", "flops", "collectives",
    "state", "peak",
)  # fmt: skip


@contextmanager
def older_objects_frozen() -> Iterator[None]:
    """Let `gc.collect`, of which a trace needs two, look in this `with` statement at the objects
    alone that are made in it: it takes a quarter of a second where a program has a million."""
    if gc.get_freeze_count():  # the program has frozen some, and unfreezes none
        yield
        return
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def predict_plan(
    make_step: MakeStep, plan: ParallelPlan, machine: Machine
) -> tuple[Prediction, Notes]:
    """Return the prediction of a plan, and what the plan was asked for.

    Raises ArgumentError for a `make_step` that does not apply the plan to a model, or that returns
    no step, and what `make_step` and its step raise with the whole model.
    """
    try:
        found, notes = _traced(make_step, plan, machine, {})
        if len(notes.counts) <= KINDS:
            return _extended(make_step, plan, machine, notes.counts, {}, found), notes
    except Exception:  # a model that takes its blocks by number needs them all
        pass
    return _traced(make_step, plan, machine, None)


def _traced(
    make_step: MakeStep, plan: ParallelPlan, machine: Machine, lengths: dict[str, int] | None
) -> tuple[Prediction, Notes]:
    """Return the prediction with parts of these lengths; see `Notes`."""
    gc.collect()
    notes, before = Notes(lengths), DEVICE.now
    step: Any = make_step(replace(plan, notes=notes))
    if not callable(step):
        problem = f"make_step has returned {step!r}"
        raise error(ArgumentError, "plan", problem, remedy="Return a function without arguments.")
    found = predict(step, machine=machine)
    if not notes.shapes:
        problem = "make_step has not applied the plan to a model"
        raise error(ArgumentError, "plan", problem, remedy="Call plan.apply(model).")
    return replace(found, state=found.state - before, peak=found.peak - before), notes


def _extended(
    make_step: MakeStep,
    plan: ParallelPlan,
    machine: Machine,
    counts: Mapping[str, int],
    lengths: dict[str, int],
    found: Prediction | None = None,
) -> Prediction:
    """Return the prediction with the parts of `counts` as often as that says, and the others with
    their lengths. found: the prediction with all of them at their shortest, if it is there."""
    if not counts:
        return found or _traced(make_step, plan, machine, lengths)[0]
    (name, count), *others = counts.items()
    rest, short = dict(others), shortest(count)
    few = _extended(make_step, plan, machine, rest, lengths | {name: short}, found)
    more = _extended(make_step, plan, machine, rest, lengths | {name: short + 2})
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
