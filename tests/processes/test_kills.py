"""Processes that are killed or stopped at random moments end the others, who name them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from .kills import STUCK, WAYS
from .launch import ROOT, environment


def counted(program: str, *options: str) -> str:
    """What a program of `tests.processes` prints that counts, and fails if a count is wrong."""
    line = [sys.executable, "-m", f"tests.processes.{program}", *options]
    done = subprocess.run(
        line, env=environment(), cwd=ROOT, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.processes_full
@pytest.mark.parametrize("over", WAYS)
def test_kills_at_random_moments_end_everybody(over: str) -> None:
    text = counted("kills", "--over", over, "--count", "10", "--seed", "1")
    assert "10 processes killed, after 10 the others ended" in text


@pytest.mark.processes_full
def test_a_process_to_which_mpi_does_not_return_ends_with_the_others() -> None:
    text = counted("kills", "--over", STUCK, "--count", "2")
    assert "2 processes killed, after 2 the others ended" in text
    assert "2 were named" in text


@pytest.mark.processes_full
@pytest.mark.parametrize("over", [WAYS[0], WAYS[2]])
def test_a_stopped_process_ends_the_others_in_time(over: str) -> None:
    text = counted("kills", "--over", over, "--count", "2", "--stop")
    assert "2 processes stopped, after 2 the others ended" in text


@pytest.mark.processes_full
def test_nothing_goes_on_in_silence() -> None:
    assert "trainings: {'well': " in counted("soak", "--seconds", "60")
