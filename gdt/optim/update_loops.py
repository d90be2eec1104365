"""Updates of parameters as compiled loops, in one pass over their arrays."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from gdt.engine.loops import are_arrays, are_floats, vectors
from gdt.fusion.formula_loop import FormulaLoop
from gdt.fusion.loop import are_compiled, packed, run_together
from gdt.fusion.op_formula import code_of

Block = Any
Body = Callable[..., Any]


@lru_cache(maxsize=256)
def _parameters(code: str, *scalars: float) -> Any:
    """The numbers of a step, which all parameters of a dtype share."""
    return packed([(scalar, code) for scalar in scalars])


def in_place(update: FormulaLoop, flagged: FormulaLoop | None = None) -> Callable[..., Any]:
    """Return the function that chooses what runs in the place of an update op's body (see
    `gdt.engine.loops`): a loop; None where operands differ in shape or dtype, and
    where no loop has their dtype.

    flagged: the loop of a call in which a static is true."""

    def choose(body: Body, *operands: Any, **flags: bool) -> Body | None:
        count = len([x for x in operands if isinstance(x, np.ndarray)]) - 1  # without the gradient
        *donated, g = operands[: count + 1]
        if not are_arrays(g) or not are_floats(*operands[count + 1 :]):
            return None
        if any(x.shape != g.shape or x.dtype != g.dtype for x in donated):
            return None
        if g.dtype.char not in "fd" or not g.size or not are_compiled():
            return None
        code, shape = code_of(g.dtype), (g.size,)
        loop = (flagged if flagged and any(flags.values()) else update)[code]
        work = loop.work(shape)
        function, parts = loop.prepared(shape, *[shape] * (count + 1))

        def updated(*operands: Any, out: Any) -> Any:
            blocks = (*out, operands[count])
            elements = blocks if all([b.flags.carray for b in blocks]) else vectors(*blocks)  # noqa: C419
            if elements is None:
                return body(*operands, out=out)
            for x, new in zip(operands, out, strict=False):
                if new is not x:  # the loop updates its operands
                    np.copyto(new, x)
            numbers = _parameters(code, *operands[count + 1 :])
            if len(parts) == 1:
                function(*elements, parts[0][0], numbers)
            else:
                run_together(function, [elements], [(part, numbers) for part, _ in parts], work)
            return out

        return updated

    return choose
