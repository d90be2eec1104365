"""Functions of blocks, composed: what surrounds an op's body in a plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from gdt.backend.numpy import Order

Block = Any


class Buffer(NamedTuple):
    """The memory that a body writes into: the arguments of `Backend.empty`."""

    shape: tuple[int, ...]
    dtype: np.dtype
    order: Order


def as_tuple(outputs: Any) -> tuple[Block, ...]:
    """The outputs of a body as a tuple, also where there is only one."""
    return outputs if isinstance(outputs, tuple) else (outputs,)


def in_turn(
    first: Callable[..., Any] | None, second: Callable[..., Any] | None
) -> Callable[..., Any] | None:
    """The function `second(first(...))`; None stands for a function that changes nothing."""
    if first is None or second is None:
        return first or second
    return lambda *xs: second(first(*xs))


def after_preparing(
    befores: Sequence[Callable[[Block], Block] | None], body: Callable[..., Any]
) -> Callable[..., Any]:
    """`body` on operands that have gone through `befores`; None leaves one as it is."""
    preparations = [(n, before) for n, before in enumerate(befores) if before is not None]

    def prepared(*xs: Block, **out: Any) -> Any:
        ready = list(xs)
        for n, before in preparations:
            ready[n] = before(ready[n])
        return body(*ready, **out)

    return prepared
