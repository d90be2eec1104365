"""Random chains of element-wise ops, recorded and as written: the bits must be the same.

    python -m tests.programs.fused_chains --chains 5000

A chain takes a few arrays of random dtypes, shapes that broadcast and layouts, among their elements
zeros of both signs, infinities, NaN and denormal numbers, applies random ops and reductions to
random results so far, and returns some of them and sums of others.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import gdt
from gdt.engine import blocks as blocks_of_plans
from gdt.errors import GdtError
from gdt.fusion import reducing
from gdt.ops.blocks import sums
from gdt.programs import fusing
from gdt.programs.function import Function

UNARY = [
    "negative",
    "square",
    "sqrt",
    "reciprocal",
    "abs",
    "rint",
    "sign",
    "exp",
    "expm1",
    "log",
    "log1p",
    "tanh",
    "sin",
    "cos",
    "floor",
    "isnan",
    "isinf",
    "isfinite",
    "logical_not",
    "erf",
    "sigmoid",
    "relu",
    "softplus",
    "leaky_relu",
    "elu",
    "silu",
    "gelu",
]
BINARY = [
    "add",
    "subtract",
    "multiply",
    "divide",
    "maximum",
    "minimum",
    "less",
    "less_equal",
    "greater",
    "equal",
    "not_equal",
    "copysign",
    "power",
    "logical_and",
    "bitwise_xor",
    "hypot",
]
REDUCTIONS = [
    "sum",
    "mean",
    "max",
    "min",
    "var",
    "std",
    "softmax",
    "log_softmax",
    "logsumexp",
]
DTYPES = ["f4", "f4", "f4", "f4", "f8", "f8", "i4", "b1", "u1", "i8"]
SHAPES = [(9000,), (70, 90), (3, 17, 40), (2, 3, 5, 30), (1, 500), (0, 7), (1,), (99, 2)]
REDUCED_SHAPES = [(70, 90), (40, 300), (3, 17, 40), (8, 3, 2, 33), (4099,)]
ODD = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-45, 3e38, 1.0, -1.0, 40000.0]


def _mesh(blocks: int) -> gdt.Mesh:
    return gdt.create_mesh([("rows", 2), ("columns", 2)], blocks=blocks, mesh_name="fused")


def random_array(
    rng: np.random.Generator, shape: tuple[int, ...], blocks: int, reduces: bool
) -> Any:
    """An array of a random dtype and layout; of a chain that reduces mostly whole floats."""
    dtype = np.dtype(str(rng.choice(DTYPES[: 6 if reduces else None])))
    x = rng.normal(0, 3, shape)
    if rng.random() < (0.1 if reduces else 0.4) and x.size:
        places = rng.integers(0, x.size, 1 + x.size // 50)
        x.ravel()[places] = rng.choice(ODD, places.size)
    with np.errstate(all="ignore"):
        x = x.astype(dtype)
    axes: list[str | None] = [None] * len(shape)
    for name in ("rows", "columns"):
        if shape and rng.random() < (0.2 if reduces else 0.4):
            free = [i for i, a in enumerate(axes) if a is None]
            if free:
                axes[int(rng.choice(free))] = name
    mesh = _mesh(blocks)
    return gdt.asarray(x, layout=gdt.Layout(axes, mesh))


def broadcast_shape(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that broadcasts to this one."""
    if rng.random() < 0.6:
        return shape
    if rng.random() < 0.2:
        return ()
    return tuple([n if rng.random() < 0.6 else 1 for n in shape])


def random_chain(rng: np.random.Generator) -> tuple[Callable[..., Any], list[Any]]:
    """A function of arrays, and arrays."""
    reduces = bool(rng.random() < 0.5)
    shapes = REDUCED_SHAPES if reduces else SHAPES
    shape = shapes[rng.integers(len(shapes))]
    blocks = int(rng.choice([1, 1, 4]))
    count = int(rng.integers(1, 4))
    arrays = [random_array(rng, broadcast_shape(rng, shape), blocks, reduces) for _ in range(count)]
    steps: list[tuple[Any, ...]] = []
    for n in range(count, count + int(rng.integers(2, 14))):
        kind = rng.random()
        operands = [n - 1, *[int(i) for i in rng.integers(max(0, n - 5), n, 2)]]
        if steps and steps[-1][0] in REDUCTIONS and kind < 0.95:  # with what was reduced
            pair: list[Any] = [n - 1, steps[-1][1][0]]
            steps.append((str(rng.choice(BINARY[:5])), pair[:: int(rng.choice([1, -1]))]))
        elif rng.random() < (0.3 if reduces else 0.05):
            axis = [None, -1, -1, -1, 0, (0, 1)][rng.integers(6)]
            reduction = str(rng.choice(REDUCTIONS[: 4 if rng.random() < 0.7 else None]))
            keeps = {} if "softmax" in reduction else {"keepdims": bool(rng.random() < 0.95)}
            steps.append((reduction, operands[:1], {"axis": axis, **keeps}))
        elif kind < 0.4:
            steps.append((str(rng.choice(UNARY)), operands[:1]))
        elif kind < 0.5:
            number = [0.5, -1.5, 2, 3, 0.0, 1e30, 0.3, -0.7, 7, 40][rng.integers(10)]
            pair = [operands[0], ("number", number)]
            steps.append((str(rng.choice(BINARY[:8])), pair[:: int(rng.choice([1, -1]))]))
        elif kind < 0.8:
            steps.append((str(rng.choice(BINARY)), operands[:2]))
        elif kind < 0.9:
            steps.append(("where", operands))
        else:
            steps.append(
                ("astype", [operands[0], ("number", str(rng.choice(["f4", "f8", "f4", "f2"])))])
            )
    kept = [int(i) for i in rng.integers(count, count + len(steps), 2)]

    def chain(*xs: Any) -> list[Any]:
        known = list(xs)
        for name, operands, *static in steps:
            taken = [o[1] if isinstance(o, tuple) else known[o] for o in operands]
            try:
                known.append(getattr(gdt, name)(*taken, **(static[0] if static else {})))
            except GdtError:  # of bools and integers, of axes that are not there
                known.append(known[-1])
        results = [known[k] for k in kept]
        return [*results, known[-1], gdt.sum(known[-1])]

    return chain, arrays


def differences(seed: int) -> list[str]:
    """What differs between a chain and three replays of it, where loops take blocks of any size."""
    blocks_of_plans.SMALLEST_OP = fusing.SMALLEST = reducing.SMALLEST = 1
    sums.LARGEST, reducing.SMALLEST_SUM = 0, 1
    rng = np.random.default_rng(seed)
    chain, arrays = random_chain(rng)
    recorded = Function(chain, state=(), verify=0)
    found = []
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = [x.numpy() for x in chain(*arrays)]
        for call in range(4):
            results = [x.numpy() for x in recorded(*arrays)]
            for n, (want, have) in enumerate(zip(expected, results, strict=True)):
                same = want.dtype == have.dtype and want.shape == have.shape
                if not same or not np.array_equal(*map(bits, (want, have))):
                    found.append(f"seed {seed}, call {call}, result {n}")
    return found


def bits(x: np.ndarray) -> np.ndarray:
    """The bits of elements, with one NaN for all."""
    if x.dtype.kind == "f":
        x = np.where(np.isnan(x), x.dtype.type(np.nan), x)
    return np.frombuffer(x.tobytes(), np.uint8)


def main() -> None:
    """Run random chains, and print those that differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chains", type=int, default=5000)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    failed = 0
    for seed in range(options.first, options.first + options.chains):
        for line in differences(seed):
            failed += 1
            print(line, flush=True)
    print(f"{options.chains} chains, {failed} results differ")


if __name__ == "__main__":
    main()
