"""gdt's functions of the names of NumPy's ufuncs take what those take, and have their methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import gdt
from gdt import DistributedArray
from gdt.array.registry import FUNCTIONS
from gdt.engine.ufunc import Ufunc
from gdt.errors import ArgumentError, DtypeError
from gdt.testing import meshes

FOLDED, APART = meshes([(2, 2)], modes=["folded", "apart"])
UFUNCS = sorted(n for n, f in FUNCTIONS.items() if isinstance(f, Ufunc))
BINARY = [n for n in UFUNCS if getattr(np, n).nin == 2]
HOST = np.arange(1.0, 16.0).reshape(5, 3)
MASK = HOST % 3 != 1


def operands(name: str) -> list[np.ndarray]:
    """Two operands of a dtype that the ufunc takes, of which the second broadcasts."""
    ufunc = getattr(np, name)
    for dtypes in ("dd", "ll", "dl"):
        values = [HOST.astype(dtypes[0]), HOST[:1].astype(dtypes[1]) % 4 + 1][: ufunc.nin]
        try:
            with np.errstate(all="ignore"):
                ufunc(*values)
        except TypeError:
            continue
        return [v / 20 if v.dtype.kind == "f" else v for v in values]
    raise AssertionError(name)


def placed(value: Any, mesh: Any = FOLDED) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    axes = [*mesh.axis_names, *[None] * value.ndim]
    return gdt.asarray(value, layout=gdt.Layout(axes[: value.ndim], mesh))


def same(got: Any, want: Any) -> None:
    for g, w in zip(*(r if isinstance(r, tuple) else (r,) for r in (got, want)), strict=True):
        assert isinstance(g, DistributedArray) and g.dtype == w.dtype and g.shape == np.shape(w)
        np.testing.assert_allclose(g.numpy(), w, rtol=1e-6, equal_nan=True)


def zeros_like(result: Any) -> Any:
    parts = result if isinstance(result, tuple) else (result,)
    return tuple(np.full_like(part, 1) for part in parts)


@pytest.mark.parametrize("mesh", [FOLDED, APART], ids=["folded", "apart"])
@pytest.mark.parametrize("name", UFUNCS)
def test_calls_take_the_arguments_of_numpys_ufunc(name: str, mesh: Any) -> None:
    ufunc, function, values = getattr(np, name), FUNCTIONS[name], operands(name)
    arrays = [placed(v, mesh) for v in values]
    with np.errstate(all="ignore"):
        want = ufunc(*values)
        for options in ({}, {"where": MASK}, {"casting": "unsafe"}, {"order": "F"}):
            host = zeros_like(want)
            outs = tuple(placed(part, mesh) for part in host)
            expected = ufunc(*values, out=host, **options)
            got = function(*arrays, out=outs if len(outs) > 1 else outs[0], **options)
            same(got, expected)
            assert all(g is o for g, o in zip(got if len(outs) > 1 else (got,), outs, strict=True))
        if len(outs) == 1:
            assert function(*arrays, outs[0]) is outs[0]
        for options in ({"dtype": np.float32}, {"dtype": int}, {"dtype": bool},
                        {"casting": "no", "order": "C", "subok": False}):  # fmt: skip
            agree(function, ufunc, arrays, values, **options)


def agree(
    function: Callable[..., Any], expect: Any, arrays: Sequence[Any], values: Any, **options: Any
) -> bool:
    """Compare a call with NumPy's; whether gdt takes it. Where NumPy refuses it, gdt does too."""
    try:
        want = expect(*values, **options)
    except (TypeError, ValueError):
        with pytest.raises((TypeError, ValueError)):
            function(*arrays, **options)
        return False
    try:
        got = function(*arrays, **options)
    except (DtypeError, ArgumentError) as refused:
        assert "Use x.numpy()" in str(refused) or "np.asarray(x)" in str(refused)
        return False
    same(got, want)
    return True


@pytest.mark.parametrize("method", ["reduce", "accumulate", "outer", "reduceat"])
@pytest.mark.parametrize("name", BINARY)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_methods_of_ufuncs(name: str, method: str) -> None:
    values = operands(name)[:1]
    values += {"outer": [values[0][0]], "reduceat": [np.array([0, 2, 1])]}.get(method, [])
    arrays = [placed(values[0]), *values[1:]]
    own, expect = getattr(FUNCTIONS[name], method), getattr(getattr(np, name), method)
    for options in ({}, {"axis": 1}, {"axis": -1}) if method != "outer" else ({},):
        agree(own, expect, arrays, values, **options)
    if method == "reduce":
        for options in (
            {"axis": None},
            {"axis": (0, 1), "keepdims": True},
            {"axis": 1, "keepdims": True},
        ):
            agree(own, expect, arrays, values, **options)


@pytest.mark.parametrize(
    ("name", "options"),
    [("add", {"initial": 3.0, "where": MASK}), ("add", {"dtype": np.float32, "axis": 1}),
     ("multiply", {"initial": 2.0}), ("maximum", {"initial": 5.0, "where": MASK}),
     ("logical_and", {"where": MASK, "axis": 1}), ("logical_or", {"keepdims": True})],
)  # fmt: skip
def test_reductions_of_ufuncs_take_masks_and_numbers(name: str, options: dict[str, Any]) -> None:
    function, ufunc = FUNCTIONS[name], getattr(np, name)
    assert agree(function.reduce, ufunc.reduce, [placed(HOST)], [HOST], **options)  # type: ignore[attr-defined]
    want = ufunc.reduce(HOST, **options)
    out = placed(np.zeros_like(want))
    assert function.reduce(placed(HOST), out=out, **options) is out  # type: ignore[attr-defined]
    same(out, want)


@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "divide", "maximum", "minimum"])
def test_ufuncs_combine_at_indices(name: str) -> None:
    host, x = HOST.copy(), placed(HOST)
    getattr(np, name).at(host, ([0, 0, 4], [1, 1, 2]), [2.0, 3.0, 4.0])
    FUNCTIONS[name].at(x, ([0, 0, 4], [1, 1, 2]), [2.0, 3.0, 4.0])  # type: ignore[attr-defined]
    same(x, host)
    with pytest.raises(DtypeError, match=r"numpy.hypot.at: is not available"):
        gdt.hypot.at(x, 0, 1.0)


def test_lists_and_arrays_of_the_host_are_operands_of_ufuncs() -> None:
    assert gdt.add.reduce([[1, 2], [3, 4]]).tolist() == [4, 6]
    assert gdt.multiply.outer([1, 2], np.array([3, 4])).tolist() == [[3, 4], [6, 8]]
    assert gdt.add([1, 2], [3, 4], dtype="float32").dtype == np.float32
    assert gdt.add(x=[1, 2], y=1, casting="unsafe").tolist() == [2, 3]


def test_wrong_arguments_of_ufuncs_are_named() -> None:
    x = placed(HOST)
    with pytest.raises(DtypeError, match=r"Cannot cast ufunc 'add' input 0 from .*float64.*int8"):
        gdt.add(x, 1, dtype="int8")
    with pytest.raises(DtypeError, match="not written into an array of the host"):
        gdt.add(x, 1, out=HOST.copy())  # type: ignore[arg-type]
    with pytest.raises(DtypeError, match="out is an int, not a distributed array"):
        gdt.sum(x, out=3)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="order is none of K, A, C and F"):
        gdt.exp(x, order="Q")
    with pytest.raises(ArgumentError, match="no argument 'axis'"):
        gdt.exp(x, axis=0)  # type: ignore[call-arg]
