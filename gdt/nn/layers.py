"""Dense, Flatten and Sequential: layers that compute the same in training and evaluation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gdt import random
from gdt.arguments import checked_class, shown_value
from gdt.array.array import DistributedArray
from gdt.errors import ArgumentError, IndexRangeError, error
from gdt.nn import activations, initializers
from gdt.nn.activations import Function
from gdt.nn.initializers import Initializer
from gdt.nn.module import Module
from gdt.ops.products.op import matmul
from gdt.ops.shapes import reshape
from gdt.sharding.layout import Layout


@checked_class(eager=True)
class Dense(Module):
    """A fully connected layer: activation(x @ weight + bias).

    x: (..., input_size), result: (..., output_size).
    weight_layout: the layout of the weight (input_size, output_size); replicated on the default
        mesh if not given. The bias (output_size,) is split as the weight's last axis.
    activation: the name of an activation or a function; None for none.
    use_bias: whether there is a bias.
    initializer, bias_initializer: names of initialisers or functions.
    dtype: of weight and bias. key: of the random numbers; the next one of `gdt.random` if not
        given.

    Raises ArgumentError for sizes below 1 and for unknown names.

    >>> mesh = gdt.create_mesh([("batch", 4), ("model", 2)])
    >>> layer = gdt.nn.Dense(6, 4, gdt.Layout([gdt.UNSHARDED, "model"], mesh), activation="relu")
    >>> layer.bias.layout
    Layout(['model'], Mesh(batch=4, model=2))
    """

    def __init__(
        self,
        input_size: int,
        output_size: int,
        weight_layout: Layout | None = None,
        activation: str | Function | None = None,
        use_bias: bool = True,
        initializer: str | Initializer = "glorot_uniform",
        bias_initializer: str | Initializer = "zeros",
        *,
        dtype: Any = np.float32,
        key: Any = None,
    ) -> None:
        if input_size < 1 or output_size < 1:
            raise error(
                ArgumentError, "Dense", f"sizes are {input_size} and {output_size}, not positive"
            )
        create = initializers.get(initializer)
        weight: Any = create((input_size, output_size), dtype, weight_layout, key)
        if not isinstance(weight, DistributedArray):
            problem = f"initializer returned {shown_value(weight)}, not an array"
            raise error(ArgumentError, "Dense", problem)
        self.weight = weight
        self.bias: DistributedArray | None = None
        if use_bias:
            create = initializers.get(bias_initializer)
            # With the weight's key the bias would hold the same numbers as the weight.
            bias_key = None if key is None else random.fold_in(random.key(key), 1)
            self.bias = create((output_size,), dtype, self.weight.layout.delete([0]), bias_key)
        self.activation = activations.get(activation)

    def __call__(self, x: Any) -> Any:
        y = matmul(x, self.weight)
        if self.bias is not None:
            y = y + self.bias
        return y if self.activation is None else self.activation(y)

    def describe(self) -> str:
        """Return the sizes and the activation as text."""
        inputs, outputs = self.weight.shape
        return f"{inputs} -> {outputs}, {activations.name_of(self.activation)}"


@checked_class(eager=True)
class Flatten(Module):
    """A layer that joins all axes but the first: (n, a, b, ...) becomes (n, a * b * ...).

    >>> gdt.nn.Flatten()(gdt.ones((2, 3, 4))).shape
    (2, 12)
    """

    def __call__(self, x: DistributedArray) -> DistributedArray:
        flat: DistributedArray = reshape(x, (x.shape[0], math.prod(x.shape[1:])))
        return flat


@checked_class(eager=True)
class Sequential(Module):
    """A layer that calls its layers one after the other; indexed and iterated like a list.

    layers: functions or modules of one array, or one list of them.

    >>> model = gdt.nn.Sequential(gdt.nn.Flatten(), gdt.nn.Dense(12, 3))
    >>> model(gdt.ones((2, 3, 4))).shape, list(model.parameters())
    ((2, 3), ['layers.1.weight', 'layers.1.bias'])
    """

    def __init__(self, *layers: Any) -> None:
        self.layers = (
            list(layers[0]) if len(layers) == 1 and isinstance(layers[0], list) else list(layers)
        )

    def __call__(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x

    def __getitem__(self, index: int) -> Any:
        if isinstance(index, int) and not -len(self) <= index < len(self):
            problem = f"layer {index} is out of range for {len(self)} layers"
            raise error(IndexRangeError, "Sequential", problem)
        return self.layers[index]

    def __len__(self) -> int:
        return len(self.layers)
