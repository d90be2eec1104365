"""The report on runs of benchmarks: its numbers, its page, and what it says about bad input."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from matplotlib.text import Text
from rich.console import Console

import gdt
from bench import overhead
from bench import report as steps_report
from gdt.benchmark import machine as machines
from gdt.benchmark import report as reports
from gdt.benchmark import scaling
from gdt.benchmark.__main__ import main
from gdt.benchmark.comparison import changes_of
from gdt.benchmark.limits import limits_of
from gdt.benchmark.records import read
from gdt.benchmark.report import report_on, show, write
from gdt.benchmark.scaling import points_of
from gdt.benchmark.tables import Row, Table
from gdt.errors import BenchmarkError

ROOT = Path(gdt.__file__).parent.parent
RUN = Path(__file__).parent / "run.json"
SECTIONS = ["Limits of the machine", "Strong scaling", "Weak scaling", "Collectives"]
SECTIONS += ["Dispatch on CPU", "Training steps"]


def entry(name, time, spread=0.0, rounds=10, **info):
    stats = {"min": time, "q1": time * (1 - spread / 2), "median": time}
    stats |= {"q3": time * (1 + spread / 2), "rounds": rounds}
    return {"fullname": f"test_file.py::{name}", "stats": stats, "extra_info": info}


def scaling_entry(kind, p, time, device_type="CPU", blocks=1, one=8.0, width=0.0, **info):
    """Of p devices, in turns with one on which it took `one` seconds."""
    place = "apart" if blocks == p > 1 else "folded"
    info = {"devices": p, "device_type": device_type, "blocks": blocks, "sent_bytes": 0} | info
    if p > 1:
        ratio = one / time
        interval = {"low": ratio * (1 - width / 2), "high": ratio * (1 + width / 2)}
        info["in_turns"] = {"value": ratio, "one_device": one, "turns": 9} | interval
    name = f"test_f[{device_type}-{place}-{p}]"
    return entry(name, time, kind=kind, workload="f", **info)


@pytest.fixture
def saved(tmp_path):
    """Writes entries as pytest-benchmark would, and reads them again."""

    def save(entries, name="run.json", **machine):
        path = tmp_path / name
        facts = {"cpu": "a processor", "cores": 2} | machine
        whole = {"machine_info": {"gdt": facts}, "benchmarks": entries}
        path.write_text(json.dumps(whole))
        return read(path)

    return save


def text_of(report, width=200):
    console = Console(width=width, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    with console.file:
        show(report, console)
        return console.export_text()


# ---------------------------------------------------------------- numbers


def test_strong_scaling_is_the_textbooks(saved):
    run = saved([scaling_entry("strong", p, t) for p, t in ((1, 8.0), (2, 5.0), (4, 4.0))])
    (points,) = points_of(run, "strong")[0]["f"].values()
    assert [q.speed_up for q in points] == pytest.approx([1, 1.6, 2])
    assert [q.efficiency for q in points] == pytest.approx([1, 0.8, 0.5])
    # One host computes for all devices: the same work takes as long, at best.
    assert [q.ideal for q in points] == pytest.approx([1, 1 / 2, 1 / 4])
    assert [q.of_ideal.value for q in points] == pytest.approx([1, 8 / 5, 8 / 4])
    assert [q.ideal_time for q in points] == pytest.approx([8, 8, 8])


def test_weak_scaling_is_the_textbooks(saved):
    run = saved([scaling_entry("weak", p, t) for p, t in ((1, 8.0), (2, 20.0), (4, 32.0))])
    (points,) = points_of(run, "weak")[0]["f"].values()
    assert [q.speed_up for q in points] == pytest.approx([1, 0.8, 1])
    assert [q.efficiency for q in points] == pytest.approx([1, 0.4, 0.25])
    assert [q.of_ideal.value for q in points] == pytest.approx([1, 0.8, 1])
    assert [q.ideal_time for q in points] == pytest.approx([8, 16, 32])


def test_predictions_are_beside_measurements(saved):
    def headings_and_cells(predicted):
        entries = [
            scaling_entry("strong", p, t, blocks=p, predicted=predicted if p == 2 else None)
            for p, t in ((1, 8.0), (2, 5.0), (4, 4.0))
        ]
        run = saved(entries)
        table = scaling.table(points_of(run, "strong")[0], limits_of(run))
        return table.headings, [row.cells for row in table.rows]

    headings, cells = headings_and_cells(4.0)
    at = headings.index("predicted")
    assert headings[at - 1] == "time"
    assert [c[at - 1 : at + 1] for c in cells[-2:]] == [["5.00 s", "4.00 s"], ["4.00 s", "–"]]
    headings, cells = headings_and_cells(None)
    assert "predicted" not in headings and {len(c) for c in cells} == {len(headings)}


@pytest.mark.parametrize(("blocks", "ideal"), [(4, 1.0), (1, 0.25)])
def test_gpus_of_their_own_should_be_fully_efficient(saved, blocks, ideal):
    entries = [
        scaling_entry("strong", 1, 8.0, "GPU"),
        scaling_entry("strong", 4, 2.0, "GPU", blocks),
    ]
    *_, points = points_of(saved(entries), "strong")[0]["f"].values()
    assert [q.record.devices for q in points] == [1, 4]
    assert points[1].ideal == ideal and points[1].of_ideal.value == pytest.approx(1 / ideal)


def test_times_that_were_measured_minutes_apart_are_not_compared(saved):
    """One device was busy when it was measured alone, and is not in turns with the others."""
    entries = [scaling_entry("weak", p, t, one=10.0) for p, t in ((1, 215.6), (2, 20.0))]
    points = points_of(saved(entries), "weak")[0]["f"]["CPU, devices share one block"]
    assert [q.of_ideal.value for q in points] == pytest.approx([1, 1])
    del entries[1]["extra_info"]["in_turns"]
    _, (notice,) = points_of(saved(entries), "weak")
    assert "was not measured in turns with 1 device" in notice


@pytest.mark.parametrize("width", [0.1, 0.5])
def test_efficiencies_that_are_noise_are_marked(saved, width):
    """In the table, in the picture and in a notice."""
    run = saved([scaling_entry("strong", p, 4.0, width=width) for p in (1, 2)])
    (section, notices) = scaling.section(run, "strong", limits_of(run))
    (figure, _) = section.figures["strong-scaling"]
    words = [text.get_text() for text in figure.findobj(Text)]
    cell = section.tables[0].rows[1].cells[section.tables[0].headings.index("interval")]
    assert cell == ("190 – 210 %" if width == 0.1 else "150 – 250 % noise")
    assert ("noise" in words) == bool(notices) == (width == 0.5)
    assert any("wider than 15%" in word for word in words) == (width == 0.5)


def test_fractions_are_of_the_fastest_copy_and_product_times_the_gpus(saved):
    limit = {"kind": "limit", "device_type": "GPU"}
    run = saved(
        [
            entry("test_copy", 2.0, workload="copy", memory_bytes=200, **limit),
            entry("test_matmul", 1.0, workload="matmul", flops=50, **limit),
            scaling_entry("strong", 4, 5.0, "GPU", 4, flops=500, memory_bytes=1000),
        ]
    )
    limits, (record,) = limits_of(run), run.of("strong")
    assert limits.of_bandwidth(record) == pytest.approx(1000 / 5 / (100 * 4))
    assert limits.of_matmul_rate(record) == pytest.approx(500 / 5 / (50 * 4))
    # Each byte that is copied is read once and written once.
    assert limits.copying(record) == pytest.approx(100 * 4 / 2)


# ---------------------------------------------------------------- the page


class Tags(HTMLParser):
    """Checks that every tag is closed, and collects attributes."""

    def __init__(self):
        super().__init__()
        self.open, self.links = [], []

    def handle_starttag(self, tag, attrs):
        self.links += [value for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"</{tag}> at {self.getpos()}"


def test_page_has_every_section_and_needs_no_other_file(tmp_path):
    report = report_on(read(RUN))
    assert [s.title for s in report.sections] == SECTIONS
    page = write(report, tmp_path / "out")
    text, tags = page.read_text(), Tags()
    tags.feed(text)
    assert not tags.open
    pictures = [p for p in tags.links if not re.fullmatch(r"#section-\d", p)]
    names = [name for s in report.sections for name in s.figures]
    assert len(pictures) == len(names) == 5
    for picture, name in zip(pictures, names, strict=True):
        png = base64.b64decode(picture.removeprefix("data:image/png;base64,"))
        assert png.startswith(b"\x89PNG") and png == (tmp_path / f"out/{name}.png").read_bytes()
    assert {p.suffix for p in (tmp_path / "out").iterdir()} == {".png", ".html"}
    for fact in ("AMD EPYC", "openblas 0.3.31", "2.4.6", "b28b5869bffc"):
        assert fact in text


def test_terminal_shows_the_same_tables():
    report = report_on(read(RUN))
    text = text_of(report)
    for section in report.sections:
        for table in section.tables:
            assert all(cell in text for row in table.rows for cell in row.cells)


def test_tables_fit_sixty_columns():
    shown = [t for s in report_on(read(RUN)).sections for t in s.tables]
    times = {"best": 12.34, "median": 45.67}
    row = {"library": "gdt, gdt.function", "scheme": "data, 8 devices, one block per device"}
    row |= {"ms": 1234.5, "ratio": 38.21, "quiet_ratio": 37.11, "loss": 0.6931}
    shown.append(steps_report.table("imdb", [row]))
    shown.append(overhead.table({"matrix_product": dict.fromkeys(("bare", "gdt", "tape"), times)}))
    long = "test_of_a_long_name[CPU-folded-8]"
    shown.append(Table("", ["benchmark", "time", "sent"], [Row([long, "1.00 ms", "3.1 MiB"])]))
    for table in shown:
        console = Console(width=60, record=True, file=io.StringIO())
        console.print(table)
        text = console.export_text()
        assert max(map(len, text.splitlines())) <= 60 and "…" not in text
        words = re.sub(r"\s", "", text)
        for row in table.rows:
            assert all(number in text for number in row.cells[table.labels :])
            assert all(word in words for cell in row.cells for word in cell.split()[:1])


def test_every_measurement_of_the_run_is_in_a_table():
    run = read(RUN)
    lines = sum(len(t.rows) for s in report_on(run).sections for t in s.tables)
    collectives = 3 * 3  # sizes, tables
    one_each = [r for r in run.records if r.kind in ("strong", "weak", "step")]
    ops = {r.workload for r in run.of("dispatch")}
    assert lines == len(["CPU"]) + len(one_each) + collectives + len(ops)


def test_names_are_text_not_markup(saved, tmp_path):
    run = saved([entry("test_f[<b>x</b>]", 1.0), entry("test_[bold]g", 1.0)])
    report = report_on(run)
    assert "[bold]g" in text_of(report)
    assert "&lt;b&gt;x" in write(report, tmp_path / "out").read_text()


def test_gpus_have_series_of_their_own(saved, tmp_path):
    entries = [
        scaling_entry("strong", p, 1 / p if blocks == p else 1.1, device_type, blocks, one=1.0)
        for device_type in ("CPU", "GPU")
        for p in (1, 2, 4, 8)
        for blocks in sorted({1, p})
    ]
    entries.append(scaling_entry("strong", 8, 0.3, "GPU", 4))
    run = saved(entries)
    series = points_of(run, "strong")[0]["f"]
    assert list(series) == [
        "CPU, devices share one block",
        "GPU, devices share one GPU",
        "GPU, devices share 4 GPUs",
        "CPU, one block per device",
        "GPU, one GPU per device",
    ]
    assert [q.of_ideal.value for q in series["GPU, one GPU per device"]] == pytest.approx([1] * 4)
    assert write(report_on(run), tmp_path / "out").exists()


def test_tests_with_the_same_workload_are_told_apart(saved):
    run = saved(
        [scaling_entry("strong", 1, t) | {"fullname": f"a.py::test_{t}[1]"} for t in (1.0, 2.0)]
    )
    assert list(points_of(run, "strong")[0]) == ["f (a.py::test_1.0)", "f (a.py::test_2.0)"]


def test_collectives_of_several_meshes_are_told_apart(saved):
    info = {"kind": "collective", "workload": "all_reduce", "size": 1024, "sent_bytes": 8}
    run = saved(
        [entry(f"test_{p}", 1.0, devices=p, blocks=p, device_type="CPU", **info) for p in (2, 4)]
    )
    (section,) = report_on(run).sections
    titles = [t.title for t in section.tables]
    assert "CPU, one block per device, 4 devices: time of a call" in titles and len(titles) == 4


def test_many_workloads_are_several_pictures(saved):
    entries = []
    for i in range(7):
        one = scaling_entry("strong", 1, 1.0, workload_number=i)
        one["extra_info"]["workload"] = f"f{i}"
        entries.append(one | {"fullname": f"test_file.py::test_f{i}"})
    (section,) = report_on(saved(entries)).sections
    assert list(section.figures) == ["strong-scaling-1", "strong-scaling-2"]


# ---------------------------------------------------------------- incomplete runs


def test_scaling_without_one_device_is_a_notice(saved):
    run = saved([scaling_entry("strong", 2, 1.0), scaling_entry("weak", 1, 1.0)])
    report = report_on(run)
    assert "Strong scaling of 'f' on CPU is left out" in report.notices[0]
    assert [s.title for s in report.sections] == ["Weak scaling"]


def test_missing_limits_are_a_notice(saved):
    run = saved([scaling_entry("strong", 1, 1.0, flops=100)])
    report = report_on(run)
    assert "has not measured the limits of the CPU" in report.notices[0]
    assert report.sections[0].tables[0].rows[0].cells[-2:] == ["–", "–"]


def test_benchmarks_that_know_nothing_of_gdt_are_listed(saved):
    (section,) = report_on(saved([entry("test_other", 0.5)])).sections
    assert section.title == "Other benchmarks"
    assert section.tables[0].rows[0].cells[:2] == ["test_file.py::test_other", "500 ms"]


def test_noise_is_a_notice(saved):
    (notice,) = report_on(saved([entry("test_f", 1.0, spread=0.5)])).notices
    assert notice.startswith("1 of 1 benchmarks have a spread above 25%")


GOOD = entry("test_f", 1.0)


def damaged(**changes):
    return {"benchmarks": [{**GOOD, **changes}]}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "no file"),
        ("", "cannot be read as JSON"),
        ('{"benchmarks": [', "cannot be read as JSON"),
        (b"\xff\xfe\x00", "cannot be read as JSON"),
        ([1], "is not of pytest-benchmark"),
        ({"machine_info": {}}, "is not of pytest-benchmark"),
        ({"benchmarks": []}, "holds no benchmark"),
        ({"benchmarks": [1]}, "a benchmark has no name"),
        (damaged(stats={}), "min of test_file.py::test_f is None"),
        (damaged(stats=GOOD["stats"] | {"median": -1}), "median of test_file.py::test_f is -1"),
        (damaged(stats=GOOD["stats"] | {"q3": float("nan")}), "q3 of test_file.py::test_f is nan"),
        (damaged(stats=GOOD["stats"] | {"rounds": "9"}), "rounds of test_file.py::test_f is '9'"),
        (damaged(extra_info={"devices": "8"}), "devices of test_file.py::test_f is '8'"),
        (damaged(extra_info={"blocks": 0}), "blocks of test_file.py::test_f is 0"),
        (damaged(extra_info={"in_turns": 1}), "in_turns of test_file.py::test_f is None"),
    ],
)
def test_bad_files(tmp_path, content, problem):
    path = tmp_path / "run.json"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(BenchmarkError, match=re.escape(problem)) as caught:
        read(path)
    assert str(path) in str(caught.value)
    with pytest.raises(SystemExit, match=re.escape(problem)):
        main([str(path)])
    assert not (tmp_path / "run-report").exists()


def test_folder_in_the_place_of_a_file(tmp_path):
    with pytest.raises(BenchmarkError, match="cannot be read"):
        read(tmp_path)


def test_output_that_cannot_be_written(tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(SystemExit, match="cannot write the report to"):
        main([str(RUN), "--output", str(tmp_path / "taken")])


def test_output_is_beside_the_run_by_default(tmp_path, capsys):
    (tmp_path / "mine.json").write_text(RUN.read_text())
    main([str(tmp_path / "mine.json")])
    assert (tmp_path / "mine-report/report.html").exists()
    assert "written: " in capsys.readouterr().out


# ---------------------------------------------------------------- two runs


def both(saved, before, after, **machine):
    return saved(before, "before.json"), saved(after, "after.json", **machine)


@pytest.mark.parametrize(
    ("factor", "spread", "rounds", "verdict"),
    [
        (2.0, 0.2, 10, "slower"),
        (0.5, 0.2, 10, "faster"),
        (1.15, 0.2, 10, ""),  # the quartiles overlap
        (1.02, 0.001, 10, ""),  # they do not, but runs differ by this much
        (2.0, 0.2, 3, ""),  # too few to know the quartiles
    ],
)
def test_changes_beyond_noise(saved, factor, spread, rounds, verdict):
    before, after = both(
        saved, [entry("test_f", 1.0, spread)], [entry("test_f", factor, spread, rounds)]
    )
    (change,) = changes_of(before, after)
    assert (change.ratio, change.verdict) == (factor, verdict)
    assert change.low == pytest.approx(factor * (1 - spread / 2) / (1 + spread / 2))
    assert change.high == pytest.approx(factor * (1 + spread / 2) / (1 - spread / 2))


def test_comparison_lists_what_changed_first_and_draws_it(saved, tmp_path):
    times = {"a": (1.0, 1.0), "b": (1.0, 3.0), "c": (1.0, 0.2), "d": (1.0, 5.0)}
    runs = both(saved, *([entry(f"test_{n}", t[i]) for n, t in times.items()] for i in (0, 1)))
    report = report_on(runs[1], runs[0])
    section = report.sections[0]
    changed, quiet = section.tables
    assert [r.cells[0] for r in changed.rows] == ["d", "b", "c"]
    assert [r.mark for r in changed.rows] == ["slower", "slower", "faster"]
    assert [r.cells[0] for r in quiet.rows] == ["a"] and quiet.collapsed
    assert "2 became slower and 1 faster" in section.text.replace("\n", " ")
    page = write(report, tmp_path / "out").read_text()
    assert (tmp_path / "out/comparison.png").exists() and "<details>" in page


def test_unchanged_runs_compare_without_a_picture():
    run = read(RUN)
    report = report_on(run, run)
    assert report.sections[0].figures == {}
    assert [t.title for t in report.sections[0].tables] == ["Within the noise"]


def test_other_machines_are_a_notice(saved):
    before, after = both(saved, [GOOD], [GOOD], cpu="another", cores=8)
    (notice,) = report_on(after, before).notices
    assert "not made on the same machine" in notice
    assert "cpu: a processor before, another after; cores: 2 before, 8 after" in notice


def test_libraries_of_a_machine_are_named_in_one_order(monkeypatch):
    libraries = [
        {"user_api": "blas", "internal_api": "openblas", "version": f"0.3.{n}", "num_threads": n}
        for n in (4, 1, 6, 2, 5, 3)
    ]
    monkeypatch.setattr(machines, "threadpool_info", lambda: libraries)
    facts = machines.machine()
    assert facts["blas"] == ", ".join(f"openblas 0.3.{n}" for n in range(1, 7))
    assert facts["blas_threads"] == 6


def test_an_interrupt_behind_the_last_byte_is_passed_on(tmp_path, monkeypatch):
    def replace(source, target):
        Path(source).rename(target)
        raise KeyboardInterrupt

    monkeypatch.setattr(reports.os, "replace", replace)
    with pytest.raises(KeyboardInterrupt):
        reports._write_whole(tmp_path / "page.html", b"page")
    assert [p.read_bytes() for p in tmp_path.iterdir()] == [b"page"]


def test_a_machine_that_became_slower_is_a_notice(saved):
    runs = both(
        saved,
        *(
            [entry("test_copy", t, kind="limit", workload="copy", memory_bytes=8)]
            for t in (1.0, 2.0)
        ),
    )
    assert "its own copy took 2.00 times as long on CPU" in report_on(runs[1], runs[0]).notices[0]


@pytest.mark.parametrize("few", ["before", "after"])
def test_benchmarks_of_one_run_only_and_too_few_rounds_are_notices(saved, few):
    one, other = (
        entry("test_f", 1.0, rounds=2 if few == run else 100) for run in ("before", "after")
    )
    before, after = both(saved, [one, entry("test_old", 1.0)], [other])
    notices = report_on(after, before).notices
    assert "1 benchmark(s) with fewer than 5 rounds are not judged, such as f." in notices
    assert "1 benchmark(s) are only in the run before, such as test_file.py::test_old." in notices


def test_runs_without_a_common_benchmark(saved):
    before, after = both(saved, [GOOD], [entry("test_g", 1.0)])
    with pytest.raises(BenchmarkError, match="no benchmark in common"):
        report_on(after, before)
    with pytest.raises(SystemExit, match="no benchmark in common"):
        main([str(after.path), "--before", str(before.path)])


# ---------------------------------------------------------------- from the suites


def test_suites_of_the_repository_make_a_whole_report(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    # Under xdist pytest-benchmark measures nothing, nor in pytest runs that a worker starts.
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    path = tmp_path / "run.json"
    fast = ["--benchmark-max-time=0.0001", "--benchmark-min-rounds=1", "--benchmark-only"]
    fast += ["--benchmark-quiet", "-q", "-p", "no:cacheprovider", "-p", "no:zarr"]
    # What 4 and 8 devices of the host reach takes longest to measure, and 2 show the same.
    scaling = "(strong or weak) and sums and not (apart-4 or apart-8)"
    chosen = f"limits or {scaling} or 1KiB or ops and add or imdb and (data or numpy)"
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "bench", "-k", chosen, *fast, f"--benchmark-json={path}"],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    report = report_on(read(path))
    assert [s.title for s in report.sections if "GPU" not in s.title] == SECTIONS
    assert not [n for n in report.notices if "left out" in n]
