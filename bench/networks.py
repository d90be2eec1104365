"""Random networks in random layouts: dense layers, norms, attention, convolutions, gathers.

    python -m bench.networks                      # bytes of each, beside those that are recorded
    python -m bench.networks --before CHECKOUT    # beside those of another checkout of gdt
    python -m bench.networks --search 60          # the fewest of so many plans, in JSON
    python -m bench.networks --jax                # beside those of JAX, after `make peers`

A network is a seed: the same seed gives the same network, values and layouts. `networks.json` holds
the bytes that were sent when it was written, and the fewest that a search of 30 plans has found:
random layouts of parameters and of what enters each layer, then changes of the best.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import gdt
from bench.launch import launch
from bench.random_network import Array, RandomNetwork

Pins = dict[str | int, list[str | None]]

RECORDED = Path(__file__).parent / "networks.json"


class Network(RandomNetwork):
    """A random network of gdt's functions."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, gdt)

    def labels(self, labels: np.ndarray, x: Array) -> Array:
        return gdt.asarray(labels, layout=gdt.Layout([None] * labels.ndim, x.mesh))

    def step(
        self, blocks: int = 1, *, one_device: bool = False, pins: Pins | None = None
    ) -> Callable[[], Any]:
        """Loss and gradients, of a function of nothing.

        blocks: the number of blocks that store the coordinates. pins: the specs to which
            parameters, by name, and what enters layers, by number, are moved first.
        """
        pins = pins or {}
        axes = dict.fromkeys(self.axes, 1) if one_device else self.axes
        mesh = gdt.create_mesh(axes, blocks=1 if one_device else blocks, device_type="CPU")
        parameters = {
            k: gdt.asarray(v, layout=gdt.Layout(self.specs[k], mesh))
            for k, v in self.values.items()
        }
        tokens = gdt.asarray(self.tokens, layout=gdt.Layout(self.token_specs, mesh))

        def pinned(at: str | int, x: Array) -> Array:
            return gdt.relayout(x, pins[at]) if at in pins else x

        def run() -> Any:
            with gdt.GradientTape() as tape:
                value = self.loss(parameters, tokens, pinned)
            return value, tape.gradient(value, parameters, unconnected="zero")

        return run


def sent(seed: int, pins: Pins | None = None) -> int:
    """The bytes that a step of a network sends."""
    run = Network(seed).step(pins=pins)
    with gdt.count_collectives() as counter:
        run()
    return counter.bytes


def fewest(seed: int, tries: int) -> int:
    """The fewest bytes that a step sends under `tries` plans.

    Every plan splits what enters a layer into at least as many shards as the batch is split into,
    and parameters as those are split: gathered once and for all, an array sends the least, where
    every device computes the same, and holds everything.
    """
    network, rng = Network(seed), np.random.default_rng(seed)
    least = {name: network.shards(specs) for name, specs in network.specs.items()}
    ranks: dict[str | int, int] = {name: x.ndim for name, x in network.values.items()}
    for n in range(len(network.layers)):
        ranks[n], least[n] = 3 if network.is_text else 2, network.shards(network.token_specs)
    network.rng = rng

    def pin(at: str | int) -> list[str | None]:
        while network.shards(specs := network._specs(ranks[at], 0.7)) < least[at]:
            pass
        return specs

    best, best_pins = sent(seed), Pins()
    for number in range(tries):
        if 2 * number < tries:
            pins = {at: pin(at) for at in ranks if rng.random() < 0.4}
        else:
            at = list(ranks)[rng.integers(len(ranks))]
            pins = {**best_pins, at: pin(at)}
        nbytes = sent(seed, pins)
        if nbytes < best:
            best, best_pins = nbytes, pins
    return best


def elsewhere(checkout: Path, count: int) -> list[int]:
    """What the networks send with the gdt of another checkout."""
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    command = [sys.executable, __file__, "--count", str(count), "--json"]
    output = subprocess.run(command, env=environment, check=True, capture_output=True).stdout
    sent_there: list[int] = json.loads(output)
    return sent_there


def beside_jax(now: list[int]) -> str:
    """A comparison of bytes with those that JAX sends for the same networks.

    XLA has no reduce-scatter on CPUs: it sends all-reduces in their place, twice the bytes.
    """
    command = [".venv-jax/bin/python", "-m", "bench.peers.jax_networks", str(len(now))]
    there = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    ratios = {
        seed: nbytes / max(theirs, 1)
        for seed, (nbytes, theirs) in enumerate(zip(now, there, strict=True))
        if theirs is not None
    }
    above = sorted((seed for seed, r in ratios.items() if r > 1.5), key=lambda n: -ratios[n])
    most = [f"seed {n}: {there[n]:,} -> {now[n]:,}: {ratios[n]:.2f}" for n in above]
    return (
        f"{len(ratios)} of {len(now)} networks are comparable; gdt sends "
        f"{median(ratios.values()):.2f} of its bytes in the median, more in "
        f"{sum(r > 1 for r in ratios.values())}, more than 1.5 times as many in {len(above)}"
        + "".join(f"\n{line}" for line in most)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, help="another checkout of gdt")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--search", type=int, help="the number of plans of each network")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--jax", action="store_true", help="beside JAX's programs, compiled")
    options = parser.parse_args()
    if options.search:
        print(json.dumps([fewest(seed, options.search) for seed in range(options.count)]))
        return
    now = [sent(seed) for seed in range(options.count)]
    if options.json:
        print(json.dumps(now))
        return
    if options.jax:
        print(beside_jax(now))
        return
    if options.before:
        before = elsewhere(options.before, options.count)
    else:
        before = json.loads(RECORDED.read_text())["sent"][: options.count]
    ratios = [n / max(b, 1) for n, b in zip(now, before, strict=True)]
    print(f"{sum(before):,} bytes before, {sum(now):,} now: {sum(now) / sum(before):.3f}")
    print(f"more than 1.2 times as many: {sum(r > 1.2 for r in ratios)} of {len(ratios)}")
    for seed in sorted(range(len(ratios)), key=lambda n: -ratios[n])[:20]:
        print(f"seed {seed}: {before[seed]:,} -> {now[seed]:,}: {ratios[seed]:.2f}")


if __name__ == "__main__":
    launch(main)
