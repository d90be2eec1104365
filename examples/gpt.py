"""A small GPT that learns to write like movie reviews, in five ways to spread it over devices.

Characters of the reviews; pre-normalised blocks, learned positions, a head that is tied to the
table; AdamW without decay on biases and norms, warm-up and a cosine of 1,000 steps,
gradients clipped at 1. The layouts alone decide what is split: batches (data), also weights and
optimizer (FSDP), heads and hidden units (tensor), both, or positions (sequence); the losses are
the same.

    python -m examples.gpt [--data-dir aclImdb] [--steps 300] [--scheme data]
"""

from __future__ import annotations

import argparse
import functools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import gdt
from examples import datasets
from examples.reporting import console, launch
from gdt import Layout, nn
from gdt.training import History

ALPHABET = "\n abcdefghijklmnopqrstuvwxyz0123456789.,!?'\"()-:;/&$%*+=#@[]_~`|"
LAYERS, SIZE, HEADS, POSITIONS, BATCH = 2, 64, 4, 32, 16
HELD_OUT, EVALUATED, ROWS = 1_000_000, 20, 128


class Block(nn.Module):
    """Attention and two dense layers, each after a norm, and added to what came in."""

    def __init__(self, key: int) -> None:
        normal = functools.partial(nn.initializers.normal, deviation=0.02)
        gelu = functools.partial(gdt.gelu, approximate=True)
        last = functools.partial(nn.initializers.normal, deviation=0.02 / math.sqrt(2 * LAYERS))
        self.attention_norm = nn.LayerNorm(SIZE)
        self.attention = nn.MultiHeadAttention(
            HEADS, SIZE, causal=True, initializer=normal, key=key
        )
        self.attention.output_weight /= math.sqrt(2 * LAYERS)  # as `last`
        self.norm = nn.LayerNorm(SIZE)
        self.up = nn.Dense(SIZE, 4 * SIZE, activation=gelu, initializer=normal, key=key + 1)
        self.down = nn.Dense(4 * SIZE, SIZE, initializer=last, key=key + 2)

    def __call__(self, x: gdt.DistributedArray) -> gdt.DistributedArray:
        x = x + self.attention(self.attention_norm(x))
        return x + self.down(self.up(self.norm(x)))


class GPT(nn.Module):
    """The logits (batch, positions, characters) of the characters that follow."""

    def __init__(self) -> None:
        normal = functools.partial(nn.initializers.normal, deviation=0.02)
        self.table = nn.Embedding(len(ALPHABET), SIZE, initializer=normal, key=1)
        self.positions = nn.Embedding(POSITIONS, SIZE, initializer=normal, key=2)
        self.blocks = [Block(10 * i + 10) for i in range(LAYERS)]
        self.norm = nn.LayerNorm(SIZE)

    def __call__(self, ids: gdt.DistributedArray) -> gdt.DistributedArray:
        x = self.table(ids) + self.positions.weight[: ids.shape[1]]  # (batch, positions, size)
        for block in self.blocks:
            x = block(x)
        return self.table.logits(self.norm(x))


class Scheme(NamedTuple):
    """A mesh, the sharding specs of a batch of characters, and the axes for `layout_maps`."""

    mesh: list[tuple[str, int]]
    batch: list[str | None]
    model: str | None = None
    data: str | None = None


SCHEMES = {
    "data": Scheme([("data", 8)], ["data", None]),
    "FSDP": Scheme([("data", 8)], ["data", None], data="data"),
    "tensor": Scheme([("data", 2), ("model", 4)], ["data", None], "model"),
    "FSDP x tensor": Scheme([("data", 2), ("model", 4)], ["data", None], "model", "data"),
    "sequence": Scheme([("data", 2), ("time", 4)], ["data", "time"]),
}


def load(data_dir: Path | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the characters for training and for validation, as numbers in `ALPHABET`."""
    texts = datasets.imdb(data_dir)[0]
    order = np.random.default_rng(0).permutation(len(texts))
    text = "\n\n".join(texts[i] for i in order).lower()
    codes = np.full(256, ALPHABET.index(" "), np.int32)
    for number, character in enumerate(ALPHABET):
        codes[ord(character)] = number
    ids = codes[np.frombuffer(text.encode("latin-1", "replace"), np.uint8)]
    return ids[HELD_OUT:], ids[:HELD_OUT]


def windows(
    ids: np.ndarray, batches: int, rows: int, seed: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield batches of random windows, and of the characters that follow each of theirs."""
    chance = np.random.default_rng(seed)
    for _ in range(batches):
        starts = chance.integers(0, len(ids) - POSITIONS, rows)[:, None]
        taken = ids[starts + np.arange(POSITIONS + 1)]
        yield taken[:, :-1], taken[:, 1:]


def optimizer() -> gdt.optim.Optimizer:
    """Return AdamW that decays matrices and tables alone."""
    rate = gdt.optim.with_warmup(gdt.optim.cosine_decay(3e-3, 950, 3e-4), 50)
    adamw = lambda decay: gdt.optim.AdamW(rate, decay, beta2=0.95, epsilon=1e-8)
    others = r".*(bias|scale|offset)$"
    return gdt.optim.ParameterGroups({others: adamw(0.0)}, default=adamw(0.1))


def train(
    name: str, data: tuple[np.ndarray, np.ndarray], steps: int, blocks: int | None = None
) -> tuple[GPT, History]:
    """Train under a scheme; return the model, and the history with the validation's loss."""
    scheme = SCHEMES[name]
    mesh = gdt.create_mesh(scheme.mesh, blocks=blocks)
    with gdt.default_mesh(mesh):
        model = GPT()
    nn.layout_maps.transformer(mesh, scheme.model, scheme.data).apply(model)
    split = Layout(scheme.batch, mesh)

    def placed(ids: np.ndarray, batches: int, rows: int, seed: int) -> list[Any]:
        pairs = windows(ids, batches, rows, seed)
        return [tuple(gdt.asarray(x, layout=split) for x in pair) for pair in pairs]

    trainer = gdt.Trainer(model, optimizer(), "sparse_softmax_cross_entropy", clip_norm=1.0)
    history = trainer.fit(
        placed(data[0], steps, BATCH, 1),
        validation=placed(data[1], EVALUATED, ROWS, 0),
        title=f"GPT, {name}",
        console=console,
    )
    return model, history


def write(model: GPT, start: str, length: int, seed: int = 0) -> str:
    """Return text that begins with `start` and goes on with `length` drawn characters."""
    ids, chance = [ALPHABET.index(c) for c in start], np.random.default_rng(seed)
    with gdt.training.evaluating(model), gdt.default_mesh(model.norm.scale.mesh):
        step = gdt.function(lambda window: gdt.softmax(model(window), axis=-1))
        for _ in range(length):
            window = np.array([([0] * POSITIONS + ids)[-POSITIONS:]])
            odds = step(gdt.asarray(window)).numpy()[0, -1].astype(float)
            ids.append(int(chance.choice(len(ALPHABET), p=odds / odds.sum())))
    return "".join(ALPHABET[i] for i in ids)


def main() -> None:
    """Read the command line, train, and let the model write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", type=Path, help="the original files; else the package")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--scheme", choices=SCHEMES, help="one scheme alone")
    arguments = parser.parse_args()
    data = load(arguments.data_dir)
    for name in [arguments.scheme] if arguments.scheme else SCHEMES:
        model, history = train(name, data, arguments.steps)
        console.print(f"{name}: validation loss {history['val_loss'][-1]:.4f}")
    console.print(write(model, "this movie is ", 200), markup=False, highlight=False)


if __name__ == "__main__":
    launch(main)
