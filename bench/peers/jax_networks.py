"""The bytes that JAX sends for steps of random networks: prints a list of them, in JSON.

    .venv-jax/bin/python -m bench.peers.jax_networks COUNT

The collectives are those of the program that XLA compiles for as many host devices, of the
gradients in the layouts of the parameters; their bytes are what all devices send by rings. Null
is for networks whose shards are not of one size, which JAX refuses, and for those of which no loss
reads the layers, which XLA leaves out.
"""

import json
import math
import os
import re
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from bench.random_network import RandomNetwork

BITS = re.compile(r"\b(?:pred|[a-z]+?(\d+))\[([\d,]*)\]")
COLLECTIVE = re.compile(
    r"= (?P<result>.*?) (?P<kind>all-gather|all-reduce|reduce-scatter|all-to-all|"
    r"collective-permute)(?:-start)?\("
)


class Library:
    """The functions of gdt that networks call, of JAX."""

    relu, tanh, sigmoid, softmax = jax.nn.relu, jnp.tanh, jax.nn.sigmoid, jax.nn.softmax
    gelu = partial(jax.nn.gelu, approximate=False)
    sum, mean, max, var = jnp.sum, jnp.mean, jnp.max, jnp.var
    sqrt, take, logsumexp = jnp.sqrt, jnp.take, jax.nn.logsumexp

    @staticmethod
    def convolution(x: jax.Array, kernel: jax.Array, padding: str) -> jax.Array:
        batch = x if x.ndim == 3 else x[None]
        out = jax.lax.conv_general_dilated(
            batch, kernel, (1,), padding.upper(), dimension_numbers=("NWC", "WIO", "NWC")
        )
        return out if x.ndim == 3 else out[0]

    @staticmethod
    def sparse_softmax_cross_entropy_with_logits(labels: Any, logits: jax.Array) -> jax.Array:
        logs = jax.nn.log_softmax(logits)
        return -jnp.take_along_axis(logs, jnp.asarray(labels)[..., None], axis=-1)[..., 0]


def compiled_text(network: RandomNetwork) -> str:
    """Return the text of the program that the devices run for a step."""
    devices = np.array(jax.devices()[: network.devices]).reshape([*network.axes.values()])
    mesh = jax.sharding.Mesh(devices, tuple(network.axes))

    def layout(specs: Any) -> NamedSharding:
        return NamedSharding(mesh, P(*specs))

    def loss(parameters: dict[str, jax.Array], tokens: jax.Array) -> jax.Array:
        value: jax.Array = network.loss(parameters, tokens, lambda _, x: x)
        return value

    layouts = {name: layout(network.specs[name]) for name in network.values}
    inputs = (layouts, layout(network.token_specs))
    step = jax.jit(
        jax.value_and_grad(loss), in_shardings=inputs, out_shardings=(layout(()), layouts)
    )
    return step.lower(network.values, network.tokens).compile().as_text() or ""


def sent_nbytes(text: str, devices: int) -> Iterator[int]:
    """Yield the bytes that all devices together send for each collective of a compiled program."""
    for line in text.splitlines():
        if (found := COLLECTIVE.search(line)) is None:
            continue
        sizes = [
            math.prod(map(int, filter(None, dims.split(",")))) * (int(bits or 8) // 8)
            for bits, dims in BITS.findall(found["result"])
        ]
        nbytes, kind = sum(sizes), found["kind"]
        if kind == "collective-permute":
            pairs = re.findall(r"{(\d+),(\d+)}", line.split("source_target_pairs=")[1])
            yield nbytes * sum(a != b for a, b in pairs)
            continue
        p = group_size(line)
        if kind == "reduce-scatter":
            yield devices * (p - 1) * nbytes
        else:  # the sizes are those of what a device has afterwards
            yield devices * (1 + (kind == "all-reduce")) * (p - 1) * nbytes // p


def group_size(line: str) -> int:
    """Return how many devices take part together in a collective, of the notations that XLA has."""
    groups = line.split("replica_groups=")[1]
    if (found := re.match(r"\[\d+,(\d+)\]", groups)) is not None:
        return int(found[1])
    if (found := re.match(r"{{([\d,]+)}", groups)) is not None:
        return found[1].count(",") + 1
    # mesh['x'=2,'y'=4] {'y'}, or {'y':(1)2} for a part of an axis
    found = re.match(r"mesh\[(.*?)\].*? {(.*?)}", groups)
    assert found is not None, line
    sizes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", found[1])}
    axes = re.findall(r"'(\w+)'(?::\(\d+\)(\d+))?", found[2])
    return math.prod(int(part) if part else sizes[name] for name, part in axes)


def is_even(network: RandomNetwork) -> bool:
    """Return whether all shards of arguments and gradients are of one size, as JAX asks."""
    arrays = [(network.tokens, network.token_specs)]
    arrays += [(value, network.specs[name]) for name, value in network.values.items()]
    return all(
        spec is None or size % network.axes[spec] == 0
        for value, specs in arrays
        for size, spec in zip(value.shape, specs, strict=True)
    )


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    sent: list[int | None] = []
    for seed in range(int(sys.argv[1])):
        network = RandomNetwork(seed, Library)
        is_comparable = network.reads_layers and is_even(network)
        text = compiled_text(network) if is_comparable else None
        sent.append(None if text is None else sum(sent_nbytes(text, network.devices)))
    print(json.dumps(sent))


if __name__ == "__main__":
    main()
