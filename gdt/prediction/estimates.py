"""Formulas of a plan's seconds and memory, from a trace of FSDP on all devices.

Work is divided among the devices that have rows, features and layers of their own; bytes are those
of ZeRO (Rajbhandari et al. 2020) and of Megatron-LM (Shoeybi et al. 2019); a pipeline waits for
stages - 1 of its ticks (Huang et al. 2019, "GPipe"). They say which plans are worth a trace.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from gdt.prediction.machine import Machine
from gdt.prediction.plans import Notes, ParallelPlan
from gdt.prediction.pricing import Prediction
from gdt.prediction.split_features import WAYS, split_axes, unit_of

SAME = 0.05  # the share of the parameters in which two ways differ that are counted as one


class Estimate(NamedTuple):
    """The estimate of a plan: seconds of a step, and bytes of a device."""

    seconds: float
    memory: float


class Way(NamedTuple):
    """The effect of a way of splitting features: the share of all parameters that is split, that of
    matrices alone, and the bytes of vectors that are then summed over devices."""

    share: float = 0.0
    matrices: float = 0.0
    sums: Sequence[int] = ()


@dataclass(frozen=True)
class Facts:
    """The facts on a step: its model, and what it takes with FSDP on all of `devices`.

    plain, again: without and with blocks that are run again.
    """

    machine: Machine
    devices: int
    notes: Notes
    plain: Prediction
    again: Prediction

    @cached_property
    def sizes(self) -> dict[str, int]:
        """The bytes of each parameter."""
        return {n: math.prod(s) * self.notes.itemsizes[n] for n, s in self.notes.shapes.items()}

    @cached_property
    def total(self) -> int:
        """The bytes of all parameters, 1 if there are none."""
        return sum(self.sizes.values()) or 1

    @cached_property
    def experts(self) -> int:
        """The number of devices that experts can be split over, at most; 1 if there are none."""
        return math.gcd(*[self.notes.shapes[name][0] for name in self.notes.experts]) or 1

    @cached_property
    def dispatched(self) -> float:
        """The bytes of what is sent to experts, or back, of all devices."""
        numbers = {n: math.prod(s[:2]) for n, s in self.notes.shapes.items() if len(s) > 2}
        ups = [n for n in self.notes.experts if n.endswith("up_weight")]
        return self.vectors * sum(numbers[n] * self.notes.itemsizes[n] for n in ups)

    @cached_property
    def ways(self) -> dict[str, Way]:
        """The ways of splitting features; of those that split nearly the same, the first."""
        shapes, sizes = self.notes.shapes, self.sizes
        matrices = sum(n for name, n in sizes.items() if len(shapes[name]) > 1) or 1
        ways, splits = {"": Way()}, [dict[str, int]()]
        for way in WAYS:
            if way == "cnn" and not self.notes.has_convolutions:
                continue
            split = split_axes(way, shapes, self.plain.mesh)
            others = [
                sum(n for name, n in sizes.items() if other.get(name) != split.get(name))
                for other in splits
            ]
            if min(others) <= SAME * self.total:
                continue
            splits.append(split)
            wide = [name for name in split if len(shapes[name]) > 1]
            share = sum(sizes[name] for name in split) / self.total
            of_matrices = sum(sizes[name] for name in wide) / matrices
            ways[way] = Way(share, of_matrices, self._sums(split, wide))
        return ways

    def _sums(self, split: Mapping[str, int], wide: Sequence[str]) -> list[int]:
        """Return the bytes of the vectors that are summed over devices, or gathered: what arrays
        give whose rows are split, and what is split as columns and enters no rows."""
        shapes, itemsizes = self.notes.shapes, self.notes.itemsizes
        rows = [name for name in wide if split[name] == 0]
        columns = sum(shapes[n][-1] * itemsizes[n] for n in wide if split[n] > 0)
        # Three matrices of columns may enter one of rows, as queries, keys and values do.
        others = columns - 3 * sum(shapes[n][0] * itemsizes[n] for n in rows)
        sums = [shapes[n][-1] * itemsizes[n] for n in rows]
        return [*sums, others // 2] if others > 0 else sums

    @property
    def busy(self) -> int:
        """The number of devices that have rows if all of them split the batch."""
        return min(self.devices, self.notes.rows or self.devices)

    @cached_property
    def vectors(self) -> float:
        """The vectors that a matrix of the model is applied to in a step, in the mean: each
        of them takes 6 floating-point operations for a number of the matrix."""
        numbers = sum(math.prod(shape) for shape in self.notes.shapes.values() if len(shape) > 1)
        return self.plain.flops * self.busy / max(6 * numbers, 1)

    @cached_property
    def activations(self) -> tuple[float, float]:
        """The bytes of what the backward pass reads, of all devices: without and with blocks that
        are run again."""
        units = Counter[str]()
        for name, nbytes in self.sizes.items():
            units[unit_of(name)] += nbytes
        gathered = 2 * max(units.values(), default=0)  # arrays of a unit, and their gradients
        others = self.total / self.devices + gathered
        plain, again = [self.busy * (p.peak - p.state - others) for p in (self.plain, self.again)]
        return max(plain, 0.0), max(again, 0.0)

    @cached_property
    def optimizer(self) -> float:
        """The bytes of the optimizer's state for a byte of a parameter."""
        return max(self.plain.state * self.devices / self.total - 1, 0.0)

    def estimate(self, plan: ParallelPlan) -> Estimate:
        """Return the estimate of a plan."""
        data, model = plan.count("data"), plan.count("model")
        groups = plan.count(*plan.batch_axes)  # of devices that have rows of their own
        groups = min(groups, self.notes.rows or groups)
        share, matrices, sums = self.ways[plan.features]
        part = 1 - matrices * (1 - 1 / model)  # of the work on a row, that a device has
        parameters = self.total * (1 - share * (1 - 1 / model)) / plan.stages  # bytes in use
        turns = plan.micro_batches if plan.stages == 1 else 1
        of_experts = sum(self.sizes[n] for n in self.notes.experts) / self.total * plan.experts
        inside = parameters * of_experts / data  # of experts, on a device
        parameters *= 1 - of_experts

        found = self.again if plan.checkpoint else self.plain
        ticks = 1 + (plan.stages - 1) / plan.micro_batches
        work = (found.products + found.memory) * self.busy / groups * part / plan.stages * ticks
        work += found.launches * plan.micro_batches

        prices = _Prices(self.machine, plan)
        if plan.kept == "all":
            gathers = prices.gather("data", parameters)
            work += 3 * turns * gathers + prices.all_reduce(["replica"], parameters / data)
        else:
            work += prices.all_reduce(plan.batch_axes, parameters)
        work += prices.all_reduce(["replica"], inside)
        if plan.experts:
            times = 6 if plan.checkpoint else 4
            work += times * prices.all_to_all("data", self.dispatched / groups)
        if sums:
            vectors = self.vectors / groups / plan.micro_batches
            each = prices.all_reduce(["model"], vectors * sum(sums) / len(sums))
            times = (3 if plan.checkpoint else 2) * len(sums) * plan.micro_batches
            work += times * each / plan.stages

        kept, state = (data if plan.kept == "all" else 1), (data if plan.kept else 1)
        gradients = 1 if turns == 1 else 2  # those of a micro-batch, and their sum
        held = parameters * ((1 + gradients) / kept + self.optimizer / state)
        held += inside * (1 + gradients + self.optimizer)
        share = part if plan.sequence else (1 + part) / 2
        held += self.activations[plan.checkpoint] * share / groups / plan.stages / turns
        return Estimate(work, held)


class _Prices(NamedTuple):
    """The seconds of collectives of a plan; 0 over axes of one device. nbytes: of an array."""

    machine: Machine
    plan: ParallelPlan

    def all_reduce(self, axes: Sequence[str], nbytes: float) -> float:
        return self._price("all_reduce", axes, 2 * nbytes)

    def gather(self, axis: str, nbytes: float) -> float:
        return self._price("all_gather", [axis], nbytes)

    def all_to_all(self, axis: str, nbytes: float) -> float:
        return self._price("all_to_all", [axis], nbytes)

    def _price(self, kind: str, axes: Sequence[str], nbytes: float) -> float:
        axes = [axis for axis in axes if self.plan.count(axis) > 1]
        sent = nbytes * (1 - 1 / self.plan.count(*axes))
        return self.machine.collective_seconds(kind, self.plan.mesh, axes, sent) if axes else 0.0
