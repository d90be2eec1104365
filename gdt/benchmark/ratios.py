"""Ratios of times: of p devices to one device, and of one benchmark in two runs."""

from __future__ import annotations

from typing import NamedTuple

from gdt.benchmark.records import Record
from gdt.benchmark.turns import NOISY, Median

FEWEST_ROUNDS = 5  # with fewer, quartiles mean little
SMALLEST = 0.05  # relative difference up to which runs of the same code differ beyond quartiles


class Point(NamedTuple):
    """A benchmark on p devices; `ratio` is of the times on one device to its own, in turns."""

    record: Record
    ratio: Median

    @property
    def is_noisy(self) -> bool:
        """Whether the interval of the ratio is so wide that it tells nothing."""
        return self.ratio.width > NOISY

    @property
    def speed_up(self) -> float:
        """The speed on p devices divided by the speed on one, for equal amounts of work."""
        work = self.record.devices if self.record.kind == "weak" else 1
        return work * self.ratio.value

    @property
    def efficiency(self) -> float:
        """The speed-up of each device: t1 / (p tp) for strong scaling, t1 / tp for weak."""
        return self.speed_up / self.record.devices

    @property
    def ideal(self) -> float:
        """The efficiency that the hardware allows: 1 where every device has its own GPU."""
        return self.record.hardware / self.record.devices

    @property
    def of_ideal(self) -> Median:
        """The efficiency as a fraction of the ideal, with its interval."""
        factor = self.efficiency / self.ideal / self.ratio.value
        return Median(*(factor * value for value in self.ratio))

    @property
    def ideal_time(self) -> float:
        """The seconds of a call at the ideal efficiency."""
        return self.record.median * self.of_ideal.value


Series = dict[str, list[Point]]  # the points of each place, by number of devices


class Change(NamedTuple):
    """One benchmark in both runs."""

    before: Record
    after: Record

    @property
    def ratio(self) -> float:
        """The median time after, divided by the median time before."""
        return self.after.median / self.before.median

    @property
    def low(self) -> float:
        """The low end of the ratio's interval: lower quartile after / upper quartile before."""
        return self.after.lower_quartile / self.before.upper_quartile

    @property
    def high(self) -> float:
        """The high end of the ratio's interval: upper quartile after / lower quartile before."""
        return self.after.upper_quartile / self.before.lower_quartile

    @property
    def verdict(self) -> str:
        """`"slower"` or `"faster"` where the middle halves of the times do not overlap; else `""`.

        A change of a few percent, or of too few rounds, has the verdict `""` as well."""
        few = min(self.before.rounds, self.after.rounds) < FEWEST_ROUNDS
        if few or abs(self.ratio - 1) < SMALLEST:
            return ""
        return "slower" if self.low > 1 else "faster" if self.high < 1 else ""

    @property
    def short_name(self) -> str:
        """The name of the test without its file and `test_`."""
        return self.after.name.split("::")[-1].removeprefix("test_")
