"""Twelve programs of arrays, written against a namespace `xp` as NumPy, JAX and gdt have it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench.programs.program import (
    Array,
    Draw,
    Namespace,
    Program,
    integers,
    normal,
    rows,
    uniform,
)

PROGRAMS: dict[str, Program] = {}

RATE = 0.02  # of interest
BETA1, BETA2, STEPS = 0.9, 0.999, 10
LEARNING_RATE, DECAY = 1e-3, 1e-2
MAP_STEPS = 8  # torch.compile takes 15 s for 9, more than 90 s for 12
LEAPFROG_STEPS, TIME_STEP = 4, 0.05  # as few for its sake: a step makes its code four times as long
EARTH_RADIUS = 6371.0  # kilometres
LUMINANCE = (0.2126, 0.7152, 0.0722)  # of red, green and blue


def program(*draws: Draw) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a function one of the programs; draws: what its operands are drawn by."""

    def register(run: Callable[..., Any]) -> Callable[..., Any]:
        name = run.__name__.replace("_", " ")
        PROGRAMS[name] = Program(name, run, draws)
        return run

    return register


def normal_cdf(xp: Namespace, x: Array) -> Array:
    return 0.5 * (1 + xp.erf(x * 0.7071067811865476))


@program(uniform(50, 150), uniform(50, 150), uniform(0.1, 2), uniform(0.1, 0.5))
def option_prices(
    xp: Namespace, spot: Array, strike: Array, years: Array, volatility: Array
) -> tuple[Array, ...]:
    """Prices of calls and puts by Black and Scholes."""
    deviation = volatility * xp.sqrt(years)
    d1 = (xp.log(spot / strike) + (RATE + 0.5 * volatility**2) * years) / deviation
    d2 = d1 - deviation
    discounted = strike * xp.exp(-RATE * years)
    call = spot * normal_cdf(xp, d1) - discounted * normal_cdf(xp, d2)
    return call, call - spot + discounted


@program(rows())
def normalised_rows(xp: Namespace, x: Array) -> tuple[Array, ...]:
    centred = x - xp.mean(x, axis=1, keepdims=True)
    variance = xp.mean(centred * centred, axis=1, keepdims=True)
    return (centred / xp.sqrt(variance + 1e-5),)


@program(rows(scale=3))
def softmax_with_entropy(xp: Namespace, logits: Array) -> tuple[Array, ...]:
    shifted = logits - xp.max(logits, axis=1, keepdims=True)
    exponentials = xp.exp(shifted)
    total = xp.sum(exponentials, axis=1, keepdims=True)
    p = exponentials / total
    return p, xp.log(total[:, 0]) - xp.sum(p * shifted, axis=1)


@program(normal(), normal(0.1), normal(0.1), uniform(1e-3, 1e-1))
def optimizer_update(
    xp: Namespace, w: Array, gradient: Array, m: Array, v: Array
) -> tuple[Array, ...]:
    """A step of AdamW."""
    m = BETA1 * m + (1 - BETA1) * gradient
    v = BETA2 * v + (1 - BETA2) * gradient**2
    unbiased_m = m / (1 - BETA1**STEPS)
    unbiased_v = v / (1 - BETA2**STEPS)
    update = unbiased_m / (xp.sqrt(unbiased_v) + 1e-8) + DECAY * w
    return w - LEARNING_RATE * update, m, v


@program(normal(), normal())
def masks(xp: Namespace, x: Array, y: Array) -> tuple[Array, ...]:
    """Outliers replaced, a curve of three pieces, a sign by two conditions, and how often."""
    filled = xp.where(xp.abs(x) > 2, y, x)
    curve = xp.where(filled < -0.5, 0.1 * filled, xp.where(filled > 0.5, filled**2, filled))
    both = (x > 0) & (y > 0)
    return xp.where(both, curve, -curve), xp.mean(xp.astype(both, xp.float32))


@program(uniform(2, 3), uniform(0.1, 0.9))
def logistic_map(xp: Namespace, rate: Array, x: Array) -> tuple[Array, ...]:
    for _ in range(MAP_STEPS):
        x = rate * x * (1 - x)
    return (x,)


@program(uniform(-1.2, 1.2), uniform(0, 1.5), uniform(-1.2, 1.2), uniform(0, 1.5))
def distances_on_a_sphere(
    xp: Namespace, latitude1: Array, longitude1: Array, latitude2: Array, longitude2: Array
) -> tuple[Array, ...]:
    """Distances by haversines."""
    a = xp.sin((latitude2 - latitude1) / 2) ** 2
    b = xp.sin((longitude2 - longitude1) / 2) ** 2
    h = a + xp.cos(latitude1) * xp.cos(latitude2) * b
    return (2 * EARTH_RADIUS * xp.arcsin(xp.sqrt(h)),)


@program(normal(2), normal())
def robust_loss(xp: Namespace, predictions: Array, targets: Array) -> tuple[Array, ...]:
    """The mean of Huber's loss."""
    error = xp.abs(predictions - targets)
    return (xp.mean(xp.where(error <= 1, 0.5 * error**2, error - 0.5)),)


@program(uniform(0, 2))
def signal_chain(xp: Namespace, t: Array) -> tuple[Array, ...]:
    carrier = xp.sin(10 * t + 2 * xp.sin(3 * t))
    envelope = xp.exp(-0.5 * t) * (1 + 0.3 * xp.cos(7 * t))
    mixed = envelope * carrier + 0.1 * xp.cos(20 * t)
    return xp.tanh(2 * mixed), envelope


@program(rows(scale=2))
def standardised_polynomial(xp: Namespace, x: Array) -> tuple[Array, ...]:
    """Columns standardised and clipped, and a polynomial of them."""
    z = xp.clip((x - xp.mean(x, axis=0)) / xp.std(x, axis=0), -3, 3)
    return (0.5 + z * (1.2 + z * (-0.3 + z * 0.05)),)


@program(normal(), normal(), uniform(0.5, 2))
def oscillators(
    xp: Namespace, position: Array, momentum: Array, stiffness: Array
) -> tuple[Array, ...]:
    """Leapfrog steps of independent oscillators, and their energies."""
    for _ in range(LEAPFROG_STEPS):
        momentum = momentum - 0.5 * TIME_STEP * stiffness * position
        position = position + TIME_STEP * momentum
        momentum = momentum - 0.5 * TIME_STEP * stiffness * position
    return position, momentum, 0.5 * (momentum**2 + stiffness * position**2)


@program(integers(256), integers(256), integers(256))
def grey_of_colours(xp: Namespace, red: Array, green: Array, blue: Array) -> tuple[Array, ...]:
    """Luminance of pixels in sRGB, and grey pixels of it; saturated pixels are white."""
    luminance = 0.0
    for channel, weight in zip((red, green, blue), LUMINANCE, strict=True):
        c = xp.astype(channel, xp.float32) / 255
        linear = xp.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)
        luminance = luminance + weight * linear
    display = xp.where(
        luminance <= 0.0031308, 12.92 * luminance, 1.055 * luminance ** (1 / 2.4) - 0.055
    )
    saturated = (red == 255) | (green == 255) | (blue == 255)
    return xp.where(saturated, 255, xp.astype(255 * display + 0.5, xp.uint8)), luminance
