"""Programs of which a process is killed in a certain place."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import gdt
from gdt import Layout
from gdt.checkpoint import saving
from gdt.comm.messages import Messages


def die(*_: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


# Where process 1 or process 0 dies: the function, and whether it has done its work before.
PLACES: dict[str, tuple[int, Any, str, bool]] = {
    "connection": (1, Messages, "_connect", True),
    "barrier": (1, Messages, "decide", False),
    "collective": (1, Messages, "exchange", False),
    "writing": (1, saving._Writer, "write_shards", True),
    "completing": (0, saving, "_put_in_place", False),
}


def let_die(where: str) -> None:
    """Let a process die in a place; the others go on."""
    victim, owner, name, is_late = PLACES[where]
    if gdt.distributed.process_index() != victim:
        return
    work: Callable[..., Any] = getattr(owner, name)
    dies = lambda *arguments: (is_late and work(*arguments), die())
    setattr(owner, name, dies)


def dies(where: str, folder: str) -> None:
    """Do all that processes do together; one dies in a place."""
    let_die(where)
    mesh = gdt.create_mesh([("x", gdt.distributed.process_count())])
    x = gdt.ones((6,), layout=Layout(["x"], mesh))
    float(gdt.sum(x))
    gdt.distributed.barrier()
    gdt.checkpoint.save(f"{folder}/x.safetensors", {"x": x})


class Killed(gdt.training.Callback):
    """Lets a process die in a batch."""

    def __init__(self, where: str, batch: int) -> None:
        super().__init__()
        self.where, self.batch, self.seen = where, batch, 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen += 1
        if self.where and self.seen == self.batch:
            let_die(self.where)


def trains(folder: str, devices: str, where: str = "", batch: str = "0") -> None:
    """A training that goes on from the newest checkpoint of its folder; a process may be killed."""
    sys.modules["numba"] = None  # type: ignore[assignment]  # compiling takes longer than training
    rng = np.random.default_rng(0)
    x, y = rng.random((64, 4), "f"), rng.integers(0, 3, 64)
    mesh = gdt.create_mesh([("x", int(devices))])
    with gdt.default_mesh(mesh):
        model = gdt.nn.Sequential(gdt.nn.Dense(4, 8, key=1), gdt.relu, gdt.nn.Dense(8, 3, key=2))
        trainer = gdt.Trainer(model, gdt.optim.Adam(0.01), "sparse_softmax_cross_entropy")
        place = lambda x, y: (
            gdt.asarray(x, layout=Layout(["x", None], mesh)),
            gdt.asarray(y, layout=Layout(["x"], mesh)),
        )
        batches = gdt.data.Batches(x, y, batch_size=8, seed=3, place=place)
        history = trainer.fit(
            batches,
            epochs=2,
            resume=Path(folder) / "run",
            save_every=3,
            callbacks=[Killed(where, int(batch))],
            show=False,
        )
    print("losses", *[f"{loss:.6f}" for loss in history["loss"]], flush=True)
