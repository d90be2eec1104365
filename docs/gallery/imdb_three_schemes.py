"""
Movie reviews under three schemes
=================================

TensorFlow's tutorial "Distributed training with DTensors"
(tensorflow.org/tutorials/distribute/dtensor_ml_tutorial): a multilayer perceptron on movie
reviews is trained data parallel, then model parallel, then spatially parallel. Each phase goes
on from the checkpoint of the one before. Model and step are written once; only layouts change.
(``python -m examples.imdb`` trains on all reviews; this page takes 2,000.)
"""

# %%
# Reviews as numbers
# ------------------

import tempfile

import matplotlib.pyplot as plt
import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer

import gdt
from examples import datasets
from gdt import UNSHARDED, Layout, nn

texts, labels = datasets.imdb()
texts, labels = texts[:2000], labels[:2000]
words = TfidfVectorizer(max_features=600, dtype=np.float32).fit_transform(texts).toarray()
train, test = slice(0, 1600), slice(1600, 2000)
print(words.shape, texts[0][:70])

# %%
# The model
# ---------
# Its layouts are arguments; nothing else in it depends on devices.


class MLP(nn.Module):
    def __init__(self, hidden, output):
        self.dense1 = nn.Dense(600, 48, hidden, activation="relu", key=1)
        self.norm = nn.BatchNorm(48, hidden.delete([0]), affine=False, momentum=0.9)
        self.dense2 = nn.Dense(48, 2, output, key=2)

    def __call__(self, x):
        return self.dense2(self.norm(self.dense1(x)))


# %%
# Three schemes
# -------------
# A mesh of eight devices, and the layouts of the batch and of the two weights.

SCHEMES = {
    "data parallel": (
        [("batch", 8)], ["batch", UNSHARDED], [UNSHARDED, UNSHARDED], [UNSHARDED, UNSHARDED],
    ),
    "model parallel": (
        [("batch", 4), ("model", 2)],
        ["batch", UNSHARDED], [UNSHARDED, "model"], ["model", UNSHARDED],
    ),
    "spatially parallel": (
        [("batch", 2), ("feature", 2), ("model", 2)],
        ["batch", "feature"], ["feature", "model"], ["model", UNSHARDED],
    ),
}  # fmt: skip

# %%
# Training
# --------
# The checkpoint of a phase is restored onto the mesh of the next, each device reading the slices
# that it needs.

folder = tempfile.mkdtemp()
losses, sent = {}, {}
for name, (dims, batch, hidden, output) in SCHEMES.items():
    mesh = gdt.create_mesh(dims)
    split = Layout(batch, mesh)

    def place(x, y, split=split):
        return gdt.asarray(x, layout=split), gdt.asarray(y, layout=split.delete([1]))

    model = MLP(Layout(hidden, mesh), Layout(output, mesh))
    manager = gdt.CheckpointManager(model, folder)
    manager.restore_or_initialize()
    optimizer = gdt.optim.SGD(0.05)

    def step(x, y, model=model, optimizer=optimizer):
        loss, gradients = gdt.value_and_grad(
            lambda model: nn.losses.sparse_softmax_cross_entropy(y, model(x))
        )(model)
        optimizer.update(model, gradients)
        return loss

    batches = gdt.data.Batches(
        words[train], labels[train], batch_size=64, seed=len(losses), place=place
    )
    recorded = gdt.function(step)
    losses[name] = [float(recorded(x, y)) for _ in range(2) for x, y in batches]
    with gdt.count_collectives() as counter:
        step(*next(iter(batches)))
    sent[name] = counter
    held_out, answers = place(words[test], labels[test])
    with gdt.training.evaluating(model):
        accuracy = float(gdt.metrics.accuracy(answers, model(held_out)))
    manager.save()
    loss = np.mean(losses[name][-10:])
    print(f"{name:20} loss {loss:.3f}, test accuracy {accuracy:.3f}")

# %%
# What a step sends
# -----------------
# The gradients of two weights, and what is partial on the way. Data parallel training sends one
# bundle at the end; the others send activations as well, and fewer bytes of gradients.

for name, counter in sent.items():
    print(name, "-", dict(counter.by_kind), f"{counter.bytes:,} bytes")

# %%
# One training
# ------------

figure, axis = plt.subplots(figsize=(8, 3), layout="constrained")
start = 0
for name, values in losses.items():
    axis.plot(range(start, start + len(values)), values, label=name)
    start += len(values)
axis.set(xlabel="step", ylabel="loss")
axis.legend()
plt.show()
