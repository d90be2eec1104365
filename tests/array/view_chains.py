"""Random chains of views, reads and writes, in gdt and in NumPy.

python -m tests.array.view_chains --chains 50000
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from typing import Any

import numpy as np

import gdt
from gdt import Layout

SHAPES = [(4, 6), (5, 3), (8,), (2, 3, 4), (1, 7), (0, 3), (6, 1, 2)]
DTYPES = ["float64", "float32", "int32", "complex128", "bool"]


def layouts(ndim: int, blocks: int) -> list[Layout]:
    """Return six layouts of a rank: nothing split, each axis over one mesh, two meshes together."""
    line = gdt.create_mesh([("x", 4)], blocks=blocks)
    plane = gdt.create_mesh([("x", 2), ("y", 2)], blocks=blocks)
    specs: list[tuple[Any, list[Any]]] = [
        (line, [None] * ndim),
        (line, ["x", *[None] * (ndim - 1)]),
        (line, [*[None] * (ndim - 1), "x"]),
        (plane, ["x", *["y"][: ndim - 1], *[None] * (ndim - 2)]),
        (plane, [*[None] * (ndim - 1), ("x", "y")]),
        (plane, [*[None] * (ndim - 1), "y"]),
    ]
    return [Layout(spec, mesh) for mesh, spec in specs]


class Chain:
    """Arrays of gdt and of NumPy side by side: a base, views of it, copies, and views of these."""

    def __init__(self, seed: int, layout_number: int, blocks: int) -> None:
        self.rng = random.Random(seed)
        shape = self.rng.choice(SHAPES)
        dtype = self.rng.choice(DTYPES)
        values = np.random.default_rng(seed).integers(-4, 5, shape)
        base = (values + 1j * values[::-1] if dtype == "complex128" else values).astype(dtype)
        layout = layouts(len(shape), blocks)[layout_number]
        self.pairs: list[tuple[Any, np.ndarray]] = [(gdt.asarray(base, layout=layout), base)]
        self.names, self.count = ["a0"], 1
        self.lines: list[str] = [f"base {shape} {dtype} {layout.sharding_specs}"]

    # ---- what may happen

    def step(self) -> None:
        """Do one thing to a random array, and compare."""
        number = self.rng.randrange(len(self.pairs))
        x, n = self.pairs[number]
        action = self.rng.choice(
            [self.view, self.view, self.view, self.write, self.write, self.own]
        )
        action(number, x, n)
        if self.rng.random() < 0.3 and len(self.pairs) > 1:
            gone = self.rng.randrange(len(self.pairs))
            del self.pairs[gone], self.names[gone]
        if self.rng.random() < 0.5:
            self.compare(self.rng.choice(self.pairs))

    def compare(self, pair: tuple[Any, np.ndarray]) -> None:
        """Raise AssertionError, with what has happened, unless both hold the same."""
        x, n = pair
        same = x.shape == n.shape and x.dtype == n.dtype
        same = same and np.array_equal(x.numpy(), n, equal_nan=n.dtype.kind in "fc")
        assert same, "\n".join(
            [*self.lines, str(self.names), f"gdt   {x.numpy()!r}", f"NumPy {n!r}"]
        )

    def apply(
        self, number: int, name: str, function: Callable[[Any], Any], is_own: bool = False
    ) -> None:
        """Add what `function` makes of both arrays of a pair; an array of its own has C order."""
        x, n = self.pairs[number]
        self.lines.append(f"a{self.count} = {self.names[number]}: {name}")
        expected = function(n)
        if not isinstance(expected, np.ndarray):  # a scalar: in gdt an array of rank 0
            self.compare((function(x), np.asarray(expected)))
            return
        self.pairs.append((function(x), expected.copy() if is_own else expected))
        self.names.append(f"a{self.count}")
        self.count += 1
        self.compare(self.pairs[-1])

    def view(self, number: int, x: Any, n: np.ndarray) -> None:
        """Take a view."""
        index = self.index(n)
        order = tuple(self.rng.sample(range(n.ndim), n.ndim))
        choices: list[tuple[str, Callable[[Any], Any]]] = [
            (f"[{index}]", lambda a: a[index]),
            ("T", lambda a: a.T),
            (f"transpose {order}", lambda a: a.transpose(order) if order else a.T),
            ("reshape -1", lambda a: a.reshape(-1)),
            (f"reshape {n.shape[::-1]}", lambda a: a.reshape(n.shape[::-1])),
            ("ravel", lambda a: a.ravel()),
            ("expand_dims", lambda a: np.expand_dims(a, 0)),
            ("squeeze", np.squeeze),
            ("[...]", lambda a: a[...]),
            ("real", lambda a: a.real),
            ("flip", np.flip),
            ("broadcast", lambda a: np.broadcast_to(a, (2, *n.shape))),
            ("atleast_2d", np.atleast_2d),
        ]
        if n.ndim > 1:
            choices.append(("swapaxes", lambda a: np.swapaxes(a, 0, -1)))
            choices.append(("moveaxis", lambda a: np.moveaxis(a, 0, -1)))
        if n.ndim and n.shape[0]:
            last = self.rng.randrange(n.shape[0])
            choices.append((f"row {last}", lambda a: [*a][last]))
        if n.dtype.kind == "c":
            choices.append(("imag", lambda a: a.imag))
        if n.flags.c_contiguous and n.ndim and n.dtype.itemsize == 8:
            choices.append(("view", lambda a: a.view("int64")))
        name, function = self.rng.choice(choices)
        self.apply(number, name, function)

    def own(self, number: int, x: Any, n: np.ndarray) -> None:
        """Make an array of its own."""
        choices: list[tuple[str, Callable[[Any], Any]]] = [
            ("copy", lambda a: a.copy()),
            ("flatten", lambda a: a.flatten()),
            ("+ 1", lambda a: a + a.dtype.type(1)),
            ("repeat", lambda a: np.repeat(a, 1)),
        ]
        if n.ndim and n.shape[0]:
            choices.append(("[[0]]", lambda a: a[[0]]))
        self.apply(number, *self.rng.choice(choices), is_own=True)

    def write(self, number: int, x: Any, n: np.ndarray) -> None:
        """Write the same to both arrays, or have both refuse it."""
        index, value = self.index(n), n.dtype.type(self.rng.randrange(5))
        other = self.pairs[self.rng.randrange(len(self.pairs))]
        choices: list[tuple[str, Callable[[Any, Any], Any]]] = [
            (f"[{index}] = {value}", lambda a, b: a.__setitem__(index, value)),
            ("fill", lambda a, b: a.fill(value)),
            ("put", lambda a, b: np.put(a, [0], [value]) if n.size else None),
            ("copyto", np.copyto),
            ("[...] = other", lambda a, b: a.__setitem__(..., b)),
        ]
        if n.dtype.kind != "b":
            choices += [
                (f"+= {value}", lambda a, b: a.__iadd__(value)),
                (f"*= {value}", lambda a, b: a.__imul__(value)),
                (f"[{index}] += {value}", lambda a, b: _added_at(a, index, value)),
                ("+= other", lambda a, b: a.__iadd__(b)),
                ("np.add(out=)", lambda a, b: np.add(a, value, out=a)),
            ]
            if n.ndim and _keeps_bits_when_sorted(n):
                choices.append(("sort", lambda a, b: a.sort()))
        if n.dtype.kind == "c":
            choices.append(("imag =", lambda a, b: setattr(a, "imag", 2)))
        name, function = self.rng.choice(choices)
        self.lines.append(f"{self.names[number]}: {name} (other {other[1].shape})")
        fits = _broadcasts(other[1], n) or "other" not in name + (
            "other" if name == "copyto" else ""
        )
        if not fits:
            return
        expected = _outcome(lambda: function(n, _cast(other[1], n.dtype)))
        got = _outcome(lambda: function(x, _cast(other[0], n.dtype)))
        assert expected == got, "\n".join([*self.lines, f"gdt {got}, NumPy {expected}"])

    def index(self, n: np.ndarray) -> Any:
        """Return a random basic index."""
        items: list[Any] = []
        for size in n.shape[: self.rng.randint(0, n.ndim)]:
            low, high = sorted(self.rng.choices(range(-size - 1, size + 2), k=2))
            step = self.rng.choice([None, 1, 2, -1])
            slices = slice(low, high, step) if step != -1 else slice(high, low, step)
            items.append(self.rng.randrange(size) if size and self.rng.random() < 0.4 else slices)
        if self.rng.random() < 0.3:
            items.append(...)
        if self.rng.random() < 0.2:
            items.append(None)
        return tuple(items)


def _added_at(a: Any, index: Any, value: Any) -> None:
    a[index] += value


def _keeps_bits_when_sorted(n: np.ndarray) -> bool:
    """Whether elements have the same bits after NumPy's sort: it gives NaN others, and 0.0 and -0.0
    the same."""
    if n.dtype.kind not in "fc":
        return True
    parts = np.stack([n.real, n.imag])
    return not (np.isnan(parts) | (np.signbit(parts) & (parts == 0))).any()


def _cast(a: Any, dtype: Any) -> Any:
    if dtype.kind == "c":
        return a.astype(dtype)
    if a.dtype.kind in "fc" and dtype.kind in "iub":  # of large numbers a cast is undefined
        return np.sign(np.nan_to_num(a.real)).astype(dtype)
    return a.real.astype(dtype)


def _broadcasts(value: np.ndarray, n: np.ndarray) -> bool:
    try:
        return np.broadcast_shapes(value.shape, n.shape) == n.shape
    except ValueError:
        return False


def _outcome(write: Callable[[], Any]) -> str:
    """Return whether a write is carried out or refused."""
    try:
        write()
    except (ValueError, TypeError) as e:
        return "refused: " + ("read-only" if "read-only" in str(e) else "otherwise")
    return "written"


def run(seed: int, blocks: int, steps: int = 12) -> None:
    """Run one chain, in one of six layouts, and compare all of its arrays in the end."""
    chain = Chain(seed, seed % 6, blocks)
    for _ in range(steps):
        chain.step()
    for pair in chain.pairs:
        chain.compare(pair)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--chains", type=int, default=50_000)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    with np.errstate(all="ignore"):  # numbers grow
        for seed in range(options.first, options.first + options.chains):
            run(seed, 1 if seed // 6 % 2 else 4)
    print(f"{options.chains} chains, 0 differ")


if __name__ == "__main__":
    main()
