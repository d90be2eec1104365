"""Model: layers that are put together by calling them with symbols."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from gdt.arguments import checked_class, shown_value
from gdt.errors import ArgumentError, ShapeError, error
from gdt.nn.module import Module
from gdt.nn.symbol import Symbol
from gdt.state.trees import leaves, mapped


class Result(NamedTuple):
    """The result of a step of a model, or one of its inputs, by number."""

    number: int


class Call(NamedTuple):
    """A step of a model: the layer, by number, or the function that it calls, and the arguments,
    with a `Result` for each that is computed."""

    layer: int
    function: Callable[..., Any] | None
    arguments: Any


@checked_class(eager=True)
class Model(Module):
    """A model of the layers that lead from its inputs to its outputs.

    inputs, outputs: symbols, or lists of them: `gdt.nn.Input`, and what layers return for symbols.
    Symbols have the operators of arithmetic and are indexed; another function of arrays is made a
    layer by `gdt.nn.Activation`.

    The layers are in the list `layers`, in the order of their calls; a layer that is called twice
    is one layer. Calls take arrays in the order of the inputs, or one list of them, and the mode
    `training`, which by default is the module's.

    Raises ArgumentError for an output that no input leads to; calls raise ShapeError for arrays
    whose rows have other shapes than those of the inputs.

    >>> x = gdt.nn.Input((28, 28))
    >>> hidden = gdt.nn.Dense(16, activation="relu")(gdt.nn.Flatten()(x))
    >>> model = gdt.nn.Model(x, gdt.nn.Dense(10)(gdt.nn.Residual(gdt.nn.Dense(16))(hidden)))
    >>> model(gdt.ones((2, 28, 28))).shape, len(model.layers), list(model.parameters())[0]
    ((2, 10), 4, 'layers.1.weight')
    """

    def __init__(self, inputs: Symbol | Sequence[Any], outputs: Any) -> None:
        symbols = [inputs] if isinstance(inputs, Symbol) else list(inputs)
        for s in [*symbols, *leaves(outputs)]:
            if not isinstance(s, Symbol):
                problem = f"inputs and outputs are symbols, and {shown_value(s)} is none"
                raise error(ArgumentError, problem)
        self.layers: list[Module] = []
        self.input_shapes = tuple((s.shape, s.dtype.name) for s in symbols)
        numbers = {id(s): i for i, s in enumerate(symbols)}
        calls: list[Call] = []
        for symbol in _in_order(list(leaves(outputs)), numbers):
            calls.append(self._call_of(symbol, numbers))
            numbers[id(symbol)] = len(numbers)
        self._calls = tuple(calls)
        self._outputs = mapped(lambda s: Result(numbers[id(s)]), outputs)

    def _call_of(self, symbol: Symbol, numbers: dict[int, int]) -> Call:
        """Return the step that makes a symbol; add its layer to `layers` if it is new."""
        arguments = mapped(
            lambda a: _Held(Result(numbers[id(a)]) if isinstance(a, Symbol) else a),
            [list(symbol.args), symbol.kwargs],
        )
        layer = symbol.function
        if not isinstance(layer, Module):
            return Call(-1, layer, arguments)
        identities = [id(m) for m in self.layers]
        if id(layer) not in identities:
            self.layers.append(layer)
            identities.append(id(layer))
        return Call(identities.index(id(layer)), None, arguments)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "call" in vars(cls) or "__call__" in vars(cls):
            remedy = "Write class Net(gdt.nn.Module), with layers in __init__ and a __call__."
            raise error(ArgumentError, f"{cls.__name__} computes by itself", remedy=remedy)

    def __call__(self, *inputs: Any, training: bool | None = None) -> Any:
        if training is None:
            return self._run(inputs)
        with self.in_mode(training):
            return self._run(inputs)

    def _run(self, inputs: Sequence[Any]) -> Any:
        if len(inputs) == 1 and isinstance(inputs[0], list | tuple):
            inputs = tuple(inputs[0])
        self._check(inputs)
        results = [*inputs]
        for step in self._calls:
            args, kwargs = mapped(lambda held: held.of(results), step.arguments)
            function = step.function or self.layers[step.layer]
            results.append(function(*args, **kwargs))
        return _selected(self._outputs, results)

    def _check(self, inputs: Sequence[Any]) -> None:
        """Raise ShapeError for inputs whose number or rows are not those of the model."""
        if len(inputs) != len(self.input_shapes):
            problem = f"{len(inputs)} arrays for {len(self.input_shapes)} inputs"
            raise error(ShapeError, problem)
        for i, (x, (shape, _)) in enumerate(zip(inputs, self.input_shapes, strict=True)):
            if np.shape(x)[1:] != shape[1:]:
                row_shape = f"(batch, {', '.join(map(str, shape[1:]))})"
                problem = f"input {i} has shape {list(np.shape(x))}, not {row_shape}"
                raise error(ShapeError, problem)


class _Held:
    """An argument of a step: no container, so that results within lists are found, and lists of
    other values stay as they are."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def of(self, results: Sequence[Any]) -> Any:
        """Return the argument once all results before it are there."""
        return results[self.value.number] if isinstance(self.value, Result) else self.value


def _selected(outputs: Any, results: Sequence[Any]) -> Any:
    """Return results in the containers that hold their numbers."""
    if isinstance(outputs, Result):
        return results[outputs.number]
    if isinstance(outputs, dict):
        return {name: _selected(value, results) for name, value in outputs.items()}
    return type(outputs)(_selected(value, results) for value in outputs)


def _in_order(outputs: Sequence[Symbol], numbers: dict[int, int]) -> list[Symbol]:
    """Return the symbols that lead to the outputs, each after those of which it is made.

    numbers: those of the inputs. Raises ArgumentError for another input on the way.
    """
    order: dict[int, Symbol] = {}
    waiting = [(s, False) for s in reversed(outputs)]
    while waiting:
        symbol, is_ready = waiting.pop()
        if id(symbol) in order or id(symbol) in numbers:
            continue
        if symbol.function is None:
            problem = f"the outputs need {symbol}, which is not among the inputs"
            raise error(ArgumentError, problem)
        if is_ready:
            order[id(symbol)] = symbol
        else:
            waiting.append((symbol, True))
            waiting += [(s, False) for s in reversed(symbol.operands)]
    return list(order.values())
