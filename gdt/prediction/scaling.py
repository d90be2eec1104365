"""Scaling: predictions of a step for several numbers of devices, beside what was measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gdt.arguments import checked
from gdt.errors import ArgumentError, error
from gdt.prediction.machine import Machine
from gdt.prediction.pricing import Prediction, predict, seconds_text, size_text

__all__ = ["PredictedScaling", "predict_scaling"]

PARTS = {
    "products": "products", "memory": "memory-bound", "launches": "launches",
    "exposed": "communication",
}  # fmt: skip


@dataclass(frozen=True)
class PredictedScaling:
    """The predictions of a step by the number of devices, and the seconds that were measured.

    >>> gdt.prediction.PredictedScaling({}, {})
    devices  predicted  measured  sent by a device  peak  MFU
    """

    predictions: dict[int, Prediction]
    measured: dict[int, float] = field(default_factory=dict)

    @property
    def errors(self) -> dict[int, float]:
        """The prediction less the measurement, as a share of the measurement, by devices."""
        pairs = {n: (p.seconds, self.measured.get(n)) for n, p in self.predictions.items()}
        return {n: ours / seconds - 1 for n, (ours, seconds) in pairs.items() if seconds}

    def __repr__(self) -> str:
        rows = [["devices", "predicted", "measured", "sent by a device", "peak", "MFU"]]
        for n, p in self.predictions.items():
            seconds = self.measured.get(n)
            measured = "" if seconds is None else seconds_text(seconds)
            sent = size_text(sum(p.bytes.values()))
            predicted = seconds_text(p.seconds)
            rows.append([f"{n:,}", predicted, measured, sent, size_text(p.peak), f"{p.mfu:.1%}"])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(t.rjust(w) for t, w in zip(row, widths, strict=True)) for row in rows]
        return "\n".join(lines)

    def plot(self) -> Any:
        """Return a figure of matplotlib's: seconds over devices, predicted and measured, and what
        they consist of.

        >>> gdt.prediction.PredictedScaling({}, {}).plot()  # doctest: +SKIP
        """
        from matplotlib.figure import Figure  # noqa: PLC0415  # optional

        figure = Figure(figsize=(7, 4), layout="constrained")
        axes, bottom = figure.subplots(), [0.0] * len(self.predictions)
        names = [f"{n:,}" for n in self.predictions]
        for part, label in PARTS.items():
            heights = [getattr(p, part) for p in self.predictions.values()]
            axes.bar(names, heights, bottom=bottom, label=label)
            bottom = [a + b for a, b in zip(bottom, heights, strict=True)]
        measured = [f"{n:,}" for n in self.predictions if n in self.measured]
        if measured:
            seconds = [self.measured[n] for n in self.predictions if n in self.measured]
            axes.plot(measured, seconds, "ko", label="measured")
        axes.set_xlabel("devices")
        axes.set_ylabel("seconds of a step")
        figure.legend(loc="outside right upper")
        return figure


@checked
def predict_scaling(
    make_step: Callable[[int], Callable[[], Any]],
    devices: Sequence[int],
    *,
    machine: Machine,
    measured: Mapping[int, float] | None = None,
) -> PredictedScaling:
    """Predict a step on several numbers of devices.

    make_step: a function that takes a number of devices, and returns a step, a function without
        arguments on as many abstract devices.
    measured: the seconds of a step that were measured, by the number of devices.

    Raises ArgumentError for no devices, for a step on another number of devices than `make_step`
    was given, and for measurements of other numbers, or that are no seconds. See `gdt.predict`.

    >>> def make_step(devices):
    ...     mesh = gdt.create_mesh([("data", devices)], device_type="abstract")
    ...     x = gdt.ones((64 * devices, 8), layout=gdt.Layout(["data", None], mesh))
    ...     return lambda: gdt.sum(x * 2.0, axis=0).resolve()
    >>> found = gdt.predict_scaling(make_step, [8, 512], machine=gdt.Machine.named("h100-80gb"))
    >>> [p.collectives for p in found.predictions.values()]
    [1, 1]
    """
    if not devices:
        raise error(ArgumentError, "devices is empty", remedy="Name numbers, such as [8, 64].")
    for n, seconds in (measured or {}).items():
        if n not in devices:
            problem = f"measured has {n} devices, and devices has not"
            raise error(ArgumentError, problem, remedy=f"Predict {n} devices too.")
        if not isinstance(seconds, int | float | np.number) or not seconds > 0:
            raise error(ArgumentError, f"measured[{n}] is {seconds!r}", remedy="Give seconds.")
    predictions = {n: predict(make_step(n), machine=machine) for n in devices}
    for n, found in predictions.items():
        if found.mesh.size != n:
            problem = f"the step of make_step({n}) has run on {found.mesh}"
            raise error(ArgumentError, problem, remedy=f"Make its arrays on {n} devices.")
    return PredictedScaling(predictions, dict(measured or {}))
