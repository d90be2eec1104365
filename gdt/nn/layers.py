"""Dense, and layers without arrays that put others together."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gdt.arguments import checked_class, shown_value
from gdt.array.array import DistributedArray
from gdt.errors import ArgumentError, IndexRangeError, ShapeError, error
from gdt.nn import activations, initializers
from gdt.nn.activations import Function
from gdt.nn.initializers import Initializer
from gdt.nn.module import Module
from gdt.nn.parameters import ParameterSpec, check_sizes, features_of, in_compute_dtype, mesh_of
from gdt.nn.symbol import Input, Symbol
from gdt.ops.joining import concat
from gdt.ops.products.op import matmul
from gdt.ops.shapes import reshape
from gdt.sharding.layout import Layout
from gdt.sharding.mesh import Mesh


@checked_class(eager=True)
class Dense(Module):
    """A fully connected layer: activation(x @ weight + bias).

    x: (..., input_size), result: (..., output_size).
    input_size: found at the first call if only one size is given: `Dense(10)` has 10 outputs.
    weight_layout: the layout of the weight (input_size, output_size); if not given, replicated on
        the default mesh; of a layer without an input_size, on that of the scope of a strategy or
        LayoutMap in which it was made, or else of the first x.
    activation: the name of an activation or a function; None for none.
    use_bias: whether there is a bias.
    initializer, bias_initializer: names of initialisers or functions.
    bias_layout: that of the bias (output_size,), which is split as the weight's last axis if not
        given.
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
        input_size: int | None = None,
        output_size: int | None = None,
        weight_layout: Layout | None = None,
        activation: str | Function | None = None,
        use_bias: bool = True,
        initializer: str | Initializer = "glorot_uniform",
        bias_initializer: str | Initializer = "zeros",
        *,
        bias_layout: Layout | None = None,
        dtype: Any = np.float32,
        key: Any = None,
    ) -> None:
        if output_size is None:
            input_size, output_size = None, input_size
        if output_size is None:
            raise error(ArgumentError, "it has no output size", remedy="Write Dense(10).")
        check_sizes(input_size=input_size, output_size=output_size)
        create, create_bias = initializers.get(initializer), initializers.get(bias_initializer)
        self.weight: DistributedArray | None = None
        self.bias: DistributedArray | None = None
        self.activation = activations.get(activation)
        self.output_size = output_size
        self._parameter_specs = {
            "weight": ParameterSpec("Dense", create, dtype, weight_layout, key)
        }
        if use_bias:
            self._parameter_specs["bias"] = ParameterSpec(
                "Dense", create_bias, dtype, bias_layout, key, 1
            )
        if input_size is not None:
            self._build(input_size)

    def _build(self, input_size: int, mesh: Mesh | None = None) -> None:
        """Create weight and bias for x of `input_size` features."""
        self.weight = self._parameter_specs["weight"].create((input_size, self.output_size), mesh)
        if "bias" in self._parameter_specs:
            layout = self.weight.layout.delete([0])
            self.bias = self._parameter_specs["bias"].create((self.output_size,), layout=layout)
        del self._parameter_specs

    def __call__(self, x: Any) -> DistributedArray:
        if self.weight is None:
            self._build(features_of("Dense", x), mesh_of(self, x))
        elif type(x) is list or type(x) is tuple:
            features_of("Dense", x)  # raises for a list of arrays, which matmul would stack
        x, weight, bias = in_compute_dtype(self, x, self.weight, self.bias)
        try:
            y = matmul(x, weight)
        except ShapeError as cause:
            shape = np.shape(x)
            if shape[-1:] == weight.shape[:1]:
                raise
            problem = f"x has shape {list(shape)}, and the layer takes {weight.shape[0]} features"
            raise error(ShapeError, problem) from cause
        if bias is not None:
            y = y + bias
        return y if self.activation is None else self.activation(y)

    def describe(self) -> str:
        """Return the sizes and the activation as text."""
        inputs = "?" if self.weight is None else self.weight.shape[0]
        return f"{inputs} -> {self.output_size}, {activations.name_of(self.activation)}"


@checked_class(eager=True)
class Flatten(Module):
    """A layer that joins all axes but the first: (n, a, b, ...) becomes (n, a * b * ...).

    >>> gdt.nn.Flatten()(gdt.ones((2, 3, 4))).shape
    (2, 12)
    """

    def __call__(self, x: DistributedArray) -> DistributedArray:
        features_of("Flatten", x)  # raises for a number
        return reshape(x, (x.shape[0], math.prod(x.shape[1:])))


def _check_layer(op: str, number: int, layer: Any) -> None:
    """Raise ArgumentError unless a layer is a function, a module or a `gdt.nn.Input`."""
    if isinstance(layer, type):
        problem, remedy = f"layer {number} is the class {layer.__name__}", f"{layer.__name__}()."
        raise error(ArgumentError, op, problem, remedy=f"Write {remedy}")
    if not callable(layer) and not isinstance(layer, Symbol):
        problem = f"layer {number} is {shown_value(layer)}, neither a module nor a function"
        raise error(ArgumentError, problem)


@checked_class(eager=True)
class Sequential(Module):
    """A layer that calls its layers one after the other; indexed and iterated like a list, and a
    slice of it is a Sequential of the same layers.

    layers: functions or modules of one array, or one list of them. If the first is a
        `gdt.nn.Input`, layers that find their sizes at the first call have them at once.

    training: the mode of a call; by default the module's.

    >>> model = gdt.nn.Sequential(gdt.nn.Flatten(), gdt.nn.Dense(12, 3))
    >>> model(gdt.ones((2, 3, 4))).shape, list(model.parameters())
    ((2, 3), ['layers.1.weight', 'layers.1.bias'])
    """

    def __init__(self, *layers: Any) -> None:
        self.layers = (
            list(layers[0]) if len(layers) == 1 and isinstance(layers[0], list) else list(layers)
        )
        self.input_shapes: tuple[Any, ...] = ()
        for number, layer in enumerate(self.layers):
            _check_layer("Sequential", number, layer)
        if self.layers and isinstance(self.layers[0], Symbol):
            x = self.layers.pop(0)
            self.input_shapes = ((x.shape, x.dtype.name),)
            self(x)

    def __call__(self, x: Any, training: bool | None = None) -> DistributedArray:
        if training is None:
            return self._run(x)
        with self.in_mode(training):
            return self._run(x)

    def _run(self, x: Any) -> DistributedArray:
        for layer in self.layers:
            x = layer(x)
        return x  # type: ignore[no-any-return]

    def add(self, layer: Any) -> None:
        """Put a layer behind the others; or a `gdt.nn.Input` where there is none yet.

        Raises ArgumentError for an Input behind layers; and where there is an Input, what a layer
        raises that does not fit, which is then not part of the model.

        >>> model = gdt.nn.Sequential(gdt.nn.Dense(3, 4))
        >>> model.add(gdt.nn.Dense(4, 1))
        >>> len(model)
        2
        """
        if isinstance(layer, Symbol):
            if self.layers:
                problem = f"an Input comes first, and there are {len(self.layers)} layers"
                raise error(ArgumentError, problem)
            self.input_shapes = ((layer.shape, layer.dtype.name),)
            return
        _check_layer("Sequential.add", len(self.layers), layer)
        self.layers.append(layer)
        try:
            for shape, dtype in self.input_shapes:
                self(Input(shape[1:], dtype))
        except BaseException:
            self.layers.pop()
            raise

    def pop(self) -> Any:
        """Remove the last layer, and return it.

        >>> model = gdt.nn.Sequential(gdt.nn.Dense(3, 4), gdt.nn.Dense(4, 1))
        >>> _ = model.pop()
        >>> len(model)
        1
        """
        return self.layers.pop()

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):  # a model of the same layers
            return Sequential(*self.layers[index])
        if isinstance(index, int) and not -len(self) <= index < len(self):
            problem = f"layer {index} is out of range for {len(self)} layers"
            raise error(IndexRangeError, problem)
        return self.layers[index]

    def __len__(self) -> int:
        return len(self.layers)


@checked_class(eager=True)
class Residual(Module):
    """A layer that adds its input to the result of another: x + layer(x).

    layer: a module or function of one array, whose result has the shape of x, or broadcasts.

    >>> gdt.nn.Residual(gdt.relu)(gdt.asarray([-1.0, 2.0])).tolist()
    [-1.0, 4.0]
    """

    def __init__(self, layer: Callable[[Any], Any]) -> None:
        self.layer = layer

    def __call__(self, x: Any) -> DistributedArray:
        return x + self.layer(x)  # type: ignore[no-any-return]


def _check_list(arrays: Any) -> None:
    """Raise ArgumentError unless `arrays` is a list of some arrays."""
    if not isinstance(arrays, list | tuple) or not arrays:
        shown = "empty" if isinstance(arrays, list | tuple) else shown_value(arrays)
        raise error(ArgumentError, f"arrays is {shown}, not a list of arrays")


@checked_class(eager=True)
class Add(Module):
    """The sum of a list of arrays that broadcast.

    >>> gdt.nn.Add()([gdt.ones(2), gdt.ones(2), 1.0]).tolist()
    [3.0, 3.0]
    """

    def __call__(self, arrays: Sequence[Any]) -> DistributedArray:
        _check_list(arrays)
        return functools.reduce(operator.add, arrays)  # type: ignore[no-any-return]


@checked_class(eager=True)
class Concatenate(Module):
    """The arrays of a list end to end along `axis`, by default the last.

    >>> gdt.nn.Concatenate()([gdt.ones((2, 3)), gdt.ones((2, 1))]).shape
    (2, 4)
    """

    def __init__(self, axis: int = -1) -> None:
        self.axis = axis

    def __call__(self, arrays: Sequence[Any]) -> DistributedArray:
        _check_list(arrays)
        return concat(arrays, self.axis)

    def describe(self) -> str:
        """Return the axis as text."""
        return f"axis {self.axis}"
