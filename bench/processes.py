"""What processes cost by their number: `python -m bench.processes --counts 2 4 8 16 32 64`.

Processes of this host are forked, meet over loopback, and measure: the meeting; a barrier; the
agreement on a value of every process; an all-reduce of 16 bytes; and the bytes that each sends in a
save of 50 arrays, split over all processes. Prints the median of the rounds, of the slowest
process, the sockets of process 0, and the power of the number of processes that fits each column
best (time = a * N^b): with more processes than cores all messages share the cores, so b of a
barrier of 2 (N - 1) messages is 1.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import gdt
from bench.launch import launch, run_forked
from gdt.comm.notes import gathered

ROUNDS = 20
COLUMNS = ("meeting", "barrier", "agreement", "all-reduce", "save bytes", "sockets")


def median(call: Callable[[], object], rounds: int) -> float:
    """The median time of a call in milliseconds."""
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return 1e3 * statistics.median(times)


def sent_bytes(call: Callable[[], object]) -> int:
    """The bytes that this process's sockets carry during a call, as the library writes them."""
    count, send = 0, socket.socket.send

    def counting(self: socket.socket, data: memoryview, *flags: int) -> int:
        nonlocal count
        sent = send(self, data, *flags)
        count += sent
        return sent

    socket.socket.send = counting  # type: ignore[method-assign]
    try:
        call()
    finally:
        socket.socket.send = send  # type: ignore[method-assign]
    return count


def measure(count: int, index: int, address: str, folder: str) -> dict[str, float]:
    """What one of so many processes measures."""
    began = time.perf_counter()
    gdt.distributed.initialize(address, count, index, job="bench")
    found = {"meeting": 1e3 * (time.perf_counter() - began)}
    mesh = gdt.create_mesh([("x", count)])
    x = gdt.ones((count, 4), "float32", layout=gdt.Layout(["x", None], mesh))
    layout = gdt.Layout(["x"], mesh)
    tree = {f"layer{i}.weight": gdt.zeros((count,), layout=layout) for i in range(50)}
    calls: dict[str, Callable[[], object]] = {
        "barrier": gdt.distributed.barrier,
        "agreement": lambda: gathered(count, index, "agreement"),
        "all-reduce": lambda: gdt.sum(x, axis=0).resolve(),
    }
    for name, call in calls.items():
        call()  # opens sockets, and makes plans
        gdt.distributed.barrier()
        found[name] = median(call, ROUNDS)
    found["save bytes"] = sent_bytes(lambda: gdt.checkpoint.save(f"{folder}/x.safetensors", tree))
    found["sockets"] = sum(
        os.readlink(f"/proc/self/fd/{fd}").startswith("socket:")
        for fd in os.listdir("/proc/self/fd")
        if os.path.islink(f"/proc/self/fd/{fd}")
    )
    return found


def run(count: int) -> dict[str, float]:
    """What the slowest of so many processes measures; of the bytes what all send together."""
    with tempfile.TemporaryDirectory() as folder:

        def run_one(index: int, address: str) -> None:
            found = measure(count, index, address, folder)
            Path(f"{folder}/{index}.json").write_text(json.dumps(found))
            gdt.distributed.shutdown()

        run_forked(count, run_one)
        every = [json.loads(Path(f"{folder}/{i}.json").read_text()) for i in range(count)]
    slowest = {name: max(found[name] for found in every) for name in COLUMNS}
    return slowest | {"save bytes": sum(found["save bytes"] for found in every)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--counts", type=int, nargs="+", default=[2, 4, 8, 16, 32, 64])
    options = parser.parse_args()
    print("processes" + "".join(f"{name:>14}" for name in COLUMNS))
    rows = []
    for count in options.counts:
        found = run(count)
        rows.append([count, *(found[name] for name in COLUMNS)])
        print(f"{count:>9}" + "".join(f"{value:>14,.2f}" for value in rows[-1][1:]), flush=True)
    if len(rows) > 1:
        counts, *columns = np.array(rows, float).T
        powers = [np.polyfit(np.log(counts), np.log(column), 1)[0] for column in columns]
        print("    power" + "".join(f"{power:>14.2f}" for power in powers))


if __name__ == "__main__":
    launch(main)
