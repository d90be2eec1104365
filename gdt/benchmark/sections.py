"""The sections of a report other than scaling: limits, collectives, calls, steps and others."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gdt.benchmark import charts
from gdt.benchmark.limits import Limits
from gdt.benchmark.records import BenchmarkRun, Record
from gdt.benchmark.tables import Row, Section, Table, percent, size_text, three_digits, time_text

KINDS = {"limit", "strong", "weak", "collective", "dispatch", "step"}
BARE = "array library"


def limits_section(run: BenchmarkRun, limits: Limits) -> Section | None:
    """Return the section on the rates of the devices; None if they were not measured."""
    types = sorted({r.device_type for r in run.of("limit")})
    if not types:
        return None

    def rate(rates: dict[str, float], device_type: str, unit: str) -> str:
        value = rates.get(device_type)
        return "–" if value is None else f"{three_digits(value / 1e9)} {unit}"

    rows = [
        Row([t, rate(limits.bandwidth, t, "GB/s"), rate(limits.matmul_rate, t, "GFLOP/s")])
        for t in types
    ]
    return Section(
        "Limits of the machine",
        "Measured in the same run through the array library alone, the fastest of all rounds: a "
        "large copy, whose bytes are read once and written once, and a large float32 product.",
        [Table("", ["device", "copy, read and write", "matmul, float32"], rows)],
    )


# ---------------------------------------------------------------- collectives


def collectives_section(run: BenchmarkRun, limits: Limits) -> Section | None:
    """Return the section on times by size, and on rates where devices are apart."""
    places: dict[str, dict[str, list[Record]]] = {}
    usable = [r for r in run.of("collective") if isinstance(r.info.get("size"), int)]
    counts = sorted({r.devices for r in usable})
    for r in sorted(usable, key=lambda r: r.info["size"]):
        place = r.place if len(counts) == 1 else f"{r.place}, {r.devices} devices"
        places.setdefault(place, {}).setdefault(r.workload, []).append(r)
    if not places:
        return None
    names = {name for records in places.values() for name in records}
    order = [name for name in charts.COLLECTIVES if name in names]
    order += sorted(names - set(order))
    places = {p: {n: rs[n] for n in order if n in rs} for p, rs in sorted(places.items())}
    tables = []
    for place, kinds in places.items():
        tables.append(_by_size(f"{place}: time of a call", kinds, _time))
        if _any(kinds).apart:  # data really moves between devices
            tables.append(
                _by_size(f"{place}: GB/s that all devices send", kinds, lambda r: _rate(r, limits))
            )
    copying = {place: limits.copying(_any(kinds)) for place, kinds in places.items()}
    devices = " or ".join(map(str, counts))
    return Section(
        "Collectives",
        f"Between {devices} devices, by the size of the whole array; the time is that of the "
        "public call. Devices that share one block send nothing: there the collective is a view or "
        "a movement inside the block. Bytes are those of ring algorithms. In brackets: of the "
        "bandwidth of a large copy, as each byte sent is read once and written once; more than "
        "100 % where caches hold the data.",
        tables,
        charts.collectives(places, copying),
    )


def _any(kinds: dict[str, list[Record]]) -> Record:
    """Return one of the records of a place, which all ran on the same devices."""
    return next(iter(kinds.values()))[0]


def _by_size(title: str, kinds: dict[str, list[Record]], cell: Callable[[Record], str]) -> Table:
    """Return the table with a line for each size and a column for each collective."""
    sizes = sorted({r.info["size"] for records in kinds.values() for r in records})
    rows = []
    for size in sizes:
        records = [next((r for r in rs if r.info["size"] == size), None) for rs in kinds.values()]
        rows.append(Row([size_text(size), *("–" if r is None else cell(r) for r in records)]))
    return Table(title, ["size", *kinds], rows)


def _time(r: Record) -> str:
    """Return the median time as text."""
    return time_text(r.median)


def _rate(r: Record, limits: Limits) -> str:
    """Return the GB/s that all devices send, and the fraction of a copy's, as text."""
    rate = three_digits(r.sent_bytes / r.median / 1e9)
    possible = limits.copying(r)
    return rate if possible is None else f"{rate} ({percent(r.sent_bytes / r.median / possible)})"


# ---------------------------------------------------------------- dispatch


def dispatch_sections(run: BenchmarkRun) -> list[Section]:
    """Return a section for each type of device on the cost of a call beyond the array library's."""
    by_type = []
    for device_type in sorted({r.device_type for r in run.of("dispatch")}):
        ops: dict[str, dict[str, Record]] = {}
        for r in run.of("dispatch"):
            if r.device_type == device_type:
                ops.setdefault(r.workload, {})[str(r.info.get("caller", "gdt"))] = r
        rows = [Row([op, *_costs(callers)]) for op, callers in ops.items()]
        headings = ["op", BARE, "gdt", "cost", "with tape", "cost with tape"]
        by_type.append(
            Section(
                f"Dispatch on {device_type}",
                "Microseconds of single calls on arrays of a few bytes per device, the fastest of "
                "all rounds, with the clock's own time. The cost is the difference to the array "
                "library's bare call.",
                [Table("", headings, rows)],
                charts.dispatch(ops, device_type),
            )
        )
    return by_type


def _costs(callers: dict[str, Record]) -> Iterable[str]:
    """Yield the cells of one op: microseconds of each caller, and their costs."""
    best = {caller: r.minimum * 1e6 for caller, r in callers.items()}
    bare = best.get(BARE)
    yield "–" if bare is None else three_digits(bare)
    for caller in ("gdt", "gdt with tape"):
        own = best.get(caller)
        yield "–" if own is None else three_digits(own)
        yield "–" if own is None or bare is None else three_digits(own - bare)


# ---------------------------------------------------------------- steps


def steps_section(run: BenchmarkRun) -> Section | None:
    """Return the section on training steps beside the baseline of their workload."""
    workloads: dict[str, list[tuple[str, Record]]] = {}
    for r in run.of("step"):
        workloads.setdefault(r.workload, []).append((_contender(r), r))
    if not workloads:
        return None
    rows = []
    for workload, contenders in workloads.items():
        baseline = next((r for _, r in contenders if r.info.get("contender") != "gdt"), None)
        for i, (label, r) in enumerate(contenders):
            cells = [
                "" if i else workload,
                label,
                time_text(r.median),
                percent(r.spread),
                "–" if baseline is None else three_digits(r.median / baseline.median),
                size_text(r.sent_bytes),
            ]
            rows.append(Row(cells, begins=i == 0))
    return Section(
        "Training steps",
        "Forward, backward and update of one batch, until the loss has been read. The baseline is "
        "a hand-written step on one array whose buffers are allocated in advance.",
        [
            Table(
                "",
                ["workload", "contender", "time", "spread", "x baseline", "sent"],
                rows,
                labels=2,
            )
        ],
        charts.steps(workloads),
    )


def _contender(r: Record) -> str:
    """Return the label of a step: its contender, or gdt's scheme, mode and memory."""
    if r.info.get("contender") != "gdt":
        return str(r.info.get("contender", r.name))
    memory = r.place.split(", ")[1]
    return ", ".join(
        filter(None, (str(r.info.get("scheme", "")), str(r.info.get("mode", "")), memory))
    )


# ---------------------------------------------------------------- the rest


def others_section(run: BenchmarkRun, limits: Limits) -> Section | None:
    """Return the section on benchmarks of other kinds, and on those without a kind."""
    records = [r for r in run.records if r.kind not in KINDS]
    if not records:
        return None
    rows = [
        Row(
            [
                r.workload or r.name,
                time_text(r.median),
                percent(r.spread),
                size_text(r.sent_bytes),
                percent(limits.of_matmul_rate(r)),
                percent(limits.of_bandwidth(r)),
            ]
        )
        for r in records
    ]
    headings = ["benchmark", "time", "spread", "sent", "of matmul", "of copy"]
    return Section("Other benchmarks", "", [Table("", headings, rows)])
