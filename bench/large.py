"""NumPy's functions of 16 million numbers on 8 virtual devices, against NumPy on one array.

    python -m bench.large
    python -m bench.large --elements 1000000 sort fft
    python -m bench.large --elements 8

NumPy, gdt with one thread and gdt with all cores take turns. A ratio is the median, over rounds, of
gdt's time divided by NumPy's in the same round.
"""

import argparse
import os
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track

import gdt
from bench.launch import launch
from gdt.benchmark.machine import machine
from gdt.benchmark.tables import Row, Table
from gdt.settings import CORES

ELEMENTS = 1 << 24
COLUMNS = 1024
CALLED = 1 << 11  # elements that a run takes at least, of as many calls as that needs

TEST = np.array([3, 5, 700])
POINTS = np.linspace(-2.0, 2.0, 5)


def added(x: Any, i: Any) -> Any:
    np.add.at(x, i, 1.0)
    return x


def written(x: Any) -> Any:
    x[1:3] = 1
    return x


# By name: a function of a namespace, a vector, a table of the same elements, and integers.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "exp": lambda xp, x, t, i: xp.exp(x),
    "sin": lambda xp, x, t, i: xp.sin(x),
    "x + x": lambda xp, x, t, i: x + x,
    "where": lambda xp, x, t, i: xp.where(x > 0, x, 0),
    "sum": lambda xp, x, t, i: xp.sum(x),
    "sum along rows": lambda xp, x, t, i: xp.sum(t, axis=1),
    "sum along columns": lambda xp, x, t, i: xp.sum(t, axis=0),
    "max": lambda xp, x, t, i: xp.max(x),
    "argmax": lambda xp, x, t, i: xp.argmax(x),
    "cumsum": lambda xp, x, t, i: xp.cumsum(x, axis=0),
    "sort": lambda xp, x, t, i: xp.sort(x, axis=0),
    "unique": lambda xp, x, t, i: xp.unique(i),
    "fft": lambda xp, x, t, i: xp.fft.fft(x),
    "outer": lambda xp, x, t, i: xp.outer(x[:4096], x[:4096]),
    "pad": lambda xp, x, t, i: xp.pad(t, 1),
    "mask": lambda xp, x, t, i: x[x > 0],
    "reshape": lambda xp, x, t, i: xp.reshape(x, t.shape[::-1]) + 1,
    "transpose": lambda xp, x, t, i: t.T + 1,
    "isin": lambda xp, x, t, i: xp.isin(i, TEST),
    "count_nonzero": lambda xp, x, t, i: xp.asarray(xp.count_nonzero(x > 0)),
    "add.at": lambda xp, x, t, i: added(xp.zeros_like(x), i),
    "bincount": lambda xp, x, t, i: xp.bincount(i),
    "interp": lambda xp, x, t, i: xp.interp(x, POINTS, POINTS),
    "histogram": lambda xp, x, t, i: xp.histogram(x)[0],
    "diff": lambda xp, x, t, i: xp.diff(x),
    "gradient": lambda xp, x, t, i: xp.gradient(x),
    "trapezoid": lambda xp, x, t, i: xp.trapezoid(x),
    "partition": lambda xp, x, t, i: xp.partition(x, x.size // 2)[x.size // 2],
    "median": lambda xp, x, t, i: xp.median(x),
    "quantile": lambda xp, x, t, i: xp.quantile(x, 0.3),
    "nonzero": lambda xp, x, t, i: xp.nonzero(x)[0],
    "nan_to_num": lambda xp, x, t, i: xp.nan_to_num(x),
    "tril": lambda xp, x, t, i: xp.tril(t),
    "nanmean": lambda xp, x, t, i: xp.nanmean(x),
    "std": lambda xp, x, t, i: xp.std(x),
    "write a slice": lambda xp, x, t, i: written(x),
}
DRAWS = {
    f"{name} {dtype}": (name, dtype)
    for name in ("uniform", "normal")
    for dtype in ("float32", "float64")
}


def timed(call: Callable[[], Any], count: int) -> float:
    """Return the seconds of one of `count` calls, with the last result's memory given back."""
    begin = time.perf_counter()
    for _ in range(count):
        result = call()
    seconds = time.perf_counter() - begin
    del result
    return seconds / count


def calls(elements: int) -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    """Return by name a call of NumPy and the same call of gdt, on operands split over 8 devices."""
    mesh = gdt.create_mesh([("x", 8)])
    vector, rows = gdt.Layout(["x"], mesh), gdt.Layout(["x", None], mesh)
    rng = np.random.default_rng(0)
    x = rng.standard_normal(elements, np.float32)
    i = rng.integers(0, min(1000, elements), elements, np.int32)
    t = x.reshape(-1, min(COLUMNS, elements)).copy()  # `written` changes x
    host = (np, x, t, i)
    split = (
        gdt,
        gdt.asarray(x, layout=vector),
        gdt.asarray(t, layout=rows),
        gdt.asarray(i, layout=vector),
    )
    pairs = {
        name: ((lambda f=f: f(*host)), (lambda f=f: f(*split))) for name, f in FUNCTIONS.items()
    }
    for label, (name, dtype) in DRAWS.items():
        draw = rng.random if name == "uniform" else rng.standard_normal
        options = {"dtype": dtype, "layout": vector}
        pairs[label] = (
            partial(draw, elements, np.dtype(dtype)),
            partial(getattr(gdt.random, name), (elements,), **options),
        )
    return pairs


def measure(
    numpy: Callable[[], Any], ours: Callable[[], Any], rounds: int, count: int = 1
) -> dict[str, float]:
    """Return NumPy's and gdt's median seconds, and gdt's ratios with one thread and with all."""
    for _ in range(2):  # plans the call
        ours()
    seconds, own, one, many = [], [], [], []
    for _ in range(rounds):
        seconds.append(timed(numpy, count))
        with gdt.host_threads(1):
            own.append(timed(ours, count))
        one.append(own[-1] / seconds[-1])
        many.append(timed(ours, count) / seconds[-1])
    return {
        "NumPy": median(seconds),
        "gdt": median(own),
        "1 thread": median(one),
        "all": median(many),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="the functions; all by default")
    parser.add_argument("--elements", type=int, default=ELEMENTS)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    elements = arguments.elements - arguments.elements % min(COLUMNS, arguments.elements)
    count = -(-CALLED // elements)
    unit, scale = ("ms", 1e3) if count == 1 else ("us", 1e6)
    pairs = calls(elements)
    unknown = sorted({*arguments.names} - {*pairs})
    if unknown:
        parser.error(f"no function is called {', '.join(unknown)}; there are {', '.join(pairs)}")
    console = Console()
    rows = []
    for name in track(arguments.names or pairs, "timing", console=console, transient=True):
        m = measure(*pairs[name], arguments.rounds, count)
        times = [f"{m[key] * scale:.1f}" for key in ("NumPy", "gdt")]
        rows.append(Row([name, *times, f"{m['1 thread']:.2f}", f"{m['all']:.2f}"]))
    headings = [
        "function",
        f"NumPy, {unit}",
        f"gdt, {unit}",
        "gdt / NumPy",
        f"with {CORES} threads",
    ]
    console.print(Table(f"{arguments.elements:,} elements, 8 virtual devices", headings, rows))
    properties = machine() | {"load": round(os.getloadavg()[0], 1)}
    console.print(", ".join(f"{key} {value}" for key, value in properties.items()))


if __name__ == "__main__":
    launch(main)
