"""The step of `bench.gpt` in JAX: jit over 8 host devices, each with a part of the batch.

    echo | python -m bench.peers.jax_gpt FILE data

FILE holds the weights, by gdt's names of them, tokens, targets and the number of heads. For each
line on standard input a step is taken: its loss, and the milliseconds of the processor.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from bench.workloads import ADAM_EPSILON, BETA1, BETA2

Weights = dict[str, jax.Array]
State = tuple[Weights, Weights, Weights, jax.Array]

DEVICES, LEARNING_RATE, NORM_EPSILON = 8, 1e-3, 1e-5


def normalized(weights: Weights, name: str, x: jax.Array) -> jax.Array:
    deviation = jnp.sqrt(x.var(-1, keepdims=True) + NORM_EPSILON)
    normal = (x - x.mean(-1, keepdims=True)) / deviation
    return normal * weights[f"{name}.scale"] + weights[f"{name}.offset"]


def attention(weights: Weights, name: str, x: jax.Array, heads: int) -> jax.Array:
    def project(part: str, x: jax.Array) -> jax.Array:
        return x @ weights[f"{name}.{part}_weight"] + weights[f"{name}.{part}_bias"]

    parts = [project(part, x) for part in ("query", "key", "value")]
    q, k, v = [
        y.reshape(*y.shape[:2], heads, -1) for y in parts
    ]  # (batch, tokens, heads, features)
    y = jax.nn.dot_product_attention(q, k, v, is_causal=True)
    return project("output", y.reshape(x.shape))


def loss_of(weights: Weights, tokens: jax.Array, targets: jax.Array, heads: int) -> jax.Array:
    x = weights["table.weight"][tokens] + weights["positions.weight"]
    for n in itertools.count():
        name = f"blocks.{n}"
        if f"{name}.up.weight" not in weights:
            break
        x = x + attention(
            weights, f"{name}.attention", normalized(weights, f"{name}.norm1", x), heads
        )
        y = normalized(weights, f"{name}.norm2", x) @ weights[f"{name}.up.weight"]
        y = jax.nn.gelu(y + weights[f"{name}.up.bias"], approximate=False)
        x = x + y @ weights[f"{name}.down.weight"] + weights[f"{name}.down.bias"]
    logits = normalized(weights, "norm", x) @ weights["table.weight"].T
    likelihoods = jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], axis=-1)
    return -likelihoods.mean()


@partial(jax.jit, static_argnums=3, donate_argnums=0)
def train(
    state: State, tokens: jax.Array, targets: jax.Array, heads: int
) -> tuple[State, jax.Array]:
    weights, m, v, count = state
    loss, gradients = jax.value_and_grad(loss_of)(weights, tokens, targets, heads)
    count = count + 1
    m = jax.tree.map(lambda a, g: BETA1 * a + (1 - BETA1) * g, m, gradients)
    v = jax.tree.map(lambda a, g: BETA2 * a + (1 - BETA2) * g * g, v, gradients)
    rate = LEARNING_RATE / (1 - BETA1**count)
    unbias = 1 / (1 - BETA2**count)
    weights = jax.tree.map(
        lambda w, a, b: w - rate * a / (jnp.sqrt(b * unbias) + ADAM_EPSILON), weights, m, v
    )
    return (weights, m, v, count), loss


def main(path: str) -> None:
    """Answer every line of standard input with a step."""
    jax.config.update("jax_num_cpu_devices", DEVICES)
    mesh = jax.make_mesh((DEVICES,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    with np.load(path) as file:
        arrays: dict[str, Any] = dict(file)
    heads = int(arrays.pop("heads"))
    rows, whole = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
    tokens, targets = (jax.device_put(arrays.pop(name), rows) for name in ("tokens", "targets"))
    weights = jax.device_put(arrays, whole)
    moments = [jax.tree.map(jnp.zeros_like, weights) for _ in "mv"]
    state = weights, *moments, jax.device_put(jnp.float32(0), whole)
    print(json.dumps({"versions": {"jax": jax.__version__}}), flush=True)
    for _ in sys.stdin:
        begin = time.process_time()
        state, loss = train(state, tokens, targets, heads)
        value = float(loss)
        ms = (time.process_time() - begin) * 1e3
        print(json.dumps({"loss": value, "ms": [ms]}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
