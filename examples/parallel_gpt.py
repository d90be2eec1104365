"""A small GPT under schemes of parallel training, which are said by layouts alone.

    python -m examples.parallel_gpt            # a table: bytes, collectives, memory of a device
    python -m examples.parallel_gpt --write    # the same, into docs/parallel-training.md

The model and its step are the same in all schemes; a LayoutMap and the layout of the batch differ.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import gdt
from gdt import nn

PAGE = Path(__file__).parent.parent / "docs" / "parallel-training.md"
BEGIN, END = "<!-- table -->", "<!-- end of table -->"


class Size(NamedTuple):
    """Layers, width, heads, vocabulary, tokens of a text, texts in a batch."""

    layers: int = 2
    width: int = 64
    heads: int = 4
    vocabulary: int = 64
    tokens: int = 32
    batch: int = 16


SMALL = Size()
LAYERS, SIZE, HEADS, VOCABULARY, TOKENS, BATCH = SMALL


class Block(nn.Module):
    """Attention and two dense layers, each after a normalisation and beside a residual."""

    def __init__(self, size: Size, key: int) -> None:
        d = size.width
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.attention = nn.MultiHeadAttention(size.heads, d, causal=True, key=key)
        self.up = nn.Dense(d, 4 * d, activation="gelu", key=key + 100)
        self.down = nn.Dense(4 * d, d, key=key + 200)

    def __call__(self, x: Any) -> Any:
        x = x + self.attention(self.norm1(x))
        return x + self.down(self.up(self.norm2(x)))


class GPT(nn.Module):
    """Logits of the next token, whose head is the table of the embedding."""

    def __init__(self, size: Size = SMALL) -> None:
        self.table = nn.Embedding(size.vocabulary, size.width, key=1)
        self.positions = nn.Embedding(size.tokens, size.width, key=2)
        self.blocks = [Block(size, n) for n in range(size.layers)]
        self.norm = nn.LayerNorm(size.width)

    def __call__(self, tokens: Any) -> Any:
        x = self.table(tokens) + self.positions.weight
        for block in self.blocks:
            x = block(x)
        return self.table.logits(self.norm(x))


# ---------------------------------------------------------------- schemes


def data(mesh: gdt.Mesh) -> nn.LayoutMap:
    """Every device has the whole model."""
    return nn.LayoutMap(mesh)


def zero(mesh: gdt.Mesh) -> nn.LayoutMap:
    """Gradients and Adam's moments are split (ZeRO 1 and 2)."""
    layouts = nn.LayoutMap(mesh)
    layouts[".*"] = nn.Sharded(state="data")
    return layouts


def fsdp(mesh: gdt.Mesh) -> nn.LayoutMap:
    """Weights are split too, and gathered where a block uses them (ZeRO 3)."""
    return nn.layout_maps.transformer(mesh, model=None, data="data")


def tensor(mesh: gdt.Mesh) -> nn.LayoutMap:
    """Matrices are split by columns, then by rows; heads and the vocabulary are split."""
    return nn.layout_maps.transformer(mesh)


WHOLE = r"(table|blocks\.\d+\.(attention|down))/output"


def whole(mesh: gdt.Mesh) -> nn.LayoutMap:
    """Tensor parallel on a mesh of one axis, where activations are told to stay whole."""
    layouts = tensor(mesh)
    layouts[WHOLE] = [None, None, None]
    return layouts


def tensor_and_fsdp(mesh: gdt.Mesh) -> nn.LayoutMap:
    """Every matrix is split over both mesh axes, and used in its columns or rows."""
    return nn.layout_maps.transformer(mesh, data="data")


def sequence(mesh: gdt.Mesh) -> nn.LayoutMap:
    """Tensor parallel, with the tokens between attention and dense layers split."""
    return nn.layout_maps.transformer(mesh, sequence=True)


class Scheme(NamedTuple):
    """A scheme of parallel training, and what theory says of it.

    dims: the mesh. batch: the sharding specs of tokens and targets. nbytes, collectives: of a
    step, from the formula; state: the bytes of weights, gradients and moments of a device.
    wrap: a function of each block of the model.
    """

    name: str
    dims: list[tuple[str, int]]
    layouts: Callable[[gdt.Mesh], nn.LayoutMap]
    batch: list[str | None]
    formula: str
    nbytes: int
    collectives: int
    state: int
    wrap: Callable[[Any], Any] = lambda block: block


P = 106_240  # parameters
N = 4 * P  # bytes
U = 4 * 6_272  # of embeddings and the last norm, which stay from the forward to the backward pass
A = 4 * BATCH * TOKENS * SIZE  # bytes of an activation
S = 4 * BATCH * TOKENS  # of a number for each token
Q, R = 413_184, 11_776  # of what tensor parallelism splits, and of the rest
U_TENSOR = 16_384 + 2 * 8_704  # of what stays, as q + 2r
TENSOR = 2 * ((4 * LAYERS + 2) * A + 3 * S)  # over two devices
SEQUENCE = (8 * LAYERS + 4) * A + 6 * S + 8 * (6 * LAYERS * SIZE + 2 * SIZE)

ON_8, ON_2, ON_4x2 = [("data", 8)], [("model", 2)], [("data", 4), ("model", 2)]
SCHEMES = [
    Scheme("data", ON_8, data, ["data", None], "2(p-1)n", 14 * N, 1, 4 * N),
    Scheme("ZeRO 1 and 2", ON_8, zero, ["data", None], "2(p-1)n", 14 * N, 2, 2 * N + 2 * N // 8),
    Scheme("FSDP", ON_8, fsdp, ["data", None], "(p-1)(3n - u)", 21 * N - 7 * U, 8, 4 * N // 8),
    Scheme("FSDP, checkpointed blocks", ON_8, fsdp, ["data", None], "(p-1)(3n - u)",
           21 * N - 7 * U, 8, 4 * N // 8, gdt.checkpointed),
    Scheme("tensor", ON_2, whole, [None, None], "2(t-1)((4L+2)A + 3s)", TENSOR, 13,
           4 * (Q // 2 + R)),
    Scheme("sequence", ON_2, sequence, [None, None], "(t-1)((8L+4)A + 6s + v)", SEQUENCE, 24,
           4 * (Q // 2 + R)),
    Scheme("context", ON_8, data, [None, "data"], "6L(p-1)A + 2(p-1)n", 42 * LAYERS * A + 14 * N,
           21 * LAYERS + 1, 4 * N),
    Scheme("data x tensor", ON_4x2, tensor, ["data", None], "tensor + 2(d-1)(q + 2r)",
           TENSOR + 6 * (Q + 2 * R), 14, 4 * (Q // 2 + R)),
    Scheme("FSDP x tensor", ON_4x2, tensor_and_fsdp, ["data", None],
           "tensor + (d-1)(3(q + 2r) - u)", TENSOR + 9 * (Q + 2 * R) - 3 * U_TENSOR, 21,
           4 * (Q // 8 + R // 4)),
]  # fmt: skip


# ---------------------------------------------------------------- measuring


class Measured(NamedTuple):
    """The loss of a step, what the devices send for its gradients and its update, and the most
    that the blocks of a device take."""

    loss: float
    nbytes: int
    collectives: int
    peak: int


def measure(scheme: Scheme) -> Measured:
    """Take three steps of a scheme with one block for each device, and measure the last."""
    size = int(np.prod([count for _, count in scheme.dims]))
    mesh = gdt.create_mesh(scheme.dims, devices=[f"cpu:{i}" for i in range(size)], blocks=size)
    with gdt.default_mesh(mesh):
        model = GPT()
    scheme.layouts(mesh).apply(model)
    model.blocks = [scheme.wrap(block) for block in model.blocks]
    optimizer = gdt.optim.Adam(1e-3).init(model)
    rng, layout = np.random.default_rng(0), gdt.Layout(scheme.batch, mesh)
    x, y = (gdt.asarray(rng.integers(0, VOCABULARY, (BATCH, TOKENS)), layout=layout) for _ in "xy")

    def step() -> Any:
        def loss(model: Any) -> Any:
            return nn.losses.sparse_softmax_cross_entropy(y, model(x))

        value, gradients = gdt.value_and_grad(loss)(model)
        optimizer.update(model, gradients)
        return value

    step(), step()
    with gdt.count_collectives() as counter, gdt.testing.peak_memory(model, optimizer) as memory:
        value = step()
    return Measured(float(value), counter.bytes, len(counter.collectives), memory.peak)


def table() -> str:
    """Return the table of all schemes, in Markdown."""
    lines = [
        "| scheme | mesh | bytes | formula | collectives | theory | peak of a device | its state |",
        "|---|---|---:|---|---:|---:|---:|---:|",
    ]
    for s in SCHEMES:
        m = measure(s)
        mesh = " x ".join(f"{name} {count}" for name, count in s.dims)
        lines.append(
            f"| {s.name} | {mesh} | {m.nbytes:,} | {s.formula} = {s.nbytes:,} | {m.collectives} "
            f"| {s.collectives} | {m.peak:,} | {s.state:,} |"
        )
    return "\n".join(lines)


def written(page: str, new: str) -> str:
    """Return a page with its table replaced."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n{new}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    text = table()
    if "--write" in sys.argv:
        PAGE.write_text(written(PAGE.read_text(), text))
    print(text)
