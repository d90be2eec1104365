"""Arguments by position are those of NumPy: no call takes one for another."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import gdt
from gdt import DistributedArray
from gdt.engine.ufunc import Ufunc
from gdt.errors import DtypeError

Parameter = inspect.Parameter
CHAPTERS = ("", "fft", "linalg", "lib.stride_tricks")  # draws of gdt.random begin with the shape
SAME = {"a_min": "min", "a_max": "max", "M": "m"}  # what NumPy calls arguments of gdt


def chapter_of(module: Any, names: str) -> Any:
    for name in filter(None, names.split(".")):
        module = getattr(module, name)
    return module


def pairs() -> Iterator[tuple[str, Callable[..., Any], Callable[..., Any]]]:
    """The functions that NumPy and gdt have under one name, and methods of their arrays."""
    owners = [(c, chapter_of(np, c), chapter_of(gdt, c)) for c in CHAPTERS]
    for chapter, theirs, own in [*owners, ("ndarray", np.ndarray, DistributedArray)]:
        for name in dir(own):
            one, other = getattr(theirs, name, None), getattr(own, name, None)
            is_function = callable(one) and callable(other) and not isinstance(one, type)
            if is_function and not name.startswith("_"):
                yield f"{chapter}.{name}".removeprefix("."), one, other


PAIRS = {name: (one, other) for name, one, other in pairs()}
UNKNOWN = {"fromstring"}  # a function in C without a signature


def positions(function: Callable[..., Any]) -> list[Parameter]:
    kinds = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    return [p for p in inspect.signature(function).parameters.values() if p.kind in kinds]


@pytest.mark.parametrize("name", sorted(PAIRS.keys() - UNKNOWN))
def test_positions_are_those_of_numpy(name: str) -> None:
    theirs, own = map(positions, PAIRS[name])
    for i, (one, other) in enumerate(zip(theirs, own, strict=False)):
        if one.default is not Parameter.empty or other.default is not Parameter.empty:
            assert SAME.get(one.name, one.name) == other.name, f"argument {i + 1}"


def test_the_comparison_meets_what_is_shared() -> None:
    assert len(PAIRS) > 350
    assert {"sum", "ndarray.mean", "fft.fft", "linalg.svd"} <= PAIRS.keys()


Y = np.arange(12.0).reshape(3, 4).astype(np.float32)
CALLS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(["sum", "prod", "mean", "std", "var", "cumsum", "cumprod", "nansum", "nanprod",
                     "nanmean", "nanstd", "nanvar", "nancumsum", "nancumprod"], (0, np.float64)),
    **dict.fromkeys(["max", "min", "ptp", "median", "nanmax", "nanmin"], (0, None)),
    **dict.fromkeys(["any", "all"], (1, None, True)),
    **dict.fromkeys(["argmax", "argmin", "nanargmax"], (1, None)),
    "trace": (1, 0, 1, np.float64), "reshape": ((2, 6), "F"), "clip": (2, 5, None),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_options_by_position_mean_what_they_mean_in_numpy(name: str) -> None:
    x = gdt.asarray(Y, layout=gdt.Layout(["x", None], gdt.create_mesh([("x", 2)])))
    want = getattr(np, name)(Y, *CALLS[name])
    results = [getattr(gdt, name)(x, *CALLS[name]), getattr(np, name)(x, *CALLS[name])]
    if hasattr(Y, name) and name != "reshape":  # whose sizes are given one by one
        results.append(getattr(x, name)(*CALLS[name]))
    for got in results:
        assert got.dtype == want.dtype and got.shape == want.shape
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-6)


def test_keepdims_in_the_place_of_a_dtype_is_an_error() -> None:
    with pytest.raises(DtypeError, match=r"(?s)sum: dtype is True.*keepdims=True, by name"):
        gdt.sum(gdt.asarray(Y), 0, True)


def test_every_op_that_numpy_has_as_a_ufunc_is_one() -> None:
    ufuncs = {n for n in dir(np) if isinstance(getattr(np, n), np.ufunc)} & {*dir(gdt)}
    rest = {n for n in ufuncs if not isinstance(getattr(gdt, n), Ufunc)}
    assert rest == {"divmod", "float_power", "matmul", "matvec", "vecdot", "vecmat"}
    assert not any(hasattr(f, "reduce") for f in (gdt.sum, gdt.where, gdt.tril))
