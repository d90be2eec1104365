"""Predictions of deep models: parts that are repeated are traced at two lengths, and extended.

Blocks of one structure, and micro-batches, add to a step what the one before added: seconds, bytes
and memory are linear in how many there are, once there are two (in several kinds of parts,
multilinear). So a step of 96 blocks costs two traces, of 4 and of 6. What an op finds in memory is
linear too, while the peak may be at another op in the deep model: it is the most of all ops.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from itertools import pairwise
from typing import Any
from weakref import WeakSet

import numpy as np

from gdt.arguments import checked
from gdt.autodiff.buckets import SIZE as BUCKET
from gdt.backend.abstract import DEVICE
from gdt.errors import ArgumentError, error
from gdt.nn.module import Module
from gdt.prediction.machine import Machine
from gdt.prediction.plans import Notes, ParallelPlan, shortest
from gdt.prediction.pricing import PredictedOp, Prediction, predict
from gdt.prediction.trace import Held

__all__ = ["predict_layers"]

MakeStep = Callable[[ParallelPlan], Callable[[], Any]]
KINDS = 2  # of parts that are extended; the traces of n kinds are 2 ** n
DEPTHS = 2, 5, 6  # at which layers are traced: two first, two last, and one between
APART = 0.02  # the share of a peak by which sizes of arrays do not add up to it
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
        make = lambda: self.make_step(replace(plan, notes=notes))
        found = _traced_alone(make, "plan", self.machine, self.freezes)
        if found.mesh is not plan.mesh:
            problem = f"the step has run on {found.mesh}, and the plan is of {plan.mesh}"
            remedy = "Make the model and its batch on plan.mesh."
            raise error(ArgumentError, "plan", problem, remedy=remedy)
        if not notes.shapes:
            problem = "make_step has not applied the plan to a model"
            raise error(ArgumentError, "plan", problem, remedy="Call plan.apply(model).")
        return found

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
        rest, short = dict(others), shortest(name, count)
        few = self._extended(plan, rest, lengths | {name: short}, found)
        more = self._extended(plan, rest, lengths | {name: short + 2})
        times = (count - short) / 2
        if _shares_messages(few, more, times):
            return self._extended(plan, rest, lengths | {name: count})
        return _on_the_line(few, more, times)


@checked
def predict_layers(
    make_step: Callable[[int], Callable[[], Any]], layers: int, *, machine: Machine
) -> Prediction:
    """Predict a step of a deep model from steps of models with 2, 5 and 6 of its layers.

    make_step: a function that takes a number of layers, and returns a step, a function without
        arguments, of a model with so many. Layers are what repeats: where they differ in turn,
        count the least group of them that does.
    layers: of the model, one or more.

    Where FLOPs, bytes and collectives of 2, 5 and 6 layers lie on a line, so do those of more: all
    sums are extended, and the memory at each op, of which the peak is the most. `held` is empty if
    that is at another op than the peak of 6 layers; `ops` are those of 6 layers. Otherwise, and
    where gradients of several layers share a message (25 MiB), the whole model is traced, which
    takes longer. See `gdt.predict`.

    Raises ArgumentError for fewer layers than one, and for a `make_step` that returns no step.

    >>> mesh = gdt.create_mesh([("data", 64)], device_type="abstract")
    >>> x = gdt.ones((1 << 16, 4096), "float32", layout=gdt.Layout(["data", None], mesh))
    >>> def make_step(layers):
    ...     with gdt.default_mesh(mesh):
    ...         model = gdt.nn.Sequential(*[gdt.nn.Dense(4096, 4096) for _ in range(layers)])
    ...     return lambda: gdt.grad(lambda model: gdt.mean(model(x) ** 2))(model)
    >>> found = gdt.predict_layers(make_step, 96, machine=gdt.Machine.named("a100-80gb"))
    >>> found.collectives, found.fits
    (96, True)
    """
    if type(layers) is bool or not isinstance(layers, int | np.integer) or layers < 1:
        raise error(ArgumentError, f"layers is {layers!r}", remedy="Predict one layer or more.")
    gc.collect()
    held = DEVICE.now  # by arrays that are older than the steps

    def of(count: int) -> Prediction:
        return _traced_alone(lambda: make_step(count), "predict_layers", machine)

    found = of(int(layers)) if layers <= DEPTHS[-1] else _of_layers(of, int(layers))
    return replace(found, state=found.state + held, peak=found.peak + held)


def _of_layers(of: Callable[[int], Prediction], layers: int) -> Prediction:
    """Return the prediction `of(layers)`, from those of a few if they are on a line."""
    traced = [of(count) for count in DEPTHS]
    sums = [np.array([p.flops, p.collectives, sum(p.bytes.values())]) for p in traced]
    near, far = [
        (b - a) / (n - m) for (a, b), (m, n) in zip(pairwise(sums), pairwise(DEPTHS), strict=True)
    ]
    _, few, more = traced
    times = (layers - DEPTHS[1]) / (DEPTHS[2] - DEPTHS[1])
    if not np.allclose(near, far, rtol=1e-9, atol=0) or _shares_messages(few, more, times):
        return of(layers)
    return _on_the_line(few, more, times)


def _traced_alone(
    make: Callable[[], Any], name: str, machine: Machine, freezes: bool = False
) -> Prediction:
    """Return the prediction of the step that `make` returns, and of memory since then alone.

    name: of the function that errors begin with. freezes: whether what is older is frozen.
    """
    gc.collect()
    if freezes:
        gc.freeze()
    before, step = DEVICE.now, make()
    if not callable(step):
        problem = f"make_step has returned {step!r}"
        raise error(ArgumentError, name, problem, remedy="Return a function without arguments.")
    found = predict(step, machine=machine)
    return replace(found, state=found.state - before, peak=found.peak - before)


def _pairs(few: Prediction, more: Prediction) -> Iterator[tuple[PredictedOp, PredictedOp]]:
    """Yield the ops of two lengths of a step that do the same: those of the first layers, of the
    last ones, and of a layer between, which is as far from the first or from the last."""
    ours, theirs = ([(op.name, op.flops, op.memory) for op in p.ops] for p in (few, more))
    blocks = SequenceMatcher(None, ours, theirs, autojunk=False).get_matching_blocks()
    begins, ends = [b.a for b in blocks], [b.a + b.size for b in blocks]
    for k, (last, block) in enumerate(pairwise(blocks)):
        at, start = last.a + last.size, last.b + last.size
        gap, layer = block.a - at, theirs[start : block.b]
        if gap == len(layer):  # ops that work on all layers together
            yield from zip(few.ops[at : block.a], more.ops[start : block.b], strict=True)
        elif not gap:  # a layer more than at `begin` to `end`
            begin = end = at
            while begin > last.a and ours[begin - 1] == layer[(begin - 1 - at) % len(layer)]:
                begin -= 1
            while end < block.a + block.size and ours[end] == layer[(end - at) % len(layer)]:
                end += 1
            layers, spare = divmod(end - begin, len(layer))  # spare: not of layers, if like them
            middle, away = (begin + end) // 2, layers // 2 * len(layer) + spare
            ends[k], begins[k + 1] = max(end - away, middle), min(begin + away, middle)
    for block, begin, end in zip(blocks, begins, ends, strict=True):
        shift = block.b - block.a
        yield from zip(few.ops[begin:end], more.ops[begin + shift : end + shift], strict=True)


def _shares_messages(few: Prediction, more: Prediction, times: float) -> bool:
    """Return whether messages have bytes of several parts, more in the end than are sent at once:
    their sizes are in one of both lengths alone."""
    sizes = [{op.bytes for op in p.ops} for p in (few, more)]
    ours, theirs = sum(sizes[0] - sizes[1]), sum(sizes[1] - sizes[0])
    return ours > 0 and ours + times * (theirs - ours) > BUCKET


def _levels(
    few: Prediction, more: Prediction, beyond: Callable[[float, float], float]
) -> Iterator[float]:
    """Yield the memory that is taken at each op, extended by `beyond`."""
    tops = [p.peak - max((op.held for op in p.ops), default=0) for p in (few, more)]
    for a, b in _pairs(few, more):
        yield beyond(tops[0] + a.held, tops[1] + b.held)


def _on_the_line(few: Prediction, more: Prediction, times: float) -> Prediction:
    """Return the prediction that lies `times` as far beyond `few` as `more` does."""

    def beyond(a: float, b: float) -> float:
        return a + times * (b - a)

    values: dict[str, Any] = {k: beyond(getattr(few, k), getattr(more, k)) for k in LINEAR}
    values["peak"] = max([values["peak"], *_levels(few, more, beyond)])
    values |= {k: round(values[k]) for k in ("flops", "collectives", "state", "peak")}
    axes = dict.fromkeys([*few.bytes, *more.bytes])
    nbytes = {a: beyond(few.bytes.get(a, 0.0), more.bytes.get(a, 0.0)) for a in axes}
    held = [{(row.what, row.line): row.nbytes for row in p.held} for p in (few, more)]
    keys = dict.fromkeys([*held[1], *held[0]])
    rows = [Held(*key, round(beyond(held[0].get(key, 0), held[1].get(key, 0)))) for key in keys]
    rows = sorted([row for row in rows if row.nbytes > 0], key=lambda row: -row.nbytes)
    total = values["state"] + sum(row.nbytes for row in rows)
    if abs(total - values["peak"]) > APART * values["peak"]:
        rows = []  # the peak is at another op
    useful = beyond(few.mfu * few.seconds, more.mfu * more.seconds)
    return replace(more, **values, bytes=nbytes, held=rows, mfu=useful / values["seconds"])
