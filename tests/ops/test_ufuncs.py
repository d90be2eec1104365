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


DTYPES = {
    "fmax": "d", "minimum": "f", "logical_xor": "?", "bitwise_and": "i", "gcd": "l", "lcm": "l",
    "add": "d", "multiply": "d", "hypot": "d", "logaddexp": "d", "divide": "d",
}  # fmt: skip
INDICES = [[0], [3, 3, 0, 20, 1], [2, 5, 9, 9, 14], [20] * 7, [0, 12, 1, 13, 2, 14, 3, 15, 4]]


@pytest.mark.parametrize("shape", [(21,), (24, 3), (1,), (5,), (2, 21)], ids=str)
@pytest.mark.parametrize("mesh", meshes([(2, 4)], modes=["folded", "apart"]), ids=["f", "a"])
@pytest.mark.parametrize("name", DTYPES)
def test_methods_of_ufuncs_along_split_axes(
    name: str, mesh: gdt.Mesh, shape: tuple[int, ...], rng: np.random.Generator
) -> None:
    low, ufunc = 1 if name == "divide" else -3, getattr(np, name)
    host = rng.integers(low, 4, shape).astype(DTYPES[name])
    axis = shape.index(max(shape))
    others = [None] * len(shape)
    for specs in (mesh.axis_names[::-1], mesh.axis_names[1]):
        layout = gdt.Layout([*others[:axis], specs, *others[axis + 1 :]], mesh)
        x = gdt.asarray(host, layout=layout)
        same(ufunc.accumulate(x, axis=axis), ufunc.accumulate(host, axis=axis))
        assert ufunc.accumulate(x, axis=axis).layout is layout
        same(ufunc.reduce(x, axis=axis), ufunc.reduce(host, axis=axis))
        for indices in INDICES:
            at = [i % shape[axis] for i in indices]
            same(ufunc.reduceat(x, at, axis=axis), ufunc.reduceat(host, at, axis=axis))


@pytest.mark.parametrize("mesh", meshes([(4,)], modes=["folded", "apart"]), ids=["f", "a"])
@pytest.mark.parametrize("dtype", ["f", "d", "D"])
def test_sums_from_the_front_keep_negative_zeros(mesh: gdt.Mesh, dtype: str) -> None:
    zeros = -np.zeros(9, dtype)
    x = gdt.asarray(zeros, layout=gdt.Layout(mesh.axis_names, mesh))
    for function in (np.cumsum, np.add.accumulate):
        got, want = function(x).numpy(), function(zeros)
        assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize("mesh", meshes([(8,)], modes=["folded", "apart"]), ids=["f", "a"])
@pytest.mark.parametrize("n", [1 << 10, 1 << 13])
def test_shards_send_one_number_each_to_accumulate(mesh: gdt.Mesh, n: int) -> None:
    x = gdt.asarray(np.arange(float(n)) % 97, layout=gdt.Layout(mesh.axis_names, mesh))
    share, many = x.type.local_nbytes, list(range(0, n, 4))  # of `many`, parts of four elements
    for run, collective, sent in (
        (lambda: np.maximum.accumulate(x), "all_gather", 8 * 7 * 8),
        (lambda: np.fmax.reduce(x), "all_gather", 8 * 7 * 8),
        (lambda: np.maximum.reduceat(x, many), "all_to_all", 8 * share // 2),
    ):
        with gdt.count_collectives() as counter:
            run()
        assert counter.by_kind == {collective: 1} and counter.bytes <= sent
        held = [r.local_nbytes for row in gdt.explain(run).rows for r in row.results]
        assert max(held) <= share


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
