"""
Digits with a loop of one's own
===============================

TensorFlow's guide "Distributed training with Core APIs and DTensor"
(tensorflow.org/guide/core/distribution): a multilayer perceptron trained data parallel, from
parts that are written out: layers as modules, a loss, a metric, an optimizer, a training step.
"""

# %%
# Data on a mesh
# --------------
# ``Batches`` shuffles rows, and its ``place`` puts a batch on the mesh: rows split over
# ``batch``.

import matplotlib.pyplot as plt
import numpy as np

import gdt
from examples.mnist import load
from gdt import Layout, nn

mesh = gdt.create_mesh([("batch", 8)])
(x, y), (x_test, y_test) = load(None)
x, y, x_test, y_test = x[:3840], y[:3840], x_test[:1000], y_test[:1000]


def place(x, y):
    return (
        gdt.asarray(x, layout=Layout.batch_sharded(mesh, "batch", rank=2)),
        gdt.asarray(y, layout=Layout.batch_sharded(mesh, "batch", rank=1)),
    )


batches = gdt.data.Batches(x, y, batch_size=128, seed=0, place=place)

# %%
# A layer and a model
# -------------------
# Arrays among the attributes of a module are its parameters. ``xavier`` draws as the guide does.


def xavier(key, inputs, outputs):
    limit = (6 / (inputs + outputs)) ** 0.5
    layout = Layout.replicated(mesh, rank=2)
    return gdt.random.uniform(
        (inputs, outputs), -limit, limit, key=key, dtype="float32", layout=layout
    )


class DenseLayer(nn.Module):
    def __init__(self, inputs, outputs, key, activation=lambda x: x):
        self.weight = xavier(key, inputs, outputs)
        self.bias = gdt.zeros((outputs,), "float32", layout=Layout.replicated(mesh, rank=1))
        self.activation = activation

    def __call__(self, x):
        return self.activation(x @ self.weight + self.bias)


class MLP(nn.Module):
    def __init__(self):
        sizes = [(784, 700, gdt.relu), (700, 500, gdt.relu), (500, 10, lambda x: x)]
        self.layers = [DenseLayer(i, o, n, f) for n, (i, o, f) in enumerate(sizes)]

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


model, optimizer = MLP(), gdt.optim.Adam(1e-3)
print(list(model.parameters()))

# %%
# A step
# ------
# The tape records the ops; gradients are a dict by the parameters' names. The gradients of a
# split batch are sums over the devices: they, the loss and the accuracy are added up in one
# collective.


def step(x, y):
    with gdt.GradientTape() as tape:
        logits = model(x)
        loss = nn.losses.sparse_softmax_cross_entropy(y, logits)
    gradients = tape.gradient(loss, model)
    optimizer.update(model, gradients)
    return loss, gdt.metrics.accuracy(y, logits)


with gdt.count_collectives() as counter:
    loss, accuracy = step(*next(iter(batches)))
print(counter)

# %%
# Training
# --------
# Recorded by ``gdt.function``, the step is replayed without Python's dispatch and tape. Values
# are read once an epoch.

recorded = gdt.function(step)
history = []
for epoch in range(2):
    results = [recorded(features, labels) for features, labels in batches]
    history += [(float(loss), float(accuracy)) for loss, accuracy in results]
    print(f"epoch {epoch + 1}: loss {np.mean([loss for loss, _ in history[-len(batches) :]]):.3f}")

figure, axis = plt.subplots(figsize=(8, 3), layout="constrained")
axis.plot([loss for loss, _ in history], label="loss")
axis.plot([accuracy for _, accuracy in history], label="accuracy of the batch")
axis.set(xlabel="step")
axis.legend()
plt.show()

# %%
# Test
# ----

hits = gdt.metrics.MeanOf(gdt.metrics.accuracy)
for features, labels in gdt.data.Batches(x_test, y_test, batch_size=500, place=place):
    hits.update(labels, model(features))
print(f"test accuracy {hits.result():.3f}")
