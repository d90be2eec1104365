"""Four functions whose value and gradient are asked for, written against a namespace `xp`.

A function returns a scalar and a tuple of other results; the gradient is with respect to its dict
of parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bench.programs.program import (
    Array,
    Draw,
    Namespace,
    Program,
    column,
    normal,
    rows,
    series,
    uniform,
    weights,
)

PROGRAMS: dict[str, Program] = {}

Parameters = Mapping[str, Array]
Value = tuple[Array, tuple[Array, ...]]

FEATURES, HIDDEN, COMPONENTS, TIMES = 125, 64, 5, 10
LEAPFROG_STEPS, TIME_STEP = 2, 0.1  # torch.compile takes a minute for 3, more than 90 s for 5


def program(
    parameters: Mapping[str, Draw], *data: Draw
) -> Callable[[Callable[..., Value]], Callable[..., Value]]:
    """Make a function one of the programs; draws of its parameters by name, and of its data."""

    def register(run: Callable[..., Value]) -> Callable[..., Value]:
        name = run.__name__.replace("_", " ")
        PROGRAMS[name] = Program(name, run, [parameters, *data], has_gradient=True)
        return run

    return register


@program(
    {
        "scale": weights(FEATURES),
        "shift": weights(FEATURES),
        "w1": weights(FEATURES, HIDDEN),
        "b1": weights(HIDDEN),
        "w2": weights(HIDDEN, FEATURES),
        "b2": weights(FEATURES),
    },
    rows(FEATURES),
    rows(FEATURES),
)
def normalised_mlp_block(xp: Namespace, p: Parameters, x: Array, target: Array) -> Value:
    """A layer normalisation and two dense layers with GELU beside a residual; the mean square."""
    centred = x - xp.mean(x, axis=1, keepdims=True)
    variance = xp.mean(centred * centred, axis=1, keepdims=True)
    normal = centred / xp.sqrt(variance + 1e-5) * p["scale"] + p["shift"]
    h = normal @ p["w1"] + p["b1"]
    h = 0.5 * h * (1 + xp.tanh(0.7978845608 * (h + 0.044715 * h**3)))
    error = x + h @ p["w2"] + p["b2"] - target
    return xp.mean(error * error), ()


@program(
    {
        "logits": weights(COMPONENTS),
        "means": weights(COMPONENTS),
        "log_scales": weights(COMPONENTS),
    },
    column(COMPONENTS),
)
def mixture_density(xp: Namespace, p: Parameters, x: Array) -> Value:
    """The mean negative log-likelihood of a mixture of normal distributions. x: (n, 1)"""
    log_weights = p["logits"] - xp.log(xp.sum(xp.exp(p["logits"])))
    z = (x - p["means"]) * xp.exp(-p["log_scales"])
    joint = log_weights - p["log_scales"] - 0.5 * z * z - 0.9189385332
    largest = xp.max(joint, axis=1, keepdims=True)
    likelihood = xp.log(xp.sum(xp.exp(joint - largest), axis=1)) + largest[:, 0]
    return -xp.mean(likelihood), ()


@program(
    {"transition": weights(), "log_process": weights(), "log_noise": weights()},
    series(TIMES),
    series(TIMES, 0.5, 2),
)
def kalman_filter(xp: Namespace, p: Parameters, observed: Array, noise: Array) -> Value:
    """The negative log-likelihood of many series, each observed with a noise of its own, and the
    mean variance of the last state."""
    a = xp.tanh(p["transition"])
    process, scale = xp.exp(p["log_process"]), xp.exp(p["log_noise"])
    mean, variance, total = observed[0], noise[0], 0.0
    for t in range(1, TIMES):
        predicted = a * a * variance + process
        surprise = predicted + scale * noise[t]
        gain = predicted / surprise
        innovation = observed[t] - a * mean
        mean = a * mean + gain * innovation
        variance = (1 - gain) * predicted
        total = total + xp.log(surprise) + innovation * innovation / surprise
    return 0.5 * xp.mean(total), (xp.mean(variance),)


@program(
    {"position": normal(), "momentum": normal(), "stiffness": weights()},
    uniform(-1, 1),
)
def physics_loss(xp: Namespace, p: Parameters, target: Array) -> Value:
    """How far anharmonic oscillators are from a target after some steps, with their mean energy
    and mean square momentum."""
    q, momentum, stiffness = p["position"], p["momentum"], p["stiffness"]
    for _ in range(LEAPFROG_STEPS):
        momentum = momentum - 0.5 * TIME_STEP * (stiffness * q + 0.1 * q**3)
        q = q + TIME_STEP * momentum
        momentum = momentum - 0.5 * TIME_STEP * (stiffness * q + 0.1 * q**3)
    energy = 0.5 * momentum**2 + 0.5 * stiffness * q**2 + 0.025 * q**4
    return xp.mean((q - target) ** 2), (xp.mean(energy), xp.mean(momentum**2))
