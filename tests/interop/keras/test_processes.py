"""Keras in two processes that meet by sockets, each with rows of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np

HERE = Path(__file__).parent


def in_two_processes(program: str, *arguments: object) -> tuple[str, str]:
    """What a program of this folder prints in the first and in the second process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, str(HERE / program), address]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    running = [
        subprocess.Popen(
            [*command, str(i), *map(str, arguments)],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for i in range(2)
    ]
    first, second = (process.communicate(timeout=240)[0] for process in running)
    return first, second


def test_two_processes_train_as_one_and_one_writes(tmp_path: Path) -> None:
    first, second = (out.split() for out in in_two_processes("processes_program.py", tmp_path))
    assert first == second
    keras.utils.set_random_seed(0)
    layers = [keras.Input((6,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(3)]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
    x = np.random.default_rng(0).random((32, 6), "float32")
    pairs = [np.concatenate([x[::2][i : i + 8], x[1::2][i : i + 8]]) for i in (0, 8)]
    rows = np.concatenate(pairs)
    history = model.fit(rows, rows[:, :3], 16, 4, shuffle=False, verbose=0)
    expected = [*history.history["loss"], float(keras.ops.sum(model.layers[0].kernel))]
    np.testing.assert_allclose([float(v) for v in first], expected, rtol=1e-5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.keras", "0.weights.h5"]
    saved = keras.models.load_model(tmp_path / "0.keras")
    np.testing.assert_allclose(saved.layers[0].kernel, model.layers[0].kernel, rtol=1e-5)


def test_two_processes_go_on_from_one_backup(tmp_path: Path) -> None:
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    first, second = in_two_processes("backup_program.py", tmp_path)
    assert first == second
    whole, backup, rest = first.splitlines()
    losses = whole.removeprefix("[0, 1, 2, 3, 4, 5] [").split(", ")
    files = ["latest.weights.h5", "training_metadata.json"]
    assert backup == str(sorted([*files, *[f"{file}.bkp" for file in files]]))
    # The last backup, of epoch 2, was damaged: the epoch is repeated from the one before.
    assert rest == f"[2, 3, 4, 5] [{', '.join(losses[2:])}"
    for name in ("whole", "parts"):
        found = sorted(path.name for path in (tmp_path / name).iterdir())
        assert found == [*"123456", "log.csv"]
    lines = (tmp_path / "parts" / "log.csv").read_text().split()
    assert [line.partition(",")[0] for line in lines] == ["epoch", *"0122345"]
