"""The report on one run, or on two: a page with pictures, and the same tables in a terminal."""

from __future__ import annotations

import base64
import io
import os
import tempfile
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from matplotlib.figure import Figure
from rich.console import Console
from rich.text import Text

from gdt.benchmark import comparison, scaling, sections
from gdt.benchmark.limits import Limits, limits_of
from gdt.benchmark.records import BenchmarkRun
from gdt.benchmark.tables import Section

DPI = 160
NOISY = 0.25  # the spread above which the machine was probably busy
NAMES = {"cpu": "processor", "vectors": "vector instructions", "cores": "cores", "gpus": "GPUs"}
NAMES |= {"blas": "BLAS", "blas_threads": "BLAS threads", "python": "Python", "numpy": "NumPy"}


@dataclass(frozen=True)
class Report:
    """The content of a report: properties of the run by name, notices, and sections."""

    title: str
    facts: dict[str, str]
    notices: list[str]
    sections: list[Section]


def report_on(run: BenchmarkRun, before: BenchmarkRun | None = None) -> Report:
    """Return the report on a run, compared with the run `before` if it is given.

    Raises BenchmarkError if the two runs have no benchmark in common.
    """
    limits = limits_of(run)
    contents: list[Section | None] = []
    notices: list[str] = []
    if before is not None:
        compared, notices = comparison.section(before, run)
        contents.append(compared)
    contents.append(sections.limits_section(run, limits))
    for kind in scaling.TITLES:
        section, missing = scaling.section(run, kind, limits)
        contents.append(section)
        notices += missing
    contents.append(sections.collectives_section(run, limits))
    contents += sections.dispatch_sections(run)
    contents += [sections.steps_section(run), sections.others_section(run, limits)]
    facts = {NAMES.get(name, name): value for name, value in run.machine.items() if value}
    if run.commit:
        facts["benchmarks of commit"] = run.commit
    facts["measured"] = f"{run.date} UTC"
    title = f"gdt benchmarks: {run.path.stem}"
    notices += _doubts(run, limits)
    return Report(title, facts, notices, [s for s in contents if s is not None])


def _doubts(run: BenchmarkRun, limits: Limits) -> list[str]:
    """Return notices about limits that the run has not measured, and about its noise."""
    notices = []
    device_types = {r.device_type for r in run.records if r.flops or r.memory_bytes or r.sent_bytes}
    for device_type in sorted(device_types - (limits.bandwidth.keys() & limits.matmul_rate.keys())):
        notices.append(
            f"The run has not measured the limits of the {device_type}, so fractions of them are "
            "left out; gdt.benchmark.limit_tests has benchmarks for them."
        )
    noisy = sum(r.spread > NOISY for r in run.records)
    if noisy > len(run.records) / 10:
        notices.append(
            f"{noisy} of {len(run.records)} benchmarks have a spread above {NOISY:.0%}: the "
            "machine was busy with something else, or they ran too briefly. Small differences "
            "mean nothing."
        )
    return notices


# ---------------------------------------------------------------- writing


def write(report: Report, folder: Path) -> Path:
    """Write `report.html`, which needs no other file, and its pictures as PNG files.

    Returns the path of the page."""
    folder.mkdir(parents=True, exist_ok=True)
    pictures = {}
    for section in report.sections:
        for name, (figure, _) in section.figures.items():
            pictures[name] = _png(figure)
            _write_whole(folder / f"{name}.png", pictures[name])
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    template = environment.from_string((files("gdt.benchmark") / "report.html").read_text("utf-8"))
    encoded = {name: base64.b64encode(png).decode() for name, png in pictures.items()}
    page = folder / "report.html"
    _write_whole(page, template.render(report=report, pictures=encoded).encode())
    return page


def _png(figure: Figure) -> bytes:
    """Return a figure as a PNG file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI)
    return buffer.getvalue()


def _write_whole(path: Path, content: bytes) -> None:
    """Write a file so that it appears with its whole content, or not at all."""
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        try:
            file.write(content)
            file.close()
            Path(file.name).chmod(0o644)
            os.replace(file.name, path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


def show(report: Report, console: Console) -> None:
    """Print facts, notices and tables."""
    console.print(Text(report.title, style="bold"))
    console.print(Text(", ".join(f"{name} {value}" for name, value in report.facts.items())))
    for notice in report.notices:
        console.print(Text(f"Note: {notice}", style="yellow"))
    for section in report.sections:
        console.print()
        console.rule(Text(section.title, style="bold"), align="left")
        if section.text:
            console.print(Text(section.text))
        for table in section.tables:
            hidden = f"{table.title}: {len(table.rows)} lines, which the page lists"
            console.print(Text(hidden) if table.collapsed else table)
