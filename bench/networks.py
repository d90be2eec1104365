"""Random networks in random layouts: dense layers, norms, attention, convolutions, gathers.

    python -m bench.networks                      # bytes of each, beside those that are recorded
    python -m bench.networks --before CHECKOUT    # beside those of another checkout of gdt
    python -m bench.networks --search 60          # beside the best of so many plans

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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import gdt
from bench.launch import launch

Array = Any
Parameters = Mapping[str, Array]
Layer = Callable[[Parameters, Array], Array]
Pins = dict[str | int, list[str | None]]

MESHES = (
    {"a": 2},
    {"a": 4},
    {"a": 8},
    {"a": 2, "b": 2},
    {"a": 4, "b": 2},
    {"a": 2, "b": 2, "c": 2},
)
RECORDED = Path(__file__).parent / "networks.json"
REDUCTIONS = (gdt.sum, gdt.mean, gdt.max, gdt.var, gdt.logsumexp)
ACTIVATIONS = (gdt.relu, gdt.tanh, gdt.gelu, gdt.sigmoid)


class Network:
    """A random network, its values on the host and the specs of their layouts."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.axes = MESHES[self.rng.integers(len(MESHES))]
        self.used = {*self.axes}  # by layouts
        self.values: dict[str, np.ndarray] = {}
        self.specs: dict[str, list[str | None]] = {}
        batch = int(self.rng.choice([16, 32, 50, 96, 256]))
        self.width = int(self.rng.choice([16, 24, 32, 60]))
        self.is_text = self.rng.random() < 0.3
        if self.is_text:
            self.tokens = self.rng.integers(0, 40, (batch // 8, 8))
            self._add("table", (40, self.width))
        else:
            self.tokens = self.rng.standard_normal((batch, self.width))
        self.token_specs = self._specs(self.tokens.ndim, 0.8)
        self.layers = [self._layer(n) for n in range(self.rng.integers(1, 5))]
        self.losses = [self._loss(n) for n in range(self.rng.integers(1, 4))]
        self.used = {axis for specs in (self.token_specs, *self.specs.values()) for axis in specs}

    def _specs(self, rank: int, often: float = 0.6) -> list[str | None]:
        """Random specs: each mesh axis splits one dim or none."""
        specs: list[str | None] = [None] * rank
        for axis in self.rng.permutation([a for a in self.axes if a in self.used]):
            dim = int(self.rng.integers(rank)) if rank else 0
            if rank and specs[dim] is None and self.rng.random() < often:
                specs[dim] = str(axis)
        return specs

    def _add(self, name: str, shape: tuple[int, ...]) -> str:
        """Add a parameter."""
        self.values[name] = self.rng.standard_normal(shape) / np.sqrt(shape[0])
        self.specs[name] = self._specs(len(shape))
        return name

    def _weight(self, n: int, rows: int, columns: int) -> str:
        """The name of a weight, which an earlier layer may have too."""
        shape = rows, columns
        shared = [k for k, v in self.values.items() if v.shape == shape]
        if shared and self.rng.random() < 0.3:
            return str(self.rng.choice(shared))
        return self._add(f"weight{n}.{len(self.values)}", shape)

    def _layer(self, n: int) -> Layer:
        kinds = [
            self._dense, self._bottleneck, self._norm, self._attention,
            self._scaled, self._convolution, self._reduction, self._gather,
        ]  # fmt: skip
        often = [0.2, 0.2, 0.15, 0.1, 0.05, 0.1, 0.1, 0.1]
        make = kinds[self.rng.choice(len(kinds), p=often)]
        layer, is_residual = make(n), self.rng.random() < 0.5
        return (lambda p, x: x + layer(p, x)) if is_residual else layer

    def _dense(self, n: int) -> Layer:
        w, b = self._weight(n, self.width, self.width), self._add(f"bias{n}", (self.width,))
        activation = ACTIVATIONS[self.rng.integers(len(ACTIVATIONS))]
        return lambda p, x: activation(x @ p[w] + p[b])

    def _bottleneck(self, n: int) -> Layer:
        inner = self.width * int(self.rng.choice([2, 4]))
        up, down = self._weight(n, self.width, inner), self._weight(n, inner, self.width)
        b = self._add(f"bias{n}", (inner,))
        activation = ACTIVATIONS[self.rng.integers(len(ACTIVATIONS))]
        return lambda p, x: activation(x @ p[up] + p[b]) @ p[down]

    def _norm(self, n: int) -> Layer:
        scale = self._add(f"scale{n}", (self.width,))

        def norm(p: Parameters, x: Array) -> Array:
            centered = x - gdt.mean(x, axis=-1, keepdims=True)
            variance = gdt.mean(centered * centered, axis=-1, keepdims=True)
            return centered / gdt.sqrt(variance + 1e-3) * p[scale]

        return norm

    def _attention(self, n: int) -> Layer:
        query, key = (
            self._weight(n, self.width, self.width),
            self._weight(n, self.width, self.width),
        )
        return lambda p, x: gdt.softmax((x @ p[query]) @ (x @ p[key]).mT / self.width) @ x

    def _scaled(self, n: int) -> Layer:
        scale = self._add(f"scale{n}", (self.width,))
        return lambda p, x: x * p[scale] * 0.5

    def _convolution(self, n: int) -> Layer:
        kernel = self._add(f"kernel{n}", (3, self.width, self.width))
        return lambda p, x: gdt.relu(gdt.convolution(x, p[kernel], padding="same"))

    def _reduction(self, n: int) -> Layer:
        axis = int(self.rng.choice([0, -1]))
        reduce = REDUCTIONS[self.rng.integers(len(REDUCTIONS))]
        return lambda p, x: gdt.tanh(x - reduce(x, axis=axis, keepdims=True))

    def _gather(self, n: int) -> Layer:
        axis = int(self.rng.choice([0, -1]))
        order = self.rng.permutation(self.tokens.shape[0] if axis == 0 else self.width)
        return lambda p, x: gdt.take(x, order, axis=axis)

    def _loss(self, n: int) -> Layer:
        if n == 0 and self.rng.random() < 0.5:
            head = self._weight(n, self.width, 20)
            labels = self.rng.integers(0, 20, self.tokens.shape[: 2 if self.is_text else 1])
            return lambda p, x: gdt.mean(
                gdt.sparse_softmax_cross_entropy_with_logits(
                    gdt.asarray(labels, layout=gdt.Layout([None] * labels.ndim, x.mesh)),
                    x @ p[head],
                )
            )
        if self.values and self.rng.random() < 0.3:
            name = str(self.rng.choice(list(self.values)))
            return lambda p, x: 0.01 * gdt.sum(p[name] * p[name])
        return lambda p, x: gdt.mean(x * x)

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

        def loss(p: Parameters) -> Array:
            p = {name: pinned(name, x) for name, x in p.items()}
            x = gdt.take(p["table"], tokens, axis=0) if self.is_text else tokens
            for n, layer in enumerate(self.layers):
                x = layer(p, pinned(n, x))
            total = self.losses[0](p, x)
            for other in self.losses[1:]:
                total = total + other(p, x)
            return total

        def run() -> Any:
            with gdt.GradientTape() as tape:
                value = loss(parameters)
            return value, tape.gradient(value, parameters, unconnected="zero")

        return run

    def shards(self, specs: Sequence[str | None]) -> int:
        """The number of shards into which an array of these specs is split."""
        return int(np.prod([self.axes[s] for s in specs if s]))

    @property
    def devices(self) -> int:
        return int(np.prod(list(self.axes.values())))


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, help="another checkout of gdt")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--search", type=int, help="the number of plans of each network")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.search:
        print(json.dumps([fewest(seed, options.search) for seed in range(options.count)]))
        return
    now = [sent(seed) for seed in range(options.count)]
    if options.json:
        print(json.dumps(now))
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
