"""Formulas of ops: what an op computes for one element, and in which dtypes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from gdt.sharding.dtypes import BFLOAT16, FLOAT32

T = TypeVar("T")
Kind = Any  # of an operand: its dtype, or the type of a Python number
Dtypes = Callable[[Sequence[Kind], str | None], Sequence[str] | None]


OPERANDS = "xyzuv"
"""The names of operands in formulas, in their order."""


class OpFormula(NamedTuple):
    """The formula of an op of operands x, y, z, u, v.

    text: see `gdt.fusion.formula`. dtypes: a function of the kinds of the operands and of the dtype
    of the result (None if that is not known): the dtypes to which operands are cast, as `f4`, or
    None if the formula does not apply. propagates: whether the result is infinite or NaN wherever
    an operand is. is_exact: whether the result has the bits of the op's body. fewest: the size of a
    block, in units of `SMALLEST_OP` elements, from which a loop is faster than the body.
    """

    text: str
    dtypes: Dtypes
    propagates: bool = False
    is_exact: bool = True
    fewest: int = 1


# The texts of formulas that propagate. (x / y is 0 where y is infinite.)
PROPAGATING = {"x + y", "x - y", "x * y", "x * x", "-x", "abs(x)", "sqrt(x)"}
UFUNCS: dict[str, OpFormula] = {}
"""The formulas of NumPy's ufuncs, by their names."""


def formula_of(function: Any, static: Mapping[str, Any]) -> OpFormula | None:
    """The formula of a function of blocks, called with these statics; None if it has none."""
    if isinstance(function, np.ufunc):
        return None if static else UFUNCS.get(function.__name__)
    find = getattr(function, "formula", None)
    return find(**static) if callable(find) else None


def code_of(dtype: np.dtype) -> str:
    """The kind and the bytes of a dtype, as `f4`."""
    return f"{dtype.kind}{dtype.itemsize}"


CODE_OF_BFLOAT16 = code_of(BFLOAT16)
FLOAT16 = np.dtype(np.float16)
ROUNDED = frozenset([CODE_OF_BFLOAT16, code_of(FLOAT16)])
"""The dtypes in which kernels do not compute: each op rounds its result to one."""


def dtype_of(code: str) -> np.dtype:
    """The dtype of a code."""
    return BFLOAT16 if code == CODE_OF_BFLOAT16 else np.dtype(code)


def computed_dtypes(formula: OpFormula, kinds: Sequence[Kind], result: str) -> Sequence[str] | None:
    """The dtypes to which a kernel casts operands, see `OpFormula`; for floats of 16 bits float32,
    as `gdt.engine.rounded` does, and ufuncs of float16."""
    wide = [FLOAT32 if kind in (BFLOAT16, FLOAT16) else kind for kind in kinds]
    if result not in ROUNDED:
        return formula.dtypes(wide, result)
    is_rounded_once = all(k in (FLOAT32, np.bool_) for k in wide if isinstance(k, np.dtype))
    return formula.dtypes(wide, code_of(FLOAT32)) if is_rounded_once else None


LOOP_DTYPES = frozenset(["b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8"])


def ufunc_formula(name: str, text: str, kinds: str) -> OpFormula:
    """Declare the formula of a ufunc of NumPy, for loops over dtypes of these kinds; return it."""
    ufunc = getattr(np, name)

    def dtypes(operands: Sequence[Kind], result: str | None) -> Sequence[str] | None:
        try:
            resolved = ufunc.resolve_dtypes((*operands, *[None] * ufunc.nout))
        except TypeError:
            return None
        codes = [code_of(d) for d in resolved[: ufunc.nin]]
        is_known = LOOP_DTYPES.issuperset(codes) and len({*codes}) == 1 and codes[0][0] in kinds
        made = code_of(resolved[-1])
        if not is_known or made not in LOOP_DTYPES or not all(map(_is_cast, operands, codes)):
            return None
        return codes if result in (None, made) else None

    return UFUNCS.setdefault(ufunc.__name__, OpFormula(text, dtypes, text in PROPAGATING))


def _is_cast(operand: Kind, code: str) -> bool:
    """Whether a loop can cast an operand to this dtype; none casts floats to integers."""
    if not isinstance(operand, np.dtype):
        return operand in (int, float, bool)
    own = code_of(operand)
    return own in LOOP_DTYPES and not (own[0] == "f" and code[0] in "iu")


def same_dtypes(operands: Sequence[Kind], result: str | None) -> Sequence[str] | None:
    """Operands in the dtype of the result."""
    if result is None:
        examples = [k if isinstance(k, np.dtype) else k(0) for k in operands]
        result = code_of(np.result_type(*examples))
    are_known = result in LOOP_DTYPES and all(_is_cast(k, result) for k in operands)
    return [result] * len(operands) if are_known else None


def float_dtypes(operands: Sequence[Kind], result: str | None) -> Sequence[str] | None:
    """Operands in the dtype of the result, if that is floating-point."""
    dtypes = same_dtypes(operands, result)
    return dtypes if dtypes and dtypes[0][0] == "f" else None


def has_formula(
    text: str | Callable[..., str],
    dtypes: Dtypes = float_dtypes,
    *,
    replaces: int = 0,
    is_exact: bool = True,
    on_host: bool = True,
) -> Callable[[T], T]:
    """Declare the formula of an op: a decorator of body or op.

    text: the formula, or a function of the statics that makes it. replaces: 0 if the body always
        runs by itself; else a loop takes its place on the host, on blocks of at least so many
        times `SMALLEST_OP` elements. is_exact: whether the formula has the bits of the body.
        on_host: whether loops of the host take it, and not the kernels of GPUs alone.
    """

    def declare(op: T) -> T:
        def find(**static: Any) -> OpFormula:
            written = text(**static) if callable(text) else text
            return OpFormula(written, dtypes, is_exact=is_exact, fewest=replaces)

        declaration = getattr(op, "declaration", None)
        attributes = vars(op if declaration is None else declaration.body)
        if is_exact:
            attributes["formula" if on_host else "formula_of_kernels"] = find
        if replaces:
            attributes["replacement"] = find
        return op

    return declare


def is_reduction(name: str) -> Callable[[T], T]:
    """Declare that an op is a reduction over `axis`, which loops compute: "sum", "max" or "min"; a
    decorator of the op."""
    return has_rows_formula(f"{name}(x)", name)


def has_rows_formula(text: str, name: str = "") -> Callable[[T], T]:
    """Declare the formula of an op over `axis`, whose body computes it by the same loop
    (`gdt.fusion.reducing.of_rows`); a decorator of the op. name: of a reduction that it is."""

    def declare(op: T) -> T:
        op.declaration.body.of_rows = text, name  # type: ignore[attr-defined]
        return op

    return declare


def has_close_formula(
    text: str | Callable[..., str], dtypes: Sequence[str] = ("f4", "f8")
) -> Callable[[T], T]:
    """Declare a formula that takes the place of an op's body on large blocks of the host and is
    close to it, since elementary functions of loops are faster than NumPy's; see `has_formula`.

    dtypes: for which there is a formula of each function that the formula names.
    """

    return has_formula(text, only(dtypes), replaces=1, is_exact=False)


def only(dtypes: Sequence[str]) -> Dtypes:
    """Operands that have the dtype of the result, if that is among `dtypes`."""

    def own(operands: Sequence[Kind], result: str | None) -> Sequence[str] | None:
        found = same_dtypes(operands, result)
        return found if found and found[0] in dtypes and _are_floats(operands, found[0]) else None

    return own


def _are_floats(operands: Sequence[Kind], dtype: str) -> bool:
    """Whether all operands are of this dtype, or numbers: NumPy would widen others first."""
    return all(not isinstance(k, np.dtype) or code_of(k) == dtype for k in operands)
