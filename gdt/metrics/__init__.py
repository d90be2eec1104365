"""Metrics: numbers that measure a model's quality, over one batch or over many.

`accuracy` and its like are functions of one batch. A `Metric` adds up statistics over many batches,
such as counts of hits, in arrays that stay on the devices, of a split batch as partial sums:
nothing is sent before `result`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdt.errors.foreign_names import METRICS, no_attribute
from gdt.metrics.accuracies import *
from gdt.metrics.totals import *

if not TYPE_CHECKING:  # a type checker would take every name for one of the module

    def __getattr__(name: str) -> object:
        raise no_attribute(__name__, name, METRICS)
