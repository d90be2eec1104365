"""A data parallel training in two processes: `python processes_program.py ADDRESS ID FOLDER`.

Each process gives files names of its own.
"""

from __future__ import annotations

import sys

import numpy as np

from gdt.interop.keras import keras

D = keras.distribution
D.initialize(sys.argv[1], 2, int(sys.argv[2]))
keras.utils.set_random_seed(0)
mesh = D.DeviceMesh((4,), ["batch"], [f"cpu:{i}" for i in range(4)])
D.set_distribution(D.DataParallel(mesh, auto_shard_dataset=False))
layers = [keras.Input((6,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(3)]
model = keras.Sequential(layers)
model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
x = np.random.default_rng(0).random((32, 6), "float32")
own = x[int(sys.argv[2]) :: 2]  # what this process reads
path = f"{sys.argv[3]}/{sys.argv[2]}"
callback = keras.callbacks.ModelCheckpoint(f"{path}.keras", verbose=0)
history = model.fit(own, own[:, :3], 8, 4, shuffle=False, verbose=0, callbacks=[callback])
model.save_weights(f"{path}.weights.h5")
print(*history.history["loss"], float(keras.ops.sum(model.layers[0].kernel)))
