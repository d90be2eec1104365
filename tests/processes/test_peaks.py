"""The memory of a process for each device, beside that of an abstract device."""

from __future__ import annotations

import json
from pathlib import Path

from .launch import command, ended, start


def test_an_abstract_device_holds_what_a_process_holds(tmp_path: Path) -> None:
    processes = start(2, *command("peaks", tmp_path / "peaks"))
    done = ended(processes, 200)
    assert done.codes == [0, 0], done.errors
    for rank in range(2):
        found = json.loads((tmp_path / f"peaks.{rank}").read_text())
        assert len(found) == 5
        for scheme, (real, abstract) in found.items():
            assert 0.98 * real <= abstract <= 1.1 * real, scheme
