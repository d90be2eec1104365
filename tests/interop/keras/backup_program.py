"""A training of two processes that is stopped, and goes on: `python backup_program.py ADDRESS ID
FOLDER`. Before it goes on, the first process damages the last backup."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

import numpy as np

import gdt
from gdt.interop.keras import keras

D = keras.distribution
process, folder = int(sys.argv[2]), Path(sys.argv[3])
D.initialize(sys.argv[1], 2, process)
mesh = D.DeviceMesh((4,), ["batch"], [f"cpu:{i}" for i in range(4)])
D.set_distribution(D.DataParallel(mesh, auto_shard_dataset=False))
x = np.random.default_rng(0).random((32, 6), "float32")[process::2]


class Stop(keras.callbacks.Callback):  # type: ignore[misc]
    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        if epoch == 3:
            raise KeyboardInterrupt


def train(name: str, *others: keras.callbacks.Callback) -> None:
    """Print the epochs and their losses, of a training that goes on where the backup ends."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
    model.compile(keras.optimizers.Adam(0.1), "mse")
    callbacks = [
        keras.callbacks.BackupAndRestore(folder / name / "backup", double_checkpoint=True),
        keras.callbacks.ModelCheckpoint(folder / name / "{epoch}" / "model.keras"),
        keras.callbacks.CSVLogger(folder / name / "log.csv", append=True),
        *others,
    ]
    history = model.fit(x, x[:, :3], 8, 6, shuffle=False, verbose=0, callbacks=callbacks)
    print(history.epoch, history.history["loss"])


train("whole")
with suppress(KeyboardInterrupt):
    train("parts", Stop())
backup = folder / "parts" / "backup"
print(sorted(path.name for path in backup.iterdir()))
gdt.distributed.barrier("both have looked")
if process == 0:
    (backup / "latest.weights.h5").write_bytes(b"damaged")
gdt.distributed.barrier("the last backup is damaged")
train("parts")
