"""The kernels of `bench.gpu.kernels` in JAX, compiled by `jax.jit`.

The program reads cases from standard input, as JSON, and prints a line of JSON for each: seconds,
or the failure. The time of a call ends when its result is ready; several calls are timed together,
which makes the host's share small.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

REPEATS, CALLS = 5, 10

Run = Callable[[], Any]


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    picked = jnp.take_along_axis(logits, labels[:, None], axis=1)[:, 0].astype(jnp.float32)
    return jnp.sum(jax.nn.logsumexp(logits.astype(jnp.float32), axis=1) - picked)


def attention(*heads: jax.Array) -> jax.Array:
    """Attention of (heads, positions, features)."""
    return jax.nn.dot_product_attention(*[x.swapaxes(0, 1)[None] for x in heads])[0].swapaxes(0, 1)


def attention_and_gradient(*arrays: jax.Array) -> Any:
    *operands, g = arrays
    out, pull = jax.vjp(attention, *operands)
    return out, pull(g)


def gradient(x: jax.Array, dy: jax.Array, mean: jax.Array, rstd: jax.Array) -> jax.Array:
    normal = (x - mean) * rstd
    return rstd * (dy - dy.mean(0) - normal * (dy * normal).mean(0))


def adam(p: Any, m: Any, v: Any, g: Any) -> Any:
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    return p - 1e-3 * m / (jnp.sqrt(v) + 1e-7), m, v


def momentum(p: Any, m: Any, g: Any) -> Any:
    m = 0.9 * m + g
    return p - 0.1 * m, m


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "matmul": jnp.matmul,
    "attention": attention,
    "attention and gradient": attention_and_gradient,
    "batch norm: moments": lambda x: (x.mean(0), x.var(0)),
    "batch norm: apply": lambda x, mean, rstd: (x - mean) * rstd,
    "batch norm: gradient": gradient,
    "cross-entropy and gradient": jax.value_and_grad(cross_entropy),
    "sgd": lambda p, g: p - 0.1 * g,
    "momentum": momentum,
    "adam": adam,
    "sum of rows": lambda x: x.sum(1),
}
ARRAYS = {  # of the case's shape
    "attention": 3, "attention and gradient": 4, "sgd": 2, "momentum": 3, "adam": 4,
    "batch norm: gradient": 2,
}  # fmt: skip


def operands(kernel: str, dtype: str, shape: list[int]) -> list[jax.Array]:
    element = jnp.dtype({"tf32": "float32"}.get(dtype, dtype))
    draw = lambda *sizes: jax.random.normal(jax.random.key(0), sizes).astype(element)
    if kernel == "matmul":
        m, n, k = shape
        return [draw(m, k), draw(k, n)]
    if kernel == "cross-entropy and gradient":
        return [draw(*shape), jnp.arange(shape[0]) % shape[1]]
    arrays = [jnp.abs(draw(*shape)) for _ in range(ARRAYS.get(kernel, 1))]
    if kernel in ("batch norm: apply", "batch norm: gradient"):
        arrays += [draw(shape[1]), draw(shape[1])]
    return arrays


def seconds(kernel: str, dtype: str, shape: list[int]) -> float:
    precision = "tensorfloat32" if dtype == "tf32" else "highest"
    with jax.default_matmul_precision(precision):
        if kernel in ("uniform", "normal"):
            draw = jax.jit(getattr(jax.random, kernel), static_argnums=(1, 2))
            key, element = jax.random.key(0), jnp.dtype(dtype)
            run: Run = lambda: draw(key, tuple(shape), element)
        else:
            function, arrays = jax.jit(FUNCTIONS[kernel]), operands(kernel, dtype, shape)
            run = lambda: function(*arrays)
        jax.block_until_ready(run())
        times = []
        for _ in range(REPEATS):
            began = time.perf_counter()
            jax.block_until_ready([run() for _ in range(CALLS)])
            times.append((time.perf_counter() - began) / CALLS)
    return min(times)


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    for case in json.load(sys.stdin):
        answer = {"name": case["name"]}
        try:
            taken = seconds(case["kernel"], case["dtype"], case["shape"])
            answer["seconds"] = {"JAX jit": taken}
        except Exception as problem:  # the other cases are measured all the same
            answer["failure"] = f"{type(problem).__name__}: {str(problem)[-500:]}"
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
