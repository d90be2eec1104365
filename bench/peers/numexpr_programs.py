"""The programs of `bench.programs` that are expressions, in numexpr: it has neither `erf` nor
reductions along rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numexpr
import numpy as np

from bench.programs.arrays import (
    BETA1,
    BETA2,
    DECAY,
    EARTH_RADIUS,
    LEAPFROG_STEPS,
    LEARNING_RATE,
    LUMINANCE,
    MAP_STEPS,
    STEPS,
    TIME_STEP,
)
from bench.programs.program import Array, Program
from bench.programs.worker import Run, serve


def evaluate(expression: str, **names: Any) -> Array:
    """Evaluate an expression of arrays and of numbers in float32: literals would be float64."""
    values = {k: np.float32(v) if isinstance(v, float) else v for k, v in names.items()}
    return numexpr.evaluate(expression, local_dict=values, global_dict={})


def optimizer_update(w: Array, g: Array, m: Array, v: Array) -> tuple[Array, ...]:
    m = evaluate("b * m + c * g", b=BETA1, c=1 - BETA1, m=m, g=g)
    v = evaluate("b * v + c * g**2", b=BETA2, c=1 - BETA2, v=v, g=g)
    scales = {"s": 1 / (1 - BETA1**STEPS), "t": 1 / (1 - BETA2**STEPS)}
    numbers = {"e": 1e-8, "d": DECAY, "rate": LEARNING_RATE}
    text = "w - rate * (m * s / (sqrt(v * t) + e) + d * w)"
    return evaluate(text, w=w, m=m, v=v, **scales, **numbers), m, v


def masks(x: Array, y: Array) -> tuple[Array, ...]:
    filled = evaluate("where(abs(x) > 2, y, x)", x=x, y=y)
    text = "where(f < -h, a * f, where(f > h, f**2, f))"
    curve = evaluate(text, f=filled, h=0.5, a=0.1)
    both = evaluate("(x > 0) & (y > 0)", x=x, y=y)
    return evaluate("where(both, c, -c)", both=both, c=curve), np.mean(both, dtype=np.float32)


def logistic_map(rate: Array, x: Array) -> tuple[Array, ...]:
    for _ in range(MAP_STEPS):
        x = evaluate("rate * x * (1 - x)", rate=rate, x=x)
    return (x,)


def distances_on_a_sphere(p: Array, q: Array, r: Array, s: Array) -> tuple[Array, ...]:
    text = "d * arcsin(sqrt(sin((r - p) * h)**2 + cos(p) * cos(r) * sin((s - q) * h)**2))"
    return (evaluate(text, p=p, q=q, r=r, s=s, d=2 * EARTH_RADIUS, h=0.5),)


def robust_loss(p: Array, t: Array) -> tuple[Array, ...]:
    text = "sum(where(abs(p - t) <= 1, h * (p - t)**2, abs(p - t) - h))"
    return (evaluate(text, p=p, t=t, h=0.5) / p.size,)


def signal_chain(t: Array) -> tuple[Array, ...]:
    envelope = evaluate("exp(-h * t) * (1 + a * cos(7 * t))", t=t, h=0.5, a=0.3)
    text = "tanh(2 * (e * sin(10 * t + 2 * sin(3 * t)) + a * cos(20 * t)))"
    return evaluate(text, e=envelope, t=t, a=0.1), envelope


def oscillators(q: Array, p: Array, k: Array) -> tuple[Array, ...]:
    steps = {"d": TIME_STEP, "h": 0.5 * TIME_STEP}
    for _ in range(LEAPFROG_STEPS):
        p = evaluate("p - h * k * q", p=p, q=q, k=k, **steps)
        q = evaluate("q + d * p", p=p, q=q, **steps)
        p = evaluate("p - h * k * q", p=p, q=q, k=k, **steps)
    return q, p, evaluate("h * (p**2 + k * q**2)", p=p, q=q, k=k, h=0.5)


def grey_of_colours(*channels: Array) -> tuple[Array, ...]:
    numbers = {"a": 0.04045 * 255, "b": 1 / (255 * 12.92), "c": 0.055 * 255}
    numbers |= {"d": 1 / (255 * 1.055), "e": 2.4}
    text = "where(x <= a, x * b, ((x + c) * d)**e)"
    linear = [evaluate(text, x=x.astype(np.float32), **numbers) for x in channels]
    weights = dict(zip(("u", "v", "w"), LUMINANCE, strict=True))
    red, green, blue = linear
    y = evaluate("u * r + v * g + w * b", r=red, g=green, b=blue, **weights)
    numbers = {"a": 0.0031308, "s": 255 * 12.92, "c": 255 * 1.055, "d": 255 * 0.055}
    text = "where((r == 255) | (g == 255) | (b == 255), w, f + where(y <= a, s * y, c * y**e - d))"
    numbers |= {"e": 1 / 2.4, "f": 0.5, "w": 255.0}
    red, green, blue = channels
    return evaluate(text, r=red, g=green, b=blue, y=y, **numbers).astype(np.uint8), y


EXPRESSIONS: dict[str, Callable[..., tuple[Array, ...]]] = {
    function.__name__.replace("_", " "): function
    for function in (
        optimizer_update,
        masks,
        logistic_map,
        distances_on_a_sphere,
        robust_loss,
        signal_chain,
        oscillators,
        grey_of_colours,
    )
}


def prepare(program: Program, size: int) -> Run | None:
    """Return a program's call, None where it is no expression."""
    if program.name not in EXPRESSIONS:
        return None
    operands = [operand.values for operand in program.operands(size)]
    return lambda: EXPRESSIONS[program.name](*operands)


if __name__ == "__main__":
    serve({"numexpr": prepare}, {"numexpr": numexpr.__version__})
