"""The fixtures of gdt.benchmark.plugin, in pytest runs of their own."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

import gdt
from gdt.benchmark import Devices, device_counts, measure, turns
from gdt.benchmark.commit import commit_of
from gdt.benchmark.records import read
from gdt.benchmark.report import report_on
from gdt.benchmark.scaling import points_of
from gdt.errors import BenchmarkError
from gdt.sharding import devices, processes

pytest_plugins = ["pytester"]

ROOT = Path(gdt.__file__).parent.parent
(EXAMPLE_OF_THE_DOCS,) = re.findall(
    r"```python\n(# test_scaling.py\n.*?)```", (ROOT / "docs/benchmarks.md").read_text(), re.S
)
FAST = ["--benchmark-max-time=0.001", "--benchmark-min-rounds=3"]


@pytest.fixture
def run(pytester, monkeypatch):
    """Runs a test file and returns pytest's result and the measurements by parameter."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:zarr")  # whose plugin imports zarr and CuPy
    # Under xdist pytest-benchmark measures nothing, nor in pytest runs that a worker starts.
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)

    def json_option(path):
        return f"--benchmark-json={path}"

    def run_file(text, *options):
        file, json_file = pytester.makepyfile(text), pytester.path / "run.json"
        given = options if "no:benchmark" in options else (*options, *FAST, json_option(json_file))
        result = pytester.runpytest_subprocess(file, "-p", "no:cacheprovider", *given)
        found = json.loads(json_file.read_text()) if json_file.exists() else {"benchmarks": []}
        return result, {b["param"]: b for b in found["benchmarks"]}, found

    return run_file


def test_example_of_the_readme_runs_on_all_virtual_devices(run):
    result, found, whole = run(EXAMPLE_OF_THE_DOCS, "-rs")
    sizes = [(True, 2), (True, 4), (True, 8), (False, 1), (False, 2), (False, 4), (False, 8)]
    gpus = devices.DEVICE_COUNTS["cuda"]()
    result.assert_outcomes(passed=7 + sum(p <= gpus if a else gpus > 0 for a, p in sizes),
                           skipped=sum(p > gpus if a else gpus == 0 for a, p in sizes))  # fmt: skip
    if not gpus:
        result.stdout.fnmatch_lines(["*gpu-apart-8 needs 8 GPU(s), 0 found*"])
    for apart, p in sizes:
        info = found[f"cpu-{'apart' if apart else 'folded'}-{p}"]["extra_info"]
        assert (info["kind"], info["workload"]) == ("strong", "products")
        assert (info["devices"], info["blocks"]) == (p, p if apart else 1)
        assert info["flops"] == 2 * 1024 * 256 * 256
        # A ring all-reduce of 256 float64: every device sends 2 (p - 1) / p of them.
        assert info["sent_bytes"] == 2 * (p - 1) * 256 * 8
        assert info["collectives"] == ({"all_reduce": 1} if p > 1 else {})
    facts = whole["machine_info"]["gdt"]
    assert facts["gdt"].split(",")[0] == gdt.__version__ and facts["cores"] >= 1


def test_numbers_of_devices_can_be_chosen(run):
    result, found, _ = run("""
        import gdt, gdt.benchmark, pytest
        pytest_plugins = ["gdt.benchmark.plugin"]
        counts = gdt.benchmark.device_counts([1, 3], ["cpu"])

        @pytest.mark.parametrize("devices", counts, ids=str, indirect=True)
        @pytest.mark.parametrize("columns", [2, 5])
        def test_weak(scaling, columns):
            layout = gdt.Layout(["x", None], scaling.mesh)
            x = gdt.ones((4 * scaling.mesh.size, columns), layout=layout)
            assert gdt.ones(2).mesh is scaling.mesh
            assert float(scaling.weak(gdt.sum, x)) == 4 * scaling.mesh.size * columns
    """)
    result.assert_outcomes(passed=6)
    info = found["5-cpu-apart-3"]["extra_info"]
    assert (info["kind"], info["workload"], info["devices"]) == ("weak", "weak 5", 3)


def test_plans_are_made_before_the_clock_starts_and_partial_sums_within_it(run):
    result, _, _ = run("""
        import gdt
        pytest_plugins = ["gdt.benchmark.plugin"]

        def test_calls(scaling):
            calls = []
            x = gdt.ones(8, layout=gdt.Layout(["x"], scaling.mesh))
            out = scaling.strong(lambda: calls.append(0) or {"sum": [gdt.sum(x)]})
            assert len(calls) == 3 and not any(out["sum"][0].layout.partial)
            assert scaling.benchmark.extra_info["sent_bytes"] == 8 * (2 * scaling.mesh.size - 2)
    """, "--benchmark-disable")  # fmt: skip
    assert result.parseoutcomes()["passed"] >= 7 and "failed" not in result.parseoutcomes()


CLOCK = """
seconds = 0.0

def now():  # every look takes a moment, or a timer's precision is never found
    global seconds
    seconds += 1e-7
    return seconds
"""
BUSY = """
import types
import clock, pytest
import gdt, gdt.benchmark
from gdt.benchmark import turns
pytest_plugins = ["gdt.benchmark.plugin"]
turns.time = types.SimpleNamespace(perf_counter=clock.now)
counts = gdt.benchmark.device_counts([4, 1], ["cpu"])  # one device is measured first nevertheless

@pytest.mark.parametrize("devices", counts, ids=str, indirect=True)
@pytest.mark.parametrize("units", [1, 2])
def test_work(scaling, units):
    global load
    load = 0.02 if scaling.mesh.size == 1 else 0.002  # the machine is busy for some of the tests

    def work():
        assert gdt.ones(2).mesh is scaling.mesh
        clock.seconds += units * load

    scaling.strong(work)
"""


def test_devices_are_measured_in_turns_with_one_device(run, pytester, tmp_path):
    pytester.makepyfile(clock=CLOCK)
    result, found, whole = run(BUSY, "--benchmark-timer=clock.now")
    result.assert_outcomes(passed=6)
    result.stdout.re_match_lines([
        r"1 of 6, \d+ s: work 1 on cpu-folded-1: .* ms",
        r"2 of 6, \d+ s: work 1 on cpu-folded-4: .* ms, beside .* ms on one device",
    ])  # fmt: skip
    for units in (1, 2):
        for place in ("folded", "apart"):
            ratio = found[f"{units}-cpu-{place}-4"]["extra_info"]["in_turns"]
            assert ratio["turns"] >= 3
            assert ratio["value"] == pytest.approx(1, rel=1e-3)  # not 10, as the tests apart
            assert ratio["low"] <= ratio["value"] <= ratio["high"]
    path = tmp_path / "run.json"
    path.write_text(json.dumps(whole))
    for series in points_of(read(path), "strong")[0].values():
        for points in series.values():
            assert [p.record.devices for p in points] == [1, 4]
            assert points[1].of_ideal.value == pytest.approx(1, rel=1e-3)


class Slices:
    """A core that is taken away for `away` seconds after every `given` seconds of work."""

    def __init__(self, given, away):
        self.given, self.away, self.now, self.worked = given, away, 0.0, 0.0

    def work(self, seconds):
        before, self.worked = self.worked, self.worked + seconds
        slices = int(self.worked / self.given) - int(before / self.given)
        self.now += seconds + slices * self.away


class Pedantic:
    """pytest-benchmark's fixture, as far as turns use it."""

    disabled = False

    def __init__(self):
        self.extra_info, self.stats = {}, SimpleNamespace(stats=SimpleNamespace(data=[]))

    def pedantic(self, call, setup, rounds):
        for _ in range(rounds):
            setup()
            self.stats.stats.data.append(turns._timed(call))


def test_a_load_slows_short_calls_down_as_much_as_long_ones(monkeypatch):
    """A call of one device fits between two slices of something else; eight times the work does
    not."""
    core, benchmark = Slices(given=4e-3, away=8e-3), Pedantic()
    monkeypatch.setattr(turns.time, "perf_counter", lambda: core.now)
    one = turns.OneDevice(Devices(1).mesh(), lambda: core.work(1e-3), seconds=5.0, fewest=5)
    turns.in_turns(benchmark, lambda: core.work(8e-3), one)
    found = benchmark.extra_info["in_turns"]
    assert found["value"] == pytest.approx(1 / 8, rel=0.05)


def test_without_one_device_there_is_no_efficiency(run, pytester):
    pytester.makepyfile(clock=CLOCK)
    result, found, _ = run(BUSY, "-k", "folded-4", "-q", "--benchmark-timer=clock.now")
    result.assert_outcomes(passed=2)
    assert "in_turns" not in found["1-cpu-folded-4"]["extra_info"]
    result.stdout.no_re_match_line(".* of 2, ")


def test_missing_pytest_benchmark_is_said(run):
    result, _, _ = run(
        "pytest_plugins = ['gdt.benchmark.plugin']\ndef test_f(): pass", "-p", "no:benchmark"
    )
    assert "pip install 'gdt[benchmark]'" in result.stderr.str() + result.stdout.str()


def test_gpus_are_used_where_there_are_enough(monkeypatch):
    monkeypatch.setitem(devices.DEVICE_COUNTS, "cuda", lambda: 4)
    assert [d.missing for d in (Devices(8, "gpu"), Devices(4, "gpu", True))] == ["", ""]
    assert Devices(8, "gpu", True).missing == "needs 8 GPU(s), 4 found"
    assert Devices(4, "gpu", True).mesh().devices == ("cuda:0", "cuda:1", "cuda:2", "cuda:3")
    shared = Devices(8, "gpu").mesh()
    assert set(shared.devices) == {"cuda:0"} and shared.grid == (1,) and shared.size == 8


def test_several_processes_are_refused(monkeypatch):
    two = processes.Processes(0, ("host", "host"))
    monkeypatch.setattr(processes, "current", lambda: two)
    with pytest.raises(BenchmarkError, match="2 processes would not agree"):
        measure(None, lambda: None, mesh=Devices(1).mesh(), kind="strong", workload="f")


@pytest.mark.parametrize(
    ("counts", "kinds", "problem"),
    [
        ([0], ["cpu"], "0 is not a positive number"),
        ([2.0], ["cpu"], "2.0 is not a positive number"),
        ([1], ["tpu"], "unknown kind 'tpu'"),
    ],
)
def test_bad_device_counts(counts, kinds, problem):
    with pytest.raises(BenchmarkError, match=problem):
        device_counts(counts, kinds)


def git(folder, *command):
    who = ["-c", "user.name=A", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        ["git", "-C", folder, *who, *command], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def test_commits_of_checkouts_and_of_packages(tmp_path):
    sources, other = tmp_path / "sources", tmp_path / "sources/environment"
    other.mkdir(parents=True)
    (sources / "a.py").touch()
    (other / "b.py").touch()
    assert commit_of(sources) == ""
    git(sources, "init")
    git(sources, "add", "a.py")
    git(sources, "commit", "-m", "first")
    commit = git(sources, "rev-parse", "HEAD")[:12]
    assert commit_of(sources) == commit
    assert commit_of(other) == ""  # not of the repository around it
    (sources / "a.py").write_text("1")
    assert commit_of(sources) == f"{commit} with changes"
    (other / "commit.txt").write_text(f"{commit}\n")
    assert commit_of(other) == commit


def test_a_run_knows_the_commit_of_its_tests_wherever_it_is_started(run, pytester, monkeypatch):
    """And of gdt, which is a checkout here; where there is no commit, none is named."""
    text = "pytest_plugins = ['gdt.benchmark.plugin']\ndef test_f(benchmark): benchmark(int)"
    _, _, whole = run(text)
    assert whole["commit_info"]["id"] == "unversioned"
    path = pytester.path / "run.json"
    assert read(path).commit == ""
    assert "commit" not in " ".join(report_on(read(path)).facts)
    git(pytester.path, "init")
    git(pytester.path, "add", "*.py")
    git(pytester.path, "commit", "-m", "first")
    _, _, whole = run(text, f"--rootdir={pytester.path}")
    assert read(path).commit == git(pytester.path, "rev-parse", "HEAD")[:12]
    if known := commit_of(Path(gdt.__file__).parent):
        assert read(path).machine["gdt"] == f"{gdt.__version__}, commit {known}"
