"""
Principal components and k-means
================================

Handwritten digits without labels. Their rows are split over eight devices; both algorithms
(scikit-learn's ``PCA`` and ``KMeans``) are written with NumPy's functions, and only sums over
the devices are sent.
"""

# %%
# Rows over devices
# -----------------

import matplotlib.pyplot as plt
import numpy as np

import gdt
from examples.mnist import load
from gdt import Layout

(pixels, labels), _ = load(None)
mesh = gdt.create_mesh([("rows", 8)])
x = gdt.asarray(pixels, layout=Layout(["rows", None], mesh))
print(x.shape, x.layout)

# %%
# Principal components
# --------------------
# The covariance is a contraction over the rows: each device multiplies its own, and the 784 x
# 784 sums are added up. The eigenvectors of such a small matrix are found on the host. The
# coordinates stay split by rows.

centred = x - gdt.mean(x, axis=0)
covariance = (centred.mT @ centred).numpy() / len(x)  # (features, features)
variances, vectors = np.linalg.eigh(covariance)
variances, vectors = variances[::-1], vectors[:, ::-1]
coordinates = centred @ vectors[:, :20]  # (rows, 20)
print(coordinates.layout, f"{variances[:20].sum() / variances.sum():.3f} of the variance")

# %%
# What was sent: the means and the covariance, in all-reduces.


def covariance_of(x):
    centred = x - gdt.mean(x, axis=0)
    return (centred.mT @ centred).resolve()


explanation = gdt.explain(covariance_of, x)
for collective in explanation.collectives:
    print(collective.kind, f"{collective.bytes:,} bytes")

# %%
# k-means
# -------
# A step finds the nearest centre of every row, and moves each centre to the mean of its rows:
# ``one_hot`` makes that a product. Centres are replicated; what a step sends are ten sums of
# coordinates and ten counts.

CENTRES = 10


def k_means_step(centres):
    # |x - c|^2 without |x|^2, which is the same for all centres: (rows, centres)
    distances = gdt.sum(centres**2, axis=1) - 2 * (coordinates @ centres.mT)
    nearest = gdt.argmin(distances, axis=1)
    members = gdt.one_hot(nearest, CENTRES).astype(coordinates.dtype)
    counts = gdt.sum(members, axis=0)
    means = (members.mT @ coordinates) / gdt.maximum(counts, 1)[:, None]
    return gdt.where((counts > 0)[:, None], means, centres), nearest


start = np.random.default_rng(0).permutation(len(x))[:CENTRES]
centres = gdt.asarray(coordinates.numpy()[start], layout=Layout.replicated(mesh, 2))
print("a step sends", gdt.explain(k_means_step, centres).bytes, "bytes")
for _ in range(30):
    centres, nearest = k_means_step(centres)

table = np.zeros((CENTRES, 10), int)
np.add.at(table, (nearest.numpy(), labels), 1)
print("rows whose label is the commonest of their centre:", table.max(axis=1).sum() / len(labels))

# %%
# Two coordinates, and the centres as images
# ------------------------------------------

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
points = coordinates[:, :2].numpy()
left.scatter(*points.T, c=nearest.numpy(), s=2, cmap="tab10")
left.scatter(*centres.numpy()[:, :2].T, c="black", marker="x")
left.set(xlabel="first component", ylabel="second component")
pictures = centres.numpy() @ vectors[:, :20].T + pixels.mean(axis=0)
grid = pictures.reshape(2, 5, 28, 28).transpose(0, 2, 1, 3).reshape(56, 140)
right.imshow(grid, cmap="gray_r")
right.set_axis_off()
plt.show()
