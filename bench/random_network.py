"""Networks of dense layers, norms, attention, convolutions and gathers, by a seed: the same seed
gives the same network, values and layouts, in whatever library."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Array = Any
Parameters = Mapping[str, Array]
Layer = Callable[[Parameters, Array], Array]
Pinned = Callable[[str | int, Array], Array]

MESHES = (
    {"a": 2},
    {"a": 4},
    {"a": 8},
    {"a": 2, "b": 2},
    {"a": 4, "b": 2},
    {"a": 2, "b": 2, "c": 2},
)
REDUCTIONS = ("sum", "mean", "max", "var", "logsumexp")
ACTIVATIONS = ("relu", "tanh", "gelu", "sigmoid")


class RandomNetwork:
    """A random network, its values on the host and the specs of their layouts.

    library: a module with the functions of gdt that layers call.
    """

    def __init__(self, seed: int, library: Any) -> None:
        self.library = library
        self.rng = np.random.default_rng(seed)
        self.axes = MESHES[self.rng.integers(len(MESHES))]
        self.used = {*self.axes}  # by layouts
        self.values: dict[str, np.ndarray] = {}
        self.specs: dict[str, list[str | None]] = {}
        batch = int(self.rng.choice([16, 32, 50, 96, 256]))
        self.width = int(self.rng.choice([16, 24, 32, 60]))
        self.is_text = self.rng.random() < 0.3
        if self.is_text:
            self.tokens = self.rng.integers(0, 40, (batch // 8, 8))
            self._add("table", (40, self.width))
        else:
            self.tokens = self.rng.standard_normal((batch, self.width))
        self.token_specs = self._specs(self.tokens.ndim, 0.8)
        self.layers = [self._layer(n) for n in range(self.rng.integers(1, 5))]
        self.reads_layers = False  # some loss does
        self.losses = [self._loss(n) for n in range(self.rng.integers(1, 4))]
        self.used = {axis for specs in (self.token_specs, *self.specs.values()) for axis in specs}

    def _specs(self, rank: int, often: float = 0.6) -> list[str | None]:
        """Random specs: each mesh axis splits one dim or none."""
        specs: list[str | None] = [None] * rank
        for axis in self.rng.permutation([a for a in self.axes if a in self.used]):
            dim = int(self.rng.integers(rank)) if rank else 0
            if rank and specs[dim] is None and self.rng.random() < often:
                specs[dim] = str(axis)
        return specs

    def _add(self, name: str, shape: tuple[int, ...]) -> str:
        """Add a parameter."""
        self.values[name] = self.rng.standard_normal(shape) / np.sqrt(shape[0])
        self.specs[name] = self._specs(len(shape))
        return name

    def _weight(self, n: int, rows: int, columns: int) -> str:
        """The name of a weight, which an earlier layer may have too."""
        shape = rows, columns
        shared = [k for k, v in self.values.items() if v.shape == shape]
        if shared and self.rng.random() < 0.3:
            return str(self.rng.choice(shared))
        return self._add(f"weight{n}.{len(self.values)}", shape)

    def _layer(self, n: int) -> Layer:
        kinds = [
            self._dense, self._bottleneck, self._norm, self._attention,
            self._scaled, self._convolution, self._reduction, self._gather,
        ]  # fmt: skip
        often = [0.2, 0.2, 0.15, 0.1, 0.05, 0.1, 0.1, 0.1]
        make = kinds[self.rng.choice(len(kinds), p=often)]
        layer, is_residual = make(n), self.rng.random() < 0.5
        return (lambda p, x: x + layer(p, x)) if is_residual else layer

    def _dense(self, n: int) -> Layer:
        w, b = self._weight(n, self.width, self.width), self._add(f"bias{n}", (self.width,))
        activation = self._one_of(ACTIVATIONS)
        return lambda p, x: activation(x @ p[w] + p[b])

    def _bottleneck(self, n: int) -> Layer:
        inner = self.width * int(self.rng.choice([2, 4]))
        up, down = self._weight(n, self.width, inner), self._weight(n, inner, self.width)
        b = self._add(f"bias{n}", (inner,))
        activation = self._one_of(ACTIVATIONS)
        return lambda p, x: activation(x @ p[up] + p[b]) @ p[down]

    def _norm(self, n: int) -> Layer:
        scale = self._add(f"scale{n}", (self.width,))

        def norm(p: Parameters, x: Array) -> Array:
            centered = x - self.library.mean(x, axis=-1, keepdims=True)
            variance = self.library.mean(centered * centered, axis=-1, keepdims=True)
            return centered / self.library.sqrt(variance + 1e-3) * p[scale]

        return norm

    def _attention(self, n: int) -> Layer:
        query, key = (
            self._weight(n, self.width, self.width),
            self._weight(n, self.width, self.width),
        )
        return lambda p, x: self.library.softmax((x @ p[query]) @ (x @ p[key]).mT / self.width) @ x

    def _scaled(self, n: int) -> Layer:
        scale = self._add(f"scale{n}", (self.width,))
        return lambda p, x: x * p[scale] * 0.5

    def _convolution(self, n: int) -> Layer:
        kernel = self._add(f"kernel{n}", (3, self.width, self.width))
        return lambda p, x: self.library.relu(
            self.library.convolution(x, p[kernel], padding="same")
        )

    def _reduction(self, n: int) -> Layer:
        axis = int(self.rng.choice([0, -1]))
        reduce = self._one_of(REDUCTIONS)
        return lambda p, x: self.library.tanh(x - reduce(x, axis=axis, keepdims=True))

    def _gather(self, n: int) -> Layer:
        axis = int(self.rng.choice([0, -1]))
        order = self.rng.permutation(self.tokens.shape[0] if axis == 0 else self.width)
        return lambda p, x: self.library.take(x, order, axis=axis)

    def _loss(self, n: int) -> Layer:
        if n == 0 and self.rng.random() < 0.5:
            head = self._weight(n, self.width, 20)
            labels = self.rng.integers(0, 20, self.tokens.shape[: 2 if self.is_text else 1])
            self.reads_layers = True
            return lambda p, x: self.library.mean(
                self.library.sparse_softmax_cross_entropy_with_logits(
                    self.labels(labels, x),
                    x @ p[head],
                )
            )
        if self.values and self.rng.random() < 0.3:
            name = str(self.rng.choice(list(self.values)))
            return lambda p, x: 0.01 * self.library.sum(p[name] * p[name])
        self.reads_layers = True
        return lambda p, x: self.library.mean(x * x)

    def _one_of(self, names: Sequence[str]) -> Callable[..., Array]:
        """A random one of the library's functions of these names."""
        function: Callable[..., Array] = getattr(self.library, names[self.rng.integers(len(names))])
        return function

    def labels(self, labels: np.ndarray, x: Array) -> Array:
        """Labels of the samples of `x`, which all devices have whole."""
        return labels

    def loss(self, parameters: Parameters, tokens: Array, pinned: Pinned) -> Array:
        """The sum of the losses.

        pinned: moves parameters, by name, and what enters layers, by number.
        """
        p = {name: pinned(name, x) for name, x in parameters.items()}
        x = self.library.take(p["table"], tokens, axis=0) if self.is_text else tokens
        for n, layer in enumerate(self.layers):
            x = layer(p, pinned(n, x))
        total = self.losses[0](p, x)
        for other in self.losses[1:]:
            total = total + other(p, x)
        return total

    def shards(self, specs: Sequence[str | None]) -> int:
        """The number of shards into which an array of these specs is split."""
        return int(np.prod([self.axes[s] for s in specs if s]))

    @property
    def devices(self) -> int:
        return int(np.prod(list(self.axes.values())))
