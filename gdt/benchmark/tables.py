"""Tables and sections of a report, for a terminal and for a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table as RichTable
from rich.text import Text

if TYPE_CHECKING:  # tables are also printed where there is no matplotlib
    from matplotlib.figure import Figure

UNBOUNDED = 10_000  # columns of a terminal in which every table fits
NARROW = 16  # columns of a label in a table that is too wide for its terminal
STYLES = {"faster": "green", "slower": "red", "": ""}


class Row(NamedTuple):
    """The cells of one line.

    mark: `"faster"` or `"slower"`, which colours the line. begins: whether a group begins here.
    """

    cells: Sequence[str]
    mark: str = ""
    begins: bool = False


@dataclass(frozen=True)
class Table:
    """A table; the first `labels` columns hold words, the others numbers.

    keys: the number of columns that tell rows apart; the labels by default. Where a terminal is too
        narrow for all columns, each part of the table repeats these.
    collapsed: whether a page shows the table on a click only, and a terminal does not show it.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Row]
    labels: int = 1
    note: str = ""
    collapsed: bool = False
    keys: int = 0

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        keys = list(range(self.keys or self.labels))
        others = [i for i in range(len(self.headings)) if i not in keys]
        unbounded = options.update(max_width=UNBOUNDED)
        whole = self._of([*keys, *others])
        if console.measure(whole, options=unbounded).maximum <= options.max_width:
            yield self._of([*keys, *others], self.title, self.note)
            return
        parts: list[list[int]] = [[]]
        for i in others:
            wider = self._of([*keys, *parts[-1], i], narrow=True)
            width = console.measure(wider, options=unbounded).maximum
            if parts[-1] and width > options.max_width:
                parts.append([])
            parts[-1].append(i)
        for number, part in enumerate(parts, start=1):
            title = self.title if number == 1 else ""
            note = self.note if number == len(parts) else ""
            yield self._of([*keys, *part], title, note, narrow=True)

    def _of(
        self, columns: Sequence[int], title: str = "", note: str = "", *, narrow: bool = False
    ) -> RichTable:
        """Return the table of some columns; a narrow one breaks headings and labels at spaces."""
        table = RichTable(
            title=title or None,
            title_justify="left",
            title_style="bold",
            caption=note or None,
            caption_justify="left",
            box=box.SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
        )
        for i in columns:
            heading = self.headings[i]
            if i < self.labels:
                table.add_column(heading, max_width=NARROW if narrow else None, overflow="fold")
            else:
                heading = heading.replace(" ", "\n") if narrow else heading
                table.add_column(heading, justify="right", no_wrap=True)
        for i, row in enumerate(self.rows):
            if row.begins and i:
                table.add_section()
            table.add_row(*[Text(row.cells[c]) for c in columns], style=STYLES[row.mark])
        return table


@dataclass(frozen=True)
class Section:
    """A title, a text, tables, and pictures by name with a description."""

    title: str
    text: str
    tables: Sequence[Table]
    figures: dict[str, tuple[Figure, str]] = field(default_factory=dict)


# ---------------------------------------------------------------- numbers


def three_digits(value: float) -> str:
    """Return `value` with three significant digits.

    >>> [three_digits(v) for v in (0.01234, 1.2, 123456)]
    ['0.0123', '1.20', '123,456']
    """
    if value == 0:
        return "0"
    magnitude = int(f"{value:.2e}".split("e")[1])
    return f"{value:,.{max(0, 2 - magnitude)}f}"


def time_text(seconds: float) -> str:
    """Return a time with its unit.

    >>> [time_text(t) for t in (2.5e-7, 0.0123, 3)]
    ['250 ns', '12.3 ms', '3.00 s']
    """
    for unit, scale in (("ns", 1e-9), ("µs", 1e-6), ("ms", 1e-3)):
        if seconds < 999.5 * scale:
            return f"{three_digits(seconds / scale)} {unit}"
    return f"{three_digits(seconds)} s"


def size_text(nbytes: float) -> str:
    """Return a number of bytes with a binary unit; 0 is a dash.

    >>> [size_text(n) for n in (0, 48, 1024, 3 << 19)]
    ['–', '48 B', '1 KiB', '1.5 MiB']
    """
    if not nbytes:
        return "–"
    for unit, scale in (("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20)):
        if nbytes < 1024 * scale:
            return f"{round(nbytes / scale, 1):,g} {unit}"
    return f"{nbytes / (1 << 30):,.1f} GiB"


def percent(fraction: float | None) -> str:
    """Return a fraction in percent; None is a dash.

    >>> percent(0.125), percent(1.3), percent(None)
    ('12.5 %', '130 %', '–')
    """
    if fraction is None:
        return "–"
    return f"{100 * fraction:.{0 if fraction >= 0.9995 else 1}f} %"
