"""
DTensor concepts
================

TensorFlow's guide "DTensor concepts" (tensorflow.org/guide/dtensor_overview), told with gdt's
arrays: meshes, layouts, how arrays are made, what ops do with layouts, and what arrives on which
device.
"""

# %%
# Meshes
# ------
# A mesh arranges devices in a grid with named axes. The guide makes six virtual CPUs first; here
# they need no configuration.

import matplotlib.pyplot as plt
import numpy as np

import gdt
from gdt import UNSHARDED, Layout

mesh_1d = gdt.create_mesh([("x", 6)])
mesh_2d = gdt.create_mesh([("x", 3), ("y", 2)])
print(mesh_1d, mesh_2d, mesh_2d.axis_names, mesh_2d.size)

# %%
# Layouts
# -------
# One entry for each axis of an array: the mesh axis that splits it, or ``UNSHARDED``. The
# guide's four layouts of a matrix of rank 2:

layouts = {
    "replicated": Layout([UNSHARDED, UNSHARDED], mesh_2d),
    "rows over x": Layout(["x", UNSHARDED], mesh_2d),
    "columns over y": Layout([UNSHARDED, "y"], mesh_2d),
    "rows over x, columns over y": Layout(["x", "y"], mesh_2d),
}
value = np.arange(24.0).reshape(6, 4)
for name, layout in layouts.items():
    tile = layout.local_shape_from_global_shape(value.shape)
    print(f"{name:28} a device holds {tile}")

# %%
# What lies where
# ---------------
# ``gdt.visualize`` prints who holds what; ``holders`` has it as a dict. Of the second layout,
# the two devices of a row of the mesh hold the same rows: an array may be split over one mesh
# axis and replicated over the other.

x = gdt.asarray(value, layout=layouts["rows over x"])
print(gdt.visualize(x))

figure, axes = plt.subplots(1, 4, figsize=(10, 3), layout="constrained")
for axis, (name, layout) in zip(axes, layouts.items(), strict=True):
    picture = np.zeros(value.shape)
    held = gdt.visualize(gdt.asarray(value, layout=layout)).holders
    for number, ((rows, columns), devices) in enumerate(held.items()):
        picture[slice(*rows), slice(*columns)] = number
        text = "\n".join(device.removeprefix("cpu:") for device in devices)
        axis.text(np.mean(columns) - 0.5, np.mean(rows) - 0.5, text, ha="center", va="center")
    axis.imshow(picture, cmap="Pastel1", vmin=0, vmax=8)
    axis.set_title(name, fontsize=9)
    axis.set_axis_off()
figure.suptitle("Which of six devices hold a part of a 6 x 4 matrix", fontsize=10)
plt.show()

# %%
# From parts and to parts
# -----------------------
# ``pack`` makes an array of one part for each device, ``unpack`` returns them. Parts of replicas
# have to be equal.

packed = gdt.pack([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], Layout(["x"], gdt.create_mesh([("x", 3)])))
print(packed.tolist(), [part.tolist() for part in gdt.unpack(packed)])

# %%
# Sizes that do not divide are allowed here, and an axis may be split over several mesh axes.
# DTensor has neither.

uneven = gdt.arange(10, layout=Layout([("x", "y")], mesh_2d))
print([part.tolist() for part in gdt.unpack(uneven)])

# %%
# Layouts of results
# ------------------
# The guide multiplies two matrices under three pairs of layouts. A replicated contraction sends
# nothing; a split one gives a *partial sum*, which is added up when its value is needed.

w = gdt.ones((4, 4), layout=Layout.replicated(mesh_2d, 2))
for a, b in [
    ([UNSHARDED, UNSHARDED], [UNSHARDED, UNSHARDED]),
    (["x", UNSHARDED], [UNSHARDED, "y"]),
    (["x", "y"], ["y", UNSHARDED]),
]:
    product = gdt.relayout(x, a) @ gdt.relayout(w, b)
    explanation = gdt.explain(lambda product=product: product.resolve())
    print(f"{product.layout!s:32} resolving it sends {explanation.bytes} bytes")

# %%
# ``call_with_layout`` and ``relayout`` are the guide's: the layout of a result can be asked for,
# and changed.

ones = gdt.call_with_layout(gdt.ones, layouts["columns over y"], (6, 4))
print(ones.layout, gdt.relayout(ones, layouts["rows over x"]).layout)

# %%
# Variables
# ---------
# There is no ``DVariable``: an array can be written. A write keeps the layout.

w[0] = 7.0
w += 1.0
print(w[0].tolist(), w.layout)
