"""DistributedArray: operators with operands of all kinds, NumPy protocols, values, no aliasing."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gdt
from gdt.errors import ArgumentError, DtypeError, IndexRangeError, MoveError, ShapeError
from gdt.settings import ImplicitFetchWarning

MESH = gdt.create_mesh([("x", 2), ("y", 2)])
APART = gdt.create_mesh([("x", 2), ("y", 2)], blocks=4)
VALUE = np.array(
    [[1.5, -2.0, 3.0], [0.5, 4.0, -1.0], [2.0, 2.5, 0.25], [1.0, 3.0, 5.0], [7.0, 6.0, 2.0]]
)


@pytest.fixture(params=[MESH, APART], ids=["folded", "apart"])
def x(request: pytest.FixtureRequest) -> gdt.DistributedArray:
    return gdt.asarray(VALUE, layout=gdt.Layout(["x", "y"], request.param))


ARITHMETIC = [
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod,
    operator.pow, operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne,
]  # fmt: skip
BITWISE = [operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift]


def same(got: Any, want: Any) -> None:
    assert isinstance(got, gdt.DistributedArray)
    want = np.asarray(want)
    assert got.shape == want.shape and got.dtype == want.dtype
    np.testing.assert_array_equal(got.numpy(), want)


@pytest.mark.parametrize(
    "other", [2, 2.5, True, np.float64(2), np.array([1.0, 2.0, 4.0])], ids=repr
)
@pytest.mark.parametrize("f", ARITHMETIC, ids=lambda f: f.__name__)
def test_operators_take_scalars_and_numpy_arrays_on_both_sides(
    x: gdt.DistributedArray, f: Callable[..., Any], other: Any
) -> None:
    same(f(abs(x), other), f(abs(VALUE), other))
    same(f(other, abs(x)), f(other, abs(VALUE)))


@pytest.mark.parametrize("f", BITWISE, ids=lambda f: f.__name__)
def test_bitwise_operators(f: Callable[..., Any]) -> None:
    value = np.array([1, 6, 3, 12, 7])
    a = gdt.asarray(value, layout=gdt.Layout([("x", "y")], MESH))
    same(f(a, 2), f(value, 2))
    same(f(2, a), f(2, value))
    same(f(a, value), f(value, value))


def test_unary_operators(x: gdt.DistributedArray) -> None:
    same(-x, -VALUE)
    same(+x, +VALUE)
    same(abs(x), abs(VALUE))
    same(~(x > 1), ~(VALUE > 1))


def test_matrix_products_with_numpy_arrays(x: gdt.DistributedArray) -> None:
    w = np.arange(6.0).reshape(3, 2)
    np.testing.assert_allclose((x @ w).numpy(), VALUE @ w, rtol=1e-15)
    np.testing.assert_allclose((w.T @ x.T).numpy(), w.T @ VALUE.T, rtol=1e-15)


@pytest.mark.parametrize("dtype", ["float16", "float32", "int8", "uint8", "complex64", "bool"])
def test_python_scalars_are_weak(dtype: str) -> None:
    value = np.ones(3, dtype)
    a = gdt.asarray(value)
    for scalar in (1, 1.0, True):
        assert (a * scalar).dtype == (value * scalar).dtype
        assert (scalar + a).dtype == (scalar + value).dtype


def test_unknown_operands_are_refused(x: gdt.DistributedArray) -> None:
    for other in ("text", object(), None):
        with pytest.raises(TypeError):
            x + other  # type: ignore[operator]


# ---------------------------------------------------------------- NumPy's protocols


def test_ufuncs_of_numpy_stay_distributed(x: gdt.DistributedArray) -> None:
    for f in (np.exp, np.abs, np.sqrt, np.negative):
        same(f(abs(x)), f(abs(VALUE)))
    same(np.add(VALUE, x), VALUE + VALUE)
    same(np.maximum(x, 1.0), np.maximum(VALUE, 1.0))
    same(np.add.reduce(x, axis=1), np.add.reduce(VALUE, axis=1))
    assert np.exp(x).layout is x.layout


def test_what_ufuncs_cannot_do_is_refused(x: gdt.DistributedArray) -> None:
    with pytest.raises(DtypeError, match=r"numpy\.hypot\.at: is not available"):
        np.hypot.at(x, 0, 1.0)
    with pytest.raises(DtypeError, match="array of the host"):
        np.add(x, x, out=np.empty(VALUE.shape))
    with pytest.raises(DtypeError, match=r"np\.asarray\(x\)"):
        np.isnat(x)


def test_policies_of_implicit_fetches(x: gdt.DistributedArray) -> None:
    np.testing.assert_array_equal(np.asarray(x), VALUE)
    with gdt.implicit_fetch("warn"), pytest.warns(ImplicitFetchWarning, match=r"x\.numpy\(\)"):
        np.asarray(x)
    for call in (np.asarray, np.array):
        with gdt.implicit_fetch("warn"), pytest.warns(ImplicitFetchWarning) as caught:
            call(x)
        assert {w.filename for w in caught} == {__file__}
    with gdt.implicit_fetch("raise"):
        with pytest.raises(MoveError, match="implicit fetch"):
            np.asarray(x)
        np.testing.assert_array_equal(x.numpy(), VALUE)
    with pytest.raises(ArgumentError, match="allow, warn, raise"), gdt.implicit_fetch("never"):
        pass


def test_asarray_of_numpy_converts_and_copies(x: gdt.DistributedArray) -> None:
    assert np.asarray(x, dtype="float32").dtype == np.float32
    np.asarray(x)[0, 0] = 9.0  # a copy, as NumPy's own
    assert x.numpy()[0, 0] == 1.5


# ---------------------------------------------------------------- values


def test_host_views_are_read_only(x: gdt.DistributedArray) -> None:
    with pytest.raises(ValueError, match="read-only"):
        x.numpy()[0, 0] = 1.0
    for shard in x.shards:
        if shard.data.size:
            with pytest.raises(ValueError, match="read-only"):
                shard.data[0, 0] = 1.0


def test_length_iteration_and_membership(x: gdt.DistributedArray) -> None:
    assert len(x) == 5 and 4.0 in x and 11.0 not in x
    for row, want in zip(x, VALUE, strict=True):
        same(row, want)
    with pytest.raises(TypeError, match="rank 0 has no length"):
        len(gdt.asarray(1.0))


def test_scalars() -> None:
    layout = gdt.Layout([], APART, partial=["x"])
    total = gdt.testing.placed(np.asarray(3.0), layout)
    assert float(total) == 3.0 and int(total) == 3 and bool(total) and total.item() == 3.0
    assert complex(total) == 3 + 0j and f"{total:.2f}" == "3.00"
    assert f"{total} {total!s}" == "3.0 3.0" and repr(total).startswith("DistributedArray(3., ")
    assert [1, 2, 3][gdt.asarray(2)] == 3
    for value in (np.arange(3), np.asarray(3.0), np.ones((2, 2))):
        assert bytes(gdt.asarray(value)) == bytes(value) and f"{gdt.asarray(value):}"
    with pytest.raises(TypeError, match=r"format: '\.3f' is a format of one number"):
        f"{gdt.ones(3):.3f}"
    with pytest.raises(DtypeError, match="only an integer"):
        [1, 2][gdt.asarray(1.0)]


def test_item_of_larger_arrays(x: gdt.DistributedArray) -> None:
    assert x.item(1, 2) == VALUE.item(1, 2) and x.item(-1) == VALUE.item(-1)
    assert x.tolist() == VALUE.tolist()
    assert x.item((1, 2)) == VALUE.item((1, 2)) and x.tobytes() == VALUE.tobytes()
    for read in (x.item, x.__float__, x.__int__):  # NumPy: a ValueError, and two TypeErrors
        with pytest.raises(ArgumentError, match="15 elements is no scalar"):
            read()
    with pytest.raises(ShapeError, match=r"gdt\.any\(x\) or gdt\.all\(x\)"):
        bool(x)
    with pytest.raises(IndexRangeError, match="index 15 is out of range for 15"):
        x.item(15)


def test_facts(x: gdt.DistributedArray) -> None:
    assert (x.ndim, x.size, x.itemsize, x.nbytes) == (2, 15, 8, 120)
    assert sum(x.device_nbytes.values()) == 120
    assert x.T.shape == x.mT.shape == (3, 5)
    assert x.block_until_ready() is x
    with pytest.raises(ShapeError, match="rank 1 is not a matrix"):
        x[0].mT  # noqa: B018


def test_bytes_per_device_count_replicas_and_no_padding() -> None:
    x = gdt.asarray(VALUE, layout=gdt.Layout(["x", None], MESH))
    assert x.device_nbytes == {"cpu:0": 72, "cpu:1": 72, "cpu:2": 48, "cpu:3": 48}


def test_methods_of_numpy(x: gdt.DistributedArray) -> None:
    for name in (
        "sum",
        "mean",
        "prod",
        "max",
        "min",
        "any",
        "all",
        "argmax",
        "argmin",
        "std",
        "var",
    ):
        got, want = getattr(x, name)(axis=0), getattr(VALUE, name)(axis=0)
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-14)
    same(x.reshape(3, 5), VALUE.reshape(3, 5))
    same(x.reshape((-1,)), VALUE.reshape(-1))
    same(x.transpose(1, 0), VALUE.T)
    same(x.flatten(), VALUE.flatten())
    same(x.astype("int32"), VALUE.astype("int32"))
    same(x.clip(0, 2), VALUE.clip(0, 2))


REDUCTIONS = ["sum", "mean", "prod", "max", "min", "any", "all", "argmax", "argmin", "std", "var"]


@pytest.mark.parametrize("name", [*REDUCTIONS, "cumsum", "cumprod", "round"])
def test_functions_of_numpy_stay_distributed(x: gdt.DistributedArray, name: str) -> None:
    f = getattr(np, name)
    got, want = f(x), f(VALUE)
    assert isinstance(got, gdt.DistributedArray) and got.dtype == want.dtype
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-13)
    out = np.zeros(want.shape, want.dtype)
    with pytest.raises(DtypeError, match=f"{name}: a distributed array is not written into an arr"):
        getattr(x, name)(out=out)
    own = gdt.asarray(out)
    for results in (f(x, out=own), getattr(x, name)(out=own), getattr(gdt, name)(x, out=own)):
        assert results is own
        np.testing.assert_allclose(own.numpy(), want, rtol=1e-13)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_variances_of_a_dtype_of_some_elements_and_around_a_mean(x: gdt.DistributedArray) -> None:
    mask, middle = np.median(VALUE) < VALUE, VALUE.mean(axis=0, keepdims=True)
    for options in ({"dtype": "float32"}, {"where": mask}, {"mean": middle, "axis": 0},
                    {"where": mask, "axis": 0, "ddof": 1}, {"correction": 1, "keepdims": True},
                    {"where": mask, "mean": middle, "axis": 0, "keepdims": True}):  # fmt: skip
        for name in ("std", "var", "nanstd", "nanvar"):
            with np.errstate(all="ignore"):
                want = getattr(np, name)(VALUE, **options)
                for got in (getattr(gdt, name)(x, **options), getattr(np, name)(x, **options)):
                    assert got.dtype == want.dtype and got.shape == want.shape
                    np.testing.assert_allclose(got.numpy(), want, rtol=1e-6)
    with pytest.raises(DtypeError, match="as float64 the imaginary parts are lost"):
        gdt.nanvar(x * 1j, dtype=float)
    with pytest.raises(DtypeError, match="a variance is no int64"):
        x.std(dtype=int)


def test_repr_shows_values_and_type() -> None:
    x = gdt.asarray([[1.0, 2.0]], layout=gdt.Layout([None, "x"], MESH))
    assert repr(x) == "DistributedArray([[1., 2.]], float64[1, 2]  [-, 'x'])"


# ---------------------------------------------------------------- no aliasing

IN_PLACE = [
    operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ifloordiv,
    operator.imod, operator.ipow,
]  # fmt: skip


@pytest.mark.parametrize("f", IN_PLACE, ids=lambda f: f.__name__)
def test_in_place_operators_write_to_the_array(
    x: gdt.DistributedArray, f: Callable[..., Any]
) -> None:
    view, copy = x[1:], x.copy()
    want = f(VALUE.copy(), 2.0)
    assert f(x, 2.0) is x
    same(x, want)
    same(view, want[1:])
    same(copy, VALUE)


def test_in_place_operators_keep_shape_and_dtype() -> None:
    x = gdt.asarray([1, 2, 3])
    with pytest.raises(DtypeError, match=r"a result of float64 cannot be kept as int64"):
        x += 0.5
    with pytest.raises(ShapeError, match=r"\+=: the result has shape \[2, 3\]"):
        x += np.ones((2, 3), int)
    same(x, [1, 2, 3])


def test_arrays_do_not_change_with_what_they_were_made_of() -> None:
    value = np.ones((4, 4))
    x = gdt.asarray(value, layout=gdt.Layout(["x", None], MESH))
    y = gdt.asarray(value)
    value[:] = 7.0
    assert x.numpy().max() == y.numpy().max() == 1.0


def test_arrays_have_no_hash(x: gdt.DistributedArray) -> None:
    with pytest.raises(TypeError):
        hash(x)


@pytest.mark.parametrize("blocks", [1, 8])
@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "uint8", "uint16", "uint32", "bool"])
def test_running_sums_in_a_small_dtype_wrap_around_as_numpys_do(blocks: int, dtype: str) -> None:
    mesh = gdt.create_mesh([("x", 8)], blocks=blocks)
    values = np.full(17, 100, "int8")
    x = gdt.asarray(values, layout=gdt.Layout(["x"], mesh))
    for ours, numpys in ((gdt.cumsum, np.cumsum), (gdt.cumprod, np.cumprod)):
        got, want = ours(x, dtype=dtype), numpys(values, dtype=dtype)
        assert got.dtype == want.dtype and got.tolist() == want.tolist()


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "bool"])
def test_means_of_more_elements_than_their_dtype_counts(dtype: str) -> None:
    x = np.ones((16, 17))
    got, want = gdt.mean(gdt.asarray(x), dtype=dtype), np.mean(x, dtype=dtype)
    assert got.dtype == want.dtype and got.tolist() == want.tolist()


@pytest.mark.parametrize("symbol", ["&=", "|=", "^=", "<<=", ">>="])
def test_in_place_operators_of_bits_keep_shape_and_dtype(symbol: str) -> None:
    small, wide = gdt.asarray(np.ones(3, "int8")), gdt.asarray(np.ones(3, "int64"))
    names = {"a": small, "b": wide}
    exec(f"a {symbol} b", names)
    assert names["a"].dtype == "int8" and names["a"].shape == (3,)
    with pytest.raises(ShapeError, match="does not fit the array on the left"):
        exec(f"a {symbol} b", {"a": small, "b": gdt.asarray(np.ones((2, 3), "int8"))})


def test_an_axis_out_of_range_is_numpys_axis_error() -> None:
    x = gdt.ones((2, 3))
    for call in (
        lambda: gdt.sum(x, axis=2), lambda: gdt.argmax(x, axis=-3), lambda: gdt.cumsum(x, axis=5),
        lambda: gdt.concat([x, x], axis=2), lambda: gdt.expand_dims(x, 4),
        lambda: gdt.take(x, [0], axis=2), lambda: gdt.squeeze(x, axis=2),
    ):  # fmt: skip
        with pytest.raises(np.exceptions.AxisError, match="out of range for rank") as caught:
            call()
        assert isinstance(caught.value, IndexError) and isinstance(caught.value, ShapeError)


def test_arrays_of_rank_0_have_the_axes_that_numpys_have() -> None:
    names = ["cumsum", "nancumprod", "cumulative_sum", "argsort", "take", "repeat", "sort", "flip"]
    others: dict[str, Any] = {"take": ([0, 0],), "repeat": (2,)}
    for name, axis in itertools.product(names, (0, -1, 1, -2)):
        of_numpy, of_gdt = getattr(np, name), getattr(gdt, name)
        try:
            expected = of_numpy(np.asarray(3.0), *others.get(name, ()), axis=axis)
        except np.exceptions.AxisError:
            with pytest.raises(np.exceptions.AxisError):
                of_gdt(3.0, *others.get(name, ()), axis=axis)
        else:
            result = of_gdt(3.0, *others.get(name, ()), axis=axis)
            assert result.tolist() == expected.tolist() and result.dtype == expected.dtype
    assert gdt.compress([True], 3.0, axis=0).tolist() == [3.0]


def test_one_bound_of_clip_may_be_beyond_the_dtype() -> None:
    values = np.array([0, 5, 200], np.uint8)
    bounds = [(-1, None), (None, 300), (3, None), (None, 3), (-1, 3), (values[::-1], None)]
    for low, high in bounds:
        expected = np.clip(values, low, high)
        result = gdt.clip(values, low, high)
        assert result.dtype == expected.dtype and result.tolist() == expected.tolist()
    for low, high in ((300, None), (None, -1)):
        with pytest.raises(OverflowError, match="out of bounds for uint8"):
            gdt.clip(values, low, high)


def test_broadcasting_with_none_is_numpys() -> None:
    first, none = np.broadcast_arrays(gdt.ones(3), None)  # as matplotlib's bar does
    assert first.tolist() == [1.0, 1.0, 1.0] and none.tolist() == [None, None, None]
    assert type(np.broadcast_arrays(gdt.ones(3), gdt.ones((2, 1)))) is tuple


@pytest.mark.parametrize(("blocks", "size"), [(1, 16), (8, 16), (1, 17)])
def test_what_forbids_copies_gets_none(blocks: int, size: int) -> None:
    mesh = gdt.create_mesh([("x", 8)], blocks=blocks)
    y = gdt.asarray(np.arange(float(size)), layout=gdt.Layout(["x"], mesh)) + 1
    if blocks == 1:  # shards lie one after the other, and padding at the end
        first, second = np.asarray(y, copy=False), np.asarray(y, copy=False)
        assert np.shares_memory(first, second)
        assert np.shares_memory(first, np.from_dlpack(y, copy=False))
    else:
        with pytest.raises(ValueError, match="without a copy"):
            np.asarray(y, copy=False)
        with pytest.raises(BufferError, match="without a copy"):
            np.from_dlpack(y, copy=False)
    with pytest.raises(ValueError, match="without a copy"):
        np.asarray(y, "float32", copy=False)
