"""Activations by name, as functions, and as layers for `Sequential`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gdt.arguments import checked, checked_class
from gdt.array.array import DistributedArray
from gdt.array.registry import FUNCTIONS
from gdt.errors import ArgumentError, error
from gdt.errors.foreign_names import missing_names
from gdt.nn.module import Module

Function = Callable[[Any], Any]

NAMES = (
    "relu", "gelu", "silu", "elu", "leaky_relu", "sigmoid", "softplus", "tanh", "softmax",
    "log_softmax", "exp", "abs",
)  # fmt: skip


@checked
def get(activation: str | Function | None) -> Function | None:
    """Return the function of an activation; None for None and `"linear"`.

    activation: one of the names in `NAMES`, or a function of an array.

    Raises ArgumentError for another name.

    >>> gdt.nn.activations.get("relu") is gdt.relu
    True
    """
    if activation is None or activation == "linear":
        return None
    if callable(activation):
        return activation
    activation = "silu" if activation == "swish" else activation
    if activation not in NAMES:
        raise error(
            ArgumentError,
            "activation",
            f"{activation!r} is not an activation",
            remedy=f"Pass a function, or one of linear, {', '.join(NAMES)}.",
        )
    return FUNCTIONS[activation]


@checked
def name_of(activation: Function | None) -> str:
    """Return the name under which an activation appears in a repr.

    >>> gdt.nn.activations.name_of(gdt.relu), gdt.nn.activations.name_of(None)
    ('relu', 'linear')
    """
    if activation is None:
        return "linear"
    return str(getattr(activation, "__name__", activation)).rstrip("_")


@checked_class(eager=True)
class Activation(Module):
    """An activation as a layer; x and the result have the same shape.

    activation: a name, such as `"relu"`, or a function of an array.

    >>> gdt.nn.Activation("relu")(gdt.asarray([-1.0, 2.0])).tolist()
    [0.0, 2.0]
    """

    def __init__(self, activation: str | Function) -> None:
        self.activation = get(activation)

    def __call__(self, x: DistributedArray) -> DistributedArray:
        return x if self.activation is None else self.activation(x)

    def describe(self) -> str:
        """Return the activation's name."""
        return name_of(self.activation)


if not TYPE_CHECKING:  # a type checker would take every name for one of the module
    __getattr__ = missing_names(__name__)
