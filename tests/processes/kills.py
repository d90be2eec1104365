"""Kills at random moments: `python -m tests.processes.kills --over mpi --count 100`.

Processes train until one of them is killed, or stopped; all must end within ten seconds, and the
others must name it. Prints how many did.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import gdt
from gdt import Layout
from gdt.comm.messages import Messages
from gdt.comm.notes import connected

from .forks import Forked, ForkedUnderMpi

PROMISED = 10.0  # seconds after which a process that dies has ended the others
WAYS = ("sockets", "mpi", "mpi with a shell")
STUCK = "mpi that is stuck"
TIMEOUT = 5.0  # seconds, of `initialize`


class Count(NamedTuple):
    """How many kills there were, after how many all ended in time, and in how many a survivor named
    the process; the longest time that it took."""

    kills: int
    ended: int
    named: int
    longest: float


def train(is_stuck: Callable[[Messages], bool] = lambda messages: False) -> None:
    """Train until somebody dies; print a line when the processes are connected.

    is_stuck: whether MPI returns no more from the process of these messages.
    """
    gdt.distributed.initialize(timeout=TIMEOUT)
    mesh = gdt.create_mesh([("batch", gdt.distributed.process_count())])
    x = gdt.asarray(np.arange(60.0).reshape(15, 4), layout=Layout(["batch", None], mesh))
    weights = {"w": gdt.ones(4, layout=Layout([None], mesh))}
    optimizer = gdt.optim.SGD(1e-6)

    @gdt.function
    def step(x: gdt.DistributedArray) -> gdt.DistributedArray:
        value, gradients = gdt.value_and_grad(lambda p: gdt.sum((x @ p["w"]) ** 2.0))(weights)
        optimizer.update(weights, gradients)
        return value

    print("ready", flush=True)
    messages: Any = connected()
    if is_stuck(messages):
        messages.mpi = messages.mpi._replace(world=StuckWorld(messages.mpi.world))
    while True:
        float(step(x))
        x.numpy()


class StuckWorld:
    """A communicator of MPI which never returns from a look for messages, as MPI does when a
    process has died while it put one into a queue."""

    def __init__(self, world: Any) -> None:
        self.world = world

    def __getattr__(self, name: str) -> Any:
        return getattr(self.world, name)

    def Improbe(self, *_: Any) -> None:  # the name that mpi4py gives it
        while True:
            time.sleep(1.0)


def train_stuck() -> None:
    """As `train`, but process 1 waits in MPI without an end once it is ready."""
    train(lambda messages: messages.index == 1)


def started(over: str, count: int, program: Callable[[], Any] = train) -> Forked:
    """Processes that run a program."""
    if over == "sockets":
        return Forked(count, program)
    if over == STUCK:
        program = train_stuck
    return ForkedUnderMpi(count, program, is_wrapped=over != WAYS[1])


def kill(processes: Forked, victim: int, kind: int, after: float) -> float | None:
    """Kill or stop a process some seconds after all are ready; the seconds until all others have
    ended, None if they have not in time."""
    end = time.monotonic() + 60.0
    while any("ready" not in processes.text(i) for i in range(len(processes.pids))):
        assert time.monotonic() < end and len(processes.are_running()) == len(processes.pids), [
            processes.text(i) for i in range(len(processes.pids))
        ]
        time.sleep(0.005)
    time.sleep(after)
    began = time.monotonic()
    os.kill(processes.pids[victim], kind)
    if kind == signal.SIGSTOP:
        while processes.are_running() != [victim]:
            if time.monotonic() - began > PROMISED:
                return None
            time.sleep(0.005)
        return time.monotonic() - began
    return processes.wait(PROMISED)


def kills(over: str, count: int, seed: int, kind: int = signal.SIGKILL) -> Count:
    """Kill a process of three at random moments, `count` times."""
    rng, times, named = random.Random(seed), [], 0
    for _ in range(count):
        processes, victim = started(over, 3), 0 if over == STUCK else rng.randrange(3)
        try:
            seconds = kill(processes, victim, kind, rng.uniform(0.0, 0.3))
            texts = [processes.text(i) for i in range(3) if i != victim]
        finally:
            processes.end()
        named += (all if over == STUCK else any)(f"process {victim} (host" in t for t in texts)
        if seconds is None:
            print("\n".join(texts), file=sys.stderr)
        else:
            times.append(seconds)
    return Count(count, len(times), named, max(times, default=0.0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--over", choices=(*WAYS, STUCK), default="sockets")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stop", action="store_true", help="stop processes, and kill none")
    options = parser.parse_args()
    kind = signal.SIGSTOP if options.stop else signal.SIGKILL
    found = kills(options.over, options.count, options.seed, kind)
    print(
        f"{options.over}: {found.kills} processes {'stopped' if options.stop else 'killed'}, "
        f"after {found.ended} the others ended, at the latest after {found.longest:.2f} s; "
        f"{found.named} were named"
    )
    # Without a shell in between, mpiexec kills the others before they can say why they end.
    named = found.named if options.over != WAYS[1] else found.kills
    sys.exit(found.ended < found.kills or named < found.kills)


if __name__ == "__main__":
    main()
