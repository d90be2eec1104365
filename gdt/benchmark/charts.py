"""The pictures of a report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from gdt.benchmark.ratios import Change, Point, Series
from gdt.benchmark.records import Record
from gdt.benchmark.tables import size_text, three_digits, time_text
from gdt.benchmark.turns import NOISY, Median

# Okabe and Ito, Color Universal Design (2008): distinct to any kind of colour vision.
BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9",
)  # fmt: skip
GREY, INK = "#8a8a8a", "#333333"
STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": GREY,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.labelsize": 10,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "font.family": "sans-serif",
    "font.size": 10,
    "grid.color": "#e4e4e4",
    "legend.frameon": False,
    "legend.fontsize": 10,
    "lines.linewidth": 1.8,
    "lines.markersize": 6,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "ytick.labelsize": 9.5,
    "xtick.labelsize": 9.5,
}
PLACES = {
    "CPU, devices share one block": (BLUE, "o"),
    "CPU, one block per device": (VERMILLION, "s"),
    "GPU, devices share one GPU": (GREEN, "^"),
    "GPU, one GPU per device": (PURPLE, "D"),
}
OTHER_PLACE = (SKY, "v")
INCHES_HANDLE, INCHES_LETTER = 0.65, 0.075  # widths in a legend's entry
COLUMNS = 5  # the most panels beside each other
Figures = dict[str, tuple[Figure, str]]


def _grid(rows: int, columns: int, width: float, height: float) -> tuple[Figure, list[list[Axes]]]:
    """Return a figure of `rows` x `columns` panels, each `width` x `height` inches."""
    figure = Figure(figsize=(max(width * columns, 6.0), height * rows), layout="constrained")
    return figure, [list(row) for row in figure.subplots(rows, columns, squeeze=False)]


def _legend(figure: Figure, axes: Sequence[Axes]) -> None:
    """Put one legend of all entries of all panels above them."""
    entries: dict[str, Any] = {}
    for panel in axes:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    widest = INCHES_HANDLE + INCHES_LETTER * max(map(len, entries))
    columns = min(len(entries), max(1, int(figure.get_figwidth() / widest)))
    figure.legend(list(entries.values()), list(entries), loc="outside upper left", ncols=columns)


# ---------------------------------------------------------------- scaling


def scaling(workloads: dict[str, Series], kind: str) -> Figures:
    """Draw time, and efficiency relative to the ideal, over the number of devices.

    kind: `"strong"` or `"weak"`. One figure shows `COLUMNS` workloads.
    """
    names, figures = list(workloads), {}
    for start in range(0, len(names), COLUMNS):
        group = names[start : start + COLUMNS]
        number = f"-{start // COLUMNS + 1}" if len(names) > COLUMNS else ""
        with rc_context(STYLE):
            figure = _scaling({name: workloads[name] for name in group})
        what = f"{kind} scaling of {', '.join(group)}: time and efficiency by number of devices"
        figures[f"{kind}-scaling{number}"] = (figure, what)
    return figures


def _scaling(workloads: dict[str, Series]) -> Figure:
    """Return a figure of two panels for each workload: time above, efficiency below."""
    figure, (above, below) = _grid(2, len(workloads), 2.7, 2.5)
    for top, bottom, (name, series) in zip(above, below, workloads.items(), strict=True):
        ideals = set()
        for place, points in series.items():
            colour, marker = PLACES.get(place, OTHER_PLACE)
            p = [point.record.devices for point in points]
            ideal = [point.ideal_time * 1e3 for point in points]
            if tuple(ideal) not in ideals:
                ideals.add(tuple(ideal))
                top.plot(p, ideal, "--", color=GREY, linewidth=1.2, label="ideal", zorder=1)
            quartiles = [point.record.quartiles for point in points]
            _errorbar(top, p, quartiles, 1e3, color=colour, marker=marker, label=place)
            _efficiency(bottom, points, colour, marker)
        bottom.axhline(100, color=GREY, linestyle="--", linewidth=1.2, zorder=1)
        top.set_title(name)
        for axes in (top, bottom):
            _count_axis(axes, sorted({q.record.devices for s in series.values() for q in s}))
        top.set_ylim(0, top.get_ylim()[1] * 1.05)
        bottom.set_xlabel("devices p")
    every = [q for series in workloads.values() for points in series.values() for q in points]
    if any(q.is_noisy for q in every):
        label = f"noise: the interval of the median is wider than {NOISY:.0%}"
        below[0].plot([], [], "o", color=GREY, markerfacecolor="white", label=label)
    highest = max(q.of_ideal.value for q in every)
    for bottom in below:
        bottom.set_ylim(0, max(112, 108 * highest))
    above[0].set_ylabel("time, ms")
    below[0].set_ylabel("efficiency, % of ideal")
    _legend(figure, [*above, *below])
    return figure


def _efficiency(axes: Axes, points: Sequence[Point], colour: str, marker: str) -> None:
    """Draw medians with their intervals; those that are noise have hollow markers and say so."""
    p = [point.record.devices for point in points]
    _errorbar(axes, p, [point.of_ideal for point in points], 100, color=colour)
    for x, point in zip(p, points, strict=True):
        y, inside = 100 * point.of_ideal.value, "white" if point.is_noisy else colour
        axes.plot(x, y, marker, color=colour, markerfacecolor=inside)
        if point.is_noisy:
            axes.annotate(
                "noise", (x, y), xytext=(0, 7), textcoords="offset points", ha="center", fontsize=8,
                color=colour, bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
            )  # fmt: skip


def _errorbar(
    axes: Axes, x: Sequence[int], medians: Sequence[Median], scale: float, **look: Any
) -> None:
    """Draw a line through medians, each with its interval, in units of 1 / scale."""
    below = [scale * (m.value - m.low) for m in medians]
    above = [scale * (m.high - m.value) for m in medians]
    values = [scale * m.value for m in medians]
    axes.errorbar(x, values, [below, above], capsize=2.5, elinewidth=1, **look)


def _count_axis(axes: Axes, counts: Sequence[int]) -> None:
    """Make the x axis logarithmic, with ticks at `counts`."""
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(counts))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))


# ---------------------------------------------------------------- collectives

COLLECTIVES = {
    "all_reduce": (BLUE, "o"),
    "all_gather": (VERMILLION, "s"),
    "reduce_scatter": (GREEN, "^"),
    "all_to_all": (PURPLE, "D"),
    "exchange": (ORANGE, "v"),
}


def collectives(
    places: dict[str, dict[str, list[Record]]], copying: dict[str, float | None]
) -> Figures:
    """Draw the time of collectives over size for each place, and the rate where devices are apart.

    copying: for each place, the bytes a second that a large copy moves; None if not measured.
    """
    panels = [(place, False) for place in places]
    panels += [
        (place, True) for place, kinds in places.items() if next(iter(kinds.values()))[0].apart
    ]
    with rc_context(STYLE):
        figure, (row,) = _grid(1, len(panels), 4.3, 3.6)
        for axes, (place, rate) in zip(row, panels, strict=True):
            for name, records in places[place].items():
                colour, marker = COLLECTIVES.get(name, (SKY, "x"))
                sizes = [r.info["size"] for r in records]
                values = [r.sent_bytes / r.median / 1e9 if rate else r.median for r in records]
                axes.plot(sizes, values, color=colour, marker=marker, label=name, markersize=5)
            _size_axis(axes, place, rate, copying[place])
        _legend(figure, row)
    what = "time and rate of each collective between devices by the size of the array"
    return {"collectives": (figure, what)}


def _size_axis(axes: Axes, place: str, rate: bool, copying: float | None) -> None:
    """Set title, scales and labels of a panel of times, or of rates with the line of a copy."""
    axes.set_title(place)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(FixedLocator([1 << n for n in range(10, 31, 4)]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda n, _: size_text(n)))
    axes.set_xlabel("size of the whole array")
    axes.yaxis.set_minor_locator(NullLocator())
    if not rate:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda t, _: _round_time(t)))
        axes.set_ylabel("time")
        return
    axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    axes.set_ylabel("sent by all devices, GB/s")
    if copying is not None:
        label = "a large copy"
        axes.axhline(copying / 1e9, color=GREY, linestyle="--", linewidth=1.2, label=label)


def _round_time(seconds: float) -> str:
    """Return a power of ten with its unit, without a fraction."""
    value, unit = time_text(seconds).split(" ")
    return f"{float(value.replace(',', '')):g} {unit}"


# ---------------------------------------------------------------- calls and steps


def dispatch(ops: dict[str, dict[str, Record]], device_type: str) -> Figures:
    """Draw the fastest call of each op: of the array library, of gdt, and of gdt under a tape."""
    looks = {
        "array library": (GREY, "|"),
        "gdt": (BLUE, "o"),
        "gdt with tape": (VERMILLION, "d"),
    }
    with rc_context({**STYLE, "axes.grid.axis": "x"}):
        figure, ((axes,),) = _grid(1, 1, 7.5, 0.8 + 0.32 * len(ops))
        for y, callers in enumerate(ops.values()):
            times = [r.minimum * 1e6 for r in callers.values()]
            axes.plot([min(times), max(times)], [y, y], color="#d0d0d0", linewidth=2, zorder=1)
            for caller, r in callers.items():
                colour, marker = looks.get(caller, (GREEN, "x"))
                axes.plot(
                    r.minimum * 1e6, y, marker, color=colour, markersize=9 if marker == "|" else 6,
                    markeredgewidth=2 if marker == "|" else 1, label=caller,
                    markerfacecolor="white" if marker == "d" else colour,
                )  # fmt: skip
        axes.set_yticks(range(len(ops)), list(ops))
        axes.invert_yaxis()
        _ratio_axis(axes, "a call, µs (the fastest of all)")
        _legend(figure, [axes])
    what = f"time of a call of each op on {device_type}, beside the array library's bare call"
    return {f"dispatch-{device_type.lower()}": (figure, what)}


def steps(workloads: dict[str, list[tuple[str, Record]]]) -> Figures:
    """Draw the milliseconds of a training step, in one panel for each workload."""
    heights = [0.6 + 0.3 * len(rows) for rows in workloads.values()]
    with rc_context({**STYLE, "axes.grid.axis": "x"}):
        figure = Figure(figsize=(8, sum(heights)), layout="constrained")
        panels = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)
        for axes, (workload, rows) in zip(panels[:, 0], workloads.items(), strict=True):
            for y, (_, r) in enumerate(rows):
                colour = (
                    GREY
                    if r.info.get("contender") != "gdt"
                    else PLACES.get(r.place, OTHER_PLACE)[0]
                )
                axes.barh(y, r.median * 1e3, color=colour, height=0.68)
                text = three_digits(r.median * 1e3)
                axes.annotate(
                    text, (r.median * 1e3, y), xytext=(4, 0), textcoords="offset points",
                    va="center", fontsize=9.5,
                )  # fmt: skip
            axes.set_yticks(range(len(rows)), [label for label, _ in rows])
            axes.tick_params(axis="y", length=0)
            axes.invert_yaxis()
            axes.set_xlim(0, axes.get_xlim()[1] * 1.08)
            axes.set_xlabel("a step, ms (median)")
            axes.set_title(workload)
    return {"steps": (figure, "time of a training step of each contender")}


# ---------------------------------------------------------------- comparison


def comparison(changes: Sequence[Change]) -> Figures:
    """Draw the ratios of times of benchmarks that changed, with their intervals."""
    if not changes:
        return {}
    with rc_context({**STYLE, "axes.grid.axis": "x"}):
        figure, ((axes,),) = _grid(1, 1, 8.5, 0.9 + 0.27 * len(changes))
        axes.axvline(1, color=INK, linewidth=1)
        colours = {"slower": VERMILLION, "faster": BLUE}
        for y, change in enumerate(changes):
            colour = colours[change.verdict]
            axes.plot([change.low, change.high], [y, y], color=colour, linewidth=2)
            axes.plot(change.ratio, y, "o", color=colour, label=change.verdict)
        axes.set_yticks(range(len(changes)), [c.short_name for c in changes])
        axes.set_ylim(len(changes) - 0.4, -0.6)
        _ratio_axis(axes, "time after / time before")
        _legend(figure, [axes])
    return {"comparison": (figure, "ratios of times after and before, with their intervals")}


def _ratio_axis(axes: Axes, label: str) -> None:
    """Make the x axis logarithmic, with ticks at round numbers."""
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    per_decade = (1, 2, 5) if high / low > 8 else (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 0.9)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = sorted({m * 10.0**d for d in decades for m in per_decade})
    axes.xaxis.set_major_locator(FixedLocator([t for t in ticks if low <= t <= high]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel(label)
