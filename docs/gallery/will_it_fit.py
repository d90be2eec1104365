"""
Will it fit, and how fast?
==========================

A training step of a GPT is predicted on 64 devices that are not here: what fills its memory, what
its time consists of, and which layout is best. The step is written once, for any plan
(``examples/planned_gpt.py``); on abstract devices it computes no values.
"""

# %%
# Predicted beside measured
# -------------------------
# First a small one, on virtual devices that are here: 32 texts, divided among more and more
# devices, which take turns on one core. What they reach is measured by calls that are no part of
# the step: products, element-wise ops, all-reduces, launches.

import re
import time

import matplotlib.pyplot as plt
import numpy as np

import gdt
from bench.predicted import machine_of, seconds
from examples.parallel_gpt import Size
from examples.planned_gpt import LARGE, MACHINE, make_step
from gdt.prediction import ParallelPlan, PredictedScaling

SMALL = Size(layers=2, width=256, heads=4, vocabulary=512, tokens=32, batch=32)


def small_step(devices, **where):
    mesh = gdt.create_mesh([("data", devices)], **where)
    return make_step(ParallelPlan(mesh, ("data",)), SMALL)


predictions, measured = {}, {}
with gdt.host_threads(1):
    for n in (2, 4, 8):
        machine = machine_of(n, time.process_time)
        predictions[n] = gdt.predict(small_step(n, device_type="abstract"), machine=machine)
        step = small_step(n, device_type="CPU", blocks=n)
        measured[n] = seconds(step, time.process_time)

print(PredictedScaling(predictions, measured))

KINDS = {
    "products": "products", "memory": "memory-bound work", "launches": "launches",
    "exposed": "communication",
}  # fmt: skip


def draw_kinds(axes, steps):
    left = np.zeros(len(steps))
    for kind, label in KINDS.items():
        lengths = np.array([getattr(step, kind) for step in steps.values()])
        axes.barh([*steps], lengths, left=left, label=label)
        left += lengths
    axes.invert_yaxis()
    axes.set_xlabel("seconds of a step")
    return left


figure, axes = plt.subplots(figsize=(9, 2.5), layout="constrained")
names = [f"{n} devices" for n in predictions]
draw_kinds(axes, dict(zip(names, predictions.values(), strict=True)))
axes.plot([*measured.values()], names, "ko", label="measured")
figure.legend(loc="outside lower center", ncols=5, fontsize="small")
plt.show()

# %%
# Memory over a step
# ------------------
# Now 5 billion parameters, and 64 devices, in hosts of eight, with 48 GB each. Every block of the
# GPT is run again in the backward pass (checkpointing), arrays are kept split over ``data``
# (FSDP), features are split over ``model``. On the way forward the inputs of the 24 blocks add up,
# and on the way back each block is run again before its input is no longer needed. Colours are the
# arrays that are alive at the peak; most of it are the inputs, made for the first op of a block.

mesh = gdt.create_mesh([("data", 8), ("model", 8)], device_type="abstract")
plan = ParallelPlan(mesh, ("data",), "transformer", kept="all", checkpoint=True)
found = gdt.predict(make_step(plan, LARGE), machine=MACHINE)
print("\n".join(str(found).splitlines()[:5]))

begins = np.cumsum([0.0] + [op.total for op in found.ops])
held = np.array([op.held for op in found.ops]) / 1e9
alive = [("between steps", found.state)]
for row in found.held:
    alive.append((f"{row.what}, {re.sub('/.*/', '', row.line)}", row.nbytes))
alive[7:] = [("all others", sum(nbytes for _, nbytes in alive[7:]))]

figure, axes = plt.subplots(figsize=(9, 5), layout="constrained")
axes.stairs(held, begins, fill=True, color="0.85")
bottom, middle = 0.0, begins[np.argmax(held)]
for what, nbytes in alive:
    label = f"{nbytes / 1e9:5.2f} GB  {what}"
    axes.bar(middle, nbytes / 1e9, begins[-1] / 40, bottom=bottom, label=label)
    bottom += nbytes / 1e9
axes.set_xlabel("seconds, of what is sent beside computation too")
axes.set_ylabel("GB of a device")
figure.legend(loc="outside lower center", title="at the peak", fontsize="small")
plt.show()

# %%
# Time by kind
# ------------
# The same step under four layouts, from a few of its blocks (``gdt.predict_layers``). What is
# sent beside computation costs no time: its bar is empty, behind those that add up to the step.

whole = gdt.create_mesh([("data", 64)], device_type="abstract")
LAYOUTS = {
    "data 64, FSDP": ParallelPlan(whole, ("data",), kept="all", checkpoint=True),
    "data 8 x model 8": ParallelPlan(mesh, ("data",), "transformer", checkpoint=True),
    "data 8 x model 8, FSDP": plan,
    "data 8 x model 8, FSDP, sequence": ParallelPlan(
        mesh, ("data",), "transformer", "all", sequence=True, checkpoint=True
    ),
}


def predicted(plan):
    def step_of(layers):
        return make_step(plan, LARGE._replace(layers=layers))

    return gdt.predict_layers(step_of, LARGE.layers, machine=MACHINE)


steps = {name: predicted(plan) for name, plan in LAYOUTS.items()}
figure, axes = plt.subplots(figsize=(9, 3), layout="constrained")
ends = draw_kinds(axes, steps)
hidden = [step.hidden for step in steps.values()]
axes.barh([*steps], hidden, left=ends, fill=False, edgecolor="C3", label="communication, hidden")
figure.legend(loc="outside lower center", ncols=5, fontsize="small")
plt.show()

# %%
# The ranking of a plan
# ---------------------
# ``gdt.plan`` compares the layouts that there are, and traces the best. The dashed line is nine
# tenths of the memory of a device, which arrays may take.

plans = gdt.plan(lambda plan: make_step(plan, LARGE), 64, machine=MACHINE, time_limit=300)
print(plans)

names = []
for plan in plans:
    sizes = zip(plan.mesh.axis_names, plan.mesh.sizes, strict=True)
    parts = [" x ".join(f"{axis} {size}" for axis, size in sizes)]
    parts += [plan.scheme.replace(" by transformer", "")]
    parts += ["checkpointed"] * plan.checkpoint
    parts += [f"{plan.micro_batches} micro-batches"] * (plan.micro_batches > 1)
    names.append(", ".join(parts))
figure, axes = plt.subplots(1, 2, figsize=(10, 4.5), sharey=True, layout="constrained")
axes[0].barh(names, [plan.prediction.seconds for plan in plans])
axes[0].set_xlabel("seconds of a step")
axes[1].barh(names, [plan.prediction.peak / 1e9 for plan in plans])
axes[1].axvline(0.9 * MACHINE.memory / 1e9, color="black", linestyle="--", linewidth=1)
axes[1].set_xlabel("GB at the peak")
axes[0].invert_yaxis()
axes[0].tick_params(axis="y", labelsize="small")
plt.show()
