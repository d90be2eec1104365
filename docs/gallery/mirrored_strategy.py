"""
MirroredStrategy and estimators
===============================

TensorFlow's guide "Distributed training with TensorFlow"
(tensorflow.org/guide/distributed_training): a strategy with ``compile`` and ``fit``, with a loop
of one's own, and with an estimator.
"""

# %%
# A strategy
# ----------
# Variables made in its scope are on all its devices, batches are split. ``None`` in place of 4
# takes all GPUs.

import numpy as np

import gdt
from gdt.estimators import LinearRegressor

strategy = gdt.MirroredStrategy(4)
print(strategy, strategy.num_replicas_in_sync)

# %%
# With ``compile`` and ``fit``
# ----------------------------
# A dense layer learns 1 from 1.

with strategy.scope():
    inputs = gdt.nn.Input((1,))
    model = gdt.nn.Model(inputs, gdt.nn.Dense(1)(inputs))
    model.compile(gdt.optim.SGD(0.2), loss="mse")
batch = np.ones((10, 1), np.float32), np.ones((10, 1), np.float32)
history = model.fit([batch] * 100, epochs=3, steps_per_epoch=10, verbose=0)
print([f"{value:.1e}" for value in history["loss"]])
print("evaluate", model.evaluate([batch] * 10, steps=10, verbose=0))
print("predict", model.predict(batch[0], batch_size=2, steps=5, verbose=0).ravel().round(3))

# %%
# How gradients are reduced
# -------------------------
# By one collective, or in the ways of TensorFlow's ``cross_device_ops``: on the first device, or
# within hosts first.

for reduction in ("all_reduce", "to_one"):
    with gdt.MirroredStrategy(4, reduction).scope():
        layer = gdt.nn.Dense(1, 1, key=0)
        x, y = (gdt.current_strategy().place(part) for part in batch)
        with gdt.count_collectives() as counter:
            gdt.value_and_grad(lambda m, x, y: gdt.mean((m(x) - y) ** 2))(layer, x, y)
    print(reduction, dict(counter.by_kind))

# %%
# Estimators
# ----------
# ``train``, ``evaluate`` and ``predict`` take an ``input_fn``, as TensorFlow's estimators do;
# ``fit`` takes arrays, as scikit-learn's.


def input_fn():
    return [({"feats": np.ones((10, 1))}, np.ones(10))] * 100


regressor = LinearRegressor(optimizer=lambda: gdt.optim.SGD(0.2), strategy=strategy)
regressor.train(input_fn=input_fn, steps=10)
print(regressor.evaluate(input_fn=input_fn, steps=10))

x = np.random.default_rng(0).normal(size=(200, 3))
exact = LinearRegressor(strategy=strategy).fit(x, x @ [1.0, 2.0, 3.0])
print(exact.predict(np.eye(3)).round(6))
