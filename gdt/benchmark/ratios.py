"""Times as ratios: of p devices to one, and of a benchmark in two runs."""

from __future__ import annotations

from typing import NamedTuple

from gdt.benchmark.records import Record

FEWEST_ROUNDS = 5  # below, quartiles say little
SMALLEST = 0.05  # runs of the same code differ by this much without showing it in their quartiles


class Point(NamedTuple):
    """A benchmark on p devices beside the same one on one device."""

    record: Record
    one: Record

    @property
    def speed_up(self) -> float:
        """How many times as fast as on one device the same amount of work is done."""
        work = self.record.devices if self.record.kind == "weak" else 1
        return work * self.one.median / self.record.median

    @property
    def efficiency(self) -> float:
        """The speed-up of each device: t1 / (p tp) for strong scaling, t1 / tp for weak."""
        return self.speed_up / self.record.devices

    @property
    def ideal(self) -> float:
        """The efficiency that the hardware allows: 1 where every device is one of its own."""
        return self.record.hardware / self.record.devices

    @property
    def of_ideal(self) -> float:
        """The fraction of it that was reached."""
        return self.efficiency / self.ideal

    @property
    def ideal_time(self) -> float:
        """Seconds that it would take at the ideal efficiency."""
        return self.record.median * self.of_ideal


Series = dict[str, list[Point]]  # of each place the points, by number of devices


class Change(NamedTuple):
    """One benchmark in both runs."""

    before: Record
    after: Record

    @property
    def ratio(self) -> float:
        """Median time after, divided by before."""
        return self.after.median / self.before.median

    @property
    def low(self) -> float:
        """The ratio between the quartiles that are closest to a speed-up."""
        return self.after.lower_quartile / self.before.upper_quartile

    @property
    def high(self) -> float:
        """The ratio between the quartiles that are closest to a slow-down."""
        return self.after.upper_quartile / self.before.lower_quartile

    @property
    def verdict(self) -> str:
        """`"slower"` or `"faster"` where the middle halves of the times do not overlap; else
        `""`, as for changes of a few percent and where there are too few rounds to tell."""
        few = min(self.before.rounds, self.after.rounds) < FEWEST_ROUNDS
        if few or abs(self.ratio - 1) < SMALLEST:
            return ""
        return "slower" if self.low > 1 else "faster" if self.high < 1 else ""

    @property
    def short_name(self) -> str:
        """The test without its file."""
        return self.after.name.split("::")[-1].removeprefix("test_")
