"""Predicted steps beside measured ones: every scheme has a row, and the choice is judged."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench import predicted
from bench.predicted import Row
from examples.parallel_gpt import Size

ROOT = Path(predicted.__file__).parents[1]


def test_every_scheme_is_predicted_and_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predicted, "ROUNDS", 1)
    monkeypatch.setattr(predicted, "LINKS", 1)
    size = Size(layers=1, width=16, heads=2, vocabulary=32, tokens=8, batch=8)
    rows = predicted.compare(4, time.process_time, {"tiny": size})
    assert [row.scheme for row in rows] == [*predicted.schemes(4)] and len(rows) == 8
    assert all(row.predicted > 0 and row.measured > 0 for row in rows)


def test_the_choice_is_judged_by_what_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    predicted.print_rows([Row("a", "data", 1.0, 2.0), Row("a", "tensor", 1.5, 1.6)])
    text = capsys.readouterr().out
    assert "| a | data | 1000.0 | 2000.0 | -50% |" in text
    assert "Mean error 28.1%, largest 50.0%." in text
    assert "fastest: data; fastest: tensor; the first takes 1.25 times as long." in text


def test_processes_measure_together() -> None:
    program = (
        "from bench import predicted\n"
        "from examples.parallel_gpt import Size\n"
        "predicted.ROUNDS = predicted.LINKS = 1\n"
        "predicted.SIZES = {'tiny': Size(1, 16, 2, 32, 8, 8)}\n"
        "predicted.run_processes(2)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout.count("| tiny |") == 4, done.stderr
