"""The training steps in JAX: jit on one device, and over 8 host devices with each scheme."""

import math
from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from bench import worker
from bench.workloads import ADAM_EPSILON, BETA1, BETA2, EPSILON, MNIST, Workload

Parameters = list[jax.Array]


def log_likelihoods(logits: jax.Array, labels: jax.Array) -> jax.Array:
    return jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1)


def mnist_loss(parameters: Parameters, x: jax.Array, labels: jax.Array) -> jax.Array:
    *hidden, (w, b) = zip(parameters[::2], parameters[1::2], strict=True)
    for w_hidden, b_hidden in hidden:
        x = jax.nn.relu(x @ w_hidden + b_hidden)
    return -log_likelihoods(x @ w + b, labels).mean()


def imdb_loss(parameters: Parameters, x: jax.Array, labels: jax.Array) -> jax.Array:
    w0, b0, w1, b1 = parameters
    h = jax.nn.relu(x @ w0 + b0)
    normal = (h - h.mean(axis=0)) * jax.lax.rsqrt(h.var(axis=0) + EPSILON)
    return -log_likelihoods(normal @ w1 + b1, labels).sum()


State = tuple[Parameters, Parameters, Parameters, jax.Array]


@partial(jax.jit, static_argnums=3, donate_argnums=0)
def adam_step(
    state: State, x: jax.Array, labels: jax.Array, learning_rate: float
) -> tuple[State, jax.Array]:
    parameters, m, v, count = state
    loss, gradients = jax.value_and_grad(mnist_loss)(parameters, x, labels)
    count = count + 1
    m = [BETA1 * a + (1 - BETA1) * g for a, g in zip(m, gradients, strict=True)]
    v = [BETA2 * a + (1 - BETA2) * g * g for a, g in zip(v, gradients, strict=True)]
    # expm1 keeps 1 - beta**count exact in float32.
    unbias1 = -1 / jnp.expm1(count * np.log(BETA1))
    unbias2 = -1 / jnp.expm1(count * np.log(BETA2))
    parameters = [
        p - learning_rate * (a * unbias1) / (jnp.sqrt(b * unbias2) + ADAM_EPSILON)
        for p, a, b in zip(parameters, m, v, strict=True)
    ]
    return (parameters, m, v, count), loss


@partial(jax.jit, static_argnums=3, donate_argnums=0)
def sgd_step(
    parameters: Parameters, x: jax.Array, labels: jax.Array, learning_rate: float
) -> tuple[Parameters, jax.Array]:
    loss, gradients = jax.value_and_grad(imdb_loss)(parameters, x, labels)
    updated = [p - learning_rate * g for p, g in zip(parameters, gradients, strict=True)]
    return updated, loss


def contender(
    mesh_axes: dict[str, int], x_spec: P, parameter_specs: Sequence[P]
) -> Callable[[Workload], worker.Start]:
    """Return the contender on a mesh; the last of `parameter_specs` stands for all that follow."""

    def build(workload: Workload) -> worker.Start:
        jax.config.update("jax_default_matmul_precision", "highest")  # on GPUs tf32 otherwise
        jax.config.update("jax_num_cpu_devices", math.prod(mesh_axes.values()))
        mesh = jax.make_mesh(
            tuple(mesh_axes.values()),
            tuple(mesh_axes),
            axis_types=(jax.sharding.AxisType.Auto,) * len(mesh_axes),
        )
        weights = workload.weights()
        rest = [parameter_specs[-1]] * (len(weights) - len(parameter_specs))
        shardings = [NamedSharding(mesh, spec) for spec in [*parameter_specs, *rest]]
        rows = NamedSharding(mesh, P(x_spec[0]))
        batches = [
            (jax.device_put(x, NamedSharding(mesh, x_spec)), jax.device_put(labels, rows))
            for x, labels in workload.batches()
        ]
        train = adam_step if workload is MNIST else sgd_step

        def start() -> worker.Step:
            parameters = [jax.device_put(w, s) for w, s in zip(weights, shardings, strict=True)]
            state = parameters
            if workload is MNIST:
                count = jax.device_put(jnp.float32(0), NamedSharding(mesh, P()))
                state = (
                    parameters,
                    *(jax.tree.map(jnp.zeros_like, parameters) for _ in "mv"),
                    count,
                )

            def step(index: int) -> jax.Array:
                nonlocal state
                x, labels = batches[index % len(batches)]
                state, loss = train(state, x, labels, workload.learning_rate)
                return loss

            return step

        return start

    return build


MODEL = [P(None, "model"), P("model"), P("model", None), P()]
SPATIAL = [P("feature", "model"), P("model"), P("model", None), P()]
CONTENDERS = {
    "one-device": contender({"batch": 1}, P("batch"), [P()]),
    "data": contender({"batch": 8}, P("batch"), [P()]),
    "model": contender({"batch": 4, "model": 2}, P("batch"), MODEL),
    "spatial": contender({"batch": 2, "feature": 2, "model": 2}, P("batch", "feature"), SPATIAL),
}

if __name__ == "__main__":
    worker.serve(CONTENDERS, {"jax": jax.__version__})
