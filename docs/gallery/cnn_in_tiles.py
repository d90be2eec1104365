"""
A convolutional network on images in tiles
==========================================

Images are split along height and width, so that one image may be larger than the memory of a
device. The network is written as for one device: layers exchange the rows and columns at the
edges of tiles, and the weights stay whole.
"""

# %%
# The tiles
# ---------
# A 2 x 4 mesh: a device has 14 x 7 pixels of every image of 28 x 28, and all channels.

import tempfile

import matplotlib.pyplot as plt

import gdt
from examples.mnist import load
from gdt import Layout, nn

mesh = gdt.create_mesh([("height", 2), ("width", 4)])
tiles = Layout([None, "height", "width", None], mesh)
(x, y), (x_test, y_test) = load(None)
x, x_test = (rows.reshape(-1, 28, 28, 1) for rows in (x[:1536], x_test[:512]))
y, y_test = y[:1536], y_test[:512]
print(tiles.local_shape_from_global_shape(x.shape))

# %%
# The network
# -----------
# Channels last. ``default_mesh`` puts the weights on the mesh, replicated.


with gdt.default_mesh(mesh):
    model = nn.Sequential(
        nn.Conv2D(8, 3, padding="same", activation="relu", key=1), nn.MaxPool(2),
        nn.Conv2D(16, 3, padding="same", activation="relu", key=2), nn.MaxPool(2),
        nn.Flatten(), nn.Dense(10, key=3),
    )  # fmt: skip

# %%
# Training
# --------
# ``place`` puts a batch in tiles; labels are replicated. ``gdt.Trainer`` is the loop in terms of
# batches. After ``model.compile``, ``model.fit(batches)`` takes the same ones; of arrays, ``fit``
# would split the rows over the first axis of the mesh, and not the images.


def place(images, labels):
    return gdt.asarray(images, layout=tiles), gdt.asarray(labels, device=mesh)


trainer = gdt.Trainer(model, gdt.optim.Adam(0.01), "sparse_softmax_cross_entropy", ["accuracy"])
history = trainer.fit(
    gdt.data.Batches(x, y, batch_size=64, seed=0, place=place),
    epochs=3,
    validation=gdt.data.Batches(x_test, y_test, batch_size=256, place=place),
    show=False,
)
print([round(value, 3) for value in history["val_accuracy"]])

# %%
# What is sent
# ------------
# Forwards, in evaluation: the halos of convolutions and of pooling windows that cross an edge, and
# the exchange that ``Flatten`` needs, since it joins the split axes.

images, _ = place(x[:64], y[:64])
with gdt.training.evaluating(model):
    explanation = gdt.explain(model, images)
sent = {}
for row in explanation.rows:
    for collective in row.collectives:
        key = f"{row.op}: {collective.kind}"
        sent[key] = sent.get(key, 0) + collective.bytes
for key, nbytes in sent.items():
    print(f"{key:40} {nbytes:>9,} bytes")
print(f"of images of {images.nbytes:,} bytes")

# %%
# The same network on one device
# ------------------------------
# The model, loaded onto a mesh of one device, gives the same logits.

one = gdt.create_mesh([("height", 1), ("width", 1)])
whole = gdt.load_model(model.save(tempfile.mkdtemp()), mesh=one)
with gdt.training.evaluating(whole), gdt.training.evaluating(model):
    difference = whole(gdt.asarray(x[:64], device=one)).numpy() - model(images).numpy()
print("largest difference of logits:", abs(difference).max())

figure, axes = plt.subplots(1, 6, figsize=(9, 1.8), layout="constrained")
predicted = model.predict(x_test[:6], verbose=0).argmax(-1)
for axis, image, label in zip(axes, x_test, predicted, strict=False):
    axis.imshow(image[:, :, 0], cmap="gray_r")
    axis.set_title(str(label))
    axis.set_xticks([6.5, 13.5, 20.5], [])
    axis.set_yticks([13.5], [])
    axis.grid(color="tab:blue", linewidth=0.5)  # the edges of tiles
plt.show()
