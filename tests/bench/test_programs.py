"""bench.programs: every program gives in gdt what NumPy gives in float64, and the command runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bench.programs.contenders import CONTENDERS, FLOAT64, NUMPY
from bench.programs.program import in_tree
from bench.programs.worker import PROGRAMS, WARM_CALLS

ROOT = Path(__file__).resolve().parents[2]
UNEVEN = 1375  # of vectors, tables, columns and series alike, 8 devices have unequal parts


@pytest.mark.parametrize("contender", CONTENDERS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_results_are_those_in_float64(name: str, contender: str) -> None:
    program = PROGRAMS[name]
    run = CONTENDERS[contender](program, UNEVEN)
    if run is None:
        assert contender == "numpy" and program.has_gradient
        return
    reference = program.reference(FLOAT64, UNEVEN)
    for _ in range(WARM_CALLS):
        results = run()
    assert program.error(in_tree(np.asarray, results), reference) < 1


@pytest.mark.parametrize("change", [1.001, np.nan])
@pytest.mark.parametrize("name", PROGRAMS)
def test_other_results_are_told_apart(name: str, change: float) -> None:
    program = PROGRAMS[name]
    reference = program.reference(FLOAT64, UNEVEN)
    if program.has_gradient:
        value, gradients = in_tree(np.asarray, CONTENDERS["eager"](program, UNEVEN)())
        last = max(gradients)
        results = value, gradients | {last: change * gradients[last]}
    else:
        operands = [operand.values for operand in program.operands(UNEVEN)]
        first, *others = program.run(NUMPY, *operands)
        results = [first * change if first.dtype == np.float32 else first + 2, *others]
    assert not program.error(results, reference) < 1


def test_the_command_compares_the_libraries_that_there_are(tmp_path: Path) -> None:
    path = tmp_path / "programs.json"
    chosen = ["--program", "robust loss", "--rounds", "1"]
    chosen += ["--without", "compile"]  # which takes minutes
    ran = subprocess.run(
        [sys.executable, "-m", "bench.programs", "--size", "1000", *chosen, "--json", str(path)],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "differs" not in ran.stdout and "failed" not in ran.stdout
    result = json.loads(path.read_text())
    assert {"NumPy", "gdt", "gdt.function"} <= {line["contender"][0] for line in result["lines"]}
    for line in result["lines"]:
        assert line["error"] < 1 and min(line["times"].values()) > 0
    numpy = result["means"][0]
    assert numpy["library"] == "NumPy" and numpy["programs"] == 1
    assert numpy["ratios"]["wall x NumPy"] == numpy["ratios"]["cpu x NumPy"] == 1
