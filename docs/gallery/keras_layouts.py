"""
Keras' layers with layouts
==========================

TensorFlow's tutorial "Using DTensors with Keras"
(tensorflow.org/tutorials/distribute/dtensor_keras_tutorial): the same model of handwritten
digits with a layout for each layer, and with a ``LayoutMap`` that knows them by their names.
"""

# %%
# Digits
# ------

import matplotlib.pyplot as plt
import numpy as np

import gdt
from examples.mnist import load
from gdt import UNSHARDED, Layout, nn

(x, y), test = load(None)
x, y, test = x[:3072], y[:3072], (test[0][:1000], test[1][:1000])
mesh = gdt.create_mesh([("batch", 8)])

# %%
# A layout for each layer
# -----------------------
# The bias is split as the columns of its weight are, so a layer takes one layout.

replicated = Layout.replicated(mesh, rank=2)
per_layer = nn.Sequential(
    nn.Dense(784, 128, replicated, activation="relu", key=1),
    nn.Dense(128, 10, replicated, key=2),
)

# %%
# Layouts by names
# ----------------
# A ``LayoutMap`` is a dict of patterns. ``apply`` places the arrays of a model that is there,
# ``scope`` those of models that are made in it. ``summary`` lists the names.

layouts = nn.LayoutMap(mesh)
layouts[r"layers\.0\.weight"] = [UNSHARDED, "batch"]
layouts[r"layers\.0\.bias"] = ["batch"]
with gdt.default_mesh(mesh):
    by_map = nn.Sequential(nn.Dense(784, 128, activation="relu", key=1), nn.Dense(128, 10, key=2))
by_map = layouts.apply(by_map)
by_map.summary()

# %%
# The same training
# -----------------
# ``compile`` and ``fit`` as in Keras. Rows come in the same order in both, and losses agree up
# to rounding.

histories = {}
for name, model in {"layouts of layers": per_layer, "LayoutMap": by_map}.items():
    gdt.random.seed(0)
    model.compile(gdt.optim.Adam(0.01), "sparse_softmax_cross_entropy", metrics=["accuracy"])
    histories[name] = model.fit(x, y, 128, epochs=2, validation_data=test, verbose=0)
    print(name, [round(value, 4) for value in histories[name]["val_accuracy"]])

steps = [[step["loss"] for step in history.steps] for history in histories.values()]
print("largest difference of losses:", np.ptp(steps, axis=0).max())

figure, axis = plt.subplots(figsize=(8, 3), layout="constrained")
for name, values in zip(histories, steps, strict=True):
    axis.plot(values, label=name, linestyle="-" if name == "LayoutMap" else "--")
axis.set(xlabel="step", ylabel="loss")
axis.legend()
plt.show()

# %%
# Other kinds of models
# ---------------------
# Names are ways through the object, so a map fits subclassed and functional models alike.


class Subclassed(nn.Module):
    def __init__(self):
        self.feature = nn.Dense(16)
        self.feature_2 = nn.Dense(24)
        self.dropout = nn.Dropout(0.1)

    def __call__(self, x):
        return self.feature_2(self.dropout(self.feature(x)))


inputs = nn.Input((16,))
functional = nn.Model(inputs, nn.Dense(32)(nn.Dropout(0.1)(nn.Dense(16)(inputs))))
for model, pattern in [(Subclassed(), "feature.*weight"), (functional, r"layers\.\d+\.weight")]:
    model(gdt.zeros((16, 16), "float32"))  # the first call gives layers their sizes
    layouts = nn.LayoutMap(mesh)
    layouts[pattern] = Layout.batch_sharded(mesh, "batch", rank=2)
    for name, array in layouts.apply(model).parameters().items():
        print(f"{name:20} {array.layout}")
