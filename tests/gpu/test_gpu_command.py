"""`make gpu` on stand-ins for a GPU: every stage starts, and none takes another's result along."""

from __future__ import annotations

import configparser
import json
import lzma
import os
import re
import struct
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gdt
from gdt.backend import timing
from gdt.cuda import launches
from gdt.cuda.nvrtc import Nvrtc
from gdt.cuda.runner import CudaRunner, KernelCall
from tests.kernels import strict_kernels
from tests.needs import need_compiler, need_nvrtc
from tests.recorded_nccl import RecordedNccl
from tests.strict import StrictCupy

from . import bundle, probe, ranks, run, setup, slim
from .stages import INI, ROOT, Places, Stage, environment, stages
from .stages import pytest as pytest_command


@pytest.fixture
def places(tmp_path: Path) -> Places:
    made = Places(tmp_path / "bundle", tmp_path / "work", tmp_path / "out")
    made.bundle.mkdir()
    return made


# ---------------------------------------------------------------- stages


def shell(code: str, seconds: int = 60) -> Stage:
    """A stage that begins sooner than one of Python, so that what hangs may be short."""
    return Stage("nothing", seconds, ("sh", "-c", code), {})


def python(code: str, seconds: int = 60, **variables: str) -> Stage:
    return Stage("nothing", seconds, (sys.executable, "-c", code), variables)


def test_a_stage_that_fails_costs_no_other_its_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = {
        "hangs": shell("echo begun; exec sleep 60", seconds=2),
        "fails": python("raise SystemExit('no kernel')"),
        "is missing": Stage("nothing", 9, ("a-missing-program",)),
        "crashes": python("import os; print('half a line', flush=True); os.abort()"),
        "is well": python("import os; print(os.environ['A'] + os.environ['B'])", B="b"),
    }
    began = time.monotonic()
    outcomes = run.run(chosen, {"A": "a"}, tmp_path / "out")
    assert time.monotonic() - began < 40
    summary = json.loads((tmp_path / "out/summary.json").read_text())
    assert [row["problem"] for row in summary] == [
        "killed after 2 s", "exit 1", "not started", "exit -6", ""
    ]  # fmt: skip
    assert [row["last_line"] for row in summary][:2] == ["begun", "no kernel"]
    assert summary[-1]["last_line"] == "ab"
    assert (tmp_path / "out/crashes.log").read_text().startswith("half a line")
    assert "there is no a-missing-program" in str(outcomes[2])
    assert all(len(str(outcome)) <= 78 for outcome in outcomes)
    assert "===== is well: nothing\nab" in capsys.readouterr().out


def test_what_a_stage_has_started_ends_with_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert run.run_stage("hangs", shell("sleep 61 & echo $!; wait", seconds=2), {}, log).problem
    child = int(log.read_text().split()[0])
    for _ in range(100):
        if not Path(f"/proc/{child}/cmdline").exists() or b"sleep\x0061" not in (
            Path(f"/proc/{child}/cmdline").read_bytes()
        ):
            return
        time.sleep(0.05)
    pytest.fail("a process is left")


COLLECT = """
import json, os, sys, pytest

class Fixtures:
    def pytest_collection_finish(self, session):
        known = session.config.pluginmanager.has_plugin(os.path.abspath("tests/conftest.py"))
        assert known, "the fixtures of all tests are missing"

for options in json.loads(sys.argv[1]):
    print("begin", flush=True)
    assert pytest.main([*options, "--collect-only"], plugins=[Fixtures()]) == 0
"""


def collected(commands: Sequence[Sequence[str]], places: Places) -> list[set[str]]:
    """The tests that each of some runs of pytest has; one process reads all of them once."""
    options = [
        [option for option in command[command.index("pytest") + 1 :] if option != "-vv"]
        for command in commands
    ]
    done = subprocess.run(
        [sys.executable, "-c", COLLECT, json.dumps(options)],
        cwd=ROOT,
        env=os.environ | environment(places),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    parts = done.stdout.split("begin\n")[1:]
    return [{line for line in part.splitlines() if "::" in line} for part in parts]


def test_every_test_that_needs_a_gpu_is_in_one_stage(places: Places) -> None:
    every = stages(places, workers=0)
    names = ("functions", "train", "nccl", "kernels", "sanitizer", "copies")
    commands = [every[name].command for name in names]
    whole = commands[1][: commands[1].index("-k")]
    *parts, kernels, shared, copied, gpu = collected([*commands, whole], places)
    assert sum(map(len, parts)) == len(gpu)
    assert set().union(*parts) == gpu
    assert len(parts[0]) > 150
    assert len(kernels) > 500
    assert min(len(shared), len(copied)) > 30
    assert shared | copied < kernels
    for name in ("sanitizer", "copies"):
        assert every[name].command[0] == "compute-sanitizer"


def test_stages_have_options_that_pytest_8_knows(places: Places) -> None:
    """pyproject.toml has newer ones, and is strict about those that it does not know."""
    ini = configparser.ConfigParser()
    ini.read(INI)
    assert set(ini["pytest"]) <= {"addopts", "filterwarnings"}
    assert "strict" not in ini["pytest"]["addopts"]
    for name in ("kernels", "functions", "train", "nccl", "sanitizer", "copies"):
        command = stages(places, 1)[name].command
        assert command[command.index("-c") + 1] == str(INI)


ENDS = """
import os, sys
import pytest

@pytest.mark.unknown
@pytest.mark.parametrize("n", range(4))
def test(n):
    assert not sys.dont_write_bytecode
    if n == 1:  # as pytest-timeout does where a test does not end
        os._exit(1)
"""


def test_a_test_that_ends_its_process_costs_no_other_its_result(
    places: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")  # which stages do not take over
    (tmp_path / "test_ends.py").write_text(ENDS)
    done = subprocess.run(
        pytest_command(str(tmp_path / "test_ends.py"), workers=1),
        cwd=ROOT,
        env=os.environ | environment(places),
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 failed, 3 passed" in done.stdout, done.stdout + done.stderr


def test_the_calls_of_the_page_run_every_stage_in_ten_minutes(places: Places) -> None:
    page = Path(__file__).with_name("README.md").read_text()
    calls = re.findall(r"python3 -m tests.gpu.run --seconds (\d+) ([\w ]+)", page)
    assert len(calls) == 3
    named = {"setup"}
    for seconds, names in calls:
        first, *others = names.split()
        assert first == "setup"
        assert named.isdisjoint(others)
        assert int(seconds) < 600
        named.update(others)
    assert named == set(stages(places, 1))


def test_stages_share_the_seconds_of_a_call(tmp_path: Path) -> None:
    chosen = {name: shell("exec sleep 60") for name in ("hangs", "waits")}
    outcomes = run.run(chosen, {}, tmp_path, seconds=1.5)
    assert [outcome.problem for outcome in outcomes] == ["killed after 1 s", "not started"]
    assert len(json.loads((tmp_path / "summary.json").read_text())) == 2


def test_ranks_that_share_a_gpu_load_the_nccl_that_was_brought(places: Places) -> None:
    assert "LD_PRELOAD" not in stages(places, 1)["nccl"].environment
    places.packed_nccl.touch()  # which setup is going to unpack
    for name in ("two_ranks", "nccl"):
        variables = stages(places, 1)[name].environment
        assert variables["LD_PRELOAD"] == str(places.nccl)
        assert variables["NCCL_NVLS_ENABLE"] == "0"
    assert "-n" in stages(places, 3)["functions"].command
    command = stages(places, 3)["nccl"].command
    assert command[command.index("-n") + 1] == "1"


def test_without_a_gpu_the_command_says_so_and_fails(places: Places) -> None:
    output = places.output
    command = [sys.executable, "-m", "tests.gpu.run", "--work", str(places.work)]
    done = subprocess.run(
        [*command, "--bundle", str(places.bundle), "setup", "probe", "bench"],
        cwd=ROOT,
        env=os.environ | {"OUT": str(output), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    summary = json.loads((output / "summary.json").read_text())
    assert [(row["stage"], row["problem"]) for row in summary] == [
        ("setup", ""), ("probe", "exit 1"), ("bench", "exit 1")
    ]  # fmt: skip
    assert "numpy" in (output / "probe.log").read_text()
    assert "bench.gpu.report: " in (output / "bench.log").read_text()


def test_a_stage_that_does_not_exist_is_refused() -> None:
    command = [sys.executable, "-m", "tests.gpu.run", "fly"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no stage fly: there are setup, probe, kernels" in done.stderr


# ---------------------------------------------------------------- setup and bundle


def test_what_was_brought_is_unpacked(places: Places, tmp_path: Path) -> None:
    with zipfile.ZipFile(places.bundle / "words-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("words/__init__.py", "ALL = ['a']")
    (tmp_path / "key").write_bytes(b"machine code")
    with tarfile.open(places.bundle / "cubins.tar.xz", "w:xz") as archive:
        archive.add(tmp_path / "key", "key")
    places.packed_nccl.write_bytes(lzma.compress(b"nccl" * 1000))
    told = setup.unpack(places)
    assert (places.packages / "words/__init__.py").exists()
    assert (places.cubins / "key").read_bytes() == b"machine code"
    assert places.nccl.read_bytes() == b"nccl" * 1000
    assert "1 compiled kernels" in told
    assert str(places.packages) == environment(places)["PYTHONPATH"].split(os.pathsep)[0]


def test_a_machine_that_was_brought_nothing_is_set_up_too(places: Places) -> None:
    told = setup.unpack(places)
    assert told[0].startswith("no wheels in")
    assert told[-1] == "NCCL: what is installed"


def test_packed_kernels_are_those_that_are_launched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_nvrtc()
    first = {f: launches.instances(f, "sm_90a")[:1] for f in ("reduce.cu", "random.cu")}
    monkeypatch.setattr(launches, "instances", lambda file, arch: first.get(file, []))
    monkeypatch.setenv("GDT_CACHE_DIR", str(tmp_path))
    bundle.compile_kernels("sm_90a")
    assert len(list(tmp_path.iterdir())) == len(first)
    monkeypatch.delattr(Nvrtc, "compile")
    function = SimpleNamespace(ptr=1)
    loaded = SimpleNamespace(load=lambda code: None, get_function=lambda symbol: function)
    driver = SimpleNamespace(
        CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES=1, funcGetAttribute=lambda attribute, f: 0
    )
    cuda = SimpleNamespace(
        runtime=SimpleNamespace(getDevice=lambda: 0),
        function=SimpleNamespace(Module=lambda: loaded),
        driver=driver,
    )
    runner = CudaRunner(SimpleNamespace(cuda=cuda), "sm_90a")
    for (instance,) in first.values():
        call = KernelCall(instance, (1,), (1,), ())
        assert runner._function(call) is function


def fat_binary(*code: tuple[int, int, bytes]) -> bytes:
    """Entries of (kind, architecture, code), as nvcc puts them into a section."""
    body = b"".join(
        struct.pack("<HHIQ", kind, 0x101, 64, len(text)) + bytes(12)
        + struct.pack("<I", architecture) + bytes(32) + text
        for kind, architecture, text in code
    )  # fmt: skip
    return struct.pack("<IHHQ", slim.FATBIN_MAGIC, 1, 16, len(body)) + body


def elf(**contents: bytes) -> bytes:
    """A 64-bit ELF file with these sections, and nothing else that counts."""
    names = b"\0.shstrtab\0" + b"".join(name.encode() + b"\0" for name in contents)
    parts = {".shstrtab": names, **contents}
    body, headers = bytearray(bytes(64)), [bytes(64)]
    for name, content in parts.items():
        at = names.index(name.encode() + b"\0")
        headers.append(struct.pack("<IIQQQQ", at, 1, 0, 0, len(body), len(content)) + bytes(24))
        body += content + bytes(-len(content) % 8)
    struct.pack_into("<5s", body, 0, b"\x7fELF\x02")
    struct.pack_into("<Q", body, 40, len(body))
    struct.pack_into("<HHH", body, 58, 64, len(headers), 1)
    return bytes(body) + b"".join(headers)


def test_a_slim_library_keeps_the_code_of_one_architecture() -> None:
    parts = [(1, 90, b"ptx 90ptx 90"), (2, 80, b"machine code 80!"), (2, 90, b"machine code 90!")]
    sections = {
        ".text": b"instructions of the host", ".nv_fatbin": fat_binary(*parts) + fat_binary(
            (2, 100, b"machine code 100"), (2, 90, b"second part of 90!!!")
        ), ".debug_info": b"names and lines", "__nv_relfatbin": b"code to be linked anew",
    }  # fmt: skip
    whole = elf(**sections)
    made = slim.slim(whole, 90)
    assert len(made) == len(whole)
    for kept in (b"instructions of the host", b"machine code 90!", b"second part of 90!!!"):
        assert kept in made
    for gone in (b"ptx 90", b"code 80", b"code 100", b"names and lines", b"linked anew"):
        assert gone in whole
        assert gone not in made
    assert [s.name for s in slim.sections(made)] == ["", ".shstrtab", *sections]
    with pytest.raises(ValueError, match="no code for sm_75"):
        slim.slim(whole, 75)


def test_packages_are_asked_for_by_name_and_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def run(command: list[str], check: bool) -> None:
        asked.append(command)
        (tmp_path / "one-1-py3-none-any.whl").touch()

    monkeypatch.setattr(bundle.subprocess, "run", run)
    (wheel,) = bundle.download(("one==1",), tmp_path, "3.12")
    assert wheel.name == "one-1-py3-none-any.whl"
    assert "--platform=manylinux_2_28_x86_64" in asked[0]
    assert "--platform=manylinux2014_x86_64" in asked[0]
    assert asked[0][-1] == "one==1"


# ---------------------------------------------------------------- what stages run


@pytest.fixture
def mesh(monkeypatch: pytest.MonkeyPatch) -> Iterator[gdt.Mesh]:
    need_compiler()
    strict_kernels.register()
    monkeypatch.setattr(timing, "LEAD_BYTES", 8)
    monkeypatch.setattr(timing, "FILLS_MAX", 1)
    yield gdt.create_mesh({"batch": 8}, devices=["graph:0"])


def test_the_probe_measures(mesh: gdt.Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Any] = []

    class RawKernel:
        def __init__(self, source: str, name: str) -> None:
            assert f"void {name}(" in source

        def compile(self) -> None:
            self.kernel = self

        def __call__(self, grid: Any, block: Any, arguments: Any) -> None:
            ran.append(arguments)

    monkeypatch.setattr(strict_kernels.CUPY, "RawKernel", RawKernel, raising=False)
    measured = probe.measure(mesh, copied=64, calls=4)
    assert "matmul" in measured["x @ w"]
    assert measured["launch of a Function, us"] >= 0
    assert ran
    facts = probe.packages()
    assert facts["numpy"] == np.__version__
    assert isinstance(probe.gpu(), str)


def test_ranks_of_one_process_add_up() -> None:
    cupy = StrictCupy()
    for count in ranks.COUNTS:
        assert ranks.all_reduce(cupy, RecordedNccl(cupy.order), count, size=8)
    assert not cupy.order.faults


def test_ranks_that_add_up_wrongly_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    cupy, nccl = StrictCupy(), RecordedNccl()
    monkeypatch.setattr(nccl, "NCCL_SUM", nccl.NCCL_MAX)
    assert not ranks.all_reduce(cupy, nccl, 2, size=8)
