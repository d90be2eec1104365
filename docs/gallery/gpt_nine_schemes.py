"""
A GPT under nine schemes
========================

One small GPT, and nine ways to train it in parallel: data parallel, ZeRO, FSDP, tensor, sequence
and context parallel, and two of them together. A scheme is a ``LayoutMap`` and the layout of the
batch; the model (``examples/parallel_gpt.py``) is the same in all.
"""

# %%
# Schemes
# -------
# A map of layouts by names. Ready ones come with gdt for models whose layers have common names.

import matplotlib.pyplot as plt
import numpy as np

import gdt
from examples.parallel_gpt import GPT, SCHEMES, measure
from gdt import nn

mesh = gdt.create_mesh([("data", 4), ("model", 2)])
layouts = nn.layout_maps.transformer(mesh, data="data")
with gdt.default_mesh(mesh):
    model = GPT()
layouts.apply(model)
for name, array in list(model.parameters().items())[:8]:
    print(f"{name:34} {array.layout}")

# %%
# A training step of each
# -----------------------
# Three steps with a block of memory for each device; the third is measured: the bytes that all
# devices send, the collectives, and the most that a device holds. The losses agree.

results = {scheme.name: measure(scheme) for scheme in SCHEMES}
for name, m in results.items():
    counts = f"{m.nbytes:>12,} bytes {m.collectives:>3} collectives"
    print(f"{name:26} loss {m.loss:.5f} {counts} {m.peak:>10,} held")
print("largest difference of losses:", np.ptp([m.loss for m in results.values()]))

# %%
# What they trade
# ---------------
# To the left: what is sent. To the right: what a device holds at most. FSDP pays 1.5 times the
# bytes of data parallel training for half of its memory here; tensor parallelism sends
# activations, whose size depends on the batch and not on the weights.

figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
names = list(results)
sent = [m.nbytes / 1e6 for m in results.values()]
held = [m.peak / 1e6 for m in results.values()]
axes[0].barh(names, sent)
axes[0].set_xlabel("MB sent in a step")
axes[1].barh(names, held)
axes[1].set_xlabel("MB held by a device")
axes[0].invert_yaxis()
plt.show()

# %%
# Formulas for the bytes, with their sources, are in the guide to parallel training.
