"""Recurrent layers: LSTM and GRU."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from gdt.arguments import checked_class
from gdt.array.array import DistributedArray
from gdt.array.operands import as_operands
from gdt.array.unmade import moved_unmade
from gdt.errors import DtypeError, LayoutError, ShapeError, error
from gdt.functions.einsum import einsum
from gdt.nn import initializers
from gdt.nn.functions.activations.op import sigmoid
from gdt.nn.functions.lstm_cell import lstm_cell, steps_of
from gdt.nn.initializers import Initializer, Shape
from gdt.nn.module import Module
from gdt.nn.parameters import (
    ParameterSpec,
    check_features,
    check_sizes,
    features_of,
    in_compute_dtype,
    mesh_of,
)
from gdt.ops.comparison import where
from gdt.ops.creation import zeros
from gdt.ops.exponential import tanh
from gdt.ops.joining import stack
from gdt.ops.movement import relayout
from gdt.ops.rearranging import flip
from gdt.ops.shapes import reshape
from gdt.sharding.layout import Layout
from gdt.sharding.mesh import Mesh

State = tuple[Any, ...]


@dataclass
class AsMatrix:
    """An initialiser that draws a weight (size, gates, units) as a matrix (size, gates * units): of
    three axes `initializer` would take other fans."""

    initializer: Initializer

    def __call__(self, shape: Shape, dtype: Any, layout: Layout | None, key: Any) -> Any:
        whole = None if layout is None else Layout.replicated(layout.mesh, 2)
        matrix = self.initializer((shape[0], math.prod(shape[1:])), dtype, whole, key)
        if isinstance(matrix, DistributedArray):
            to = Layout.replicated(matrix.mesh, len(shape)) if layout is None else layout
            if (unmade := moved_unmade(matrix, to, tuple(shape))) is not None:
                return unmade
        weight = reshape(matrix, tuple(shape))
        return weight if layout is None else relayout(weight, layout)


@checked_class(eager=True)
class Recurrent(Module):
    """The base of recurrent layers, which read a sequence step by step.

    x: (batch, steps, size). The result is that of the last step, (batch, units), or with
    `sequences` those of all steps, (batch, steps, units). With `states` a call returns a pair: the
    result, and the state after the last step, a tuple of arrays (batch, units), from which a call
    with `state=` goes on.

    units: the size of the state. size: the number of features of x; None takes that of the first x.
    sequences, states: what calls return. backwards: whether the last step is read first; results
        are then in the order in which steps were read.
    use_bias: whether there are biases.
    layouts: layouts of parameters by name: `weight` (size, gates, units), `recurrent_weight`
        (units, gates, units), `bias` (gates, units). Where units are split, each device computes
        its share of every gate, and results are split alike.
    initializer, recurrent_initializer: the initialisers of `weight` and of `recurrent_weight`; each
        draws one matrix for all gates.
    dtype: the dtype of parameters. key: the key of their random numbers; None takes the next of
        `gdt.random`.

    Raises LayoutError for a name of no parameter; calls raise ShapeError for an x that does not
    fit.

    >>> layer = gdt.nn.LSTM(8, sequences=True)
    >>> isinstance(layer, gdt.nn.Recurrent), layer(gdt.ones((2, 5, 3), "float32")).shape
    (True, (2, 5, 8))
    """

    gates: ClassVar[int]
    state_arrays: ClassVar[int] = 1

    def __init__(
        self,
        units: int,
        size: int | None = None,
        *,
        sequences: bool = False,
        states: bool = False,
        backwards: bool = False,
        use_bias: bool = True,
        layouts: Mapping[str, Layout] | None = None,
        initializer: str | Initializer = "glorot_uniform",
        recurrent_initializer: str | Initializer = "glorot_uniform",
        dtype: Any = np.float32,
        key: Any = None,
    ) -> None:
        name, layouts = type(self).__name__, dict(layouts or {})
        check_sizes(units=units, size=size)
        create: dict[str, Initializer] = {
            "weight": AsMatrix(initializers.get(initializer)),
            "recurrent_weight": AsMatrix(initializers.get(recurrent_initializer)),
        }
        if use_bias:
            create |= dict.fromkeys(self._bias_names(), initializers.zeros)
        self._parameter_specs = {
            array: ParameterSpec(name, function, dtype, layouts.pop(array, None), key, number)
            for number, (array, function) in enumerate(create.items())
        }
        for unknown in layouts:
            remedy = f"The parameters are {', '.join(create)}."
            raise error(LayoutError, name, f"{unknown!r} is no parameter", remedy=remedy)
        self.units, self.size = units, size
        self.sequences, self.states, self.backwards = sequences, states, backwards
        self.weight: DistributedArray | None = None
        if size is not None:
            self._build(size)

    def _bias_names(self) -> Sequence[str]:
        return ("bias",)

    def _build(self, size: int, mesh: Mesh | None = None) -> None:
        """Create the arrays for x of `size` features."""
        self.size = size
        shapes = {"weight": (size,), "recurrent_weight": (self.units,)}
        for name, spec in self._parameter_specs.items():
            shape = (*shapes.get(name, ()), self.gates, self.units)
            is_bias = name not in shapes and self.weight is not None
            layout = self.weight.layout.delete([0]) if is_bias else None  # type: ignore[union-attr]
            setattr(self, name, spec.create(shape, mesh, layout))
        del self._parameter_specs

    def __call__(self, x: Any, state: Any = None, mask: Any = None) -> Any:
        name = type(self).__name__
        if np.ndim(x) != 3:
            problem = f"x has shape {list(np.shape(x))}, not (batch, steps, features)"
            raise error(ShapeError, problem)
        if self.size is None or self.weight is None:
            self._build(features_of(name, x, 3), mesh_of(self, x))
        check_features(name, x, self.size or 0)
        if mask is not None:
            mask = _checked_mask(name, mask, x)
        x, weight, bias = in_compute_dtype(self, x, self.weight, getattr(self, "bias", None))
        inputs = einsum("bti,igu->btgu", x, weight)  # (batch, steps, gates, units)
        inputs = inputs if bias is None else inputs + bias
        if self.backwards:
            inputs, mask = flip(inputs, 1), None if mask is None else flip(mask, 1)
        state = self._start(inputs) if state is None else tuple(state)
        results = []
        for step, own in enumerate(steps_of(inputs)):
            later = self._next(own, state)
            if mask is not None:
                seen = mask[:, step, None]  # (batch, 1)
                later = tuple(where(seen, new, old) for new, old in zip(later, state, strict=True))
            state = later
            if self.sequences:
                results.append(state[0])
        y = stack(results, 1) if results else state[0]
        if self.sequences and not results:
            y = inputs[:, :, 0]
        return (y, state) if self.states else y

    def _start(self, inputs: Any) -> State:
        """Return the state before the first step: zeros, split as batch and units of the inputs."""
        batch, _, _, units = inputs.layout.dims
        layout = Layout.of(inputs.mesh, (batch, units))
        shape = (inputs.shape[0], self.units)
        return tuple(zeros(shape, inputs.dtype, layout=layout) for _ in range(self.state_arrays))

    def _next(self, inputs: Any, state: State) -> State:
        """Return the state after a step. inputs: (batch, gates, units), before the activations."""
        raise NotImplementedError

    def _recurrent(self, hidden: Any) -> Any:
        """Return the share of the state in the gates, (batch, gates, units)."""
        weight = vars(self)["recurrent_weight"]
        hidden, weight = in_compute_dtype(self, hidden, weight)
        return einsum("bi,igu->bgu", hidden, weight)

    def describe(self) -> str:
        """Return the sizes as text."""
        return f"{'?' if self.size is None else self.size} -> {self.units}"


def _checked_mask(layer: str, mask: Any, x: Any) -> DistributedArray:
    """Return the mask of the steps of x as an array; raise ShapeError or DtypeError for another."""
    (mask,) = as_operands(layer, mask=mask)
    if mask.shape != x.shape[:2]:
        problem = f"mask has shape {list(mask.shape)}, and x {list(x.shape)}"
        raise error(ShapeError, layer, problem, remedy="It is (batch, steps).")
    if mask.dtype != bool:
        problem, remedy = (
            f"mask has dtype {mask.dtype}",
            "It is True where a step counts: ids != 0.",
        )
        raise error(DtypeError, layer, problem, remedy=remedy)
    return mask


class LSTM(Recurrent):
    """Long short-term memory; arguments as of `Recurrent`.

    The gates are input, forget, cell and output. The state is (hidden, cell); the biases of the
    forget gate begin with 1. Source: Hochreiter and Schmidhuber 1997; Gers et al. 2000.

    >>> layer = gdt.nn.LSTM(4, sequences=True)
    >>> layer(gdt.ones((2, 5, 3), "float32")).shape, list(layer.parameters())
    ((2, 5, 4), ['weight', 'recurrent_weight', 'bias'])
    """

    gates, state_arrays = 4, 2

    def _build(self, size: int, mesh: Mesh | None = None) -> None:
        """Create the arrays for x of `size` features, with biases of 1 for the forget gate."""
        super()._build(size, mesh)
        bias = getattr(self, "bias", None)
        if bias is not None:
            forget = np.array([0, 1, 0, 0], bias.dtype)[:, None]
            self.bias = bias + forget

    def _next(self, inputs: Any, state: State) -> State:
        hidden, cell = state
        gates = self._recurrent(hidden) + inputs  # (batch, 4, units)
        hidden, cell, _ = lstm_cell(gates, cell)
        return hidden, cell


class GRU(Recurrent):
    """A gated recurrent unit; arguments as of `Recurrent`.

    The gates are update, reset and candidate; the reset gate is applied after the product with the
    state, which has biases of its own, `recurrent_bias` (as in Keras and cuDNN). The state is
    (hidden,). Source: Cho et al. 2014.

    >>> gdt.nn.GRU(4)(gdt.ones((2, 5, 3), "float32")).shape
    (2, 4)
    """

    gates = 3

    def _bias_names(self) -> Sequence[str]:
        return ("bias", "recurrent_bias")

    def _next(self, inputs: Any, state: State) -> State:
        (hidden,) = state
        share = self._recurrent(hidden)  # (batch, 3, units)
        bias = getattr(self, "recurrent_bias", None)
        (bias,) = in_compute_dtype(self, bias)
        share = share if bias is None else share + bias
        opening = sigmoid(inputs[:, :2] + share[:, :2])
        candidate = tanh(inputs[:, 2] + opening[:, 1] * share[:, 2])
        return (candidate + opening[:, 0] * (hidden - candidate),)
