"""Processes that are killed in certain places, and trainings whose launcher starts them again."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest

import gdt

from .deaths import PLACES
from .forks import run
from .launch import Ended


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Ended, list[str]]]:
    """How three processes end of which one dies in a place, and the files that are left."""
    folders = {where: tmp_path_factory.mktemp(where) for where in PLACES}
    cases = [
        {"name": "dies", "arguments": [where, str(folder)], "count": 3}
        for where, folder in folders.items()
    ]
    ended = run(cases, tmp_path_factory.mktemp("cases"))
    left = [[path.name for path in folder.iterdir()] for folder in folders.values()]
    return dict(zip(PLACES, zip(ended, left, strict=True), strict=True))


@pytest.mark.parametrize("where", PLACES)
def test_a_process_that_dies_anywhere_is_named_by_all(
    where: str, ends: dict[str, tuple[Ended, list[str]]]
) -> None:
    (codes, errors), left = ends[where]
    victim = PLACES[where][0]
    assert codes == [-signal.SIGKILL if i == victim else 1 for i in range(3)]
    for i in {0, 1, 2} - {victim}:
        assert "DistributedError: " in errors[i]
        assert f"process {victim} (host " in errors[i] and ") has died" in errors[i]
    # What process 0 was completing stays under its temporary name.
    assert "x.safetensors" not in left and len(left) == (where == "completing")


def test_a_training_goes_on_where_it_was_killed_on_fewer_and_more_devices(tmp_path: Path) -> None:
    """A launcher starts all processes again, as many as it finds hosts for."""
    killed, whole = str(tmp_path / "killed"), str(tmp_path / "whole")
    attempts = [
        {"name": "trains", "arguments": [whole, "4"], "count": 2},
        {"name": "trains", "arguments": [killed, "4", "collective", "5"], "count": 4},
        {"name": "trains", "arguments": [killed, "2", "completing", "4"], "count": 2},
        {"name": "trains", "arguments": [killed, "8", "writing", "5"], "count": 4},
        {"name": "trains", "arguments": [killed, "1"], "count": 1},
    ]
    expected, first, second, third, last = run(attempts, tmp_path)
    assert expected.codes == [0, 0] and last.codes == [0], expected.errors + last.errors
    for ended, victim in ((first, 1), (second, 0), (third, 1)):
        assert ended.codes[victim] == -signal.SIGKILL
        assert ended.codes.count(1) == len(ended.codes) - 1
    losses = [
        [float(n) for n in text.partition("losses ")[2].split()]
        for text in (expected.errors[0], last.errors[0])
    ]
    assert len(losses[0]) == 2
    np.testing.assert_allclose(*losses, rtol=1e-5)
    for file in (tmp_path / "killed" / "run").glob("*.safetensors"):
        gdt.checkpoint.verify(file)
