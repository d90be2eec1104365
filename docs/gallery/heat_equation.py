"""
The heat equation on tiles
==========================

A plate is split into tiles over a 2 x 4 mesh. Each step needs the four neighbours of every
point, and at the edges of a tile they lie on other devices: a convolution of a split image
fetches those rows and columns, the *halos*, and nothing else.
"""

# %%
# The plate
# ---------
# 64 x 64 points, cold but for a square in the middle and a hot edge. The layout splits rows over
# ``height`` and columns over ``width``, so each of the eight devices holds a tile of 32 x 16
# points.

import matplotlib.pyplot as plt
import numpy as np

import gdt

mesh = gdt.create_mesh([("height", 2), ("width", 4)])
plate = np.zeros((1, 64, 64, 1), "float32")  # (batch, height, width, channels)
plate[0, 24:40, 24:40, 0] = 1.0
plate[0, 0, :, 0] = 0.5
start = gdt.asarray(plate, layout=gdt.Layout([None, "height", "width", None], mesh))
tile = start.layout.local_shape_from_global_shape(start.shape)
print(start.layout, "of which a device holds", tile)

# %%
# A step
# ------
# The explicit scheme: u + r * (the sum of the four neighbours - 4 u), stable for r up to 1/4.
# The five numbers of the stencil are the kernel of a convolution, which is whole on every
# device. Beyond the plate it is cold: ``padding="same"`` pads with 0.

rate = 0.2
stencil = np.zeros((3, 3, 1, 1), "float32")  # (height, width, channels in, channels out)
stencil[1, 1] = 1 - 4 * rate
for row, column in [(0, 1), (2, 1), (1, 0), (1, 2)]:
    stencil[row, column] = rate
stencil = gdt.asarray(stencil, layout=gdt.Layout.replicated(mesh, 4))


@gdt.function
def step(u):
    return gdt.convolution(u, stencil, padding="same")


# %%
# What a step sends
# -----------------
# Rows travel over ``height``, then columns over ``width``, those of the corners with them: 2 x
# 64 numbers and 6 x 68, of 4 bytes.

for row in gdt.explain(lambda: gdt.convolution(start, stencil, padding="same")).rows:
    for collective in row.collectives:
        print(row.op, "over", *collective.axes, collective.bytes, "bytes")

# %%
# Four hundred steps
# ------------------
# ``gdt.function`` has recorded the step in its second call and replays it from then on. Fetching
# a picture (``.numpy()``) is the only thing that leaves the devices.

pictures, u = {0: start.numpy()}, start
for number in range(1, 401):
    u = step(u)
    if number in (50, 400):
        pictures[number] = u.numpy()

figure, axes = plt.subplots(1, 3, figsize=(9, 3), layout="constrained")
for axis, (number, picture) in zip(axes, pictures.items(), strict=True):
    shown = axis.imshow(picture[0, :, :, 0], vmin=0, vmax=1, cmap="inferno")
    axis.set_title(f"step {number}")
    axis.set_xticks([16, 32, 48])
    axis.set_yticks([32])
    axis.grid(color="white", linewidth=0.5)  # where the tiles meet
figure.colorbar(shown, ax=axes)
plt.show()

# %%
# The same bits on one device
# ---------------------------
# On a mesh of one device the program is the same. Only the layout differs, and the result does
# not.

one = gdt.create_mesh([("height", 1), ("width", 1)])
whole = gdt.asarray(start.numpy(), device=one)
kernel = gdt.asarray(stencil.numpy(), device=one)
for _ in range(400):
    whole = gdt.convolution(whole, kernel, padding="same")
print("largest difference:", abs(whole.numpy() - u.numpy()).max())
