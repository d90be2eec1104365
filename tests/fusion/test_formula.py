"""The language of formulas, as a loop computes it, beside NumPy."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

import numpy as np
import pytest

from gdt import machine_code
from gdt.fusion import llvm
from gdt.fusion.formula import ElementGraph
from gdt.fusion.loop import FusedLoop
from gdt.fusion.row_text import GraphCall
from gdt.machine_code import read_code, user_folder, write_code

compiled = pytest.mark.skipif(bool(llvm.problem()), reason=llvm.problem() or "compiled")

FLOATS = {
    "x + y - x * y / (x * x + 1.0)": lambda x, y: x + y - x * y / (x * x + 1),
    "-x if x > y else abs(y)": lambda x, y: np.where(x > y, -x, abs(y)),
    "sqrt(abs(x)) + floor(y) * ceil(x) - trunc(y) + rint(x)": lambda x, y: (
        np.sqrt(abs(x)) + np.floor(y) * np.ceil(x) - np.trunc(y) + np.rint(x)
    ),
    "copysign(x, y)": np.copysign,
    "number(bits(x) & bits(y))": lambda x, y: (x.view("i4") & y.view("i4")).view("f4"),
    "real((bits(x) >> 23) ^ (bits(y) << 3))": lambda x, y: (
        (x.view("i4") >> 23) ^ (y.view("i4") << 3)
    ).astype("f4"),
    "narrow(wide(x) * wide(y))": lambda x, y: (x.astype("f8") * y).astype("f4"),
    "s = x\nt = s + y\nt if ~((s <= t) | (s != s)) else full_like(t, 2.5)": lambda x, y: np.where(
        ~((x <= x + y) | (x != x)), x + y, np.float32(2.5)
    ),
}
INTEGERS = {
    "x + y * 3 - (x << 2) ^ y": lambda x, y: x + y * 3 - (x << 2) ^ y,
    "x if (x >= y) & (x != 5) else -y": lambda x, y: np.where((x >= y) & (x != 5), x, -y),
    "~x & (y >> 1) | x": lambda x, y: ~x & (y >> 1) | x,
}


@compiled
@pytest.mark.parametrize(
    ("text", "dtype"),
    [*[(t, "f4") for t in FLOATS], *[(t, d) for t in INTEGERS for d in ("i1", "i4", "u2", "u8")]],
)
def test_formulas_have_numpys_bits(text: str, dtype: str) -> None:
    rng = np.random.default_rng(1)
    x, y = (rng.normal(0, 50, (3, 7, 40)).astype("i8").astype(dtype) for _ in range(2))
    if dtype == "f4":
        x, y = (rng.normal(0, 3, (3, 7, 40)).astype("f4") for _ in range(2))
    graph = ElementGraph()
    result = graph.write(text, x=graph.add("input", dtype, 0), y=graph.add("input", dtype, 1))
    loop = FusedLoop(graph, [dtype, dtype], [result], [], [])
    function = (FLOATS if dtype == "f4" else INTEGERS)[text]
    for a, b in (
        (x, y),
        (x, y[:, :1]),
        (x[:1], y),
        (x[0, 0, :1].copy(), y),
        (x[:, :, :1].copy(), y),
    ):
        out = np.empty(np.broadcast_shapes(a.shape, b.shape), dtype)
        assert not loop(out.shape, [np.ascontiguousarray(a), np.ascontiguousarray(b)], [out])
        np.testing.assert_array_equal(out, function(a, b).astype(dtype))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("import os", "no formula: import os"),
        ("x ** 2", "no formula"),
        ("f(x)", "no formula is called f"),
        ("z + x", "z is no name of the formula"),
        ("x + bits(x)", "x and bits(x) are f4 and i4"),
        ("1.0", "1.0 has no dtype"),
    ],
)
def test_what_is_no_formula_is_an_error(text: str, problem: str) -> None:
    graph = ElementGraph()
    with pytest.raises(ValueError, match=problem.replace("(", r"\(").replace(")", r"\)")):
        graph.write(text, x=graph.add("input", "f4", 0))


@compiled
def test_a_loop_tells_of_infinities_that_finite_operands_give() -> None:
    graph = ElementGraph()
    x = graph.add("input", "f4", 0)
    result = graph.write("1.0 / x", x=x)
    loop = FusedLoop(graph, ["f4"], [result], [result], [GraphCall(result, (x,), True)])
    block, out = np.ones(100, np.float32), np.empty(100, np.float32)
    assert not loop((100,), [block], [out])
    block[7] = 0
    assert loop((100,), [block], [out])
    block[7] = np.nan
    assert not loop((100,), [block], [out])
    assert loop.is_tolerant
    block[8] = 0
    assert loop((100,), [block], [out])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of machine code, which there is not yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    loops = user_folder("loops")
    assert loops == tmp_path / "gdt" / "loops"
    return loops


@pytest.mark.parametrize("left", [0, 20, 40])
def test_machine_code_that_is_damaged_on_disk_is_not_loaded(left: int, folder: Path) -> None:
    path = folder / "loop.o"
    write_code(path, b"machine code")
    assert read_code(path) == b"machine code"
    assert [*folder.iterdir()] == [path]
    path.write_bytes(path.read_bytes()[:left])
    assert read_code(path) is None


def test_a_full_disk_keeps_no_part_of_machine_code(folder: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_code(folder / "loop.o", bytes(2000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert [*folder.iterdir()] == []


def test_the_folder_of_machine_code_keeps_what_was_read_last(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_code, "MOST_BYTES", 4000)
    monkeypatch.setattr(machine_code, "WRITES_PER_TRIM", 1)
    paths = [folder / f"{n:064x}.o" for n in range(6)]
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_bytes(bytes(5000))  # of the user, who has named the folder
    for n, path in enumerate(paths[:5]):
        write_code(path, bytes(700))
        os.utime(path, (n, n))
    assert read_code(paths[0]) is not None  # from now on the youngest
    write_code(paths[5], bytes(700))
    kept = {path for path in paths if path.exists()}
    assert kept == {paths[0], *paths[3:]} and (folder / "notes.txt").exists()


@compiled
def test_without_a_home_machine_code_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 7)  # without an account, as in a container
    monkeypatch.chdir(tmp_path)
    graph = ElementGraph()
    loop = FusedLoop(
        graph, ["f4"], [graph.write("x * 3.03125", x=graph.add("input", "f4", 0))], [], []
    )
    block, out = np.ones(100, np.float32), np.empty(100, np.float32)
    assert not loop((100,), [block], [out]) and (out == 3.03125).all()
    assert [*tmp_path.iterdir()] == []


def test_zeros_of_both_signs_are_two_numbers() -> None:
    graph = ElementGraph()
    assert graph.constant(0.0, "f4") != graph.constant(-0.0, "f4")
    assert graph.constant(0.0, "f4") == graph.constant(0.0, "f4")
