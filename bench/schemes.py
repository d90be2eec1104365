"""A GPT under schemes of parallel training: bytes, collectives and peaks beside their formulas.

    python -m bench.schemes                # all rows; the last part of `python -m bench.layouts`
    python -m bench.schemes "tensor 4"     # some of them

The model's step is one program; layouts of parameters and batch make the scheme. It runs on
abstract devices: a small model, and two layers of one of 175 billion numbers. Bytes are those that
all devices send in a step. A peak is the most that the blocks of one device take between ops; "all"
counts what ops take while they run too. Sources of the formulas: Rajbhandari et al. 2020 (ZeRO),
Shoeybi et al. 2019 (tensor), Korthikanti et al. 2022 (sequence, and activations), Liu et al. 2023
(context).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

import gdt
from bench.launch import launch
from examples.parallel_gpt import GPT, WHOLE, Size
from gdt import nn
from gdt.backend.abstract import DEVICE
from gdt.benchmark import tables

ITEM = 4  # bytes of a float32

# ---------------------------------------------------------------- schemes and their formulas


class Scheme(NamedTuple):
    """A scheme of parallel training.

    replicas: devices that hold the same, each with a part of the batch. shards: devices among which
    weights, gradients and moments are split, each with a part of the batch (FSDP); or gradients and
    moments alone, where `keeps_whole` (ZeRO 1 and 2). context: devices among which tokens are
    split. tensor: devices among which heads and hidden features are split; is_sequence: and tokens
    between these. is_checkpointed: whether blocks run again in the backward pass.
    """

    replicas: int = 1
    shards: int = 1
    context: int = 1
    tensor: int = 1
    keeps_whole: bool = False
    is_sequence: bool = False
    is_checkpointed: bool = False

    @property
    def mesh_dims(self) -> list[tuple[str, int]]:
        """The mesh axes of more than one device."""
        names = {"replica": self.replicas, "data": self.shards, "context": self.context}
        return [(n, k) for n, k in (names | {"model": self.tensor}).items() if k > 1]

    @property
    def batch(self) -> list[Any]:
        """The sharding specs of tokens and targets."""
        rows = tuple(n for n, _ in self.mesh_dims if n in ("replica", "data"))
        return [rows or None, "context" if self.context > 1 else None]

    def layouts(self, mesh: gdt.Mesh) -> nn.LayoutMap:
        """The layout map."""
        data = "data" if self.shards > 1 else None
        if self.keeps_whole:
            layouts = nn.LayoutMap(mesh)
            layouts[".*"] = nn.Sharded(state=data)
            return layouts
        model = "model" if self.tensor > 1 else None
        layouts = nn.layout_maps.transformer(mesh, model, data, sequence=self.is_sequence)
        if len(self.mesh_dims) == 1 and model and not self.is_sequence:
            layouts[WHOLE] = [None, None, None]
        return layouts


class Theory(NamedTuple):
    """What formulas say of a step: bytes that all devices send, collectives, and the peak."""

    nbytes: int
    collectives: int
    peak: float


def theory(scheme: Scheme, size: Size) -> Theory:
    """Return what formulas say of a scheme."""
    numbers = _Numbers.of(scheme, size)
    return Theory(_nbytes(scheme, size, numbers), _collectives(scheme, size), numbers.peak())


class _Numbers(NamedTuple):
    """Bytes: of an activation, of a number for each token, of the parameters that tensor
    parallelism splits, and of those that it does not."""

    scheme: Scheme
    size: Size
    activation: int
    token: int
    split: int
    whole: int

    @classmethod
    def of(cls, scheme: Scheme, size: Size) -> _Numbers:
        layers, d, _, vocabulary, tokens, batch = size
        split = layers * (12 * d * d + 7 * d) + vocabulary * d
        whole = layers * 6 * d + 2 * d + tokens * d
        token = batch * tokens
        counts = (token * d, token, split, whole)
        return cls(scheme, size, *[ITEM * n for n in counts])

    def peak(self) -> float:
        """Return the most that a device holds: weights, gradients and moments, and the activations
        that gradients read, when the backward pass begins or when it ends."""
        scheme, size = self.scheme, self.size
        own = self.split / scheme.tensor + self.whole  # of weights, as they are used
        if scheme.keeps_whole:
            weights, moments, gradients = own, 2 * own / scheme.shards, own
        else:
            weights, moments, gradients = [k * own / scheme.shards for k in (1, 2, 1)]
        peak = weights + moments + max(gradients, self.activations())
        if scheme.shards > 1 and not scheme.keeps_whole:
            # A gathered block, and its gradient before it is scattered.
            peak += 2 * ITEM * 12 * size.width**2 / scheme.tensor
        return peak

    def activations(self) -> float:
        """Return the bytes of activations: of a block what enters two normalisations, and what
        leaves them; queries, keys, values and their mixture; hidden features twice. Behind the
        blocks there are the last normalisation and the logits."""
        scheme, size, t = self.scheme, self.size, self.scheme.tensor
        a = self.activation / (scheme.replicas * scheme.shards * scheme.context)
        entering = a / t if scheme.is_sequence else a
        block = 2 * entering + 2 * a + 12 * a / t
        blocks = block * size.layers
        if scheme.is_checkpointed:
            blocks = block + entering * size.layers
        return blocks + entering + a + a * size.vocabulary / size.width / t


def _nbytes(scheme: Scheme, size: Size, n: _Numbers) -> int:
    """Return the bytes that all devices send in a step."""
    r, s, c, t = scheme.replicas, scheme.shards, scheme.context, scheme.tensor
    layers, a = size.layers, n.activation
    parameters = n.split + t * n.whole  # of all devices that differ in `model` alone
    if scheme.keeps_whole or s == 1:
        total = 2 * (r * s * c - 1) * parameters
    else:
        total = (3 * r * (s - 1) + 2 * (r - 1)) * parameters
        # What the whole model gathers stays from the forward to the backward pass.
        last = (size.vocabulary + t * (2 + size.tokens)) * size.width
        total -= r * (s - 1) * ITEM * last
    total += 6 * layers * (c - 1) * a
    if t > 1 and not scheme.is_sequence:
        again = 2 * layers if scheme.is_checkpointed else 0
        total += 2 * (t - 1) * ((4 * layers + 2 + again) * a + 3 * n.token)
    if scheme.is_sequence:
        vectors = ITEM * (6 * layers + 2) * size.width  # whose gradients the split tokens sum
        total += (t - 1) * ((8 * layers + 4) * a + 6 * n.token) + 2 * (t - 1) * r * s * vectors
    return total


def _collectives(scheme: Scheme, size: Size) -> int:
    """Return the number of collectives of a step."""
    layers, count = size.layers, 0
    if scheme.keeps_whole:
        count += 2
    elif scheme.shards > 1:
        count += 3 * (layers + 1) - 1 + (scheme.replicas > 1)
    elif scheme.replicas * scheme.context > 1:
        count += 1
    count += 3 * layers * (scheme.context - 1)
    if scheme.is_sequence:
        return count + 8 * layers + 8
    if scheme.tensor > 1:
        count += (6 if scheme.is_checkpointed else 4) * layers + 5
    return count


SCHEMES = {
    "data 16": Scheme(16),
    "data 64": Scheme(64),
    "ZeRO 16": Scheme(shards=16, keeps_whole=True),
    "FSDP 16": Scheme(shards=16),
    "FSDP 64": Scheme(shards=64),
    "FSDP 16, checkpointed": Scheme(shards=16, is_checkpointed=True),
    "data 4 x FSDP 4": Scheme(4, 4),
    "data 2 x tensor 3": Scheme(2, tensor=3),
    "tensor 4": Scheme(tensor=4),
    "tensor 4, checkpointed": Scheme(tensor=4, is_checkpointed=True),
    "data 4 x tensor 4": Scheme(4, tensor=4),
    "sequence 4": Scheme(tensor=4, is_sequence=True),
    "data 4 x sequence 4": Scheme(4, tensor=4, is_sequence=True),
    "context 4": Scheme(context=4),
    "data 4 x context 4": Scheme(4, context=4),
    "context 4 x tensor 4": Scheme(context=4, tensor=4),
    "FSDP 4 x tensor 4": Scheme(shards=4, tensor=4),
    "FSDP 4 x sequence 4": Scheme(shards=4, tensor=4, is_sequence=True),
    "data 2 x FSDP 2 x tensor 4": Scheme(2, 2, tensor=4),
}
SMALL = Size(layers=3, width=192, heads=12, vocabulary=384, batch=64)
# Brown et al. 2020, "Language Models are Few-Shot Learners": GPT-3, without 94 of its layers.
WIDE = Size(2, 12_288, 96, 51_200, 2_048, 128)
WIDE_SCHEMES = {
    "data 128 x tensor 8": (Scheme(128, tensor=8), WIDE),
    "data 128 x tensor 8, 8 texts a device": (Scheme(128, tensor=8), WIDE._replace(batch=1024)),
    "FSDP 128 x sequence 8": (Scheme(shards=128, tensor=8, is_sequence=True), WIDE),
    "FSDP 1,024": (Scheme(shards=1024), WIDE._replace(batch=1024)),
}
ROWS = {name: (scheme, SMALL) for name, scheme in SCHEMES.items()} | WIDE_SCHEMES


# ---------------------------------------------------------------- measuring


class Measured(NamedTuple):
    """What a step sends, the most that the blocks of a device take, and its ops with them."""

    nbytes: int
    collectives: int
    peak: int
    peak_of_all: int


def training(scheme: Scheme, size: Size, device_type: str) -> tuple[Callable[[], None], Any, Any]:
    """Return a step of a scheme with one block for each device, its model and its optimizer."""
    dims = scheme.mesh_dims
    blocks = None if device_type == "abstract" else math.prod(k for _, k in dims)
    mesh = gdt.create_mesh(dims, blocks=blocks, device_type=device_type)
    with scheme.layouts(mesh).scope():
        model = GPT(size)
    wrap: Callable[[Any], Any] = gdt.checkpointed if scheme.is_checkpointed else lambda block: block
    model.blocks = [wrap(block) for block in model.blocks]
    optimizer, layout = gdt.optim.Adam(1e-3).init(model), gdt.Layout(scheme.batch, mesh)
    shape = (size.batch, size.tokens)
    tokens, targets = [gdt.zeros(shape, np.int32, layout=layout) for _ in range(2)]

    def step() -> None:
        def loss(model: Any) -> Any:
            return nn.losses.sparse_softmax_cross_entropy(targets, model(tokens))

        _, gradients = gdt.value_and_grad(loss)(model)
        optimizer.update(model, gradients)

    return step, model, optimizer


def measure(scheme: Scheme, size: Size, device_type: str = "abstract") -> Measured:
    """Take three steps of a scheme, and measure the last."""
    before = DEVICE.now
    step, model, optimizer = training(scheme, size, device_type)
    step(), step()
    DEVICE.peak = DEVICE.now
    with gdt.count_collectives() as counter, gdt.testing.peak_memory(model, optimizer) as memory:
        step()
    return Measured(counter.bytes, len(counter), memory.peak, DEVICE.peak - before)


def table(names: Sequence[str]) -> tables.Table:
    """Return some rows."""
    rows = []
    for name in names:
        scheme, size = ROWS[name]
        measured, formula = measure(scheme, size), theory(scheme, size)
        cells = [
            name,
            f"{measured.nbytes / 1e6:,.1f}", f"{measured.nbytes / formula.nbytes:.3f}",
            f"{measured.collectives} / {formula.collectives}",
            f"{measured.peak / 1e6:,.1f}", f"{measured.peak / formula.peak:.2f}",
            f"{measured.peak_of_all / 1e6:,.1f}",
        ]  # fmt: skip
        rows.append(tables.Row(cells, begins=name == next(iter(WIDE_SCHEMES))))
    headings = [
        "scheme", "MB sent", "/ formula", "collectives", "peak MB", "/ formula", "all MB",
    ]  # fmt: skip
    note = f"{SMALL}; from {next(iter(WIDE_SCHEMES))} on {WIDE}"
    return tables.Table("GPT by schemes", headings, rows, note=note)


def main() -> None:
    names = sys.argv[1:] or [*ROWS]
    if unknown := [name for name in names if name not in ROWS]:
        sys.exit(f"No scheme is named {', '.join(unknown)}; the schemes are {', '.join(ROWS)}.")
    Console().print(table(names))


if __name__ == "__main__":
    launch(main)
