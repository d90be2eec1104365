"""Bodies on the host, chosen once the shapes and dtypes of a plan's blocks are known.

An op may say in its own block what runs in its body's place where something is known about blocks
(`Op.specialize`): a compiled loop (`gdt.engine.loops`), or a function without the body's questions.
On small blocks these cost about as much as the arithmetic.

    @square_root.specialize
    def square_root_loop(body, x, /): ...

The function gets the body, what the plan's first call passes to it, and the statics. It returns
what runs from then on with blocks of these shapes and dtypes, whose memory may lie in any order and
be read-only; or None where the body runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np


class ChosenBody:
    """The body of an op on the host, or a function that takes its place, chosen at the first call.

    choose: the function that `Op.specialize` has declared.
    """

    def __init__(
        self, choose: Callable[..., Any], body: Callable[..., Any], static: Mapping[str, Any]
    ) -> None:
        self.body = partial(body, np, **static)
        self.choose = partial(choose, self.body, **static)
        self.chosen: Callable[..., Any] | None = None

    def __call__(self, *operands: Any, **memory: Any) -> Any:
        if self.chosen is None:
            self.chosen = self.choose(*operands) or self.body
        return self.chosen(*operands, **memory)


def are_arrays(*operands: Any) -> bool:
    """Whether none of them is a number."""
    return all(isinstance(x, np.ndarray) for x in operands)


def are_floats(*operands: Any) -> bool:
    """Whether all of them are Python's floats, which take the dtype of arrays that they meet."""
    return all(type(x) is float for x in operands)
