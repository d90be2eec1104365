"""The search for plans: all that formulas allow are compared, and the best of them are traced."""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gdt.arguments import checked
from gdt.errors import ArgumentError, OutOfMemoryError, error
from gdt.prediction.depth import MakeStep, PlanTracer
from gdt.prediction.estimates import Estimate, Facts
from gdt.prediction.machine import Machine
from gdt.prediction.plans import AXES, BATCH_AXES, Notes, ParallelPlan
from gdt.prediction.pricing import Prediction, size_text
from gdt.prediction.ranked_plans import RankedPlans
from gdt.sharding.mesh import create_mesh

__all__ = ["plan"]

TRACED = 16
TRIES = 3  # of numbers of micro-batches, until a plan fits
ALIKE = 0.01  # the share of the seconds in which two plans differ that count as equally fast
MEMORY_SHARE = 0.9  # of a device, which arrays may take: allocators hold more than is asked for


@checked
def plan(
    make_step: MakeStep,
    devices: int,
    *,
    machine: Machine,
    memory: float | None = None,
    time_limit: float = 60.0,
) -> RankedPlans:
    """Return plans of a training step on a number of devices, the fastest first.

    make_step: a function that takes a `gdt.prediction.ParallelPlan`, and returns a step, a function
        without arguments, as that of `gdt.predict_scaling` does. It makes a model on `plan.mesh`,
        calls `plan.apply(model)`, then makes its optimizer, and its batch in
        `plan.batch_layout(ndim)`. For plans with micro-batches it takes gradients by
        `plan.value_and_grad`, and for those with stages it has blocks in `plan.sequential(blocks)`
        too. With `plan.on(mesh)` it makes the step on devices that are there.
    machine: the rates of a device and of links; links by name are of the mesh axes "stage",
        "replica", "data" and "model".
    memory: the bytes of a device that arrays may take; nine tenths of the machine's if not given.
    time_limit: seconds after which no other trace begins; `is_complete` of the result says so.

    Compared are all meshes of these axes; the batch split, with all arrays on each device (data
    parallel), or with the state of optimizers (ZeRO) or all arrays (FSDP) split over "data";
    features split in the ways of `gdt.nn.layout_maps`, and as the shapes of arrays tell; experts of
    `gdt.nn.MoE` layers split over "data"; blocks that are run again; micro-batches; stages.
    Formulas estimate seconds and memory of each from traces of the step with FSDP. The sixteen best
    are traced, and sixteen more where none of these fits in memory. Of those within 1 % of the
    fastest, the simplest is the first.

    Raises OutOfMemoryError where no plan fits, with the one that comes nearest; ArgumentError for
    fewer than one device, for a memory or a time limit that is negative, and for a `make_step` that
    applies no plan to a new model; and what the step with FSDP raises. What it raises with other
    plans is in `refused` of the result.

    >>> def make_step(plan):
    ...     with gdt.default_mesh(plan.mesh):
    ...         model = gdt.nn.Sequential(gdt.nn.Dense(256, 1024), gdt.nn.Dense(1024, 256))
    ...     plan.apply(model)
    ...     optimizer = gdt.optim.Adam(1e-3).init(model)
    ...     x = gdt.zeros((1 << 16, 256), "float32", layout=plan.batch_layout(2))
    ...     loss_and_gradients = plan.value_and_grad(lambda model, x: gdt.mean(model(x) ** 2))
    ...     def step():
    ...         loss, gradients = loss_and_gradients(model, x)
    ...         optimizer.update(model, gradients)
    ...         return loss
    ...     return step
    >>> plans = gdt.plan(make_step, 8, machine=gdt.Machine.named("a100-80gb"))
    >>> plans[0].mesh, plans[0].scheme
    (Mesh(data=8), 'data parallel')
    """
    if type(devices) is bool or not isinstance(devices, int | np.integer) or devices < 1:
        raise error(ArgumentError, f"devices is {devices}", remedy="Plan for one or more.")
    if memory is not None and not memory > 0:
        raise error(ArgumentError, f"memory is {memory}", remedy="Give the bytes of a device.")
    if not time_limit >= 0:
        raise error(ArgumentError, f"time_limit is {time_limit}", remedy="Give seconds, 0 or more.")
    limit = MEMORY_SHARE * machine.memory if memory is None else memory
    tracer = PlanTracer(make_step, machine)
    search = _PlanSearch(tracer, int(devices), limit, time.monotonic() + time_limit)
    with tracer.older_objects_frozen():
        return search.run()


@dataclass
class _PlanSearch:
    """The search for plans whose memory is at most `limit`.

    found: the predictions of the plans that were traced. refused: what others have raised. tries:
    how many plans were traced that differ in micro-batches alone.
    """

    tracer: PlanTracer
    devices: int
    limit: float
    ends: float
    found: dict[ParallelPlan, Prediction] = field(default_factory=dict)
    refused: dict[ParallelPlan, str] = field(default_factory=dict)
    tries: Counter[ParallelPlan] = field(default_factory=Counter)

    def run(self) -> RankedPlans:
        """Return the plans."""
        began = time.monotonic()
        facts = self._facts()
        estimates = {p: facts.estimate(p) for p in candidates(facts)}
        queue, is_complete = self._queue(estimates), True
        while queue and (len(self.found) < TRACED or not self._fitting()):
            if time.monotonic() > self.ends:
                is_complete = False
                break
            if len(self.found) == TRACED:  # and none fits
                queue = sorted(queue, key=lambda p: estimates[p].memory)[:TRACED]
            self._trace(queue.pop(0), queue, facts.notes)
        fitting = ranked(self._fitting())
        if not fitting:
            raise self._error(is_complete)
        counts = len(estimates), len(self.found)
        seconds = time.monotonic() - began
        return RankedPlans(fitting, *counts, seconds, is_complete, self.refused)

    def _facts(self) -> Facts:
        """Return what the steps with FSDP say."""
        mesh = create_mesh([("data", self.devices)], device_type="abstract")
        plan = ParallelPlan(mesh, ("data",), kept="all" if self.devices > 1 else "")
        again = replace(plan, checkpoint=True)
        self.found[plan], notes = self.tracer.predict(plan)
        if notes.can_checkpoint:
            self.found[again], _ = self.tracer.predict(again)
        plain = self.found[plan]
        return Facts(self.tracer.machine, self.devices, notes, plain, self.found.get(again, plain))

    def _queue(self, estimates: Mapping[ParallelPlan, Estimate]) -> list[ParallelPlan]:
        """Return the plans to trace, those first that fit by the estimate, the fastest of them
        first; of plans that differ in micro-batches, the least that fit."""
        least: dict[ParallelPlan, ParallelPlan] = {}
        for p in estimates:
            family = _family(p)
            if family not in least or estimates[least[family]].memory > self.limit:
                least[family] = p

        def rank(p: ParallelPlan) -> tuple[bool, float]:
            seconds, memory = estimates[p]
            fits = memory <= self.limit
            return not fits, seconds if fits else memory

        return sorted([p for p in least.values() if p not in self.found], key=rank)

    def _trace(self, p: ParallelPlan, queue: list[ParallelPlan], notes: Notes) -> None:
        """Trace a plan; put it before all others with more micro-batches where that will fit."""
        try:
            found, _ = self.tracer.predict(p)
        except Exception as problem:  # a layer or the user refuses this plan, and others go on
            first_line = str(problem).partition("\n")[0]
            self.refused[p] = f"{type(problem).__name__}: {first_line}"
            return
        self.found[p] = found
        self.tries[_family(p)] += 1
        free = self.limit - found.state
        if found.peak <= self.limit or free <= 0 or self.tries[_family(p)] == TRIES:
            return
        needed = p.micro_batches * (found.peak - found.state) / free
        counts = micro_batches(notes.rows, p.count(*p.batch_axes)) if p.stages == 1 else []
        queue[:0] = [replace(p, micro_batches=n) for n in counts if n >= needed][:1]

    def _fitting(self) -> list[ParallelPlan]:
        pairs = self.found.items()
        return [replace(p, prediction=found) for p, found in pairs if found.peak <= self.limit]

    def _error(self, is_complete: bool) -> OutOfMemoryError:
        """Return the error of a search that has found nothing that fits."""
        p, found = min(self.found.items(), key=lambda item: item[1].peak)
        missing = size_text(found.peak - self.limit)
        cut = "" if is_complete else f" before time_limit, of {len(self.found)} that were traced"
        return error(
            OutOfMemoryError,
            "plan",
            f"no plan fits in {size_text(self.limit)} of a device{cut}; the nearest takes "
            f"{size_text(found.peak)}, {missing} too many",
            operands={"nearest": f"{p.scheme} on {p.mesh}, micro-batches {p.micro_batches}"},
            remedy="Use more devices or a smaller batch; gradients by plan.value_and_grad, so that "
            "micro-batches are tried; and a list of blocks, which can be checkpointed.",
        )


def _family(p: ParallelPlan) -> ParallelPlan:
    """Return the plan of one micro-batch, of those that differ in their number alone; in a
    pipeline, each number is another plan."""
    return replace(p, micro_batches=1) if p.stages == 1 else p


def ranked(plans: Sequence[ParallelPlan]) -> list[ParallelPlan]:
    """Return plans by their seconds; but the first is the simplest of those that are as fast as the
    fastest, as far as predictions tell."""

    def seconds(p: ParallelPlan) -> float:
        return p.prediction.seconds if p.prediction else math.inf

    by_seconds = sorted(plans, key=seconds)
    alike = [p for p in by_seconds if seconds(p) <= (1 + ALIKE) * seconds(by_seconds[0])]
    simplest = min(alike, key=_complexity, default=None)
    return [p for p in [simplest] if p] + [p for p in by_seconds if p is not simplest]


def _complexity(p: ParallelPlan) -> tuple[Any, ...]:
    stages, replica = p.stages, p.count("replica")
    kept = ("", "state", "all").index(p.kept)
    return (
        stages,
        bool(p.features),
        p.experts,
        p.sequence,
        p.checkpoint,
        p.micro_batches,
        kept,
        replica,
    )


# ---------------------------------------------------------------- candidates


def candidates(facts: Facts) -> Iterator[ParallelPlan]:
    """Yield the plans that there are."""
    notes = facts.notes
    for sizes in _meshes(facts):
        stages, replica, data, model = sizes
        dims = [(a, n) for a, n in zip(AXES, sizes, strict=True) if n > 1] or [("data", 1)]
        mesh = create_mesh(dims, device_type="abstract")
        ways = [w for w in facts.ways if bool(w) == (model > 1)]
        if stages > 1:
            ways = [w for w in ways if w in ("", "transformer")]
        elif replica == 1 and data > 1:  # small steps are faster than any message
            yield from [ParallelPlan(mesh, features=way) for way in ways]
        groups = replica * data
        if groups > (notes.rows or groups):
            continue
        keeps = ["all"] if replica > 1 else ["", "state", "all"][: None if data > 1 else 1]
        plan = ParallelPlan(mesh, tuple(a for a in mesh.axis_names if a in BATCH_AXES))
        for kept, way, again, count in itertools.product(
            keeps,
            ways,
            [False, True] if notes.can_checkpoint else [False],
            micro_batches(notes.rows, groups),
        ):
            one = replace(plan, features=way, kept=kept, checkpoint=again, micro_batches=count)
            own = [one, *[replace(one, sequence=True)] * (way == "transformer")]
            yield from own
            has_ways = way in ("", "transformer") and stages == 1
            if has_ways and data > 1 and facts.experts % data == 0:
                yield from [replace(p, experts=True) for p in own]


def _meshes(facts: Facts) -> Iterator[tuple[int, ...]]:
    """Yield the sizes of the axes of meshes, of which the machine has the links."""
    notes, devices, links = facts.notes, facts.devices, facts.machine.links
    has_all = {"host", "network"} <= links.keys()
    layers = notes.blocks[0] if len(notes.blocks) == 1 and notes.rows else 1
    for stages in _divisors(math.gcd(layers, devices)):
        for model in _divisors(devices // stages):
            groups = devices // stages // model
            for data in _divisors(groups):
                sizes = stages, groups // data, data, model
                has_links = all(n == 1 or a in links for a, n in zip(AXES, sizes, strict=True))
                if (data > 1 or groups == 1) and (has_all or has_links):
                    yield sizes


def _divisors(n: int) -> list[int]:
    return [k for k in range(1, n + 1) if n % k == 0]


def micro_batches(rows: int | None, groups: int) -> list[int]:
    """Return the numbers of micro-batches, powers of 2, that leave each group of devices rows."""
    own = rows // groups if rows and rows % groups == 0 else 1
    return [1 << k for k in range(own.bit_length()) if own % (1 << k) == 0]
