"""What programs send in layouts that split them, beside what theory says they must.

    python -m bench.layouts                      # the table, and those of `bench.schemes`
    python -m bench.layouts --before CHECKOUT    # with the bytes of another checkout of gdt

Bytes are those that all devices together send. Each program runs as written: layouts of parameters
and of the batch decide everything, but where a row says that an activation is moved on purpose.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

import gdt
from bench.launch import launch
from gdt import nn
from gdt.benchmark import tables

Array = Any
Specs = Sequence[str | None]
DEVICES = 8


class Sent(NamedTuple):
    """What a program sends: bytes of all devices together, and collectives."""

    bytes: int
    collectives: int


class Row(NamedTuple):
    """A program, and what theory says that it sends."""

    name: str
    run: Callable[[], Any]
    theory: Sent


# ---------------------------------------------------------------- products and two layers


def placed(mesh: gdt.Mesh, shape: Sequence[int], specs: Specs, seed: int = 0) -> Array:
    """An array of normal numbers."""
    values = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return gdt.asarray(values, layout=gdt.Layout(specs, mesh))


def two_layers(batch: int) -> Callable[[], Any]:
    """Loss and gradient of two layers of 256 and 1024 units, all split over the axis `b`."""
    mesh = gdt.create_mesh([("b", DEVICES)], device_type="CPU")
    x = placed(mesh, (batch, 256), ["b", None])
    parameters = {
        "w1": placed(mesh, (256, 1024), ["b", None], 1),
        "w2": placed(mesh, (1024, 256), ["b", None], 2),
    }

    def loss(p: Mapping[str, Array]) -> Array:
        return gdt.mean(gdt.relu(x @ p["w1"]) @ p["w2"])

    return lambda: gdt.value_and_grad(loss)(parameters)


def square(program: Callable[[Array], Array]) -> Callable[[], Any]:
    """A program of a matrix of 1024 x 1024 whose rows are split; its result is resolved."""
    mesh = gdt.create_mesh([("b", DEVICES)], device_type="CPU")
    m = placed(mesh, (1024, 1024), ["b", None])
    return lambda: program(m).resolve()


# ---------------------------------------------------------------- a small GPT


class Size(NamedTuple):
    """Layers, width, heads, vocabulary, length of a text, texts in a batch."""

    layers: int = 2
    width: int = 64
    heads: int = 4
    vocabulary: int = 64
    length: int = 32
    batch: int = 16


GOLDEN = Size()


def _unmoved(x: Array) -> Array:
    return x


class Placing(NamedTuple):
    """Where activations are moved on purpose, as functions of them.

    enter: what enters a pair of layers whose weights are split by columns, then rows. leave: what
    leaves it, and the embedding.
    """

    enter: Callable[[Array], Array] = _unmoved
    leave: Callable[[Array], Array] = _unmoved


class Parameters(nn.Module):
    """Arrays by name, with the initial values of a network."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], rng: np.random.Generator) -> None:
        for name, shape in shapes.items():
            is_matrix = len(shape) > 1
            values = rng.normal(0, 0.02, shape) if is_matrix else np.full(shape, "scale" in name)
            setattr(self, name, gdt.asarray(values.astype(np.float32)))


class Block(Parameters):
    """Attention and two dense layers, each after a normalisation and beside a residual."""

    def __init__(self, size: Size, placing: Placing, rng: np.random.Generator) -> None:
        d = size.width
        shapes = {
            "scale1": (d,), "shift1": (d,),
            "query": (d, d), "query_bias": (d,), "key": (d, d), "key_bias": (d,),
            "value": (d, d), "value_bias": (d,), "out": (d, d), "out_bias": (d,),
            "scale2": (d,), "shift2": (d,),
            "up": (d, 4 * d), "up_bias": (4 * d,), "down": (4 * d, d), "down_bias": (d,),
        }  # fmt: skip
        super().__init__(shapes, rng)
        self.size, self.placing = size, placing

    def __call__(self, x: Array) -> Array:
        enter, leave = self.placing
        h = enter(layer_norm(x, self.scale1, self.shift1))
        x = x + leave(self.attention(h))
        h = enter(layer_norm(x, self.scale2, self.shift2))
        h = gdt.gelu(h @ self.up + self.up_bias)
        return x + leave(h @ self.down + self.down_bias)

    def attention(self, x: Array) -> Array:
        size = self.size
        q = heads_of(x @ self.query + self.query_bias, size)
        k = heads_of(x @ self.key + self.key_bias, size)
        v = heads_of(x @ self.value + self.value_bias, size)
        scores = q @ k.mT / (size.width // size.heads) ** 0.5  # (B, heads, T, T)
        mask = gdt.tril(gdt.ones((size.length, size.length), dtype=bool))
        weights = gdt.softmax(gdt.where(mask, scores, -1e9))
        mixed = (weights @ v).transpose(0, 2, 1, 3)  # (B, T, heads, d / heads)
        return mixed.reshape(x.shape[0], size.length, -1) @ self.out + self.out_bias


class Decoder(Parameters):
    """A decoder of text from elementary ops, with a tied head and biases everywhere."""

    def __init__(self, size: Size, placing: Placing, seed: int = 0) -> None:
        rng, d = np.random.default_rng(seed), size.width
        shapes = {"table": (size.vocabulary, d), "positions": (size.length, d)}
        super().__init__({**shapes, "scale": (d,), "shift": (d,)}, rng)
        self.blocks = [Block(size, placing, rng) for _ in range(size.layers)]
        self.placing = placing

    def __call__(self, tokens: Array) -> Array:
        """Logits of the next token."""
        enter, leave = self.placing
        x = leave(gdt.take(self.table, tokens, axis=0)) + self.positions
        for block in self.blocks:
            x = block(x)
        return enter(layer_norm(x, self.scale, self.shift)) @ self.table.mT


def layer_norm(x: Array, scale: Array, shift: Array) -> Array:
    centered = x - gdt.mean(x, axis=-1, keepdims=True)
    variance = gdt.mean(centered * centered, axis=-1, keepdims=True)
    return centered / gdt.sqrt(variance + 1e-5) * scale + shift


def heads_of(x: Array, size: Size) -> Array:
    """(B, T, d) -> (B, heads, T, d / heads)"""
    batch, length, _ = x.shape
    return x.reshape(batch, length, size.heads, -1).transpose(0, 2, 1, 3)


def cross_entropy(logits: Array, targets: Array) -> Array:
    """The mean of -log softmax(logits)[target], from elementary ops."""
    shifted = logits - gdt.stop_gradient(gdt.max(logits, axis=-1, keepdims=True))
    total = gdt.log(gdt.sum(gdt.exp(shifted), axis=-1))
    chosen = gdt.sum(shifted * gdt.one_hot(targets, logits.shape[-1], dtype=np.float32), axis=-1)
    return gdt.mean(total - chosen)


COLUMNS = ("query", "key", "value", "up")
ROWS = ("out", "down")


def tensor_specs(name: str, shape: Sequence[int]) -> Specs:
    """Megatron's layout: columns then rows split over `model`, and the vocabulary."""
    kind = name.rpartition(".")[2]
    if kind in COLUMNS:
        return [None, "model"]
    if kind in ROWS or kind == "table":
        return ["model", None]
    if kind.removesuffix("_bias") in COLUMNS:
        return ["model"]
    return [None] * len(shape)


def sequence_specs(name: str, shape: Sequence[int]) -> Specs:
    """Megatron's layout for split sequences: positions are split as the sequence is."""
    return ["model", None] if name == "positions" else tensor_specs(name, shape)


def split_rows(name: str, shape: Sequence[int]) -> Specs:
    """Each parameter split over `data` along its first axis (FSDP)."""
    return ["data"] + [None] * (len(shape) - 1)


def kept_split(name: str, shape: Sequence[int]) -> nn.Sharded:
    """Each parameter kept split over `data`, and used whole (FSDP)."""
    return nn.Sharded(kept="data")


def tensor_kept_split(name: str, shape: Sequence[int]) -> nn.Sharded:
    """Megatron's layout, and each parameter kept split over `data` as well."""
    return nn.Sharded(kept="data", used=tensor_specs(name, shape))


def replicated(name: str, shape: Sequence[int]) -> Specs:
    return [None] * len(shape)


def gpt(
    mesh: Sequence[tuple[str, int]],
    specs: Callable[[str, Sequence[int]], Specs | nn.Sharded],
    batch: Specs,
    placing: Placing | None = None,
    size: Size = GOLDEN,
    blocks: int = 1,
) -> Callable[[], Any]:
    """Loss and gradients of the small GPT, with its parameters and its batch in these layouts."""
    devices = gdt.create_mesh(mesh, blocks=blocks, device_type="CPU")
    with gdt.default_mesh(devices):
        model = Decoder(size, placing or Placing())
    layouts = nn.LayoutMap(devices)
    for name, array in model.parameters().items():
        layouts[name] = specs(name, array.shape)
    layouts.apply(model)
    rng = np.random.default_rng(1)
    tokens, targets = (
        gdt.asarray(
            rng.integers(0, size.vocabulary, (size.batch, size.length)),
            layout=gdt.Layout(batch, devices),
        )
        for _ in range(2)
    )
    step = gdt.value_and_grad(lambda model: cross_entropy(model(tokens), targets))

    def run() -> Any:
        with gdt.default_mesh(devices):
            return step(model)

    return run


def moved(*specs: str | None) -> Callable[[Array], Array]:
    """A function that moves an array to these specs."""
    return lambda x: gdt.relayout(x, list(specs))


DATA = [("data", 8)]
MODEL = [("model", 2)]
BOTH = [("data", 4), ("model", 2)]
SEQUENCE = Placing(moved(None, None, None), moved(None, "model", None))

SCHEMES: dict[str, tuple[Callable[..., Callable[[], Any]], Sent]] = {
    "GPT, data parallel 8": (
        lambda **kw: gpt(DATA, replicated, ["data", None], **kw), Sent(5_949_440, 1)),
    "GPT, FSDP 8": (
        lambda **kw: gpt(DATA, kept_split, ["data", None], **kw), Sent(8_748_544, 8)),
    "GPT, FSDP 8, said by no map": (
        lambda **kw: gpt(DATA, split_rows, ["data", None], **kw), Sent(8_924_160, 9)),
    "GPT, tensor 2": (
        lambda **kw: gpt(MODEL, tensor_specs, [None, None], **kw), Sent(2_633_728, 12)),
    "GPT, data 4 x tensor 2": (
        lambda **kw: gpt(BOTH, tensor_specs, ["data", None], **kw), Sent(5_254_144, 13)),
    "GPT, FSDP 4 x tensor 2": (
        lambda **kw: gpt(BOTH, tensor_kept_split, ["data", None], **kw), Sent(6_462_976, 21)),
    "GPT, sequence 2, layers' inputs and outputs moved": (
        lambda **kw: gpt(MODEL, sequence_specs, [None, None], SEQUENCE, **kw),
        Sent(2_640_896, 24)),
}  # fmt: skip


GATHER = (DEVICES - 1) * 256 * 1024 * 4  # bytes of an all-gather of one weight of `two_layers`


def small_rows() -> list[Row]:
    """The rows of products and of two layers. Two layers gather both weights, the second again, and
    reduce-scatter both gradients; of a small batch the activations move, for which no formula is
    given: this is what was best when the rules of choice were tried."""
    return [
        Row("two layers, split weights, batch 4,096", two_layers(4096), Sent(5 * GATHER, 6)),
        Row("two layers, split weights, batch 64", two_layers(64), Sent(5_103_616, 6)),
        Row("M @ M + M", square(lambda m: m @ m + m), Sent(4 * GATHER, 1)),
        Row("relu(M @ M) @ M", square(lambda m: gdt.relu(m @ m) @ m), Sent(8 * GATHER, 2)),
    ]


CHANNELS = 64


def statistics(devices: int) -> Callable[[], Any]:
    """Batch normalisation of rows that are split over so many devices, forwards."""
    mesh = gdt.create_mesh([("b", devices)], device_type="CPU")
    x = gdt.ones((2 * devices, CHANNELS), "float32", layout=gdt.Layout(["b", None], mesh))
    return lambda: gdt.batch_norm(x)


def statistics_rows() -> list[Row]:
    """The rows of statistics: an all-reduce of means, and one of variances."""
    return [
        Row(f"BatchNorm of {p:,} devices", statistics(p), Sent(2 * (p - 1) * 2 * CHANNELS * 4, 2))
        for p in (8, 64, 512, 2048)
    ]


def rows() -> list[Row]:
    """The rows of the table; without FSDP where gdt has no `nn.Sharded` yet."""
    schemes = {
        name: scheme
        for name, scheme in SCHEMES.items()
        if hasattr(nn, "Sharded") or name not in ("GPT, FSDP 8", "GPT, FSDP 4 x tensor 2")
    }
    return [
        Row("two layers, split weights, batch 65,536", two_layers(65536), Sent(5 * GATHER, 6)),
        *small_rows(),
        *statistics_rows(),
        *(Row(name, scheme(), theory) for name, (scheme, theory) in schemes.items()),
    ]


def sent(run: Callable[[], Any]) -> Sent:
    """What a call sends."""
    with gdt.count_collectives() as counter:
        run()
    return Sent(counter.bytes, len(counter))


def elsewhere(checkout: Path) -> dict[str, Sent]:
    """What the programs send with the gdt of another checkout."""
    # Its gdt, with these programs: its package `bench` may be another.
    code = "import sys, gdt; sys.path.insert(0, sys.argv.pop(1)); from bench import layouts; "
    own = str(Path(__file__).parents[1])
    command = [sys.executable, "-c", f"{code}layouts.main()", own, "--json"]
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    output = subprocess.run(
        command, cwd=checkout, env=environment, check=True, stdout=subprocess.PIPE
    ).stdout
    return {name: Sent(*facts) for name, facts in json.loads(output).items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, help="another checkout of gdt")
    parser.add_argument("--json", action="store_true", help="print the table as JSON")
    options = parser.parse_args()
    table = rows()
    now = {row.name: sent(row.run) for row in table}
    if options.json:
        print(json.dumps(now))
        return
    before = elsewhere(options.before) if options.before else {}
    cells = []
    for row in table:
        columns = (*([before.get(row.name)] if before else []), now[row.name], row.theory)
        cells.append([f"{f.bytes:,} in {f.collectives}" if f else "-" for f in columns])
    headings = ["program", *(["before"] if before else []), "now", "theory"]
    lines = [tables.Row([row.name, *c]) for row, c in zip(table, cells, strict=True)]
    console = Console()
    console.print(tables.Table("Bytes in collectives", headings, lines))
    if not before:
        # Imported here, since another checkout of gdt may have no abstract devices.
        schemes = importlib.import_module("bench.schemes")
        console.print(schemes.table([*schemes.ROWS]))


if __name__ == "__main__":
    launch(main)
