"""One program, any number of processes: the same values, layouts, collectives and files."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gdt
from tests.samples import SAMPLES

from . import programs
from .launch import ROOT, environment, mpiexec, results

COUNTS = [1, 2, 4]  # processes for eight devices
STEPS, BATCH = 4, 32
RELATIVE = 1e-5  # of losses: sums are added in another order


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("processes")


@pytest.mark.parametrize("count", [2, 4])
def test_ops_in_several_processes(count: int, output: Path) -> None:
    every = 4
    found = results(count, "ops", output / f"ops{count}", 1, 1, count // 2, every)
    assert all(names == sorted(SAMPLES)[count // 2 :: every] for names in found)


@pytest.mark.processes_full
@pytest.mark.parametrize("count", [2, 4])
def test_every_op_in_several_processes(count: int, output: Path) -> None:
    found = results(count, "ops", output / f"all{count}", 6, 2, 0, 1)
    assert all(names == sorted(SAMPLES) for names in found)


@pytest.mark.parametrize("count", [2, 4])
def test_relayouts_in_several_processes(count: int, output: Path) -> None:
    check_relayouts(count, output, every=5)


@pytest.mark.processes_full
@pytest.mark.parametrize("count", [2, 4])
def test_every_relayout_in_several_processes(count: int, output: Path) -> None:
    check_relayouts(count, output, every=1)


def check_relayouts(count: int, output: Path, every: int) -> None:
    found = results(count, "relayouts", output / f"relayouts{count}-{every}", every)
    assert found[0]["pairs"] > 50
    # Where every coordinate is a block of its own, all together send what the plans say.
    assert sum(f["sent"] for f in found) == found[0]["announced"]


@cache
def trained(output: Path) -> dict[int, list[Any]]:
    """What every process of every number of processes found in both trainings."""
    rng = np.random.default_rng(0)
    rows = STEPS * BATCH
    pixels, labels = gdt.data.mnist("train")
    arrays = {
        "mnist x": (pixels[:rows].reshape(rows, -1) / 255).astype(np.float32),
        "mnist y": labels[:rows].astype(np.int64),
        # Rows like tf-idf: sparse, of length one, with words that tell the two classes apart.
        "imdb y": rng.integers(0, 2, rows),
    }
    words = rng.random((rows, 1200)) * (rng.random((rows, 1200)) < 0.05)
    words[:, 0] += arrays["imdb y"]
    arrays["imdb x"] = (words / np.linalg.norm(words, axis=1, keepdims=True)).astype(np.float32)
    data = output / "data.npz"
    np.savez(data, **arrays)
    return {
        count: results(count, "trainings", output / f"trainings{count}", data, STEPS)
        for count in COUNTS
    }


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("model", ["imdb", "mnist"])
@pytest.mark.parametrize("scheme", programs.SCHEMES)
def test_trainings_are_the_same(model: str, scheme: str, count: int, output: Path) -> None:
    want = trained(output)[1][0][f"{model} {scheme}"]
    assert want["losses"][1] != want["losses"][-1]
    for found in (process[f"{model} {scheme}"] for process in trained(output)[count]):
        np.testing.assert_allclose(found["losses"], want["losses"], rtol=RELATIVE)
        np.testing.assert_allclose(found["recorded"], want["recorded"], rtol=RELATIVE)
        assert found["accuracy"] == pytest.approx(want["accuracy"], rel=RELATIVE)
        assert found["layouts"] == want["layouts"]
        assert found["collectives"] == want["collectives"]


@pytest.mark.processes_full
@pytest.mark.parametrize("count", [2, 4])
def test_an_example_runs_in_several_processes_as_it_is(count: int, tmp_path: Path) -> None:
    def reached(*launcher: str) -> str:
        line = [*launcher, sys.executable, "-m", "examples.mnist", "--output", str(tmp_path)]
        done = subprocess.run(
            line, env=environment(), cwd=ROOT, capture_output=True, text=True, check=True
        )
        (row,) = re.findall(r"MNIST data parallel +8 +(.+?) +\d+ s", done.stdout)
        return str(row)

    assert reached(*mpiexec("-n", str(count))) == reached()
    assert [p.name for p in tmp_path.iterdir()] == ["mnist.png"]


@cache
def saved(output: Path) -> dict[int, list[Any]]:
    directory = output / "checkpoints"
    return {
        count: results(count, "checkpoints", output / f"checkpoints{count}", directory, count)
        for count in COUNTS
    }


def test_checkpoints_are_the_same_files(output: Path) -> None:
    assert len({found["digest"] for every in saved(output).values() for found in every}) == 1


def test_checkpoints_go_from_any_number_of_processes_to_any(output: Path) -> None:
    assert [found["restored"] for found in saved(output)[4]] == [
        {"1": True, "2": True, "4": True}
    ] * 4


def test_numbered_checkpoints_are_written_once(output: Path) -> None:
    for every in saved(output).values():
        for found in every:
            assert found["saved"] == [f"ckpt-{i}.safetensors" for i in (1, 2, 3)]
            assert found["left"] == found["saved"][1:]


@cache
def seen(output: Path) -> dict[int, list[Any]]:
    return {count: results(count, "values", output / f"values{count}") for count in COUNTS}


@pytest.mark.parametrize("count", [2, 4])
def test_every_process_sees_the_same_values(count: int, output: Path) -> None:
    (alone,), found = seen(output)[1], seen(output)[count]
    for process in found:
        for name in alone.keys() - {"shards", "recordings"}:
            assert process[name] == alone[name], name
    # Process 0 has recorded a step anew in every call, and the others once.
    assert [process["recordings"] for process in found] == [5, *[1] * (count - 1)]
    # Each device's shard is in one process, in the order of the processes.
    assert [shard for process in found for shard in process["shards"]] == alone["shards"]
    assert len({len(process["shards"]) for process in found}) == 1
