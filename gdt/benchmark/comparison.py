"""The comparison of two runs: the benchmarks that changed by more than their noise."""

from __future__ import annotations

from gdt.benchmark import charts
from gdt.benchmark.ratios import FEWEST_ROUNDS, SMALLEST, Change
from gdt.benchmark.records import BenchmarkRun
from gdt.benchmark.tables import Row, Section, Table, percent, three_digits, time_text
from gdt.errors import BenchmarkError, error

SHOWN = 40  # the most lines of the picture
LIMITS = 0.1  # relative change of the machine's own limits from which on there is a notice
COMPARED = ("cpu", "cores", "vectors", "gpus", "blas", "blas_threads", "python", "numpy")


def changes_of(before: BenchmarkRun, after: BenchmarkRun) -> list[Change]:
    """Return the changes of the benchmarks that both runs have; raise BenchmarkError if none."""
    old = {r.name: r for r in before.records}
    changes = [Change(old[r.name], r) for r in after.records if r.name in old]
    if not changes:
        raise error(
            BenchmarkError,
            "compare",
            "the two runs have no benchmark in common",
            operands={
                "before": f"{before.path}, {len(before.records)} benchmarks",
                "after": f"{after.path}, {len(after.records)} benchmarks",
            },
            remedy="Run the same benchmarks from the same folder.",
        )
    return changes


def section(before: BenchmarkRun, after: BenchmarkRun) -> tuple[Section, list[str]]:
    """Return the section that compares two runs, and notices about facts that make it doubtful."""
    changes = changes_of(before, after)
    slower = sorted((c for c in changes if c.verdict == "slower"), key=lambda c: -c.ratio)
    faster = sorted((c for c in changes if c.verdict == "faster"), key=lambda c: c.ratio)
    quiet = [c for c in changes if not c.verdict]
    ranked_changes = sorted([*slower, *faster], key=lambda c: -abs(c.ratio - 1))
    charted = sorted(ranked_changes[:SHOWN], key=lambda c: -c.ratio)
    text = (
        f"Before: {_origin(before)}. After: {_origin(after)}. "
        f"Of {len(changes)} benchmarks in both runs {len(slower)} became slower and {len(faster)} "
        f"faster by more than their noise. Ratios are of medians; their intervals go from quartile "
        "to quartile. A benchmark has changed where its interval leaves out 1, which means that "
        f"the middle halves of its times do not overlap, and its ratio is {SMALLEST:.0%} or more "
        "away from 1."
    )
    headings = [
        "benchmark",
        "before",
        "after",
        "ratio",
        "interval",
        "spread before",
        "spread after",
    ]
    tables = [
        Table("Changed", [*headings, "changed"], [_row(c) for c in [*slower, *faster]]),
        Table("Within the noise", [*headings, "changed"], [_row(c) for c in quiet], collapsed=True),
    ]
    filled_tables = [table for table in tables if table.rows]
    compared = Section("Comparison of two runs", text, filled_tables, charts.comparison(charted))
    return compared, notices(before, after, changes)


def _origin(run: BenchmarkRun) -> str:
    """Return the commits of a run and its date, as far as they are known."""
    parts = [f"gdt {run.machine['gdt']}"] if "gdt" in run.machine else []
    if run.commit:
        parts.append(f"benchmarks of commit {run.commit}")
    return ", ".join([*parts, run.date])


def _row(c: Change) -> Row:
    """Return the line of one benchmark."""
    cells = [
        c.short_name,
        time_text(c.before.median),
        time_text(c.after.median),
        three_digits(c.ratio),
        f"{three_digits(c.low)} – {three_digits(c.high)}",
        percent(c.before.spread),
        percent(c.after.spread),
        c.verdict,
    ]
    return Row(cells, c.verdict)


def notices(before: BenchmarkRun, after: BenchmarkRun, changes: list[Change]) -> list[str]:
    """Return notices about facts that make the ratios doubtful: other machines, few rounds, ..."""
    texts = []
    differ = [
        f"{name}: {old} before, {new} after"
        for name in COMPARED
        for old in [before.machine.get(name, "unknown")]
        for new in [after.machine.get(name, "unknown")]
        if old != new
    ]
    if differ:
        texts.append(
            "The two runs were not made on the same machine with the same libraries, so ratios do "
            f"not compare the code alone ({'; '.join(differ)})."
        )
    for c in changes:
        if c.after.kind == "limit" and abs(c.ratio - 1) > LIMITS:
            texts.append(
                f"The machine itself changed between the runs: its own {c.after.workload} took "
                f"{three_digits(c.ratio)} times as long on {c.after.device_type}."
            )
    few = [c for c in changes if min(c.before.rounds, c.after.rounds) < FEWEST_ROUNDS]
    if few:
        texts.append(
            f"{len(few)} benchmark(s) with fewer than {FEWEST_ROUNDS} rounds are not judged, such "
            f"as {few[0].short_name}."
        )
    both = {c.after.name for c in changes}
    for run, when in ((before, "before"), (after, "after")):
        only = [r.name for r in run.records if r.name not in both]
        if only:
            texts.append(f"{len(only)} benchmark(s) are only in the run {when}, such as {only[0]}.")
    return texts
