"""Predicted training steps beside measured ones, on devices of this host.

    python -m bench.predicted [--processes COUNT]

A GPT under schemes of parallel training, in two sizes: on four virtual devices of one process,
which take turns, by the time of the processor; or on one device for each of so many processes, by
the clock. What the `gdt.Machine` reaches is measured first, on the same number of devices, by calls
that are no part of the steps: products of two sizes, element-wise ops, a chain of small ops and its
gradient, all-reduces. Prints the error of every prediction, and the fastest scheme of each size
beside the one that was predicted to be.
"""

from __future__ import annotations

import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before NumPy is loaded

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from statistics import mean, median
from typing import NamedTuple

import gdt
from bench.launch import launch, run_forked
from bench.schemes import Scheme, training
from examples.parallel_gpt import Size
from gdt.prediction.trace import trace

Array = gdt.DistributedArray
Clock = Callable[[], float]
VIRTUAL_DEVICES, WARM, ROUNDS, LINKS = 4, 2, 5, 20
SIZES = {
    "width 128": Size(layers=2, width=128, heads=4, vocabulary=256, tokens=64, batch=32),
    "width 512": Size(layers=2, width=512, heads=8, vocabulary=1024, tokens=64, batch=16),
}


def schemes(devices: int) -> dict[str, Scheme]:
    """Return schemes that use all devices."""
    found = {
        f"data {devices}": Scheme(devices),
        f"FSDP {devices}": Scheme(shards=devices),
        f"tensor {devices}": Scheme(tensor=devices),
        f"sequence {devices}": Scheme(tensor=devices, is_sequence=True),
    }
    if devices == VIRTUAL_DEVICES:
        found |= {
            "ZeRO 4": Scheme(shards=4, keeps_whole=True),
            "FSDP 4, checkpointed": Scheme(shards=4, is_checkpointed=True),
            "data 2 x tensor 2": Scheme(2, tensor=2),
            "FSDP 2 x tensor 2": Scheme(shards=2, tensor=2),
        }
    return found


def seconds(call: Callable[[], object], clock: Clock, rounds: int | None = None) -> float:
    """Return the median seconds of a call in some rounds, by default `ROUNDS`, after some that are
    not counted."""
    return seconds_in_turns([call], clock, rounds or ROUNDS)[0]


def seconds_in_turns(
    calls: Sequence[Callable[[], object]], clock: Clock, rounds: int
) -> list[float]:
    """Return the median seconds of calls, of which each has its turn in each round: others that
    work on this host slow all of them down alike."""
    times: list[list[float]] = [[] for _ in calls]
    for n in range(WARM + rounds):
        for call, own in zip(calls, times, strict=True):
            gdt.distributed.barrier()
            began = clock()
            call()
            if n >= WARM:
                own.append(clock() - began)
    return [median(own) for own in times]


# ---------------------------------------------------------------- the machine


def machine_of(devices: int, clock: Clock) -> gdt.Machine:
    """Return what a device of this host reaches while all of them work."""
    mesh = gdt.create_mesh([("each", devices)], blocks=devices, device_type="CPU")

    def array(rows: int, columns: int) -> Array:
        layout = gdt.Layout(["each", None, None], mesh)
        return gdt.ones((devices, rows, columns), "float32", layout=layout)

    launches = _launch_seconds(array(8, 8), devices, clock)
    large, small = array(512, 512), array(256, 256)
    rate = 2 * 512**3 / seconds(lambda: large @ large, clock)
    slow = 2 * 256**3 / max(seconds(lambda: small @ small, clock, LINKS) - launches, 1e-9)
    x, y = array(1024, 1024), array(1024, 1024)
    moved = 8 * 1024 * 1024 * 4  # bytes that three ops read and write
    link = _link(array(1024, 1024), array(1, 8), clock)
    return gdt.Machine(
        flops={"float32": rate},
        bandwidth=moved / seconds(lambda: gdt.tanh(x * y) + y, clock),
        memory=16e9,
        links={"host": link, "network": link},
        share=1.0,
        bandwidth_share=1.0,
        launch=launches,
        half=256 * max(rate / slow - 1, 0),
        name="this host",
        overlaps=False,
    )


def _launch_seconds(x: Array, devices: int, clock: Clock) -> float:
    """Return the seconds of an op on next to nothing, with its part of a gradient."""

    def chain(x: Array) -> Array:
        for _ in range(20):
            x = gdt.tanh(x * 0.5) + x
        return gdt.sum(x)

    step = gdt.value_and_grad(chain)
    mesh = gdt.create_mesh([("each", devices)], device_type="abstract")
    layout = gdt.Layout(["each", None, None], mesh)
    ops = trace(step, gdt.ones(x.shape, "float32", layout=layout)).ops
    return seconds(lambda: step(x), clock, LINKS) / len(ops)


def _link(large: Array, small: Array, clock: Clock) -> gdt.Link:
    """Return the link that explains all-reduces of a large and of a small array."""
    devices = large.shape[0]

    def all_reduce(x: Array) -> float:
        reduced = seconds(lambda: gdt.sum(x, axis=0).resolve(), clock, LINKS)
        return max(reduced - seconds(lambda: gdt.sum(x, axis=0), clock, LINKS), 1e-7)

    sent = 2 * (devices - 1) / devices * large.size / devices * 4
    return gdt.Link(sent / all_reduce(large), all_reduce(small) / (2 * (devices - 1)))


# ---------------------------------------------------------------- steps


class Row(NamedTuple):
    """The seconds of a step, as predicted and as measured."""

    size: str
    scheme: str
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """The prediction less the measurement, as a share of the measurement."""
        return self.predicted / self.measured - 1


def compare(devices: int, clock: Clock, sizes: dict[str, Size]) -> list[Row]:
    """Predict and measure the step of every scheme in every size."""
    rows, machine = [], machine_of(devices, clock)
    for size, numbers in sizes.items():
        known = schemes(devices)
        steps = [training(scheme, numbers, "CPU")[0] for scheme in known.values()]
        times = seconds_in_turns(steps, clock, ROUNDS)
        for (name, scheme), measured in zip(known.items(), times, strict=True):
            predicted = gdt.predict(training(scheme, numbers, "abstract")[0], machine=machine)
            rows.append(Row(size, name, predicted.seconds, measured))
        del steps
    return rows


def print_rows(rows: list[Row]) -> None:
    """Print the rows in Markdown, the mean error, and the choice for each size."""
    print("| model | scheme | predicted, ms | measured, ms | error |\n|---|---|---:|---:|---:|")
    for row in rows:
        times = f"{1e3 * row.predicted:.1f} | {1e3 * row.measured:.1f}"
        print(f"| {row.size} | {row.scheme} | {times} | {row.error:+.0%} |")
    errors = [abs(row.error) for row in rows]
    print(f"\nMean error {mean(errors):.1%}, largest {max(errors):.1%}.")
    for size in dict.fromkeys(row.size for row in rows):
        own = [row for row in rows if row.size == size]
        chosen = min(own, key=lambda row: row.predicted)
        best = min(own, key=lambda row: row.measured)
        print(
            f"{size}: predicted to be fastest: {chosen.scheme}; fastest: {best.scheme}; "
            f"the first takes {chosen.measured / best.measured:.2f} times as long."
        )


def run_processes(count: int) -> None:
    """Compare on one device for each of `count` processes, of which the first prints."""

    def run(index: int, address: str) -> None:
        gdt.distributed.initialize(address, count, index, job="predicted")
        rows = compare(count, time.perf_counter, SIZES)
        gdt.distributed.shutdown()
        if not index:
            print_rows(rows)
            sys.stdout.flush()  # forks end without the interpreter

    run_forked(count, run)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--processes", type=int, default=1)
    count = parser.parse_args().processes
    with gdt.host_threads(1):
        if count > 1:
            run_processes(count)
        else:
            print_rows(compare(VIRTUAL_DEVICES, time.process_time, SIZES))


if __name__ == "__main__":
    launch(main)
