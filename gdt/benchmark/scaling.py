"""The sections of strong and weak scaling: speed-ups and efficiencies of one run."""

from __future__ import annotations

from collections.abc import Sequence

from gdt.benchmark import charts
from gdt.benchmark.limits import Limits
from gdt.benchmark.ratios import Point, Series
from gdt.benchmark.records import BenchmarkRun, Record
from gdt.benchmark.tables import Row, Section, Table, percent, size_text, three_digits, time_text
from gdt.benchmark.turns import NOISY

TITLES = {"strong": "Strong scaling", "weak": "Weak scaling"}
TEXTS = {
    "strong": "The same work on p devices: speed-up is t(1) / t(p), efficiency t(1) / (p t(p)).",
    "weak": "p times the work on p devices: speed-up is p t(1) / t(p), efficiency t(1) / t(p).",
}
TURNS = (
    "Both times are measured in turns: before each call on p devices as many on one as take about "
    "as long. Speed-up and efficiency are medians of the ratios of both, and their intervals hold "
    "the median in 95 of 100 cases."
)
HOST = (
    "Virtual devices are computed by the cores of one host, so p of them add no hardware: at best "
    "the same work takes the same time, p times the work p times as long, and efficiency is 1 / p. "
    "What is lost against that ideal is the price of distribution; more than 100 % of it is work "
    "that a host does once for all of its devices, such as the update of replicated parameters, or "
    "noise."
)
GPUS = "With a GPU for each device the ideal efficiency is 1."


def points_of(run: BenchmarkRun, kind: str) -> tuple[dict[str, Series], list[str]]:
    """Return the points of each workload, and notices about those that were not measured in turns
    with one device."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for r in run.of(kind):
        groups.setdefault((r.name.split("[")[0], r.workload), []).append(r)
    workloads = [workload for _, workload in groups]
    by_name: dict[str, Series] = {}
    notices = []
    for (test, workload), records in groups.items():
        name = workload if workloads.count(workload) == 1 else f"{workload} ({test})"
        ones = {r.device_type: Point(r, r.ratio) for r in records if r.devices == 1 and r.ratio}
        series: Series = {}
        alone: set[str] = set()
        for r in sorted(records, key=lambda r: (r.apart, r.devices)):
            if r.ratio is None or r.device_type not in ones:
                alone.add(r.device_type)
                continue
            place = series.setdefault(r.place, [])
            if r.apart and not place:
                place.append(ones[r.device_type])
            place.append(Point(r, r.ratio))
        for device_type in sorted(alone):
            notices.append(
                f"{TITLES[kind]} of {name!r} on {device_type} is left out: it was not measured in "
                "turns with 1 device. Run it with that number too, and with gdt's fixture."
            )
        if series:
            by_name[name] = series
    return by_name, notices


def section(run: BenchmarkRun, kind: str, limits: Limits) -> tuple[Section | None, list[str]]:
    """Return the section on one kind of scaling, None if the run has none, and notices."""
    workloads, notices = points_of(run, kind)
    if not workloads:
        return None, notices
    types = {r.device_type for r in run.of(kind)}
    ideals = [text for name, text in (("CPU", HOST), ("GPU", GPUS)) if name in types]
    points = [p for series in workloads.values() for points in series.values() for p in points]
    if noisy := sum(p.is_noisy for p in points):
        notices.append(
            f"{TITLES[kind]}: {noisy} of {len(points)} efficiencies are noise, since their "
            f"intervals are wider than {NOISY:.0%}. They are marked in tables and pictures."
        )
    return Section(
        TITLES[kind],
        " ".join([TEXTS[kind], TURNS, *ideals]),
        [table(workloads, limits)],
        charts.scaling(workloads, kind),
    ), notices


HEADINGS = ["workload", "devices", "p", "time", "predicted", "spread", "speed-up", "efficiency"]
HEADINGS += ["ideal", "of ideal", "interval", "sent", "of matmul", "of copy"]
NOTE = (
    "time: median; predicted: by gdt.predict; spread: interquartile range / median; interval: of "
    f"the median of the ideal; noise: an interval wider than {NOISY:.0%} of its median; sent: "
    "bytes between all devices in one call; of matmul, of copy: rate of arithmetic and of memory "
    "traffic, as fractions of the limits (more than 100 % of a copy where caches hold the data)"
)


def table(workloads: dict[str, Series], limits: Limits) -> Table:
    """Return the table with one line for each measurement; it has a column of predictions if there
    are any."""
    rows = []
    for workload, series in workloads.items():
        first = True
        for place, points in series.items():
            rows += _rows(workload if first else "", place, points, limits)
            first = False
    headings, at = [*HEADINGS], HEADINGS.index("predicted")
    if all(row.cells[at] == "–" for row in rows):
        rows = [row._replace(cells=[*row.cells[:at], *row.cells[at + 1 :]]) for row in rows]
        del headings[at]
    return Table("", headings, rows, labels=2, note=NOTE, keys=3)


def _rows(workload: str, place: str, points: Sequence[Point], limits: Limits) -> list[Row]:
    """Return the lines of one workload in one place."""
    rows = []
    visible_points = [p for p in points if p.record.apart or "share" in place]
    for i, point in enumerate(visible_points):
        r = point.record
        cells = [
            workload if i == 0 else "",
            place if i == 0 else "",
            str(r.devices),
            time_text(r.median),
            "–" if r.predicted is None else time_text(r.predicted),
            percent(r.spread),
            three_digits(point.speed_up),
            percent(point.efficiency),
            percent(point.ideal),
            percent(point.of_ideal.value),
            interval(point),
            size_text(r.sent_bytes),
            percent(limits.of_matmul_rate(r)),
            percent(limits.of_bandwidth(r)),
        ]
        rows.append(Row(cells, begins=bool(workload) and i == 0))
    return rows


def interval(point: Point) -> str:
    """Return the interval of what a point reaches of the ideal as text, which says if it is noise;
    a dash on one device, with which all are compared."""
    if point.record.devices == 1:
        return "–"
    low, _, high = (100 * value for value in point.of_ideal)
    return f"{low:.0f} – {high:.0f} %" + (" noise" if point.is_noisy else "")
