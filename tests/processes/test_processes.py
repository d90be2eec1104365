"""One program, any number of processes: the same values, layouts, collectives and files."""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples import datasets
from tests.samples import SAMPLES

from .launch import ROOT, by_sockets, command, ended, environment, mpiexec, results, start

COUNTS = [1, 2, 4]  # processes for eight devices
STEPS, BATCH = 3, 32  # a step is recorded in the second call of its kind, and replayed in the third
RELATIVE = 1e-5  # of losses: sums are added in another order
EVERY = 20  # of the ops
EVERY_PAIR = 5  # of layouts
TRAININGS: dict[int, list[str]] = {  # models and schemes; two and four processes take turns
    1: [],  # all of them
    2: ["imdb data", "mnist model", "imdb spatial"],
    4: ["mnist data", "imdb model", "mnist spatial"],
}


@pytest.fixture
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all of pytest's workers share."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = shared / "several-processes"
    folder.mkdir(exist_ok=True)
    return folder


def found(count: int, output: Path, program: str) -> list[Any]:
    """What each of so many processes found in a program. The first to ask, of pytest's workers too,
    runs all programs, since starting Python takes longer than most of them."""
    with (output / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return [process[program] for process in all_found(count, output)]


def all_found(count: int, output: Path) -> list[Any]:
    kept = output / f"{count}.json"
    if not kept.exists():
        for fewer in COUNTS[: COUNTS.index(count)]:
            all_found(fewer, output)
        calls = {
            "trainings": [training_data(output), STEPS, *TRAININGS[count]],
            "checkpoints": [output / "checkpoints", count],
            "values": [],
        }
        run = by_sockets if count == 4 else results  # which wait without taking time of cores
        if count > 1:
            calls |= {"ops": [2, 1, count // 2, EVERY], "relayouts": [EVERY_PAIR], "neighbours": []}
            calls |= {"bad_steps": []}
        if count < COUNTS[-1]:  # all schemes in one process are those of tests/examples
            calls |= {"gpts": [STEPS, 1, *["data"] * (count == 1)]}
        text = json.dumps(calls, default=str)
        kept.write_text(json.dumps(run(count, "several", output / str(count), text)))
    return list(json.loads(kept.read_text()))


def training_data(output: Path) -> Path:
    """Digits, and rows like tf-idf: sparse, of length one, with words that tell classes apart."""
    path = output / "data.npz"
    if not path.exists():
        rng, rows = np.random.default_rng(0), STEPS * BATCH
        pixels, digits = datasets.mnist("train")
        words = rng.random((rows, 1200)) * (rng.random((rows, 1200)) < 0.05)
        labels = rng.integers(0, 2, rows)
        words[:, 0] += labels
        words /= np.linalg.norm(words, axis=1, keepdims=True)
        arrays = {
            "mnist x": (pixels[:rows].reshape(rows, -1) / 255).astype(np.float32),
            "mnist y": digits[:rows].astype(np.int64),
            "imdb x": words.astype(np.float32),
            "imdb y": labels,
        }
        np.savez(path, **arrays)
    return path


@pytest.mark.parametrize("count", [2, 4])
def test_ops_in_several_processes(count: int, output: Path) -> None:
    for names in found(count, output, "ops"):
        assert names == sorted(SAMPLES)[count // 2 :: EVERY]


@pytest.mark.parametrize("count", [2, 4])
def test_halos_and_rings_in_several_processes(count: int, output: Path) -> None:
    for names in found(count, output, "neighbours"):
        assert names == ["convolution", "max_pool", "attention", "matrix_product"]


@pytest.mark.parametrize("count", [2, 4])
def test_bad_steps_are_taken_back_in_several_processes(count: int, output: Path) -> None:
    for ends in found(count, output, "bad_steps"):
        assert ends == ["the batch is not finite: x has nan in row 0", True] * 2


@pytest.mark.processes_full
@pytest.mark.parametrize("count", [2, 4])
def test_every_op_in_several_processes(count: int, output: Path) -> None:
    for names in results(count, "ops", output / f"ops{count}", 6, 2, 0, 1):
        assert names == sorted(SAMPLES)


@pytest.mark.parametrize("count", [2, 4])
def test_relayouts_in_several_processes(count: int, output: Path) -> None:
    check_relayouts(found(count, output, "relayouts"))


@pytest.mark.processes_full
@pytest.mark.parametrize("count", [2, 4])
def test_every_relayout_in_several_processes(count: int, output: Path) -> None:
    check_relayouts(results(count, "relayouts", output / f"relayouts{count}", 1))


def check_relayouts(processes: list[Any]) -> None:
    assert processes[0]["pairs"] > 50
    # Where every coordinate is a block of its own, all together send what the plans say.
    assert sum(p["sent"] for p in processes) == processes[0]["announced"]


@pytest.mark.parametrize(("count", "name"), [(n, name) for n in (2, 4) for name in TRAININGS[n]])
def test_trainings_are_the_same(count: int, name: str, output: Path) -> None:
    check_trainings(output, [process[name] for process in found(count, output, "trainings")], name)


@pytest.mark.processes_full
@pytest.mark.parametrize("count", [2, 4])
def test_all_trainings_are_the_same(count: int, output: Path) -> None:
    data, folder = training_data(output), output / f"trainings{count}"
    processes = results(count, "trainings", folder, data, STEPS)
    for name in processes[0]:
        check_trainings(output, [process[name] for process in processes], name)


def check_trainings(output: Path, processes: list[Any], name: str) -> None:
    want = found(1, output, "trainings")[0][name]
    assert want["losses"][1] != want["losses"][-1]
    for got in processes:
        np.testing.assert_allclose(got["losses"], want["losses"], rtol=RELATIVE)
        np.testing.assert_allclose(got["recorded"], want["recorded"], rtol=RELATIVE)
        assert got["accuracy"] == pytest.approx(want["accuracy"], rel=RELATIVE)
        assert got["layouts"] == want["layouts"]
        assert got["collectives"] == want["collectives"]


def test_a_gpt_has_one_loss_curve_under_every_scheme(output: Path) -> None:
    check_curves([*found(1, output, "gpts"), *found(2, output, "gpts")], STEPS)


@pytest.mark.processes_full
def test_a_gpt_has_one_loss_curve_for_a_hundred_steps(tmp_path: Path) -> None:
    runs = [results(count, "gpts", tmp_path / str(count), 100, 0) for count in (1, 2)]
    check_curves([curves for run in runs for curves in run], 100)


def check_curves(processes: list[dict[str, list[float]]], steps: int) -> None:
    expected = processes[0]["data, own blocks"]
    assert len(expected) == steps
    assert len(set(expected)) == steps
    for process in processes:
        for name, losses in process.items():
            np.testing.assert_allclose(losses, expected, rtol=0, atol=1e-5, err_msg=name)


@pytest.mark.processes_full
@pytest.mark.parametrize("count", [2, 4])
def test_an_example_runs_in_several_processes_as_it_is(count: int, tmp_path: Path) -> None:
    def reached(*launcher: str) -> list[float]:
        line = [*launcher, sys.executable, "-m", "examples.mnist", "--output", str(tmp_path)]
        done = subprocess.run(
            line, env=environment(), cwd=ROOT, capture_output=True, text=True, check=True
        )
        (row,) = re.findall(r"MNIST data parallel +8 +(.+?) +\d+ s", done.stdout)
        return [float(number) for number in re.findall(r"[\d.]+", row)]

    alone, together = reached(), reached(*mpiexec("-n", str(count)))
    assert together[:2] == alone[:2]  # the losses, as they are printed
    # Blocks of other sizes are rounded otherwise: a row or two may be on the other side.
    np.testing.assert_allclose(together[2:], alone[2:], rtol=0, atol=2e-3)
    assert {p.name for p in tmp_path.iterdir()} == {"mnist.png", ".lock"}


def test_checkpoints_are_the_same_files(output: Path) -> None:
    every = [saved for count in COUNTS for saved in found(count, output, "checkpoints")]
    assert len({saved["digest"] for saved in every}) == 1


def test_checkpoints_go_from_any_number_of_processes_to_any(output: Path) -> None:
    for saved in found(4, output, "checkpoints"):
        assert saved["restored"] == {"1": True, "2": True, "4": True}


@pytest.mark.skipif(sys.platform != "linux", reason="tcp_info is Linux's")
@pytest.mark.parametrize("count", [2, 4])
def test_sockets_carry_what_is_counted(count: int, tmp_path: Path) -> None:
    """The rest are the headers of messages, about 200 bytes each."""
    folder = tmp_path / "carried"
    codes, errors = ended(start(count, *command("carried", folder)), 200)
    assert codes == [0] * count, errors
    processes = [json.loads(Path(f"{folder}.{i}").read_text()) for i in range(count)]
    for name, (counted, _, _) in processes[0].items():
        assert sum(process[name][1] for process in processes) == counted, name
        carried = sum(process[name][2] for process in processes)
        assert counted < carried <= 1.015 * counted, name


@pytest.mark.parametrize("count", COUNTS)
def test_numbered_checkpoints_are_written_once(count: int, output: Path) -> None:
    for saved in found(count, output, "checkpoints"):
        assert saved["saved"] == [f"ckpt-{i}.safetensors" for i in (1, 2, 3)]
        assert saved["left"] == saved["saved"][1:]


@pytest.mark.parametrize("count", [2, 4])
def test_every_process_sees_the_same_values(count: int, output: Path) -> None:
    (alone,), processes = found(1, output, "values"), found(count, output, "values")
    for process in processes:
        for name in alone.keys() - {"shards", "recordings"}:
            assert process[name] == alone[name], name
    assert alone["verified"][6:] == [0.0, 0.0, True, True, True]
    # Process 0 has recorded a step anew in every call, and the others once.
    assert [process["recordings"] for process in processes] == [5, *[1] * (count - 1)]
    # Each device's shard is in one process, in the order of the processes.
    assert [shard for process in processes for shard in process["shards"]] == alone["shards"]
    assert len({len(process["shards"]) for process in processes}) == 1
