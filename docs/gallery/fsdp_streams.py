"""
Communication beside computation
================================

In FSDP a device keeps a part of each weight. The weights of a layer are gathered before it
computes, and its gradients are reduced and scattered afterwards. On GPUs both are launched on a
stream of their own: the next layer's weights are gathered while this layer computes, and what a
collective makes is waited for where it is read. This page draws the two streams of a device in a
step of a GPT.

The order of the work, and what waits for what, come from four simulated GPUs: CuPy's interface on
the host, with streams and events that are noted. How long each piece takes is what ``gdt.predict``
says of a wider GPT on four ``h100-80gb``. Nothing has run on a GPU.
"""

# %%
# A step on simulated GPUs
# ------------------------
# The simulation, which is that of the tests, notes each request to a stream, and reports every use
# of memory that no event orders.

from collections import defaultdict, deque
from unittest import mock

import matplotlib.pyplot as plt
import numpy as np
import pytest

import gdt
from examples.parallel_gpt import GPT, Size, fsdp
from gdt import Layout, nn
from gdt.backend.cupy import CupyBackend
from tests.strict import engine
from tests.strict.timeline import tasks_of


def training_step(mesh, size):
    with gdt.default_mesh(mesh):
        model = fsdp(mesh).apply(GPT(size))
    optimizer = gdt.optim.Adam(1e-3).init(model)
    tokens, targets = (
        gdt.zeros((size.batch, size.tokens), np.int32, layout=Layout(["data", None], mesh))
        for _ in "xy"
    )

    def step():
        def loss(model):
            return nn.losses.sparse_softmax_cross_entropy(targets, model(tokens))

        value, gradients = gdt.value_and_grad(loss)(model)
        optimizer.update(model, gradients)
        return value

    return step


with pytest.MonkeyPatch.context() as patch:
    mesh = engine.mesh_with_nccl({"data": 4}, 4, patch)
    step = training_step(mesh, Size(layers=3, width=8, heads=2, vocabulary=8, tokens=4, batch=4))
    step()  # from which the order of the gathers is known
    streams = {}
    for name, overlaps in {"each collective waited for at once": False, "as it is": True}.items():
        with mock.patch.object(CupyBackend, "overlaps", overlaps):
            streams[name] = tasks_of(step, mesh)
print(len(engine.CUPY.order.faults), "uses of memory that nothing orders")

# %%
# Seconds from a prediction
# -------------------------
# The same step of a wider GPT on abstract devices. Its ops and collectives come in the same order.

machine = gdt.Machine.named("h100-80gb")
abstract = gdt.create_mesh([("data", 4)], device_type="abstract")
wide = training_step(
    abstract, Size(layers=3, width=2048, heads=16, vocabulary=8192, tokens=512, batch=4)
)
found = gdt.predict(wide, machine=machine)
print(found)
with gdt.count_collectives() as counter:
    wide()

seconds = defaultdict(deque)  # by name, in order
for op in found.ops:
    if op.seconds:
        seconds[op.name].append(op.seconds)
for c in counter:
    sent = machine.collective_seconds(c.kind, abstract, c.axes, c.bytes / abstract.size)
    seconds[c.kind].append(sent)


# %%
# Two streams
# -----------
# A task begins when its stream is free and what it waits for has ended. Above, computation waits
# for each collective, and stands still. Below, it waits for what it reads alone, which is there by
# then, but for the first weights, and for the last gradients, before the update. The backward pass
# begins with the weights that the forward pass has read last, which are still there.


def scheduled(tasks):
    """Return the start and the end of each task."""
    left = {name: deque(values) for name, values in seconds.items()}
    free, times = {False: 0.0, True: 0.0}, {}
    for task in tasks:
        waited = [times[other][1] for other in task.waits]
        if task.communicates and waited:  # computation waits, so that memory is free
            free[False] = max(free[False], *waited)
        before = [times[task.after][1]] if task.after is not None else []
        start = max(free[task.communicates], *waited, *before, 0.0)
        lasts = left[task.name].popleft() if left.get(task.name) else 0.0
        times[task] = start, start + lasts
        free[task.communicates] = start + lasts
    return times


COLORS = {
    "forward": "#9ecae1", "backward": "#4292c6", "update": "#08519c",
    "all_gather": "#74c476", "reduce_scatter": "#fd8d3c", "all_reduce": "#9e9ac8",
}  # fmt: skip
figure, panels = plt.subplots(2, 1, figsize=(10, 4.2), sharex=True, layout="constrained")
for axes, (title, tasks) in zip(panels, streams.items(), strict=True):
    times, phase = scheduled(tasks), "forward"
    for task, (start, end) in times.items():
        if task.name == "adam_step":
            phase = "update"
        color = COLORS[task.name if task.communicates else phase]
        axes.barh(
            int(task.communicates), 1e3 * (end - start), left=1e3 * start, color=color,
            edgecolor="white", linewidth=0.8 * task.communicates,
        )  # fmt: skip
        if "cross_entropy" in task.name:
            phase = "backward"
    total = 1e3 * max(end for _, end in times.values())
    print(f"{title}: {total:.1f} ms")
    axes.set_title(f"{title}: {total:.1f} ms", fontsize=10, loc="left")
    axes.set_yticks([0, 1], ["computes", "communicates"])
    axes.invert_yaxis()
    axes.spines[["top", "right", "left"]].set_visible(False)
panels[1].set_xlabel(
    "ms, by the rates of h100-80gb; order and waits of simulated GPUs; no GPU has run it"
)
handles = [plt.Rectangle((0, 0), 1, 1, color=color) for color in COLORS.values()]
names = [name.replace("_", "-") for name in COLORS]
figure.legend(handles, names, loc="outside upper center", ncols=6, frameon=False, fontsize=9)
plt.show()
