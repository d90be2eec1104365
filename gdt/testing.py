"""The oracle: any function, on any layout and any mesh, equals itself on whole arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Sample:
    """Arguments on which a function is tested.

    args: operands as NumPy arrays or Python scalars. static: keyword arguments.
    expect: a function of the same arguments on whole NumPy arrays; None compares with one device.
    grad: whether gradients with respect to the floating-point operands are checked.
    exact: whether results are bitwise the same in every layout.
    """

    args: tuple[Any, ...]
    static: Mapping[str, Any] = field(default_factory=dict)
    expect: Callable[..., Any] | None = None
    grad: bool = True
    exact: bool = False
